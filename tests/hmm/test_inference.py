"""Inference against the sum over all state paths, and against hmmlearn."""

import math

import numpy as np
import pytest
import torch
from enumeration import batches, best, likelihood, models, paths, posteriors, prefix_probability
from forward_backward import backward, forward, log_likelihood, smooth
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.hmm.expect import expect
from shoestring.hmm.inference import check_tokens, predict, token_log_probs, viterbi
from shoestring.hmm.parameters import HmmError, Parameters, random_parameters
from shoestring.hmm.sampling import sample

checked = settings(max_examples=40, deadline=None)


def log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


@checked
@given(st.data())
def test_likelihood_posteriors_and_best_path_are_those_of_all_paths(data: st.DataObject) -> None:
    model = data.draw(models())
    rows, tokens, lengths = data.draw(batches(model.symbols))
    smoothed, path = smooth(model, tokens, lengths), viterbi(model, tokens, lengths)
    likelihoods = log_likelihood(model, tokens, lengths)
    torch.testing.assert_close(smoothed.log_likelihood, likelihoods, rtol=0, atol=1e-12)
    for i, row in enumerate(rows):
        total = likelihood(model, row)
        assert likelihoods[i].item() == pytest.approx(log(total), abs=1e-10)
        assert smoothed.impossible[i].item() == path.impossible[i].item() == (total == 0)
        expected = posteriors(model, row)
        torch.testing.assert_close(smoothed.posterior[i, : len(row)], expected, rtol=0, atol=1e-12)
        assert not smoothed.posterior[i, len(row) :].any()
        p = best(model, row)[1]
        assert path.log_probability[i].item() == pytest.approx(log(p), abs=1e-10)
        found = path.states[i].tolist()
        assert found[len(row) :] == [-1] * (len(found) - len(row))
        if p > 0:  # another path may tie
            assert dict(paths(model, row))[tuple(found[: len(row)])] == pytest.approx(p, rel=1e-12)
        else:
            assert set(found) == {-1}


@checked
@given(st.data())
def test_predictions_are_those_of_all_paths_of_the_past(data: st.DataObject) -> None:
    model = data.draw(models(zeros=False))
    rows, tokens, lengths = data.draw(batches(model.symbols, rows=2, length=4))
    found, scored = predict(model, tokens, lengths), token_log_probs(model, tokens, lengths)
    for i, row in enumerate(rows):
        for t in range(len(row)):
            ways = [prefix_probability(model, [*row[:t], symbol]) for symbol in range(model.symbols)]
            expected = [way / sum(ways) for way in ways]
            assert found.probabilities[i, t].tolist() == pytest.approx(expected, abs=1e-12)
            assert scored.log_probabilities[i, t].item() == pytest.approx(math.log(expected[row[t]]), abs=1e-10)


@checked
@given(st.data())
def test_nothing_is_ever_nan_and_predictions_sum_to_one(data: st.DataObject) -> None:
    model = data.draw(models()).to(dtype=data.draw(st.sampled_from([torch.float32, torch.float64])))
    _, tokens, lengths = data.draw(batches(model.symbols, length=8))
    inside = torch.arange(tokens.shape[1]) < lengths[:, None]
    filtered = forward(model, tokens, lengths)
    predicted, scored, path = (f(model, tokens, lengths) for f in (predict, token_log_probs, viterbi))
    finite = [filtered.alpha, filtered.scale, filtered.ending, predicted.probabilities]
    finite += [backward(model, tokens, filtered, lengths).beta, smooth(model, tokens, lengths).posterior]
    assert all(bool(table.isfinite().all()) for table in finite)
    for values in (filtered.log_likelihood, scored.log_probabilities, path.log_probability):
        assert not bool((values.isnan() | values.isposinf()).any())
    torch.testing.assert_close(filtered.alpha.sum(-1), torch.ones_like(filtered.scale), atol=2e-6, rtol=0)
    torch.testing.assert_close(predicted.probabilities.sum(-1), inside.to(model.dtype), atol=2e-6, rtol=0)
    chosen = predicted.probabilities.gather(2, tokens.clamp_min(0)[:, :, None])[:, :, 0]
    torch.testing.assert_close(scored.log_probabilities.exp(), torch.where(inside, chosen, 1), atol=2e-6, rtol=0)
    for flagged in (predicted.impossible, scored.impossible):
        assert bool((flagged >= scored.log_probabilities.isneginf().any(1)).all())
        assert bool((filtered.impossible >= flagged).all())


