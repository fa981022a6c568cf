"""The maximisation step: valid rows whatever was counted, and a likelihood that never falls."""

import itertools

import numpy as np
import pytest
import torch
from enumeration import FLAT, batches, models
from forward_backward import log_likelihood
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.hmm.expect import Counts, expect, zeros
from shoestring.hmm.maximize import Priors, log_prior, maximize
from shoestring.hmm.parameters import HmmError, Parameters, check, random_parameters
from shoestring.hmm.sampling import sample, stationary

checked = settings(max_examples=50, deadline=None)
PRIORS = [FLAT, Priors(), Priors(start=0.5, transition=2.0, emission=3.0, end=1.0)]


@checked
@given(st.data())
def test_a_step_never_lowers_the_objective(data: st.DataObject) -> None:
    model = data.draw(models())
    _, tokens, lengths = data.draw(batches(model.symbols, rows=6))
    priors = data.draw(st.sampled_from(PRIORS))
    before = -float("inf")
    possible = None
    for step in range(4):
        counts = expect(model, tokens, lengths)
        if step == 0:  # a prior makes impossible rows possible; follow those that were from the start
            possible = ~log_likelihood(model, tokens, lengths).isneginf()
            tokens, lengths = tokens[possible], lengths[possible]
            continue
        after = (counts.log_likelihood + log_prior(model, priors)).item()
        assert after >= before - 1e-9 * max(1.0, abs(before))
        before = after
        model = maximize(counts, priors, model)
        check(model)


@pytest.mark.parametrize("priors", PRIORS)
@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_climbs_steadily(priors: Priors, end: bool, dtype: torch.dtype) -> None:
    truth = random_parameters(5, 12, 0, concentration=0.2, end=end)
    drawn = sample(truth, 60, 25, seed=1)
    model = random_parameters(5, 12, 7, end=end).to(dtype=dtype)
    values = []
    for _ in range(15):
        counts = expect(model, drawn.tokens, drawn.lengths)
        values.append((counts.log_likelihood + log_prior(model, priors)).item())
        model = maximize(counts, priors, model)
        check(model)
        assert model.dtype == dtype
    slack = (1e-5 if dtype == torch.float32 else 1e-10) * abs(values[0])
    assert all(later >= earlier - slack for earlier, later in itertools.pairwise(values))
    assert values[-1] > values[0] + 10


def test_a_step_is_the_ratio_of_counts() -> None:
    counts = Counts(
        start=torch.tensor([1.0, 3.0]).double(),
        transition=torch.tensor([[2.0, 6.0], [5.0, 5.0]]).double(),
        emission=torch.tensor([[1.0, 0.0, 9.0], [4.0, 8.0, 4.0]]).double(),
        end=torch.tensor([2.0, 6.0]).double(),
        log_likelihood=torch.zeros(()).double(),
        sequences=torch.tensor(8.0).double(),
        tokens=torch.tensor(26.0).double(),
        impossible=torch.zeros(()).double(),
    )
    found = maximize(counts, FLAT)
    assert found.start.tolist() == [0.25, 0.75]
    assert found.transition.tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert found.emission.tolist() == [[0.1, 0.0, 0.9], [0.25, 0.5, 0.25]]
    assert found.end is not None and found.end.tolist() == [0.2, 0.375]
    with_prior = maximize(counts, Priors(start=4.0, transition=2.0, emission=3.0, end=6.0))
    assert with_prior.start.tolist() == pytest.approx([3 / 8, 5 / 8])
    assert with_prior.transition[0].tolist() == pytest.approx([0.3, 0.7])
    assert with_prior.emission[0].tolist() == pytest.approx([2 / 13, 1 / 13, 10 / 13])
    assert with_prior.end is not None and with_prior.end[0].item() == pytest.approx(5 / 16)


@pytest.mark.parametrize("end", [False, True])
def test_states_that_were_never_visited_keep_their_rows_or_get_the_prior(end: bool) -> None:
    old = random_parameters(3, 4, 0, end=end)
    nothing = zeros(old)
    for table, kept in zip(maximize(nothing, FLAT, old), old):
        assert (table is None) == (kept is None)
        assert table is None or kept is None or torch.allclose(table, kept)
    for found in (maximize(nothing, FLAT), maximize(nothing, Priors(), old)):
        check(found)
        assert found.emission.unique().tolist() == [0.25]
        assert found.end is None or found.end.tolist() == [0.5] * 3


def test_the_default_prior_leaves_nothing_at_zero() -> None:
    model = random_parameters(4, 6, 0).to(dtype=torch.float32)
    tokens = torch.zeros(50, 20, dtype=torch.int64)
    for _ in range(20):
        model = maximize(expect(model, tokens), old=model)
    assert all(bool((table > 0).all()) for table in model[:3])
    assert bool(log_likelihood(model, torch.tensor([[5, 4, 3]])).isfinite().all())


def test_rows_of_float32_sum_to_one_for_many_symbols() -> None:
    old = random_parameters(20, 50_000, 0)
    counts = zeros(old)
    wild = torch.rand(20, 50_000, generator=torch.Generator().manual_seed(0)).double() ** 30 * 1e9
    model = maximize(counts._replace(emission=wild), Priors(), old.to(dtype=torch.float32))
    check(model)
    assert float((model.emission.double().sum(1) - 1).abs().max()) < 1e-6
    assert not bool(((model.emission > 0) & (model.emission < torch.finfo(torch.float32).tiny)).any())


def test_a_tied_start_is_stationary() -> None:
    model = random_parameters(5, 6, 0)
    found = maximize(expect(model, sample(model, 20, 30, seed=1).tokens), old=model, tied_start=True)
    torch.testing.assert_close(found.start @ found.transition, found.start)
    torch.testing.assert_close(found.start, stationary(found.transition))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_wrong_priors_are_refused(value: float) -> None:
    with pytest.raises(HmmError, match="prior of emission"):
        Priors(emission=value)


def test_hmmlearn_makes_the_same_step() -> None:
    hmmlearn = pytest.importorskip("hmmlearn.hmm", reason="hmmlearn is not installed")
    model = random_parameters(6, 9, 3)
    tokens = sample(random_parameters(6, 9, 4, concentration=0.3), 30, 25, seed=2).tokens
    theirs = hmmlearn.CategoricalHMM(n_components=6, n_features=9, n_iter=1, init_params="")
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = (table.numpy() for table in model[:3])
    theirs.fit(tokens.reshape(-1, 1).numpy(), lengths=[25] * 30)
    ours: Parameters = maximize(expect(model, tokens), FLAT, model)
    for a, b in zip(ours[:3], (theirs.startprob_, theirs.transmat_, theirs.emissionprob_)):
        np.testing.assert_allclose(a.numpy(), b, atol=1e-10)
