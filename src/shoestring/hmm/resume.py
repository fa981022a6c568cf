"""Where a fit stands, and the one file it goes on from: whole or absent, and checked when read.

The file is a safetensors file with the tables exactly as computed, and as metadata all the rest with a CRC-32 of every
tensor. It names the settings and the data it belongs to, and is not read for others.
"""

from __future__ import annotations

import glob
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from shoestring.core.errors import RecordError, RunError, StorageError, storage_error
from shoestring.core.files import write_whole
from shoestring.core.records import Record
from shoestring.core.schema import encode
from shoestring.hmm.expect import Counts
from shoestring.hmm.parameters import Parameters
from shoestring.hmm.schedule import FitSettings


@dataclass(frozen=True, kw_only=True)
class Epoch(Record):
    """One pass over the data."""

    SCHEMA: ClassVar[str] = "shoestring.hmm.epoch/1"

    epoch: int
    """From 1."""
    restart: int
    """Which random start it belongs to, from 0."""
    loss: float
    """Nats per token on the training data, as the expectation steps saw it: each update's sequences under the
    parameters before that update."""
    loss_tokens: float
    """What `loss` is the mean over: tokens by weight, without those of impossible sequences."""
    log_prior: float | None
    """Of the parameters of the last expectation step, in nats, less a constant; None where it is minus infinity."""
    tokens: int
    """Seen so far since this start, in this and all epochs before."""
    updates: int
    """So far since this start."""
    seconds: float
    """In this epoch, on expectation and maximisation."""
    tokens_per_second: float
    impossible: float
    """Sequences, by weight, that had probability zero and were left out."""

    @property
    def objective(self) -> float:
        """What EM raises: likelihood and prior, in nats per token."""
        return -float("inf") if self.log_prior is None else self.log_prior / self.loss_tokens - self.loss


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The sums of an epoch that is not over."""

    updates: int = 0
    tokens: int = 0
    log_likelihood: float = 0.0
    loss_tokens: float = 0.0
    impossible: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One start and what became of it."""

    restart: int
    parameters: Parameters
    statistics: Counts | None = None
    """For online updates: the running counts per token."""
    updates: int = 0
    epochs: tuple[Epoch, ...] = ()
    tally: Tally = Tally()

    def to(self, device: torch.device) -> Trial:
        statistics = self.statistics
        if statistics is not None:
            statistics = Counts(*(None if table is None else table.to(device) for table in statistics))  # type: ignore[arg-type]
        return replace(self, parameters=self.parameters.to(device), statistics=statistics)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """All of a fit that is needed to go on."""

    trial: Trial
    best: Trial | None = None
    """Among the starts that had their turn, while starts are compared."""
    choosing: bool = False

    def to(self, device: torch.device) -> Progress:
        best = None if self.best is None else self.best.to(device)
        return replace(self, trial=self.trial.to(device), best=best)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a fit's result depends on: a checkpoint is good for one identity."""

    settings: dict[str, Any]
    data: str


@dataclass(frozen=True, kw_only=True)
class _TrialNote:
    restart: int
    updates: int
    epochs: tuple[dict[str, Any], ...]
    tally: Tally


@dataclass(frozen=True, kw_only=True)
class _Note(Record):
    """The metadata."""

    SCHEMA: ClassVar[str] = "shoestring.hmm.fit/1"

    settings: dict[str, Any]
    data: str
    choosing: bool
    trials: dict[str, _TrialNote] = field(default_factory=dict)


def identify(
    settings: FitSettings,
    symbols: int,
    dtype: torch.dtype,
    start: Parameters | None,
    tokens: Tensor,
    lengths: Tensor | None,
    weights: Tensor | None,
) -> Identity:
    """The identity of a fit. Reads all of the data once: some seconds for a billion tokens.

    Settings that only say how long to go on are no part of it: a fit may be continued with others. Online, the number
    of epochs is more than that: the steps depend on it.
    """
    rules = ("tolerance",) if settings.update == "online" else ("tolerance", "epochs")
    named = {name: value for name, value in encode(settings).items() if name not in rules}
    tables = [] if start is None else [table for table in start.to("cpu", torch.float64) if table is not None]
    given = None if start is None else f"{_crc(*tables):08x}"
    about = {**named, "symbols": symbols, "dtype": str(dtype).removeprefix("torch."), "start": given}
    return Identity(settings=about, data=_data_fingerprint(tokens, lengths, weights))


