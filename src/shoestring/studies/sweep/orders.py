"""In which order the runs of a sweep are run."""

from __future__ import annotations

from collections.abc import Sequence

from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepRun
from shoestring.core.units import Seconds
from shoestring.studies.sweep.driver import Job, Result
from shoestring.studies.sweep.plans import schedule
from shoestring.studies.sweep.survey import Survey


class InOrder:
    """Every run to its end, in the order of the index; one for which there is no time is passed over."""

    def __init__(self, found: Survey):
        self._found = found
        self._waiting = list(found.to_do)
        self._count, self._ended = len(self._waiting), 0
        self._taken, self._planned = 0.0, 0.0
        """Seconds of the runs that have ended, and what was forecast for them."""

    @property
    def left(self) -> list[SweepRun]:
        """Runs that were not started."""
        return self._waiting

    def next(self, active: Sequence[str], left: float | None) -> Job | None:
        self._waiting = [run for run in self._waiting if run.name not in active]
        for run in self._waiting:
            if left is None or self._seconds(run) <= left:
                self._waiting.remove(run)
                return Job(run=run)
        return None

    def _seconds(self, run: SweepRun) -> float:
        """Of a run, by its forecast and how wrong those of the others were."""
        slower = self._taken / self._planned if self._planned else 1.0
        return slower * self._found.seconds(run).expected

    def ended(self, run: SweepRun, result: Result) -> str:
        self._ended += 1
        if result.event != "stopped":  # one that another driver has started waits here too
            self._waiting = [each for each in self._waiting if each.name != run.name]
        count = f"[{self._ended}/{self._count}] {run.name}"
        if result.event == "failed":
            return f"{count}: failed: {result.why.splitlines()[0]}"
        if result.event == "stopped":
            return f"{count}: stopped after {Seconds(result.seconds).short()}, saved"
        self._taken += result.seconds
        self._planned += self._found.seconds(run).expected
        outcome = Outcome.read(RunFolder(self._found.folder.run_path(run)).done)
        ends = schedule([self._seconds(each) for each in self._waiting], self._found.slots.at_once)
        more = f"; about {Seconds(max(ends)).short()} for the {len(ends)} that wait" if ends else ""
        return f"{count}: held-out loss {outcome.loss:.4f} in {Seconds(result.seconds).short()}{more}"
