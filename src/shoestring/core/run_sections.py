"""The sections of a recipe about where a run is, and how long it may last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from shoestring.core.schema import Between, Text
from shoestring.core.sections import COUNT, PATH, STEPS, TIME, Auto
from shoestring.core.units import Bytes, Count, Flops, Seconds

_BYTES = Between(1, 10**18)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The run's folder, and its seed."""

    name: Annotated[str, Text(255), "name of the run's folder"] = "run"
    folder: Annotated[str, PATH, "folder that holds run folders"] = "runs"
    seed: Annotated[int, Between(0, (1 << 63) - 1), "source of every random choice"] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits of the run; the tightest one binds."""

    time: Annotated[Seconds | None, TIME, "wall clock from the start of the process, with set-up and saving"] = None
    flops: Annotated[Flops | None, Between(1, 1e30), "training computation, as counted for the model"] = None
    tokens: Annotated[Count | None, COUNT, "positions of training: rows × data.length, padding included"] = None
    steps: Annotated[Count | None, STEPS, "optimizer steps"] = None
    epochs: Annotated[
        float | Auto | None,
        Between(1e-9, 1e9),
        "epochs over the training rows; needs data.documents or a file. auto: as many as teach more than they overfit; "
        "so by default if only the time is limited and lr is auto",
    ] = None
    disk: Annotated[Bytes | None, _BYTES, "token store and checkpoints together"] = None
    memory: Annotated[
        Bytes | None,
        _BYTES,
        "peak of the device (on a CPU: growth of the process by model and training); default: the free memory",
    ] = None
