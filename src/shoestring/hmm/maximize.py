"""The maximisation step: the parameters that make expected counts, and a prior, most likely.

Shapes: H states, E symbols.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.hmm.expect import Counts
from shoestring.hmm.parameters import HmmError, Parameters
from shoestring.hmm.sampling import stationary


@dataclass(frozen=True, kw_only=True)
class Priors:
    """Pseudo-counts of a whole row of each table, spread evenly over its K cells.

    Each cell gets value / K on top of what was counted, which makes the most likely row under Dirichlet(1 + value / K).
    The defaults weigh as much as a thousandth of one visit to a state: they change nothing that was seen, and leave
    nothing at probability zero. 0 is no prior: maximum likelihood.
    """

    start: float = 1e-3
    transition: float = 1e-3
    emission: float = 1e-3
    end: float = 1e-3
    """Half for stopping, half for going on."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise HmmError(f"prior of {name} = {value}: a pseudo-count must be finite and not negative")


FLAT = Priors(start=0.0, transition=0.0, emission=0.0, end=0.0)
"""No prior."""


def maximize(
    counts: Counts,
    priors: Priors = Priors(),  # noqa: B008  (frozen)
    old: Parameters | None = None,
    tied_start: bool = False,
    dtype: torch.dtype | None = None,
) -> Parameters:
    """The most likely parameters, normalised in float64 and then given in `dtype` (that of `old`, or float64).

    A state that was never visited gets the prior's mean, a uniform row; without a prior it keeps its row of `old`, and
    gets the uniform row only where there is no `old`.

    `tied_start` makes the start distribution the stationary distribution of the new transitions, as for rows cut at
    random from one long text. The start counts are not used then, so that a step need not raise the likelihood.
    """
    sums = torch.stack([table.sum() for table in counts if table is not None])  # a device is waited for once
    if not bool(sums.isfinite().all()):
        raise HmmError("the counts hold a number that is not finite")
    dtype = dtype or (torch.float64 if old is None else old.dtype)
    transition = _rows(counts.transition, priors.transition, None if old is None else old.transition)
    emission = _rows(counts.emission, priors.emission, None if old is None else old.emission)
    if tied_start:
        start = stationary(transition)
    else:
        start = _rows(counts.start[None], priors.start, None if old is None else old.start[None])[0]
    end = None
    if counts.end is not None:
        stop_or_go = torch.stack((counts.end, counts.transition.sum(1)), 1)
        before = None if old is None or old.end is None else torch.stack((old.end, 1 - old.end), 1)
        end = _rows(stop_or_go, priors.end, before)[:, 0]
    tables = (None if table is None else _as(table, dtype) for table in (start, transition, emission, end))
    return Parameters(*tables)  # type: ignore[arg-type]


def log_prior(parameters: Parameters, priors: Priors) -> Float[Tensor, ""]:
    """The logarithm of the prior, less a constant: its sum with the log-likelihood is what EM never lowers."""
    terms = {"start": parameters.start, "transition": parameters.transition, "emission": parameters.emission}
    if parameters.end is not None:
        terms["end"] = torch.stack((parameters.end, 1 - parameters.end), 1)
    total = parameters.start.new_zeros((), dtype=torch.float64)
    for name, table in terms.items():
        total = total + torch.xlogy(getattr(priors, name) / table.shape[-1], table.double()).sum()
    return total


def _rows(
    counts: Float[Tensor, "rows cells"], prior: float, old: Float[Tensor, "rows cells"] | None
) -> Float[Tensor, "rows cells"]:
    cells = counts.shape[1]
    filled = counts.double() + prior / cells
    sums = filled.sum(1, keepdim=True)
    spare = torch.full_like(filled, 1 / cells) if old is None else old.double()
    return torch.where(sums > 0, filled / torch.where(sums > 0, sums, 1), spare)


def _as(table: Tensor, dtype: torch.dtype) -> Tensor:
    """In another type; what only a subnormal number could hold, which some processors are very slow with, as 0."""
    found = table.to(dtype)
    return torch.where(found < torch.finfo(dtype).tiny, 0, found).contiguous()
