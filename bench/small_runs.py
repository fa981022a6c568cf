"""Short runs of small networks on real text, byte by byte, counted in steps: the laws of `auto` are fitted here.

One thread each, so that several may run beside each other; no clock decides anything.
"""

from __future__ import annotations

import functools
import gzip
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from record import ROOT

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.data.stories import story
from shoestring.models.language_model import build
from shoestring.training.learner import Learner
from shoestring.training.schedule import learning_rate

DATA = ROOT.parent / "shared" / "data"
LENGTH, VOCABULARY = 128, 257
BUILT_IN, WORDS = 12_000, 640
"""Built-in stories, and words of the demo's vocabulary."""
SCORED = 192
"""Held-out rows of a score."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run: a network, its text, and how it is trained."""

    width: int
    layers: int
    tokens: int
    """Positions of training."""
    batch: int
    """In positions."""
    lr: float
    unique: int | None = None
    """Positions of the training text; None: each is read once."""
    weight_decay: float = 0.1
    beta2: float = 0.95
    warmup: float = 0.05
    dropout: float = 0.0
    optimizer: str = "adamw"
    seed: int = 0
    text: str = "stories"
    """"stories" and "wikitext" are real text as bytes, "words" are built-in stories as in the demo."""
    schedule: str = "cosine"

    @property
    def vocabulary(self) -> int:
        return WORDS if self.text == "words" else VOCABULARY

    @property
    def model(self) -> Model:
        return Model(width=self.width, layers=self.layers, heads=max(1, self.width // 32), dropout=self.dropout)

    @property
    def steps(self) -> int:
        return max(1, round(self.tokens / self.batch))


@functools.cache
def rows(text: str = "stories") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows for training, held-out rows), each of LENGTH + 1 tokens; the last token but words ends a document."""
    ids = _words() if text == "words" else [np.append(_bytes(part), VOCABULARY - 1) for part in _documents(text)]
    order = np.random.default_rng(0).permutation(len(ids))
    cut = len(ids) // 20
    held_out, train = (np.concatenate([ids[i] for i in part]) for part in (order[:cut], order[cut:]))
    return tuple(_cut(part) for part in (train, held_out))  # type: ignore[return-value]


def _bytes(text: str) -> NDArray[np.int64]:
    return np.frombuffer(text.strip().encode(), dtype=np.uint8).astype(np.int64)


def _documents(text: str) -> list[str]:
    if text == "stories":
        return gzip.open(DATA / "tinystories" / "stories.txt.gz", "rt", encoding="utf-8").read().split("<|endoftext|>")
    articles = gzip.open(DATA / "wikitext-2" / "train.txt.gz", "rt", encoding="utf-8").read()
    return re.split(r"\n(?= = [^=])", articles)


def _words() -> list[NDArray[np.int64]]:
    """Built-in stories: the most frequent words by number, the others as 0, and 1 ends a story."""
    stories = [re.findall(r"\w+|[^\w\s]", story(0, i)) for i in range(BUILT_IN)]
    counts = Counter(word for words in stories for word in words)
    number = {word: i for i, (word, _) in enumerate(counts.most_common(WORDS - 2), start=2)}
    return [np.array([*(number.get(word, 0) for word in words), 1], dtype=np.int64) for words in stories]


def _cut(stream: NDArray[np.int64]) -> NDArray[np.int64]:
    count = (len(stream) - 1) // LENGTH
    return np.lib.stride_tricks.sliding_window_view(stream, LENGTH + 1)[::LENGTH][:count]


def parameters(setting: Setting) -> int:
    """All parameters, without the embedding."""
    from shoestring.core.family import network_cost

    cost = network_cost(setting.model, setting.vocabulary, LENGTH)
    return cost.total_parameters - cost.parameters["embedding"]


def train(
    setting: Setting,
    scores: int = 1,
    after: Callable[[int, Learner], None] | None = None,
    also: Callable[[int, Callable[[], float]], None] | None = None,
) -> list[tuple[int, float]]:
    """(step, held-out loss), `scores` times, evenly, the last one at the end; infinite where it diverged.

    `after` is called after each update, and `also` after each score, with what scores the weights as they are then.
    """
    torch.manual_seed(setting.seed)
    train_rows, held_out = rows(setting.text)
    rng = np.random.default_rng(setting.seed)
    there = len(train_rows) if setting.unique is None else max(1, setting.unique // LENGTH)
    text = train_rows[np.random.default_rng(1).permutation(len(train_rows))[:there]]
    settings = Train(
        optimizer=setting.optimizer, lr=setting.lr, weight_decay=setting.weight_decay, beta2=setting.beta2,
        warmup=setting.warmup, schedule=setting.schedule,
    )  # fmt: skip
    learner = Learner(build(setting.model, setting.vocabulary, LENGTH, setting.seed), settings, torch.device("cpu"))
    per_step, found = max(1, setting.batch // LENGTH), []
    order = np.concatenate([rng.permutation(there) for _ in range(math.ceil(setting.steps * per_step / there))])
    marks = {round(setting.steps * (i + 1) / scores) for i in range(scores)}
    scored = torch.as_tensor(held_out[:: len(held_out) // SCORED][:SCORED].copy())

    def score() -> float:
        loss = learner.score(scored, 64).mean().item()
        return loss if math.isfinite(loss) else math.inf

    for step in range(setting.steps):
        rate = learning_rate(settings, (step + 0.5) / setting.steps)
        batch = text[order[step * per_step : (step + 1) * per_step]]
        tally = learner.accumulate(torch.as_tensor(batch.copy()), min(per_step, 64))
        learner.update(tally, rate)
        if after is not None:
            after(step + 1, learner)
        if step + 1 in marks:
            found.append((step + 1, score()))
            if also is not None:
                also(step + 1, score)
    return found
