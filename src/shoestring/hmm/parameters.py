"""The parameters of a categorical hidden Markov model: drawn, checked, kept in a file.

Shapes: H states, E symbols of the alphabet.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from shoestring.core.errors import StorageError, UserError, storage_error
from shoestring.core.files import write_whole
from shoestring.core.recipe import fingerprint
from shoestring.core.seeds import derive

SCHEMA = "shoestring.hmm/1"
TOLERANCE = 1e-6
"""How far the sum of a row may be from 1."""


class HmmError(UserError):
    """A model, a token or a setting that no hidden Markov model can be made of."""


class Parameters(NamedTuple):
    """A model. The chain draws its first state from `start`, and in state i a symbol from `emission[i]`.

    Without `end` it then moves on by `transition[i]`, for ever. With `end` it first stops with probability `end[i]`,
    and only otherwise moves: every row of `transition` sums to 1 with or without `end`, and the probability of going
    from i to j is `(1 - end[i]) * transition[i, j]`, which is `moves()[i, j]`.
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
        """Probability of going on, and to which state; a row sums to 1 - end."""
        return self.transition if self.end is None else self.transition * (1 - self.end)[:, None]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Parameters:
        tables = [None if table is None else table.to(device=device, dtype=dtype) for table in self]
        return Parameters(*tables)  # type: ignore[arg-type]


def random_parameters(
    states: int, symbols: int, seed: int, concentration: float = 1.0, end: bool = False
) -> Parameters:
    """Every row from a symmetric Dirichlet distribution, in float64 on the CPU: the same numbers for every device.

    A concentration of 1 draws from all distributions evenly; below 1 a few cells hold most of a row. End probabilities
    are drawn between 0 and 1, as two cells with the same concentration.
    """
    if states < 1 or symbols < 1:
        raise HmmError(f"a model needs at least one state and one symbol, not {states} and {symbols}")
    if not 0 < concentration < float("inf"):
        raise HmmError(f"concentration = {concentration}: must be above 0")

    def rows(name: str, count: int, cells: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive(seed, "hmm", name))
        shape = torch.full((count, cells), concentration, dtype=torch.float64)
        # far below 1 a draw can underflow to zero, and a row of zeros has no sum to divide by
        drawn = torch._standard_gamma(shape, generator=generator).clamp_min(torch.finfo(torch.float64).tiny)
        return drawn / drawn.sum(1, keepdim=True)

    return Parameters(
        start=rows("start", 1, states)[0],
        transition=rows("transition", states, states),
        emission=rows("emission", states, symbols),
        end=rows("end", states, 2)[:, 0].contiguous() if end else None,
    )


def check(parameters: Parameters) -> None:
    """Raise HmmError unless all tables fit together, are finite and not negative, and their rows sum to 1."""
    if parameters.emission.ndim != 2 or 0 in parameters.emission.shape:
        raise HmmError(f"emission must be states × symbols, not of shape {tuple(parameters.emission.shape)}")
    h, e = parameters.emission.shape
    shapes = {"start": (h,), "transition": (h, h), "emission": (h, e), "end": (h,)}
    tables = {name: table for name, table in parameters._asdict().items() if table is not None}
    for name, table in tables.items():
        if tuple(table.shape) != shapes[name]:
            raise HmmError(f"{name} must have shape {shapes[name]} beside {h} states, not {tuple(table.shape)}")
        if table.dtype not in (torch.float32, torch.float64):
            raise HmmError(f"{name} must be float32 or float64, not {table.dtype}: shorter ones hold no probabilities")
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

    Expectation maximisation cannot leave such a start: every state gets the same share of every token, and so the same
    emissions again. Exchangeable states (all tables uniform, say) are the usual case of it. A model of one state is not
    symmetric.
    """
    emission = parameters.emission.double()
    return parameters.states > 1 and bool(torch.allclose(emission, emission[:1], rtol=TOLERANCE, atol=0))


class Saved(NamedTuple):
    """What a model file holds."""

    parameters: Parameters
    alphabet: tuple[str, ...] | None
    """The word of each symbol, if it has one."""
    extra: dict[str, Any]
    """Whatever the writer put beside it."""


def save(
    path: Path, parameters: Parameters, alphabet: Sequence[str] | None = None, extra: Mapping[str, Any] | None = None
) -> None:
    """Write a model as one safetensors file, in float64, whole or not at all. `extra` must be plain JSON values."""
    check(parameters)
    if alphabet is not None and len(alphabet) != parameters.symbols:
        raise HmmError(f"{path}: {len(alphabet)} words for a model of {parameters.symbols} symbols")
    exact = parameters.to("cpu", torch.float64)
    tensors = {name: table.clone().contiguous() for name, table in exact._asdict().items() if table is not None}
    words = None if alphabet is None else list(alphabet)
    about = {
        "schema": SCHEMA,
        "alphabet": words,
        "alphabet_fingerprint": fingerprint(words),
        "extra": dict(extra or {}),
    }
    body = json.dumps(about, sort_keys=True, allow_nan=False)
    # one key, because safetensors keeps several in no order and equal models would differ in their bytes
    metadata = {"model": json.dumps({"body": body, "checks": _checks(tensors, body)}, sort_keys=True)}
    write_whole(path, save_tensors(tensors, metadata))


def load(path: Path, alphabet: Sequence[str] | None = None) -> Saved:
    """Read a model, in float64 on the CPU; refuses a damaged file, and one over another alphabet than `alphabet`."""
    try:
        data = path.read_bytes()
    except OSError as cause:
        raise storage_error("read the model", path, cause) from cause
    try:
        tensors = load_tensors(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        model = json.loads(header["__metadata__"]["model"])
        whole = model["checks"] == _checks(tensors, model["body"])
        about = json.loads(model["body"])
        schema, words, extra = about["schema"], about["alphabet"], about["extra"]
    except (SafetensorError, KeyError, TypeError, ValueError) as cause:
        raise StorageError(f"{path}: damaged or not a hidden Markov model ({cause!r})") from cause
    if not whole:
        raise StorageError(f"{path}: damaged, its content does not match its checksums")
    if schema != SCHEMA:
        raise HmmError(f"{path}: expected a model {SCHEMA}, found {schema}")
    found = None if words is None else tuple(words)
    if alphabet is not None and found != tuple(alphabet):
        raise HmmError(f"{path} is a model over another alphabet: {_difference(found, alphabet)}")
    parameters = Parameters(tensors["start"], tensors["transition"], tensors["emission"], tensors.get("end"))
    check(parameters)
    return Saved(parameters, found, extra)


def _checks(tensors: Mapping[str, Tensor], body: str) -> dict[str, int]:
    """A CRC-32 of every tensor and of the text beside them."""
    return {"body": zlib.crc32(body.encode())} | {
        name: zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data) for name, tensor in sorted(tensors.items())
    }


def _difference(found: Sequence[str] | None, expected: Sequence[str]) -> str:
    if found is None:
        return f"it names no words, {len(expected)} were expected"
    if len(found) != len(expected):
        return f"it has {len(found)} symbols, {len(expected)} were expected"
    place = next(i for i, (one, other) in enumerate(zip(found, expected)) if one != other)
    return f'symbol {place} is "{found[place]}", "{expected[place]}" was expected'
