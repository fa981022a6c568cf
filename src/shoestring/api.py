"""The Python interface: the commands as functions. Each takes a recipe as a file, as values or as loaded.

Time budgets count from the call, not from the start of the process, which may be an old notebook kernel. Progress is
printed unless `show=False`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import RunError
from shoestring.core.law_record import Law
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan, Profile
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.core.sweep_folder import SweepFolder
from shoestring.core.units import Seconds
from shoestring.runs.reporter import Reporter

if TYPE_CHECKING:
    from shoestring.models.language_model import LanguageModel
    from shoestring.studies.optimum import Best

RecipeLike = Recipe | str | Path | Mapping[str, Any]
"""A loaded recipe, the path of a TOML file, or its sections as nested mappings."""


def load(recipe: RecipeLike, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe with fields overridden: `load("recipe.toml", {"train.lr": 1e-3, "budget.time": "10m"})`.

    Raises `RecipeError` with all problems of the recipe.
    """
    if isinstance(recipe, Recipe):
        return recipe_file.replaced(recipe, overrides or {})
    if isinstance(recipe, Mapping):
        return recipe_file.Base("the recipe", dict(recipe)).with_values(overrides or {})
    return recipe_file.load(recipe, values=overrides or {})


def measure(recipe: RecipeLike, *, fresh: bool = False, real: bool = False, show: bool = True) -> Profile:
    """Measure bytes and seconds by batch of the recipe's training on this machine; the run folder keeps the profile.

    `fresh` measures again even if there is a profile; `real` reads rows of the recipe's own store.
    """
    from shoestring.runs.measure import Measuring, ensure_profile, measuring_seconds
    from shoestring.runs.settle import keep_choices, settled

    loaded = load(recipe)
    folder = RunFolder.of(loaded)
    task = settled(loaded, folder)
    task.check(1)
    how = Measuring(seconds=measuring_seconds(loaded), thorough=True, real=real, fresh=fresh, here=True)
    with folder.lock(), folder.claiming(loaded):
        keep_choices(task, folder)
        return ensure_profile(task, folder, _reporter(show), how)


def plan(
    recipe: RecipeLike, *, profile: Profile | None = None, devices: int | None = None, history: Sequence[Path] = ()
) -> Plan:
    """Every number of the run before it starts, each with its reason in `.lines`. Needs no torch and writes nothing.

    The profile is by default the one that `measure` left in the run folder.
    """
    from shoestring.runs.plan import measured_profile, own_profile_of, plan_task
    from shoestring.runs.settle import settled, speed_of

    loaded = load(recipe)
    folder = RunFolder.of(loaded)
    if profile is None:
        read = measured_profile(folder)
        devices = devices or max(read.devices, loaded.workers)
        task = settled(loaded, folder, devices, speed=speed_of(read))
        profile = own_profile_of(task, read, folder.profile)
    else:
        devices = devices or max(profile.devices, loaded.workers)
        task = settled(loaded, folder, devices, speed=speed_of(profile))
    return plan_task(task, profile, devices=devices, history=history)


def prepare(recipe: RecipeLike, *, show: bool = True) -> Path:
    """Turn the recipe's corpus, or the part that its plan needs, into a token store; returns the store's folder."""
    from shoestring.runs.hmm_task import HmmTask
    from shoestring.runs.plan import read_plan
    from shoestring.runs.prepare import prepare_recipe
    from shoestring.runs.settle import settled
    from shoestring.runs.task import task_of

    loaded = load(recipe)
    task, folder = task_of(loaded), RunFolder.of(loaded)
    if isinstance(task, HmmTask):
        return task.rows().path.parent
    made = read_plan(settled(loaded, folder).recipe, folder.plan) if folder.plan.is_file() else None
    return prepare_recipe(loaded, made, _reporter(show)).paths.folder


def train(
    recipe: RecipeLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    plan: Path | None = None,
    time: str | float | None = None,
    show: bool = True,
) -> Run:
    """Train a network, or fit an HMM, until its budget is spent; resume an interrupted run, or return a finished one.

    Measures, plans and prepares what is missing. `plan` is a plan.json to follow. After `time` ("2h", or seconds), and
    when a notebook's kernel is interrupted, the run is saved and `Fault` is raised; the same call resumes it.
    """
    from shoestring.runs.runner import run

    limit = float(Seconds.parse(time)) if isinstance(time, str) else time
    loaded, reporter = load(recipe, overrides), _reporter(show)
    try:
        run(loaded, reporter, Clock(0.0), plan, limit)
    finally:
        reporter.trained()
    return open_run(RunFolder.of(loaded).path)


