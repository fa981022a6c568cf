"""A recipe that says little learns more than counting, in every family. `bench/defaults.py` does so for two minutes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.family import family_of
from shoestring.core.records import Plan
from shoestring.core.results import Evaluation
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import Model
from shoestring.core.warmup import least_steps
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.track import read_lines

BATCH, LETTERS = 16, "abcdefgh"
LR = 5e-3
"""Of a Llama of this size."""


def walks(random: np.random.Generator) -> str:
    """A walk around a circle of letters, in steps of one length: two letters in a row tell all others, one does not."""
    start, stride = random.integers(8), random.choice([1, 3, 5])
    return "".join(LETTERS[(start + i * stride) % 8] for i in range(40))


def topics(random: np.random.Generator) -> str:
    """Two letters in any order, a pair of four: any letter tells the pair."""
    return "".join(random.choice([*LETTERS[2 * random.integers(4) :][:2]], size=30))


@pytest.mark.parametrize(
    ("family", "fields", "steps"),
    [
        ("llama", {}, 80),
        ("swift", {}, 80),
        ("gpt2", {}, 120),
        ("perceiver_ar", {"latents": 16}, 200),
        ("masked_lm", {}, 100),
    ],
)
def test_a_family_learns_more_than_counting_with_its_defaults(
    family: str, fields: dict[str, Any], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next tokens: less than the bigram's loss. Hidden ones: half a nat less than the unigram's."""
    monkeypatch.chdir(tmp_path)
    hidden, random = family == "masked_lm", np.random.default_rng(0)
    texts = [(topics if hidden else walks)(random) for _ in range(400)]
    Path("texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    packing = "pad" if hidden else "concat"
    values = {
        "run": {"name": family},
        "budget": {"steps": steps},
        "data": {"source": "jsonl:texts.jsonl", "tokenizer": "bytes", "length": 32, "heldout": 0.1, "packing": packing},
        "model": {"family": family, "width": 64, "layers": 2, "heads": 4} | fields,
        "train": {"batch": BATCH, "per_device": BATCH, "lr": LR * family_of(Model(family=family)).lr_factor},
        "evaluate": {"rows": 32, "every": 1.0},
    }
    recipe = recipe_file.build(values, family)
    folder = RunFolder.of(recipe)
    folder.claim(recipe)
    Plan(
        binding="steps", recipe=recipe.fingerprint, steps=steps, effective_batch=BATCH, per_device=BATCH, accumulate=1,
        devices=1, every_entry=True, evaluations=1,
    ).write(folder.plan)  # fmt: skip
    run(recipe, Reporter(), Clock(0.0))
    evaluation = Evaluation.read(folder.evaluation)
    baselines = evaluation.baselines
    rates = [line["lr"] for line in read_lines(folder.metrics) if "lr" in line]
    assert rates.index(max(rates)) == min(least_steps(recipe), steps // 4), "the first step at the peak"
    assert evaluation.loss < (baselines["unigram"] - 0.5 if hidden else baselines["bigram"])
