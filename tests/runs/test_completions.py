"""Loss of completions only: prompts are read and not predicted, in rows, losses, baselines, plans and resumed runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from written_tables import write_table

from shoestring.baselines.of_corpus import baselines_of
from shoestring.core.clock import Clock
from shoestring.core.errors import DataError, Fault, RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.data.pack.masking import IGNORED
from shoestring.data.pack.order import RowIndex
from shoestring.data.read.corpora import open_source
from shoestring.data.read.density import estimate_density
from shoestring.data.tokenize.prompts import unmarked, without_long_prompts
from shoestring.data.tokenize.tokenizers import ByteTokenizer
from shoestring.datasets.corpus import StoreCorpus, open_corpus
from shoestring.datasets.other_text import text_batch
from shoestring.models.batch import Batch
from shoestring.models.language_model import build as build_model
from shoestring.planning.corpus import predictions_per_row
from shoestring.runs.evaluate import evaluate_learner
from shoestring.runs.network_workload import make_learner
from shoestring.runs.prepare import check_source, prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.track import read_lines
from shoestring.training.hooks import Stopped

CPU = torch.device("cpu")
PAIRS = [(f"{'many ' * (n % 3)}what is {n} plus {n % 7}?", f" {n + n % 7}{'.' * (n % 4)}") for n in range(60)]
SHAPE: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2}
FAMILIES = {
    "llama": SHAPE,
    "swift": SHAPE | {"family": "swift"},
    "gpt2": SHAPE | {"family": "gpt2"},
    "perceiver_ar": SHAPE | {"family": "perceiver_ar", "latents": 24, "prefix_dropout": 0.0},
}
LENGTH, END, SHIFT = 48, 2, 6
"""Of rows, and of bytes as ids."""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(kind: str = "jsonl", pairs: list[tuple[Any, Any]] = PAIRS, name: str = "pairs") -> str:
        path = tmp_path / f"{name}.{kind}"
        rows = [{"id": str(n), "ask": ask, "answer": answer} for n, (ask, answer) in enumerate(pairs)]
        if kind == "py":
            path.write_text(f"rows = {rows!r}\n")
            return f"{path}:rows"
        return write_table(path, kind, rows)

    return written


def recipe_of(folder: Path, source: str, model: dict[str, Any] = SHAPE, **data: Any) -> Recipe:
    given = {"source": source, "folder": str(folder / "stores"), "length": LENGTH, "heldout": 0.2}
    given |= {"prompt": "ask", "completion": "answer", "packing": "best_fit"} | data
    values = {
        "run": {"folder": str(folder / "runs")},
        "budget": {"steps": 6},
        "data": {name: value for name, value in given.items() if value is not None},
        "model": model,
        "train": {"batch": 4, "lr": 3e-3},
        "evaluate": {"rows": 1000, "every": 0.5, "prompts": []},
    }
    return build(values, "test")


def corpus_of(recipe: Recipe) -> StoreCorpus:
    plan = Plan(binding="")
    prepare_recipe(recipe, plan, Reporter())
    corpus = open_corpus(recipe, plan)
    assert isinstance(corpus, StoreCorpus)
    return corpus


def rows_of(corpus: StoreCorpus) -> Batch:
    """All training rows and all held-out rows."""
    train = corpus.training_rows.batch(RowIndex.first(np.arange(len(corpus.training_rows))))
    parts = [train, corpus.heldout()]
    ids, wanted = (torch.cat([getattr(part, name) for part in parts]) for name in ("ids", "wanted"))
    segments = None if train.segments is None else torch.cat([part.segments for part in parts])  # type: ignore[misc]
    return Batch(ids, segments, train.document_mask, wanted)


def expected(ask: str, answer: str) -> list[tuple[int, int]]:
    """Inputs and targets of a pair alone, by hand: the answer and the end are predicted."""
    ids = [byte + SHIFT for byte in (ask + answer).encode()] + [END]
    known = len(ask.encode())
    return [(a, b if place + 1 >= known else IGNORED) for place, (a, b) in enumerate(pairwise(ids))]


def documents_of(batch: Batch) -> list[list[tuple[int, int]]]:
    """Inputs and targets of each document of packed rows."""
    assert batch.segments is not None and batch.wanted is not None
    found = []
    for ids, segments, wanted in zip(batch.ids, batch.segments, batch.wanted, strict=True):
        for number in range(1, int(segments.max()) + 1):
            here = segments == number
            found.append(list(zip(ids[here].tolist(), wanted[here].tolist(), strict=True)))
    return found


def without_ends(documents: list[list[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Documents without the end as an input, after which nothing is predicted: a full row has no place for it."""
    return sorted([pair for pair in document if pair != (END, IGNORED)] for document in documents)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "hf", "py"])