def _data_fingerprint(tokens: Tensor, lengths: Tensor | None, weights: Tensor | None) -> str:
    """The same for every integer type and device; what lies beyond a row's length does not count."""
    check = 0
    places = torch.arange(tokens.shape[1], device=tokens.device)
    rows = torch.arange(len(tokens)).split(max(1, 2**24 // tokens.shape[1]))
    for some in rows:
        part = slice(int(some[0]), int(some[-1]) + 1)
        values = tokens[part].to(torch.int32)
        if lengths is not None:
            values = values.masked_fill(places >= lengths[part].to(tokens.device)[:, None], -1)
        check = _crc(values.cpu(), start=check)
    weighed = None if weights is None else _crc(weights.detach().cpu().double())
    return " ".join(map(str, (*tokens.shape, f"{check:08x}", "-" if weighed is None else f"{weighed:08x}")))


def save(path: Path, progress: Progress, identity: Identity) -> None:
    """Replace the checkpoint at `path`. Only a finished file has that name."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # of a process that was killed while writing
        leftover.unlink(missing_ok=True)
    tensors: dict[str, Tensor] = {}
    notes = {}
    for name, trial in (("trial", progress.trial), ("best", progress.best)):
        if trial is None:
            continue
        tensors |= _tensors(f"{name}/parameters", trial.parameters._asdict())
        if trial.statistics is not None:
            tensors |= _tensors(f"{name}/statistics", trial.statistics._asdict())
        epochs = tuple(epoch.to_dict() for epoch in trial.epochs)
        notes[name] = _TrialNote(restart=trial.restart, updates=trial.updates, epochs=epochs, tally=trial.tally)
    note = _Note(settings=identity.settings, data=identity.data, choosing=progress.choosing, trials=notes)
    body = json.dumps(note.to_dict(), sort_keys=True, allow_nan=False)
    # one key, because safetensors keeps several in no order and equal checkpoints would differ in their bytes
    metadata = {"fit": json.dumps({"body": body, "check": _check(body, tensors)})}
    write_whole(path, save_tensors(tensors, metadata))


def load(path: Path, identity: Identity) -> Progress | None:
    """Where the fit at `path` stands, on the CPU; None where there is no such file.

    Raises StorageError if a byte of it is not as written, RunError if it belongs to other settings or other data.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise storage_error("read the checkpoint", path, cause) from cause
    try:
        tensors = load_tensors(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        fit = json.loads(header["__metadata__"]["fit"])
        whole = fit["check"] == _check(fit["body"], tensors)
        note = _Note.from_dict(json.loads(fit["body"]), str(path)) if whole else None
        trials = {} if note is None else {name: _trial(name, it, tensors) for name, it in note.trials.items()}
    except (SafetensorError, KeyError, TypeError, ValueError, RecordError) as cause:
        raise StorageError(f"{path}: damaged or not the checkpoint of a fit ({cause!r}); "
                           "move it away to start anew") from cause  # fmt: skip
    if note is None:
        raise StorageError(f"{path}: damaged, its content does not match its checksums; move it away to start anew")
    _refuse_others(path, note, identity)
    return Progress(trial=trials["trial"], best=trials.get("best"), choosing=note.choosing)


def _refuse_others(path: Path, note: _Note, identity: Identity) -> None:
    names = sorted({*note.settings, *identity.settings})
    pairs = {name: (note.settings.get(name), identity.settings.get(name)) for name in names}
    differences = [f"{name} = {_show(was)}, not {_show(now)}" for name, (was, now) in pairs.items() if was != now]
    if differences:
        raise RunError(f"{path} is the checkpoint of a fit with other settings: {'; '.join(differences)}. "
                       "Continue it with its own, or choose another file")  # fmt: skip
    if note.data != identity.data:
        raise RunError(f"{path} is the checkpoint of a fit to other data (rows, positions, checksums {note.data}, "
                       f"not {identity.data}). Choose another file")  # fmt: skip


def _show(value: Any) -> str:
    return json.dumps(value)


def _tensors(prefix: str, tables: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": table.cpu().contiguous() for name, table in tables.items() if table is not None}


def _trial(name: str, note: _TrialNote, tensors: Mapping[str, Tensor]) -> Trial:
    def tables(kind: str, fields: tuple[str, ...]) -> list[Tensor | None]:
        return [tensors.get(f"{name}/{kind}/{field}") for field in fields]

    online = f"{name}/statistics/start" in tensors
    return Trial(
        restart=note.restart,
        parameters=Parameters(*tables("parameters", Parameters._fields)),  # type: ignore[arg-type]
        statistics=Counts(*tables("statistics", Counts._fields)) if online else None,  # type: ignore[arg-type]
        updates=note.updates,
        epochs=tuple(Epoch.from_dict(values, name) for values in note.epochs),
        tally=note.tally,
    )


def _check(body: str, tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of the text and of every tensor with its name, type and shape."""
    check = zlib.crc32(body.encode())
    for name, tensor in sorted(tensors.items()):
        check = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), check)
        check = _crc(tensor, start=check)
    return check


def _crc(*tensors: Tensor, start: int = 0) -> int:
    """CRC-32 of the bytes of tensors on the CPU."""
    for tensor in tensors:
        start = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, start)
    return start
