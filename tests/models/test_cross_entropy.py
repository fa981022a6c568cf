"""The chunked loss: against torch's own in float64, how much it holds and computes, and its kernel without a GPU.

The interpreter gets bf16 wrong, so logits are float32 there; it runs in a process of its own, because it must be chosen
before a kernel is defined, and a wild load would end this one.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import run_script
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from shoestring.models.layers import cross_entropy
from shoestring.models.layers.cross_entropy import IGNORED, linear_cross_entropy, token_cross_entropy

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 says so once


class Case(NamedTuple):
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor

    @classmethod
    def of(
        cls, n: int, d: int, v: int, *, biased: bool = False, ignored: float = 0.0, dtype: torch.dtype = torch.float32
    ) -> Case:
        """Random; leaves that want a gradient."""
        generator = torch.Generator().manual_seed(n + 100 * d + v)
        hidden = torch.randn(n, d, generator=generator, dtype=dtype) * 2
        weight = torch.randn(v, d, generator=generator, dtype=dtype)
        bias = torch.randn(v, generator=generator, dtype=dtype) if biased else None
        targets = torch.randint(v, (n,), generator=generator)
        targets[torch.rand(n, generator=generator) < ignored] = IGNORED
        for x in (hidden, weight, bias):
            if x is not None:
                x.requires_grad_()
        return cls(hidden, weight, bias, targets)

    @property
    def leaves(self) -> list[Tensor]:
        return [x for x in self[:3] if x is not None]

    def double(self) -> Case:
        return self.each(lambda x: x.double())

    def each(self, change: Callable[[Tensor], Tensor], wanted: bool = True) -> Case:
        """With leaves made of these, which want the same gradients, or none."""
        return self.with_leaves([change(x.detach()).requires_grad_(x.requires_grad and wanted) for x in self.leaves])

    def with_leaves(self, leaves: Sequence[Tensor]) -> Case:
        return Case(leaves[0], leaves[1], leaves[2] if len(leaves) > 2 else None, self.targets)

    def outcome(self, loss: Callable[..., Tensor], scale: float = 1.0) -> list[Tensor]:
        """The loss, and the gradient of so many times it by every leaf that wants one."""
        nats = loss(*self)
        leaves = [x for x in self.leaves if x.requires_grad]
        return [nats.detach(), *torch.autograd.grad(nats * scale, leaves)]


def textbook(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="sum", ignore_index=IGNORED)


def agree(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for ours, exact in zip(found, expected):
        assert ours.shape == exact.shape
        scale = exact.abs().max().item() if exact.numel() else 1.0
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance * max(scale, 0.1))


@contextmanager
def chunk_bytes(size: int) -> Iterator[None]:
    before = cross_entropy.CHUNK_BYTES, cross_entropy.LEAST_ROWS
    cross_entropy.CHUNK_BYTES, cross_entropy.LEAST_ROWS = {"cpu": size}, 1
    try:
        yield
    finally:
        cross_entropy.CHUNK_BYTES, cross_entropy.LEAST_ROWS = before


@pytest.mark.parametrize(("ids", "chunks"), [(603, 1), (32_000, 4), (151_936, 4)])
def test_a_large_vocabulary_has_as_few_chunks_as_a_usual_one(ids: int, chunks: int) -> None:
    """Each chunk streams the output matrix and its gradient through memory: 27 rows at a time took twice as long."""
    like = torch.empty(0)
    rows = cross_entropy._chunk_rows(512, ids, like)
    assert -(-512 // rows) == chunks
    assert rows >= 128


SHAPES = [(1, 1, 1), (1, 3, 5), (0, 4, 6), (7, 5, 1), (40, 8, 2), (64, 16, 603), (9, 4, 5000)]


@pytest.mark.parametrize("ignored", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("n", "d", "v"), SHAPES)
def test_loss_and_gradients_are_those_of_float64(n: int, d: int, v: int, biased: bool, ignored: float) -> None:
    case = Case.of(n, d, v, biased=biased, ignored=ignored)
    expected = case.double().outcome(textbook, scale=-2.5)
    for rows in (1, 3, n, n + 1):
        with chunk_bytes(4 * v * max(1, rows)):
            found = case.outcome(linear_cross_entropy, scale=-2.5)
        assert [x.dtype for x in found] == [torch.float32] * len(found)
        agree(found, expected)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 70), st.booleans(), st.floats(0, 1), st.integers(1, 9_000))
def test_any_shape_and_any_chunk(n: int, d: int, v: int, biased: bool, ignored: float, size: int) -> None:
    case = Case.of(n, d, v, biased=biased, ignored=ignored)
    with chunk_bytes(size):
        agree(case.outcome(linear_cross_entropy), case.double().outcome(textbook))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", [100, 10_000])
def test_gradcheck(biased: bool, size: int) -> None:
    case = Case.of(7, 3, 11, biased=biased, ignored=0.3, dtype=torch.float64)
    with chunk_bytes(size):
        assert linear_cross_entropy(*case).dtype == torch.float64
        assert torch.autograd.gradcheck(lambda *leaves: linear_cross_entropy(*case.with_leaves(leaves)), case.leaves)


def test_logits_of_any_size_give_finite_losses() -> None:
    case = Case.of(20, 4, 30)
    case = Case(case.hidden.detach().mul(300).requires_grad_(), *case[1:])
    found, expected = case.outcome(linear_cross_entropy), case.double().outcome(textbook)
    assert expected[0] > 10_000
    agree(found, expected)


@pytest.mark.parametrize("wanted", ["hidden", "weight", "bias", "hidden bias", "weight bias"])
def test_a_frozen_input_costs_no_product(wanted: str) -> None:
    case = Case.of(12, 5, 33, biased=True, ignored=0.2)
    for name, x in zip(Case._fields, case[:3]):
        assert x is not None
        x.requires_grad_(name in wanted)
    with chunk_bytes(33 * 4 * 100), Watch() as watch:
        found = case.outcome(linear_cross_entropy)
    agree(found, case.double().outcome(textbook))
    assert watch.products == 1 + ("hidden" in wanted) + ("weight" in wanted)


def test_without_gradients_only_logits_are_made() -> None:
    case = Case.of(12, 5, 33, biased=True, ignored=0.2)
    with chunk_bytes(33 * 4 * 100):
        with Watch() as watch, torch.no_grad():
            nats = linear_cross_entropy(*case)
        assert watch.products == 1
        agree([nats], [textbook(*case.double()).detach()])
        with Watch() as watch:
            frozen = linear_cross_entropy(*case.each(Tensor.clone, wanted=False))
        assert watch.products == 1 and not frozen.requires_grad and torch.equal(frozen, nats)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", [1, 500, 10**6])
def test_losses_of_tokens(biased: bool, size: int) -> None:
    case = Case.of(50, 6, 40, biased=biased, ignored=0.3)
    with chunk_bytes(size):
        found = token_cross_entropy(*case)
    hidden, weight, bias, targets = case.double()
    exact = F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="none", ignore_index=IGNORED)
    assert found.dtype == torch.float32 and not found.requires_grad
    assert (found[targets == IGNORED] == 0).all()
    agree([found], [exact.detach()])


class Watch(TorchDispatchMode):
    """Counts matrix products, and the elements of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        for x in found if isinstance(found, tuple | list) else (found,):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.numel())
        return found

    @property
    def products(self) -> int:
        return sum(self.calls[name] for name in ("mm", "addmm"))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("ignored", [0.0, 0.5])
