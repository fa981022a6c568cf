"""What this machine has and lacks for runs, with the line that mends each."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoestring.core.environment import slurm_job
from shoestring.core.errors import UserError
from shoestring.core.files import free_bytes
from shoestring.core.units import Bytes

State = Literal["ok", "missing", "wrong"]
EXTRAS = {
    "report": ("vl_convert",),
    "board": ("starlette", "uvicorn"),
    "track": ("tensorboard", "wandb", "trackio"),
    "data": ("pyarrow", "zstandard"),
    "hf": ("transformers", "datasets"),
    "harness": ("lm_eval",),
    "optuna": ("optuna", "scipy"),
    "adamw8bit": ("bitsandbytes",),
    "peft": ("peft",),
    "kernels": ("triton",),
}
"""Modules of each extra."""
_USES = {
    "report": "figures of pages",
    "board": "shoestring board",
    "track": "trackers",
    "data": "Parquet and .zst files",
    "hf": "models and data sets of the hub",
    "harness": "evaluate --harness",
    "optuna": "sweep --sampler optuna:…",
    "adamw8bit": 'train.optimizer = "adamw8bit"',
    "peft": "adapters of export --adapter, in transformers",
    "kernels": "fused kernels on a GPU",
}
_TORCH = "pip install 'torch>=2.11,<2.14'"
_WRITTEN = 32 << 20
"""Bytes that are written to see how fast the disk is."""
_SLOW_DISK, _LITTLE_ROOM = 50e6, 5 << 30
"""Bytes per second, and free bytes, below which a run may wait for its disk, or fill it."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    what: str
    state: State
    found: str
    mend: str = ""
    """What to do; nothing where it is ok, or not needed."""


def examine(folder: Path) -> Iterator[Check]:
    """Look at everything; runs would be written to `folder`."""
    yield _python()
    yield from _torch()
    yield from _disk(folder)
    yield _slurm()
    yield from (_extra(name) for name in EXTRAS)


def _python() -> Check:
    version = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not sys.platform.startswith("linux"):
        return Check("Python", "wrong", version, "runs are tested on Linux alone")
    return Check("Python", "ok", version)


def _torch() -> Iterator[Check]:
    try:
        import torch
    except Exception as cause:  # a library that it needs is missing, or of another version
        yield Check("torch", "wrong", f"cannot be imported ({type(cause).__name__}: {cause})", _TORCH)
        return
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    inside = (2, 11) <= version < (2, 14)
    yield Check("torch", "ok" if inside else "wrong", torch.__version__, "" if inside else _TORCH)
    yield _gpu(torch)
    yield _triton(torch.cuda.is_available())


def _gpu(torch: Any) -> Check:
    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        shown = (f"{card.name}, {Bytes(card.total_memory).short()}, {card.major}.{card.minor}" for card in cards)
        return Check("GPU", "ok", "; ".join(shown))
    if shutil.which("nvidia-smi") is None:
        return Check("GPU", "missing", "none; runs take the CPU")
    if torch.version.cuda is None:
        return Check("GPU", "wrong", "there is a driver, but torch is built for a CPU", f"{_TORCH} (the CUDA build)")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and not hidden.strip():
        return Check("GPU", "wrong", "CUDA_VISIBLE_DEVICES is empty", "unset CUDA_VISIBLE_DEVICES")
    found = f"torch for CUDA {torch.version.cuda} cannot use the driver"
    return Check("GPU", "wrong", found, "nvidia-smi says which CUDA the driver has; update it, or take another torch")


def _triton(needed: bool) -> Check:
    if not _is_there("triton"):
        mend = "pip install 'shoestring[kernels]'" if needed else ""
        return Check("Triton", "wrong" if needed else "missing", "not installed", mend)
    if needed and not any(map(shutil.which, ("gcc", "cc", "clang"))):
        return Check("Triton", "wrong", "no C compiler, which it needs on a GPU", "install gcc")
    return Check("Triton", "ok", importlib.metadata.version("triton"))


def _disk(folder: Path) -> Iterator[Check]:
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    free = free_bytes(place)
    mend = "" if free >= _LITTLE_ROOM else "set run.folder and data.folder to a larger disk, or budget.disk"
    yield Check("disk", "wrong" if mend else "ok", f"{Bytes(free).short()} free in {place}", mend)
    try:
        speed = _write_speed(place)
    except OSError as cause:
        mend = "set run.folder and data.folder to a folder that can be written"
        yield Check("disk speed", "wrong", f"{place} cannot be written: {cause.strerror or cause}", mend)
        return
    slow = speed < _SLOW_DISK
    mend = "checkpoints and rows wait for it: set run.folder and data.folder to a local disk" if slow else ""
    yield Check("disk speed", "wrong" if slow else "ok", f"{Bytes(int(speed)).short()}/s written to {place}", mend)


def _write_speed(folder: Path) -> float:
    """Bytes per second of a file that is written to the disk itself, and leaves no trace."""
    content = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        started = time.perf_counter()
        for _ in range(_WRITTEN >> 20):
            file.write(content)
        os.fsync(file.fileno())
        return _WRITTEN / (time.perf_counter() - started)


def _is_there(module: str) -> bool:
    """Whether a module can be imported; it is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # one that was put in place by hand
        return sys.modules.get(module) is not None


def _slurm() -> Check:
    try:
        job = slurm_job()
    except UserError as cause:
        return Check("Slurm", "wrong", str(cause), "unset SLURM_JOB_ID, or start the command within the job")
    if job is not None:
        return Check("Slurm", "ok", f"within job {job.number}; a run ends before its limit")
    if shutil.which("sbatch") is None:
        return Check("Slurm", "missing", "none")
    return Check("Slurm", "ok", "sbatch is there; plan --sbatch writes a script")


def _extra(name: str) -> Check:
    lacking = [module for module in EXTRAS[name] if not _is_there(module)]
    if not lacking:
        return Check(f"[{name}]", "ok", _USES[name])
    mend = f"pip install 'shoestring[{name}]'"
    return Check(f"[{name}]", "missing", f"{_USES[name]}: no {', '.join(lacking)}", mend)
