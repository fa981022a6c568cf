"""On a GPU: the numbers of the CPU, and a run that is cut and goes on."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch
from conftest import Command, start

from shoestring.core import recipe_file
from shoestring.core.recipe import Model, Train
from shoestring.models import Batch, build
from shoestring.models.cross_entropy import IGNORED
from shoestring.probe.meter import Meter
from shoestring.stages.measure import _open_trials
from shoestring.stages.workload import make_learner
from shoestring.train.learner import Learner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

MODEL = Model(width=128, layers=3, heads=4)


def _rows() -> torch.Tensor:
    return torch.randint(500, (16, 129), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 2e-3)])
def test_losses_on_the_gpu_are_those_of_float64_on_the_cpu(precision: str, tolerance: float) -> None:
    exact = build(MODEL, 500, 64, seed=1).double().token_losses(_rows())
    learner = Learner(build(MODEL, 500, 64, seed=1), Train(batch=1, precision=precision), torch.device("cuda"))  # type: ignore[arg-type]
    found = learner.score(_rows(), 8)
    assert ((found - exact).norm() / exact.norm()).item() < tolerance


def test_a_step_on_the_gpu_is_that_of_the_cpu() -> None:
    weights = []
    for device in ("cpu", "cuda"):
        learner = Learner(build(MODEL, 500, 64, seed=1), Train(batch=1, precision="fp32"), torch.device(device))
        for _ in range(3):
            learner.update(learner.accumulate(_rows(), 4), 1e-3)
        weights.append(torch.cat([p.detach().cpu().flatten() for p in learner.model.parameters()]))
    assert ((weights[0] - weights[1]).norm() / weights[0].norm()).item() < 1e-3


def test_a_rehearsal_takes_the_memory_of_the_passes_and_changes_nothing() -> None:
    weights, peaks = [], []
    for rehearsed in (False, True):
        learner = Learner(build(MODEL, 500, 64, seed=1), Train(batch=1), torch.device("cuda"))
        learner.update(learner.accumulate(_rows(), 16), 1e-3)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        if rehearsed:
            learner.rehearse(_rows())
            peaks.append(torch.cuda.max_memory_allocated() - before)
        for rows in (_rows(), _rows()[:3], _rows()):
            tally = learner.accumulate(rows, 16)
            if not peaks:
                peaks.append(torch.cuda.max_memory_allocated() - before)
            learner.update(tally, 1e-3)
        weights.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)
    assert peaks[1] >= peaks[0] > 0


def test_what_stays_does_not_keep_the_memory_of_what_goes() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    learner = Learner(build(MODEL, 500, 64, seed=1), Train(batch=1, compile=False), torch.device("cuda"))
    learner.update(learner.accumulate(_rows().repeat(256, 1), 4096), 1e-3)
    peak = torch.cuda.max_memory_reserved()
    learner.forget()
    kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated() - before
    assert peak > 1 << 30
    assert kept < 64 << 20


@pytest.mark.parametrize("passes", [1, 2])
def test_steps_take_the_memory_that_first_steps_were_measured_to_take(passes: int, tmp_path: Path) -> None:
    """Of a masked model, whose passes are not recorded: it has no gradient beside a step's first pass, and whatever
    number of tokens is hidden, the same tensors."""
    recipe = recipe_file.build(
        {
            "run": {"folder": str(tmp_path)},
            "budget": {"steps": 1},
            "data": {"tokenizer": "words:30000", "length": 128},
            "model": {"family": "masked_lm", "width": 768, "layers": 4, "heads": 12},
            "train": {"batch": 64 * passes},
        },
        "test",
    )
    with _open_trials(recipe, real=False) as trials:
        measured = trials.begin(64, passes)["peak_bytes"]
    meter = Meter(torch.device("cuda"))
    learner = make_learner(recipe, meter.device)
    generator = torch.Generator().manual_seed(3)
    for _ in range(12):
        ids = torch.randint(30_000, (64 * passes, 128), generator=generator)
        shown = torch.rand(ids.shape, generator=generator) > 0.15
        batch = Batch(ids, wanted=ids.masked_fill(shown, IGNORED), share=0.15)
        learner.update(learner.accumulate(batch, 64), 1e-3)
    usage = meter.usage()
    assert usage is not None
    assert usage.reserved == pytest.approx(measured, rel=0.01)


def test_a_run_on_the_gpu_is_cut_and_goes_on(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
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
