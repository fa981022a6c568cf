"""A sample of `bench/kill.py`: kill -9 while files are written, then the same bytes and nothing left."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCH))  # where the forked processes find it too
    import kill

    return kill


@pytest.fixture(scope="module")
def inputs(bench: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = bench.write_template(tmp_path_factory.mktemp("kill"))
    return folder


@pytest.mark.parametrize("name", ["train llama", "hmm fit hmm-online", "prepare packed"])
def test_a_command_that_was_killed_ends_with_the_same_bytes_and_leaves_nothing(
    bench: ModuleType, inputs: Path, tmp_path: Path, name: str
) -> None:
    scenario = next(each for each in bench.scenarios() if each.name == name)
    reference = bench.Reference(scenario, inputs, bench.Place(tmp_path / "reference"))
    found = bench.Found()
    for number in range(2):
        bench.kill(reference, bench.Place(tmp_path / str(number)), random.Random(f"{name} {number}"), found)
    assert (found.differing, found.left, found.failed) == ([], [], [])
    assert found.kills >= 2


def test_a_left_file_and_another_byte_are_found(bench: ModuleType, tmp_path: Path) -> None:
    """The comparison itself: it must be able to fail."""
    for folder in ("template", "killed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights").write_bytes(b"right")
        (tmp_path / folder / "timings.jsonl").write_text(folder)
    scenario = bench.Scenario("x", ("x",))
    reference = bench.Reference.__new__(bench.Reference)
    reference.scenario, reference.out = scenario, ""
    reference.files = bench.Place(tmp_path / "template").comparable(scenario)
    place, ended = bench.Place(tmp_path / "killed"), bench.Ended(0, "", "", 0.0)
    found = bench.Found()
    reference.compare(place, ended, found, "")
    assert (found.differing, found.left) == ([], [])
    (place.folder / "weights").write_bytes(b"wrong")
    (place.folder / ".shoestring-0123456789ab.tmp").touch()
    reference.compare(place, ended, found, "")
    assert (len(found.differing), len(found.left)) == (1, 1)
