"""Memory that runs out in the middle of a run: fewer rows at a time, the same batches, the same losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import limited_memory
import pytest
import torch
from conftest import start
from group_jobs import BATCH, PackedRows, make, train, weights
from processes import together

from shoestring.core.errors import Fault
from shoestring.models.batch import Batch
from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.checkpoint import State
from shoestring.training.learner import Learner
from shoestring.training.loop import Report

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4294967296 bytes."),
    MemoryError(),
]
"""What a GPU, a CPU, and numpy raise."""


def limit(learner: Learner, rows: Callable[[], int], late: bool = False, error: Exception = ERRORS[0]) -> None:
    """Let passes over more than `rows()` rows run out of memory: at once, or `late`, after the backward pass."""

    def run_out(batch: Batch) -> None:
        if len(batch.ids) > rows():
            raise error

    forward, token_losses = learner.model.forward, learner.model.token_losses

    def limited(batch: Batch) -> torch.Tensor:
        if not late:
            run_out(batch)
        loss = forward(batch)
        if late and loss.requires_grad:
            loss.register_hook(lambda _: run_out(batch))
        return loss

    def scored(batch: Batch) -> torch.Tensor:
        run_out(batch)
        return token_losses(batch)

    learner.model.forward = limited  # type: ignore[method-assign]
    learner.model.token_losses = scored  # type: ignore[method-assign]


def shrinking(learner: Learner, group: ProcessGroup | None = None, late: bool = False) -> dict[str, Any]:
    """A run whose memory holds four rows, from the seventh step on two, and then one: in the last process only."""
    step, halved, seen = [0], [], []

    def count(state: State, report: Report) -> State:
        step[0] = state.step
        return state

    def room() -> int:
        return 4 if step[0] < 7 else 2 if step[0] < 12 else 1

    if group is None or group.rank == group.world - 1:
        limit(learner, room, late)
    order = PackedRows.order
    PackedRows.order = lambda *given: (found := order(*given), seen.append(found.rows.tolist()))[0]  # type: ignore
    try:
        losses = train(learner, "packed", BATCH, hooks=(count,), halved=lambda *told: halved.append(told))
    finally:
        PackedRows.order = order  # type: ignore[method-assign]
    return {"losses": losses, "halved": halved, "weights": weights(learner), "order": seen}


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_does_not_fit_is_taken_again_with_half_the_rows(late: bool) -> None:
    plain, learner = make(ema=0.9, clip=0.5), make(ema=0.9, clip=0.5)
    expected = train(plain, "packed", BATCH)
    found = shrinking(learner, late=late)
    assert [rows for _, rows in found["halved"]] == [3, 2, 1]
    steps = [step for step, _ in found["halved"]]
    assert steps[0] == 0
    assert 7 <= steps[1] < steps[2] <= 13
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected), rtol=0, atol=1e-5)
    for name, tensor in weights(plain).items():
        torch.testing.assert_close(found["weights"][name], tensor, rtol=0, atol=1e-4)


@cache
def plain_run(optimizer: str) -> tuple[Learner, list[tuple[float, float]]]:
    """A run with two rows at a time from the start, and its losses."""
    learner = make(ema=0.9, optimizer=optimizer)
    return learner, train(learner, "packed", 2)


@pytest.mark.parametrize(
    ("optimizer", "error"),
    [*(("adamw", error) for error in ERRORS), ("muon", ERRORS[0])],
    ids=lambda part: str(part)[-12:] or type(part).__name__,
)
def test_a_step_that_was_refused_leaves_no_trace(optimizer: str, error: Exception) -> None:
    """To the bit: a run that fits two rows from the start is the run that found this out."""
    learner, (plain, expected) = make(ema=0.9, optimizer=optimizer), plain_run(optimizer)
    told: list[tuple[int, int]] = []
    limit(learner, lambda: 2, error=error)
    assert train(learner, "packed", 4, halved=lambda *what: told.append(what)) == expected
    assert told == [(0, 2)]
    assert all(torch.equal(tensor, weights(plain)[name]) for name, tensor in weights(learner).items())
    for name, tensor in plain.optimizer.tensors().items():
        assert torch.equal(learner.optimizer.tensors()[name], tensor), name


def test_a_single_row_that_does_not_fit_is_a_fault() -> None:
    learner = make()
    limit(learner, lambda: 0)
    with pytest.raises(Fault, match="a single row does not fit the memory; take a smaller model"):
        train(learner, "plain", BATCH)
    with pytest.raises(Fault, match="a single row does not fit the memory"):
        learner.score(torch.zeros(3, 5, dtype=torch.int64), 3)


def test_an_error_of_another_kind_is_raised() -> None:
    learner, error = make(), RuntimeError("shape '[3]' is invalid")
    limit(learner, lambda: 0, error=error)
    with pytest.raises(RuntimeError, match="invalid"):
        learner.accumulate(torch.zeros(3, 5, dtype=torch.int64), 3)
    with pytest.raises(RuntimeError, match="invalid"):
        learner.score(torch.zeros(3, 5, dtype=torch.int64), 3)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[-12:] or type(error).__name__)
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_scores_are_made_with_fewer_rows_at_a_time_as_well(rows: int, error: Exception) -> None:
    learner, batch = make(double=True, ema=0.9), PackedRows().rows(torch.arange(7).numpy())
    expected, before = learner.score(batch, 7), weights(learner)
    limit(learner, lambda: rows, error=error)
    torch.testing.assert_close(learner.score(batch, 7), expected, rtol=0, atol=1e-12, equal_nan=True)
    assert (learner.unscored > 0) == (rows < 7), "measuring reads this"
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())
    assert learner.model.training


def test_a_process_with_little_address_space_takes_fewer_rows_at_a_time(tmp_path: Path) -> None:
    """A pass over all rows takes some 200 MB, and there are 80."""
    process = start("80", cwd=tmp_path, begin=limited_memory.main)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = json.loads(out)
    if "reserved" in found:
        pytest.skip("torch reserves addresses beforehand on this processor, so a limit on them does not bind")
    assert found["rows"] > 1, "it was not halved to nothing"
    assert found["rows"] < limited_memory.ROWS, "it was halved"
    whole, rows = limited_memory.make(), limited_memory.some_rows()
    tally = whole.accumulate(rows, limited_memory.ROWS)
    assert found["nats"] == pytest.approx(tally.nats.item(), rel=1e-6)
    assert found["scores"] == pytest.approx(whole.score(rows, limited_memory.ROWS).mean().item(), rel=1e-6)
    assert found["norm"] == pytest.approx(limited_memory.norm_of(whole, tally), rel=1e-4)


def one_runs_out(group: ProcessGroup) -> dict[str, Any]:
    found = shrinking(make(group, ema=0.9, clip=0.5), group)
    learner = make(group, double=True)
    if group.rank == 1:
        limit(learner, lambda: 1)
    found["scores"] = learner.score(PackedRows().rows(torch.arange(7).numpy()), 7)
    try:
        if group.rank == 1:
            limit(learner, lambda: 0)
        train(learner, "plain", BATCH)
    except Fault as error:
        found["fault"] = str(error)
    return found


def test_all_processes_halve_when_one_runs_out_of_memory() -> None:
    plain = make(ema=0.9, clip=0.5)
    expected = train(plain, "packed", BATCH)
    one, two = together(one_runs_out, 2)
    for result in (one, two):  # shares of three rows, which fit until the seventh step
        assert result["halved"] == one["halved"]
        assert [rows for _, rows in result["halved"]] == [2, 1]
        assert result["order"] == one["order"]
        torch.testing.assert_close(torch.tensor(result["losses"]), torch.tensor(expected), rtol=0, atol=1e-5)
        assert "a single row does not fit the memory" in result["fault"]
        exact = make(double=True).score(PackedRows().rows(torch.arange(7).numpy()), 7)
        torch.testing.assert_close(result["scores"], exact, rtol=0, atol=1e-12, equal_nan=True)
    assert one["losses"] == two["losses"]
    assert all(torch.equal(tensor, two["weights"][name]) for name, tensor in one["weights"].items())
