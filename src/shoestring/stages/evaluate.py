"""Evaluate: the held-out rows, once each, beside the strategies that only count and the answers that are known."""

from __future__ import annotations

from shoestring.core.errors import RunError
from shoestring.core.facts import Evaluation, Plan
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.evaluate.classes import ClassScores, class_scores, majority_scores
from shoestring.evaluate.score import evaluation
from shoestring.hmm.answers import divergences
from shoestring.models import Batch
from shoestring.probe.machine import pick_device
from shoestring.stages.corpus import Corpus, open_corpus
from shoestring.stages.workload import make_learner
from shoestring.train.checkpoint import Checkpoints
from shoestring.train.learner import Learner


class Watch:
    """The scores that are taken while a run learns: on the same rows every time."""

    def __init__(self, corpus: Corpus):
        self._batch, self._predictions = corpus.heldout(), corpus.predictions()
        self._classes = corpus.class_counts is not None

    def __call__(self, learner: Learner, per_device: int) -> dict[str, float]:
        """The held-out loss; of a stream, how far each strategy is from the model; of classes, their scores."""
        losses = learner.score(self._batch, per_device)
        found = {"heldout_loss": float(losses[self._batch.predicted()].mean())}
        if self._predictions:
            count = len(next(iter(self._predictions.values())))
            log_p = learner.log_probs(self._batch.part(0, count), per_device)
            found |= {f"kl_of_{name}": float(divergences(log_p, p)) for name, p in self._predictions.items()}
        if self._classes:
            scores = _class_scores(learner, self._batch, per_device)
            found |= {"heldout_accuracy": scores.accuracy, "heldout_macro_f1": scores.macro_f1}
        return found


def scored_rows(recipe: Recipe, plan: Plan) -> int:
    """Rows at a time."""
    return recipe.evaluate.per_device or plan.per_device or 1


def evaluate_learner(learner: Learner, step: int, per_device: int, corpus: Corpus) -> Evaluation:
    """Score a learner and the strategies on the same rows."""
    batch = corpus.heldout()
    losses = learner.score(batch, per_device).numpy()
    classes, counts = None, corpus.class_counts
    if counts is not None:
        classes = _class_scores(learner, batch, per_device), majority_scores(batch.targets()[:, 0].numpy(), counts)
    return evaluation(losses, step, corpus.bytes_per_token, corpus.strategies(), batch.predicted().numpy(), classes)


def _class_scores(learner: Learner, batch: Batch, per_device: int) -> ClassScores:
    log_p = learner.log_probs(batch, per_device)  # rows, 1, classes
    return class_scores(batch.targets()[:, 0].numpy(), log_p[:, 0].argmax(dim=1).numpy(), log_p.shape[2])


def evaluate_run(folder: RunFolder, checkpoint: str = "last") -> Evaluation:
    """Score a checkpoint of a run that is finished or still going; `checkpoint` is "last", "best" or a step."""
    recipe, plan = folder.read_recipe(), Plan.read(folder.plan)
    corpus = open_corpus(recipe, plan)
    checkpoints = Checkpoints(folder.checkpoints, recipe.train.keep)
    learner = make_learner(recipe, pick_device(), init=False)
    step, damaged = checkpoints.latest()
    if step is None:
        raise RunError("\n  ".join([f"{folder.path} has no whole checkpoint yet", *damaged]))
    state = checkpoints.restore(step, learner, recipe.fingerprint, corpus.fingerprint)
    wanted = state.best_step if checkpoint == "best" else step if checkpoint == "last" else _step(checkpoint)
    if wanted != step:
        if wanted not in checkpoints.steps():
            steps = ", ".join(map(str, reversed(checkpoints.steps())))
            raise RunError(f"{folder.path} has no checkpoint {checkpoint!r}; it has last, best, {steps}")
        state = checkpoints.restore(wanted, learner, recipe.fingerprint, corpus.fingerprint)
    return evaluate_learner(learner, state.step, scored_rows(recipe, plan), corpus)


def _step(checkpoint: str) -> int:
    if not checkpoint.isdecimal():
        raise RunError(f'--checkpoint {checkpoint}: must be "last", "best" or a step')
    return int(checkpoint)
