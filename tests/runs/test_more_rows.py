"""A run that grows past the rows that were prepared gets more of the corpus, and repeats only where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from processes import as_torchrun, together

from shoestring.core.clock import Clock
from shoestring.core.errors import DataError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.run_sections import Budget, Run
from shoestring.core.scoring_sections import Evaluate
from shoestring.core.sections import Data, Model
from shoestring.core.train_section import Train
from shoestring.core.units import Bytes, Seconds
from shoestring.data.store import prepare as preparing
from shoestring.data.store import work_units
from shoestring.data.store.store import Store
from shoestring.parallel.process_group import ProcessGroup
from shoestring.runs import session
from shoestring.runs.extend import extend
from shoestring.runs.more_rows import Child, MoreRows
from shoestring.runs.network_trainee import NetworkTrainee
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import Finished, run
from shoestring.track import NoLines, read_lines
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.deadline import Deadline
from shoestring.training.loop import Consensus, Report, Requests, Sum
from shoestring.training.schedule import Schedule

BATCH, PLANNED = 4, 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_small(monkeypatch)
    monkeypatch.chdir(tmp_path)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Blocks, units and extents of a few documents, and no measuring."""
    patch.setattr(work_units, "FIRST_BYTES", 1 << 11)
    patch.setattr(work_units, "UNIT_BYTES", 1 << 13)
    patch.setattr(work_units, "BLOCK_BYTES", 1 << 8)
    patch.setattr("shoestring.data.read.corpora.BLOCK_BYTES", 1 << 8)
    patch.setattr(preparing, "_check_room", lambda *_: None)


def recipe_of(lines: int = 1_000, name: str = "run", **settings: Any) -> Recipe:
    path = Path("corpus.txt")
    if not path.is_file():
        path.write_text("\n".join(f"line {n:05d} {'x' * (n % 23 + 1)}" for n in range(lines)))
    data = {"tokenizer": "bytes", "length": 16, "heldout": 0.1} | settings.pop("data", {})
    return Recipe(
        run=Run(name=name),
        budget=Budget(time=Seconds(3_600), **settings),
        data=Data(source=f"text:{path}", **data),
        model=Model(width=8, layers=1, heads=1),
        train=Train(batch=BATCH, lr=3e-4, save_every=20, keep=100),
        evaluate=Evaluate(rows=4, every=0.5),
    )


def store_of(recipe: Recipe) -> Path:
    return preparing.store_folder(recipe.data, recipe.run.seed, None)


def plan_of(recipe: Recipe, most: int | None) -> Plan:
    return Plan(
        binding="time",
        recipe=recipe.fingerprint,
        steps=PLANNED,
        effective_batch=BATCH,
        per_device=BATCH,
        share=0.01,
        entries=100,
        evaluations=2,
        most_steps=most,
        disk_bytes=100_000,
        parts={"train": 1.0},
    )


class Extension:
    """An extension in this process, which is done when it is looked at for the third time."""

    def __init__(self, recipe: Recipe, plan: Plan, share: float, error: str = ""):
        self._make, self._looks, self._error = partial(extend, recipe, plan, share), 0, error

    def result(self) -> str | None:
        self._looks += 1
        if self._looks < 3:
            return None
        if not self._error:
            self._make()
        return self._error

    def close(self) -> None: ...


