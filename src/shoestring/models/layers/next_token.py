"""The pass over one further token in a few launches, for networks that describe themselves as `Parts`.

Per layer there are five kernels: norm and the product that makes queries, keys and values; their rotation, what is
kept, and attention; the product behind it, added to the stream; norm, the products of the MLP and its activation; its
last product, added to the stream. A convolution is another kernel, that of the MLP's input with the norm before it.
Sums are float32; weights, stream and inputs of products are of the network's type.

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
PART, WARPS = 256, 1
"""Channels in that a warp of such a program reads of a row of weights at once, and warps of a program."""
TILE = 20_480
"""Bytes of weights that a warp holds, unless a part of one row has more: those of all its threads take 32,768."""
LEAST_PROGRAMS = 4
"""Programs for each multiprocessor, at least, where there are as many channels out."""
LONG = 2048
"""Channels in from which on a program has twice the warps: each reads them for itself."""
STAGES, SHARED, DEPTH = 4, 110 * 1024, 512
"""Tiles that a program for more rows loads ahead, bytes that they may take together, and bytes of a row of a tile."""
COLUMNS = 32
"""Channels out of such a program."""
MOST_SHARED = 4
"""Programs that share the channels in, at most."""
LEAST_KEYS = 64
"""Keys of a program of attention, at least: fewer take less time than joining the sums of two programs."""
MOST_SPLITS = 16
CHOICES = 64
"""Programs that choose a token, about."""


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
    convolution1: Tensor | None = None
    """J 2 K C: the factors of the convolution of keys and values."""
    convolution2: Tensor | None = None
    """J D: those of what the MLP reads."""


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
    pair_embedding: Tensor | None = None
    """Rows for a token and the one before it."""


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
        self._inputs = [[inputs.tensor() for inputs in kept.inputs or ()] for kept in past]
        device, heads, self._length = rows.device, parts.heads, past[0].length
        r, d, widest = len(rows), parts.embedding.shape[1], max(len(each.qkv.weight) for each in parts.layers)
        self._units = torch.cuda.get_device_properties(device).multi_processor_count if rows.is_cuda else 1

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._stream, self._first, self._convolved = (make(r, d, dtype=kind) for _ in range(3))
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
        choosing = r, choice_parts(len(parts.head.weight))[0]
        self._found = make(*choosing), make(*choosing), make(*choosing, dtype=torch.int32)
        """Of a program that chooses among some tokens: the largest logit, the highest score and its token."""
        self._chosen = make(r, dtype=torch.int32)
        self._shared: dict[Any, tuple[Tensor, Tensor]] = {}
        rotary = parts.frequencies
        self._turns = (self._sums, self._sums) if rotary is None else turns(rotary.to(device), self._length)

    def logits_of_newest(self) -> Tensor:
        """Launch all kernels up to the logits, R V in float32, and add 1 to both counts of `place`."""
        parts = self._parts
        self._embed()
        for index, layer in enumerate(parts.layers):
            following = parts.layers[index + 1] if index + 1 < len(parts.layers) else None
            after = None if following is None else following.scales
            qkv = self._qkv.flatten()[: len(self._rows) * len(layer.qkv.weight)]
            hidden = self._hidden.flatten()[: len(self._rows) * layer.down.weight.shape[1]]
            self._multiply(qkv, self._stream, layer.qkv, layer.norm1)
            if layer.convolution1 is not None:
                queries = self._mixed.shape[1]
                self._convolve(qkv, qkv, layer.convolution1, self._inputs[index][0], queries)
            self._attend(qkv, layer, *self._past[index])
            self._multiply(self._stream, self._mixed, layer.out, add=True)
            read, norm = self._read_by_mlp(index)
            self._multiply(hidden, read, layer.up, norm, activation=layer.activation)
            self._multiply(self._stream, hidden, layer.down, add=True, scales=after)
        self._multiply(self.logits, self._stream, parts.head, parts.norm, cap=parts.cap, advance=True)
        return self.logits

    def choose(self, temperature: float, noise: Tensor | None) -> None:
        """Write the next tokens to `rows`: the likeliest, or those drawn by numbers of an exponential distribution."""
        from shoestring.models.kernels.choice import choose_kernel, top_kernel  # imports Triton

        (r, v), tops, best, index = self.logits.shape, *self._found
        parts, block = choice_parts(v)
        told = {"PARTS": parts, "BLOCK": block, "num_warps": _warps(block)} | self._timing()
        if noise is not None:
            top_kernel[(r, parts)](tops, self.logits, v, **told)
        choose_kernel[(r, parts)](
            self._rows, self.logits, self.logits if noise is None else noise, tops, best, index, self._chosen,
            self.place, self._rows.shape[1], v, float(temperature), DRAWN=noise is not None, PADDED=_power(parts),
            **told,
        )  # fmt: skip

    def _timing(self) -> dict[str, Any]:
        """When a kernel lets the next begin: with few rows first of all, else once those before it are complete."""
        return {"EARLY": 2 if len(self._rows) <= FEW else 1, "launch_pdl": True} if self._early else {"EARLY": 0}

    def _embed(self) -> None:
        from shoestring.models.kernels.decoding import embed_kernel

        parts, (v, d) = self._parts, self._parts.embedding.shape
        norm, scales, block, pairs = parts.embedding_norm, parts.layers[0].scales, _power(d), parts.pair_embedding
        embed_kernel[(len(self._rows),)](
            self._stream, self._first, self._rows, self.place, parts.embedding,
            parts.embedding if parts.positions is None else parts.positions, *_of_norm(norm, self._stream),
            self._stream if scales is None else scales,
            parts.embedding if pairs is None else pairs, self._rows.shape[1], v, K=d,
            PAIRS=0 if pairs is None else len(pairs),
            EPS=0.0 if norm is None else norm.eps, NORM=_kind(norm), POSITIONS=parts.positions is not None,
            SCALED=scales is not None, BLOCK=block, num_warps=_warps(block), **self._timing(),
        )  # fmt: skip

    def _read_by_mlp(self, index: int) -> tuple[Tensor, Norm | None]:
        """What the MLP of a layer reads, and the norm of it that is still to be taken."""
        layer = self._parts.layers[index]
        if layer.convolution2 is None:
            return self._stream, layer.norm2
        self._convolve(self._convolved, self._stream, layer.convolution2, self._inputs[index][1], norm=layer.norm2)
        return self._convolved, None

    def _convolve(
        self, out: Tensor, x: Tensor, factors: Tensor, kept: Tensor, begin: int = 0, norm: Norm | None = None
    ) -> None:
        """A convolution of the channels from `begin` on, with the norm of x before it; `out` may be x."""
        from shoestring.models.kernels.decoding import convolution_kernel

        (before, channels), (r, block) = factors.shape, (len(self._rows), _power(factors.shape[1]))
        gain, shift = _of_norm(norm, x)
        convolution_kernel[(r,)](
            out, x, gain, shift, kept, factors, self.place, x.numel() // r, begin, K=channels, J=before,
            EPS=0.0 if norm is None else norm.eps, NORM=_kind(norm), BLOCK=block, num_warps=_warps(block),
            **self._timing(),
        )  # fmt: skip

    def _attend(self, qkv: Tensor, layer: Layer, keys: Tensor, values: Tensor) -> None:
        from shoestring.models.kernels.decoding_attention import attention_kernel

        heads, (queries, channels), r = self._parts.heads, self._padded, len(self._rows)
        window = layer.window if layer.window is not None and layer.window < self._length else 0
        gains, table = layer.qk_gains or (qkv, qkv), layer.values
        attention_kernel[(r * heads.keys, self._splits)](
            self._mixed, qkv, keys, values, *self._turns, *gains, qkv if table is None else table, self._rows,
            self.place, self._partial, self._sums, self._arrived, self._rows.shape[1], self._length,
            len(layer.qkv.weight), 0 if table is None else table.stride(0), KV=heads.keys, G=self._group,
            C=heads.channels, GP=queries, CP=channels, WINDOW=window, EPS=layer.norm1.eps,
            QK_NORM=layer.qk_gains is not None, ROTATE=self._parts.frequencies is not None, VALUES=table is not None,
            SPLITS=self._splits, LEAST=LEAST_KEYS, BLOCK=64 if channels <= 64 else 32,
            num_warps=attention_warps(queries, channels), **self._timing(),
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
            out if scales is None else scales, self.place,
        )  # fmt: skip
        constants = {
            "K": k, "EPS": 0.0 if norm is None else norm.eps, "NORM": _kind(norm), "ACT": ACTIVATIONS[activation],
            "BIAS": bias is not None, "ADD": add, "SCALED": scales is not None, "CAP": cap or 0.0, "ADVANCE": advance,
        } | self._timing()  # fmt: skip
        if m <= FEW:
            launch = vector_launch(n, k, weight.itemsize * len(weight) // n, self._units)
            vector_kernel[(-(-n // launch["BN"]),)](*given, m, n, **constants, **launch)
        else:
            divisible = norm is None and activation != "swiglu" and not advance
            launch = matrix_launch(m, n, k, weight.itemsize, self._units, divisible)
            tiles = -(-n // launch["BN"]), -(-m // launch["BM"])
            partial, arrived = self._shared_sums(tiles, m * n, launch["SPLITS"])
            matrix_kernel[(*tiles, launch["SPLITS"])](*given, partial, arrived, m, n, **constants, **launch)

    def _shared_sums(self, tiles: tuple[int, int], numbers: int, splits: int) -> tuple[Tensor, Tensor]:
        """Where programs that share a product leave their sums, and counts of those that did, which are 0 again."""
        if splits == 1:
            return self._sums, self._arrived
        key = tiles, numbers, splits
        if key not in self._shared:
            device = self._stream.device
            self._shared[key] = (
                torch.empty(splits * numbers, device=device),
                torch.zeros(tiles[0] * tiles[1], dtype=torch.int32, device=device),
            )
        return self._shared[key]


def attention_warps(queries: int, channels: int) -> int:
    """Of a program; what single queries mix of many channels takes all registers of four."""
    return 8 if queries == 1 and channels > 64 else 4


def vector_launch(n: int, k: int, size: int, units: int) -> dict[str, Any]:
    """The launch for n channels out, of k weights of `size` bytes."""
    warps = WARPS * (2 if k > LONG else 1)
    columns = min(PART * warps, max(32, _power(k)))
    held = -(-k // columns) * columns * size  # of a row
    rows = 1
    while rows < 16 and 2 * rows * held <= TILE * warps and -(-n // (2 * rows)) >= LEAST_PROGRAMS * units:
        rows *= 2
    return {"BN": rows, "BK": columns, "num_warps": warps}


def matrix_launch(m: int, n: int, k: int, size: int, units: int, divisible: bool = False) -> dict[str, Any]:
    """The launch for m rows; where programs are few, and a sum is `divisible`, some share it."""
    rows = min(64, max(16, _power(m)))
    depth = DEPTH // size
    while STAGES * depth * size * (rows + 2 * COLUMNS) > SHARED:  # a SwiGLU has two tiles of weights
        depth //= 2
    programs, splits = -(-n // COLUMNS) * -(-m // rows), 1
    while divisible and splits < MOST_SHARED and 2 * splits * programs <= 3 * units and k >= 6 * splits * depth:
        splits *= 2
    return {"BM": rows, "BN": COLUMNS, "BK": depth, "SPLITS": splits, "num_warps": 4, "num_stages": STAGES}


def choice_parts(v: int) -> tuple[int, int]:
    """How many programs choose among v tokens, and among how many each."""
    block = max(min(1024, _power(v)), _power(-(-v // CHOICES)))
    return -(-v // block), block


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
