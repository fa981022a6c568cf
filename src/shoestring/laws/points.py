"""The points of a scaling law: parameters, tokens and final loss of training runs, read from a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import UserError, nearest
from shoestring.core.reading import parse_json, read_text
from shoestring.core.units import AMOUNTS, counted
from shoestring.laws.descent import Floats
from shoestring.laws.form import PER_TOKEN

Groups = NDArray[np.int64]
"""A number per point; points of one run have the same."""
_SHOWN = 10
_Row = tuple[int, dict[str, Any], int]
"""The number of its line, its cells by column, and how many cells it has more than there are columns."""


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

    Two of `params`, `tokens` and `flops` give the third by C = 6 N D. `at_least` is the number of coefficients to fit.
    Rows with the same text in the column `group` are of one run. For `where` see `read_numbers`.
    """
    roles = {"params": params, "tokens": tokens, "flops": flops, "loss": loss}
    check_two(path, roles)
    found = read_numbers(path, roles, group, names, skip_bad=skip_bad, where=where)
    if len(found.groups) < at_least:
        needs = f"a fit of {at_least} coefficients needs {at_least} or more"
        raise UserError(f"{path}{found.where}: {found.usable} can be used; {needs}")
    arrays = third_of_three(found.numbers)
    points = Points(
        params=arrays["params"],
        tokens=arrays["tokens"],
        loss=arrays["loss"],
        given_flops=found.numbers.get("flops"),
        names=tuple(found.names) if names else None,
        given_groups=np.unique(found.groups, return_inverse=True)[1].astype(np.int64) if group else None,
    )
    return points, found.problems


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The usable rows of a table."""

    numbers: dict[str, Floats]
    """By role; all finite and above zero."""
    groups: list[str]
    names: list[str]
    problems: list[str]
    """A message for each unusable number."""
    usable: str
    """How many rows are usable, for people."""
    where: str
    """The conditions on the rows, for people."""


def read_numbers(
    path: str | Path,
    roles: Mapping[str, str | None],
    group: str | None = None,
    names: str | None = None,
    *,
    skip_bad: bool = False,
    where: Sequence[str] = (),
) -> Numbers:
    """The numbers of a table in the columns that `roles` name, with the text of the columns `group` and `names`.

    `where` keeps the rows in which each "column=value" holds, as text or as numbers. A number that is not finite and
    above zero, or a row without its group, is an error, or left out with `skip_bad`.
    """
    path = Path(path)
    columns = {role: column for role, column in roles.items() if column is not None}
    conditions = [_condition(text) for text in where]
    kept: list[dict[str, float]] = []
    problems: list[str] = []
    groups: list[str] = []
    labels: list[str] = []
    rows = 0
    extra = [*(column for column in (names, group) if column), *(column for column, _ in conditions)]
    for line, row, surplus in _rows(path, [*columns.values(), *extra]):
        if surplus:
            problems.append(f"line {line}: {counted(surplus, 'cell')} more than the header has columns")
            rows += 1
            continue
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
            groups.append(str(row.get(group)) if group else "")
            labels.append(str(row.get(names)) if names else "")
    if problems and not skip_bad:
        more = [f"… and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        shown = "\n".join(f"  {text}" for text in [*problems[:_SHOWN], *more])
        raise UserError(
            f"{path}: {len(problems)} numbers or rows cannot be used; correct them, or leave their rows out with "
            f"--skip-bad\n"
            f"{shown}"
        )
    return Numbers(
        numbers={role: np.array([values[role] for values in kept]) for role in columns},
        groups=groups,
        names=labels,
        problems=problems,
        usable=f"{len(kept)} of its {rows} rows" if len(kept) < rows else counted(rows, "row"),
        where=f" where {' and '.join(where)}" if where else "",
    )


def check_two(path: str | Path, roles: Mapping[str, str | None]) -> None:
    """Raise UserError unless two of params, tokens and flops have a column."""
    if sum(roles[role] is not None for role in ("params", "tokens", "flops")) < 2:
        raise UserError(f"{path}: name the columns of two of params, tokens and flops; C = 6 N D gives the third")


def third_of_three(numbers: Mapping[str, Floats]) -> dict[str, Floats]:
    """Complete "params", "tokens" and "flops" by C = 6 N D where one of them is missing."""
    found = dict(numbers)
    if "params" not in found:
        found["params"] = found["flops"] / PER_TOKEN / found["tokens"]
    if "tokens" not in found:
        found["tokens"] = found["flops"] / PER_TOKEN / found["params"]
    if "flops" not in found:
        found["flops"] = PER_TOKEN * found["params"] * found["tokens"]
    return found


def _rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    """Each row; an unknown column is an error."""
    with io.StringIO(read_text(path, UserError), newline="") as file:
        yield from (_json_rows if path.suffix == ".jsonl" else _csv_rows)(path, file, columns)


def _csv_rows(path: Path, file: Any, columns: Sequence[str]) -> Iterator[_Row]:
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
                yield reader.line_num, dict(zip(header, cells)), max(0, len(cells) - len(header))
    except csv.Error as cause:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({cause})") from cause


def _json_rows(path: Path, file: Any, columns: Sequence[str]) -> Iterator[_Row]:
    seen = False
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        row = parse_json(text, f"{path}, line {line}", UserError)
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {line}: not an object with named fields")
        if not seen:
            _check_columns(path, list(row), columns)
        seen = True
        yield line, row, 0
    if not seen:
        raise UserError(f"{path}: the file is empty; each line must be an object with named fields")


def _check_columns(path: Path, known: list[str], columns: Sequence[str]) -> None:
    if double := next((column for column in columns if known.count(column) > 1), None):
        raise UserError(f'{path}, line 1: {known.count(double)} columns are called "{double}"; give each its own name')
    if unknown := [f'no column "{column}"; {nearest(column, known)}' for column in columns if column not in known]:
        raise UserError(f"{path}: " + "; ".join(unknown))


def _condition(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign or not column:
        raise UserError(f'--where "{text}": write "column=value"')
    return column, value


def _equal(found: Any, value: str) -> bool:
    if str(found) == value:
        return True
    try:
        return float(found) == float(value)
    except (TypeError, ValueError):
        return False


def _number(value: Any) -> float | None:
    """The value as a number; None unless it is between the limits of all amounts."""
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError, OverflowError):
        return None
    return number if AMOUNTS[0] <= number <= AMOUNTS[1] else None


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "missing"
    try:
        number = float(value)
    except (TypeError, ValueError):
        return f"{str(value)[:40]!r} is not a number"
    except OverflowError:
        number = math.inf
    if 0 < number < math.inf and not isinstance(value, bool):
        return f"{str(value)[:40]} is not between {AMOUNTS[0]:g} and {AMOUNTS[1]:g}"
    return f"{str(value)[:40]} is not finite and above 0"
