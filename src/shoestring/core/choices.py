"""What was chosen for the fields of a recipe that are "auto": a record of the run, beside the recipe as written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from shoestring.core import recipe_file
from shoestring.core.errors import RecipeError, RecordError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Line
from shoestring.core.schema import Record, Text

SHAPE = ("model.width", "model.layers", "model.heads")
"""The fields that `model.size = "auto"` chooses."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The value of one field, and the rule it comes from."""

    field: Annotated[str, Text(255)]
    """As "train.lr"."""
    value: int | float
    reason: Annotated[str, Text(4096)]


@dataclass(frozen=True, kw_only=True)
class Choices(Record):
    """Every choice of a run, made before its plan and kept: a run that is resumed has the same numbers."""

    SCHEMA: ClassVar[str] = "shoestring.choices/1"

    recipe: str
    """Fingerprint of the recipe as it was written."""
    chosen: tuple[Choice, ...]

    def applied(self, recipe: Recipe, where: str) -> Recipe:
        """The recipe with numbers in place of "auto"; RecordError, which names `where`, if they do not fit it."""
        values: dict[str, Any] = {choice.field: choice.value for choice in self.chosen}
        if (given := sorted(values)) != (expected := sorted(chosen_fields(recipe))):
            raise RecordError(f"{where}: chooses {', '.join(given) or 'nothing'}, not {', '.join(expected)}")
        if recipe.model.size is not None:
            values["model.size"] = None
        try:
            return recipe_file.replaced(recipe, values)
        except RecipeError as cause:
            raise RecordError(f"{where}: {'; '.join(cause.problems)}") from cause

    def lines(self) -> tuple[Line, ...]:
        """The choices as lines of a plan."""
        return tuple(
            Line(quantity=choice.field, value=_shown(choice.value), reason=choice.reason) for choice in self.chosen
        )


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def chosen_fields(recipe: Recipe) -> list[str]:
    """The fields that are chosen for a recipe."""
    return [field for name in recipe.autos for field in (SHAPE if name == "model.size" else (name,))]
