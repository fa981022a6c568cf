"""Checkpoints: whole or absent, checked when read, written while the run goes on.

A checkpoint holds everything a run needs to go on as if it had never stopped: weights, optimizer state, and the
`State`; no random state, for the loop seeds torch anew at every step. It is a safetensors file with a CRC-32 of every
tensor; of a sharded model it is a folder to which every process writes its part (see `sharded_checkpoint`). Either kind
can be read by one process or any number of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoestring.core.errors import RecordError, RunError, StorageError, storage_error
from shoestring.core.files import folder_bytes, make_folder, sync
from shoestring.core.records import Record
from shoestring.parallel.team import Team
from shoestring.train import sharded_checkpoint
from shoestring.train.course import Course
from shoestring.train.learner import Learner
from shoestring.train.sharding import local_part, own_part

_THREAD = ThreadPoolExecutor(1, "checkpoint")


@dataclass(frozen=True, kw_only=True)
class State(Record):
    """Where a run stands after `step` steps."""

    SCHEMA: ClassVar[str] = "shoestring.state/1"

    recipe: str
    """Fingerprint of the recipe."""
    data: str
    """Fingerprint of the token store."""
    course: Course
    step: int = 0
    window_nats: float = 0.0
    """Loss since the last metrics line, summed over `window_count` predictions."""
    window_count: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    shortened: str | None = None
    lengthened: str | None = None


class Checkpoints:
    """The checkpoints of one run: the last `keep`, and the best."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self.keep = keep
        self.peak_bytes = 0
        """The most that checkpoints took on disk at once."""
        self.slowest = 0.0
        """Seconds that one took, from the first copy until it was on disk."""
        self.written = 0
        """How many are on disk that this process wrote."""
        self._writing: Future[None] | None = None

    def path(self, step: int) -> Path:
        """Of a checkpoint that is one file."""
        return self.folder / f"step-{step:09d}.safetensors"

    def parts(self, step: int) -> Path:
        """Of a checkpoint that is a folder."""
        return self.folder / f"step-{step:09d}.parts"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, latest first."""
        self.wait()
        return self._steps()

    def _steps(self) -> list[int]:
        names = (path.stem.removeprefix("step-") for path in self.folder.glob("step-*.*"))
        return sorted({int(name) for name in names if name.isdecimal()}, reverse=True)

    def save(self, learner: Learner, state: State, wait: bool = True) -> None:
        """Save what is there now, all processes together; a thread writes it, and it is on disk if they `wait`.

        What went wrong with the one before is raised here.
        """
        team, started = learner.team, time.perf_counter()
        team.each(self._begin, team)
        if learner.sharded or team.rank == 0:
            tensors, text = copied(learner), json.dumps(state.to_dict())
            likes = {name: _like(name, learner) for name in tensors}

            def write(path: Path) -> None:
                if learner.sharded:
                    sharded_checkpoint.write(path, tensors, likes, text, team)
                else:
                    save_file(tensors, path, {"state": text, "check": str(_check(text, tensors))})
                    sync(path)

            path = self.parts(state.step) if learner.sharded else self.path(state.step)
            self._writing = _THREAD.submit(self._write, path, write, state, team.rank == 0, started)
        if wait:
            team.each(self.wait)

    def wait(self) -> None:
        """Until the last one is on disk; raises what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _begin(self, team: Team) -> None:
        self.wait()
        if team.rank == 0:
            make_folder(self.folder)
            for leftover in self.folder.glob(".*.tmp"):  # of a process that was killed while writing
                remove(leftover)

    def _write(self, path: Path, write: Callable[[Path], None], state: State, first: bool, started: float) -> None:
        """Write a checkpoint; the first process names it when it is whole, and removes those that are not kept."""
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            write(temporary)
            if first:
                self._name(temporary, path, state)
        except OSError as cause:
            raise storage_error("write the checkpoint", path, cause) from cause
        except SafetensorError as cause:
            raise storage_error("write the checkpoint", path, _as_oserror(cause)) from cause
        finally:
            if first:
                remove(temporary)
        self.slowest = max(self.slowest, time.perf_counter() - started)
        self.written += 1

    def _name(self, temporary: Path, path: Path, state: State) -> None:
        if path.is_dir():  # damaged, or its step would not be taken again
            remove(path)
        os.replace(temporary, path)
        sync(self.folder)
        for other in {self.path(state.step), self.parts(state.step)} - {path}:
            remove(other)
        self.peak_bytes = max(self.peak_bytes, folder_bytes(self.folder))
        kept = {*self._steps()[: self.keep], state.best_step}
        for step in self._steps():
            if step not in kept:
                remove(self.path(step))
                remove(self.parts(step))

    def latest(self) -> tuple[int | None, list[str]]:
        """The step of the newest whole checkpoint, and a line for every newer one that is damaged."""
        damaged: list[str] = []
        for step in self.steps():
            try:
                self._open(step, _ALONE)
                return step, damaged
            except StorageError as cause:
                damaged.append(str(cause))
        return None, damaged

    def restore(self, step: int, learner: Learner, recipe: str, data: str) -> State:
        """Put a checkpoint's tensors into the learner, all processes together; whoever saved it, and how many.

        Refuses one that belongs to another recipe, other data or another model, before anything is changed.
        """
        state, tensors = learner.team.each(self._read, step, learner, recipe, data)
        _put(learner, tensors)
        return state

    def _read(self, step: int, learner: Learner, recipe: str, data: str) -> tuple[State, dict[str, Tensor]]:
        opened = self._open(step, learner.team)
        if opened.state.recipe != recipe:
            raise RunError(f"{opened.path} belongs to another recipe ({opened.state.recipe}, not {recipe})")
        if opened.state.data != data:
            raise RunError(f"{opened.path} was trained on another token store ({opened.state.data}, not {data})")
        wrong = [name for name, p in learner.parameters.items() if opened.shapes.get(f"model/{name}") != p.shape]
        if wrong:
            raise RunError(
                f"{opened.path} belongs to another model: {len(wrong)} tensors are missing or of another shape, as "
                f"{wrong[0]}"
            )
        return opened.state, opened.read({name: _like(name, learner) for name in opened.shapes})

    def _open(self, step: int, team: Team) -> Opened:
        """A checkpoint that is whole; of a folder, as far as it is this process' turn to look."""
        path = self.parts(step)
        if not path.is_dir():
            tensors, state = read(self.path(step))
            shapes = {name: tensor.shape for name, tensor in tensors.items()}
            return Opened(
                self.path(step),
                state,
                shapes,
                lambda likes: {name: own_part(tensor, likes[name]) for name, tensor in tensors.items()},
            )
        try:
            state = State.from_dict(json.loads(sharded_checkpoint.check(path, team)), str(path))
            shapes = {name: entry.size for name, entry in sharded_checkpoint.shapes(path).items()}
        except (OSError, KeyError, ValueError, RuntimeError, RecordError) as cause:
            raise StorageError(f"{path}: damaged or not a checkpoint ({cause})") from cause
        return Opened(path, state, shapes, lambda likes: sharded_checkpoint.read(path, likes))


