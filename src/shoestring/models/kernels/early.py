# mypy: ignore-errors
"""Kernels of a pass that begin while those before still run, on devices from compute capability 9 on.

With EARLY such a kernel loads what no kernel of the pass changes before it waits for them: weights, tables, `place`,
the newest tokens, and the keys and values of the tokens before. It lets the next one begin after that wait (EARLY = 1,
so that at most two run at a time) or first of all (2), so that the next ones load weights as soon as there is room.

Why the second is safe: a kernel begins when all programs of the one before have begun. A wait ends when the kernel
before is complete, and that one has waited too, so all earlier ones are complete, and what they wrote is visible. All
that a kernel writes, it writes after its wait, when nobody reads the old content any more: buffers can be used again at
once. The first kernel of a pass lets nothing begin before its own wait, so nothing of a pass meets the pass before.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def let_begin(EARLY: tl.constexpr):
    """First of all: let the next kernel begin."""
    if EARLY == 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until the kernels before are complete."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if EARLY == 1:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch(address, inside):
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
def fetch_lines(begin, lines, SPAN: tl.constexpr):
    """Bring so many lines from `begin` on into the cache of the device."""
    line: tl.constexpr = 128 // (begin.dtype.element_ty.primitive_bitwidth // 8)
    for first in range(0, lines, SPAN):
        i = first + tl.arange(0, SPAN)
        fetch(begin + i.to(tl.int64) * line, i < lines)
