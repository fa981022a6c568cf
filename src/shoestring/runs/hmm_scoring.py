"""Scores of a fitted HMM: on the held-out rows of its own run, or on any other text or store."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shoestring.baselines.hmm_score import Scores, score
from shoestring.baselines.ngram import Counts, count
from shoestring.core.errors import DataError, RunError, UserError
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import SourceSpec
from shoestring.core.units import counted
from shoestring.data.pack.order import drawn_rows
from shoestring.data.read.corpora import Stories, open_corpus, texts
from shoestring.data.store.sentence_store import find_rows, join_sentences, read_rows
from shoestring.data.store.store import Store
from shoestring.data.tokenize.tokenizers import SymbolTokenizer
from shoestring.hmm.parameters import Saved
from shoestring.probe.machine import pick_device
from shoestring.runs.hmm_task import HmmTask
from shoestring.runs.task import task_of
from shoestring.runs.trained_model import load_hmm, read_hmm

MOST_ROWS = 16384
"""Rows of another text or store that are scored."""
_READ_TOKENS = 1 << 16
LENGTH = 100
"""Tokens per row of another text, where no recipe names a length."""


@dataclass(frozen=True, kw_only=True)
class Other:
    """Another text or store to score."""

    source: SourceSpec
    """As `data.source`."""
    split: str | None = None
    """Of a store; None: "heldout" where it has one, else "train"."""
    rows: int = MOST_ROWS
    length: int | None = None
    """Tokens per row of text; None: as in the recipe of the run, else 100."""
    unique: bool = False
    """Score each distinct sentence of a text once."""


class Scored(NamedTuple):
    """Scores, and what they are of."""

    scores: Scores
    what: str
    notes: list[str]


def score_model(path: Path, other: Other | None = None) -> Scored:
    """Score the model of a run folder or a model file, on `other`, or on all held-out rows of its run.

    Beside a run's model stand the baselines from its training rows. A model file names no rows, so it has only the
    baselines in context.
    """
    if path.is_file():
        if other is None:
            raise UserError(f"{path} is a model file, which names no rows: say what to score with --data SOURCE")
        return _score_other(read_hmm(path), other, None, None, [])
    folder = RunFolder.open(path)
    model, task = load_hmm(folder), task_of(folder.read_recipe())
    assert isinstance(task, HmmTask), "its run holds a fitted HMM"
    if other is not None:
        counts, notes = _training_counts(task)
        return _score_other(model, other, task, counts, notes)
    rows = task.rows()
    if rows.alphabet != model.alphabet:
        raise RunError(f"{folder.model} has another alphabet than {rows.path}")
    counted = count([rows.train], len(rows.alphabet))
    heldout = torch.from_numpy(rows.scored().astype("int64"))
    return Scored(_on_device(model, heldout, None, counted), "Held out", [])


def _training_counts(task: HmmTask) -> tuple[Counts | None, list[str]]:
    """Counts of the training rows; without them where the corpus is gone, with a line that says so."""
    try:
        rows = task.rows()
    except UserError as cause:
        return None, [f"without the baselines of the training rows: {cause}"]
    return count([rows.train], len(rows.alphabet)), []


def _score_other(model: Saved, other: Other, task: HmmTask | None, counts: Counts | None, notes: list[str]) -> Scored:
    found = _rows_of_store(model, other, task) if other.source.kind == "store" else _rows_of_text(model, other, task)
    scores = _on_device(model, found.tokens, found.lengths, counts)
    return Scored(scores, str(other.source), [*notes, *found.notes])


def _on_device(model: Saved, tokens: torch.Tensor, lengths: torch.Tensor | None, counts: Counts | None) -> Scores:
    return score(model.parameters.to(pick_device(), torch.float32), tokens, lengths, counts)


@dataclass(frozen=True)
class _Rows:
    """Rows to score."""

    tokens: torch.Tensor
    lengths: torch.Tensor | None = None
    notes: list[str] = field(default_factory=list)


def _rows_of_store(model: Saved, other: Other, task: HmmTask | None) -> _Rows:
    """Rows of a store: as they are where its symbols are the model's, else through its text."""
    folder = Path(other.source.place).expanduser()
    file = find_rows(folder)
    if file is not None:
        rows = read_rows(file)
        split = other.split or "heldout"
        if split not in ("train", "heldout"):
            raise DataError(f"--split {split}: {folder} has train and heldout")
        kept = rows.train if split == "train" else rows.heldout
        if rows.alphabet == model.alphabet:
            return _whole_rows(kept[drawn_rows(other.rows, len(kept))], len(kept), split)
        text = (" ".join(rows.alphabet[token] for token in row) for row in kept.tolist())
        return _joined(model, other, task, [" ".join(text)])
    store = Store(folder)
    split = other.split or ("heldout" if "heldout" in store.manifest.splits else "train")
    if split not in store.manifest.splits:
        raise DataError(f"--split {split}: {folder} has {', '.join(store.manifest.splits)}")
    length = store.manifest.row
    if isinstance(store.tokenizer, SymbolTokenizer) and length is not None:
        _check_symbols(model, store, folder)
        source = store.split(split, length - 1)
        return _whole_rows(source.rows(drawn_rows(other.rows, len(source))), len(source), split)
    return _joined(model, other, task, _documents(store, split))


