"""JSON lines: whole or not there, whatever byte the process died at."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import RecordError, RunError, StorageError
from shoestring.track import LineFile, read_lines, read_some_lines

LINES = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}, {"step": 3, "note": 'näive "{}\n'}]


def write(path: Path, lines: list[dict[str, Any]]) -> bytes:
    file = LineFile(path)
    for line in lines:
        file.add(**line)
    return path.read_bytes()


def test_what_was_added_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    write(path, LINES)
    assert read_lines(path) == LINES


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a/b.jsonl: no such file or folder"):
        LineFile(tmp_path / "a" / "b.jsonl")
    assert not (tmp_path / "a").exists()


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none.jsonl") == read_some_lines(tmp_path / "none.jsonl", 5) == []


def test_some_lines_are_even_and_have_the_last_and_the_wanted_names(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, [{"step": step} | ({"heldout_loss": 1.0} if step == 17 else {}) for step in range(100)])
    found = [line["step"] for line in read_some_lines(path, 10, "heldout_loss")]
    assert found == [0, 10, 17, 20, 30, 40, 50, 60, 70, 80, 90, 99]
    assert read_some_lines(path, 1000) == read_lines(path)
    path.write_bytes(path.read_bytes() + b'{"step": -1}\n')
    with pytest.raises(RecordError, match="line 101: step = -1"):
        read_some_lines(path, 10)


def test_opening_makes_an_empty_file_and_opening_again_appends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, [])
    assert path.read_bytes() == b""
    for line in LINES:
        write(path, [line])
    assert read_lines(path) == LINES


def test_a_line_is_there_for_others_at_once(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "a.jsonl")
    file.add(step=1)
    assert read_lines(file.path) == [{"step": 1}]
    file.sync()
    assert read_lines(file.path) == [{"step": 1}]


def test_a_tail_torn_at_any_byte_is_never_read_and_is_cut_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = write(path, LINES)
    kept = whole[: whole.rindex(b"\n", 0, -1) + 1]
    assert json.loads(whole[len(kept) :]) == LINES[-1]
    for size in range(len(kept), len(whole)):
        path.write_bytes(whole[:size])
        assert read_lines(path) == LINES[:-1], size
        LineFile(path)
        assert path.read_bytes() == kept, size
        assert write(path, LINES[-1:]) == whole


def test_a_first_line_torn_at_any_byte_leaves_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = write(path, LINES[:1])
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert read_lines(path) == []
        LineFile(path)
        assert path.read_bytes() == b""


def test_lines_survive_a_kill_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    code = """
import os, pathlib, sys
from shoestring.track import LineFile
file = LineFile(pathlib.Path(sys.argv[1]))
for step in range(100):
    file.add(step=step)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_lines(path) == [{"step": step} for step in range(100)]