@checked
@given(st.data())
def test_a_row_is_the_same_alone_and_among_longer_ones(data: st.DataObject) -> None:
    model = data.draw(models())
    rows, tokens, lengths = data.draw(batches(model.symbols))
    together = [smooth(model, tokens, lengths).posterior, predict(model, tokens, lengths).probabilities]
    together += [viterbi(model, tokens, lengths).states, token_log_probs(model, tokens, lengths).log_probabilities]
    for i, row in enumerate(rows):
        alone = torch.tensor([row])
        single = [smooth(model, alone).posterior, predict(model, alone).probabilities]
        single += [viterbi(model, alone).states, token_log_probs(model, alone).log_probabilities]
        for a, b in zip(together, single):
            torch.testing.assert_close(a[i, : len(row)], b[0], rtol=0, atol=1e-12)


def test_forward_and_backward_share_their_scale() -> None:
    model = random_parameters(4, 5, 0, end=True)
    tokens, lengths = torch.randint(0, 5, (3, 9)), torch.tensor([9, 4, 1])
    filtered = forward(model, tokens, lengths)
    beta = backward(model, tokens, filtered, lengths).beta
    inside = (torch.arange(9)[:, None] < lengths).double()
    torch.testing.assert_close((filtered.alpha * beta).sum(-1), inside)
    sums = filtered.scale.log().sum(0) + filtered.ending.log()
    torch.testing.assert_close(sums, filtered.log_likelihood)


@pytest.mark.parametrize("end", [False, True])
def test_predictions_do_not_look_at_what_they_predict(end: bool) -> None:
    model = random_parameters(6, 8, 0, end=end)
    tokens = torch.randint(0, 8, (5, 12), generator=torch.Generator().manual_seed(0))
    before = predict(model, tokens).probabilities
    for t in range(12):
        changed = tokens.clone()
        changed[:, t:] = (changed[:, t:] + 1 + torch.arange(12 - t)) % 8
        after = predict(model, changed).probabilities
        assert torch.equal(before[:, : t + 1], after[:, : t + 1])
        assert t == 11 or not torch.equal(before[:, t + 1], after[:, t + 1])


def test_the_first_prediction_is_that_of_the_start() -> None:
    model = random_parameters(6, 8, 0)
    found = predict(model, torch.zeros(1, 3, dtype=torch.int64)).probabilities[0, 0]
    torch.testing.assert_close(found, model.start @ model.emission)


def test_without_an_end_the_scores_of_a_row_are_its_likelihood() -> None:
    model = random_parameters(6, 8, 0)
    tokens = torch.randint(0, 8, (5, 30))
    scored = token_log_probs(model, tokens).log_probabilities
    torch.testing.assert_close(scored.sum(1), log_likelihood(model, tokens))


def test_with_an_end_all_sequences_together_have_probability_one() -> None:
    model = random_parameters(2, 2, 4, end=True)
    assert model.end is not None
    model = model._replace(end=model.end.clamp_min(0.6))
    total = 0.0
    for length in range(1, 15):
        codes = torch.arange(2**length)[:, None] >> torch.arange(length) & 1
        total += log_likelihood(model, codes).exp().sum().item()
    assert total == pytest.approx(1.0, abs=1e-5)


def test_an_impossible_token_is_flagged_and_the_prediction_continues() -> None:
    model = Parameters(
        *(torch.tensor(t).double() for t in ([1.0, 0.0], [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    )
    tokens = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 2, 1]])
    assert log_likelihood(model, tokens).isneginf().tolist() == [False, True, True]
    assert viterbi(model, tokens).impossible.tolist() == [False, True, True]
    assert token_log_probs(model, tokens).log_probabilities.isneginf().tolist() == [
        [False] * 3,
        [True, False, False],
        [False, True, False],
    ]
    torch.testing.assert_close(predict(model, tokens).probabilities.sum(-1), torch.ones(3, 3).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ruled_out_state_that_would_explain_the_future_better_does_not_overflow(dtype: torch.dtype) -> None:
    tables = ([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [[1e-6, 1 - 1e-6], [1.0, 0.0]])
    model = Parameters(*(torch.tensor(table, dtype=dtype) for table in tables))
    tokens = torch.zeros(1, 400, dtype=torch.int64)
    posterior = smooth(model, tokens).posterior
    assert torch.equal(posterior, torch.tensor([1.0, 0.0], dtype=dtype).expand(1, 400, 2))


def test_float32_agrees_with_float64() -> None:
    model = random_parameters(30, 40, 0, concentration=0.3)
    tokens = sample(model, 20, 50, seed=1).tokens
    low = model.to(dtype=torch.float32)
    torch.testing.assert_close(log_likelihood(low, tokens), log_likelihood(model, tokens), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        smooth(low, tokens).posterior.double(), smooth(model, tokens).posterior, rtol=0, atol=1e-5
    )
    torch.testing.assert_close(
        predict(low, tokens).probabilities.double(), predict(model, tokens).probabilities, rtol=1e-4, atol=1e-6
    )


def test_a_long_row_neither_underflows_nor_drifts() -> None:
    model = random_parameters(5, 7, 0)
    tokens = sample(model, 2, 2_000, seed=1).tokens
    low = log_likelihood(model.to(dtype=torch.float32), tokens)
    torch.testing.assert_close(low, log_likelihood(model, tokens), rtol=1e-5, atol=0)


def test_viterbi_takes_the_memory_it_is_given() -> None:
    model = random_parameters(10, 6, 0, end=True)
    tokens, lengths = torch.randint(0, 6, (37, 20)), torch.randint(1, 21, (37,))
    whole, pieces = viterbi(model, tokens, lengths), viterbi(model, tokens, lengths, limit_bytes=1)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32])
