"""Fewer threads where they are faster; as many as before in a run that resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.recipe_file import load
from shoestring.core.records import Machine
from shoestring.core.run_folder import RunFolder
from shoestring.probe import threads
from shoestring.probe.machine import describe_machine
from shoestring.probe.threads import fastest_threads
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run

Seconds = Callable[[int], float]
HERE = Machine(
    device="cpu", device_name="cores", threads=4, memory_bytes=1, system="Linux", python="3.11", versions={"torch": "2"}
)


@pytest.fixture(autouse=True)
def _not_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def never(_: int, __: Seconds | None = None) -> int:
    raise AssertionError("nothing is to be timed")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({4: 1.0, 2: 1.9, 1: 3.7}, 4),
        ({4: 9.0, 2: 3.0, 1: 1.0}, 1),
        ({4: 1.3, 2: 1.0, 1: 1.1}, 2),
        ({4: 1.1, 2: 1.0, 1: 1.2}, 4),
    ],
)
def test_as_many_threads_as_are_fastest(seconds: dict[int, float], expected: int) -> None:
    before, said = torch.get_num_threads(), list[str]()
    with fastest_threads(HERE, None, said.append, seconds.__getitem__):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == before
    assert [line.partition(":")[0] for line in said] == [f"{expected} of 4 threads"] * (expected < 4)


def test_a_busy_moment_decides_nothing() -> None:
    """In the second round everything takes a hundred times as long."""
    asked: list[int] = []

    def seconds(count: int) -> float:
        asked.append(count)
        return (100.0 if len(asked) in (4, 5) else 1.0) / count

    with fastest_threads(HERE, None, never, seconds):
        assert torch.get_num_threads() == 4


def test_what_the_user_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = torch.get_num_threads()
    with fastest_threads(HERE, None, never, never):
        assert torch.get_num_threads() == before


def test_a_gpu_and_a_single_thread_have_no_choice() -> None:
    before = torch.get_num_threads()
    for machine in (replace(HERE, device="cuda"), replace(HERE, threads=1)):
        with fastest_threads(machine, None, never, never):
            assert torch.get_num_threads() == before


def test_a_run_that_resumes_has_as_many_as_before() -> None:
    with fastest_threads(HERE, replace(HERE, threads=2), never, never):
        assert torch.get_num_threads() == 2
    fewer = replace(HERE, threads=2)
    with fastest_threads(fewer, HERE, never, never):
        assert torch.get_num_threads() == 2, "no more than there are"
    elsewhere = replace(HERE, device_name="other cores", threads=2)
    with fastest_threads(HERE, elsewhere, print, lambda count: float(count)):
        assert torch.get_num_threads() == 1, "on another machine they are timed"


def test_products_are_timed_on_this_machine() -> None:
    assert threads._fastest(2, threads._seconds) in (1, 2)


def test_a_run_keeps_its_number_in_its_folder(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "_fastest", lambda most, _: most // 2)
    recipe = load(tiny)
    with pytest.raises(Fault, match="saved"):
        run(recipe, Reporter(), Clock(), limit=0.0)
    folder = RunFolder.of(recipe)
    assert Machine.read(folder.machine).threads == 1 and torch.get_num_threads() == 2
    monkeypatch.setattr(threads, "_fastest", never)
    assert run(recipe, Reporter(), Clock()) is not None
    assert Machine.read(folder.machine).threads == 1 and describe_machine(torch.device("cpu")).threads == 2
