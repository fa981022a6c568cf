"""Every field of a recipe at the ends of what can be written: planned at once, or refused with its name."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from shoestring.core import recipe_file
from shoestring.core.errors import PlanError, UserError
from shoestring.core.family import network_cost
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost, Density, Machine, Plan, Point, Profile
from shoestring.core.schema import encode, hints
from shoestring.planning import room
from shoestring.planning.history import NO_HISTORY
from shoestring.planning.hmm import plan_hmm
from shoestring.planning.room import check_host, check_room, least_need
from shoestring.runs.estimate import plan_on_gpu
from shoestring.runs.measure import Measuring, _kept
from shoestring.runs.network_task import plan_network
from shoestring.runs.prepare import ready_rows, vocabulary_of
from shoestring.runs.task import task_of

FREE = 8 << 30
MACHINE = Machine(device="cpu", device_name="x", threads=2, memory_bytes=FREE, system="x", python="3.11", versions={})
PROFILE = Profile(
    machine=MACHINE,
    workload="",
    length=256,
    points=tuple(Point(batch=n, seconds=0.002 * n, slowest_seconds=0.1, peak_bytes=n * 10**6) for n in (1, 2, 4)),
    setup_seconds=2.0,
    update_seconds=0.01,
    validate_seconds_per_row=0.001,
    checkpoint_seconds=0.05,
    checkpoint_bytes=100_000,
    available_bytes=FREE,
    stopped="there was no larger one",
    cost=Cost(parameters={"all": 10_000}, forward_flops_per_token=20_000.0),
    density=Density(documents=100, text_bytes=60_000, tokens=16_000, seconds=0.1, total_documents=None),
)
NETWORK: dict[str, Any] = {"budget": {"time": "1h"}, "train": {"batch": 8, "lr": 3e-4}}
BASES: dict[str, dict[str, Any]] = {
    "network": NETWORK,
    "steps": {"budget": {"steps": 1000}, "train": {"batch": 8, "lr": 3e-4}},
    "gpt2": NETWORK | {"model": {"family": "gpt2"}, "data": {"packing": "best_fit", "documents": 1000}},
    "perceiver": NETWORK | {"model": {"family": "perceiver_ar", "latents": 64}, "data": {"tokenizer": "words:1000"}},
    "masked": NETWORK | {"model": {"family": "masked_lm"}, "data": {"masked": 0.2}},
    "stream": NETWORK | {"data": {"stream": "markov:12"}, "stream": {}},
    "hmm": {"budget": {"time": "1h"}, "hmm": {}, "data": {"tokenizer": "words:100", "documents": 1000}},
}
VALUES = [
    0, -1, 10**12, 10**30, 1e12, 1e308, 1e-12, 1e-300, math.nan, math.inf, 10**5000, "", "0", "1e308d", "a\0b",
    "9" * 5000 + "GB", "a\x1b[31m", "a\nb", "text:a\nb", "words:1000000000000", "1,2,3,...", [1], {"a": "b"},
    "x" * 10**5,
]  # fmt: skip
OWN = {"hmm": "hmm", "stream": "stream", "positions": "gpt2", "latents": "perceiver", "prefix_dropout": "perceiver"}
OWN |= dict.fromkeys(("masked", "whole_words", "label", "classes"), "masked")
"""The base that a section or a field belongs to, where that is not the network."""
FIELDS = [
    (section, field.name)
    for section, kind in hints(Recipe).items()
    for field in dataclasses.fields(kind if isinstance(kind, type) else get_args(kind)[0])
]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(room, "_GPUS", ())
    monkeypatch.setattr(room, "free_host_bytes", lambda: FREE)


@contextlib.contextmanager
def bounded(more_bytes: int = 1 << 30, seconds: int = 20) -> Iterator[None]:
    """No more memory than this on top of what the process has, and an end to what would never end."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"no answer after {seconds} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, hard))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def plan(values: dict[str, Any]) -> Plan:
    recipe = recipe_file.build(values, "recipe.toml")
    check_host(recipe)
    if recipe.hmm is not None:
        return plan_hmm(recipe, PROFILE, 1000)
    return plan_network(recipe, ready_rows(recipe), PROFILE, 0.0, 1, NO_HISTORY)


def answered(tables: dict[str, Any]) -> str:
    """The message where the plan is refused; nothing where it can be written."""
    try:
        json.dumps(plan(tables).to_dict(), allow_nan=False)
    except UserError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("base", BASES)
def test_the_bases_are_planned(base: str) -> None:
    assert plan(BASES[base]).seconds


@pytest.mark.parametrize(("section", "name"), FIELDS, ids=[f"{section}.{name}" for section, name in FIELDS])
def test_a_field_is_planned_or_refused_by_its_name(section: str, name: str) -> None:
    """Never a hang, never an exception that would be called a bug, and never gigabytes."""
    base = BASES[OWN.get(section) or OWN.get(name, "network")]
    for value in VALUES:
        with bounded():
            answer = answered({**base, section: {**base.get(section, {}), name: value}})
        assert not answer or name in answer, (value, answer)
        assert len(answer) < 2000 and "\x1b" not in answer


