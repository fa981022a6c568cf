"""Score a model on the held-out rows, beside the baselines that count and the known answers of a stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shoestring.baselines.by_row import digest, row_fields
from shoestring.baselines.classes import (
    ClassScores,
    Confusion,
    accuracy_error,
    confusion_matrix,
    macro_f1_error,
    majority_scores,
    scores_by_class,
    scores_of,
)
from shoestring.baselines.of_corpus import baselines_of, predictions_of
from shoestring.baselines.oracle import divergences
from shoestring.baselines.standard_error import mean_error
from shoestring.baselines.streams import Baselines
from shoestring.core.errors import RecordError, RunError, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import replaced
from shoestring.core.results import Evaluation, TextScore
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec, SourceSpec
from shoestring.datasets.corpus import Corpus, open_corpus
from shoestring.datasets.other_text import OtherText
from shoestring.models.batch import Batch
from shoestring.parallel.process_group import ProcessGroup
from shoestring.parallel.threads import one_thread
from shoestring.probe.brief_waits import brief_waits
from shoestring.probe.machine import pick_device
from shoestring.runs.plan import read_plan
from shoestring.runs.prepare import check_context
from shoestring.runs.task import task_of
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.learner import Learner

T = TypeVar("T")
OVERRIDES = ("evaluate.rows", "evaluate.context", "evaluate.per_device")
"""What may differ from a run's recipe when it is evaluated."""


class Known:
    """What was scored with the weights as they are: the last evaluation is of rows that the last step has scored."""

    def __init__(self) -> None:
        self._losses: list[tuple[Batch, int, Tensor]] = []
        self._confusions: list[tuple[Batch, int, Confusion]] = []

    def forget(self) -> None:
        """Forget everything, since the weights change."""
        self._losses, self._confusions = [], []

    def copy(self) -> Known:
        """What is known by now."""
        other = Known()
        other._losses, other._confusions = self._losses, self._confusions
        return other

    def losses(self, learner: Learner, batch: Batch, per_device: int) -> Tensor:
        """As `learner.score`."""
        return _once(self._losses, learner.score, batch, per_device)

    def confusion(self, learner: Learner, batch: Batch, per_device: int) -> Confusion:
        """The confusion matrix of a classifier."""
        return _once(self._confusions, partial(_confusion, learner), batch, per_device)


def _once(known: list[tuple[Batch, int, T]], score: Callable[[Batch, int], T], batch: Batch, per_device: int) -> T:
    """The score of these rows if it is known; else it is computed and kept."""
    for other, rows, found in known:
        if rows == per_device and other.equals(batch):
            return found
    made = score(batch, per_device)
    known.append((batch, per_device, made))
    return made


class Watch:
    """Scores during training, on the same rows every time."""

    def __init__(self, corpus: Corpus, known: Known | None = None):
        self._known = known
        self._batch, self._predictions = corpus.heldout(), predictions_of(corpus)
        self._classes = corpus.class_counts is not None
        self._texts = {name: rows for name, rows in _texts(corpus).items() if name}

    def __call__(self, learner: Learner, per_device: int) -> dict[str, float]:
        """The held-out loss; for a stream, the divergence of each baseline from the model; for classes, scores.

        Named texts have scores of their own, as "heldout_loss/NAME"; those without a name are of the first.
        """
        named = {name: self._scores(learner, rows, per_device) for name, rows in self._texts.items()}
        scores = dict(next(iter(named.values()))) if named else self._scores(learner, self._batch, per_device)
        if self._predictions:
            count = len(next(iter(self._predictions.values())))
            log_p = learner.log_probs(self._batch.part(0, count), per_device)
            with one_thread():
                scores |= {f"kl_of_{name}": float(divergences(log_p, p)) for name, p in self._predictions.items()}
        return scores | {f"{what}/{name}": value for name, found in named.items() for what, value in found.items()}

    def _scores(self, learner: Learner, batch: Batch, per_device: int) -> dict[str, float]:
        known = self._known or Known()
        losses, predicted = known.losses(learner, batch, per_device), batch.predicted()
        scores = {"heldout_loss": float(losses[predicted].mean())}
        if (error := mean_error(*_by_row(losses.numpy(), predicted.numpy(), batch.context))) is not None:
            scores["heldout_error"] = error
        if self._classes:
            classes = scores_of(known.confusion(learner, batch, per_device))
            scores |= {"heldout_accuracy": classes.accuracy, "heldout_macro_f1": classes.macro_f1}
        return scores


