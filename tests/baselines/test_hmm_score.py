"""Scores against sums over all state paths and counting in plain Python; and that none of them sees the answer."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from enumeration import batches, models, paths, prefix_probability
from forward_backward import smooth
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.baselines.hmm_score import BaselineLosses, Losses, Scores, score
from shoestring.baselines.in_context import from_corpus, in_context
from shoestring.baselines.ngram import PRIORS, Counts, best_prior, count
from shoestring.baselines.standard_error import mean_error
from shoestring.hmm.inference import predict, token_log_probs
from shoestring.hmm.parameters import HmmError, Parameters, random_parameters
from shoestring.hmm.sampling import sample

CPU = torch.device("cpu")
checked = settings(max_examples=30, deadline=None)
Row = Sequence[int]


def model_oracle(model: Parameters, past: Row) -> list[float]:
    ways = [prefix_probability(model, [*past, symbol]) for symbol in range(model.symbols)]
    return [way / sum(ways) for way in ways]


def baseline_oracle(name: str, past: Row, e: int, alpha: float, corpus: Sequence[Row], prior: float) -> list[float]:
    """The distribution of the next token, by counting in Python."""
    everything = Counter(token for row in corpus for token in row)
    pairs = Counter(pair for row in corpus for pair in pairwise(row))
    unigram = [(everything[b] + 1) / (everything.total() + e) for b in range(e)]
    if name == "uniform":
        return [1 / e] * e
    if name == "unigram_in_context":
        return [(list(past).count(b) + alpha) / (len(past) + alpha * e) for b in range(e)]
    if name == "unigram_corpus" or (name == "bigram_corpus" and not past):
        return unigram
    if name == "bigram_corpus":
        a = past[-1]
        followers = sum(pairs[a, b] for b in range(e))
        return [(pairs[a, b] + prior * unigram[b]) / (followers + prior) for b in range(e)]
    assert name == "bigram_in_context"
    seen = Counter(pairwise(past))
    weights = [(seen[past[-1], b] if past else 0) + alpha for b in range(e)]
    return [weight / sum(weights) for weight in weights]


def counted(rows: torch.Tensor | list[list[int]], symbols: int) -> Counts:
    """Of rows that may differ in length."""
    return count([np.array(row) for row in (rows.tolist() if isinstance(rows, torch.Tensor) else rows)], symbols)


def kl(p: Sequence[float], q: Sequence[float]) -> float:
    return math.fsum(a * math.log(a / b) if b else math.inf for a, b in zip(p, q) if a)


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values and math.isfinite(math.fsum(values)) else None


def about(value: float | None) -> object:
    return None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)


def check_losses(found: Losses, values: list[list[float]]) -> None:
    """`values`: the loss of every token of every row."""
    flat = [value for row in values for value in row]
    assert found.loss == about(mean(flat))
    assert found.perplexity == about(None if not flat else math.exp(math.fsum(flat) / len(flat)))
    assert found.last_token_loss == about(mean([row[-1] for row in values]))
    check_positions(found.loss_by_position, values)


def check_positions(found: tuple[float | None, ...], values: list[list[float]]) -> None:
    for t, value in enumerate(found):
        assert value == about(mean([row[t] for row in values if t < len(row)]))


def check_all(model: Parameters, rows: list[list[int]], corpus: list[list[int]], alpha: float, found: Scores) -> None:
    """Every number of `found` again, in plain Python."""
    guesses = [[model_oracle(model, row[:t]) for t in range(len(row))] for row in rows]
    assert (found.sequences, found.tokens) == (len(rows), sum(map(len, rows)))
    check_losses(found, [[-math.log(p[x]) for p, x in zip(guess, row)] for guess, row in zip(guesses, rows)])
    prior = found.bigram_prior or 0.0
    assert [*found.baselines][:3] == ["uniform", "unigram_in_context", "bigram_in_context"]
    assert [*found.baselines][3:] == (["unigram_corpus", "bigram_corpus"] if corpus else [])
    for name, theirs in found.baselines.items():
        e = model.symbols
        others = [[baseline_oracle(name, row[:t], e, alpha, corpus, prior) for t in range(len(row))] for row in rows]
        check_losses(theirs, [[-math.log(q[x]) for q, x in zip(other, row)] for other, row in zip(others, rows)])
        of_model = [[kl(p, q) for p, q in zip(guess, other)] for guess, other in zip(guesses, others)]
        of_baseline = [[kl(q, p) for p, q in zip(guess, other)] for guess, other in zip(guesses, others)]
        assert theirs.kl_of_model == about(mean([value for row in of_model for value in row]))
        assert theirs.kl_of_baseline == about(mean([value for row in of_baseline for value in row]))
        check_positions(theirs.kl_of_model_by_position, of_model)
        check_positions(theirs.kl_of_baseline_by_position, of_baseline)


@checked
@given(st.data())
def test_every_number_is_that_of_enumeration_and_counting(data: st.DataObject) -> None:
    model = data.draw(models(zeros=False, symbols=4))
    rows, tokens, lengths = data.draw(batches(model.symbols, rows=3, length=6 if model.states < 3 else 5))
    corpus, *_ = data.draw(batches(model.symbols, rows=5, length=8))
    alpha = data.draw(st.sampled_from([0.01, 0.5, 1.0, 3.0]))
    counts = counted(corpus, model.symbols) if data.draw(st.booleans()) else None
    limit = data.draw(st.sampled_from([1, 2000, 2**28]))
    found = score(model, tokens, lengths, counts, alpha, limit_bytes=limit)
    assert found.impossible == 0 and found.alpha == alpha
    assert found.bigram_prior == (None if counts is None else best_prior(counts))
    check_all(model, rows, [] if counts is None else corpus, alpha, found)


@checked
@given(st.data())
def test_impossible_rows_are_counted_and_left_out(data: st.DataObject) -> None:
    model = data.draw(models())._replace(end=None)
    rows, tokens, lengths = data.draw(batches(model.symbols))
    found = score(model, tokens, lengths)
    possible = [row for row in rows if math.fsum(p for _, p in paths(model, row)) > 0]
    assert found.impossible == len(rows) - len(possible)
    assert len(found.loss_by_position) == tokens.shape[1]
    check_all(model, possible, [], 1.0, found)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_cannot_end_there_or_continue_is_flagged(dtype: torch.dtype) -> None:
    tables = ([1.0, 0.0], [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]], [0.0, 1.0])
    model = Parameters(*(torch.tensor(table, dtype=dtype) for table in tables))
    tokens = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 1]])
    found = score(model, tokens)
    assert (found.impossible, found.sequences) == (1, 2)  # after a 1 the chain must stop


def test_float32_that_underflows_is_scored_in_float64() -> None:
    tables = ([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [[1 - 1e-44, 1e-44], [0.5, 0.5]])
    model = Parameters(*(torch.tensor(table, dtype=torch.float32) for table in tables))
    tokens = torch.tensor([[0, 0], [0, 1], [0, 0]])
    found = score(model, tokens)
    tiny = model.emission[0, 1].double().item()
    assert 0 < tiny < torch.finfo(torch.float32).tiny and found.impossible == 0
    assert found.loss == pytest.approx(-math.log(tiny) / 6)
    assert found.last_token_loss == pytest.approx(-math.log(tiny) / 3)


@pytest.mark.parametrize(("symbols", "length"), [(5, 12), (12, 5)])
@pytest.mark.parametrize("end", [False, True])
def test_no_distribution_depends_on_the_token_it_predicts_or_later_ones(symbols: int, length: int, end: bool) -> None:
    model = random_parameters(6, symbols, 0, end=end)
    tokens = sample(model._replace(end=None), 4, length, seed=1).tokens
    counts = counted(tokens.flip(0)[:2], symbols)
    baselines = in_context(symbols, 0.5, CPU) | from_corpus(counts, model, 1.0)

    def distributions(x: torch.Tensor) -> dict[str, torch.Tensor]:
        guesses = {name: [guess.p.expand(4, -1) for guess in baseline(x)] for name, baseline in baselines.items()}
        return {"model": predict(model, x).probabilities} | {n: torch.stack(g, 1) for n, g in guesses.items()}

    before, scores = distributions(tokens), score(model, tokens, corpus_counts=counts)
    for t in range(length):
        changed = tokens.clone()
        changed[:, t:] = (changed[:, t:] + 1 + torch.arange(length - t)) % symbols
        for name, table in distributions(changed).items():
            assert table.shape == (4, length, symbols)
            torch.testing.assert_close(table.sum(2), torch.ones(4, length, dtype=torch.float64))
            assert torch.equal(table[:, : t + 1], before[name][:, : t + 1])
            if t + 1 < length and name not in ("uniform", "unigram_corpus"):
                assert not torch.equal(table[:, t + 1], before[name][:, t + 1]) or name == "bigram_in_context"
        after = score(model, changed, corpus_counts=counts)
        assert after.loss_by_position[:t] == scores.loss_by_position[:t]
        assert after.loss_by_position[t] != scores.loss_by_position[t]
        for name, theirs in after.baselines.items():
            ours = scores.baselines[name]
            assert theirs.loss_by_position[:t] == ours.loss_by_position[:t]
            assert theirs.kl_of_model_by_position[: t + 1] == ours.kl_of_model_by_position[: t + 1]
            assert theirs.kl_of_baseline_by_position[: t + 1] == ours.kl_of_baseline_by_position[: t + 1]


def test_the_posterior_and_the_softmax_of_the_seed_give_other_numbers() -> None:
    model = random_parameters(8, 10, 5, concentration=0.2)
    tokens = sample(model, 30, 25, seed=1).tokens
    ours = score(model, tokens)
    assert ours.loss == pytest.approx(-token_log_probs(model, tokens).log_probabilities.mean().item(), rel=1e-12)

    def loss(probabilities: torch.Tensor) -> float:
        return -probabilities.gather(2, tokens[:, :, None]).log().mean().item()

    causal = predict(model, tokens).probabilities
    assert ours.loss == pytest.approx(loss(causal), rel=1e-12)
    posterior = smooth(model, tokens).posterior @ model.emission  # of states that have seen the answer
    assert loss(posterior) < 0.8 * ours.loss
    assert loss(causal.softmax(2)) > 1.1 * ours.loss  # close to uniform, whatever the model knows


def test_the_loss_is_that_of_hmmlearn() -> None:
    hmmlearn = pytest.importorskip("hmmlearn.hmm", reason="hmmlearn is not installed")
    model = random_parameters(6, 9, 3)
    tokens = sample(model, 8, 40, seed=2).tokens
    theirs = hmmlearn.CategoricalHMM(n_components=6, n_features=9)
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = (table.numpy() for table in model[:3])
    likelihood = sum(theirs.score(row[:, None]) for row in tokens.numpy())
    assert score(model, tokens).loss == pytest.approx(-likelihood / tokens.numel(), rel=1e-12)


def test_a_model_that_is_a_baseline_is_at_no_distance_from_it() -> None:
    generator = torch.Generator().manual_seed(0)
    corpus = torch.randint(0, 4, (20, 9), generator=generator).square() % 7
    counts = counted(corpus, 7)
    guesses = from_corpus(counts, random_parameters(1, 7, 0), 2.0)
    unigram = next(iter(guesses["unigram_corpus"](corpus))).p[0]
    bigram = [*guesses["bigram_corpus"](torch.arange(7)[:, None].expand(7, 2))][1].p
    as_unigram = Parameters(torch.ones(1).double(), torch.ones(1, 1).double(), unigram[None])
    as_bigram = Parameters(unigram, bigram, torch.eye(7, dtype=torch.float64))
    for model, name in ((as_unigram, "unigram_corpus"), (as_bigram, "bigram_corpus")):
        found = score(model, corpus, corpus_counts=counts, bigram_prior=2.0)
        same = found.baselines[name]
        assert (same.loss, same.last_token_loss) == (pytest.approx(found.loss), pytest.approx(found.last_token_loss))
        assert same.kl_of_model == pytest.approx(0, abs=1e-14) and same.kl_of_model >= 0
        if name == "unigram_corpus":
            assert same.kl_of_baseline == pytest.approx(0, abs=1e-14)


def test_the_prior_is_the_best_for_pairs_left_out_of_their_own_count() -> None:
    generator = torch.Generator().manual_seed(0)
    chosen = set()
    for noise in (0.05, 0.4, 1.0):
        rows = (torch.arange(40).expand(3, -1) % 5).clone()  # 0 1 2 3 4 0 1 2 …
        swapped = torch.rand(3, 40, generator=generator) < noise
        rows[swapped] = torch.randint(0, 5, (int(swapped.sum()),), generator=generator)
        pairs = Counter(pair for row in rows.tolist() for pair in pairwise(row))
        singles = Counter(rows.flatten().tolist())

        def left_out(prior: float, pairs: Counter[tuple[int, int]] = pairs, singles: Counter[int] = singles) -> float:
            total = 0.0
            for (a, b), seen in pairs.items():
                others = pairs - Counter([(a, b)])
                unigram = (singles[b] + 1) / (singles.total() + 5)
                chance = (others[a, b] + prior * unigram) / (sum(others[a, c] for c in range(5)) + prior)
                total -= seen * math.log(chance)
            return total

        chosen.add(best_prior(counted(rows, 5)))
        assert best_prior(counted(rows, 5)) == min(PRIORS, key=left_out)
    assert len(chosen) > 1


def test_chunks_make_no_difference_and_small_types_will_do() -> None:
    model = random_parameters(5, 300, 0)
    tokens, lengths = torch.randint(0, 300, (23, 11)), torch.randint(1, 12, (23,))
    whole = score(model, tokens, lengths)
    small = score(model, tokens.to(torch.uint16), lengths.to(torch.uint8), limit_bytes=60_000)
    assert small.tokens == whole.tokens == int(lengths.sum())
    assert small.loss_by_position == pytest.approx(whole.loss_by_position, rel=1e-12)
    for name, theirs in small.baselines.items():
        assert theirs.kl_of_model == pytest.approx(whole.baselines[name].kl_of_model, rel=1e-12)
    single = score(model.to(dtype=torch.float32), tokens, lengths)
    assert single.loss == pytest.approx(whole.loss, rel=1e-6)
    assert single.baselines["uniform"].kl_of_model == pytest.approx(whole.baselines["uniform"].kl_of_model, rel=1e-4)


def test_scoring_draws_nothing_and_changes_nothing() -> None:
    model = random_parameters(5, 7, 0, end=True)
    tokens, lengths = torch.randint(0, 7, (6, 9)), torch.tensor([9, 1, 4, 9, 2, 3])
    counts = counted(tokens, 7)
    given = [table for table in (*model, tokens, lengths, *map(torch.from_numpy, counts)) if table is not None]
    copies, state = [table.clone() for table in given], torch.get_rng_state()
    first = score(model, tokens, lengths, counts)
    assert score(model, tokens, lengths, counts) == first
    assert all(torch.equal(table, copy) for table, copy in zip(given, copies))
    assert torch.equal(torch.get_rng_state(), state)


def test_scores_are_a_record(tmp_path: Path) -> None:
    tokens = torch.tensor([[0, 1, 2], [1, 2, 0]])
    found = score(random_parameters(2, 3, 0), tokens, torch.tensor([3, 1]), counted(tokens, 3))
    found.write(tmp_path / "scores.json")
    assert Scores.read(tmp_path / "scores.json") == found
    assert isinstance(found.baselines["uniform"], BaselineLosses)
    assert json.loads((tmp_path / "scores.json").read_text())["schema"] == "shoestring.hmm_scores/2"


def test_where_nothing_is_possible_nothing_is_reported() -> None:
    model = Parameters(torch.ones(1), torch.ones(1, 1), torch.tensor([[1.0, 0.0]]))
    found = score(model, torch.tensor([[0, 1], [1, 0]]))
    assert (found.sequences, found.tokens, found.impossible) == (0, 0, 2)
    assert found.loss is found.perplexity is found.last_token_loss is None
    assert found.loss_by_position == (None, None)
    assert found.baselines["uniform"].kl_of_model is None


def test_an_infinite_divergence_is_none() -> None:
    model = Parameters(torch.ones(1), torch.ones(1, 1), torch.tensor([[0.5, 0.5, 0.0]]))
    uniform = score(model, torch.tensor([[0, 1], [1, 0]])).baselines["uniform"]
    assert uniform.kl_of_baseline is None and uniform.kl_of_baseline_by_position == (None, None)
    assert uniform.kl_of_model == pytest.approx(math.log(3 / 2))


def test_what_cannot_be_scored_is_named() -> None:
    model = random_parameters(2, 3, 0)
    tokens = torch.tensor([[0, 1, 2]])
    counts = counted([[0, 1, 2, 3]], 4)
    with pytest.raises(HmmError, match="counted over 4 symbols, the model has 3"):
        score(model, tokens, corpus_counts=counts)
    with pytest.raises(HmmError, match="there are no sequences"):
        score(model, tokens[:0])
    with pytest.raises(HmmError, match=r"alpha = 0\.0: must be above 0"):
        score(model, tokens, alpha=0.0)
    with pytest.raises(HmmError, match=r"bigram_prior = -1\.0"):
        score(model, tokens, corpus_counts=counted(tokens, 3), bigram_prior=-1.0)
    with pytest.raises(HmmError, match="needs corpus_counts"):
        score(model, tokens, bigram_prior=1.0)
    with pytest.raises(HmmError, match="row 0, position 2: token 2"):
        score(random_parameters(2, 2, 0), tokens)


@pytest.mark.parametrize("limit_bytes", [1, 2**28])
def test_the_error_of_the_loss_is_that_of_rows_scored_one_by_one(limit_bytes: int) -> None:
    model = random_parameters(4, 7, seed=3)
    rows, sizes = sample(model, 40, 9, seed=5).tokens.long(), torch.arange(40) % 8 + 2
    alone = [score(model, rows[i : i + 1, : sizes[i]]) for i in range(40)]
    sums, counts = (np.array([getattr(each, name) for each in alone]) for name in ("loss", "tokens"))
    found = score(model, rows, sizes, limit_bytes=limit_bytes)
    assert found.loss_error == pytest.approx(mean_error(sums * counts, counts), rel=1e-6)
    assert alone[0].loss_error is None
