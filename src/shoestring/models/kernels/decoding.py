# mypy: ignore-errors
"""The kernels of one further token: few launches, and every weight is read once.

Shapes: M rows of tokens, K channels in, N channels out, H query heads, KV heads of keys and values, G = H / KV, C
channels per head, V ids. Sums are float32.

`place` holds two counts on the device: the position of the newest token in what is kept, and the column of `rows` that
gets the next one. The output product adds 1 to both.

With EARLY a kernel is launched while the one before still runs, and loads weights, which nobody changes, before it
waits. It lets the next one begin after that wait, so at most two run at a time, and all that ran before is complete.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _take_turn(EARLY: tl.constexpr):
    """Wait for the kernel before this one, then let the next begin."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _fetch(address, inside):
    """Bring what lies at these addresses into the cache of the device."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
            "=r,l,r",
            [address.to(tl.int64), inside.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


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
    out, first, rows, place, table, positions, gain, shift, scales, width, v, K: tl.constexpr, EPS: tl.constexpr,
    NORM: tl.constexpr, POSITIONS: tl.constexpr, SCALED: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first stream of the newest tokens; a program makes that of one row."""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here = k < K
    _take_turn(EARLY)
    token = tl.load(rows + row * width + tl.load(place + 1) - 1)
    known = (token >= 0) & (token < v)
    x = tl.load(table + token * K + k, mask=here & known, other=0.0).to(tl.float32)
    if POSITIONS:
        x += tl.load(positions + tl.load(place) * K + k, mask=here, other=0.0).to(tl.float32)
    if NORM:
        x = _normed(x, gain, shift, k, here, K, EPS, NORM)
    if SCALED:
        tl.store(first + row * K + k, x, mask=here)
        x *= tl.load(scales).to(tl.float32) + tl.load(scales + 1).to(tl.float32)
    tl.store(out + row * K + k, x, mask=here)


@triton.jit
def _finish(
    y, z, out, bias, first, scales, at, n, inside, N, ACT: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    SCALED: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Store a product, or add it to the stream; ACT is one of `ACTIVATIONS`, and z the product beside a gate y."""
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
        if ACT == 1:
            z += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)
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
        y += tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        y *= tl.load(scales).to(tl.float32)
        y += tl.load(scales + 1).to(tl.float32) * tl.load(first + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _advance(place, ADVANCE: tl.constexpr):
    if ADVANCE:
        first = (tl.program_id(0) == 0) & (tl.program_id(1) == 0)
        tl.store(place, tl.load(place) + 1, mask=first)
        tl.store(place + 1, tl.load(place + 1) + 1, mask=first)


@triton.jit
def vector_kernel(
    out, x, weight, gain, shift, bias, first, scales, place, M, N, K: tl.constexpr, EPS: tl.constexpr,
    NORM: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr,
    CAP: tl.constexpr, ADVANCE: tl.constexpr, EARLY: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The norm of x times a matrix, for one or two rows: a program has BN channels out, whose weights it holds."""
    n, k = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN), tl.arange(0, BK)
    here, known = k < K, n < N
    inside = known[:, None] & here[None, :]
    tile = tl.load(weight + n[:, None] * K + k[None, :], mask=inside, other=0.0)
    if ACT == 1:
        other = tl.load(weight + (N + n)[:, None] * K + k[None, :], mask=inside, other=0.0)
    _take_turn(EARLY)
    for m in range(M):
        v = tl.load(x + m * K + k, mask=here, other=0.0).to(tl.float32)
        if NORM:
            v = _normed(v, gain, shift, k, here, K, EPS, NORM)
        v = v.to(tile.dtype).to(tl.float32)[None, :]
        y = tl.sum(tile.to(tl.float32) * v, 1)
        z = y
        if ACT == 1:
            z = tl.sum(other.to(tl.float32) * v, 1)
        _finish(y, z, out, bias, first, scales, m * N + n, n, known, N, ACT, BIAS, ADD, SCALED, CAP)
    _advance(place, ADVANCE)


