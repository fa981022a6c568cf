"""What a recipe leaves open, where only its time is limited and its learning rate is to be chosen: "auto".

A network of the default size may learn nothing in two minutes on a CPU, and learns a small text by heart in an hour. A
recipe that gives any of these fields, or a learning rate, is taken as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoestring.core.registry import registry
from shoestring.core.specs import is_code

_SIZES = ("size", "width", "layers", "heads", "kv_heads", "hidden")
_LIMITS = ("flops", "tokens", "steps", "epochs")
"""Budgets that say how much is learned; those of time, disk and memory do not."""


def left_open(tables: Mapping[str, Any]) -> dict[str, str]:
    """The fields, by "section.field", that are "auto" although the recipe does not say so."""
    budget, data, model, train = (_table(tables, name) for name in ("budget", "data", "model", "train"))
    limited = budget.get("time") is not None and not any(name in budget for name in _LIMITS)
    if not limited or train.get("lr") not in (None, "auto") or "init" in model or tables.get("hmm") is not None:
        return {}
    family = registry("family").get(str(model.get("family", "llama")))
    if family is None or not {"width", "layers", "heads", "dropout"} <= family.fields or family.data_fields:
        return {}  # the laws are of networks that predict the next token
    found = {} if "dropout" in model else {"model.dropout": "auto"}
    if not any(name in model for name in _SIZES):
        found["model.size"] = "auto"
    return found | ({"budget.epochs": "auto"} if _has_end(data) else {})


def _has_end(data: Mapping[str, Any]) -> bool:
    """Whether an epoch has a length, as far as the recipe says it."""
    source = data.get("source", "stories")
    if data.get("stream") is not None or not isinstance(source, str) or is_code(source):
        return False
    return source.partition(":")[0] in (*registry("format"), "store") or "documents" in data


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tables.get(name)
    return found if isinstance(found, Mapping) else {}
