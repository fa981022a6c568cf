"""A run of an HMM: its time, its checkpoints, and that it resumes to the same bits wherever it was cut.

Time passes only where a test says so: while sequences are counted, and while held-out rows are scored.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from processes import together
from profiles import write_profile
from torch import Tensor

from shoestring.core import clock as clock_module
from shoestring.core.clock import Clock
from shoestring.core.errors import RunError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import load
from shoestring.core.run_folder import RunFolder
from shoestring.hmm import fit as fit_module
from shoestring.hmm.expect import Counts, expect
from shoestring.hmm.parameters import HmmMemoryError, Parameters
from shoestring.parallel.process_group import ProcessGroup
from shoestring.planning.make import RESERVE_SECONDS
from shoestring.runs import hmm_trainee, runner, session
from shoestring.runs.corpus_work import CorpusWork
from shoestring.runs.evaluate import evaluate_run
from shoestring.runs.finish import FINISH_MARGIN, LEAST_IDLE
from shoestring.runs.hmm_task import HmmTask
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import Finished, run
from shoestring.runs.task import task_of
from shoestring.runs.trained_model import BEST
from shoestring.track import read_lines
from shoestring.training import checkpoint, hooks, loop
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.hooks import Stopped
from shoestring.training.schedule import Schedule

TEXT = "\n".join(
    f"The {('dog', 'cat', 'bird', 'fish')[i % 4]} {('ran', 'sat', 'sang')[i % 3]} {'very ' * (i % 5 % 3)}far. It was "
    f"{('happy', 'sad')[i * 7 % 5 % 2]}. A {('boy', 'girl', 'man')[i * 5 % 7 % 3]} came, and went "
    f"{i % 2 * 'away '}home."
    for i in range(48)
)
EPOCH = 4
"""Updates: there are 87 training rows."""
MODES = ("all", "every", "online")


class Killed(Exception):
    """In place of a process that dies."""


class FakeTime:
    """Time that passes while sequences are counted, `update` seconds for each, and rows are scored."""

    def __init__(self, update: float = 1.0, scoring: float = 0.0):
        self.now, self.update, self.scoring = 0.0, update, scoring
        self.counted = 0
        self.events: dict[int, Callable[[], None]] = {}
        """What happens in the middle of the update of this number."""

    def count(self, parameters: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None) -> Counts:
        self.now += self.update
        self.counted += 1
        self.events.pop(self.counted, lambda: None)()
        return expect(parameters, tokens, lengths, weights)

    def kill(self, update: int) -> None:
        def die() -> None:
            raise Killed

        self.events[self.counted + update] = die


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """In place of all clocks of a run, which draws no figures."""
    passing = FakeTime()
    fake = SimpleNamespace(perf_counter=lambda: passing.now, monotonic=lambda: passing.now)
    for module in (clock_module, hmm_trainee, loop, hooks):
        monkeypatch.setattr(module, "time", fake)
    # a thread writes them, and would see as much time pass as it happens to be beside
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(fit_module, "perf_counter", lambda: passing.now)
    monkeypatch.setattr(hmm_trainee, "engine_of_updates", lambda *_: passing.count)
    monkeypatch.setattr(session, "draw", lambda _: {})
    score = hmm_trainee.HmmTrainee.score

    def scored(trainee: hmm_trainee.HmmTrainee) -> dict[str, float]:
        passing.now += passing.scoring
        return score(trainee)

    monkeypatch.setattr(hmm_trainee.HmmTrainee, "score", scored)
    return passing


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe_of(corpus: Path, name: str = "run", budget: str = "epochs = 6", every: float = 0.5, **hmm: Any) -> Recipe:
    """A recipe with the profile of a machine that takes a second, and little more, for an update."""
    section = {"states": 3, "update": "online", "update_every": 22, **hmm}
    lines = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in section.items())
    file = Path(f"{name}.toml")
    file.write_text(
        f'[run]\nname = "{name}"\n[budget]\n{budget}\n[hmm]\n{lines}\n[evaluate]\nrows = 5\nevery = {every}\n'
        f'[data]\nsource = "text:{corpus}"\nfolder = "{corpus.parent}/stores"\ntokenizer = "words:30"\nlength = 8\n'
        "heldout = 0.2\n"
    )
    recipe, profile = load(file), write_profile(file.resolve())
    replace(profile, update_seconds=1.0).write(RunFolder.of(recipe).profile)
    return recipe


class Told(Reporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def fitted(recipe: Recipe, limit: float | None = None, told: Reporter | None = None) -> Finished:
    """In a session of its own, whose clock begins now."""
    found = run(recipe, told or Reporter(), Clock(0.0), limit=limit)
    assert found is not None
    return found


def results(folder: RunFolder) -> dict[str, bytes]:
    """All that a run has learned."""
    files = (folder.model, folder.metrics, folder.scores, folder.states, folder.evaluation)
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, bytes]]:
    """The results of a run of six epochs that nothing stops, by its settings; made once."""
    known: dict[str, dict[str, bytes]] = {}

    def find(**hmm: Any) -> dict[str, bytes]:
        name = "-".join(map(str, ["straight", *hmm.values()]))
        if name not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path_factory.mktemp(name))
                patch.setattr(session, "draw", lambda _: {})
                known[name] = results(fitted(recipe_of(corpus, name, **hmm)).folder)
        return known[name]

    return find


def all_files(folder: RunFolder) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path.name != ".lock"}


def saved_steps(folder: RunFolder) -> list[int]:
    return Checkpoints(folder.checkpoints, 1).steps()


# --- a session that stops


@pytest.mark.parametrize("mode", MODES)
def test_a_time_limit_stops_and_saves_and_the_run_resumes_to_the_same_bits(
    mode: str, corpus: Path, time: FakeTime, straight: Callable[..., dict[str, bytes]]
) -> None:
    """Of sequences in one update an epoch, and in four; those are stopped within an epoch too."""
    limit, total = (7.0, 6) if mode == "all" else (14.0, 6 * EPOCH)
    recipe, steps = recipe_of(corpus, update=mode), []
    folder = RunFolder.of(recipe)
    for _ in range(2):
        begun = time.now
        with pytest.raises(Stopped) as stop:
            fitted(recipe, limit=limit)
        steps.append(saved_steps(folder)[0])
        said = f"stopped by the time limit after step {steps[-1]}, saved; the same command continues from there"
        assert str(stop.value) == said
        assert 0 < time.now - begun <= limit - 1.0, "something is kept for a last evaluation and its checkpoint"
        assert not folder.done.exists()
    assert 0 < steps[0] < steps[1] < total
    assert mode == "all" or any(step % EPOCH for step in steps), "some of them within an epoch"
    told = Told()
    ended = fitted(recipe, told=told)
    assert f"resuming after step {steps[-1]} of {total}" in told.lines
    assert results(folder) == straight(update=mode)
    assert (ended.outcome.segments, ended.outcome.steps) == (3, total)


def test_a_signal_stops_after_the_update_and_the_run_resumes_to_the_same_bits(
    corpus: Path, time: FakeTime, straight: Callable[..., dict[str, bytes]]
) -> None:
    recipe, told = recipe_of(corpus), Told()
    time.events[7] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped, match="stopped by SIGTERM after step 7, saved"):
        fitted(recipe)
    assert saved_steps(RunFolder.of(recipe))[0] == 7
    ended = fitted(recipe, told=told)
    assert f"resuming after step 7 of {6 * EPOCH}" in told.lines
    assert results(ended.folder) == straight()


@pytest.mark.parametrize(
    ("hmm", "total", "kills"),
    [
        ({"update": "all"}, 6, (1, 5)),
        ({"update": "every"}, 6 * EPOCH, (2, 5, 24)),
        ({"restarts": 2}, 9 * EPOCH, (12, 20)),
    ],
)
def test_killed_in_any_update_it_resumes_to_the_same_bits(
    hmm: dict[str, Any],
    total: int,
    kills: tuple[int, ...],
    corpus: Path,
    time: FakeTime,
    straight: Callable[..., dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the last checkpoint, which may be of the middle of an epoch whose end was logged after it."""
    monkeypatch.setattr(session, "checkpoint_interval", lambda *_: 2.5)  # after every third update
    for update in kills:
        recipe, counted = recipe_of(corpus, f"killed-{update}", **hmm), time.counted
        time.kill(update)
        with pytest.raises(Killed):
            fitted(recipe)
        assert time.counted - counted == update
        folder, told = RunFolder.of(recipe), Told()
        latest = max(saved_steps(folder), default=0)
        assert update - 1 - latest < 3, "no more than the interval is lost"
        ended = fitted(recipe, told=told)
        assert (f"resuming after step {latest} of {total}" in told.lines) == bool(latest)
        assert results(ended.folder) == straight(**hmm), f"killed in update {update}"


