"""The oracle against sums over all state paths in exact fractions, entropy rates against formulas, KL against loops."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from enumeration import models
from forward_backward import log_likelihood
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.baselines.hmm_score import score
from shoestring.baselines.ngram import PRIORS, best_prior, count
from shoestring.baselines.oracle import (
    EntropyRate,
    baseline_predictions,
    check_permutations,
    divergences,
    entropy_rate,
    losses_by_position,
    losses_in_context,
    oracle_log_probs,
)
from shoestring.hmm.inference import predict, token_log_probs
from shoestring.hmm.parameters import HmmError, Parameters, random_parameters
from shoestring.hmm.sampling import sample, stationary

checked = settings(max_examples=40, deadline=None)
Row = Sequence[int]
Disguise = tuple[torch.Tensor | None, torch.Tensor | None]


def prefix_probability(model: Parameters, shown: Row, symbols: Row, states: Row) -> Fraction:
    """That a row begins with these tokens, exactly: symbol k is shown as symbols[k], state s emits as states[s]."""
    start, transition, emission = ([*map(fractions, table.tolist())] for table in (model.start[None], *model[1:3]))
    stops = [Fraction(0)] * model.states if model.end is None else fractions(model.end.tolist())
    total = Fraction(0)
    for path in itertools.product(range(model.states), repeat=len(shown)):
        p = start[0][path[0]]
        for before, after in pairwise(path):
            p *= (1 - stops[before]) * transition[before][after]
        for state, token in zip(path, shown):
            p *= emission[states[state]][list(symbols).index(token)]
        total += p
    return total


def fractions(values: Sequence[float]) -> list[Fraction]:
    return [Fraction(value) for value in values]


def expected(model: Parameters, past: Row, symbols: Row, states: Row) -> list[float] | None:
    """The distribution of the next token; None where the past is impossible, or the last of all."""
    ways = [prefix_probability(model, [*past, token], symbols, states) for token in range(model.symbols)]
    return [float(way / sum(ways)) for way in ways] if sum(ways) else None


def random_disguise(model: Parameters, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(rows, model.symbols, generator=generator).argsort(1),
        torch.rand(rows, model.states, generator=generator).argsort(1),
    )


def draw(model: Parameters, rows: int, length: int, symbols: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Disguised rows: their paths first, and then what each place of them emits."""
    path = sample(model, rows, length, seed=0).states
    emission = model.emission[states.gather(1, path)].flatten(0, 1)  # rows · length, symbols
    drawn = torch.multinomial(emission, 1, generator=torch.Generator().manual_seed(0)).view(rows, length)
    return symbols.gather(1, drawn)


@st.composite
def disguised(draw: st.DrawFn, model: Parameters, rows: int, length: int) -> tuple[torch.Tensor, Disguise]:
    """Tokens of rows of one length, and for both tables one, or none."""
    n, positions = draw(st.integers(1, rows)), draw(st.integers(1, length))
    row = st.lists(st.integers(0, model.symbols - 1), min_size=positions, max_size=positions)
    tokens = torch.tensor([draw(row) for _ in range(n)])
    tables = [
        torch.tensor([draw(st.permutations(range(cells))) for _ in range(n)]) if draw(st.booleans()) else None
        for cells in (model.symbols, model.states)
    ]
    return tokens, (tables[0], tables[1])


def oracle_predictions(
    model: Parameters,
    tokens: torch.Tensor,
    symbols: torch.Tensor | None = None,
    states: torch.Tensor | None = None,
    limit_bytes: int = 2**28,
) -> torch.Tensor:
    return baseline_predictions(model, tokens, symbols, states, limit_bytes=limit_bytes)["oracle"]


def check_oracle(
    model: Parameters, tokens: torch.Tensor, symbols: torch.Tensor | None, states: torch.Tensor | None, limit_bytes: int
) -> None:
    """Up to the first token of every row that is impossible."""
    log_probs = oracle_log_probs(model, tokens, symbols, states, limit_bytes)
    predictions = oracle_predictions(model, tokens, symbols, states, limit_bytes)
    assert log_probs.dtype == torch.float64 and not log_probs.isnan().any() and predictions.isfinite().all()
    for i, row in enumerate(tokens.tolist()):
        naming = list(range(model.symbols)) if symbols is None else symbols[i].tolist()
        shuffle = list(range(model.states)) if states is None else states[i].tolist()
        for t, token in enumerate(row):
            answer = expected(model, row[:t], naming, shuffle)
            if answer is None:
                break
            assert predictions[i, t].tolist() == pytest.approx(answer, rel=1e-6, abs=1e-15)
            if answer[token] == 0:
                assert log_probs[i, t] == -math.inf
                break
            assert log_probs[i, t].item() == pytest.approx(math.log(answer[token]), rel=1e-9, abs=1e-12)


