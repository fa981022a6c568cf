"""AdamW in one launch: beside torch's in float64, in the interpreter here and on a GPU in tests/gpu."""

import importlib.util
from pathlib import Path

import pytest
from scripts import run_script

SCRIPT = """
import torch
from shoestring.training.optimizers import adamw
from shoestring.training.optimizers import adamw_kernel

adamw._has_kernel = lambda p: True
adamw_kernel.PIECE = 64
torch.manual_seed(0)
ours = [torch.randn(shape) for shape in ((33, 7), (128,), (3,), (1,))]
wide = [tensor.double() for tensor in ours]

def grouped(kind, tensors, **settings):
    groups = [{"params": tensors[:2], "weight_decay": 0.1}, {"params": tensors[2:], "weight_decay": 0.0}]
    return kind(groups, lr=1e-2, betas=(0.9, 0.999), **settings)

optimizer, exact = grouped(adamw.AdamW, ours, fused=True), grouped(torch.optim.AdamW, wide)
launches = []
optimizer._step_in_one = lambda *given: (launches.append(1), adamw.AdamW._step_in_one(optimizer, *given))
kept = []
for step in range(9):
    refused = step == 3
    for one, two in zip(ours, wide):
        gradient = torch.randn(one.shape) * torch.rand(one.shape) ** 3
        two.grad = gradient.double()
        if one.grad is None or step > 5:  # elsewhere every time, as where passes are not recorded
            kept.append(one.grad)
            one.grad = gradient * 2
        else:
            one.grad.copy_(gradient * 2)
    for group in (*optimizer.param_groups, *exact.param_groups):
        group["lr"] = 1e-2 / (step + 1)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(float(refused))
    optimizer.step()
    if not refused:
        exact.step()
    if step == 4:  # as after a checkpoint
        for tensor in ours:
            optimizer.state[tensor] = {key: value.clone() for key, value in optimizer.state[tensor].items()}
    for one, two in zip(ours, wide):
        torch.testing.assert_close(one.double(), two, rtol=0, atol=2e-6)
        for key in ("exp_avg", "exp_avg_sq"):
            found, wanted = optimizer.state[one][key].double(), exact.state[two][key]
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
        assert optimizer.state[one]["step"] == exact.state[two]["step"]
assert len(launches) == 8  # all but the first, which makes the state
"""


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_the_kernel_makes_the_updates_of_float64(tmp_path: Path) -> None:
    run_script(tmp_path, SCRIPT, interpret=True)


SHARED = """
from types import SimpleNamespace

import torch
from shoestring.training.optimizers import adamw, adamw_kernel
from shoestring.training.optimizers.batch_moments import NOISE, Half, Share, lengthen_steps

adamw._has_kernel = lambda p: p.dtype == torch.float32
adamw_kernel.PIECE = 64
torch.manual_seed(0)
for halves, workers in ((True, 2), (True, 5), (False, 4)):
    ours = [torch.randn(shape) for shape in ((33, 7), (128,), (3,))]
    wide = [tensor.double() for tensor in ours]
    settings = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}
    optimizer, exact = adamw.AdamW(ours, **settings, fused=True), torch.optim.AdamW(wide, **settings)
    optimizer.prepare()
    launches, half = [], Half(ours)
    optimizer._step_in_one = lambda *given: (launches.append(1), adamw.AdamW._step_in_one(optimizer, *given))
    for step in range(7):
        refused, p, q, clip = step == 3, 5 + step, 0 if step == 4 else 8, torch.tensor(1.25)
        firsts, seconds = ([torch.randn(each.shape) for each in ours] for _ in range(2))
        for one, two, a, b in zip(ours, wide, firsts, seconds):
            one.grad = p * a + q * b
            two.grad = one.grad.double() / (p + q) / 1.25
        half.keep([p * a for a in firsts], p, q)
        optimizer.grad_scale, optimizer.found_inf = (p + q) * clip, torch.tensor(float(refused))
        optimizer.share = Share(
            workers, half if halves else None, [id(each) for each in ours], [each.grad for each in ours],
            optimizer.grad_scale,
        )
        optimizer.step()
        if not refused:
            exact.step()
            root = (p * q) ** 0.5 / (p + q) / 1.25
            told = {id(two): (a - b).double() * root for two, a, b in zip(wide, firsts, seconds)} if halves else None
            taken = SimpleNamespace(param_groups=exact.param_groups, state=exact.state, found_inf=torch.zeros(()))
            lengthen_steps(taken, workers, told)
        for one, two in zip(ours, wide):
            torch.testing.assert_close(one.double(), two, rtol=0, atol=1e-5)
            for key in ("exp_avg", "exp_avg_sq", *((NOISE,) if halves else ())):
                torch.testing.assert_close(optimizer.state[one][key].double(), exact.state[two][key], rtol=0, atol=1e-6)
            assert halves or NOISE not in optimizer.state[one]
    assert len(launches) == 7
"""


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_the_kernel_makes_the_steps_of_a_worker_with_a_share(tmp_path: Path) -> None:
    """Beside `lengthen_steps` in float64, which is tested against steps by hand; a step is refused, a half is empty."""
    run_script(tmp_path, SHARED, interpret=True)
