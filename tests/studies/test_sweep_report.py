"""What came of a sweep: rows, means over seeds, the heat map and the files, on runs whose losses are planted."""

from __future__ import annotations

import csv
import json
import math
import statistics
from pathlib import Path

import pytest

from shoestring.core.errors import UserError
from shoestring.core.family import network_cost
from shoestring.core.records import Machine, Plan, Point, Profile
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder, with_sweeps
from shoestring.report import page
from shoestring.runs.reporter import Reporter
from shoestring.studies.sweep.grid import Grid, Planned, read_grid
from shoestring.studies.sweep.report import figures_of, heat_cells, run_table, setting_table, summary, write_report
from shoestring.studies.sweep.results import POINTS, read_report, thin_lines, write_csv, write_parquet
from shoestring.studies.sweep.survey import keep, survey, table

MACHINE = Machine(device="cpu", device_name="x", threads=1, memory_bytes=None, system="x", python="3", versions={})
STEPS = 40


def planted(run: Planned) -> float:
    """The loss of a run."""
    lr, width, seed = run.values["train.lr"], run.values["model.width"], run.values["run.seed"]
    return 3.0 + 0.1 * abs(math.log10(lr / 3e-3)) - 0.001 * width + 0.01 * (seed - 1) ** 2


def finish(run: Planned) -> None:
    """Write the folder of a run as if it were done."""
    recipe, loss = run.recipe, planted(run)
    own, tokens = RunFolder.of(recipe), recipe.batch * recipe.data.length
    own.path.mkdir(parents=True, exist_ok=True)
    own.claim(recipe)
    with own.metrics.open("w") as file:
        for step in range(1, STEPS + 1):
            file.write(json.dumps({"step": step, "tokens": step * tokens, "loss": loss, "lr": 0.1}) + "\n")
            if step % 10 == 0:
                file.write(json.dumps({"step": step, "heldout_loss": loss + 4 - step / 10}) + "\n")
    own.timings.write_text(
        '{"step": 0, "elapsed": 1.0, "event": "start"}\n{"step": 20, "elapsed": 3.0}\n'
        '{"step": 20, "elapsed": 2.0, "event": "start"}\n{"step": 40, "elapsed": 6.0}\n'
    )
    cost = network_cost(recipe.model, 100, recipe.data.length)
    point = Point(batch=4, seconds=0.1, slowest_seconds=0.1, peak_bytes=None)
    Profile(
        machine=MACHINE, workload=recipe.workload, length=recipe.data.length, points=(point,), setup_seconds=1.0,
        update_seconds=0.0, validate_seconds_per_row=0.0, checkpoint_seconds=0.0, checkpoint_bytes=1,
        available_bytes=None, stopped="", cost=cost,
    ).write(own.profile)  # fmt: skip
    Plan(binding="steps", steps=STEPS, seconds=8.0).write(own.plan)
    Evaluation(
        step=STEPS, rows=8, tokens=99, loss=loss, perplexity=math.exp(loss), bits_per_byte=None,
        loss_by_position=(loss,), baselines={},
    ).write(own.evaluation)  # fmt: skip
    Outcome(
        steps=STEPS, tokens=STEPS * tokens, seconds=9.0, segments=2, tokens_per_second=1.0, disk_bytes=1,
        peak_bytes=None, loss=loss, shortened=None,
    ).write(own.done)  # fmt: skip


