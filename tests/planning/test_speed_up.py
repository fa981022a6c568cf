"""The expected speed-up of several workers, against numbers by hand, and its reason; a sum that processes measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from processes import together

from shoestring.core import recipe_file
from shoestring.core.records import Cost, Machine, Point, Profile
from shoestring.parallel.process_group import ProcessGroup
from shoestring.planning.speed_up import speed_up_lines
from shoestring.planning.split import choose_split
from shoestring.runs import measure_sums

CPU = Machine(device="cpu", device_name="x", threads=4, memory_bytes=None, system="x", python="3.11", versions={})
PROFILE = Profile(
    machine=replace(CPU, device="cuda"),
    workload="w",
    length=100,
    points=tuple(Point(batch=n, seconds=n / 10, slowest_seconds=n / 10, peak_bytes=n) for n in (2, 4, 8)),
    setup_seconds=3.0,
    update_seconds=0.05,
    validate_seconds_per_row=0.01,
    checkpoint_seconds=0.2,
    checkpoint_bytes=1,
    available_bytes=8_000_000_000,
    stopped="",
    cost=Cost(parameters={"blocks": 256_000}, forward_flops_per_token=1000.0),
    sum_seconds=0.1,
    sum_workers=2,
)


def lines(profile: Profile = PROFILE, **parallel: Any) -> list[tuple[str, str, str]]:
    given = {
        "budget": {"steps": 10},
        "train": {"batch": 8, "lr": 1e-3},
        "data": {"length": 100},
        "parallel": {"workers": 2} | parallel,
    }
    recipe = recipe_file.build(given, "test")
    return speed_up_lines(recipe, profile, choose_split(profile, 8, None, None, recipe.workers))


@pytest.mark.parametrize(
    ("parallel", "step"),
    [
        ({}, 0.4 + 0.05 + 0.1),
        ({"strategy": "local", "sync_every": 10}, 0.4 + 0.05 + 0.01),
        # four numbers in 4 bits with one scale of 4 bytes for 256: 33/256 of 4 bytes each
        ({"strategy": "local", "sync_every": 1, "difference_bits": 4}, 0.4 + 0.05 + 0.1 * (0.5 + 1 / 64) / 4),
        ({"strategy": "async"}, 0.4 + 0.05),
    ],
)
def test_the_speed_up_is_that_by_hand(parallel: dict[str, Any], step: float) -> None:
    ((_, value, _),) = lines(**parallel)
    assert value == f"{0.85 / step:.2g}×"


@pytest.mark.parametrize("strategy", ["sync", "local", "async"])
def test_workers_on_one_gpu_take_turns(strategy: str) -> None:
    assert lines(replace(PROFILE, sharing=2), strategy=strategy) == [
        ("speed-up", "about 1×", "2 workers take turns on one GPU")
    ]


def test_the_reason_names_what_a_step_is_made_of() -> None:
    assert lines() == [
        (
            "speed-up",
            "1.5×",
            "a step takes 850ms alone and 550ms with 2: passes 400ms, update 50ms, a sum of gradients 100ms",
        )
    ]
    ((_, _, why),) = lines(replace(PROFILE, sum_workers=4))
    assert why.endswith("sums over the workers not counted; shoestring measure times them")
    ((_, _, why),) = lines(strategy="local", sync_every=10)
    assert why.endswith("an average 100ms every 10 steps")


def test_workers_of_one_cpu_divide_it() -> None:
    reason = "2 workers on this machine divide the 4 threads that one has alone"
    assert lines(replace(PROFILE, machine=CPU)) == [("speed-up", "about 1×", reason)]
    assert lines(workers=1) == []
    assert lines(shard=True) == []


def summed(group: ProcessGroup) -> Profile:
    return measure_sums.with_sum(PROFILE, group)


def test_processes_measure_a_sum_and_agree_on_it() -> None:
    one, two = together(summed, 2)
    assert one == two
    assert one.sum_workers == 2 and 0 < one.sum_seconds < 60


@pytest.mark.slow
def test_one_process_starts_others_to_measure_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure_sums.with_sum_of(replace(PROFILE, sum_seconds=None), 2)
    assert found.sum_workers == 2 and found.sum_seconds is not None and 0 < found.sum_seconds < 60
    monkeypatch.setattr(measure_sums.sys, "executable", "/bin/false")  # type: ignore[attr-defined]
    assert measure_sums.with_sum_of(PROFILE, 2) == PROFILE, "nothing is known then"
