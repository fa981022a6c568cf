"""Text that a run's model writes: loaded once, it continues any number of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from shoestring.core.errors import RunError, UserError
from shoestring.core.family import family_of
from shoestring.core.run_folder import RunFolder
from shoestring.core.seeds import derive
from shoestring.core.specs import CheckpointSpec
from shoestring.data.tokenize.tokenizers import Tokenizer, words_of
from shoestring.models.generate import PLAIN, Drawing, generate
from shoestring.models.language_model import LanguageModel
from shoestring.runs.trained_model import BEST, Say, alphabet_of, load_hmm, load_run, silent

if TYPE_CHECKING:
    from shoestring.hmm.parameters import Parameters

MOST_TOKENS = 10**8
"""Of all texts of a call together, as ids in memory."""


class Writer(Protocol):
    """A model that writes."""

    def write(self, prompt: str, tokens: int, drawing: Drawing = PLAIN, count: int = 1, seed: int = 0) -> list[str]:
        """`count` texts that begin with the prompt, and end with a document's end or after `tokens` more tokens."""


class NetworkWriter(NamedTuple):
    """A causal network with its tokenizer, which reads the last `length` tokens for the next one."""

    model: LanguageModel
    tokenizer: Tokenizer
    length: int
    recorded: bool | None = None
    """As for `generate`. False in training: a recording has weights of its own, which no plan counts."""

    def write(self, prompt: str, tokens: int, drawing: Drawing = PLAIN, count: int = 1, seed: int = 0) -> list[str]:
        begun = begin(self.tokenizer, prompt, count, seed)
        skipped = 0 if prompt or self.tokenizer.end is None else begun.shape[1]
        return self.extend(begun, tokens, drawing, seed, skipped)

    def extend(
        self, begun: Tensor, tokens: int, drawing: Drawing = PLAIN, seed: int = 0, skipped: int = 0
    ) -> list[str]:
        """The texts of the rows with so many more tokens, without the first `skipped` ones."""
        device = next(self.model.parameters()).device
        generator = torch.Generator(device).manual_seed(derive(seed, "generate"))
        rows = generate(
            self.model, begun.to(device), tokens, length=self.length, drawing=drawing, generator=generator,
            recorded=self.recorded,
        )  # fmt: skip
        return [_text(self.tokenizer, row[skipped:].tolist(), begun.shape[1] - skipped) for row in rows.cpu()]


class HmmWriter(NamedTuple):
    """A fitted HMM with the words of its symbols."""

    parameters: Parameters
    alphabet: tuple[str, ...]

    def write(self, prompt: str, tokens: int, drawing: Drawing = PLAIN, count: int = 1, seed: int = 0) -> list[str]:
        from shoestring.hmm.sampling import continue_rows, from_sentence_start
        from shoestring.hmm.show import find_words

        draw = None if drawing == PLAIN else drawing.draw
        if prompt:
            begun = find_words(words_of(prompt), self.alphabet)
            rows = continue_rows(self.parameters, begun, count, tokens, seed, draw).tolist()
        else:
            rows = from_sentence_start(self.parameters, self.alphabet, count, tokens, seed, draw)
        return [" ".join(self.alphabet[symbol] for symbol in row) for row in rows]


def begin(tokenizer: Tokenizer, prompt: str, count: int, seed: int) -> Tensor:
    """The prompt's ids; without a prompt, the token that ends a document, or a random one where there is none."""
    ids = [int(index) for index in tokenizer.encode(prompt)] if prompt else []
    if ids:
        return torch.tensor([ids]).repeat(count, 1)
    if tokenizer.end is not None:
        return torch.full((count, 1), tokenizer.end)
    generator = torch.Generator().manual_seed(derive(seed, "first token"))
    return torch.randint(tokenizer.vocab_size, (count, 1), generator=generator)


def _text(tokenizer: Tokenizer, ids: list[int], prompt: int) -> str:
    """The text up to the first end of a document after the prompt's ids."""
    if tokenizer.end is not None and tokenizer.end in ids[prompt:]:
        ids = ids[: ids.index(tokenizer.end, prompt)]
    return tokenizer.decode(ids)


def open_writer(folder: RunFolder, checkpoint: CheckpointSpec = BEST, say: Say = silent) -> Writer:
    """The model of a run's checkpoint; raises RunError for a network that cannot write."""
    recipe = folder.read_recipe()
    if recipe.kind == "hmm":
        saved = load_hmm(folder)
        return HmmWriter(saved.parameters, alphabet_of(saved))
    if family_of(recipe.model).predicts_hidden(recipe.model):
        raise RunError(f"{folder.path}: a masked model fills in hidden tokens, and cannot write a text")
    loaded = load_run(folder, checkpoint, say=say)
    return NetworkWriter(loaded.model, loaded.tokenizer, recipe.data.length)


def check_amount(tokens: int, count: int) -> None:
    """Raise UserError where so many texts of so many tokens are none, or too many for the memory."""
    if count < 1 or count * max(tokens, 1) > MOST_TOKENS:
        raise UserError(
            f"--n {count}, --max-tokens {tokens}: must be at least one text, and at most {MOST_TOKENS:,} tokens in all"
        )


def generate_text(
    folder: RunFolder,
    prompt: str,
    tokens: int,
    drawing: Drawing,
    count: int = 1,
    seed: int = 0,
    checkpoint: CheckpointSpec = BEST,
    say: Say = silent,
) -> list[str]:
    """As `Writer.write`, with the model of a run's checkpoint."""
    check_amount(tokens, count)
    return open_writer(folder, checkpoint, say).write(prompt, tokens, drawing, count, seed)
