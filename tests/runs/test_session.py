"""The end of a session: what it is expected to take, and a last checkpoint that is written meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from profiles import write_profile

from shoestring.baselines import of_corpus
from shoestring.baselines.of_corpus import baseline_seconds
from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.recipe_file import load
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.datasets.corpus import StoreCorpus
from shoestring.models.batch import Batch
from shoestring.planning import stops
from shoestring.runs import network_trainee, session
from shoestring.runs.evaluate import evaluate_run
from shoestring.runs.finish import FINISH_MARGIN, Finish
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import Finished, run
from shoestring.track import read_lines
from shoestring.training import checkpoint
from shoestring.training.checkpoint import Checkpoints
from shoestring.training.learner import Learner


def trained(file: Path, monkeypatch: pytest.MonkeyPatch, beside: bool = False) -> Finished | None:
    """With a finish as on a GPU where that is wanted."""
    of = Finish.of
    monkeypatch.setattr(Finish, "of", lambda plan, baselines, _: of(plan, baselines, beside))
    write_profile(file)
    monkeypatch.chdir(file.parent)
    return run(load(file), Reporter(), Clock(0.0))


@pytest.mark.parametrize(
    ("parts", "baselines", "slowest", "written", "seconds"),
    [
        ({"finish": 3.0, "last checkpoint": 1.0, "baselines": 0.5}, None, 0.0, 0, (4.0, 4.5)),  # writing is longer
        ({"finish": 3.0, "last checkpoint": 1.0, "baselines": 9.0}, None, 0.0, 0, (12.0, 13.0)),
        ({"finish": 3.0, "last checkpoint": 1.0, "baselines": 9.0}, 2.0, 0.0, 0, (5.0, 6.0)),  # they were timed
        ({"finish": 3.0, "last checkpoint": 1.0, "baselines": 0.5}, None, 7.0, 1, (7.0, 10.5)),  # a slow disk
        ({"finish": 3.0, "last checkpoint": 6.0}, None, 2.0, 1, (9.0, 9.0)),  # of a single one nobody can tell
        ({"finish": 3.0, "last checkpoint": 6.0}, None, 2.0, 4, (3.0, 5.0)),
        ({}, None, 0.0, 0, (0.0, 0.0)),
    ],
)
def test_the_finish_is_the_longer_of_writing_and_the_rest_on_a_gpu_and_both_on_a_cpu(
    parts: dict[str, float], baselines: float | None, slowest: float, written: int, seconds: tuple[float, float]
) -> None:
    for beside, expected in zip((True, False), seconds, strict=True):
        finish = Finish.of(Plan(binding="time", parts=parts), baselines, beside)
        assert finish.seconds(slowest, written) == pytest.approx(FINISH_MARGIN * expected)


def test_a_run_on_a_cpu_has_as_many_evaluations_as_planned(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plan has room for two of ten."""
    monkeypatch.setattr(stops, "_evaluations", lambda *_: 2)
    assert trained(tiny, monkeypatch) is not None
    folder = RunFolder.of(load(tiny))
    steps = [line["step"] for line in read_lines(folder.metrics) if "heldout_loss" in line]
    total = load(tiny).budget.steps
    assert Plan.read(folder.plan).evaluations == 2 and steps == [total // 2, total]


def test_the_last_checkpoint_is_written_while_the_run_is_finished(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes the last checkpoint only when the figures are drawn, and a run that waits for it then."""
    drawn, write, draw, waited = threading.Event(), checkpoint.write_tensors, session.draw, []
    last = load(tiny).budget.steps

    def slow(path: Path, *rest: Any, **options: Any) -> None:
        if f"{last:09d}" in path.name:
            waited.append(drawn.wait(20))
        write(path, *rest, **options)

    def tell(folder: RunFolder) -> dict[str, str]:
        drawn.set()
        return draw(folder)

    monkeypatch.setattr(checkpoint, "write_tensors", slow)
    monkeypatch.setattr(session, "draw", tell)
    finished = trained(tiny, monkeypatch, beside=True)
    assert finished is not None and finished.outcome.steps == last
    assert waited == [True]
    assert Checkpoints(finished.folder.checkpoints, 1).latest() == (last, [])
    told = finished.outcome.timeline
    assert sum(told.values()) == pytest.approx(finished.outcome.seconds, abs=0.01)
    assert {"plan", "prepare", "set-up", "first step", "train", "evaluations", "checkpoints", "page"} <= told.keys()
    assert "Where the time went" in finished.folder.report.read_text(encoding="utf-8")


def test_a_finish_that_fails_leaves_the_last_checkpoint_whole(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, write = threading.Event(), checkpoint.write_tensors
    last = load(tiny).budget.steps

    def slow(path: Path, *rest: Any, **options: Any) -> None:
        if f"{last:09d}" in path.name:
            begun.wait(20)
        write(path, *rest, **options)

    def fail(*_: Any) -> None:
        threading.Timer(0.3, begun.set).start()
        raise Fault("scores are not finite")

    monkeypatch.setattr(checkpoint, "write_tensors", slow)
    monkeypatch.setattr(network_trainee, "evaluate_learner", fail)
    with pytest.raises(Fault, match="scores are not finite"):
        trained(tiny, monkeypatch, beside=True)
    folder = RunFolder.of(load(tiny))
    assert (folder.checkpoints / f"step-{last:09d}.safetensors").is_file(), "the command may end at once"


def test_baselines_are_timed_by_the_first_tokens(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight seconds at first, and one when it is done again; a corpus of fewer tokens than are counted at a time, and
    one of four times as many."""
    monkeypatch.chdir(tiny.parent)
    recipe = load(tiny)
    corpus = StoreCorpus(recipe, prepare_recipe(recipe, None, Reporter()))
    for part, seconds in ((2 * corpus.training_size, 8.0), (corpus.training_size // 4, 11.0)):
        times = iter([100.0, 108.0, 109.0])
        with monkeypatch.context() as patch:
            patch.setattr(of_corpus, "timed_tokens", lambda _, part=part: part)
            patch.setattr(of_corpus, "time", SimpleNamespace(perf_counter=lambda times=times: next(times)))
            assert baseline_seconds(corpus) == pytest.approx(seconds, rel=0.01)


def test_a_page_that_was_not_written_before_a_kill_is_written_when_the_run_is_named_again(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "write_page", lambda *_: None)
    finished = trained(tiny, monkeypatch)
    assert finished is not None and finished.folder.done.is_file() and not finished.folder.report.is_file()
    again = run(load(tiny), Reporter(), Clock(0.0))
    assert again is not None and again.folder.report.is_file()


def test_the_last_step_and_the_last_evaluation_score_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is that of scoring the finished run again."""
    scored, score = [], Learner.score

    def counted(learner: Learner, rows: Any, per_device: int) -> Any:
        scored.append(len(Batch.of(rows).ids))
        return score(learner, rows, per_device)

    monkeypatch.setattr(Learner, "score", counted)
    finished = trained(tiny, monkeypatch)
    assert finished is not None
    lines = [line for line in read_lines(finished.folder.metrics) if "heldout_loss" in line]
    assert len(scored) == len(lines) > 1, "once per line of the metrics, and never again"
    assert lines[-1]["heldout_loss"] == pytest.approx(finished.evaluation.loss, rel=1e-12)
    assert evaluate_run(finished.folder, CheckpointSpec("last")) == finished.evaluation
