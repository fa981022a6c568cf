"""Our GPT-2 as `GPT2LMHeadModel` of transformers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoestring.core.sections import Model
from shoestring.cost.transformer import table_positions
from shoestring.models.families.gpt2 import FAMILY
from shoestring.models.families.gpt2.network import EPSILON
from shoestring.models.transformers_format import TransformersFormat, WeightNames


def _config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """Arguments of transformers' `GPT2Config`."""
    return {
        "vocab_size": vocab_size,
        "n_positions": table_positions(model, length),
        "n_embd": model.width,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": FAMILY.hidden(model),
        "activation_function": "gelu_new",
        "layer_norm_epsilon": EPSILON,
        "embd_pdrop": model.dropout,
        "resid_pdrop": model.dropout,
        "attn_pdrop": model.attention_rate,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _turned(value: Tensor, mine: str) -> Tensor:
    """Products of a block are stored as (inputs, outputs) there, and as (outputs, inputs) here."""
    return value.t().contiguous() if value.ndim == 2 and mine.startswith("blocks.") else value


NAMES = WeightNames(
    network="GPT-2",
    base="transformer.",
    heads=("lm_head.",),
    modules={
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    },
    layer="transformer.h.",
    parts={
        "norm1": ("ln_1",),
        "qkv": ("attn.c_attn",),
        "out": ("attn.c_proj",),
        "norm2": ("ln_2",),
        "up": ("mlp.c_fc",),
        "down": ("mlp.c_proj",),
    },
    endings={".attn.bias": None, ".attn.masked_bias": None},  # causal masks
    tied_by="transformer.wte.weight",
    turn=_turned,
)


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "width": config["n_embd"],
        "layers": config["n_layer"],
        "heads": config["n_head"],
        "hidden": config.get("n_inner") or 4 * config["n_embd"],
        "tied": config["tie_word_embeddings"],
        "dropout": config["resid_pdrop"],
        "positions": config["n_positions"],
    }


FORMAT = TransformersFormat(
    kind="gpt2",
    architecture=lambda _: "GPT2LMHeadModel",
    config=_config,
    fields=_fields,
    fixed={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "layer_norm_epsilon": (EPSILON,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "scale_attn_weights": (True,),
    },
    write=NAMES.write,
    read=NAMES.read,
    names=NAMES,
)
FORMATS = (FORMAT,)