@checked
@given(st.data())
def test_the_oracle_is_the_sum_over_all_paths(data: st.DataObject) -> None:
    model = data.draw(models())
    tokens, (symbols, states) = data.draw(disguised(model, rows=3, length=4 if model.states < 3 else 3))
    limit = data.draw(st.sampled_from([1, 1000, 2**28]))
    check_oracle(model, tokens, symbols, states, limit)


@pytest.mark.parametrize("end", [False, True])
def test_it_is_so_where_a_permutation_is_not_its_own_inverse(end: bool) -> None:
    model = random_parameters(3, 4, 0, end=end)
    tokens = torch.tensor([[0, 1, 2, 3], [3, 3, 0, 1], [2, 0, 0, 2]])
    symbols = torch.tensor([[1, 2, 3, 0], [2, 0, 1, 3], [3, 0, 2, 1]])
    states = torch.tensor([[1, 2, 0], [2, 0, 1], [1, 2, 0]])
    check_oracle(model, tokens, symbols, states, limit_bytes=1000)


@pytest.mark.parametrize("end", [False, True])
def test_a_disguise_that_changes_nothing_is_none(end: bool) -> None:
    model = random_parameters(4, 6, 0, end=end)
    tokens = torch.randint(0, 6, (5, 20), generator=torch.Generator().manual_seed(0))
    naming, shuffle = torch.arange(6).expand(5, -1), torch.arange(4).expand(5, -1)
    for symbols, states in itertools.product((None, naming), (None, shuffle)):
        torch.testing.assert_close(
            oracle_log_probs(model, tokens, symbols, states), token_log_probs(model, tokens).log_probabilities
        )
        torch.testing.assert_close(
            oracle_predictions(model, tokens, symbols, states), predict(model, tokens).probabilities.float()
        )


@pytest.mark.parametrize("end", [False, True])
def test_every_row_is_that_of_its_own_model(end: bool) -> None:
    model = random_parameters(7, 5, 1, concentration=0.3, end=end)
    symbols, states = random_disguise(model, 6, seed=2)
    tokens = torch.randint(0, 5, (6, 200), generator=torch.Generator().manual_seed(3))
    log_probs = oracle_log_probs(model, tokens, symbols, states)
    predictions = oracle_predictions(model, tokens, symbols, states)
    for i in range(6):
        columns = torch.empty_like(model.emission)
        for k in range(5):
            columns[:, symbols[i, k]] = model.emission[states[i], k]
        own, row = model._replace(emission=columns), tokens[i : i + 1]
        torch.testing.assert_close(log_probs[i], token_log_probs(own, row).log_probabilities[0])
        torch.testing.assert_close(predictions[i], predict(own, row).probabilities[0].float())
        if not end:
            torch.testing.assert_close(log_probs[i].sum(), log_likelihood(own, row)[0])


def test_predictions_are_causal_sum_to_one_and_hold_the_log_probabilities() -> None:
    model = random_parameters(5, 6, 4, concentration=0.3)
    symbols, states = random_disguise(model, 8, seed=5)
    tokens = draw(model, 8, 12, symbols, states)
    before = baseline_predictions(model, tokens, symbols, states, alpha=0.5)
    chosen = before["oracle"].gather(2, tokens[:, :, None])[:, :, 0]
    torch.testing.assert_close(chosen, oracle_log_probs(model, tokens, symbols, states).exp().float())
    assert [*before] == ["unigram_in_context", "bigram_in_context", "oracle"]
    for t in range(12):
        changed = tokens.clone()
        changed[:, t:] = (changed[:, t:] + 1) % 6
        for name, table in baseline_predictions(model, changed, symbols, states, alpha=0.5).items():
            assert table.dtype == torch.float32 and table.shape == (8, 12, 6)
            assert torch.equal(table[:, : t + 1], before[name][:, : t + 1])
            torch.testing.assert_close(table.sum(2), torch.ones(8, 12))
            if t < 11 and name != "bigram_in_context":
                assert not torch.equal(table[:, t + 1], before[name][:, t + 1])