def test_any_integer_type_will_do(dtype: torch.dtype) -> None:
    model = random_parameters(3, 5, 0)
    tokens = torch.randint(0, 5, (4, 6))
    lengths = torch.tensor([6, 3, 1, 2])
    short = (tokens.to(dtype), lengths.to(dtype))
    assert torch.equal(log_likelihood(model, *short), log_likelihood(model, tokens, lengths))
    assert torch.equal(expect(model, *short).emission, expect(model, tokens, lengths).emission)


@pytest.mark.parametrize(("tokens", "lengths", "message"), [
    ([[0, 1], [2, -1]], None, "row 1, position 1: token -1 is not in the alphabet 0 … 4"),
    ([[0, 1], [5, 1]], None, "row 1, position 0: token 5 "),
    ([[0, 1], [1, 9]], [2, 0], "row 1 has length 0: it is empty"),
    ([[0, 1], [1, 1]], [3, 1], "row 0 has length 3: it is longer than its 2 positions"),
    ([[0, 1], [1, 1]], [1], "one value for each of 2 rows"),
    ([[0.0, 1.0]], None, "tokens must be whole numbers, not torch.float32"),
    ([[True, False]], None, "tokens must be whole numbers, not torch.bool"),
    ([[0, 1]], [1.0], "lengths must be whole numbers, not torch.float32"),
    ([0, 1], None, "rows × positions"),
    ([[], []], None, "row 0 is empty"),
])  # fmt: skip
def test_wrong_tokens_are_named(tokens: list[list[float]], lengths: list[int] | None, message: str) -> None:
    values = torch.tensor(tokens, dtype=torch.int64) if tokens == [[], []] else torch.tensor(tokens)
    with pytest.raises(HmmError, match=message):
        check_tokens(values, 5, None if lengths is None else torch.tensor(lengths))


def test_what_lies_beyond_a_row_is_ignored() -> None:
    check_tokens(torch.tensor([[0, -1], [4, 99]]), 5, torch.tensor([1, 1]))
    for function in (forward, log_likelihood, predict, token_log_probs, smooth, viterbi):
        with pytest.raises(HmmError, match="row 0, position 1"):
            function(random_parameters(2, 5, 0), torch.tensor([[0, -1]]))


def test_no_rows_are_no_problem() -> None:
    model = random_parameters(3, 5, 0, end=True)
    none = torch.zeros(0, 4, dtype=torch.int64)
    assert log_likelihood(model, none).shape == (0,)
    assert predict(model, none).probabilities.shape == (0, 4, 5)
    assert viterbi(model, none).states.shape == smooth(model, none).posterior.shape[:2] == (0, 4)


def test_hmmlearn_agrees() -> None:
    hmmlearn = pytest.importorskip("hmmlearn.hmm", reason="hmmlearn is not installed")
    model = random_parameters(6, 9, 3)
    tokens = sample(model, 8, 40, seed=2).tokens
    theirs = hmmlearn.CategoricalHMM(n_components=6, n_features=9)
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = (table.numpy() for table in model[:3])
    ours, path = smooth(model, tokens), viterbi(model, tokens)
    for i, row in enumerate(tokens.numpy()):
        score, posterior = theirs.score_samples(row[:, None])
        assert ours.log_likelihood[i].item() == pytest.approx(score, rel=1e-12)
        np.testing.assert_allclose(ours.posterior[i].numpy(), posterior, atol=1e-10)
        score, states = theirs.decode(row[:, None])
        assert path.log_probability[i].item() == pytest.approx(score, rel=1e-12)
        assert path.states[i].tolist() == states.tolist()
