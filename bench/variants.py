"""Runs with other fields, as they are named on a command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

import torch

from shoestring.core.units import Bytes
from shoestring.runs.best import Values

SHAPE = ("width", "layers", "heads")
"""Fields of a network that are given in place of its size."""


MEMORY_SHARE = 0.9
"""Of a GPU's memory, what runs beside each other may take together."""


def give_shape(values: Values, changes: Sequence[str]) -> None:
    """Put the shape that the changed fields have in place of a chosen size."""
    given = dict(change.split("=", 1) for change in changes)
    if shape := {name: (int(given[f"model.{name}"]), "") for name in SHAPE if f"model.{name}" in given}:
        del values["model"]["size"]
        values["model"] |= shape


def share_memory(values: Values, runs: int) -> None:
    """Limit a run to its share of the GPU, where there is one."""
    if runs > 1 and torch.cuda.is_available():
        memory = MEMORY_SHARE * torch.cuda.get_device_properties(0).total_memory / runs
        values["budget"]["memory"] = (str(Bytes(int(memory))), "")


def as_variant(text: str) -> tuple[str, list[str]]:
    """The name and the changed fields of a variant; a comma before FIELD= parts two of them."""
    name, _, fields = text.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise argparse.ArgumentTypeError(f"{text!r}: must be NAME:FIELD=VALUE,FIELD=VALUE")
    changes = re.split(r",\s*(?=\w+\.\w+=)", fields) if fields else []
    if wrong := [change for change in changes if not re.match(r"\w+\.\w+=", change)]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} of variant {name}: must be FIELD=VALUE")
    return name, changes