def test_killed_before_it_removes_older_checkpoints_it_resumes_and_leaves_none(
    corpus: Path, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last checkpoint no other one is written that would remove them."""
    monkeypatch.setattr(session, "checkpoint_interval", lambda *_: 2.5)
    prune = Checkpoints._prune

    def killed(checkpoints: Checkpoints, path: Path, state: Any) -> None:
        if state.step == 6 * EPOCH:
            raise Killed
        prune(checkpoints, path, state)

    recipe, whole = recipe_of(corpus), fitted(recipe_of(corpus, "whole")).folder
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_prune", killed)
        with pytest.raises(Killed):
            fitted(recipe)
    folder = RunFolder.of(recipe)
    assert len(saved_steps(folder)) > len(saved_steps(whole))
    fitted(recipe)
    assert saved_steps(folder) == saved_steps(whole)


def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before_it(
    corpus: Path, time: FakeTime, straight: Callable[..., dict[str, bytes]]
) -> None:
    recipe = recipe_of(corpus, "damaged")
    folder = RunFolder.of(recipe)
    for update in (6, 5):
        time.events[time.counted + update] = lambda: os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            fitted(recipe)
    assert saved_steps(folder)[:2] == [11, 6]
    kept, path = Path("kept"), Checkpoints(folder.checkpoints, 1).path(11)
    shutil.copytree(folder.path, kept)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:]):
        shutil.rmtree(folder.path)
        shutil.copytree(kept, folder.path)
        path.write_bytes(damaged)
        told = Told()
        ended = fitted(recipe, told=told)
        assert any(line.startswith(f"left out: {path}: damaged") for line in told.lines)
        assert f"resuming after step 6 of {6 * EPOCH}" in told.lines
        assert results(ended.folder) == straight()
    before, said = folder.evaluation.read_bytes(), list[str]()
    newest = sorted(folder.checkpoints.iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"evaluation\.json is of step 6, and the best intact checkpoint of step"):
        evaluate_run(folder, BEST, say=said.append, replaces=False)
    assert [line.startswith(f"left out: {newest}: damaged") for line in said] == [True]
    assert folder.evaluation.read_bytes() == before


def test_a_finished_run_is_not_done_again(corpus: Path, time: FakeTime) -> None:
    recipe, told = recipe_of(corpus), Told()
    first = fitted(recipe)
    counted, files = time.counted, all_files(first.folder)
    again = fitted(recipe, told=told)
    assert (again.plan, again.outcome, again.evaluation) == (first.plan, first.outcome, first.evaluation)
    assert told.lines == [f"{first.folder.path} is finished; its page is {first.folder.report}"]
    assert time.counted == counted
    assert all_files(first.folder) == files


def test_a_run_of_other_settings_or_other_rows_is_refused_and_kept(tmp_path: Path, time: FakeTime) -> None:
    corpus = tmp_path / "own.txt"
    corpus.write_text(TEXT)
    recipe = recipe_of(corpus)
    time.events[5] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped):
        fitted(recipe)
    folder = RunFolder.of(recipe)
    before = {path: path.read_bytes() for path in folder.checkpoints.iterdir()}
    for changes in ({"states": 4}, {"update": "every"}, {"prior": 0.5}, {"budget": "epochs = 7"}):
        with pytest.raises(RunError, match=rf"holds a run of another recipe\n.*{next(iter(changes))}"):
            fitted(recipe_of(corpus, **changes))
    corpus.write_text(TEXT.replace("bird", "goat"))
    with pytest.raises(RunError, match="was trained on other data"):
        fitted(recipe)
    assert {path: path.read_bytes() for path in folder.checkpoints.iterdir()} == before


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("too many rows"),
        RuntimeError("DefaultCPUAllocator: not enough memory"),
        HmmMemoryError("4 sequences need more bytes than there are"),
    ],
    ids=["gpu", "cpu", "counted"],
)
def test_too_many_rows_are_counted_again_with_half_as_many_at_a_time(
    corpus: Path,
    time: FakeTime,
    straight: Callable[..., dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    rows: list[int] = []

    def engine(_: torch.device, at_once: int, share: float = 1.0) -> Any:
        assert share == at_once / 4

        def count(parameters: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None) -> Counts:
            if at_once > 1:
                raise error
            return time.count(parameters, tokens, lengths, weights)

        rows.append(at_once)
        return count

    monkeypatch.setattr(hmm_trainee, "engine_of_updates", engine)
    recipe, told = recipe_of(corpus), Told()
    ended = fitted(recipe, told=told)
    assert rows == [4, 2, 1]
    assert [line for line in told.lines if "did not fit the memory" in line] == [
        f"step 0 did not fit the memory; it is repeated with per_device = {count}" for count in (2, 1)
    ]
    assert results(ended.folder) == straight()


def test_a_fit_that_resumes_after_memory_ran_out_begins_with_the_rows_that_fitted(
    corpus: Path, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def engine(_: torch.device, at_once: int, share: float = 1.0) -> Any:
        def count(parameters: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None) -> Counts:
            used.append(at_once)
            if at_once > 2:
                raise HmmMemoryError("too many")
            return time.count(parameters, tokens, lengths, weights)

        return count

    monkeypatch.setattr(hmm_trainee, "engine_of_updates", engine)
    recipe = recipe_of(corpus)
    time.events[7] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped):
        fitted(recipe)
    assert set(used[1:]) == {2}
    del used[:]
    fitted(recipe)
    assert set(used) == {2}


# --- a budget of time

BUDGET = 'time = "60s"'


def read_losses(finished: Finished) -> list[float]:
    """By epoch."""
    lines = [line for line in read_lines(finished.folder.metrics) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def check_heldout(finished: Finished) -> None:
    """Scored at most once an epoch, and last after the last of them that ended; the best one is delivered."""
    heldout = {
        line["step"]: line["heldout_loss"] for line in read_lines(finished.folder.metrics) if "heldout_loss" in line
    }
    lines = [line["step"] for line in read_lines(finished.folder.metrics) if "heldout_loss" in line]
    assert lines == sorted(set(lines)) and lines[-1] == len(read_losses(finished))
    best = min(heldout, key=heldout.__getitem__)
    assert finished.evaluation.step == best
    assert finished.evaluation.loss == pytest.approx(heldout[best], rel=1e-12)
    assert finished.outcome.delivered == (None if best == lines[-1] else best)


def kept_free(finished: Finished) -> float:
    """Seconds for what follows the last update, as planned, and a reserve."""
    return FINISH_MARGIN * finished.plan.parts["finish"] + RESERVE_SECONDS


@pytest.mark.parametrize("mode", MODES)
def test_a_fit_that_is_slower_than_planned_keeps_to_its_time(mode: str, corpus: Path, time: FakeTime) -> None:
    """And uses it: what follows the last update will be as much slower as that was."""
    time.update = 3.0
    finished = fitted(recipe_of(corpus, budget=BUDGET, update=mode))
    slower = time.update / (finished.plan.step_seconds or 0.0)
    assert slower > 1.5
    assert finished.outcome.shortened is not None and finished.outcome.lengthened is None
    assert re.match(
        r"\d+ updates were planned at 1\.?\d*s, \d+ were taken at 3s; last change at update \d+: an update takes 3s, ",
        finished.outcome.shortened,
    )
    assert 60.0 - slower * kept_free(finished) - time.update < time.now <= 60.0 - kept_free(finished)
    assert len(read_losses(finished)) < (finished.plan.epochs or 0.0)
    check_heldout(finished)


def test_a_fit_that_ends_within_an_epoch_is_named_by_the_last_one_that_ended(corpus: Path, time: FakeTime) -> None:
    """In its metrics, its timings and its evaluation alike."""
    time.update = 2.7
    finished = fitted(recipe_of(corpus, budget=BUDGET, every=1.0))
    ended, within = divmod(time.counted, EPOCH)
    assert ended and within, "it ends within an epoch"
    assert finished.evaluation.step == ended == len(read_losses(finished))
    lines = read_lines(finished.folder.metrics) + read_lines(finished.folder.timings)
    assert {line["step"] for line in lines if "heldout_loss" in line or line.get("event") == "end"} == {ended}
    assert finished.outcome.steps == time.counted


def test_updates_and_tokens_are_counted_before_the_first_epoch_ends(corpus: Path, time: FakeTime) -> None:
    recipe = recipe_of(corpus)
    task = task_of(recipe)
    assert isinstance(task, HmmTask)
    work = CorpusWork(task, Reporter())
    plan = runner.ensure_plan(task, RunFolder.of(recipe), Reporter(), Clock(0.0), work)
    trainee = task.open(plan, ProcessGroup.of(torch.device("cpu")))
    trainee.build(fresh=True)
    state = State(recipe="", data="", schedule=Schedule(total=trainee.planned_steps))
    seen = [(trainee.steps_taken(state), trainee.tokens_seen(state))]
    for step in range(EPOCH + 1):
        trainee.begin(step, state.schedule, loop.Requests())
        seen.append((trainee.steps_taken(state), trainee.tokens_seen(state)))
    assert [steps for steps, _ in seen] == list(range(EPOCH + 2))
    tokens = [tokens for _, tokens in seen]
    assert tokens == sorted(set(tokens)) and tokens[0] == 0
    assert tokens[EPOCH] == task.rows().train.size


@pytest.mark.parametrize("mode", MODES)
def test_a_fit_that_is_faster_than_planned_uses_its_time_as_it_began(mode: str, corpus: Path, time: FakeTime) -> None:
    """Its first epochs are those of a fit of just so many."""
    time.update = 0.5
    finished = fitted(recipe_of(corpus, budget=BUDGET, update=mode))
    planned, losses = round(finished.plan.epochs or 0.0), read_losses(finished)
    assert len(losses) > 1.5 * planned
    assert finished.outcome.lengthened is not None and finished.outcome.shortened is None
    idle = 0.02 * 60.0 + LEAST_IDLE
    assert 60.0 - kept_free(finished) - idle <= time.now <= 60.0 - kept_free(finished)
    alone = fitted(recipe_of(corpus, "alone", f"epochs = {planned}", update=mode))
    assert losses[:planned] == read_losses(alone)
    check_heldout(finished)


@pytest.mark.parametrize("budget", [f"{BUDGET}\nepochs = 40", f"{BUDGET}\nepochs = 5"])
def test_only_time_makes_a_fit_longer(budget: str, corpus: Path, time: FakeTime) -> None:
    """Not where the recipe says how many epochs, be they more than fit or fewer."""
    time.update = 0.5
    finished = fitted(recipe_of(corpus, budget=budget))
    assert finished.outcome.lengthened is None
    assert len(read_losses(finished)) == finished.plan.epochs
    assert time.now < 30.0


def test_a_run_that_resumes_grows_within_the_time_that_all_its_sessions_have(corpus: Path, time: FakeTime) -> None:
    recipe = recipe_of(corpus, budget=BUDGET)
    time.update = 0.5
    time.events[24] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped):
        fitted(recipe)
    finished = fitted(recipe)
    assert finished.outcome.lengthened is not None
    idle = 0.02 * 60.0 + LEAST_IDLE
    assert 60.0 - kept_free(finished) - idle <= time.now <= 60.0 - kept_free(finished)


def test_time_for_scoring_is_kept(corpus: Path, time: FakeTime) -> None:
    """Where it takes longer than planned, fewer epochs fit."""
    found = []
    for scoring in (0.0, 2.0):
        time.update, time.scoring, begun = 1.1, scoring, time.now
        finished = fitted(recipe_of(corpus, f"scoring-{scoring:.0f}", BUDGET, every=0.1))
        assert time.now - begun <= 60.0 - RESERVE_SECONDS
        found.append(len(read_losses(finished)))
    assert found[0] > found[1] > 0


def test_when_the_time_is_up_among_restarts_the_best_so_far_is_kept(corpus: Path, time: FakeTime) -> None:
    time.update = 3.0
    finished = fitted(recipe_of(corpus, budget=BUDGET, restarts=2))
    assert finished.outcome.shortened is not None
    assert time.now <= 60.0 - kept_free(finished)
    assert 3 * EPOCH < time.counted < 6 * EPOCH
    assert finished.evaluation.step == 3, "epochs of the start that had its turn"
    assert finished.folder.model.is_file() and finished.evaluation.loss < finished.evaluation.baselines["uniform"]


# --- several processes


def session_of(group: ProcessGroup, limit: float | None) -> str | None:
    """A session in each process, of which only the second one has a limit; what stopped it."""
    patch = pytest.MonkeyPatch()
    patch.setattr(session, "draw", lambda _: {})
    ticks = itertools.count()
    clock = SimpleNamespace(
        elapsed=lambda: float(next(ticks)),
        begin=lambda _: None,
        during=lambda _: contextlib.nullcontext(),
        parts=lambda: {},
    )
    try:
        recipe = load(Path("together.toml"))
        runner._run(recipe, Reporter(), clock, None, limit if group.rank == 1 else None, None, group)  # type: ignore[arg-type]
    except Stopped as stop:
        return str(stop)
    finally:
        patch.undo()
    return None


def test_all_processes_stop_with_one_of_them_and_resume_to_the_same_bits(corpus: Path) -> None:
    recipe = recipe_of(corpus, "together")
    folder = RunFolder.of(recipe)
    assert together(session_of, 2, None) == [None, None]
    straight = results(folder)
    kept = {path.name: path.read_bytes() for path in (folder.profile, folder.plan, folder.recipe)}
    shutil.rmtree(folder.path)
    folder.path.mkdir()
    for name, content in kept.items():
        (folder.path / name).write_bytes(content)
    said = together(session_of, 2, 12.0)
    step = saved_steps(folder)[0]
    assert 0 < step < 24 and said[0] == said[1]
    assert said[0] is not None and said[0].startswith(f"stopped by the time limit after step {step}, saved")
    assert together(session_of, 2, None) == [None, None]
    assert results(folder) == straight
