"""Rows of every family: hidden tokens that are a function of epoch and row, and latents that alone are predicted."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from profiles import write_profile

from shoestring.baselines.of_corpus import baselines_of, counted_loss, predictions_of
from shoestring.core.clock import Clock
from shoestring.core.errors import DataError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build, dump
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.data.pack.masking import IGNORED
from shoestring.data.pack.order import RowIndex, drawn_rows
from shoestring.data.pack.packed import PackedSource
from shoestring.data.store.store import Store
from shoestring.data.tokenize.special_tokens import special_tokens, word_starts
from shoestring.data.tokenize.subwords import load_subwords
from shoestring.data.tokenize.tokenizers import ByteTokenizer, SymbolTokenizer, WordTokenizer
from shoestring.datasets.corpus import Corpus, StoreCorpus, StreamCorpus, open_corpus, vocabulary
from shoestring.datasets.source import TokenSource
from shoestring.datasets.streams import open_stream
from shoestring.models.batch import Batch
from shoestring.probe.meter import Meter
from shoestring.runs.evaluate import Watch, evaluate_learner
from shoestring.runs.network_workload import TrainingWorkload, make_learner
from shoestring.runs.prepare import prepare_recipe, recipe_density
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.streams.source import HELDOUT, TRAIN
from shoestring.studies.run_results import read_trained

CPU = torch.device("cpu")
LENGTH = 12
SHAPE = {"width": 16, "layers": 1, "heads": 2}
MASKED = {"family": "masked_lm", **SHAPE}
PERCEIVER = {"family": "perceiver_ar", "latents": 5, **SHAPE}

Make = Callable[..., Recipe]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A recipe on a small text."""
    lines = [f"the {'very ' * (n % 5)}small cat {n} sat on mat {n * n}" for n in range(300)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))

    def made(model: dict[str, Any], tokenizer: str = "words:40", evaluate: int = 8, **data: Any) -> Recipe:
        source = {} if "stream" in data else {"source": f"text:{tmp_path}/corpus.txt", "tokenizer": tokenizer}
        values = {
            "run": {"folder": str(tmp_path / "runs")},
            "budget": {"steps": 20},
            "data": {"folder": str(tmp_path / "stores"), "length": LENGTH, "heldout": 0.2} | source | data,
            "model": model,
            "train": {"batch": 4, "lr": 3e-4},
            "evaluate": {"rows": evaluate},
        }
        return build(values, "test")

    return made


def corpus_of(recipe: Recipe) -> tuple[Corpus, Store]:
    store = prepare_recipe(recipe, None, Reporter())
    return StoreCorpus(recipe, store), store


def plain_rows(recipe: Recipe, store: Store, split: str) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """All rows of a split without one token, within [CLS] and [SEP] where there are any; and their documents where they
    are packed. Without the first token, so that [SEP] can close the row where the last one does not end a document."""
    special = special_tokens(store.tokenizer)
    first, last = list(special.prefix), list(special.suffix)
    length = recipe.data.length - len(first) - len(last)
    if recipe.data.packing == "concat":
        rows = store.split(split, length)
        windows = rows.rows(np.arange(len(rows))).tolist()
        ended = [not last or row[-1] == store.manifest.end for row in windows]
        cut = [row[:-1] if whole else row[1:] for row, whole in zip(windows, ended)]
        return np.array([first + row + last for row in cut]), None
    source = PackedSource(store, split, length, recipe.data.packing)
    plain, documents = [], []
    for ids, segments in zip(*(part[:, :-1].tolist() for part in source.rows(np.arange(len(source))))):
        while segments[-1] == 0:
            ids.pop(), segments.pop()
        if ids[-1] == store.manifest.end:
            ids.pop(), segments.pop()
        inside = first + ids + last
        within = [segments[0]] * len(first) + segments + [segments[-1]] * len(last)
        padding = [0] * (recipe.data.length - len(inside))
        plain.append(inside + padding)
        documents.append(within + padding)
    return np.array(plain), np.array(documents)


def rows_of(source: TokenSource, *numbers: int) -> Batch:
    """Rows of the first epoch, by the arguments of a range."""
    return source.batch(RowIndex.first(np.arange(*numbers)))


