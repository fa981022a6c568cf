"""Files and folders that appear whole or not at all, what killed processes leave of them, and locks.

Everything is written under a temporary name in the folder where it will lie, by `whole_file` or `temporary_folder`. The
writer holds a lock on that name, which the system frees when it ends, on this host or another one of a shared disk. So
`sweep` knows what nobody writes any more, and removes it. A folder is swept when a process first writes to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

from shoestring.core.errors import InUse, StorageError, UserError, shown_path, storage_error
from shoestring.core.lock_holder import Holder

_TEMPORARY = re.compile(r"\.shoestring-[0-9a-f]{12}\.tmp(\.d)?")
"""The lock of what is written: the file itself, or that of the folder of the same name with ".d"."""
_OLDER = re.compile(r"\..*\.tmp|\.tmp\w{6}")
"""What older versions, and safetensors below them, were writing."""
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


# --- writing


@contextlib.contextmanager
def whole_file(path: Path, parents: bool = True) -> Iterator[BinaryIO]:
    """A binary file to write; it is synced to disk and renamed to `path` when the block succeeds.

    Without `parents` its folder must exist: a run whose folder the user has removed does not make it again.
    """
    if parents:
        make_folder(path.parent)
    if (kind := kind_of(path)) is not None:
        raise StorageError(f"cannot write {shown_path(path)}: it is {kind}, not a file")
    try:
        with _temporary(path.parent) as (temporary, descriptor):
            with open(descriptor, "wb", closefd=False) as file:
                yield file
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, path)
            sync(path.parent)
    except OSError as cause:
        raise storage_error("write", path, cause) from cause


def write_whole(path: Path, content: str | bytes, parents: bool = True) -> None:
    """Write a small file atomically; without `parents` its folder must exist."""
    with whole_file(path, parents) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def temporary_folder(parent: Path, parents: bool = True) -> Iterator[Path]:
    """A new folder in `parent`, which is removed at the end, unless it was renamed with `put_folder`.

    Without `parents`, `parent` must exist.
    """
    if parents:
        make_folder(parent)
    try:
        with _temporary(parent) as (temporary, _):
            folder = _folder_of(temporary)
            folder.mkdir()
            try:
                yield folder
            finally:
                remove(folder)
    except OSError as cause:
        raise storage_error("write", parent, cause) from cause


def put_folder(temporary: Path, path: Path, replace: bool = False) -> None:
    """Give a folder that is complete its name; with `replace`, one that had it before is removed."""
    for file in temporary.iterdir():
        sync(file)
    sync(temporary)
    if replace and path.is_dir():
        discard(path)
    os.rename(temporary, path)
    sync(path.parent)


def discard(folder: Path) -> None:
    """Remove a folder: all of it or, if the process is killed, nothing."""
    with temporary_folder(folder.parent, parents=False) as aside:
        os.rename(folder, aside / folder.name)


def unnamed_file() -> IO[str]:
    """A text file to write and read that has no name, so that nothing can leave it behind."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("shoestring"), "w+")
    return tempfile.TemporaryFile("w+")


