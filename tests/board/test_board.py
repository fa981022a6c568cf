"""The board without a browser: what it reads, what it thins out, and whom it answers."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from board_runs import FLOPS, TOKEN, add, make_run, make_sweep, served, steps

from shoestring.board.curves import Grid, Points, RunCurves, _mean_around
from shoestring.board.growing import GrowingLines
from shoestring.board.machine import parse_gpu
from shoestring.board.runs import Board, compare_fields
from shoestring.core.run_folder import RunFolder
from shoestring.report.verdicts import verdicts_of
from shoestring.track import LineFile


def test_a_line_is_read_once_and_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = GrowingLines(path)
    assert lines.read() == (False, [])
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    assert lines.read() == (True, [{"step": 1}])
    assert lines.read() == (False, [])
    with path.open("ab") as file:
        file.write(b'ss": 3}\nnot json\n[1]\n{"step": 4}\n')
    assert lines.read() == (False, [{"step": 2, "loss": 3}, {"step": 4}])
    assert lines.damaged == 2
    LineFile.rewound(path.with_name("other.jsonl"), 0)
    os.replace(path.with_name("other.jsonl"), path)
    path.write_bytes(b'{"step": 7}\n')
    assert lines.read() == (True, [{"step": 7}]) and lines.damaged == 0
    path.unlink()
    assert lines.read() == (True, [])


def test_every_bucket_keeps_its_extremes() -> None:
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.uniform(1, 1000, 5000)), rng.normal(size=5000)
    y[1234] = 50.0
    for log in (False, True):
        grid = Grid(1.0, 1000.0, 40, log)
        found = grid.extremes(Points(x, y))
        edges = np.geomspace(1, 1000, 41) if log else np.linspace(1, 1000, 41)
        for number in range(40):
            inside = y[(x >= edges[number]) & (x < edges[number + 1])]
            pair = found[2 * number : 2 * number + 2]
            assert sorted(pair) == [inside.min(), inside.max()] if len(inside) else np.isnan(pair).all()
        assert np.nanmax(found) == 50.0
        assert (np.diff(grid.x) > 0).all() and edges[0] < grid.x[0] and grid.x[-1] < edges[-1]
    assert np.isnan(Grid(0.0, 1.0, 10, False).extremes(Points(np.array([5.0]), np.array([1.0])))).all(), "outside"


def test_smoothing_is_a_mean_around_each_value() -> None:
    values = np.random.default_rng(1).normal(size=50)
    found = _mean_around(values, 9)
    for place in range(50):
        reach = min(4, place, 49 - place)
        assert found[place] == pytest.approx(values[place - reach : place + reach + 1].mean())
    assert _mean_around(values, 1) is values


def test_seconds_of_sessions_add_up_and_steps_that_were_repeated_count_once(tmp_path: Path) -> None:
    metrics, timings = tmp_path / "m", tmp_path / "t"
    add(metrics, *({"step": step, "tokens": 10 * step, "loss": 1.0} for step in (10, 20, 30, 40)))
    add(
        timings,
        {"step": 0, "elapsed": 1.0, "event": "start"},
        *({"step": step, "elapsed": step / 10 + 1, "tokens_per_second": 5.0} for step in (10, 20, 30)),
        {"step": 20, "elapsed": 0.5, "event": "start"},  # killed after step 30, and resumed after step 20
        *({"step": step, "elapsed": step / 5, "tokens_per_second": 5.0} for step in (30, 40)),
        {"step": 40, "elapsed": 9.0, "event": "forecast", "loss": 2.0, "low": 1.0, "high": 3.0},
    )
    curves = RunCurves(metrics, timings)
    assert curves.read() and not curves.read()
    assert curves.points("seconds", None)["training"].x.tolist() == [2.0, 3.0, 4.0 + 6.0, 4.0 + 8.0]
    assert curves.points("flops", 2.0)["training"].x.tolist() == [200.0, 400.0, 600.0, 800.0]
    assert np.isnan(curves.points("flops", None)["training"].x).all()
    assert curves.seconds == 13.0 and curves.step == 40
    assert curves.forecast is not None and curves.forecast.low == 1.0


def test_a_run_says_how_it_is(tmp_path: Path) -> None:
    make_run(tmp_path, "finished", until=100, done=True)
    make_run(tmp_path, "group/killed", until=30)
    stopped = make_run(tmp_path, "stopped", until=40)
    add(stopped.timings, {"step": 40, "elapsed": 50.0, "event": "stopped", "parts": {}})
    make_run(tmp_path, "planned")
    damaged = make_run(tmp_path, "damaged", until=100, done=True)
    damaged.done.write_text('{"schema": "shoestring.outc')
    alive = make_run(tmp_path, "alive", until=50)
    board = Board(tmp_path)
    with alive.lock():
        board.refresh()
        assert {row["state"] for row in board.rows()} == {"done", "reading"}, "lines are read next"
        board.refresh()
    rows = {row["name"]: row for row in board.rows()}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {
        "finished": "done",
        "group/killed": "died",
        "stopped": "stopped",
        "planned": "planned",
        "damaged": "died",
        "alive": "running",
    }
    assert "DONE" in rows["damaged"]["problems"][0]
    now = rows["alive"]
    assert (now["step"], now["total"], now["loss"]) == (50, 100, pytest.approx(5.1 - 40 / 50))
    assert now["seconds_left"] == pytest.approx(50 * 1.0 + 2.0), "a second per step, and the finish"
    assert now["expected_seconds"] == pytest.approx(52.0 + 52.0)
    assert rows["finished"]["forecast"]["loss"] == 3.2
    version = board.version
    board.refresh()
    assert [row["name"] for row in board.rows(version)] == ["alive"], "whose process has let it go"
    assert board.rows(version)[0]["state"] == "died"
    for path in (stopped.path / "recipe.toml",):
        path.unlink()
    board.refresh()
    assert board.removed(version) == ["stopped"] and "stopped" not in board.runs


def test_a_process_on_another_host_counts_while_it_writes(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "far", until=10)
    lock = tmp_path / ".far.lock"
    lock.write_text(json.dumps({"pid": 1, "host": socket.gethostname() + "-other", "since": "now"}))
    board = Board(tmp_path)
    board.refresh()
    board.refresh()
    assert board.rows()[0]["state"] == "running"
    os.utime(folder.timings, (0, 0))
    board.refresh()
    assert board.rows()[0]["state"] == "died"


def test_two_recipes_field_by_field(tmp_path: Path) -> None:
    for name, lr in (("a", 1e-3), ("b", 2e-3)):
        make_run(tmp_path, name, lr=lr)
    board = Board(tmp_path)
    board.refresh()
    found = compare_fields(board.runs["a"], board.runs["b"])
    assert found == [("run.name", "a", "b"), ("train.lr", "0.001", "0.002")]


def test_a_gpu_that_does_not_say_all() -> None:
    found = parse_gpu("NVIDIA H200, 1024, 143771, 97, [N/A]")
    assert found["used_bytes"] == 1 << 30 and found["utilisation"] == 0.97 and found["celsius"] is None


def test_only_who_has_the_token_is_answered(tmp_path: Path) -> None:
    make_run(tmp_path, "one", until=40)
    with served(tmp_path) as board:
        for path in ("/", "/api/runs", "/api/events", "/static/board.js", "/?token=wrong"):
            assert board.get(path)[0] == 403, path
        status, headers, page = board.get(f"/?token={TOKEN}")
        assert status == 200 and b"<title>Shoestring" in page
        assert "script-src 'self'" in headers["content-security-policy"]
        assert board.get("/static/uPlot.iife.min.js")[0] == 200
        for path in ("/static/../server.py", "/static/server.py", "/api/run?run=../../etc", "/api/run"):
            assert board.get(path)[0] == 404, path
        for query in ("by=x", "by=step&low=3&high=2", "by=step&low=nan&high=2", "by=step&smooth=x"):
            assert board.get(f"/api/curves?run=one&{query}")[0] == 400, query
        assert [row["name"] for row in board.json("/api/runs")["runs"]] == ["one"]
        found = board.json("/api/curves?run=one&by=flops&buckets=20")
        places = [x for x, y in zip(found["x"], found["runs"][0]["heldout"], strict=True) if y is not None]
        assert places[0] == pytest.approx(20 * 128 * FLOPS, rel=0.1)
        details = board.json("/api/run?run=one")
        assert details["samples"][0][1]["text"].startswith("once <b>upon")
        assert board.json("/api/machine")["cores"] == os.cpu_count()


def test_the_command_prints_its_address_and_the_tunnel(tmp_path: Path) -> None:
    """In a process of its own, which needs no torch."""
    make_run(tmp_path, "one", until=40)
    code = (
        "import sys, shoestring.board.server as server\n"
        "server.serve = lambda app, listening: print('torch' in sys.modules)\n"
        "from shoestring.cli.root import root\n"
        "root.main(['board', sys.argv[1]], prog_name='shoestring')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    first, second, _, torch = ran.stdout.splitlines()
    port = first.partition("127.0.0.1:")[2].partition("/")[0]
    assert first.startswith("board: http://127.0.0.1:") and "/?token=" in first
    assert f"ssh -N -L {port}:127.0.0.1:{port} " in second and torch == "False"


def test_a_folder_that_is_a_run_is_shown_alone(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "one", until=40)
    steps(RunFolder(folder.path), 41, 45)
    board = Board(folder.path)
    board.refresh()
    assert list(board.runs) == ["one"]


def grid_sweep(root: Path) -> None:
    """Two rates, two widths, two seeds: one setting has a run on its way, one has none that began."""
    runs: dict[str, dict[str, Any]] = {}
    for lr, width, seed in itertools.product((1e-3, 1e-2), (16, 32), (0, 1)):
        name = f"lr{lr}w{width}s{seed}"
        runs[name] = {"train.lr": lr, "model.width": width, "run.seed": seed}
        if (lr, width) != (1e-2, 32):
            done = (lr, width, seed) != (1e-2, 16, 1)
            make_run(root / "runs/grid", name, until=20, done=done, loss=lr + 1 / width + 0.1 * seed)
    make_sweep(root, "grid", runs)


def test_a_sweep_has_its_settings_best_first(tmp_path: Path) -> None:
    """Means and errors by hand; a run on its way does not count where another seed is done."""
    grid_sweep(tmp_path)
    board = Board(tmp_path / "runs")
    board.refresh()
    board.refresh()
    (found,) = board.sweep_rows()
    assert (found["name"], found["runs"], found["fields"]) == ("sweeps/grid", 8, ["train.lr", "model.width"])
    assert found["states"] == {"done": 5, "died": 1, "waiting": 2}
    told = board.sweeps["sweeps/grid"].details(board.rows_by_folder(), "loss")
    values = [(each["values"]["train.lr"], each["values"]["model.width"]) for each in told["settings"]]
    assert values == [(1e-2, 16), (1e-3, 32), (1e-3, 16), (1e-2, 32)]
    means = [each["mean"] for each in told["settings"]]
    assert means[:3] == pytest.approx([1e-2 + 1 / 16, 1e-3 + 1 / 32 + 0.05, 1e-3 + 1 / 16 + 0.05]) and means[3] is None
    assert told["settings"][1]["error"] == pytest.approx(0.05) and told["settings"][0]["error"] is None
    assert told["settings"][0]["shown"] == ["grid/lr0.01w16s0", "grid/lr0.01w16s1"]
    fast = board.sweeps["sweeps/grid"].details(board.rows_by_folder(), "tokens_per_second")
    assert fast["higher"] and fast["settings"][0]["mean"] == 128.0


def test_sweeps_of_other_runs_and_damaged_ones(tmp_path: Path) -> None:
    grid_sweep(tmp_path)
    make_sweep(tmp_path, "elsewhere", {"a": {"train.lr": 1.0}})
    (tmp_path / "runs/other").mkdir()
    assert Board(tmp_path / "runs/other").sweep_rows() == []
    board = Board(tmp_path / "runs")
    board.refresh()
    assert [row["name"] for row in board.sweep_rows()] == ["sweeps/elsewhere", "sweeps/grid"], "one waits for its runs"
    version = board.version
    (tmp_path / "sweeps/grid/index.json").write_text("{")
    board.refresh()
    assert board.version > version and "index.json" in board.sweep_rows()[1]["problem"]
    shutil.rmtree(tmp_path / "sweeps/grid")
    board.refresh()
    assert [row["name"] for row in board.sweep_rows()] == ["sweeps/elsewhere"]


def test_what_is_asked_of_sweeps_is_checked(tmp_path: Path) -> None:
    grid_sweep(tmp_path)
    with served(tmp_path / "runs") as board:
        assert board.get("/api/sweeps")[0] == 403
        board.get(f"/?token={TOKEN}")
        while not board.json("/api/sweeps")["sweeps"]:  # it looks for the first time
            time.sleep(0.02)
        assert board.json("/api/sweep?sweep=sweeps/grid&by=seconds")["by"] == "seconds"
        assert board.get("/api/sweep?sweep=../grid")[0] == 404
        assert board.get("/api/sweep?sweep=sweeps/grid&by=nonsense")[0] == 400


def test_a_run_that_has_learned_nothing_says_so(tmp_path: Path) -> None:
    """The loss of counting is in the timings; the run above it has the verdict that the run itself prints."""
    folder = make_run(tmp_path, "run", until=20)
    board = Board(tmp_path)
    board.refresh()
    assert board.runs["run"].details()["row"]["verdicts"] == []
    add(folder.timings, {"step": 20, "elapsed": 23.0, "event": "counted", "loss": 4.0})
    board.refresh()
    board.refresh()
    (said,) = board.runs["run"].details()["row"]["verdicts"]
    assert said["kind"] == "learned_nothing" and "reach 4.000" in said["text"]
    assert [asdict(verdict) for verdict in verdicts_of(folder)] == [said]
