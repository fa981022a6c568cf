"""Baselines of a stream. One of them is an oracle, since it is known how the rows were drawn.

Losses are by position of a row, in nats. The first token of a row is given, not predicted, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from shoestring.baselines.in_context import IN_CONTEXT, in_context
from shoestring.baselines.ngram import count
from shoestring.baselines.oracle import (
    EntropyRate,
    baseline_predictions,
    entropy_rate,
    losses_by_position,
    losses_in_context,
)
from shoestring.core.errors import DataError
from shoestring.datasets.corpus import StreamCorpus
from shoestring.datasets.streams import hmm_of, model_stream
from shoestring.hmm.parameters import Parameters, Saved
from shoestring.streams.hmm import HmmStream
from shoestring.streams.markov import MarkovStream, oracle_log_probs
from shoestring.streams.source import HELDOUT, TRAIN
from shoestring.streams.stationary import stationary

COUNTED_ROWS = 1 << 14
"""Training rows that the baselines of a corpus are counted on."""
COUNTED_SYMBOLS = 1 << 12
"""Pairs are not counted in a larger alphabet."""
CHUNK_BYTES = 1 << 28
WATCHED_ROWS = 64
"""Held-out rows on which a model is compared with the baselines while it learns."""
ALPHAS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""What a baseline in context may add to every count. Each baseline gets the value that is best on training rows."""
RATE_ROWS, RATE_TOKENS, RATE_BURN_IN = 256, 1024, 256
"""The sample for an estimate of the entropy rate: sequences, tokens of each, and those that are not counted."""


@dataclass(frozen=True)
class Baselines:
    """Losses of the baselines on the held-out rows, in nats per token."""

    losses: dict[str, float]
    by_position: dict[str, tuple[float, ...]] = field(default_factory=dict)
    rate: EntropyRate | None = None


class _StreamBaselines:
    """A stream with the best `ALPHAS` for its baselines in context."""

    stream: HmmStream | MarkovStream

    @cached_property
    def _alphas(self) -> dict[str, float]:
        """By baseline, the alpha that is best on training rows."""
        rows = self.stream.rows(TRAIN, WATCHED_ROWS).long()
        losses = {alpha: losses_in_context(rows, self.stream.symbols, alpha) for alpha in ALPHAS}
        return {name: min(ALPHAS, key=lambda alpha: float(losses[alpha][name].mean())) for name in IN_CONTEXT}

    def _few(self, rows: int) -> int:
        """As many of the rows as leave room for the predictions of three baselines at every position."""
        return max(1, min(rows, CHUNK_BYTES // (12 * self.stream.length * self.stream.symbols)))


class MarkovBaselines(_StreamBaselines):
    """Every row has its own chain, which only the oracle knows; the others count."""

    def __init__(self, stream: MarkovStream):
        self.stream: MarkovStream = stream

    def baselines(self, rows: int) -> Baselines:
        """The losses on the first held-out rows."""
        shown = self.stream.rows(HELDOUT, rows).long()
        losses = losses_in_context(shown, self.stream.symbols, self._alphas)
        losses["oracle"] = -oracle_log_probs(shown, self.stream.chains(HELDOUT, rows)).mean(0)
        return _baselines(losses, None)

    def predictions(self, rows: int) -> Mapping[str, Tensor]:
        """What baselines expect of the first held-out rows, each (rows, length, symbols)."""
        rows = self._few(rows)
        shown = self.stream.rows(HELDOUT, rows).long()
        baselines = in_context(self.stream.symbols, self._alphas, shown.device)
        expected = {name: [guess.p.expand(rows, -1) for guess in baselines[name](shown)] for name in IN_CONTEXT}
        return {name: torch.stack(each, dim=1)[:, 1:].float() for name, each in expected.items()}


class HmmBaselines(_StreamBaselines):
    """The oracle knows the model, and the permutations of every row."""

    def __init__(self, stream: HmmStream, model: Saved, start: str):
        self.stream: HmmStream = stream
        self._model = model
        self.parameters = model.parameters if start == "model" else self._from_stationary()

    def baselines(self, rows: int) -> Baselines:
        """The losses on the first held-out rows."""
        shown = self.stream.rows(HELDOUT, rows).long()
        counts = None
        if self.stream.symbols <= COUNTED_SYMBOLS:
            counts = count([self.stream.rows(TRAIN, COUNTED_ROWS).numpy()], self.stream.symbols)
        losses = losses_by_position(self.parameters, shown, *self._permutations(rows), counts, self._alphas)
        return _baselines(losses, self.rate())

    def predictions(self, rows: int) -> Mapping[str, Tensor]:
        """What baselines expect of the first held-out rows, each (rows, length, symbols)."""
        rows = self._few(rows)
        shown = self.stream.rows(HELDOUT, rows).long()
        expected = baseline_predictions(self.parameters, shown, *self._permutations(rows), self._alphas)
        return {name: p[:, 1:] for name, p in expected.items()}

    def rate(self) -> EntropyRate | None:
        """The entropy rate of the model without permutations: these cost little in a long row, once they are learned.

        None for a chain that ends in one of several parts, each with its own rate.
        """
        try:
            parameters = self._from_stationary()
        except DataError:
            return None
        plain = model_stream(self._model, self.stream.key, RATE_TOKENS, start="stationary")
        return entropy_rate(parameters, plain.rows(HELDOUT, RATE_ROWS).long(), RATE_BURN_IN)

    def _from_stationary(self) -> Parameters:
        parameters = self._model.parameters
        return parameters._replace(start=torch.from_numpy(stationary(parameters.transition.numpy())))

    def _permutations(self, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """The permutations of symbols and of states in the held-out rows."""
        symbols, states = (
            None if self.stream.kinds[name].name == "none" else self.stream.permutations(name, HELDOUT, rows)
            for name in ("symbols", "states")
        )
        return symbols, states


def stream_baselines(corpus: StreamCorpus) -> HmmBaselines | MarkovBaselines:
    """The baselines of a recipe's stream."""
    if isinstance(corpus.stream, MarkovStream):
        return MarkovBaselines(corpus.stream)
    return HmmBaselines(corpus.stream, hmm_of(corpus.recipe), corpus.recipe.stream_settings.start)


def _baselines(by_position: Mapping[str, Tensor], rate: EntropyRate | None) -> Baselines:
    predicted = {name: losses[1:] for name, losses in by_position.items()}
    losses = {name: float(values.mean()) for name, values in predicted.items()}
    return Baselines(losses, {name: tuple(values.tolist()) for name, values in predicted.items()}, rate)