def hidden(batch: Batch) -> NDArray[np.bool_]:
    assert batch.wanted is not None
    return (batch.wanted != IGNORED).numpy()


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
@pytest.mark.parametrize("tokenizer", ["bytes", "words:40"])
def test_masked_rows_are_the_store_s_with_some_tokens_hidden(make: Make, packing: str, tokenizer: str) -> None:
    recipe = make(MASKED, tokenizer, packing=packing)
    corpus, store = corpus_of(recipe)
    plain, segments = plain_rows(recipe, store, "train")
    batch = rows_of(corpus.training(CPU), len(plain))
    assert batch.wanted is not None
    ids, wanted, chosen = batch.ids.numpy(), batch.wanted.numpy(), hidden(batch)
    assert ids.shape == wanted.shape == (len(plain), LENGTH)
    assert (ids == plain)[~chosen].all() and (wanted == plain)[chosen].all()
    special = special_tokens(store.tokenizer)
    eligible = ~np.isin(plain, special.fixed)
    if segments is None:
        assert batch.segments is None
    else:
        assert batch.segments is not None and (batch.segments.numpy() == segments).all()
        eligible &= segments != 0
    assert not chosen[~eligible].any()
    assert abs(chosen.sum() - 0.15 * eligible.sum()) < 5 * math.sqrt(0.15 * 0.85 * eligible.sum())
    masked = (ids[chosen] == special.mask).mean()
    assert abs(masked - 0.8) < 5 * math.sqrt(0.8 * 0.2 / chosen.sum())
    assert batch.predictions() == chosen.sum()


WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "<s>",
    "</s>",
    "<cls>",
    "the",
    "very",
    "small",
    "cat",
    "sat",
    "on",
]
TEMPLATES = {"bert": "[CLS] $A [SEP]", "roberta": "<s> $A </s>", "llama": "<s> $A", "t5": "$A </s>", "none": None}


