"""AdamW of workers with shares of a batch: steps by hand in float64, and their length beside AdamW of the batch."""

from __future__ import annotations

import math

import pytest
import torch
from group_jobs import BATCH, SOURCES, make

from shoestring.training.optimizers.adamw import AdamW
from shoestring.training.optimizers.batch_moments import NOISE, Half, lengthen_steps

LR, WORKERS = 1e-2, 3


@pytest.mark.parametrize("workers", [2, 8])
def test_steps_are_those_made_by_hand(workers: int) -> None:
    learner, source = make(), SOURCES["packed"]()
    (adamw,) = learner.optimizer.optimizers
    group_of = {id(p): group for group in adamw.param_groups for p in group["params"]}
    masters = learner.optimizer.masters
    by_hand = {name: p.detach().double() for name, p in masters.items()}
    m, v, d = ({name: torch.zeros_like(p) for name, p in by_hand.items()} for _ in range(3))
    for step in range(4):
        rows = source.batch(source.order(1, step, BATCH).share(0, 1, even=False))
        halves = []
        for half in rows.split(-(-len(rows.ids) // 2)):
            learner.optimizer.shares = 1
            count = learner.accumulate(half, 2).predictions
            halves.append(([g.double() / count for g in learner.optimizer.gradients()], count))
            learner.drop_gradient()
        learner.optimizer.shares = workers
        tally = learner.accumulate(rows, 2)
        gradients = [g.double() / tally.predictions for g in learner.optimizer.gradients()]
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        learner.update(tally, LR)
        (firsts, p1), (seconds, p2) = halves
        for (name, p), g, a, b in zip(masters.items(), gradients, firsts, seconds, strict=True):
            shrink = max(1.0, norm / learner.optimizer.clip)
            group, clipped = group_of[id(p)], g / shrink
            torch.testing.assert_close(g, (p1 * a + p2 * b) / (p1 + p2), rtol=1e-4, atol=1e-6)
            beta1, beta2 = group["betas"]
            m[name] = beta1 * m[name] + (1 - beta1) * clipped
            v[name] = beta2 * v[name] + (1 - beta2) * clipped**2
            d[name] = beta2 * d[name] + (1 - beta2) * ((a - b) / shrink) ** 2 * p1 * p2 / (p1 + p2) ** 2
            first = m[name] / (1 - beta1 ** (step + 1))
            second, noise = (each[name] / (1 - beta2 ** (step + 1)) for each in (v, d))
            of_batch = torch.maximum(second / workers, second - (1 - 1 / workers) * noise)
            met = second > 1e-10  # where a gradient is about ε, so is the difference between the two ways to add it
            moved = torch.where(met, first / (of_batch.sqrt() + group["eps"]), 0.0)
            by_hand[name] = by_hand[name] * (1 - LR * group["weight_decay"]) - LR * moved
            torch.testing.assert_close(p.detach().double()[met], by_hand[name][met], rtol=0, atol=2e-3 * LR)
            by_hand[name] = p.detach().double()


@pytest.mark.parametrize("alternating", [False, True])
@pytest.mark.parametrize("noise", [0.0, 1.0, 30.0])
def test_halves_tell_the_second_moments_of_the_batch(noise: float, alternating: bool) -> None:
    """Also where the signal changes its sign in every step, which m does not show."""
    random, size, steps, workers, beta2 = torch.Generator().manual_seed(0), 2000, 200, 4, 0.95
    p = torch.zeros(size, requires_grad=True)
    adamw = AdamW([p], lr=LR, betas=(0.9, beta2), weight_decay=0.0, fused=True)
    adamw.grad_scale, adamw.found_inf = torch.ones(()), torch.zeros(())
    whole = torch.zeros(size, dtype=torch.float64)
    for step in range(steps):
        signal = (-1) ** step if alternating else 1
        a, b = (signal + noise / math.sqrt(count) * torch.randn(size, generator=random) for count in (3, 5))
        p.grad = (3 * a + 5 * b) / 8
        half = Half([3 * a], 3, 5)
        (difference,) = half.differences([3 * a + 5 * b], torch.tensor(8.0))
        adamw.step()
        lengthen_steps(adamw, workers, {id(p): difference})
        noise_of_batch = noise / math.sqrt(8 * workers) * torch.randn(size, generator=random)
        whole = beta2 * whole + (1 - beta2) * (signal + noise_of_batch).double() ** 2
    state = adamw.state[p]
    found = (state["exp_avg_sq"] - (1 - 1 / workers) * state[NOISE]).double()
    assert float(found.mean()) == pytest.approx(float(whole.mean()), rel=0.06)


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


def test_a_step_that_is_not_taken_leaves_the_noise_as_it_was() -> None:
    p = torch.zeros(3, requires_grad=True)
    adamw = AdamW([p], lr=LR, fused=True)
    adamw.grad_scale, adamw.found_inf = torch.ones(()), torch.zeros(())
    for skip, difference in ((0.0, torch.ones(3)), (1.0, torch.full((3,), math.nan))):
        p.grad, adamw.found_inf = torch.ones(3), torch.tensor(skip)
        adamw.step()
        lengthen_steps(adamw, WORKERS, {id(p): difference})
        kept = p.detach().clone(), adamw.state[p][NOISE].clone()
        assert all(bool(each.isfinite().all()) for each in kept)
    assert float(adamw.state[p][NOISE][0]) == pytest.approx(1e-3)


def test_a_half_without_predictions_tells_nothing() -> None:
    (difference,) = Half([torch.zeros(2)], 0, 4).differences([torch.ones(2)], torch.tensor(4.0))
    assert difference.tolist() == [0.0, 0.0]
