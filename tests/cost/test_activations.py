"""What is kept for the backward pass, against the tensors that autograd and torch's partitioner really keep."""

import json
import runpy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import Started
from kept import COMPILED, LATENTS, LENGTH, VOCABULARY, of_a_row, recorded_rows, small

from shoestring.core.sections import Model
from shoestring.cost.transformer import Setting, transformer_of
from shoestring.models.families.perceiver_ar import kept_of
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers.blocks import Block

DECODERS = ("llama", "swift", "gpt2")
MODELS: list[dict[str, Any]] = [
    {"family": "llama"},
    {"family": "llama", "kv_heads": 2, "hidden": 40},
    {"family": "llama", "dropout": 0.1},
    {"family": "swift"},
    {"family": "swift", "kv_heads": 2, "hidden": 40},
    {"family": "swift", "dropout": 0.1},
    {"family": "swift", "parts": "qk_norm, gains, convolutions"},
    {"family": "swift", "pointer": 40},
    {"family": "swift", "parts": "gains, soft_cap", "pointer": 8, "output_dropout": 0.1, "dropout": 0.1},
    {"family": "swift", "pairs": 9},
    {"family": "swift", "pairs": 9, "word_dropout": 0.1},
    {"family": "swift", "parts": "relu2, scales, convolutions:1", "dropout": 0.1},
    {"family": "swift", "parts": "none", "hidden": 40},
    {"family": "swift", "parts": "gains, relu2, value_embeddings"},
    {"family": "swift", "parts": "qk_norm, embedding_norm, scales"},
    {"family": "swift", "parts": "qk_norm, gains, embedding_norm, value_embeddings, scales", "kv_heads": 2},
    {"family": "swift", "parts": "qk_norm, gains, relu2, value_embeddings, scales", "dropout": 0.1, "window": 5},
    {"family": "gpt2"},
    {"family": "gpt2", "dropout": 0.1},
    *({"family": family, "dropout": 0.1, "attention_dropout": 0.0} for family in DECODERS),
    *({"family": family, "attention_dropout": 0.1} for family in DECODERS),
    *({"family": family, "output_dropout": 0.1} for family in DECODERS),
    *({"family": family, "word_dropout": 0.1} for family in DECODERS),
    {"family": "llama", "dropout": 0.1, "output_dropout": 0.2, "word_dropout": 0.3, "kv_heads": 2},
    {"family": "swift", "parts": "qk_norm, gains, embedding_norm, value_embeddings, scales", "word_dropout": 0.1},
    {"family": "swift", "parts": "none", "attention_dropout": 0.0, "dropout": 0.1, "window": 5},
    {"family": "perceiver_ar", "latents": LATENTS},
    {"family": "perceiver_ar", "latents": LATENTS, "prefix_dropout": 0.0},
    {"family": "perceiver_ar", "latents": LATENTS, "dropout": 0.1},
    {"family": "masked_lm"},
    {"family": "masked_lm", "dropout": 0.1},
    {"family": "masked_lm", "classes": 3},
]
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")


def saved_bytes(model: Model, length: int, setting: Setting, predicted: float = 1.0) -> dict[str, int]:
    return transformer_of(model).saved_bytes(model, length, setting, predicted)


def name_of(fields: dict[str, Any]) -> str:
    return "-".join(str(value) for value in fields.values())


def settings(compiled: bool) -> Iterator[Setting]:
    for number in (2, 4):
        for recompute in ("none", "selective", "full"):
            yield Setting(number=number, compiled=compiled, gpu=False, recompute=recompute)  # type: ignore[arg-type]


def made(model: Model, setting: Setting) -> LanguageModel:
    network = build(model, VOCABULARY, LENGTH, 0)
    for block in network.blocks:
        assert isinstance(block, Block)
        block.recompute = setting.recompute
    return network


