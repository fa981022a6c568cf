"""Scores of a fitted HMM on other text and stores, beside what is known of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from shoestring.core.errors import UserError
from shoestring.core.specs import SourceSpec
from shoestring.data.store.sentence_store import rows_of, top_words
from shoestring.hmm.parameters import Parameters, load, random_parameters, save
from shoestring.probe.machine import pick_device
from shoestring.runs import hmm_scoring
from shoestring.runs.hmm_scoring import Other, score_model
from shoestring.runs.prepare import prepare_part
from shoestring.runs.reporter import Reporter
from shoestring.runs.sample import Wanted, sample_store

WORDS = (".", "dog", "ran", "the", "sat")
TEXT = "The dog ran. The dog sat. The cat sat. The dog ran"


def log_likelihood(model: Parameters, tokens: list[int]) -> float:
    """By enumeration of the forward sums in plain Python."""
    start, moves, emit = (table.double().tolist() for table in model[:3])
    weights = [start[i] * emit[i][tokens[0]] for i in range(len(start))]
    for token in tokens[1:]:
        weights = [sum(w * moves[i][j] for i, w in enumerate(weights)) * emit[j][token] for j in range(len(weights))]
    return math.log(sum(weights))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save(path, random_parameters(3, len(WORDS), seed=1), WORDS)
    return path


def test_a_text_is_scored_by_its_sentences_of_the_models_words(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text(TEXT)
    scored = score_model(model, Other(source=SourceSpec(f"text:{text}"), length=5))
    tokens = [3, 1, 2, 0, 3, 1, 4, 0]  # "the cat sat." has another word, and the last sentence has no end
    parameters = load(model).parameters
    expected = -(log_likelihood(parameters, tokens[:5]) + log_likelihood(parameters, tokens[5:])) / len(tokens)
    assert scored.scores.loss == pytest.approx(expected, rel=1e-5)
    assert (scored.scores.sequences, scored.scores.tokens) == (2, 8)
    assert scored.notes == ["2 of 3 sentences use only the 5 words of the model"]
    assert set(scored.scores.baselines) == {"uniform", "unigram_in_context", "bigram_in_context"}
    assert score_model(model, Other(source=SourceSpec(f"text:{text}"), length=5, rows=1)).scores.tokens == 5


def test_each_distinct_sentence_is_scored_once(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text("The dog ran. " * 7 + "The dog sat.")
    source = SourceSpec(f"text:{text}")
    assert score_model(model, Other(source=source)).scores.tokens == 32
    assert score_model(model, Other(source=source, unique=True)).scores.tokens == 8


def test_a_store_of_sampled_rows_scores_as_its_tokens_do(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sampled"
    sample_store(Wanted(model=model, rows=6, length=9, heldout=4), folder, (0, 1), pick_device())
    own = score_model(model, Other(source=SourceSpec(f"store:{folder}")))
    assert (own.scores.sequences, own.scores.tokens) == (4, 36)
    some = score_model(model, Other(source=SourceSpec(f"store:{folder}"), split="train", rows=2))
    assert some.notes == ["2 of 6 train rows, drawn over all"]
    save(tmp_path / "other.safetensors", random_parameters(3, 4, seed=1))
    with pytest.raises(UserError, match="has 5 symbols, the model 4"):
        score_model(tmp_path / "other.safetensors", Other(source=SourceSpec(f"store:{folder}")))


def test_a_store_of_text_scores_as_the_text(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoestring.core.recipe_file import load as load_recipe

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hmm_scoring, "_READ_TOKENS", 7)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(["The dog ran. The dog sat.", "The dog sat. The cat ran.", "The dog ran and"] * 8))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[run]\nname="x"\n[budget]\nsteps=1\n[data]\n'
        f'source="text:{text}"\ntokenizer="bytes"\nlength=8\nheldout=0.3\n'
        '[model]\nfamily="llama"\nwidth=16\nlayers=1\nheads=1\n[train]\nbatch=1\n'
    )
    store = prepare_part(load_recipe(recipe), None, Reporter(), (0, 1))
    assert store is not None
    direct = score_model(model, Other(source=SourceSpec(f"text:{text}"), length=5))
    place = SourceSpec(f"store:{store.paths.folder}")
    through = [score_model(model, Other(source=place, length=5, split=split)) for split in ("train", "heldout")]
    assert sum(scored.scores.tokens for scored in through) == direct.scores.tokens
    assert direct.notes == ["24 of 32 sentences use only the 5 words of the model"]
    assert all("of the model" in scored.notes[0] for scored in through)


@pytest.mark.parametrize(
    ("words", "source", "message"),
    [
        (WORDS, None, "names no rows: say what to score with --data"),
        (None, "stories", "the model names no words"),
        (tuple("abcde"), "stories", "nothing to score"),
    ],
)
def test_what_cannot_be_scored_is_named(
    words: tuple[str, ...] | None, source: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hmm_scoring, "texts", lambda _: iter(["Once there was a cat."]))
    path = tmp_path / "model.safetensors"
    save(path, random_parameters(2, 5, seed=0), words)
    with pytest.raises(UserError, match=message):
        score_model(path, None if source is None else Other(source=SourceSpec(source)))


def test_larger_alphabets_leave_as_many_rows_as_if_they_were_used() -> None:
    generator = np.random.default_rng(0)
    names = [f"w{i}" for i in range(40)]
    chance = 1 / np.arange(1, 41)
    documents = [
        " ".join(generator.choice(names, size=4, p=chance / chance.sum())).capitalize() + "." for _ in range(400)
    ]
    ranked = top_words(documents, 100)
    for unique in (False, True):
        found = rows_of(documents, ranked[:5], 10, unique, others=ranked[5:]).ledger
        assert set(found.rows_by_words) == {"10", "20", "40"}
        for size, count in found.rows_by_words.items():
            assert count == len(rows_of(documents, ranked[: int(size)], 10, unique).rows)
