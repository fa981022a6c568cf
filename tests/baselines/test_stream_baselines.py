"""Baselines of streams: at the right positions, from training rows alone, and the entropy rate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shoestring.baselines import streams as baselines
from shoestring.baselines.of_corpus import baselines_beside, baselines_of
from shoestring.baselines.streams import (
    ALPHAS,
    WATCHED_ROWS,
    Baselines,
    HmmBaselines,
    MarkovBaselines,
    stream_baselines,
)
from shoestring.core.errors import DataError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build
from shoestring.datasets.corpus import StreamCorpus
from shoestring.datasets.streams import model_stream, open_stream
from shoestring.hmm.parameters import Parameters, Saved, random_parameters, save
from shoestring.streams.hmm import HmmStream
from shoestring.streams.markov import MarkovSettings, MarkovStream
from shoestring.streams.source import HELDOUT, TRAIN

STATES, SYMBOLS, LENGTH, ROWS = 3, 4, 5, 6
MODEL = Saved(random_parameters(STATES, SYMBOLS, seed=2, concentration=0.5), None, {})
DISGUISES = [
    {},
    {"start": "stationary"},
    {"symbols": "sequence"},
    {"states": "sequence"},
    {"symbols": "block:2", "states": "pool:3"},
]
IN_CONTEXT = ("unigram_in_context", "bigram_in_context")


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows to count and a short estimate of the rate, where they are not what is tested."""
    for name, number in {"COUNTED_ROWS": 50, "RATE_ROWS": 4, "RATE_TOKENS": 24, "RATE_BURN_IN": 8}.items():
        monkeypatch.setattr(baselines, name, number)


def hmm_baselines(model: Saved = MODEL, length: int = LENGTH, seed: int = 7, **kinds: str) -> HmmBaselines:
    return HmmBaselines(model_stream(model, seed, length, **kinds), model, kinds.get("start", "model"))


def markov_baselines(length: int = LENGTH, seed: int = 7, symbols: int = SYMBOLS) -> MarkovBaselines:
    return MarkovBaselines(MarkovStream(MarkovSettings(symbols=symbols, fewest=2, most=SYMBOLS), seed, length))


def heldout(known: HmmBaselines | MarkovBaselines, rows: int = ROWS) -> Tensor:
    return known.stream.rows(HELDOUT, rows).long()


def mean_losses(rows: Tensor, probability: Callable[[int, list[int]], list[float]]) -> list[float]:
    """The mean over rows of -log p(token | those before it), from the second token on."""
    losses = torch.tensor([[-math.log(p) for p in probability(i, row)] for i, row in enumerate(rows.tolist())])
    assert losses.shape == (len(rows), rows.shape[1] - 1)
    return losses.double().mean(0).tolist()


# --- written down a second time


def stationary_by_powers(transition: Tensor) -> Tensor:
    return torch.linalg.matrix_power(transition, 1 << 20)[0]


def brute_force(known: HmmBaselines, start: str) -> Callable[[int, list[int]], list[float]]:
    """p(token | those before it) from sums over all paths of states of a row's own model."""
    first, moves, emits = MODEL.parameters.start, MODEL.parameters.transition, MODEL.parameters.emission
    if start == "stationary":
        first = stationary_by_powers(moves)

    def chance(row: int, tokens: list[int]) -> float:
        shown, shuffle = (
            known.stream.permutations(name, HELDOUT + row, 1)[0].tolist() for name in ("symbols", "states")
        )
        drawn = [shown.index(token) for token in tokens]
        total = 0.0
        for path in itertools.product(range(STATES), repeat=len(tokens)):
            p = float(first[path[0]])
            for before, after in itertools.pairwise(path):
                p *= float(moves[before, after])
            for state, symbol in zip(path, drawn, strict=True):
                p *= float(emits[shuffle[state], symbol])
            total += p
        return total

    def given(row: int, tokens: list[int]) -> list[float]:
        prefixes = [chance(row, tokens[:size]) for size in range(1, len(tokens) + 1)]
        return [after / before for before, after in itertools.pairwise(prefixes)]

    return given


