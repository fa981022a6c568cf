"""The networks, behind one protocol: a loss as a sum and a count, and a cost that is counted and tested."""

from __future__ import annotations

from shoestring.models.families import build, cost
from shoestring.models.protocol import Batch, LanguageModel

__all__ = ["Batch", "LanguageModel", "build", "cost"]
