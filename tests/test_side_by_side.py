"""Tests of several files in forked processes: `side_by_side`, by pytest in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import os, pytest
from side_by_side import SideBySide

def prepare():
    os.environ["PREPARED"] = str(os.getpid())

def begin():
    os.environ["BEGUN"] = str(os.getpid())

def pytest_configure(config):
    config.pluginmanager.register(SideBySide(2, prepare, begin))

@pytest.fixture(scope="module")
def whole(request):
    yield
    print("END OF", request.path.name, file=open("ends", "a"))
"""
PLAIN = """
import os, pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(3))
def test_it(number, whole, tmp_path, capfd):
    os.system("echo said by a child")
    assert capfd.readouterr().out == "said by a child\\n"
    assert os.environ["BEGUN"] == str(os.getpid()) != FIRST == os.environ["PREPARED"]
    tmp_path.joinpath("mine").touch(exist_ok=False)
    print(f"{__name__}-{number} {os.getpid()}", file=open("ran", "a"))
"""


def run(folder: Path, *options: str, **files: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(f"import os\nFIRST = str(os.getpid())\n{text}")
    command = [sys.executable, "-m", "pytest", f"--basetemp={folder / 'temporary'}", "-ra", *options]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command,
        cwd=folder,
        env=kept | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.stderr
    return done


def ran(folder: Path) -> list[tuple[str, str]]:
    return [tuple(line.split()) for line in (folder / "ran").read_text().splitlines()]  # type: ignore[misc]


def test_every_test_runs_once_and_those_of_a_file_in_one_process(tmp_path: Path) -> None:
    names = [f"file{number}" for number in range(5)]
    done = run(tmp_path, **dict.fromkeys(names, PLAIN))
    assert done.returncode == 0 and "15 passed" in done.stdout
    assert sorted(name for name, _ in ran(tmp_path)) == [
        f"test_{name}-{number}" for name in names for number in range(3)
    ]
    for name in names:
        assert len({pid for each, pid in ran(tmp_path) if each.startswith(f"test_{name}-")}) == 1
    assert sorted((tmp_path / "ends").read_text().splitlines()) == [f"END OF test_{name}.py" for name in names]


def test_failures_are_told_with_what_they_said(tmp_path: Path) -> None:
    wrong = "import pytest\ndef test_wrong():\n    print('so far')\n    assert 1 + 1 == 3\n"
    left = "import pytest\ndef test_left():\n    pytest.skip('no such thing')\ndef test_before(unheard_of): pass\n"
    done = run(tmp_path, plain=PLAIN, wrong=wrong, left=left)
    assert done.returncode == 1 and "1 failed, 3 passed, 1 skipped, 1 error" in done.stdout
    assert "assert (1 + 1) == 3" in done.stdout and "so far" in done.stdout
    assert "no such thing" in done.stdout and "fixture 'unheard_of' not found" in done.stdout


@pytest.mark.parametrize("last", [False, True], ids=["others after it", "the last of its file"])
def test_a_process_that_dies_fails_its_test_and_no_other(tmp_path: Path, last: bool) -> None:
    dying = "import os\ndef test_dies(): os._exit(3)\n"
    names = ["plain", "more"]
    done = run(tmp_path, dying=dying if last else f"{dying}\n{PLAIN}", **dict.fromkeys(names, PLAIN))
    passed = 6 if last else 9
    assert done.returncode == 1 and f"1 failed, {passed} passed" in done.stdout
    assert "the process that ran this test ended, exit code 3" in done.stdout
    assert re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE) == ["test_dying.py::test_dies"]
    assert len({name for name, _ in ran(tmp_path)}) == len(ran(tmp_path)) == passed


def test_what_goes_wrong_after_the_tests_of_a_process_is_a_failure(tmp_path: Path) -> None:
    late = "def test_late(request):\n    request.config.add_cleanup(lambda: 1 / 0)\n"
    done = run(tmp_path, late=late, plain=PLAIN)
    assert done.returncode == 1 and "1 failed, 4 passed" in done.stdout and "ZeroDivisionError" in done.stdout


def test_the_first_failure_ends_all(tmp_path: Path) -> None:
    wrong, waits = "def test_wrong(): assert 0\n", "import time\ndef test_waits(): time.sleep(100)\n"
    done = run(tmp_path, "-x", wrong=wrong, waits=waits)
    assert done.returncode != 0 and "1 failed" in done.stdout and "stopping after 1 failures" in done.stdout


def test_a_file_that_cannot_be_loaded_is_told_before_any_test_runs(tmp_path: Path) -> None:
    done = run(tmp_path, broken="import unheard_of\n", plain=PLAIN)
    assert done.returncode == 2 and "No module named 'unheard_of'" in done.stdout
    assert not (tmp_path / "ran").exists()