@pytest.fixture
def sweep(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SweepFolder, Grid]:
    """Eighteen runs, of which all but the last one are done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoestring.studies.sweep.survey.crowd", lambda *_: None)  # they would take seconds
    monkeypatch.setattr("shoestring.studies.sweep.survey.fly", lambda *_: None)
    grid = read_grid(tiny, (), ["train.lr=1e-3,3e-3,1e-2", "model.width=16,32"], seeds=3)
    found = survey(grid, Reporter())
    keep(found)
    for run in grid.runs[:-1]:
        finish(run)
    return found.folder, grid


def test_settings_are_means_over_seeds_with_their_errors(sweep: tuple[SweepFolder, Grid]) -> None:
    folder, grid = sweep
    report = read_report(folder)
    assert len(report.rows) == 18
    assert [row.state for row in report.rows] == ["done"] * 17 + ["waiting"]
    losses = [row.results["loss"] for row in report.rows[:-1]]
    assert losses == sorted(losses), "best first"
    for setting in report.settings:
        same = [
            run for run in grid.runs[:-1] if all(run.values[name] == setting.values[name] for name in report.fields)
        ]
        known = list(map(planted, same))
        assert setting.mean == pytest.approx(statistics.fmean(known))
        assert setting.error == pytest.approx(statistics.stdev(known) / math.sqrt(len(known)))
    assert report.settings[0].values == {"train.lr": 3e-3, "model.width": 32}
    head, rows = setting_table(report)
    assert head == ("train.lr", "model.width", "loss", "seeds", "time", "state")
    assert rows[0][:2] == ("0.003", "32") and "±" in rows[0][2]
    assert "17 done, 1 waiting" in summary(report, folder)


def test_any_field_and_any_result_can_be_asked_for(sweep: tuple[SweepFolder, Grid]) -> None:
    folder, _ = sweep
    report = read_report(folder, by="seconds", columns=["model.layers", "hmm.states"])
    assert report.rows[0].values["model.layers"] == 1
    assert report.rows[0].values["hmm.states"] is None, "of a section that these recipes do not have"
    assert "model.layers" in run_table(report)[0]
    assert "accuracy" not in run_table(report)[0]
    assert "accuracy" in run_table(read_report(folder, columns=["accuracy"]))[0]
    with pytest.raises(UserError, match=r"--by los: .*loss"):
        read_report(folder, by="los")
    with pytest.raises(UserError, match=r"--columns model\.widht"):
        read_report(folder, columns=["model.widht"])


@pytest.mark.parametrize(("against", "ends"), [("tokens", 40 * 4 * 32), ("seconds", 3.0 + 6.0), ("flops", None)])
def test_curves_are_over_what_is_asked_for(sweep: tuple[SweepFolder, Grid], against: str, ends: float | None) -> None:
    report = read_report(sweep[0], against=against)  # type: ignore[arg-type]
    row = report.rows[0]
    loss = row.results["loss"]
    assert loss is not None
    assert [found for _, found in row.curve] == pytest.approx([loss + 3, loss + 2, loss + 1, loss])
    assert row.curve[-1][0] == pytest.approx(ends if ends is not None else row.results["flops"])


def test_the_heat_map_has_the_best_of_the_other_fields(sweep: tuple[SweepFolder, Grid]) -> None:
    report = read_report(sweep[0])
    cells = {(cell.x, cell.y): cell.value for cell in heat_cells(report, "train.lr", "model.width")}
    assert len(cells) == 6
    by_width = {cell.x: cell.value for cell in heat_cells(report, "train.lr", "train.lr")}
    for lr, value in by_width.items():
        assert value == min(cells[lr, width] for width in (16, 32))  # type: ignore[type-var]
    assert len(figures_of(report)) == 3
    with pytest.raises(UserError, match="is not swept"):
        figures_of(report, ("train.lr", "train.batch"))


def test_the_files_hold_what_the_tables_show(
    sweep: tuple[SweepFolder, Grid], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = sweep
    monkeypatch.setattr(page, "svg", lambda _: "<svg/>")  # its library takes seconds to begin
    report = read_report(folder)
    write_csv(report, folder.table)
    write_parquet(report, tmp_path / "runs.parquet")
    write_report(report, folder)
    with folder.table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == [row.name for row in report.rows]
    assert float(rows[0]["loss"]) == report.rows[0].results["loss"]
    assert rows[-1]["seconds"] == "", "not known"
    from pyarrow import parquet  # type: ignore[import-untyped]

    table = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert [row["train.lr"] for row in table] == [float(row["train.lr"]) for row in rows]
    assert table[-1]["loss"] is None
    text = folder.report.read_text()
    assert text.count("class=sortable") == 2 and "<svg/>" in text and report.rows[0].name in text


def test_runs_are_surveyed_by_their_folders(tiny: Path, sweep: tuple[SweepFolder, Grid]) -> None:
    folder, grid = sweep
    done = survey(grid, Reporter())
    assert [run.name for run in done.to_do] == [grid.runs[-1].name]
    other = survey(
        read_grid(tiny, ["budget.steps=41"], ["train.lr=1e-3,3e-3,1e-2", "model.width=16,32"], seeds=3), Reporter()
    )
    problem = other.problem(other.index.runs[0])
    assert problem is not None and "budget.steps was 40, is now 41" in problem
    assert table(other)[0][1] == "changed"
    assert [run.name for run in other.to_do] == [grid.runs[-1].name], "the one that has not begun"
    finished = [RunFolder.of(recipe).path.resolve() for recipe in grid.recipes[:-1]]
    assert [path.resolve() for path in with_sweeps([folder.path])] == finished
    assert with_sweeps([tiny]) == [tiny]
    fewer = survey(read_grid(tiny, (), ["train.lr=1e-3,3e-3", "model.width=16,32"], seeds=3), Reporter())
    (line,) = keep(fewer)
    assert "no longer part of the sweep" in line and "tiny-lr0.01-width16-seed0" in line


def test_thin_lines_keep_the_ends_and_skip_what_is_incomplete(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(f'{{"step": {step}, "tokens": 1}}\n{{"step": {step}}}\n' for step in range(999)) + '{"st')
    found = thin_lines(file, b'"tokens"')
    assert len(found) == POINTS
    assert (found[0]["step"], found[-1]["step"]) == (0, 998)
    assert thin_lines(tmp_path / "absent", b"x") == []
