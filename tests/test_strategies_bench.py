"""The table of strategies: rows that are run anew beside rows that are kept, and seconds only of a quiet machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
import strategies
import strategy_tables


def row(setting: strategies.Setting, fields: dict[str, str], seed: int, loss: float) -> dict[str, Any]:
    stale = {"staleness_mean": 1.5, "staleness_max": 3} if setting.strategy == "async" else {}
    return {
        "seed": seed,
        "fields": fields,
        "batch": 64,
        "loss": loss + seed / 100,
        "seconds": 20.0,
        "training_seconds": 10.0 / setting.workers,
        "tokens": 1000,
        "sent_bytes": None,
        "staleness_mean": None,
        "staleness_max": None,
        "curve": [[1.0, 6.0], [2.0, loss]],
        "busy_cores": 0.1,
        "macro_f1": 0.5,
    } | stale


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were made, whose losses are made up."""
    found: list[str] = []

    def measured(setting: Any, fields: Any, seed: int, _: Path, name: str = "") -> dict[str, Any]:
        found.append(name or setting.run(seed))
        better = fields.get("parallel.sync_spacing") == "lr" and fields["train.lr"] == "6e-3"
        return row(setting, fields, seed, 4.0 if better else 5.0)

    monkeypatch.setattr(strategies, "measured", measured)
    monkeypatch.setattr(strategies, "macro_f1", lambda setting, *_: 0.25 * setting.workers)
    return found


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["strategies.py", "--out", str(out), *options])
    strategies.main()
    found: dict[str, Any] = json.loads((out / "strategies-cpu.json").read_text())
    return found


def test_only_these_rows_run_and_the_others_are_kept(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="run all settings first"):
        run(monkeypatch, tmp_path, "--only", "local 4")
    whole = run(monkeypatch, tmp_path, "--seeds", "2")
    assert len(ran) == 3 + 4 + 3 + 2 * len(strategies.SETTINGS)
    assert list(whole["results"]) == ["sync 1", "sync 2", "sync 4", "local 2", "local 4", "async 2", "async 4"]
    assert {each["loss"] for each in whole["results"]["local 4"]} == {4.0, 4.01}, "the best of what was tried"
    assert whole["results"]["async 4"][1]["macro_f1"] == 1.0
    assert whole["left_out"] == []
    ran.clear()
    kept = run(monkeypatch, tmp_path, "--seeds", "3", "--only", "local 4")
    assert ran == ["local-4-0", "local-4-1", "local-4-2"]
    assert len(kept["results"]["local 4"]) == 3
    assert {name: rows for name, rows in kept["results"].items() if name != "local 4"} == {
        name: rows for name, rows in whole["results"].items() if name != "local 4"
    }
    assert kept["tuning"] == whole["tuning"]
    for rows in (kept["results"]["local 2"], kept["results"]["local 4"]):
        rows[0]["fields"] = {"train.lr": "1e-3"}
    (tmp_path / "strategies-cpu.json").write_text(json.dumps(kept))
    ran.clear()
    again = run(monkeypatch, tmp_path, "--seeds", "1", "--only", "local 4")
    assert again["results"]["local 4"][0]["fields"] == {"train.lr": "1e-3"}, "as in the row that was there"
    ran.clear()
    assert "seconds" in run(monkeypatch, tmp_path, "--seeds", "1", "--only", "all")
    assert len(ran) == len(strategies.SETTINGS), "without trying settings again"


def test_what_there_was_no_time_for_is_named(ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, tmp_path, "--seeds", "1", "--minutes", "-1")
    assert len(found["left_out"]) == 2 * len(strategies.SETTINGS)
    again = run(monkeypatch, tmp_path, "--seeds", "1", "--only", "sync 1")
    assert len(again["left_out"]) == 2 * len(strategies.SETTINGS) - 2
    assert not any("sync 1" in each for each in again["left_out"])
    assert ran


def test_seconds_are_those_of_a_quiet_machine(ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, tmp_path)
    assert ran
    table = strategy_tables.strategies_table([found])
    assert (
        "| sync 2 | 64 | 3 | 5.010 ± 0.025 | 149.9 | +0.0% ± 0.0% | 0.500 ± 0.000 | – | – | 20.0 ± 0.0 | 200 | 2.00× |"
        in table
    )
    assert "| 1.50, 3 |" in table
    assert "images/strategies.svg" in table
    for each in found["results"]["sync 2"]:
        each["busy_cores"] = 1.5
    busy = strategy_tables.strategies_table([found])
    assert "| sync 2 | 64 | 3 | 5.010 ± 0.025 | 149.9 | +0.0% ± 0.0% | 0.500 ± 0.000 | – | – | – | – | – |" in busy
    assert "as the machine was busy: sync 2." in busy
    assert "local train.lr 6e-3, parallel.sync_every 5, parallel.sync_spacing lr (tried: lr 3e-3 6.000," in busy
    found["results"]["local 2"][0]["fields"] = {"train.lr": "4e-3"}
    assert "not the lowest" in strategy_tables.strategies_table([found])


def test_busy_cores_are_counted() -> None:
    assert 0 <= strategies.busy_cores(0.05) < 1000
