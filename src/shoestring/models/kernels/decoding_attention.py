# mypy: ignore-errors
"""Attention of one further token; shapes and counts are those of `decoding`."""

from __future__ import annotations

import triton
import triton.language as tl

from shoestring.models.kernels.early import fetch_lines, let_begin, wait


@triton.jit
def _head(
    base, gain, cos, sin, g, known, kind: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, EPS: tl.constexpr,
    QK_NORM: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """Heads of queries or keys, normalised and rotated by the angles of their position."""
    c = tl.arange(0, CP)
    some, partner = c < C, (c + C // 2) % C
    inside = known[:, None] & some[None, :]
    x = tl.load(base + g[:, None] * C + c[None, :], mask=inside, other=0.0, cache_modifier=".cg")
    y = x
    if ROTATE:
        y = tl.load(base + g[:, None] * C + partner[None, :], mask=inside, other=0.0, cache_modifier=".cg")
    if QK_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / C + EPS)[:, None]
        x *= scale * tl.load(gain + c, mask=some, other=0.0).to(tl.float32)[None, :]
        y *= scale * tl.load(gain + partner, mask=some, other=0.0).to(tl.float32)[None, :]
    if ROTATE:
        cosine = tl.load(cos + c % (C // 2), mask=some, other=0.0)
        sine = tl.load(sin + c % (C // 2), mask=some, other=0.0)
        x = x * cosine[None, :] + y * tl.where(c < C // 2, -sine, sine)[None, :]
    return x.to(kind)


@triton.jit
def _mix(q, keys, values, inside, most, total, mixed, scale, GP: tl.constexpr):
    """Further keys and values: the highest score so far, the sum of shares and that of values, both relative to it."""
    if GP == 1:
        scores = tl.sum(q.to(tl.float32) * keys.to(tl.float32), 1)[None, :]
    else:
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
    scores = tl.where(inside, scores * scale, float("-inf"))
    higher = tl.maximum(most, tl.max(scores, 1))
    shares, before = tl.exp(scores - higher[:, None]), tl.exp(most - higher)
    if GP == 1:
        change = tl.sum(tl.trans(shares) * values.to(tl.float32), 0)[None, :]
    else:
        change = tl.dot(shares.to(values.dtype), values, input_precision="ieee")
    return higher, total * before + tl.sum(shares, 1), mixed * before[:, None] + change


@triton.jit(do_not_specialize=["width", "length"])
def attention_kernel(
    out, qkv, keys, values, cos, sin, q_gain, k_gain, table, rows, place, partial, sums, arrived, width, length,
    stride, table_stride, KV: tl.constexpr, G: tl.constexpr, C: tl.constexpr, GP: tl.constexpr, CP: tl.constexpr,
    WINDOW: tl.constexpr, EPS: tl.constexpr, QK_NORM: tl.constexpr, ROTATE: tl.constexpr, VALUES: tl.constexpr,
    SPLITS: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Add the newest token's key and value to what is kept, and mix the values that its queries see.

    A program has the G queries of one key head (padded to GP) and one of SPLITS parts of the keys, each at least LEAST;
    the last to arrive joins their sums. With VALUES, the product ends with a gate per key head for `table`. With EARLY,
    each loads its first keys and values before it waits, and fetches the rest.
    """
    let_begin(EARLY)
    group, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, head = group // KV, group % KV
    g, c, one = tl.arange(0, GP), tl.arange(0, CP), tl.arange(0, 1)
    some = c < C
    kind: tl.constexpr = keys.dtype.element_ty
    newest = tl.load(place, cache_modifier=".cg")
    low = tl.maximum(newest - (WINDOW - 1), 0) if WINDOW else 0
    chunk = tl.maximum(tl.cdiv(tl.cdiv(newest - low, SPLITS), BLOCK) * BLOCK, LEAST)
    parts = tl.maximum(tl.cdiv(newest - low, chunk), 1)
    begin = low + split * chunk
    end = tl.minimum(begin + chunk, newest)
    kept = group * length * C
    FIRST: tl.constexpr = CP <= 64  # of more channels, the registers of a program do not hold them
    if FIRST:
        t = begin + tl.arange(0, BLOCK)
        first, seen = kept + t[:, None] * C + c[None, :], (t < end)[:, None] & some[None, :]
        old_keys = tl.load(keys + first, mask=seen, other=0.0, cache_modifier=".cg")
        old_values = tl.load(values + first, mask=seen, other=0.0, cache_modifier=".cg")
    if EARLY:
        count = tl.cdiv(tl.maximum(end - begin, 0) * (C * (kind.primitive_bitwidth // 8)), 128)
        fetch_lines(keys + kept + begin * C, count, 128)
        fetch_lines(values + kept + begin * C, count, 128)
    more = tl.zeros((CP,), tl.float32)
    if VALUES:
        column = tl.load(place + 1, cache_modifier=".cg")
        token = tl.load(rows + row * width + column - 1, cache_modifier=".cg")
        more = tl.load(table + token * table_stride + head * C + c, mask=some, other=0.0).to(tl.float32)
    wait(EARLY)
    if split >= parts:
        return
    base = qkv + row * stride
    cos += newest * (C // 2)
    sin += newest * (C // 2)
    q = _head(base + head * G * C, q_gain, cos, sin, g, g < G, kind, C, CP, EPS, QK_NORM, ROTATE)
    k = _head(base + (KV * G + head) * C, k_gain, cos, sin, one, one < 1, kind, C, CP, EPS, QK_NORM, ROTATE)
    v = tl.load(base + (KV * G + KV + head) * C + c, mask=some, other=0.0, cache_modifier=".cg")
    if VALUES:
        gate = tl.load(base + (KV * G + 2 * KV) * C + head, cache_modifier=".cg")
        v += 2.0 * tl.sigmoid(gate) * more
    v = v.to(kind)[None, :]
    mine = split == 0  # this part has the newest key too, which it need not read back
    at = kept + newest * C + c[None, :]
    tl.store(keys + at, k, mask=some[None, :] & mine)
    tl.store(values + at, v, mask=some[None, :] & mine)

    scale = C**-0.5
    own = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
    most = tl.where(mine, own, float("-inf"))
    total = tl.where(mine, 1.0, 0.0) + tl.zeros((GP,), tl.float32)
    mixed = tl.where(mine, v.to(tl.float32), 0.0) + tl.zeros((GP, CP), tl.float32)
    if FIRST:
        if begin < end:
            most, total, mixed = _mix(q, old_keys, old_values, (t < end)[None, :], most, total, mixed, scale, GP)
        begin += BLOCK
    for start in tl.range(begin, end, BLOCK, num_stages=3):
        then = start + tl.arange(0, BLOCK)
        there = kept + then[:, None] * C + c[None, :]
        inside = (then < end)[:, None] & some[None, :]
        some_keys = tl.load(keys + there, mask=inside, other=0.0)
        some_values = tl.load(values + there, mask=inside, other=0.0)
        most, total, mixed = _mix(q, some_keys, some_values, (then < end)[None, :], most, total, mixed, scale, GP)

    out_at = out + (group * G + g[:, None]) * C + c[None, :]
    known = (g < G)[:, None] & some[None, :]
    if parts == 1:
        tl.store(out_at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=known)
    else:
        of_parts = partial + group * SPLITS * GP * CP + g[:, None] * CP + c[None, :]
        of_sums = sums + group * SPLITS * 2 * GP + g
        tl.store(of_parts + split * GP * CP, mixed)
        tl.store(of_sums + split * 2 * GP, most)
        tl.store(of_sums + split * 2 * GP + GP, total)
        tl.debug_barrier()
        if tl.atomic_add(arrived + group, 1, sem="acq_rel") == parts - 1:
            most = tl.full((GP,), float("-inf"), tl.float32)
            total, mixed = tl.zeros((GP,), tl.float32), tl.zeros((GP, CP), tl.float32)
            for part in range(parts):
                highest = tl.load(of_sums + part * 2 * GP, cache_modifier=".cg")
                higher = tl.maximum(most, highest)
                before, weight = tl.exp(most - higher), tl.exp(highest - higher)
                total = total * before + tl.load(of_sums + part * 2 * GP + GP, cache_modifier=".cg") * weight
                change = tl.load(of_parts + part * GP * CP, cache_modifier=".cg")
                mixed = mixed * before[:, None] + change * weight[:, None]
                most = higher
            tl.store(out_at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=known)
            tl.store(arrived + group, 0)
