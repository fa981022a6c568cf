"""Muon's parts beside numpy in float64: its quintics, neurons of equal size, cautious decay, and rising momentum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.core.errors import RecipeError
from shoestring.core.recipe_file import build as build_recipe
from shoestring.core.sections import Model
from shoestring.core.train_section import OF_MUON, Train
from shoestring.models.language_model import LanguageModel, build
from shoestring.training.optimizer import Optimizer
from shoestring.training.optimizers import muon
from shoestring.training.optimizers.muon import POLAR_EXPRESS, SAFETY, Muon, orthogonalized

Matrix = NDArray[np.float64]
NEWTON_SCHULZ = ((3.4445, -4.7750, 2.0315),) * 5
RATE, DECAY, EPS = 0.02, 0.3, 1e-7
SHAPES = [(6, 4), (4, 6), (5, 5), (4, 6)]


def by_quintics(x: Matrix, quintics: muon.Quintics) -> Matrix:
    for a, b, c in quintics:
        x = a * x + b * x**3 + c * x**5
    return x


@pytest.mark.parametrize(("least", "ours", "theirs"), [(1e-3, 0.16, 0.52), (3e-3, 0.13, 0.31), (0.1, 0.13, 0.31)])
def test_polar_express_brings_singular_values_nearer_to_1(least: float, ours: float, theirs: float) -> None:
    values = np.geomspace(least, 1, 200_001)
    worst = np.abs(by_quintics(values / SAFETY, POLAR_EXPRESS) - 1).max()
    assert worst < ours
    assert np.abs(by_quintics(values, NEWTON_SCHULZ) - 1).max() > theirs


def test_each_quintic_is_the_best_for_what_the_one_before_leaves() -> None:
    """Errors of the best odd quintic alternate at four points. As published, the interval that it is the best for
    begins at 0.024 of its end at least, and it is then scaled: the real beginning and the top have equal errors."""
    low, high = 1e-3, 1.0
    for a, b, c in ((a * SAFETY, b * SAFETY**3, c * SAFETY**5) for a, b, c in POLAR_EXPRESS):
        cut = max(low, 0.02407327424182761 * high)
        top, middle = (np.sqrt((-3 * b + sign * np.sqrt(9 * b * b - 20 * a * c)) / (10 * c)) for sign in (-1, 1))
        values = by_quintics(np.array([cut, top, middle, high]), ((a, b, c),))
        centre = (values.max() + values.min()) / 2
        errors = values / centre - 1
        np.testing.assert_allclose(errors, errors[1] * np.array([-1, 1, -1, 1]), atol=1e-6)
        low, high = by_quintics(np.array([low]), ((a, b, c),))[0], 2 - by_quintics(np.array([low]), ((a, b, c),))[0]


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 32)])
def test_an_orthogonalized_matrix_keeps_its_directions(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalized(matrix.unsqueeze(0), POLAR_EXPRESS, EPS, SAFETY)[0].double()
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    sizes = torch.from_numpy(by_quintics((s / s.norm() / SAFETY).numpy(), POLAR_EXPRESS))
    torch.testing.assert_close(found, u @ sizes.diag() @ v, rtol=0, atol=2e-5)
    inside = s / s.norm() > 3e-3
    assert (torch.linalg.svdvals(found)[: int(inside.sum())] - 1).abs().max() < 0.13


@pytest.mark.parametrize("columns", [20, 64])
def test_small_singular_values_of_square_and_wide_matrices(columns: int) -> None:
    """Wide ones are turned by way of their squares, whose smallest are below the precision of the largest."""
    draw = torch.Generator().manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(n, 20, generator=draw, dtype=torch.float64)).Q for n in (20, columns))
    s = torch.logspace(0, -5, 20, dtype=torch.float64)
    found = orthogonalized((u @ s.diag() @ v.T).float().unsqueeze(0), POLAR_EXPRESS, EPS, SAFETY)[0].double()
    sizes = torch.from_numpy(by_quintics((s / s.norm() / SAFETY).numpy(), POLAR_EXPRESS))
    torch.testing.assert_close(found, u @ sizes.diag() @ v.T, rtol=0, atol=1e-3)


class ByHand:
    """Muon of one matrix, in float64."""

    def __init__(self, weights: Tensor, **parts: Any):
        self.weights, self.parts = weights.double().numpy(), parts
        self.mean, self.squares, self.updates = np.zeros_like(self.weights), np.zeros(len(weights)), 0

    def step(self, gradient: Tensor) -> None:
        g, w = gradient.double().numpy(), self.weights
        warmup = self.parts.get("momentum_warmup")
        momentum = 0.95 if not warmup else 0.85 + 0.1 * min(1.0, self.updates / warmup)
        self.mean = momentum * self.mean + (1 - momentum) * g
        u, s, v = np.linalg.svd((1 - momentum) * g + momentum * self.mean, full_matrices=False)
        polar = self.parts.get("polar_express")
        s = s / np.sqrt((s**2).sum()) / (SAFETY if polar else 1.0)
        update = u @ np.diag(by_quintics(s, POLAR_EXPRESS if polar else NEWTON_SCHULZ)) @ v
        if self.parts.get("normalize_neurons"):
            norm = np.linalg.norm(update)
            for i, row in enumerate(update):
                self.squares[i] = 0.95 * self.squares[i] + 0.05 * sum(x * x for x in row) / len(row)
            update = np.array([row / math.sqrt(square) for row, square in zip(update, self.squares, strict=True)])
            update *= norm / np.linalg.norm(update)
        decays = np.ones_like(w) if not self.parts.get("cautious_decay") else np.sign(w) == np.sign(update)
        self.weights = w - RATE * DECAY * w * decays - RATE * 0.2 * math.sqrt(max(w.shape)) * update
        self.updates += 1


PARTS: list[dict[str, Any]] = [
    {},
    {"polar_express": True},
    {"normalize_neurons": True},
    {"cautious_decay": True},
    {"momentum_warmup": 3},
    {"polar_express": True, "normalize_neurons": True, "cautious_decay": True, "momentum_warmup": 2},
]


@pytest.mark.parametrize("at_once", [False, True], ids=["each alone", "at once"])
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(parts) or "plain")
def test_updates_are_those_by_hand(
    parts: dict[str, Any], on_device: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused update leaves no trace, in the count of updates either."""
    random = torch.Generator().manual_seed(0)
    matrices = [torch.randn(shape, generator=random).requires_grad_() for shape in SHAPES]
    if at_once:
        by_shape = [[matrices[0]], [matrices[1], matrices[3]], [matrices[2]]]
        monkeypatch.setattr(muon, "_batches", lambda *_: by_shape)
    by_hand = [ByHand(p.detach(), **parts) for p in matrices]
    rate = torch.tensor(RATE) if on_device else RATE
    ours = Muon(matrices, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw", **parts)
    ours.prepare()
    ours.grad_scale = torch.tensor(4.0)
    for step in range(6):
        refused = step == 2
        ours.found_inf, ours.param_groups[0]["lr"] = torch.tensor(float(refused)), rate
        for p, expected in zip(matrices, by_hand, strict=True):
            gradient = torch.randn(p.shape, generator=random) * torch.rand(p.size(0), 1, generator=random) ** 3
            p.grad = torch.full_like(p, math.nan) if refused else 4.0 * gradient
            if not refused:
                expected.step(gradient)
        ours.step()
        for p, expected in zip(matrices, by_hand, strict=True):
            np.testing.assert_allclose(p.detach().double().numpy(), expected.weights, rtol=0, atol=2e-5)


class NoWaiting(TorchDispatchMode):
    """Refuses to read a tensor's number, for which a host waits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name not in ("aten::_local_scalar_dense", "aten::item", "aten::nonzero"), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(parts) or "plain")
def test_the_host_reads_no_number(parts: dict[str, Any]) -> None:
    matrices = [torch.randn(shape).requires_grad_() for shape in SHAPES]
    ours = Muon(matrices, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw", **parts)
    ours.param_groups[0]["lr"] = torch.tensor(RATE)
    ours.grad_scale, ours.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    for p in matrices:
        p.grad = torch.randn(p.shape)
    with NoWaiting():
        ours.step()


def test_a_matrix_without_a_gradient_stays_finite() -> None:
    matrix = torch.ones(3, 5, requires_grad=True)
    ours = Muon([matrix], lr=0.1, weight_decay=0.0, normalize_neurons=True, polar_express=True, cautious_decay=True)
    ours.grad_scale, ours.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    for _ in range(3):
        matrix.grad = torch.zeros_like(matrix)
        ours.step()
    assert torch.equal(matrix.detach(), torch.ones(3, 5))


def test_steps_are_torchs_within_the_precision_of_its_products() -> None:
    """Torch's Muon computes in bf16 also on a CPU."""
    random = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=random) for shape in ((24, 16), (16, 48), (32, 32))]
    ours, theirs = ([p.clone().requires_grad_() for p in first] for _ in range(2))
    options = {"lr": RATE, "weight_decay": DECAY, "adjust_lr_fn": "match_rms_adamw"}
    mine, reference = Muon(ours, **options), torch.optim.Muon(theirs, **options)
    mine.grad_scale, mine.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    for _ in range(4):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=random)
            q.grad = p.grad.clone()
        before = [p.detach().clone() for p in ours]
        mine.step()
        reference.step()
        for old, p, q in zip(before, ours, theirs, strict=True):
            assert (p - q).norm() < 0.03 * (p - old).norm()
            p.data.copy_(q.data)