def _texts(corpus: Corpus) -> dict[str, Batch]:
    """The rows of the texts in place of held-out rows, by name."""
    return corpus.texts if isinstance(corpus, OtherText) else {}


def evaluate_learner(
    learner: Learner,
    step: int,
    per_device: int,
    corpus: Corpus,
    known: Known | None = None,
    baselines: Baselines | None = None,
) -> Evaluation:
    """Score a learner and the baselines, or take those given, on the same rows; on further texts, the learner alone."""
    known = known or Known()

    def scored(batch: Batch, bytes_per_token: float | None, baselines: Baselines) -> Evaluation:
        losses, predicted = known.losses(learner, batch, per_device).numpy(), batch.predicted().numpy()
        made = make_evaluation(losses, step, bytes_per_token, baselines, predicted, batch.context)
        by_row = _by_row(losses, predicted, batch.context)
        made = replace(made, **row_fields(*by_row, digest(batch.targets().numpy(), predicted)))
        if corpus.class_counts is None:
            return made
        majority = majority_scores(batch.targets()[:, 0].numpy(), corpus.class_counts)
        return with_classes(made, known.confusion(learner, batch, per_device), majority)

    made = scored(corpus.heldout(), corpus.bytes_per_token, baselines_of(corpus) if baselines is None else baselines)
    if not isinstance(corpus, OtherText):
        return made
    (first, source), *others = corpus.sources.items()
    made = replace(made, text=str(source))
    if not first:
        return made
    scores = [_text_score(first, source, made)]
    for name, other in others:
        batch = corpus.texts[name]
        scores.append(_text_score(name, other, scored(batch, corpus.bytes_per_token_of(batch), Baselines({}))))
    return replace(made, texts=tuple(scores))


def _text_score(name: str, source: str, evaluation: Evaluation) -> TextScore:
    """What an evaluation says about a text."""
    copied = {field.name: getattr(evaluation, field.name) for field in fields(TextScore) if field.name != "name"}
    return TextScore(**(copied | {"name": name, "text": str(source)}))


def _confusion(learner: Learner, batch: Batch, per_device: int) -> Confusion:
    log_p = learner.log_probs(batch, per_device)  # rows, 1, classes
    return confusion_matrix(batch.targets()[:, 0].numpy(), log_p[:, 0].argmax(dim=1).numpy(), log_p.shape[2])


def with_classes(evaluation: Evaluation, confusion: Confusion, majority: ClassScores) -> Evaluation:
    """The record with the scores of a classifier, and those of always choosing one class."""
    own = scores_of(confusion)
    return replace(
        evaluation,
        accuracy=own.accuracy,
        macro_f1=own.macro_f1,
        majority_accuracy=majority.accuracy,
        majority_macro_f1=majority.macro_f1,
        accuracy_error=accuracy_error(confusion),
        macro_f1_error=macro_f1_error(confusion),
        classes=scores_by_class(confusion),
        confusion=tuple(map(tuple, confusion.tolist())),
    )


def make_evaluation(
    losses: NDArray[np.float64],
    step: int,
    bytes_per_token: float | None,
    baselines: Baselines,
    predicted: NDArray[np.bool_] | None = None,
    context: int = 0,
) -> Evaluation:
    """The record of the losses of all predictions, (rows, length) in nats; only those `predicted` count, if given.

    `bytes_per_token` is None for a tokenizer that does not keep every byte. Rows that overlap by `context` are joined:
    a row of the record has at least `length` predictions.
    """
    counted = np.ones(losses.shape, dtype=bool) if predicted is None else predicted
    loss = float(losses[counted].mean())
    nats, rate = np.where(counted, losses, 0.0), baselines.rate
    sums, counts = nats.sum(axis=0), counted.sum(axis=0)
    by_row, perplexity = _by_row(losses, counted, context), math.exp(min(loss, 700.0))
    error = mean_error(*by_row)
    counts[:context] = 0  # only the first row has predictions there
    per_bit = None if bytes_per_token is None else math.log(2) * bytes_per_token
    return Evaluation(
        step=step,
        rows=len(by_row[0]),
        tokens=int(counted.sum()),
        loss=loss,
        perplexity=perplexity,
        perplexity_error=None if error is None else perplexity * error,
        bits_per_byte=None if per_bit is None else loss / per_bit,
        loss_by_position=tuple(float(total / count) if count else None for total, count in zip(sums, counts)),
        baselines=dict(baselines.losses),
        baselines_by_position=dict(baselines.by_position),
        entropy_rate=None if rate is None else rate.nats,
        entropy_rate_error=None if rate is None else rate.error,
        loss_error=error,
        bits_per_byte_error=None if per_bit is None or error is None else error / per_bit,
    )


