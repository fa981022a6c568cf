"""Checkpoints: complete or absent, checked when read, written while the run continues.

A checkpoint holds everything a run needs to continue as if it had never stopped: weights, optimizer state, and the
`State`. It holds no random state, because torch is seeded anew for every step. It is a file of tensors
(`storage.tensor_file`), or for a sharded model a folder to which every process writes such a file (`sharding`). Any
number of processes can read either kind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from shoestring.core.errors import RecordError, RunError, StorageError, VersionError, storage_error
from shoestring.core.files import folder_bytes, make_folder, remove, sweep
from shoestring.core.reading import parse_json
from shoestring.core.schema import Record
from shoestring.core.specs import CheckpointSpec
from shoestring.parallel.process_group import ProcessGroup
from shoestring.storage.tensor_file import read_tensors, write_tensors
from shoestring.training import sharding
from shoestring.training.schedule import Schedule

_THREAD = ThreadPoolExecutor(1, "checkpoint")


@dataclass(frozen=True, kw_only=True)
class State(Record):
    """Where a run stands after `step` steps."""

    SCHEMA: ClassVar[str] = "shoestring.state/2"

    recipe: str
    """Fingerprint of the recipe."""
    data: str
    """Fingerprint of the rows."""
    schedule: Schedule
    step: int = 0
    window_nats: float = 0.0
    """Loss since the last metrics line, summed over `window_count` predictions."""
    window_count: int = 0
    predictions: int | None = None
    """Since the first step; None: an older version did not count them."""
    best_step: int | None = None
    """The step after which the held-out loss was lowest."""
    peak_step: int | None = None
    """The last step before the cool-down, if there is one: the last at the peak of the learning rate."""
    best_loss: float | None = None
    best_progress: float | None = None
    """Of the schedule, after that step."""
    best_train: float | None = None
    """Training loss between that evaluation and the one before."""
    since_nats: float = 0.0
    """Training loss since the last evaluation, summed over `since_count` predictions."""
    since_count: int = 0
    worse: int = 0
    """Evaluations in a row that show overfitting: above the best by more than noise, while the training loss fell."""
    turned: int | None = None
    """The step after which the run returned to its best weights."""
    shortened: str | None = None
    lengthened: str | None = None
    skipped: int = 0
    """Steps whose update was left out, because the gradient overflowed in fp16."""
    lines: int | None = None
    """Lines of metrics up to this step; None: an older version did not count them."""
    task: dict[str, Any] = field(default_factory=dict)
    """What the task needs in addition to continue, as plain values."""

    @property
    def at_peak(self) -> bool:
        """Whether the learning rate is to cool down later."""
        return self.schedule.is_movable(self.schedule.progress(self.step))


class Saveable(Protocol):
    """What a checkpoint is made of."""

    @property
    def group(self) -> ProcessGroup: ...

    @property
    def sharded(self) -> bool:
        """Whether every process has a part of the tensors."""

    def saved_tensors(self) -> dict[str, Tensor]:
        """Everything to save, by name, on the device; for a sharded model the parts of this process."""

    def placement(self, name: str) -> Tensor | None:
        """The parameter that a saved tensor is divided like; None: it is not divided."""

    def put_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore these tensors: whole ones, or the parts of this process."""

    def misfits(self, shapes: Mapping[str, torch.Size]) -> list[str]:
        """Names of the weights that these tensors lack, or have in another shape."""