def counting(name: str, past: Row, e: int, alpha: float) -> list[float]:
    """The distribution of the next token, by counting in Python."""
    if name == "uniform":
        return [1 / e] * e
    if name == "unigram_in_context":
        return [(list(past).count(b) + alpha) / (len(past) + alpha * e) for b in range(e)]
    assert name == "bigram_in_context"
    seen = Counter(pairwise(past))
    weights = [(seen[past[-1], b] if past else 0) + alpha for b in range(e)]
    return [weight / sum(weights) for weight in weights]


@checked
@given(st.data())
def test_losses_by_position_are_means_of_enumeration_and_counting(data: st.DataObject) -> None:
    model = data.draw(models(zeros=False))
    tokens, (symbols, states) = data.draw(disguised(model, rows=3, length=3))
    alpha = data.draw(st.sampled_from([0.1, 1.0, 3.0]))
    limit = data.draw(st.sampled_from([1, 1000, 2**28]))
    found = losses_by_position(model, tokens, symbols, states, alpha=alpha, limit_bytes=limit)
    predictions = baseline_predictions(model, tokens, symbols, states, alpha, limit_bytes=limit)
    assert [*found] == ["uniform", "unigram_in_context", "bigram_in_context", "oracle"]
    for name, losses in found.items():
        assert losses.dtype == torch.float64 and losses.shape == tokens.shape[1:]
        for t, loss in enumerate(losses.tolist()):
            values = []
            for i, row in enumerate(tokens.tolist()):
                if name == "oracle":
                    naming = list(range(model.symbols)) if symbols is None else symbols[i].tolist()
                    shuffle = list(range(model.states)) if states is None else states[i].tolist()
                    guess = expected(model, row[:t], naming, shuffle)
                    assert guess is not None
                else:
                    guess = counting(name, row[:t], model.symbols, alpha)
                values.append(-math.log(guess[row[t]]))
                if name != "uniform":
                    assert predictions[name][i, t].tolist() == pytest.approx(guess, rel=1e-6)
            assert loss == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-12)


def test_an_alpha_for_each_baseline_is_that_of_each_alone() -> None:
    model = random_parameters(3, 5, 0, concentration=0.3)
    tokens = sample(model, 7, 12, seed=1).tokens
    alphas = {"unigram_in_context": 0.3, "bigram_in_context": 2.0}
    losses, tables = losses_by_position(model, tokens, alpha=alphas), baseline_predictions(model, tokens, alpha=alphas)
    for name, alpha in alphas.items():
        assert torch.equal(losses[name], losses_by_position(model, tokens, alpha=alpha)[name])
        assert torch.equal(tables[name], baseline_predictions(model, tokens, alpha=alpha)[name])
    assert torch.equal(losses["oracle"], losses_by_position(model, tokens)["oracle"])


@pytest.mark.parametrize("limit", [1, 1000, 2**28])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_losses_in_context_need_no_model(limit: int, dtype: torch.dtype) -> None:
    alphas = {"unigram_in_context": 0.3, "bigram_in_context": 2.0}
    tokens = torch.randint(0, 5, (6, 8), generator=torch.Generator().manual_seed(0))
    found = losses_in_context(tokens.to(dtype), 5, alphas, limit)
    assert [*found] == ["uniform", *alphas]
    for name, losses in found.items():
        for t, loss in enumerate(losses.tolist()):
            guesses = [counting(name, row[:t], 5, alphas.get(name, 1.0))[row[t]] for row in tokens.tolist()]
            assert loss == pytest.approx(statistics.fmean(-math.log(p) for p in guesses), rel=1e-12)


def test_undisguised_losses_are_those_of_the_scores() -> None:
    model = random_parameters(5, 9, 0, concentration=0.05)
    tokens, corpus = (sample(model, n, 15, seed=n).tokens for n in (20, 50))
    counts = count([corpus.numpy()], 9)
    assert min(PRIORS) < best_prior(counts) < max(PRIORS)
    found = losses_by_position(model, tokens, corpus_counts=counts, alpha=0.3, limit_bytes=20_000)
    scores = score(model, tokens, corpus_counts=counts, alpha=0.3)
    names = ["uniform", "unigram_in_context", "bigram_in_context", "unigram_corpus", "bigram_corpus"]
    assert [*found] == [*names, "oracle"]
    assert found["oracle"].tolist() == pytest.approx(scores.loss_by_position, rel=1e-12)
    for name in names:
        assert found[name].tolist() == pytest.approx(scores.baselines[name].loss_by_position, rel=1e-12)


