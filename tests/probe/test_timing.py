"""Timing batches whose seconds and bytes are known, and what is read from the times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoestring.core.records import Point
from shoestring.core.throughput import fastest, knee, row_rate, smallest_near
from shoestring.probe.child import Died
from shoestring.probe.measure import Timings, beyond, candidate_batches, law_of, time_batches
from shoestring.probe.trials import LocalTrials, Overheads, Trial, Usage, repeat

MB = 1 << 20


class Known:
    """Trials whose seconds and bytes are functions of the batch; none of them takes time."""

    def __init__(self, seconds: Callable[[int], float], most: int = 10**9, error: type[Exception] = MemoryError):
        self._seconds, self._most, self._error = seconds, most, error
        self.tried: list[int] = []

    def trial(self, batch: int, seconds: float = 0.0, least: int = 2, scoring: bool = False) -> Trial:
        self.tried.append(batch)
        if batch > self._most:
            raise self._error("no more")
        used = (1000 + 100 * batch) * MB
        usage = Usage(asked=used, reserved=used, outside=0, rest=900 * MB)
        return Trial(batch, (self._seconds(batch),) * least, self._seconds(batch), 0.0, 0.0, usage)

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        return Overheads(0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, None)


def timed(work: Known, batches: list[int], effective: int | None = None, room: int | None = None) -> Timings:
    return time_batches(work, batches, effective or batches[-1], room, seconds=1.0)


def test_every_batch_is_timed_up_to_the_last() -> None:
    found = timed(Known(lambda _: 0.002), [1, 2, 4])
    assert [trial.batch for trial in found.trials] == [1, 2, 4]
    assert "batch 4 is the largest" in found.stopped
    assert found.trials[-1].point().peak_bytes == 1400 * MB


def test_a_batch_that_would_not_fit_is_never_tried() -> None:
    work = Known(lambda _: 0.001)
    found = timed(work, [1, 2, 4, 8, 16], room=2000 * MB)
    assert work.tried == [1, 2, 4, 8], "1,800 of 2,000 MB; the next would take 2,600"
    assert "batch 16 would need 2.73 GB, and 2.1 GB may be used" in found.stopped


def test_where_sizes_are_few_the_largest_divisor_that_fits_takes_the_place_of_one_that_does_not() -> None:
    """1,000 MB and 100 per row. Of one row 200 might be of the row, so 64 are tried before 256; then 128 fit."""
    work = Known(lambda _: 0.001)
    found = timed(work, [1, 256], room=18_000 * MB)
    assert work.tried == [1, 64, 128]
    assert "batch 256 would need" in found.stopped
    work = Known(lambda _: 0.001)
    assert "batch 256 is the largest" in timed(work, [1, 256], room=28_000 * MB).stopped
    assert work.tried == [1, 128, 256]


@pytest.mark.parametrize(("error", "said", "out"), [(MemoryError, "ran out", 1), (Died, "ended the process", 0)])
def test_a_batch_that_fails_ends_the_row_and_what_was_found_is_kept(
    error: type[Exception], said: str, out: int
) -> None:
    found = timed(Known(lambda _: 0.001, most=3, error=error), [1, 2, 4, 8])
    assert [trial.batch for trial in found.trials] == [1, 2]
    assert said in found.stopped
    assert "no more" in found.stopped
    assert found.out_of_memory == out


def test_a_batch_that_is_slower_by_the_row_ends_the_row() -> None:
    work = Known(lambda batch: 0.004 if batch < 4 else 0.06)
    found = timed(work, [1, 2, 4, 8])
    assert work.tried == [1, 2, 4, 4, 4], "it was timed again: it might have been another process"
    assert "longer at batch 4" in found.stopped
    assert len(found.trials) == 3


class Disturbed(Known):
    """Another process works during some trials: all of their passes take `factor` times as long, or only the first."""

    def __init__(self, when: set[int], factor: float, one_pass: bool = False):
        super().__init__(lambda batch: 0.001 * batch)
        self._when, self._factor, self._one_pass = when, factor, one_pass

    def trial(self, batch: int, seconds: float = 0.0, least: int = 2, scoring: bool = False) -> Trial:
        trial = super().trial(batch, seconds, least, scoring)
        if len(self.tried) not in self._when:
            return trial
        first, *others = (self._factor * time for time in trial.times)
        return trial._replace(times=(first, *(trial.times[1:] if self._one_pass else others)), others=1.5)


def test_a_batch_that_was_disturbed_is_timed_again() -> None:
    """Batch 2 was six times as slow as batch 1, and was the end of a plan: nothing fitted the time."""
    for one_pass in (False, True):
        work = Disturbed({2}, 6.0, one_pass)
        found = timed(work, [1, 2, 4, 8])
        assert work.tried == [1, 2, 2, 4, 8]
        assert [trial.times[0] for trial in found.trials] == pytest.approx([0.001, 0.002, 0.004, 0.008])
        assert found.unsteady() is None


def test_what_stays_unsteady_is_known_and_so_are_others() -> None:
    found = timed(Disturbed({2, 3, 4}, 6.0, one_pass=True), [1, 2, 4])
    odd = found.unsteady()
    assert odd is not None and odd.batch == 2
    assert found.others == 1.5
    assert timed(Known(lambda _: 0.001), [1, 2]).others is None


def test_no_batch_is_timed_when_the_time_for_measuring_is_over() -> None:
    """But one is always: else there is no plan."""
    work, said = Known(lambda _: 0.001), []
    found = time_batches(work, [1, 2, 4], 4, None, 1.0, over=lambda: len(work.tried) >= 2, say=said.append)
    assert (work.tried, said) == ([1, 2], ["batch 1", "batch 2"])
    assert "over before batch 4" in found.stopped
    assert len(time_batches(Disturbed({1}, 6.0, one_pass=True), [1, 2], 2, None, 1.0, over=lambda: True).trials) == 1


def test_beyond_the_effective_batch_only_what_still_gets_faster_is_tried() -> None:
    work = Known(lambda batch: 0.001 * max(8, batch))
    found = timed(work, [1, 2, 4, 8, 16, 32, 64], effective=8)
    assert work.tried == [1, 2, 4, 8, 16]
    assert "no faster at batch 16" in found.stopped


def test_a_pass_that_is_longer_than_measuring_may_take_is_not_tried() -> None:
    work = Known(lambda batch: 0.1 * batch)
    found = timed(work, [1, 2, 4, 64])
    assert work.tried == [1, 2, 4, 8]
    assert "batch 64 would take 6.4s" in found.stopped


def test_a_long_pass_is_led_up_to() -> None:
    """One row takes 20 ms, and so do 128: by the row alone they would take longer than all of measuring."""
    work = Known(lambda _: 0.02)
    assert [trial.batch for trial in timed(work, [1, 128]).trials] == [1, 32, 128]


def test_two_rows_tell_what_one_takes_where_nothing_divides_the_batch() -> None:
    """Of one row 200 MB might be of the row: 61 would need 13.1 GB. They take 7.1."""
    work = Known(lambda _: 0.001)
    assert [trial.batch for trial in timed(work, [1, 61], room=8000 * MB).trials] == [1, 2, 61]


def test_the_law_of_timed_batches_claims_no_largest_one() -> None:
    law = law_of(timed(Known(lambda _: 0.001), [1, 2, 4]), limit=4000 * MB, margin=64 * MB)
    assert law is not None
    assert (law.fixed_bytes, law.row_bytes) == (1000 * MB, 100 * MB)
    assert (law.largest, law.verified, law.trials) == (None, 4, 3)
    assert law_of(timed(Known(lambda _: 0.001), [4]), limit=None, margin=0) is None


@pytest.mark.parametrize(("batch", "expected"), [(1, [1]), (16, [1, 2, 4, 8, 16]), (12, [1, 2, 4, 6, 12]), (7, [1, 7])])
def test_candidates_divide_the_effective_batch(batch: int, expected: list[int]) -> None:
    assert candidate_batches(batch) == expected


def test_fewer_sizes_are_compiled() -> None:
    assert candidate_batches(64, 4) == [1, 4, 16, 64]
    assert candidate_batches(512, 4) == [1, 8, 32, 128, 512]
    assert candidate_batches(512, 16) == [1, 32, 512]
    assert candidate_batches(64, 16) == [1, 64]
    assert candidate_batches(1, 16) == [1]
    assert candidate_batches(7, 16) == [1, 7]
    assert beyond(16, 100) == [32, 64]
    assert beyond(16, 100, 4) == [64]
    assert beyond(16, 15) == []


# --- what the points say


def points(rates: dict[int, float]) -> list[Point]:
    """Rows per second by batch."""
    return [
        Point(batch=batch, seconds=batch / rate, slowest_seconds=batch / rate, peak_bytes=None)
        for batch, rate in rates.items()
    ]


def test_the_smallest_batch_within_2_percent_of_the_best() -> None:
    curve = points({1: 10, 2: 20, 4: 40, 8: 98.1, 16: 100, 32: 97.9, 64: 99})
    assert fastest(curve).batch == 16
    assert smallest_near(curve).batch == 8
    assert smallest_near(curve, share=0.7).batch == 4
    assert row_rate(curve[3]) == pytest.approx(98.1)


def test_equal_rates_are_equal_and_the_smaller_batch_is_taken() -> None:
    assert fastest(points({4: 50.0, 8: 50.0})).batch == 4


def test_the_knee_is_where_a_saturating_curve_bends() -> None:
    """b / (b + 8): of 1 to 64, the point farthest above the chord solves a quadratic: b = sqrt(72 · 9) - 8 = 17.5."""
    curve = points({batch: batch / (batch + 8) for batch in range(1, 65)})
    assert knee(curve).batch in (17, 18)


@pytest.mark.parametrize("curve", [{1: 1.0, 2: 2.0, 4: 4.0}, {1: 1.0, 2: 1.5, 4: 9.0}, {4: 7.0}, {1: 9.0, 2: 5.0}])
def test_a_curve_without_a_bend_has_its_knee_at_the_best(curve: dict[int, float]) -> None:
    assert knee(points(curve)).batch == fastest(points(curve)).batch


# --- trials in this process


class Counting:
    """A workload that takes no time and notes what is asked of it."""

    recordable = True

    def __init__(self, compiled: bool):
        self.compiled = compiled
        self.calls: list[str] = []

    def accumulate(self, batch: int) -> None:
        self.calls.append("pass")

    def rehearse(self, batch: int) -> bool:
        self.calls.append("rehearse")
        return self.recordable

    def update(self) -> None:
        self.calls.append("update")

    def steps(self, batch: int, count: int, passes: int = 1) -> None:
        for _ in range(count):
            for _ in range(passes):
                self.accumulate(batch)
            self.update()

    def validate(self, batch: int) -> None:
        self.calls.append("score")

    def forget(self) -> None:
        self.calls.append("forget")

    def checkpoint(self, beside: Callable[[], object] = lambda: None) -> int:
        self.calls.append("save")
        beside()
        return 77

    def reset_peak(self) -> None:
        self.calls.append("reset")

    def usage(self) -> Usage | None:
        return None


def test_a_compiled_trial_passes_through_every_recording_before_it_is_timed() -> None:
    work = Counting(compiled=True)
    trial = LocalTrials(work).trial(4, least=2)
    assert work.calls == ["forget", "reset", "pass", "update", "pass", "pass", "update", "pass", "pass", "update"]
    assert len(trial.times) == 2
    assert trial.seconds >= sum(trial.times)


def test_a_trial_of_memory_passes_once_where_the_rest_can_be_recorded() -> None:
    work = Counting(compiled=True)
    trial = LocalTrials(work).trial(4, least=0)
    assert work.calls == ["forget", "reset", "pass", "update", "rehearse"]
    assert trial.times == ()
    work = Counting(compiled=True)
    work.recordable = False
    LocalTrials(work).trial(4, least=0)
    assert work.calls[-7:] == ["update", "rehearse", "pass", "pass", "update", "pass", "update"]
    work = Counting(compiled=False)
    LocalTrials(work).trial(4, least=0)
    assert work.calls[-4:] == ["update", "pass", "pass", "update"], "state, and a gradient to add to"


class Recorded(Counting):
    """Passes ask for 100 bytes per row until they are recorded; replays ask for nothing."""

    def __init__(self) -> None:
        super().__init__(compiled=True)
        self.recorded, self.asked = 0, 0

    def accumulate(self, batch: int) -> None:
        if batch != self.recorded:
            self.recorded, self.asked = batch, max(self.asked, 100 * batch)

    def forget(self) -> None:
        self.recorded = 0

    def reset_peak(self) -> None:
        self.asked = 0

    def usage(self) -> Usage | None:
        return Usage(asked=self.asked, reserved=self.asked, outside=0, rest=0)


def test_a_batch_that_is_tried_again_tells_the_same_memory() -> None:
    """The first trial of a search has the batch that its process began with."""
    trials = LocalTrials(Recorded())
    assert [trials.trial(batch).usage.asked for batch in (3, 3, 7, 3)] == [300, 300, 700, 300]  # type: ignore[union-attr]


def test_a_plain_trial_has_one_pass_before_it_is_timed_and_nothing_compiled() -> None:
    work = Counting(compiled=False)
    trial = LocalTrials(work).trial(4, least=3)
    assert work.calls == ["forget", "reset", "pass", "update", "pass", "pass", "pass", "update"]
    assert trial.compile_seconds == 0.0


def test_scoring_is_tried_without_what_training_keeps() -> None:
    work = Counting(compiled=True)
    LocalTrials(work).trial(4, scoring=True)
    assert work.calls == ["forget", "reset", "score", "score"]


def test_steps_have_as_many_passes_as_those_of_a_run() -> None:
    work = Counting(compiled=False)
    LocalTrials(work).around(4, 4, passes=2)
    last = len(work.calls) - work.calls[::-1].index("save")
    assert work.calls[last : last + 4] == ["pass", "pass", "update", "pass"]


@pytest.mark.parametrize("passes", [1, 2])
def test_a_process_begins_with_steps_of_as_many_passes_as_a_run_has(passes: int) -> None:
    """A pass that adds to a gradient takes its memory as well, and a run with one pass per step has none such."""
    step = [*["pass"] * passes, "update"]
    for compiled, steps in ((False, 3), (True, 4)):
        work = Counting(compiled)
        LocalTrials(work).begin(4, passes)
        assert work.calls == ["forget", "reset", *step * steps]


def test_a_beginning_is_as_late_as_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Clocked(aside=True, late=7.0)
    monkeypatch.setattr("shoestring.probe.trials.time", work)
    trial = LocalTrials(work).begin(4, passes=3)
    assert (trial.times, trial.warmup_seconds, trial.seconds) == ((3.5, 3.5), 7.0, 10.5)


def test_the_memory_of_all_that_a_run_does_is_that_since_it_began() -> None:
    """Nothing is given back in between: a run would not, and a heap's holes grow."""
    work = Counting(compiled=False)
    trials = LocalTrials(work)
    trials.begin(4)
    trials.around(4, 4)
    assert [call for call in work.calls if call in ("forget", "reset")] == ["forget", "reset"]


