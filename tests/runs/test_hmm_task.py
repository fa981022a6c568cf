"""A fit keeps to its plan: rows at a time, updates as they were measured, bytes of a checkpoint, and its time."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shoestring.core.recipe_file import build
from shoestring.hmm.engine import engine_of_updates
from shoestring.hmm.expect import Counts, expect, fixed_bytes, sequence_bytes
from shoestring.hmm.fit import Fit, FitSettings, fit, learn
from shoestring.hmm.parameters import HmmMemoryError, random_parameters
from shoestring.hmm.progress import save_progress
from shoestring.parallel.process_group import ProcessGroup
from shoestring.planning.hmm import EPOCH_BYTES
from shoestring.probe.meter import Meter
from shoestring.runs.hmm_task import HmmTask
from shoestring.runs.hmm_trainee import fit_settings
from shoestring.runs.hmm_workload import HmmWorkload
from shoestring.runs.task import task_of
from shoestring.track import NoLines
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.deadline import Deadline
from shoestring.training.hooks import KeepDeadline
from shoestring.training.loop import Report, Requests, Sum
from shoestring.training.schedule import Schedule

CPU = torch.device("cpu")
DATA = {"tokenizer": "words:9", "documents": 9}


def test_a_gpu_takes_as_many_rows_at_a_time_as_planned_and_is_asked_once_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoestring.hmm.engine.free_bytes", lambda _: 9000)
    monkeypatch.setattr("shoestring.hmm.engine.engine", lambda _: expect)
    planned = engine_of_updates(torch.device("cuda"), 64)
    assert isinstance(planned, partial)
    assert (planned.func, planned.keywords) == (expect, {"chunk": 64, "limit_bytes": 4500})


def test_on_a_cpu_the_free_memory_decides_whether_an_update_is_counted_but_not_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums of other chunks differ in their last bits, and two runs of one plan are the same run."""
    model = random_parameters(40, 30, 0).to(dtype=torch.float32)
    tokens = torch.randint(30, (600, 50), generator=torch.Generator().manual_seed(0))
    plain = expect(model, tokens)

    def counted(free: int, share: float = 1.0) -> Counts:
        monkeypatch.setattr("shoestring.hmm.engine.free_bytes", lambda _: free)
        monkeypatch.setattr("shoestring.hmm.expect.free_bytes", lambda _: free)
        return engine_of_updates(CPU, 64, share)(model, tokens, None, None)

    def same(found: Counts, expected: Counts) -> bool:
        return all(a is b is None or torch.equal(a, b) for a, b in zip(found, expected))

    needs = 2 * (fixed_bytes(model) + 600 * sequence_bytes(model, 50, recompute=False))
    assert same(counted(1 << 40), plain)
    assert same(counted(needs), plain)
    with pytest.raises(HmmMemoryError, match="600 sequences of 50 tokens at a time"):
        counted(needs - 2)
    half = counted(needs // 2 + fixed_bytes(model), share=0.5)
    assert same(half, expect(model, tokens, chunk=300))
    assert same(half, counted(1 << 40, share=0.5))
    assert not same(half, plain), "else this test could not fail"
    assert len(engine_of_updates(CPU, 64)(model, tokens[:0], None, None).start) == 40


@pytest.mark.parametrize("update", ["all", "every", "online"])
def test_an_update_that_is_measured_is_one_of_a_fit(update: str, tmp_path: Path) -> None:
    """Down to the statistics that it leaves: a fit's updates were 10 to 25 % slower than a shorter one of its own."""
    section = {"states": 3, "update": update, "update_every": 8, "tied_start": True}
    run = {"folder": str(tmp_path)}
    recipe = build({"run": run, "budget": {"epochs": 1}, "data": DATA | {"length": 12}, "hmm": section}, "test")
    task = task_of(recipe)
    assert isinstance(task, HmmTask)
    work = HmmWorkload(task, Meter(CPU))
    work.accumulate(8)
    tokens = work._rows(8)
    work.update()
    settings = fit_settings(task, 1)
    fitted = fit(tokens, settings, symbols=9, start=work._parameters)
    rate = 1.0 if update == "online" else None
    learned = learn(expect(work._parameters, tokens), work._parameters, None, settings, rate, 96.0)
    for found, expected in zip(fitted.parameters[:3], learned.parameters[:3], strict=True):
        torch.testing.assert_close(found, expected)
    assert (work._statistics is None) == (learned.statistics is None) == (update != "online")
    if work._statistics is not None and learned.statistics is not None:
        torch.testing.assert_close(work._statistics.transition, learned.statistics.transition)


def test_the_notes_of_an_epoch_take_no_more_than_planned(tmp_path: Path) -> None:
    """In a checkpoint: beside its tables, which stay as large."""
    rows = torch.randint(9, (40, 12), generator=torch.Generator().manual_seed(0))
    work, sizes = Fit(rows, FitSettings(states=3, epochs=60, update="all"), symbols=9), []
    checkpoints = Checkpoints(tmp_path, keep=9)
    while work.stopped is None:
        work.update()
        if (epochs := len(work.epochs)) in (10, 60):
            tensors, values = save_progress(work.progress)
            worker = SimpleNamespace(
                group=ProcessGroup.of(CPU), sharded=False, saved_tensors=lambda found=tensors: found
            )
            checkpoints.save(worker, State(recipe="", data="", schedule=Schedule(total=60), step=epochs, task=values))  # type: ignore[arg-type]
            sizes.append(checkpoints.path(epochs).stat().st_size)
    assert EPOCH_BYTES / 2 < (sizes[1] - sizes[0]) / 50 <= EPOCH_BYTES


@pytest.mark.parametrize("planned", [1, 8])
def test_a_fit_whose_epochs_are_over_at_once_is_made_longer_all_the_same(planned: int) -> None:
    """Even if a single update was planned."""
    clock = SimpleNamespace(elapsed=lambda: 0.0)
    deadline = Deadline(clock, last_step=50.0, idle_seconds=4.0)  # type: ignore[arg-type]
    keep = KeepDeadline(deadline, Requests(), NoLines(), lambda _: None, planned, math.inf, decays=False)
    state = State(recipe="", data="", schedule=Schedule(total=planned))
    for step in range(1, 4):
        state = keep(replace(state, step=step), Report(loss=Sum(1.0, 1), seconds=0.1, begun=step))
    assert 490 <= state.schedule.total <= 493, "0.1 s a step: 49 s of the 50 are sure"