class Said(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Stands(Clock):
    """A clock on which nothing takes time, so that the schedule is lengthened to all that is allowed."""

    def elapsed(self) -> float:
        return 1.0


Grown = Callable[..., tuple[Finished | None, list[int], list[str]]]


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Grown:
    """Run a recipe whose plan has few steps, up to `most`; returns its result, rows in order, and lines."""

    def go(
        recipe: Recipe, most: int, error: str = "", stop: int | None = None
    ) -> tuple[Finished | None, list[int], list[str]]:
        plan, read, reporter = plan_of(recipe, most), {}, Said()
        (tmp_path / "plan.json").unlink(missing_ok=True)
        plan.write(tmp_path / "plan.json")
        begin = NetworkTrainee.begin

        def noted(self: NetworkTrainee, step: int, *given: Any) -> Any:
            if step == stop:
                raise KeyboardInterrupt
            pending = begin(self, step, *given)
            read[step] = pending.which.rows.tolist()
            return pending

        with monkeypatch.context() as patch:
            patch.setattr(NetworkTrainee, "begin", noted)
            patch.setattr(session, "Child", lambda _, share: Extension(recipe, plan, share, error))
            finished = None
            try:
                finished = run(recipe, reporter, Stands(), tmp_path / "plan.json")
            except KeyboardInterrupt:
                assert stop is not None
        return finished, [row for step in sorted(read) for row in read[step]], reporter.lines

    return go


@pytest.mark.parametrize("data", [{}, {"packing": "best_fit"}, {"random_offset": True}])
def test_a_run_that_is_lengthened_reads_fresh_rows(grown: Grown, data: dict[str, Any]) -> None:
    recipe = recipe_of(data=data)
    finished, rows, lines = grown(recipe, most=100)
    assert finished is not None and finished.outcome.steps == 100
    assert len(rows) == 400 == len(set(rows)), "each row once"
    events = [line for line in read_lines(finished.folder.metrics) if line.get("event") == "more rows"]
    assert events and events[-1]["rows"] > 400
    assert sum("more of the corpus was prepared" in line for line in lines) == len(events)
    store = Store(store_of(recipe))
    assert store.manifest.splits["train"].extents[-1].share < 1, "no more than is needed"


def test_a_continued_run_that_is_lengthened_reads_fresh_rows(grown: Grown) -> None:
    """None that it has read, nor that the run had read which it continues."""
    first = recipe_of(lines=3_000, name="first")
    finished, before, _ = grown(first, most=100)
    assert finished is not None and len(set(before)) == 400
    on = replace(
        recipe_of(name="second"),
        model=replace(first.model, init=f"{finished.folder.path}#last"),
        train=replace(first.train, continued=True),
    )
    again, rows, _ = grown(on, most=150)
    assert again is not None and again.outcome.steps == 150
    events = [line for line in read_lines(again.folder.metrics) if line.get("event") == "more rows"]
    assert events, "it had more prepared"
    assert len(rows) == 600 == len(set(rows)) and not set(rows) & set(before)


def test_a_corpus_that_is_exhausted_is_repeated_as_a_whole(grown: Grown) -> None:
    recipe = recipe_of(lines=150)
    _, rows, lines = grown(recipe, most=125)
    count = max(rows) + 1
    assert len(rows) == 500
    assert count < len(rows) / 1.5
    assert sorted(rows[:count]) == list(range(count)), "all of the corpus once"
    assert sorted(rows[count : 2 * count]) == list(range(count)), "and again"
    store = Store(store_of(recipe))
    assert store.manifest.splits["train"].extents[-1].share == 1
    assert not any("repeated" in line for line in lines)


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadline, "steps_to_take", at_two_places)


def at_two_places(_: Deadline, left: int, progress: float, grow: bool = True) -> int | None:
    """Schedules are lengthened by numbers of steps alone."""
    return {6: 56, 35: 90}.get(left) if grow and progress < 0.83 else None


@pytest.mark.usefixtures("paced")
def test_a_run_that_stopped_behind_its_growth_continues_bit_by_bit(grown: Grown) -> None:
    finished, rows, _ = grown(recipe_of(), most=500)
    assert finished is not None and finished.outcome.steps == 115
    assert len(set(rows)) == len(rows) == 460
    whole = Checkpoints(finished.folder.checkpoints, 100)
    pools = whole.open(115).state.task["pools"]
    assert [len(whole.open(step).state.task["pools"]) for step in (20, 60)] == [2, 3] == [2, len(pools)]
    recipe = recipe_of(name="other")
    read: dict[int, int] = {}
    for stop in (33, 61, None):  # each goes back to a checkpoint before it, and reads those steps again
        again, some, _ = grown(recipe, most=500, stop=stop)
        first = 460 - len(some) if stop is None else stop * BATCH - len(some)
        read |= dict(enumerate(some, start=first))
    assert again is not None
    assert [read[position] for position in range(460)] == rows
    others = Checkpoints(again.folder.checkpoints, 100)
    assert others.open(115).state.task == whole.open(115).state.task
    weights = [kept.open(115).read({}) for kept in (whole, others)]
    assert all((tensor == weights[1][name]).all() for name, tensor in weights[0].items())
    assert again.evaluation == finished.evaluation


