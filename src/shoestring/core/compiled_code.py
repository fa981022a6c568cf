"""The cache of compiled code: torch's compiler and Triton keep there what they made, for all later processes.

It lies in the user's cache, in a folder per torch and system, as compiled code is not for any processor and library.
What is kept is code and pickles, which run when they are used. So the folder must be one to which nobody else can
write; if it is not, or if it is full or unusable otherwise, torch and Triton use their own folders.

Every process that uses the folder holds a shared lock on it. A process that is alone there removes what a killed
compiler left, and once a day what was not used for long.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shoestring.core.errors import StorageError, UserError
from shoestring.core.files import cache_folder, free_bytes, make_folder, open_itself, remove, temporary_files

DAYS = 30
"""What was not used for so long is removed."""
MOST_BYTES = 2 << 30
"""Of one folder; beyond that, what was not used for longest is removed first."""
LEAST_FREE = 256 << 20
"""Bytes that must be free on the disk."""
_TRIAL_BYTES = 32 << 20
"""Written and removed: a quota shows only so."""
_INDUCTOR, _TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_LOCK, _PRUNED = "in-use", "pruned"
_BUILDING = "_CxxBuild"
"""Ending of the folder that torch has beside a C++ library while it builds it in place."""
_DAY = 86400.0
_WAITS = 50
"""Tenths of a second to wait for a process that is removing."""

_held: dict[Path, int] = {}
"""The descriptors that hold the lock of a folder, to the end of this process."""


def keep_compiled_code(torch_version: str) -> Path | None:
    """Let torch and Triton keep compiled code in the user's cache; to be called before the first compilation.

    Where the environment names a folder already, that one is used. Returns the folder, or None where it is not used.
    """
    wanted = {}
    if _is_default(os.environ.get(_INDUCTOR)):
        wanted[_INDUCTOR] = "inductor"
    if _TRITON not in os.environ and "TRITON_HOME" not in os.environ:
        wanted[_TRITON] = "triton"
    if not wanted:
        return None
    try:
        folder = _usable(cache_folder() / "compiled", _system(torch_version))
    except (OSError, UserError, StorageError):
        return None
    os.environ.update({variable: str(folder / name) for variable, name in wanted.items()})
    return folder


def leave_if_full(error: BaseException) -> bool:
    """Whether compiling failed because nothing more can be written to the cache; then torch and Triton leave it."""
    ours = {str(folder / name) for folder in _held for name in ("inductor", "triton")}
    used = [variable for variable in (_INDUCTOR, _TRITON) if os.environ.get(variable) in ours]
    if not used or not any(isinstance(each, OSError) and each.errno in _FULL for each in _chain(error)):
        return False
    for variable in used:
        del os.environ[variable]
    return True


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those it was raised from; torch's own are raised in place of others, and hide them."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_default(folder: str | None) -> bool:
    """Whether the user named no folder: torch writes its own choice into the environment, where children find it."""
    own = re.escape(str(temporary_files())) + r"/torchinductor_[^/]*"
    return folder is None or re.fullmatch(own, folder) is not None


def _system(torch_version: str) -> str:
    """The name of the folder: by what a compiled library needs that torch does not put into its own keys."""
    facts = [torch_version, sys.implementation.cache_tag, platform.machine(), *platform.libc_ver()]
    with contextlib.suppress(OSError):
        facts.append(Path("/etc/os-release").read_text())
    with contextlib.suppress(OSError):
        processor = re.search(r"^(flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        facts.append("" if processor is None else processor[2])
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]
    return f"torch-{re.sub(r'[^0-9A-Za-z.]', '-', torch_version)}-{digest}"


def _usable(parent: Path, name: str) -> Path:
    """The folder `name` in `parent`, locked; raises OSError where it cannot or must not be used."""
    make_folder(parent.parent)
    folder = parent.resolve() / name
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)
        check_own(each)
    for each in folder.parents[1:]:
        _check_parent(each)
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise OSError(f"{folder} is on a disk whose files must not be run")
    _check_room(folder)
    if folder not in _held:
        _held[folder] = _use(folder)
    os.utime(folder / _LOCK)
    return folder


def check_own(folder: Path) -> None:
    """Raise OSError unless this is a folder of this user that nobody else may write to."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(f"{folder} is not a folder to which this user alone can write")


