"""The benchmarks of Swift: what is summed up of rows, timed runs that learn, and tables without a record."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoestring.core import recipe_file

BENCH = Path(__file__).resolve().parent.parent / "bench"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    for other in ("ablation", "deadline", "record", "timed", name):
        monkeypatch.delitem(sys.modules, other, raising=False)
    return importlib.import_module(name)


ROWS: dict[str, Any] = {
    "llama:0.001": {"loss": 1.3, "wall": 99.0},
    "llama:0.002": {"loss": 1.2, "wall": 100.0},
    "swift:0.1": {"loss": 1.4, "wall": 10.0},
    "swift:0.4": {"loss": 1.1, "wall": 40.0},
    "swift:1": {"loss": 1.05, "wall": 101.0},
    "peer:60:0.04": {"loss": 1.25, "wall": 60.0, "lr": 0.04},
    "peer:60:0.08": {"loss": 1.15, "wall": 60.0, "lr": 0.08},
    "peer:5:0.08": {"loss": 2.0, "wall": 5.0, "lr": 0.08},
}


def test_seconds_to_the_loss_of_the_best_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load("time_to_loss", monkeypatch)
    found = bench.at_target(ROWS, 1.0)
    assert (found["target"], found["llama_seconds"], found["seconds"], found["share"]) == (1.2, 100.0, 40.0, 0.4)
    # 0.4, 0.2 and 0.1 above the least: half-way in logs, so √(10 · 40)
    assert found["on_line"] == pytest.approx(20.0)
    assert "seconds" not in bench.at_target({**ROWS, "llama:0.004": {"loss": 1.01, "wall": 100.0}}, 0.0)
    assert bench.at_target({}, 0.0) == {}


def test_the_longest_swift_in_time_stands_beside_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load("time_to_loss", monkeypatch)
    assert bench.beside_peer(ROWS) == {
        "60": {"peer": 1.15, "lr": 0.08, "swift": 1.1},
        "5": {"peer": 2.0, "lr": 0.08, "swift": None},
    }


def test_tables_of_records_and_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    time_to_loss, tables = (load(name, monkeypatch) for name in ("time_to_loss", "swift_tables"))
    assert tables.ablation_table([]) == tables.time_to_loss_table([]) == tables.NONE
    rows = {name: run | {"commit": "abc", "parts": "qk_norm"} for name, run in ROWS.items()}
    found = {"rows": rows, "least": 1.0, "beside": time_to_loss.beside_peer(rows)} | time_to_loss.at_target(rows, 1.0)
    told = {"machine": {"device_name": "GPU"}, "commit": "c", "command": "python x", "date": "today"}
    text = tables.time_to_loss_table([told | {"results": {"stories": found}}])
    assert "| stories | 0.200 in 100 s | 2 | qk_norm | 40 s (on a line between two: 20 s) | 40% |" in text
    assert "5 s: 1.000 and –; 60 s: 0.150 and 0.100" in text
    run = {"lr": 0.01, "steps": 10, "wall_step_seconds": 0.002, "commit": "abc"}
    variant = {"runs": [run], "loss": 1.5, "error": None, "seeds": 1, "lr": 0.01}
    assert "| all parts | 1.500 | 1 | 0.01 | 10 | 2.0 |" in tables.ablation_table(
        [told | {"results": {"tiny": {"all parts": variant}}}]
    )


def test_an_ablation_of_a_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = load("ablation", monkeypatch)
    shape = {"width": 16, "layers": 1, "heads": 1, "length": 16, "batch": 2, "steps": 2, "rows": 4, "seeds": 1}
    small = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    told = ["--stream", "markov:50", "--only", "as chosen", "with convolutions", "no pairs", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["ablation.py", *small, *told])
    bench.main()
    results = json.loads((tmp_path / "ablation-cpu.json").read_text())["results"]
    found = results["16 × 1, markov:50, 2 rows of 16, 2 steps"]
    chosen, mixed, alone = (found[name]["runs"][0]["parameters"] for name in told[3:6])
    assert mixed - chosen == 3 * (2 * 16 + 16), "factors of keys and values, and of what the MLP reads"
    assert chosen - alone == 16_384 * 16


def test_a_timed_run_learns_for_so_many_seconds_or_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = load("timed", monkeypatch)
    values = {
        "run": {"name": "timed", "folder": str(tmp_path / "runs")},
        "budget": {"steps": 1},
        "data": {"source": "stories", "documents": 50, "tokenizer": "bytes", "length": 32, "folder": str(tmp_path)},
        "model": {"family": "swift", "width": 16, "layers": 1, "heads": 1},
        "train": {"batch": 8, "lr": 0.01, "optimizer": "muon", "schedule": "cooldown"},
        "evaluate": {"rows": 8},
    }
    recipe = recipe_file.build(values, "test")
    corpus = timed.rows_of(recipe)
    found = timed.timed_run(recipe, corpus, seconds=0.2)
    assert found.seconds >= 0.2 and found.steps >= 1
    many, none, same = (timed.timed_run(recipe, corpus, steps=steps) for steps in (40, 1, 1))
    assert (many.steps, none.steps) == (40, 1) and many.loss < none.loss == same.loss
    rate = timed.law_lr(recipe, 100)
    assert timed.timed_run(recipe, corpus, steps=1, factor=0.5).lr == pytest.approx(rate / 2)
