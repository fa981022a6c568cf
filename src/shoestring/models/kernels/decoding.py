# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton knows no other way to add to a tuple)
"""The kernels of one further token: few launches, and every weight is read once.

Shapes: M rows of tokens, K channels in, N channels out, H query heads, KV heads of keys and values, G = H / KV, C
channels per head, V ids. Sums are float32.

`place` holds two counts on the device: the position of the newest token in what is kept, and the column of `rows` that
gets the next one. The output product adds 1 to both.

EARLY says when a kernel lets the next begin, see `early`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from shoestring.models.kernels.early import fetch, fetch_lines, let_begin, wait
from shoestring.models.layers import pairs as pairs_of

MODULUS, FACTOR = tl.constexpr(pairs_of.MODULUS), tl.constexpr(pairs_of.FACTOR)


@triton.jit
def _normed(x, gain, shift, k, here, K: tl.constexpr, EPS: tl.constexpr, NORM: tl.constexpr):
    """The norm of a vector that is zero beyond K: 1, an RMSNorm; 2, a LayerNorm."""
    if NORM == 2:
        x = tl.where(here, x - tl.sum(x, 0) / K, 0.0)
    x *= tl.rsqrt(tl.sum(x * x, 0) / K + EPS)
    x *= tl.load(gain + k, mask=here, other=0.0).to(tl.float32)
    if NORM == 2:
        x += tl.load(shift + k, mask=here, other=0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["width", "v"])
def embed_kernel(
    out, first, rows, place, table, positions, gain, shift, scales, pairs, width, v, K: tl.constexpr,
    EPS: tl.constexpr, NORM: tl.constexpr, POSITIONS: tl.constexpr, SCALED: tl.constexpr, PAIRS: tl.constexpr,
    EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first stream of the newest tokens; a program makes that of one row."""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here = k < K
    if EARLY:  # whatever the order, the pass before ends first
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.load(place + 1, cache_modifier=".cg")
    token = tl.load(rows + row * width + column - 1, cache_modifier=".cg")
    known = (token >= 0) & (token < v)
    x = tl.load(table + token * K + k, mask=here & known, other=0.0).to(tl.float32)
    if POSITIONS:
        x += tl.load(positions + tl.load(place, cache_modifier=".cg") * K + k, mask=here, other=0.0).to(tl.float32)
    if PAIRS:  # as `models.layers.pairs`
        begun = tl.load(place, cache_modifier=".cg") > 0
        before = tl.load(rows + row * width + column - 2, mask=begun, other=v, cache_modifier=".cg")
        pair = (before * v + token) % MODULUS * FACTOR % MODULUS % PAIRS
        x += tl.load(pairs + pair * K + k, mask=here & known, other=0.0).to(tl.float32)
    if NORM:
        x = _normed(x, gain, shift, k, here, K, EPS, NORM)
    if SCALED:
        tl.store(first + row * K + k, x, mask=here)
        x *= tl.load(scales).to(tl.float32) + tl.load(scales + 1).to(tl.float32)
    tl.store(out + row * K + k, x, mask=here)


@triton.jit
def convolution_kernel(
    out, x, gain, shift, kept, factors, place, stride, begin, K: tl.constexpr, J: tl.constexpr, EPS: tl.constexpr,
    NORM: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x from channel `begin` on, or its norm, with that of the J positions before; a program has one row.

    `kept` holds them, that of position p in place p mod J + 1 (`models.layers.past.Inputs`).
    """
    let_begin(EARLY)
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here, channel = k < K, row * stride + begin + k
    wait(EARLY)
    position = tl.load(place, cache_modifier=".cg")
    v = tl.load(x + channel, mask=here, other=0.0, cache_modifier=".cg").to(tl.float32)
    if NORM:
        v = _normed(v, gain, shift, k, here, K, EPS, NORM)
    v = v.to(kept.dtype.element_ty)
    total = v.to(tl.float32)
    for j in tl.static_range(1, J + 1):
        at = kept + (row * (J + 1) + (position + J + 1 - j) % (J + 1)) * K + k
        before = tl.load(at, mask=here & (position >= j), other=0.0, cache_modifier=".cg").to(tl.float32)
        total += tl.load(factors + (j - 1) * K + k, mask=here, other=0.0).to(tl.float32) * before
    tl.store(kept + (row * (J + 1) + position % (J + 1)) * K + k, v, mask=here)
    tl.store(out + channel, total.to(out.dtype.element_ty), mask=here)


@triton.jit
def _constants(bias, scales, n, N, ACT: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr):
    """Biases of a product and of the one beside it, and the two scales; 0 for what there is not."""
    b, c, one, two = 0.0, 0.0, 0.0, 0.0
    if BIAS:
        b = tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
        if ACT == 1:
            c = tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)
    if SCALED:
        one, two = tl.load(scales).to(tl.float32), tl.load(scales + 1).to(tl.float32)
    return b, c, one, two


@triton.jit
def _streams(out, first, at, inside, ADD: tl.constexpr, SCALED: tl.constexpr):
    """What a product is added to, and the first embedding; asked for before the product is computed."""
    old, begun = 0.0, 0.0
    if ADD:
        old = tl.load(out + at, mask=inside, other=0.0, cache_modifier=".cg")
    if SCALED:
        begun = tl.load(first + at, mask=inside, other=0.0, cache_modifier=".cg")
    return old, begun


@triton.jit
def _finish(
    y, z, out, at, inside, old, begun, b, c, one, two, ACT: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    SCALED: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Store a product, or add it to the stream; ACT is one of `ACTIVATIONS`, and z the product beside a gate y."""
    if BIAS:
        y += b
        if ACT == 1:
            z += c
    if ACT == 1:
        y = y * tl.sigmoid(y) * z
    if ACT == 2:
        y = tl.maximum(y, 0.0)
        y *= y
    if ACT == 3:
        y *= tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))  # 2 sqrt(2 / pi)
    if CAP > 0:
        y = (2.0 * CAP) * tl.sigmoid(y * (2.0 / CAP)) - CAP
    if ADD:
        y += old.to(tl.float32)
    if SCALED:
        y = y * one + two * begun.to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _advance(place, ADVANCE: tl.constexpr):
    if ADVANCE:
        first = (tl.program_id(0) == 0) & (tl.program_id(1) == 0)
        tl.store(place, tl.load(place, cache_modifier=".cg") + 1, mask=first)
        tl.store(place + 1, tl.load(place + 1, cache_modifier=".cg") + 1, mask=first)


