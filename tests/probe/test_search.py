"""The largest batch, on devices whose memory is made up and whose true maximum is found by trying."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import GB, MB, Device

from shoestring.planning.split import margin_bytes
from shoestring.probe.child import Died
from shoestring.probe.search import (
    FRAGMENTATION,
    ROUNDING,
    find_largest,
    largest_within,
    line,
    upper_bytes,
)
from shoestring.probe.trials import Trial, Usage

# what was measured of GPT-2 124M at 1,024 tokens on an H200: 3,325 / 4,792 / 7,736 / 13,630 MB at 1 / 2 / 4 / 8 rows
GPT2 = Device(limit=149_000 * 10**6, fixed=1_858 * 10**6, kinds=(11_360_000,) * 10, layers=13, context=600 * MB)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """GPUs of 8 to 192 GB; from a dozen to thousands of rows fit; rounding is at most 1 % of the GPU."""
    limit = draw(st.integers(8 * GB, 192 * GB))
    layers = draw(st.integers(1, 24))
    most = max(1, limit // (200 * 2 * MB * layers))
    kinds = draw(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=min(12, most)))
    fixed = draw(st.integers(limit // 1000, limit // 3))
    row = draw(st.integers(limit // 4000, limit // 20))
    share = row / layers / sum(kinds)
    return Device(
        limit=limit,
        fixed=fixed,
        kinds=tuple(max(1, int(kind * share)) for kind in kinds),
        layers=layers,
        workspace=draw(st.integers(0, limit // 16)),
        context=draw(st.integers(0, 800 * MB)),
    )


@settings(max_examples=200, deadline=None)
@given(devices())
def test_four_trials_find_97_percent_and_none_runs_out_of_memory(device: Device) -> None:
    margin = margin_bytes(device.limit, "cuda")
    found = find_largest(device.trial, device.limit, margin).law
    true = device.largest()
    assert found.out_of_memory == 0
    assert found.trials == len(device.tried) <= 4
    assert found.largest is not None
    assert device.usage(found.largest).held <= device.limit - margin + device.usage(found.largest).blocks * 2 * MB
    assert found.largest >= 0.97 * true - 1, "one row is the least there is"


@settings(max_examples=100, deadline=None)
@given(devices())
def test_the_law_tells_the_memory_of_any_batch_within_3_percent(device: Device) -> None:
    law = find_largest(device.trial, device.limit, margin_bytes(device.limit, "cuda")).law
    assert law.largest is not None
    for batch in (law.largest, law.largest * 3 // 4):
        rounding = device.usage(batch).blocks * 2 * MB
        assert law.predict(batch) == pytest.approx(device.usage(batch).held, rel=0.03, abs=rounding + device.workspace)


def test_the_curve_that_was_measured_on_a_gpu() -> None:
    """Its true maximum without holes is 99; with a margin of 745 MB it is 98 or 99."""
    found = find_largest(GPT2.trial, GPT2.limit, margin_bytes(GPT2.limit, "cuda"))
    assert GPT2.largest() in (98, 99, 100)
    assert found.law.largest is not None
    assert found.law.largest >= 0.97 * GPT2.largest()
    assert found.law.row_bytes == pytest.approx(1.473e9, rel=0.01)
    assert found.law.fixed_bytes == pytest.approx(1.858e9 + 600 * MB, rel=0.15)
    assert found.law.out_of_memory == 0
    assert "less the margin" in found.stopped


def test_rows_that_become_far_cheaper_take_a_trial_more() -> None:
    """A workspace of a quarter of the GPU is full at 32 rows; a row beyond takes a sixteenth of one before."""
    device = Device(limit=8 * GB, fixed=8 * MB, kinds=(MB + 1,) * 4, workspace=2 * GB)
    found = find_largest(device.trial, device.limit, 64 * MB).law
    assert found.out_of_memory == 0
    assert found.trials <= 6
    assert found.largest is not None
    assert found.largest >= 0.97 * device.largest()


def test_a_gpu_that_one_row_fills_is_not_asked_for_two() -> None:
    device = Device(limit=10 * GB, fixed=2 * GB, kinds=(5 * GB,))
    found = find_largest(device.trial, device.limit, 64 * MB)
    assert device.tried == [1]
    assert (found.law.largest, found.law.verified, found.law.out_of_memory) == (1, 1, 0)


def test_much_that_is_fixed_does_not_hide_that_rows_are_small() -> None:
    """60 of 80 GB are fixed: by proportion not even two rows would fit, and 19 do."""
    device = Device(limit=80 * GB, fixed=60 * GB, kinds=(GB,))
    found = find_largest(device.trial, device.limit, 64 * MB)
    assert found.law.largest == 19
    assert found.law.out_of_memory == 0


def test_a_first_row_that_does_not_fit_leaves_no_law() -> None:
    device = Device(limit=GB, fixed=2 * GB, kinds=(MB,))
    found = find_largest(device.trial, device.limit, 64 * MB)
    assert (found.law.largest, found.law.verified, found.law.trials, found.law.out_of_memory) == (None, None, 1, 1)
    assert found.stopped == "batch 1 ran out of memory"


def test_what_is_no_line_costs_one_failure_and_is_found_all_the_same() -> None:
    """From 90 rows on, 12 GB more are taken: 98 are foreseen, do not fit, and a smaller batch is tried and kept."""
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB,), surprise=(90, 12 * GB))
    found = find_largest(device.trial, device.limit, 512 * MB)
    assert found.law.out_of_memory == 1
    assert found.law.trials == 4
    assert found.law.largest is not None
    assert device.fits(found.law.largest)
    assert found.law.largest >= 0.85 * device.largest()


def test_a_second_trial_that_does_not_fit_is_followed_by_smaller_ones() -> None:
    """The first trial tells nothing of the rows, as they seem to cost nothing: 25,000 rows are tried, and 99 fit."""
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB,))

    def silent(batch: int, apart: bool, timed: bool) -> Trial:
        trial = device.trial(batch)
        assert trial.usage is not None
        return trial._replace(usage=trial.usage._replace(rest=trial.usage.asked)) if batch == 1 else trial

    found = find_largest(silent, device.limit, GB // 2)
    assert device.tried[1] > 10_000
    assert found.law.out_of_memory == 3
    assert (found.law.largest, device.largest()) == (98, 99)


def test_a_process_that_ends_in_the_second_trial_is_not_started_again_and_again() -> None:
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB,))

    def dying(batch: int, apart: bool, timed: bool) -> Trial:
        if batch > 1:
            raise Died("signal 11: no message")
        return device.trial(batch)

    found = find_largest(dying, device.limit, GB // 2)
    assert (found.law.largest, found.law.trials, found.law.out_of_memory) == (1, 2, 0)
    assert "ended the process (signal 11: no message)" in found.stopped


def test_a_trial_that_took_more_than_foreseen_gives_rows_back() -> None:
    """It ran, but within the margin: the largest batch is that which leaves the margin free."""
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB,), surprise=(80, 2 * GB))
    margin = 3 * GB
    found = find_largest(device.trial, device.limit, margin)
    assert found.law.out_of_memory == 0
    assert found.law.verified is not None and found.law.largest is not None
    assert found.law.largest < found.law.verified
    assert device.usage(found.law.largest).held <= device.limit - margin


def test_time_ends_a_search_with_a_law_and_no_largest_batch() -> None:
    device = Device(limit=100 * GB, fixed=GB, kinds=(MB,), seconds_per_row=0.1)
    found = find_largest(device.trial, device.limit, GB, seconds=2.0)
    assert max(device.tried) == 60, "a pass is a third of a trial here"
    assert found.law.largest is None
    assert found.law.verified == 60
    assert found.law.row_bytes == pytest.approx(MB)
    assert "would take" in found.stopped


def test_a_decisive_trial_is_not_timed_and_counts_as_long_as_its_rows_took_before() -> None:
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB // 7,), workspace=2 * GB, seconds_per_row=0.3)

    def untimed(batch: int, apart: bool, timed: bool) -> Trial:
        trial = device.trial(batch)
        return trial if timed else trial._replace(times=(), seconds=1000.0)  # a trial of 0.3 s has passes of 0.1

    found = find_largest(untimed, device.limit, GB)
    first, second, third, fourth = device.tried
    assert found.law.trial_seconds == pytest.approx(0.3 * (first + second) + 0.1 * (third + fourth))


def test_holes_that_the_second_trial_did_not_have_are_reckoned_with() -> None:
    """GPT-2 on an H200: 1.8 % of what tensors took at 88 rows, 5.5 % at 364; 452 rows fitted, squeezed."""
    asked = {1: 2_962_464_256, 88: 30_285_659_648}
    reserved = {1: 3_391_094_784, 88: 30_823_940_096}
    tried = []

    def trial(batch: int, apart: bool, timed: bool) -> Trial:
        tried.append(batch)
        if batch > 452:
            raise MemoryError
        tensors = asked.get(batch, 116_132_135_424 + 311_037_955 * (batch - 364))
        held = min(149_200_000_000, reserved.get(batch, int(1.055 * tensors)))
        usage = Usage(tensors, held, 329_318_400, 2_137_332_736, 420, squeezed=held == 149_200_000_000)
        return Trial(batch, (0.002 * batch,), 0.008 * batch, 0.0, 0.0, usage)

    found = find_largest(trial, 149_557_477_376, 747_787_386, holes=FRAGMENTATION["cuda"]).law
    assert (found.out_of_memory, tried[:2]) == (0, [1, 88])
    assert len(tried) <= 4
    assert found.largest is not None and found.largest >= 0.97 * 452


@pytest.mark.parametrize(("small", "large"), [(0.2, 0.05), (0.2, 0.17), (0.16, 0.2), (0.195, 0.25), (0.02, 0.03)])
def test_a_far_larger_batch_may_have_more_holes(small: float, large: float) -> None:
    """A Perceiver AR that computes again, on an H200: 16 to 20 % at 530 rows and more at 7,000, whose pass takes 3.7 s.
    Trials may take 10 s."""
    tried, limit = [], 149_557_477_376

    def usage(batch: int) -> Usage:
        asked = 1_005_800_000 + 16_150_000 * batch
        return Usage(asked, int(asked * (1 + (small if batch < 1000 else large))), 331_415_552, 882_717_184, 160)

    def trial(batch: int, apart: bool, timed: bool) -> Trial:
        tried.append(batch)
        if usage(batch).held > limit:
            raise MemoryError
        seconds = max(0.015, 0.00053 * batch)
        return Trial(batch, (seconds,) if timed else (), 4 * seconds if timed else 25.0, 0.0, 0.0, usage(batch))

    found = find_largest(trial, limit, 747_787_386, 8.0, holes=FRAGMENTATION["cuda"]).law
    true = max(batch for batch in range(6000, 10_000) if usage(batch).held <= limit)
    assert found.out_of_memory == 0
    assert tried[0] == 1 and tried[1] in (529, 530), "as there"
    assert len(tried) == found.trials <= 4
    assert found.trial_seconds < 10
    assert found.largest is not None and found.largest >= 0.97 * true


def test_what_was_squeezed_once_is_not_pressed_further() -> None:
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB // 7,), workspace=2 * GB)

    def squeezed(batch: int, apart: bool, timed: bool) -> object:
        trial = device.trial(batch)
        assert trial.usage is not None
        return trial._replace(usage=trial.usage._replace(squeezed=apart))

    free, pressed = find_largest(device.trial, device.limit, GB), find_largest(squeezed, device.limit, GB)  # type: ignore[arg-type]
    assert (free.law.trials, pressed.law.trials) == (4, 3)


def test_decisive_trials_have_a_process_of_their_own() -> None:
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB // 7,), workspace=2 * GB)
    apart = []
    find_largest(lambda batch, alone, _: (apart.append(alone), device.trial(batch))[1], device.limit, GB)
    assert apart == [False, False, True, True]


def test_the_upper_bound_is_never_below_what_a_larger_batch_takes() -> None:
    device = Device(limit=1 << 60, fixed=3 * GB, kinds=(900_001, 7 * MB + 1, 33), layers=7, workspace=GB, context=MB)
    trials = [device.trial(batch) for batch in (1, 30)]
    for batch in range(31, 400):
        assert upper_bytes(trials, batch) >= device.usage(batch).held
        assert upper_bytes(trials[:1], batch) >= device.usage(batch).asked


def test_a_line_goes_through_the_largest_trial() -> None:
    trials = [Device(limit=1 << 60, fixed=5 * GB, kinds=(2 * GB,)).trial(batch) for batch in (2, 8)]
    fixed, row = line(trials)
    assert (fixed, row) == (5 * GB, 2 * GB)
    assert line(trials[:1]) == (5 * GB, 2 * GB)


@pytest.mark.parametrize(("room", "expected"), [(0, 3), (30, 3), (49, 4), (50, 5), (10**6, 100_000)])
def test_bisection_agrees_with_division(room: int, expected: int) -> None:
    assert largest_within(lambda batch: 10.0 * batch, room, 3) == expected


def test_the_margin_is_in_bytes_and_larger_where_others_share_the_memory() -> None:
    assert margin_bytes(150 * 10**9, "cuda") == 750 * 10**6
    assert margin_bytes(8 * GB, "cuda") == 8 * GB // 200
    assert margin_bytes(4 * GB, "cuda") == 32 * MB
    assert margin_bytes(20 * 10**9, "cpu") == 10**9


@pytest.mark.parametrize(
    ("limit", "row"), [(90 * MB, 80_000), (150 * MB, 80_000), (90 * MB, 5_000), (90 * MB, 300_000)]
)
def test_rows_whose_bytes_are_lost_in_noise_do_not_lead_beyond_the_limit(limit: int, row: int) -> None:
    """Scoring on a CPU: 60 MB that stay, 2 MB that come and go, 3 MB that the first pass takes more, and time for a few
    hundred rows."""
    tried = []

    def trial(batch: int, apart: bool, timed: bool) -> Trial:
        asked = (62 if tried else 65) * MB + row * batch
        tried.append(batch)
        usage = Usage(asked, asked, 0, 60 * MB, 2)
        return Trial(batch, (0.002 * batch,), 0.006 * batch, 0.0, 0.0, usage)

    found = find_largest(trial, limit, 0, seconds=1.0)
    assert max(62 * MB + row * batch for batch in tried) <= limit
    if found.law.largest is None:
        assert "would take" in found.stopped
        assert found.law.verified == max(tried)
    else:
        assert found.law.largest >= 0.97 * ((limit - 62 * MB - 2 * ROUNDING) // row), "two blocks may come out larger"


# --- where no more than so many rows are of use


@settings(max_examples=200, deadline=None)
@given(devices(), st.integers(1, 5000), st.integers(1, 8))
def test_no_more_rows_are_tried_than_are_asked_for(device: Device, most: int, first: int) -> None:
    """They are tried where they fit; else the largest batch is found as without that bound."""
    margin = margin_bytes(device.limit, "cuda")
    found = find_largest(device.trial, device.limit, margin, first=first, most=most)
    assert max(device.tried) <= most
    assert found.law.out_of_memory == 0 and found.law.trials == len(device.tried) <= 4
    if found.law.largest is None:
        assert found.law.verified == most and device.usage(most).held <= device.limit
        assert found.stopped == f"batch {most:,} is the largest that is asked for"
    else:
        assert min(most, device.largest()) >= found.law.largest >= 0.97 * device.largest() - 1
        assert "less the margin" in found.stopped


def test_a_bound_on_rows_spares_what_would_run_out_of_memory() -> None:
    """The first trial tells nothing of the rows. Without the bound 25,000 are tried, three times too many (above)."""
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB,))

    def silent(batch: int, apart: bool, timed: bool) -> Trial:
        trial = device.trial(batch)
        assert trial.usage is not None
        return trial._replace(usage=trial.usage._replace(rest=trial.usage.asked)) if batch == 1 else trial

    found = find_largest(silent, device.limit, GB // 2, most=64)
    assert device.tried == [1, 64]
    assert (found.law.largest, found.law.verified, found.law.out_of_memory) == (None, 64, 0)
    assert found.law.row_bytes == pytest.approx(GB)


def test_the_seconds_of_small_batches_spare_what_would_run_out_of_memory() -> None:
    """No line: from 500 rows on memory is full. A pass of 300 rows would take longer than a second."""
    device = Device(limit=100 * GB, fixed=GB, kinds=(MB,), surprise=(500, 100 * GB), seconds_per_row=0.01)
    found = find_largest(device.trial, device.limit, GB, seconds=1.0, most=4096)
    assert max(device.tried) == 300, "a pass is a third of a trial here"
    assert (found.law.largest, found.law.verified, found.law.out_of_memory) == (None, 300, 0)
    assert "would take" in found.stopped


def test_one_row_that_is_asked_for_takes_one_trial() -> None:
    device = Device(limit=10 * GB, fixed=GB, kinds=(MB,))
    found = find_largest(device.trial, device.limit, 64 * MB, first=4, most=1)
    assert device.tried == [1]
    assert (found.law.largest, found.law.verified) == (None, 1)
    assert found.stopped == "batch 1 is the largest that is asked for"


def test_rows_that_fit_only_into_the_margin_are_not_said_to_fit() -> None:
    device = Device(limit=100 * GB, fixed=GB, kinds=(GB,), surprise=(80, 2 * GB))
    margin = 3 * GB
    found = find_largest(device.trial, device.limit, margin, most=95).law
    assert found.verified == 95 and found.largest is not None and found.largest < 95
    assert device.usage(found.largest).held <= device.limit - margin
