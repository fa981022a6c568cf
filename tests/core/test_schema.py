"""Strict decoding: every problem in one pass, each line with the field, the value and what is allowed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.schema import Between, decode, describe, encode, nearest
from shoestring.core.specs import Spec
from shoestring.core.units import Bytes, Count, Flops, Seconds


class SmallLetters(Spec):
    def problem(self) -> str | None:
        return None if re.fullmatch("[a-z]+", self) else "must be small letters"


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: Annotated[int, Between(1, 10**9), "how large"]
    share: Annotated[float, Between(0, 1, open_low=True)] = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    others: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (1, "a")
    table: dict[str, int] = field(default_factory=dict)
    name: Annotated[SmallLetters, "a text of its own type"] = SmallLetters("a")
    speed: Annotated[float | None, Between(0, 1e12, open_low=True)] = None
    kind: Literal["one", "two"] = "one"
    on: bool = False
    time: Seconds | None = None
    disk: Bytes | None = None
    tokens: Count | None = None
    work: Flops | None = None
    either: int | str = 0


def problems(values: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    decode(Outer, values, "", found)
    return found


def whole(**values: Any) -> Outer:
    found: list[str] = []
    result = decode(Outer, {"inner": {"size": 1}} | values, "", found)
    assert found == []
    assert isinstance(result, Outer)
    return result


def test_what_is_left_out_has_its_default() -> None:
    assert whole() == Outer(inner=Inner(size=1))


def test_values_arrive_with_their_types() -> None:
    value = whole(
        others=[{"size": 2}, {"size": 3, "share": 1}],
        pair=[7, "x"],
        table={"a": 1},
        speed=2,
        time="2h",
        disk="1GB",
        tokens=5_000,
        work=1e21,
        either="text",
    )
    assert value.others == (Inner(size=2), Inner(size=3, share=1.0))
    assert value.pair == (7, "x")
    assert value.table == {"a": 1}
    assert isinstance(value.speed, float)
    assert (value.time, value.disk, value.tokens, value.work) == (7200.0, 10**9, 5000, 1e21)
    kinds = (type(value.time), type(value.disk), type(value.tokens), type(value.work))
    assert kinds == (Seconds, Bytes, Count, Flops)
    assert value.either == "text"
    assert type(whole(name="b").name) is SmallLetters


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "inner: missing; it must be given"),
        ({"inner": {}}, "inner.size: missing; it must be given"),
        ({"inner": 3}, "inner = 3: must be a table of fields"),
        ({"inner": {"size": 0}}, "inner.size = 0: must be at least 1 and at most 1,000,000,000"),
        ({"inner": {"size": 1.0}}, "inner.size = 1.0: must be a whole number"),
        ({"inner": {"size": True}}, "inner.size = true: must be a whole number"),
        ({"inner": {"size": "1"}}, 'inner.size = "1": must be a whole number'),
        ({"inner": {"size": 1, "share": 0}}, "inner.share = 0: must be above 0 and at most 1"),
        ({"inner": {"size": 1, "share": 1.5}}, "inner.share = 1.5: must be above 0 and at most 1"),
        ({"inner": {"size": 1, "share": float("nan")}}, "inner.share = nan: must be a finite number"),
        ({"inner": {"size": 1, "share": float("inf")}}, "inner.share = inf: must be a finite number"),
        ({"inner": {"size": 1, "share": True}}, "inner.share = true: must be a finite number"),
        ({"inner": {"size": 1, "sise": 2}}, "inner.sise: unknown field; did you mean 'size'?"),
        ({"inner": {"size": 1, "zzz": 2}}, "inner.zzz: unknown field; known: size, share"),
        ({"inner": {"size": 1}, "innr": 0}, "innr: unknown section; did you mean 'inner'?"),
        (
            {"inner": {"size": 1}, "others": [{"size": 1}, {"size": -1}]},
            "others[1].size = -1: must be at least 1 and at most 1,000,000,000",
        ),
        ({"inner": {"size": 1}, "others": {}}, "others = {}: must be a list"),
        ({"inner": {"size": 1}, "pair": [1]}, "pair = [1]: must be a list of 2 values"),
        ({"inner": {"size": 1}, "table": []}, "table = []: must be a table"),
        ({"inner": {"size": 1}, "table": {"a": "b"}}, 'table.a = "b": must be a whole number'),
        ({"inner": {"size": 1}, "name": "A"}, 'name = "A": must be small letters'),
        ({"inner": {"size": 1}, "name": 5}, "name = 5: must be a text in quotes"),
        ({"inner": {"size": 1}, "speed": 0}, "speed = 0: must be above 0 and at most 1e+12"),
        ({"inner": {"size": 1}, "kind": "three"}, 'kind = "three": must be one of "one", "two"'),
        ({"inner": {"size": 1}, "kind": []}, 'kind = []: must be one of "one", "two"'),
        ({"inner": {"size": 1}, "on": 1}, "on = 1: must be true or false"),
        ({"inner": {"size": 1}, "time": True}, 'time = true: must be a text such as "2h"'),
        ({"inner": {"size": 1}, "disk": []}, 'disk = []: must be a text such as "50GB"'),
    ],
)
def test_each_mistake_is_one_line(values: dict[str, Any], line: str) -> None:
    assert problems(values) == [line]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"time": 120}, ("time = 120:", "no unit", '"2h30m"')),
        ({"time": "5y"}, ('time = "5y":', "unknown unit", "d, h, m, s")),
        ({"disk": 5e9}, ("disk = 5000000000.0:", "no unit", '"500GB"')),
        ({"tokens": 1.5}, ("tokens = 1.5:", "not a whole number")),
        ({"tokens": -5}, ("tokens = -5:", '"200M"')),
        ({"tokens": float("nan")}, ("tokens = nan:", '"200M"')),
        ({"work": float("inf")}, ("work = inf:", '"1e21"')),
        ({"work": ""}, ('work = "":', '"1e21"')),
    ],
)
def test_a_wrong_quantity_says_what_is_allowed(values: dict[str, Any], parts: tuple[str, ...]) -> None:
    (line,) = problems({"inner": {"size": 1}} | values)
    assert all(part in line for part in parts), line


@pytest.mark.parametrize("name", ["speed", "work", "inner.share"])
def test_a_whole_number_too_large_for_a_float_is_a_problem_and_no_crash(name: str) -> None:
    inner: dict[str, Any] = {"size": 1}
    values: dict[str, Any] = {"inner": inner}
    (inner if "." in name else values)[name.rpartition(".")[2]] = 10**400
    (line,) = problems(values)
    assert line.startswith(f"{name} = 1000")


MISTAKES: dict[str, Any] = {
    "others": 1,
    "pair": [1, 2],
    "table": 0,
    "name": "",
    "speed": -1,
    "kind": "",
    "on": "yes",
    "time": "1",
    "disk": "1",
    "tokens": "x",
    "work": "x",
    "either": 1.5,
    "unheard": 1,
}


@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(MISTAKES))))
def test_there_are_as_many_lines_as_mistakes_and_each_names_its_own(names: set[str]) -> None:
    lines = problems({"inner": {"size": 1}} | {name: MISTAKES[name] for name in names})
    assert len(lines) == len(names)
    assert all(sum(line.startswith(name) for line in lines) == 1 for name in names)


outers = st.builds(
    Outer,
    inner=st.builds(Inner, size=st.integers(1, 10**9), share=st.floats(0, 1, exclude_min=True)),
    others=st.lists(st.builds(Inner, size=st.integers(1, 10**9)), max_size=3).map(tuple),
    pair=st.tuples(st.integers(-(2**63) + 1, 2**63 - 1), st.text()),
    table=st.dictionaries(st.text(), st.integers(-(2**63) + 1, 2**63 - 1), max_size=3),
    name=st.from_regex("[a-z]+", fullmatch=True).map(SmallLetters),
    speed=st.none() | st.floats(0, 1e12, exclude_min=True),
    kind=st.sampled_from(["one", "two"]),
    on=st.booleans(),
    time=st.none() | st.floats(0, 1e9).map(Seconds),
    disk=st.none() | st.integers(0).map(Bytes),
    tokens=st.none() | st.integers(0).map(Count),
    work=st.none() | st.floats(0, 1e30).map(Flops),
    either=st.integers(-(2**63) + 1, 2**63 - 1) | st.text(),
)


@settings(deadline=None)
@given(outers)
def test_encoded_values_decode_to_equal_ones(value: Outer) -> None:
    found: list[str] = []
    assert decode(Outer, encode(value), "", found) == value
    assert found == []


@settings(deadline=None)
@given(outers)
def test_encoded_values_are_plain(value: Outer) -> None:
    def check(item: Any) -> None:
        assert type(item) in (dict, list, str, int, float, bool, type(None))
        for part in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
            check(part)

    check(encode(value))


def test_the_nearest_name_is_offered_or_all_of_them() -> None:
    assert nearest("widht", ["width", "layers"]) == "did you mean 'width'?"
    assert nearest("zzz", ["width", "layers"]) == "known: width, layers"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Annotated[int, Between(1, 10**9), "how many"], ("whole number, 1 to 1,000,000,000", "how many")),
        (Annotated[Seconds | None, Between(0.001, 7200), "how long"], ("time, 0.001s to 2h", "how long")),
        (Annotated[Bytes, Between(1, 10**18, open_high=True)], ("size, 1B to below 1000PB", "")),
        (Annotated[float, Between(1e-6, 0.5, also=0)], ("number, 1e-06 to 0.5, or 0", "")),
        (Annotated[Flops | None, Between(0, 1e30, open_low=True)], ("FLOPs, above 0 to 1e+30", "")),
        (Literal["a", "b"], ('"a", "b"', "")),
        (int | str, ("whole number or text", "")),
        (tuple[int, ...], ("list", "")),
        (Count, ("count", "")),
        (Annotated[SmallLetters, "a name"], ("text", "a name")),
        (dict[str, int], ("table", "")),
    ],
)
def test_types_are_described_for_people(kind: Any, expected: tuple[str, str]) -> None:
    assert describe(kind) == expected
