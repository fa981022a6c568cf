# mypy: ignore-errors
"""The kernels of `scaled_add_norm` and `normed_heads`: values are read once and written once.

Shapes: N positions of all rows, T of a row, D channels; H query heads, K heads of keys and as many of values,
A = H + 2 K, C channels per head in P = C/2 pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled_add_norm_kernel(
    x, change, first, factors, weight, total, normed, sums, scales, d, eps, BLOCK: tl.constexpr
):  # fmt: skip
    """a (x + change) + b `first`, and its RMSNorm, where `factors` are a and b; a program processes one position."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here, at = c < d, row * d + c
    kind = total.dtype.element_ty
    of_stream, of_first = tl.load(factors).to(tl.float32), tl.load(factors + 1).to(tl.float32)
    one = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    two = tl.load(change + at, mask=here, other=0.0).to(tl.float32)
    added = (one + two).to(kind)
    tl.store(sums + at, added, mask=here)
    begun = tl.load(first + at, mask=here, other=0.0).to(tl.float32)
    scaled = (of_stream * added.to(tl.float32) + of_first * begun).to(kind)
    tl.store(total + at, scaled, mask=here)
    wide = scaled.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / d + eps)
    tl.store(scales + row, scale)
    w = tl.load(weight + c, mask=here, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * scale * w).to(kind), mask=here)


