"""[evaluate] overlap: fingerprints of a run, compared at step 1 and at every evaluation, resumed or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from profiles import write_profile

from shoestring.core.clock import Clock
from shoestring.core.errors import RecordError, UserError
from shoestring.core.fingerprints import Fingerprints
from shoestring.core.recipe_file import load
from shoestring.core.run_folder import RunFolder
from shoestring.data.tokenize.special_tokens import special_tokens
from shoestring.report.figures import overlap_curves
from shoestring.runs.fingerprints import Shape, make_fingerprints, open_base
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.trained_model import load_run
from shoestring.track import read_lines
from shoestring.training.hooks import Stopped

SHAPE = Shape(prompts=3, prefix=2, length=16, least=10)


def train(tiny: Path, settings: list[str], reporter: Reporter | None = None, **more: float) -> RunFolder:
    """Run the recipe, whose profile need not be measured."""
    write_profile(tiny, *settings)
    recipe = load(tiny, settings)
    run(recipe, reporter or Reporter(), Clock(0.0), **more)  # type: ignore[arg-type]
    return RunFolder.of(recipe)


@pytest.fixture
def base(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return train(tiny, ["budget.steps=12", "train.lr=0.03"])


@pytest.fixture
def prints(base: RunFolder, tmp_path: Path) -> Path:
    made = make_fingerprints(open_base(str(base.path), SHAPE.length), SHAPE)
    made.write(tmp_path / "fingerprints.json")
    return tmp_path / "fingerprints.json"


def overlaps(folder: RunFolder) -> dict[int, dict[str, float]]:
    return {line["step"]: line for line in read_lines(folder.metrics) if "overlap" in line}


def tuned(name: str, prints: Path, *more: str) -> list[str]:
    start = [f"run.name={name}", f"evaluate.overlap={prints}", "model.init=runs/tiny", "budget.steps=8"]
    return [*start, "train.lr=0.01", *more]


def test_the_file(base: RunFolder, prints: Path) -> None:
    found, loaded = Fingerprints.read(prints), load_run(base)
    assert len(found.prompts) == 3 and found.length == 16 and found.k == 10
    assert not set(special_tokens(loaded.tokenizer).fixed) & {index for prompt in found.prompts for index in prompt}
    assert found.vocabulary == loaded.tokenizer.vocab_size
    again = make_fingerprints(open_base(str(base.path), SHAPE.length), SHAPE)
    assert again == found


def test_scores_at_step_one_and_at_evaluations(tiny: Path, prints: Path) -> None:
    folder = train(tiny, tuned("tuned", prints))
    found = overlaps(folder)
    assert list(found) == [1, 2, 4, 6, 8]
    assert found[1]["overlap"] >= found[8]["overlap"] and 0 < found[1]["overlap_kl"] < found[8]["overlap_kl"]
    # by hand, from the weights that both runs delivered
    given = Fingerprints.read(prints)
    ids, (one, other) = torch.tensor(given.prompts), (load_run(RunFolder(f"runs/{n}")).model for n in ("tiny", "tuned"))
    with torch.no_grad():
        lists = [
            [
                sorted(range(given.vocabulary), key=row.__getitem__)[: given.k]
                for row in model.logits(ids)[:, -1].tolist()
            ]
            for model in (one, other)
        ]
    shares = [len({*a} & {*b}) / given.k for a, b in zip(*lists)]
    best = load_run(RunFolder("runs/tuned")).step
    assert found[best]["overlap"] == pytest.approx(sum(shares) / 3)
    assert (found[best]["overlap_min"], found[best]["overlap_max"]) == (min(shares), max(shares))
    figure = overlap_curves(read_lines(folder.metrics))
    assert figure is not None and "Tokens shared" in folder.report.read_text()


def test_a_resumed_run_writes_the_same_lines(tiny: Path, prints: Path) -> None:
    whole, settings = train(tiny, tuned("whole", prints)), tuned("halves", prints)
    with pytest.raises(Stopped):
        train(tiny, settings, until=0.5)
    prints.unlink()  # the run has what it needs
    halves = train(tiny, settings)
    assert whole.metrics.read_bytes() == halves.metrics.read_bytes()


def test_what_is_refused(tiny: Path, prints: Path) -> None:
    with pytest.raises(UserError, match=r"16 tokens, and data.length = 8.*--length 8"):
        train(tiny, tuned("short", prints, "data.length=8"))
    with pytest.raises(UserError, match=r"102 ids .*predicts 52"):
        train(tiny, ["run.name=other", f"evaluate.overlap={prints}", "data.tokenizer=words:50"])
    with pytest.raises(UserError, match="a masked one does not"):
        train(tiny, ["run.name=masked", f"evaluate.overlap={prints}", "model.family=masked_lm"])
    values = json.loads(prints.read_text())
    wrong = (("prompts", [[1, 2], [3]], "same length"), ("k", 200, "below"), ("likeliest", [], "numbers"))
    for name, bad, line in wrong:
        prints.write_text(json.dumps(values | {name: bad}))
        with pytest.raises(RecordError, match=line):
            Fingerprints.read(prints)


def test_another_base_is_told(tiny: Path, prints: Path) -> None:
    said: list[str] = []

    class Heard(Reporter):
        def say(self, text: str) -> None:
            said.append(text)

    train(tiny, ["run.name=fresh", f"evaluate.overlap={prints}", "budget.steps=2"], Heard())
    assert any("its base is another model" in line for line in said)
