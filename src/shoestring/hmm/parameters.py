"""The parameters of a categorical hidden Markov model: random draws, checks, and a file format.

Shapes: H states, E symbols of the alphabet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.core.errors import StorageError, UserError, VersionError
from shoestring.core.reading import parse_json, reading
from shoestring.core.seeds import derive
from shoestring.core.units import counted
from shoestring.storage.tensor_file import read_tensors, write_tensors

SCHEMA = "shoestring.hmm/2"
TOLERANCE = 1e-6
"""How far the sum of a row may differ from 1."""


class HmmError(UserError):
    """An invalid model, token or setting of a hidden Markov model."""


class HmmMemoryError(HmmError, MemoryError):
    """Rows that do not fit the memory, by counting."""


class Parameters(NamedTuple):
    """A model. The chain draws its first state from `start`, and in state i a symbol from `emission[i]`.

    Without `end` it then moves by `transition[i]`, forever. With `end` it stops with probability `end[i]` and otherwise
    moves. Every row of `transition` sums to 1 in both cases, so the probability of moving from i to j is
    `(1 - end[i]) * transition[i, j]`, which is `moves()[i, j]`.
    """

    start: Float[Tensor, " H"]
    transition: Float[Tensor, "H H"]
    emission: Float[Tensor, "H E"]
    end: Float[Tensor, " H"] | None = None

    @property
    def states(self) -> int:
        return self.emission.shape[0]

    @property
    def symbols(self) -> int:
        return self.emission.shape[1]

    @property
    def device(self) -> torch.device:
        return self.emission.device

    @property
    def dtype(self) -> torch.dtype:
        return self.emission.dtype

    def moves(self) -> Float[Tensor, "H H"]:
        """The probability of moving to each state; a row sums to 1 - end."""
        return self.transition if self.end is None else self.transition * (1 - self.end)[:, None]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Parameters:
        tables = [None if table is None else table.to(device=device, dtype=dtype) for table in self]
        return Parameters(*tables)  # type: ignore[arg-type]


def random_parameters(
    states: int, symbols: int, seed: int, concentration: float = 1.0, end: bool = False
) -> Parameters:
    """Rows drawn from a symmetric Dirichlet distribution, in float64 on the CPU: the same numbers for every device.

    A concentration of 1 draws uniformly from all distributions; below 1 a few cells hold most of a row. An end
    probability is drawn as one of two cells with the same concentration.
    """
    if states < 1 or symbols < 1:
        raise HmmError(f"a model needs at least one state and one symbol, not {states} and {symbols}")
    if not 0 < concentration < float("inf"):
        raise HmmError(f"concentration = {concentration}: must be above 0")

    def rows(name: str, count: int, cells: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive(seed, "hmm", name))
        shape = torch.full((count, cells), concentration, dtype=torch.float64)
        # with a concentration far below 1 a draw can underflow to zero, and a row of zeros cannot be normalised
        drawn = torch._standard_gamma(shape, generator=generator).clamp_min(torch.finfo(torch.float64).tiny)
        return drawn / drawn.sum(1, keepdim=True)

    return Parameters(
        start=rows("start", 1, states)[0],
        transition=rows("transition", states, states),
        emission=rows("emission", states, symbols),
        end=rows("end", states, 2)[:, 0].contiguous() if end else None,
    )


def check(parameters: Parameters) -> None:
    """Raise HmmError unless the shapes of all tables match, all values are from 0 to 1, and all rows sum to 1."""
    if parameters.emission.ndim != 2 or 0 in parameters.emission.shape:
        raise HmmError(f"emission must be states × symbols, not of shape {tuple(parameters.emission.shape)}")
    h, e = parameters.emission.shape
    shapes = {"start": (h,), "transition": (h, h), "emission": (h, e), "end": (h,)}
    tables = {name: table for name, table in parameters._asdict().items() if table is not None}
    for name, table in tables.items():
        if tuple(table.shape) != shapes[name]:
            raise HmmError(f"{name} must have shape {shapes[name]} beside {h} states, not {tuple(table.shape)}")
        if table.dtype not in (torch.float32, torch.float64):
            raise HmmError(f"{name} must be float32 or float64, not {table.dtype}: shorter types are too coarse")
        if table.dtype != parameters.dtype or table.device != parameters.device:
            raise HmmError(f"{name} is {table.dtype} on {table.device}, emission {parameters.dtype} on the "
                           f"{parameters.device}; use .to() to bring them together")  # fmt: skip
        _refuse(name, table, ~table.isfinite(), "is not finite")
        _refuse(name, table, table < 0, "is negative")
        _refuse(name, table, table > 1 + TOLERANCE, "is above 1")
        if name != "end":
            sums = table.double().reshape(-1, table.shape[-1]).sum(1)
            wrong = ((sums - 1).abs() > TOLERANCE).nonzero()
            if len(wrong):
                row = int(wrong[0])
                where = name if table.ndim == 1 else f"{name}[{row}]"
                raise HmmError(f"{where} sums to {float(sums[row]):.9g}, not to 1; divide it by its sum")


def _refuse(name: str, table: Tensor, wrong: Tensor, what: str) -> None:
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        raise HmmError(f"{name}{place} = {float(table[tuple(place)])} {what}")


def is_symmetric(parameters: Parameters) -> bool:
    """Whether all states emit alike, so that no token says anything about the state.

    Expectation maximisation cannot leave such a start: every state gets the same share of every token, and thus the
    same emissions again. Usually all tables are uniform then. A model of one state is not symmetric.
    """
    emission = parameters.emission.double()
    return parameters.states > 1 and bool(torch.allclose(emission, emission[:1], rtol=TOLERANCE, atol=0))


class Saved(NamedTuple):
    """The content of a model file."""

    parameters: Parameters
    alphabet: tuple[str, ...] | None
    """The word of each symbol, if it has one."""
    extra: dict[str, Any]
    """Further values from the writer."""


def save(
    path: Path,
    parameters: Parameters,
    alphabet: Sequence[str] | None = None,
    extra: Mapping[str, Any] | None = None,
    parents: bool = True,
) -> None:
    """Write a model as one safetensors file in float64, atomically. `extra` must be plain JSON values.

    Without `parents`, its folder must exist.
    """
    check(parameters)
    if alphabet is not None and len(alphabet) != parameters.symbols:
        raise HmmError(
            f"{path}: {counted(len(alphabet), 'word')} for a model of {counted(parameters.symbols, 'symbol')}"
        )
    exact = parameters.to("cpu", torch.float64)
    tensors = {name: table.numpy() for name, table in exact._asdict().items() if table is not None}
    words = None if alphabet is None else list(alphabet)
    about = {"schema": SCHEMA, "alphabet": words, "extra": dict(extra or {})}
    write_tensors(path, tensors, json.dumps(about, sort_keys=True, allow_nan=False), parents)


def load(path: Path, alphabet: Sequence[str] | None = None) -> Saved:
    """Read a model in float64 on the CPU; refuses a damaged file, and a model whose alphabet is not `alphabet`."""
    file = read_tensors(path)
    with reading(path, StorageError, "a hidden Markov model"):
        about = parse_json(file.note, path, StorageError)
        schema, words, extra = about["schema"], about["alphabet"], about["extra"]
    if schema != SCHEMA:
        raise VersionError(f"{path}: expected a model {SCHEMA}, found {schema}")
    named = None if words is None else tuple(words)
    if alphabet is not None and named != tuple(alphabet):
        raise HmmError(f"{path} is a model over another alphabet: {_difference(named, alphabet)}")
    tables = {name: torch.from_numpy(table) for name, table in file.arrays.items()}
    missing = [name for name in ("start", "transition", "emission") if name not in tables]
    if missing:
        raise StorageError(f"{path}: not a hidden Markov model (no {missing[0]})")
    parameters = Parameters(tables["start"], tables["transition"], tables["emission"], tables.get("end"))
    check(parameters)
    return Saved(parameters, named, extra)


def _difference(found: Sequence[str] | None, expected: Sequence[str]) -> str:
    if found is None:
        return f"it names no words, {len(expected)} were expected"
    if len(found) != len(expected):
        return f"it has {len(found)} symbols, {len(expected)} were expected"
    place = next(i for i, (one, other) in enumerate(zip(found, expected)) if one != other)
    return f'symbol {place} is "{found[place]}", "{expected[place]}" was expected'
