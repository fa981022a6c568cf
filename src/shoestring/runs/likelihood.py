"""How likely a network finds tokens after others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.models.families.perceiver_ar.network import PerceiverAR
from shoestring.models.language_model import LanguageModel

_PASS_NUMBERS = 1 << 24
"""Logits of one pass, at most, unless a single row has more."""


class Scored(NamedTuple):
    """Of tokens after others."""

    log_p: float
    greedy: bool
    """Whether each of them is the likeliest one at its place."""


def score_tokens(
    model: LanguageModel, length: int, texts: Sequence[tuple[Sequence[int], int]], vocabulary: int
) -> list[Scored]:
    """For each (ids, first) the likelihood of the ids from `first` on, after those before; `first` is at least 1.

    A network reads at most `length` tokens before the one that it predicts. What it cannot predict in one pass, since
    there are more than `length` tokens (of a Perceiver AR: latents), is scored in pieces, each of which reads as much
    before it as fits.
    """
    most = model.latents if isinstance(model, PerceiverAR) else length
    pieces = [(place, *piece) for place, text in enumerate(texts) for piece in _pieces(*text, length, most)]
    log_p, greedy = [0.0] * len(texts), [True] * len(texts)
    for group in by_length([row for _, row, _ in pieces], vocabulary):
        found, likeliest = _predictions(model, torch.tensor([list(pieces[number][1]) for number in group]))
        for number, row, same in zip(group, found, likeliest):
            place, _, count = pieces[number]
            log_p[place] += float(row[len(row) - count :].sum())
            greedy[place] &= bool(same[len(row) - count :].all())
    return [Scored(*both) for both in zip(log_p, greedy)]


def _pieces(ids: Sequence[int], first: int, length: int, most: int) -> Iterator[tuple[Sequence[int], int]]:
    """Rows of one pass each, and how many of their last tokens are scored."""
    for begin in range(first, len(ids), most):
        end = min(begin + most, len(ids))
        yield ids[max(0, end - length - 1) : end], end - begin


@torch.no_grad()
def _predictions(model: LanguageModel, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(log p, whether it is the likeliest) of the tokens that are predicted: all but the first, or the last ones."""
    device = next(model.parameters()).device
    logits = model.logits(rows[:, :-1].to(device)).float()
    targets = rows[:, 1:][:, -logits.shape[1] :].to(device)
    log_p = logits.log_softmax(-1).gather(2, targets[..., None])[..., 0]
    return log_p.double().cpu(), (logits.argmax(-1) == targets).cpu()


def by_length(rows: Sequence[Sequence[int]], width: int) -> Iterable[list[int]]:
    """The places of rows of equal length, without empty ones, in groups for one pass each."""
    order = sorted((place for place, row in enumerate(rows) if row), key=lambda place: len(rows[place]))
    for length, group in itertools.groupby(order, key=lambda place: len(rows[place])):
        places, most = list(group), max(1, _PASS_NUMBERS // (length * width))
        yield from (places[first : first + most] for first in range(0, len(places), most))
