"""The schedule: progress without a jump, whatever is cut off, and a learning rate that is through at the end."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.train_section import Train
from shoestring.training.schedule import Schedule, Warmup, learning_rate

checked = settings(max_examples=100, deadline=None)

totals = st.integers(1, 400)
cuts = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=6)
trains = st.builds(
    Train,
    batch=st.just(1),
    lr=st.floats(1e-6, 1),
    schedule=st.sampled_from(["cosine", "linear", "cooldown", "constant"]),
    warmup=st.just(0.0) | st.floats(1e-3, 0.9),
    final_lr=st.floats(0, 1),
)


def planned(total: int, least: int, share: float = 0.05, cooldown: float | None = None) -> Schedule:
    return Schedule(total=total, warmup=Warmup.planned(total, share, least), cooldown=cooldown)


def driven(total: int, cuts: list[tuple[float, float]]) -> tuple[list[float], list[Schedule]]:
    """The progress after each half step of a run that is shortened where `cuts` say, and its schedules."""
    schedule, step, seen = Schedule(total=total), 0, [0.0]
    schedules = [schedule]
    for where, share in cuts:
        stop = step + int(where * (schedule.total - step))
        while step < stop:
            seen += [schedule.progress(step + 0.5), schedule.progress(step + 1)]
            step += 1
        left = schedule.total - step
        if left < 2:
            continue
        shorter = schedule.ending(step, step + max(1, int(share * left)))
        assert shorter.progress(step) == schedule.progress(step), "no jump where it is shortened"
        schedule = shorter
        schedules.append(schedule)
    while step < schedule.total:
        seen += [schedule.progress(step + 0.5), schedule.progress(step + 1)]
        step += 1
    return seen, schedules


@given(totals)
@checked
def test_progress_of_a_whole_run_is_the_share_of_its_steps(total: int) -> None:
    schedule = Schedule(total=total)
    assert [schedule.progress(step) for step in range(total + 1)] == pytest.approx(
        [s / total for s in range(total + 1)]
    )


@given(totals, cuts)
@checked
def test_progress_rises_from_zero_to_one_however_often_it_is_shortened(
    total: int, cuts: list[tuple[float, float]]
) -> None:
    seen, _ = driven(total, cuts)
    assert seen[0] == 0
    assert seen[-1] == 1
    assert all(after > before for before, after in pairwise(seen))


@given(totals, cuts)
@checked
def test_a_shorter_schedule_never_goes_slower(total: int, cuts: list[tuple[float, float]]) -> None:
    _, schedules = driven(total, cuts)
    slopes = [schedule.progress(schedule.anchor_step + 1) - schedule.anchor_progress for schedule in schedules]
    assert all(after >= before - 1e-12 for before, after in pairwise(slopes))
    assert [schedule.total for schedule in schedules] == sorted(
        (schedule.total for schedule in schedules), reverse=True
    )


@given(trains, totals, cuts)
@checked
def test_the_rate_stays_between_zero_and_the_peak_and_ends_decayed(
    train: Train, total: int, cuts: list[tuple[float, float]]
) -> None:
    seen, _ = driven(total, cuts)
    rates = [learning_rate(train, progress) for progress in seen]
    assert all(0 <= rate <= train.lr for rate in rates)
    end = train.lr if train.schedule == "constant" else train.lr * train.final_lr
    assert rates[-1] == pytest.approx(end, rel=1e-9, abs=1e-15)
    after = [rate for rate, progress in zip(rates, seen, strict=True) if progress >= train.warmup]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(after))


@given(trains)
@checked
def test_the_warm_up_rises_in_a_line_to_the_peak(train: Train) -> None:
    for share in (0.0, 0.25, 0.5, 0.999):
        if train.warmup > 0:
            assert learning_rate(train, share * train.warmup) == pytest.approx(share * train.lr, abs=1e-12)
    assert learning_rate(train, train.warmup) == pytest.approx(train.lr)


@pytest.mark.parametrize(
    ("schedule", "quarters"),
    [
        ("linear", [1.0, 0.775, 0.55, 0.325, 0.1]),
        ("cosine", [1.0, 0.8681980515339464, 0.55, 0.2318019484660536, 0.1]),
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_schedules_have_their_shapes(schedule: str, quarters: list[float]) -> None:
    train = Train(batch=1, lr=2.0, schedule=schedule, warmup=0.2, final_lr=0.1)  # type: ignore[arg-type]
    rates = [learning_rate(train, 0.2 + 0.8 * quarter / 4) for quarter in range(5)]
    assert rates == pytest.approx([2.0 * share for share in quarters])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_rate_makes_no_jump(schedule: str) -> None:
    train = Train(batch=1, lr=1.0, schedule=schedule, warmup=0.05)  # type: ignore[arg-type]
    rates = [learning_rate(train, step / 10_000) for step in range(10_001)]
    assert max(abs(b - a) for a, b in pairwise(rates)) < 0.0021


def test_the_first_step_has_a_rate_above_zero() -> None:
    train = Train(batch=1, lr=1.0, warmup=0.5)
    assert learning_rate(train, Schedule(total=1000).progress(0.5)) > 0


@pytest.mark.parametrize(
    ("total", "least", "steps"), [(10_000, 100, 500), (2000, 100, 100), (500, 100, 100), (200, 100, 50), (12, 20, 3)]
)
def test_a_warm_up_has_its_least_steps_or_a_share_of_the_run(total: int, least: int, steps: int) -> None:
    """5 % of the run, at least so many steps, at most a quarter; counted as the steps whose rate is below the peak."""
    train, schedule = Train(batch=1, lr=1.0, schedule="constant"), planned(total, least)
    rates = [learning_rate(train, schedule.progress(step + 0.5), schedule.warmup) for step in range(total)]
    assert sum(rate < 1 for rate in rates) == steps
    assert rates[:steps] == pytest.approx([(step + 0.5) / steps for step in range(steps)])


@given(
    totals,
    st.integers(1, 200),
    st.lists(st.tuples(st.floats(0, 0.5), st.floats(0.05, 8)), max_size=5),
    st.none() | st.floats(0.05, 0.6),
)
@checked
def test_a_learning_rate_makes_no_jump_when_its_run_is_changed(
    total: int, least: int, changes: list[tuple[float, float]], cooldown: float | None
) -> None:
    """The rate is the same before and after a change, rises to the peak, and is through before the run is."""
    train = Train(batch=1, lr=1.0, final_lr=0.1)
    if cooldown is not None:
        train = Train(batch=1, lr=1.0, final_lr=0.1, schedule="cooldown", cooldown=cooldown)
    schedule, step = planned(total, least, cooldown=cooldown), 0
    for where, factor in changes:
        step += int(where * (schedule.total - step))
        left = schedule.total - step
        if left < 2:
            continue
        changed = schedule.ending(step, step + max(1, round(factor * left)))
        rates = [learning_rate(train, each.progress(step), each.warmup) for each in (schedule, changed)]
        assert rates[1] == pytest.approx(rates[0], abs=1e-9)
        schedule = changed
        assert schedule.warmup is not None and schedule.warmup.end < 1
    rest = [step + (schedule.total - step) * number / 300 for number in range(301)]
    rates = [learning_rate(train, schedule.progress(at), schedule.warmup) for at in rest]
    assert all(-1e-9 <= rate <= 1 + 1e-9 for rate in rates)
    assert rates[-1] == pytest.approx(0.1)
    peak = rates.index(max(rates))
    assert all(after >= before - 1e-9 for before, after in pairwise(rates[: peak + 1]))
    assert all(after <= before + 1e-9 for before, after in pairwise(rates[peak:]))


def test_a_warm_up_keeps_its_least_steps_when_the_run_turns_out_longer_or_shorter() -> None:
    """Of 100 steps 10 are done when the run gets another length: the peak comes where a fresh run of it has it."""
    train = Train(batch=1, lr=1.0, schedule="constant")
    for total, steps in ((5000, 250), (1000, 100), (60, 22.5)):
        schedule = planned(600, 100).ending(10, total)
        rates = [learning_rate(train, schedule.progress(step), schedule.warmup) for step in range(total)]
        peak = rates.index(1.0)
        assert peak == pytest.approx(steps, abs=1)


def test_a_warm_up_of_no_share_is_none_and_a_large_share_is_kept() -> None:
    assert Warmup.planned(100, 0.0, 20).end == 0
    assert Warmup.planned(100, 0.5, 200).end == 0.5


def test_a_schedule_of_an_older_checkpoint_warms_up_for_the_share_it_had() -> None:
    assert [learning_rate(Train(batch=1, lr=1.0), share) for share in (0.025, 0.05)] == [0.5, 1.0]


def test_a_cool_down_moves_with_the_end_until_it_begins() -> None:
    """A run that is lengthened or shortened before has the rates of one that was planned so."""
    train = Train(batch=1, lr=1.0, schedule="cooldown", cooldown=0.25)

    def rates(schedule: Schedule, first: int) -> list[float]:
        steps = range(first, schedule.total)
        return [learning_rate(train, schedule.progress(step + 0.5), schedule.warmup) for step in steps]

    plain = planned(1000, 20, cooldown=0.25)
    for total in (600, 1000, 4000):
        assert rates(plain.ending(300, total), 300) == pytest.approx(rates(planned(total, 20, cooldown=0.25), 300))
    moved = plain.ending(200, 900).ending(250, 3000)
    assert rates(moved, 250) == pytest.approx(rates(planned(3000, 20, cooldown=0.25), 250))
    at_once = plain.ending(700, 800)
    assert rates(at_once, 700) == pytest.approx([1 - (step + 0.5) / 100 for step in range(100)])
    assert not at_once.is_movable(at_once.progress(701))
    later = at_once.ending(750, 1750)
    assert rates(later, 750) == pytest.approx([0.5 * (1 - (step + 0.5) / 1000) for step in range(1000)])
