"""Updates beside the formulas in float64: division, clipping, AdamW, Muon, running means, and gradients that are no
numbers."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import LanguageModel, build
from shoestring.training.optimizer import Optimizer, squared_norm
from shoestring.training.optimizers import muon
from shoestring.training.optimizers.muon import Muon, orthogonalized

LR, DECAY, BETA1, BETA2, EPS = 0.01, 0.3, 0.8, 0.9, 1e-8


def make(**settings: Any) -> tuple[LanguageModel, Optimizer]:
    model = build(Model(width=8, layers=1, heads=1, hidden=8), 11, 6, 0)
    train = Train(batch=1, lr=1e-3, weight_decay=DECAY, beta1=BETA1, beta2=BETA2, **settings)
    return model, Optimizer(model, train)


def give(model: LanguageModel, step: int, scale: float = 1.0) -> dict[str, Tensor]:
    """Random gradients, the same for a step every time; some far larger than others."""
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = scale * torch.randn(p.shape, generator=generator) * torch.rand(p.shape, generator=generator) ** 4
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def take(optimizer: Optimizer, predictions: float, lr: float = LR, refuse: float = 0.0) -> float:
    norm = squared_norm(optimizer.gradients())
    return optimizer.step(norm, torch.tensor(predictions).double(), torch.tensor(refuse), lr).item()


def everything(model: LanguageModel, optimizer: Optimizer) -> dict[str, Tensor]:
    found = {name: p.detach() for name, p in model.named_parameters()} | optimizer.tensors()
    return copy.deepcopy(found)


@pytest.mark.parametrize("clip", [0.01, 0.5, 1e9])
def test_updates_are_the_formula_of_adamw_on_the_divided_and_clipped_gradient(clip: float) -> None:
    model, optimizer = make(clip=clip)
    decayed = {id(p) for p in model.decayed()}
    decays = {name: DECAY * (id(p) in decayed) for name, p in model.named_parameters()}
    w = {name: p.detach().double() for name, p in model.named_parameters()}
    m, v = ({name: torch.zeros_like(x) for name, x in w.items()} for _ in range(2))
    clipped = 0
    for step in range(1, 11):
        predictions, lr = 7.0 + step, LR / step
        g = {name: x / predictions for name, x in give(model, step, scale=10.0 if step % 3 else 0.1).items()}
        norm = math.sqrt(sum(float((x**2).sum()) for x in g.values()))
        assert take(optimizer, predictions, lr) == pytest.approx(norm, rel=1e-6)
        clipped += norm > clip
        for name, x in g.items():
            x = x / max(1.0, norm / clip)
            m[name] = BETA1 * m[name] + (1 - BETA1) * x
            v[name] = BETA2 * v[name] + (1 - BETA2) * x**2
            change = m[name] / (1 - BETA1**step) / ((v[name] / (1 - BETA2**step)).sqrt() + EPS)
            w[name] = w[name] * (1 - lr * decays[name]) - lr * change
    assert clipped == {0.01: 10, 0.5: 7, 1e9: 0}[clip], "some were clipped, and some were not"
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach().double(), w[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["adamw", "muon"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, "refused"])
def test_an_update_that_is_refused_changes_nothing_now_and_later(bad: float | str, rule: str) -> None:
    model, optimizer = make(optimizer=rule, ema=0.9)
    give(model, 1)
    take(optimizer, 3.0)
    before = everything(model, optimizer)
    give(model, 2)
    if isinstance(bad, float):
        next(reversed(list(model.parameters()))).grad[0] = bad  # type: ignore[index]
        assert not math.isfinite(take(optimizer, 3.0))
    else:
        take(optimizer, 3.0, refuse=2.0)
    for later in range(3):
        give(model, 3 + later)
        assert math.isfinite(take(optimizer, 3.0))
    after = everything(model, optimizer)
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name
    assert all(p.grad is None for p in model.parameters())

    optimizer.refused.zero_()  # as when a step is taken again
    give(model, 2)
    take(optimizer, 3.0)
    twin, other = make(optimizer=rule, ema=0.9)
    for step in (1, 2):
        give(twin, step)
        take(other, 3.0)
    for name, tensor in everything(twin, other).items():
        assert torch.equal(everything(model, optimizer)[name], tensor), name


COEFFICIENTS = 3.4445, -4.7750, 2.0315


def turned(x: Tensor) -> Tensor:
    """Five steps towards the nearest orthogonal matrix, in float64: a polynomial of each singular value."""
    a, b, c = COEFFICIENTS
    u, s, v = torch.linalg.svd(x.double() / x.double().norm(), full_matrices=False)
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    return u @ s.diag() @ v


def turn(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """One matrix of any shape through ours."""
    tall = matrix.size(0) > matrix.size(1)
    found = orthogonalized((matrix.T if tall else matrix).unsqueeze(0), (coefficients,) * steps, eps)[0]
    return found.T if tall else found


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8)])
def test_newton_schulz_on_a_cpu_has_the_precision_of_its_matrix(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    kept = matrix.clone()
    found = turn(matrix, COEFFICIENTS, 5, 1e-7)
    assert found.dtype == torch.float32 and torch.equal(matrix, kept)
    torch.testing.assert_close(found.double(), turned(matrix), rtol=0, atol=1e-5)
    half = turn(matrix.bfloat16(), COEFFICIENTS, 5, 1e-7)
    theirs = _zeropower_via_newtonschulz(matrix, COEFFICIENTS, 5, 1e-7)
    assert torch.equal(half, theirs), "what a GPU computes is what torch's Muon does"


def test_muon_turns_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    model, optimizer = make(optimizer="muon", clip=1e9, normalize_neurons=False)
    adam, muon = optimizer.optimizers
    assert isinstance(adam, torch.optim.AdamW) and isinstance(muon, Muon)
    inside = {name for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2}
    assert len(inside) == 4
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    g = {name: (x / 3.0).float() for name, x in give(model, 1).items()}
    take(optimizer, 3.0)
    for name, p in model.named_parameters():
        if name not in inside:
            assert set(adam.state[p]) == {"step", "exp_avg", "exp_avg_sq"}
            continue
        assert set(muon.state[p]) == {"momentum_buffer"}
        momentum = 0.05 * g[name]
        rate = LR * 0.2 * math.sqrt(max(p.shape))  # so that a change is as large as one of AdamW
        expected = before[name] * (1 - LR * DECAY) - rate * turned(0.05 * g[name] + 0.95 * momentum)
        torch.testing.assert_close(p.detach().double(), expected, rtol=0, atol=1e-5 * rate + 1e-8)


def test_every_parameter_has_one_optimizer() -> None:
    for rule in ("adamw", "muon"):
        model, optimizer = make(optimizer=rule)
        assert len(optimizer.optimizers) == (2 if rule == "muon" else 1)
        groups = [group for each in optimizer.optimizers for group in each.param_groups]
        held = [id(p) for group in groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in model.parameters())


def test_running_means_follow_the_weights() -> None:
    model, optimizer = make(ema=0.7)
    means = {name: p.detach().double() for name, p in model.named_parameters()}
    for step in range(1, 9):
        give(model, step)
        take(optimizer, 5.0)
        decay = min(0.7, (1 + step) / (10 + step))
        for name, p in model.named_parameters():
            means[name] = decay * means[name] + (1 - decay) * p.detach().double()
    for name, mean in means.items():
        torch.testing.assert_close(optimizer.averages[name].double(), mean, rtol=1e-5, atol=1e-7)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.swap_averages()
    for name, p in model.named_parameters():
        assert torch.equal(optimizer.averages[name], before[name])
        torch.testing.assert_close(p.detach().double(), means[name], rtol=1e-5, atol=1e-7)
    optimizer.swap_averages()
    assert all(torch.equal(p.detach(), before[name]) for name, p in model.named_parameters())


def test_a_parameter_without_a_gradient_counts_as_zero() -> None:
    model, optimizer = make(clip=1e9)
    expected = give(model, 1)
    first, *_ = model.parameters()
    first.grad = None
    norm = math.sqrt(sum(float((x / 3.0).square().sum()) for x in list(expected.values())[1:]))
    assert take(optimizer, 3.0) == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_state_made_beforehand_is_the_one_that_the_first_update_would_make(kind: str) -> None:
    found = []
    for beforehand in (False, True):
        model, optimizer = make(optimizer=kind)
        for step in range(3):
            if beforehand:
                optimizer.prepare()
                assert set(optimizer.tensors()) == set(found[0]) - set(dict(model.named_parameters()))
            give(model, step)
            take(optimizer, 5.0)
        found.append(everything(model, optimizer))
    assert all(torch.equal(found[0][name], tensor) for name, tensor in found[1].items())
    assert found[0].keys() == found[1].keys()


def test_muon_is_torchs_muon_bit_by_bit_in_the_precision_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", turn)
    random = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=random) for shape in ((6, 4), (4, 6), (5, 5))]
    ours, theirs = ([p.clone().requires_grad_() for p in first] for _ in range(2))
    options = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    mine, reference = Muon(ours, **options), torch.optim.Muon(theirs, **options)
    mine.grad_scale, mine.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    for step in range(4):
        for p, q in zip(ours, theirs, strict=True):
            gradient = torch.randn(p.shape, generator=random)
            p.grad, q.grad = 4.0 * gradient, gradient
        mine.found_inf = torch.tensor(float(step == 2))
        if step == 2:
            ours[0].grad.fill_(math.nan)  # type: ignore[union-attr]
        else:
            reference.step()
        mine.step()
        assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True)), step


def test_matrices_at_once_are_updated_as_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=random) for shape in ((6, 4), (4, 6), (5, 5), (4, 6))]
    alone, together = ([p.clone().requires_grad_() for p in first] for _ in range(2))
    options = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    ours = [Muon(parameters, **options) for parameters in (alone, together)]
    for step in range(4):
        gradients = [torch.randn(p.shape, generator=random) for p in first]
        for optimizer, parameters in zip(ours, (alone, together), strict=True):
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(float(step == 2))
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient.clone()
        ours[0].step()
        with monkeypatch.context() as patch:
            patch.setattr(muon, "_batches", lambda same: [[same[0]], [same[1], same[3]], [same[2]]])
            ours[1].step()
        for p, q in zip(alone, together, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_matrices_of_one_shape_are_updated_at_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(muon.AT_ONCE, device, 50)
    shapes = [(6, 4), (4, 6), (5, 5), (4, 6), (20, 10)]
    matrices = [SimpleNamespace(device=torch.device(device), T=None, shape=torch.Size(shape)) for shape in shapes]
    found = [[each.shape for each in batch] for batch in muon._batches(matrices)]  # type: ignore[arg-type]
    assert found == [[(6, 4)], [(4, 6), (4, 6)], [(5, 5)], [(20, 10)]]