def test_no_tensor_grows_with_all_logits(autocast: bool, ignored: float) -> None:
    d, v, rows = 4, 1000, 50
    size = rows * v * (2 if autocast else 4)
    for n in (200, 400):
        case = Case.of(n, d, v, biased=True, ignored=ignored)
        with chunk_bytes(size), Watch() as watch, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            linear_cross_entropy(*case).backward()
            token_cross_entropy(*case)
        assert rows * v / 2 < watch.largest <= rows * v


@pytest.mark.parametrize("half", [True, False], ids=["bf16 stream", "fp32 stream"])
def test_under_autocast_products_are_bf16_and_sums_are_not(half: bool) -> None:
    case = Case.of(300, 32, 200, biased=True, ignored=0.2)
    with torch.no_grad():
        case.weight.mul_(0.1)
    exact = case.double().outcome(textbook)
    given = Case(case.hidden.detach().bfloat16().requires_grad_(), *case[1:]) if half else case
    for size in (200 * 2 * 7, 10**6):
        with chunk_bytes(size), torch.autocast("cpu", dtype=torch.bfloat16):
            found = given.outcome(linear_cross_entropy)
        assert found[1].dtype == given.hidden.dtype
        assert [x.dtype for x in (found[0], *found[2:])] == [torch.float32] * 3
        for ours, expected in zip(found, exact):
            assert (ours.double() - expected).norm() < 0.01 * expected.norm()
            assert not torch.equal(ours, expected.to(ours.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        double = case.double()
        assert torch.equal(double.outcome(linear_cross_entropy)[1], double.outcome(linear_cross_entropy)[1])
        agree(double.outcome(linear_cross_entropy), exact, tolerance=1e-12)


def test_weights_of_half_precision_get_gradients_of_their_type() -> None:
    case = Case.of(40, 16, 30)
    exact = case.double().outcome(textbook)
    with chunk_bytes(30 * 2 * 9):
        found = case.each(lambda x: x.bfloat16()).outcome(linear_cross_entropy)
    assert [x.dtype for x in found] == [torch.float32, torch.bfloat16, torch.bfloat16]
    for ours, expected in zip(found, exact):
        assert (ours.double() - expected).norm() < 0.02 * expected.norm()


def test_a_tied_weight_gets_both_gradients() -> None:
    ids, targets = torch.randint(20, (2, 30), generator=torch.Generator().manual_seed(0))
    gradients = []
    for loss, dtype in ((linear_cross_entropy, torch.float32), (textbook, torch.float64)):
        torch.manual_seed(1)
        embedding = nn.Embedding(20, 6).to(dtype)
        loss(embedding(ids).tanh(), embedding.weight, None, targets).backward()
        assert embedding.weight.grad is not None
        gradients.append(embedding.weight.grad)
    agree(gradients[:1], gradients[1:])


def test_backward_may_be_run_again() -> None:
    case = Case.of(10, 4, 6)
    loss = linear_cross_entropy(*case)
    first = torch.autograd.grad(loss, case.leaves, retain_graph=True)
    second = torch.autograd.grad(3 * loss, case.leaves)
    for a, b in zip(first, second):
        torch.testing.assert_close(3 * a, b)


def test_under_recomputation() -> None:
    case = Case.of(10, 4, 6, ignored=0.3)

    def again(*inputs: Any) -> Tensor:
        found: Tensor = checkpoint(linear_cross_entropy, *inputs, use_reentrant=False)
        return found

    for found, expected in zip(case.outcome(again), case.outcome(linear_cross_entropy)):
        assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it after a break
def test_inside_a_compiled_function() -> None:
    case = Case.of(10, 4, 6, biased=True, ignored=0.3)

    @torch.compile(backend="aot_eager")
    def whole(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(hidden.tanh(), weight, bias, targets) * 2

    def exact(hidden: Tensor, *others: Tensor) -> Tensor:
        return textbook(hidden.tanh(), *others) * 2

    agree(case.outcome(whole), case.double().outcome(exact))
    with torch.no_grad():
        agree([whole(*case)], [exact(*case.double())])  # type: ignore[arg-type]


def test_inputs_in_any_layout() -> None:
    case = Case.of(12, 6, 9)
    loose = Case(
        case.hidden.detach().T.contiguous().T.requires_grad_(),
        case.weight.detach().repeat(2, 1)[:9].T.contiguous().T.requires_grad_(),
        None,
        case.targets.int().repeat_interleave(2)[::2],
    )
    with chunk_bytes(9 * 4 * 5):
        agree(loose.outcome(linear_cross_entropy), case.double().outcome(textbook))


@pytest.mark.parametrize("wrong", [-1, 6, -101])
def test_a_target_that_is_no_id_is_an_error(wrong: int) -> None:
    case = Case.of(10, 4, 6)
    case.targets[3] = wrong
    with pytest.raises(RuntimeError, match="out of bounds"):
        linear_cross_entropy(*case)


def test_a_logit_that_is_no_number_is_seen_in_the_loss() -> None:
    case = Case.of(10, 4, 6)
    with torch.no_grad():
        case.hidden[2, 1] = float("nan")
    assert linear_cross_entropy(*case).isnan()


def test_the_same_inputs_give_the_same_bits() -> None:
    case = Case.of(100, 8, 50, biased=True)
    with chunk_bytes(50 * 4 * 30):
        for first, second in zip(case.outcome(linear_cross_entropy), case.outcome(linear_cross_entropy)):
            assert torch.equal(first, second)


@pytest.mark.parametrize(("n", "size", "rows"), [(0, 400, 1), (1, 400, 1), (10, 400, 10), (11, 400, 6), (5, 1, 1)])
def test_chunks_are_of_about_one_size(n: int, size: int, rows: int) -> None:
    with chunk_bytes(size):
        assert cross_entropy._chunk_rows(n, 10, torch.empty(0)) == rows


KERNEL = """
import torch
import torch.nn.functional as F
from shoestring.models.layers import cross_entropy
from shoestring.models.kernels import cross_entropy as kernel
from shoestring.models.layers.cross_entropy import (
    IGNORED, Form, LogitScales, linear_cross_entropy, soft_cap, token_cross_entropy)

PLAIN = LogitScales()
torch.manual_seed(0)
for whole, piece in ((kernel.WHOLE, kernel.PIECE), (16, 64), (0, 16)):
    kernel.WHOLE, kernel.PIECE = whole, piece
    for n, v, kind in [(1, 1, torch.int64), (5, 2, torch.int32), (4, 16, torch.int64), (6, 100, torch.int64),
                       (3, 603, torch.int64), (2, 1025, torch.int32)]:
        if v > 16 * piece:
            continue  # slow to interpret
        c = kernel.columns(v)
        assert v <= c < v + 64 and c % (64 if v >= 1024 else 16) == 0
        logits = torch.randn(n, c) * 20
        targets = torch.randint(v, (n,))
        if n > 2:
            targets[1] = IGNORED
        exact = logits[:, :v].double().requires_grad_()
        expected = F.cross_entropy(exact, targets, reduction="none", ignore_index=IGNORED)
        expected.sum().backward()
        for gradient in (False, True):
            found, losses = logits.clone(), torch.full((n,), 7.0)
            kernel.fused(found, v, targets.to(kind), losses, gradient, PLAIN)
            assert torch.allclose(losses.double(), expected, rtol=1e-5, atol=1e-5), (n, v, losses, expected)
            if gradient:
                assert torch.allclose(found[:, :v].double(), exact.grad, rtol=1e-5, atol=1e-6), (n, v)
                assert (found[:, v:] == 0).all()
            else:
                assert torch.equal(found, logits)
        exact.grad = None
        expected = F.cross_entropy(soft_cap(exact, 7.5), targets, reduction="none", ignore_index=IGNORED)
        expected.sum().backward()
        found, losses = logits.clone(), torch.full((n,), 7.0)
        kernel.fused(found, v, targets.to(kind), losses, True, LogitScales(torch.tensor(0.5), 7.5))
        assert torch.allclose(losses.double(), expected, rtol=1e-5, atol=1e-5), (n, v, losses, expected)
        assert torch.allclose(found[:, :v].double(), exact.grad / 2, rtol=1e-5, atol=1e-6), (n, v)
        assert (found[:, v:] == 0).all()
        exact.grad, odds = None, (torch.randn(n) * 20).double().requires_grad_()
        with torch.no_grad():
            odds[0] = -torch.inf
        plainly = F.cross_entropy(exact, targets, reduction="none", ignore_index=IGNORED)
        expected = (-torch.logaddexp(-plainly, odds)).masked_fill(targets == IGNORED, 0.0)
        expected.sum().backward()
        for gradient in (False, True):
            found, losses, given = logits.clone(), torch.full((n,), 7.0), odds.detach().float()
            kernel.fused(found, v, targets.to(kind), losses, gradient, LogitScales(torch.tensor(0.5), odds=given))
            assert torch.allclose(losses.double(), expected, rtol=1e-4, atol=1e-5), (n, v, losses, expected)
        assert torch.allclose(found[:, :v].double(), exact.grad / 2, rtol=1e-4, atol=1e-6), (n, v)
        assert torch.allclose(given.double(), odds.grad / 2, rtol=1e-4, atol=1e-6), (n, v)
    scaled, plain = (torch.linspace(-9, 9, 32).half().repeat(2, 1) for _ in range(2))  # the least share is 2e-8
    targets, losses = torch.tensor([3, IGNORED]), torch.zeros(2)
    kernel.fused(plain, 30, targets, losses, True, PLAIN)
    kernel.fused(scaled, 30, targets, losses, True, LogitScales(torch.tensor(2.0**12)))
    exact = torch.linspace(-9, 9, 32).half()[:30].double().softmax(0) - F.one_hot(targets[0], 30)
    assert plain[0, 0] == 0 and (scaled[1] == 0).all() and (scaled[:, 30:] == 0).all()
    assert torch.allclose(scaled[0, :30].double(), exact * 2.0**12, rtol=1e-3, atol=1e-7)
    for wrong in (-1, 5, -101):
        losses = torch.zeros(1)
        kernel.fused(torch.randn(1, 16), 5, torch.tensor([wrong]), losses, True, PLAIN)
        assert losses.isnan().all()

# all of it, with padded products; rows that are ignored reach the kernel too
cross_entropy._form = lambda device, dtype: Form(kernel.fused, kernel.columns, False)
for n, d, v in [(9, 4, 21), (7, 3, 16), (4, 5, 1030)]:
    cross_entropy.CHUNK_BYTES, cross_entropy.LEAST_ROWS = {"cpu": 4 * kernel.columns(v) * 3}, 1
    inputs = [torch.randn(n, d), torch.randn(v, d), torch.randn(v)]
    targets = torch.randint(v, (n,))
    targets[2] = IGNORED
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        h, w, b = (x.to(dtype).requires_grad_() for x in inputs)
        if dtype == torch.float32:
            loss = linear_cross_entropy(h, w, b, targets)
            assert torch.allclose(token_cross_entropy(h, w, b, targets).sum(), loss.detach())
        else:
            loss = F.cross_entropy(F.linear(h, w, b), targets, reduction="sum", ignore_index=IGNORED)
        outcomes.append([loss.detach(), *torch.autograd.grad(loss, (h, w, b))])
    for ours, exact in zip(*outcomes):
        assert ours.shape == exact.shape and torch.allclose(ours.double(), exact, rtol=1e-4, atol=1e-5)
"""

AHEAD = r"""
from ahead import compile_ahead
from triton.compiler import ASTSource
from shoestring.models.kernels import cross_entropy as kernel
for type in ("*bf16", "*fp16", "*fp32"):
    for gradient in (False, True):
        for held, block in ((True, 16), (True, 1024), (True, kernel.WHOLE), (False, kernel.PIECE)):
            if type != "*bf16" and block in (16, kernel.WHOLE):
                continue  # as above
            constants = {"GRADIENT": gradient, "SCALED": type == "*fp16", "HELD": held, "BLOCK": block}
            constants["CAP"] = 15.0 if type == "*bf16" else 0.0
            kinds = {"logits": type, "targets": "*i64", "losses": "*fp32", "columns": "i32", "ids": "i32"}
            kinds["scale"] = "*fp32"
            signature = {name: kinds.get(name, "constexpr") for name in kernel.losses_kernel.arg_names}
            aligned = {(i,): [["tt.divisibility", 16]] for i in range(5)}
            source = ASTSource(fn=kernel.losses_kernel, signature=signature, constexprs=constants, attrs=aligned)
            made = compile_ahead(source, 90, num_warps=min(16, max(1, block // 512)))
            assert made.shared <= 1024
            assert block < 1024 or made.has(r"ld\.global\S*\.v4"), "whole loads"
            assert block < 1024 or not gradient or made.has(r"st\.global\S*\.v4"), "whole stores"

# for GPUs without bf16, in fp16: a T4
from shoestring.models.kernels import fused_layers as fused

def compile_for_t4(function, **given):
    constants = {name: value for name, value in given.items() if name.isupper()}
    wide = dict.fromkeys(("weight", "scales", "sums", "cos", "sin", "table", "partial", "losses", "scale"), "*fp32")
    numbers = dict.fromkeys(("d", "n", "f", "v", "length", "heads", "shared", "columns"), "i32") | {"eps": "fp32"}
    kinds = wide | numbers | dict.fromkeys(("ids", "order", "targets"), "*i64") | given
    signature = {n: "constexpr" if n in constants else kinds.get(n, "*fp16") for n in function.arg_names}
    compile_ahead(ASTSource(fn=function, signature=signature, constexprs=constants), 75)

compile_for_t4(kernel.losses_kernel, ids="i32", GRADIENT=True, SCALED=True, HELD=False, CAP=0.0, BLOCK=kernel.PIECE)
compile_for_t4(fused.add_norm_kernel, BLOCK=1024)
compile_for_t4(fused.add_norm_backward_kernel, BLOCK=1024)
compile_for_t4(fused.gated_kernel, BLOCK=1024)
compile_for_t4(fused.gated_backward_kernel, BLOCK=1024)
compile_for_t4(fused.qkv_rope_kernel, v="*fp16", BACK=True, P=32, PLACES=1, PAIRS=512)
compile_for_t4(fused.gather_kernel, BLOCK=1024)
compile_for_t4(fused.sum_kernel, ids="*i32", out="*fp32", ROWS=32, BLOCK=256)
compile_for_t4(fused.join_kernel, ids="*i32", out="*fp32", ROWS=32, BLOCK=256)
"""

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


@needs_triton
def test_the_kernel_makes_the_losses_and_gradients_of_float64(tmp_path: Path) -> None:
    run_script(tmp_path, KERNEL, interpret=True)


@needs_triton
def test_the_kernel_compiles_for_the_chip_and_moves_whole_words(tmp_path: Path) -> None:
    run_script(tmp_path, AHEAD)


def test_eager_passes_do_not_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be loading it."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # importing it is an error
    case = Case.of(10, 4, 6)
    agree(case.outcome(linear_cross_entropy), case.double().outcome(textbook))
