"""A run that continues another one from before its cool-down: for longer, or to try something from the middle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import write_profile

from shoestring.core.clock import Clock
from shoestring.core.errors import RunError, StorageError, UserError
from shoestring.core.recipe_file import load
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.data.read import corpora
from shoestring.data.store import work_units
from shoestring.data.stories import story
from shoestring.data.tokenize.tokenizers import read_tokenizer
from shoestring.planning import corpus
from shoestring.runs.continued import Continued, steps_before
from shoestring.runs.prepare import recipe_density
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.training.checkpoint import Checkpoints, Opened
from shoestring.training.stepper import Stepper

Trained = Callable[..., RunFolder]
COOLDOWN = {"train.schedule": "cooldown", "train.cooldown": 0.5}


@pytest.fixture
def trained(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Runs a recipe in folder NAME for some steps, over text that is all read."""
    monkeypatch.chdir(tiny.parent)

    def train(name: str, steps: int, sampled: bool = False, **sets: Any) -> RunFolder:
        fields = {"run.name": name, "budget.steps": steps, "train.lr": 1e-2} | sets
        settings = [f"{field}={_toml(value)}" for field, value in fields.items()]
        profile, recipe = write_profile(tiny, *settings), load(tiny, settings)
        if sampled:
            replace(profile, density=recipe_density(recipe)).write(RunFolder.of(recipe).profile)
        run(recipe, Reporter(), Clock(0.0))
        return RunFolder.of(recipe)

    return train


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def found(folder: RunFolder, which: str = "last") -> Opened:
    return Checkpoints(folder.checkpoints, keep=1).find(CheckpointSpec(which), folder.path)


def tensors(folder: RunFolder, which: str = "last") -> dict[str, torch.Tensor]:
    return found(folder, which).read({})


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_is_continued_ends_as_one_that_was_planned_so(trained: Trained, optimizer: str) -> None:
    """20 steps at the peak and 60 more, the last 30 cooling down, end as one run of 80 steps with the same rates."""
    rule = {"train.optimizer": optimizer, "train.least_warmup": 1}
    short = trained("short", 40, **COOLDOWN, **rule)
    assert found(short, "peak").state.step == 20
    longer = trained("longer", 60, **COOLDOWN, **rule, **{"model.init": str(short.path), "train.continued": True})
    fresh = trained(
        "fresh", 80, **rule, **{"train.schedule": "cooldown", "train.cooldown": 0.375, "train.warmup": 0.025}
    )
    expected = tensors(fresh)
    for name, tensor in tensors(longer).items():
        torch.testing.assert_close(
            tensor, expected[name], rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
        )
    assert not torch.equal(tensors(short)["model/embedding.weight"], expected["model/embedding.weight"])


def test_a_run_branches_at_any_checkpoint(trained: Trained) -> None:
    """With another learning rate; the weights of its first step are those of the other run after one more step."""
    short = trained("short", 10, **COOLDOWN, **{"train.save_every": 4, "train.warmup": 0.1, "train.least_warmup": 1})
    branch = {"model.init": f"{short.path}#4", "train.continued": True, "train.schedule": "constant"}
    one = trained("one", 1, **branch)
    again = trained("again", 5, **{"train.schedule": "constant", "train.warmup": 0.2, "train.least_warmup": 1})
    for name, tensor in tensors(one).items():
        torch.testing.assert_close(tensor, tensors(again)[name], rtol=1e-4, atol=1e-6)
    other = trained("other", 1, **branch, **{"train.lr": 3e-2})
    assert not torch.equal(tensors(other)["model/embedding.weight"], tensors(one)["model/embedding.weight"])


