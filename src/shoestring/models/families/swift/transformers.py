"""Our Swift as `Qwen3ForCausalLM` or `NanoChatForCausalLM` of transformers, or with a modelling file; and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from shoestring.core.sections import Model
from shoestring.models.families.llama import norm_eps
from shoestring.models.families.llama import transformers as llama
from shoestring.models.families.swift import FAMILY, full_every, parts_of
from shoestring.models.layers.rotary import frequencies
from shoestring.models.transformers_format import TransformersFormat, WeightNames

_QWEN3 = ("qk_norm", "gains")
_NANOCHAT = ("qk_norm", "relu2", "embedding_norm")
"""The parts of these networks."""
_FIRST = "zero_outputs"
"""A part of the first weights alone."""


def _differences(model: Model, needed: tuple[str, ...], may: tuple[str, ...] = ()) -> str | None:
    """What a network has, or has not, beside the parts that are needed or may be there."""
    parts = parts_of(model)
    found = [name for name in parts.names if parts.has(name) and name not in (*needed, *may, _FIRST)]
    found += [f"no {name}" for name in needed if not parts.has(name)]
    found += [] if model.window is None else ["a window"]
    found += ["rows for pairs of tokens"] if model.pairs else []
    found += ["a pointer"] if model.pointer else []
    return f"is another network: this model has {', '.join(found)}" if found else None


# Qwen3

_QWEN3_PARTS = {"q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",)}
NAMES = llama.NAMES._replace(network="Swift", parts=dict(llama.NAMES.parts) | _QWEN3_PARTS)


def _qwen3_config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """Arguments of transformers' `Qwen3Config`."""
    found = llama.FORMAT.config(model, vocab_size, length)
    del found["mlp_bias"]
    return found | {"intermediate_size": FAMILY.hidden(model), "head_dim": model.width // model.heads}


def _fields(config: Mapping[str, Any], parts: str) -> dict[str, Any]:
    found = llama.FORMAT.fields(dict(config) | {"mlp_bias": config.get("attention_bias")})
    return {name: value for name, value in found.items() if name != "bias"} | {"parts": parts}


FORMAT = llama.FORMAT._replace(
    kind="qwen3",
    architecture=lambda _: "Qwen3ForCausalLM",
    config=_qwen3_config,
    fields=lambda config: _fields(config, ", ".join(_QWEN3)),
    fixed=dict(llama.FORMAT.fixed) | {"attention_bias": (False,), "use_sliding_window": (False,)},
    write=NAMES.write,
    read=NAMES.read,
    names=NAMES,
    problem=lambda model: _differences(model, _QWEN3),
)

# NanoChat: norms without gains, and angles of the other sign, so that half of the channels have another sign too

_NANOCHAT_NAMES = llama.NAMES._replace(
    network="NanoChat",
    modules={"embedding": "model.embed_tokens", "head": "lm_head"},
    parts={
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.o_proj",),
        "up": ("mlp.fc1",),
        "down": ("mlp.fc2",),
    },
)


def _nanochat_config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """Arguments of transformers' `NanoChatConfig`."""
    found = _qwen3_config(model, vocab_size, length) | {"hidden_act": "relu2", "pad_token_id": None}
    return found | {"final_logit_softcapping": parts_of(model).cap}


def _nanochat_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    cap = config.get("final_logit_softcapping")
    return _fields(config, ", ".join([*_NANOCHAT, *([] if cap is None else [f"soft_cap:{cap:g}"])]))


def _mirrored(rows: Tensor, heads: int, channels: int) -> Tensor:
    """The rows of a matrix with the second half of the channels of the first so many heads negated."""
    found = rows.clone()
    found[: heads * channels].view(heads, 2, channels // 2, -1)[:, 1].neg_()
    return found


def _nanochat_write(model: Any) -> dict[str, Tensor]:
    counts = {"q_proj": model.heads.queries, "k_proj": model.heads.keys}
    found = _NANOCHAT_NAMES.write(model)
    for name, rows in found.items():
        heads = counts.get(name.split(".")[-2])
        found[name] = rows if heads is None else _mirrored(rows, heads, model.heads.channels)
    return found


def _nanochat_finish(state: dict[str, Tensor], model: Model) -> dict[str, Tensor]:
    heads = model.heads + (model.kv_heads or model.heads)
    return {
        name: _mirrored(value, heads, model.width // model.heads) if name.endswith("qkv.weight") else value
        for name, value in state.items()
    }


NANOCHAT = FORMAT._replace(
    kind="nanochat",
    architecture=lambda _: "NanoChatForCausalLM",
    config=_nanochat_config,
    fields=_nanochat_fields,
    fixed={"hidden_act": ("relu2",), "attention_bias": (False,)},
    write=_nanochat_write,
    read=_NANOCHAT_NAMES.read,
    finish=_nanochat_finish,
    names=_NANOCHAT_NAMES,
    adapts=False,
    problem=lambda model: _differences(model, _NANOCHAT, ("soft_cap",)),
)

# any other: a modelling file beside the weights, which have our names

_MODULES = ("embedding", "value_embedding", "pair_embedding", "embedding_norm", "norm", "head", "pointer")
_IN_BLOCKS = (
    "norm1", "qkv", "q_norm", "k_norm", "value_gate", "out", "norm2", "gate_up", "up", "down", "scales", "convolution1",
    "convolution2",
)  # fmt: skip
_OWN_NAMES = WeightNames(
    network="Swift",
    base="",
    heads=(),
    modules={name: name for name in _MODULES},
    layer="blocks.",
    parts={name: (name,) for name in _IN_BLOCKS},
    endings={},
    tied_by="embedding.weight",
)


def _own_config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    scaling = model.rotary_scaling
    return {
        "auto_map": {
            "AutoConfig": "modeling_swift.SwiftConfig",
            "AutoModelForCausalLM": "modeling_swift.SwiftForCausalLM",
        },
        "vocab_size": vocab_size,
        "max_position_embeddings": length,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "intermediate_size": FAMILY.hidden(model),
        "rms_norm_eps": norm_eps(model),
        "rope_theta": model.rotary_base,
        "rotary_scaling": None if scaling is None else str(scaling),
        "frequencies": frequencies(model.width // model.heads, model.rotary_base, scaling).tolist(),
        "parts": parts_of(model).in_order,
        "pairs": FAMILY.pairs(model),
        "pointer": FAMILY.pointer(model),
        "window": model.window,
        "full_every": full_every(model),
        "tied": model.tied,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _own_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    same = ("parts", "window", "tied", "rotary_scaling")
    return {name: config[name] for name in same} | {
        "pairs": config.get("pairs") or None,
        "pointer": config.get("pointer") or None,
        "full_every": None if config["window"] is None else config["full_every"],
        "width": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "hidden": config["intermediate_size"],
        "rotary_base": float(config["rope_theta"]),
        "norm_eps": float(config["rms_norm_eps"]),
    }


OWN = TransformersFormat(
    kind="shoestring_swift",
    architecture=lambda _: "SwiftForCausalLM",
    config=_own_config,
    fields=_own_fields,
    fixed={},
    write=_OWN_NAMES.write,
    read=_OWN_NAMES.read,
    names=_OWN_NAMES,
    code=Path(__file__).with_name("modeling_swift.py"),
)
FORMATS = (FORMAT, NANOCHAT, OWN)
