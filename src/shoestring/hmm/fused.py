"""The E-step on a GPU with the fused kernels: the same function as `expect`.

Shapes: N sequences, n of them in a chunk, L positions, H states padded to S, E symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from shoestring.hmm import kernels
from shoestring.hmm.expect import Counts, check_weights, expect, free_bytes, zeros
from shoestring.hmm.inference import Lengths, Tokens, check_tokens
from shoestring.hmm.parameters import Parameters

UNIT = 64
"""The rows of a chunk are a multiple of this: the products that count transitions take this many at once."""
PIECE = 1024
"""Places of one symbol that one program sums in float32; the sums of pieces are added in float64."""
_WAVE = 132
"""Programs that run side by side; chunks that are large enough are a multiple of this."""
RECORDED_BYTES = 2**30
"""Limit on the state tables of a recording, which stay allocated. With more rows the host is not the bottleneck."""
RECORDINGS = 2
"""Recordings that are kept: the updates of an epoch differ by at most one row, and rows are padded."""


class Tiles(NamedTuple):
    """Block sizes for a number of states and of rows."""

    states: int
    """Padded: S."""
    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


def tiles(states: int, rows: int) -> Tiles:
    """The fastest sizes on an H200 (see results/log.md). Few rows get small blocks, to occupy more of the chip."""
    block = next((block for block in (16, 32, 64) if rows <= block * _WAVE), 128)
    if states <= 128:
        padded = max(32, triton.next_power_of_2(states))
        return Tiles(padded, min(block, 64), padded, min(padded, 64), 4, 2)
    padded = -(-states // 128) * 128
    wide = padded % 256 == 0 and (block == 32 or (block == 16 and padded > 512))
    return Tiles(padded, block, 256 if wide else 128, 64, 8 if wide or block == 128 else 4, 3)


class Counted(NamedTuple):
    """The counts of some rows, which the device may still be computing."""

    counts: Counts
    """Without impossible rows."""
    impossible: Tensor
    """(n,): whether each row is impossible in the range of float32."""
    doubts: Tensor
    """(2,): whether there is an impossible row, and whether a number is not finite."""


CountRows = Callable[[Parameters, Tensor, Tensor, Tensor], Counted]
"""`count_rows`, or a `Recorder` of it."""


def count_rows(parameters: Parameters, tokens: Tensor, lengths: Tensor, weights: Tensor) -> Counted:
    """Count tokens (n, L) with lengths (n,) and weights (n,) in float64, all on the device, without waiting for it.

    n is a multiple of UNIT; rows of length and weight 0 pad it.
    """
    found = count_chunk(parameters, tokens, lengths, weights.float())
    impossible = (found.scale == 0).any(0)
    sums = found.start.sum() + found.transition.sum() + found.emission.sum()
    counted = torch.where(impossible, 0.0, weights)
    logs = torch.where(found.scale > 0, found.scale, 1.0).double().log().sum(0)
    sequences, places = counted.sum(), counted @ lengths.double()
    # rounding in a long backward pass adds up, alike for all states; each table's sum is known, so it is corrected
    start, transition, emission = (
        _with_sum(table, expected)
        for table, expected in zip(found[:3], (sequences, places - sequences, places), strict=True)
    )
    numbers = (counted @ logs, sequences, places, counted.new_zeros(()))
    doubts = torch.stack([impossible.any(), ~sums.isfinite()])
    return Counted(Counts(start, transition, emission, None, *numbers), impossible, doubts)


def expect_fused(
    parameters: Parameters,
    tokens: Tokens,
    lengths: Lengths = None,
    weights: Tensor | None = None,
    chunk: int | None = None,
    limit_bytes: int | None = None,
    count: CountRows = count_rows,
) -> Counts:
    """`expect` for float32 parameters on a GPU.

    `expect` itself takes what the kernels cannot: models with end probabilities, sequences so long that not even one
    block of rows fits the memory, and rows that underflow.
    """
    rows, length = tokens.shape
    limit = limit_bytes if limit_bytes is not None else free_bytes(parameters.device) // 2
    fitting = _fitting_rows(parameters, length, limit)
    if parameters.end is not None or parameters.dtype != torch.float32 or fitting == 0 or rows == 0:
        return expect(parameters, tokens, lengths, weights, chunk if fitting else None, limit_bytes)
    check_tokens(tokens, parameters.symbols, lengths)
    weight = check_weights(weights, rows)
    weight = torch.ones(rows, dtype=torch.float64) if weight is None else weight
    sizes = torch.full((rows,), length) if lengths is None else lengths.cpu().long()
    total, again = zeros(parameters), []
    for picked in torch.arange(rows).split(min(chunk or rows, fitting)):
        block = slice(int(picked[0]), int(picked[-1]) + 1)
        x = _padded(tokens[block], parameters.device, torch.int32)
        size, w = (_padded(part[block], parameters.device) for part in (sizes, weight))
        found = count(parameters, x, size, w)
        some_impossible, not_finite = found.doubts.tolist()
        if not_finite:
            again.append(picked)
            continue
        if some_impossible:
            again.append(picked[found.impossible[: len(picked)].cpu()])
        total = total.merge(found.counts)
    if again:  # either below the range of float32 or truly impossible: float64 tells which
        doubtful = torch.cat(again)
        exact = parameters.to(dtype=torch.float64)
        some = tokens[doubtful.to(tokens.device)]
        total = total.merge(expect(exact, some, sizes[doubtful], weight[doubtful], limit_bytes=limit_bytes))
    return total


def _padded(part: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The rows on the device, padded with zeros to a multiple of UNIT."""
    rows = -(-len(part) // UNIT) * UNIT
    padded = torch.zeros((rows, *part.shape[1:]), device=device, dtype=dtype or part.dtype)
    padded[: len(part)] = part
    return padded


def _with_sum(table: Tensor, expected: Tensor) -> Tensor:
    total = table.sum()
    return torch.where(total > 0, table * (expected / total), table)


def _fitting_rows(parameters: Parameters, length: int, limit: int) -> int:
    """Rows of a chunk within `limit` bytes, in whole blocks, and in whole waves of blocks if there are enough."""
    s = tiles(parameters.states, 0).states
    fixed = (4 * parameters.symbols + 600 * s) * s * 4
    per_row = length * (8 * s + 48) + length * s * 12 // PIECE
    rows = max(0, limit - fixed) // per_row
    block = max(UNIT, tiles(parameters.states, rows).rows)
    return rows // (_WAVE * block) * (_WAVE * block) or rows // block * block


class Recorder:
    """`count_rows` as a recorded CUDA graph, with the same bits.

    With few rows, the host takes about as long to launch the hundred kernels one by one as the GPU takes to run them.
    """

    def __init__(self) -> None:
        self._recordings: dict[tuple[torch.Size, int, int], _Recording | None] = {}
        """By shape, states and symbols; None for what cannot be recorded."""

    def __call__(self, parameters: Parameters, tokens: Tensor, lengths: Tensor, weights: Tensor) -> Counted:
        if tokens.numel() * parameters.states * 8 > RECORDED_BYTES:
            return count_rows(parameters, tokens, lengths, weights)
        kind = tokens.shape, parameters.states, parameters.symbols
        recording = self._recordings.get(kind)
        if recording is not None:
            return recording.replay(parameters, tokens, lengths, weights)
        counted = count_rows(parameters, tokens, lengths, weights)
        if kind not in self._recordings:  # the kernels are compiled now, which cannot be recorded
            if len(self._recordings) >= RECORDINGS:
                del self._recordings[next(iter(self._recordings))]
            try:
                self._recordings[kind] = _Recording(parameters, tokens, lengths, weights)
            except RuntimeError:  # also out of memory: there was enough for the counts above
                self._recordings[kind] = None
        return counted


class _Recording:
    """A graph for rows of one shape and parameters of one size. Its result is valid until the next replay."""

    def __init__(self, parameters: Parameters, *rows: Tensor):
        self._inputs = [part.clone() for part in (*parameters[:3], *rows)]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._counted = count_rows(Parameters(*self._inputs[:3]), *self._inputs[3:])

    def replay(self, parameters: Parameters, *rows: Tensor) -> Counted:
        for kept, part in zip(self._inputs, (*parameters[:3], *rows), strict=True):
            kept.copy_(part, non_blocking=True)
        self._graph.replay()
        return self._counted


class ChunkCounts(NamedTuple):
    """The counts of a chunk of rows, in float64, and its scales."""

    start: Tensor
    transition: Tensor
    emission: Tensor
    scale: Tensor
    """(L, n): c_t, 1 beyond a row, 0 where a token was impossible."""


def count_chunk(
    parameters: Parameters, tokens: Tensor, lengths: Tensor, weights: Tensor, half: torch.dtype = torch.bfloat16
) -> ChunkCounts:
    """Expected counts of rows on the device: tokens (n, L), lengths (n,), weights (n,).

    `half` is the type of the two halves of a number. With float32 the second half is zero, which tests everything but
    the rounding.
    """
    shape = tiles(parameters.states, len(tokens))
    device, states, symbols = tokens.device, parameters.states, parameters.symbols
    s, length = shape.states, tokens.shape[1]
    unit = max(UNIT, shape.rows)
    rows = -(-len(tokens) // unit) * unit

    def padded(table: Tensor, *sizes: int) -> Tensor:
        full = torch.zeros(sizes, device=device, dtype=torch.float32)
        full[tuple(slice(0, size) for size in table.shape)] = table
        return full

    x = torch.zeros((length, rows), device=device, dtype=torch.int32)
    x[:, : len(tokens)] = tokens.t()
    sizes = torch.zeros(rows, device=device, dtype=torch.int32)
    sizes[: len(tokens)] = lengths
    emission, table = padded(parameters.emission.t(), symbols, s), padded(parameters.transition, s, s)
    a, w = (torch.empty((2, length, rows, s), device=device, dtype=half) for _ in range(2))
    scale = torch.empty((length, rows), device=device, dtype=torch.float32)
    grid = (rows // shape.rows,)
    blocks = {"S": s, "BM": shape.rows, "BN": shape.columns, "BK": shape.inner}
    launch = {"num_warps": shape.warps, "num_stages": shape.stages}
    kernels.forward_kernel[grid](
        x, sizes, padded(parameters.start, s), emission, *_pair(table, half), a[0], a[1], scale, rows, length,
        **blocks, **launch,
    )  # fmt: skip
    kernels.backward_kernel[grid](
        x, sizes, padded(weights, rows), emission, *_pair(table.t().contiguous(), half), scale, w[0], w[1],
        rows, length, **blocks, **launch,
    )  # fmt: skip
    emit = emission.double()[:, :states]
    # posteriors are a w c / B; within one symbol the division comes after the sum, and a is zero where B is
    summed = _by_symbol(x, a, w, scale, symbols)[:, :states]
    first = (a[0, 0].float() + a[1, 0].float()) * (w[0, 0].float() + w[1, 0].float())
    begun = first[:, :states].double() / emit[x[0].long()]
    return ChunkCounts(
        start=torch.where(first[:, :states] > 0, begun, 0.0).sum(0),
        transition=_transitions(a, w)[:states, :states] * parameters.transition.double(),
        emission=torch.where(emit > 0, summed / emit, 0.0).t(),
        scale=scale[:, : len(tokens)],
    )


def _by_symbol(x: Tensor, a: Tensor, w: Tensor, scale: Tensor, symbols: int) -> Tensor:
    """Σ of a w c_{t-1} over the places of each symbol, (E, S) in float64, in a fixed order for reproducible bits."""
    s = a.shape[-1]
    keys = x.flatten().to(torch.uint8) if symbols <= 256 else x.flatten()  # a byte is sorted in one pass
    flat, order = keys.sort(stable=True)
    edges = torch.searchsorted(flat.int(), torch.arange(symbols + 1, device=x.device, dtype=torch.int32))  # E + 1
    pieces = (edges.diff() + PIECE - 1) // PIECE
    last = pieces.cumsum(0)
    number = torch.arange(len(flat) // PIECE + symbols, device=x.device)  # at least as many as there are pieces
    symbol = torch.searchsorted(last, number, right=True).clamp(max=symbols - 1)
    begin = edges[symbol] + (number - (last - pieces)[symbol]) * PIECE
    end = torch.where(number < last[-1], torch.minimum(begin + PIECE, edges[symbol + 1]), begin)
    out = torch.empty((len(number), s), device=x.device, dtype=torch.float32)
    columns = min(s, 128)
    kernels.emission_kernel[(len(number), s // columns)](
        order, begin, end, a[0], a[1], w[0], w[1], scale, out, x.shape[1], S=s, BN=columns, BK=32, num_warps=4
    )
    running = torch.cat([out.new_zeros((1, s), dtype=torch.float64), out.double().cumsum(0)])
    return running[last] - running[last - pieces]


def _transitions(a: Tensor, w: Tensor) -> Tensor:
    """Σ over all positions but the last of a_tᵀ w_{t+1}, (S, S) in float64."""
    _, length, rows, s = a.shape
    k = (length - 1) * rows
    if k == 0:
        return torch.zeros((s, s), device=a.device, dtype=torch.float64)
    assert k % UNIT == 0, "rows beyond the last unit would be counted"
    block = min(s, 128)
    unit = UNIT * kernels.PROMOTE
    span = -(-k // (max(1, 2 * _WAVE // (s // block) ** 2) * unit)) * unit
    splits = -(-k // span)
    out = torch.empty((splits, s, s), device=a.device, dtype=torch.float32)
    kernels.transition_kernel[(s // block, s // block, splits)](
        a[0], a[1], w[0, 1:], w[1, 1:], out, k, span,
        S=s, BM=block, BN=block, BK=UNIT, PROMOTE=kernels.PROMOTE, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out.double().sum(0)


def _pair(x: Tensor, half: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two halves that add up to the table."""
    high = x.to(half)
    return high, (x - high.to(x.dtype)).to(half)
