"""Workers that a run starts itself: they end with it, and one that cannot begin is named."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch.distributed as dist
from conftest import TINY

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.recipe_file import load
from shoestring.core.records import Plan
from shoestring.core.results import Outcome
from shoestring.runs import launch, session
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.training.hooks import Stopped

STEPS = 8
TWO = (f"budget.steps={STEPS}", "parallel.workers=2", "parallel.strategy=local", "parallel.sync_every=4")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "tiny.toml").write_text(TINY)
    recipe = load(tmp_path / "tiny.toml", TWO)
    plan = Plan(
        binding="steps", recipe=recipe.fingerprint, steps=STEPS, effective_batch=recipe.batch, per_device=2, entries=300
    )
    plan.write(tmp_path / "plan.json")
    return tmp_path


@pytest.mark.slow
def test_a_run_starts_its_workers_and_leaves_nothing_behind(there: Path) -> None:
    before = dict(os.environ)
    with patch.object(session, "draw", return_value={}):
        finished = run(load("tiny.toml", TWO), Reporter(), Clock(), there / "plan.json")
    assert finished is not None
    sharing = Outcome.read(finished.folder.done).sharing
    assert sharing is not None
    assert (sharing.workers, sharing.left, sharing.synchronisations) == (2, (), 2)
    assert dict(os.environ) == before
    assert not dist.is_initialized()


@pytest.mark.slow
def test_workers_join_and_leave_when_a_run_is_resumed(there: Path) -> None:
    """Two workers, then three, then one: the rows and averages of one run."""
    finished = None
    for workers, until in ((2, 0.1), (3, 0.4), (1, None)):
        said: list[str] = []
        reporter = Reporter()
        reporter.say = said.append  # type: ignore[method-assign]
        recipe = load("tiny.toml", (*TWO, f"parallel.workers={workers}", "budget.steps=32", "train.batch=6"))
        stops = nullcontext() if until is None else pytest.raises(Stopped, match="saved; the same command continues")
        with patch.object(session, "draw", return_value={}), stops:
            finished = run(recipe, reporter, Clock(), until=until)
        assert workers == 2 or any(f"{workers} workers go on from the average of" in line for line in said), said
    assert finished is not None
    outcome = Outcome.read(finished.folder.done)
    assert outcome.sharing is not None
    assert (outcome.sharing.joined, outcome.sharing.left, outcome.segments) == (1, (), 3)
    assert (outcome.steps, outcome.tokens, outcome.sharing.synchronisations) == (32, 32 * 6 * 32, 8)


def test_a_worker_that_cannot_begin_is_named(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.sys, "executable", "/bin/false")  # type: ignore[attr-defined]
    before = dict(os.environ)
    with pytest.raises(Fault, match="worker 1 ended before it began, exit code 1"):
        run(load("tiny.toml", TWO), Reporter(), Clock(), there / "plan.json")
    assert dict(os.environ) == before


def test_a_worker_that_ends_before_it_connects_is_named(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for it; the first one waits in the store that it made."""
    (there / "ends").write_text("#!/bin/sh\nread -r line\necho ready\nexec sleep 0.2\n")
    (there / "ends").chmod(0o755)
    monkeypatch.setattr(launch.sys, "executable", str(there / "ends"))  # type: ignore[attr-defined]
    with pytest.raises(Fault, match="worker 1 ended before all were connected, exit code 0; see its output"):
        run(load("tiny.toml", TWO), Reporter(), Clock(), there / "plan.json")
    assert not dist.is_initialized()