@triton.jit(do_not_specialize=["M"])
def matrix_kernel(
    out, x, weight, gain, shift, bias, first, scales, place, M, N, K: tl.constexpr, EPS: tl.constexpr,
    NORM: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr,
    CAP: tl.constexpr, ADVANCE: tl.constexpr, EARLY: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """As `vector_kernel`, for more rows: a program has BM of them, and multiplies on the matrix units."""
    m, n = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    steps, known = tl.arange(0, BK), (n < N)[:, None]
    of_rows, some = x + m[:, None] * K, (m < M)[:, None]
    kind = weight.dtype.element_ty
    lines = weight + n[:, None] * K  # N 1
    if EARLY:
        line: tl.constexpr = 128 // (kind.primitive_bitwidth // 8)
        for k0 in range(0, K, BK):
            k = k0 + tl.arange(0, BK // line)[None, :] * line
            _fetch(lines + k, known & (k < K))
            if ACT == 1:
                _fetch(lines + N.to(tl.int64) * K + k, known & (k < K))
    _take_turn(EARLY)
    # The factor of an RMSNorm comes after the product, so that x is read once; in fp16 it could overflow before.
    TWICE: tl.constexpr = NORM == 2 or (NORM == 1 and kind == tl.float16)
    mean, scale = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    if NORM == 2:
        total = tl.zeros((BM, BK), tl.float32)
        for k0 in range(0, K, BK):
            k = (k0 + steps)[None, :]
            total += tl.load(of_rows + k, mask=some & (k < K), other=0.0).to(tl.float32)
        mean = tl.sum(total, 1) / K
    if TWICE:
        total = tl.zeros((BM, BK), tl.float32)
        for k0 in range(0, K, BK):
            k = (k0 + steps)[None, :]
            v = tl.load(of_rows + k, mask=some & (k < K), other=0.0).to(tl.float32)
            v = tl.where(k < K, v - mean[:, None], 0.0)
            total += v * v
        scale = tl.rsqrt(tl.sum(total, 1) / K + EPS)
    y, z = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM, BK), tl.float32)
    for k0 in range(0, K, BK):
        k = (k0 + steps)[None, :]
        v = tl.load(of_rows + k, mask=some & (k < K), other=0.0)
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
        tile = tl.load(lines + k, mask=known & (k < K), other=0.0)
        y = tl.dot(v, tl.trans(tile), y, input_precision="ieee")
        if ACT == 1:
            other = tl.load(lines + N.to(tl.int64) * K + k, mask=known & (k < K), other=0.0)
            z = tl.dot(v, tl.trans(other), z, input_precision="ieee")
    if NORM == 1 and not TWICE:
        scale = tl.rsqrt(tl.sum(squares, 1) / K + EPS)
        y, z = y * scale[:, None], z * scale[:, None]
    at, inside = m[:, None] * N + n[None, :], some & (n < N)[None, :]
    _finish(y, z, out, bias, first, scales, at, n[None, :], inside, N, ACT, BIAS, ADD, SCALED, CAP)
    _advance(place, ADVANCE)


