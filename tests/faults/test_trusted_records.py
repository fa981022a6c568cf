"""Records whose values contradict each other, their recipe or their files: found when read, with file and field."""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spoiled
from small_home import STORE, command, copy_home, make_home

from shoestring.data.store.store import Manifest

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("records") / "home")


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Path:
    return copy_home(home, tmp_path / "copy")


def _edit(path: Path, **values: Any) -> None:
    """Change fields of a record; "a.b" is field b of the table a."""
    record = json.loads(path.read_text())
    for name, value in values.items():
        table = record
        *outer, last = name.split("__")
        for each in outer:
            table = table[int(each) if isinstance(table, list) else each]
        table[last] = value
    path.write_text(json.dumps(record, indent=2) + "\n")


TRAIN, EVALUATE, REPORT = ("train", "net.toml"), ("evaluate", "runs/net"), ("report", "runs/net")
COMPARE = ("law", "compare", "runs/net", "runs/net")
OPTIMUM = ("law", "optimum", "--law", "law.json", "--flops", "1e18")
CASES: list[tuple[str, dict[str, Any], tuple[str, ...], str]] = [
    ("runs/net/plan.json", {"effective_batch": 16}, TRAIN, "effective_batch = 16: that of the recipe is 4"),
    ("runs/net/plan.json", {"steps": None}, TRAIN, "steps: missing"),
    ("runs/net/plan.json", {"steps": 7}, EVALUATE, "samples = 24: steps × effective_batch is 28"),
    ("runs/net/plan.json", {"tokens": 5}, EVALUATE, "tokens = 5: samples × data.length is 192"),
    ("runs/net/plan.json", {"accumulate": 2}, TRAIN, "per_device × accumulate × devices is 8"),
    ("runs/net/plan.json", {"seconds": 9e9}, REPORT, "seconds = 9000000000.0: the sum of its parts is"),
    ("runs/net/plan.json", {"parts__train": -1.0}, REPORT, "parts.train = -1.0: must not be negative"),
    ("runs/hmm/plan.json", {"tokens": 5}, ("evaluate", "runs/hmm"), "tokens = 5: samples × data.length is"),
    ("runs/net/choices.json", {"chosen__0__value": -1.0}, EVALUATE, "train.weight_decay = -1.0: must be at least 0"),
    ("runs/net/choices.json", {"chosen__0__field": "train.lr"}, TRAIN, "chooses train.lr, not train.weight_decay"),
    ("runs/net/choices.json", {"recipe": "0"}, REPORT, "choices.json"),
    ("runs/net/DONE", {"seconds": -3.0}, REPORT, "seconds = -3.0: must not be negative"),
    ("runs/net/DONE", {"predictions": 10**6}, COMPARE, "predictions = 1000000: there"),
    ("runs/net/DONE", {"skipped": 99}, TRAIN, "skipped = 99: there are only 6 steps"),
    ("runs/net/DONE", {"steps": 7}, REPORT, "steps = 7: the last step of metrics.jsonl is 6"),
    ("runs/net/DONE", {"steps": 5}, TRAIN, "steps = 5: the last step of metrics.jsonl is 6"),
    ("runs/net/DONE", {"tokens": 193}, COMPARE, "tokens = 193: steps × effective batch × data.length is 192"),
    ("runs/net/DONE", {"loss": 1.0}, REPORT, "loss = 1.0: the held-out loss of step 6 in metrics.jsonl is 2."),
    ("runs/hmm/evaluation.json", {"loss": 0.0, "perplexity": 1.0}, ("report", "runs/hmm"), "loss = 0.0: that of DONE"),
    ("runs/net/evaluation.json", {"step": 7}, REPORT, "step = 7: the last step of the run is 6"),
    ("runs/net/evaluation.json", {"loss": 0.0, "perplexity": 1.0}, TRAIN, "loss = 0.0: that of DONE for this step is"),
    ("runs/net/evaluation.json", {"loss": 0.1}, REPORT, "perplexity = "),
    ("runs/net/evaluation.json", {"rows": -1}, REPORT, "rows = -1: must not be negative"),
    ("runs/net/profile.json", {"points__0__batch": 0}, COMPARE, "points[0].batch = 0"),
    ("law.json", {"params": [9.0, 1.0]}, OPTIMUM, "params = [9.0, 1.0]"),
    ("law.json", {"coefficients__a_opt__value": 0.9}, OPTIMUM, "a_opt = 0.9"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "arguments", "line"), CASES, ids=lambda each: str(each)[:40])
def test_values_that_contradict_each_other_are_found(
    copy: Path, name: str, values: dict[str, Any], arguments: tuple[str, ...], line: str
) -> None:
    """In a run of a version that did not seal its records."""
    for seal in copy.glob("runs/*/seal.json"):
        seal.unlink()
    if arguments[0] == "train" and name.endswith("plan.json"):
        (copy / "runs/net/DONE").unlink()
    _edit(copy / name, **values)
    error = command(copy, arguments).error
    assert error is not None and name in error and line in error, error


