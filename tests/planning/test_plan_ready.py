"""Plans of rows that are there before the run: an endless stream, or a store that was made before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_make import PROFILE, recipe

from shoestring.core.errors import PlanError
from shoestring.core.records import Plan, Profile
from shoestring.planning.corpus import Ready
from shoestring.planning.make import RESERVE_SECONDS, RESERVE_SHARE, make_plan

ENDLESS = Ready(None, 0, "computed as they are read")
STORE = Ready(450, 3_000_000, "for training, in a/store")
"""450 rows of 8 a step: 56.25 steps an epoch."""
NOTHING_READ = replace(PROFILE, density=None)


def no_store(tokens: float, documents: float) -> int:
    raise AssertionError("nothing is prepared")


def make(
    budget: dict[str, Any], ready: Ready = ENDLESS, spent: float = 0.0, free: int | None = None, **sections: Any
) -> Plan:
    return make_plan(recipe(budget, **sections), NOTHING_READ, no_store, spent, free, ready)


# --- each budget


@pytest.mark.parametrize("ready", [ENDLESS, STORE])
@pytest.mark.parametrize(
    ("budget", "steps", "binding"),
    [
        ({"steps": 37}, 37, "steps"),
        ({"tokens": 1599}, 1, "tokens"),
        ({"tokens": "1M"}, 1250, "tokens"),
        ({"flops": 4_800_000}, 2, "flops"),
        ({"steps": 5, "tokens": 8000}, 5, "steps"),
    ],
)
def test_budgets_that_know_nothing_of_rows_are_as_ever(
    ready: Ready, budget: dict[str, Any], steps: int, binding: str
) -> None:
    made = make(budget, ready)
    assert (made.steps, made.binding, made.tokens) == (steps, binding, steps * 800)


@pytest.mark.parametrize("ready", [ENDLESS, STORE])
def test_a_budget_of_time_worked_out_by_hand(ready: Ready) -> None:
    """As with a corpus, but without the reading: 100 s less set-up 3, five evaluations of 0.1, the end 2.6, five
    savings of 0.2 and a reserve of 4.5 are 88.4, at 0.468 a step."""
    made = make({"time": "100s"}, ready)
    assert (made.steps, made.binding) == (188, "time")
    parts = {"spent so far": 0.0, "set-up": 3.0, "evaluations": 0.5, "prepare": 0.0, "train": 84.6}
    parts["last checkpoint"] = 0.0
    parts |= {"finish": 2.6, "baselines": 5e-8 * (ready.rows or 0) * 100}  # rows of 100 tokens, which are counted
    assert made.parts == pytest.approx(parts | {"checkpoints": 84.6 / 5 * 0.2 + 1.0})
    assert made.seconds == pytest.approx(sum(made.parts.values()))


@pytest.mark.parametrize("seconds", [13, 30, 100, 3600, 86400])
@pytest.mark.parametrize("spent", [0.0, 2.0])
def test_a_budget_of_time_is_kept_and_one_more_step_would_not_fit(seconds: int, spent: float) -> None:
    made = make({"time": f"{seconds}s"}, spent=spent)
    limit = seconds * (1 - RESERVE_SHARE) - RESERVE_SECONDS
    assert made.seconds is not None and made.step_seconds is not None
    assert limit - 1.5 * made.step_seconds < made.seconds <= limit + 1e-9
    assert made.parts["spent so far"] == spent


def test_no_time_goes_into_a_corpus() -> None:
    """The same profile with a corpus leaves fewer steps."""
    read = make_plan(recipe({"time": "100s"}), PROFILE, lambda tokens, documents: int(2 * tokens + 8 * documents))
    assert read.steps is not None and read.parts["prepare"] > 0
    assert (make({"time": "100s"}).steps or 0) >= read.steps


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 56), (2.0, 112), (0.5, 28), (0.02, 1)])
def test_an_epoch_of_a_store_reads_every_row_once(epochs: float, steps: int) -> None:
    made = make({"epochs": epochs}, STORE)
    assert (made.steps, made.binding) == (steps, "epochs")
    assert made.epochs == pytest.approx(steps * 8 / 450)


def test_an_epoch_of_a_stream_has_no_length() -> None:
    with pytest.raises(PlanError, match=r"budget\.epochs.*no end"):
        make({"epochs": 1.0})


def test_the_tightest_budget_binds() -> None:
    loose: dict[str, Any] = {"steps": 10**6, "epochs": 1e6, "time": "10d", "tokens": "100B"}
    for name, tight in {"steps": 40, "epochs": 0.5, "time": "20s", "tokens": 8000}.items():
        assert make(loose | {name: tight}, STORE).binding == name


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"time": "5s"}, r"budget\.time = 5s"),
        ({"tokens": 799}, r"budget\.tokens = 799"),
        ({"epochs": 0.001}, r"budget\.epochs = 0\.001"),
        ({"flops": 1e6}, r"budget\.flops"),
    ],
)
def test_a_budget_that_nothing_fits_into_is_named(budget: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make(budget, STORE)


# --- what the plan says


def test_a_stream_has_rows_without_end_and_neither_documents_nor_bytes() -> None:
    made = make({"steps": 100})
    assert (made.epochs, made.entries, made.gigabytes, made.samples) == (None, None, None, 800)
    assert made.disk_bytes == 4_000_000, "two checkpoints, the best, and one being written"
    lines = {line.quantity: line for line in made.lines}
    assert (lines["rows"].value, lines["rows"].reason) == ("no end", "computed as they are read")
    assert (lines["epochs"].value, lines["epochs"].reason) == ("less than 1", "800 rows, each read once")
    assert "documents" not in lines
    assert "store" not in lines["disk"].reason
    assert all(line.value and line.reason for line in made.lines)


def test_a_store_has_its_rows_and_its_bytes() -> None:
    made = make({"steps": 100}, STORE)
    assert made.epochs == pytest.approx(800 / 450)
    assert (made.entries, made.gigabytes, made.disk_bytes) == (None, None, 7_000_000)
    lines = {line.quantity: line for line in made.lines}
    assert (lines["rows"].value, lines["rows"].reason) == ("450", "for training, in a/store")
    assert (lines["epochs"].value, lines["epochs"].reason) == ("1.78", "800 rows read of 450")
    assert "documents" not in lines
    assert "store" in lines["disk"].reason


def test_a_plan_of_ready_rows_survives_being_written(tmp_path: Any) -> None:
    for ready in (ENDLESS, STORE):
        made = make({"steps": 100}, ready)
        made.write(tmp_path / "plan.json")
        assert Plan.read(tmp_path / "plan.json") == made


def test_ready_rows_come_before_a_density() -> None:
    both: Profile = PROFILE
    assert make_plan(recipe({"steps": 9}), both, no_store, ready=ENDLESS) == make({"steps": 9})


# --- disk


@pytest.mark.parametrize("ready", [ENDLESS, STORE])
def test_a_disk_too_small_for_the_checkpoints_is_refused(ready: Ready) -> None:
    """Four of a megabyte each; a store that is there takes no more room."""
    with pytest.raises(PlanError) as caught:
        make({"steps": 10, "disk": "3.9MB"}, ready)
    for part in (
        "nothing fits the disk",
        "budget.disk = 3.9MB",
        f"the checkpoints take {4 + ready.bytes // 10**6} MB",
        "train.keep",
    ):
        assert part in str(caught.value)
    with pytest.raises(PlanError, match=r"3\.9 MB \(free\), and the checkpoints take 4 MB"):
        make({"steps": 10}, ready, free=3_900_000)
    assert make({"steps": 10}, ready, free=4_000_000) == make({"steps": 10}, ready)


def test_the_tighter_of_budget_and_disk_counts() -> None:
    with pytest.raises(PlanError, match=r"budget\.disk"):
        make({"steps": 10, "disk": "1MB"}, free=10**12)
    with pytest.raises(PlanError, match="free"):
        make({"steps": 10, "disk": "1TB"}, free=10**6)
    assert make({"steps": 10, "disk": "4MB"}, train={"keep": 2}).disk_bytes == 4_000_000


def test_a_disk_budget_counts_the_store_that_is_there() -> None:
    """A plan says that it takes 7 MB, so it does not fit 6."""
    with pytest.raises(PlanError):
        make({"steps": 10, "disk": "6MB"}, STORE)
