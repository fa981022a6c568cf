"""Our networks as folders that `transformers` loads, and its weights as ours.

    config.json         the same network as a config of transformers
    model.safetensors   its weights, under their names there and in float32

No weight is changed, so logits are equal up to rounding. `FORMATS` is the list of families that have a class there.

Shapes: D width, F hidden, Q and K channels of all heads of queries, and of keys.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor

from shoestring.core.errors import UserError, storage_error
from shoestring.core.files import make_folder, sync
from shoestring.core.recipe import Model
from shoestring.cost.shapes import TOKEN_TYPES, hidden_channels
from shoestring.models import gpt2, hf, llama, masked_lm
from shoestring.models.naming import named_back, renamed
from shoestring.models.protocol import LanguageModel


def llama_config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """The same network as arguments of transformers' `LlamaConfig`; it names no special tokens."""
    return {
        "vocab_size": vocab_size,
        "max_position_embeddings": length,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "intermediate_size": hidden_channels(model),
        "hidden_act": "silu",
        "rms_norm_eps": llama.norm_eps(model),
        "rope_theta": model.rotary_base,
        "rope_scaling": _rope_scaling(model.rotary_scaling),
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
        "attention_dropout": model.dropout,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _rope_scaling(scaling: str | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    kind, factor, *more = scaling.split(":")
    found: dict[str, Any] = {"rope_type": kind, "factor": float(factor)}
    if kind == "llama3":
        low, high, length = more
        found |= {"low_freq_factor": float(low), "high_freq_factor": float(high)}
        found["original_max_position_embeddings"] = int(length)
    return found


def llama_to_transformers(model: llama.Llama) -> dict[str, Tensor]:
    """The weights under the names of `LlamaForCausalLM`; a tied head is left out, as it is there."""
    own = dict(model.named_parameters())

    def divide(value: Tensor, mine: str, count: int) -> Sequence[Tensor]:
        return value.split(_sizes(own, mine)) if count > 1 else [value]

    return renamed(own, _llama_modules(len(model.blocks)), divide)


def _sizes(own: Mapping[str, Tensor], mine: str) -> list[int]:
    """Rows of the products that are one here: Q, K, K of attention, and F, F of the MLP."""
    rows = len(own[f"{mine}.weight"])
    if mine.endswith("gate_up"):
        return [rows // 2, rows // 2]
    queries = own[f"{mine.removesuffix('qkv')}out.weight"].shape[1]
    return [queries, (rows - queries) // 2, (rows - queries) // 2]


def llama_from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a `Llama` from that of a `LlamaForCausalLM` or `LlamaModel`; without an own head it is tied."""
    left = {_llama_name(name): value for name, value in state.items() if not name.endswith("rotary_emb.inv_freq")}
    if "model.embed_tokens.weight" not in left:
        raise UserError("these are no weights of a Llama: model.embed_tokens.weight is missing")
    left.setdefault("lm_head.weight", left["model.embed_tokens.weight"])
    layers = len([name for name in left if name.endswith("input_layernorm.weight")])
    return named_back(left, _llama_modules(layers), "Llama")


def _llama_name(name: str) -> str:
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def _llama_modules(layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Our name of each part, and theirs, of which some are several."""
    yield "embedding", ("model.embed_tokens",)
    for i in range(layers):
        mine, theirs = f"blocks.{i}", f"model.layers.{i}"
        yield f"{mine}.norm1", (f"{theirs}.input_layernorm",)
        yield f"{mine}.qkv", tuple(f"{theirs}.self_attn.{name}_proj" for name in "qkv")
        yield f"{mine}.out", (f"{theirs}.self_attn.o_proj",)
        yield f"{mine}.norm2", (f"{theirs}.post_attention_layernorm",)
        yield f"{mine}.gate_up", tuple(f"{theirs}.mlp.{name}_proj" for name in ("gate", "up"))
        yield f"{mine}.down", (f"{theirs}.mlp.down_proj",)
    yield from (("norm", ("model.norm",)), ("head", ("lm_head",)))


class Format(NamedTuple):
    """A family as a kind of model of transformers."""

    kind: str
    """The model_type of its config."""
    config: Callable[[Model, int, int], dict[str, Any]]
    """Of a model, the size of the vocabulary, and the length of a row."""
    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The fields of `Model` out of such a config."""
    fixed: Mapping[str, Any]
    """What else the config must say for the network to be the same."""
    write: Callable[[Any], dict[str, Tensor]]
    read: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def _llama_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    biases = {bool(config.get(name)) for name in ("attention_bias", "mlp_bias")}
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if len(biases) > 1 or (config.get("head_dim") or width // heads) != width // heads:
        raise UserError("a Llama with biases in attention or MLP alone, or with heads of another size, is not ours")
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
        raise UserError(f'rotary positions of type "{kind}" are not ours: those are linear and llama3')
    found = ":".join([kind, *(f"{float(rope[name]):f}".rstrip("0").rstrip(".") for name in names[kind])])
    return found if kind == "linear" else f"{found}:{rope['original_max_position_embeddings']}"


def _gpt2_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "width": config["n_embd"],
        "layers": config["n_layer"],
        "heads": config["n_head"],
        "hidden": config.get("n_inner") or 4 * config["n_embd"],
        "tied": config["tie_word_embeddings"],
        "dropout": config["resid_pdrop"],
        "positions": config["n_positions"],
    }


def _bert_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "width": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "hidden": config["intermediate_size"],
        "tied": config["tie_word_embeddings"],
        "dropout": config["hidden_dropout_prob"],
        "positions": config["max_position_embeddings"],
    }


FORMATS = {
    "llama": Format(
        "llama",
        llama_config,
        _llama_fields,
        {"hidden_act": "silu"},
        llama_to_transformers,
        llama_from_transformers,
    ),
    "gpt2": Format(
        "gpt2",
        gpt2.gpt2_config,
        _gpt2_fields,
        {"layer_norm_epsilon": gpt2.EPSILON, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
        gpt2.to_transformers,
        gpt2.from_transformers,
    ),
    "masked_lm": Format(
        "bert",
        masked_lm.bert_config,
        _bert_fields,
        {"hidden_act": "gelu", "layer_norm_eps": masked_lm.EPSILON, "type_vocab_size": TOKEN_TYPES},
        masked_lm.to_transformers,
        masked_lm.from_transformers,
    ),
}


def architecture(spec: Model) -> str:
    """The class of transformers that a family's folder is for; raises an error where there is none."""
    if spec.family not in FORMATS:
        raise UserError(f'transformers has no class for model.family = "{spec.family}", so it cannot be written for it')
    if spec.family == "masked_lm":
        return "BertForSequenceClassification" if spec.classes else "BertForMaskedLM"
    return {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel"}[spec.family]


def config_of(spec: Model, vocab_size: int, length: int, end: int | None = None) -> dict[str, Any]:
    """What config.json says of one of our networks; `end` is the id of the token that ends a text."""
    found = FORMATS[spec.family].config(spec, vocab_size, length) if spec.family in FORMATS else {}
    named = {"architectures": [architecture(spec)], "model_type": FORMATS[spec.family].kind, "dtype": "float32"}
    return named | found | ({} if "eos_token_id" not in found else {"eos_token_id": end})


def spec_of(config: Mapping[str, Any]) -> Model:
    """The network of a config of transformers (as a dictionary) as one of ours; raises an error where it has none."""
    kind = config.get("model_type")
    family = next((name for name, form in FORMATS.items() if form.kind == kind), None)
    if family is None:
        known = ", ".join(form.kind for form in FORMATS.values())
        raise UserError(f'a model of type "{kind}" is none of ours ({known}); model.family = "hf" takes any')
    form = FORMATS[family]
    other = [f"{name} = {config[name]}" for name, own in form.fixed.items() if config.get(name, own) != own]
    if family == "gpt2" and config["activation_function"] not in ("gelu_new", "gelu_pytorch_tanh"):
        other.append(f"activation_function = {config['activation_function']}")
    if other:
        raise UserError(f"a {kind} with {', '.join(other)} is another network than ours")
    return Model(family=family, **form.fields(config))  # type: ignore[arg-type]


def save_transformers(
    model: LanguageModel,
    spec: Model,
    vocab_size: int,
    length: int,
    folder: Path,
    *,
    end: int | None = None,
    files: Mapping[str, str] | None = None,
) -> str:
    """Write a folder that transformers loads, whole or not at all; returns the name of the class it is for.

    `files` are more files to put there, such as those of the tokenizer, by name.
    """
    name = type(model.network).__name__ if isinstance(model, hf.HF) else architecture(spec)
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists already; choose another folder")
    make_folder(folder.parent)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        if isinstance(model, hf.HF):
            with hf.quiet():
                model.network.save_pretrained(temporary)
        else:
            values = config_of(spec, vocab_size, length, end)
            (temporary / "config.json").write_text(json.dumps(values, indent=2) + "\n")
            weights = {key: value.cpu().contiguous() for key, value in FORMATS[spec.family].write(model).items()}
            save_file(weights, temporary / "model.safetensors", {"format": "pt"})
        for file, text in (files or {}).items():
            (temporary / file).write_text(text, encoding="utf-8")
        for path in temporary.iterdir():
            sync(path)
        os.rename(temporary, folder)
        sync(folder.parent)
    except OSError as cause:
        raise storage_error("write", folder, cause) from cause
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return name


def read_transformers(place: str) -> tuple[Model, dict[str, Tensor]]:
    """A stored model of transformers, by folder or hub name, as one of ours: its shape and its state.

    Of a BERT the heads come along that the stored class has.
    """
    config = hf.read_config(place)
    try:
        spec = spec_of(config.to_dict())
    except UserError as cause:
        raise UserError(f"{place}: {cause}") from cause
    import transformers

    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    network = hf.load_stored(place, next((kind for kind in named if kind is not None), transformers.AutoModel))
    classes = config.num_labels if type(network).__name__ == "BertForSequenceClassification" else None
    return dataclasses.replace(spec, classes=classes), FORMATS[spec.family].read(network.state_dict())
