"""The pass over one further token in a few launches, for networks that describe themselves as `Parts`.

Per layer there are five kernels: norm and the product that makes queries, keys and values; their rotation, what is
kept, and attention; the product behind it, added to the stream; norm, the products of the MLP and its activation; its
last product, added to the stream. Sums are float32; weights, stream and inputs of products are of the network's type.

Shapes: R rows, D width, H query heads, K heads of keys and values, C channels per head, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoestring.models.layers.adapter import adapter_of
from shoestring.models.layers.attention import Heads
from shoestring.models.layers.past import Kept
from shoestring.models.layers.rotary import turns

ACTIVATIONS = {"none": 0, "swiglu": 1, "relu2": 2, "gelu": 3}
FEW = 2
"""Rows up to which a product is a sum per channel; more rows are multiplied on the matrix units."""
TILE = 16_384
"""Bytes of weights that a program holds, where a row of them has no more."""
REGISTERS = 80
"""Most registers of a thread of such a program: with no limit, four run side by side, and with this one six."""
STAGES, SHARED = 4, 160 * 1024
"""Tiles that such a program loads ahead, and bytes that they may take together."""
LEAST_KEYS = 128
"""Keys of a program of attention, at least: fewer take less time than joining the sums of two programs."""
MOST_SPLITS = 16


FETCHED, LINE = 1 << 24, 128
"""Bytes of weights that are brought into the cache of the device during attention, and those of one request."""


class Unsupported(Exception):
    """Why the kernels cannot make the tokens of a network."""


class Norm(NamedTuple):
    """An RMSNorm, or a LayerNorm where it has a shift."""

    gain: Tensor
    eps: float
    shift: Tensor | None = None


class Product(NamedTuple):
    weight: Tensor
    bias: Tensor | None = None


class Layer(NamedTuple):
    """The tensors of a layer."""

    norm1: Norm
    qkv: Product
    """Rows of all queries, keys and values, then those of the gates of `values`, where the layer has them."""
    out: Product
    norm2: Norm
    up: Product
    """With swiglu, the rows of the gate before those of the values."""
    activation: str
    down: Product
    window: int | None = None
    qk_gains: tuple[Tensor, Tensor] | None = None
    values: Tensor | None = None
    """V, K C: what an id adds to the values."""
    scales: Tensor | None = None
    """Factors of the stream and of the first embedding, which make the layer's input."""


class Parts(NamedTuple):
    """The tensors of a network."""

    embedding: Tensor
    layers: list[Layer]
    norm: Norm
    head: Product
    heads: Heads
    cap: float | None = None
    positions: Tensor | None = None
    embedding_norm: Norm | None = None
    frequencies: Tensor | None = None
    """Of rotary positions."""


def product_of(layer: nn.Module, *more: Tensor) -> Product:
    """The product of a linear layer, with further rows of weights."""
    if type(layer) is not nn.Linear or adapter_of(layer) is not None:
        raise Unsupported(f"a layer is a {type(layer).__name__}, not a plain nn.Linear")
    return Product(torch.cat((layer.weight, *more)) if more else layer.weight, layer.bias)


def norm_of(norm: nn.RMSNorm | nn.LayerNorm) -> Norm:
    assert norm.eps is not None, "all of ours have one"
    return Norm(norm.weight, norm.eps, getattr(norm, "bias", None))


def in_type(parts: Parts, kind: torch.dtype) -> Parts:
    """The same with the matrices of products in this type, which no token converts again."""

    def of(product: Product) -> Product:
        return Product(product.weight.to(kind).contiguous(), product.bias)

    layers = [
        each._replace(qkv=of(each.qkv), out=of(each.out), up=of(each.up), down=of(each.down)) for each in parts.layers
    ]
    return parts._replace(layers=layers, head=of(parts.head))


