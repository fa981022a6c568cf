"""Batches that grow on a GPU, where passes and updates are replayed; and runs by the clock of the benchmarks."""

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from shoestring.core import recipe_file
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.data.pack.order import RowIndex, step_rows
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.training.checkpoint import State
from shoestring.training.growth import GrowingStepper
from shoestring.training.learner import Learner
from shoestring.training.loop import Loop
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import Stepper

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

ROWS, LENGTH, BATCH = 96, 32, 8


class Rows:
    ids = torch.randint(50, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(1))

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return step_rows(seed, ROWS, step, batch)

    def batch(self, index: RowIndex) -> Batch:
        return Batch(self.ids[index.rows])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_updates_of_two_steps_are_those_of_twice_the_batch(optimizer: str) -> None:
    def learner() -> Learner:
        model = build(Model(family="swift", width=64, layers=2, heads=2), 50, LENGTH, 0)
        return Learner(model, Train(batch=BATCH, lr=0.01, optimizer=optimizer, precision="fp32"), torch.device("cuda"))

    found = []
    for factor, steps in ((1, 12), (2, 6)):
        settings = Train(batch=BATCH, lr=0.001 * math.sqrt(factor), schedule="constant", warmup=0.0)
        options: dict[str, Any] = {"batch": factor * BATCH, "per_device": factor * BATCH, "seed": 3}
        stepper = Stepper(learner(), Rows(), settings, **options)
        if factor == 1:
            stepper = GrowingStepper(learner(), Rows(), settings, most=5, **options)
            stepper.growth.passes = 2
        Loop(stepper, ()).run(State(recipe="", data="", schedule=Schedule(total=steps)))
        found.append(stepper.learner.weights)
        if isinstance(stepper, GrowingStepper):
            (noise,) = stepper.growth._windows.values()
            assert noise.steps == 12 and noise.trace > 0
    for name, tensor in found[0].items():
        assert torch.allclose(tensor, found[1][name], atol=2e-3), name


def test_a_run_by_the_clock_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "bench"))
    timed = importlib.import_module("timed")
    values = {
        "run": {"name": "timed", "folder": str(tmp_path / "runs")},
        "budget": {"steps": 1},
        "data": {"source": "stories", "documents": 500, "tokenizer": "bytes", "length": 64, "folder": str(tmp_path)},
        "model": {"family": "swift", "width": 64, "layers": 2, "heads": 2},
        "train": {"batch": 32, "lr": 0.01, "optimizer": "muon", "schedule": "cooldown"},
        "evaluate": {"rows": 32},
    }
    recipe = recipe_file.build(values, "test")
    corpus = timed.rows_of(recipe)
    found, none = timed.timed_run(recipe, corpus, seconds=2.0), timed.timed_run(recipe, corpus, steps=1)
    assert 2.0 <= found.seconds < 2.5 and found.loss < none.loss - 1
