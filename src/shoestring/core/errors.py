"""Errors for people: what went wrong, with which value, and what to do next.

`UserError` is a mistake that the user can correct (exit code 2); `Fault` is a failure of the run itself (exit code 1).
Both are shown as their message alone. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from shoestring.core.text import one_line, printable


class ShoestringError(Exception):
    """Base of every error with a message for people, which may quote a file but never a control character of it."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class UserError(ShoestringError):
    """A request that cannot be carried out."""

    exit_code = 2

    @classmethod
    def of_file(cls, where: str, problem: str) -> Self:
        """The error for a file that cannot be parsed."""
        return cls(f"{where}: {problem}")


class RecipeError(UserError):
    """A recipe with one or more mistakes; `problems` has one line for each."""

    def __init__(self, where: str, problems: Sequence[str]):
        self.where, self.problems = where, tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{where}: {count}", *(f"  {line}" for line in self.problems)]))

    @classmethod
    def of_file(cls, where: str, problem: str) -> Self:
        return cls(where, [problem])

    def __reduce__(self) -> tuple[type, tuple[str, Sequence[str]]]:  # so that it can be pickled
        return type(self), (self.where, self.problems)


class RecordError(UserError):
    """A record file that does not hold the expected record."""


class DataError(UserError):
    """A corpus, a tokenizer or a token store that cannot be used."""


class PlanError(UserError):
    """A budget that is too small, or figures that contradict each other."""


class Refusal(PlanError):
    """A plan that does not fit one of its limits; `setting` is a change that makes it fit, as `--set` takes it."""

    def __init__(self, message: str, limit: str, setting: str | None = None):
        self.message, self.limit, self.setting = message, limit, setting
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[str, str, str | None]]:
        return type(self), (self.message, self.limit, self.setting)


class RunError(UserError):
    """A run folder that cannot be used: held by another process, or made by another recipe."""


class InUse(RunError):
    """What another process holds, or this one already."""

    def __init__(self, what: str, holder: str, own: bool = False):
        self.what, self.holder, self.own = what, holder, own
        super().__init__(f"{what} is in use by {holder}; wait for it, or stop it first")

    def __reduce__(self) -> tuple[type[InUse], tuple[str, str, bool]]:
        return type(self), (self.what, self.holder, self.own)


class StorageError(UserError):
    """A file that could not be written or read, because of the disk or its permissions."""


class VersionError(RecordError, StorageError):
    """A file that another version of Shoestring wrote."""

    def __init__(self, problem: str):
        self.problem = problem
        super().__init__(f"{problem}; use the version that wrote it, or start again in another folder")

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.problem,)


class MissingExtra(UserError):
    """An optional dependency that is not installed."""

    def __init__(self, what: str, package: str, extra: str):
        self.needs = (what, package, extra)
        super().__init__(f"{what} needs {package}; install it with: pip install 'shoestring[{extra}]'")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), self.needs


class Fault(ShoestringError):
    """A failure of a run itself, such as a loss that is not finite."""


_SHOWN = 240
"""Most characters of a path in a message."""
_REASONS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EACCES: "permission denied; ask its owner for access",
    errno.EPERM: "not permitted; ask its owner for access",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.ELOOP: "it is a link that is not followed here, or one that leads to itself; put a file in its place",
    errno.ENOENT: "no such file or folder",
    errno.ENAMETOOLONG: "the path is too long",
}
_WRITING = {
    errno.EACCES: "permission denied; choose a folder that you may write to",
    errno.EPERM: "not permitted; choose a folder that you may write to",
}


def storage_error(doing: str, path: str | Path, cause: OSError) -> StorageError:
    """The error for a failed system call; `doing` is a verb, such as "write"."""
    known = _REASONS | _WRITING if doing.startswith(("write", "make")) else _REASONS
    reason = known.get(cause.errno or 0) or cause.strerror or str(cause)
    return StorageError(f"cannot {doing} {shown_path(path)}: {reason}")


def shown_path(path: str | Path) -> str:
    """A path for people, on one line: a long one without its middle."""
    text = str(path)
    cut = text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"
    return one_line(cut, _SHOWN + 1)


def closest(name: str, known: Sequence[str]) -> str | None:
    """The known name that resembles `name` most; None: none does."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint with the closest known name, or with all of them."""
    close = closest(name, known)
    return f"known: {', '.join(known)}" if close is None else f"did you mean {close!r}?"
