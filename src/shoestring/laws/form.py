"""The form of a law, E + A/N^α + B/D^β, and its optimum. Without numpy, so that a plan can use it at once."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from shoestring.core.errors import UserError

PER_TOKEN = 6.0
"""Training FLOPs per parameter and token: C = 6 N D."""
_FARTHEST = 300.0
"""Largest |ln N| of an optimum: fits with exponents near 0 put it anywhere."""


class Surface(NamedTuple):
    """loss(N, D) = E + A/N^α + B/D^β."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, params: Any, tokens: Any) -> Any:
        return self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta

    @property
    def a_opt(self) -> float:
        """The best N grows as compute to this exponent, β/(α+β); the best D as compute to 1 - a_opt."""
        self._check()
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flops: float, per_token: float = PER_TOKEN) -> tuple[float, float, float]:
        """N, D and loss of the best model with per_token · N · D = flops."""
        self._check()
        _, A, B, alpha, beta = self
        product = flops / per_token
        log_params = (math.log(alpha * A) - math.log(beta * B) + beta * math.log(product)) / (alpha + beta)
        params = math.exp(min(max(log_params, -_FARTHEST), _FARTHEST))
        return params, product / params, self.loss(params, product / params)

    def _check(self) -> None:
        terms = {"A": ("parameters", self.A * self.alpha), "B": ("tokens", self.B * self.beta)}
        absent = {name: what for name, (what, size) in terms.items() if size <= 0}
        if absent:
            more = " and ".join(absent.values())
            raise UserError(
                f"this law has {' = '.join(absent)} = 0: more {more} gain nothing, so no size is best; "
                f"fit points with a wider range of {more}"
            )