@triton.jit
def scaled_add_norm_backward_kernel(
    to_total, to_normed, sums, first, factors, weight, scales, to_sum, to_first, to_weight, to_factors, n, d,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`to_total` and `to_normed` are the gradients of the two outputs; the total is computed again from `sums`.

    A program processes many positions, and writes its part of the gradients of the weight and of the two factors.
    """
    begin, programs, c = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.arange(0, BLOCK)
    here = c < d
    kind = to_sum.dtype.element_ty
    of_stream, of_first = tl.load(factors).to(tl.float32), tl.load(factors + 1).to(tl.float32)
    w = tl.load(weight + c, mask=here, other=0.0).to(tl.float32)
    for_weight = tl.zeros((BLOCK,), tl.float32)
    for_stream = tl.zeros((BLOCK,), tl.float32)
    for_first = tl.zeros((BLOCK,), tl.float32)
    for row in range(begin, n, programs):
        at = row * d + c
        added = tl.load(sums + at, mask=here, other=0.0).to(tl.float32)
        begun = tl.load(first + at, mask=here, other=0.0).to(tl.float32)
        g = tl.load(to_normed + at, mask=here, other=0.0).to(tl.float32)
        r = tl.load(to_total + at, mask=here, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        x = (of_stream * added + of_first * begun).to(kind).to(tl.float32) * scale
        for_weight += g * x
        g *= w
        mean = tl.sum(g * x, 0) / d
        g = (g - x * mean) * scale + r
        for_stream += g * added
        for_first += g * begun
        tl.store(to_sum + at, (of_stream * g).to(kind), mask=here)
        tl.store(to_first + at, (of_first * g).to(kind), mask=here)
    tl.store(to_weight + begin * d + c, for_weight, mask=here)
    tl.store(to_factors + begin * 2, tl.sum(for_stream, 0))
    tl.store(to_factors + begin * 2 + 1, tl.sum(for_first, 0))


@triton.jit
def normed_heads_kernel(
    joint, cos, sin, q_gain, k_gain, values, gates, q, k, v, scales, length, heads, shared, apart, eps,
    VALUED: tl.constexpr, P: tl.constexpr, PAIRS: tl.constexpr, Q: tl.constexpr, KV: tl.constexpr,
):  # fmt: skip
    """Split `joint`, (N, A, C), into normalised and rotated q and k, and v; a program processes one position.

    With VALUED, v has 2 σ(gate) times the head's part of `values`, whose positions are `apart` numbers from each other.
    `scales`, (N, H + K), are the factors of the norms. Q, KV and PAIRS are powers of two of at least H, K and P.
    """
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, PAIRS)
    angle = row % length * P + pair
    cosine = tl.load(cos + angle, mask=pair < P, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(sin + angle, mask=pair < P, other=0.0).to(tl.float32)[None, :]
    together = heads + 2 * shared
    source, factors = joint + row * together * 2 * P, scales + row * (heads + shared)
    normed_part(source, q + row * heads * 2 * P, factors, q_gain, cosine, sine, heads, eps, P, PAIRS, Q)
    source += heads * 2 * P
    normed_part(source, k + row * shared * 2 * P, factors + heads, k_gain, cosine, sine, shared, eps, P, PAIRS, KV)
    head = tl.arange(0, KV)
    at, inside = head[:, None] * 2 * P + pair[None, :], (head < shared)[:, None] & (pair < P)[None, :]
    source += shared * 2 * P
    a, b = tl.load(source + at, mask=inside, other=0.0), tl.load(source + at + P, mask=inside, other=0.0)
    if VALUED:
        kind = a.dtype
        gate = 2 * tl.sigmoid(tl.load(gates + row * shared + head, mask=head < shared, other=0.0).to(tl.float32))
        extra = values + row * apart + at
        a = (a.to(tl.float32) + gate[:, None] * tl.load(extra, mask=inside, other=0.0).to(tl.float32)).to(kind)
        b = (b.to(tl.float32) + gate[:, None] * tl.load(extra + P, mask=inside, other=0.0).to(tl.float32)).to(kind)
    target = v + row * shared * 2 * P + at
    tl.store(target, a, mask=inside)
    tl.store(target + P, b, mask=inside)


@triton.jit
def normed_part(
    source, target, factors, gain, cosine, sine, heads, eps, P: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """Normalise and rotate some heads of one position."""
    head, pair = tl.arange(0, HEADS), tl.arange(0, PAIRS)
    at, inside = head[:, None] * 2 * P + pair[None, :], (head < heads)[:, None] & (pair < P)[None, :]
    kind = target.dtype.element_ty
    a = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + at + P, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * P) + eps)
    tl.store(factors + head, scale, mask=head < heads)
    a *= scale[:, None] * tl.load(gain + pair, mask=pair < P, other=0.0).to(tl.float32)[None, :]
    b *= scale[:, None] * tl.load(gain + P + pair, mask=pair < P, other=0.0).to(tl.float32)[None, :]
    tl.store(target + at, (a * cosine - b * sine).to(kind), mask=inside)
    tl.store(target + at + P, (b * cosine + a * sine).to(kind), mask=inside)


@triton.jit
def normed_heads_backward_kernel(
    to_q, to_k, to_v, joint, cos, sin, q_gain, k_gain, values, gates, scales, to_joint, to_values, to_gates, to_gains,
    n, length, heads, shared, apart,
    VALUED: tl.constexpr, P: tl.constexpr, PAIRS: tl.constexpr, Q: tl.constexpr, KV: tl.constexpr,
):  # fmt: skip
    """The gradients of `joint`, `values` and `gates` from those of q, k and v.

    A program processes many positions, and writes its part of the gains' gradients to its row of `to_gains`, (…, 2, C).
    """
    begin, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    pair, head = tl.arange(0, PAIRS), tl.arange(0, KV)
    there = pair < P
    at, inside = head[:, None] * 2 * P + pair[None, :], (head < shared)[:, None] & there[None, :]
    together = heads + 2 * shared
    for_qa = tl.zeros((PAIRS,), tl.float32)
    for_qb = tl.zeros((PAIRS,), tl.float32)
    for_ka = tl.zeros((PAIRS,), tl.float32)
    for_kb = tl.zeros((PAIRS,), tl.float32)
    for row in range(begin, n, programs):
        angle = row % length * P + pair
        cosine = tl.load(cos + angle, mask=there, other=0.0).to(tl.float32)[None, :]
        sine = tl.load(sin + angle, mask=there, other=0.0).to(tl.float32)[None, :]
        first = row * together * 2 * P
        source, target, factors = joint + first, to_joint + first, scales + row * (heads + shared)
        a, b = normed_part_backward(
            to_q + row * heads * 2 * P, source, target, factors, q_gain, cosine, sine, heads, P, PAIRS, Q
        )
        for_qa += a
        for_qb += b
        source, target = source + heads * 2 * P, target + heads * 2 * P
        a, b = normed_part_backward(
            to_k + row * shared * 2 * P, source, target, factors + heads, k_gain, cosine, sine, shared, P, PAIRS, KV
        )
        for_ka += a
        for_kb += b
        outer = to_v + row * shared * 2 * P + at
        da, db = tl.load(outer, mask=inside, other=0.0), tl.load(outer + P, mask=inside, other=0.0)
        target += shared * 2 * P
        tl.store(target + at, da, mask=inside)
        tl.store(target + at + P, db, mask=inside)
        if VALUED:
            kind = to_values.dtype.element_ty
            da, db = da.to(tl.float32), db.to(tl.float32)
            extra = values + row * apart + at
            va = tl.load(extra, mask=inside, other=0.0).to(tl.float32)
            vb = tl.load(extra + P, mask=inside, other=0.0).to(tl.float32)
            share = tl.sigmoid(tl.load(gates + row * shared + head, mask=head < shared, other=0.0).to(tl.float32))
            dots = tl.sum(da * va, 1) + tl.sum(db * vb, 1)
            for_gate = 2 * share * (1 - share) * dots
            tl.store(to_gates + row * shared + head, for_gate.to(to_gates.dtype.element_ty), mask=head < shared)
            into = to_values + row * shared * 2 * P + at
            tl.store(into, (2 * share[:, None] * da).to(kind), mask=inside)
            tl.store(into + P, (2 * share[:, None] * db).to(kind), mask=inside)
    part = to_gains + begin * 4 * P + pair
    tl.store(part, for_qa, mask=there)
    tl.store(part + P, for_qb, mask=there)
    tl.store(part + 2 * P, for_ka, mask=there)
    tl.store(part + 3 * P, for_kb, mask=there)


@triton.jit
def normed_part_backward(
    outer, source, target, factors, gain, cosine, sine, heads, P: tl.constexpr, PAIRS: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of some heads of one position; returns its parts of the gain's gradient."""
    head, pair = tl.arange(0, HEADS), tl.arange(0, PAIRS)
    at, inside = head[:, None] * 2 * P + pair[None, :], (head < heads)[:, None] & (pair < P)[None, :]
    kind = target.dtype.element_ty
    x = tl.load(outer + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(outer + at + P, mask=inside, other=0.0).to(tl.float32)
    da, db = x * cosine + y * sine, y * cosine - x * sine
    scale = tl.load(factors + head, mask=head < heads, other=0.0)[:, None]
    a = tl.load(source + at, mask=inside, other=0.0).to(tl.float32) * scale
    b = tl.load(source + at + P, mask=inside, other=0.0).to(tl.float32) * scale
    for_a, for_b = tl.sum(da * a, 0), tl.sum(db * b, 0)
    da *= tl.load(gain + pair, mask=pair < P, other=0.0).to(tl.float32)[None, :]
    db *= tl.load(gain + P + pair, mask=pair < P, other=0.0).to(tl.float32)[None, :]
    mean = ((tl.sum(da * a, 1) + tl.sum(db * b, 1)) / (2 * P))[:, None]
    tl.store(target + at, ((da - a * mean) * scale).to(kind), mask=inside)
    tl.store(target + at + P, ((db - b * mean) * scale).to(kind), mask=inside)
    return for_a, for_b
