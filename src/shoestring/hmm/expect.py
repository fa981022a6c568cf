"""The expectation step: expected counts of all tables over a set of sequences.

Shapes: N sequences, n of them in a chunk, L positions, H states, E symbols, K positions in a block.

    forward   alpha_t = (alpha_{t-1} M) ∘ B[:, x_t] / c_t        M: moves, B: emission, c_t: the sum of what it divides
    backward  v_t     = B[:, x_t] ∘ beta_t / c_t
              beta_{t-1} = v_t Mᵀ
    counts    transition = M ∘ Σ_t alpha_{t-1}ᵀ v_t,  emission[:, x_t] += alpha_t ∘ beta_t

This takes three products of 2 H² operations per token; the sum over t is one product for a block of positions. Three
facts keep the loops free of masks. The counts are linear in beta, so a row's weight is put only into its last beta. The
rows of a chunk are sorted by length, so those that reach position t are the first `active[t]`. And 1/c is taken as 0
where c is 0, so alpha is zero after an impossible token, beta is zero before it, and the row adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from shoestring.core.host import free_host_bytes
from shoestring.hmm.inference import Lengths, Tokens, check_tokens
from shoestring.hmm.parameters import HmmError, HmmMemoryError, Parameters

CPU_ROWS_BYTES = 2**21
"""Limit on the memory of one position of a chunk on a CPU: larger chunks are no faster."""
FEW_ROWS = {"cpu": 64, "cuda": 2048}
"""Products of fewer rows waste the device. To keep this many, only some alphas are stored and the others recomputed."""
_UNKNOWN = 2**31
"""Bytes that are taken for free where the system does not tell."""


class Counts(NamedTuple):
    """Expected counts, in float64. A sequence of weight w counts as w sequences."""

    start: Float[Tensor, " H"]
    transition: Float[Tensor, "H H"]
    emission: Float[Tensor, "H E"]
    end: Float[Tensor, " H"] | None
    """How often the chain stopped after each state; None for a model without end probabilities."""
    log_likelihood: Float[Tensor, ""]
    sequences: Float[Tensor, ""]
    tokens: Float[Tensor, ""]
    impossible: Float[Tensor, ""]
    """Sequences of probability zero, which all other counts leave out."""

    def merge(self, other: Counts) -> Counts:
        """The counts of both sets of sequences together."""
        end = self.end is not None and other.end is not None
        return _counts(torch._foreach_add(self._known(end), other._known(end)), end)

    def scaled(self, factor: float) -> Counts:
        """All counts times a factor."""
        return _counts(torch._foreach_mul(self._known(), factor), self.end is not None)

    def _known(self, end: bool = True) -> list[Tensor]:
        """All tables that are not None; those of the end only if `end`."""
        return [table for table in (*self[:3], self.end if end else None, *self[4:]) if table is not None]


def _counts(known: Sequence[Tensor], end: bool) -> Counts:
    """Counts from a list of tables: for a list, a GPU launches one kernel instead of eight."""
    start, transition, emission, *others = known
    stopped = others.pop(0) if end else None
    log_likelihood, sequences, tokens, impossible = others
    return Counts(start, transition, emission, stopped, log_likelihood, sequences, tokens, impossible)


class Layout(NamedTuple):
    """How the sequences are split to fit the memory."""

    chunk: int
    """Sequences in a chunk."""
    block: int
    """K: positions whose transitions are counted by one product."""
    recompute: bool
    """Store only every K-th alpha and recompute the others, for a third more work."""


def expect(
    parameters: Parameters,
    tokens: Tokens,
    lengths: Lengths = None,
    weights: Shaped[Tensor, " N"] | None = None,
    chunk: int | None = None,
    limit_bytes: int | None = None,
) -> Counts:
    """Expected counts under `parameters`, computed in their type and on their device, and summed in float64.

    Tokens may lie on another device: they are moved chunk by chunk. Working memory stays below `limit_bytes` (default:
    half of the free memory); `chunk` sets the sequences per chunk. In float32, rows that underflow and chunks in which
    a beta overflows are computed again in float64, so neither `impossible` nor the counts depend on the type's range.
    """
    check_tokens(tokens, parameters.symbols, lengths)
    rows, positions = tokens.shape
    weights = check_weights(weights, rows)
    total = zeros(parameters)
    if not rows:
        return total
    sizes = None if lengths is None else lengths.cpu().long()
    longest = positions if sizes is None else int(sizes.max())
    cut = layout(parameters, longest, rows, chunk, limit_bytes)
    if sizes is None:
        chunks = torch.arange(rows).split(cut.chunk)
        sizes = torch.full((rows,), positions)
    else:
        chunks = sizes.argsort(descending=True, stable=True).split(cut.chunk)
    tables = _tables(parameters)
    for picked in chunks:
        found, doubtful = _count_rows(tables, tokens, sizes, weights, picked, cut)
        total = total.merge(found)
        if len(doubtful):
            exact = _tables(parameters.to(dtype=torch.float64))
            # half as many rows, because a float64 takes twice the bytes
            for some in doubtful.split(max(1, cut.chunk // 2)):
                total = total.merge(_count_rows(exact, tokens, sizes, weights, some, cut, careful=True)[0])
    return total


def zeros(parameters: Parameters) -> Counts:
    """The counts of no sequences."""
    tables = [None if table is None else torch.zeros_like(table, dtype=torch.float64) for table in parameters]
    numbers = parameters.start.new_zeros(4, dtype=torch.float64).unbind()
    return Counts(*tables, *numbers)  # type: ignore[arg-type]


def layout(
    parameters: Parameters, length: int, sequences: int, chunk: int | None = None, limit_bytes: int | None = None
) -> Layout:
    """The largest useful chunk within `limit_bytes` (default: half of the free memory), with all alphas if they fit."""
    if chunk is not None and chunk < 1:
        raise HmmError(f"chunk = {chunk}: must be at least 1")
    device = parameters.device.type
    limit = limit_bytes if limit_bytes is not None else free_bytes(parameters.device) // 2
    left = limit - fixed_bytes(parameters)
    keep_all, keep_some = (sequence_bytes(parameters, length, recompute) for recompute in (False, True))
    target = chunk or sequences
    if chunk is None and device == "cpu":
        target = max(FEW_ROWS["cpu"], CPU_ROWS_BYTES // (parameters.states * parameters.emission.element_size()))
    target = min(target, sequences)
    enough = target if chunk else min(target, FEW_ROWS.get(device, 1))
    recompute = left < enough * keep_all and keep_some < keep_all
    fitting = left // (keep_some if recompute else keep_all)
    if fitting < (chunk or 1):
        needed = fixed_bytes(parameters) + (chunk or 1) * keep_some
        raise HmmMemoryError(
            f"{chunk or 1} sequences of {length} tokens at a time with {parameters.states} states need {needed:,} "
            f"bytes, the limit is {limit:,}"
        )
    chunks = -(-sequences // min(target, fitting))
    return Layout(chunk or -(-sequences // chunks), _block(length), recompute)  # all chunks about as large


def sequence_bytes(parameters: Parameters, length: int, recompute: bool) -> int:
    """Working memory of one sequence."""
    block = _block(length)
    tables = block + 4 + (-(-length // block) + block if recompute else length)  # v; four of one position; alphas
    return (tables * parameters.states + 2 * length) * parameters.emission.element_size() + 3 * 8 * length


def fixed_bytes(parameters: Parameters) -> int:
    """Working memory for any sequences: tables, sums in their type, and two sets of sums in float64."""
    cells = parameters.states * (parameters.states + parameters.symbols)
    return cells * (3 * parameters.emission.element_size() + 2 * 8)


def _block(length: int) -> int:
    return max(1, math.isqrt(length))


class _Tables(NamedTuple):
    """The parameters as the loops read them, each table contiguous in the order of reading."""

    parameters: Parameters
    moves: Float[Tensor, "H H"]
    back: Float[Tensor, "H H"]
    emit: Float[Tensor, "E H"]


def _tables(parameters: Parameters) -> _Tables:
    moves = parameters.moves().contiguous()
    return _Tables(parameters, moves, moves.t().contiguous(), parameters.emission.t().contiguous())


def _count_rows(
    tables: _Tables,
    tokens: Tensor,
    sizes: Tensor,
    weights: Tensor | None,
    picked: Tensor,
    cut: Layout,
    careful: bool = False,
) -> tuple[Counts, Tensor]:
    """Counts of the picked rows, longest first, and the rows that must be counted again with `careful`."""
    parameters = tables.parameters
    lengths = sizes[picked]
    longest = int(lengths[0])
    inside = torch.arange(longest)[:, None] < lengths  # L n
    x = tokens[picked.to(tokens.device), :longest].to(parameters.device).long().t().contiguous()  # L n
    on_device = inside.to(parameters.device)
    x.masked_fill_(~on_device, 0)
    weight = torch.ones(len(picked), dtype=torch.float64) if weights is None else weights[picked]
    weight = weight.to(parameters.device)
    active = [*inside.sum(1).tolist(), 0]
    filtered = _forward(tables, x, active, cut)
    impossible = (filtered.inverse.eq(0) & on_device).any(0)
    if filtered.ending is not None:
        impossible |= filtered.ending == 0
    sums = _backward(tables, x, active, weight.to(parameters.dtype), filtered, cut, careful)
    counted = torch.where(impossible, 0, weight)
    # scale is 1 beyond a row, where its logarithm adds nothing
    logs = torch.where(filtered.scale > 0, filtered.scale, 1).double().log().sum(0)
    if filtered.ending is not None:
        logs -= torch.where(impossible, 1, filtered.ending).double().log()
    found = Counts(
        start=sums.start,
        transition=sums.transition * tables.moves,
        emission=sums.emission.t(),
        end=sums.end if parameters.end is not None else None,
        log_likelihood=counted @ logs,
        sequences=counted.sum(),
        tokens=counted @ lengths.to(counted),
        impossible=torch.where(impossible, weight, 0).sum(),
    )
    if careful:
        return found, picked[:0]
    if not bool(torch.isfinite(found.emission.sum() + found.transition.sum())):
        return zeros(parameters), picked
    if parameters.dtype == torch.float64 or not bool(impossible.any()):
        return found, picked[:0]
    return found._replace(impossible=torch.zeros_like(found.impossible)), picked[impossible.cpu()]


class _Filtered(NamedTuple):
    alpha: Float[Tensor, "kept n H"]
    """Of every position, or of the first of each block."""
    scale: Float[Tensor, "L n"]
    inverse: Float[Tensor, "L n"]
    """1 / scale, and 0 where that would be infinite."""
    ending: Float[Tensor, " n"] | None
    """1 / p(stop after the last token), and 0 where that would be infinite."""


def _forward(tables: _Tables, x: Tensor, active: list[int], cut: Layout) -> _Filtered:
    positions, rows = x.shape
    end = tables.parameters.end
    floor = torch.finfo(tables.emit.dtype).tiny
    kept = -(-positions // cut.block) if cut.recompute else positions
    alpha = tables.emit.new_empty(kept, rows, tables.emit.shape[1])
    spare = tables.emit.new_empty(2 if cut.recompute else 0, rows, tables.emit.shape[1])  # for alphas not stored
    gathered = torch.empty_like(alpha[0])
    scale = tables.emit.new_ones(positions, rows)
    inverse = torch.ones_like(scale)
    ending = None if end is None else torch.zeros_like(scale[0])
    before = alpha[0]
    for t in range(positions):
        m = active[t]
        if cut.recompute and t % cut.block == 0:
            now = alpha[t // cut.block]
        else:
            now = spare[t % 2] if cut.recompute else alpha[t]
        running, seen, tokens = _top(now, m), _top(gathered, m), _top(x[t], m)
        c, inverted = _top(scale[t], m), _top(inverse[t], m)
        torch.index_select(tables.emit, 0, tokens, out=seen)
        if t:
            torch.mm(_top(before, m), tables.moves, out=running).mul_(seen)
        else:
            torch.mul(seen, tables.parameters.start, out=running)
        torch.sum(running, 1, out=c)
        torch.reciprocal(c, out=inverted).masked_fill_(c < floor, 0)
        running.mul_(inverted[:, None])
        if m < rows:
            now[m:].zero_()  # read by the product over a block, times zero: it must be finite
        if end is not None and ending is not None and active[t + 1] < m:
            stop = now[active[t + 1] : m] @ end
            ending[active[t + 1] : m] = torch.where(stop < floor, 0, stop.reciprocal())
        before = now
    return _Filtered(alpha, scale, inverse, ending)


class _Sums(NamedTuple):
    start: Float[Tensor, " H"]
    transition: Float[Tensor, "H H"]
    """Still to be multiplied by the moves."""
    emission: Float[Tensor, "E H"]
    end: Float[Tensor, " H"]


def _backward(
    tables: _Tables, x: Tensor, active: list[int], weight: Tensor, filtered: _Filtered, cut: Layout, careful: bool
) -> _Sums:
    positions, rows = x.shape
    states = tables.emit.shape[1]
    total = _Sums(*(torch.zeros_like(table, dtype=torch.float64) for table in
                    (tables.parameters.start, tables.moves, tables.emit, tables.parameters.start)))  # fmt: skip
    last = weight[:, None].expand(rows, states)  # the beta of a row's last token
    if tables.parameters.end is not None and filtered.ending is not None:
        last = tables.parameters.end * (weight * filtered.ending)[:, None]
    # A state that the past rules out may explain the future so much better than the others that its beta overflows. Its
    # posterior is zero anyway, so beta may be clamped: far above that of any state with weight, far below an overflow.
    ceiling = float(torch.finfo(last.dtype).max ** 0.75)
    beta, posterior = tables.emit.new_empty(2, rows, states).unbind()
    # at j: v of the position after the block's j-th; zero for rows that have ended, which are fewer at every step back
    v = tables.emit.new_zeros(cut.block, rows, states)
    for first in reversed(range(0, positions, cut.block)):
        past = min(first + cut.block, positions)
        alpha = _block_alphas(tables, x, active, filtered, first, past, cut)
        emission = torch.zeros_like(tables.emit)
        for t in reversed(range(first, past)):
            m, later = active[t], active[t + 1]
            if later:
                weighted = _top(v[t - first], later)
                torch.index_select(tables.emit, 0, _top(x[t + 1], later), out=weighted)
                weighted.mul_(_top(beta, later)).mul_(_top(filtered.inverse[t + 1], later)[:, None])
                if careful:
                    weighted.clamp_(max=ceiling)
                torch.mm(weighted, tables.back, out=_top(beta, later))
            if later < m:
                beta[later:m] = last[later:m]
            shares = torch.mul(_top(alpha[t - first], m), _top(beta, m), out=_top(posterior, m))
            emission.index_add_(0, _top(x[t], m), shares)
            if later < m:
                total.end.add_(posterior[later:m].sum(0))
        k = past - first
        total.transition.add_(torch.mm(alpha[:k].reshape(-1, states).t(), v[:k].reshape(-1, states)))
        total.emission.add_(emission)
    total.start.add_(posterior.sum(0))
    return total


def _block_alphas(
    tables: _Tables, x: Tensor, active: list[int], filtered: _Filtered, first: int, past: int, cut: Layout
) -> Float[Tensor, "K n H"]:
    """The alphas of positions first … past - 1, as stored or recomputed from the first of them."""
    if not cut.recompute:
        return filtered.alpha[first:past]
    alpha = tables.emit.new_zeros(past - first, *filtered.alpha.shape[1:])
    alpha[0] = filtered.alpha[first // cut.block]
    for t in range(first + 1, past):
        m = active[t]
        now = torch.mm(_top(alpha[t - first - 1], m), tables.moves, out=_top(alpha[t - first], m))
        now.mul_(tables.emit[_top(x[t], m)]).mul_(_top(filtered.inverse[t], m)[:, None])
    return alpha


def _top(table: Tensor, rows: int) -> Tensor:
    """The first rows, or the table itself if it has no more: a view costs as much as a small operation."""
    return table if len(table) == rows else table[:rows]


def check_weights(weights: Tensor | None, rows: int) -> Tensor | None:
    """The weights in float64 on the CPU; raises HmmError unless there is one for each row, finite and not negative."""
    if weights is None:
        return None
    if tuple(weights.shape) != (rows,):
        raise HmmError(f"weights must have one value for each of {rows} rows, not shape {tuple(weights.shape)}")
    exact = weights.detach().cpu().double()
    wrong = (~(exact.isfinite() & (exact >= 0))).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise HmmError(f"row {row} has weight {float(exact[row])}: a weight must be finite and not negative")
    return exact


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + cached)
    return _UNKNOWN if (free := free_host_bytes()) is None else free