@pytest.mark.usefixtures("paced")
def test_a_run_whose_store_was_made_anew_continues_with_its_rows(grown: Grown) -> None:
    """The store has only what the plan reads when the run is resumed behind its growth."""
    finished, rows, _ = grown(recipe_of(), most=500)
    recipe = recipe_of(name="other")
    grown(recipe, most=500, stop=61)
    folder = store_of(recipe)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again, some, _ = grown(recipe, most=500)
    assert finished is not None and again is not None and again.evaluation == finished.evaluation
    assert some == rows[-len(some) :]


@pytest.mark.parametrize("error", ["the disk is full", "signal 9"])
def test_a_run_whose_store_cannot_be_extended_repeats_its_rows_and_says_so_once(grown: Grown, error: str) -> None:
    finished, rows, lines = grown(recipe_of(), most=100, error=error)
    assert finished is not None and finished.outcome.steps == 100
    assert len(set(rows)) == max(rows) + 1 < 200
    (line,) = (line for line in lines if "repeated" in line)
    assert line.endswith(f"so its rows are repeated: {error}") and "\n" not in line


def test_budget_disk_is_kept(grown: Grown) -> None:
    finished, rows, lines = grown(recipe_of(disk=Bytes(101_000)), most=100)
    assert finished is not None and len(set(rows)) < len(rows) == 400
    (line,) = (line for line in lines if "repeated" in line)
    assert f"budget.disk = {Bytes(101_000)}" in line


def test_a_run_that_does_not_grow_prepares_no_more(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extension, "result", lambda _: pytest.fail("nothing is needed"))
    finished, rows, _ = grown(recipe_of(), most=PLANNED)
    assert finished is not None and len(rows) == PLANNED * BATCH
    assert Checkpoints(finished.folder.checkpoints, 100).open(PLANNED).state.task == {}


def test_all_processes_begin_to_read_more_at_the_same_step() -> None:
    """Two processes whose requests come back with the next step, of which one is begun ahead."""
    seen: list[list[tuple[float, int]]] = [[], []]
    done = SimpleNamespace(result=lambda: "", close=lambda: None)
    both = []
    for rank in range(2):

        def get_rows(share: float, step: int, rank: int = rank) -> int:
            seen[rank].append((share, step))
            return 100

        def more_rows(_: int, rank: int = rank) -> float | None:
            return None if seen[rank] else 0.3

        trainee: Any = SimpleNamespace(more_rows=more_rows, get_rows=get_rows, label=lambda state: state.step)
        requests = Requests(alone=False)
        both.append(MoreRows(trainee, lambda _: done, requests, NoLines(), lambda _: None, first=rank == 0))
    state = State(recipe="", data="", schedule=Schedule(total=20))
    sent = [[0.0] * 7]
    for step in range(1, 9):
        sent.append([sum(pair) for pair in zip(*(hook.requests.numbers(rank) for rank, hook in enumerate(both)))])
        report = Report(Sum(1.0, 1), consensus=Consensus.of(sent[max(0, step - 2)]), begun=step + 1)
        for hook in both:
            hook(replace(state, step=step), report)
    assert seen[0] == seen[1] == [(0.3, 6)]