class NextToken:
    """The pass over the newest token of every row, whose keys and values it adds to what is kept.

    All tensors are made once, so that the launches can be recorded. `rows` are the ids, R T, in which it finds the
    newest tokens and writes the next ones.
    """

    def __init__(self, parts: Parts, rows: Tensor, past: Sequence[Kept], kind: torch.dtype, early: bool = False):
        self._parts, self._rows, self._early = in_type(parts, kind), rows, early
        self._past = [kept.tensors() for kept in past]
        device, heads, self._length = rows.device, parts.heads, past[0].length
        r, d, widest = len(rows), parts.embedding.shape[1], max(len(each.qkv.weight) for each in parts.layers)
        self._units = torch.cuda.get_device_properties(device).multi_processor_count if rows.is_cuda else 1

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._stream, self._first = make(r, d, dtype=kind), make(r, d, dtype=kind)
        self._qkv = make(r, widest)
        self._mixed = make(r, heads.queries * heads.channels, dtype=kind)
        self._hidden = make(r, max(each.down.weight.shape[1] for each in parts.layers), dtype=kind)
        self.logits = make(r, len(parts.head.weight))
        self.place = make(2, dtype=torch.int32)
        """The position of the newest token in what is kept, and the column of `rows` for the next one."""
        self._group = heads.queries // heads.keys
        self._splits = min(MOST_SPLITS, max(1, 4 * self._units // (r * heads.keys)), -(-self._length // LEAST_KEYS))
        self._padded = 1 if self._group == 1 else max(16, _power(self._group)), max(16, _power(heads.channels))
        groups, (queries, channels) = r * heads.keys, self._padded
        self._partial = make(groups, self._splits, queries, channels)
        self._sums = make(groups, self._splits, 2, queries)
        self._arrived = make(groups, dtype=torch.int32)
        rotary = parts.frequencies
        self._turns = (self._sums, self._sums) if rotary is None else turns(rotary.to(device), self._length)

    def logits_of_newest(self) -> Tensor:
        """Launch all kernels up to the logits, R V in float32, and add 1 to both counts of `place`."""
        parts = self._parts
        self._embed()
        for index, layer in enumerate(parts.layers):
            after = parts.layers[index + 1].scales if index + 1 < len(parts.layers) else None
            qkv = self._qkv.flatten()[: len(self._rows) * len(layer.qkv.weight)]
            hidden = self._hidden.flatten()[: len(self._rows) * layer.down.weight.shape[1]]
            self._multiply(qkv, self._stream, layer.qkv, layer.norm1)
            self._attend(qkv, layer, *self._past[index])
            self._multiply(self._stream, self._mixed, layer.out, add=True)
            self._multiply(hidden, self._stream, layer.up, layer.norm2, activation=layer.activation)
            self._multiply(self._stream, hidden, layer.down, add=True, scales=after)
        self._multiply(self.logits, self._stream, parts.head, parts.norm, cap=parts.cap, advance=True)
        return self.logits

    def choose(self, temperature: float, noise: Tensor | None) -> None:
        """Write the next tokens to `rows`: the likeliest, or those drawn by numbers of an exponential distribution."""
        from shoestring.models.kernels.decoding import choose_kernel  # imports Triton

        v = self.logits.shape[1]
        block = min(4096, _power(v))
        choose_kernel[(len(self._rows),)](
            self._rows, self.logits, self.logits if noise is None else noise, self.place, self._rows.shape[1], v,
            float(temperature), DRAWN=noise is not None, BLOCK=block, num_warps=_warps(block), **self._timing(),
        )  # fmt: skip

    def _timing(self) -> dict[str, Any]:
        return {"EARLY": True, "launch_pdl": True} if self._early else {"EARLY": False}

    def _embed(self) -> None:
        from shoestring.models.kernels.decoding import embed_kernel

        parts, (v, d) = self._parts, self._parts.embedding.shape
        norm, scales, block = parts.embedding_norm, parts.layers[0].scales, _power(d)
        embed_kernel[(len(self._rows),)](
            self._stream, self._first, self._rows, self.place, parts.embedding,
            parts.embedding if parts.positions is None else parts.positions, *_of_norm(norm, self._stream),
            self._stream if scales is None else scales, self._rows.shape[1], v, K=d,
            EPS=0.0 if norm is None else norm.eps, NORM=_kind(norm), POSITIONS=parts.positions is not None,
            SCALED=scales is not None, BLOCK=block, num_warps=_warps(block), **self._timing(),
        )  # fmt: skip

    def _attend(self, qkv: Tensor, layer: Layer, keys: Tensor, values: Tensor) -> None:
        from shoestring.models.kernels.decoding import attention_kernel

        heads, (queries, channels), r = self._parts.heads, self._padded, len(self._rows)
        window = layer.window if layer.window is not None and layer.window < self._length else 0
        gains, table = layer.qk_gains or (qkv, qkv), layer.values
        attention_kernel[(r * heads.keys, self._splits)](
            self._mixed, qkv, keys, values, *self._turns, *gains, qkv if table is None else table, self._rows,
            self.place, self._partial, self._sums, self._arrived, layer.up.weight, self._rows.shape[1], self._length,
            len(layer.qkv.weight), 0 if table is None else table.stride(0),
            min(FETCHED, layer.up.weight.numel() * layer.up.weight.itemsize) // LINE, KV=heads.keys, G=self._group,
            C=heads.channels, GP=queries, CP=channels, WINDOW=window, EPS=layer.norm1.eps,
            QK_NORM=layer.qk_gains is not None, ROTATE=self._parts.frequencies is not None, VALUES=table is not None,
            SPLITS=self._splits, LEAST=LEAST_KEYS, BLOCK=64 if channels <= 64 else 32, num_warps=4, **self._timing(),
        )  # fmt: skip

    def _multiply(
        self,
        out: Tensor,
        x: Tensor,
        product: Product,
        norm: Norm | None = None,
        activation: str = "none",
        add: bool = False,
        scales: Tensor | None = None,
        cap: float | None = None,
        advance: bool = False,
    ) -> None:
        from shoestring.models.kernels.decoding import matrix_kernel, vector_kernel

        weight, bias = product
        m, k = len(self._rows), weight.shape[1]
        n = len(weight) // (2 if activation == "swiglu" else 1)
        given = (
            out, x, weight, *_of_norm(norm, x), weight if bias is None else bias, self._first,
            out if scales is None else scales, self.place, m, n,
        )  # fmt: skip
        constants = {
            "K": k, "EPS": 0.0 if norm is None else norm.eps, "NORM": _kind(norm), "ACT": ACTIVATIONS[activation],
            "BIAS": bias is not None, "ADD": add, "SCALED": scales is not None, "CAP": cap or 0.0, "ADVANCE": advance,
        } | self._timing()  # fmt: skip
        if m <= FEW:
            launch = vector_launch(m, n, k, weight.itemsize * len(weight) // n, self._units)
            vector_kernel[(-(-n // launch["BN"]),)](*given, **constants, **launch)
        else:
            launch = matrix_launch(m, n, weight.itemsize, self._units)
            matrix_kernel[(-(-n // launch["BN"]), -(-m // launch["BM"]))](*given, **constants, **launch)


def vector_launch(m: int, n: int, k: int, size: int, units: int) -> dict[str, Any]:
    """The launch for n channels out, of k weights of `size` bytes: two programs per multiprocessor, or large ones."""
    padded = max(128, _power(k))
    rows = max(1, min(16, TILE // (padded * size)))
    while rows > 1 and -(-n // rows) < 2 * units:
        rows //= 2
    small = rows * padded * size <= TILE
    limit = REGISTERS if small and m == 1 else None  # for more rows it would spill
    return {"BN": rows, "BK": padded, "num_warps": 4 if small else 8, "maxnreg": limit}


def matrix_launch(m: int, n: int, size: int, units: int) -> dict[str, Any]:
    """The launch for m rows: as many channels per program as leave one for most multiprocessors."""
    rows = min(64, max(16, _power(m)))
    columns = next((each for each in (64, 32) if -(-n // each) * 4 >= 3 * units), 16)
    depth = 512 // size
    while STAGES * depth * size * (rows + 2 * columns) > SHARED:  # a SwiGLU has two tiles of weights
        depth //= 2
    return {"BM": rows, "BN": columns, "BK": depth, "num_warps": 4, "num_stages": STAGES}


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


def _warps(block: int) -> int:
    return max(1, min(16, block // 256))


def _kind(norm: Norm | None) -> int:
    return 0 if norm is None else 1 + (norm.shift is not None)


def _of_norm(norm: Norm | None, other: Tensor) -> tuple[Tensor, Tensor]:
    """Gain and shift, or another tensor in their place, which is not read."""
    gain = other if norm is None else norm.gain
    return gain, gain if norm is None or norm.shift is None else norm.shift
