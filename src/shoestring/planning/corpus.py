"""The rows of a run: ready ones, or the documents that its steps, its time and its disk allow."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoestring.core.errors import Refusal
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.records import Density
from shoestring.core.units import Bytes, Seconds, counted

_PREPARE_SHARE, _PREPARE_SECONDS, _LONG_SHARE = 0.03, 3.0, 0.005
"""An endless corpus is prepared for this share of a time budget, or, where that is less, for so many seconds and the
smaller share; then it is repeated."""

_ENOUGH = 0.5
"""Of the documents that would be prepared of an endless corpus: so many that are prepared already will do."""
WHOLE_SECONDS, WHOLE_SHARE = 5.0, 0.03
"""At least as much is read as is prepared in so many seconds, or in this share of the time budget."""
WHOLE_BYTES = 1 << 24
"""At least as much is read without a time budget: what a machine's speed at the moment says is no part of a run."""
SPARE = 1.25
"""Documents that are read, over those that the steps need by the mean of a sample: lengths vary, and a stream is
sampled at its start alone. Of the built-in stories, which are computed, no more are made than needed."""
HELDOUT_SHARE = 0.1
"""Share of the seconds of a document that goes to reading it, where only held-out documents are tokenized."""

StoreBytes = Callable[[float, float], int]
"""Bytes on disk of a store, from its tokens and documents."""


@dataclass(frozen=True)
class Ready:
    """Rows that exist before the run, with no corpus to read: a stream, or an existing store."""

    rows: int | None
    """For training; None: endless."""
    bytes: int
    what: str


@dataclass(frozen=True)
class Corpus:
    """What is read: of a text, the least of what the steps need, what exists, and what time and disk allow."""

    reason: str
    rows: int | None
    """For training; None: endless."""
    bytes: int
    """On disk."""
    documents: int | None = None
    text_bytes: float | None = None
    tokens_per_document: float | None = None
    seconds: float = 0.0
    """To prepare it."""
    whole: bool = False
    """Whether all of the text is read."""
    share: float | None = None
    """Of the corpus, drawn over all of it; None: all, or a number of documents."""
    as_needed: bool = False
    """Whether the number of documents follows from the tokens of the run."""


def full_passes(recipe: Recipe) -> float:
    """Epochs after which every position can have been predicted once: 1, or length / latents."""
    last = family_of(recipe.model).last_predictions(recipe.model)
    return 1.0 if last is None else recipe.data.length / last


def available_rows(recipe: Recipe, density: Density) -> float | None:
    documents = available_documents(recipe, density)
    if documents is None:
        return None
    return documents * (1 - recipe.data.heldout) * _rows_per_document(recipe, density)


def _rows_per_document(recipe: Recipe, density: Density) -> float:
    """Rows per document of average length.

    A document with rows of its own fills at least one; the last of several rows is half full on average.
    """
    length = recipe.data.length - density.row_specials
    if recipe.data.packing == "pad":
        return max(1.0, (density.tokens_per_document - 1) / length + 0.5)
    return density.tokens_per_document / length


def predictions_per_row(recipe: Recipe, density: Density | None) -> float | None:
    """Predictions that a row of training is expected to make; None: unknown before the rows are packed."""
    data, family = recipe.data, family_of(recipe.model)
    hides, last = family.predicts_hidden(recipe.model), family.last_predictions(recipe.model)
    if data.label is not None:
        return 1.0
    if data.pair is not None:
        if density is None or last is not None:
            return None
        return (density.tokens - density.prompt_tokens) / density.documents / _rows_per_document(recipe, density)
    if data.packing == "concat" and not data.document_mask and not hides:
        return float(data.length if last is None else min(last, data.length))
    if data.stream is not None:
        return data.length * data.masked
    if density is None or last is not None:
        return None
    per_row = density.tokens_per_document / _rows_per_document(recipe, density)
    if hides or data.document_mask or data.packing == "pad":  # the end of a document, or its first token
        per_row *= 1 - 1 / density.tokens_per_document
    return per_row * (data.masked if hides else 1.0)


def available_documents(recipe: Recipe, density: Density) -> int | None:
    """Documents that can be read; None: endless."""
    numbers = [n for n in (recipe.data.documents, density.total_documents) if n is not None]
    return min(int(n) for n in numbers) if numbers else None