def _whole_rows(rows: NDArray[Any], available: int, split: str) -> _Rows:
    notes = [f"{len(rows):,} of {available:,} {split} rows, drawn over all"] if len(rows) < available else []
    return _Rows(torch.from_numpy(rows.astype("int64")), None, notes)


def _check_symbols(model: Saved, store: Store, folder: Path) -> None:
    tokenizer = store.tokenizer
    assert isinstance(tokenizer, SymbolTokenizer)
    if tokenizer.vocab_size != model.parameters.symbols:
        raise DataError(f"{folder} has {tokenizer.vocab_size} symbols, the model {model.parameters.symbols}")
    if tokenizer.names is not None and model.alphabet is not None and tokenizer.names != model.alphabet:
        raise DataError(f"{folder} names its symbols by other words than the model")


def _documents(store: Store, split: str) -> Iterator[str]:
    """The text of a store's documents."""
    pairs, end = store.split(split, 1), store.tokenizer.end
    begun: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    for first in range(0, len(pairs), _READ_TOKENS):
        read = pairs.rows(np.arange(first, min(first + _READ_TOKENS, len(pairs))))
        last = first + len(read) == len(pairs)
        tokens = np.concatenate([begun, read[:, 0], read[-1:, 1] if last else begun[:0]])
        *whole, begun = np.split(tokens, np.flatnonzero(tokens == (-1 if end is None else end)) + 1)
        yield from (store.tokenizer.decode(document[document != end]) for document in whole)
    yield store.tokenizer.decode(begun)


def _rows_of_text(model: Saved, other: Other, task: HmmTask | None) -> _Rows:
    seed = 0 if task is None else task.recipe.run.seed
    corpus = Stories(seed) if other.source == "stories" else open_corpus(other.source)
    return _joined(model, other, task, texts(corpus))


def _joined(model: Saved, other: Other, task: HmmTask | None, documents: Iterable[str]) -> _Rows:
    """Rows of the sentences that use only the model's words; the last row may be shorter."""
    if model.alphabet is None:
        raise DataError(f"the model names no words, so it cannot read {other.source}; give a store of its symbols")
    length = other.length or (LENGTH if task is None else task.recipe.data.length)
    plain, most = task is not None and task.hmm.plain, other.rows * length
    stream, ledger, _ = join_sentences(itertools.chain(documents), model.alphabet, other.unique, plain, most=most)
    tokens = torch.tensor(stream[:most], dtype=torch.int64)
    about = f"{ledger.kept:,} of {ledger.sentences:,} sentences use only the {len(model.alphabet):,} words of the model"
    if not len(tokens):
        raise DataError(f"nothing to score in {other.source}: {about}")
    rows = -(-len(tokens) // length)
    lengths = torch.full((rows,), length)
    lengths[-1] = len(tokens) - (rows - 1) * length
    padded = torch.zeros(rows * length, dtype=torch.int64)
    padded[: len(tokens)] = tokens
    notes = [about] if rows < other.rows else [about, f"scored: no more than {counted(other.rows, 'row')}; see --rows"]
    return _Rows(padded.view(rows, length), lengths, notes)
