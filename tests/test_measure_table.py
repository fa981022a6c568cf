"""The table of `bench/measure.py` says what its record says."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benches import load_bench

ROOT = Path(__file__).resolve().parent.parent
ORIGIN = {"commit": "abc1234", "date": "2026-11-15"}
MACHINE = {"device": "cuda", "device_name": "a gpu", "versions": {"torch": "2.13"}}
OURS = {"largest": 1940, "trials": 4, "out_of_memory": 0, "trial_seconds": 6.25}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, reading records from a folder of the test's own."""
    module = load_bench("tables", monkeypatch)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    return module


def run(used: float, seconds: float, memory: float | None, trials: int) -> dict[str, Any]:
    shares = {"used_share": used, "budget_share": used - 0.01, "seconds_error": seconds, "memory_error": memory}
    return shares | {"step_error": 2 * seconds, "trials": trials, "out_of_memory": 0}


def test_the_measure_table_has_every_finder_and_the_worst_of_the_runs(tables: ModuleType, tmp_path: Path) -> None:
    peers = {
        "accelerate": {"largest": 1000, "trials": 24, "out_of_memory": 23, "seconds": 90.04},
        "lightning power": {"error": "no end within 540 s"},
    }
    results = {
        "transformers-gpt2": ORIGIN | {"ours": OURS, "true": {"largest": 2000}, "seconds": {"ours": 9.0}} | peers,
        "masked-lm": ORIGIN | {"ours": OURS | {"largest": None}, "seconds": {}},
        "runs:masked-lm": ORIGIN
        | {"budget": "3m", "seconds": 9.0, "runs": [run(0.97, 0.01, None, 4), run(0.955, -0.04, 0.02, 3)]},
        "runs:gpt2-124m": ORIGIN | {"budget": "3m", "seconds": 9.0, "runs": [{"error": "no", "wall_seconds": 1.0}]},
    }
    record = {"machine": MACHINE, "commit": "x", "date": "y", "results": results}
    (tmp_path / "results/measure-gpu.json").write_text(json.dumps(record))
    table = tables.measure_table()
    assert "| transformers-gpt2 | **shoestring** | 1,940 | 2,000 | 97.0% | 4 | 0 | 6.2 |\n" in table
    assert "| transformers-gpt2 | accelerate | 1,000 | 2,000 | 50.0% | 24 | 23 | 90.0 |\n" in table
    assert "| transformers-gpt2 | lightning power | – (no end within 540 s) | | | | | |\n" in table
    assert "| masked-lm | **shoestring** | – | – | – | 4 | 0 | 6.2 |\n" in table
    assert "| masked-lm, 3m | 2 | 95.5% to 97.0% | 94.5% to 96.0% | -4.0% | +2.0% | -8.0% | 4 | 0 |\n" in table
    assert "| gpt2-124m, 3m | 1, 1 failed | – | – | – | – | – | – | – |\n" in table
    assert table.count("abc1234, 2026-11-15") == 2


def test_without_a_record_there_is_no_table(tables: ModuleType) -> None:
    assert tables.measure_table() == ""
