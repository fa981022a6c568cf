"""Our BERT as `BertForMaskedLM` or `BertForSequenceClassification` of transformers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoestring.core.sections import Model
from shoestring.cost.transformer import table_positions
from shoestring.models.families.masked_lm import FAMILY, TOKEN_TYPES
from shoestring.models.families.masked_lm.network import EPSILON, MaskedLM
from shoestring.models.transformers_format import TransformersFormat, WeightNames


def _config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """Arguments of transformers' `BertConfig`."""
    found = {
        "vocab_size": vocab_size,
        "max_position_embeddings": table_positions(model, length),
        "type_vocab_size": TOKEN_TYPES,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": FAMILY.hidden(model),
        "hidden_act": "gelu",
        "layer_norm_eps": EPSILON,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.dropout,
        "tie_word_embeddings": model.tied,
        "pad_token_id": None,
    }
    if model.classes:
        found |= {"num_labels": model.classes, "problem_type": "single_label_classification"}
    return found


NAMES = WeightNames(
    network="BERT",
    base="bert.",
    heads=("cls.", "classifier."),
    modules={
        "embedding": "bert.embeddings.word_embeddings",
        "positions": "bert.embeddings.position_embeddings",
        "types": "bert.embeddings.token_type_embeddings",
        "embedding_norm": "bert.embeddings.LayerNorm",
        "transform": "cls.predictions.transform.dense",
        "transform_norm": "cls.predictions.transform.LayerNorm",
        "head": "cls.predictions.decoder",
        "pooler": "bert.pooler.dense",
        "classifier": "classifier",
    },
    layer="bert.encoder.layer.",
    parts={
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "out": ("attention.output.dense",),
        "norm1": ("attention.output.LayerNorm",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
        "norm2": ("output.LayerNorm",),
    },
    endings={
        ".gamma": ".weight",
        ".beta": ".bias",
        "cls.predictions.bias": "cls.predictions.decoder.bias",  # it has two names
        "embeddings.position_ids": None,
        "embeddings.token_type_ids": None,
        "seq_relationship.weight": None,  # predicts whether two sentences belong together
        "seq_relationship.bias": None,
    },
    tied_by="cls.predictions.decoder.bias",
)


def _write(model: MaskedLM) -> dict[str, Tensor]:
    """A tied decoder has only the other name of its bias; one that is not tied has a copy under each name."""
    found, bias = NAMES.write(model), "cls.predictions.decoder.bias"
    if bias in found:
        tied = "cls.predictions.decoder.weight" not in found
        found["cls.predictions.bias"] = found.pop(bias) if tied else found[bias].clone()
    return found


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "width": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "hidden": config["intermediate_size"],
        "tied": config["tie_word_embeddings"],
        "dropout": config["hidden_dropout_prob"],
        "positions": config["max_position_embeddings"],
    }


FORMAT = TransformersFormat(
    kind="bert",
    architecture=lambda model: "BertForSequenceClassification" if model.classes else "BertForMaskedLM",
    config=_config,
    fields=_fields,
    fixed={"hidden_act": ("gelu",), "layer_norm_eps": (EPSILON,), "type_vocab_size": (TOKEN_TYPES,)},
    write=_write,
    read=NAMES.read,
    names=NAMES,
    classes=lambda architecture, config: config.num_labels if architecture == "BertForSequenceClassification" else None,
)
FORMATS = (FORMAT,)
