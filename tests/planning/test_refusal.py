"""What cannot fit is refused with the nearest recipe that does, and that one is indeed accepted."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_make import PROFILE, store_bytes, with_documents

from shoestring.core.errors import PlanError, Refusal
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build
from shoestring.core.records import MemoryModel, Plan, Profile
from shoestring.planning.corpus import Ready
from shoestring.planning.hmm import plan_hmm
from shoestring.planning.make import make_plan


def values(budget: dict[str, Any], **train: Any) -> dict[str, dict[str, Any]]:
    return {
        "budget": budget,
        "data": {"length": 100, "heldout": 0.1},
        "train": {"batch": 8, "lr": 1e-3} | train,
        "evaluate": {"rows": 10, "every": 0.2},
    }


def with_setting(recipe: dict[str, dict[str, Any]], setting: str) -> Recipe:
    """As `--set` lays it over a recipe."""
    path, _, value = setting.partition("=")
    section, _, name = path.partition(".")
    number: Any = value
    if name in ("keep", "per_device", "save_every"):
        number = int(value)
    elif name == "epochs":
        number = float(value)
    return build(recipe | {section: recipe[section] | {name: number}}, "changed")


def plan_or_refusal(recipe: Recipe, profile: Profile, **more: Any) -> Plan | Refusal:
    try:
        return make_plan(recipe, profile, store_bytes, **more)
    except Refusal as refusal:
        return refusal


def refused(recipe: dict[str, dict[str, Any]], profile: Profile, **more: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        make_plan(build(recipe, "test"), profile, store_bytes, **more)
    return caught.value


@settings(deadline=None, max_examples=150)
@given(
    limit=st.sampled_from(["time", "flops", "tokens", "epochs", "disk", "memory"]),
    share=st.floats(1e-3, 3.0),
    total=st.none() | st.integers(100, 10**5),
    keep=st.integers(1, 4),
    ready=st.booleans(),
    spent=st.floats(0, 100),
)
def test_the_suggestion_is_accepted_whatever_was_refused(
    limit: str, share: float, total: int | None, keep: int, ready: bool, spent: float
) -> None:
    """Budgets around what fits: some are accepted at once, and the others with the change that the refusal names."""
    about = {"time": 20, "flops": 2.4e6, "tokens": 800, "epochs": 0.01, "disk": 4e6, "memory": 1e8}[limit] * share
    written = {"time": f"{about!r}s", "epochs": about, "flops": about}.get(limit, max(1, int(about)))
    if limit in ("disk", "memory"):
        written = f"{written}B"
    budget = {limit: written} | ({"steps": 10} if limit in ("disk", "memory") else {})
    recipe, profile = values(budget, keep=keep), with_documents(total if total or limit != "epochs" else 1000)
    more: dict[str, Any] = {"spent": spent, "ready": Ready(450, 3_000_000, "there") if ready else None}
    made = plan_or_refusal(build(recipe, "test"), profile, **more)
    if isinstance(made, Refusal):
        assert made.limit == limit
        assert made.setting is not None
        assert f"--set {made.setting}" in str(made)
        made = plan_or_refusal(with_setting(recipe, made.setting), profile, **more)
    assert isinstance(made, Plan), made
    assert made.steps is not None and made.steps >= 1


@pytest.mark.parametrize(
    ("limit", "asked"), [("time", "5s"), ("tokens", "10"), ("flops", "1e3"), ("memory", "1MB"), ("disk", "1kB")]
)
def test_the_suggestion_is_the_nearest(limit: str, asked: str) -> None:
    """One second or token less is refused again; FLOPs and bytes are rounded up, so a thousandth less."""
    recipe = values({limit: asked, "steps": 10}, keep=1)
    refusal = refused(recipe, PROFILE)
    changed = with_setting(recipe, refusal.setting or "")
    least = getattr(changed.budget, limit)
    less = least - max(1, least // 1000 if limit in ("flops", "memory", "disk") else 1)
    fewer = replace(changed, budget=replace(changed.budget, **{limit: type(least)(less)}))
    with pytest.raises(Refusal):
        make_plan(fewer, PROFILE, store_bytes)
    assert len((refusal.setting or "").rpartition("=")[2]) <= len("1234567.0"), "as people write it"


def test_fewer_checkpoints_are_the_least_change_for_a_small_disk() -> None:
    """Of a megabyte each: four do not fit five megabytes less the text, three do."""
    refusal = refused(values({"steps": 10, "disk": "3.9MB"}), with_documents(1000))
    assert refusal.setting == "train.keep=1"


def test_chosen_steps_that_do_not_fit_the_disk_are_refused_with_numbers() -> None:
    """Of a megabyte each: a hundred of them, beside the three that any run keeps."""
    recipe = values({"steps": 1000, "disk": "30MB"}, keep=1, save_every=10)
    refusal = refused(recipe, with_documents(1000))
    assert "30 MB (budget.disk = 30MB)" in str(refusal)
    assert "(100 MB of them for 100 steps of train.save_every)" in str(refusal)
    assert refusal.setting == "train.save_every=40"
    plan = make_plan(with_setting(recipe, refusal.setting), with_documents(1000), store_bytes)
    assert plan.disk_bytes is not None and 28_000_000 < plan.disk_bytes < 30_000_000
    listed = values({"steps": 1000, "disk": "10MB"}, keep=1, save_steps="1,2,4,...")
    ready = Ready(450, 3_000, "there")
    assert "(10 MB of them for 10 steps of train.save_steps)" in str(refused(listed, PROFILE, ready=ready))


def test_the_plan_counts_chosen_steps_and_says_which_the_run_does_not_reach() -> None:
    def plan(**train: Any) -> Plan:
        return make_plan(build(values({"steps": 100}, **train), "test"), with_documents(1000), store_bytes)

    without, saved = plan(), plan(save_steps="1,2,4,300")
    (line,) = (line for line in saved.lines if line.quantity == "kept steps")
    assert (line.value, line.reason) == ("3", "train.save_steps = 1,2,4,300; beyond the 100 steps of the run: 300")
    assert (saved.disk_bytes or 0) - (without.disk_bytes or 0) == 3 * PROFILE.checkpoint_bytes
    assert saved.parts["checkpoints"] > without.parts["checkpoints"]
    assert plan(save_every=1).parts["checkpoints"] > plan(save_every=10).parts["checkpoints"]
    assert not any(line.quantity == "kept steps" for line in without.lines)


@pytest.mark.parametrize("saved", [{"save_every": 1}, {"save_every": 2}, {"save_steps": "1,2,..."}])
def test_chosen_steps_take_their_time_from_the_budget(saved: dict[str, Any]) -> None:
    plans = [
        make_plan(build(values({"time": "60s"}, **train), "test"), with_documents(1000), store_bytes)
        for train in ({}, saved)
    ]
    assert all((plan.seconds or 0) <= 60 for plan in plans)
    assert (plans[1].steps or 0) < (plans[0].steps or 0)


def test_no_budget_makes_a_full_disk_or_a_full_memory_larger() -> None:
    assert refused(values({"steps": 10}, keep=1), PROFILE, free_disk=1_000_000).setting is None
    small = replace(PROFILE, available_bytes=10**6)
    assert refused(values({"steps": 10}), small).setting is None
    assert refused(values({"steps": 10, "memory": "2MB"}), small).setting is None, "there is not that much"


def test_a_profile_measured_under_the_budget_knows_what_was_free() -> None:
    law = MemoryModel(
        fixed_bytes=0, row_bytes=1e8, limit_bytes=10**6, margin_bytes=0, largest=None, verified=1,
        trials=1, out_of_memory=0, trial_seconds=1.0,
    )  # fmt: skip
    recipe = values({"steps": 10, "memory": "1MB"})
    refusal = refused(recipe, replace(PROFILE, memory=law))
    assert refusal.setting is not None
    assert make_plan(with_setting(recipe, refusal.setting), replace(PROFILE, memory=law), store_bytes).steps == 10


def test_rows_at_a_time_that_do_not_fit_are_refused_with_fewer() -> None:
    law = MemoryModel(
        fixed_bytes=0, row_bytes=1e8, limit_bytes=None, margin_bytes=0, largest=4, verified=4,
        trials=2, out_of_memory=0, trial_seconds=1.0,
    )  # fmt: skip
    recipe = values({"steps": 10, "memory": "250MB"}, per_device=4)
    refusal = refused(recipe, replace(PROFILE, memory=law))
    assert refusal.setting == "train.per_device=2", "between the measured 1 and 4"
    assert make_plan(with_setting(recipe, refusal.setting), replace(PROFILE, memory=law), store_bytes).per_device == 2


@pytest.mark.parametrize("rows", [1000, 100_000])
def test_an_hmm_that_does_not_fit_its_time_is_refused_with_a_time_that_does(rows: int) -> None:
    recipe = {
        "budget": {"time": "5s"},
        "data": {"tokenizer": "words:50", "length": 10, "documents": 9},
        "hmm": {"states": 4, "update": "all"},
    }

    def planned(made: Recipe) -> Plan:
        assert made.hmm is not None
        return plan_hmm(made, PROFILE, rows)

    with pytest.raises(Refusal) as caught:
        planned(build(recipe, "test"))
    assert caught.value.setting is not None
    assert planned(with_setting(recipe, caught.value.setting)).epochs == 1


def test_a_refusal_survives_the_way_between_processes() -> None:
    refusal = Refusal("no", "time", "budget.time=5s")
    again = pickle.loads(pickle.dumps(refusal))
    assert (str(again), again.limit, again.setting) == ("no", "time", "budget.time=5s")
    assert isinstance(again, PlanError)
