"""The rows of an HMM as a token store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from shoestring.baselines.streams import HmmBaselines
from shoestring.core.errors import DataError
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import Record
from shoestring.core.seeds import derive
from shoestring.data.store.fixed_rows import Job, Progress, shard_rows, write_rows
from shoestring.data.store.store import Manifest
from shoestring.datasets.streams import model_stream, read_model
from shoestring.streams.source import HELDOUT, TRAIN, on_host

ANSWERED_ROWS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreAnswers(Record):
    """Known losses of a store's first held-out rows, in nats, from the second token of a row on."""

    SCHEMA: ClassVar[str] = "shoestring.answers/1"

    rows: int
    entropy_rate: float | None
    """Of the source, without permutations; None where it has no unique one."""
    entropy_rate_error: float | None
    losses: dict[str, float]
    """By baseline; the oracle knows the model and the permutations of every row."""
    losses_by_position: dict[str, tuple[float, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to write."""

    model: Path
    rows: int
    length: int
    heldout: int = 1024
    seed: int = 0
    start: str = "model"
    symbols: str = "none"
    states: str = "none"


def sample_store(
    wanted: Wanted,
    folder: Path,
    part: tuple[int, int],
    device: torch.device,
    progress: Callable[[Progress], None] = lambda _: None,
) -> tuple[Job, Manifest | None]:
    """Write the store, or part i of n; row i is that of a stream with the same model and seed."""
    if not 1 <= wanted.rows <= HELDOUT:
        raise DataError(f"--rows {wanted.rows:,}: a stream has 1 to 2^62 = {HELDOUT:,} for training, of 2^63 in all")
    if not 0 <= wanted.heldout <= 1 << 61:
        raise DataError(f"--heldout {wanted.heldout:,}: must be 0 to 2^61")
    if RunFolder(folder).recipe.is_file():
        raise DataError(f"--out {folder}: it is the folder of a run; choose a folder of its own for the store")
    model = read_model(wanted.model)
    kinds = {"start": wanted.start, "symbols": wanted.symbols, "states": wanted.states}
    stream = model_stream(model, derive(wanted.seed, "stream"), wanted.length, **kinds)
    rows = {"train": wanted.rows, "heldout": wanted.heldout}
    job = Job(
        source={"source": "hmm", "stream": stream.fingerprint, "seed": wanted.seed, **kinds},
        symbols=stream.symbols,
        length=wanted.length,
        rows={split: count for split, count in rows.items() if count},
        shard_rows=shard_rows(wanted.length, stream.symbols),
    )
    begin = {"train": TRAIN, "heldout": HELDOUT}

    def make(split: str, first: int, count: int) -> NDArray[np.unsignedinteger]:
        return on_host(stream.rows(begin[split] + first, count, device))

    names = model.alphabet if stream.kinds["symbols"].name == "none" else None
    manifest = write_rows(folder, job, names, make, part, progress)
    if manifest is not None and wanted.heldout and wanted.length > 1:
        answered = min(wanted.heldout, ANSWERED_ROWS)
        known = HmmBaselines(stream, model, wanted.start).baselines(answered)
        rate = known.rate
        answers = StoreAnswers(
            rows=answered,
            entropy_rate=None if rate is None else rate.nats,
            entropy_rate_error=None if rate is None else rate.error,
            losses=known.losses,
            losses_by_position=known.by_position,
        )
        answers.write(folder / "answers.json")
    return job, manifest
