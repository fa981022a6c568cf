"""Layers with adapters on a GPU: their products and gradients beside float64, alone and in networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from shoestring.core.recipe import Recipe
from shoestring.core.sections import Data, Model
from shoestring.core.train_section import Train
from shoestring.core.tuning import Lora
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers import adapter
from shoestring.models.layers.adapter import Adapter
from shoestring.models.layers.expert_adapter import ExpertAdapter
from shoestring.models.tuning import tune
from shoestring.training.learner import Learner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]
CUDA = torch.device("cuda")
V, LENGTH = 300, 64


def off(found: Tensor, exact: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((found.double().cpu() - exact.cpu()).abs().max() / exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("most", [0, 10**6])
def test_products_are_those_of_float64(dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "MOST_CHANNELS", most)
    x, outer = (torch.randn(512, n, device=CUDA).to(dtype) for n in (192, 320))
    weight, a, b = (torch.randn(shape, device=CUDA) / 8 for shape in ((320, 192), (8, 192), (320, 8)))
    leaves = [each.clone().requires_grad_() for each in (x, a, b)]
    product = torch.ops.shoestring.adapted_linear(leaves[0], weight, *leaves[1:], 2.0)[0]
    found = torch.autograd.grad(product, leaves, outer)
    wide = [each.double().requires_grad_() for each in (x, a, b)]
    exact = wide[0] @ (weight.double() + 2.0 * wide[2] @ wide[1]).T
    expected = torch.autograd.grad(exact, wide, outer.double())
    assert off(product, exact) < 0.02
    assert all(off(mine, theirs) < 0.02 for mine, theirs in zip(found, expected))


def tuned(model: Model) -> LanguageModel:
    recipe = Recipe(model=model, data=Data(length=LENGTH), train=Train(batch=4, lr=1e-3), lora=Lora(rank=4))
    network = build(model, V, LENGTH, 0)
    tune(network, recipe, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, Adapter | ExpertAdapter):
                module.b.copy_(torch.randn(module.b.shape, generator=generator) / 50)
    return network


def gradients(model: Model, device: str) -> dict[str, Tensor]:
    """Of the adapters: on the CPU in float64, on the GPU as in training."""
    rows = torch.randint(V, (4, LENGTH + 1), generator=torch.Generator().manual_seed(2))
    if device == "cpu":
        network = tuned(model).double()
        if network.pretrained is not None:
            network.pretrained.set_experts_implementation("eager")  # others have no float64
        network(rows).backward()
        return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    learner = Learner(tuned(model), Train(batch=4, lr=1e-3), CUDA)
    learner.accumulate(rows, 4)
    return {name: p.grad.double().cpu() for name, p in learner.model.named_parameters() if p.grad is not None}


def base(kind: str, folder: Path) -> Model:
    """A network of ours, or a folder of transformers with random weights."""
    if kind in ("llama", "gpt2"):
        return Model(family=kind, width=64, layers=3, heads=4)
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "qwen2":
        config = transformers.Qwen2Config(
            vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH,
        )  # fmt: skip
    elif kind == "qwen2_moe":  # each token has all experts: which it has would depend on rounding
        config = transformers.Qwen2MoeConfig(
            vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH, num_experts=4, num_experts_per_tok=4,
            moe_intermediate_size=32, shared_expert_intermediate_size=64,
        )  # fmt: skip
    else:
        still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(vocab_size=V, n_positions=LENGTH, n_embd=64, n_layer=3, n_head=4, **still)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return Model(family="hf", name=str(folder))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "qwen2_moe", "gpt2 of transformers"])
def test_gradients_of_adapters_are_those_of_float64(kind: str, tmp_path: Path) -> None:
    model = base(kind, tmp_path / "base")
    exact, found = gradients(model, "cpu"), gradients(model, "cuda")
    assert exact.keys() == found.keys() and len(exact) >= 3 * 4 * 2
    one, other = (torch.cat([each[name].flatten() for name in exact]) for each in (exact, found))
    one, other = one / torch.linalg.norm(one), other / torch.linalg.norm(other)  # of a mean, and of a sum
    assert torch.linalg.norm(one - other) < 0.05
