"""The table and the figure of drift take each base from its own record."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from benches import load_bench


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_bench("tuning_tables", monkeypatch)


def record(base: str, device: str, curves: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Overlaps of each language and seed after 1, 10, 50 and 100 steps."""

    def line(step: int, overlap: float) -> dict[str, float]:
        return {"step": step, "overlap": overlap, "overlap_top": 0.5, "overlap_kl": 2.0, "heldout_loss": 3.0}

    drawn = {
        language: [[line(step, value) for step, value in zip((1, 10, 50, 100), values)] for values in seeds]
        for language, seeds in curves.items()
    }
    machine = {"device_name": device, "versions": {"torch": "2.13"}}
    origin = {"machine": machine, "commit": "abc1234", "date": "2026-11-18", "command": "python bench/overlap.py"}
    return origin | {"results": {base: {"curves": drawn}}}


ON_CPU = record("stories", "a cpu", {"english": [[0.9, 0.8, 0.6, 0.4], [0.9, 0.8, 0.7, 0.6]]})
ON_GPU = record("wikipedia", "a gpu", {"english": [[0.9, 0.8, 0.7, 0.6]], "japanese": [[1.0, 0.0, 0.0, 0.0]]})


def test_each_base_is_of_its_record(tables: ModuleType) -> None:
    text = tables.overlap_table([ON_CPU, ON_GPU])
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("|")]
    assert {len(row) for row in rows} == {10}
    by_name = {(row[0], row[1]): row[2:] for row in rows[2:]}
    half = {name: row[4] for name, row in by_name.items()}
    assert half == {
        ("stories", "English"): "not within 100 steps in 1 of 2 runs",
        ("wikipedia", "English"): "not within 100 steps",
        ("wikipedia", "Japanese"): "5.5 steps",  # from 1 after step 1 to 0 after step 10
    }
    assert by_name["stories", "English"][1:4] == ["0.80 ± 0.00", "0.65 ± 0.07", "0.50 ± 0.14"]
    assert "*stories*: by `python bench/overlap.py` on a cpu" in text
    assert "*wikipedia*: by `python bench/overlap.py` on a gpu" in text


def test_a_base_in_two_records_is_refused(tables: ModuleType) -> None:
    with pytest.raises(SystemExit, match="stories: in two records of overlap"):
        tables.overlap_table([ON_CPU, ON_CPU])


def test_the_figure_has_a_panel_for_each_base(tables: ModuleType) -> None:
    panels = tables.overlap_figure([ON_CPU, ON_GPU])["hconcat"]
    assert [panel["title"] for panel in panels] == ["stories", "wikipedia"]
    values = [panel["layer"][0]["data"]["values"] for panel in panels]
    assert [{value["run"] for value in each} for each in values] == [
        {"english 0", "english 1"},
        {"english 0", "japanese 0"},
    ]
    assert [value["y"] for value in values[1] if value["run"] == "japanese 0"] == [1.0, 0.0, 0.0, 0.0]