def counting(name: str, alpha: float, symbols: int = SYMBOLS) -> Callable[[int, list[int]], list[float]]:
    """A baseline in context, by counting anew for every token."""

    def given(_: int, tokens: list[int]) -> list[float]:
        found = []
        for t in range(1, len(tokens)):
            past = tokens[:t]
            if name == "bigram_in_context":
                past = [b for a, b in itertools.pairwise(past) if a == tokens[t - 1]]
            found.append((past.count(tokens[t]) + alpha) / (len(past) + alpha * symbols))
        return found

    return given


def best_alpha(name: str, rows: Tensor) -> float:
    return min(ALPHAS, key=lambda alpha: sum(mean_losses(rows, counting(name, alpha))))


def check_shape(found: Baselines, length: int = LENGTH) -> None:
    assert found.losses.keys() == found.by_position.keys()
    for name, curve in found.by_position.items():
        assert len(curve) == length - 1, "the first token is given"
        assert found.losses[name] == pytest.approx(sum(curve) / len(curve))


# --- positions


@pytest.mark.parametrize("kinds", DISGUISES)
def test_the_oracle_is_that_of_all_paths_from_the_second_token_on(kinds: dict[str, str]) -> None:
    known = hmm_baselines(**kinds)
    found = known.baselines(ROWS)
    check_shape(found)
    expected = mean_losses(heldout(known), brute_force(known, kinds.get("start", "model")))
    assert found.by_position["oracle"] == pytest.approx(expected)


def test_the_oracle_of_a_markov_stream_knows_the_chain_of_every_row() -> None:
    known = markov_baselines()
    chains = known.stream.chains(HELDOUT, ROWS)

    def given(row: int, tokens: list[int]) -> list[float]:
        states = [chains.symbols[row].tolist().index(token) for token in tokens]
        return [int(chains.weights[row, a, b]) / 2**32 for a, b in itertools.pairwise(states)]

    found = known.baselines(ROWS)
    check_shape(found)
    assert found.by_position["oracle"] == pytest.approx(mean_losses(heldout(known), given))
    assert found.rate is None