def _check_parent(folder: Path) -> None:
    """Raise OSError where another user could put another folder in the place of one in here."""
    status = folder.lstat()
    others = status.st_mode & 0o002 or (status.st_mode & 0o020 and not _is_private(status.st_gid))
    if status.st_uid not in (0, os.geteuid()) or (others and not status.st_mode & stat.S_ISVTX):
        raise OSError(f"others can write to {folder}")


def _is_private(group: int) -> bool:
    """Whether this is the group of this user alone, by its name, which is that of the user."""
    import grp
    import pwd

    try:
        return grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def _check_room(folder: Path) -> None:
    """Raise OSError where the disk or the user's quota is full, or the folder cannot be written to."""
    if free_bytes(folder) < LEAST_FREE:
        raise OSError(f"the disk of {folder} is full")
    trial = folder / f"trial-{os.getpid()}"
    try:
        descriptor = open_itself(trial, os.O_RDWR | os.O_CREAT)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, _TRIAL_BYTES)
        finally:
            os.close(descriptor)
    finally:
        trial.unlink(missing_ok=True)


# --- locks


def _use(folder: Path) -> int:
    """The descriptor of a shared lock; raises OSError where this disk has no locks, which torch needs too."""
    descriptor = open_itself(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        if _locked(descriptor, fcntl.LOCK_EX):
            _clean(folder)
        for _ in range(_WAITS):
            if _locked(descriptor, fcntl.LOCK_SH):
                return descriptor
            time.sleep(0.1)
        raise OSError(f"{folder} is locked")
    except BaseException:
        os.close(descriptor)
        raise


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- removing, in a folder that no other process uses


def _clean(folder: Path) -> None:
    _drop_unfinished(folder / "inductor")
    stamp = folder / _PRUNED
    if stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < _DAY:
        return
    stamp.touch()
    prune(folder)
    for other in folder.parent.iterdir():
        if other != folder:
            _drop_unused(other)


def _drop_unfinished(folder: Path) -> None:
    """Remove libraries whose build was ended by a kill: torch takes any file of that name for a whole one."""
    for building in folder.glob(f"*/*{_BUILDING}"):
        for file in building.parent.glob(f"{building.name.removesuffix(_BUILDING)}.*"):
            remove(file)
        remove(building)


class _Entry(NamedTuple):
    used: float
    size: int
    path: Path


def prune(folder: Path, days: float = DAYS, most: int = MOST_BYTES) -> None:
    """Remove entries that were not used for `days`, then the least recently used until `most` bytes are left."""
    entries = sorted([*_files(folder / "inductor"), *_kernels(folder / "triton")])
    left, oldest = sum(entry.size for entry in entries), time.time() - days * _DAY
    for entry in entries:
        if entry.used >= oldest and left <= most:
            return
        remove(entry.path)
        left -= entry.size


def _files(folder: Path) -> Iterator[_Entry]:
    """The files of torch's compiler, which makes each again where it is missing."""
    for path in folder.rglob("*"):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            yield _Entry(max(status.st_atime, status.st_mtime), status.st_size, path)


def _kernels(folder: Path) -> Iterator[_Entry]:
    """The folders of Triton, one per kernel, whose files belong together."""
    for path in folder.glob("*"):
        files = [*_files(path), _Entry(path.lstat().st_mtime, 0, path)]
        yield _Entry(max(file.used for file in files), sum(file.size for file in files), path)


def _drop_unused(folder: Path) -> None:
    """Remove the folder of another torch or system that was not used for long."""
    with contextlib.suppress(OSError):
        descriptor = open_itself(folder / _LOCK, os.O_RDWR)
        try:
            if time.time() - os.fstat(descriptor).st_mtime > DAYS * _DAY and _locked(descriptor, fcntl.LOCK_EX):
                remove(folder)
        finally:
            os.close(descriptor)
