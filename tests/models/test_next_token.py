"""The pass over one further token in a few kernels: in Triton's interpreter here, and on a GPU in tests/gpu.

The oracle is the network in float64 over whole rows.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from scripts import run_script
from torch import nn

from shoestring.core.sections import Model
from shoestring.models.language_model import build
from shoestring.models.layers.adapter import Adapter, add_adapter
from shoestring.models.layers.next_token import (
    SHARED,
    TILE,
    Unsupported,
    choice_parts,
    matrix_launch,
    product_of,
    vector_launch,
)

AHEAD = """
import sys
from ahead import compile_ahead
from triton.compiler import ASTSource
from shoestring.models.kernels import choice, decoding as kernels, decoding_attention
from shoestring.models.layers.next_token import attention_warps, matrix_launch, vector_launch

KINDS = {"rows": "*i64", "place": "*i32", "arrived": "*i32", "index": "*i32", "temperature": "fp32"}
COUNTS = ("M", "N", "V", "v", "width", "length", "stride", "table_stride")
WIDE = ("qkv", "cos", "sin", "q_gain", "k_gain", "table", "partial", "sums", "gain", "shift", "bias", "scales",
        "logits", "noise", "tops", "best", "positions", "pairs")

def used(kernel, constants, **options):
    constants = constants | {"EARLY": 2}
    kinds = KINDS | dict.fromkeys(COUNTS, "i32") | dict.fromkeys(WIDE, "*fp32")
    signature = {n: "constexpr" if n in constants else kinds.get(n, "*bf16") for n in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return compile_ahead(source, 90, launch_pdl=True, **options)

def product(kernel, k, launch, norm=0, act=0, add=False, **more):
    tiles = {name: size for name, size in launch.items() if name.isupper()}
    options = {name: size for name, size in launch.items() if name not in tiles}
    constants = {"K": k, "EPS": 1e-5, "NORM": norm, "ACT": act, "BIAS": False, "ADD": add, "SCALED": False, "CAP": 0.0,
                 "ADVANCE": False} | ({"M": 1} if kernel is kernels.vector_kernel else {})
    made = used(kernel, constants | tiles | more, **options)
    assert not made.stack, (kernel.__name__, k, launch, made)
    assert made.has("mma") == (kernel is kernels.matrix_kernel)
    assert kernel is kernels.matrix_kernel or made.has("ld.global.*v4"), made  # 16 bytes of weights at once

for d, f in ((768, 2048), (1280, 3424)):
    for n, k, size, told in ((3 * d, d, 2, dict(norm=1)), (d, d, 2, dict(add=True)), (f, d, 4, dict(norm=1, act=1)),
                             (d, f, 2, dict(add=True)), (50257, d, 2, dict(norm=1, ADVANCE=True))):
        product(kernels.vector_kernel, k, vector_launch(n, k, size, 132), **told)
        product(kernels.matrix_kernel, k, matrix_launch(16, n, k, 2, 132, told == dict(add=True)), **told)
product(kernels.vector_kernel, 768, vector_launch(3072, 768, 2, 132), norm=2, act=3, BIAS=True)
product(kernels.matrix_kernel, 768, matrix_launch(16, 3072, 768, 2, 132), norm=2, act=3, BIAS=True)
for group, channels in ((1, 64), (1, 128), (4, 64), (4, 80)):
    constants = {"KV": 4, "G": group, "C": channels, "GP": 1 if group == 1 else 16, "CP": 64 if channels == 64 else 128,
                 "WINDOW": 0, "EPS": 1e-5, "QK_NORM": False, "ROTATE": True, "VALUES": False, "SPLITS": 8, "LEAST": 128,
                 "BLOCK": 64 if channels == 64 else 32}
    warps = attention_warps(constants["GP"], constants["CP"])
    assert not used(decoding_attention.attention_kernel, constants, num_warps=warps).stack
parts = {"PARTS": 50, "BLOCK": 1024}
assert not used(choice.choose_kernel, parts | {"DRAWN": True, "PADDED": 64}, num_warps=4).stack
assert not used(choice.top_kernel, parts, num_warps=4).stack
KINDS |= {"begin": "i32"}
for norm in (0, 1):
    constants = {"K": 768, "EPS": 1e-5, "J": 3, "NORM": norm, "BLOCK": 1024}
    assert not used(kernels.convolution_kernel, constants, num_warps=4).stack
constants = {"K": 768, "EPS": 1e-5, "NORM": 1, "POSITIONS": True, "SCALED": True, "PAIRS": 16384,
             "BLOCK": 1024}
assert not used(kernels.embed_kernel, constants, num_warps=4).stack
"""

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")

INTERPRETED = """
import copy
import torch
from shoestring.core.sections import Model
from shoestring.models.language_model import build
from shoestring.models.layers import next_token
from shoestring.models.layers.next_token import NextToken

VOCABULARY, LENGTH = 37, 12

def network(**fields):
    model = Model(**({"width": 16, "layers": 2, "heads": 2, "hidden": 24, "tied": False} | fields))
    found, noise = build(model, VOCABULARY, LENGTH, 0), torch.Generator().manual_seed(1)
    for parameter in found.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.3)
    return found.eval()

