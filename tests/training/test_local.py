"""Local steps against two learners that are averaged by hand; what is sent; a run that resumes; workers that end."""

from __future__ import annotations

import os
import signal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from commands import forks
from group_jobs import BATCH, SOURCES, make, weights
from processes import together
from torch import Tensor

from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.parallel.members import Members
from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.learner import Learner
from shoestring.training.local import Average, LocalModel, LocalSettings, LocalStepper, divide
from shoestring.training.loop import AnyHook, Loop, Report
from shoestring.training.schedule import Schedule, learning_rate
from shoestring.training.spacing import Spacing

EVERY, STEPS, CUT, WORKERS = 4, 10, 4, 2
CASES = [(1, 32), (2, 32), (1, 4), (2, 8)]
"""Parts, and bits of a difference."""


def settings_of(parts: int, bits: int) -> LocalSettings:
    return LocalSettings(EVERY, 0.7, 0.9, bits, parts)


def take_steps(learner: Learner, average: Average, first: int, *hooks: AnyHook) -> list[Report]:
    found = []

    def note(state: State, report: Report) -> State:
        found.append(report)
        return state

    stepper = LocalStepper(
        learner,
        SOURCES["packed"](),
        Train(batch=BATCH, lr=1e-2),
        average=average,
        together=lambda act: act(),
        batch=BATCH,
        per_device=2,
        seed=1,
    )
    Loop(stepper, (note, *hooks)).run(State(recipe="r", data="d", schedule=Schedule(total=STEPS), step=first))
    return found


def learn(group: ProcessGroup, folder: Path) -> dict[Any, Any]:
    """Of every case: θ and the reports of a whole run, and whether one that resumes ends with the same bits."""
    found: dict[Any, Any] = {}
    for parts, bits in CASES:
        learner = make(group, dropout=0.1 if bits == 8 else 0.0)
        average = Average(learner.optimizer.masters, settings_of(parts, bits), group)
        model, checkpoints = LocalModel(learner, average), Checkpoints(folder / f"{parts}-{bits}", 1)

        def save(state: State, report: Report, model: LocalModel = model, to: Checkpoints = checkpoints) -> State:
            if state.step == CUT:
                assert report.settled(CUT)
                to.save(model, state)
            return state

        reports = take_steps(learner, average, 0, save)
        again = make(group, dropout=0.1 if bits == 8 else 0.0, seed=group.rank + 7)
        other = Average(again.optimizer.masters, settings_of(parts, bits), group)
        checkpoints.restore(CUT, LocalModel(again, other), "r", "d")
        take_steps(again, other, CUT)
        ends = [each.saved_tensors() for each in (model, LocalModel(again, other))]
        same = ends[0].keys() == ends[1].keys() and all(ends[0][name].equal(ends[1][name]) for name in ends[0])
        with average.shown():
            rows = SOURCES["packed"]().rows(torch.arange(5).numpy())
            score = learner.score(rows, 2)
        theta = {name: tensor.clone() for name, tensor in average.model.items()}
        saved = {name: tensor.clone() for name, tensor in model.saved_tensors().items()}
        found[parts, bits] = theta, reports, same, average.sent_bytes, score, saved
    return found


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    return together(learn, WORKERS, tmp_path_factory.mktemp("local"))


