"""Attention over short rows by torch's own operations: the oracle of the kernels."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from shoestring.models.layers.rotary import rotate


def plain_short_attention(
    qkv: Float[Tensor, "R T HKV C"], cos: Float[Tensor, "T C//2"], sin: Float[Tensor, "T C//2"], heads: int
) -> Float[Tensor, "R T {heads} C"]:
    """As `short_attention`: on any device, for any length, channels and type."""
    groups = (qkv.shape[2] - heads) // 2
    q, k, v = qkv.transpose(1, 2).split((heads, groups, groups), dim=1)  # R H T C, and twice R KV T C
    q, k = rotate(q, (cos, sin)), rotate(k, (cos, sin))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups != heads)
    return mixed.transpose(1, 2).contiguous()
