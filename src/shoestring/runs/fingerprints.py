"""Make the fingerprints of a base model: a run, or a folder or hub name of transformers."""

from __future__ import annotations

from typing import NamedTuple

import torch

from shoestring.core.errors import UserError
from shoestring.core.family import family_of
from shoestring.core.fingerprints import Fingerprints
from shoestring.core.run_folder import RunFolder, named_run
from shoestring.core.sections import Model
from shoestring.core.seeds import derive
from shoestring.core.specs import TokenizerSpec
from shoestring.data.tokenize.special_tokens import special_tokens
from shoestring.data.tokenize.tokenizers import Tokenizer, open_tokenizer
from shoestring.models.fingerprint_prompts import draw_prompts, weights_fingerprint
from shoestring.models.language_model import LanguageModel, build
from shoestring.probe.machine import pick_device
from shoestring.runs.trained_model import BEST, Say, load_run, silent

MOST_COMPARED, COMPARED_SHARE = 2000, 0.1
"""Ids that are compared at each end, where nothing else is asked for: so many, or this share of a small vocabulary."""


class Base(NamedTuple):
    """The model whose fingerprints are made."""

    model: LanguageModel
    tokenizer: Tokenizer
    name: str
    longest: int | None
    """Tokens that it has seen in a row; None: as its config says."""


class Shape(NamedTuple):
    """How many prompts, and of what."""

    prompts: int = 20
    prefix: int = 8
    length: int = 64
    least: int = 50
    k: int | None = None


def open_base(place: str, length: int, tokenizer: str | None = None, say: Say = silent) -> Base:
    """The model of RUN, RUN#CHECKPOINT, or a folder or name of transformers, for prompts of `length` tokens.

    `tokenizer` is that of a transformers folder without one.
    """
    run, checkpoint = named_run(place, BEST)
    if RunFolder(run).recipe.is_file():
        if tokenizer is not None:
            raise UserError(f'--tokenizer "{tokenizer}": {place} is a run, which has its own; leave it out')
        loaded = load_run(RunFolder.open(run), checkpoint, say=say)
        if family_of(loaded.recipe.model).predicts_hidden(loaded.recipe.model):
            raise UserError(
                f"{place}: a masked model does not predict the next token; fingerprints are of those that do"
            )
        return Base(loaded.model, loaded.tokenizer, f"{run}, step {loaded.step:,}", loaded.recipe.data.length)
    spec = Model(family="hf", name=place)
    if family_of(spec).predicts_hidden(spec):
        raise UserError(f"{place}: a masked model does not predict the next token; fingerprints are of those that do")
    given = TokenizerSpec(tokenizer or f"hf:{place}")
    if (problem := given.problem()) is not None or given.fitted is not None:
        raise UserError(
            f'--tokenizer "{tokenizer}": {problem or "what is fitted to a corpus is not the tokenizer of a model"}'
        )
    opened = open_tokenizer(given)
    model = build(spec, opened.vocab_size, length, 0)
    return Base(model.to(pick_device()).eval(), opened, place, None)


def make_fingerprints(base: Base, shape: Shape, seed: int = 0) -> Fingerprints:
    """Draw the prompts; raises UserError where the model is too small for them."""
    if base.longest is not None and shape.length > base.longest:
        raise UserError(f"--length {shape.length}: {base.name} has rows of {base.longest}; give at most that")
    if shape.prefix >= shape.length:
        raise UserError(f"--prefix {shape.prefix}: must be below --length {shape.length}")
    ordinary = torch.from_numpy(special_tokens(base.tokenizer).plain)
    ordinary = ordinary[ordinary < base.tokenizer.vocab_size]
    if shape.least >= len(ordinary):
        raise UserError(f"--least {shape.least}: the model has only {len(ordinary)} ordinary tokens; give fewer")
    ids = draw_prompts(base.model, ordinary, *shape[:4], derive(seed, "fingerprints"))
    with torch.no_grad():
        logits = base.model.last_logits(ids.to(next(base.model.parameters()).device)).float()
    vocabulary = logits.shape[1]
    k = shape.k or max(1, min(MOST_COMPARED, int(COMPARED_SHARE * vocabulary)))
    if k >= vocabulary:
        raise UserError(f"--k {k}: must be below the {vocabulary:,} ids that {base.name} predicts")
    return Fingerprints(
        base=base.name,
        weights=weights_fingerprint(base.model),
        vocabulary=vocabulary,
        k=k,
        seed=seed,
        least=shape.least,
        prefix=shape.prefix,
        prompts=tuple(map(tuple, ids.tolist())),
        likeliest=tuple(logits.log_softmax(-1).max(dim=1).values.tolist()),
    )
