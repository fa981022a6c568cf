"""What counting alone says of a recipe's memory and time, for people: no device is touched, and nothing measured."""

from __future__ import annotations

from typing import Any

from shoestring.core.recipe import Recipe
from shoestring.core.units import Bytes, Seconds, rate
from shoestring.cost.cards import find_card
from shoestring.cost.memory import estimate_memory
from shoestring.cost.seconds import estimate_seconds
from shoestring.stages.accounting import vocabulary_of

Row = tuple[str, str, str]


def estimate_rows(recipe: Recipe, card: str | None) -> tuple[dict[str, Any], list[Row]]:
    """The numbers for machines, and (quantity, value, how it was got) for people."""
    vocabulary = vocabulary_of(recipe)
    memory = estimate_memory(recipe, vocabulary, "cuda")
    told: dict[str, Any] = {
        "card": card,
        "fixed_bytes": memory.fixed,
        "row_bytes": memory.per_row,
        "device_bytes": {str(rows): memory.device_bytes(rows) for rows in (1, recipe.batch)},
    }
    rows = [
        ("fixed", Bytes(sum(memory.fixed.values())).short(), _parts(memory.fixed)),
        ("a row", Bytes(sum(memory.per_row.values())).short(), _parts(memory.per_row)),
        _needed(1, memory.device_bytes(1)),
        _needed(recipe.batch, memory.device_bytes(recipe.batch)),
    ]
    if card is None:
        return told, rows
    known = find_card(card)
    if known is None:
        return told, [*rows, ("card", "unknown", f"{card} is not in the list, and nothing is guessed")]
    largest = memory.largest(known.memory_bytes)
    told |= {"card_bytes": known.memory_bytes, "largest": largest}
    rows += [
        ("card", Bytes(known.memory_bytes).short(), f"{card}, by its vendor"),
        ("largest batch", f"{largest:,} rows" if largest else "none", "of all its memory; shoestring measure verifies"),
    ]
    at_once = min(recipe.batch, largest) or 1
    seconds = estimate_seconds(recipe, vocabulary, card, at_once)
    if seconds is None:
        return told, [*rows, ("a pass", "unknown", "the card has no products in the precision asked for")]
    told["seconds"] = {"rows": at_once, "low": seconds.low, "expected": seconds.expected, "high": seconds.high}
    span = (
        f"{Seconds(seconds.low).short()} to {Seconds(seconds.high).short()}, by the share of the peak that others had"
    )
    speed = rate(at_once * recipe.data.length / seconds.expected, "tokens/s")
    return told, [*rows, (f"a pass of {at_once:,}", Seconds(seconds.expected).short(), f"{span}; {speed}")]


def _needed(rows: int, size: int) -> Row:
    return (f"batch {rows:,}", Bytes(size).short(), "on a GPU: what is allocated, holes of the allocator, the context")


def _parts(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {Bytes(size).short()}" for name, size in sizes.items() if size)
