"""Several processes: the same parameters as one, one writer, one clock, and errors that all of them see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shoestring.hmm.fit import FitSettings, fit
from shoestring.hmm.parameters import random_parameters
from shoestring.hmm.sampling import sample

CASES: dict[str, dict[str, Any]] = {
    "all": {"update": "all"},
    "every": {"update": "every", "update_every": 5},
    "online": {"update": "online", "update_every": 5, "end": True, "restarts": 2, "restart_epochs": 2},
    "single": {"update": "every", "update_every": 1},  # most processes have nothing to count
}
WORLD = 2

CHILD = """
import datetime, json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from shoestring.core.errors import RunError
from shoestring.hmm import resume
from shoestring.hmm.fit import FitSettings, fit

folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world,
                        timeout=datetime.timedelta(seconds=60))
given = torch.load(folder / "given.pt")
data = given["data"]
save, writers = resume.save, []
resume.save = lambda *args: (writers.append(rank), save(*args))
result = {}
for name, changes in given["cases"].items():
    fitted = fit(settings=FitSettings(states=3, epochs=4, **changes), symbols=9, dtype=torch.float64, **data)
    result[name] = ([t for t in fitted.parameters if t is not None], [e.loss for e in fitted.epochs])

class Killed(Exception):
    pass

def kill(epoch, parameters):
    if epoch.epoch == 2:
        raise Killed

path = folder / f"fit-{0 if rank == 0 else 'not-here'}.safetensors"  # only the first process can see the file
online = FitSettings(states=3, epochs=4, **given["cases"]["every"])
options = dict(symbols=9, dtype=torch.float64, checkpoint=path, **data)
try:
    fit(settings=online, on_epoch=kill, **options)
except Killed:
    pass
# the clocks differ: the first one counts
stopped = fit(settings=online, time_left=lambda: -1.0 if rank == 0 else 1e9, **options)
result["stopped"] = (stopped.stopped, len(stopped.epochs))
resumed = fit(settings=online, time_left=lambda: 1e9 if rank == 0 else -1.0, **options)
result["resumed"] = ([t for t in resumed.parameters if t is not None], [e.loss for e in resumed.epochs])
try:
    fit(settings=FitSettings(states=4, **given["cases"]["every"]), **options)
except RunError as error:
    result["refused"] = str(error)
result["writers"] = writers
torch.save(result, folder / f"result-{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def data() -> dict[str, Tensor]:
    tokens = sample(random_parameters(4, 9, 3, concentration=0.3), 20, 6, seed=1).tokens
    return {"tokens": tokens, "lengths": torch.arange(20) % 6 + 1, "weights": torch.arange(20) % 3 * 0.5 + 0.25}


@pytest.fixture(scope="module")
def results(data: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder: Path = tmp_path_factory.mktemp("together")
    torch.save({"data": data, "cases": CASES}, folder / "given.pt")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(rank), str(WORLD)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(WORLD)
    ]
    try:
        errors = [process.communicate(timeout=100)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * WORLD, "\n".join(errors)
    return [torch.load(folder / f"result-{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_fit_what_one_does(
    name: str, results: list[dict[str, Any]], data: dict[str, Tensor]
) -> None:  # fmt: skip
    alone = fit(settings=FitSettings(states=3, epochs=4, **CASES[name]), symbols=9, dtype=torch.float64, **data)
    expected = [table for table in alone.parameters if table is not None]
    for result in results:
        tables, losses = result[name]
        assert losses == pytest.approx([epoch.loss for epoch in alone.epochs], rel=1e-9)
        assert len(tables) == len(expected)
        for table, other in zip(tables, expected):
            torch.testing.assert_close(table, other, rtol=0, atol=1e-6)


def test_all_processes_have_the_same_bits(results: list[dict[str, Any]]) -> None:
    for name in CASES:
        (one, losses), (other, other_losses) = (result[name] for result in results)
        assert losses == other_losses
        assert all(torch.equal(a, b) for a, b in zip(one, other))


def test_all_go_on_from_the_file_that_the_first_wrote(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["stopped"] == ("time", 1)
        tables, losses = result["resumed"]
        straight, straight_losses = result["every"]
        assert losses == straight_losses
        assert all(torch.equal(a, b) for a, b in zip(tables, straight))
    assert set(results[0]["writers"]) == {0}
    assert results[1]["writers"] == []


def test_all_see_why_a_checkpoint_is_refused(results: list[dict[str, Any]]) -> None:
    assert "states = 3, not 4" in results[0]["refused"]
    assert results[1]["refused"] == results[0]["refused"]