def _by_row(
    losses: NDArray[np.float64], predicted: NDArray[np.bool_], context: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The sum and the number of the losses that are `predicted`, for each row.

    Of rows that overlap by `context`, so many are joined that they predict as much as one that does not: neighbours
    depend on each other, and are the less a sample of the text the shorter they are.
    """
    length = losses.shape[1]
    joined = np.arange(0, len(losses), -(-length // (length - context)))
    sums, counts = np.where(predicted, losses, 0.0).sum(axis=1), predicted.sum(axis=1)
    return np.add.reduceat(sums, joined), np.add.reduceat(counts, joined)


def evaluate_run(
    folder: RunFolder,
    checkpoint: CheckpointSpec,
    text: str | None = None,
    say: Callable[[str], object] = lambda _: None,
    replaces: bool = True,
    overrides: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Score a checkpoint of a run, finished or not: on the rows that the run scores, or on another text.

    Damaged checkpoints that are newer are named to `say`. Unless it `replaces` any record, a run that has an evaluation
    of a later step that is no worse is refused before it is scored. `overrides` of the recipe, by "section.field", say
    which rows are scored (`OVERRIDES`).
    """
    from shoestring.runs.network_trainee import NetworkTrainee  # imports this module

    folder.check_records(folder.recipe, folder.choices, folder.plan)
    recipe = folder.read_recipe()
    plan, scored = read_plan(recipe, folder.plan), with_overrides(recipe, overrides or {})
    if text is not None and recipe.kind == "hmm":
        return _score_hmm(folder, text, say)
    checkpoints = Checkpoints(folder.checkpoints, recipe.train.keep, recipe.train.is_saved)
    found = checkpoints.find(checkpoint, folder.path, say)
    trainee = task_of(recipe).open(plan, ProcessGroup.of(pick_device()))
    trainee.build(fresh=False)
    trainee.open_rows()
    state = checkpoints.restore(found.state.step, trainee.saveable, recipe.fingerprint, trainee.data)
    trainee.put_values(state.task)
    if not replaces:
        _keep_better(folder, trainee.label(state), state)
    if text is not None or scored is not recipe:
        assert isinstance(trainee, NetworkTrainee), "an HMM has returned, and has no overrides"
        trainee.corpus = open_corpus(scored, plan, scored=text)
        trainee.scored_rows = scored.evaluate.per_device or trainee.scored_rows
    with brief_waits():
        return trainee.evaluate(state)


def with_overrides(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe, scored with other values; itself if there are none."""
    if not values:
        return recipe
    recipe.need_network("--set: is for networks; an HMM is scored on its held-out sentences")
    if others := [name for name in values if name not in OVERRIDES]:
        raise UserError(f"--set {others[0]}: the rest is as the run was trained; give {', '.join(OVERRIDES)}")
    changed = replaced(recipe, values)
    check_context(changed)
    return changed


def _score_hmm(folder: RunFolder, text: str, say: Callable[[str], object]) -> Evaluation:
    """Score the fitted model of an HMM's run on another text."""
    from shoestring.runs.hmm_scoring import Other, score_model
    from shoestring.runs.hmm_trainee import as_evaluation

    found = score_model(folder.path, Other(source=SourceSpec.parse(text)))
    for note in found.notes:
        say(note)
    epochs = Evaluation.read_if_there(folder.evaluation)
    return replace(as_evaluation(found.scores, 0 if epochs is None else epochs.step), text=found.what)


def _keep_better(folder: RunFolder, number: int, state: State) -> None:
    """Raise RunError where the recorded evaluation is of a later step than `number`, that of the state, and not of a
    higher loss."""
    try:
        recorded = Evaluation.read(folder.evaluation) if folder.evaluation.is_file() else None
    except RecordError:  # damaged: it is made anew
        return
    best = state.best_loss if state.best_step == state.step else None
    if recorded is not None and recorded.step > number and (best is None or recorded.loss <= best):
        raise RunError(
            f"{folder.evaluation} is of step {recorded.step:,}, and the best intact checkpoint of step {number:,}: it "
            f"is kept; --checkpoint {state.step} scores that one without recording it, --force replaces the record"
        )
