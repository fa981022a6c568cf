"""Checkpoints: one file each, whole or absent, checked when read.

A checkpoint is a safetensors file with everything a run needs to go on as if it had never stopped: weights, optimizer
state, random state, and as metadata the `State` and a CRC-32 of every tensor.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoestring.core.errors import RecordError, RunError, StorageError, storage_error
from shoestring.core.files import folder_bytes, make_folder, sync_folder
from shoestring.core.records import Record
from shoestring.train.course import Course
from shoestring.train.learner import Learner


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


class Checkpoints:
    """The checkpoints of one run: the last `keep`, and the best."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self.keep = keep
        self.peak_bytes = 0
        """The most that checkpoints took on disk at once."""

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, latest first."""
        names = (path.stem.removeprefix("step-") for path in self.folder.glob("step-*.safetensors"))
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def save(self, learner: Learner, state: State) -> None:
        """Write a checkpoint, then remove those that are not kept. Only the finished file has the checkpoint's name."""
        make_folder(self.folder)
        for leftover in self.folder.glob(".*.tmp"):  # of a process that was killed while writing
            leftover.unlink(missing_ok=True)
        path = self.path(state.step)
        tensors = _tensors(learner)
        text = json.dumps(state.to_dict())
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            save_file(tensors, temporary, {"state": text, "check": str(_check(text, tensors))})
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
            sync_folder(self.folder)
        except OSError as cause:
            raise storage_error("write the checkpoint", path, cause) from cause
        except SafetensorError as cause:
            raise storage_error("write the checkpoint", path, _as_oserror(cause)) from cause
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        self.peak_bytes = max(self.peak_bytes, folder_bytes(self.folder))
        kept = {*self.steps()[: self.keep], state.best_step}
        for step in self.steps():
            if step not in kept:
                self.path(step).unlink(missing_ok=True)

    def latest(self) -> tuple[int | None, list[str]]:
        """The step of the newest whole checkpoint, and a line for every newer one that is damaged."""
        damaged: list[str] = []
        for step in self.steps():
            try:
                read(self.path(step))
                return step, damaged
            except StorageError as cause:
                damaged.append(str(cause))
        return None, damaged

    def restore(self, step: int, learner: Learner, recipe: str, data: str) -> State:
        """Put a checkpoint's tensors into the learner; refuses one that belongs to another recipe or other data."""
        path = self.path(step)
        tensors, state = read(path)
        if state.recipe != recipe:
            raise RunError(f"{path} belongs to another recipe ({state.recipe}, not {recipe})")
        if state.data != data:
            raise RunError(f"{path} was trained on another token store ({state.data}, not {data})")
        _restore(learner, tensors)
        return state


def read(path: Path) -> tuple[dict[str, Tensor], State]:
    """A checkpoint's tensors, on the CPU, and its state; raises StorageError if a byte of it is not as written."""
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


def _tensors(learner: Learner) -> dict[str, Tensor]:
    """Everything to save, by name, on the CPU. Tied weights appear once."""
    found = {}
    for name, parameter in learner.model.named_parameters():
        found[f"model/{name}"] = parameter.detach()
        for key, value in learner.optimizer.state.get(parameter, {}).items():
            found[f"optimizer/{key}/{name}"] = value
    found["random/cpu"] = torch.get_rng_state()
    if learner.device.type == "cuda":
        found["random/cuda"] = torch.cuda.get_rng_state(learner.device)
    return {name: tensor.cpu().contiguous() for name, tensor in found.items()}


@torch.no_grad()
def _restore(learner: Learner, tensors: dict[str, Tensor]) -> None:
    for name, parameter in learner.model.named_parameters():
        parameter.copy_(tensors[f"model/{name}"])
        suffix = f"/{name}"
        saved = {key: value for key, value in tensors.items() if key.startswith("optimizer/") and key.endswith(suffix)}
        learner.optimizer.state[parameter] = {
            key.removeprefix("optimizer/").removesuffix(suffix): value.to(parameter.device)
            for key, value in saved.items()
        }
    torch.set_rng_state(tensors["random/cpu"])
    if learner.device.type == "cuda" and "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"], learner.device)
