"""Our Swift as `Qwen3ForCausalLM` of transformers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoestring.core.sections import Model
from shoestring.models.families.llama import transformers as llama
from shoestring.models.families.swift import parts_of

_QWEN3 = "qk_norm, gains"
"""The parts of a Qwen3."""

PARTS = {"q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",)}
NAMES = llama.NAMES._replace(network="Swift", parts=dict(llama.NAMES.parts) | PARTS)


def _config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """Arguments of transformers' `Qwen3Config`."""
    found = llama.FORMAT.config(model, vocab_size, length)
    del found["mlp_bias"]
    return found | {"head_dim": model.width // model.heads}


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    found = llama.FORMAT.fields(dict(config) | {"mlp_bias": config.get("attention_bias")})
    return {name: value for name, value in found.items() if name != "bias"} | {"parts": _QWEN3}


def _problem(model: Model) -> str | None:
    parts = parts_of(model)
    others = [name for name in parts.names if parts.has(name) and name not in (*_QWEN3.split(", "), "zero_outputs")]
    lacking = [f"no {name}" for name in _QWEN3.split(", ") if not parts.has(name)]
    window = [] if model.window is None else ["a window"]
    return f"differs: this model has {', '.join(others + lacking + window)}" if others + lacking + window else None


FORMAT = llama.FORMAT._replace(
    kind="qwen3",
    architecture=lambda _: "Qwen3ForCausalLM",
    config=_config,
    fields=_fields,
    fixed=dict(llama.FORMAT.fixed) | {"attention_bias": (False,), "use_sliding_window": (False,)},
    write=NAMES.write,
    read=NAMES.read,
    names=NAMES,
    problem=_problem,
)
FORMATS = (FORMAT,)
