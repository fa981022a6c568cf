"""Files that are written atomically, and locks that end with their process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from shoestring.core.errors import RunError, StorageError, UserError, storage_error


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write; it is synced to disk and renamed to `path` when the block succeeds."""
    make_folder(path.parent)
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as cause:
        raise storage_error("write", path, cause) from cause
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def open_itself(path: str | Path, flags: int) -> int:
    """As `os.open`, but a link is refused: in a stranger's folder it may lead to a file of the user's."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def temporary_name(path: Path) -> Path:
    """The name of a file or folder while this process writes it."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes from `folder`."""
    for leftover in folder.glob(".*.tmp"):
        number = leftover.name.split(".")[-2]
        if not (number.isdecimal() and number != str(os.getpid()) and Path(f"/proc/{number}").exists()):
            remove(leftover)


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a small file atomically."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder with its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
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


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`. The system frees it when the holder ends, however it ends."""
    make_folder(path.parent)
    descriptor: int | None = None
    doing = "write"
    try:
        descriptor = open_itself(path, os.O_RDWR | os.O_CREAT)
        doing = "lock"
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        doing = "write"
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    except OSError as cause:
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(cause, BlockingIOError):
            raise RunError(f"{what} is in use by {_holder(path)}; wait for it, or stop it first") from cause
        raise storage_error(doing, path, cause) from cause
    try:
        yield
    finally:
        os.close(descriptor)


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


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