def check(rows, begun, tokens, **fields):
    ours = network(**fields)
    exact = copy.deepcopy(ours).double()
    ids = torch.randint(VOCABULARY, (rows, begun + tokens), generator=torch.Generator().manual_seed(2))
    past = ours.past(LENGTH)
    ours.read_on(ids[:, : begun], past)
    found = NextToken(ours.parts(), ids, past, torch.float32)
    found.place.copy_(torch.tensor([begun, begun + 1]))
    for end in range(begun + 1, begun + tokens):
        logits, expected = found.logits_of_newest(), exact.logits(ids[:, :end])[:, -1]
        off = ((logits - expected).abs().max() / expected.abs().max()).item()
        assert off < 2e-6, (fields, rows, end, off)
        assert found.place.tolist() == [end, end + 1]
        written = ids[:, end].clone()
        found.choose(1.0, None)
        assert torch.equal(ids[:, end], logits.argmax(-1))
        ids[:, end] = written

with torch.no_grad():
    FIELDS
"""

LLAMA = """
    check(1, 1, 4, family="llama")
    check(3, 4, 4, family="llama", heads=4, kv_heads=2, bias=True, rotary_scaling="linear:2", layers=1)
    check(2, 3, 3, family="llama", heads=2, width=20, hidden=40, tied=True, layers=1)
    next_token.LEAST_KEYS, next_token.MOST_SPLITS = 2, 4
    wide = NextToken.__init__

    def split(self, *given):  # the keys of a row over several programs
        wide(self, *given)
        self._splits = 4
        groups, (queries, channels) = len(self._arrived), self._padded
        self._partial = torch.zeros(groups, 4, queries, channels)
        self._sums = torch.zeros(groups, 4, 2, queries)

    NextToken.__init__ = split
    import shoestring.models.kernels.decoding_attention as kernels
    run = next_token.NextToken._attend
    plain = kernels.attention_kernel

    class Small:
        def __getitem__(self, grid):
            return lambda *given, **told: plain[grid](*given, **(told | {"BLOCK": 16 if told["GP"] > 1 else 2}))

    kernels.attention_kernel = Small()
    check(1, 2, 9, family="llama", layers=1)
    next_token.LEAST_KEYS = 16
    check(1, 2, 4, family="llama", layers=1, heads=4, kv_heads=2)
"""

SWIFT = """
    all_parts = "qk_norm, gains, relu2, embedding_norm, soft_cap:4, value_embeddings, scales"
    check(1, 2, 4, family="swift", heads=4, kv_heads=2, layers=3, parts=all_parts, window=2, full_every=2)
    check(4, 2, 4, family="swift", layers=2, parts="value_embeddings, soft_cap", window=4, tied=True)
    check(1, 1, 6, family="swift", layers=2, parts=all_parts + ", convolutions", pairs=70)
    check(3, 5, 4, family="swift", layers=1, parts="convolutions:2", width=20)
