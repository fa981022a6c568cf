"""Llama against an implementation of its own in NumPy, in float64, written from the paper's formulas."""

import math

import numpy as np
import pytest
import torch

from shoestring.core.family import is_compiled, network_cost
from shoestring.core.recipe_file import build
from shoestring.core.sections import Model
from shoestring.models.families.llama import FAMILY
from shoestring.models.families.llama.network import Llama
from shoestring.models.layers.rotary import frequencies, rotate, turns

VOCABULARY = 19
Weights = dict[str, np.ndarray]


def weights_of(model: Model, seed: int = 0) -> tuple[Llama, Weights]:
    """A network with weights of size 0.4 in every parameter, gains included, in float64."""
    network = Llama(model, VOCABULARY, 16, seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            centre = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(centre + 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return network, {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}


def rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return np.array([row / math.sqrt(float(np.mean(row * row)) + 1e-5) * gain for row in x])


def turn(vector: np.ndarray, position: int, base: float) -> np.ndarray:
    """Channel c and channel c + C/2 are one complex number, turned by position / base^(2c/C)."""
    half = len(vector) // 2
    turned = np.empty(len(vector))
    for c in range(half):
        number = complex(vector[c], vector[c + half]) * np.exp(1j * position / base ** (2 * c / len(vector)))
        turned[c], turned[c + half] = number.real, number.imag
    return turned


def attend(x: np.ndarray, qkv: np.ndarray, out: np.ndarray, heads: int, base: float) -> np.ndarray:
    width = x.shape[1]
    size = width // heads
    queries, keys, values = (x @ qkv[i * width : (i + 1) * width].T for i in range(3))
    mixed = np.zeros_like(x)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for t in range(len(x)):
            query = turn(queries[t, part], t, base)
            scores = np.array([query @ turn(keys[s, part], s, base) for s in range(t + 1)]) / math.sqrt(size)
            shares = np.exp(scores - scores.max())
            mixed[t, part] = (shares / shares.sum()) @ values[: t + 1, part]
    return mixed @ out.T


def swiglu(x: np.ndarray, gate_up: np.ndarray, down: np.ndarray) -> np.ndarray:
    hidden = len(gate_up) // 2
    gate, up = x @ gate_up[:hidden].T, x @ gate_up[hidden:].T
    return (gate / (1 + np.exp(-gate)) * up) @ down.T


def plain_logits(model: Model, weights: Weights, ids: np.ndarray) -> np.ndarray:
    x = weights["embedding.weight"][ids]
    for layer in range(model.layers):
        w = {name.split(".", 2)[2]: value for name, value in weights.items() if name.startswith(f"blocks.{layer}.")}
        x = x + attend(rms_norm(x, w["norm1.weight"]), w["qkv.weight"], w["out.weight"], model.heads, model.rotary_base)
        x = x + swiglu(rms_norm(x, w["norm2.weight"]), w["gate_up.weight"], w["down.weight"])
    return rms_norm(x, weights["norm.weight"]) @ weights["head.weight"].T


@pytest.mark.parametrize(
    "model",
    [
        Model(width=16, layers=1, heads=1, hidden=20),
        Model(width=16, layers=2, heads=4, tied=False),
        Model(width=24, layers=3, heads=2, hidden=10, rotary_base=50.0),
    ],
    ids=["one head", "untied", "another base"],
)
def test_logits_and_losses_are_those_of_a_plain_implementation(model: Model) -> None:
    network, weights = weights_of(model)
    rows = torch.randint(VOCABULARY, (3, 13), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        logits, losses = network.logits(rows[:, :-1]).numpy(), network.token_losses(rows).double().numpy()
    for row, mine, lost in zip(rows.numpy(), logits, losses):
        expected = plain_logits(model, weights, row[:-1])
        assert np.abs(expected).max() > 1, "the comparison must not be one of small numbers"
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)
        logs = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(lost, -logs[np.arange(12), row[1:]], rtol=1e-5, atol=1e-5)


def test_float32_is_close_to_float64() -> None:
    model = Model(width=16, layers=2, heads=2)
    network, weights = weights_of(model)
    rows = torch.randint(VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        logits = network.float().logits(rows)[0].numpy()
    np.testing.assert_allclose(logits, plain_logits(model, weights, rows[0].numpy()), rtol=1e-3, atol=1e-3)


def test_rotation_turns_pairs_of_channels_by_their_position() -> None:
    x = torch.randn(1, 1, 30, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = rotate(x, turns(frequencies(8, 100.0), 30))
    expected = np.array([turn(vector, position, 100.0) for position, vector in enumerate(x[0, 0].numpy())])
    np.testing.assert_allclose(turned[0, 0].numpy(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(turned[..., 0, :], x[..., 0, :]), "the first position is not turned"


def test_attention_scores_depend_on_the_distance_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    angles = turns(frequencies(16, 10000.0), 64)
    query, key = (torch.randn(16, generator=generator, dtype=torch.float64) for _ in range(2))
    queries, keys = (rotate(vector.expand(1, 1, 64, 16), angles)[0, 0] for vector in (query, key))
    scores = (queries @ keys.T).numpy()
    for distance in range(-63, 64):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-5, atol=1e-5)
    assert len({round(float(np.diagonal(scores, d)[0]), 3) for d in range(-63, 64)}) > 100, "and differ between them"


def test_rotation_keeps_lengths_and_the_type() -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        x = torch.randn(2, 3, 20, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
        turned = rotate(x, turns(frequencies(6, 10000.0), 20))
        assert turned.dtype == dtype
        torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("width", "hidden", "expected"), [(12, None, 32), (24, None, 64), (256, None, 704), (768, None, 2048), (64, 7, 7)]
)
def test_hidden_channels_default_to_eight_thirds_of_the_width(width: int, hidden: int | None, expected: int) -> None:
    model = Model(width=width, heads=1, layers=1, hidden=hidden)
    assert FAMILY.hidden(model) == expected
    assert Llama(model, 5, 8, 0).blocks[0].down.weight.shape == (width, expected)
    assert hidden is not None or 0 <= expected - 8 * width / 3 < 32


def test_the_size_of_a_known_model() -> None:
    """Llama 7B: 6,738,415,616 parameters, as published."""
    model = Model(width=4096, layers=32, heads=32, hidden=11008, tied=False)
    assert network_cost(model, 32_000, 2048).total_parameters == 6_738_415_616


def test_first_weights_have_the_documented_sizes() -> None:
    model = Model(width=128, layers=8, heads=4, tied=False)
    network = Llama(model, 200, 100, 0)
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == 1).all(), name
        else:
            written = name.endswith(("out.weight", "down.weight"))
            assert parameter.std().item() == pytest.approx(0.02 / 4 if written else 0.02, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.001, name


@pytest.mark.parametrize(
    ("values", "compiled"),
    [
        ({}, False),
        ({"model": {"family": "gpt2"}}, True),
        ({"model": {"dropout": 0.1}}, False),
        ({"model": {"attention_dropout": 0.1}}, False),
        ({"model": {"output_dropout": 0.1, "word_dropout": 0.1}}, False),
        ({"data": {"document_mask": True}}, True),
        ({"parallel": {"shard": True}}, True),
        *(({"train": {"batch": 4, "lr": 1e-3} | fields}, True) for fields in (
            {"recompute": "full"}, {"precision": "fp32"}, {"compile": True},
        )),
        ({"train": {"batch": 4, "lr": 1e-3, "compile": False}, "model": {"family": "gpt2"}}, False),
    ],
)  # fmt: skip
def test_layers_that_are_kernels_are_not_compiled(values: dict[str, dict[str, object]], compiled: bool) -> None:
    least = {"budget": {"steps": 10}, "train": {"batch": 4, "lr": 1e-3}}
    recipe = build(least | values, "test")
    assert is_compiled(recipe, "cuda") is compiled
    assert is_compiled(recipe, "cpu") is bool(recipe.train.compile)
