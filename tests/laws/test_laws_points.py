"""Points from tables: what is read, and what is said of a table that cannot be."""

from pathlib import Path

import numpy as np
import pytest

from shoestring.core.errors import StorageError, UserError
from shoestring.laws.points import Points, read_points

ROWS = [(1e6 * i, 2e8 * i * i, 4 - 0.1 * i) for i in range(1, 8)]


def table(path: Path, rows: list[tuple[object, ...]], header: str = "size,data,loss") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_columns_are_read_by_name(tmp_path: Path) -> None:
    points, messages = read_points(table(tmp_path / "a.csv", ROWS), params="size", tokens="data", loss="loss")
    assert messages == []
    assert np.array_equal(np.stack([points.params, points.tokens, points.loss], 1), ROWS)
    assert np.allclose(points.flops, 6 * points.params * points.tokens)


@pytest.mark.parametrize("missing", ["params", "tokens"])
def test_the_third_follows_from_two(tmp_path: Path, missing: str) -> None:
    rows = [(n, d, 6 * n * d, loss) for n, d, loss in ROWS]
    path = table(tmp_path / "a.csv", rows, "params,tokens,flops,loss")
    columns = {name: name for name in ("params", "tokens", "flops") if name != missing}
    points, _ = read_points(path, loss="loss", **columns)
    assert np.allclose(points.params, [row[0] for row in ROWS])
    assert np.allclose(points.tokens, [row[1] for row in ROWS])
    with pytest.raises(UserError, match="two of params, tokens and flops"):
        read_points(path, loss="loss", flops="flops")


def test_flops_of_a_table_are_kept(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [(n, d, 7 * n * d, loss) for n, d, loss in ROWS], "n,d,c,loss")
    points, _ = read_points(path, params="n", tokens="d", flops="c", loss="loss")
    assert np.allclose(points.flops, 7 * points.params * points.tokens)
    assert np.allclose(points.take(slice(2, 4)).flops, points.flops[2:4])


def test_json_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {n}, "d": {d}, "loss": {loss}, "name": "r{n:g}"}}\n\n' for n, d, loss in ROWS))
    points, _ = read_points(path, params="n", tokens="d", loss="loss", names="name")
    assert np.allclose(points.loss, [row[2] for row in ROWS])
    assert points.names == tuple(f"r{row[0]:g}" for row in ROWS)
    assert points.take(np.array([1, 3])).names == ("r2e+06", "r4e+06")


def test_every_bad_number_is_named_at_once(tmp_path: Path) -> None:
    bad = [("nan", 1, 3), (1, "inf", 3), (0, -5, ""), ("12x", 1, 3)]
    path = table(tmp_path / "a.csv", [*ROWS, *bad])
    with pytest.raises(UserError) as error:
        read_points(path, params="size", tokens="data", loss="loss")
    text = str(error.value)
    assert "6 numbers" in text
    for told in (
        'line 9, column "size": nan is not finite and above 0',
        'line 10, column "data": inf is not finite and above 0',
        'line 11, column "size": 0 is not finite and above 0',
        'line 11, column "data": -5 is not',
        'line 11, column "loss": missing',
        "line 12, column \"size\": '12x' is not a number",
    ):
        assert told in text
    points, messages = read_points(path, params="size", tokens="data", loss="loss", skip_bad=True)
    assert len(points) == len(ROWS) and len(messages) == 6


def test_ten_bad_numbers_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [*ROWS, *[(1, 1, "x")] * 25])
    with pytest.raises(UserError, match="25 numbers") as error:
        read_points(path, params="size", tokens="data", loss="loss")
    assert len(str(error.value).splitlines()) == 12
    assert "… and 15 more" in str(error.value)