def test_nothing_beats_the_oracle_on_rows_of_the_model() -> None:
    model = random_parameters(4, 8, 7, concentration=0.2)
    rows = 150
    naming, shuffle = random_disguise(model, rows, seed=8)
    same_naming, same_shuffle = torch.arange(8).expand(rows, -1), torch.arange(4).expand(rows, -1)
    for symbols, states in itertools.product((naming, same_naming), (shuffle, same_shuffle)):
        tokens = draw(model, rows, 25, symbols, states)
        counts = count([tokens.numpy()], 8)  # of the very rows that are predicted, to the advantage of the others
        by_position = losses_by_position(model, tokens, symbols, states, counts)
        losses = {name: values.mean().item() for name, values in by_position.items()}
        oracle = losses.pop("oracle")
        assert all(oracle < loss for loss in losses.values())
        undisguised = -oracle_log_probs(model, tokens).mean().item()
        if symbols is naming or states is shuffle:
            assert oracle < undisguised - 0.1
        else:
            assert oracle == pytest.approx(undisguised, rel=1e-12)


def test_float32_small_types_and_chunks_make_no_difference() -> None:
    model = random_parameters(6, 10, 0, concentration=0.3)
    symbols, states = random_disguise(model, 9, seed=1)
    tokens = draw(model, 9, 30, symbols, states)
    counts = count([tokens.numpy()], 10)
    x, naming, shuffle = (table.to(torch.uint8) for table in (tokens, symbols, states))
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        ours = model.to(dtype=dtype)
        log_probs = oracle_log_probs(ours, x, naming, shuffle, limit_bytes=5000)
        assert log_probs.dtype == torch.float64
        close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
        close(log_probs, oracle_log_probs(model, tokens, symbols, states))
        predictions = oracle_predictions(ours, x, naming, shuffle, limit_bytes=5000)
        assert predictions.dtype == torch.float32
        close(predictions, oracle_predictions(model, tokens, symbols, states))
        losses = losses_by_position(ours, x, naming, shuffle, counts, limit_bytes=5000)
        for name, values in losses_by_position(model, tokens, symbols, states, counts).items():
            close(losses[name], values)


def test_nothing_given_is_changed_and_no_rows_are_no_answers() -> None:
    model = random_parameters(3, 4, 0)
    symbols, states = random_disguise(model, 5, seed=1)
    tokens = draw(model, 5, 6, symbols, states)
    given = [*model[:3], tokens, symbols, states]
    copies = [table.clone() for table in given]
    losses_by_position(model, tokens, symbols, states)
    baseline_predictions(model, tokens, symbols, states)
    assert all(torch.equal(table, copy) for table, copy in zip(given, copies))
    assert oracle_log_probs(model, tokens[:0], symbols[:0], states[:0]).shape == (0, 6)
    assert oracle_predictions(model, tokens[:0]).shape == (0, 6, 4)


def test_a_token_that_is_ruled_out_is_an_infinite_loss() -> None:
    model = Parameters(torch.ones(1), torch.ones(1, 1), torch.tensor([[0.5, 0.5, 0.0]]))
    tokens, symbols = torch.tensor([[0, 1], [2, 0]]), torch.tensor([[0, 1, 2], [0, 2, 1]])
    assert losses_by_position(model, tokens)["oracle"].tolist() == [math.inf, pytest.approx(math.log(2))]
    assert losses_by_position(model, tokens, symbols)["oracle"].tolist() == pytest.approx([math.log(2)] * 2)


def test_independent_tokens_have_the_rate_of_their_entropy() -> None:
    emission = torch.tensor([[0.5, 0.25, 0.2, 0.05]], dtype=torch.float64)
    model = Parameters(torch.ones(1).double(), torch.ones(1, 1).double(), emission)
    found = entropy_rate(model, sample(model, 100, 50, seed=0).tokens, burn_in=10)
    exact = -sum(p * math.log(p) for p in emission[0].tolist())
    assert abs(found.nats - exact) < 4 * found.error and found.tokens == 4000
    spread = sum(p * math.log(p) ** 2 for p in emission[0].tolist()) - exact**2
    assert found.error == pytest.approx(math.sqrt(spread / 4000), rel=0.3)


