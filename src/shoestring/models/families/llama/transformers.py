"""Our Llama as `LlamaForCausalLM` of transformers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoestring.core.errors import UserError
from shoestring.core.sections import Model
from shoestring.core.specs import RotaryScaling
from shoestring.models.families.llama import FAMILY, norm_eps
from shoestring.models.transformers_format import TransformersFormat, WeightNames


def _config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """Arguments of transformers' `LlamaConfig`."""
    return {
        "vocab_size": vocab_size,
        "max_position_embeddings": length,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "intermediate_size": FAMILY.hidden(model),
        "hidden_act": "silu",
        "rms_norm_eps": norm_eps(model),
        "rope_theta": model.rotary_base,
        "rope_scaling": _rope_scaling(model.rotary_scaling),
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
        "attention_dropout": model.attention_rate,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _rope_scaling(scaling: RotaryScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    found: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        found |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        found["original_max_position_embeddings"] = int(scaling.length)
    return found


NAMES = WeightNames(
    network="Llama",
    base="model.",
    heads=("lm_head.",),
    modules={"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
    layer="model.layers.",
    parts={
        "norm1": ("input_layernorm",),
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.o_proj",),
        "norm2": ("post_attention_layernorm",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    },
    endings={"rotary_emb.inv_freq": None},
    tied_by="model.embed_tokens.weight",
)


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    biases = {bool(config.get(name)) for name in ("attention_bias", "mlp_bias")}
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if len(biases) > 1 or (config.get("head_dim") or width // heads) != width // heads:
        raise UserError("a Llama with biases in attention or MLP only, or with heads of another size, is not supported")
    return {
        "width": width,
        "layers": config["num_hidden_layers"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "hidden": config["intermediate_size"],
        "tied": config["tie_word_embeddings"],
        "bias": biases.pop(),
        "dropout": config.get("attention_dropout") or 0.0,
        "rotary_base": float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        "rotary_scaling": _rotary_scaling(rope),
        "norm_eps": float(config["rms_norm_eps"]),
    }


def _rotary_scaling(rope: Mapping[str, Any]) -> str | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    names = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
    if kind == "default":
        return None
    if kind not in names or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f'rotary positions of type "{kind}" are not supported; linear and llama3 are')
    found = ":".join([kind, *(f"{float(rope[name]):f}".rstrip("0").rstrip(".") for name in names[kind])])
    return found if kind == "linear" else f"{found}:{rope['original_max_position_embeddings']}"


FORMAT = TransformersFormat(
    kind="llama",
    architecture=lambda _: "LlamaForCausalLM",
    config=_config,
    fields=_fields,
    fixed={"hidden_act": ("silu",)},
    write=NAMES.write,
    read=NAMES.read,
    names=NAMES,
)
FORMATS = (FORMAT,)