@pytest.mark.parametrize("make", [lambda: hmm_baselines(symbols="sequence"), markov_baselines])
def test_who_counts_has_seen_one_token_when_it_predicts_the_second(
    make: Callable[[], HmmBaselines | MarkovBaselines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "ALPHAS", (0.25,))
    known = make()
    found, rows = known.baselines(ROWS), heldout(known)
    check_shape(found)
    again = (rows[:, 0] == rows[:, 1]).double().mean().item()
    by_hand = -again * math.log(1.25 / 2) - (1 - again) * math.log(0.25 / 2)
    assert found.by_position["unigram_in_context"][0] == pytest.approx(by_hand)
    assert found.by_position["bigram_in_context"][0] == pytest.approx(math.log(SYMBOLS)), "it has seen no pair yet"
    assert found.by_position["uniform"] == pytest.approx([math.log(SYMBOLS)] * (LENGTH - 1))
    for name in IN_CONTEXT:
        assert found.by_position[name] == pytest.approx(mean_losses(rows, counting(name, 0.25)))


@pytest.mark.parametrize(
    "make", [lambda: hmm_baselines(symbols="sequence", states="block:3"), lambda: hmm_baselines(), markov_baselines]
)
def test_predictions_lose_what_the_baselines_lose(make: Callable[[], HmmBaselines | MarkovBaselines]) -> None:
    """So [:, t] of both is the token at position t + 1."""
    known = make()
    found, rows = known.baselines(ROWS), heldout(known)
    predicted = known.predictions(ROWS)
    assert predicted.keys() == {*IN_CONTEXT, *(("oracle",) if isinstance(known, HmmBaselines) else ())}
    for name, p in predicted.items():
        assert p.shape == (ROWS, LENGTH - 1, SYMBOLS)
        assert torch.allclose(p.sum(2), torch.ones(ROWS, LENGTH - 1, dtype=p.dtype))
        losses = -p.gather(2, rows[:, 1:, None]).log().mean(0)[:, 0]
        assert losses.tolist() == pytest.approx(found.by_position[name], rel=1e-4)


def test_scores_are_of_the_first_rows_asked_for() -> None:
    known = hmm_baselines(symbols="sequence")
    one = known.baselines(1).by_position["oracle"]
    two = known.baselines(2).by_position["oracle"]
    assert one == pytest.approx(mean_losses(heldout(known, 1), brute_force(known, "model")))
    assert one != pytest.approx(two)


def test_so_are_those_of_many_rows() -> None:
    known, rows = markov_baselines(), 130
    found = known.baselines(rows)
    for name in IN_CONTEXT:
        alpha = best_alpha(name, known.stream.rows(TRAIN, WATCHED_ROWS).long())
        assert found.by_position[name] == pytest.approx(mean_losses(heldout(known, rows), counting(name, alpha)))


@pytest.mark.parametrize("kinds", [{}, {"symbols": "sequence"}])
def test_no_baseline_beats_the_oracle_on_many_rows(kinds: dict[str, str]) -> None:
    found = hmm_baselines(length=16, **kinds).baselines(400)
    assert set(found.losses) == {"uniform", *IN_CONTEXT, "unigram_corpus", "bigram_corpus", "oracle"}
    assert found.losses["oracle"] == min(found.losses.values())


# --- what is chosen and counted on training rows


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_what_is_added_to_counts_is_best_on_training_rows_not_on_those_scored(name: str) -> None:
    for seed in range(100):  # two held-out rows would often choose another
        known = markov_baselines(length=8, seed=seed)
        chosen = best_alpha(name, known.stream.rows(TRAIN, WATCHED_ROWS).long())
        if best_alpha(name, heldout(known, 2)) != chosen:
            break
    else:
        pytest.fail("no seed tells the two apart")
    expected = mean_losses(heldout(known, 2), counting(name, chosen))
    assert known.baselines(2).by_position[name] == pytest.approx(expected)


@pytest.mark.parametrize("make", [lambda: hmm_baselines(symbols="sequence"), markov_baselines])
def test_held_out_rows_do_not_matter_to_what_is_chosen(
    make: Callable[[], HmmBaselines | MarkovBaselines], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = make()
    before = known.predictions(ROWS)
    original = type(known.stream).rows

    def others(self: HmmStream | MarkovStream, first: int, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Held-out rows of one token each, which would choose the smallest number there is."""
        made = original(self, first, count, device)  # type: ignore[arg-type]
        return made if first < HELDOUT else torch.zeros_like(made)

    monkeypatch.setattr(type(known.stream), "rows", others)
    after = make().predictions(ROWS)
    assert best_alpha("bigram_in_context", torch.zeros(4, LENGTH, dtype=torch.int64)) == min(ALPHAS)
    # the unigram's second prediction after the token a: (1 + alpha) / (1 + alpha E) for a
    first = [float(p["unigram_in_context"][0, 0].max()) for p in (before, after)]
    assert first[0] == pytest.approx(first[1])


def test_a_corpus_is_counted_on_training_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = hmm_baselines()
    asked: list[tuple[int, int]] = []
    original = HmmStream.rows

    def noted(self: HmmStream, first: int, count: int, device: torch.device | str = "cpu") -> Tensor:
        asked.append((first, count))
        return original(self, first, count, device)

    monkeypatch.setattr(HmmStream, "rows", noted)
    found = known.baselines(ROWS)
    assert (TRAIN, 50) in asked
    assert all(first >= HELDOUT or first + count <= HELDOUT for first, count in asked)
    rows = known.stream.rows(TRAIN, 50).long()
    seen = [(int((rows == symbol).sum()) + 1) / (rows.numel() + SYMBOLS) for symbol in range(SYMBOLS)]
    expected = mean_losses(heldout(known), lambda _, tokens: [seen[token] for token in tokens[1:]])
    assert found.by_position["unigram_corpus"] == pytest.approx(expected)


# --- the entropy rate


def markov_rate(transition: Tensor) -> float:
    """-Σ π_i A_ij log A_ij."""
    return float(-(stationary_by_powers(transition)[:, None] * torch.xlogy(transition, transition)).sum())


def full_rate(
    monkeypatch: pytest.MonkeyPatch, known: HmmBaselines, rows: int = 64, tokens: int = 256
) -> tuple[float, float]:
    for name, number in {"RATE_ROWS": rows, "RATE_TOKENS": tokens, "RATE_BURN_IN": 16}.items():
        monkeypatch.setattr(baselines, name, number)
    rate = known.rate()
    return rate.nats, rate.error


@pytest.mark.parametrize("kinds", [{}, {"symbols": "sequence"}, {"states": "sequence"}])
@pytest.mark.parametrize("seed", range(3))
def test_states_that_show_themselves_have_the_rate_of_a_markov_chain(
    kinds: dict[str, str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model itself, however its rows are disguised."""
    drawn = random_parameters(4, 4, seed=seed, concentration=0.6)
    model = Saved(drawn._replace(emission=torch.eye(4, dtype=torch.float64)), None, {})
    nats, error = full_rate(monkeypatch, hmm_baselines(model, **kinds))
    expected = markov_rate(model.parameters.transition)
    assert abs(nats - expected) < 4 * error
    assert 0 < error < 0.05 * expected


def test_a_chain_that_forgets_at_once_has_the_rate_of_its_emissions(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random_parameters(3, 5, seed=1)
    model = Saved(drawn._replace(transition=drawn.start.expand(3, -1).clone()), None, {})
    p = drawn.start @ drawn.emission
    nats, error = full_rate(monkeypatch, hmm_baselines(model))
    assert abs(nats - float(-torch.xlogy(p, p).sum())) < 4 * error


def test_a_cycle_has_a_rate_of_zero() -> None:
    cycle = torch.eye(3, dtype=torch.float64).roll(1, 1)
    model = Saved(Parameters(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), cycle, cycle.clone()), None, {})
    rate = hmm_baselines(model).rate()
    assert (rate.nats, rate.error) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))


def test_a_chain_of_separate_parts_has_baselines_but_no_rate_of_its_own() -> None:
    apart = torch.eye(2, dtype=torch.float64)
    found = hmm_baselines(Saved(Parameters(apart.mean(0), apart, apart.clone()), None, {})).baselines(ROWS)
    assert found.losses["oracle"] == 0
    assert found.rate is None


# --- from a recipe


def recipe(stream: str, **settings: object) -> Recipe:
    values = {
        "budget": {"steps": 1},
        "train": {"batch": 1, "lr": 1e-3},
        "data": {"stream": stream, "length": LENGTH - 1},
    }
    return build(values | ({"stream": settings} if settings else {}), "test")


@pytest.mark.parametrize("settings", [{}, {"start": "stationary", "symbols": "sequence"}])
def test_the_baselines_of_a_recipe_are_those_of_its_stream(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save(path, MODEL.parameters)
    asked = recipe(f"hmm:{path}", **settings)
    known = stream_baselines(StreamCorpus(asked))
    assert isinstance(known, HmmBaselines)
    assert known.stream.fingerprint == open_stream(asked).fingerprint
    expected = mean_losses(heldout(known), brute_force(known, settings.get("start", "model")))
    assert known.baselines(ROWS).by_position["oracle"] == pytest.approx(expected)


def test_a_markov_recipe_has_the_baselines_of_a_markov_stream() -> None:
    asked = recipe("markov:9", fewest=2, most=5, chain="zipf", exponent=0.75)
    known = stream_baselines(StreamCorpus(asked))
    assert isinstance(known, MarkovBaselines)
    assert known.stream.settings == MarkovSettings(symbols=9, fewest=2, most=5, kind="zipf", exponent=0.75)
    assert (known.stream.length, known.stream.symbols) == (LENGTH, 9)
    check_shape(known.baselines(ROWS))


def test_baselines_beside_training_are_the_same_and_leave_threads_as_they_are() -> None:
    corpus = StreamCorpus(recipe("markov:9", fewest=2, most=5, chain="zipf", exponent=0.75))
    threads = torch.get_num_threads()
    asked = baselines_beside(corpus)
    assert asked() == baselines_of(corpus) == asked()
    assert torch.get_num_threads() == threads


def test_what_goes_wrong_beside_training_is_raised_where_it_is_asked_for() -> None:
    corpus = StreamCorpus(recipe("markov:9", fewest=2, most=5, chain="zipf", exponent=0.75))
    corpus.stream = None  # type: ignore[assignment]
    with pytest.raises(DataError):
        baselines_beside(corpus)()
