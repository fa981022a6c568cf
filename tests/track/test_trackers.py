"""Trackers: the real libraries offline, read back by their own readers; and ones that fail, hang or cannot begin."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoestring.cli.root import root
from shoestring.core.errors import MissingExtra, RunError, UserError
from shoestring.core.registry import registry
from shoestring.track import LineFile, read_lines
from shoestring.track.trackers import Beside, Tracked, copy_metrics, open_trackers
from shoestring.track.wandb import run_id

REAL = ("tensorboard", "wandb", "trackio")
RECIPE = '[run]\nname = "one"\n\n[train]\nlr = 0.003\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder; trackers keep their files beside it, and nothing is sent."""
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    made = tmp_path / "one"
    made.mkdir()
    (made / "recipe.toml").write_text(RECIPE)
    return made


def train(folder: Path, names: tuple[str, ...], steps: range, after: int = 0) -> list[str]:
    """The lines of some steps, and what was said."""
    said: list[str] = []
    lines = LineFile.rewound(folder / "metrics.jsonl", after)
    metrics = Tracked(lines, open_trackers(names, folder, after, said.append), said.append)
    for step in steps:
        metrics.add(step=step, loss=10.0 - step, event="none")
    metrics.add(step=steps[-1], heldout_loss=0.5)
    metrics.close()
    return said


def in_tensorboard(folder: Path) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {event.step: event.value for event in found.Scalars("loss")}


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file, which is a log of LevelDB after seven bytes: parts in blocks of 32 KiB, each with a
    checksum, a length and a kind (1: whole, 2: first, 3: middle, 4: last)."""
    assert content[:4] == b":W&B"
    at, record = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record, at = record + content[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def in_wandb(folder: Path) -> tuple[dict[int, float], dict[str, Any]]:
    """The losses of all sessions, and the settings of the last one."""
    from wandb.proto import wandb_internal_pb2

    losses: dict[int, float] = {}
    config: dict[str, Any] = {}
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert {path.stem for path in files} == {f"run-{run_id(folder)}"}, "one run, however many sessions"
    for path in files:
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.HasField("history"):
                values = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                losses |= {values["step"]: values["loss"]} if "loss" in values else {}
    return losses, config


def in_trackio() -> dict[int, float]:
    from trackio.sqlite_storage import SQLiteStorage

    return {line["step"]: line["loss"] for line in SQLiteStorage.get_logs("shoestring", "one") if "loss" in line}


def test_all_three_at_once_get_every_line_also_of_a_run_that_is_resumed(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, REAL, range(1, 7)) == []
    assert train(folder, REAL, range(5, 9), after=4) == [], "killed after step 6, and resumed after step 4"
    expected = {step: 10.0 - step for step in range(1, 9)}
    assert in_tensorboard(folder) == expected
    assert in_trackio() == expected
    losses, config = in_wandb(folder)
    assert losses == expected and config["train"] == {"lr": 0.003}
    assert capfd.readouterr().out == "", "standard output is for results"


def test_a_finished_run_is_stored_afterwards(folder: Path) -> None:
    train(folder, (), range(1, 6))
    for _ in range(2):  # the second time takes the place of the first
        told = CliRunner().invoke(root, ["track", str(folder), "--to", "tensorboard", "--json"], catch_exceptions=False)
        assert json.loads(told.stdout)["lines"] == {"tensorboard": 6}
        assert in_tensorboard(folder) == {step: 10.0 - step for step in range(1, 6)}
    with pytest.raises(UserError, match=r"--to wanbd: must be one of .* did you mean .wandb."):
        CliRunner().invoke(root, ["track", str(folder), "--to", "wanbd"], catch_exceptions=False)


class Failing:
    """Fails at a line, at the end, or at the beginning."""

    where = "line"

    def __init__(self, folder: Path, step: int):
        if self.where == "beginning":
            raise ConnectionError("no server")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.where == "line" and step == 3:
            raise ConnectionError("no server")
        if self.where == "exit":
            raise SystemExit(1)

    def close(self) -> None:
        if self.where == "end":
            raise ConnectionError("no server")


class Remembering:
    """Keeps what it gets."""

    lines: list[tuple[int, dict[str, float]]] = []  # noqa: RUF012

    def __init__(self, folder: Path, step: int):
        type(self).lines = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.lines.append((step, dict(values)))

    def close(self) -> None: ...


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    trackers = registry("tracker")
    for name, tracker in (("failing", Failing), ("remembering", Remembering)):
        monkeypatch.setitem(trackers._entries, name, tracker)


@pytest.mark.parametrize("where", ["beginning", "line", "end", "exit"])
@pytest.mark.usefixtures("others")
def test_one_that_fails_is_named_once_and_the_others_lose_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(Failing, "where", where)
    said = train(folder, ("failing", "remembering"), range(1, 7))
    (line,) = said
    assert line.startswith("failing failed") and f"shoestring track {folder} --to failing" in line
    assert [step for step, _ in Remembering.lines] == [1, 2, 3, 4, 5, 6, 6]
    assert Remembering.lines[0][1] == {"loss": 9.0} and len(read_lines(folder / "metrics.jsonl")) == 7
    with pytest.raises(RunError if where != "exit" else SystemExit):
        copy_metrics(folder / "metrics.jsonl", ("failing", "remembering"), said.append)
    if where != "exit":
        assert len(Remembering.lines) == 7, "those after it are stored all the same"


def test_one_that_hangs_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Hanging:
        def log(self, step: int, values: Mapping[str, float]) -> None:
            released.wait(60)

        def close(self) -> None: ...

    monkeypatch.setattr("shoestring.track.trackers._MOST_WAITING", 5)
    tracker = Beside(Hanging())
    for step in range(3):
        tracker.log(step, {})
    tracker.close(0.05)
    assert tracker.failure == "it did not finish within 0.05 s"
    full = Beside(Hanging())
    for step in range(8):
        full.log(step, {})
    assert full.failure == "5 lines wait for it"
    full.close(0.05)
    released.set()


@pytest.mark.parametrize("name", REAL)
def test_a_library_that_is_missing_is_named_before_the_run_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = {"tensorboard": "torch.utils.tensorboard"}.get(name, name)
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtra, match=name):
        open_trackers([name], folder, 0)
