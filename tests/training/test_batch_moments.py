"""AdamW of workers with shares of a batch: steps by hand in float64, and their length beside AdamW of the batch."""

from __future__ import annotations

import math

import pytest
import torch
from group_jobs import BATCH, SOURCES, make

from shoestring.training.optimizers.adamw import AdamW
from shoestring.training.optimizers.batch_moments import lengthen_steps

LR, WORKERS = 1e-2, 3


def test_steps_are_those_made_by_hand() -> None:
    learner, source = make(), SOURCES["packed"]()
    learner.optimizer.shares = WORKERS
    (adamw,) = learner.optimizer.optimizers
    group_of = {id(p): group for group in adamw.param_groups for p in group["params"]}
    masters = learner.optimizer.masters
    by_hand = {name: p.detach().double() for name, p in masters.items()}
    m = {name: torch.zeros_like(p) for name, p in by_hand.items()}
    v = {name: torch.zeros_like(p) for name, p in by_hand.items()}
    for step in range(4):
        tally = learner.accumulate(source.batch(source.order(1, step, BATCH)), 2)
        gradients = [g.double() / tally.predictions for g in learner.optimizer.gradients()]
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        learner.update(tally, LR)
        for (name, p), g in zip(masters.items(), gradients, strict=True):
            group, clipped = group_of[id(p)], g / max(1.0, norm / learner.optimizer.clip)
            beta1, beta2 = group["betas"]
            m[name] = beta1 * m[name] + (1 - beta1) * clipped
            v[name] = beta2 * v[name] + (1 - beta2) * clipped**2
            first, second = m[name] / (1 - beta1 ** (step + 1)), v[name] / (1 - beta2 ** (step + 1))
            of_batch = second / WORKERS + (1 - 1 / WORKERS) * first**2
            met = second > 1e-10  # where a gradient is about ε, so is the difference between the two ways to add it
            moved = torch.where(met, first / of_batch.clamp(min=1e-30).sqrt(), 0.0)
            by_hand[name] = by_hand[name] * (1 - LR * group["weight_decay"]) - LR * moved
            torch.testing.assert_close(p.detach().double()[met], by_hand[name][met], rtol=0, atol=2e-3 * LR)
            by_hand[name] = p.detach().double()


@pytest.mark.parametrize("noise", [0.0, 1.0, 30.0])
def test_workers_move_as_far_as_one_that_sees_the_whole_batch(noise: float) -> None:
    """A constant gradient with noise: the mean of the workers, beside AdamW of their mean gradient."""
    random, size, steps, workers = torch.Generator().manual_seed(0), 4000, 100, 4
    weights = [torch.zeros(size, requires_grad=True) for _ in range(2 * workers + 1)]
    made = [AdamW([p], lr=LR, betas=(0.9, 0.99), weight_decay=0.0, fused=True) for p in weights]
    for optimizer in made:
        optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.zeros(())
    for _ in range(steps):
        gradients = 1 + noise * torch.randn(workers, size, generator=random)
        for p, gradient in zip(weights, [*gradients, *gradients, gradients.mean(dim=0)], strict=True):
            p.grad = gradient
        for number, optimizer in enumerate(made):
            optimizer.step()
            if number < workers:
                lengthen_steps(optimizer, workers)
    parts = slice(workers), slice(workers, -1), slice(-1, None)
    corrected, plain, whole = (float(torch.stack(weights[part]).detach().mean()) for part in parts)
    assert corrected == pytest.approx(whole, rel=0.2), "m has some noise left, which passes for signal"
    assert noise < 30 or plain == pytest.approx(whole / math.sqrt(workers), rel=0.1), "without it they are too short"


def test_an_update_that_is_refused_is_not_lengthened() -> None:
    learner = make()
    learner.optimizer.shares = WORKERS
    before = {name: p.detach().clone() for name, p in learner.optimizer.masters.items()}
    rows = SOURCES["packed"]().rows(torch.arange(4).numpy())
    learner.update(learner.accumulate(rows, 2)._replace(fitted=False), LR)
    assert all(p.equal(before[name]) for name, p in learner.optimizer.masters.items())
