"""The cache of compiled code: where it lies, when it is left alone, and what is removed from it."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoestring.core import compiled_code
from shoestring.core.compiled_code import keep_compiled_code, prune

VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
DAY = 86400.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOESTRING_CACHE", str(tmp_path / "cache"))
    for name in (*VARIABLES, "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def kept(version: str = "2.13.0+cu130") -> Path:
    """The folder as a new process gets it."""
    for name in VARIABLES:
        os.environ.pop(name, None)
    for descriptor in compiled_code._held.values():
        os.close(descriptor)
    compiled_code._held.clear()
    folder = keep_compiled_code(version)
    assert folder is not None
    return folder


def written(path: Path, size: int = 10, days: float = 0.0) -> Path:
    """A file that was last used so many days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_torch_and_triton_are_told_of_a_folder_of_the_users_own(cache: Path) -> None:
    folder = kept()
    assert folder.parent == cache / "compiled" and folder.name.startswith("torch-2.13.0-cu130-")
    assert [os.environ[name] for name in VARIABLES] == [str(folder / "inductor"), str(folder / "triton")]
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
    assert kept() == folder, "the next process finds what this one compiled"
    assert kept("2.11.0") != folder


def test_another_processor_or_system_has_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    here, read = kept(), Path.read_text
    for file, other in (("/proc/cpuinfo", "flags : sse2\n"), ("/etc/os-release", "ID=other\n")):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda path, f=file, o=other: o if str(path) == f else read(path))
            assert kept() != here, file


def test_folders_that_the_user_named_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    folder = keep_compiled_code("2.13.0")
    assert folder is not None
    assert [os.environ[name] for name in VARIABLES] == ["/mine", str(folder / "triton")]
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("TRITON_HOME", "/mine")
    assert keep_compiled_code("2.13.0") is None and "TRITON_CACHE_DIR" not in os.environ


def test_what_torch_itself_has_chosen_is_not_the_users_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torchinductor_me"))
    folder = keep_compiled_code("2.13.0")
    assert folder is not None and os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "inductor")


def test_triton_stays_where_the_user_has_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    monkeypatch.setenv("TRITON_HOME", "/mine")
    assert keep_compiled_code("2.13.0") is None and "TRITON_CACHE_DIR" not in os.environ


def _open_to_all(cache: Path, _: pytest.MonkeyPatch) -> None:
    kept().chmod(0o770)


def _open_above(cache: Path, _: pytest.MonkeyPatch) -> None:
    kept()
    cache.chmod(0o777)


def _shared_above(cache: Path, patch: pytest.MonkeyPatch) -> None:
    kept()
    cache.chmod(0o775)
    patch.setattr(compiled_code, "_is_private", lambda _: False)


def _another_users(_: Path, patch: pytest.MonkeyPatch) -> None:
    kept()
    patch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def _a_link(cache: Path, _: pytest.MonkeyPatch) -> None:
    folder = kept()
    folder.rename(cache / "elsewhere")
    folder.symlink_to(cache / "elsewhere")


def _a_file(cache: Path, _: pytest.MonkeyPatch) -> None:
    cache.write_text("in the way")