def save_words(path: Path, template: str | None) -> Any:
    """A tokenizer of some words with the post-processor of a well-known one, at `path`."""
    import tokenizers as library

    backend = library.Tokenizer(library.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = library.pre_tokenizers.Whitespace()
    if template is None:
        backend.add_special_tokens(["[PAD]", "</s>"])
    else:
        backend.add_special_tokens(WORDS[:7])
        marks = [(word, WORDS.index(word)) for word in template.split() if word != "$A"]
        backend.post_processor = library.processors.TemplateProcessing(single=template, special_tokens=marks)
    backend.save(str(path))
    return backend


@pytest.mark.parametrize("kind", TEMPLATES)
def test_rows_of_one_document_are_what_the_tokenizer_makes_of_it(make: Make, tmp_path: Path, kind: str) -> None:
    backend = save_words(tmp_path / "words.json", TEMPLATES[kind])
    recipe = make(MASKED, f"file:{tmp_path}/words.json", packing="pad", masked=1.0, length=7)
    corpus, store = corpus_of(recipe)
    source = corpus.training(CPU)
    batch = rows_of(source, len(plain_rows(recipe, store, "train")[0]))
    assert batch.segments is not None
    whole = torch.where(batch.targets() == IGNORED, batch.ids, batch.targets())
    backend.enable_truncation(7)
    texts = (tmp_path / "corpus.txt").read_text().splitlines()
    expected = Counter(tuple(backend.encode(text).ids) for text in texts)
    found = Counter(tuple(ids[used != 0].tolist()) for ids, used in zip(whole, batch.segments))
    assert len(expected) > 4
    seen = {ids: number for ids, number in found.items() if ids in expected}
    assert len(seen) == len(expected), "the first row of every text"
    marks = [WORDS.index(word) for word in (TEMPLATES[kind] or "").split() if word != "$A"]
    assert not np.isin(batch.targets().numpy(), [*marks, 0, 4]).any(), "special tokens are never predicted"


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
@pytest.mark.parametrize("tokenizer", ["bytes", "bert"])
def test_every_row_begins_with_cls_and_ends_with_sep(make: Make, tmp_path: Path, packing: str, tokenizer: str) -> None:
    first, last = (4, 5) if tokenizer == "bytes" else (2, 3)
    if tokenizer == "bert":
        save_words(tmp_path / "words.json", TEMPLATES["bert"])
        tokenizer = f"file:{tmp_path}/words.json"
    corpus, _ = corpus_of(make(MASKED, tokenizer, packing=packing, masked=1.0))
    batch = corpus.heldout()
    used = torch.ones_like(batch.ids) if batch.segments is None else batch.segments != 0
    assert batch.ids.shape[1] == LENGTH
    for ids, there in zip(batch.ids, used.bool()):
        row = ids[there].tolist()
        assert row[0] == first and row[-1] == last and row.count(first) == 1, row


@pytest.mark.parametrize("kind", ["bert", "bytes"])
def test_a_row_cut_at_the_end_of_a_document_has_one_sep(make: Make, tmp_path: Path, kind: str) -> None:
    tokenizer, end, sep = "bytes", 2, 5
    if kind == "bert":
        save_words(tmp_path / "words.json", TEMPLATES["bert"])
        tokenizer, end, sep = f"file:{tmp_path}/words.json", 3, 3
    recipe = make(MASKED, tokenizer, masked=1.0, length=10)
    corpus, store = corpus_of(recipe)
    assert store.manifest.end == end
    windows = store.split("train", 8)
    batch = rows_of(corpus.training(CPU), len(windows))
    whole = torch.where(batch.targets() == IGNORED, batch.ids, batch.targets()).tolist()
    cut = [row[-1] == end for row in windows.rows(np.arange(len(windows))).tolist()]
    assert any(cut) and not all(cut), "some rows are cut at the end of a document"
    assert all(row[-1] == sep and row[-2] not in (end, sep) for row in whole)
    stream = Counter(chain.from_iterable(part.tolist() for part in windows.stream()))
    kept = Counter(chain.from_iterable(whole))
    assert all(kept[token] >= stream[token] - 9 for token in stream if token not in (2, 3, 5)), "no text is lost"


def test_every_token_of_a_document_is_in_one_row(make: Make) -> None:
    recipe = make(MASKED, "bytes", packing="pad", masked=1.0)
    corpus, store = corpus_of(recipe)
    batch = rows_of(corpus.training(CPU), len(plain_rows(recipe, store, "train")[0]))
    tokens = Counter(batch.targets()[batch.predicted()].tolist())
    stream = chain.from_iterable(part.tolist() for part in store.split("train", LENGTH).stream())
    assert tokens == Counter(token for token in stream if token >= 6)


def test_rows_without_room_for_text_are_refused(make: Make) -> None:
    with pytest.raises(DataError, match=r"data\.length = 2: .* 2 special tokens around each row.*at least 3"):
        corpus_of(make(MASKED, "bytes", length=2))
    assert recipe_density(make(MASKED, "bytes")).row_specials == 2  # type: ignore[union-attr]
    assert recipe_density(make(MASKED)).row_specials == recipe_density(make(SHAPE, "bytes")).row_specials == 0  # type: ignore[union-attr]


@pytest.mark.realdata
def test_the_class_token_of_xlnet_is_moved_to_the_front() -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "tokenizers" / "xlnet-base-cased" / "tokenizer.json.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    found = special_tokens(load_subwords(f"file:{path}"))
    assert (found.prefix, found.suffix) == ((3,), (4,))


def test_padding_with_the_id_of_a_word_is_never_hidden(make: Make, tmp_path: Path) -> None:
    import tokenizers as library

    words = ["the", "cat", "very", "small", "[UNK]", "[SEP]"]  # id 0, which padding holds, is a word
    backend = library.Tokenizer(library.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = library.pre_tokenizers.Whitespace()
    backend.add_special_tokens(words[4:])
    backend.save(str(tmp_path / "words.json"))
    recipe = make(MASKED, f"file:{tmp_path}/words.json", packing="pad", masked=1.0)
    corpus, store = corpus_of(recipe)
    plain, segments = plain_rows(recipe, store, "train")
    batch = rows_of(corpus.training(CPU), len(plain))
    assert segments is not None
    assert (hidden(batch) == ((segments != 0) & (plain < 4))).all(), "all words, and nothing else"
    assert (batch.ids.numpy() == plain)[segments == 0].all()


@pytest.mark.parametrize("offset", [False, True])
def test_masks_are_a_function_of_epoch_and_row(make: Make, offset: bool) -> None:
    recipe = make(MASKED, random_offset=offset)
    corpus, store = corpus_of(recipe)
    source = corpus.training(CPU)
    plain = store.split("train", LENGTH, 0 if offset else None)
    count, batch = len(plain), 7
    steps = range(3 * count // batch)
    epochs, rows = (np.concatenate(parts) for parts in zip(*(source.order(3, step, batch) for step in steps)))
    assert (epochs == np.arange(len(rows)) // count).all()
    unmasked = np.concatenate([plain.order(3, step, batch).rows for step in steps])
    assert (rows == unmasked).all(), "the order is that of rows that are not masked"
    for epoch in range(2):
        assert sorted(rows[epoch * count : (epoch + 1) * count]) == list(range(count))
    mixed = RowIndex(np.array([0, 2, 1, 1, 0]), np.array([5, 5, 5, 5, 0]))
    together = source.batch(mixed)
    for place, (epoch, row) in enumerate(zip(*mixed)):
        alone = source.batch(RowIndex(np.array([epoch]), np.array([row])))
        assert torch.equal(alone.ids[0], together.ids[place])
        assert torch.equal(alone.targets()[0], together.targets()[place])
    many = [hidden(source.batch(RowIndex(np.full(count, epoch), np.arange(count)))) for epoch in range(3)]
    assert (many[0] != many[1]).any() and (many[1] != many[2]).any()
    again = StoreCorpus(recipe, store).training(CPU)
    assert torch.equal(again.batch(mixed).ids, together.ids)


def test_rows_with_an_offset_are_masked_where_they_are_cut(make: Make) -> None:
    recipe = make(MASKED, random_offset=True, masked=0.5)
    corpus, store = corpus_of(recipe)
    stream = np.concatenate(list(store.split("train", LENGTH).stream())).astype(np.int64)
    windows = {tuple(stream[at : at + LENGTH].tolist()) for at in range(len(stream) - LENGTH)}
    batch = corpus.training(CPU).batch(RowIndex(np.arange(3), np.ones(3, dtype=np.int64)))
    whole = torch.where(batch.targets() == IGNORED, batch.ids, batch.targets())
    assert all(tuple(row) in windows for row in whole.tolist())
    assert len({tuple(row) for row in whole.tolist()}) > 1, "cut elsewhere"


def test_every_evaluation_has_the_same_rows(make: Make) -> None:
    recipe = make(MASKED, evaluate=10**6)
    corpus, store = corpus_of(recipe)
    one, two = corpus.heldout(), StoreCorpus(recipe, store).heldout()
    assert torch.equal(one.ids, two.ids) and torch.equal(one.targets(), two.targets())
    plain, _ = plain_rows(recipe, store, "heldout")
    assert len(one.ids) == len(plain) and one.predictions() > 0
    assert (one.targets().numpy() == plain)[hidden(one)].all()
    few = StoreCorpus(make(MASKED, evaluate=3), store).heldout()
    assert torch.equal(few.ids, one.ids[torch.from_numpy(drawn_rows(3, len(one.ids)))])


def test_held_out_rows_in_which_nothing_is_hidden_are_refused(make: Make) -> None:
    corpus, _ = corpus_of(make(MASKED, masked=1e-6))
    with pytest.raises(DataError, match=r"nothing is predicted in the 8 held-out rows; .* data\.masked"):
        corpus.heldout()


def test_a_mask_is_the_tokenizer_s_own_or_one_id_more(make: Make) -> None:
    found = special_tokens(ByteTokenizer())
    assert (found.vocab_size, found.mask, found.prefix, found.suffix) == (262, 3, (4,), (5,))
    assert found.fixed == tuple(range(6)) and found.plain.tolist() == list(range(6, 262))
    found = special_tokens(WordTokenizer(40, ()))
    assert (found.vocab_size, found.mask, found.prefix, found.suffix) == (43, 42, (), ()) and found.fixed == (0, 1, 42)
    found = special_tokens(SymbolTokenizer(9))
    assert (found.vocab_size, found.mask, found.fixed) == (10, 9, (9,))
    for tokenizer, size in (("bytes", 262), ("words:40", 43)):
        recipe = make(MASKED, tokenizer)
        assert vocabulary(recipe) == size, "known before anything is prepared"
        corpus, store = corpus_of(recipe)
        assert corpus.vocab_size == size
        given = make(MASKED, source=f"store:{store.paths.folder}")
        assert vocabulary(given) == size
    assert vocabulary(make(SHAPE)) == 42, "nothing is added where nothing is hidden"
    assert vocabulary(make(MASKED, stream="markov:12")) == 13
    assert vocabulary(make(SHAPE, stream="markov:12")) == 12


def test_subwords_have_their_own_tokens(tmp_path: Path) -> None:
    import tokenizers as library

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "a"]
    backend = library.Tokenizer(library.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    backend.decoder = library.decoders.WordPiece()
    backend.add_special_tokens(words[:5])
    backend.save(str(tmp_path / "pieces.json"))
    tokenizer = load_subwords(f"file:{tmp_path}/pieces.json")
    found = special_tokens(tokenizer)
    assert (found.vocab_size, found.mask, found.prefix, found.suffix) == (8, 4, (2,), (3,))
    assert found.fixed == (0, 1, 2, 3, 4)
    assert word_starts(tokenizer).tolist() == [True] * 6 + [False, True]

    plain = library.Tokenizer(library.models.BPE({"a": 0, "b": 1, "<eos>": 2}, []))
    plain.save(str(tmp_path / "plain.json"))
    tokenizer = load_subwords(f"file:{tmp_path}/plain.json")
    found = special_tokens(tokenizer)
    assert (found.vocab_size, found.mask, found.prefix, found.fixed) == (4, 3, (), (2, 3))
    with pytest.raises(DataError, match="do not show where a word begins, so whole words cannot be masked"):
        word_starts(tokenizer)


def test_bytes_of_a_word_are_hidden_all_or_none(make: Make) -> None:
    recipe = make(MASKED, "bytes", whole_words=True, packing="pad", length=40)
    corpus, store = corpus_of(recipe)
    plain, segments = plain_rows(recipe, store, "train")
    batch = rows_of(corpus.training(CPU), len(plain))
    chosen, words = hidden(batch), 0
    assert segments is not None
    for row, marks, used in zip(plain, chosen, segments):
        text = "".join(chr(i - 6) if i >= 6 else "\0" for i in row[used != 0])
        for word in re.finditer(r" ?[^ \0]+", text):
            assert len(set(marks[word.start() : word.end()].tolist())) == 1, text
            words += 1
    assert words > 1000
    eligible = (plain >= 6) & (segments != 0)
    assert 0.1 < chosen.sum() / eligible.sum() < 0.2
    alone, _ = corpus_of(make(MASKED, "bytes", packing="pad", length=40))
    assert (hidden(rows_of(alone.training(CPU), len(plain))) != chosen).any()


def test_whole_words_of_words_are_the_tokens(make: Make) -> None:
    batches = []
    for whole in (False, True):
        corpus, _ = corpus_of(make(MASKED, whole_words=whole))
        batches.append(rows_of(corpus.training(CPU), 30))
    assert torch.equal(batches[0].ids, batches[1].ids)


def test_baselines_on_hidden_tokens_are_those_of_a_plain_count(make: Make) -> None:
    corpus, store = corpus_of(make(MASKED, evaluate=50))
    batch = corpus.heldout()
    targets = batch.targets()[batch.predicted()].tolist()
    stream = chain.from_iterable(part.tolist() for part in store.split("train", LENGTH).stream())
    counts = Counter(token for token in stream if token >= 2)  # neither <end> nor <unk> is ever hidden
    nats = [-math.log((counts[token] + 1) / (sum(counts.values()) + 40)) for token in targets]
    found = baselines_of(corpus)
    assert found.losses == pytest.approx({"uniform": math.log(40), "unigram": sum(nats) / len(nats)})
    assert counted_loss(corpus) == pytest.approx(sum(nats) / len(nats)), "a corpus of few tokens is counted whole"
    causal, _ = corpus_of(make({}, evaluate=50))
    assert counted_loss(causal) == pytest.approx(baselines_of(causal).losses["unigram"])
    assert corpus.bytes_per_token is None and predictions_of(corpus) == {}
    exact, _ = corpus_of(make(MASKED, "bytes"))
    assert exact.bytes_per_token is None, "hidden bytes are not all bytes"


def test_a_stream_can_be_masked(make: Make) -> None:
    recipe = make(MASKED, stream="markov:12", evaluate=20)
    corpus, stream = StreamCorpus(recipe), open_stream(recipe)
    source = corpus.training(CPU)
    assert source.order(0, 3, 5).rows.tolist() == [15, 16, 17, 18, 19]
    batch = rows_of(source, 50)
    whole = torch.where(batch.targets() == IGNORED, batch.ids, batch.targets())
    assert torch.equal(whole, stream.rows(TRAIN, 50)[:, :-1].long())
    assert (batch.ids == 12).any() and batch.ids.shape == (50, LENGTH)
    parts = torch.cat([rows_of(source, first, first + 10).ids for first in range(0, 50, 10)])
    assert torch.equal(parts, batch.ids), "whatever batch a row comes in"
    held = corpus.heldout()
    whole = torch.where(held.targets() == IGNORED, held.ids, held.targets())
    assert torch.equal(whole, stream.rows(HELDOUT, 20)[:, :-1].long())
    found = baselines_of(corpus)
    assert found.losses["uniform"] == pytest.approx(math.log(12)) and set(found.losses) == {"uniform", "unigram"}
    assert predictions_of(corpus) == {} and corpus.vocab_size == 13


def test_a_masked_model_of_transformers_reads_masked_rows(make: Make, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 43, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**shape, intermediate_size=16, max_position_embeddings=LENGTH)
    config.save_pretrained(tmp_path / "bert")
    recipe = make({"family": "hf", "name": str(tmp_path / "bert")})
    assert vocabulary(recipe) == 43
    corpus, store = corpus_of(recipe)
    mine = rows_of(corpus.training(CPU), 5)
    ours = rows_of(StoreCorpus(make(MASKED), store).training(CPU), 5)
    assert torch.equal(mine.ids, ours.ids) and torch.equal(mine.targets(), ours.targets())
    found = evaluate_learner(make_learner(recipe, CPU), 0, 4, corpus)
    assert found.loss == pytest.approx(math.log(43), abs=0.3) and set(found.baselines) == {"uniform", "unigram"}
    workload = TrainingWorkload(recipe, Meter(CPU))
    workload.accumulate(2)
    workload.update()


# --- latents


def test_a_perceiver_predicts_its_latents_alone(make: Make) -> None:
    recipe = make(PERCEIVER, evaluate=30)
    corpus, store = corpus_of(recipe)
    rows = store.split("train", LENGTH)
    batch = rows_of(corpus.training(CPU), 4)
    assert (batch.ids.numpy() == rows.rows(np.arange(4))).all()
    assert batch.last == 5 and batch.predictions() == 4 * 5
    assert corpus.training(CPU).order(1, 2, 3).rows.tolist() == rows.order(1, 2, 3).rows.tolist()
    held = corpus.heldout()
    assert held.last == 5
    counts = Counter(chain.from_iterable(part.tolist() for part in rows.stream()))
    targets = held.ids[:, -5:].flatten().tolist()
    nats = [-math.log((counts[token] + 1) / (sum(counts.values()) + 42)) for token in targets]
    assert baselines_of(corpus).losses["unigram"] == pytest.approx(sum(nats) / len(nats))
    found = evaluate_learner(make_learner(recipe, CPU), 0, 8, corpus)
    assert found.tokens == len(held.ids) * 5
    assert found.loss_by_position[:-5] == (None,) * (LENGTH - 5) and None not in found.loss_by_position[-5:]
    assert found.loss == pytest.approx(math.log(42), abs=0.2)


@pytest.mark.parametrize("packing", ["best_fit", "pad"])
def test_latents_of_packed_rows_leave_padding_out(make: Make, packing: str) -> None:
    corpus, _ = corpus_of(make(PERCEIVER, packing=packing))
    batch = rows_of(corpus.training(CPU), 6)
    assert batch.segments is not None and batch.last == 5
    expected = batch.segments[:, 1:] != 0
    expected[:, :-5] = False
    assert torch.equal(batch.predicted(), expected)


def test_a_perceiver_on_a_stream_is_compared_at_its_latents(make: Make) -> None:
    recipe = make(PERCEIVER, stream="markov:12", evaluate=6)
    corpus, whole = StreamCorpus(recipe), StreamCorpus(make(SHAPE, stream="markov:12", evaluate=6))
    batch = rows_of(corpus.training(CPU), 3)
    assert batch.last == corpus.heldout().last == 5
    mine, all_positions = baselines_of(corpus), baselines_of(whole)
    for name, losses in all_positions.by_position.items():
        assert mine.by_position[name] == losses and len(losses) == LENGTH
        assert mine.losses[name] == pytest.approx(sum(losses[-5:]) / 5)
    for name, p in predictions_of(whole).items():
        assert torch.equal(predictions_of(corpus)[name], p[:, -5:])
    scores = Watch(corpus)(make_learner(recipe, CPU), 4)
    assert {"heldout_loss", "kl_of_unigram_in_context"} <= set(scores)
    assert all(math.isfinite(score) for score in scores.values())


# --- the same rows when measured, and a whole run


@pytest.mark.parametrize(
    ("model", "data", "predictions", "segments"),
    [
        (SHAPE, {}, LENGTH, False),
        (SHAPE, {"document_mask": True}, LENGTH, True),
        (PERCEIVER, {}, 5, False),
        (MASKED, {}, None, False),
        (MASKED, {"packing": "pad"}, None, True),
        (MASKED | {"classes": 3}, {"label": "class", "source": "csv:none.csv"}, 1, True),
    ],
    ids=["llama", "document_mask", "perceiver", "masked", "padded", "classes"],
)
def test_what_is_measured_is_what_is_trained(
    make: Make, model: dict[str, Any], data: dict[str, Any], predictions: int | None, segments: bool
) -> None:
    workload = TrainingWorkload(make(model, **data), Meter(CPU))
    batch = workload._rows(40)
    assert (batch.segments is not None) == segments
    found = batch.predictions() / 40
    assert 1 <= found <= 0.4 * LENGTH if predictions is None else found == predictions
    assert batch.inputs().ids.shape == (40, LENGTH)
    workload.accumulate(2)
    workload.update()
    workload.validate(2)


@pytest.mark.parametrize("model", [MASKED, PERCEIVER], ids=["masked_lm", "perceiver_ar"])
def test_a_whole_run(make: Make, model: dict[str, Any], tmp_path: Path) -> None:
    recipe, file = make(model), tmp_path / "recipe.toml"
    file.write_text(dump(recipe))
    profile = replace(write_profile(file), density=recipe_density(recipe))
    profile.write(RunFolder.of(recipe).profile)
    finished = run(recipe, Reporter(), Clock())
    assert finished is not None
    found = finished.evaluation
    assert finished.outcome.steps == 20 and found.loss < found.baselines["uniform"] + 0.1
    assert found.accuracy is None and (found.loss_by_position[0] is None) == (model is PERCEIVER)


PADDED = {"packing": "pad", "length": 20}


@pytest.mark.parametrize(
    ("model", "data"),
    [(SHAPE, {}), (SHAPE, PADDED), (SHAPE, PADDED | {"document_mask": True}), (MASKED, PADDED), (PERCEIVER, {})],
)
def test_positions_and_predictions_are_counted_apart(
    make: Make, model: dict[str, Any], data: dict[str, Any], tmp_path: Path
) -> None:
    recipe, file = make(model, **data), tmp_path / "recipe.toml"
    file.write_text(dump(recipe))
    profile = replace(write_profile(file), density=recipe_density(recipe))
    profile.write(RunFolder.of(recipe).profile)
    finished = run(recipe, Reporter(), Clock())
    assert finished is not None
    folder, outcome = RunFolder.of(recipe), finished.outcome
    plan = Plan.read(folder.plan)
    source = open_corpus(recipe, plan).training(CPU)
    made = sum(source.batch(source.order(recipe.run.seed, step, 4)).predictions() for step in range(20))
    assert outcome.tokens == plan.tokens == 20 * 4 * recipe.data.length
    assert outcome.predictions == made and plan.predictions == pytest.approx(made, rel=0.15)
    assert (made == outcome.tokens) == (model is SHAPE and not data)
    point = read_trained(folder.path, "total")
    assert point.tokens == made, "the D of a law"
    assert point.flops == pytest.approx(profile.cost.train_flops_per_token * outcome.tokens), "padding costs as much"
    lines = {line.quantity: line for line in plan.lines}
    assert lines["speed"].value.endswith("positions/s") and "D of a scaling law" in lines["predictions"].reason
