"""Several processes: the same parameters as one, the same bits in all of them, and fits that resume to these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from processes import together
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.hmm.expect import Counts, expect
from shoestring.hmm.fit import Fit, FitSettings, fit
from shoestring.hmm.parameters import Parameters, random_parameters
from shoestring.hmm.progress import load_progress, save_progress
from shoestring.hmm.sampling import sample
from shoestring.parallel.process_group import ProcessGroup

CASES: dict[str, dict[str, Any]] = {
    "all": {"update": "all"},
    "every": {"update": "every", "update_every": 5},
    "online": {"update": "online", "update_every": 5, "end": True, "restarts": 2, "restart_epochs": 2},
    "single": {"update": "every", "update_every": 1},  # most processes have nothing to count
}
WORLD = 2

Found = tuple[list[Tensor], list[float]]


def found(work: Fit) -> Found:
    """Taken to its end: all tables, and the loss of every epoch."""
    while work.stopped is None:
        work.update()
    return [table for table in work.parameters if table is not None], [epoch.loss for epoch in work.epochs]


def broken(parameters: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None) -> Counts:
    counts = expect(parameters, tokens, lengths, weights)
    counts.transition[1, 2] = float("nan")
    return counts


def job(group: ProcessGroup, data: dict[str, Tensor]) -> dict[str, Any]:
    """All cases, straight; one that is saved within an epoch by the first process, and resumed by all; and a fault."""
    options: dict[str, Any] = {"symbols": 9, "dtype": torch.float64, **data}

    def settings(name: str) -> FitSettings:
        return FitSettings(states=3, epochs=4, **CASES[name])

    result: dict[str, Any] = {name: found(Fit(settings=settings(name), **options)) for name in CASES}
    for name in ("every", "online"):
        cut = Fit(settings=settings(name), **options)
        for _ in range(6):
            cut.update()
        saved = group.on_first(lambda cut=cut: save_progress(cut.progress))
        resumed = Fit(settings=settings(name), **options)
        resumed.restore(load_progress(*saved))
        result[f"resumed {name}"] = found(resumed)
    try:  # the counts of one process are wrong, and all see it
        Fit(settings=settings("every"), count=broken if group.rank == 1 else expect, **options).update()
    except Fault as fault:
        result["fault"] = str(fault)
    return result


@pytest.fixture(scope="module")
def data() -> dict[str, Tensor]:
    tokens = sample(random_parameters(4, 9, 3, concentration=0.3), 20, 6, seed=1).tokens
    return {"tokens": tokens, "lengths": torch.arange(20) % 6 + 1, "weights": torch.arange(20) % 3 * 0.5 + 0.25}


@pytest.fixture(scope="module")
def results(data: dict[str, Tensor]) -> list[dict[str, Any]]:
    """What each of two processes found."""
    return together(job, WORLD, data)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_fit_what_one_does(name: str, results: list[dict[str, Any]], data: dict[str, Tensor]) -> None:
    alone = fit(settings=FitSettings(states=3, epochs=4, **CASES[name]), symbols=9, dtype=torch.float64, **data)
    expected = [table for table in alone.parameters if table is not None]
    for result in results:
        tables, losses = result[name]
        assert losses == pytest.approx([epoch.loss for epoch in alone.epochs], rel=1e-9)
        assert len(tables) == len(expected)
        for table, other in zip(tables, expected):
            torch.testing.assert_close(table, other, rtol=0, atol=1e-6)


def test_all_processes_have_the_same_bits(results: list[dict[str, Any]]) -> None:
    for name in CASES:
        (one, losses), (other, other_losses) = (result[name] for result in results)
        assert losses == other_losses
        assert all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.mark.parametrize("name", ["every", "online"])
def test_all_resume_from_what_the_first_saved(name: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        tables, losses = result[f"resumed {name}"]
        straight, straight_losses = result[name]
        assert losses == straight_losses
        assert all(torch.equal(a, b) for a, b in zip(tables, straight))


def test_all_see_a_fault_of_one_of_them(results: list[dict[str, Any]]) -> None:
    assert "not finite" in results[0]["fault"]
    assert results[1]["fault"] == results[0]["fault"]
