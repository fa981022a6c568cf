"""Score a run on tasks of lm-evaluation-harness, with its weights and tokenizer as they are."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoestring.core.errors import MissingExtra, RunError, ShoestringError, UserError, closest, shown_path
from shoestring.core.results import HarnessScore, HarnessScores
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.core.text import one_line
from shoestring.runs.preferences import NetworkJudge, judge_of
from shoestring.runs.trained_model import BEST, Say, silent

_DRAWS = 1000
"""Samples of a bootstrap, for metrics whose standard error has no formula."""
_SHOWN = 300
"""Characters of what the harness says when it stops."""
_FILES = (".yaml", ".yml")


def evaluate_harness(
    folder: RunFolder,
    tasks: Sequence[str],
    checkpoint: CheckpointSpec = BEST,
    limit: int | None = None,
    say: Say = silent,
) -> HarnessScores:
    """Score a run on tasks: names of the harness, YAML files, or folders of these.

    Paths in a task's file are relative to its folder. `limit` takes only the first items of each task.
    """
    given = f"--harness {','.join(tasks)}"
    if not all(tasks):
        raise UserError(f"{given}: needs names of tasks, task files or folders, with commas between")
    paths = {task: path for task in tasks if (path := _path(task, given)) is not None}
    try:
        import lm_eval
    except ImportError as cause:
        raise MissingExtra("evaluate --harness", "lm_eval", "harness") from cause
    from shoestring.runs.harness_model import HarnessModel

    judge, step = judge_of(folder, checkpoint, say)
    if not isinstance(judge, NetworkJudge):
        raise RunError(f"{folder.path}: the run of an HMM, which knows whole words only; --on pairs:FILE scores it")
    if judge.tokenizer.end is None:
        raise RunError(f"{folder.path}: its tokenizer has no token that ends a document, and texts begin after one")
    with _quiet():
        try:
            found = lm_eval.evaluate(
                lm=HarnessModel(judge),
                task_dict=_load(tasks, paths, given),
                limit=limit,
                log_samples=False,
                bootstrap_iters=_DRAWS,
            )
        except ShoestringError:
            raise
        except Exception as cause:  # whatever a task's file makes of the harness
            what = one_line(f"{type(cause).__name__}: {cause}", _SHOWN)
            raise UserError(f"{given}: the harness stopped: {what}") from cause
    return HarnessScores(
        tasks=tuple(tasks), step=step, version=lm_eval.__version__, limit=limit, scores=tuple(_scores(found))
    )


def _path(task: str, given: str) -> Path | None:
    """The file or folder that a task is given as; None: a name of the harness."""
    path = Path(task).expanduser()
    if not (os.sep in task or path.suffix in _FILES or path.is_dir()):
        return None
    if not path.exists():
        raise UserError(f"{given}: {shown_path(path)}: no such file or folder")
    if path.is_dir() and not any(path.rglob(f"*{_FILES[0]}")):
        raise UserError(f"{given}: {shown_path(path)} holds no task: a task is a file *{_FILES[0]}")
    return path.resolve()


def _load(tasks: Sequence[str], paths: Mapping[str, Path], given: str) -> dict[str, Any]:
    """The tasks and groups with their data, as the harness' own command prepares them."""
    from lm_eval.defaults import DEFAULT_OTHER_SEED
    from lm_eval.tasks import TaskManager

    found: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}, "group_map": {}}
    named = TaskManager() if len(paths) < len(set(tasks)) else None  # thousands of files are read
    for task in tasks:
        if (path := paths.get(task)) is None:
            assert named is not None
            if task not in named.task_index:
                like = closest(task, named.all_tasks)
                hint = "" if like is None else f"; did you mean {like!r}?"
                raise UserError(f"{given}: the harness has no task {task!r}{hint}")
            loaded = named.load([task])
        else:
            inside = path if path.is_dir() else path.parent
            own = TaskManager(include_path=str(inside), include_defaults=False)
            with contextlib.chdir(inside):
                loaded = own.load(own.all_subtasks if path.is_dir() else [str(path)])
        for kind, values in found.items():
            values.update(loaded.get(kind, {}))
    for each in found["tasks"].values():
        if each.get_config("num_fewshot") is None:
            each.set_config(key="num_fewshot", value=0)
        each.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    return found


def _scores(found: Mapping[str, Any] | None) -> Iterator[HarnessScore]:
    """Every number of the harness' results; what it could not compute is left out."""
    results, counts = (found or {}).get("results", {}), (found or {}).get("n-samples", {})
    for task, values in results.items():
        for key, value in values.items():
            metric, comma, answer = key.partition(",")
            if not comma or metric.endswith("_stderr") or isinstance(value, str) or not hasattr(value, "__float__"):
                continue
            error = values.get(f"{metric}_stderr,{answer}")
            yield HarnessScore(
                task=task,
                metric=metric,
                filter=answer,
                value=float(value),
                error=None if error is None or isinstance(error, str) else float(error),
                items=counts.get(task, {}).get("effective"),
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Standard output is for results, and the harness' notes are not shown; a bootstrap forks no process."""
    logger, before = logging.getLogger("lm_eval"), os.environ.get("DISABLE_MULTIPROC")
    level = logger.level
    logger.setLevel(logging.ERROR)
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
