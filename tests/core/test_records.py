"""Records: written and read back equal, and anything else refused with a line that says why."""

import dataclasses
import json
import math
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoestring.core import law_record, records, results
from shoestring.core.errors import RecordError, StorageError
from shoestring.core.law_record import Law
from shoestring.core.records import Cost, Density, Machine, Plan, Point, Profile
from shoestring.core.results import Evaluation, HarnessScores, Outcome, Preferences, StateTable
from shoestring.core.schema import Record, hints

RECORDS = [
    kind
    for module in (records, results, law_record)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Record) and kind.__module__ == module.__name__
]
every_record = pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
unhurried = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    plain = {
        int: st.integers(-(2**63) + 1, 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=9),
    }
    plain |= {bool: st.booleans()}
    if kind in plain:
        return plain[kind]
    if kind is type(None):
        return st.none()
    if get_origin(kind) in (Union, types.UnionType):
        return st.one_of(*map(anything, get_args(kind)))
    if get_origin(kind) is tuple and get_args(kind)[-1] is not Ellipsis:
        return st.tuples(*map(anything, get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(anything(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(st.text(max_size=9), anything(get_args(kind)[1]), max_size=3)
    assert dataclasses.is_dataclass(kind), kind
    return st.builds(kind, **{name: anything(hint) for name, hint in fields(kind).items()})


def fields(kind: type) -> dict[str, Any]:
    return {field.name: hints(kind)[field.name] for field in dataclasses.fields(kind)}


def machine() -> Machine:
    return Machine(
        device="cpu",
        device_name="a CPU",
        threads=2,
        memory_bytes=None,
        system="Linux",
        python="3.11",
        versions={"torch": "2.11"},
    )


def profile() -> Profile:
    return Profile(
        machine=machine(),
        workload="0" * 16,
        length=128,
        points=(Point(batch=1, seconds=0.1, slowest_seconds=0.2, peak_bytes=None),),
        setup_seconds=1.0,
        update_seconds=0.01,
        validate_seconds_per_row=0.001,
        checkpoint_seconds=0.1,
        checkpoint_bytes=1000,
        available_bytes=None,
        stopped="no time",
        cost=Cost(parameters={"embedding": 10, "blocks": 32}, forward_flops_per_token=1e6),
        density=Density(documents=10, text_bytes=1000, tokens=300, seconds=0.5, total_documents=None),
    )


def test_the_records_are_those_the_stages_hand_to_each_other() -> None:
    assert set(RECORDS) == {
        Machine, Cost, Density, Profile, Plan, Evaluation, Preferences, HarnessScores, StateTable, Outcome, Law,
    }  # fmt: skip


def test_every_schema_has_a_name_of_its_own_and_a_number() -> None:
    schemas = [kind.SCHEMA for kind in RECORDS]
    assert len(set(schemas)) == len(schemas)
    assert all(schema.startswith("shoestring.") and schema.rpartition("/")[2].isdigit() for schema in schemas)


@every_record
@unhurried
@given(data=st.data())
def test_a_record_reads_back_equal(kind: type[Record], data: st.DataObject, tmp_path_factory: Any) -> None:
    record = data.draw(anything(kind))
    path = tmp_path_factory.getbasetemp() / f"{kind.__name__}.json"
    record.write(path)
    with mock.patch.object(kind, "contradictions", return_value=[]):  # its values are any that there are
        assert kind.read(path) == record


@every_record
@unhurried
@given(data=st.data())
def test_a_record_is_plain_json_with_its_schema(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(anything(kind))
    plain = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    assert plain == record.to_dict()
    assert plain.pop("schema") == kind.SCHEMA
    assert set(plain) == set(fields(kind))


@every_record
def test_a_missing_field_is_named(kind: type[Record]) -> None:
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    assert required
    with pytest.raises(RecordError) as caught:
        kind.from_dict({"schema": kind.SCHEMA}, "the file")
    first, *lines = str(caught.value).splitlines()
    assert first == f"the file: not a whole record {kind.SCHEMA}"
    assert {line.strip().partition(":")[0] for line in lines} == required


def test_a_missing_field_deep_inside_is_named() -> None:
    values = profile().to_dict()
    del values["points"][0]["seconds"], values["machine"]["device"]
    with pytest.raises(RecordError) as caught:
        Profile.from_dict(values, "x")
    assert "points[0].seconds: missing" in str(caught.value)
    assert "machine.device: missing" in str(caught.value)


@pytest.mark.parametrize("inside", [(), ("machine",), ("points", 0), ("cost",)])
def test_an_extra_field_is_refused_at_every_depth(inside: tuple[str | int, ...]) -> None:
    values: Any = profile().to_dict()
    place = values
    for key in inside:
        place = place[key]
    place["surplus"] = 1
    with pytest.raises(RecordError, match="surplus: unknown"):
        Profile.from_dict(values, "x")


@pytest.mark.parametrize("schema", ["shoestring.profile/1", "shoestring.plan/1", "", None, 1, []])
def test_another_schema_is_refused_with_both_names(schema: Any) -> None:
    with pytest.raises(RecordError, match=r"expected a record shoestring\.profile/2, found ") as caught:
        Profile.from_dict(profile().to_dict() | {"schema": schema}, "the file")
    assert str(schema or "none") in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"text"', "{}"])
def test_json_that_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"plan\.json: expected a record shoestring\.plan/1, found none"):
        Plan.read(path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": "shoestring.plan/1"', b"\xff\xfe", b"loss: 3"])
def test_what_is_not_json_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"plan\.json: not (JSON|UTF-8 text)"):
        Plan.read(path)


def test_a_missing_file_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"plan\.json: no such file"):
        Plan.read(tmp_path / "plan.json")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_written(value: float, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    Plan(binding="time").write(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        Plan(binding="time", seconds=value).write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_not_finite_is_never_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(f'{{"schema": "shoestring.plan/1", "binding": "time", "seconds": {text}}}')
    with pytest.raises(RecordError, match=r"seconds = .*: must be a finite number"):
        Plan.read(path)


@pytest.mark.parametrize(("name", "value"), [("steps", 1.0), ("steps", "1"), ("steps", True), ("binding", None)])
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RecordError, match=f"{name} = .*: must be"):
        Plan.from_dict({"schema": Plan.SCHEMA, "binding": "time"} | {name: value}, "x")


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile().length = 5  # type: ignore[misc]


def test_totals_and_densities_are_what_arithmetic_says() -> None:
    measured = profile()
    assert measured.cost.total_parameters == 42
    assert measured.cost.train_flops_per_token == 3e6
    assert measured.density is not None
    assert measured.density.tokens_per_document == 30
    assert measured.density.tokens_per_gb == pytest.approx(3e8)
    assert measured.density.entries_per_gb == pytest.approx(1e7)


def test_a_machine_is_known_by_everything_it_says() -> None:
    changes: dict[str, Any] = {
        "device": "cuda",
        "device_name": "b",
        "threads": 3,
        "memory_bytes": 1,
        "system": "x",
        "python": "x",
        "versions": {},
    }
    assert set(changes) == set(fields(Machine))
    prints = {dataclasses.replace(machine(), **{name: value}).fingerprint for name, value in changes.items()}
    assert len(prints | {machine().fingerprint}) == len(changes) + 1
    assert machine().fingerprint == machine().fingerprint