def test_what_a_run_does_besides_passes() -> None:
    around = LocalTrials(Counting(compiled=False)).around(4, 4)
    assert around.checkpoint_bytes == 77
    assert around.update_seconds >= 0


class Clocked(Counting):
    """A workload whose steps take 1.5 s, the first one more. Saving copies for 0.75 s, then writes for 4, `beside`
    that or not."""

    def __init__(self, aside: bool, late: float = 0.0):
        super().__init__(compiled=False)
        self.now, self._aside, self._late, self._score_late = 0.0, aside, late, late

    def perf_counter(self) -> float:
        return self.now

    def accumulate(self, batch: int) -> None:
        self.now += 1.0 + self._late
        self._late = 0.0

    def update(self) -> None:
        self.now += 0.5

    def validate(self, batch: int) -> None:
        self.now += 0.25 + self._score_late
        self._score_late = 0.0

    def checkpoint(self, beside: Callable[[], object] = lambda: None) -> int:
        self.now += 0.75
        written = self.now + 4.0
        if not self._aside:
            self.now = written
        beside()
        self.now = max(self.now, written)
        return 77


@pytest.mark.parametrize(("aside", "kept_waiting"), [(True, 0.75), (False, 4.75)])
def test_a_checkpoint_costs_what_steps_beside_it_do_not_hide(
    aside: bool, kept_waiting: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Clocked(aside, late=6.0)
    monkeypatch.setattr("shoestring.probe.trials.time", work)
    LocalTrials(work).begin(4)
    around = LocalTrials(work).around(4, 4)
    assert around.score_late_seconds == 6.0
    assert (around.checkpoint_seconds, around.write_seconds) == (kept_waiting, 4.75)
    assert (around.update_seconds, around.validate_seconds_per_row) == (0.5, 0.25 / 4)
    assert around.step_seconds == 1.5
    assert LocalTrials(work).around(4, 4, passes=3).step_seconds == 3.5


def test_work_is_repeated_often_enough_and_not_for_ever() -> None:
    assert len(repeat(lambda: None, 0.0, 3)) == 3
    assert len(repeat(lambda: None, 1e9, 3)) == 50
