"""The fused kernels without a GPU: their arithmetic in Triton's interpreter, and a compilation for the real chip.

The interpreter gets bf16 wrong, so the halves of numbers are float32 here; it runs in a process of its own, because a
wild load would end this one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import run_script

pytest.importorskip("triton", reason="Triton is not installed")

ARITHMETIC = """
import functools, torch
from shoestring.hmm import fused
from shoestring.hmm.expect import expect
from shoestring.hmm.parameters import random_parameters
fused.count_chunk = functools.partial(fused.count_chunk, half=torch.float32)
fused.PIECE = 64  # several pieces a symbol
cases = [(20, 3, 70, 4, 64), (5, 3, 3, 1, None), (130, 4, 66, 3, 64)]
cases += [(20, 7, rows, 4, None) for rows in (30, 70)] + [(140, 4, rows, 3, None) for rows in (30, 60, 66)]
blocks = set()
for number, (states, symbols, rows, length, chunk) in enumerate(cases):
    fused._WAVE = 132 if number < 3 else 1  # on a chip with room for one block these rows are many
    blocks.add(fused.tiles(states, chunk or rows)[1:3])
    model = random_parameters(states, symbols, seed=1)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(symbols, (rows, length), generator=generator)
    lengths = torch.randint(1, length + 1, (rows,), generator=generator)
    weights = torch.rand(rows, generator=generator)
    tables = list(model)
    tables[2] = model.emission.clone()
    tables[2][:, 0] = 0.0  # rows with this symbol are impossible
    model = type(model)(*tables[:2], tables[2] / tables[2].sum(1, keepdim=True), None)
    exact = expect(model, tokens, lengths, weights)
    fast = fused.expect_fused(model.to(dtype=torch.float32), tokens, lengths, weights, chunk=chunk)
    for name in ("start", "transition", "emission", "log_likelihood", "sequences", "tokens", "impossible"):
        ours, reference = getattr(fast, name), getattr(exact, name)
        assert torch.allclose(ours, reference, rtol=1e-5, atol=1e-6), (name, ours, reference)
    assert float(exact.impossible) > 0
assert blocks == {(16, 32), (16, 128), (32, 32), (64, 32), (32, 256), (64, 128), (128, 128)}, blocks
"""

AHEAD = """
from ahead import compile_ahead
from triton.compiler import ASTSource
from shoestring.hmm import kernels
from shoestring.hmm.fused import tiles
kinds = {"tokens": "*i32", "lengths": "*i32", "order": "*i64", "begins": "*i64", "ends": "*i64", "N": "i32", "L": "i32",
         "K": "i64", "SPAN": "i64", "E": "i32"}
halves = {"table_high", "table_low", "a_high", "a_low", "w_high", "w_low"}
sizes = {"S": 512, "BM": 128, "BN": 128, "BK": 64, "PROMOTE": kernels.PROMOTE}
passes = kernels.forward_kernel, kernels.backward_kernel
sides = [(500, 256), (500, 3000), (500, 8000), (500, 30_000), (1000, 256)]
work = [(kernel, tiles(*side)) for kernel in passes for side in sides]
for kernel, shape in [(kernels.emission_kernel, None), (kernels.transition_kernel, None), *work]:
    own = sizes | ({"BK": 32} if kernel is kernels.emission_kernel else {})
    own |= {} if shape is None else {"S": shape.states, "BM": shape.rows, "BN": shape.columns, "BK": shape.inner}
    options = {"num_warps": 8 if shape is None else shape.warps, "num_stages": 3 if shape is None else shape.stages}
    constants = {name: own[name] for name in kernel.arg_names if name in own}
    named = {n: "*bf16" if n in halves else kinds.get(n, "*fp32") for n in kernel.arg_names}
    signature = {n: "constexpr" if n in constants else kind for n, kind in named.items()}
    aligned = [n.startswith("*") or name in ("N", "K", "SPAN") for name, n in signature.items()]
    attributes = {(i,): [["tt.divisibility", 16]] for i, is_aligned in enumerate(aligned) if is_aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = compile_ahead(source, 90, **options)
    assert compiled.shared <= 227 * 1024, (kernel, compiled.shared)
    units = "mma.sync" if own["BM"] < 64 else "wgmma"  # of 64 rows and more
    assert kernel is kernels.emission_kernel or compiled.has(units), (kernel, own)
"""


def test_the_arithmetic_of_the_kernels_is_that_of_the_plain_e_step(tmp_path: Path) -> None:
    run_script(tmp_path, ARITHMETIC, interpret=True)


def test_the_kernels_compile_for_the_chip_with_its_matrix_units_and_its_memory(tmp_path: Path) -> None:
    run_script(tmp_path, AHEAD)
