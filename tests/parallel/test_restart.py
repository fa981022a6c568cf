"""Processes that torchrun starts again meet each other, not those before them, and their run is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import restarted
import torch.distributed as dist
from commands import forks
from conftest import TINY
from restarted import ACCIDENT, ROWS, STEPS
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.core.results import Evaluation
from shoestring.core.run_folder import RunFolder
from shoestring.parallel.process_group import agree
from shoestring.track import read_lines
from shoestring.training.checkpoint import Checkpoints

PATIENCE = timedelta(seconds=30)
SECONDS = 150


# --- a name for every attempt, in a store that keeps what earlier attempts left


def _store(server: dist.TCPStore) -> dist.TCPStore:
    """A connection of its own, as every process has one."""
    return dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=PATIENCE)


def _attempt(server: dist.TCPStore, ranks: Sequence[int], world: int, patience: timedelta = PATIENCE) -> list[str]:
    with ThreadPoolExecutor(len(ranks)) as threads:
        given = [(_store(server), rank, world, patience) for rank in ranks]
        return list(threads.map(lambda arguments: agree(*arguments), given))


def test_every_attempt_has_a_name_of_its_own_whatever_the_one_before_left() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    names = []
    for world, order in ((3, [0, 1, 2]), (3, [2, 1, 0]), (2, [1, 0]), (4, [3, 0, 2, 1])):
        server.set("arrived/1", f"one that ended before it was answered, {world}")
        found = _attempt(server, order, world)
        assert len(set(found)) == 1, "all have the same"
        names.append(found[0])
    assert len(set(names)) == len(names)


def test_a_process_that_never_comes_is_named() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    _attempt(server, [0, 1, 2], 3)
    with pytest.raises(Fault, match=r"these of 3 processes are not here: 1, 2;"):
        _attempt(server, [0], 3, timedelta(seconds=0.1))


# --- torchrun --max-restarts


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of `restarted`, all of them finished."""
    path = tmp_path_factory.mktemp("restarted")
    (path / "tiny.toml").write_text(TINY)
    process = forks().Process(target=restarted.main, args=(path / "tiny.toml",))
    process.start()
    process.join(SECONDS)
    try:
        assert process.exitcode == 0
    finally:
        process.terminate()  # if it is still there, it ends the others
        process.join()
    return path / "runs"


def _starts(folder: RunFolder) -> list[int]:
    return [line["step"] for line in read_lines(folder.timings) if line.get("event") == "start"]


def _weights(folder: RunFolder) -> dict[str, Tensor]:
    """Of the last checkpoint, with the state of the optimizer."""
    checkpoints = Checkpoints(folder.checkpoints, 1)
    assert checkpoints.steps()[0] == STEPS
    return checkpoints.open(STEPS).read({})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["copies", "parts", "local"])
def test_a_run_whose_process_was_killed_resumes_to_the_same_bits(kind: str, runs: Path) -> None:
    whole, killed = RunFolder(runs / f"whole-{kind}"), RunFolder(runs / f"killed-{kind}")
    assert _starts(whole) == [0]
    first, second = _starts(killed)
    assert first == 0
    assert 0 < second <= ACCIDENT, "from a checkpoint before the accident"
    assert killed.metrics.read_bytes() == whole.metrics.read_bytes()
    assert killed.evaluation.read_bytes() == whole.evaluation.read_bytes()
    one, other = _weights(whole), _weights(killed)
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert {path.suffix for path in killed.checkpoints.iterdir()} == {".safetensors" if kind == "copies" else ".parts"}


@pytest.mark.slow
def test_a_sharded_run_that_ran_out_of_memory_resumes_with_half_the_rows(runs: Path) -> None:
    whole, full = RunFolder(runs / "whole-parts"), RunFolder(runs / "full-parts")
    first, second = _starts(full)
    assert first == 0
    assert 0 < second <= ACCIDENT
    assert [line["per_device"] for line in read_lines(full.timings) if line.get("event") == "halved"] == [ROWS // 2]
    losses, again = (
        {(line["step"], name): line[name] for line in read_lines(folder.metrics) for name in line if "loss" in name}
        for folder in (whole, full)
    )
    assert again == pytest.approx(losses, abs=1e-6)
    assert len(again) == STEPS + 4
    assert Evaluation.read(full.evaluation).loss == pytest.approx(Evaluation.read(whole.evaluation).loss, abs=1e-6)
