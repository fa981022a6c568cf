"""On a GPU: a Swift's layers that are one pass, beside float64, what they keep, and what a network of them learns."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.cost.transformer import Setting, transformer_of
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.models.layers.blocks import PlainNorm, RMSNorm
from shoestring.models.layers.normed_heads import normed_heads
from shoestring.models.layers.rotary import frequencies, rotate, turns
from shoestring.models.layers.scaled_add_norm import scaled_add_norm
from shoestring.models.layers.short_convolution import short_convolution
from shoestring.runs.best import SWIFT_PARTS
from shoestring.training.learner import Learner
from shoestring.training.precision import passing

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

PARTS, CHOSEN = "qk_norm, gains, zero_outputs, value_embeddings, scales", SWIFT_PARTS["cuda"]
CUDA = torch.device("cuda")


def off_by(found: Tensor, exact: Tensor) -> float:
    """What is wrong of it; what must be 0 may be off by the least number."""
    return float((found.detach().double() - exact.detach()).norm() / exact.detach().norm().clamp_min(1e-30))


@pytest.mark.parametrize("n", [1, 37, 5000])
@pytest.mark.parametrize("d", [64, 100, 768, 4096])
def test_scaling_adding_and_normalising(n: int, d: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (5, 1, n, d)
    x, change, first, *outer = torch.randn(shape, device=CUDA, generator=generator, dtype=torch.bfloat16).unbind()
    norm, factors = RMSNorm(d, eps=1e-5).cuda(), torch.tensor([0.8, -0.3], device=CUDA, requires_grad=True)
    inputs = [*(each.requires_grad_() for each in (x, change, first)), factors, norm.weight]
    outputs = scaled_add_norm(*inputs[:4], norm)
    found = torch.autograd.grad(outputs, inputs, outer)
    wide = [each.detach().double().requires_grad_() for each in inputs]
    total = wide[3][0] * (wide[0] + wide[1]) + wide[3][1] * wide[2]
    exact = (total, F.rms_norm(total, (d,), wide[4], 1e-5))
    wanted = torch.autograd.grad(exact, wide, [each.double() for each in outer])
    for one, two in zip((*outputs, *found), (*exact, *wanted), strict=True):
        assert off_by(one, two) < 0.02


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("d", [64, 100, 768])
@pytest.mark.parametrize(("rows", "length", "before"), [(1, 1, 3), (3, 129, 3), (40, 1000, 1), (2, 50, 8)])
def test_short_convolutions(rows: int, length: int, before: int, d: int, documents: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (2, rows, length, d)
    x, outer = torch.randn(shape, device=CUDA, generator=generator, dtype=torch.bfloat16).unbind()
    factors = torch.randn(before, d // (1 + documents), device=CUDA, generator=generator)  # all channels, or the last
    positions = torch.randint(length, (rows, length), device=CUDA, generator=generator) % (
        1 + torch.arange(length).cuda()
    )
    given = [x.requires_grad_(), factors.requires_grad_()]
    wide = [each.detach().double().requires_grad_() for each in given]
    told = positions if documents else None
    found, exact = short_convolution(*given, told), short_convolution(*wide, told)  # in float64 it is the plain one
    gradients = torch.autograd.grad(found, given, outer), torch.autograd.grad(exact, wide, outer.double())
    for one, two in zip((found, *gradients[0]), (exact, *gradients[1]), strict=True):
        assert off_by(one, two) < 0.02


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize(("heads", "shared", "channels"), [(12, 12, 64), (8, 2, 128), (3, 1, 16), (5, 5, 96)])
def test_normed_heads(heads: int, shared: int, channels: int, valued: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=CUDA, generator=generator, dtype=torch.bfloat16)

    angles = turns(frequencies(channels, 10_000.0).cuda(), 129)
    qkv = drawn(3, 129, heads + 2 * shared, channels).requires_grad_()
    norms = RMSNorm(channels, eps=1e-5).cuda(), RMSNorm(channels, eps=1e-5).cuda()
    gains = [norm.weight for norm in norms]
    added = [drawn(3, 129, 3 * shared * channels).chunk(3, dim=-1)[1], drawn(3, 129, shared)] if valued else []
    inputs = [qkv, *gains, *(each.requires_grad_() for each in added)]
    parts = normed_heads(qkv, angles, norms, heads, *added)
    outer = [drawn(*part.shape) for part in parts]
    found = torch.autograd.grad(parts, inputs, outer)
    wide = [each.detach().double().requires_grad_() for each in inputs]
    q, k, v = wide[0].split((heads, shared, shared), dim=2)
    tables = (angles[0].double(), angles[1].double())
    q, k = (rotate(F.rms_norm(each, (channels,), gain, 1e-5), tables, heads=2) for each, gain in zip((q, k), wide[1:3]))
    exact = (q, k, v + 2 * wide[4].sigmoid()[..., None] * wide[3].view(v.shape) if valued else v)
    wanted = torch.autograd.grad(exact, wide, [each.double() for each in outer])
    for one, two in zip((*parts, *found), (*exact, *wanted), strict=True):
        assert off_by(one, two) < 0.02


@pytest.mark.parametrize(
    "parts", [PARTS, "qk_norm, gains", "qk_norm, scales", "gains, scales", PARTS + ", convolutions"]
)
@pytest.mark.parametrize(("kv_heads", "pairs"), [(None, None), (2, 99)])
def test_a_row_keeps_what_is_counted(parts: str, kv_heads: int | None, pairs: int | None) -> None:
    """By the difference of four rows and two; kernels of attention may round their sums up."""
    model = Model(family="swift", width=256, layers=3, heads=4, kv_heads=kv_heads, parts=parts, pairs=pairs, tied=False)  # type: ignore[arg-type]
    network, length, sizes = build(model, 31, 256, 0).to(CUDA), 256, list[int]()
    ids = torch.randint(31, (4, length + 1), generator=torch.Generator().manual_seed(0)).to(CUDA)
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    for rows in (2, 4):
        storages = {}

        def keep(x: Tensor, storages: dict[int, torch.UntypedStorage] = storages) -> Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in own:
                storages[storage.data_ptr()] = storage
            return x

        with passing(CUDA, torch.bfloat16), saved_tensors_hooks(keep, lambda x: x):
            network(Batch.of(ids[:rows]))
        sizes.append(sum(storage.nbytes() for storage in storages.values()))
    counted = sum(
        transformer_of(model).saved_bytes(model, length, Setting(number=2, compiled=False, gpu=True)).values()
    )
    assert (sizes[1] - sizes[0]) / 2 == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("parts", [PARTS, CHOSEN, "qk_norm, value_embeddings, scales", PARTS + ", convolutions:2"])
def test_gradients_are_those_of_plain_layers_in_fp32(parts: str) -> None:
    model = Model(family="swift", width=128, layers=4, heads=4, kv_heads=2, parts=parts, pairs=99, tied=False)  # type: ignore[arg-type]
    network = build(model, 31, 64, 0).to(CUDA)
    with torch.no_grad():
        for parameter in network.parameters():  # none is 0, or 1
            parameter += 0.05 * torch.randn_like(parameter)
    batch = Batch.of(torch.randint(31, (8, 65), generator=torch.Generator().manual_seed(0)).to(CUDA))
    found = list[list[Tensor]]()
    for dtype in (torch.bfloat16, torch.float32):
        with passing(CUDA, dtype):
            loss = network(batch)
        found.append([loss.detach(), *torch.autograd.grad(loss, list(network.parameters()))])
    names = ["loss", *(name for name, _ in network.named_parameters())]
    scales = [i for i, name in enumerate(names) if "scales" in name]  # sums of many terms that cancel
    for i in set(range(len(names))) - set(scales):
        assert off_by(found[0][i], found[1][i].double()) < 0.06, names[i]
    one, two = (torch.cat([gradients[i] for i in scales]) for gradients in found)
    assert off_by(one, two.double()) < 0.3
    assert isinstance(network.norm, PlainNorm) == ("gains" not in parts)


@pytest.mark.parametrize("parts", [PARTS, CHOSEN, PARTS + ", convolutions"])
def test_recorded_steps_learn(parts: str) -> None:
    model = Model(family="swift", width=128, layers=4, heads=4, parts=parts, pairs=99, tied=False)  # type: ignore[arg-type]
    settings = Train(batch=8, lr=5e-3, optimizer="muon")
    rows = torch.arange(8 * 65).reshape(8, 65) % 50
    losses = list[list[float]]()
    for compiled in (False, None):
        learner = Learner(build(model, 50, 64, 0), settings, CUDA, compiled=compiled)
        losses.append([learner.update(learner.accumulate(rows, 8), 5e-3).nats.item() for _ in range(8)])
        assert learner.unrecorded is None
    assert losses[0][-1] < 0.7 * losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
