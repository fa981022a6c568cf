"""A corpus of your own: a function without arguments that yields texts, the same ones each time it is called."""

from __future__ import annotations

from collections.abc import Iterator

ANIMALS = ("cat", "dog", "hen", "fox", "owl", "cow", "pig", "ant")
PLACES = ("barn", "hill", "pond", "wood", "road")


def documents() -> Iterator[str]:
    """Eight hundred little stories in which what an animal did comes again at the end."""
    for number in range(800):
        animal, other = ANIMALS[number % 8], ANIMALS[(number // 8 + 3) % 8]
        place = PLACES[number * 7 % 5]
        yield (
            f"a {animal} went to the {place} . there it met a {other} . the {other} said hello to the {animal} . "
            f"so the {animal} and the {other} stayed at the {place} ."
        )
