"""Files that appear whole or not at all, folders, and locks that a dead process cannot hold."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoestring.core.errors import RunError, StorageError, storage_error
from shoestring.core.files import (
    HeldFolder,
    check_readable,
    discard,
    drop_lock,
    folder_bytes,
    free_bytes,
    is_locked,
    locked,
    make_folder,
    put_folder,
    sweep,
    temporary_folder,
    unnamed_file,
    whole_file,
    write_whole,
)


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
        assert "InUse: the run is in use by process" in second.stderr
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


def test_a_lock_leaves_no_file(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock", "the run"):
        assert is_locked(tmp_path / ".lock")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_removed_while_it_is_held_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "store"

    def use() -> None:
        with locked(folder / ".lock", "the store"):
            shutil.rmtree(folder)
            with locked(folder / ".lock", "the store"):  # of a second process, which gets in
                pass

    with pytest.raises(StorageError, match="the store was removed while it was in use"):
        use()


# --- what killed processes leave


@contextlib.contextmanager
def writer(begin: Callable[[], list[object]]) -> Iterator[int]:
    """A process that has begun to write, and waits; it is killed at the end."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept = begin()
            os.write(tell, b"x")
            signal.pause()
        finally:
            os._exit(1 if kept else 2)
    os.read(ready, 1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(tell)


def begin_file(folder: Path) -> list[object]:
    """The blocks that it is in."""
    block = whole_file(folder / "weights")
    file = block.__enter__()
    file.write(b"half of the ")
    file.flush()
    return [block]


def begin_folder(folder: Path) -> list[object]:
    block = temporary_folder(folder)
    temporary = block.__enter__()
    (temporary / "inside").mkdir()
    (temporary / "inside" / "half").write_bytes(b"half of the ")
    return [block, *begin_file(temporary)]


@pytest.mark.parametrize("begin", [begin_file, begin_folder])
@pytest.mark.parametrize("own", [False, True])
def test_what_a_killed_process_was_writing_is_swept_and_what_a_live_one_writes_is_not(
    tmp_path: Path, begin: Callable[[Path], list[object]], own: bool
) -> None:
    with writer(lambda: begin(tmp_path)):
        written = sorted(tmp_path.rglob("*"))
        assert written
        sweep(tmp_path, own)
        assert sorted(tmp_path.rglob("*")) == written
    assert sorted(tmp_path.rglob("*")) == written, "kill -9 leaves it"
    sweep(tmp_path, own)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("begin", [begin_file, begin_folder])
def test_the_next_process_that_writes_to_a_folder_sweeps_it(
    tmp_path: Path, begin: Callable[[Path], list[object]]
) -> None:
    with writer(lambda: begin(tmp_path)):
        pass
    write_whole(tmp_path / "other", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_process_killed_while_it_sweeps_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    (tmp_path / ".shoestring-0123456789ab.tmp.d" / "inside").mkdir(parents=True)
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_are_not_swept(tmp_path: Path) -> None:
    older = [".weights.4711.tmp", ".tmpA1b2C3", ".step-7.parts.tmp"]
    others = ["a.tmp", ".vimrc", ".tmp", ".shoestring-config", ".shoestring-0123456789ab.tmp.txt", ".hidden/.x.tmp"]
    for name in (*older, *others):
        write_whole(tmp_path / name, "x")
    sweep(tmp_path)
    assert all((tmp_path / name).is_file() for name in (*older, *others))
    sweep(tmp_path, own=True)
    assert not any((tmp_path / name).exists() for name in older)
    assert all((tmp_path / name).is_file() for name in others)


def test_a_name_that_was_swept_before_it_was_locked_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_whole(tmp_path / "file", "x")
    assert swept
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_system_without_locks_is_written_to_and_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".shoestring-0123456789ab.tmp").write_bytes(b"perhaps another host writes it")
    monkeypatch.setattr(fcntl, "flock", fail_with(errno.ENOSYS))
    write_whole(tmp_path / "file", "x")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_is_removed_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "run" / "a" / "b", "x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail_with(errno.EACCES))
        with pytest.raises(StorageError, match="permission denied"):
            discard(tmp_path / "run")
    assert (tmp_path / "run" / "a" / "b").is_file()
    discard(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_takes_the_place_of_another_only_if_told(tmp_path: Path, replace: bool) -> None:
    write_whole(tmp_path / "out" / "old", "x")
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(temporary_folder(tmp_path))
        write_whole(temporary / "new", "y")
        if not replace:
            stack.enter_context(pytest.raises(OSError, match="not empty"))
        put_folder(temporary, tmp_path / "out", replace)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new" if replace else "old"]


# --- what is not a file


def special(path: Path, kind: str) -> Path:
    """A pipe, socket, device or folder."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_what_is_not_a_file_is_neither_read_nor_replaced(tmp_path: Path, kind: str) -> None:
    path = special(tmp_path / "x", kind)
    with pytest.raises(StorageError, match=rf"cannot read {path}: it is a (named )?{kind}, not a file"):
        check_readable(path)
    with pytest.raises(StorageError, match=rf"cannot write {path}: it is a (named )?{kind}, not a file"):
        write_whole(path, "x")
    assert [found.name for found in tmp_path.iterdir()] == ["x"]
    check_readable(tmp_path / "missing")
    (tmp_path / "link").symlink_to("missing")
    with pytest.raises(StorageError, match=r"link: it is a link to nothing"):
        check_readable(tmp_path / "link")


def test_a_folder_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    with contextlib.closing(HeldFolder(tmp_path / "run")) as held:
        held.check()
        shutil.rmtree(held.path)
        with pytest.raises(StorageError, match=r"run was removed or replaced"):
            held.check()
        held.path.mkdir()  # many file systems would give it the same number
        with pytest.raises(StorageError, match=r"run was removed or replaced"):
            held.check()


def test_the_lock_of_a_killed_process_is_dropped_and_one_that_is_held_is_not(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    drop_lock(lock)
    with locked(lock, "the store"):
        drop_lock(lock)
        assert lock.is_file()
    lock.write_text("{}")
    drop_lock(lock)
    assert not lock.exists()


def test_a_file_without_a_name_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with unnamed_file() as file:
        file.write("said")
        file.seek(0)
        assert file.read() == "said"
        assert list(tmp_path.iterdir()) == []