def temporary_files() -> Path:
    """The system's folder for temporary files; `tempfile` would write a file to try it."""
    return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - names in it are random, and locked


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[tuple[Path, int]]:
    """A new empty file, and its descriptor, which holds its lock; at the end the name is removed."""
    _sweep_once(folder.absolute())
    while True:
        path = folder / f".shoestring-{secrets.token_hex(6)}.tmp"
        descriptor = open_itself(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if _try_lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # another process swept it before it was locked
    try:
        yield path, descriptor
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _folder_of(temporary: Path) -> Path:
    return temporary.with_name(f"{temporary.name}.d")


def open_itself(path: str | Path, flags: int) -> int:
    """As `os.open`, but a link is refused: in a stranger's folder it may lead to a file of the user's."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _try_lock(descriptor: int) -> bool | None:
    """Whether the lock was free and is now held; None: this file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


# --- sweeping


def sweep(folder: Path, own: bool = False) -> None:
    """Remove from `folder` what killed processes were writing. What a process still writes is kept.

    In a folder of our `own`, to which no other program writes, what older versions have left is removed too.
    """
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError:  # it is not there, or may not be read
        return
    for name in names:
        path = folder / name
        if _TEMPORARY.fullmatch(name) and name.endswith(".d"):
            if not path.with_suffix("").exists():
                remove(path)
        elif _TEMPORARY.fullmatch(name) or (own and _OLDER.fullmatch(name)):
            _remove_unlocked(path)


@functools.lru_cache(maxsize=1024)
def _sweep_once(folder: Path) -> None:
    """Sweep a folder when this process first writes to it."""
    sweep(folder)


def _remove_unlocked(path: Path) -> None:
    with contextlib.suppress(OSError):  # it is gone, or another user's
        descriptor = open_itself(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_NONBLOCK)
        try:
            if _try_lock(descriptor):
                remove(_folder_of(path))
                remove(path)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- reading


def kind_of(path: Path) -> str | None:
    """What is at `path`, in words; None for a file, or if nothing is there."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return next((name for is_kind, name in _KINDS if is_kind(mode)), None)


def check_readable(path: Path) -> None:
    """Raise StorageError for what is not a file: a pipe would be waited for, and a device has no end. A file that is
    missing is not refused, but a link to one is.
    """
    if kind := kind_of(path):
        raise StorageError(f"cannot read {path}: it is {kind}, not a file")
    if path.is_symlink() and not path.exists():
        raise StorageError(f"cannot read {path}: it is a link to nothing")


# --- folders


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, parents: bool = True) -> None:
    """Create a folder with its parents; without `parents` they must exist."""
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except FileExistsError as cause:
        raise StorageError(f"cannot make the folder {folder}: a file of that name is in the way") from cause
    except OSError as cause:
        raise storage_error("make the folder", folder, cause) from cause


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of `folder`, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def folder_bytes(folder: Path) -> int:
    """Total size of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def cache_folder() -> Path:
    """SHOESTRING_CACHE, or `shoestring` in the user's cache folder."""
    if own := os.environ.get("SHOESTRING_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "shoestring"
    try:
        return Path.home() / ".cache" / "shoestring"
    except RuntimeError as cause:
        raise UserError("this user has no home folder; name a folder for caches in SHOESTRING_CACHE") from cause


class HeldFolder:
    """A folder that this process uses: it notices when the folder is removed, also if another takes its place."""

    def __init__(self, path: Path):
        self.path = path
        make_folder(path)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)  # its number is not given to another folder
        except OSError as cause:
            raise storage_error("read", path, cause) from cause

    def check(self) -> None:
        """Raise StorageError where the folder is no longer there."""
        try:
            own, there = os.fstat(self._descriptor), os.stat(self.path)
        except OSError as cause:
            if cause.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                raise storage_error("read", self.path, cause) from cause
        else:
            if (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino):
                return
        raise StorageError(
            f"{self.path} was removed or replaced by another folder while it was in use; this process ends here, and "
            "writes nothing more to it"
        )

    def close(self) -> None:
        os.close(self._descriptor)


# --- locks


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`. The system frees it when the holder ends, however it ends.

    Raises StorageError at the end if the file was removed meanwhile, with the folder in which it lies.
    """
    make_folder(path.parent)
    descriptor = _acquire(path, what)
    try:
        yield
        if not _is_at(descriptor, path):
            raise StorageError(f"{what} was removed while it was in use; run the same command again")
    finally:
        if _is_at(descriptor, path):
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(descriptor)


def drop_lock(path: Path) -> None:
    """Remove the lock file of a process that was killed after its work was done, unless another holds it."""
    with contextlib.suppress(OSError):  # it is gone, or another user's
        descriptor = open_itself(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            if _try_lock(descriptor) and _is_at(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)


def _acquire(path: Path, what: str) -> int:
    """The descriptor that holds the lock of the file at `path`."""
    while True:
        descriptor: int | None = None
        doing = "write"
        try:
            descriptor = open_itself(path, os.O_RDWR | os.O_CREAT)
            doing = "lock"
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(descriptor, path):  # its holder removed it just now
                os.close(descriptor)
                continue
            doing = "write"
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(Holder.own()._asdict()).encode(), 0)
            return descriptor
        except OSError as cause:
            if descriptor is not None:
                os.close(descriptor)
            if isinstance(cause, BlockingIOError):
                holder = Holder.read(path)
                if holder is None:
                    raise InUse(what, "another process", False) from cause
                told = f"process {holder.pid} on {holder.host} since {holder.since}"
                raise InUse(what, told, holder.is_this_process) from cause
            raise storage_error(doing, path, cause) from cause


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the name of an open file is `path`."""
    try:
        own, there = os.fstat(descriptor), os.stat(path)
    except OSError:
        return False
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def is_locked(path: Path) -> bool:
    """Whether any process, including this one, holds the lock file `path`."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_of(path: Path) -> Holder | None:
    """Who holds the lock file `path`; None: nobody, or it is not known."""
    return Holder.read(path) if is_locked(path) else None
