"""Causal attention: over whole rows, within a window, or within the documents of packed rows.

Shapes: R rows, H heads, K of keys and values, T tokens, C channels per head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from shoestring.core.host import is_out_of_memory
from shoestring.models.layers.operators import HALF, HAS_TRITON
from shoestring.models.layers.past import Kept

BLOCK = 128
"""Tokens per block of flex attention, which skips blocks that no query sees; a shorter row has none to skip."""

Seen = BlockMask | Tensor | Kept
"""What queries see: blocks for flex attention, a mask to add, R 1 T T, or all that was read before them."""


class Heads(NamedTuple):
    """Heads of queries, heads of keys and of values, and channels per head."""

    queries: int
    keys: int
    channels: int


class Documents:
    """The documents of packed rows: computed once per forward pass, and shared by its layers.

    A document is a run of equal numbers, and a token sees its document from the first token to itself. Padding is a
    document like the others: it sees itself, which keeps its values finite, and no other token sees it. With `window`,
    a token sees only the last so many tokens, itself included. A single row of segments holds for all rows.
    """

    def __init__(self, segments: Int[Tensor, "R T"], window: int | None = None):
        self.places = torch.arange(segments.shape[1], device=segments.device)  # T
        changes = torch.where(segments.diff(dim=1) != 0, self.places[1:], 0)
        begins = F.pad(changes, (1, 0)).cummax(dim=1).values  # R T: where the document of a token begins
        self.positions = self.places - begins
        """R T: the position of each token in its document, from 0."""
        self.starts = begins if window is None else torch.maximum(begins, self.places - (window - 1))
        """R T: the first token that a token sees."""

    def dense(self, dtype: torch.dtype) -> Float[Tensor, "R 1 T T"]:
        """What is added to the products of a query (third axis) and a key (last axis): 0 if it sees it, else -∞.

        Every layer saves this tensor. Of a mask of booleans, each would make and save such a tensor of its own.
        """
        hidden = self.places < self.starts[:, :, None]  # R T T
        hidden |= self.places > self.places[:, None]
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)[:, None]

    @cached_property
    def blocks(self) -> BlockMask:
        """The same for flex attention. `create_block_mask` would need a mask of R T T for it.

        Queries of block i see keys of the blocks from `low` to i: all keys of those from `high` on, except i itself.
        """
        starts, length, alike = self.starts, len(self.places), len(self.starts) == 1
        tiles = F.pad(starts[:, None].int(), (0, -length % BLOCK), value=length).unflatten(-1, (-1, BLOCK))
        i = torch.arange(tiles.shape[2], dtype=torch.int32, device=starts.device)
        low, high = tiles[..., 0] // BLOCK, torch.minimum((tiles[..., -1] + BLOCK - 1) // BLOCK, i)  # R 1 blocks
        partly = torch.where(i < (high - low)[..., None], low[..., None] + i, i[:, None])  # R 1 blocks blocks
        wholly = (high[..., None] + i).clamp(max=len(i) - 1)  # entries beyond the count are not read
        return BlockMask.from_kv_blocks(
            high - low + 1,
            partly,
            i - high,
            wholly,
            BLOCK_SIZE=BLOCK,
            mask_mod=lambda r, _, q, k: (starts[0 if alike else r, q] <= k) & (k <= q),
            seq_lengths=(length, length),
        )

    def seen(self, stream: Float[Tensor, "R T D"], heads: Heads, dropout: float = 0.0) -> Seen:
        """The mask for `attend` and a stream like this; chosen outside the layers, which are compiled."""
        large = stream.is_cuda and len(self.places) >= BLOCK and not dropout
        return self.blocks if large and _flex_works(stream.device, stream.dtype, heads) else self.dense(stream.dtype)


def attend(
    q: Float[Tensor, "R H T C"],
    k: Float[Tensor, "R K T C"],
    v: Float[Tensor, "R K T C"],
    seen: Seen | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "R H T C"]:
    """Values mixed by softmax(q k / √C), over the past of a row or what is `seen`; H / K queries share a key."""
    shared = q.shape[1] != k.shape[1]
    if isinstance(seen, BlockMask):
        flex: Any = flex_attention if torch.compiler.is_compiling() else _flex()
        mixed: Tensor = flex(q, k, v, block_mask=seen, enable_gqa=shared)
        return mixed
    if isinstance(seen, Kept):
        return attend_to_past(q, *seen.add(k, v), dropout, seen.window)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=seen is None, dropout_p=dropout, enable_gqa=shared
    )


def attend_to_past(
    q: Float[Tensor, "R H N C"],
    k: Float[Tensor, "R K T C"],
    v: Float[Tensor, "R K T C"],
    dropout: float = 0.0,
    window: int | None = None,
) -> Float[Tensor, "R H N C"]:
    """Values mixed by softmax(q k / √C): the last query sees all keys, each query before it one fewer.

    With `window`, a query sees only the last so many of them.
    """
    queries = q.shape[2]
    if window is not None and k.shape[2] >= queries + window:  # no query sees those before
        k, v = (x[:, :, -(queries + window - 1) :] for x in (k, v))
    keys, seen = k.shape[2], None
    if queries > 1 and (queries < keys or (window is not None and window < keys)):
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        seen = seen if window is None else seen.triu(keys - queries - window + 1)
    causal = seen is None and queries == keys
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=causal, dropout_p=dropout, enable_gqa=q.shape[1] != k.shape[1]
    )


@cache
def _flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention)


_tried: dict[tuple[torch.device, torch.dtype, Heads], bool] = {}
"""Whether flex attention works."""
_KNOWN_GPUS = ((8, 0), (9, 0))
"""Compute capabilities of A100, H100 and H200, whose shared memory suffices."""
_KNOWN_CHANNELS = (16, 32, 64, 128)


def _known_to_work(device: torch.device, dtype: torch.dtype, heads: Heads) -> bool:
    """Whether flex attention need not be tried, which takes as long as compiling it for the run."""
    common = HAS_TRITON and device.type == "cuda" and dtype in HALF and heads.channels in _KNOWN_CHANNELS
    return common and torch.cuda.get_device_capability(device) in _KNOWN_GPUS


def _flex_works(device: torch.device, dtype: torch.dtype, heads: Heads) -> bool:
    """Whether forward and backward pass compile: not for few channels, many in float32, or without a compiler.

    Where that is not known, the first call tries them on a row of two blocks: in training, the backward pass is
    compiled too late to choose another kernel.
    """
    key = device, dtype, heads
    if key not in _tried and _known_to_work(device, dtype, heads):
        _tried[key] = True
    if key not in _tried:
        counts = (heads.queries, heads.keys, heads.keys)
        shapes = [(1, count, 2 * BLOCK, heads.channels) for count in counts]
        blocks = Documents(torch.zeros(1, 2 * BLOCK, dtype=torch.int64, device=device)).blocks
        try:
            with torch.enable_grad():
                inputs = [torch.zeros(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]
                mixed = _flex()(*inputs, block_mask=blocks, enable_gqa=heads.queries != heads.keys)
                torch.autograd.grad(mixed.sum(), inputs)
            _tried[key] = True
        except Exception as cause:  # compiler, driver and Triton each have their own types
            if is_out_of_memory(cause):
                raise
            _tried[key] = False
    return _tried[key]