def test_a_cycle_has_the_rate_zero() -> None:
    tables = ([0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    model = Parameters(*(torch.tensor(table, dtype=torch.float64) for table in tables))
    tokens = sample(model, 6, 9, seed=0).tokens
    found = entropy_rate(model, tokens, burn_in=1)
    assert found == EntropyRate(0.0, 0.0, 48) and math.copysign(1, found.nats) == 1
    assert entropy_rate(model, tokens, burn_in=0).nats == pytest.approx(math.log(2) / 9)  # the first token alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_markov_chain_has_the_mean_entropy_of_its_rows(dtype: torch.dtype) -> None:
    chain = random_parameters(5, 5, 3, concentration=0.5)
    model = chain._replace(emission=torch.eye(5, dtype=torch.float64))
    found = entropy_rate(model.to(dtype=dtype), sample(model, 150, 120, seed=1).tokens, burn_in=40)
    rows = [-math.fsum(p * math.log(p) for p in row if p) for row in model.transition.tolist()]
    exact = sum(share * entropy for share, entropy in zip(stationary(model.transition).tolist(), rows))
    assert 0 < found.error < 0.02 and abs(found.nats - exact) < 4 * found.error


def test_mean_and_error_are_those_of_the_sequences() -> None:
    model = random_parameters(4, 6, 0)
    tokens = sample(model, 7, 11, seed=0).tokens
    found = entropy_rate(model, tokens, burn_in=3)
    losses = (-token_log_probs(model, tokens).log_probabilities).tolist()
    means = [statistics.fmean(row[3:]) for row in losses]
    assert found.nats == pytest.approx(statistics.fmean(means))
    assert found.error == pytest.approx(statistics.stdev(means) / math.sqrt(7))
    assert found.tokens == 7 * 8


@checked
@given(st.data())
def test_the_divergence_is_that_of_a_double_loop(data: st.DataObject) -> None:
    n, positions, e = (data.draw(st.integers(1, 4)) for _ in range(3))
    cell = st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0])
    weights = st.lists(cell, min_size=e, max_size=e).filter(any)

    def table() -> torch.Tensor:
        values = torch.tensor([[data.draw(weights) for _ in range(positions)] for _ in range(n)], dtype=torch.float64)
        return values / values.sum(2, keepdim=True)

    q, p = table(), table()
    total = 0.0
    for i, t, b in itertools.product(range(n), range(positions), range(e)):
        here, theirs = p[i, t, b].item(), q[i, t, b].item()
        if here:
            total += here * math.log(here / theirs) if theirs else math.inf
    limit = data.draw(st.sampled_from([1, 2**28]))
    found = divergences(q.log(), p, limit_bytes=limit)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(total / (n * positions), rel=1e-9, abs=1e-12)
    assert divergences(p.log(), p).item() == pytest.approx(0, abs=1e-12)


def test_the_oracle_is_nearest_to_itself() -> None:
    model = random_parameters(4, 6, 2, concentration=0.3)
    symbols, states = random_disguise(model, 30, seed=3)
    tokens = draw(model, 30, 20, symbols, states)
    log_p = oracle_predictions(model, tokens, symbols, states).log()
    found = {
        name: divergences(log_p, predictions).item()
        for name, predictions in baseline_predictions(model, tokens, symbols, states).items()
    }
    assert found["oracle"] == pytest.approx(0, abs=1e-6)
    assert found["unigram_in_context"] > 0.1 and found["bigram_in_context"] > 0.1