class Checkpoints:
    """The checkpoints of one run: the last `keep`, the best, and those of steps that are always kept."""

    def __init__(self, folder: Path, keep: int, always: Callable[[int], bool] = lambda _: False):
        self.folder = folder
        self.keep, self._always = keep, always
        self.peak_bytes = 0
        """Most bytes on disk that checkpoints took at once."""
        self.slowest = 0.0
        """Seconds that the slowest one took, from the first copy until it was on disk."""
        self.written = 0
        """How many this process has written."""
        self._copies: dict[str, Tensor] = {}
        """In host memory, that checkpoints are written from: allocated once, so that memory does not creep up."""
        self._writing: Future[None] | None = None
        self._made = False
        """Whether its folder was made: once, so that a run whose folder was removed does not make it again."""
        self._opened: Opened | None = None
        """The newest one, if `latest` was to keep it until it is restored."""

    def path(self, step: int) -> Path:
        """Path of a checkpoint that is one file."""
        return self.folder / f"step-{step:09d}.safetensors"

    def parts(self, step: int) -> Path:
        """Path of a checkpoint that is a folder."""
        return self.folder / f"step-{step:09d}.parts"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, latest first."""
        self.wait()
        return self._steps()

    def _steps(self) -> list[int]:
        names = (path.stem.removeprefix("step-") for path in self.folder.glob("step-*.*"))
        return sorted({int(name) for name in names if name.isdecimal()}, reverse=True)

    def save(self, worker: Saveable, state: State, wait: bool = True) -> None:
        """Save the current tensors, all processes together. A thread writes them; with `wait` they are then on disk.

        An error in writing the previous checkpoint is raised here.
        """
        group, started, self._opened = worker.group, time.perf_counter(), None
        group.on_all(self._begin, group)
        if worker.sharded or group.rank == 0:
            tensors, note = self._copied(worker.saved_tensors(), group.device), json.dumps(state.to_dict())
            if worker.sharded:
                path = self.parts(state.step)
                parts = {name: sharding.part_of(tensor, worker.placement(name)) for name, tensor in tensors.items()}
                write = partial(sharding.write_folder, path, parts, note, group)
            else:
                path = self.path(state.step)
                arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
                write = partial(write_tensors, path, arrays, note, parents=False)
            self._writing = _THREAD.submit(self._write, path, write, state, group.rank == 0, started)
        if wait:
            group.on_all(self.wait)

    @property
    def copied(self) -> int:
        """Bytes in host memory of what the last one is, or was, written from."""
        return sum(copy.nbytes for copy in self._copies.values())

    def _copied(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Copies, so that the run may continue while they are written; the last ones are written by now.

        They are in the order of their names, so that a resumed run writes the same bytes.
        """
        kept, self._copies = self._copies, {}
        for name, tensor in sorted(tensors.items()):
            copy = kept.pop(name, None)
            if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[name] = copy.copy_(tensor, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self._copies

    def wait(self) -> None:
        """Wait until the last one is on disk; raises its error, if any."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _begin(self, group: ProcessGroup) -> None:
        self.wait()
        if group.rank == 0:
            if not self._made:
                make_folder(self.folder, parents=False)
            self._made = True
            sweep(self.folder, own=True)

    def _write(self, path: Path, write: Callable[[], None], state: State, first: bool, started: float) -> None:
        """Write a checkpoint; then the first process removes those that are not kept."""
        try:
            write()
            if first:
                self._prune(path, state)
        except (OSError, StorageError) as error:
            cause = error.__cause__ if isinstance(error, StorageError) else error
            if not isinstance(cause, OSError):
                raise
            raise storage_error("write the checkpoint", path, cause) from cause
        self.slowest = max(self.slowest, time.perf_counter() - started)
        self.written += 1

    def _prune(self, path: Path, state: State) -> None:
        for other in {self.path(state.step), self.parts(state.step)} - {path}:
            remove(other)
        self.peak_bytes = max(self.peak_bytes, folder_bytes(self.folder))
        kept = self._kept(state)
        for step in self._steps():
            if step not in kept:  # later ones were damaged, and passed over
                self._remove(step)

    def drop_older(self, state: State) -> None:
        """Remove what a process that was killed after it wrote the checkpoint of this state would have removed."""
        kept = self._kept(state)
        for step in self.steps():
            if step < state.step and step not in kept:
                self._remove(step)

    def _kept(self, state: State) -> set[int | None]:
        steps = [step for step in self._steps() if step <= state.step]
        return {*steps[: self.keep], state.best_step, state.peak_step, *filter(self._always, steps)}

    def _remove(self, step: int) -> None:
        remove(self.path(step))
        remove(self.parts(step))

    def latest(self, keep: bool = False) -> tuple[int | None, list[str]]:
        """The step of the newest intact checkpoint, and a line for every newer one that is damaged.

        With `keep`, its tensors stay in memory until they are restored, and are not read again.
        """
        opened, damaged = self._newest()
        self._opened = opened if keep else None
        return None if opened is None else opened.state.step, damaged

    def _newest(self) -> tuple[Opened | None, list[str]]:
        damaged: list[str] = []
        if (older := self.folder / "fit.safetensors").exists():
            raise VersionError(f"{older}: the checkpoint of an HMM, not written by this version of shoestring")
        for step in self.steps():
            try:
                return self.open(step), damaged
            except VersionError:  # not damaged: a run must not begin anew beside it
                raise
            except StorageError as cause:
                damaged.append(str(cause))
        return None, damaged

    def find(self, which: CheckpointSpec, run: Path, say: Callable[[str], object] = lambda _: None) -> Opened:
        """The newest intact checkpoint, the best one according to it (if there was an evaluation), the last one before
        the learning rate cools down, or that of a step.

        For the first two, `say` gets a line for every one that is damaged, and a line where the best one is not the
        newest. One that is named must be intact.
        """
        steps, named = self.steps(), which.step
        newest, damaged = (None, []) if named in steps else self._newest()
        if which == "peak" and newest is not None and not newest.state.at_peak:
            named = newest.state.peak_step
            if named is None:
                raise RunError(
                    f'{run} has no checkpoint "peak"; only a run keeps one whose learning rate stays before it decays'
                )
        if named is not None and named in steps:
            return self.open(named)
        if newest is None:
            raise RunError("\n  ".join([f"{run} has no intact checkpoint yet", *damaged]))
        if named is not None:
            names = ", ".join(["last", "best", *map(str, steps[::-1])])
            raise RunError(f'{run} has no checkpoint "{which}"; it has {names}')
        found, best = newest, newest.state.best_step
        if which == "best" and best not in (None, newest.state.step):
            assert best is not None, "tested"
            try:
                found = self.open(best)
            except StorageError as cause:
                damaged.append(str(cause))
        for line in damaged:
            say(f"left out: {line}; step {found.state.step:,} is used instead")
        if found is not newest:
            say(f"step {best:,} is used, which had the lowest held-out loss; the last one is {newest.state.step:,}")
        return found

    def restore(self, step: int, worker: Saveable, recipe: str, data: str) -> State:
        """Put a checkpoint's tensors into a worker, all processes together; any number of processes may have saved it.

        A checkpoint of another recipe, other data or another model is refused before anything is changed.
        """
        opened, tensors = worker.group.on_all(self._read, step, worker, recipe, data)
        worker.put_tensors(tensors)
        return opened.state

    def _read(self, step: int, worker: Saveable, recipe: str, data: str) -> tuple[Opened, dict[str, Tensor]]:
        kept, self._opened = self._opened, None
        opened = kept if kept is not None and kept.state.step == step else self.open(step, worker.group)
        if opened.state.recipe != recipe:
            raise RunError(f"{opened.path} belongs to another recipe ({opened.state.recipe}, not {recipe})")
        if opened.state.data != data:
            raise RunError(f"{opened.path} was trained on other data ({opened.state.data}, not {data})")
        if wrong := worker.misfits(opened.shapes):
            raise RunError(
                f"{opened.path} belongs to another model: {len(wrong)} tensors are missing or of another shape, as "
                f"{wrong[0]}"
            )
        return opened, opened.read({name: worker.placement(name) for name in opened.shapes})

    def open(self, step: int, group: ProcessGroup | None = None) -> Opened:
        """An intact checkpoint; the processes of a group share the checks of a folder's files."""
        path = self.parts(step)
        if path.is_dir():
            note, shapes = sharding.check_folder(path, group)
            return Opened(path, _state(note, path, step), shapes, partial(sharding.read_folder, path))
        path = self.path(step)
        arrays, note = read_tensors(path)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}

        def read(likes: sharding.Likes) -> dict[str, Tensor]:
            return {name: sharding.own_part(tensor, likes.get(name)) for name, tensor in tensors.items()}

        return Opened(path, _state(note, path, step), shapes, read)


class Opened(NamedTuple):
    """A checkpoint, and how to read its tensors: whole, or the parts of this process."""

    path: Path
    state: State
    shapes: dict[str, torch.Size]
    read: Callable[[sharding.Likes], dict[str, Tensor]]


def _state(note: str, path: Path, step: int) -> State:
    try:
        state = State.from_dict(parse_json(note, path), str(path))
    except VersionError:
        raise
    except RecordError as cause:
        raise StorageError(f"{path}: not a checkpoint ({cause})") from cause
    if state.step != step:
        raise StorageError(f"{path}: damaged, or under another's name: it is the checkpoint of step {state.step:,}")
    return state
