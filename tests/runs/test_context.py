"""Scores with context (`evaluate.context`) against probabilities that a plain loop adds up in float64."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from profiles import write_profile

from shoestring.baselines.ngram import baseline_losses, count
from shoestring.baselines.standard_error import mean_error
from shoestring.baselines.streams import Baselines
from shoestring.cli.evaluate import evaluate
from shoestring.core.clock import Clock
from shoestring.core.errors import DataError, RecipeError, UserError
from shoestring.core.hmm_sections import Hmm
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build, dump
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.datasets.corpus import StoreCorpus, open_corpus
from shoestring.datasets.other_text import OtherText
from shoestring.models.batch import Batch
from shoestring.runs.evaluate import Watch, evaluate_learner, evaluate_run, make_evaluation, with_overrides
from shoestring.runs.network_workload import make_learner
from shoestring.runs.prepare import check_context, prepare_recipe, recipe_density
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.track import read_lines
from shoestring.training.learner import Learner

CPU = torch.device("cpu")
LENGTH, CONTEXT = 12, 8
SHAPE: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2}
OTHER = [f"{'b' * (n % 9)}an other line {n}" for n in range(12)]
Make = Callable[..., Recipe]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    (tmp_path / "corpus.txt").write_text("\n".join(f"the cat {n} sat on mat {n * n}" for n in range(60)))
    (tmp_path / "other.txt").write_text("\n".join(OTHER))

    def made(
        evaluate: dict[str, Any] | None = None, model: dict[str, Any] = SHAPE, more: dict[str, Any] | None = None,
        **data: Any,
    ) -> Recipe:  # fmt: skip
        given = {"source": f"text:{tmp_path}/corpus.txt", "folder": str(tmp_path / "stores"), "length": LENGTH}
        values = {
            "run": {"folder": str(tmp_path / "runs")},
            "budget": {"steps": 4},
            "data": {"heldout": 0.2, **given, **data},
            "model": model,
            "train": {"batch": 4, "lr": 3e-3},
            "evaluate": {"rows": 10**6, "context": CONTEXT, "every": 0.5, "prompts": []} | (evaluate or {}),
        }
        return build(values | (more or {}), "test")

    return made


def corpus_of(recipe: Recipe) -> StoreCorpus | OtherText:
    plan = Plan(binding="")
    prepare_recipe(recipe, plan, Reporter())
    corpus = open_corpus(recipe, plan)
    assert isinstance(corpus, (StoreCorpus, OtherText))
    return corpus


def encoded(texts: list[str]) -> list[list[int]]:
    return [[byte + 6 for byte in text.encode()] + [2] for text in texts]


def losses_by_hand(learner: Learner, documents: list[list[int]], document_mask: bool) -> list[float]:
    """−ln p of each token from the window that predicts it, one at a time; only its own document with a mask."""
    stream = [token for document in documents for token in document]
    begins = {0, *np.cumsum([len(document) for document in documents]).tolist()}
    found, model = [], learner.model.double()
    for place in range(1, len(stream)):
        if document_mask and place in begins:
            continue
        # windows begin every LENGTH - CONTEXT tokens; the first that reaches the token predicts it
        window = max(0, math.ceil((place - LENGTH) / (LENGTH - CONTEXT))) * (LENGTH - CONTEXT)
        start = min(window, len(stream) - 1 - LENGTH)
        if document_mask:
            start = max(start, max(begin for begin in begins if begin <= place))
        with torch.no_grad(), learner.scoring():
            logits = model.last_logits(torch.tensor([stream[start:place]]))[0]
        found.append(-float(logits.double().log_softmax(0)[stream[place]]))
    learner.model.float()
    return found


@pytest.mark.parametrize("family", ["llama", "swift", "gpt2"])
@pytest.mark.parametrize("document_mask", [False, True])
def test_the_loss_is_that_of_every_token_after_its_window(
    make: Make, tmp_path: Path, family: str, document_mask: bool
) -> None:
    recipe = make(
        model=SHAPE | {"family": family}, validation=f"text:{tmp_path}/other.txt", document_mask=document_mask
    )
    corpus, learner = corpus_of(recipe), make_learner(recipe, CPU)
    expected = losses_by_hand(learner, encoded(OTHER), document_mask)
    found = evaluate_learner(learner, 0, 3, corpus)
    assert found.tokens == len(expected) == sum(found.predictions_by_row)
    assert found.loss == pytest.approx(np.mean(expected), rel=1e-5)
    assert Watch(corpus)(learner, 5)["heldout_loss"] == pytest.approx(found.loss, rel=1e-6)
    whole = evaluate_learner(learner, 0, 3, corpus_of(replace(recipe, evaluate=replace(recipe.evaluate, context=None))))
    assert whole.tokens < found.tokens and whole.scored_rows != found.scored_rows


def test_held_out_rows_of_a_store_are_those_of_the_same_text(make: Make) -> None:
    """Bytes per token, baselines and losses are of all tokens of the split, each once."""
    recipe = make()
    corpus, learner = corpus_of(recipe), make_learner(recipe, CPU)
    assert isinstance(corpus, StoreCorpus)
    store = prepare_recipe(recipe, Plan(binding=""), Reporter())
    stream = np.concatenate([ids.astype(np.int64) for ids in store.split("heldout", LENGTH).stream()])
    found = evaluate_learner(learner, 0, 4, corpus)
    expected = losses_by_hand(learner, [stream.tolist()], document_mask=False)
    assert found.tokens == len(stream) - 1 and found.loss == pytest.approx(np.mean(expected), rel=1e-5)
    counts = count(corpus.training_tokens(), corpus.vocab_size)
    assert found.baselines == pytest.approx(baseline_losses(stream[:-1], stream[1:], counts))
    assert corpus.bytes_per_token == pytest.approx(np.mean(stream[1:] >= 6))
    text = Batch.of(stream[None, : LENGTH + 1])
    assert np.nansum(learner.score(text, 1)) == pytest.approx(sum(expected[:LENGTH]), rel=1e-5), "the first row"


def test_errors_are_of_joined_rows_that_predict_as_much_as_whole_ones() -> None:
    losses = np.random.default_rng(0).normal(3.0, 1.0, (10, 8))
    predicted = np.ones((10, 8), dtype=bool)
    predicted[1:, :6] = False  # a row of 8 is four of 2
    found = make_evaluation(losses, 0, None, Baselines({}), predicted, context=6)
    parts = [losses[0:4][predicted[0:4]], losses[4:8][predicted[4:8]], losses[8:][predicted[8:]]]
    sums, counts = np.array([part.sum() for part in parts]), np.array([len(part) for part in parts])
    assert found.rows == 3 and found.loss_error == pytest.approx(mean_error(sums, counts))
    assert found.loss_by_position[:6] == (None,) * 6
    assert found.loss_by_position[6] == pytest.approx(losses[:, 6].mean())


def test_a_run_evaluates_with_context_and_the_command_does_so_for_any_run(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"one": f"text:{tmp_path}/other.txt"}
    runs = {}
    for context in (None, CONTEXT):
        recipe = make(
            {"context": context}, more={"run": {"folder": str(tmp_path / f"runs{context}")}}, validation=texts
        )
        file = tmp_path / "recipe.toml"
        file.write_text(dump(recipe))
        replace(write_profile(file), density=recipe_density(recipe)).write(RunFolder.of(recipe).profile)
        finished = run(recipe, Reporter(), Clock())
        assert finished is not None
        runs[context] = RunFolder.of(recipe), finished.evaluation
        curve = [line for line in read_lines(runs[context][0].metrics) if "heldout_loss" in line]
        assert curve[-1]["heldout_loss/one"] == pytest.approx(finished.evaluation.loss)
    (folder, cut), (_, slid) = runs[None], runs[CONTEXT]
    assert slid.tokens > cut.tokens and slid.loss != cut.loss, "the same weights, other rows"
    values = [f"--set=evaluate.context={CONTEXT}", "--set=evaluate.per_device=2"]
    before = folder.evaluation.read_bytes()
    evaluate.main([str(folder.path), "--json", *values], standalone_mode=False)
    assert folder.evaluation.read_bytes() == before
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"] == slid.tokens and told["loss"] == pytest.approx(slid.loss, rel=1e-6)
    assert told["texts"][0]["loss"] == told["loss"]
    other = evaluate_run(folder, CheckpointSpec("best"), texts["one"], overrides={"evaluate.context": CONTEXT})
    assert other.loss == pytest.approx(slid.loss, rel=1e-6)
    assert evaluate_run(folder, CheckpointSpec("best"), overrides={"evaluate.rows": 2}).rows == 2
    for overrides, words in (
        ({"train.lr": 1.0}, "--set train.lr: .* give evaluate.rows, evaluate.context"),
        ({"evaluate.context": LENGTH}, f"evaluate.context = {LENGTH}: must be less than data.length = {LENGTH}"),
    ):
        with pytest.raises(UserError, match=words):
            evaluate_run(folder, CheckpointSpec("best"), overrides=overrides)
    for options, words in (
        (["--set=evaluate.context"], "write it as section.field=value"),
        (["--set=evaluate.context=8", "--force"], "not recorded"),
        (["--set=evaluate.context=8", "--harness=tasks"], "not recorded"),
        (["--set=evaluate.context=8", "--on=pairs:a.jsonl"], "not recorded"),
    ):
        with pytest.raises(UserError, match=words):
            evaluate.main([str(folder.path), *options], standalone_mode=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"evaluate": {"context": -1}}, "evaluate.context = -1"),
        ({"evaluate": {"context": LENGTH}}, "must be less than data.length = 12"),
        ({"model": {"family": "masked_lm"}}, 'model.family = "masked_lm" predicts hidden ones'),
        ({"model": SHAPE | {"family": "perceiver_ar", "latents": 4}}, "the last model.latents of a row"),
        ({"packing": "best_fit"}, 'rows of data.packing = "best_fit" do not overlap; take "concat"'),
        ({"source": "stories", "stream": "markov:12"}, "rows of a stream are not parts of one text"),
        ({"tokenizer": "words:100", "more": {"hmm": {}, "budget": {"epochs": 1}}}, "an HMM reads sentences"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Make, given: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=r"evaluate\.context") as caught:
        make(**given)
    lines = [line for line in str(caught.value).splitlines() if "evaluate.context" in line]
    assert len(lines) == 1 and words in lines[0]


@pytest.mark.parametrize("other", [{"family": "masked_lm"}, {"family": "perceiver_ar", "latents": 4}])
def test_a_network_that_turns_out_not_to_be_causal_is_refused(make: Make, other: dict[str, Any]) -> None:
    """As a masked model of transformers is, which only its config tells."""
    recipe = make()
    check_context(recipe)
    recipe = replace(recipe, model=replace(recipe.model, **other))
    with pytest.raises(DataError, match=r"evaluate\.context = 8: is for networks that predict every next token"):
        check_context(recipe)


def test_an_hmm_takes_no_overrides(make: Make) -> None:
    recipe = replace(make({"context": None}), hmm=Hmm())
    assert with_overrides(recipe, {}) is recipe
    with pytest.raises(UserError, match="--set: is for networks"):
        with_overrides(recipe, {"evaluate.rows": 3})


def test_a_store_of_fixed_rows_is_refused(make: Make, tmp_path: Path) -> None:
    recipe = make()
    store = prepare_recipe(recipe, Plan(binding=""), Reporter())
    store.manifest = replace(store.manifest, row=13)
    with pytest.raises(DataError, match=r"evaluate\.context = 8: .* rows of a fixed length, which do not overlap"):
        StoreCorpus(recipe, store)
