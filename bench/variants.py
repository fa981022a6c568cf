"""Runs with other fields, as they are named on a command line."""

from __future__ import annotations

import argparse
import re

SHAPE = ("width", "layers", "heads")
"""Fields of a network that are given in place of its size."""


def as_variant(text: str) -> tuple[str, list[str]]:
    """The name and the changed fields of a variant; a comma before FIELD= parts two of them."""
    name, _, fields = text.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise argparse.ArgumentTypeError(f"{text!r}: must be NAME:FIELD=VALUE,FIELD=VALUE")
    changes = re.split(r",\s*(?=\w+\.\w+=)", fields) if fields else []
    if wrong := [change for change in changes if not re.match(r"\w+\.\w+=", change)]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} of variant {name}: must be FIELD=VALUE")
    return name, changes