@pytest.mark.parametrize(("section", "name"), FIELDS, ids=[f"{section}.{name}" for section, name in FIELDS])
def test_the_ends_of_each_range_are_planned_or_refused_by_their_numbers(section: str, name: str) -> None:
    kind = hints(Recipe)[section]
    table = kind if isinstance(kind, type) else get_args(kind)[0]
    limits = [limit for limit in get_args(hints(table)[name])[1:] if hasattr(limit, "low")]
    unit = {"time": "s", "checkpoint_every": "s", "disk": "B", "memory": "B"}.get(name)
    for limit in limits:
        for end in (limit.low if not limit.open_low else 1e-300, limit.high if not limit.open_high else 1 - 1e-12):
            value = end if unit is None else f"{end:.3f}{unit}" if unit == "s" else f"{end}{unit}"
            for base in BASES.values():
                tables = {**base, section: {**base.get(section, {}), name: value}}
                with bounded():
                    answer = answered(tables)
                assert "must be at least" not in answer or name in ("length", "positions"), answer


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["model.width=1000000"], ("the optimizer take at least", "8.59 GB are free", "model.width = 1000000")),
        (["model.layers=100000000"], ("model.layers = 100000000",)),
        (["data.tokenizer=words:2000000000"], ("data.tokenizer = words:2000000000", "model.width = 256")),
        (["data.length=100000000"], ("a pass over one row takes at least", "data.length = 100000000")),
        (["train.per_device=8", "data.length=100000"], ("a pass over 8 rows", "data.length = 100000")),
        (["model.hidden=1000000000"], ("model.hidden = 1000000000",)),
        (["model.family=gpt2", "model.positions=1000000000"], ("model.positions = 1000000000",)),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(
    tmp_path: Path, settings: list[str], parts: tuple[str, ...]
) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('[budget]\ntime = "1h"\n[train]\nbatch = 8\n')
    with bounded(), pytest.raises(PlanError) as refused:
        check_host(recipe_file.load(file, settings))
    assert all(part in str(refused.value) for part in ("nothing fits the memory: ", *parts)), refused.value


def test_the_tables_of_an_hmm_are_counted(tmp_path: Path) -> None:
    """10^7 states: 10^14 transitions of four bytes, and as many counts."""
    recipe = recipe_file.build(BASES["hmm"] | {"hmm": {"states": 10**7}}, "test")
    with pytest.raises(PlanError, match=r"tables of the HMM take at least 800 TB.*hmm\.states = 10000000"):
        check_host(recipe)


@pytest.mark.parametrize("base", [name for name in BASES if name != "hmm"])
def test_what_is_certain_is_less_than_what_is_estimated(base: str) -> None:
    """So nothing that fits is refused; the estimates are compared with measurements elsewhere."""
    from shoestring.cost.memory import estimate_memory

    recipe = recipe_file.build(BASES[base], "test")
    vocabulary = vocabulary_of(recipe)
    weights = network_cost(recipe.model, vocabulary, recipe.data.length, recipe.data.masked).total_parameters
    alone, cpu, cuda = (least_need(recipe, device) for device in (None, "cpu", "cuda"))
    assert alone is not None and 0.9 * 4 * weights < alone.bytes <= 4 * weights
    for need, device in ((cpu, "cpu"), (cuda, "cuda")):
        estimate = estimate_memory(recipe, vocabulary, device)  # type: ignore[arg-type]
        assert need is not None and alone.bytes < need.bytes <= estimate.at(recipe.train.per_device or 1)
    check_room(recipe, "cpu", None, "unknown")


class OneGpu:
    """A process that has found a GPU, and builds nothing."""

    def __init__(self, free: int):
        self._free = free

    def machine(self) -> dict[str, Any]:
        return {"machine": encode(dataclasses.replace(MACHINE, device="cuda", device_name="a GPU")), **self.free()}

    def free(self) -> dict[str, int]:
        return {"available_bytes": self._free}


def test_what_cannot_fit_the_device_is_refused_before_it_is_built_there(monkeypatch: pytest.MonkeyPatch) -> None:
    task, how = task_of(recipe_file.build(NETWORK, "test")), Measuring(seconds=1.0, fresh=True)
    monkeypatch.setenv("SHOESTRING_CACHE", "cache")
    with pytest.raises(PlanError, match=r"the optimizer take at least 7[0-9]\.?[0-9]* MB, and 10 MB are free on a GPU"):
        _kept(OneGpu(10**7), task, how, 1)  # type: ignore[arg-type]
    assert _kept(OneGpu(FREE), task, how, 1)[0] is None  # type: ignore[arg-type]


def test_a_sharded_model_is_only_held_whole_by_the_host() -> None:
    recipe = recipe_file.build({**NETWORK, "parallel": {"shard": True}}, "test")
    assert least_need(recipe, "cuda") == least_need(recipe, None)


def test_a_model_of_a_hundred_million_layers_is_counted_at_once() -> None:
    values = {**NETWORK, "model": {"layers": 10**8, "width": 8, "heads": 1}}
    with bounded(), pytest.raises(UserError, match="a micro-batch of 1 would need"):
        plan_on_gpu(recipe_file.build(values, "test"), 262, "NVIDIA H200")


def test_encoded_values_are_what_was_swept() -> None:
    assert {(section, name) for section, name in FIELDS} >= {
        (section, name) for section, table in encode(Recipe()).items() if table for name in table
    }
