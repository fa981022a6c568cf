"""Weights under the names of another library, there and back.

A network is described by pairs of names: that of a module of ours, and those of the modules it is there, several where
our product is one that is divided there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from shoestring.core.errors import UserError

Names = Iterable[tuple[str, Sequence[str]]]
NAMED = 5
"""Weights that an error names."""


def renamed(
    own: Mapping[str, Tensor], names: Names, divide: Callable[[Tensor, str, int], Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Our weights under their names there; `divide` makes so many of a module's weight, or turns its one as needed."""
    found: dict[str, Tensor] = {}
    for mine, theirs in names:
        for kind in ("weight", "bias"):
            if f"{mine}.{kind}" in own:
                parts = divide(own[f"{mine}.{kind}"].detach(), mine, len(theirs))
                whole = len(parts) == 1  # parts of one weight share its memory, which a file of tensors refuses
                found |= {f"{name}.{kind}": part if whole else part.clone() for name, part in zip(theirs, parts)}
    return found


def named_back(
    state: Mapping[str, Tensor], names: Names, kind_of_network: str, turn: Callable[[Tensor, str], Tensor] | None = None
) -> dict[str, Tensor]:
    """Their weights under our names, parts put together, each by `turn` as we lay it out; none may be left over."""
    left, found = dict(state), {}
    for mine, theirs in names:
        for kind in ("weight", "bias"):
            if f"{theirs[0]}.{kind}" in left:
                parts = [left.pop(f"{name}.{kind}") for name in theirs]
                value = torch.cat(parts) if len(parts) > 1 else parts[0]
                found[f"{mine}.{kind}"] = value if turn is None else turn(value, mine)
    if left:
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        raise UserError(f"{', '.join(sorted(left)[:NAMED])}{more}: {kind_of_network} has no such weights")
    return found