def test_the_child_extends_the_store_and_its_errors_are_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With extents as they are: the first of four megabytes, of a corpus of five."""
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("\n".join(f"{n:06d} {'x' * 500}" for n in range(10_000)))
    recipe = recipe_of()
    plan, folder = plan_of(recipe, None), RunFolder.of(recipe)
    store = prepare_recipe(recipe, plan, Reporter())
    before = store.manifest.splits["train"]
    assert before.extents[-1].share < 0.9
    folder.claim(recipe)
    child = Child(folder, 0.9)
    child._process.wait(60)
    assert "plan" in str(child.result())
    child.close()
    plan.write(folder.plan)
    child = Child(folder, 0.9)
    child._process.wait(60)
    assert child.result() == ""
    child.close()
    after = Store(store.paths.folder).manifest.splits["train"]
    assert after.extents[-1].share >= 0.9 and after.shards[: len(before.shards)] == before.shards


def test_a_child_that_is_closed_leaves_no_process(tmp_path: Path) -> None:
    child = Child(RunFolder(tmp_path / "none"), 0.5)
    child.close()
    assert child._process.returncode is not None


def test_errors_of_opening_more_are_a_line_too() -> None:
    lines: list[str] = []

    def fail(*_: Any) -> int:
        raise DataError("the shard is\n  damaged")

    trainee: Any = SimpleNamespace(more_rows=lambda _: None, get_rows=fail)
    hook = MoreRows(trainee, lambda _: pytest.fail("not needed"), Requests(share=0.5), NoLines(), lines.append)
    state = State(recipe="", data="", schedule=Schedule(total=20), step=3)
    for _ in range(3):
        hook(state, Report(Sum(1.0, 1), begun=3))
    assert lines == ["step 3: no more of the corpus is prepared, so its rows are repeated: the shard is damaged"]


def test_an_extension_that_does_not_start_is_a_line_too() -> None:
    lines: list[str] = []

    def start(_: float) -> Any:
        raise OSError("no process is left")

    trainee: Any = SimpleNamespace(more_rows=lambda _: 0.5)
    hook = MoreRows(trainee, start, Requests(), NoLines(), lines.append)
    state = State(recipe="", data="", schedule=Schedule(total=20), step=3)
    for _ in range(3):
        hook(state, Report(Sum(1.0, 1), begun=3))
    assert lines == ["step 3: no more of the corpus is prepared, so its rows are repeated: no process is left"]


# --- several processes


class Grew(NamedTuple):
    """What one of several processes read, by step, and whether the run was finished."""

    rows: dict[int, list[int]]
    finished: bool


def grown_together(group: ProcessGroup, recipe: Recipe, plan: Plan, stops: tuple[int | None, ...]) -> list[Grew]:
    """Sessions of one run in processes that have met, each of which ends before a step or at the end."""
    found = []
    begin = NetworkTrainee.begin
    for stop in stops:
        read: dict[int, list[int]] = {}

        def noted(self: NetworkTrainee, step: int, *given: Any, stop: int | None = stop, read: Any = read) -> Any:
            if step == stop:
                raise KeyboardInterrupt
            pending = begin(self, step, *given)
            read[step] = pending.which.share(group.rank, group.world).rows.tolist()
            return pending

        with pytest.MonkeyPatch.context() as patch:
            make_small(patch)
            patch.setattr(preparing, "_worth", lambda _: 1)  # these processes may have no children
            as_torchrun(patch, group)
            patch.setattr(Deadline, "steps_to_take", at_two_places)
            patch.setattr(NetworkTrainee, "begin", noted)
            patch.setattr(session, "Child", lambda _, share: Extension(recipe, plan, share))
            with contextlib.suppress(KeyboardInterrupt):
                run(recipe, Reporter(), Stands(), Path("plan.json"))
        found.append(Grew(read, RunFolder.of(recipe).done.is_file()))
        group.on_all(lambda: None)  # the first process writes last
    return found


def test_two_processes_that_grow_read_each_row_once_and_resume_bit_by_bit() -> None:
    """The requests of the first process come back with a later step, so both read more from the same one on."""
    weights, rows = [], []
    for name, stops in (("whole", (None,)), ("cut", (33, 61, None))):
        recipe = recipe_of(name=name)
        plan = plan_of(recipe, 500)
        Path("plan.json").unlink(missing_ok=True)
        plan.write(Path("plan.json"))
        first, second = together(grown_together, 2, recipe, plan, stops)
        assert [one.finished for one in first] == [False] * (len(stops) - 1) + [True]
        read: dict[int, list[int]] = {}
        for one, other in zip(first, second):
            assert one.rows.keys() == other.rows.keys()
            read |= {step: one.rows[step] + other.rows[step] for step in one.rows}
        rows.append([row for step in sorted(read) for row in read[step]])
        folder = RunFolder.of(recipe)
        events = [line for line in read_lines(folder.metrics) if line.get("event") == "more rows"]
        assert len(events) == 2
        last = Checkpoints(folder.checkpoints, 100)
        weights.append(last.open(last.steps()[-1]).read({}))
    assert len(rows[0]) > 2 * PLANNED * BATCH
    assert len(set(rows[0])) == len(rows[0]), "each row once, over both processes"
    assert rows[0] == rows[1]
    assert all((tensor == weights[1][name]).all() for name, tensor in weights[0].items())
