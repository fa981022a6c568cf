"""Fingerprints of a base model: prompts of token ids, at whose ends a tuned model is compared with the base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from shoestring.core.errors import UserError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.schema import Between, Record

MOST_ID = 1 << 31


@dataclass(frozen=True, kw_only=True)
class Fingerprints(Record):
    """Prompts that any run with these ids can be compared on."""

    SCHEMA: ClassVar[str] = "shoestring.fingerprints/1"

    base: str
    """Where the model that wrote them comes from: a run with its step, or a folder or name of transformers."""
    weights: str
    """Sixteen hexadecimal digits of its weights."""
    vocabulary: Annotated[int, Between(2, MOST_ID), "ids that it predicts"]
    k: Annotated[int, Between(1, MOST_ID), "ids that are compared at each end of a prediction"]
    seed: int
    least: Annotated[int, Between(1, MOST_ID), "least likely ids, of which each further one of a prompt was drawn"]
    prefix: Annotated[int, Between(1, 10**6), "first ids of a prompt, drawn from all ordinary ones"]
    prompts: tuple[tuple[int, ...], ...]
    likeliest: tuple[float, ...]
    """The log-probability of the likeliest next id after each prompt, by which the base is known again."""

    @property
    def length(self) -> int:
        """Ids of each prompt."""
        return len(self.prompts[0])

    def contradictions(self) -> list[str]:
        found = []
        if not self.prompts or len({len(prompt) for prompt in self.prompts}) > 1 or not self.prompts[0]:
            found.append("prompts: must be at least one, and all of the same length")
        elif any(not 0 <= index < self.vocabulary for prompt in self.prompts for index in prompt):
            found.append(f"prompts: an id is outside the vocabulary of {self.vocabulary:,}")
        if len(self.likeliest) != len(self.prompts):
            found.append(f"likeliest: has {len(self.likeliest)} numbers for {len(self.prompts)} prompts")
        if self.k >= self.vocabulary:
            found.append(f"k = {self.k:,}: must be below the vocabulary of {self.vocabulary:,}")
        return found


def read_fingerprints(recipe: Recipe) -> Fingerprints:
    """The file of `evaluate.overlap`; raises UserError where the recipe's model cannot be compared on it."""
    place = recipe.evaluate.overlap
    assert place is not None, "the recipe names one"
    where = f'evaluate.overlap = "{place}"'
    if family_of(recipe.model).predicts_hidden(recipe.model):
        raise UserError(f"{where}: is for networks that predict the next token, and a masked one does not")
    found = Fingerprints.read(Path(place).expanduser())
    if found.length > recipe.data.length:
        raise UserError(
            f"{where}: its prompts have {found.length} tokens, and data.length = {recipe.data.length}; make shorter "
            f"ones with: shoestring fingerprints BASE --length {recipe.data.length}"
        )
    return found