@pytest.mark.parametrize("packing", ["pad", "best_fit"])
def test_every_source_gives_rows_that_predict_completions(
    write: Write, tmp_path: Path, kind: str, packing: str
) -> None:
    batch = rows_of(corpus_of(recipe_of(tmp_path, write(kind), packing=packing, document_mask=True)))
    assert without_ends(documents_of(batch)) == sorted(expected(*pair) for pair in PAIRS)


def test_rows_of_joined_documents_predict_completions(write: Write, tmp_path: Path) -> None:
    corpus = corpus_of(recipe_of(tmp_path, write(), packing="concat", length=16))
    stream = np.concatenate(list(corpus._counted.stream())).astype(np.int64)
    size = corpus.tokenizer.vocab_size
    batch = corpus.training_rows.batch(RowIndex.first(np.arange(len(corpus.training_rows))))
    assert batch.wanted is not None and batch.segments is None
    for row, (ids, wanted) in enumerate(zip(batch.ids.tolist(), batch.wanted.tolist(), strict=True)):
        window = stream[row * 16 : row * 16 + 17]
        assert ids == unmarked(window[:-1], size).tolist()
        assert wanted == [token if token < size else IGNORED for token in window[1:].tolist()]
    texts = corpus.tokenizer.decode(unmarked(stream, size))
    completions = corpus.tokenizer.decode(stream[stream < size])
    assert sum(ask + answer in texts for ask, answer in PAIRS) == 48 and "what" in texts
    assert set(completions.replace("[EOS]", "")) <= set(" .0123456789")


def test_a_prompt_is_tokenized_alone(write: Write, tmp_path: Path) -> None:
    """As it is where a model is asked to go on: a word that begins in the prompt ends with it."""
    pairs = [("an", "swer"), ("to", "day")] * 10
    corpus = corpus_of(recipe_of(tmp_path, write(pairs=pairs), tokenizer="words:9", length=3))
    words = set(corpus.tokenizer.words)  # type: ignore[attr-defined]
    assert words == {"an", "swer", "to", "day"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_the_loss_is_that_of_the_completions_in_float64(
    write: Write, tmp_path: Path, family: str, packing: str
) -> None:
    masked = family != "perceiver_ar"
    recipe = recipe_of(tmp_path, write(), FAMILIES[family], packing=packing, document_mask=masked)
    batch, size = corpus_of(recipe).heldout(), ByteTokenizer().vocab_size
    model = build_model(recipe.model, size, LENGTH, 0).double().eval()
    assert batch.wanted is not None
    with torch.no_grad():
        summed, logits = model(batch), model.logits(batch.inputs())
    targets = batch.wanted[:, -logits.shape[1] :]
    alone = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    assert targets.numel() > batch.predictions() > 0
    torch.testing.assert_close(summed, alone, rtol=1e-12, atol=0)
    assert batch.predictions() == int((targets != IGNORED).sum())
    assert batch.bound() == batch.wanted.numel(), "the same for every batch of a shape"


def test_the_loss_is_that_of_transformers(write: Write, tmp_path: Path) -> None:
    """With labels of −100 for prompts; the library shifts them itself."""
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=262, max_position_embeddings=64, **shape)
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config)
    theirs.save_pretrained(tmp_path / "base")
    model = {"family": "hf", "name": str(tmp_path / "base"), "init": str(tmp_path / "base")}
    recipe = recipe_of(tmp_path, write(), model, packing="pad")
    corpus = corpus_of(recipe)
    learner, batch = make_learner(recipe, CPU), corpus.heldout()
    sums = [0.0, 0]
    for ask, answer in PAIRS:
        ids = torch.tensor([[byte + SHIFT for byte in (ask + answer).encode()] + [END]])
        labels = ids.clone()
        labels[:, : len(ask.encode())] = -100
        pair = [ids[0, :-1].tolist(), *expected(ask, answer)]
        if not any(pair[0] == row[: len(pair[0])] for row in batch.ids.tolist()):
            continue
        with torch.no_grad():
            mean = theirs(input_ids=ids, labels=labels).loss.item()
        count = len(answer.encode()) + 1
        sums = [sums[0] + mean * count, sums[1] + count]
    found = evaluate_learner(learner, 0, 4, corpus)
    assert sums[1] == batch.predictions()
    assert found.loss == pytest.approx(sums[0] / sums[1], rel=1e-5)


def test_baselines_are_scored_on_completions(write: Write, tmp_path: Path) -> None:
    corpus = corpus_of(recipe_of(tmp_path, write(), document_mask=True))
    losses, batch = baselines_of(corpus).losses, corpus.heldout()
    counts = np.zeros(262)
    for stream in corpus._counted.stream():
        np.add.at(counts, unmarked(stream, 262), 1)
    chance = (counts + 1) / (counts.sum() + 262)
    assert batch.wanted is not None
    targets = [token for row in batch.wanted.tolist() for token in row if token != IGNORED]
    assert losses["uniform"] == pytest.approx(math.log(262))
    assert losses["unigram"] == pytest.approx(-np.log(chance[targets]).mean())
    assert losses["bigram"] < losses["unigram"]
    assert corpus.bytes_per_token == pytest.approx(sum(t != END for t in targets) / len(targets)), "a byte per token"


