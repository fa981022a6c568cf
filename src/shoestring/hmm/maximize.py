"""The maximisation step: the parameters that make expected counts, and a prior, most likely.

Shapes: H states, E symbols.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.hmm.expect import Counts
from shoestring.hmm.parameters import TOLERANCE, HmmError, Parameters
from shoestring.hmm.sampling import stationary


@dataclass(frozen=True, kw_only=True)
class Priors:
    """Pseudo-counts for a whole row of each table, spread evenly over its K cells.

    Each cell gets value / K on top of its count, which gives the most likely row under Dirichlet(1 + value / K). The
    defaults weigh as much as a thousandth of one visit to a state: they hardly change what was seen, and leave nothing
    at probability zero. 0 means no prior: maximum likelihood.
    """

    start: float = 1e-3
    transition: float = 1e-3
    emission: float = 1e-3
    end: float = 1e-3
    """Half for stopping, half for continuing."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise HmmError(f"prior of {name} = {value}: a pseudo-count must be finite and not negative")


USUAL = Priors()


def maximize(
    counts: Counts,
    priors: Priors = USUAL,
    old: Parameters | None = None,
    tied_start: bool = False,
) -> Parameters:
    """The most likely parameters, normalised in float64 and returned in the type of `old`, or in float64.

    A state that was never visited gets the prior's mean, a uniform row. Without a prior it keeps its row of `old`, or
    gets the uniform row where there is no `old`.

    `tied_start` makes the start distribution the stationary distribution of the new transitions, as for rows cut at
    random from one long text. The start counts are then ignored, so a step may lower the likelihood.
    """
    sums = torch.stack([table.sum() for table in counts if table is not None])  # waits for the device only once
    if not bool(sums.isfinite().all()):
        raise HmmError("the counts hold a number that is not finite")
    dtype = torch.float64 if old is None else old.dtype
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
    """The logarithm of the prior, up to a constant. EM never lowers its sum with the log-likelihood."""
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
    """The table in another type, with 0 for subnormal numbers, which are very slow on some processors."""
    found = table.to(dtype)
    return torch.where(found < torch.finfo(dtype).tiny, 0, found).contiguous()


def check_tables(parameters: Parameters) -> None:
    """Raise Fault unless the M-step gave distributions: finite, not negative, and with sums of 1."""
    off = [(table.double().sum(-1) - 1).abs().max() for table in parameters[:3]]
    low = [table.min() for table in parameters if table is not None]
    high = [] if parameters.end is None else [parameters.end.max() - 1]
    worst, lowest = numbers(torch.stack([*off, *high]).max(), torch.stack(low).min())
    if not (worst <= TOLERANCE and lowest >= 0):  # false for NaN, too
        raise Fault(f"the M-step gave tables that are no distributions: a row's sum is {worst:g} away from 1, "
                    f"the lowest cell {lowest:g}")  # fmt: skip


def numbers(*values: Tensor) -> list[float]:
    """Several numbers with one wait for the device."""
    found: list[float] = torch.stack([value.double() for value in values]).tolist()
    return found
