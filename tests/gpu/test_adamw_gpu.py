"""AdamW in one launch, beside torch's in float64."""

import pytest
import torch
from torch import Tensor

from shoestring.training.optimizers.adamw import AdamW

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

SHAPES = [(700, 300), (2048,), (2049,), (1,), (3, 5, 7)]


def grouped(kind: type[torch.optim.AdamW], tensors: list[Tensor]) -> torch.optim.AdamW:
    groups = [{"params": tensors[:2], "weight_decay": 0.1}, {"params": tensors[2:], "weight_decay": 0.0}]
    return kind(groups, lr=1e-2, betas=(0.9, 0.999), fused=True)


@pytest.mark.parametrize("moving", [False, True], ids=["in place", "elsewhere every time"])
@pytest.mark.parametrize("factor", [1.0, 3.0], ids=["one rate", "two rates"])
def test_updates_are_those_of_float64(moving: bool, factor: float) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    ours = [torch.randn(shape, device="cuda", generator=generator) for shape in SHAPES]
    wide = [tensor.double() for tensor in ours]
    optimizer, exact = grouped(AdamW, ours), grouped(torch.optim.AdamW, wide)
    assert isinstance(optimizer, AdamW)
    for tensor in ours:
        tensor.grad = torch.empty_like(tensor)
    kept = []  # so that new gradients lie elsewhere
    for step in range(8):
        refused = step == 3
        for one, two in zip(ours, wide, strict=True):
            gradient = torch.randn(one.shape, device="cuda", generator=generator)
            two.grad = gradient.double() / 3
            if moving:
                kept.append(one.grad)
                one.grad = gradient
            else:
                assert one.grad is not None
                one.grad.copy_(gradient)
        for group in (*optimizer.param_groups, *exact.param_groups):
            group["lr"] = 1e-2 / (step + 1)
        for each in (optimizer, exact):
            each.param_groups[1]["lr"] *= factor
        optimizer.grad_scale = torch.tensor(3.0, device="cuda")
        optimizer.found_inf = torch.tensor(float(refused), device="cuda")
        before = [tensor.clone() for tensor in ours]
        optimizer.step()
        if refused:
            assert all(torch.equal(one, two) for one, two in zip(ours, before, strict=True))
        else:
            exact.step()
        if step == 5:  # as after a checkpoint
            for tensor in ours:
                optimizer.state[tensor] = {key: value.clone() for key, value in optimizer.state[tensor].items()}
        for one, two in zip(ours, wide, strict=True):
            torch.testing.assert_close(one.double(), two, rtol=0, atol=2e-6)
            assert optimizer.state[one]["step"] == exact.state[two]["step"]
