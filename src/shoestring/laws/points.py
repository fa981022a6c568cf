"""The points of a scaling law: parameters, tokens and final loss of training runs, read from a table."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import UserError, nearest, storage_error
from shoestring.laws.descent import Floats
from shoestring.laws.form import PER_TOKEN

Groups = NDArray[np.int64]
"""A number per point; points of one run have the same."""
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Points:
    """Finished training runs, one per index; all numbers are finite and above zero."""

    params: Floats
    tokens: Floats
    loss: Floats
    given_flops: Floats | None = None
    """FLOPs by the runs' own count; None: 6 N D."""
    names: tuple[str, ...] | None = None
    given_groups: Groups | None = None
    """Points of one run have one number, and one noise in common; None: each point is a run of its own."""

    def __post_init__(self) -> None:
        if self.given_groups is not None and self.given_groups.shape != (len(self),):
            raise UserError(f"groups have shape {self.given_groups.shape}, params {self.params.shape}; one per point")
        columns = {"params": self.params, "tokens": self.tokens, "loss": self.loss, "flops": self.given_flops}
        for name, values in columns.items():
            if values is None:
                continue
            if values.shape != (len(self),):
                raise UserError(f"{name} has shape {values.shape}, params {self.params.shape}; one number per point")
            bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
            if len(bad):
                raise UserError(f"{name} of point {bad[0]} is {values[bad[0]]}; it must be finite and above 0")

    def __len__(self) -> int:
        return len(self.params)

    @property
    def flops(self) -> Floats:
        return PER_TOKEN * self.params * self.tokens if self.given_flops is None else self.given_flops

    @property
    def groups(self) -> Groups:
        return np.arange(len(self)) if self.given_groups is None else self.given_groups

    @property
    def group_count(self) -> int:
        return len(np.unique(self.groups))

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Least and most of "params", "tokens" and "flops"."""
        columns = {"params": self.params, "tokens": self.tokens, "flops": self.flops}
        return {name: (float(values.min()), float(values.max())) for name, values in columns.items()}

    def each(self) -> list[dict[str, float]]:
        """ "params", "tokens" and "flops" of each point."""
        columns = zip(self.params.tolist(), self.tokens.tolist(), self.flops.tolist())
        return [dict(zip(("params", "tokens", "flops"), values)) for values in columns]

    def take(self, index: Any) -> Points:
        """The points at `index`, which is anything that indexes an array."""
        given = None if self.given_flops is None else self.given_flops[index]
        names = None if self.names is None else tuple(np.array(self.names, object)[index])
        groups = None if self.given_groups is None else self.given_groups[index]
        columns = {"params": self.params[index], "tokens": self.tokens[index], "loss": self.loss[index]}
        return Points(**columns, given_flops=given, names=names, given_groups=groups)


def read_points(
    path: str | Path,
    *,
    params: str | None = None,
    tokens: str | None = None,
    loss: str,
    flops: str | None = None,
    names: str | None = None,
    group: str | None = None,
    skip_bad: bool = False,
    where: Sequence[str] = (),
    at_least: int = 5,
) -> tuple[Points, list[str]]:
    """The points in the named columns of a CSV file or fields of a .jsonl file, and a message per unusable number.

    Two of `params`, `tokens` and `flops` give the third by C = 6 N D. `where` keeps the rows in which each
    "column=value" holds, as text or as numbers. `at_least` is the number of coefficients to fit. Rows with the same
    text in the column `group` are of one run.
    """
    path = Path(path)
    if sum(column is not None for column in (params, tokens, flops)) < 2:
        raise UserError(f"{path}: name the columns of two of params, tokens and flops; C = 6 N D gives the third")
    roles = {"params": params, "tokens": tokens, "flops": flops, "loss": loss}
    columns = {role: column for role, column in roles.items() if column is not None}
    conditions = [_condition(text) for text in where]
    kept: list[dict[str, float]] = []
    labels: list[str] = []
    problems: list[str] = []
    rows = 0
    runs: list[str] = []
    extra = [*(column for column in (names, group) if column), *(column for column, _ in conditions)]
    for line, row in _rows(path, [*columns.values(), *extra]):
        if not all(_equal(row.get(column), value) for column, value in conditions):
            continue
        rows += 1
        numbers = {role: _number(row.get(column)) for role, column in columns.items()}
        values = {role: number for role, number in numbers.items() if number is not None}
        bad = [column for role, column in columns.items() if role not in values]
        problems += [f'line {line}, column "{column}": {_shown(row.get(column))}' for column in bad]
        if group and row.get(group) in (None, ""):
            bad.append(group)
            problems.append(f'line {line}, column "{group}": missing')
        if not bad:
            kept.append(values)
            runs.append(str(row.get(group)) if group else "")
            labels.append(str(row.get(names)) if names else "")
    if problems and not skip_bad:
        more = [f"… and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        shown = "\n".join(f"  {text}" for text in [*problems[:_SHOWN], *more])
        raise UserError(
            f"{path}: {len(problems)} numbers cannot be used; correct them, or leave their rows out with --skip-bad\n"
            f"{shown}"
        )
    if len(kept) < at_least:
        usable = f"{len(kept)} of its {rows} rows" if len(kept) < rows else f"{rows} row{'s' * (rows != 1)}"
        only = f" where {' and '.join(where)}" if where else ""
        raise UserError(
            f"{path}{only}: {usable} can be used; a fit of {at_least} coefficients needs {at_least} or more"
        )
    arrays = {role: np.array([values[role] for values in kept]) for role in columns}
    if params is None:
        arrays["params"] = arrays["flops"] / PER_TOKEN / arrays["tokens"]
    if tokens is None:
        arrays["tokens"] = arrays["flops"] / PER_TOKEN / arrays["params"]
    given = arrays.pop("flops", None)
    groups = np.unique(runs, return_inverse=True)[1].astype(np.int64) if group else None
    return Points(**arrays, given_flops=given, names=tuple(labels) if names else None, given_groups=groups), problems


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row with its line number; an unknown column is an error."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield from (_json_rows if path.suffix == ".jsonl" else _csv_rows)(path, file, columns)
    except OSError as cause:
        raise storage_error("read", path, cause) from cause
    except UnicodeDecodeError as cause:
        raise UserError(f"{path}: not UTF-8 text ({cause.reason} at byte {cause.start})") from cause


def _csv_rows(path: Path, file: Any, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(file)
    try:
        header = next(reader, None)
        if not header:
            raise UserError(f"{path}: the file is empty; its first line must name the columns")
        if all(_number(cell) is not None for cell in header):
            raise UserError(f"{path}: no header; its first line must name the columns, and holds {', '.join(header)}")
        _check_columns(path, header, columns)
        for cells in reader:
            if cells:
                yield reader.line_num, dict(zip(header, cells))
    except csv.Error as cause:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({cause})") from cause


def _json_rows(path: Path, file: Any, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    seen = False
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError as cause:
            raise UserError(f"{path}, line {line}: not JSON ({cause})") from cause
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {line}: not an object with named fields")
        if not seen:
            _check_columns(path, list(row), columns)
        seen = True
        yield line, row
    if not seen:
        raise UserError(f"{path}: the file is empty; each line must be an object with named fields")


def _check_columns(path: Path, known: list[str], columns: Sequence[str]) -> None:
    if unknown := [f'no column "{column}"; {nearest(column, known)}' for column in columns if column not in known]:
        raise UserError(f"{path}: " + "; ".join(unknown))


def _condition(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign or not column:
        raise UserError(f'where "{text}": write "column=value"')
    return column, value


def _equal(found: Any, value: str) -> bool:
    if str(found) == value:
        return True
    try:
        return float(found) == float(value)
    except (TypeError, ValueError):
        return False


def _number(value: Any) -> float | None:
    """The value as a number; None unless it is finite and above zero."""
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 < number < float("inf") else None


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "missing"
    try:
        float(value)
    except (TypeError, ValueError):
        return f"{str(value)[:40]!r} is not a number"
    return f"{str(value)[:40]} is not finite and above 0"
