"""Texts that a model writes after its evaluations, always after the same prompts, so that one sees it learn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from shoestring.core.clock import Clock
from shoestring.core.run_folder import RunFolder
from shoestring.planning.stops import TEXTS_SECONDS, TEXTS_SHARE
from shoestring.track import LineFile, NoLines, read_lines
from shoestring.training.checkpoint import State
from shoestring.training.hooks import Label
from shoestring.training.loop import Report

if TYPE_CHECKING:
    from shoestring.runs.generate import NetworkWriter
    from shoestring.runs.trainee import Trainee

SAMPLES, TOKENS = 3, 40
"""Texts at an evaluation, without prompts of the recipe, and tokens of each."""
_PROMPT = 12
"""Tokens of a prompt from a held-out row, at most: a quarter of the row."""
_TRIED = 2
"""Tokens that are written first, to see how long a token takes."""


class Sample(NamedTuple):
    """A text that begins with its prompt."""

    prompt: str
    text: str


def sample_network(writer: NetworkWriter, prompts: Sequence[str] | None, rows: Tensor, tokens: int) -> list[Sample]:
    """One text per prompt, or after the beginnings of some of the held-out rows."""
    if prompts is not None:
        return [Sample(prompt, writer.write(prompt, tokens)[0]) for prompt in prompts]
    begun = _beginnings(rows, writer.tokenizer.end, max(1, min(_PROMPT, writer.length // 4)))
    texts = writer.extend(begun, tokens)
    return [Sample(writer.tokenizer.decode(ids.tolist()), text) for ids, text in zip(begun, texts)]


def _beginnings(rows: Tensor, end: int | None, tokens: int) -> Tensor:
    """The first tokens of documents that begin in some rows, (texts, tokens); of rows where too few do."""
    rows = rows.cpu()
    found = []
    for row in rows if end is not None else ():
        starts = (torch.nonzero(row == end)[:, 0] + 1).tolist()
        found += [row[at : at + tokens] for at in starts[:1] if at + tokens <= len(row)]
        if len(found) == SAMPLES:
            break
    return torch.stack([*found, *rows[: SAMPLES - len(found), :tokens]])


def texts_of(
    trainee: Trainee, folder: RunFolder, state: State, clock: Clock, say: Callable[[str], None]
) -> SampleTexts:
    """The texts of a run from `state` on, in its file of samples; only the first process writes any."""
    writes = trainee.group.rank == 0 and trainee.writes
    lines = LineFile.rewound(folder.samples, trainee.label(state), write=folder.write) if writes else NoLines()
    return SampleTexts(trainee.samples, lines, clock, say, trainee.label, writes)


class SampleTexts:
    """A hook that lets a model write after an evaluation, and adds a line.

    Where not every evaluation can have texts, those that have them are spread over the run, with the last one.

    What goes wrong is said once, and ends the samples, not the run.
    """

    def __init__(
        self,
        write: Callable[[int], list[Sample]],
        lines: LineFile,
        clock: Clock,
        say: Callable[[str], None],
        label: Label,
        on: bool = True,
    ):
        self._write, self._lines, self._clock, self._say, self._label, self._on = write, lines, clock, say, label, on
        self._written = {line["step"] for line in read_lines(lines.path)}
        self._spent, self._next = 0.0, 0.0
        self._token_seconds: float | None = None
        self.wanted = False
        """Whether there was an evaluation since the last call."""

    def __call__(self, state: State, _: Report) -> State:
        label, wanted, self.wanted = self._label(state), self.wanted, False
        if self._on and wanted and label not in self._written:
            last = state.step >= state.schedule.total
            with self._clock.during("samples"):
                self._add(label, 1.0 if last else state.schedule.progress(state.step))
        return state

    def _add(self, label: int, progress: float) -> None:
        """`progress` is 1 after the last step."""
        try:
            if self._token_seconds is None:
                self._timed(_TRIED)  # loads and allocates
                self._timed(_TRIED)
            if progress < self._next or self._affordable(progress) < 1 + (progress < 1):  # one is kept for the end
                return
            found = self._timed(TOKENS)
            self._next = progress + (1 - progress) / max(1, int(self._affordable(progress)))
        except Exception as cause:  # of a network or tokenizer that cannot write
            self._on = False
            self._say(f"no samples from here on ({type(cause).__name__}: {cause}); the run continues")
            return
        self._lines.add(step=label, samples=[sample._asdict() for sample in found])
        self._lines.sync()  # what is sealed is on disk
        self._written.add(label)

    def _affordable(self, progress: float) -> float:
        """How many more evaluations can have texts, by the time that the run will take at its pace so far."""
        left = TEXTS_SECONDS + TEXTS_SHARE * self._clock.elapsed() / max(progress, 1e-9) - self._spent
        return left / max(1e-9, TOKENS * (self._token_seconds or 0.0))

    def _timed(self, tokens: int) -> list[Sample]:
        started = time.perf_counter()
        found = self._write(tokens)
        took = time.perf_counter() - started
        self._spent += took
        self._token_seconds = min(took / tokens, self._token_seconds or math.inf)  # the first may load and compile
        return found
