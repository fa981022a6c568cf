"""Answers: what can be known about the held-out rows of a stream, because it is known how they were made.

Losses are by position of a row, in nats; the first token of a row is given, not predicted, and left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from shoestring.core.errors import DataError
from shoestring.core.recipe import Recipe
from shoestring.hmm.answers import (
    EntropyRate,
    entropy_rate,
    losses_by_position,
    losses_in_context,
    strategy_predictions,
)
from shoestring.hmm.contexts import IN_CONTEXT, count_corpus, in_context
from shoestring.hmm.parameters import Parameters, Saved
from shoestring.stages.streams import hmm_of, model_stream, open_stream
from shoestring.streams.hmm import HmmStream
from shoestring.streams.markov import MarkovStream, oracle_log_probs
from shoestring.streams.source import HELDOUT, TRAIN
from shoestring.streams.stationary import stationary

COUNTED_ROWS = 1 << 14
"""Training rows that the strategies of a corpus are counted on."""
COUNTED_SYMBOLS = 1 << 12
"""A larger alphabet has too many pairs to count."""
CHUNK_BYTES = 1 << 28
WATCHED_ROWS = 64
"""Held-out rows on which a model is compared with the strategies while it learns."""
ALPHAS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""What a strategy in context may add to every count: each gets the one that is best on training rows."""
RATE_ROWS, RATE_TOKENS, RATE_BURN_IN = 256, 1024, 256
"""Sequences, and their tokens, that an entropy rate is estimated from."""


@dataclass(frozen=True)
class Strategies:
    """What others lose on the held-out rows, in nats a token."""

    losses: dict[str, float]
    by_position: dict[str, tuple[float, ...]] = field(default_factory=dict)
    rate: EntropyRate | None = None


class Answers(Protocol):
    """What is known about a stream."""

    @property
    def stream(self) -> HmmStream | MarkovStream: ...

    def strategies(self, rows: int) -> Strategies:
        """Scored on the first held-out rows."""
        ...

    def predictions(self, rows: int) -> Mapping[str, Tensor]:
        """What strategies expect of the first held-out rows, each (rows, length, symbols)."""
        ...


def open_answers(recipe: Recipe) -> Answers:
    """The answers to a recipe's stream."""
    stream = open_stream(recipe)
    if isinstance(stream, MarkovStream):
        return MarkovAnswers(stream)
    return HmmAnswers(stream, hmm_of(recipe), recipe.stream_settings.start)


class MarkovAnswers:
    """Every row has its own chain: the oracle knows it, the others count."""

    def __init__(self, stream: MarkovStream):
        self.stream = stream

    def strategies(self, rows: int) -> Strategies:
        shown = self.stream.rows(HELDOUT, rows).long()
        found = losses_in_context(shown, self.stream.symbols, self._alphas)
        found["oracle"] = -oracle_log_probs(shown, self.stream.chains(HELDOUT, rows)).mean(0)
        return _strategies(found, None)

    def predictions(self, rows: int) -> Mapping[str, Tensor]:
        rows = _few(rows, self.stream)
        shown = self.stream.rows(HELDOUT, rows).long()
        strategies = in_context(self.stream.symbols, self._alphas, shown.device)
        found = {}
        for name in IN_CONTEXT:
            expected = [guess.p.expand(rows, -1) for guess in strategies[name](shown)]
            found[name] = torch.stack(expected, dim=1)[:, 1:].float()
        return found

    @cached_property
    def _alphas(self) -> dict[str, float]:
        return _alphas(self.stream)


class HmmAnswers:
    """The oracle knows the model, and the permutations of every row."""

    def __init__(self, stream: HmmStream, model: Saved, start: str):
        self.stream, self._model = stream, model
        self._parameters = model.parameters if start == "model" else self._from_stationary()

    def strategies(self, rows: int) -> Strategies:
        shown = self.stream.rows(HELDOUT, rows).long()
        counts = None
        if self.stream.symbols <= COUNTED_SYMBOLS:
            counts = count_corpus(self.stream.rows(TRAIN, COUNTED_ROWS).long(), self.stream.symbols)
        found = losses_by_position(self._parameters, shown, *self._disguise(rows), counts, self._alphas)
        return _strategies(found, self.rate())

    def predictions(self, rows: int) -> Mapping[str, Tensor]:
        rows = _few(rows, self.stream)
        shown = self.stream.rows(HELDOUT, rows).long()
        found = strategy_predictions(self._parameters, shown, *self._disguise(rows), self._alphas)
        return {name: p[:, 1:] for name, p in found.items()}

    @cached_property
    def _alphas(self) -> dict[str, float]:
        return _alphas(self.stream)

    def rate(self) -> EntropyRate | None:
        """Of the model itself: a row's permutations are learned once, at a cost that a long row forgets.

        None for a chain that ends in one of several parts, each with a rate of its own.
        """
        try:
            settled = self._from_stationary()
        except DataError:
            return None
        plain = model_stream(self._model, self.stream.key, RATE_TOKENS, start="stationary")
        return entropy_rate(settled, plain.rows(HELDOUT, RATE_ROWS).long(), RATE_BURN_IN)

    def _from_stationary(self) -> Parameters:
        parameters = self._model.parameters
        return parameters._replace(start=torch.from_numpy(stationary(parameters.transition.numpy())))

    def _disguise(self, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """The permutations of the held-out rows."""
        symbols, states = (
            None if self.stream.kinds[name].name == "none" else self.stream.permutations(name, HELDOUT, rows)
            for name in ("symbols", "states")
        )
        return symbols, states


def _few(rows: int, stream: HmmStream | MarkovStream) -> int:
    """As many rows as leave room for what three strategies expect at every position."""
    return max(1, min(rows, CHUNK_BYTES // (12 * stream.length * stream.symbols)))


def _alphas(stream: HmmStream | MarkovStream) -> dict[str, float]:
    """By strategy, that of `ALPHAS` which is best on training rows."""
    rows = stream.rows(TRAIN, WATCHED_ROWS).long()
    losses = {alpha: losses_in_context(rows, stream.symbols, alpha) for alpha in ALPHAS}
    return {name: min(ALPHAS, key=lambda alpha: float(losses[alpha][name].mean())) for name in IN_CONTEXT}


def _strategies(by_position: Mapping[str, Tensor], rate: EntropyRate | None) -> Strategies:
    predicted = {name: losses[1:] for name, losses in by_position.items()}
    losses = {name: float(values.mean()) for name, values in predicted.items()}
    return Strategies(losses, {name: tuple(values.tolist()) for name, values in predicted.items()}, rate)