@triton.jit
def vector_kernel(
    out, x, weight, gain, shift, bias, first, scales, place, M, N, K: tl.constexpr, EPS: tl.constexpr,
    NORM: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr,
    CAP: tl.constexpr, ADVANCE: tl.constexpr, EARLY: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """The norm of x times a matrix, for one or two rows: a program has BN channels out, whose weights it holds.

    It holds them as parts of BK channels in, so that few registers are left empty.
    """
    PARTS: tl.constexpr = (K + BK - 1) // BK
    let_begin(EARLY)
    n, k = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN), tl.arange(0, BK)
    known, tiles, others = n < N, (), ()
    for j in tl.static_range(PARTS):
        at = n[:, None] * K + (j * BK + k)[None, :]
        inside = known[:, None] & (j * BK + k < K)[None, :]
        tiles = tiles + (tl.load(weight + at, mask=inside, other=0.0),)
        if ACT == 1:
            others = others + (tl.load(weight + N.to(tl.int64) * K + at, mask=inside, other=0.0),)
    b, c, one, two = _constants(bias, scales, n, N, ACT, BIAS, SCALED)
    if EARLY:
        if NORM:  # held until then, a gain would take the place of weights
            fetch_lines(gain, tl.cdiv(K * (gain.dtype.element_ty.primitive_bitwidth // 8), 128), 32)
        if NORM == 2:
            fetch_lines(shift, tl.cdiv(K * (shift.dtype.element_ty.primitive_bitwidth // 8), 128), 32)
    wait(EARLY)
    for m in range(M):
        old, begun = _streams(out, first, m * N + n, known, ADD, SCALED)
        parts, gains, shifts = (), (), ()
        for j in tl.static_range(PARTS):
            here = j * BK + k < K
            parts = parts + (tl.load(x + m * K + j * BK + k, mask=here, other=0.0),)
            if NORM:
                gains = gains + (tl.load(gain + j * BK + k, mask=here, other=0.0),)
            if NORM == 2:
                shifts = shifts + (tl.load(shift + j * BK + k, mask=here, other=0.0),)
        mean, scale = 0.0, 1.0
        if NORM == 2:
            total = tl.zeros((BK,), tl.float32)
            for j in tl.static_range(PARTS):
                total += parts[j].to(tl.float32)
            mean = tl.sum(total, 0) / K
        if NORM:
            total = tl.zeros((BK,), tl.float32)
            for j in tl.static_range(PARTS):
                v = tl.where(j * BK + k < K, parts[j].to(tl.float32) - mean, 0.0)
                total += v * v
            scale = tl.rsqrt(tl.sum(total, 0) / K + EPS)
        y, z = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BK), tl.float32)
        for j in tl.static_range(PARTS):
            v = parts[j].to(tl.float32)
            if NORM:
                v = (v - mean) * scale * gains[j].to(tl.float32)
            if NORM == 2:
                v += shifts[j].to(tl.float32)
            v = v.to(weight.dtype.element_ty).to(tl.float32)[None, :]
            y += tiles[j].to(tl.float32) * v
            if ACT == 1:
                z += others[j].to(tl.float32) * v
        y, z = tl.sum(y, 1), tl.sum(z, 1)
        _finish(y, z, out, m * N + n, known, old, begun, b, c, one, two, ACT, BIAS, ADD, SCALED, CAP)
    _advance(place, ADVANCE)


@triton.jit(do_not_specialize=["M"])
def matrix_kernel(
    out, x, weight, gain, shift, bias, first, scales, place, partial, arrived, M, N, K: tl.constexpr,
    EPS: tl.constexpr, NORM: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    SCALED: tl.constexpr, CAP: tl.constexpr, ADVANCE: tl.constexpr, EARLY: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, BM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """As `vector_kernel`, for more rows: a program has BM of them, and multiplies on the matrix units.

    Without norm and gate, SPLITS programs can share the channels in; the last to arrive adds their sums, always in the
    same order.
    """
    tl.static_assert(SPLITS == 1 or (NORM == 0 and ACT != 1), "a part knows neither the norm nor its share of a gate")
    CHUNK: tl.constexpr = ((K + SPLITS - 1) // SPLITS + BK - 1) // BK * BK
    let_begin(EARLY)
    low = tl.program_id(2) * CHUNK if SPLITS > 1 else 0
    high = tl.minimum(low + CHUNK, K) if SPLITS > 1 else K
    m, n = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    steps, known = tl.arange(0, BK), (n < N)[:, None]
    of_rows, some = x + m[:, None] * K, (m < M)[:, None]
    kind = weight.dtype.element_ty
    of_columns = weight + n[:, None] * K  # N 1
    b, c, one, two = _constants(bias, scales, n[None, :], N, ACT, BIAS, SCALED)
    if EARLY:
        line: tl.constexpr = 128 // (kind.primitive_bitwidth // 8)
        for k0 in range(low, high, BK):
            k = k0 + tl.arange(0, BK // line)[None, :] * line
            fetch(of_columns + k, known & (k < K))
            if ACT == 1:
                fetch(of_columns + N.to(tl.int64) * K + k, known & (k < K))
    wait(EARLY)
    at, inside = m[:, None] * N + n[None, :], some & (n < N)[None, :]
    old, begun = _streams(out, first, at, inside, ADD, SCALED)
    # The factor of an RMSNorm comes after the product, so that x is read once; in fp16 it could overflow before.
    TWICE: tl.constexpr = NORM == 2 or (NORM == 1 and kind == tl.float16)
    mean, scale = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    if NORM == 2:
        total = tl.zeros((BM, BK), tl.float32)
        for k0 in range(0, K, BK):
            k = (k0 + steps)[None, :]
            total += tl.load(of_rows + k, mask=some & (k < K), other=0.0, cache_modifier=".cg").to(tl.float32)
        mean = tl.sum(total, 1) / K
    if TWICE:
        total = tl.zeros((BM, BK), tl.float32)
        for k0 in range(0, K, BK):
            k = (k0 + steps)[None, :]
            v = tl.load(of_rows + k, mask=some & (k < K), other=0.0, cache_modifier=".cg").to(tl.float32)
            v = tl.where(k < K, v - mean[:, None], 0.0)
            total += v * v
        scale = tl.rsqrt(tl.sum(total, 1) / K + EPS)
    y, z = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM, BK), tl.float32)
    for k0 in range(low, high, BK):
        k = (k0 + steps)[None, :]
        v = tl.load(of_rows + k, mask=some & (k < K), other=0.0, cache_modifier=".cg")
        if NORM:
            v = v.to(tl.float32)
            if TWICE:
                v = (v - mean[:, None]) * scale[:, None]
            else:
                squares += v * v
            v *= tl.load(gain + k, mask=k < K, other=0.0).to(tl.float32)
            if NORM == 2:
                v += tl.load(shift + k, mask=k < K, other=0.0).to(tl.float32)
        v = v.to(kind)
        tile = tl.load(of_columns + k, mask=known & (k < K), other=0.0)
        y = tl.dot(v, tl.trans(tile), y, input_precision="ieee")
        if ACT == 1:
            other = tl.load(of_columns + N.to(tl.int64) * K + k, mask=known & (k < K), other=0.0)
            z = tl.dot(v, tl.trans(other), z, input_precision="ieee")
    if NORM == 1 and not TWICE:
        scale = tl.rsqrt(tl.sum(squares, 1) / K + EPS)
        y, z = y * scale[:, None], z * scale[:, None]
    if SPLITS == 1:
        _finish(y, z, out, at, inside, old, begun, b, c, one, two, ACT, BIAS, ADD, SCALED, CAP)
        _advance(place, ADVANCE)
    else:
        tl.store(partial + tl.program_id(2) * M * N + at, y, mask=inside)
        tl.debug_barrier()
        mine = arrived + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(mine, 1, sem="acq_rel") == SPLITS - 1:
            y = tl.zeros((BM, BN), tl.float32)
            for split in tl.static_range(SPLITS):
                y += tl.load(partial + split * M * N + at, mask=inside, other=0.0, cache_modifier=".cg")
            _finish(y, z, out, at, inside, old, begun, b, c, one, two, ACT, BIAS, ADD, SCALED, CAP)
            tl.store(mine, 0)