class Opened(NamedTuple):
    """A checkpoint that is there, and how its tensors are read: whole, or the parts of this process."""

    path: Path
    state: State
    shapes: dict[str, torch.Size]
    read: Callable[[sharded_checkpoint.Likes], dict[str, Tensor]]


_ALONE = Team(0, 1, torch.device("cpu"))


def remove(path: Path) -> None:
    """A file, a folder, or nothing."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Tensor], State]:
    """A file's tensors, on the CPU, and its state; raises StorageError if a byte of it is not as written."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if metadata["check"] != str(_check(metadata["state"], tensors)):
            raise StorageError(f"{path}: damaged, its content does not match its checksums")
        return tensors, State.from_dict(json.loads(metadata["state"]), str(path))
    except (OSError, SafetensorError, KeyError, ValueError, RecordError) as cause:
        raise StorageError(f"{path}: damaged or not a checkpoint ({cause})") from cause


def _as_oserror(cause: SafetensorError) -> OSError:
    """What the operating system said, out of the library's own error, which only quotes it."""
    code = re.search(r"os error (\d+)", str(cause))
    return OSError(int(code.group(1)), str(cause)) if code else OSError(str(cause))


def _check(state: str, tensors: dict[str, Tensor]) -> int:
    """CRC-32 of the state and of every tensor with its name, type and shape."""
    check = zlib.crc32(state.encode())
    for name, tensor in sorted(tensors.items()):
        check = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), check)
        if tensor.numel():
            check = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data, check)
    return check


def tensors_of(learner: Learner) -> dict[str, Tensor]:
    """Everything to save, by name, as it lies on the device; of a sharded model the parts here. Tied weights: once."""
    found = {f"model/{name}": tensor.detach() for name, tensor in learner.optimizer.masters.items()}
    frozen = {name: p for name, p in learner.parameters.items() if not p.requires_grad}
    found |= {f"model/{name}": local_part(p).detach() for name, p in frozen.items()}
    return found | learner.optimizer.tensors()


def copied(learner: Learner) -> dict[str, Tensor]:
    """Everything to save, in memory of its own: the run may go on while it is written."""
    found = {}
    for name, tensor in tensors_of(learner).items():
        here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        found[name] = here.copy_(tensor, non_blocking=True)
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    return found


@torch.no_grad()
def _put(learner: Learner, tensors: dict[str, Tensor]) -> None:
    """Whole tensors, or the parts of them that lie here, in their places; others, of older checkpoints, are left."""
    for name, p in learner.parameters.items():
        local_part(p).copy_(tensors[f"model/{name}"])
    learner.optimizer.restore(tensors)


def _like(key: str, learner: Learner) -> Tensor | None:
    """The parameter that a saved tensor belongs to, and is divided as."""
    if not learner.sharded:
        return None
    kind, _, name = key.partition("/")
    return learner.parameters.get(name.partition("/")[2] if kind == "optimizer" else name)
