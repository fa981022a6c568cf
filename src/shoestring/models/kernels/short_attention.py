# mypy: ignore-errors
"""Causal attention over short rows, rotary positions included, as two Triton kernels: forward and backward.

Shapes: R rows, T positions, H query heads, KV key heads (and as many of values), C channels per head. Queries, keys and
values are one tensor, (R, T, H + 2 KV, C), and so are their gradients; the output is (R, T, H, C). The tables of
cosines and sines are (T, C/2).

A row is one part of BLOCK positions or, where TWO, a first and a second one (a and b below). Queries of the first part
never see keys of the second, which saves a quarter of the products. The weights of a query are in one or two tiles, so
softmax needs no second pass. Places of a tile beyond T hold zeros: as keys no position of the row sees them, and as
queries their gradient is zero.

Queries and keys are held as two halves, the channels below C/2 and the others. The pairs (c, c + C/2) that are rotated
together are then at the same place of two tiles, and `q k = q1 k1 + q2 k2`. HALF is C/2, or 16 where that is less,
because a product needs 16. Rotated values are rounded to the type of the tensor, as the plain form does.

The backward pass computes the weights again, so only the input is kept for it. With weights `p`, `dp = do v` and
`δ = Σ p dp`, the gradient of the scores is `p (dp - δ)`; those of queries and keys are rotated back in float32. The
order of its steps keeps few tiles alive at a time, and a gradient is stored as soon as it is complete.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _inside(place, channel, T, C: tl.constexpr):
    """Whether these places and channels exist."""
    inside = (place < T)[:, None]
    if C < 32:
        inside &= (channel < C // 2)[None, :]
    return inside


@triton.jit
def _tables(cos, sin, place, T, C: tl.constexpr, HALF: tl.constexpr, KEEP: tl.constexpr):
    """Cosines and sines of these positions. A different KEEP loads them again, so that they need not be held."""
    channel = tl.arange(0, HALF)
    at = place[:, None] * (C // 2) + channel[None, :]
    inside = _inside(place, channel, T, C)
    c = tl.load(cos + at, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
    s = tl.load(sin + at, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
    return c, s


@triton.jit
def _held(x):
    """x itself. The compiler cannot see that, and so it does not rotate a tile twice, once per layout."""
    if not INTERPRETED and x.dtype.primitive_bitwidth == 16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], x.dtype, is_pure=False, pack=2)
    return x


@triton.jit
def _load_rotated(head, place, c, s, T, STRIDE: tl.constexpr, C: tl.constexpr, HALF: tl.constexpr):
    """The halves of a head's queries or keys at these positions, rotated."""
    channel = tl.arange(0, HALF)
    at = place[:, None] * STRIDE + channel[None, :]
    inside = _inside(place, channel, T, C)
    x = tl.load(head + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(head + at + C // 2, mask=inside, other=0.0).to(tl.float32)
    kind = head.dtype.element_ty
    return _held((x * c - y * s).to(kind)), _held((y * c + x * s).to(kind))


@triton.jit
def _store_rotated_back(head, x, y, place, c, s, T, STRIDE: tl.constexpr, C: tl.constexpr, HALF: tl.constexpr):
    """Store the gradients of rotated halves, rotated back."""
    channel = tl.arange(0, HALF)
    at = place[:, None] * STRIDE + channel[None, :]
    inside = _inside(place, channel, T, C)
    kind = head.dtype.element_ty
    tl.store(head + at, (x * c + y * s).to(kind), mask=inside)
    tl.store(head + at + C // 2, (y * c - x * s).to(kind), mask=inside)


@triton.jit
def _load(head, place, T, STRIDE: tl.constexpr, C: tl.constexpr):
    at = place[:, None] * STRIDE + tl.arange(0, C)[None, :]
    return tl.load(head + at, mask=(place < T)[:, None], other=0.0)


@triton.jit
def _store(head, x, place, T, STRIDE: tl.constexpr, C: tl.constexpr):
    at = place[:, None] * STRIDE + tl.arange(0, C)[None, :]
    tl.store(head + at, x.to(head.dtype.element_ty), mask=(place < T)[:, None])


@triton.jit
def _product(x, y, acc=None):
    """x y in float32, and exact where both are float32."""
    return tl.dot(x, y, acc, input_precision="ieee")


@triton.jit
def _scores(q1, q2, k1, k2):
    """Scores before scaling."""
    return _product(q2, tl.trans(k2), _product(q1, tl.trans(k1)))


@triton.jit
def _past(scores, BLOCK: tl.constexpr):
    """The scores of a part with itself, minus infinity for keys later than the query."""
    place = tl.arange(0, BLOCK)
    return tl.where(place[:, None] >= place[None, :], scores, float("-inf"))


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    out, qkv, cos, sin, T, SCALE: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, C: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """A program computes one query head of one row."""
    STRIDE: tl.constexpr = (H + 2 * KV) * C
    BASE: tl.constexpr = SCALE * LOG2_E
    row, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    group = head // (H // KV)
    base = qkv + row * T * STRIDE  # offsets of rows need 64 bits, those within a row do not
    queries, keys, values = base + head * C, base + (H + group) * C, base + (H + KV + group) * C
    out += row * T * (H * C) + head * C

    first = tl.arange(0, BLOCK)
    low = BLOCK if TWO else T  # the end of the first part
    c, s = _tables(cos, sin, first, low, C, HALF, "evict_last")
    ka1, ka2 = _load_rotated(keys, first, c, s, low, STRIDE, C, HALF)
    q1, q2 = _load_rotated(queries, first, c, s, low, STRIDE, C, HALF)
    va = _load(values, first, low, STRIDE, C)
    sa = _past(_scores(q1, q2, ka1, ka2), BLOCK)
    pa = tl.exp2(sa * BASE - (tl.max(sa, 1) * BASE)[:, None])
    mixed = _product(pa.to(va.dtype), va)
    _store(out, mixed * (1.0 / tl.sum(pa, 1))[:, None], first, low, H * C, C)

    if TWO:
        second = BLOCK + first
        c, s = _tables(cos, sin, second, T, C, HALF, "evict_last")
        kb1, kb2 = _load_rotated(keys, second, c, s, T, STRIDE, C, HALF)
        q1, q2 = _load_rotated(queries, second, c, s, T, STRIDE, C, HALF)
        sa = _scores(q1, q2, ka1, ka2)
        sb = _past(_scores(q1, q2, kb1, kb2), BLOCK)
        vb = _load(values, second, T, STRIDE, C)  # loaded here, it can reuse the memory of the queries
        most = (tl.maximum(tl.max(sa, 1), tl.max(sb, 1)) * BASE)[:, None]
        pa, pb = tl.exp2(sa * BASE - most), tl.exp2(sb * BASE - most)
        mixed = _product(pb.to(vb.dtype), vb, _product(pa.to(va.dtype), va))
        _store(out, mixed * (1.0 / (tl.sum(pa, 1) + tl.sum(pb, 1)))[:, None], second, T, H * C, C)


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    dqkv, dout, qkv, cos, sin, T, SCALE: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, C: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """A program computes the gradients of one key head of one row: keys, values, and the queries that use them."""
    STRIDE: tl.constexpr = (H + 2 * KV) * C
    BASE: tl.constexpr = SCALE * LOG2_E
    GROUP: tl.constexpr = H // KV
    row, group = (tl.program_id(0) // KV).to(tl.int64), tl.program_id(0) % KV
    base = row * T * STRIDE
    keys, values = base + (H + group) * C, base + (H + KV + group) * C
    kind = qkv.dtype.element_ty

    first = tl.arange(0, BLOCK)
    low = BLOCK if TWO else T  # the end of the first part
    c, s = _tables(cos, sin, first, low, C, HALF, "evict_last")
    ka1, ka2 = _load_rotated(qkv + keys, first, c, s, low, STRIDE, C, HALF)
    va = _load(qkv + values, first, low, STRIDE, C)
    dka1, dka2 = tl.zeros((BLOCK, HALF), tl.float32), tl.zeros((BLOCK, HALF), tl.float32)
    dva = tl.zeros((BLOCK, C), tl.float32)
    if TWO:
        second = BLOCK + first
        c, s = _tables(cos, sin, second, T, C, HALF, "evict_last")
        kb1, kb2 = _load_rotated(qkv + keys, second, c, s, T, STRIDE, C, HALF)
        vb = _load(qkv + values, second, T, STRIDE, C)
        dkb1, dkb2 = tl.zeros((BLOCK, HALF), tl.float32), tl.zeros((BLOCK, HALF), tl.float32)
        dvb = tl.zeros((BLOCK, C), tl.float32)

    for member in range(GROUP):
        head = group * GROUP + member
        queries = base + head * C
        outs = dout + row * T * (H * C) + head * C

        if TWO:  # queries of the second part
            c, s = _tables(cos, sin, second, T, C, HALF, "evict_last")
            qb1, qb2 = _load_rotated(qkv + queries, second, c, s, T, STRIDE, C, HALF)
            dob = _load(outs, second, T, H * C, C)
            sa = _scores(qb1, qb2, ka1, ka2)
            sb = _past(_scores(qb1, qb2, kb1, kb2), BLOCK)
            most = (tl.maximum(tl.max(sa, 1), tl.max(sb, 1)) * BASE)[:, None]
            pa, pb = tl.exp2(sa * BASE - most), tl.exp2(sb * BASE - most)
            part = (1.0 / (tl.sum(pa, 1) + tl.sum(pb, 1)))[:, None]
            pa, pb = pa * part, pb * part
            pba = tl.trans(pa.to(kind))
            dvb = _product(tl.trans(pb.to(kind)), dob, dvb)
            if member == GROUP - 1:
                _store(dqkv + values, dvb, second, T, STRIDE, C)
            dpa, dpb = _product(dob, tl.trans(va)), _product(dob, tl.trans(vb))
            delta = (tl.sum(pa * dpa, 1) + tl.sum(pb * dpb, 1))[:, None]
            dsa, dsb = (pa * (dpa - delta) * SCALE).to(kind), (pb * (dpb - delta) * SCALE).to(kind)
            dq1, dq2 = _product(dsa, ka1), _product(dsa, ka2)
            dq1, dq2 = _product(dsb, kb1, dq1), _product(dsb, kb2, dq2)
            c, s = _tables(cos, sin, second, T, C, HALF, "")
            _store_rotated_back(dqkv + queries, dq1, dq2, second, c, s, T, STRIDE, C, HALF)
            dkb1, dkb2 = _product(tl.trans(dsb), qb1, dkb1), _product(tl.trans(dsb), qb2, dkb2)
            if member == GROUP - 1:
                c, s = _tables(cos, sin, second, T, C, HALF, "")
                _store_rotated_back(dqkv + keys, dkb1, dkb2, second, c, s, T, STRIDE, C, HALF)
            dsba = tl.trans(dsa)
            dva = _product(pba, dob, dva)

        c, s = _tables(cos, sin, first, low, C, HALF, "evict_last")  # queries of the first part
        q1, q2 = _load_rotated(qkv + queries, first, c, s, low, STRIDE, C, HALF)
        sa = _past(_scores(q1, q2, ka1, ka2), BLOCK)
        do = _load(outs, first, low, H * C, C)
        pa = tl.exp2(sa * BASE - (tl.max(sa, 1) * BASE)[:, None])
        pa *= (1.0 / tl.sum(pa, 1))[:, None]
        dva = _product(tl.trans(pa.to(kind)), do, dva)
        if member == GROUP - 1:
            _store(dqkv + values, dva, first, low, STRIDE, C)
        dpa = _product(do, tl.trans(va))
        dsa = (pa * (dpa - tl.sum(pa * dpa, 1)[:, None]) * SCALE).to(kind)
        dka1, dka2 = _product(tl.trans(dsa), q1, dka1), _product(tl.trans(dsa), q2, dka2)
        if TWO:
            dka1, dka2 = _product(dsba, qb1, dka1), _product(dsba, qb2, dka2)
        if member == GROUP - 1:
            c, s = _tables(cos, sin, first, low, C, HALF, "")
            _store_rotated_back(dqkv + keys, dka1, dka2, first, c, s, low, STRIDE, C, HALF)
        dq1, dq2 = _product(dsa, ka1), _product(dsa, ka2)
        c, s = _tables(cos, sin, first, low, C, HALF, "")
        _store_rotated_back(dqkv + queries, dq1, dq2, first, c, s, low, STRIDE, C, HALF)
