"""Which gradient may be applied when: against all orders of small cases, and workers of random speed."""

from __future__ import annotations

import heapq
import itertools
import random
from multiprocessing import Pipe
from typing import Any
from unittest.mock import patch

import pytest
import torch
from group_jobs import BATCH, make

from shoestring.core.train_section import Train
from shoestring.parallel.shared_weights import SharedWeights
from shoestring.training.asynchronous import Dealer, add_counts, compensate, counts, may_apply
from shoestring.training.loop import Requests
from shoestring.training.schedule import Schedule


def test_a_gradient_may_be_applied_if_some_order_of_the_others_is_in_time() -> None:
    for applied, most in itertools.product((3, 4), range(4)):
        for others in itertools.product(range(applied + 1), repeat=3):
            in_time = any(
                all(applied + 1 + place - version <= most for place, version in enumerate(order))
                for order in itertools.permutations(others)
            )
            assert may_apply(applied, others, most) == in_time
    assert may_apply(10**6, [0, 0], None)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("more", [0, 1, 4])
def test_no_gradient_is_too_stale_and_nobody_waits_for_ever(workers: int, more: int) -> None:
    most, drawn = workers - 1 + more, random.Random(workers * 10 + more)
    speed = [drawn.choice([1.0, 1.0, 7.0]) for _ in range(workers)]
    version, found = 0, []
    read, arrived = dict.fromkeys(range(workers), 0), set()
    events = [(drawn.random() * speed[worker], worker) for worker in range(workers)]
    heapq.heapify(events)
    while len(found) < 500:
        now, worker = heapq.heappop(events)
        arrived.add(worker)
        while arrived:
            oldest = min(arrived, key=lambda each: read[each])
            if not may_apply(version, [read[each] for each in read if each != oldest], most):
                break
            found.append(version - read[oldest])
            version += 1
            arrived.remove(oldest)
            read[oldest] = version
            heapq.heappush(events, (now + drawn.random() * speed[oldest], oldest))
        assert events, "somebody works"
    assert max(found) <= most


def test_counts_are_by_staleness() -> None:
    assert counts({0: 3, 2: 1}) == (3, 0, 1)
    assert counts({}) == ()
    assert add_counts((3, 0, 1), (1,)) == (4, 0, 1)


def test_a_stale_gradient_is_compensated_as_by_hand() -> None:
    """Against float64, number by number: the gradient of the mean, corrected, times the predictions again."""
    drawn, predictions, strength = random.Random(3), 37, 0.5
    summed, now, read = ([drawn.gauss(0, 2) for _ in range(50)] for _ in range(3))
    expected = []
    for total, w, was in zip(summed, now, read, strict=True):
        mean = total / predictions
        expected.append((mean + strength * mean * mean * (w - was)) * predictions)
    gradient, weights, weights_read = (torch.tensor(values, dtype=torch.float32) for values in (summed, now, read))
    compensate(gradient, weights, weights_read, strength, predictions)
    torch.testing.assert_close(gradient.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    fresh = torch.tensor(summed)
    compensate(fresh, weights, weights, strength, predictions)
    assert fresh.tolist() == torch.tensor(summed).tolist(), "a gradient of the present weights stays"


@pytest.mark.parametrize("apart", [False, True])
def test_the_dealer_compensates_by_what_the_worker_read(apart: bool) -> None:
    """Two workers read the first weights; the second gradient is applied after the first has moved them.

    The weights lie in shared memory, or `apart` from it, as those of a GPU from the memory of the host.
    """
    learner, predictions, strength = make(), 11, 3.0
    shared = SharedWeights(learner.optimizer.masters, 2, keep_read=True)
    for name, tensor in () if apart else shared.weights.items():
        tensor.copy_(learner.optimizer.masters[name].detach())
        learner.parameters[name].data = tensor
    ends = [Pipe() for _ in range(2)]
    settings = Train(batch=BATCH, lr=1e-2)
    dealer = Dealer(learner, shared, {n: own for n, (own, _) in enumerate(ends)}, settings, None, compensation=strength)
    found, first = [], {name: tensor.detach().double() for name, tensor in learner.parameters.items()}
    update = learner.update

    def noted(*given: Any) -> Any:
        found.append({name: parameter.grad.double() for name, parameter in learner.parameters.items()})
        return update(*given)

    pending = dealer.begin(0, Schedule(total=4), Requests())
    own = [{name: torch.randn_like(tensor) for name, tensor in shared.weights.items()} for _ in ends]
    for worker, (_, theirs) in enumerate(ends):
        theirs.recv()
        shared.copy_to({name: torch.empty_like(tensor) for name, tensor in shared.weights.items()}, worker)
        for name, tensor in shared.gradients[worker].items():
            tensor.copy_(own[worker][name])
        theirs.send((float(predictions), predictions))
    moved: dict[str, torch.Tensor] = {}
    with patch.object(learner, "update", noted):
        apply = dealer._apply

        def between(worker: int) -> None:
            moved.update({name: tensor.double() for name, tensor in shared.weights.items()})
            apply(worker)

        with patch.object(dealer, "_apply", between):
            pending.read()
    for name, gradient in own[0].items():
        assert torch.equal(found[0][name], gradient.double()), "nothing had moved"
        mean = own[1][name].double() / predictions
        expected = (mean + strength * mean**2 * (moved[name] - first[name])) * predictions
        torch.testing.assert_close(found[1][name], expected, rtol=1e-5, atol=1e-6)
        assert not torch.equal(found[1][name], own[1][name].double())
        assert torch.equal(shared.weights[name], learner.parameters[name])
    assert counts(dealer.staleness) == (1, 1)