def made(**settings: Any) -> tuple[LanguageModel, Optimizer]:
    model = build(Model(width=8, layers=1, heads=1, hidden=8), 11, 6, 0)
    return model, Optimizer(model, Train(batch=1, lr=1e-3, optimizer="muon", **settings))


def take(model: LanguageModel, optimizer: Optimizer, steps: Iterable[int]) -> None:
    for step in steps:
        random = torch.Generator().manual_seed(step)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=random)
        optimizer.step(torch.ones(()), torch.ones(()), torch.zeros(()), 0.01)


def test_a_run_of_an_older_version_continues_as_it_began() -> None:
    """Its checkpoints have no squares of neurons."""
    older, state = made(normalize_neurons=False)
    take(older, state, range(2))
    weights = {name: p.detach().clone() for name, p in older.named_parameters()}
    kept = {name: tensor.clone() for name, tensor in state.tensors().items()}
    take(older, state, range(2, 5))
    now, optimizer = made()
    optimizer.prepare()
    assert any("neuron_square" in name for name in optimizer.tensors())
    now.load_state_dict(weights, strict=False)
    optimizer.restore(kept)
    take(now, optimizer, range(2, 5))
    assert all(torch.equal(p, dict(older.named_parameters())[name]) for name, p in now.named_parameters())