def by_hand(parts: int) -> tuple[dict[str, Tensor], list[tuple[float, float]], list[int]]:
    """θ in float64, the loss of every step over both workers with its count, and the numbers that were averaged."""
    workers, source, settings = [make(), make()], SOURCES["packed"](), Train(batch=BATCH, lr=1e-2)
    theta = {name: tensor.double() for name, tensor in weights(workers[0]).items()}
    velocity = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
    for worker in workers:
        worker.optimizer.shares = WORKERS
    names = list(theta)
    part_of = dict(zip(names, divide([theta[name].numel() for name in names], parts), strict=True))
    losses, numbers = [], []
    for step in range(STEPS):
        nats = predictions = 0.0
        for rank, worker in enumerate(workers):
            rows: Batch = source.batch(source.order(1, step, BATCH).share(rank, WORKERS))
            tally = worker.accumulate(rows, 2)
            nats, predictions = nats + float(tally.nats), predictions + tally.predictions
            worker.update(tally, learning_rate(settings, Schedule(total=STEPS).progress(step + 0.5)))
        losses.append((nats, predictions))
        taken = step + 1
        due = (
            {0, 1}
            if taken == STEPS
            else {0: {parts - 1}, EVERY // 2: {0} if parts == 2 else set()}.get(taken % EVERY, set())
        )
        moved = [name for name in names if part_of[name] in due]
        for name in moved:
            held = [dict(worker.parameters)[name] for worker in workers]
            delta = theta[name] - (held[0].double() + held[1].double()) / 2
            velocity[name] = 0.9 * velocity[name] + delta
            theta[name] = theta[name] - 0.7 * (delta + 0.9 * velocity[name])
            for tensor in held:
                tensor.data.copy_(theta[name])
        if moved:
            numbers.append(sum(theta[name].numel() for name in moved))
    return theta, losses, numbers


@pytest.mark.parametrize("parts", [1, 2])
def test_averages_are_those_made_by_hand(parts: int, learned: Any) -> None:
    theta, losses, numbers = by_hand(parts)
    for result in learned:
        found, reports, _, sent, _, _ = result[parts, 32]
        for name, tensor in theta.items():
            torch.testing.assert_close(found[name].double(), tensor, rtol=0, atol=2e-6)
        assert sent == 4 * sum(numbers)
        met = [number for number, report in enumerate(reports) if report.consolidated]
        assert len(met) == len(numbers), "workers meet at averages only"
        sums = [reports[number].loss for number in met]
        assert sum(each.nats for each in sums) == pytest.approx(sum(nats for nats, _ in losses), rel=1e-5)
        assert sum(each.predictions for each in sums) == sum(count for _, count in losses)


@pytest.mark.parametrize(("parts", "bits"), CASES)
def test_all_workers_have_one_model_and_one_score(parts: int, bits: int, learned: Any) -> None:
    (first, _, _, sent, score), (second, _, _, same_sent, other) = (result[parts, bits][:5] for result in learned)
    assert all(first[name].equal(second[name]) for name in first)
    assert torch.equal(score.nan_to_num(), other.nan_to_num())
    assert sent == same_sent
    if bits < 32:
        exact, *_, numbers, _ = learned[0][parts, 32][:5]
        assert any(not first[name].equal(exact[name]) for name in first)
        assert sent < 1.3 * numbers * bits / 32, "with the scales, and whole blocks"


@pytest.mark.parametrize(("parts", "bits"), CASES)
def test_a_run_that_resumes_ends_with_the_same_bits(parts: int, bits: int, learned: Any) -> None:
    assert all(result[parts, bits][2] for result in learned)


def test_every_weight_is_averaged_once_in_a_round() -> None:
    for every, parts in product((1, 3, 8), (1, 2, 3)):
        if parts > every:
            continue
        spacing, schedule = Spacing(every, parts), Schedule(total=10**6)
        for first in (0, every):
            due = [part for step in range(first + 1, first + every + 1) for part in spacing.parts_due(step, schedule)]
            assert sorted(due) == list(range(parts))
    assert Spacing(8, 3).parts_due(5, Schedule(total=5)) == [0, 1, 2], "all at the end"


def test_parts_are_consecutive_and_about_equal() -> None:
    which = divide([5, 1, 1, 1, 4, 4], 4)
    assert which == sorted(which)
    assert set(divide([1] * 40, 4)) == {0, 1, 2, 3}
    assert [divide([1] * 40, 4).count(part) for part in range(4)] == [10] * 4


# --- workers that join


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("parts", [1, 2])
def test_another_number_of_workers_goes_on_from_what_was_saved(world: int, parts: int, learned: Any) -> None:
    """All begin with θ and the outer momentum; a new one has the optimizer of the first, the others their own."""
    _, _, _, _, _, saved = learned[0][parts, 32]
    other = learned[1][parts, 32][-1]
    tensors = saved | other
    for rank in range(world):
        group = ProcessGroup(rank, world, torch.device("cpu"))
        learner = make(group, seed=rank + 20)
        average = Average(learner.optimizer.masters, settings_of(parts, 32), group)
        LocalModel(learner, average).put_tensors(tensors)
        own = f"worker/{rank}/" if rank == 1 else ""
        state = learner.optimizer.tensors()
        assert state
        assert all(tensor.equal(tensors[own + name]) for name, tensor in state.items())
        assert all(tensor.equal(tensors[f"model/{name}"]) for name, tensor in average.model.items())
        assert all(tensor.equal(tensors[f"outer/{name}"]) for name, tensor in average.momentum.items())
        held = (
            tensors if parts == 1 or rank == 2 else {n.removeprefix(f"worker/{rank}/"): t for n, t in tensors.items()}
        )
        assert all(tensor.equal(held[f"model/{name}"]) for name, tensor in learner.optimizer.masters.items())


# --- workers that end


def _meet(rank: int, meeting: str, results: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=3)
    group = ProcessGroup.of(torch.device("cpu"))
    members, found = Members(group), []
    for turn in range(4):
        if rank == 1 and turn == 2:
            os.kill(os.getpid(), signal.SIGKILL)

        def act() -> Tensor:
            values = torch.full((1000,), float(rank + 1))
            group.all_reduce([values])
            return values

        found.append(members.together(act)[0].item())
    members.close()
    results.put((rank, found, members.left, group.rank, group.world))


def test_the_others_go_on_when_a_worker_is_killed(tmp_path: Path) -> None:
    results = forks().Queue()
    started = [forks().Process(target=_meet, args=(rank, str(tmp_path / "m"), results)) for rank in range(3)]
    for process in started:
        process.start()
    told = sorted(results.get(timeout=60) for _ in range(2))
    for process in started:
        process.join(60)
    assert told == [(0, [6.0, 6.0, 4.0, 4.0], [1], 0, 2), (2, [6.0, 6.0, 4.0, 4.0], [1], 1, 2)]