def _read_only(_: Path, patch: pytest.MonkeyPatch) -> None:
    def mkdir(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only", str(path))

    patch.setattr(Path, "mkdir", mkdir)


def _full(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compiled_code, "free_bytes", lambda _: 0)


def _over_quota(_: Path, patch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object) -> None:
        raise OSError(errno.EDQUOT, "quota")

    patch.setattr(os, "posix_fallocate", allocate)


def _no_locks(_: Path, patch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    patch.setattr(fcntl, "flock", flock)


def _not_executable(cache: Path, patch: pytest.MonkeyPatch) -> None:
    plain = os.statvfs(cache.parent)
    patch.setattr(os, "statvfs", lambda _: os.statvfs_result((*plain[:8], plain.f_flag | os.ST_NOEXEC, plain[9])))


def _no_home(_: Path, patch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("no home")

    patch.delenv("SHOESTRING_CACHE")
    patch.delenv("XDG_CACHE_HOME", raising=False)
    patch.setattr(Path, "home", home)


UNUSABLE = (
    _open_to_all,
    _open_above,
    _shared_above,
    _another_users,
    _a_link,
    _a_file,
    _read_only,
    _full,
    _over_quota,
    _no_locks,
    _not_executable,
    _no_home,
)


@pytest.mark.parametrize("make", UNUSABLE)
def test_a_folder_that_is_not_safe_or_not_usable_is_left_alone(
    make: Callable[[Path, pytest.MonkeyPatch], None], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_code._held.clear()
    make(cache, monkeypatch)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    compiled_code._held.clear()
    before = sorted(cache.rglob("trial-*"))
    assert keep_compiled_code("2.13.0+cu130") is None
    assert not any(name in os.environ for name in VARIABLES), "torch chooses its own"
    assert sorted(cache.rglob("trial-*")) == before == []


def test_a_folder_of_the_users_own_group_is_safe(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kept()
    cache.chmod(0o775)
    monkeypatch.setattr(compiled_code, "_is_private", lambda _: True)
    assert kept() == folder


def test_a_library_whose_build_was_killed_is_removed() -> None:
    inductor = kept() / "inductor"
    whole = [written(inductor / "ab" / name) for name in ("cabc.main.cpp", "cxyz.main.so")]
    written(inductor / "ab" / "cabc.main.so")
    (inductor / "ab" / "cabc.main_CxxBuild").mkdir()
    kept()
    assert left(inductor) == {"ab/cxyz.main.so"} and whole[1].exists()
    assert not (inductor / "ab" / "cabc.main_CxxBuild").exists()


def test_nothing_is_removed_while_another_process_uses_the_folder() -> None:
    folder = kept()
    written(folder / "inductor/ab/cabc.so", days=99)
    (folder / "inductor/ab/cabc_CxxBuild").mkdir()
    os.utime(folder / "pruned", (0, 0))
    other = os.open(folder / "in-use", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_SH)
    assert kept() == folder
    assert left(folder / "inductor") == {"ab/cabc.so"} and (folder / "inductor/ab/cabc_CxxBuild").exists()
    os.close(other)
    assert kept() == folder and not left(folder / "inductor")


def test_what_was_not_used_for_long_is_removed_once_a_day() -> None:
    folder = kept()
    old, new = folder / "inductor/fxgraph/ab/old", folder / "inductor/fxgraph/ab/new"
    written(old, days=31)
    written(new, days=29)
    written(folder / "inductor/ab/.12.34.tmp", days=31)  # of a process that was killed
    written(folder / "triton/OLD/add.cubin", days=31)
    os.utime(folder / "triton/OLD", (0, 0))
    written(folder / "triton/USED/add.cubin", days=31)
    written(folder / "triton/USED/add.json", days=1)
    kept()
    assert old.exists(), "a folder that was looked through today is left"
    os.utime(folder / "pruned", (0, 0))
    kept()
    assert left(folder / "inductor") == {"fxgraph/ab/new"}
    assert left(folder / "triton") == {"USED/add.cubin", "USED/add.json"}, "the files of a kernel belong together"


def test_the_least_recently_used_goes_first_when_there_is_too_much(tmp_path: Path) -> None:
    for days in range(5):
        written(tmp_path / f"inductor/ab/{days}.py", 100, days)
        written(tmp_path / f"triton/K{days}/add.cubin", 100, days + 0.5)
        os.utime(tmp_path / f"triton/K{days}", (0, 0))
    prune(tmp_path, most=450)
    assert left(tmp_path) == {"inductor/ab/0.py", "inductor/ab/1.py", "triton/K0/add.cubin", "triton/K1/add.cubin"}


def test_the_folder_of_a_torch_that_is_gone_is_removed_unless_it_is_used() -> None:
    old, older = kept("2.9.0"), kept("2.8.0")
    for folder in (old, older):
        written(folder / "inductor/ab/x.py")
        os.utime(folder / "in-use", (0, time.time() - 31 * DAY))
    other = os.open(old / "in-use", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_SH)
    kept()
    assert old.exists() and not older.exists()
    os.close(other)
