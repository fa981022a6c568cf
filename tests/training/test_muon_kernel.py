"""Muon in two launches beside its products: its updates are those without kernels, which test_muon.py checks."""

import importlib.util
from pathlib import Path

import pytest
from scripts import run_script

SCRIPT = """
import torch
from shoestring.training.optimizers import muon, muon_kernel

muon_kernel.PIECE = 256
muon.AT_ONCE = {"cpu": 1 << 11}
SHAPES = [(33, 16), (8, 48), (33, 16), (16, 16), (16, 33)]
kernels = muon._has_kernels
for polar, normalize, cautious, warmup in ((False, False, False, 0), (True, True, False, 0), (False, True, True, 3)):
    torch.manual_seed(0)
    ours = [torch.randn(shape) for shape in SHAPES]
    wide = [tensor.clone() for tensor in ours]
    parts = dict(polar_express=polar, normalize_neurons=normalize, cautious_decay=cautious, momentum_warmup=warmup)
    settings = dict(lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw", **parts)
    optimizer, exact = muon.Muon(ours, **settings), muon.Muon(wide, **settings)
    for step in range(4):
        refused = step == 2
        for one, two in zip(ours, wide):
            one.grad = torch.full_like(one, torch.nan) if refused else torch.randn(one.shape) * 3
            two.grad = one.grad.clone()
        for each in (optimizer, exact):
            each.grad_scale, each.found_inf = torch.tensor(3.0), torch.tensor(float(refused))
            for group in each.param_groups:
                group["lr"] = torch.tensor(1e-2 / (step + 1))
        muon._has_kernels = lambda matrix: True
        before = [tensor.clone() for tensor in ours]
        optimizer.step()
        muon._has_kernels = kernels
        exact.step()
        if step == 1:  # as after a checkpoint
            for tensor in ours:
                optimizer.state[tensor] = {key: value.clone() for key, value in optimizer.state[tensor].items()}
        for one, two, old in zip(ours, wide, before):
            assert not refused or torch.equal(one, old)
            torch.testing.assert_close(one, two, rtol=0, atol=2e-5, msg=lambda text: f"{parts}: {text}")
            for key, value in exact.state[two].items():
                torch.testing.assert_close(optimizer.state[one][key], value, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_the_kernels_make_the_same_updates(tmp_path: Path) -> None:
    """With each part alone and together; a step is refused."""
    run_script(tmp_path, SCRIPT, interpret=True)