def scored_rows(recipe: Recipe, density: Density | None) -> int:
    """Rows of an evaluation: `evaluate.rows` of every text, or as many as the held-out documents are known to have."""
    data, rows = recipe.data, recipe.evaluate.rows
    documents = None if density is None or data.validation is not None else available_documents(recipe, density)
    if documents is not None and density is not None:
        each = _rows_per_document(recipe, density) * data.length / (data.length - (recipe.evaluate.context or 0))
        rows = min(rows, max(1, math.ceil(documents * data.heldout * each)))
    return max(1, len(data.scored)) * rows


SCORED_POSITIONS = 2048
"""Positions that are scored at once on a CPU, where a micro-batch of one or two rows takes its time for little."""


def scored_at_once(recipe: Recipe, per_device: int, device: str) -> int:
    """Rows of a pass that scores, of a run with so many in its micro-batches."""
    if recipe.evaluate.per_device is not None:
        return recipe.evaluate.per_device
    return per_device if device != "cpu" else max(per_device, SCORED_POSITIONS // recipe.data.length)


def documents_for(recipe: Recipe, density: Density, steps: int) -> float:
    """Documents that `steps` of one epoch need."""
    return steps * recipe.batch / _rows_per_document(recipe, density) / (1 - recipe.data.heldout)


def documents_read(recipe: Recipe, density: Density, steps: int) -> float:
    """Documents of a corpus without a known end that are read for `steps`."""
    spare = 1.0 if recipe.data.source == "stories" else SPARE
    return spare * documents_for(recipe, density, steps)


def least_documents(recipe: Recipe, density: Density) -> int:
    """Documents for one step of training, and for the held-out rows if they are scored."""
    heldout = 0.0
    if recipe.data.validation is None:
        heldout = recipe.evaluate.rows / _rows_per_document(recipe, density) / recipe.data.heldout
    return math.ceil(max(heldout, documents_for(recipe, density, 1))) + 1


def drawn_documents(recipe: Recipe, density: Density, steps: int) -> int | None:
    """How many documents of a finite corpus `steps` of one epoch read, and more if that is cheap; None: all."""
    total = density.total_documents
    if total is None or recipe.data.documents is not None:
        return None
    if recipe.budget.time is None:  # the same rows whenever it is planned
        cheap = int(WHOLE_BYTES / density.text_bytes * density.documents)
    else:
        seconds = max(WHOLE_SECONDS, WHOLE_SHARE * float(recipe.budget.time))
        cheap = max(int((seconds - start) / each) for start, each in density.methods())
    documents = max(cheap, math.ceil(SPARE * documents_for(recipe, density, steps)) + 1)
    return documents if documents < total else None


def heldout_seconds(recipe: Recipe, density: Density, documents: int) -> float:
    """Seconds to find the held-out rows in more text than the `documents` that training reads."""
    limits = (least_documents(recipe, density), available_documents(recipe, density))
    more = min(number for number in limits if number is not None) - documents
    return HELDOUT_SHARE * max(0, more) * density.seconds / density.documents


def document_limit(recipe: Recipe, density: Density) -> float:
    """The available documents; for an endless corpus, those that can be prepared in the time they may take."""
    if (available := available_documents(recipe, density)) is not None:
        return available
    if recipe.budget.time is None:
        return math.inf
    in_time = _preparing_seconds(float(recipe.budget.time)) * density.documents / density.seconds
    return max(in_time, least_documents(recipe, density))


def _preparing_seconds(time: float) -> float:
    """Most seconds for preparing an endless corpus."""
    return min(_PREPARE_SHARE * time, _PREPARE_SECONDS + _LONG_SHARE * time)


def kept_checkpoints(recipe: Recipe, steps: int) -> int:
    """Most checkpoints on disk: those kept, the best, the one before a cool-down, the one being written, and those of
    chosen steps."""
    return recipe.train.keep + 2 + recipe.train.cools + recipe.train.saved_count(steps)


def corpus_to_read(
    recipe: Recipe,
    density: Density,
    store_bytes: StoreBytes,
    checkpoints: int,
    checkpoint_bytes: int,
    steps: int,
    free_disk: int | None,
    prepared: Sequence[int] = (),
) -> Corpus:
    """The documents to read; of an endless corpus rather as many as an existing store has than to prepare another.

    `prepared`: the numbers of documents of such stores.
    """
    needed = max(math.ceil(documents_read(recipe, density, steps)), least_documents(recipe, density))
    limit, share, extra = document_limit(recipe, density), None, 0.0
    if (drawn := drawn_documents(recipe, density, steps)) is not None:
        assert density.total_documents is not None, "it has an end"
        documents, share = drawn, drawn / density.total_documents
        extra = heldout_seconds(recipe, density, documents)
        reason = f"{share:.2%} of the corpus, drawn over all of it: enough for one epoch"
    elif available_documents(recipe, density) is not None:
        documents, reason = int(limit), "all available" if recipe.data.documents is None else "data.documents"
    elif needed <= limit:
        scored = "" if recipe.data.heldout == 0 else ", and the held-out rows"
        more = "" if recipe.data.source == "stories" else " and a quarter more"
        documents, reason = needed, f"one epoch for the steps{more}{scored}"
    else:
        seconds = Seconds(_preparing_seconds(float(recipe.budget.time or 0.0))).short()
        documents, reason = int(limit), f"as many as can be prepared in {seconds}; then repeated"
    as_needed = drawn is not None or (available_documents(recipe, density) is None and needed <= limit)
    is_prepared = False
    if available_documents(recipe, density) is None and (there := _nearest(prepared, recipe, density, documents)):
        documents, is_prepared, as_needed = there, True, False
        reason = "already prepared" if there >= needed else "already prepared; then repeated"

    def size(number: int) -> int:
        return store_bytes(number * density.tokens_per_document, number)

    limits = [(recipe.budget.disk, f"budget.disk = {recipe.budget.disk}"), (free_disk, "free on the disk")]
    for disk, name in limits:
        if disk is None:
            continue
        kept = checkpoints * checkpoint_bytes
        room = int(disk) - kept
        least = min(documents, least_documents(recipe, density))
        if size(least) > room:
            raise Refusal(
                f"nothing fits the disk: {Bytes(int(disk)).short()} ({name}), and the checkpoints take "
                f"{Bytes(kept).short()}{_chosen(recipe, checkpoints, checkpoint_bytes)} and the least text "
                f"{Bytes(size(least)).short()}; make room, or choose a smaller model or train.keep",
                "disk",
            )
        if size(documents) > room:
            reason = f"as many as fit {name}; then repeated"
            as_needed, share = False, None
            documents = bisect.bisect_right(range(documents), room, lo=least, key=size) - 1
            is_prepared = False
    rows = documents * (1 - recipe.data.heldout) * _rows_per_document(recipe, density)
    reads_all = density.total_documents is not None and documents >= density.total_documents
    return Corpus(
        reason=reason,
        rows=max(1, int(rows)),
        bytes=size(documents),
        documents=documents,
        text_bytes=documents * density.text_bytes / density.documents,
        tokens_per_document=density.tokens_per_document,
        seconds=(0.0 if is_prepared else density.seconds_for(documents)) + extra,
        share=share,
        whole=reads_all and (recipe.data.documents is None or documents < int(recipe.data.documents)),
        as_needed=as_needed,
    )


def _nearest(prepared: Sequence[int], recipe: Recipe, density: Density, documents: int) -> int | None:
    """The number that is nearest to `documents`, of those that are enough."""
    least = max(least_documents(recipe, density), _ENOUGH * documents)
    return min((n for n in prepared if n >= least), key=lambda n: abs(math.log(n / documents)), default=None)


def _chosen(recipe: Recipe, checkpoints: int, checkpoint_bytes: int) -> str:
    """The share of train.save_every and train.save_steps in the checkpoints, for people."""
    if not (count := checkpoints - kept_checkpoints(recipe, 0)):
        return ""
    fields = [name for name in ("save_every", "save_steps") if getattr(recipe.train, name) is not None]
    taken = Bytes(count * checkpoint_bytes).short()
    return f" ({taken} of them for {counted(count, 'step')} of train.{' and '.join(fields)})"


def corpus_that_is_ready(
    recipe: Recipe, ready: Ready, checkpoints: int, checkpoint_bytes: int, free_disk: int | None
) -> Corpus:
    """The ready rows, where only checkpoints are written."""
    needed = checkpoints * checkpoint_bytes
    budget = (recipe.budget.disk, f"budget.disk = {recipe.budget.disk}", needed + ready.bytes)
    for disk, name, taken in (budget, (free_disk, "free", needed)):
        if disk is not None and taken > int(disk):
            what = "the checkpoints" if taken == needed else "the store and the checkpoints"
            raise Refusal(
                f"nothing fits the disk: {Bytes(int(disk)).short()} ({name}), and {what} take {Bytes(taken).short()}"
                f"{_chosen(recipe, checkpoints, checkpoint_bytes)}; make room, or choose a smaller model or train.keep",
                "disk",
            )
    return Corpus(reason=ready.what, rows=ready.rows, bytes=ready.bytes)
