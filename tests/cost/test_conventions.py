"""The conventions against published numbers, an operation by operation count, and each other."""

from typing import Any

import pytest
import torch
from losses import loss_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shoestring.core.errors import UserError
from shoestring.core.family import network_cost
from shoestring.core.sections import Model
from shoestring.cost.conventions import CONVENTIONS, accounting
from shoestring.models.batch import Batch
from shoestring.models.language_model import build

GPT2_SMALL = Model(family="gpt2", width=768, layers=12, heads=12)
FAMILIES: list[dict[str, Any]] = [
    {"family": "llama", "kv_heads": 2, "bias": True},
    {"family": "swift", "kv_heads": 2},
    {"family": "swift", "kv_heads": 2, "parts": "relu2, value_embeddings, scales, embedding_norm", "tied": False},
    {"family": "swift", "pointer": 6},
    {"family": "gpt2", "tied": False},
    {"family": "perceiver_ar", "latents": 5},
    {"family": "masked_lm"},
]


def small(fields: dict[str, Any]) -> Model:
    return Model(**{"width": 24, "layers": 3, "heads": 4} | fields)


every_family = pytest.mark.parametrize("model", [small(fields) for fields in FAMILIES], ids=lambda model: model.family)


def test_n_of_gpt2_is_the_published_one() -> None:
    """124,439,808 in all, its tables of 50,257 and 1,024 rows among them."""
    found = accounting(GPT2_SMALL, 50_257, 1024).parameters
    assert found["6N, all parameters"] == found["PaLM"] == 124_439_808
    assert found["6N, no embeddings"] == 124_439_808 - (50_257 + 1024) * 768
    assert found["6N, with output"] == 124_439_808 - 1024 * 768
    assert found["Kaplan"] == 12 * 12 * 768**2


@pytest.mark.parametrize(
    ("millions", "width", "layers", "heads", "ratio"),
    [
        (74, 640, 10, 10, 1.03),
        (306, 1024, 20, 16, 1.10),
        (552, 1280, 24, 10, 1.08),
        (1143, 1792, 26, 14, 1.04),
        (1593, 2048, 28, 16, 1.03),
        (6796, 3584, 40, 28, 0.99),
    ],
)
def test_ratios_of_chinchillas_table(millions: int, width: int, layers: int, heads: int, ratio: float) -> None:
    """Hoffmann et al. 2022, table A4: FLOPs by appendix F over 6 N D, for N of table A9, in whole millions."""
    found = accounting(Model(family="gpt2", width=width, layers=layers, heads=heads), 32_000, 2048)
    low, high = (found.per_token("Chinchilla's tables") / (6e6 * (millions + half)) for half in (0.5, -0.5))
    assert low <= ratio + 0.005 and high >= ratio - 0.005
    assert not low <= found.per_token("Chinchilla") / (6e6 * millions) <= high, "embeddings and logits are not in it"


def test_operations_one_by_one() -> None:
    """Table 1 of Kaplan et al. and appendix F of Hoffmann et al., written out for one decoder."""
    t, v, d, f, n, h = 1024, 50_257, 768, 3072, 12, 12
    found = accounting(GPT2_SMALL, v, t)
    kaplan = n * (2 * d * 3 * d + 2 * t * d + 2 * d * d + 2 * 2 * d * f)
    assert found.per_token("Kaplan") == 3 * kaplan
    attention = 2 * 3 * t * d * d + 2 * t * t * d + 3 * h * t * t + 2 * t * t * d + 2 * t * d * d
    forward = 2 * t * v * d + n * (attention + 2 * t * (d * f + d * f)) + 2 * t * d * v
    assert found.row["Chinchilla"] == 3 * forward
    assert found.per_token("PaLM") == 6 * 124_439_808 + 12 * n * h * (d // h) * t


@every_family
def test_the_exact_count_is_that_of_the_cost_and_of_a_counter(model: Model) -> None:
    vocabulary, length = 37, 12
    found = accounting(model, vocabulary, length)
    assert found.per_token() == pytest.approx(network_cost(model, vocabulary, length).train_flops_per_token, rel=1e-15)
    network, ids = build(model, vocabulary, length, 0), torch.randint(vocabulary, (2, length + 1))
    batch = Batch(ids[:, 1:], wanted=ids[:, 1:]) if model.family == "masked_lm" else Batch(ids)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
        loss_of(network, batch)
    assert 3 * counter.get_total_flops() == pytest.approx(2 * found.row["exact"], rel=1e-12)
    assert found.predictions == loss_of(network, batch).predictions / 2


@every_family
def test_numbers_of_parameters_are_those_of_the_network(model: Model) -> None:
    vocabulary, length = 37, 12
    network, found = build(model, vocabulary, length, 0), accounting(model, vocabulary, length).parameters
    sizes = {name: p.numel() for name, p in network.named_parameters()}
    tables = [name for name in sizes if name.split(".")[0] in ("embedding", "positions", "types", "value_embedding")]
    output = network.output().weight.numel()
    assert found["6N, all parameters"] == sum(sizes.values())
    rest = sum(size for name, size in sizes.items() if name not in (*tables, "head.weight"))
    assert found["6N, no embeddings"] == rest
    assert found["6N, with output"] == rest + output
    assert found["Kaplan"] == sum(p.numel() for p in network.blocks.parameters() if p.ndim == 2)


@every_family
def test_a_table_names_every_convention_once(model: Model) -> None:
    found = accounting(model, 37, 12)
    lines = found.table()
    assert [line[0] for line in lines] == list(CONVENTIONS) and set(found.row) == set(CONVENTIONS)
    for name, _, flops, share, _ in lines:
        assert flops == found.row[name] / 12 and share == pytest.approx(flops / found.per_token())
        assert found.per_prediction(name) * found.predictions == pytest.approx(found.row[name])


def test_a_tied_output_is_left_out_as_an_own_one_is() -> None:
    tied, own = (accounting(small({"tied": tied}), 37, 12).parameters for tied in (True, False))
    assert own["6N, all parameters"] - tied["6N, all parameters"] == 37 * 24
    for name in ("6N, no embeddings", "6N, with output", "Kaplan"):
        assert tied[name] == own[name]


def test_a_model_of_transformers_is_not_counted_here() -> None:
    with pytest.raises(UserError, match=r'model\.family = "hf"'):
        accounting(Model(family="hf", name="gpt2"), 50_257, 1024)
