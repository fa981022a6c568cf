"""The baselines for the held-out rows of any corpus."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.baselines.ngram import MOST_TOKENS, baseline_losses, count, count_tokens, timed_tokens
from shoestring.baselines.streams import COUNTED_ROWS, WATCHED_ROWS, Baselines, stream_baselines
from shoestring.data.tokenize.special_tokens import SpecialTokens
from shoestring.datasets.corpus import Corpus, StoreCorpus, StreamCorpus
from shoestring.datasets.labelled import LabelledCorpus
from shoestring.datasets.other_text import OtherText
from shoestring.models.batch import Batch
from shoestring.parallel.threads import one_thread
from shoestring.streams.source import TRAIN

Classes = NDArray[np.int64]


def baselines_of(corpus: Corpus) -> Baselines:
    """The losses of the baselines on the held-out rows."""
    match corpus:
        case OtherText(base=StoreCorpus() as base):
            return _of_store(base, corpus.heldout())
        case OtherText(class_counts=counts) if counts is not None:
            return _of_classes(corpus.heldout().targets()[:, 0].numpy(), counts)
        case StoreCorpus():
            return _of_store(corpus, corpus.heldout())
        case StreamCorpus():
            return _of_stream(corpus)
        case LabelledCorpus():
            assert corpus.class_counts is not None, "its rows have classes"
            return _of_classes(corpus.heldout_classes, corpus.class_counts)
    return Baselines({})


def baselines_beside(corpus: Corpus) -> Callable[[], Baselines]:
    """`baselines_of`, computed in a thread of its own from now on; a call waits for them."""
    beside = ThreadPoolExecutor(1, "baselines")
    found = beside.submit(baselines_of, corpus)
    beside.shutdown(wait=False)
    return found.result


def _of_classes(truth: Classes, counts: NDArray[np.int64]) -> Baselines:
    uniform, majority = uniform_and_frequency(truth, counts)
    return Baselines({"uniform": uniform, "majority class": majority})


def _of_store(corpus: StoreCorpus, batch: Batch) -> Baselines:
    counts = count(corpus.training_tokens(), corpus.vocab_size)
    if corpus.masks is not None:
        return Baselines(hidden_losses(batch, counts.tokens, corpus.masks["heldout"].special))
    made = batch.predicted()
    return Baselines(baseline_losses(batch.inputs().ids[made].numpy(), batch.targets()[made].numpy(), counts))


def _of_stream(corpus: StreamCorpus) -> Baselines:
    if corpus.masks is not None:
        shown = corpus.stream.rows(TRAIN, COUNTED_ROWS).flatten().long()
        counts = torch.bincount(shown, minlength=corpus.vocab_size).numpy()
        return Baselines(hidden_losses(corpus.heldout(), counts, corpus.masks["heldout"].special))
    with one_thread():
        found = stream_baselines(corpus).baselines(corpus.scored_rows)
    if corpus.last is None:
        return found
    losses = {name: float(np.mean(values[-corpus.last :])) for name, values in found.by_position.items()}
    return replace(found, losses=losses)


def hidden_losses(batch: Batch, counts: NDArray[np.int64], special: SpecialTokens) -> dict[str, float]:
    """Losses on the masked tokens: uniform, and by the counts of training tokens, (vocabulary,) or fewer."""
    plain, targets = special.plain, batch.targets()[batch.predicted()].numpy()
    counted = np.zeros(special.vocab_size, dtype=np.int64)
    counted[: len(counts)] = counts
    uniform, unigram = uniform_and_frequency(np.searchsorted(plain, targets), counted[plain])
    return {"uniform": uniform, "unigram": unigram}


def counted_loss(corpus: Corpus) -> float | None:
    """The loss on the held-out rows of predictions by how often tokens, or classes, occur; in a moment, since only the
    first million of tokens is counted. None where tokens are equally frequent, as in a stream."""
    match corpus:
        case OtherText(base=StoreCorpus() as base):
            heldout = corpus.heldout()
        case StoreCorpus() as base:
            heldout = corpus.heldout()
        case LabelledCorpus(class_counts=counts) if counts is not None:
            return uniform_and_frequency(corpus.heldout_classes, counts)[1]
        case _:
            return None
    tokens = count_tokens(base.training_tokens(), base.vocab_size)
    if base.masks is not None:
        return hidden_losses(heldout, tokens, base.masks["heldout"].special)["unigram"]
    chance = (tokens + 1.0) / (tokens.sum() + len(tokens))
    return float(-np.log(chance[heldout.targets()[heldout.predicted()].numpy()]).mean())


def baseline_seconds(corpus: Corpus) -> float | None:
    """About how long `baselines_of` takes on this machine; None: as planned.

    The first tokens are counted twice, since the first time includes reading files and allocating memory.
    """
    corpus = corpus.base if isinstance(corpus, OtherText) else corpus
    if not isinstance(corpus, StoreCorpus):
        return None
    sample = timed_tokens(corpus.vocab_size)
    times = [time.perf_counter()]
    for _ in range(2):
        count(corpus.training_tokens(), corpus.vocab_size, sample)
        times.append(time.perf_counter())
    more = min(MOST_TOKENS, corpus.training_size) / sample - 1
    return times[1] - times[0] + max(0.0, more) * (times[2] - times[1])


def predictions_of(corpus: Corpus) -> Mapping[str, Tensor]:
    """What baselines expect of the first held-out rows, each (rows, predictions, vocabulary); only for streams."""
    if not isinstance(corpus, StreamCorpus) or corpus.masks is not None:
        return {}
    with one_thread():
        found = stream_baselines(corpus).predictions(min(corpus.scored_rows, WATCHED_ROWS))
    return found if corpus.last is None else {name: p[:, -corpus.last :] for name, p in found.items()}


def uniform_and_frequency(truth: Classes, counts: NDArray[np.int64]) -> tuple[float, float]:
    """The mean loss in nats of uniform predictions, and of predictions by the counts of the classes plus 1."""
    expected = (counts + 1.0) / (counts.sum() + len(counts))
    return float(np.log(len(counts))), float(-np.log(expected[truth]).mean())