def test_records_of_an_earlier_step_or_without_metrics_are_read(copy: Path) -> None:
    """An evaluation that was forced, metrics that were removed, an outcome of before predictions were counted."""
    (copy / "runs/net/seal.json").unlink()
    _edit(copy / "runs/net/evaluation.json", step=3, loss=2.0, perplexity=7.38905609893065)
    outcome = json.loads((copy / "runs/net/DONE").read_text())
    for name in ("predictions", "timeline", "skipped", "lengthened"):
        del outcome[name]
    (copy / "runs/net/DONE").write_text(json.dumps(outcome))
    assert command(copy, REPORT).error is None
    (copy / "runs/net/metrics.jsonl").unlink()
    assert command(copy, REPORT).error is None


@pytest.mark.parametrize("what", ["tokens", "documents"])
def test_totals_of_a_split_are_those_of_its_shards(copy: Path, what: str) -> None:
    """Also where somebody has put the checksum right."""
    path = next(copy.glob(f"{STORE}/manifest.json"))
    manifest = Manifest.read(path)
    split = dataclasses.replace(manifest.splits["train"], **{what: 10**6})
    made = dataclasses.replace(manifest, splits=manifest.splits | {"train": split})
    dataclasses.replace(made, check=made.expected_check()).write(path)
    error = command(copy, ("data", "check", STORE)).error
    assert error is not None and f"splits.train.{what} = 1000000: the sum of its shards is" in error


def test_lines_with_negative_amounts_are_found(copy: Path) -> None:
    (copy / "runs/net/DONE").unlink()
    for name, field in (("metrics.jsonl", "loss"), ("timings.jsonl", "elapsed")):
        path = copy / "runs/net" / name
        before = path.read_text()
        (copy / "runs/net/seal.json").unlink()
        path.write_text(re.sub(rf'"{field}": ', f'"{field}": -', before, count=1))
        error = command(copy, TRAIN).error
        assert error is not None and name in error and f"{field} = -" in error
        path.write_text(before)


EDITS = {
    "plan.json": lambda text: text.replace('"peak_bytes": 4', '"peak_bytes": 5'),
    "evaluation.json": lambda text: text.replace('"uniform": 2', '"uniform": 1'),
    "DONE": lambda text: text.replace('"disk_bytes": ', '"disk_bytes": 1'),
    "metrics.jsonl": lambda text: text.replace('"grad_norm": 1', '"grad_norm": 2', 1),
    "samples.jsonl": lambda text: text.replace('"text": "', '"text": "not ', 1),
    "machine.json": lambda text: text.replace('"cpu"', '"gpu"'),
    "tokenizer.json": lambda text: text.replace('"cat"', '"dog"', 1).replace('"dog"', '"cat"', 1).replace("cat", "cut"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_contradicts_nothing_is_found_by_the_seal(copy: Path, name: str) -> None:
    """What goes on refuses; what shows says so; whoever means it removes the seal."""
    run = copy / "runs/net"
    (run / "DONE").unlink() if name != "DONE" else None
    before = (run / name).read_text()
    (run / name).write_text(EDITS[name](before))
    assert (run / name).read_text() != before
    line = f"runs/net/{name} was changed after the run had written it"
    assert line in (command(copy, ("train", "net.toml")).error or "")
    shown = command(copy, ("report", "runs/net"))
    assert shown.error is None and line in " ".join(shown.said.split())
    assert line in (run / "report.html").read_text()
    if name == "tokenizer.json":
        assert line in (command(copy, ("generate", "runs/net", "--max-tokens", "2")).error or "")
    if name == "DONE":
        assert line in (command(copy, ("law", "compare", "runs/net", "runs/net")).error or "")
    (run / "seal.json").unlink()
    assert command(copy, ("train", "net.toml")).error is None


METRICS = (
    spoiled.JSON
    | spoiled.IN_PLACE
    | {
        "a line more": lambda path: path.write_text(path.read_text() + '{"step": 6, "note": 1}\n') and None,
        "an unfinished line": lambda path: path.write_text(path.read_text() + '{"st') and None,
        "a line less": lambda path: path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1])) and None,
    }
)


@pytest.mark.parametrize("way", METRICS)
def test_metrics_of_a_finished_run_that_were_changed_are_named(copy: Path, way: str) -> None:
    """Refused by what would go on with them; the page is drawn, where it can be, with a note."""
    METRICS[way](copy / "runs/net/metrics.jsonl")
    for arguments in (COMPARE, TRAIN):
        error = command(copy, arguments).error
        assert error is not None and "runs/net/metrics.jsonl" in error, error
    shown = command(copy, REPORT)
    assert "metrics.jsonl" in (shown.error or shown.said)


def test_a_run_that_was_interrupted_resumes_under_its_seal(home: Path, tmp_path: Path) -> None:
    copy = copy_home(home, tmp_path / "copy", finished=False)
    for name in ("net", "hmm"):
        assert command(copy, ("train", f"{name}.toml")).error is None
        assert (copy / f"runs/{name}/metrics.jsonl").read_bytes() == (home / f"runs/{name}/metrics.jsonl").read_bytes()
        assert "was changed" not in command(copy, ("report", f"runs/{name}")).said


def test_the_sum_of_a_seal_is_that_of_zlib(home: Path) -> None:
    sums = json.loads((home / "runs/net/seal.json").read_text())["records"]
    for name, (newest, *_) in sums.items():
        content = (home / "runs/net" / name).read_bytes()[: newest["bytes"]]
        assert zlib.crc32(content) == newest["crc"], name
