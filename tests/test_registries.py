"""A family, an optimizer, a tracker, a file format and a GPU, each added from outside the package by one line."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

import shoestring as ss
from shoestring.core import recipe_file
from shoestring.core.errors import RecipeError, UserError
from shoestring.core.family import Family, family_of
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost
from shoestring.core.registry import registry
from shoestring.core.sections import Model
from shoestring.cost.gpus import Gpu, find_gpu
from shoestring.data.read.documents import Format, Reading, Records
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel, Output
from shoestring.training.optimizer import Weights
from shoestring.training.optimizers import OptimizerSpec


class Bigram(LanguageModel):
    """A table that says what follows each token."""

    def __init__(self, vocabulary: int, width: int, seed: int):
        super().__init__()
        self.blocks = nn.ModuleList()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1, generator=generator)

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        found: Tensor = self.embedding(inputs.ids)
        return found

    def output(self) -> Output:
        return Output(self.head.weight)


class BigramFamily(Family):
    name = "bigram"
    fields = frozenset({"width"})

    def problems(self, recipe: Recipe) -> list[str]:
        return ["model.width = 13: unlucky"] if recipe.model.width == 13 else []

    def cost(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Cost:
        size = vocabulary * model.width
        return Cost(parameters={"embedding": size, "head": size}, forward_flops_per_token=2.0 * size)

    def build(self, model: Model, vocabulary: int, length: int, seed: int) -> Bigram:
        return Bigram(vocabulary, model.width, seed)


def sgd(weights: Weights, settings: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([*weights.plain, *weights.decayed, *weights.matrices], lr=settings.lr, momentum=0.9)]


class Notes:
    """A tracker that keeps what it is told."""

    told: ClassVar[dict[str, list[tuple[int, dict[str, float]]]]] = {}

    def __init__(self, folder: Path, step: int):
        self.lines = self.told.setdefault(folder.name, [])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.lines.append((step, dict(values)))

    def close(self) -> None:
        self.lines.append((-1, {}))


class Broken(Notes):
    """A tracker whose server is down."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        raise ConnectionError("no route")


def tab_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """A document per line, behind a tab."""
    for number, line in enumerate(file.read().decode().splitlines(), 1):
        yield number, line.partition("\t")[2]


BIGRAM = BigramFamily()
SGD = OptimizerSpec(make=sgd, state_numbers=lambda weights, _: weights)
TABS = Format((".tab",), tab_records)

TOYS: dict[str, dict[str, Any]] = {
    "family": {"bigram": "test_registries:BIGRAM"},
    "optimizer": {"sgd": "test_registries:SGD"},
    "tracker": {"notes": "test_registries:Notes", "broken": "test_registries:Broken"},
    "format": {"tabs": "test_registries:TABS"},
    "gpu": {"NVIDIA Imagined": Gpu(memory_bytes=48 << 30, bf16_flops=200e12)},
}
"""Those that a run uses are texts, which the child process of a measurement imports too."""


@pytest.fixture
def toys() -> Iterator[None]:
    """One line each; taken out again."""
    for kind, entries in TOYS.items():
        for name, entry in entries.items():
            registry(kind).add(name, entry)
    yield
    for kind, entries in TOYS.items():
        for name in entries:
            registry(kind).remove(name)


def values(folder: Path) -> dict[str, Any]:
    words = ["sun", "moon", "tree", "bird", "fish"]
    lines = [f"{i}\t{' '.join(words[(i + k) % 5] for k in range(20))}" for i in range(200)]
    (folder / "corpus.tab").write_text("\n".join(lines) + "\n")
    return {
        "run": {"name": "toy", "folder": str(folder / "runs")},
        "budget": {"steps": 60},
        "data": {
            "source": f"tabs:{folder / 'corpus.tab'}", "tokenizer": "words:8", "length": 16, "heldout": 0.1,
            "folder": str(folder / "stores"),
        },
        "model": {"family": "bigram", "width": 16},
        "train": {"batch": 8, "per_device": 8, "lr": 1.0, "optimizer": "sgd"},
        "evaluate": {"rows": 8, "every": 0.5},
        "track": {"to": ["notes", "broken"]},
    }  # fmt: skip


@pytest.mark.usefixtures("toys")
def test_toys_from_outside_train_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ss.train(values(tmp_path))
    baselines = run.evaluation.baselines
    assert run.evaluation.loss < 0.5 * baselines["unigram"], "the next word follows from the last one"
    assert run.evaluation.loss < baselines["bigram"] + 0.3
    steps = [step for step, told in Notes.told["toy"] if "heldout_loss" in told]
    assert steps == [30, 60] and Notes.told["toy"][-1] == (-1, {}), "closed"
    assert capsys.readouterr().out.count("broken failed") == 1, "said once, and the run continues"
    assert run.profile.cost.parameters == {"embedding": 160, "head": 160}


@pytest.mark.usefixtures("toys")
def test_a_family_from_outside_checks_its_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as raised:
        ss.load(values(tmp_path), {"model.width": 13, "model.layers": 2})
    assert raised.value.problems == (
        'model.layers: model.family = "bigram" has none; it is for llama and swift and gpt2 and perceiver_ar and '
        "masked_lm",
        "model.width = 13: unlucky",
    )


@pytest.mark.usefixtures("toys")
def test_a_gpu_from_outside_is_known() -> None:
    found = find_gpu("nvidia imagined")
    assert found is not None and found.memory_bytes == 48 << 30


def test_a_name_that_is_taken_or_unknown_is_refused() -> None:
    with pytest.raises(UserError, match="'llama' is registered already"):
        registry("family").add("llama", BigramFamily())
    with pytest.raises(RecipeError, match=r"""must be one of "llama", .* did you mean 'llama'\?"""):
        recipe_file.build({"budget": {"steps": 1}, "train": {"batch": 1}, "model": {"family": "lama"}}, "here")
    with pytest.raises(RecipeError, match=r"""must be one of "llama", [^;]*$"""):
        recipe_file.build({"budget": {"steps": 1}, "train": {"batch": 1}, "model": {"family": "zzz"}}, "here")


def test_listing_names_loads_nothing() -> None:
    assert list(registry("family")) == ["llama", "swift", "gpt2", "perceiver_ar", "masked_lm", "hf"]
    assert family_of(Model()).name == "llama"
