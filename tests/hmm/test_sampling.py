"""Samples have the model's probabilities, and the stationary distribution stands still."""

import pytest
import torch
from enumeration import likelihood, models
from forward_backward import log_likelihood
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.hmm.parameters import HmmError, Parameters, random_parameters
from shoestring.hmm.sampling import continue_rows, from_sentence_start, sample, stationary

checked = settings(max_examples=30, deadline=None)


def test_sequences_come_as_often_as_they_are_likely() -> None:
    model = random_parameters(3, 2, 5)
    tokens = sample(model, 40_000, 4, seed=0).tokens
    codes = (tokens * torch.tensor([8, 4, 2, 1])).sum(1)
    found = torch.bincount(codes, minlength=16).double() / 40_000
    expected = torch.tensor(
        [likelihood(model, [code >> 3, code >> 2 & 1, code >> 1 & 1, code & 1]) for code in range(16)]
    )
    deviations = (found - expected) / (expected * (1 - expected) / 40_000).sqrt()
    assert float(deviations.abs().max()) < 4.5


def test_states_follow_the_tables() -> None:
    model = random_parameters(3, 4, 5)
    drawn = sample(model, 20_000, 3, seed=1)
    pairs = torch.bincount(drawn.states[:, 0] * 3 + drawn.states[:, 1], minlength=9).view(3, 3) / 20_000
    torch.testing.assert_close(pairs.double(), model.start[:, None] * model.transition, atol=0.015, rtol=0)
    emitted = torch.bincount(drawn.states[:, 2] * 4 + drawn.tokens[:, 2], minlength=12).view(3, 4).double()
    torch.testing.assert_close(emitted / emitted.sum(1, keepdim=True), model.emission, atol=0.03, rtol=0)


def test_a_seed_gives_the_same_rows_in_both_types_and_another_gives_others() -> None:
    model = random_parameters(5, 7, 0)
    one = sample(model, 50, 20, seed=3).tokens
    assert torch.equal(one, sample(model, 50, 20, seed=3).tokens)
    assert not torch.equal(one, sample(model, 50, 20, seed=4).tokens)
    assert float((one == sample(model.to(dtype=torch.float32), 50, 20, seed=3).tokens).double().mean()) > 0.99


def test_a_token_is_chosen_from_its_probability_given_all_before_it() -> None:
    model, offered = random_parameters(3, 4, 5), []

    def choose(logits: torch.Tensor, _: torch.Generator) -> torch.Tensor:
        offered.append(logits.exp())
        return logits.argmin(dim=1)

    rows = continue_rows(model, [2, 0], 2, 3, 0, choose).tolist()
    assert rows[0] == rows[1] and rows[0][:2] == [2, 0]
    for place, found in enumerate(offered, start=2):
        before = likelihood(model, rows[0][:place])
        expected = torch.tensor([likelihood(model, [*rows[0][:place], token]) / before for token in range(4)])
        torch.testing.assert_close(found[0], expected.double())
        assert rows[0][place] == int(expected.argmin())
    assert from_sentence_start(model, "abcd", 2, 3, 0, choose) == continue_rows(model, (), 2, 3, 0, choose).tolist()


@checked
@given(models(), st.integers(0, 1000))
def test_nothing_impossible_is_drawn(model, seed: int) -> None:  # type: ignore[no-untyped-def]
    drawn = sample(model, 20, 6, seed)
    endless = model._replace(end=None)
    assert bool(log_likelihood(endless, drawn.tokens, drawn.lengths).isfinite().all())
    if drawn.lengths is None:
        assert model.end is None
        return
    stopped = drawn.lengths < 6
    assert bool(log_likelihood(model, drawn.tokens[stopped], drawn.lengths[stopped]).isfinite().all())
    inside = torch.arange(6) < drawn.lengths[:, None]
    assert bool((drawn.states[~inside] == -1).all() and (drawn.states[inside] >= 0).all())


def test_the_smallest_random_number_draws_no_cell_of_probability_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ([0.0, 1.0], [[0.0, 1.0], [0.0, 1.0]], [[0.0, 0.0, 1.0], [0.0, 0.5, 0.5]])
    model = Parameters(*(torch.tensor(table).double() for table in tables))
    for extreme, token in ((0.0, 1), (1 - 2**-53, 2)):
        draws = torch.full((4, 1), extreme, dtype=torch.float64)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "rand", lambda *_, draws=draws, **__: draws)
            drawn = sample(model, 4, 3, seed=0)
        assert drawn.tokens.unique().tolist() == [token]
        assert drawn.states.unique().tolist() == [1]


def test_rows_stop_as_often_as_the_model_says() -> None:
    model = random_parameters(1, 3, 0)._replace(end=torch.tensor([0.25]).double())
    lengths = sample(model, 20_000, 50, seed=0).lengths
    assert lengths is not None
    assert lengths.double().mean().item() == pytest.approx(4, rel=0.03)
    assert (lengths == 1).double().mean().item() == pytest.approx(0.25, abs=0.015)


@pytest.mark.parametrize(("sequences", "length"), [(-1, 3), (2, 0)])
def test_nothing_to_draw_is_refused(sequences: int, length: int) -> None:
    with pytest.raises(HmmError, match="cannot draw"):
        sample(random_parameters(2, 2, 0), sequences, length, 0)


@checked
@given(models(states=5))
def test_the_stationary_distribution_stands_still(model) -> None:  # type: ignore[no-untyped-def]
    found = stationary(model.transition)
    assert found.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert bool((found >= 0).all())
    torch.testing.assert_close(found @ model.transition, found, atol=1e-9, rtol=0)


def test_chains_with_cycles_parts_and_slow_mixing_settle() -> None:
    cycle = torch.roll(torch.eye(5), 1, 1)
    torch.testing.assert_close(stationary(cycle), torch.full((5,), 0.2).double())
    parts = torch.block_diag(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.eye(1))
    torch.testing.assert_close(stationary(parts), torch.tensor([2 / 9, 4 / 9, 1 / 3]).double(), atol=1e-6, rtol=0)
    slow = torch.tensor([[1 - 1e-9, 1e-9], [3e-9, 1 - 3e-9]]).double()
    torch.testing.assert_close(stationary(slow), torch.tensor([0.75, 0.25]).double(), atol=1e-6, rtol=0)


def test_the_stationary_distribution_is_the_share_of_time() -> None:
    model = random_parameters(4, 2, 1)
    states = sample(model, 200, 500, seed=0).states[:, 50:]
    share = torch.bincount(states.flatten(), minlength=4).double() / states.numel()
    torch.testing.assert_close(share, stationary(model.transition), atol=0.01, rtol=0)