def evaluate(
    run: Run | str | Path,
    checkpoint: str | int = "best",
    data: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Score a run's checkpoint ("best", "last", "peak" or a step) beside the baselines, on its held-out rows or on the
    text `data`, as "text:PATH"; with other rows by `{"evaluate.context": 192, "evaluate.rows": 4000}`."""
    from shoestring.runs.evaluate import evaluate_run

    which = CheckpointSpec.parse(str(checkpoint))
    return evaluate_run(open_run(run).folder, which, data, _warn, overrides=overrides)


def generate(
    run: Run | str | Path,
    prompt: str = "",
    *,
    max_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    n: int = 1,
    seed: int = 0,
    checkpoint: str | int = "best",
) -> list[str]:
    """`n` texts that a causal network or an HMM generates after the prompt."""
    from shoestring.models.generate import Drawing
    from shoestring.runs.generate import generate_text

    drawing = Drawing(temperature=float(temperature), top_k=top_k, top_p=top_p)
    which = CheckpointSpec.parse(str(checkpoint))
    return generate_text(open_run(run).folder, prompt, max_tokens, drawing, n, seed, which, _warn)


def fit_law(
    runs: Run | str | Path | Iterable[Run | str | Path],
    *,
    approach: str = "all",
    penalty: str = "huber",
    delta: float | None = None,
    window: float = 5.0,
    exponent: float | None = None,
    resamples: int = 4000,
    params: str | None = None,
    tokens: str | None = None,
    loss: str | None = None,
    flops: str | None = None,
    group: str | None = None,
    where: Sequence[str] = (),
    optima: bool = False,
    skip_bad: bool = False,
    name: str | None = None,
) -> Law:
    """The scaling law of finished runs, or of a table: loss over parameters and predictions, with 95 % intervals.

    `approach` is "1" (envelope of the curves), "2" (parabolas at equal FLOPs), "3" (the surface) or "all". `delta` is
    that of Huber's penalty. Parabolas take the sizes within a factor of `window` of the lowest loss. With an
    `exponent`, N grows as C^exponent in approaches 1 and 2, and only the factors are fitted. For a table (CSV, or
    .jsonl), `params`, `tokens`, `loss`, `flops` and `group` name columns: rows of one group share the noise of a run.
    With `optima` each row is the best model of its compute, and there is no loss.
    """
    from shoestring.studies.allocation import fit_optima, one_table
    from shoestring.studies.law import fit_law as fit
    from shoestring.studies.law_data import Columns, read_given
    from shoestring.studies.law_options import ask

    asked = ask(approach, penalty, resamples, name, delta, window, exponent)
    columns = Columns(params=params, tokens=tokens, loss=loss, flops=flops, group=group)
    given = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    paths = [_table_or_run(each) for each in given]
    if optima:
        return fit_optima(one_table(paths, approach, 0), columns, where, "total", skip_bad, asked)[0]
    return fit(read_given(paths, columns, where, skip_bad=skip_bad), asked).law


def _table_or_run(given: Run | str | Path) -> Path:
    if not isinstance(given, Run) and (Path(given).is_file() or SweepFolder(given).index.is_file()):
        return Path(given)
    return open_run(given).path


def optimum(law: Law, flops: float, approach: int | None = None) -> Best:
    """The best model for an amount of training compute, by the surface (3) or by the power laws of approach 1 or 2.

    Default: by the surface, where the law has one.
    """
    from shoestring.studies.optimum import at_least_one, best_for_flops

    return at_least_one(best_for_flops(law, flops, approach=approach), f"flops = {flops:g}")


def open_run(folder: Run | str | Path) -> Run:
    """A run by its folder, finished or not; raises `RunError` where the folder is not a run."""
    return folder if isinstance(folder, Run) else Run(RunFolder.open(folder))


class Run:
    """A run folder. Every property is read from the files when it is accessed."""

    def __init__(self, folder: RunFolder):
        self.folder = folder

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def recipe(self) -> Recipe:
        return self.folder.read_recipe()

    @property
    def profile(self) -> Profile:
        return Profile.read(self._there(self.folder.profile))

    @property
    def plan(self) -> Plan:
        return Plan.read(self._there(self.folder.plan))

    @property
    def is_done(self) -> bool:
        return self.folder.done.is_file()

    @property
    def outcome(self) -> Outcome:
        """What happened, beside what was planned; only of a finished run."""
        from shoestring.track import read_outcome

        self._there(self.folder.done)
        outcome = read_outcome(self.folder)
        assert outcome is not None, "its file is there"
        return outcome

    @property
    def evaluation(self) -> Evaluation:
        """The last evaluation, beside the baselines."""
        return Evaluation.read(self._there(self.folder.evaluation))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics: of training ("loss") and of evaluations ("heldout_loss"), by "step".

        Each named text of data.validation has its own "heldout_loss/NAME"; "heldout_loss" is that of the first.
        `pandas.DataFrame(run.metrics)` makes a table of them.
        """
        from shoestring.track import read_lines

        return read_lines(self.folder.metrics)

    def model(self, checkpoint: str | int = "best") -> LanguageModel:
        """The trained network: a torch module in evaluation mode, on the GPU if there is one."""
        from shoestring.runs.trained_model import load_run

        return load_run(self.folder, CheckpointSpec.parse(str(checkpoint)), say=_warn).model

    def generate(self, prompt: str = "", **options: Any) -> list[str]:
        """Texts as from `shoestring.generate`."""
        return generate(self, prompt, **options)

    def _there(self, file: Path) -> Path:
        if not file.is_file():
            raise RunError(f"{self.path} has no {file.name} yet")
        return file


def _warn(line: str) -> None:
    """A result that is not quite what was asked for, as of an older checkpoint."""
    warnings.warn(line, stacklevel=2)


def _reporter(show: bool) -> Reporter:
    if not show:
        return Reporter()
    from shoestring.console.terminal import Terminal

    return Terminal()
