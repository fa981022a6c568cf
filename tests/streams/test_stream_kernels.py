"""The stream's kernels without a GPU: their bytes in Triton's interpreter, and a compilation for the real chip.

The interpreter runs in a process of its own: it must be chosen before a kernel is defined, and a wild load would end
this one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import run_script

pytest.importorskip("triton", reason="Triton is not installed")

GOLDEN = Path(__file__).parent / "golden.json"

FORMS = """
import json, sys
import numpy as np, torch
from shoestring.streams import hmm, kernels, loops
from shoestring.streams.hmm import Form, HmmStream, compact_tables
hmm._form = lambda device: Form(compact_tables, kernels.make, shuffles)
"""

KNOWN = """
shuffles = loops.shuffles  # the kernel's own are slow to interpret, and tested below
golden = json.loads(open(sys.argv[1]).read())
for case in golden["rows"]:
    tables = golden["models"][case["model"]]
    model = [np.array(tables[name]) / tables["of"] for name in ("start", "transition", "emission")]
    kinds = {"symbols": case["symbols"], "states": case["states"]}
    stream = HmmStream(*model, seed=case["seed"], length=golden["length"], **kinds)
    rows = stream.rows(case["first"], len(case["rows"]))
    assert rows.dtype == stream.dtype
    digits = 2 * rows.dtype.itemsize
    assert ["".join(f"{token:0{digits}x}" for token in row) for row in rows.tolist()] == case["rows"], case
"""

RANDOM = """
shuffles = kernels.shuffles
plain = lambda device: hmm.PLAIN
fused = hmm._form
for states, symbols, first, count, length, kinds in [
    (5, 7, 2**32 - 60, 130, 9, ("sequence", "pool:3")),  # two programs, two words a row
    (3, 4, 2**63 - 3, 3, 8, ("block:1", "block:1")),  # the last rows; whole words
    (1, 1, 0, 2, 1, ("pool:1", "sequence")),
    (260, 3, 1, 2, 3, ("none", "none")),
    (2, 257, 2**40 + 1, 129, 4, ("none", "block:50")),
    (40, 200, 2**40 + 1, 3, 9, ("sequence", "sequence")),
    (17, 300, 2**63 - 3, 3, 5, ("sequence", "none")),
]:
    rng = np.random.default_rng(states)
    model = [rng.dirichlet(np.ones(n), size=m) for n, m in ((states, 1), (states, states), (symbols, states))]
    made = []
    for form in (fused, plain):
        hmm._form = form
        stream = HmmStream(model[0][0], *model[1:], seed=1, length=length, symbols=kinds[0], states=kinds[1])
        made.append(stream.rows(first, count))
    assert made[0].dtype == made[1].dtype and torch.equal(*made), (states, symbols, first)
"""

SHUFFLES = """
cpu = torch.device("cpu")
for size, first, count in [(1, 0, 3), (2, 5, 130), (3, 2**63 - 4, 4), (6, 2**32 - 2, 4), (37, 1, 2), (257, 2**62, 2)]:
    ours = kernels.shuffles(2**60 + 7, first, count, size, size % 7, cpu)
    theirs = loops.shuffles(2**60 + 7, first, count, size, size % 7, cpu)
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), (size, first)
"""

DRAWS = """
import triton, triton.language as tl
from shoestring.streams.hmm import draw
from shoestring.streams.tables import Compact
from shoestring.streams.tables import alias_tables, quantise

@triton.jit
def draws_kernel(out, heads, tails, rows, words, n, CELLS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    row, word = tl.load(rows + at, mask=inside, other=0), tl.load(words + at, mask=inside, other=0)
    drawn = kernels.draw(heads, tails, row, word.to(tl.uint32), CELLS, BITS, inside)
    tl.store(out + at, drawn, mask=inside)

for cells in (1, 2, 3, 5, 64, 300, 65_535, 65_536):
    rng = np.random.default_rng(cells)
    entries = torch.from_numpy(alias_tables(quantise("rows", rng.dirichlet(np.ones(cells), size=2))))
    compact = Compact.of(entries)
    near = []
    for row in range(2):  # on both sides of some thresholds
        cell = torch.from_numpy(rng.permutation(cells)[:200])
        word = -(-((cell << 32) + (entries[row, cell] >> 32 & 0xFFFFFFFF)) // cells)
        near += [(torch.full_like(word, row), word + offset) for offset in (-2, -1, 0, 1)]
    rows, words = (torch.cat(parts) for parts in zip(*near))
    rows, words = (each[(words >= 0) & (words < 2**32)] for each in (rows, words))
    expected = draw(entries, rows, words)
    out = torch.empty(len(words), dtype=torch.int32)
    draws_kernel[(triton.cdiv(len(words), 256),)](
        out, compact.heads, compact.tails, rows.int(), words, len(words), CELLS=cells, BITS=compact.bits, BLOCK=256)
    assert out.tolist() == expected.tolist(), cells
    place, threshold = words * cells & 0xFFFFFFFF, entries[rows, words * cells >> 32] >> 32 & 0xFFFFFFFF
    tied = place >> compact.bits == threshold >> compact.bits
    assert cells < 3 or bool(tied.any())
    assert cells & cells - 1 == 0 or bool((tied & (place < threshold)).any() and (tied & (place >= threshold)).any())
"""

AHEAD = """
from ahead import compile_ahead
from triton.compiler import ASTSource
from shoestring.streams import kernels
from shoestring.streams.permutations import Rounds

def compiled(kernel, warps, constants, kinds):
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i64") for name in kernel.arg_names}
    return compile_ahead(ASTSource(fn=kernel, signature=signature, constexprs=constants), 90, num_warps=warps)

for symbols, states, size, token in [(3, 2, 1, "*u8"), (1, 0, 2, "*u16")]:
    constants = {"H": 100, "E": 300 if size == 2 else 100, "MOVE_BITS": 7, "EMIT_BITS": 9 if size == 2 else 7,
                 "SYMBOLS": symbols, "SYMBOLS_WORD": 5, "SYMBOLS_SHAPE": tuple(Rounds.of(100)),
                 "STATES": states, "STATES_WORD": 6, "STATES_SHAPE": (1, 1, 1, 0), "BYTES": size, "BLOCK": 128}
    kinds = {"out": "*i64", "moves": "*i32", "emits": "*i32", "moves_tail": "*u16", "emits_tail": "*u16",
             "sy_table": token, "st_table": "*u8", "n": "i32", "words": "i32"}
    made = compiled(kernels.tokens_kernel, 4, constants, kinds)
    assert made.shared == 0 and made.has("st.global")
compiled(kernels.shuffle_kernel, 4, {"SIZE": 300, "BLOCK": 128}, {"made": "*u16", "count": "i32", "purpose": "i32"})
"""


def test_kernels_make_the_bytes_of_the_plain_form(tmp_path: Path) -> None:
    run_script(tmp_path, FORMS + KNOWN + RANDOM + SHUFFLES + DRAWS, GOLDEN, interpret=True)


def test_the_kernels_compile_for_the_chip(tmp_path: Path) -> None:
    run_script(tmp_path, AHEAD, GOLDEN)
