"""fp16 on a GPU: fused layers beside float64, an overflow in a recorded step, and learning beside bf16."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.models.layers.add_norm import add_norm
from shoestring.models.layers.blocks import RMSNorm
from shoestring.models.layers.cross_entropy import IGNORED, linear_cross_entropy
from shoestring.models.layers.embedding_lookup import embedding_lookup
from shoestring.models.layers.linear import linear, swiglu_linear
from shoestring.models.layers.rotary import frequencies, qkv_rope, rotate, turns
from shoestring.training import loss_scale
from shoestring.training.learner import Learner

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]
CUDA = torch.device("cuda:0")
VOCABULARY, LENGTH, ROWS = 300, 64, 16


def off_by(found: Tensor, exact: Tensor) -> float:
    return float((found.detach().double() - exact.detach()).norm() / exact.detach().norm())


def half(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


@pytest.mark.parametrize(("n", "d"), list(itertools.product((1, 37, 5000), (64, 100, 768))))
def test_layers_in_fp16_are_those_of_float64(n: int, d: int) -> None:
    torch.manual_seed(0)
    norm, layer, weight = RMSNorm(d, eps=1e-5).cuda(), torch.nn.Linear(d, 128).cuda(), torch.randn(128, d).cuda()
    table, ids = torch.nn.Embedding(50, d).cuda(), torch.randint(50, (1, n), device="cuda")
    x, change, pairs = half(1, n, d), half(1, n, d), half(1, n, 2 * d)
    inputs = [x, change, pairs, norm.weight, layer.weight, layer.bias, weight, table.weight]
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    norm.weight, layer.weight, layer.bias, table.weight = (
        torch.nn.Parameter(leaf.detach()) for leaf in (leaves[3], leaves[4], leaves[5], leaves[7])
    )
    tracked = [*leaves[:3], norm.weight, layer.weight, layer.bias, leaves[6], table.weight]
    outputs = (
        *add_norm(leaves[0], leaves[1], norm),
        linear(leaves[0], layer),
        swiglu_linear(leaves[2], leaves[6]),
        embedding_lookup(table, ids, torch.float16),
    )
    assert {output.dtype for output in outputs} == {torch.float16}
    total = wide[0] + wide[1]
    exact = (
        total,
        F.rms_norm(total, (d,), wide[3], 1e-5),
        F.linear(wide[0], wide[4], wide[5]),
        F.linear(F.silu(wide[2][..., :d]) * wide[2][..., d:], wide[6]),
        F.embedding(ids, wide[7]),
    )
    outer = [half(*output.shape) for output in outputs]
    found = torch.autograd.grad(outputs, tracked, outer)
    wanted = torch.autograd.grad(exact, wide, [each.double() for each in outer])
    for one, two in zip((*outputs, *found), (*exact, *wanted), strict=True):
        assert off_by(one, two) < 0.003


@pytest.mark.parametrize(("heads", "shared", "channels"), [(12, 12, 64), (8, 2, 128), (3, 1, 16)])
def test_turned_heads_in_fp16(heads: int, shared: int, channels: int) -> None:
    torch.manual_seed(0)
    angles = turns(frequencies(channels, 10_000.0).cuda(), 129)
    qkv = half(3, 129, heads + 2 * shared, channels).requires_grad_()
    parts = qkv_rope(qkv, angles, heads)
    outer = [half(*part.shape) for part in parts]
    (found,) = torch.autograd.grad(parts, qkv, outer)
    wide, exact_angles = qkv.detach().double().requires_grad_(), (angles[0].double(), angles[1].double())
    q, k, v = wide.split((heads, shared, shared), dim=2)
    exact = (rotate(q, exact_angles, heads=2), rotate(k, exact_angles, heads=2), v)
    (wanted,) = torch.autograd.grad(exact, wide, [each.double() for each in outer])
    for one, two in zip((*parts, found), (*exact, wanted), strict=True):
        assert off_by(one, two) < 0.003


@pytest.mark.parametrize("v", [100, 5000, 50_304])
def test_a_scaled_loss_keeps_the_gradients_of_rare_ids(v: int) -> None:
    """The shares of most ids are below what fp16 can hold, unless they are scaled."""
    torch.manual_seed(0)
    hidden, weight = half(256, 64) * 2, torch.randn(v, 64, device="cuda") * 0.5
    targets = torch.randint(v, (256,), device="cuda")
    targets[::7] = IGNORED
    wide = [tensor.double().requires_grad_() for tensor in (hidden, weight.half())]
    loss = F.cross_entropy(F.linear(*wide), targets, reduction="sum", ignore_index=IGNORED)
    exact = torch.autograd.grad(loss, wide)
    off = []
    for scale in (1.0, 2.0**12):
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight)]
        with torch.autocast("cuda", dtype=torch.float16):
            found = linear_cross_entropy(leaves[0], leaves[1], None, targets, torch.tensor(scale, device="cuda"))
        assert off_by(found, loss) < 1e-3
        _, to_weight = (gradient / scale for gradient in torch.autograd.grad(found, leaves))
        rare = exact[1].abs().amax(1) < 1e-6
        off.append(off_by(to_weight[rare], exact[1][rare]) if rare.any() else 0.0)
        assert off_by(to_weight, exact[1]) < 0.01
    assert off[1] <= off[0] and off[1] < 0.02


def learner_of(precision: str, **settings: object) -> Learner:
    model = build(Model(width=128, layers=2, heads=4), VOCABULARY, LENGTH, 3)
    return Learner(model, Train(batch=ROWS, lr=1e-3, precision=precision, **settings), CUDA)  # type: ignore[arg-type]


def some_rows() -> Tensor:
    """Rows of a cycle with some noise, so that there is something to learn."""
    generator = torch.Generator().manual_seed(5)
    rows = (torch.arange(LENGTH + 1) + torch.randint(VOCABULARY, (ROWS, 1), generator=generator)) % VOCABULARY
    noise = torch.rand(rows.shape, generator=generator) < 0.1
    return torch.where(noise, torch.randint(VOCABULARY, rows.shape, generator=generator), rows)


def test_an_overflow_in_a_recorded_step_skips_it_and_the_next_ones_are_taken() -> None:
    learner, rows, skipped = learner_of("fp16", ema=0.9), some_rows(), []
    scale = learner.loss_scale
    assert scale is not None
    for step in range(12):
        if step == 6:
            scale.value.fill_(loss_scale.MOST)  # the recorded passes read it from where it is
        before = {name: tensor.clone() for name, tensor in learner.saved_tensors().items()}
        update = learner.update(learner.accumulate(rows, ROWS // 2), 1e-3)
        skipped.append(bool(update.skipped))
        assert math.isfinite(update.nats.item()) and math.isfinite(update.norm.item()) != skipped[-1]
        after = learner.saved_tensors()  # the optimizer has no state before its first step
        changed = [n for n, t in after.items() if n not in before or not torch.equal(t, before[n])]
        assert not skipped[-1] or changed == ["loss scale"] or set(changed) == set(scale.tensors())
    assert learner._recordings is not None and learner._recordings._recording is not None, "passes were recorded"
    assert skipped[:6] == [False] * 6 and skipped[6:9] == [True] * 3 and scale.value < loss_scale.MOST / 4


def test_fp16_learns_as_bf16_does() -> None:
    rows, losses = some_rows(), {}
    for precision in ("fp16", "bf16", "fp32"):
        learner = learner_of(precision)
        for _ in range(150):
            tally = learner.accumulate(rows, ROWS // 2)
            learner.update(tally, 2e-3)
        losses[precision] = tally.nats.item() / tally.predictions
    assert losses["fp32"] < 3.0
    assert abs(losses["fp16"] - losses["fp32"]) < 0.05 + abs(losses["bf16"] - losses["fp32"])
