"""What a run says of itself while it trains, and what it leaves in DONE."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from profiles import write_profile

from shoestring.cli.root import root
from shoestring.core.clock import Clock
from shoestring.core.recipe_file import load
from shoestring.core.records import Profile
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.report.verdicts import verdicts_of
from shoestring.runs.plan import plan_task
from shoestring.runs.reporter import Reporter, TrainingProgress
from shoestring.runs.runner import run
from shoestring.runs.task import task_of
from shoestring.runs.watch import Notes, Watch
from shoestring.track import LineFile
from shoestring.training.checkpoint import State
from shoestring.training.schedule import Schedule

REPORT: Any = SimpleNamespace()


def overfits(path: Path, until: int) -> None:
    """Write the metrics of a run whose held-out loss turns at step 40 of 100."""
    lines: list[dict[str, float]] = []
    for step in range(1, until + 1):
        lines.append({"step": step, "loss": 3 - step / 100, "lr": 1e-3, "grad_norm": 1.0})
        if step % 10 == 0:
            lines.append({"step": step, "heldout_loss": 3 + abs(step - 40) / 100, "heldout_error": 0.02})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def after(step: int) -> State:
    return State(recipe="", data="", schedule=Schedule(total=100), step=step)


def test_a_verdict_is_said_when_it_first_holds_and_not_again(tiny: Path, tmp_path: Path) -> None:
    said: list[tuple[int, str]] = []
    metrics, now = tmp_path / "metrics.jsonl", 0
    watch = Watch(load(tiny), metrics, lambda text: said.append((now, text)))
    for now in range(1, 81):
        overfits(metrics, now)
        assert watch(after(now), REPORT) == after(now)
    ((when, text),) = said
    assert 50 <= when <= 55 and "Overfitting since step 40" in text
    resumed = Watch(load(tiny), metrics, lambda text: said.append((now, text)))
    for now in range(81, 101):
        overfits(metrics, now)
        resumed(after(now), REPORT)
    assert len(said) == 1


def test_a_run_says_once_that_its_steps_are_not_recorded(tiny: Path, tmp_path: Path) -> None:
    said: list[str] = []
    reasons = iter([None, *["it waits"] * 99])
    watch = Watch(load(tiny), tmp_path / "metrics.jsonl", said.append, unrecorded=lambda: next(reasons))
    for now in range(1, 101):
        watch(after(now), REPORT)
    assert said == ["steps could not be recorded as CUDA graphs, so each takes longer: it waits"]


@pytest.mark.parametrize(("counted", "kinds"), [(2.99, ["learned_nothing"]), (3.1, []), (None, [])])
def test_a_run_that_is_not_below_the_frequencies_of_tokens_says_so_before_it_ends(
    tiny: Path, tmp_path: Path, counted: float | None, kinds: list[str]
) -> None:
    """Its held-out loss is 3.0 ± 0.02 from the first evaluation on."""
    said: list[tuple[int, str]] = []
    metrics, timings, asked, now = tmp_path / "metrics.jsonl", LineFile(tmp_path / "timings.jsonl"), list[int](), 0
    lines: list[dict[str, float]] = [
        {"step": n, "heldout_loss": 3.0, "heldout_error": 0.02} for n in range(10, 101, 10)
    ]

    def count() -> float | None:
        asked.append(now)
        return counted

    watch = Watch(load(tiny), metrics, lambda text: said.append((now, text)), Notes(timings, Clock()), count)
    for now in range(1, 101):
        metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines if line["step"] <= now))
        watch(after(now), REPORT)
    assert len(asked) == 1 and 40 <= asked[0] <= 45 and [when for when, _ in said] == asked * len(kinds)
    assert all("Nothing learned beyond counting by step 40" in text and "2.990" in text for _, text in said)
    folder = RunFolder(tmp_path)
    folder.recipe.write_text(tiny.read_text())
    assert [verdict.kind for verdict in verdicts_of(folder)] == kinds, "on the page, while it trains"


def test_the_forecast_begins_after_a_tenth_and_is_by_the_schedule(tiny: Path, tmp_path: Path) -> None:
    """A run at a constant rate ends lower than one that is cut, by the same lines."""
    metrics, recipe = tmp_path / "metrics.jsonl", load(tiny, ["train.schedule=constant", "train.warmup=0"])
    lines: list[dict[str, float]] = [
        {"step": n, "loss": 2 + 3 * n**-0.4, "lr": recipe.train.lr, "grad_norm": 1.0} for n in range(1, 101)
    ]
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, {"step": 100, "heldout_loss": 2.5}]))
    found = []
    for total in (2000, 1000, 150):
        watch = Watch(recipe, metrics, lambda _: None)
        watch(replace(after(100), schedule=Schedule(total=total)), REPORT)
        found.append(watch.forecast)
    early, long, short = found
    assert early is None and long is not None and short is not None
    assert long.loss < short.loss < 2.5
    assert long.step == short.step == 100
    with metrics.open("a") as file:
        file.write(json.dumps({"step": 100, "event": "overfitting", "best": 50}) + "\n")
    watch = Watch(recipe, metrics, lambda _: None)
    watch(replace(after(100), schedule=Schedule(total=1000)), REPORT)
    assert watch.forecast is None, "it went back to earlier weights"


class Listener(Reporter):
    """Keeps the last progress."""

    progress: TrainingProgress | None = None

    def training(self, progress: TrainingProgress) -> None:
        self.progress = progress


def test_done_has_the_verdicts_and_the_next_plan_learns_the_loss(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run, so short that it learns nothing beyond counting."""
    write_profile(tiny)
    monkeypatch.chdir(tiny.parent)
    listener = Listener()
    finished = run(load(tiny, ["train.lr=1e-7", "evaluate.every=0.1"]), listener, Clock(0.0))
    assert finished is not None
    folder = RunFolder.of(load(tiny))
    outcome = Outcome.read(folder.done)
    assert outcome == finished.outcome
    assert [verdict.kind for verdict in outcome.verdicts] == ["learned_nothing", "noise"]
    assert outcome.forecast is not None and outcome.forecast.step == 12, "after a fifth nothing is known"
    assert outcome.forecast.low <= outcome.loss <= outcome.forecast.high, "nothing moves"
    assert listener.progress is not None and listener.progress.forecast is not None
    done = CliRunner().invoke(root, ["report", str(folder.path), "--json"])
    told = json.loads(done.stdout.splitlines()[-1])
    assert [verdict["kind"] for verdict in told["verdicts"]] == ["learned_nothing", "noise"]
    assert "Learned nothing beyond counting" in done.stderr
    profile = Profile.read(folder.profile)
    again = plan_task(task_of(load(tiny, ["run.name=again"])), profile)
    assert again.loss == pytest.approx(outcome.loss, rel=0.02)
    low, high = again.intervals["loss"]
    assert low < outcome.loss < high
    (line,) = [line for line in again.lines if line.quantity == "held-out loss"]
    assert "1 finished run on the same data" in line.reason
    assert plan_task(task_of(load(tiny, ["run.name=other", "data.length=16"])), profile).loss is None
