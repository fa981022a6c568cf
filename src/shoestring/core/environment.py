"""Environment variables, checked: which process of a group this is, its Slurm job, how much is read at once."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from shoestring.core.errors import UserError
from shoestring.core.units import Bytes, Seconds

RECORD_BYTES, FILE_BYTES = "SHOESTRING_RECORD_BYTES", "SHOESTRING_FILE_BYTES"
SLOW_WORKER, STEP_SECONDS = "SHOESTRING_SLOW_WORKER", "SHOESTRING_STEP_SECONDS"
START = "SHOESTRING_START"
"""When the time of a run began, in seconds since 1970: that of its allocation, which Slurm's scripts set."""
_DEFAULTS = {RECORD_BYTES: 64 << 20, FILE_BYTES: 256 << 20}
_MOST_BYTES = 1 << 40
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")
"""A name of a machine, or its address."""


class Launched(NamedTuple):
    """This process among those that torchrun started; one alone is the first of one."""

    world: int
    rank: int
    local_rank: int | None
    """Of its machine; None: not said."""
    local_world: int | None = None
    """Processes on its machine; None: not said."""


def launched() -> Launched:
    """What the environment says; raises UserError where it contradicts itself."""
    world = _number("WORLD_SIZE", 1, 1 << 20)
    if world is None or world == 1:
        return Launched(1, 0, None)
    rank, port = _number("RANK", 0, world - 1), _number("MASTER_PORT", 1, 65535)
    missing = [name for name, value in (("RANK", rank), ("MASTER_PORT", port)) if value is None]
    address = os.environ.get("MASTER_ADDR")
    missing += [] if address else ["MASTER_ADDR"]
    if missing or rank is None:
        raise UserError(
            f"WORLD_SIZE={world} in the environment, but no {', '.join(missing)}; start all processes with torchrun, "
            f"or unset WORLD_SIZE"
        )
    if address and not _HOST.fullmatch(address):
        raise UserError(f"MASTER_ADDR={address[:40]!r} in the environment: must be the name or address of a machine")
    return Launched(world, rank, _number("LOCAL_RANK", 0, world - 1), _number("LOCAL_WORLD_SIZE", 1, world))


class SlurmJob(NamedTuple):
    """The Slurm job of this process."""

    number: int
    end: int | None
    """In seconds since 1970; None: an older Slurm does not say."""


def slurm_job(environment: Mapping[str, str] = os.environ) -> SlurmJob | None:
    """The job that the environment names, None outside of one; raises UserError where it is none that runs.

    An empty variable counts as one that is not set.
    """
    given = {name: value for name, value in environment.items() if value}
    number = _number("SLURM_JOB_ID", 1, (1 << 32) - 1, given)
    if number is None:
        return None
    end = _number("SLURM_JOB_END_TIME", 0, 10**11, given)
    if end is not None and end <= time.time():
        raise UserError(
            f"SLURM_JOB_END_TIME={end} in the environment: job {number} has ended; start another job, or unset "
            f"SLURM_JOB_ID and SLURM_JOB_END_TIME"
        )
    return SlurmJob(number, end)


def waited() -> float:
    """Seconds since the time of a run began, where the environment says when; 0 where it does not."""
    began = _number(START, 0, 10**11)
    return 0.0 if began is None else max(0.0, time.time() - began)


def record_bytes() -> int:
    """The longest record of a corpus: a line, a paragraph, a text of a table. It is held in memory whole."""
    return _size(RECORD_BYTES)


def file_bytes() -> int:
    """The largest file, decompressed, that is read whole: a tokenizer, a record of a run."""
    return _size(FILE_BYTES)


def slowness(worker: int) -> float:
    """The factor by which a worker takes longer than it must, to see what becomes of the others; 1: it does not."""
    text = os.environ.get(SLOW_WORKER)
    if text is None:
        return 1.0
    which, factor = parse_slow(text, f"{SLOW_WORKER} in the environment")
    return factor if which == worker else 1.0


def step_seconds() -> float:
    """The seconds that passes over all rows of a step take at least, as on a slower device; 0: as long as they take."""
    text = os.environ.get(STEP_SECONDS, "0s")
    try:
        return float(Seconds.parse(text))
    except ValueError as cause:
        raise UserError(f"{STEP_SECONDS} in the environment: {cause}") from cause


def parse_slow(text: str, where: str) -> tuple[float, float]:
    """(which, factor) of "WHICH:FACTORx"."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,9})?):(\d{1,4}(?:\.\d{1,9})?)x", text)
    if found is None or not 1 <= float(found[2]) <= 1000:
        raise UserError(f"{where} = {text[:40]!r}: write WHICH:FACTORx, as in 1:3x, with a factor from 1 to 1000")
    return float(found[1]), float(found[2])


def _size(name: str) -> int:
    text = os.environ.get(name)
    if text is None:
        return _DEFAULTS[name]
    try:
        size = Bytes.parse(text)
    except ValueError as cause:
        raise UserError(f"{name} in the environment: {cause}") from cause
    if not 1 <= size <= _MOST_BYTES:
        raise UserError(f"{name}={size} in the environment: must be at least 1B and at most {Bytes(_MOST_BYTES)}")
    return int(size)


def _number(name: str, least: int, most: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """The whole number in a variable; None where it is not set."""
    text = environment.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= most):
        raise UserError(f"{name}={text[:40]!r} in the environment: must be a whole number from {least:,} to {most:,}")
    return int(text)
