"""Muon in two launches beside its products on a GPU: the updates of the same without kernels."""

from __future__ import annotations

import pytest
import torch

from shoestring.training.optimizers import muon

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]
SHAPES = [(256, 768), (768, 256), (256, 256), (256, 768), (128, 131), (768, 256)]


@pytest.mark.parametrize("polar", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("cautious", [False, True])
def test_updates_are_those_without_kernels(
    polar: bool, normalize: bool, cautious: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, kernels = torch.Generator("cuda").manual_seed(0), muon._has_kernels
    ours = [torch.randn(shape, device="cuda", generator=random) for shape in SHAPES]
    other = [tensor.clone() for tensor in ours]
    settings = {"polar_express": polar, "normalize_neurons": normalize, "cautious_decay": cautious}
    made = [
        muon.Muon(each, lr=0.0, weight_decay=0.1, adjust_lr_fn="match_rms_adamw", **settings) for each in (ours, other)
    ]
    for step in range(5):
        refused, begun = step == 3, [tensor.clone() for tensor in ours]
        for one, two in zip(ours, other, strict=True):
            one.grad = torch.randn(one.shape, device="cuda", generator=random)
            two.grad = one.grad.clone()
        for optimizer, with_kernels in zip(made, (True, False), strict=True):
            monkeypatch.setattr(muon, "_has_kernels", kernels if with_kernels else lambda _: False)
            optimizer.grad_scale = torch.tensor(3.0, device="cuda")
            optimizer.found_inf = torch.tensor(float(refused), device="cuda")
            optimizer.param_groups[0]["lr"] = torch.tensor(1e-2, device="cuda")
            optimizer.step()
        for one, two, old in zip(ours, other, begun, strict=True):
            assert torch.equal(one, old) == refused
            moved = (two - old).norm()
            assert float((one - two).norm()) <= (0.1 if cautious else 0.04) * float(moved) + 1e-7, (
                "products are in bf16"
            )
            mean, kept = (each.state[p]["momentum_buffer"] for each, p in zip(made, (one, two), strict=True))
            torch.testing.assert_close(mean, kept, rtol=1e-5, atol=1e-6)
            two.copy_(one)
