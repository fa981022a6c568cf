"""What a run learns of its network: frozen parts, and adapters of low rank, which are the section `[lora]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from shoestring.core.schema import Between, Text
from shoestring.core.specs import Spec, number_problem

GROUPS = ("embedding", "attention", "mlp", "norm", "head")
"""Parts of a network that a recipe can freeze, besides blocks."""
MOST_BLOCKS = 10**6


class FreezeSpec(Spec):
    """`train.freeze`: parts of the network, separated by commas."""

    _part = rf"({'|'.join(GROUPS)}|blocks(\.[0-9]+(-[0-9]+)?)?)"
    form = rf"{_part}(\s*,\s*{_part})*"
    allowed = f'of {", ".join(GROUPS)}, blocks, blocks.N and blocks.N-M, as "embedding, blocks.0-5"'

    def problem(self) -> str | None:
        if (problem := super().problem()) is not None:
            return problem
        for first, last in self._ranges():
            if wrong := next(filter(None, (number_problem(n, MOST_BLOCKS, "a block") for n in (first, last))), None):
                return wrong
            if int(first) > int(last):
                return f'"blocks.{first}-{last}" ends before it begins'
        return None

    @property
    def groups(self) -> frozenset[str]:
        """Those of `GROUPS` that it names."""
        return frozenset(part for part in self._parts if part in GROUPS)

    def blocks(self, count: int) -> frozenset[int]:
        """Numbers of the blocks that it names, of `count`; those that there are not are named too."""
        if "blocks" in self._parts:
            return frozenset(range(count))
        return frozenset(i for first, last in self._ranges() for i in range(int(first), int(last) + 1))

    @property
    def _parts(self) -> list[str]:
        return [part.strip() for part in self.split(",")]

    def _ranges(self) -> list[tuple[str, str]]:
        found = [re.fullmatch(r"blocks\.([0-9]+)(?:-([0-9]+))?", part) for part in self._parts]
        return [(match[1], match[2] or match[1]) for match in found if match]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """Low-rank adapters (LoRA): all other weights are frozen, and the adapters are merged into them on export."""

    rank: Annotated[int, Between(1, 65536), "rank of the product that is added to a matrix"] = 8
    alpha: Annotated[
        float | None, Between(0, 1e6, open_low=True), "the product is multiplied by alpha / rank; default: 2 rank"
    ] = None
    targets: Annotated[
        str | None,
        Text(4096),
        'layers of the blocks that have an adapter, by name, as "qkv, out" (hf: "q_proj, v_proj", experts: '
        '"gate_up_proj"); default: all',
    ] = None

    @property
    def scale(self) -> float:
        return (2 * self.rank if self.alpha is None else self.alpha) / self.rank

    @property
    def names(self) -> tuple[str, ...] | None:
        """The targets; None: all matrices of the blocks."""
        return None if self.targets is None else tuple(name.strip() for name in self.targets.split(","))


class Learned(NamedTuple):
    """Numbers of a network, by what happens to them."""

    all: int
    """With adapters."""
    learned: int
    """That have gradients and optimizer state."""
    matrices: int
    """Of these, in two-dimensional tensors of the blocks."""
    neurons: int
    """Rows of those tensors."""
    blocks: int
    """In two-dimensional tensors of the blocks, in experts and in the output matrix, learned or not."""
    weighed: int
    """Of these, those that have a gradient in a pass: that are learned, and experts with an adapter."""
    head: bool
    """Whether the output matrix is learned."""
    begins: int
    """Blocks at the beginning through which no gradient passes."""
    changed: int = 0
    """In experts with an adapter, which a pass reads with the change."""
    changed_at_once: int = 0
    """Of these, in the largest mixture."""
