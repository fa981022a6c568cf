"""What other processes use of a machine: from counters that are written by hand, and of a process that really works."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from shoestring.probe.load import Load, crowded, load, used_by_others


def test_processors_that_others_used_are_those_that_worked_less_ones_own(tmp_path: Path) -> None:
    """In ten seconds, of two processors: 17 s worked, 9 of them for this process; then 1 s waited for a disk."""
    stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    found = []
    for user, idle, waiting in ((100, 50, 7), (117, 53, 8)):
        stat.write_text(f"cpu  {user * tick} 0 0 {idle * tick} {waiting * tick} 0 0 0 99 99\ncpu0 1 2 3\n")
        found.append(load(stat).all)
    assert found == [100.0, 117.0]
    assert used_by_others(Load(0.0, 0.0, found[0]), Load(10.0, 9.0, found[1])) == pytest.approx(0.8)


def test_processors_can_be_some_of_the_machines(tmp_path: Path) -> None:
    stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{number} {10**number * tick} 0 0 7 7 0 0 0 0 0" for number in range(4)]
    stat.write_text("\n".join(["cpu 1 2 3 4 5 6", *lines, "intr 1 2 3", ""]))
    assert load(stat, only={1, 3}).all == 1010.0
    assert load(stat, only={3, 4}).all is None, "one of them is not there"


@pytest.mark.parametrize("content", [None, "", "cpu x y"])
def test_a_system_that_does_not_say_is_unknown(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content)
    before = load(tmp_path / "stat")
    assert before.all is None
    assert used_by_others(before, load(tmp_path / "stat")) is None


@pytest.mark.parametrize(
    ("others", "threads", "cores", "expected"),
    [(0.1, 2, 2, False), (0.6, 2, 2, True), (1.9, 2, 4, False), (2.6, 2, 4, True), (30.0, 32, 64, False)],
)
def test_others_matter_where_they_leave_too_few_processors(
    others: float, threads: int, cores: int, expected: bool
) -> None:
    assert crowded(others, threads, cores) == expected


def test_what_this_process_does_is_not_done_by_others() -> None:
    """On any machine: what is found never counts this process' own seconds, and never more than there are."""
    before = load()
    while time.process_time() - before.own < 0.2:
        pass
    others = used_by_others(before, load())
    assert others is None or 0.0 <= others <= (os.cpu_count() or 1) + 0.5