def test_a_short_row_and_a_boolean_are_missing_numbers(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [*ROWS, (5,)])
    with pytest.raises(UserError, match='line 9, column "loss": missing'):
        read_points(path, params="size", tokens="data", loss="loss")
    other = tmp_path / "a.jsonl"
    other.write_text('{"n": true, "d": 2, "loss": [3]}\n')
    with pytest.raises(UserError, match='column "n": True is not finite') as error:
        read_points(other, params="n", tokens="d", loss="loss")
    assert "'[3]' is not a number" in str(error.value)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("1,2,3\n4,5,6\n", "no header"),
        ("size,data,los\n1,2,3\n", 'no column "loss"; did you mean .los'),
        ("size,data,loss\n", "0 rows can be used; a fit of 5 coefficients needs 5 or more"),
        ("size,data,loss\n1,2,3\n", "1 row can be used"),
    ],
)
def test_a_table_that_is_none_is_described(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=match):
        read_points(path, params="size", tokens="data", loss="loss")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "empty"),
        ("[1]\n", "line 1: not an object"),
        ('{"n": 1\n', "line 1: not JSON"),
        ('{"m": 1}\n', 'no column "n"'),
    ],
)
def test_json_lines_that_are_none_are_described(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=match):
        read_points(path, params="n", tokens="d", loss="loss")


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        read_points(tmp_path / "none.csv", params="n", tokens="d", loss="loss")
    (tmp_path / "b.csv").write_bytes(b"n,d,loss\n\xff\xfe\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_points(tmp_path / "b.csv", params="n", tokens="d", loss="loss")


def test_where_keeps_the_rows_asked_for(tmp_path: Path) -> None:
    rows = [(*row, kind, 0.5) for row in ROWS for kind in ("a", "b")]
    path = table(tmp_path / "a.csv", [*rows, ("bad", 1, 1, "c", 1)], "size,data,loss,kind,share")
    read = {"params": "size", "tokens": "data", "loss": "loss"}
    assert len(read_points(path, where=["kind=b"], **read)[0]) == len(ROWS)
    assert len(read_points(path, where=["kind=b", "share=0.50"], **read)[0]) == len(ROWS)
    with pytest.raises(UserError, match="where kind=d: 0 rows"):
        read_points(path, where=["kind=d"], **read)
    with pytest.raises(UserError, match='no column "kin"'):
        read_points(path, where=["kin=b"], **read)
    with pytest.raises(UserError, match='write "column=value"'):
        read_points(path, where=["kind"], **read)


def test_points_are_checked_where_they_are_made() -> None:
    one = np.ones(3)
    with pytest.raises(UserError, match="loss of point 1 is nan"):
        Points(params=one, tokens=one, loss=np.array([1, np.nan, 2]))
    with pytest.raises(UserError, match="tokens has shape"):
        Points(params=one, tokens=np.ones(2), loss=one)


def test_two_columns_of_one_name_are_refused_where_they_are_read(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [(*row, 9) for row in ROWS], "size,data,loss,loss")
    with pytest.raises(UserError, match=r'a\.csv, line 1: 2 columns are called "loss"'):
        read_points(path, params="size", tokens="data", loss="loss")
    path = table(tmp_path / "b.csv", [(*row, 9, 9) for row in ROWS], "size,data,loss,,")
    assert len(read_points(path, params="size", tokens="data", loss="loss")[0]) == len(ROWS)
    lines = tmp_path / "a.jsonl"
    lines.write_text("\n".join(f'{{"n": {n}, "d": {d}, "loss": {loss}, "loss": 9}}' for n, d, loss in ROWS))
    with pytest.raises(UserError, match=r'a\.jsonl, line 1.*the field "loss" is there 2 times'):
        read_points(lines, params="n", tokens="d", loss="loss")


def test_a_row_with_more_cells_than_columns_is_a_bad_row(tmp_path: Path) -> None:
    """A comma within a number moves all that follows."""
    path = table(tmp_path / "a.csv", [*ROWS, ("1", "000", 5e9, 3.1)])
    with pytest.raises(UserError, match=r"1 numbers or rows cannot be used(?s:.*)line 9: 1 cell more than the header"):
        read_points(path, params="size", tokens="data", loss="loss")
    points, left_out = read_points(path, params="size", tokens="data", loss="loss", skip_bad=True)
    assert len(points) == len(ROWS)
    assert left_out == ["line 9: 1 cell more than the header has columns"]


def test_a_negative_loss_is_named_with_its_line(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [*ROWS, (1e6, 1e9, -2.5)])
    with pytest.raises(UserError, match=r'a\.csv: (?s:.*)line 9, column "loss": -2\.5 is not finite and above 0'):
        read_points(path, params="size", tokens="data", loss="loss")