@pytest.mark.parametrize(("table", "message"), [
    (torch.tensor([[0, 1, 2]]), r"symbols must have shape \(2, 3\).*not \(1, 3\)"),
    (torch.tensor([[0, 1], [1, 0]]), r"symbols must have shape \(2, 3\).*not \(2, 2\)"),
    (torch.tensor([0, 1, 2]), r"symbols must have shape \(2, 3\).*not \(3,\)"),
    (torch.tensor([[0, 1, 2], [2, 2, 0]]), r"symbols\[1\] is not a permutation of 0 … 2: it lacks 1"),
    (torch.tensor([[1, 2, 3], [2, 1, 0]]), r"symbols\[0\] is not a permutation of 0 … 2: it lacks 0"),
    (torch.tensor([[-1, 0, 1], [2, 1, 0]]), r"symbols\[0\] is not a permutation of 0 … 2: it lacks 2"),
    (torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]), r"symbols must be whole numbers, not torch\.float32"),
])  # fmt: skip
def test_tables_that_are_no_permutations_are_named(table: torch.Tensor, message: str) -> None:
    with pytest.raises(HmmError, match=message):
        check_permutations("symbols", table, rows=2, cells=3)


@pytest.mark.parametrize("function", [oracle_log_probs, losses_by_position, baseline_predictions])
def test_wrong_rows_are_named(function: object) -> None:
    assert callable(function)
    model = random_parameters(2, 3, 0)
    tokens, good, shuffle = torch.tensor([[0, 1, 2]]), torch.tensor([[2, 0, 1]]), torch.tensor([[1, 0]])
    with pytest.raises(HmmError, match=r"symbols\[0\] is not a permutation of 0 … 2: it lacks 2"):
        function(model, tokens, torch.tensor([[0, 1, 1]]), shuffle)
    with pytest.raises(HmmError, match=r"states\[0\] is not a permutation of 0 … 1: it lacks 0"):
        function(model, tokens, good, torch.tensor([[1, 1]]))
    with pytest.raises(HmmError, match=r"states must have shape \(1, 2\)"):
        function(model, tokens, good, torch.tensor([[1, 0, 2]]))
    with pytest.raises(HmmError, match="row 0, position 1: token 3"):
        function(model, torch.tensor([[0, 3]]), good, shuffle)


def test_what_has_no_answer_is_named() -> None:
    model = random_parameters(2, 3, 0)
    tokens = torch.tensor([[0, 1, 2], [1, 1, 0]])
    for burn_in in (-1, 3):
        with pytest.raises(HmmError, match=f"burn_in = {burn_in}: must leave some of 3 tokens"):
            entropy_rate(model, tokens, burn_in)
    with pytest.raises(HmmError, match="at least 2 sequences, not 1"):
        entropy_rate(model, tokens[:1], 0)
    with pytest.raises(HmmError, match="with end probabilities has no entropy rate"):
        entropy_rate(random_parameters(2, 3, 0, end=True), tokens, 0)
    with pytest.raises(HmmError, match="row 0, position 2: the token has probability zero"):
        entropy_rate(model._replace(emission=torch.tensor([[0.5, 0.5, 0.0]] * 2).double()), tokens, 0)
    with pytest.raises(HmmError, match="there are no sequences"):
        losses_by_position(model, tokens[:0])
    with pytest.raises(HmmError, match=r"alpha = 0\.0: must be above 0"):
        losses_by_position(model, tokens, alpha=0.0)
    with pytest.raises(HmmError, match=r"alpha = 0\.0: must be above 0"):
        losses_in_context(tokens, 3, {"unigram_in_context": 1.0, "bigram_in_context": 0.0})
    with pytest.raises(HmmError, match="there are no sequences"):
        losses_in_context(tokens[:0], 3)
    with pytest.raises(HmmError, match="row 0, position 2: token 2"):
        losses_in_context(tokens, 2)
    with pytest.raises(HmmError, match="counted over 4 symbols, the model has 3"):
        losses_by_position(model, tokens, corpus_counts=count([np.arange(4)], 4))


def test_what_cannot_be_compared_is_named() -> None:
    logits = torch.zeros(2, 3, 4)
    uniform = logits.softmax(2)
    with pytest.raises(HmmError, match=r"log_p has shape \(2, 3, 4\), predictions have \(2, 3, 5\)"):
        divergences(uniform.log(), torch.zeros(2, 3, 5))
    with pytest.raises(HmmError, match="nothing to compare"):
        divergences(uniform[:0].log(), uniform[:0])
    with pytest.raises(HmmError, match="log_p is not normalised"):
        divergences(logits, uniform)
    with pytest.raises(HmmError, match="log_p is not normalised"):
        divergences(logits.fill_(math.nan), uniform)
    assert divergences(uniform.log().bfloat16(), uniform).abs().item() < 0.02