def out_of_sight(model: Model, setting: Setting) -> int:
    """Tables of angles of a row's prefix, which a recomputed block holds in a tuple that no hook is shown."""
    if model.family != "perceiver_ar" or setting.recompute != "full":
        return 0
    prefix = kept_of(LENGTH - LATENTS, model.prefix_dropout)
    pairs = model.width // model.heads // 4  # half of the channels are turned, two by two
    return prefix * pairs * 2 * 4


@pytest.mark.parametrize("fields", MODELS, ids=name_of)
def test_a_row_keeps_what_autograd_keeps(fields: dict[str, Any]) -> None:
    model = Model(width=32, layers=3, heads=4, **fields)
    for setting in settings(compiled=False):
        real = of_a_row(made(model, setting), model, setting.number == 2) + out_of_sight(model, setting)
        assert sum(saved_bytes(model, LENGTH, setting).values()) == real, setting


@pytest.mark.parametrize(
    "family",
    [
        "llama", "swift", "swift with a window", "swift with convolutions", "swift with pairs", "swift with pointer",
        "gpt2",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("dropout", "of_attention"), [(0.0, None), (0.1, None), (0.1, 0.0), (0.0, 0.1)])
def test_a_row_of_documents_keeps_its_mask_and_positions(
    family: Any, dropout: float, of_attention: float | None
) -> None:
    parts = "convolutions" if "convolutions" in family else None
    pairs, pointer = 9 if "pairs" in family else None, 8 if "pointer" in family else None
    family, window = family.split()[0], 5 if "window" in family else None
    rates: dict[str, Any] = {"dropout": dropout, "attention_dropout": of_attention}
    fields: dict[str, Any] = {"window": window, "parts": parts, "pairs": pairs, "pointer": pointer} | rates
    model = Model(family=family, width=32, layers=3, heads=4, **fields)
    for setting in settings(compiled=False):
        masked = replace(setting, document_mask=True)
        real = of_a_row(made(model, masked), model, setting.number == 2, document_mask=True)
        if family != "gpt2" and setting.recompute == "full":
            real += LENGTH * model.width // model.heads * 4  # angles, which a block holds in a tuple, as above
        assert sum(saved_bytes(model, LENGTH, masked).values()) == real, setting


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_layers_share_one_mask(family: Any) -> None:
    """A mask per layer was most of the memory of long rows of documents."""
    masks = []
    for layers in (1, 4):
        model = Model(family=family, width=32, layers=layers, heads=4)
        plain, masked = (
            of_a_row(build(model, VOCABULARY, LENGTH, 0), model, bf16=False, document_mask=document_mask)
            for document_mask in (False, True)
        )
        masks.append(masked - plain)
    assert masks[0] == masks[1] >= 4 * LENGTH**2


def test_a_gpu_has_a_mask_in_short_rows_and_with_dropout() -> None:
    setting = Setting(number=2, compiled=True, gpu=True, document_mask=True)
    for family in ("llama", "gpt2"):
        model = Model(family=family, width=32, layers=3, heads=4)
        assert saved_bytes(model, 127, setting)["mask"] == 2 * 127**2
        assert "mask" not in saved_bytes(model, 512, setting), "flex attention"
        dropping = replace(model, dropout=0.1)
        assert saved_bytes(dropping, 512, setting)["mask"] == 2 * 512**2
        assert "mask" not in saved_bytes(replace(dropping, attention_dropout=0.0), 512, setting)


@pytest.mark.parametrize("predicted", [0.15, 0.5, 1.0])
def test_a_masked_model_keeps_its_head_for_predictions_alone(predicted: float) -> None:
    model = Model(family="masked_lm", width=32, layers=2, heads=4)
    setting = Setting(number=4, compiled=False, gpu=False)
    real = of_a_row(made(model, setting), model, bf16=False, predicted=predicted)
    assert sum(saved_bytes(model, LENGTH, setting, predicted).values()) == real


@pytest.mark.slow
def test_a_compiled_row_keeps_what_the_partitioner_leaves(tmp_path: Path) -> None:
    """Compiled unless it is known what came of it, by `python tests/cost/kept.py --record`."""
    setting = Setting(number=2, compiled=True, gpu=False)
    found = {family: sum(saved_bytes(small(family), LENGTH, setting).values()) for family in COMPILED}
    known = recorded_rows()
    new = [family for family in COMPILED if family not in known]
    assert found == known | (compiled_rows(new, tmp_path) if new else {})


def compiled_rows(families: list[str], folder: Path) -> Any:
    """In a process of its own: here shapes are checked in every call, and the compiler would look into that."""
    script = str(Path(__file__).with_name("kept.py"))
    process = Started(families, folder, {}, partial(runpy.run_path, script, run_name="__main__"))
    said, wrong = process.communicate(300)
    assert process.returncode == 0, wrong
    return json.loads(said)


def test_llamas_kernels_keep_what_they_say() -> None:
    """On a GPU, counted by hand from `save_for_backward` of add_norm, swiglu_linear and short_attention."""
    d, k, f, t = 64, 32, 192, 100
    model = Model(width=d, layers=1, heads=4, kv_heads=2, hidden=f)
    found = saved_bytes(model, t, Setting(number=2, compiled=True, gpu=True))
    assert found["norms"] == 2 * t * (2 * d + 4), "sums and scales"
    assert found["attention"] == t * 2 * (d + (d + 2 * k) + d), "what the products read, queries, keys and values"
    assert found["mlp"] == t * 2 * (d + 2 * f), "what the products read: gate and values alone"
    longer = saved_bytes(model, 2 * t, Setting(number=2, compiled=True, gpu=True))["attention"]
    assert longer == 2 * found["attention"] + 2 * t * 4 * 4, "sums of weights, too; what is turned is not kept"


@pytest.mark.parametrize("convolved", [False, True])
@pytest.mark.parametrize("values", [False, True])
def test_swifts_kernels_keep_what_they_say(values: bool, convolved: bool) -> None:
    """On a GPU, counted by hand from `save_for_backward` of scaled_add_norm, normed_heads, attention, convolutions."""
    d, k, h, shared, t = 64, 32, 4, 2, 256
    parts = "qk_norm, gains, scales" + ", value_embeddings" * values + ", convolutions" * convolved
    model = Model(family="swift", width=d, layers=1, heads=h, kv_heads=shared, parts=parts)  # type: ignore[arg-type]
    found = saved_bytes(model, t, Setting(number=2, compiled=False, gpu=True))
    assert found["norms"] == 2 * t * (2 * d + 4) + convolved * 2 * t * d, (
        "sums, scales and the inputs of norm2's convolution"
    )
    made, turned, mixed = d + 2 * k, d + 2 * k, d
    read = 2 * (d + (1 + convolved) * made + turned + mixed) + 4 * (h + shared) + 4 * h
    assert found["attention"] == t * (read + values * 2 * shared), "both norms' scales, sums of weights, and gates"
    assert found.get("values", 0) == values * t * 2 * k


@pytest.mark.parametrize("fields", MODELS, ids=name_of)
def test_what_is_computed_again_was_not_kept(fields: dict[str, Any]) -> None:
    model = Model(width=32, layers=3, heads=4, **fields)
    for compiled in (False, True):
        none = Setting(number=2, compiled=compiled, gpu=compiled)
        sizes = [none, replace(none, recompute="selective"), replace(none, recompute="full")]
        kept = [sum(saved_bytes(model, LENGTH, setting).values()) for setting in sizes]
        again = [transformer_of(model).recomputed_bytes(model, LENGTH, setting) for setting in sizes]
        assert kept[0] > kept[1] > kept[2]
        assert again[0] == 0 < again[1] < again[2] < kept[0]
        assert transformer_of(model).backward_bytes(model, LENGTH, none) > 0