"""

GPT2 = """
    check(1, 2, 4, family="gpt2", tied=True)
    check(4, 2, 3, family="gpt2", layers=1)
"""

CHOICE = """
from shoestring.models.kernels.choice import choose_kernel, top_kernel

def choose(logits, noise, temperature, block):
    (r, v), parts = logits.shape, -(-logits.shape[1] // block)
    rows, place = torch.zeros(r, 5, dtype=torch.int64), torch.tensor([1, 3], dtype=torch.int32)
    tops, best, index = torch.empty(r, parts), torch.empty(r, parts), torch.empty(r, parts, dtype=torch.int32)
    arrived, drawn = torch.zeros(r, dtype=torch.int32), noise is not None
    told = dict(EARLY=0, PARTS=parts, BLOCK=block)
    if drawn:
        top_kernel[(r, parts)](tops, logits, v, **told)
    padded = 1 << (parts - 1).bit_length()
    choose_kernel[(r, parts)](
        rows, logits, noise if drawn else logits, tops, best, index, arrived, place, 5, v, temperature, DRAWN=drawn,
        PADDED=padded, **told,
    )
    assert not arrived.any() and not rows[:, [0, 1, 3, 4]].any()
    return rows[:, 2]

logits, noise = torch.randn(3, 300), torch.empty(3, 300).exponential_()
for block in (32, 128, 512):
    for temperature in (0.5, 1.0, 3.0, 1e-30):
        shares = ((logits - logits.amax(1, keepdim=True)).double() / temperature).softmax(1)
        assert torch.equal(choose(logits, noise, temperature, block), (shares / noise).argmax(1))
    for few in (logits.round(), logits.clamp(max=0.5), torch.zeros(3, 300), logits[:, ::7] - 40):  # many are equal
        few = few.contiguous()
        first = (few == few.amax(1, keepdim=True)).int().argmax(1)
        assert torch.equal(choose(few, None, 1.0, block), first)
    nothing = torch.full((2, 300), float("nan"))
    nothing[1, 270] = -3.0
    assert choose(nothing, None, 1.0, block).tolist() == [0, 270]
"""

SHARED_SUMS = """
    # the channels in shared by programs, and weights of a row in several parts
    launch, vector = next_token.matrix_launch, next_token.vector_launch
    splits = []

    def divided(*given):
        found = launch(*given)
        if len(given) > 5 and given[5]:
            found |= {"SPLITS": 3, "BK": 16}
            splits.append(given)
        return found

    next_token.matrix_launch = divided
    next_token.vector_launch = lambda *given: vector(*given) | {"BK": 16}
    check(3, 4, 4, family="llama", width=20, heads=2, hidden=72, tied=True)
    check(17, 2, 3, family="gpt2", layers=1, width=48)
    check(5, 2, 3, family="swift", heads=4, kv_heads=2, layers=2, parts="relu2, scales")
    assert len(splits) > 10
    check(2, 2, 3, family="gpt2", layers=1, width=40)
    check(1, 2, 3, family="llama", layers=1, width=24, hidden=40)
"""

DECODER = """
    from shoestring.models import decoding
    from shoestring.models.generate import Drawing, RowReader, generate

    class Graph:
        count = 0

        def __init__(self, run):
            self.run = run

        def replay(self):
            Graph.count += 1
            self.run()

    decoding._has_kernels = lambda rows: True
    decoding.record = lambda run, generator: (Graph(run), None)
    wide = [dict(temperature=0.0), dict(), dict(temperature=0.7, top_k=5), dict(top_p=0.8)]
    for number, drawing in enumerate(wide):
        parts = {"parts": "gains, convolutions", "pairs": 70} if number == 1 else {}
        ours = network(family=("llama", "swift", "gpt2")[number % 3], layers=1, **parts)
        begun = torch.randint(VOCABULARY, (1 + number, 1 + 5 * number), generator=torch.Generator().manual_seed(3))
        found = []
        for recorded in (True, False):
            generator = torch.Generator().manual_seed(4)
            told = {"drawing": Drawing(**drawing), "generator": generator, "stride": (None, 2, 6, 4)[number]}
            found.append(generate(ours, begun, 16, length=LENGTH, recorded=recorded, **told))
        assert torch.equal(*found), (number, found)
    assert Graph.count > 35

    decoding.record = lambda run, generator: 1 / 0  # once it cannot be recorded, the rest is written as usual
    decoding.after_failure = lambda generator: None
    ours, begun = network(layers=1), torch.ones(2, 3, dtype=torch.int64)
    found = generate(ours, begun, 16, length=LENGTH, recorded=None, drawing=Drawing(temperature=0.0))
    reader = RowReader(ours, begun, LENGTH)
    ids = torch.cat((begun, torch.zeros(2, 16, dtype=torch.int64)), 1)
    reader.record(ids, Drawing(temperature=0.0), None)
    for end in range(3, 19):
        if not reader.write(end):
            ids[:, end] = reader.logits(ids[:, :end]).argmax(-1)
    assert torch.equal(ids, found) and reader.reason == "division by zero"
"""


@needs_triton
@pytest.mark.parametrize(
    "checks", [LLAMA, SWIFT, GPT2 + CHOICE, SHARED_SUMS, DECODER], ids=["llama", "swift", "gpt2", "shared", "decoder"]
)
def test_the_logits_are_those_of_whole_rows_in_float64(tmp_path: Path, checks: str) -> None:
    run_script(tmp_path, INTERPRETED.replace("    FIELDS", checks), interpret=True)


@needs_triton
def test_the_kernels_compile_for_the_chip(tmp_path: Path) -> None:
    run_script(tmp_path, AHEAD)


def test_networks_without_such_kernels_say_so() -> None:
    model = Model(family="perceiver_ar", width=16, layers=1, heads=2, latents=2)
    with pytest.raises(Unsupported, match="PerceiverAR"):
        build(model, 9, 4, 0).parts()
    layer = nn.Linear(4, 4)
    assert product_of(layer).weight is layer.weight
    add_adapter(layer, Adapter(layer, 2, 1.0, None))
    with pytest.raises(Unsupported, match=r"nn\.Linear"):
        product_of(layer)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("k", [16, 768, 3072, 11_008])
def test_a_program_holds_few_bytes_of_weights(k: int, size: int) -> None:
    for n in (16, 768, 50_257):
        one = vector_launch(n, k, size, 132)
        parts = -(-k // one["BK"])
        assert one["BN"] == 1 or one["BN"] * parts * one["BK"] * size <= TILE * one["num_warps"]
        for rows in (3, 16, 17, 64, 100):
            more = matrix_launch(rows, n, k, size, 132, divisible=True)
            assert more["num_stages"] * more["BK"] * size * (2 * more["BN"] + more["BM"]) <= SHARED
            assert more["SPLITS"] == 1 or (more["SPLITS"] - 1) * more["BK"] < k, "each has some"


def test_few_programs_share_long_sums() -> None:
    assert matrix_launch(16, 1280, 3424, 2, 132, divisible=True)["SPLITS"] > 1
    assert matrix_launch(16, 1280, 3424, 2, 132)["SPLITS"] == 1
    assert matrix_launch(16, 50_257, 1280, 2, 132, divisible=True)["SPLITS"] == 1


@pytest.mark.parametrize("v", [2, 37, 256, 1024, 50_257, 128_256])
def test_a_choice_is_among_all_tokens(v: int) -> None:
    parts, block = choice_parts(v)
    assert (parts - 1) * block < v <= parts * block and parts <= 64
