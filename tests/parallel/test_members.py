"""Workers that end while the others connect, at each stage: those who are left go on, or end with a reason."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from commands import forks

from shoestring.core.errors import Fault
from shoestring.parallel import members, process_group
from shoestring.parallel.members import Members
from shoestring.parallel.process_group import ProcessGroup

WORKERS, TURNS, ACCIDENT = 4, 4, 2
SOON = timedelta(seconds=2)
"""In place of a minute."""
STAGES = ("before it connects", "between its two groups", "after its answer", "never connected")


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _planted(stage: str, turn: int) -> Any:
    """The place at which worker 1 ends, from the accident of worker 3 on."""
    if stage == "never connected":
        return patch.object(Members, "_connect", _die)
    if turn < ACCIDENT:
        return nullcontext()
    if stage == "before it connects":
        return patch.object(members, "connect", _die)
    if stage == "between its two groups":
        return patch.object(process_group.dist, "new_group", _die)  # type: ignore[attr-defined]
    hear: Callable[..., bool] = Members._hear

    def answered(self: Members, done: bool) -> bool:
        if done and turn == ACCIDENT:
            members._send(self._lines[0], b"+")
            _die()
        return hear(self, done)

    return patch.object(Members, "_hear", answered)


def _meet(rank: int, meeting: str, stage: str, results: Any) -> None:
    process_group.CONNECTING = members.CONNECTING = SOON  # type: ignore[misc, attr-defined]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORKERS)
    group = ProcessGroup.of(torch.device("cpu"))
    found: list[float] = []
    try:
        with _planted(stage, -1) if rank == 1 else nullcontext():
            together = Members(group)
        for turn in range(TURNS):
            if rank == 3 and turn == ACCIDENT:
                _die()
            with _planted(stage, turn) if rank == 1 else nullcontext():
                found.append(together.together(lambda: _sum(group, rank)))
        results.put((rank, found, sorted(together.left), group.rank, group.world))
    except Fault as error:
        results.put((rank, str(error)))
    os._exit(0)  # without waiting for those that ended


def _sum(group: ProcessGroup, rank: int) -> float:
    values = torch.full((1000,), 10.0**rank)
    group.all_reduce([values])
    return values[0].item()


@pytest.mark.parametrize("stage", STAGES)
def test_the_others_go_on_or_end_with_a_reason(stage: str, tmp_path: Path) -> None:
    results = forks().SimpleQueue()
    started = [
        forks().Process(target=_meet, args=(rank, str(tmp_path / "m"), stage, results)) for rank in range(WORKERS)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
        assert process.exitcode is not None, "it hangs"
    told = sorted(results.get() for _ in range(sum(process.exitcode == 0 for process in started)))
    if stage == "never connected":
        assert told[0] == (0, f"worker 1 has not connected within {SOON}; see its output")
        assert len(told) == 3, "the others end too"
        return
    third = 111.0 if stage == "after its answer" else 101.0
    expected = [1111.0, 1111.0, third, 101.0]
    assert told == [(0, expected, [1, 3], 0, 2), (2, expected, [1, 3], 1, 2)]
