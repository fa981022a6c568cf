"""Adapters of the experts of a mixture: against peft's `target_parameters`, finite differences and what torch saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shoestring.core import recipe_file
from shoestring.core.errors import UserError
from shoestring.core.family import learned_of
from shoestring.core.recipe import Recipe
from shoestring.core.sections import Model
from shoestring.core.tuning import Lora
from shoestring.cost.memory import estimate_memory
from shoestring.cost.seconds import training_flops
from shoestring.models.families.hf.counting import hf_saved_bytes
from shoestring.models.families.hf.network import load_stored
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers.expert_adapter import (
    ExpertAdapter,
    add_expert_adapter,
    expert_adapters,
    expert_weights,
    merge_experts,
)
from shoestring.models.peft_format import CONFIG, WEIGHTS, save_adapter
from shoestring.models.tuning import add_lora, merge_lora, tune

transformers = pytest.importorskip("transformers")
V, LENGTH = 40, 12
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
SHAPE |= {"vocab_size": V, "max_position_embeddings": 32, "num_experts_per_tok": 2}
KINDS: dict[str, Any] = {
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **SHAPE, intermediate_size=32, num_experts=4, moe_intermediate_size=8, shared_expert_intermediate_size=16
    ),
    "mixtral": lambda: transformers.MixtralConfig(**SHAPE, intermediate_size=24, num_local_experts=3),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SHAPE, intermediate_size=24, num_local_experts=3, head_dim=8, layer_types=["full_attention"] * 2
    ),
}
IDS = torch.arange(3 * LENGTH).view(3, LENGTH) * 7 % V
peft_s = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*target_parameters:UserWarning")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder of transformers with random weights; its matrices are not square, so none can be turned unseen."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(KINDS[request.param]())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    network.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def with_adapters(base: Path, lora: Lora) -> LanguageModel:
    """The network with adapters that change something."""
    model = build(Model(family="hf", name=str(base)), V, LENGTH, 0)
    add_lora(model, lora, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".b"):
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


def logits(network: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = network.logits(IDS) if isinstance(network, LanguageModel) else network(IDS).logits
    return found


def theirs(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@peft_s
@pytest.mark.parametrize(
    ("base", "targets"),
    [("qwen2_moe", None), ("mixtral", "down_proj"), ("gpt_oss", None), ("gpt_oss", "gate_up_proj, q_proj")],
    indirect=["base"],
)
def test_peft_has_the_same_logits_and_reads_and_writes_the_same_folders(base: Path, targets: str | None) -> None:
    peft = pytest.importorskip("peft", reason="pip install 'shoestring[peft]'")
    lora = Lora(rank=3, alpha=5.0, targets=targets)
    model = with_adapters(base, lora)
    changed = logits(model)
    assert not torch.allclose(changed, logits(theirs(base)), atol=1e-3)
    spec = Model(family="hf", name=str(base))
    layers = save_adapter(model, spec, lora, str(base), base.parent / "ours", causal=True)
    experts = [f"{path}.{name}" for path, m in model.pretrained.named_modules() for name in expert_adapters(m)]
    config = json.loads((base.parent / "ours" / CONFIG).read_text())
    assert config["target_parameters"] == experts and len(experts) == (2 if targets else 4)
    assert layers == len(config["target_modules"]) + len(experts)
    loaded = peft.PeftModel.from_pretrained(theirs(base), base.parent / "ours").eval()
    torch.testing.assert_close(logits(loaded), changed, atol=1e-5, rtol=1e-5)
    loaded.save_pretrained(base.parent / "peft_s")
    for folder in ("ours", "peft_s"):
        read = load_stored(str(base.parent / folder), transformers.AutoModelForCausalLM).eval()
        torch.testing.assert_close(logits(read), changed, atol=1e-5, rtol=1e-5)
    merge_lora(model)
    torch.testing.assert_close(logits(model), changed, atol=1e-5, rtol=1e-5)
    assert {name for name, _ in model.pretrained.named_parameters()} == {n for n, _ in theirs(base).named_parameters()}


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_are_finite_differences(turned: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 4, 5, dtype=torch.float64, generator=draw)
    adapter = ExpertAdapter(weight, turned, 2, 0.7, draw)
    assert torch.equal(adapter(weight), weight), "zero at first"
    a, b = (torch.randn(p.shape, dtype=torch.float64, generator=draw).requires_grad_() for p in adapter.parameters())

    def changed(a: Tensor, b: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(adapter, {"a": a, "b": b}, (weight,))
        return found

    assert torch.autograd.gradcheck(changed, (a, b))
    one_by_one = [weight[e] + 0.7 * ((b[e] @ a[e]).T if turned else b[e] @ a[e]) for e in range(3)]
    torch.testing.assert_close(changed(a, b), torch.stack(one_by_one))


@pytest.mark.parametrize("base", ["qwen2_moe", "gpt_oss"], indirect=True)
def test_gradients_of_a_whole_mixture_are_finite_differences(base: Path) -> None:
    """In float64, in the direction of a random change of all adapters."""
    network = theirs(base).double()
    network.set_experts_implementation("eager")
    (mixture, *_) = [module for module in network.modules() if expert_weights(module)]
    draw = torch.Generator().manual_seed(0)
    for name in expert_weights(mixture):
        add_expert_adapter(mixture, name, 2, 0.5, draw)
    learned = [p for each in expert_adapters(mixture).values() for p in each.parameters()]
    with torch.no_grad():
        for parameter in learned:
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=draw) * 0.1)
    x = torch.randn(6, 16, dtype=torch.float64, generator=draw)
    to, shares = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 1], [1, 0], [2, 0]]), torch.full((6, 2), 0.5).double()

    def loss() -> Tensor:
        found: Tensor = mixture(x, to, shares).square().sum()
        return found

    gradients = torch.autograd.grad(loss(), learned)
    directions = [torch.randn(p.shape, dtype=torch.float64, generator=draw) for p in learned]
    ends = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for parameter, direction in zip(learned, directions, strict=True):
                parameter.add_(step * direction)
            ends.append(loss())
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-5, slope, rtol=1e-6, atol=1e-6)


def recipe_of(base: Path, lora: bool = True, **settings: Any) -> Recipe:
    values = {
        "budget": {"steps": 2},
        "data": {"length": LENGTH, "stream": "markov:30"},
        "train": {"batch": 8, "lr": 1e-3},
        "model": {"family": "hf", "name": str(base)},
    } | ({"lora": {"rank": 2} | settings} if lora else {})
    return recipe_file.build(values, "test")


def kept_bytes(network: nn.Module, rows: int) -> int:
    """Bytes that the backward pass of so many rows needs, besides parameters."""
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    storages: dict[int, Any] = {}

    def keep(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        network(torch.zeros(rows, LENGTH, dtype=torch.long))
    return sum(storage.nbytes() for place, storage in storages.items() if place not in own)


@pytest.mark.parametrize("base", ["mixtral"], indirect=True)
def test_what_is_counted_is_what_torch_keeps(base: Path) -> None:
    recipe = recipe_of(base, targets="gate_up_proj, down_proj")
    model = build(recipe.model, V, LENGTH, 0)
    network = model.pretrained.train()
    before = [kept_bytes(network.base_model, rows) for rows in (2, 4)]
    counted = hf_saved_bytes(recipe.model, V, LENGTH, 4)["activations"]
    assert counted == pytest.approx((before[1] - before[0]) / 2, rel=0.15)
    experts = sum(module.get_parameter(name).numel() for module in network.modules() for name in expert_weights(module))
    tune(model, recipe_of(base, targets="gate_up_proj, down_proj"), 1)
    found = learned_of(recipe, V)
    assert found is not None and found.changed == experts and found.changed_at_once == experts // 2
    assert found.learned == sum(p.numel() for p in model.parameters() if p.requires_grad)
    estimate = estimate_memory(recipe, V, "cpu").moments["backward"].fixed
    assert estimate["changed experts"] == 4 * experts and estimate["weights"] == 4 * found.all
    network.get_input_embeddings().requires_grad_(True)  # else the first matrices have no gradient to pass on
    shapes = {tuple(m.get_parameter(name).shape) for m in network.modules() for name in expert_weights(m)}
    shapes |= {(count, columns, rows) for count, rows, columns in shapes}
    changed = {
        x.untyped_storage().data_ptr(): x.numel() for x in _saved(network.base_model) if tuple(x.shape) in shapes
    }
    assert sum(changed.values()) == experts, "the changed matrices are kept, once each"
    attention = recipe_of(base, targets="q_proj")
    assert training_flops(attention, V) < training_flops(recipe, V) < training_flops(recipe_of(base, lora=False), V)


def _saved(network: nn.Module) -> list[Tensor]:
    own, found = {p.untyped_storage().data_ptr() for p in network.parameters()}, list[Tensor]()

    def keep(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            found.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        network(IDS)
    return found


@pytest.mark.parametrize("base", ["mixtral"], indirect=True)
def test_folders_that_do_not_fit_are_refused(base: Path) -> None:
    lora = Lora(rank=2, targets="gate_up_proj, down_proj")
    save_adapter(
        with_adapters(base, lora), Model(family="hf", name=str(base)), lora, str(base), base.parent / "a", causal=True
    )
    weights = load_file(base.parent / "a" / WEIGHTS)
    outer = next(name for name in weights if name.endswith("experts.lora_A.weight"))
    for tensors, line in (
        ({key: x for key, x in weights.items() if ".base_layer." not in key}, r"experts\.gate_up_proj is missing"),
        (weights | {outer: torch.zeros(6, 5)}, r"has matrices of \(6, 5\) and .* in the base"),
        (weights | {f"{outer}.x": torch.zeros(1)}, "is missing, or no matrix of an adapter"),
    ):
        save_file(tensors, base.parent / "a" / WEIGHTS)
        with pytest.raises(UserError, match=line):
            load_stored(str(base.parent / "a"), transformers.AutoModelForCausalLM)
    file = base.parent / "a" / CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | {"target_parameters": 3}))
    with pytest.raises(UserError, match="target_parameters = 3 must be a list of names"):
        load_stored(str(base.parent / "a"), transformers.AutoModelForCausalLM)
    with pytest.raises(UserError, match=r'no layer is named "gate_proj"; there are .*gate_up_proj, down_proj'):
        with_adapters(base, Lora(targets="gate_proj"))


def test_only_a_matrix_for_each_expert_is_adapted() -> None:
    convolution = nn.Conv1d(4, 4, 3)
    convolution.num_experts = 5  # type: ignore[assignment]
    assert expert_weights(convolution) == [] and expert_weights(nn.Linear(3, 3)) == []
    module: Any = nn.Module()
    module.num_experts, module.up = 2, nn.Parameter(torch.ones(2, 3, 4))
    module.bias, module.gate = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3, 3, 4))
    assert expert_weights(module) == ["up"] and expert_adapters(module) == {}
    kind = type(module)
    add_expert_adapter(module, "up", 1, 2.0, torch.Generator())
    with torch.no_grad():
        module.lora["up"].a.fill_(1.0)
        module.lora["up"].b.fill_(1.0)
    merge_experts(module)
    assert type(module) is kind and torch.equal(module.up, torch.full((2, 3, 4), 3.0)) and not hasattr(module, "lora")
