"""Frozen parts, adapters and layer-wise rates: what is learned, what it takes, and that it resumes and merges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import write_profile

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import UserError
from shoestring.core.family import learned_of
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import Data, Model
from shoestring.core.train_section import Train
from shoestring.core.tuning import FreezeSpec, Lora
from shoestring.cost.memory import estimate_memory
from shoestring.cost.seconds import training_flops
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers import adapter as adapter_module
from shoestring.models.layers.adapter import adapter_of
from shoestring.models.tuning import add_lora, freeze, layers_of, merge_lora, tune
from shoestring.runs.export import export_run
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.trained_model import load_run
from shoestring.training.hooks import Stopped
from shoestring.training.learner import Learner
from shoestring.training.optimizer import Optimizer

V, LENGTH = 40, 12
SMALL = Recipe(model=Model(width=16, layers=3, heads=2), data=Data(length=LENGTH), train=Train(batch=4, lr=1e-2))
WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "embedding": {"freeze": "embedding"},
    "blocks": {"freeze": "embedding, blocks.0-1"},
    "parts": {"freeze": "mlp, norm"},
    "lora": {"lora": Lora(rank=2)},
    "some": {"lora": Lora(rank=3, targets="qkv, down")},
}


def tuned(way: str, family: str = "llama", **train: Any) -> Recipe:
    given = dict(WAYS[way])
    lora = given.pop("lora", None)
    return replace(
        SMALL, model=replace(SMALL.model, family=family), train=Train(batch=4, lr=1e-2, **given, **train), lora=lora
    )


def network(recipe: Recipe) -> LanguageModel:
    model = build(recipe.model, V, LENGTH, 0)
    tune(model, recipe, 1)
    return model


@pytest.mark.parametrize("rule", [{}, {"optimizer": "muon"}, {"optimizer": "muon", "normalize_neurons": True}])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_counted_is_what_there_is(way: str, rule: dict[str, Any]) -> None:
    recipe = tuned(way, **rule)
    model = network(recipe)
    made = Optimizer(model, recipe.train)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    made.step(torch.ones(()), torch.ones(()), torch.zeros(()), 1e-3)
    state = sum(4 * tensor.numel() for name, tensor in made.tensors().items() if tensor.ndim)
    found = estimate_memory(recipe, V, "cpu").moments["update"].fixed
    assert found["weights"] == 4 * sum(p.numel() for p in model.parameters())
    assert found["gradients"] == 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert found["optimizer"] == state


@pytest.mark.parametrize("family", ["llama", "gpt2", "swift", "masked_lm"])
def test_frozen_weights_stay(family: str) -> None:
    recipe = tuned("blocks", family)
    learner = Learner(network(recipe), recipe.train, torch.device("cpu"))
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    rows = torch.randint(V, (4, LENGTH + 1))
    batch: Any = rows
    if family == "masked_lm":
        from shoestring.models.batch import Batch

        batch = Batch(rows[:, :-1], wanted=rows[:, :-1].clone())
    learner.update(learner.accumulate(batch, 2), 1e-2)
    for name, p in learner.model.named_parameters():
        kept = name.startswith(("blocks.0.", "blocks.1.", "embedding.", "positions.", "types."))
        assert torch.equal(before[name], p) == kept, name


def test_the_learned_part_has_its_usual_gradients() -> None:
    """Freezing leaves out gradients, and changes none of the others."""
    rows, found = torch.randint(V, (3, LENGTH + 1)), []
    for way in ("all", "blocks"):
        model = network(tuned(way))
        model(rows).backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    whole, part = found
    assert part and all(torch.allclose(whole[name], gradient, atol=1e-6) for name, gradient in part.items())


@pytest.mark.parametrize("family", ["llama", "gpt2", "masked_lm"])
def test_adapters_change_nothing_at_first_and_are_merged(family: str) -> None:
    recipe, ids = tuned("lora", family), torch.randint(V, (2, LENGTH))
    plain, model = build(recipe.model, V, LENGTH, 0).eval(), network(recipe).eval()
    with torch.no_grad():
        assert torch.equal(plain.logits(ids), model.logits(ids))
        for layer in layers_of(model).values():
            adapter = adapter_of(layer)
            assert adapter is not None
            adapter.b.normal_()
        changed = model.logits(ids)
        assert not torch.allclose(changed, plain.logits(ids), atol=1e-2)
        merge_lora(model)
        assert torch.allclose(model.logits(ids), changed, atol=1e-4)
    assert dict(model.named_parameters()).keys() == dict(plain.named_parameters()).keys()


@pytest.mark.parametrize("most", [0, 1024])
def test_the_product_of_an_adapted_layer_is_that_of_float64(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the changed matrix is rounded as one, and gradients come from it or from small products."""
    monkeypatch.setattr(adapter_module, "MOST_CHANNELS", most)
    x, weight, a, b = (torch.randn(shape, requires_grad=True) for shape in ((7, 12), (10, 12), (3, 12), (10, 3)))
    product = torch.ops.shoestring.adapted_linear(x, weight, a, b, 0.5)[0]
    outer = torch.randn(7, 10)
    found = torch.autograd.grad(product, (x, a, b), outer)
    wide = [each.detach().double().requires_grad_() for each in (x, weight, a, b)]
    exact = wide[0] @ (wide[1] + 0.5 * wide[3] @ wide[2]).T
    expected = torch.autograd.grad(exact, (wide[0], wide[2], wide[3]), outer.double())
    assert torch.allclose(product.double(), exact, atol=1e-5)
    assert all(torch.allclose(mine.double(), theirs, atol=1e-5) for mine, theirs in zip(found, expected))


