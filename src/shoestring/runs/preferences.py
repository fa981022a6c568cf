"""What a model prefers: of a minimal pair the better sentence, of several choices the right one, by likelihood."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch

from shoestring.core.errors import DataError, RunError
from shoestring.core.family import family_of
from shoestring.core.reading import parse_json, read_text
from shoestring.core.results import GroupScore, Preferences
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.core.units import counted
from shoestring.data.tokenize.tokenizers import Tokenizer, words_of
from shoestring.hmm.inference import token_log_probs
from shoestring.hmm.parameters import Parameters
from shoestring.hmm.sampling import sentence_start
from shoestring.models.language_model import LanguageModel
from shoestring.runs.likelihood import by_length, score_tokens
from shoestring.runs.trained_model import BEST, Say, alphabet_of, load_hmm, load_run, silent

Kind = Literal["pairs", "choices"]
KINDS: tuple[Kind, ...] = ("pairs", "choices")
_GOOD, _BAD = ("sentence_good", "good"), ("sentence_bad", "bad")
_CONTEXT, _GROUP = ("context", "question", "query"), ("UID", "group")


class Item(NamedTuple):
    """A context, the texts that may follow it, and which of them is right."""

    context: str
    choices: tuple[str, ...]
    answer: int
    group: str = ""
    oracle: float | None = None
    """What the source of the item gets for it, if that is known."""


class Likelihood(NamedTuple):
    """Of a choice after its context."""

    log_p: float
    ids: tuple[int, ...]
    """Of context and choice: equal ones are equally likely, however rounding falls."""
    cut: bool = False
    """Whether the beginning of the context did not fit the length of a row."""


class Judge(Protocol):
    """A model that says how likely texts are."""

    def __call__(self, texts: Sequence[tuple[str, str]]) -> list[Likelihood | None]:
        """For each (context, choice) the likelihood of the choice; None: it has a word that the model does not have."""


def read_items(path: Path, kind: Kind) -> list[Item]:
    """The items of a file of JSON lines.

    Pairs have "sentence_good" and "sentence_bad" (or "good" and "bad"), as in BLiMP. Choices have "choices", "answer"
    (a number from 0, or the text itself), and "context" or "question" if there is one. "UID" or "group" names a group.
    """
    lines = read_text(path, DataError).splitlines()
    found = [_item(line, f"{path}, line {number}", kind) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DataError(f"{path}: it holds no {kind}")
    return found


def _item(line: str, where: str, kind: Kind) -> Item:
    values = parse_json(line, where, DataError)
    if not isinstance(values, dict):
        raise DataError(f"{where}: not an object of JSON")
    group = str(_first(values, _GROUP, ""))
    if kind == "pairs":
        good, bad = _first(values, _GOOD), _first(values, _BAD)
        if not (isinstance(good, str) and isinstance(bad, str) and good and bad):
            raise DataError(f'{where}: needs two texts, "sentence_good" and "sentence_bad" (or "good" and "bad")')
        oracle = values.get("oracle")
        if oracle is not None and (isinstance(oracle, bool) or oracle not in (0, 0.5, 1)):
            raise DataError(f'{where}: "oracle" = {oracle!r}: must be 0, 0.5 or 1')
        return Item("", (good, bad), 0, group, oracle)
    choices, answer, context = values.get("choices"), values.get("answer"), _first(values, _CONTEXT, "")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(text, str) and text for text in choices):
        raise DataError(f'{where}: "choices" must be a list of at least two texts')
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise DataError(f'{where}: "answer" must be one of the choices, or its number from 0 to {len(choices) - 1}')
    if not isinstance(context, str):
        raise DataError(f'{where}: "context" must be a text')
    return Item(context, tuple(choices), answer, group)


def _first(values: dict[str, Any], names: Iterable[str], default: Any = None) -> Any:
    return next((values[name] for name in names if name in values), default)


def preferences_of(items: Sequence[Item], judge: Judge, kind: Kind, source: str, step: int | None) -> Preferences:
    """How often the right choice is the likeliest; of k that are equally likely, each counts 1 / k."""
    texts = [(item.context, choice) for item in items for choice in item.choices]
    likelihoods = iter(judge(texts))
    credits, by_bytes, scored, ties, skipped, cut = [], [], list[Item](), 0, 0, 0
    for item in items:
        found = list(itertools.islice(likelihoods, len(item.choices)))
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            skipped += 1
            continue
        ties += len(_best(known, [each.log_p for each in known])) > 1
        cut += any(each.cut for each in known)
        credits.append(credit(item, known))
        by_bytes.append(credit(item, known, [len(choice.encode()) for choice in item.choices]))
        scored.append(item)
    if not credits:
        raise DataError(f"{source}: every item has a word that the model does not have")
    accuracy, error = _mean(credits)
    per_byte, per_byte_error = _mean(by_bytes) if kind == "choices" else (None, None)
    oracle, oracle_error = _oracle(scored)
    return Preferences(
        kind=kind,
        source=source,
        step=step,
        items=len(credits),
        accuracy=accuracy,
        accuracy_error=error,
        accuracy_per_byte=per_byte,
        accuracy_per_byte_error=per_byte_error,
        chance=_mean([1 / len(item.choices) for item in scored])[0],
        oracle=oracle,
        oracle_error=oracle_error,
        ties=ties,
        skipped=skipped,
        cut=cut,
        groups=_group_scores(scored, credits),
    )


def credit(item: Item, found: Sequence[Likelihood], sizes: Sequence[int] | None = None) -> float:
    """What an item counts: 1 if the right choice is the likeliest, 1 / k if it is one of k, else 0.

    With `sizes`, likelihoods are per byte.
    """
    best = _best(found, [each.log_p / size for each, size in zip(found, sizes or itertools.repeat(1))])
    return (item.answer in best) / len(best)


def _best(found: Sequence[Likelihood], scores: Sequence[float]) -> set[int]:
    """The places of the highest score; texts of the same tokens have the same one."""
    top = max(range(len(found)), key=lambda place: scores[place])
    return {n for n, each in enumerate(found) if scores[n] == scores[top] or each.ids == found[top].ids}


def _mean(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and its standard error; None for fewer than two values."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return float(np.mean(values)), error


def _oracle(items: Sequence[Item]) -> tuple[float | None, float | None]:
    """What the source of the items reaches, and its standard error; None where that is not known of all."""
    known = [item.oracle for item in items if item.oracle is not None]
    return _mean(known) if len(known) == len(items) else (None, None)


def _group_scores(items: Sequence[Item], credits: Sequence[float]) -> tuple[GroupScore, ...]:
    by_name: dict[str, list[tuple[Item, float]]] = {}
    for item, credit in zip(items, credits):
        by_name.setdefault(item.group, []).append((item, credit))
    if set(by_name) == {""}:
        return ()
    found = []
    for name, pairs in sorted(by_name.items()):
        mean, error = _mean([credit for _, credit in pairs])
        oracle, _ = _oracle([item for item, _ in pairs])
        found.append(GroupScore(name=name, items=len(pairs), accuracy=mean, accuracy_error=error, oracle=oracle))
    return tuple(found)


class NetworkJudge(NamedTuple):
    """A causal network; a text begins after the end of a document where the tokenizer has one."""

    model: LanguageModel
    tokenizer: Tokenizer
    length: int

    def __call__(self, texts: Sequence[tuple[str, str]]) -> list[Likelihood | None]:
        encoded = [self._encode(context, choice) for context, choice in texts]
        predicted = [(ids, max(first, 1)) for ids, first in encoded]
        scored = score_tokens(self.model, self.length, predicted, self.tokenizer.vocab_size)
        return [
            Likelihood(each.log_p, tuple(ids), len(ids) > self.length + 1) for each, (ids, _) in zip(scored, encoded)
        ]

    def _encode(self, context: str, choice: str) -> tuple[list[int], int]:
        """The ids of both, and the place of the first one of the choice."""
        joined = f"{context} {choice}" if context and not context[-1].isspace() else context + choice
        before = [] if self.tokenizer.end is None else [self.tokenizer.end]
        ids = [*before, *map(int, self.tokenizer.encode(joined))]
        first = len(before) + (len(self.tokenizer.encode(context)) if context else 0)
        return ids, min(first, len(ids) - 1)


class HmmJudge(NamedTuple):
    """A fitted HMM; a text begins where a sentence does, if the model knows sentences."""

    parameters: Parameters
    alphabet: tuple[str, ...]

    def __call__(self, texts: Sequence[tuple[str, str]]) -> list[Likelihood | None]:
        exact = self.parameters.to("cpu", torch.float64)
        start = sentence_start(exact, self.alphabet)
        exact = exact._replace(end=None) if start is None else exact._replace(start=start, end=None)
        known = {word: number for number, word in enumerate(self.alphabet)}
        encoded = [[known.get(word, -1) for part in text for word in words_of(part)] for text in texts]
        found: list[Likelihood | None] = [None] * len(texts)
        usable = [ids if ids and min(ids) >= 0 else [] for ids in encoded]
        for places in by_length(usable, exact.states):
            log_p = token_log_probs(exact, torch.tensor([usable[place] for place in places])).log_probabilities
            for place, row in zip(places, log_p):
                first = len(words_of(texts[place][0]))
                found[place] = Likelihood(float(row[first:].sum()), tuple(usable[place]))
        return found


def judge_of(folder: RunFolder, checkpoint: CheckpointSpec, say: Say) -> tuple[Judge, int | None]:
    """The model of a run as a judge, and the step of its weights."""
    recipe = folder.read_recipe()
    if recipe.kind == "hmm":
        saved = load_hmm(folder)
        return HmmJudge(saved.parameters, alphabet_of(saved)), None
    if family_of(recipe.model).predicts_hidden(recipe.model):
        raise RunError(f"{folder.path}: a masked model has no likelihood of a text")
    loaded = load_run(folder, checkpoint, say=say)
    return NetworkJudge(loaded.model, loaded.tokenizer, recipe.data.length), loaded.step


def evaluate_preferences(
    folder: RunFolder, kind: Kind, path: Path, checkpoint: CheckpointSpec = BEST, say: Say = silent
) -> Preferences:
    """Score the items of a file with the model of a run."""
    items = read_items(path, kind)
    judge, step = judge_of(folder, checkpoint, say)
    found = preferences_of(items, judge, kind, f"{kind}:{path}", step)
    if found.skipped:
        say(f"{counted(found.skipped, 'item')} left out: they have a word that the model does not have")
    if found.cut:
        say(f"{counted(found.cut, 'item')} longer than a row: the beginning is not read")
    return found
