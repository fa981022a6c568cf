"""The plan of a recipe, against arithmetic written down a second time."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoestring.core import recipe_file
from shoestring.core.errors import PlanError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost, Density, Machine, Plan, Point, Profile
from shoestring.core.run_sections import Budget
from shoestring.core.units import Bytes, Count
from shoestring.planning.make import REPORT_SECONDS, RESERVE_SECONDS, RESERVE_SHARE, available_documents, make_plan
from shoestring.planning.stops import checkpoint_interval, evaluation_count

MACHINE = Machine(device="cpu", device_name="x", threads=2, memory_bytes=None, system="x", python="3.11", versions={})
DENSITY = Density(documents=1000, text_bytes=200_000, tokens=50_000, seconds=0.1, total_documents=None)
PROFILE = Profile(
    machine=MACHINE,
    workload="w",
    length=100,
    points=(
        Point(batch=1, seconds=0.10, slowest_seconds=0.12, peak_bytes=100_000_000),
        Point(batch=4, seconds=0.20, slowest_seconds=0.22, peak_bytes=400_000_000),
    ),
    setup_seconds=3.0,
    update_seconds=0.05,
    validate_seconds_per_row=0.01,
    checkpoint_seconds=0.2,
    checkpoint_bytes=1_000_000,
    available_bytes=8_000_000_000,
    stopped="",
    cost=Cost(parameters={"embedding": 1000, "blocks": 9000}, forward_flops_per_token=1000.0),
    density=DENSITY,
)


def recipe(budget: dict[str, Any], **sections: dict[str, Any]) -> Recipe:
    """800 tokens a step: 8 rows of 100."""
    values = {
        "budget": budget,
        "data": {"length": 100, "heldout": 0.1} | sections.get("data", {}),
        "train": {"batch": 8, "lr": 1e-3} | sections.get("train", {}),
        "evaluate": {"rows": 10, "every": 0.2} | sections.get("evaluate", {}),
        "model": sections.get("model", {}),
    }
    return recipe_file.build(values, "test")


def store_bytes(tokens: float, documents: float) -> int:
    """Two bytes per token, eight per document, and a header."""
    return 2 * int(tokens) + 8 * int(documents) + 100


def make(budget: dict[str, Any], profile: Profile = PROFILE, spent: float = 0.0, **sections: dict[str, Any]) -> Plan:
    return make_plan(recipe(budget, **sections), profile, store_bytes, spent)


def with_documents(total: int | None) -> Profile:
    return replace(PROFILE, density=replace(DENSITY, total_documents=total))


# --- each budget


@pytest.mark.parametrize(("budget", "steps"), [({"steps": 37}, 37), ({"steps": "1k"}, 1000), ({"steps": 1}, 1)])
def test_a_budget_of_steps_is_that_many(budget: dict[str, Any], steps: int) -> None:
    made = make(budget)
    assert (made.steps, made.binding) == (steps, "steps")


@pytest.mark.parametrize(("tokens", "steps"), [(800, 1), (1599, 1), (1600, 2), ("1M", 1250)])
def test_a_budget_of_tokens_is_never_exceeded(tokens: int | str, steps: int) -> None:
    made = make({"tokens": tokens})
    assert (made.steps, made.binding, made.tokens) == (steps, "tokens", steps * 800)


@pytest.mark.parametrize(("flops", "steps"), [(2_400_000, 1), (4_799_999, 1), (4_800_000, 2), ("2.4G", 1000)])
def test_a_budget_of_computation_is_never_exceeded(flops: float | str, steps: int) -> None:
    """A token costs three times 1000 FLOPs, a step 2.4 million."""
    made = make({"flops": flops})
    assert (made.steps, made.binding, made.flops) == (steps, "flops", steps * 2_400_000)


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 56), (2.0, 112), (0.5, 28)])
def test_a_budget_of_epochs_is_that_many_passes_over_the_training_rows(epochs: float, steps: int) -> None:
    """1000 documents of 50 tokens, a tenth held out: 450 rows, 56.25 steps an epoch."""
    made = make({"epochs": epochs}, with_documents(1000))
    assert (made.steps, made.binding, made.entries) == (steps, "epochs", 1000)
    assert made.epochs == pytest.approx(steps * 8 / 450)
    assert made.epochs == pytest.approx(epochs, abs=0.5001 * 8 / 450)


def test_epochs_of_documents_given_in_the_recipe() -> None:
    assert make({"epochs": 1.0}, data={"documents": 2000}).steps == 112


def test_an_epoch_of_an_endless_corpus_has_no_length() -> None:
    with pytest.raises(PlanError, match=r"budget\.epochs.*data\.documents"):
        make({"epochs": 1.0})


def test_a_budget_of_time_worked_out_by_hand() -> None:
    """1000 documents: 0.1 s. Set-up 3, five evaluations of 0.1, the end 2.6, five savings of 0.2, reserve 4.5.

    Counting 45,000 tokens takes 2 ms more at the end.

    A step is two passes of 0.2 and an update: 0.45, and with savings of 0.2 every 5 s, 0.468. Left are
    100 - 0.1 - 3 - 0.5 - 2.6 - 1 - 4.5 = 88.3 s, which are 188.67 steps.
    """
    made = make({"time": "100s"}, with_documents(1000))
    assert (made.steps, made.binding) == (188, "time")
    assert made.step_seconds == pytest.approx(0.45)
    assert made.tokens_per_second == pytest.approx(800 / 0.45)
    assert made.parts == pytest.approx(
        {
            "spent so far": 0,
            "set-up": 3.0,
            "evaluations": 0.5,
            "last checkpoint": 0,
            "finish": 2.6,
            "baselines": 5e-8 * 1000 * 50 * 0.9,
            "prepare": 0.1,
            "train": 84.6,
            "checkpoints": 84.6 / 5 * 0.2 + 1.0,
        }
    )


def test_documents_that_are_read_whole_do_not_break_the_time_budget() -> None:
    """Steps far shorter than a document is long, so that rounding documents up costs more than a step."""
    density = replace(DENSITY, tokens=10_000_000, seconds=100.0)
    point = Point(batch=1, seconds=0.02, slowest_seconds=0.02, peak_bytes=None)
    profile = replace(PROFILE, points=(point,), update_seconds=0.0, checkpoint_seconds=0.0, density=density)
    for time in range(50, 150):
        made = make({"time": f"{time}s"}, profile, train={"batch": 1})
        assert made.seconds is not None
        assert made.seconds <= time * (1 - RESERVE_SHARE) - RESERVE_SECONDS + 1e-9, time


def test_what_was_spent_before_is_gone() -> None:
    profile = with_documents(1000)
    assert make({"time": "100s"}, profile, spent=46.8).steps == 88
    assert make({"time": "100s"}, profile, spent=46.8).parts["spent so far"] == 46.8


def test_the_tightest_budget_binds_whatever_else_is_given() -> None:
    profile = with_documents(1000)
    budgets = {
        "steps": ({"steps": 40}, 40),
        "tokens": ({"tokens": 800 * 30}, 30),
        "flops": ({"flops": 2_400_000 * 20}, 20),
        "epochs": ({"epochs": 10 * 8 / 450}, 10),
        "time": ({"time": "15s"}, None),
    }
    loose = {"steps": 10**6, "tokens": "100B", "flops": 1e18, "epochs": 1e6, "time": "10d"}
    for name, (tight, steps) in budgets.items():
        made = make(loose | tight, profile)
        assert made.binding == name
        assert steps is None or made.steps == steps
    together = {key: value for tight, _ in budgets.values() for key, value in tight.items()}
    assert make(together | {"time": "10d"}, profile).binding == "epochs"


@pytest.mark.parametrize(
    ("budget", "parts"),
    [
        ({"time": "5s"}, ("budget.time = 5s", "set-up", "evaluate.rows")),
        ({"tokens": 799}, ("budget.tokens = 799", "800 positions")),
        ({"flops": 1e6}, ("budget.flops = 1000000.0", "2.4 MFLOP")),
        ({"epochs": 0.001}, ("budget.epochs = 0.001",)),
        ({"steps": 10, "disk": "1MB"}, ("budget.disk = 1MB", "4 MB", "train.keep")),
        ({"steps": 10, "memory": "1MB"}, ("memory", "100 MB", "1 MB", "budget.memory")),
    ],
)
def test_a_budget_that_nothing_fits_into_is_refused_by_its_name(budget: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as caught:
        make(budget, with_documents(1000))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_time_that_is_spent_already_is_refused() -> None:
    with pytest.raises(PlanError, match=r"budget\.time = 1m40s"):
        make({"time": "100s"}, spent=200.0)


# --- the corpus


def test_an_endless_corpus_is_read_for_one_epoch_of_the_steps() -> None:
    """10,000 steps of 800 tokens at 45 training tokens a document."""
    made = make({"steps": 10_000})
    assert made.entries == math.ceil(8_000_000 / 45)
    assert made.epochs == pytest.approx(1.0, abs=1e-4)
    assert made.gigabytes == pytest.approx(made.entries * 200 / 1e9)


def test_a_short_run_still_reads_enough_for_the_held_out_rows() -> None:
    """Ten rows of 100 tokens out of a tenth of the documents, of 50 tokens each."""
    made = make({"steps": 1})
    assert made.entries is not None
    assert 200 <= made.entries <= 201


def test_all_of_a_finite_corpus_is_read() -> None:
    assert make({"steps": 1}, with_documents(5000)).entries == 5000
    assert make({"steps": 10_000}, with_documents(5000)).entries == 5000


def test_the_smaller_of_the_corpus_and_data_documents_is_read() -> None:
    assert make({"steps": 1}, with_documents(5000), data={"documents": 600}).entries == 600
    assert make({"steps": 1}, with_documents(5000), data={"documents": 6000}).entries == 5000
    assert make({"steps": 1}, data={"documents": 600}).entries == 600
    assert available_documents(recipe({"steps": 1}), DENSITY) is None


@pytest.mark.parametrize(("time", "seconds"), [(400.0, 5.0), (1000.0, 8.0)])
def test_an_endless_corpus_takes_a_small_part_of_the_time_and_is_then_repeated(time: float, seconds: float) -> None:
    """Three seconds with 0.5 % of a long time."""
    slow = replace(PROFILE, density=replace(DENSITY, seconds=20.0))
    made = make({"time": f"{time:.0f}s"}, slow)
    assert made.entries == 50 * seconds
    assert made.parts["prepare"] == pytest.approx(seconds)
    assert made.epochs is not None and made.epochs > 5


@pytest.mark.parametrize("total", [None, 10**6])
def test_the_disk_holds_what_was_planned_and_hardly_more_would_fit(total: int | None) -> None:
    """Four checkpoints of a megabyte stay beside the store."""
    made = make({"steps": 10_000, "disk": "5MB"}, with_documents(total))
    assert made.entries is not None and made.disk_bytes is not None
    assert made.entries == pytest.approx((1_000_000 - 100) // 108, abs=1)
    assert made.disk_bytes <= 5_000_000
    assert made.disk_bytes == store_bytes(made.entries * 50, made.entries) + 4_000_000


def test_a_disk_with_room_changes_nothing() -> None:
    small, large = make({"steps": 100}), make({"steps": 100, "disk": "1TB"})
    assert small == replace(large, recipe=small.recipe)


def test_what_is_free_on_the_disk_limits_like_a_budget_and_the_tighter_binds() -> None:
    def entries(disk: int | None, free: int | None) -> int | None:
        budget = {"steps": 10_000} | ({} if disk is None else {"disk": f"{disk}B"})
        return make_plan(recipe(budget), PROFILE, store_bytes, free_disk=free).entries

    assert entries(5_000_000, None) == entries(None, 5_000_000) == entries(5_000_000, 10**12)
    assert entries(5_000_000, 4_500_000) == entries(4_500_000, 5_000_000) == entries(None, 4_500_000)
    assert entries(None, 10**12) == entries(None, None)
    with pytest.raises(PlanError, match="free on the disk"):
        entries(None, 4_000_000)


# --- the rest of the plan


def test_memory_limits_the_split() -> None:
    made = make({"steps": 10, "memory": "300MB"})
    assert (made.per_device, made.accumulate, made.peak_bytes) == (1, 8, 100_000_000)


def test_the_given_split_is_planned() -> None:
    made = make({"steps": 10}, train={"per_device": 1})
    assert (made.per_device, made.accumulate) == (1, 8)


def test_the_plan_says_everything_in_lines_with_reasons() -> None:
    made = make({"time": "100s"})
    lines = {line.quantity: line for line in made.lines}
    assert lines["effective batch"].value == "8 rows"
    assert lines["split"].value == "4 × 2 × 1"
    assert lines["steps"].value == str(made.steps)
    assert "1m40s" in lines["steps"].reason
    assert (lines["warm-up"].value, lines["warm-up"].reason) == (
        "20 steps",
        "train.warmup: 0.05 of the steps, at least 20 for llama",
    )
    assert all(line.value and line.reason for line in made.lines)


@pytest.mark.parametrize(
    ("steps", "train", "value", "reason"),
    [
        (10_000, {}, "500 steps", "train.warmup: 0.05 of the steps"),
        (500, {}, "100 steps", "train.warmup: 0.05 of the steps, at least 100 for masked_lm"),
        (100, {}, "25 steps", "train.warmup: 0.05 of the steps, at least 100 for masked_lm, but at most 0.25 of all"),
        (500, {"least_warmup": 30}, "30 steps", "train.warmup: 0.05 of the steps, at least 30 by train.least_warmup"),
        (500, {"least_warmup": 0}, "25 steps", "train.warmup: 0.05 of the steps"),
        (500, {"warmup": 0.0}, "0 steps", "train.warmup: 0 of the steps"),
    ],
)
def test_the_plan_says_how_long_the_warm_up_is_and_why(
    steps: int, train: dict[str, Any], value: str, reason: str
) -> None:
    made = make({"steps": steps}, train=train, model={"family": "masked_lm"})
    (line,) = [line for line in made.lines if line.quantity == "warm-up"]
    assert (line.value, line.reason) == (value, reason)


def test_a_plan_knows_its_recipe_and_survives_being_written(tmp_path: Any) -> None:
    made = make({"time": "100s"})
    assert made.recipe == recipe({"time": "100s"}).fingerprint
    made.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == made


@pytest.mark.parametrize(
    ("budget", "train", "seconds"),
    [
        ({"time": "100s"}, {}, 5),
        ({"time": "10s"}, {}, 1),
        ({"time": "10d"}, {}, 600),
        ({"steps": 1}, {}, 600),
        ({"time": "10d"}, {"checkpoint_every": "7s"}, 7),
    ],
)
def test_checkpoints_come_every_twentieth_of_the_time_within_bounds(
    budget: dict[str, Any], train: dict[str, Any], seconds: float
) -> None:
    assert checkpoint_interval(recipe(budget, train=train)) == seconds


@pytest.mark.parametrize(("every", "count"), [(1.0, 1), (0.5, 2), (0.3, 4), (0.2, 5), (0.1, 10), (0.07, 15)])
def test_evaluations_are_counted_with_the_last(every: float, count: int) -> None:
    assert evaluation_count(recipe({"steps": 1}, evaluate={"every": every})) == count
    assert make({"steps": 100}, evaluate={"every": every}).evaluations == count


@pytest.mark.parametrize(
    ("device", "seconds", "count"),
    [
        ("cpu", 0.2, 10),
        ("cpu", 0.7, 10),  # with a checkpoint of 0.2 s: less than 1 % of 100 s
        ("cpu", 1.7, 5),
        ("cpu", 2.3, 4),  # 2.5 s each in 10 s
        ("cpu", 60.0, 1),
        ("cuda", 0.7, 10),
        ("cuda", 1.8, 5),
    ],
)
def test_evaluations_that_would_take_much_of_the_time_are_fewer(device: str, seconds: float, count: int) -> None:
    machine = replace(MACHINE, device=device)
    slow = replace(PROFILE, machine=machine, validate_seconds_per_row=seconds / 10)
    made = make({"time": "1000s"} if seconds > 50 else {"time": "100s"}, slow, evaluate={"every": 0.1})
    assert made.evaluations == count
    (reason,) = [line.reason for line in made.lines if line.quantity == "overall speed"]
    assert ("in place of 10, since one takes" in reason) == (count < 10)
    assert make({"steps": 20}, slow, evaluate={"every": 0.1}).evaluations == 10


def test_many_short_evaluations_take_a_tenth_of_the_time_on_a_cpu() -> None:
    """0.9 s each with a checkpoint: 50 of them would be 45 of 100 s."""
    slow = replace(PROFILE, machine=replace(MACHINE, device="cpu"), validate_seconds_per_row=0.07)
    assert make({"time": "100s"}, slow, evaluate={"every": 0.02}).evaluations == 11


def test_short_runs_on_a_gpu_evaluate_less() -> None:
    quick = replace(PROFILE, machine=replace(MACHINE, device="cuda"), validate_seconds_per_row=0.07)
    assert make({"time": "30s"}, quick, evaluate={"every": 0.1}).evaluations == 3, "0.7 s each, and 0.2 to save"


# --- any profile


@dataclass(frozen=True)
class Case:
    recipe: Recipe
    profile: Profile
    spent: float

    @property
    def density(self) -> Density:
        assert self.profile.density is not None
        return self.profile.density

    @property
    def document_seconds(self) -> float:
        return self.density.seconds / self.density.documents

    @property
    def whole_document_seconds(self) -> float:
        """With those in which the baselines count it."""
        return self.document_seconds + 5e-8 * self.density.tokens / self.density.documents


short_times = st.floats(1e-4, 2.0)


@st.composite
def cases(draw: st.DrawFn, endless: bool | None = None) -> Case:
    per_device, accumulate = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 8))
    length = draw(st.integers(1, 512))
    documents = draw(st.integers(1, 2000))
    finite = draw(st.booleans()) if endless is None else not endless
    density = Density(
        documents=documents,
        text_bytes=documents * draw(st.integers(1, 5000)),
        tokens=documents * draw(st.integers(1, 1000)) + draw(st.integers(0, 1000)),
        seconds=documents * draw(st.floats(1e-6, 1e-2)),
        total_documents=draw(st.integers(1, 100_000)) if finite else None,
    )
    sizes = draw(st.sets(st.sampled_from([1, 2, 4, 8]).filter(lambda rows: rows <= per_device), min_size=1))
    seconds = {rows: draw(short_times) for rows in sizes | {1}}
    profile = replace(
        PROFILE,
        length=length,
        points=tuple(Point(batch=r, seconds=s, slowest_seconds=s, peak_bytes=None) for r, s in seconds.items()),
        setup_seconds=draw(st.floats(0, 30)),
        update_seconds=draw(st.floats(0, 1)),
        validate_seconds_per_row=draw(st.floats(0, 0.1)),
        checkpoint_seconds=draw(st.floats(0, 3)),
        checkpoint_bytes=draw(st.integers(0, 10**6)),
        density=density,
        cost=Cost(parameters={"all": 10}, forward_flops_per_token=draw(st.integers(1, 10**9).map(float))),
    )
    values: dict[str, Any] = {
        "budget": {"time": f"{draw(st.floats(20, 1e5))!r}s"},
        "data": {"length": length, "heldout": draw(st.floats(0.01, 0.5))},
        "train": {"batch": per_device * accumulate, "lr": 1e-3},
        "evaluate": {"rows": draw(st.integers(1, 50)), "every": draw(st.floats(0.05, 1))},
    }
    if draw(st.booleans()):
        values["train"]["checkpoint_every"] = f"{draw(st.floats(0.5, 500))!r}s"
    return Case(recipe_file.build(values, "case"), profile, draw(st.floats(0, 10)))


def documents_for(case: Case, steps: int) -> int:
    """What `steps` need; of a small corpus, all.

    Of an endless one, at least enough for the held-out rows, and at most what a small part of the time prepares.
    """
    data, density = case.recipe.data, case.density
    per_document = density.tokens / density.documents
    if density.total_documents is not None:
        assert case.recipe.budget.time is not None
        cheap = int(max(5.0, 0.03 * case.recipe.budget.time) / case.document_seconds)
        one_epoch = steps * case.recipe.batch * data.length / (per_document * (1 - data.heldout))
        return min(max(cheap, math.ceil(1.25 * one_epoch) + 1), density.total_documents)
    heldout = math.ceil(case.recipe.evaluate.rows * data.length / (per_document * data.heldout))
    one_step = math.ceil(case.recipe.batch * data.length / (per_document * (1 - data.heldout)))
    least = max(heldout, one_step) + 1
    needed = math.ceil(steps * case.recipe.batch * data.length / (per_document * (1 - data.heldout)))
    assert case.recipe.budget.time is not None
    seconds = min(0.03 * case.recipe.budget.time, 3 + 0.005 * case.recipe.budget.time)
    limit = max(int(seconds / case.document_seconds), least)
    return min(max(needed, least), limit)


def heldout_seconds(case: Case, documents: int) -> float:
    """A tenth of the seconds of the documents that only the held-out rows need, of a corpus with an end."""
    data, density = case.recipe.data, case.density
    if density.total_documents is None:
        return 0.0
    per_document = density.tokens / density.documents
    heldout = math.ceil(case.recipe.evaluate.rows * data.length / (per_document * data.heldout))
    one_step = math.ceil(case.recipe.batch * data.length / (per_document * (1 - data.heldout)))
    least = min(max(heldout, one_step) + 1, density.total_documents)
    return 0.1 * max(0, least - documents) * case.document_seconds


def scored(case: Case) -> int:
    """Rows of an evaluation: no more than are held out of a corpus with an end."""
    recipe, density = case.recipe, case.density
    if density.total_documents is None:
        return recipe.evaluate.rows
    documents = min(density.total_documents, int(recipe.data.documents or density.total_documents))
    held_out = documents * density.tokens / density.documents * recipe.data.heldout
    return min(recipe.evaluate.rows, max(1, math.ceil(held_out / recipe.data.length)))


def seconds_for(case: Case, steps: int, step_seconds: float) -> float:
    """All that a run of `steps` takes."""
    recipe, profile = case.recipe, case.profile
    assert recipe.budget.time is not None
    interval = min(600.0, max(1.0, recipe.budget.time / 20))
    if recipe.train.checkpoint_every is not None:
        interval = float(recipe.train.checkpoint_every)
    evaluations = math.ceil(1 / recipe.evaluate.every - 1e-9)  # 1,000 of 49,000 steps are one in 49, not in 49.000…01
    validation = scored(case) * profile.validate_seconds_per_row
    stop = validation + profile.checkpoint_seconds
    if profile.machine.device == "cpu" or stop > 0.2:
        evaluations = min(evaluations, max(1, int(recipe.budget.time / 10 / max(stop, 1e-9))))
    training = steps * step_seconds
    saving = (training / interval + evaluations) * profile.checkpoint_seconds
    around = case.spent + profile.setup_seconds + (evaluations + 1) * validation + REPORT_SECONDS
    documents = documents_for(case, steps)
    around += heldout_seconds(case, documents)
    counted = documents * case.density.tokens / case.density.documents * (1 - recipe.data.heldout)
    return around + training + saving + documents * case.document_seconds + 5e-8 * min(1 << 28, counted)


def fastest_step(case: Case) -> float:
    """Of any split; the one taken may be two percent slower."""
    rows = case.recipe.batch
    return min(rows / p.batch * p.seconds for p in case.profile.points if rows % p.batch == 0)


def plan_or_refusal(case: Case, recipe: Recipe) -> Plan | str:
    try:
        return make_plan(recipe, case.profile, store_bytes, case.spent)
    except PlanError as error:
        return str(error)


def room(case: Case) -> float:
    assert case.recipe.budget.time is not None
    return float(case.recipe.budget.time) * (1 - RESERVE_SHARE) - RESERVE_SECONDS


@settings(deadline=None, max_examples=200)
@given(cases())
def test_a_time_budget_is_kept_and_used_to_the_last_step(case: Case) -> None:
    made = plan_or_refusal(case, case.recipe)
    if isinstance(made, str):
        assert "budget.time" in made
        least = fastest_step(case) + case.profile.update_seconds
        assert seconds_for(case, 1, least * 1.0201) > room(case) - 2 * case.whole_document_seconds
        return
    assert made.steps and made.seconds and made.step_seconds
    slack = 1e-9 * room(case)
    assert made.binding == "time"
    assert sum(made.parts.values()) == pytest.approx(made.seconds)
    assert made.seconds == pytest.approx(
        seconds_for(case, made.steps, made.step_seconds), rel=1e-9, abs=1.01 * case.whole_document_seconds
    )
    assert made.seconds <= room(case) + slack, "the time with its reserve is kept"
    one_more = seconds_for(case, made.steps + 1, made.step_seconds)
    # documents are read whole: one may be kept free, and one may be cut off the share of the time
    assert one_more > room(case) - 2 * case.whole_document_seconds - slack, "one more step would not have fitted"


@settings(deadline=None, max_examples=100)
@given(cases(), st.data())
def test_the_numbers_of_any_plan_agree_with_each_other(case: Case, data: st.DataObject) -> None:
    per_step = case.recipe.batch * case.recipe.data.length
    wanted = data.draw(st.integers(1, 10**5))
    budget = data.draw(
        st.sampled_from(
            [
                {"steps": wanted},
                {"tokens": wanted * per_step + per_step // 2},
                {"flops": wanted * per_step * case.profile.cost.forward_flops_per_token * 3.25},
                {"time": case.recipe.budget.time},
            ]
        )
    )
    changed = replace(case.recipe, budget=Budget(**budget))
    made = plan_or_refusal(case, changed)
    if isinstance(made, str):
        assert "time" in budget
        return
    assert made.steps and made.per_device and made.accumulate and made.devices and made.entries and made.flops
    assert made.effective_batch == made.per_device * made.accumulate * made.devices == changed.batch
    assert made.samples == made.steps * made.effective_batch
    assert made.tokens == made.samples * changed.data.length
    assert made.flops == pytest.approx(made.tokens * case.profile.cost.forward_flops_per_token * 3)
    assert sum(made.parts.values()) == pytest.approx(made.seconds)
    assert made.gigabytes == pytest.approx(made.entries * case.density.text_bytes / case.density.documents / 1e9)
    if "tokens" in budget or "steps" in budget:
        assert made.steps == wanted
    if "flops" in budget:
        assert wanted <= made.steps <= wanted * 13 / 12


@settings(deadline=None, max_examples=100)
@given(cases(), st.integers(1, 1000), st.integers(1, 10**7))
def test_a_disk_budget_is_never_exceeded_and_refused_only_when_the_least_does_not_fit(
    case: Case, steps: int, disk: int
) -> None:
    assume(case.density.tokens >= case.density.documents)
    budget = Budget(steps=Count(steps), disk=Bytes(disk))
    changed = replace(case.recipe, budget=budget)
    free = make_plan(replace(changed, budget=replace(budget, disk=None)), case.profile, store_bytes)
    assert free.disk_bytes is not None and free.entries is not None
    made = plan_or_refusal(case, changed)
    if isinstance(made, str):
        assert "budget.disk" in made
        assert free.disk_bytes > disk, "what would have fitted is not refused"
        return
    assert made.disk_bytes is not None and made.entries is not None
    assert made.disk_bytes <= disk
    assert made.entries <= free.entries
    assert made.steps == steps


@pytest.mark.parametrize(("device", "last"), [("cpu", [1.75, 0, 3.75]), ("cuda", [0, 0, 1.4])])
def test_a_run_waits_for_what_steps_do_not_hide_of_a_checkpoint_nor_a_gpu_s_finish_of_the_last(
    device: str, last: list[float]
) -> None:
    """A budget of 100 s has one every 5 s, and so 2.5 s at the least between two; the finish takes 2.6. Where writing
    takes longer than a second they are ten times as long apart, unless the recipe says otherwise."""
    profile = replace(PROFILE, checkpoint_seconds=0.25, machine=replace(MACHINE, device=device))
    short = make({"time": "100s"}, replace(profile, write_seconds=2.0))
    plain = make({"time": "100s"}, profile)
    slow = make({"time": "100s"}, replace(profile, write_seconds=4.0))
    assert [made.parts["last checkpoint"] for made in (short, plain, slow)] == pytest.approx(last)
    assert short.parts["checkpoints"] == pytest.approx((short.parts["train"] / 20 + 5) * 0.25)
    assert plain.parts["checkpoints"] == pytest.approx((plain.parts["train"] / 5 + 5) * 0.25)
    long = replace(PROFILE, checkpoint_seconds=0.25, write_seconds=5.0)
    given = make({"time": "100s"}, replace(long, machine=profile.machine), train={"checkpoint_every": "5s"})
    assert given.evaluations == 3, "a tenth of the time, with their checkpoints"
    assert given.parts["checkpoints"] == pytest.approx((given.parts["train"] / 5 + given.evaluations) * 2.5)


def test_of_an_endless_corpus_a_store_that_is_there_is_read_instead_of_preparing_another() -> None:
    """Half of what would be prepared is enough, and the nearest number is taken."""
    alone = make({"time": "1000s"}, with_documents(None))
    assert alone.entries is not None and alone.parts["prepare"] > 0
    near, far = alone.entries + 7, 40 * alone.entries
    for prepared, expected in {
        (): alone.entries,
        (alone.entries // 3,): alone.entries,
        (alone.entries // 3, near, far): near,
        (far,): far,
    }.items():
        plan = make_plan(recipe({"time": "1000s"}), with_documents(None), store_bytes, prepared=prepared)
        assert plan.entries == expected
        assert (plan.parts["prepare"] == 0) == (expected in prepared)
    finite = make_plan(recipe({"time": "1000s"}), with_documents(50), store_bytes, prepared=(near,))
    assert finite == make({"time": "1000s"}, with_documents(50)), "a corpus with an end is read as before"