@pytest.mark.parametrize("rule", ["adamw", "muon"])
def test_tables_and_scalars_have_rates_of_their_own(rule: str) -> None:
    """With plain signs of gradients, AdamW's first step has the size of the rate."""
    model = build(Model(width=8, layers=1, heads=1, hidden=8, tied=False), 11, 6, 0)
    factors = {"embedding_lr": 4.0, "head_lr": 0.5, "scalar_lr": 2.0}
    made = Optimizer(model, Train(batch=1, lr=1e-3, weight_decay=0.0, optimizer=rule, **factors))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    made.step(torch.zeros(()), torch.ones(()), torch.zeros(()), 0.01)
    for name, p in model.named_parameters():
        rate = {"embedding.weight": 0.04, "head.weight": 0.005}.get(name, 0.02 if p.ndim < 2 else 0.01)
        if p.ndim < 2 or not name.startswith("blocks.") or rule == "adamw":
            assert torch.allclose(before[name] - p, torch.full_like(p, rate), atol=1e-6), name


def problems(**train: Any) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as caught:
        build_recipe({"budget": {"steps": 5}, "train": {"batch": 4, "lr": 0.1, **train}}, "recipe.toml")
    return caught.value.problems


@pytest.mark.parametrize("name", OF_MUON)
def test_parts_of_muon_are_for_muon(name: str) -> None:
    value = 5 if name == "momentum_warmup" else True
    (line,) = problems(**{name: value})
    assert line == f'train.{name}: train.optimizer = "adamw" has none; it is for "muon"'
    recipe = build_recipe({"budget": {"steps": 5}, "train": {"batch": 4, "optimizer": "muon", name: value}}, "ok")
    assert getattr(recipe.train, name) == value


def test_a_tied_head_has_no_rate_of_its_own() -> None:
    (line,) = problems(head_lr=0.5)
    assert line.startswith("train.head_lr = 0.5: the head is the embedding; give model.tied = false")


def test_every_part_has_a_case() -> None:
    assert set(itertools.chain.from_iterable(PARTS)) == set(OF_MUON)
