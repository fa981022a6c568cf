"""Against pomegranate, a library that shares no code with ours: likelihoods, posteriors and expected counts."""

from __future__ import annotations

import sys
import types
import warnings

import pytest
import torch
from forward_backward import log_likelihood, smooth

from shoestring.hmm.expect import expect
from shoestring.hmm.parameters import Parameters, random_parameters
from shoestring.hmm.sampling import sample


@pytest.fixture
def models() -> types.SimpleNamespace:
    """pomegranate's classes; its import asks for a package that only its clustering uses."""
    stand_in = types.ModuleType("apricot")
    stand_in.FacilityLocationSelection = stand_in.FeatureBasedSelection = None  # type: ignore[attr-defined]
    sys.modules.setdefault("apricot", stand_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hmm = pytest.importorskip("pomegranate.hmm", reason="pomegranate is not installed")
        from pomegranate.distributions import Categorical
    return types.SimpleNamespace(hmm=hmm.DenseHMM, categorical=Categorical)


def test_likelihoods_posteriors_and_counts_are_pomegranate_s(models: types.SimpleNamespace) -> None:
    ours = random_parameters(20, 12, seed=1, end=True).to(dtype=torch.float32)
    ends = ours.end
    assert ends is not None
    tokens = sample(random_parameters(20, 12, seed=2), 64, 30, seed=3).tokens
    theirs = models.hmm(
        [models.categorical(ours.emission[i : i + 1].tolist()) for i in range(20)],
        edges=ours.moves().tolist(),
        starts=ours.start.tolist(),
        ends=ends.tolist(),
    )
    x = tokens.unsqueeze(-1)
    exact = Parameters(*(None if table is None else table.double() for table in ours))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transitions, posterior, _, _, likelihood = theirs.forward_backward(x)
    assert torch.allclose(log_likelihood(exact, tokens), likelihood.double(), rtol=1e-5)
    assert torch.allclose(smooth(exact, tokens).posterior, posterior.double().exp(), atol=1e-4)
    counts = expect(exact, tokens)
    assert torch.allclose(counts.transition, transitions.double().sum(0), rtol=1e-3, atol=1e-3)
