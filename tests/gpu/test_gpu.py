"""On a GPU: the numbers of the CPU, and a run that is cut and resumes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch
from conftest import Command, start

from shoestring.core.recipe_file import load
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.runs.measure import Measuring, _open_trials
from shoestring.training.learner import Learner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

MODEL = Model(width=128, layers=3, heads=4)


def _rows() -> torch.Tensor:
    return torch.randint(500, (16, 129), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 2e-3)])
def test_losses_on_the_gpu_are_those_of_float64_on_the_cpu(precision: str, tolerance: float) -> None:
    exact = build(MODEL, 500, 64, seed=1).double().token_losses(_rows())
    learner = Learner(build(MODEL, 500, 64, seed=1), Train(batch=1, lr=1e-3, precision=precision), torch.device("cuda"))  # type: ignore[arg-type]
    found = learner.score(_rows(), 8)
    assert ((found - exact).norm() / exact.norm()).item() < tolerance


def test_a_step_on_the_gpu_is_that_of_the_cpu() -> None:
    weights = []
    for device in ("cpu", "cuda"):
        learner = Learner(
            build(MODEL, 500, 64, seed=1), Train(batch=1, lr=1e-3, precision="fp32"), torch.device(device)
        )
        for _ in range(3):
            learner.update(learner.accumulate(_rows(), 4), 1e-3)
        weights.append(torch.cat([p.detach().cpu().flatten() for p in learner.model.parameters()]))
    assert ((weights[0] - weights[1]).norm() / weights[0].norm()).item() < 1e-3


def test_a_rehearsal_records_the_passes_and_changes_nothing() -> None:
    weights = []
    for rehearsed in (False, True):
        learner = Learner(build(MODEL, 500, 64, seed=1), Train(batch=1, lr=1e-3), torch.device("cuda"))
        learner.update(learner.accumulate(_rows(), 16), 1e-3)
        if rehearsed:
            assert learner.rehearse(_rows())
            assert all(p.grad is None for p in learner.model.parameters())
        for rows in (_rows(), _rows()[:3], _rows()):
            learner.update(learner.accumulate(rows, 16), 1e-3)
        weights.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


def test_a_run_on_the_gpu_is_cut_and_resumes(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    options = ("--set", "budget.steps=400", "--set", "train.checkpoint_every=100ms")
    metrics = tmp_path / "runs/tiny/metrics.jsonl"
    process = start("train", tiny, *options, cwd=tmp_path)
    while process.poll() is None and not (metrics.is_file() and metrics.read_bytes().count(b"\n") > 100):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    result = shoestring("train", tiny, *options, "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["outcome"]["segments"] == 2
    assert told["outcome"]["steps"] == 400
    machine = json.loads((tmp_path / "runs/tiny/machine.json").read_text())
    assert machine["device"] == "cuda"
    assert told["plan"]["peak_bytes"] > 0


def test_workers_of_one_server_measure_on_the_gpu(tiny: Path) -> None:
    """The server that has loaded everything is forked, and each worker begins a context of its own."""
    with _open_trials(load(tiny), Measuring(seconds=1.0)) as trials:
        first = trials.begin(1)
        server = trials._child
        trials.renew()
        second = trials.begin(1)
        assert trials.trial(4).usage is not None
        assert trials._child is server is not None
    assert first["machine"]["device"] == second["machine"]["device"] == "cuda"
    assert second["setup_seconds"] > 0 and second["peak_bytes"] == pytest.approx(first["peak_bytes"], rel=0.05)
