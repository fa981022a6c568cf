"""A second team of threads is there while others crowd the processors, and only then; results stay the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.probe import brief_waits as module
from shoestring.probe.brief_waits import brief_waits, idle_teams
from shoestring.probe.load import Load
from shoestring.training.learner import Learner


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """As many threads as there are processors, four of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(module, "own_processors", lambda: range(4))
    monkeypatch.setattr(module, "PERIOD", 0.001)
    yield 4
    torch.set_num_threads(before)


class Others:
    """Processors that others use, second by second; then the same for ever."""

    def __init__(self, used: list[float]):
        self._used, self._looks, self._all = used, 0, 0.0
        self.seen = threading.Event()

    def __call__(self) -> Load:
        if self._looks:
            self._all += self._used[min(self._looks, len(self._used)) - 1]
        if self._looks > len(self._used):
            self.seen.set()
        self._looks += 1
        return Load(float(self._looks), 0.0, self._all)


class Teams:
    """What was begun and ended."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.events.append("begun")
        yield
        self.events.append("ended")


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ([0.0, 0.3, 0.4], []),  # half a processor may be others'
        ([0.0, 0.6, 3.0, 0.4, 0.3], ["begun"]),  # and it stays crowded until half of that
        ([0.6, 0.2, 0.0, 0.2], ["begun", "ended"]),
        ([0.6, 0.2, 2.0, 0.1], ["begun", "ended", "begun", "ended"]),
    ],
)
def test_there_is_a_team_while_others_crowd_the_processors(
    used: list[float], expected: list[str], threads: int
) -> None:
    others, teams = Others(used), Teams()
    with brief_waits(others, teams, {}):
        assert others.seen.wait(20)
        assert teams.events == expected
    assert teams.events.count("begun") == teams.events.count("ended"), "it ends with what it was for"


def test_processors_that_the_threads_do_not_need_may_be_used(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_processors", lambda: range(7))
    others, teams = Others([3.4]), Teams()
    with brief_waits(others, teams, {}):
        assert others.seen.wait(20)
        assert not teams.events


def test_a_system_that_gives_no_more_threads_is_asked_once(threads: int) -> None:
    tried = []

    def refused() -> Teams:
        tried.append(1)
        raise RuntimeError("can't start new thread")

    others = Others([4.0])
    with brief_waits(others, refused, {}):
        assert not others.seen.wait(0.1)
    assert tried == [1]


@pytest.mark.parametrize("given", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}])
def test_what_a_user_says_of_waiting_is_kept(given: dict[str, str], threads: int) -> None:
    others, teams = Others([4.0]), Teams()
    with brief_waits(others, teams, given):
        assert not others.seen.wait(0.1)
    assert not teams.events


def test_one_thread_waits_for_none(threads: int) -> None:
    torch.set_num_threads(1)
    others, teams = Others([4.0]), Teams()
    with brief_waits(others, teams, {}):
        assert not others.seen.wait(0.1)
    assert not teams.events


def test_a_system_that_does_not_say_how_busy_it_is_is_asked_once(threads: int) -> None:
    asked, alive = [], threading.active_count()

    def look() -> Load:
        asked.append(1)
        return Load(float(len(asked)), 0.0, None)

    with brief_waits(look, Teams(), {}):
        until = time.monotonic() + 20
        while threading.active_count() > alive and time.monotonic() < until:
            time.sleep(0.01)
    assert len(asked) == 2


def test_a_process_that_may_have_no_more_threads_goes_on(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP would end it."""
    start, left = threading.Thread.start, [2]

    def limited(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    before = threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError), idle_teams():
        pass
    assert threading.active_count() == before


def test_teams_end_with_what_they_are_for(threads: int) -> None:
    before = threading.active_count()
    with idle_teams():
        assert before < threading.active_count() <= before + module.MOST_TEAMS
    assert threading.active_count() == before


def test_steps_are_the_same_to_the_last_bit(threads: int) -> None:
    found = []
    for others in ([0.0], [4.0]):
        learner = Learner(
            build(Model(width=64, layers=2, heads=2), 50, 32, 0),
            Train(batch=8, lr=1e-2, optimizer="muon"),
            torch.device("cpu"),
        )
        seen = Others(others)
        with brief_waits(seen, given={}):
            assert seen.seen.wait(20)
            for seed in range(5):
                rows = torch.randint(50, (8, 33), generator=torch.Generator().manual_seed(seed))
                learner.update(learner.accumulate(rows, 8), 1e-2)
        found.append(learner.saved_tensors())
    for name, tensor in found[0].items():
        assert torch.equal(found[1][name], tensor), name
