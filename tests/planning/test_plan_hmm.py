"""The plan of an HMM."""

from __future__ import annotations

import pytest

from shoestring.core.errors import PlanError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build
from shoestring.core.records import Cost, Machine, Plan, Point, Profile
from shoestring.core.units import Bytes
from shoestring.planning import hmm as planning
from shoestring.planning.make import RESERVE_SECONDS, RESERVE_SHARE


def _recipe(hmm: dict[str, object] | None = None, **budget: object) -> Recipe:
    values = {"budget": budget, "data": {"tokenizer": "words:50", "length": 10, "documents": 9}, "hmm": hmm or {}}
    return build(values, "test")


def _profile() -> Profile:
    machine = Machine(device="cpu", device_name="x", threads=1, memory_bytes=None, system="", python="", versions={})
    points = tuple(
        Point(batch=b, seconds=0.01 + b * 0.001, slowest_seconds=1.0, peak_bytes=b * 1000) for b in (64, 1024, 65536)
    )
    return Profile(
        machine=machine, workload="", length=10, points=points, setup_seconds=1.0, update_seconds=0.5,
        validate_seconds_per_row=0.001, checkpoint_seconds=0.1, checkpoint_bytes=100, available_bytes=10**9, stopped="",
        cost=Cost(parameters={"start": 1}, forward_flops_per_token=2.0),
    )  # fmt: skip


def plan_hmm(recipe: Recipe, profile: Profile, rows: int, spent: float = 0.0, devices: int = 1) -> Plan:
    return planning.plan_hmm(recipe, profile, rows, spent, devices=devices)


def test_an_epoch_is_its_rows_and_its_updates() -> None:
    plan = plan_hmm(_recipe({"update": "every", "update_every": 100}, epochs=3), _profile(), rows=1000)
    hundred = 0.01 + 100 * 0.001  # rows of one update, between the batches of 64 and 1,024 that were measured
    assert plan.parts["train"] == pytest.approx(3 * 10 * (hundred + 0.5))
    assert plan.steps == 30
    assert plan.tokens == 3 * 1000 * 10
    assert plan.effective_batch == 100
    assert plan.seconds == pytest.approx(sum(plan.parts.values()))


@pytest.mark.parametrize("seconds", [20, 60, 500])
def test_a_time_budget_holds_with_its_reserve_and_one_more_epoch_would_not(seconds: int) -> None:
    plan = plan_hmm(_recipe({"update": "all"}, time=f"{seconds}s"), _profile(), rows=1000, spent=2.0)
    assert plan.binding == "time"
    assert plan.seconds is not None
    assert plan.epochs is not None
    room = seconds - RESERVE_SECONDS - RESERVE_SHARE * seconds
    assert plan.seconds <= room + 1e-9
    assert plan.seconds + (plan.parts["train"] + plan.parts["checkpoints"]) / plan.epochs > room


def test_the_tighter_budget_binds_and_restarts_cost_epochs() -> None:
    both = plan_hmm(_recipe({"update": "all"}, time="100s", epochs=2), _profile(), rows=1000)
    assert (both.binding, both.epochs) == ("epochs", 2.0)
    one, three = (
        plan_hmm(_recipe({"update": "all", "restarts": n}, time="100s"), _profile(), rows=1000) for n in (1, 3)
    )
    assert one.epochs == three.epochs + 6  # type: ignore[operator]


def test_memory_is_that_of_the_rows_that_are_there_at_once() -> None:
    """A thousand bytes per row were measured, with what scoring takes beside them; 64 rows were the fewest."""
    peaks = [
        plan_hmm(_recipe({"update": update, "update_every": every}, epochs=1), _profile(), rows=rows).peak_bytes
        for update, every, rows in (("all", 1, 3000), ("every", 500, 3000), ("all", 1, 10**6), ("every", 1, 3000))
    ]
    assert peaks == [1_024_000, 500_000, 1_024_000, 64_000], "1,024 at a time are nearly the fastest"


def test_too_little_time_and_too_little_memory_are_said() -> None:
    with pytest.raises(PlanError, match=r"budget.time = 5s, and one epoch of 100,000 rows"):
        plan_hmm(_recipe(time="5s"), _profile(), rows=100_000)
    with pytest.raises(PlanError, match="nothing fits the memory"):
        plan_hmm(_recipe(epochs=1, memory="1kB"), _profile(), rows=100)


# 1,024 rows at a time: a larger batch is not 2 % faster
@pytest.mark.parametrize(
    ("rows", "seconds"), [(32, 0.074), (64, 0.074), (512, 0.522), (65536, 64 * 1.034), (70000, 68 * 1.034 + 0.378)]
)
def test_counting_takes_what_was_measured_between_and_beyond_the_batches(rows: int, seconds: float) -> None:
    plan = plan_hmm(_recipe({"update": "all"}, epochs=1), _profile(), rows=rows)
    assert plan.parts["train"] == pytest.approx(seconds + 0.5, rel=1e-3)


def test_checkpoints_are_as_far_apart_as_those_of_a_network_and_an_epoch_at_least() -> None:
    """A checkpoint of 0.1 s every 5 s, a twentieth of the budget; a long epoch has one of its own."""
    plan = plan_hmm(_recipe({"update": "all"}, time="100s"), _profile(), rows=1000)
    assert plan.parts["checkpoints"] == pytest.approx(plan.parts["train"] * 0.1 / 5)
    plan = plan_hmm(_recipe({"update": "all"}, time="100s"), _profile(), rows=10_000)
    assert plan.epochs is not None
    assert plan.parts["checkpoints"] == pytest.approx(plan.epochs * 0.1)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_devices_share_the_rows_of_an_update(devices: int) -> None:
    recipe = _recipe({"update": "every", "update_every": 300}, epochs=2)
    plan = plan_hmm(recipe, _profile(), rows=1200, devices=devices)
    assert plan.devices == devices
    assert plan.parts["train"] == pytest.approx(2 * 4 * (0.01 + 300 / devices * 0.001 + 0.5))
    notes = [line.reason for line in plan.lines if line.quantity == "devices"]
    assert len(notes) == (devices > 1)


def test_a_disk_that_is_too_small_is_refused_with_the_least_that_is_not() -> None:
    with pytest.raises(PlanError, match=r"nothing fits the disk: budget.disk = 1B.*--set budget.disk=") as caught:
        plan_hmm(_recipe(epochs=3, disk="1B"), _profile(), rows=1000)
    least = str(caught.value).split("--set budget.disk=")[1].split()[0]
    plan = plan_hmm(_recipe(epochs=3, disk=least), _profile(), rows=1000)
    assert plan.disk_bytes == int(Bytes.parse(least))
