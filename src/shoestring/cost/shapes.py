"""Sizes of a network that follow from a recipe's fields: what the networks are built from, and what is counted.

D width, F hidden.
"""

from __future__ import annotations

from shoestring.core.recipe import Model

TOKEN_TYPES = 2
"""masked_lm: token types in the table of BERT's published weights. All tokens are of type 0."""


def hidden_channels(model: Model) -> int:
    """F: as given, or 4 D; of a SwiGLU, as llama has, 8/3 D up to a multiple of 32, which makes it as large."""
    if model.family == "llama":
        return model.hidden or -(-8 * model.width // (3 * 32)) * 32
    return model.hidden or 4 * model.width


def key_channels(model: Model) -> int:
    """Channels of all heads of keys together, and as many of values."""
    return model.width // model.heads * (model.kv_heads or model.heads)


def table_positions(model: Model, length: int) -> int:
    """Rows of a table of learned positions, for rows of `length`."""
    return model.positions or length


def latents_of(model: Model) -> int:
    """perceiver_ar: the most latents of a row."""
    assert model.latents is not None, "checked when the recipe was read"
    return model.latents


def kept_of(prefix: int, dropout: float) -> int:
    """perceiver_ar: how many positions of a prefix are kept in training."""
    return prefix - int(prefix * dropout)