def test_a_continued_run_that_is_stopped_resumes_to_the_same_bits(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads on where it was, after the rows of the run that it continues."""
    from shoestring.runs.network_trainee import NetworkTrainee

    short = trained("short", 20, **COOLDOWN)
    sets = {"model.init": str(short.path), "train.continued": True, "train.save_every": 2} | COOLDOWN
    whole, begin = trained("whole", 12, **sets), NetworkTrainee.begin

    def fail(trainee: NetworkTrainee, step: int, *others: Any) -> Any:
        if step == 7:
            raise KeyboardInterrupt
        return begin(trainee, step, *others)

    with monkeypatch.context() as patched:
        patched.setattr(NetworkTrainee, "begin", fail)
        with pytest.raises(KeyboardInterrupt):
            trained("whole2", 12, **sets)
    resumed = trained("whole2", 12, **sets)
    expected = tensors(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(resumed).items())


def test_what_cannot_be_continued_is_named(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.continued = true: model\.init must name the run"):
        trained("nothing", 5, **{"train.continued": True})
    cosine = trained("cosine", 6)
    with pytest.raises(RunError, match=r'no checkpoint "peak"; only a run keeps one whose learning rate stays'):
        trained("a", 5, **{"model.init": str(cosine.path), "train.continued": True})
    with pytest.raises(UserError, match=r'train\.optimizer = "adamw" is continued with that one'):
        trained("b", 5, **{"model.init": f"{cosine.path}#last", "train.continued": True, "train.optimizer": "muon"})
    with pytest.raises(UserError, match=r"has no ema.*; train\.ema and train\.precision must be those of that run"):
        trained("d", 5, **{"model.init": f"{cosine.path}#last", "train.continued": True, "train.ema": 0.9})
    with pytest.raises(UserError, match=r"embedding.weight has another shape; the vocabulary must be that of"):
        trained("e", 5, **{"model.init": f"{cosine.path}#last", "train.continued": True, "data.tokenizer": "bytes"})
    with pytest.raises(UserError, match=r"needs the folder of a run"):
        trained("c", 5, **{"model.init": str(tmp_path), "train.continued": True})


@pytest.mark.parametrize(("cooldown", "checkpoint"), [(0.5, ""), (1.0, "#last")])
def test_a_longer_budget_is_told_how_to_go_on(cooldown: float, checkpoint: str, trained: Trained) -> None:
    """From the checkpoint before the cool-down, which a run does not have that cools down from the beginning."""
    sets = COOLDOWN | {"train.cooldown": cooldown}
    short = trained("short", 10, **sets)
    with pytest.raises(RunError) as refused:
        trained("short", 20, **sets)
    place = f"{short.path}{checkpoint}"
    assert f"--set model.init={place} --set train.continued=true" in str(refused.value)
    longer = trained("longer", 5, **sets, **{"model.init": place, "train.continued": True})
    assert found(longer).state.task["before"] == (10 if checkpoint else found(short, "peak").state.step)


@pytest.mark.parametrize("forged", ["x", -1, 1.5, 10**30, None])
def test_a_forged_number_of_steps_is_refused(forged: object) -> None:
    with pytest.raises(StorageError, match=r"it continues .* steps"):
        steps_before({"before": forged}, Path("here"))
    assert steps_before({"before": 7}, Path("here")) == 7
    assert steps_before({}, Path("here")) == 0


class Read:
    """The rows of the steps, in the order in which they are read: each with its epoch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.rows: list[tuple[int, int]] = []
        take = Stepper.take_rows

        def taken(stepper: Stepper, step: int) -> Any:
            found = take(stepper, step)
            self.rows += zip(*(part.tolist() for part in found[0]), strict=True)
            return found

        monkeypatch.setattr(Stepper, "take_rows", taken)

    def taken(self) -> list[tuple[int, int]]:
        rows, self.rows = self.rows, []
        return rows


@pytest.mark.parametrize(("source", "packing"), [("drawn", "concat"), ("drawn", "pad"), ("stories", "concat")])
def test_a_run_that_is_continued_reads_on_in_text_that_it_had_not_needed(
    source: str, packing: str, tiny: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run prepares what it reads: the second one more, which it reads before anything again; and so does a third,
    which is also interrupted."""
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    monkeypatch.setattr(work_units, "FIRST_BYTES", 1 << 12)
    monkeypatch.setattr(corpora, "BLOCK_BYTES", 1 << 10)
    text = tiny.with_name("text.txt")
    text.write_text("".join(story(3, number).replace("\n", " ") + "\n" for number in range(800)))
    tiny.write_text(tiny.read_text().replace("documents = 300\n", ""))
    drawn = {"data.source": f"text:{text}"} if source == "drawn" else {}
    sets = drawn | {"data.packing": packing, "train.schedule": "constant", "train.save_every": 4}
    read, steps = Read(monkeypatch), 12
    before, known = trained("first", steps, sampled=True, **sets), read.taken()
    assert len(set(known)) == len(known), "it had enough rows"
    for name in ("second", "third"):
        on = {"model.init": f"{before.path}#last", "train.continued": True}
        folder = trained(name, steps, sampled=True, **sets, **on)
        rows, plans = read.taken(), [Plan.read(each.plan) for each in (before, folder)]
        assert len({row for _, row in rows}) == len(rows) == 4 * steps and {epoch for epoch, _ in rows} == {0}
        assert not {row for _, row in rows} & {row for _, row in known}, "none is read again"
        assert (plans[1].entries or 0) > (plans[0].entries or 0), "more is prepared for it"
        before, known = folder, known + rows
    newest = max(before.checkpoints.glob("step-*"))
    expected = tensors(before)
    for kept in (newest, before.done, before.evaluation):
        kept.unlink()
    resumed = trained("third", steps, sampled=True, **sets, **on)
    rows = read.taken()
    assert 0 < len(rows) < 4 * steps and rows == known[-len(rows) :]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(resumed).items())


@pytest.mark.parametrize("change", ["other", "longer"])
def test_a_text_that_has_changed_is_read_from_its_beginning(
    change: str, tiny: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bytes, whose ids are the same in any text."""
    lines = [story(3, number).replace("\n", " ") + "\n" for number in range(400)]
    text, others = tiny.with_name("text.txt"), lines[200:] if change == "other" else lines
    text.write_text("".join(lines[:200]))
    sets = {"data.source": f"text:{text}", "data.tokenizer": "bytes", "train.schedule": "constant"}
    read, first = Read(monkeypatch), trained("first", 12, **sets)
    read.taken()
    text.write_text("".join(others))
    on = {"model.init": f"{first.path}#last", "train.continued": True}
    second = trained("second", 12, **sets, **on)
    rows = read.taken()
    trained("fresh", 12, **sets)
    assert rows == read.taken() and "before" not in found(second).state.task


def test_a_continued_run_of_fewer_documents_reads_those(tiny: Path, trained: Trained) -> None:
    on, before = {}, None
    for name, documents in (("first", 100), ("second", 200), ("third", 150), ("fourth", 50)):
        if before is not None:
            on = {"model.init": f"{before.path}#last", "train.continued": True}
        before = trained(name, 6, **{"data.documents": documents, "train.schedule": "constant"}, **on)
        assert before.done.is_file()


def test_weights_of_a_run_whose_ids_mean_other_words_are_refused(tiny: Path, trained: Trained) -> None:
    """Words are fitted to the text; with the tokenizer of that run another text has its ids."""
    first = trained("first", 4)
    text = tiny.with_name("text.txt")
    text.write_text("".join(f"the sea number {number} is blue\n" for number in range(400)))
    other = {"data.source": f"text:{text}", "model.init": str(first.path)}
    with pytest.raises(UserError, match=f'another tokenizer.* take data.tokenizer = "file:{first.tokenizer}"'):
        trained("other", 4, **other)
    taken = trained("taken", 4, **other, **{"data.tokenizer": f"file:{first.tokenizer}"})
    assert read_tokenizer(taken.tokenizer).to_dict() == read_tokenizer(first.tokenizer).to_dict()


@pytest.mark.parametrize("forged", [{"pools": [["x"]], "share": 1.0}, {"pools": [[0, 9]]}, {"pools": 3, "share": 0.5}])
def test_forged_rows_are_refused(forged: dict[str, Any], trained: Trained) -> None:
    short = trained("short", 4)
    opened = found(short)
    other = Continued(short, short.read_recipe(), opened._replace(state=replace(opened.state, task=forged)))
    with pytest.raises(StorageError, match=r"not a checkpoint of shoestring: it read"):
        other.rows_read(short.read_recipe())
