"""Swift: a Llama with RMSNorm of queries and keys, as in Qwen3.

Shapes: R rows, T positions, D width, H heads, K heads of keys and values, C = D / H channels per head.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from shoestring.core.sections import Model
from shoestring.models.families.llama import norm_eps
from shoestring.models.families.llama.network import Llama, LlamaBlock
from shoestring.models.layers.attention import Seen, attend
from shoestring.models.layers.blocks import RMSNorm
from shoestring.models.layers.linear import linear
from shoestring.models.layers.rotary import Turns, rotate


class SwiftBlock(LlamaBlock):
    """Queries and keys are normalised before they are rotated, so their products stay bounded at high rates."""

    def __init__(self, model: Model):
        super().__init__(model)
        self.q_norm = RMSNorm(self.channels, eps=norm_eps(model))
        self.k_norm = RMSNorm(self.channels, eps=norm_eps(model))

    def attention(self, x: Float[Tensor, "R T D"], angles: Turns, seen: Seen | None) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        qkv = linear(x, self.qkv).view(r, t, self.heads + 2 * self.kv_heads, self.channels)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        q, k = rotate(self.q_norm(q), angles, heads=2), rotate(self.k_norm(k), angles, heads=2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # each R H T C
        mixed = attend(q, k, v, seen, self.dropping).transpose(1, 2)
        return linear(mixed.reshape(r, t, d), self.out)


class Swift(Llama):
    """Next-token prediction. Weights are drawn from `seed` on the CPU: the same on every device."""

    block = SwiftBlock
