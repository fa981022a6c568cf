"""Files that appear whole or not at all, folders, and locks that a dead process cannot hold."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoestring.core.errors import RunError, StorageError, storage_error
from shoestring.core.files import folder_bytes, free_bytes, locked, make_folder, whole_file, write_whole


def fail_with(code: int) -> Any:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def run_python(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# --- whole files


def test_a_file_is_written_with_its_folders_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.txt"
    write_whole(path, "naïve")
    assert path.read_bytes() == "naïve".encode()
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(path.parent.iterdir()) == [path]


def test_the_file_appears_only_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("cause", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_block_that_fails_changes_nothing_and_leaves_nothing(
    tmp_path: Path, cause: type[BaseException], old: str | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_text(old)
    before = sorted(tmp_path.iterdir())

    def write() -> None:
        with whole_file(path) as file:
            file.write(b"half of the ")
            raise cause

    with pytest.raises(cause):
        write()
    assert sorted(tmp_path.iterdir()) == before
    assert old is None or path.read_text() == old


def test_a_process_that_dies_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    code = """
import os, pathlib, sys
from shoestring.core.files import whole_file
with whole_file(pathlib.Path(sys.argv[1])) as file:
    file.write(b"half of the ")
    file.flush()
    os.kill(os.getpid(), 9)
"""
    assert run_python(code, path).returncode == -signal.SIGKILL
    assert path.read_text() == "old"


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "reason"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota"), (errno.EIO, "error")]
)
def test_a_full_disk_is_said_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, reason: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail_with(code))
        with pytest.raises(StorageError, match=reason) as caught:
            write_whole(path, "new")
    assert str(path) in str(caught.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_up_in_the_middle_is_said(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(StorageError, match="disk is full"), whole_file(path), open("/dev/full", "wb", buffering=0) as f:
        f.write(b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file" / "inside").mkdir(parents=True)
    with pytest.raises(StorageError, match="folder, not a file"):
        write_whole(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO])
def test_an_error_of_storage_says_what_where_and_why(code: int) -> None:
    message = str(storage_error("write", "/some/file", OSError(code, os.strerror(code))))
    assert message.startswith("cannot write /some/file: ")
    assert len(message) > len("cannot write /some/file: ") + 5


# --- folders


def test_a_folder_is_made_with_its_parents_and_may_be_there(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_in_the_way_of_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="file: a file of that name is in the way"):
        make_folder(tmp_path / "file")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        make_folder(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(("code", "reason"), [(errno.EACCES, "permission denied"), (errno.EROFS, "read-only")])
def test_a_folder_that_may_not_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    monkeypatch.setattr(Path, "mkdir", fail_with(code))
    with pytest.raises(StorageError, match=reason):
        make_folder(tmp_path / "a")


def test_free_space_is_that_of_the_nearest_folder_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def statvfs(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(f_bavail=7, f_bfree=9, f_frsize=4096, f_bsize=1)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert free_bytes(tmp_path / "not" / "there" / "yet") == 7 * 4096
    assert asked == [tmp_path]


def test_free_space_of_a_relative_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_bytes(Path("not") / "there") > 0


def test_the_bytes_of_a_folder_are_those_of_all_files_below(tmp_path: Path) -> None:
    assert folder_bytes(tmp_path / "none") == 0
    for number, name in enumerate(("a", "b/c", "b/d/e"), start=1):
        write_whole(tmp_path / name, b"x" * 10**number)
    assert folder_bytes(tmp_path) == 1110


# --- locks

HOLD = """
import pathlib, sys
from shoestring.core.files import locked
with locked(pathlib.Path(sys.argv[1]), "the run"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".lock"
    with holder(path) as first:
        second = run_python(HOLD, path)
        assert second.returncode == 1
        assert "RunError: the run is in use by process" in second.stderr
        assert f"process {first.pid} on " in second.stderr
        with pytest.raises(RunError, match=f"process {first.pid} on .* since "), locked(path, "the run"):
            pytest.fail("the lock was held")


def test_the_lock_is_free_after_the_holder_ended(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path) as first:
        first.communicate(timeout=60)
        assert first.returncode == 0
    with locked(path, "the run"):
        pass


def test_the_lock_is_free_after_the_holder_was_killed(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path) as first:
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait(timeout=60) == -signal.SIGKILL
    with locked(path, "the run"):
        assert str(os.getpid()) in path.read_text()
        assert str(first.pid) not in path.read_text()


def test_the_lock_is_free_after_its_block_failed(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with pytest.raises(ZeroDivisionError), locked(path, "the run"):
        _ = 1 / 0
    with locked(path, "the run"):
        pass


@pytest.mark.parametrize("content", ["", "nonsense", "[]", "{}", "5"])
def test_a_holder_that_left_no_name_is_another_process(tmp_path: Path, content: str) -> None:
    path = tmp_path / ".lock"
    with holder(path):
        path.write_text(content)
        with pytest.raises(RunError, match="in use by another process"), locked(path, "the run"):
            pytest.fail("the lock was held")


@pytest.mark.parametrize(
    ("module", "call", "code", "reason"),
    [
        ("os", "open", errno.EACCES, "permission denied"),
        ("os", "pwrite", errno.ENOSPC, "disk is full"),
        ("fcntl", "flock", errno.ENOLCK, "lock"),
    ],
)
def test_a_lock_that_cannot_be_written_is_an_error_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, call: str, code: int, reason: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.{call}", fail_with(code))
        with pytest.raises(StorageError, match=reason), locked(tmp_path / ".lock", "the run"):
            pytest.fail("the lock was not written")
    with locked(tmp_path / ".lock", "the run"):
        pass


def test_an_error_of_the_system_inside_the_lock_is_not_taken_for_one_of_the_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / ".lock", "the run"):
        (tmp_path / "missing").read_text()