def test_an_adapter_is_what_the_definition_says() -> None:
    model = build(SMALL.model, V, LENGTH, 0)
    add_lora(model, Lora(rank=2, alpha=6.0, targets="out"), 0)
    layer, x = model.blocks[1].out, torch.randn(5, 16)
    adapter = adapter_of(layer)
    assert adapter is not None and adapter_of(model.blocks[1].qkv) is None
    with torch.no_grad():
        adapter.b.normal_()
        by_hand = [
            sum(
                float(adapter.b[o, k]) * sum(float(adapter.a[k, i]) * float(x[0, i]) for i in range(16))
                for k in range(2)
            )
            for o in range(16)
        ]
        assert torch.allclose(layer(x)[0] - x[0] @ layer.weight.T, 3 * torch.tensor(by_hand), atol=1e-4)


def test_layer_wise_rates() -> None:
    """With plain signs of gradients, AdamW's first step has the size of the rate."""
    recipe = tuned("all", layer_decay=0.5, weight_decay=0.0)
    model = network(recipe)
    made = Optimizer(model, recipe.train)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    made.step(torch.zeros(()), torch.ones(()), torch.zeros(()), 0.08)
    rates = {"embedding": 0.01, "blocks.0": 0.02, "blocks.1": 0.04, "blocks.2": 0.08, "norm": 0.08}
    for name, p in model.named_parameters():
        rate = next(rate for part, rate in rates.items() if name.startswith(f"{part}."))
        assert torch.allclose(before[name] - p, torch.full_like(p, rate), atol=1e-5), name


def test_flops_of_what_is_not_learned_are_left_out() -> None:
    whole, adapted = (training_flops(tuned(way), V) for way in ("all", "lora"))
    assert adapted == pytest.approx(whole * 2 / 3)
    assert training_flops(tuned("embedding"), V) < whole
    found = learned_of(tuned("blocks"), V)
    assert found is not None and found.begins == 2 and not found.head


def train(tiny: Path, settings: list[str], **more: float) -> RunFolder:
    write_profile(tiny, *settings)
    recipe = recipe_file.load(tiny, settings)
    run(recipe, Reporter(), Clock(0.0), **more)  # type: ignore[arg-type]
    return RunFolder.of(recipe)


TUNED = {
    "frozen": ["train.freeze=embedding, blocks.0", "train.layer_decay=0.8", "model.layers=2"],
    "lora": ["lora.rank=2", "model.layers=2"],
}


@pytest.mark.parametrize("way", TUNED)
def test_a_resumed_run_ends_with_the_same_bits(tiny: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    given = ["budget.steps=8", *TUNED[way]]
    whole = train(tiny, ["run.name=whole", *given])
    with pytest.raises(Stopped):
        train(tiny, ["run.name=halves", *given], until=0.5)
    halves = train(tiny, ["run.name=halves", *given])
    assert whole.metrics.read_bytes() == halves.metrics.read_bytes()
    one, other = (dict(load_run(folder).model.named_parameters()) for folder in (whole, halves))
    assert all(torch.equal(one[name], other[name]) for name in one)
    if way == "lora":
        transformers = pytest.importorskip("transformers")
        export_run(whole, tiny.parent / "exported")
        theirs = transformers.LlamaForCausalLM.from_pretrained(tiny.parent / "exported")
        ids = torch.randint(100, (1, 8))
        with torch.no_grad():
            assert torch.allclose(theirs(ids).logits, load_run(whole).model.logits(ids), atol=1e-4)
        again = train(tiny, ["run.name=again", "budget.steps=1", "model.layers=2", "model.init=runs/whole"])
        assert again.done.is_file()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("blocks.7", "no block 7; the model has blocks.0-2"),
        ("head", "no head of its own; it is tied"),
        ("blocks, embedding, norm", "nothing is left to train"),
    ],
)
def test_what_cannot_be_frozen(text: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        freeze(build(SMALL.model, V, LENGTH, 0), FreezeSpec(text))


def test_parts_by_name() -> None:
    found = FreezeSpec("embedding, blocks.0-2,blocks.5")
    assert found.problem() is None and found.groups == {"embedding"} and found.blocks(9) == {0, 1, 2, 5}
    assert FreezeSpec("blocks").blocks(3) == {0, 1, 2}
    for text in ("", "block", "blocks.", "blocks.3-1", "embedding,", "blocks.99999999999999999999"):
        assert FreezeSpec(text).problem() is not None, text


def test_adapters_that_cannot_be() -> None:
    with pytest.raises(UserError, match=r"no layer is named .q_proj.; there are qkv, out, gate_up, down"):
        add_lora(build(SMALL.model, V, LENGTH, 0), Lora(targets="q_proj"), 0)
    values = {"model": {"family": "perceiver_ar", "latents": 8}, "lora": {}, "budget": {"steps": 1}}
    with pytest.raises(UserError, match="has no adapters"):
        recipe_file.build(values | {"train": {"batch": 1, "lr": 1e-3}}, "x")