steps = st.lists(st.integers(0, 20), max_size=20)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@settings(deadline=None)
@given(rows=st.lists(st.dictionaries(st.text(max_size=5).filter(lambda key: key != "self"), plain, max_size=3)))
def test_any_values_read_back_equal(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.unlink(missing_ok=True)
    content = write(path, rows)
    assert read_lines(path) == rows
    assert content.count(b"\n") == len(rows)


@settings(deadline=None)
@given(taken=steps, step=st.integers(-1, 21), torn=st.binary(max_size=9).filter(lambda tail: b"\n" not in tail))
def test_rewinding_drops_later_steps_and_torn_tails_and_keeps_the_rest(
    taken: list[int], step: int, torn: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "rewound.jsonl"
    path.unlink(missing_ok=True)
    rows = [{"step": number, "place": place} for place, number in enumerate(taken)]
    write(path, rows)
    with open(path, "ab") as file:
        file.write(torn)
    lines = LineFile.rewound(path, step)
    assert read_lines(path) == [row for row in rows if row["step"] <= step]
    lines.add(step=step + 1)
    assert read_lines(path)[-1] == {"step": step + 1}


def test_rewinding_leaves_the_bytes_of_kept_lines_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1,  "loss": 1.10}\n{"step": 2}\n{"step": 3}\n')
    LineFile.rewound(path, 2)
    assert path.read_bytes() == b'{"step":1,  "loss": 1.10}\n{"step": 2}\n'


def test_rewinding_a_missing_file_makes_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.jsonl"
    LineFile.rewound(path, 5)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_and_nothing_is_written(tmp_path: Path, value: float) -> None:
    file = LineFile(tmp_path / "a.jsonl")
    file.add(step=1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.add(step=2, loss=value)
    file.add(step=3)
    assert read_lines(file.path) == [{"step": 1}, {"step": 3}]


@pytest.mark.parametrize("broken", [b"nonsense", b'{"step": 2', b"", b"\xff\xfe", b"\x00\x00"])
@pytest.mark.parametrize("read", [read_lines, lambda path: LineFile.rewound(path, 9)], ids=["read", "rewound"])
def test_an_unreadable_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path, broken: bytes, read: Any) -> None:
    path = tmp_path / "a.jsonl"
    content = b'{"step": 1}\n' + broken + b'\n{"step": 3}\n'
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"a\.jsonl, line 2: not JSON"):
        read(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("broken", [b"5", b"[1]", b"null", b'"step"'])
@pytest.mark.parametrize("read", [read_lines, lambda path: LineFile.rewound(path, 9)], ids=["read", "rewound"])
def test_a_line_that_is_no_object_is_an_error_with_its_number(tmp_path: Path, broken: bytes, read: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n' + broken + b'\n{"step": 3}\n')
    with pytest.raises(RecordError, match=r"a\.jsonl, line 2"):
        read(path)


def test_rewinding_lines_without_a_step_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{"loss": 2}\n')
    with pytest.raises(RecordError, match=r"a\.jsonl, line 2"):
        LineFile.rewound(path, 9)


def test_a_folder_in_the_place_of_the_file_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="folder, not a file"):
        read_lines(tmp_path)
    with pytest.raises(StorageError, match="folder, not a file"):
        LineFile(tmp_path)


def test_a_failing_sync_is_an_error_of_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = LineFile(tmp_path / "a.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="disk is full"):
            file.sync()


def test_a_full_disk_is_said_when_a_line_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LineFile(tmp_path / "a.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr("shoestring.track.lines.open", lambda _, mode, **_options: open("/dev/full", mode), raising=False)
        with pytest.raises(StorageError, match=r"a\.jsonl: the disk is full"):
            file.add(step=1)
    file.add(step=2)
    assert read_lines(file.path) == [{"step": 2}]


@pytest.mark.parametrize("change", ["removed", "replaced", "longer", "shorter"])
def test_a_file_that_another_process_changes_is_noticed(tmp_path: Path, change: str) -> None:
    """A run whose folder was removed must not end with the last of its metrics alone."""
    path = tmp_path / "metrics.jsonl"
    file = LineFile(path)
    file.add(**LINES[0])
    if change in ("removed", "replaced"):
        path.unlink()
    if change != "removed":
        path.write_bytes({"replaced": b"", "longer": b'{"step": 1}\n' * 9, "shorter": b"{}\n"}[change])
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(StorageError, match="no such file" if change == "removed" else "was changed by another process"):
        file.add(**LINES[1])
    assert (path.read_bytes() if path.exists() else None) == before


def test_metrics_that_do_not_reach_the_checkpoint_are_refused_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    before = write(path, LINES)
    with pytest.raises(RunError, match=r"metrics.jsonl has 2 lines up to step 2, and the run had written 3 when it"):
        LineFile.rewound(path, 2, least=3)
    assert path.read_bytes() == before
    assert LineFile.rewound(path, 2, least=2).lines == 2
    assert read_lines(path) == LINES[:2]