@pytest.mark.parametrize("packing", ["pad", "best_fit"])
def test_a_prompt_that_fills_a_row_loses_its_beginning(write: Write, tmp_path: Path, packing: str) -> None:
    pairs = [("x" * 70 + "ask", "yes"), ("x" * 200, "z" * 130), ("short", "no")] * 10
    batch = rows_of(corpus_of(recipe_of(tmp_path, write(pairs=pairs), packing=packing, document_mask=True)))
    assert (batch.targets() != IGNORED).any(dim=1).all(), "every row predicts something"
    texts = [ByteTokenizer().decode(row[row != 0].tolist()) for row in batch.ids]
    assert any(text.startswith("x" * 42 + "askyes") for text in texts), "one row, with all that fits of the prompt"
    assert any(text.startswith("x" * 24 + "z" * 24) for text in texts), "half a row of the prompt"
    predicted = batch.targets()[batch.targets() != IGNORED].tolist()
    assert len(predicted) == sum(len(answer) + 1 for _, answer in pairs), "no completion is cut"


def test_sizes_without_long_prompts_add_up() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        prompts, completions = generator.integers(0, 40, 20), generator.integers(2, 40, 20)
        sizes = prompts + completions
        ids = np.concatenate([[10 + 5] * p + [3] * c for p, c in zip(prompts, completions)])
        found = without_long_prompts(ids, sizes, 10, 16)
        assert found.sum() == sizes.sum()
        kept = found[found > 1]
        assert len(kept) == len(sizes)
        for size, left, prompt, completion in zip(sizes, kept, prompts, completions):
            assert left == size if size <= 16 or prompt <= 8 else left == max(16, 8 + completion)


def test_an_empty_completion_is_named(write: Write, tmp_path: Path) -> None:
    source = write(pairs=[("a", "b"), ("c", "  "), ("d", "e")])
    with pytest.raises(DataError, match=r'pairs.jsonl, line 2: the field "answer" is empty, and a prompt needs'):
        corpus_of(recipe_of(tmp_path, source))
    kept = recipe_of(tmp_path, source, on_error="skip")
    assert [document.text for document in open_source(kept.data, 0).documents()] == ["ab", "de"]


def test_an_empty_prompt_is_none(write: Write, tmp_path: Path) -> None:
    batch = rows_of(corpus_of(recipe_of(tmp_path, write(pairs=[("", "abc")] * 20), packing="pad", length=8)))
    assert batch.targets()[0, :4].tolist() == [ord("b") + SHIFT, ord("c") + SHIFT, END, IGNORED]


def test_a_field_that_is_not_there_is_named(write: Write, tmp_path: Path) -> None:
    for kind, message in (
        ("jsonl", 'no field "asked"'),
        ("csv", 'no column "asked"'),
        ("parquet", 'no column "asked"'),
    ):
        with pytest.raises(DataError, match=message):
            corpus_of(recipe_of(tmp_path, write(kind), prompt="asked"))


def test_rows_without_any_completion_stop_with_a_hint(write: Write, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, write(pairs=[("x" * 4000, "y")] * 10), packing="concat")
    recipe = replace(recipe, train=replace(recipe.train, batch=1))
    with pytest.raises(Fault, match=r'step \d+: nothing is predicted.*data.packing = "best_fit"'):
        run(replace(recipe, evaluate=replace(recipe.evaluate, rows=1000)), Reporter(), Clock(0.0))


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        ({"completion": None}, SHAPE, "data.prompt: needs data.completion"),
        ({"prompt": None}, SHAPE, "data.completion: needs data.prompt"),
        ({}, SHAPE | {"family": "masked_lm"}, 'model.family = "masked_lm" does not predict the next token'),
        ({"label": "class"}, SHAPE | {"family": "masked_lm", "classes": 3}, "does not predict the next token"),
        ({"column": "other"}, SHAPE, 'data.column = "other": data.prompt and data.completion take its place'),
        ({"completion": "ask"}, SHAPE, 'both are "ask"; name two columns'),
        ({"source": "text:a.txt"}, SHAPE, "need a source with columns: jsonl, csv, parquet, hf"),
        ({"source": "store:a"}, SHAPE, "data.prompt: store:a exists already, with its own documents"),
        ({"source": "stories"}, SHAPE, "need a source with columns"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, data: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_of(tmp_path, **({"source": "jsonl:a.jsonl"} | {"model": model} | data))


def test_a_masked_model_of_transformers_is_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "bert.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert.json").rename(tmp_path / "bert/config.json")
    recipe = recipe_of(tmp_path, write(), {"family": "hf", "name": str(tmp_path / "bert")})
    with pytest.raises(DataError, match="predicts hidden tokens, not the next one; leave them out"):
        check_source(recipe)