@triton.jit
def _head(
    base, gain, cos, sin, g, known, kind: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, EPS: tl.constexpr,
    QK_NORM: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """Heads of queries or keys, normalised and rotated by the angles of their position."""
    c = tl.arange(0, CP)
    some, partner = c < C, (c + C // 2) % C
    inside = known[:, None] & some[None, :]
    x = tl.load(base + g[:, None] * C + c[None, :], mask=inside, other=0.0)
    y = x
    if ROTATE:
        y = tl.load(base + g[:, None] * C + partner[None, :], mask=inside, other=0.0)
    if QK_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / C + EPS)[:, None]
        x *= scale * tl.load(gain + c, mask=some, other=0.0).to(tl.float32)[None, :]
        y *= scale * tl.load(gain + partner, mask=some, other=0.0).to(tl.float32)[None, :]
    if ROTATE:
        cosine = tl.load(cos + c % (C // 2), mask=some, other=0.0)
        sine = tl.load(sin + c % (C // 2), mask=some, other=0.0)
        x = x * cosine[None, :] + y * tl.where(c < C // 2, -sine, sine)[None, :]
    return x.to(kind)


@triton.jit(do_not_specialize=["width", "length", "lines"])
def attention_kernel(
    out, qkv, keys, values, cos, sin, q_gain, k_gain, table, rows, place, partial, sums, arrived, later, width, length,
    stride, table_stride, lines, KV: tl.constexpr, G: tl.constexpr, C: tl.constexpr, GP: tl.constexpr, CP: tl.constexpr,
    WINDOW: tl.constexpr, EPS: tl.constexpr, QK_NORM: tl.constexpr, ROTATE: tl.constexpr, VALUES: tl.constexpr,
    SPLITS: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Add the newest token's key and value to what is kept, and mix the values that its queries see.

    A program has the G queries of one key head (padded to GP) and one of SPLITS parts of the keys, each at least LEAST;
    the last to arrive joins their sums. With VALUES, the product ends with a gate per key head for `table`. With EARLY,
    all of them fetch the first lines of `later`, weights that are needed soon: attention leaves the memory idle.
    """
    group, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, head = group // KV, group % KV
    g, c, one = tl.arange(0, GP), tl.arange(0, CP), tl.arange(0, 1)
    some = c < C
    kind: tl.constexpr = keys.dtype.element_ty
    if EARLY:
        line: tl.constexpr = 128 // (later.dtype.element_ty.primitive_bitwidth // 8)
        program, programs = tl.program_id(0) * SPLITS + tl.program_id(1), tl.num_programs(0) * SPLITS
        for begin in range(program * 512, lines, programs * 512):
            i = begin + tl.arange(0, 512)
            _fetch(later + i.to(tl.int64) * line, i < lines)
    _take_turn(EARLY)
    newest = tl.load(place)
    low = tl.maximum(newest - (WINDOW - 1), 0) if WINDOW else 0
    chunk = tl.maximum(tl.cdiv(tl.cdiv(newest - low, SPLITS), BLOCK) * BLOCK, LEAST)
    parts = tl.maximum(tl.cdiv(newest - low, chunk), 1)
    if split >= parts:
        return
    base = qkv + row * stride
    cos += newest * (C // 2)
    sin += newest * (C // 2)
    q = _head(base + head * G * C, q_gain, cos, sin, g, g < G, kind, C, CP, EPS, QK_NORM, ROTATE)
    k = _head(base + (KV * G + head) * C, k_gain, cos, sin, one, one < 1, kind, C, CP, EPS, QK_NORM, ROTATE)
    v = tl.load(base + (KV * G + KV + head) * C + c, mask=some, other=0.0)
    if VALUES:
        token = tl.load(rows + row * width + tl.load(place + 1) - 1)
        gate = tl.load(base + (KV * G + 2 * KV) * C + head)
        more = tl.load(table + token * table_stride + head * C + c, mask=some, other=0.0).to(tl.float32)
        v += 2.0 * tl.sigmoid(gate) * more
    v = v.to(kind)[None, :]
    kept = group * length * C
    mine = split == 0  # this part has the newest key too, which it need not read back
    at = kept + newest * C + c[None, :]
    tl.store(keys + at, k, mask=some[None, :] & mine)
    tl.store(values + at, v, mask=some[None, :] & mine)

    scale = C**-0.5
    own = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
    most = tl.where(mine, own, float("-inf"))
    total = tl.where(mine, 1.0, 0.0) + tl.zeros((GP,), tl.float32)
    mixed = tl.where(mine, v.to(tl.float32), 0.0) + tl.zeros((GP, CP), tl.float32)
    begin = low + split * chunk
    end = tl.minimum(begin + chunk, newest)
    for start in tl.range(begin, end, BLOCK, num_stages=3):
        t = start + tl.arange(0, BLOCK)
        there = kept + t[:, None] * C + c[None, :]
        inside = (t < end)[:, None] & some[None, :]
        old = tl.load(keys + there, mask=inside, other=0.0)
        if GP == 1:
            scores = tl.sum(q.to(tl.float32) * old.to(tl.float32), 1)[None, :]
        else:
            scores = tl.dot(q, tl.trans(old), input_precision="ieee")
        scores = tl.where((t < end)[None, :], scores * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        shares, before = tl.exp(scores - higher[:, None]), tl.exp(most - higher)
        old = tl.load(values + there, mask=inside, other=0.0)
        if GP == 1:
            change = tl.sum(tl.trans(shares) * old.to(tl.float32), 0)[None, :]
        else:
            change = tl.dot(shares.to(kind), old, input_precision="ieee")
        mixed = mixed * before[:, None] + change
        total = total * before + tl.sum(shares, 1)
        most = higher

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


@triton.jit(do_not_specialize=["width", "V"])
def choose_kernel(
    rows, logits, noise, place, width, V, temperature, DRAWN: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the next token of a row: the likeliest or, with DRAWN, one drawn by `noise`, which is exponential.

    The largest share / noise is drawn, as by `torch.multinomial`; here its logarithm is compared.
    """
    row = tl.program_id(0).to(tl.int64)
    _take_turn(EARLY)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    best, index = top, tl.zeros((BLOCK,), tl.int32)
    highest = 0.0
    if DRAWN:
        for start in tl.range(0, V, BLOCK, num_stages=4):
            i = start + tl.arange(0, BLOCK)
            top = tl.maximum(top, tl.load(logits + row * V + i, mask=i < V, other=float("-inf")))
        highest = tl.max(top, 0)
    for start in tl.range(0, V, BLOCK, num_stages=4):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * V + i, mask=i < V, other=float("-inf"))
        if DRAWN:
            x = (x - highest) / temperature - tl.log(tl.load(noise + row * V + i, mask=i < V, other=1.0))
        index = tl.where(x > best, i, index)
        best = tl.maximum(x, best)
    found = tl.min(tl.where(best == tl.max(best, 0), index, V), 0)
    tl.store(rows + row * width + tl.load(place + 1) - 1, found.to(tl.int64))  # the output product has advanced it
