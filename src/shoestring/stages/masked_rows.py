"""Rows of which some tokens are hidden: others of each row every epoch, and the same ones in every evaluation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.core.recipe import Model, Recipe
from shoestring.core.seeds import derive
from shoestring.data.masking import IGNORED, Masked, mask_rows
from shoestring.data.order import Index
from shoestring.data.special_tokens import SpecialTokens, special_tokens, word_starts
from shoestring.data.tokenizers import Tokenizer
from shoestring.evaluate.classes import uniform_and_frequency
from shoestring.models import Batch
from shoestring.models.hf import predicts_hidden, read_config
from shoestring.train.loop import TokenSource


def is_encoder(model: Model) -> bool:
    """Whether a model sees the whole of a row, and predicts hidden tokens or its class, not the next token."""
    if model.family != "hf":
        return model.family == "masked_lm"
    assert model.name is not None, "checked when the recipe was read"
    return predicts_hidden(read_config(model.name), model.name)


class Masking(NamedTuple):
    """How the tokens of a split are hidden."""

    special: SpecialTokens
    share: float
    word_starts: NDArray[np.bool_] | None
    """(vocabulary,): by id; None where each token is hidden on its own."""
    seed: int

    @classmethod
    def of(cls, recipe: Recipe, tokenizer: Tokenizer, split: str) -> Masking:
        """As a recipe says; the splits are masked independently."""
        starts = word_starts(tokenizer) if recipe.data.whole_words else None
        return cls(special_tokens(tokenizer), recipe.data.masked, starts, derive(recipe.run.seed, "masks", split))

    def __call__(self, ids: NDArray[np.int64], numbers: Index, epoch: int) -> Masked:
        """The rows (R, T) that have the numbers (R,), as they are masked in an epoch."""
        return mask_rows(
            ids,
            numbers,
            seed=self.seed,
            epoch=epoch,
            vocab_size=self.special.vocab_size,
            mask_id=self.special.mask,
            special_ids=self.special.fixed,
            share=self.share,
            word_starts=self.word_starts,
        )


class MaskedRows:
    """The rows of a source, each without its last token, masked. A number says the epoch too, as epoch · n + row."""

    def __init__(self, source: TokenSource, masking: Masking, rows: int | None, shifted: bool = False):
        """`rows` is n, None where there is no end; `shifted` rows are numbered in this way by the source already."""
        self._source, self._masking, self._count, self._shifted = source, masking, rows, shifted

    def order(self, seed: int, step: int, batch: int) -> Index:
        found = self._source.order(seed, step, batch)
        if self._count is None or self._shifted:
            return found
        return found + np.arange(step * batch, (step + 1) * batch, dtype=np.int64) // self._count * self._count

    def rows(self, indices: Index) -> Batch:
        """Rows by number, (n, length)."""
        epochs, numbers = (np.zeros_like(indices), indices) if self._count is None else np.divmod(indices, self._count)
        batch = Batch.of(self._source.rows(indices if self._shifted else numbers))
        ids = batch.ids[:, :-1].cpu().numpy()
        inputs, wanted = np.empty_like(ids), np.empty_like(ids)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            inputs[here], wanted[here] = self._masking(ids[here], numbers[here], epoch)
        if batch.segments is None:
            return Batch(torch.from_numpy(inputs), wanted=torch.from_numpy(wanted), share=self._masking.share)
        segments = batch.segments[:, :-1]
        padding = segments.numpy() == 0  # whose ids may be any
        inputs[padding], wanted[padding] = ids[padding], IGNORED
        return Batch(torch.from_numpy(inputs), segments, wanted=torch.from_numpy(wanted), share=self._masking.share)


def check_hidden(batch: Batch) -> Batch:
    """Held-out rows, refused where nothing of them is hidden."""
    if not batch.predictions():
        raise DataError(
            f"no token of the {len(batch.ids):,} held-out rows is hidden; give more text, or raise data.masked, "
            f"evaluate.rows or data.heldout"
        )
    return batch


def hidden_losses(batch: Batch, counts: NDArray[np.int64], special: SpecialTokens) -> dict[str, float]:
    """What is lost on the hidden tokens by a guess, and by the counts of training tokens, (vocabulary,) or fewer."""
    plain, targets = special.plain, batch.targets()[batch.predicted()].numpy()
    counted = np.zeros(special.vocab_size, dtype=np.int64)
    counted[: len(counts)] = counts
    uniform, unigram = uniform_and_frequency(np.searchsorted(plain, targets), counted[plain])
    return {"uniform": uniform, "unigram": unigram}