def test_an_hmm_is_refused(tmp_path: Path) -> None:
    data = {"source": "jsonl:a", "prompt": "ask", "completion": "answer", "tokenizer": "words:10"}
    with pytest.raises(RecipeError, match="an HMM does not predict the next token"):
        build({"budget": {"time": "1h"}, "hmm": {}, "data": data}, "test")


def test_a_store_of_pairs_is_used_again_and_refused_by_masked_models(write: Write, tmp_path: Path) -> None:
    made = corpus_of(recipe_of(tmp_path, write()))
    again = {"source": f"store:{made._store.paths.folder}", "prompt": None, "completion": None}
    batch = open_corpus(recipe_of(tmp_path, **again), Plan(binding="")).heldout()  # type: ignore[arg-type]
    assert batch.equals(made.heldout())
    masked = recipe_of(tmp_path, model=SHAPE | {"family": "masked_lm"}, **again)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="holds prompts with completions, which are for models that predict the next"):
        open_corpus(masked, Plan(binding=""))


def test_other_pairs_are_scored(write: Write, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, write(), packing="pad", document_mask=True)
    batch = text_batch(recipe, ByteTokenizer(), write("csv", PAIRS[:9], "others"))
    assert without_ends(documents_of(batch)) == sorted(expected(*pair) for pair in PAIRS[:9])


def test_the_plan_counts_completions(write: Write, tmp_path: Path) -> None:
    for packing in ("concat", "pad"):
        recipe = recipe_of(tmp_path, write(), packing=packing)
        density = estimate_density(open_source(recipe.data, 0), recipe.data)
        assert density.tokens == sum(len(ask + answer) + 1 for ask, answer in PAIRS)
        assert density.tokens - density.prompt_tokens == sum(len(answer) + 1 for _, answer in PAIRS)
        found = predictions_per_row(recipe, density)
        batch = rows_of(corpus_of(recipe))
        assert found == pytest.approx(batch.predictions() / len(batch.ids), rel=0.1)


def test_a_run_resumes_to_the_same_numbers(write: Write, tmp_path: Path) -> None:
    source, lines = write(), []
    for name, stops in (("whole", [None]), ("halted", [0.5, None])):
        recipe = recipe_of(tmp_path, source, SHAPE, document_mask=True)
        recipe = replace(recipe, run=replace(recipe.run, name=name))
        for until in stops:
            stopped = (
                nullcontext() if until is None else pytest.raises(Stopped, match="saved; the same command continues")
            )
            with stopped:
                run(recipe, Reporter(), Clock(0.0), until=until)
        lines.append(list(read_lines(RunFolder.of(recipe).metrics)))
    assert lines[0] == lines[1] and max(line.get("step", 0) for line in lines[0]) == 6


def test_the_recipe(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tiny folder of its architecture."""
    from shoestring.cli.root import root

    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Qwen2Config(vocab_size=262, num_key_value_heads=1, max_position_embeddings=64, **shape)
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path / "qwen")
    monkeypatch.chdir(tmp_path)
    pairs = [{"prompt": ask, "completion": answer} for ask, answer in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    own = {"model.name": "qwen", "data.tokenizer": "bytes", "data.length": LENGTH, "data.heldout": 0.2}
    own |= {"train.batch": 4, "budget.epochs": 1, "evaluate.rows": 8, "evaluate.prompts": "[]"}
    sets = [part for name, value in own.items() for part in ("--set", f"{name}={value}")]
    root.main(["train", str(Path(__file__).parents[2] / "recipes/completions.toml"), *sets], standalone_mode=False)
    plan = json.loads((tmp_path / "runs/completions/plan.json").read_text())
    assert 0 < plan["predictions"] < 0.5 * plan["tokens"]
    assert any("completions, and not their prompts" in line["reason"] for line in plan["lines"])


def test_rows_are_shown_with_what_they_predict(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoestring.cli.root import root

    made = corpus_of(recipe_of(tmp_path, write(pairs=[("ask", "yes")] * 80)))
    folder = str(made._store.paths.folder)
    root.main(["data", "show", folder, "--packing", "pad", "--rows", "1", "--length", "9"], standalone_mode=False)
    assert "row 0\n  'askyes[EOS]', predicted 'yes[EOS]'" in capsys.readouterr().out
    root.main(["data", "check", folder], standalone_mode=False)
    assert "prompts with completions, and only these are predicted" in " ".join(capsys.readouterr().out.split())
