"""Minimal pairs of a fitted HMM: sentences that it draws, each beside a spoiled one, and what it prefers itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.seeds import derive
from shoestring.hmm.parameters import Saved
from shoestring.hmm.sampling import from_sentence_start, stationary
from shoestring.runs.preferences import HmmJudge, Item, credit
from shoestring.runs.trained_model import alphabet_of

KINDS = ("swapped", "replaced")
"""How a sentence is spoiled: two neighbours change places, or a word gives way to one drawn by its frequency."""


def make_pairs(saved: Saved, count: int, length: int, seed: int) -> list[dict[str, Any]]:
    """Lines of pairs, as in BLiMP. "oracle" is how much the model itself gets for a pair: 1, 0, or a half for a tie."""
    if length < 2:
        raise UserError(f"--length {length}: two words must be able to change places; take at least 2")
    parameters, alphabet = saved.parameters, alphabet_of(saved)
    draw = np.random.default_rng(derive(seed, "hmm", "pairs"))
    exact = parameters.to("cpu")
    frequencies = (stationary(exact.transition) @ exact.emission.double()).numpy()
    pairs: list[tuple[str, str, str]] = []
    for row in from_sentence_start(parameters, alphabet, 2 * count, length, seed):
        kind = KINDS[len(pairs) % len(KINDS)]
        spoiled = _swapped(row, draw) if kind == "swapped" else _replaced(row, frequencies, draw)
        if spoiled is not None and len(pairs) < count:
            good, bad = (" ".join(alphabet[symbol] for symbol in ids) for ids in (row, spoiled))
            pairs.append((kind, good, bad))
    judge = HmmJudge(parameters, alphabet)
    scores = iter(judge([("", text) for _, *texts in pairs for text in texts]))
    lines = []
    for kind, good, bad in pairs:
        found = [next(scores), next(scores)]
        own = credit(Item("", (good, bad), 0), [each for each in found if each is not None])
        lines.append({"sentence_good": good, "sentence_bad": bad, "UID": kind, "oracle": own})
    return lines


def _swapped(row: list[int], draw: np.random.Generator) -> list[int] | None:
    """The row with two different neighbours changed; None: it has none."""
    places = [place for place in range(len(row) - 1) if row[place] != row[place + 1]]
    if not places:
        return None
    place = int(draw.choice(places))
    return [*row[:place], row[place + 1], row[place], *row[place + 2 :]]


def _replaced(row: list[int], frequencies: Any, draw: np.random.Generator) -> list[int] | None:
    """The row with another word at a place; None: there is no other word."""
    if not row:
        return None
    place = int(draw.integers(len(row)))
    others = np.array(frequencies, float)
    others[row[place]] = 0.0
    if not others.sum() > 0:
        return None
    return [*row[:place], int(draw.choice(len(others), p=others / others.sum())), *row[place + 1 :]]
