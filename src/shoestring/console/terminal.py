"""Tables, lines and a live display of progress, in a terminal or a notebook."""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoestring.console.progress import Sparkline, progress_line
from shoestring.core.records import Density, MemoryModel, Plan, Point, Profile
from shoestring.core.results import Evaluation, GroupScore, HarnessScores, Outcome, Preferences, Verdict
from shoestring.core.text import printable
from shoestring.core.throughput import fastest, knee, smallest_near
from shoestring.core.units import Bytes, Count, Seconds, counted, rate, with_name
from shoestring.runs.reporter import Reporter, TrainingProgress

if TYPE_CHECKING:
    from rich.progress import Progress

    from shoestring.data.store.fixed_rows import Progress as RowsWritten

_NARROW = 24
"""Columns that a text needs to be read in a table."""
_BAR = 10
"""Columns of the bar of progress."""
_QUIET_SECONDS = 10.0
"""Between lines of progress where there is no terminal."""


class Terminal(Reporter):
    """Prints to standard output, or to standard error where standard output is for JSON."""

    def __init__(self, to_stderr: bool = False):
        self.console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self._notebook = self.console.is_jupyter
        if self._notebook:  # plain text: each print of a Jupyter console is an output of its own
            self.console = Console(file=sys.stdout, force_jupyter=False, highlight=False, soft_wrap=True, width=120)
        self._progress: Progress | None = None
        self._losses = Sparkline()
        self._shown = time.monotonic()

    def say(self, text: str) -> None:
        """Print lines; on a terminal they are broken between words, elsewhere not at all."""
        if self.console.is_terminal:
            text = "\n".join(_broken(line, self.console.width) for line in text.split("\n"))
        self.console.print(_plain(text))

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table; a last column without room for its words is printed below it, line by line.

        Where the other columns have no room either, every row is printed as a list.
        """
        title, head, rows = printable(title), _printable(head), [_printable(row) for row in rows]
        *widths, last = (max(map(len, column)) for column in zip(head, *rows))
        room = self.console.width - sum(widths) - 3 * len(head)
        below = len(head) > 2 and last > _NARROW > room
        shown = len(head) - below
        word = max((len(word) for row in (head, *rows) for word in row[-1].split()), default=0)
        if sum(widths) + 3 * len(widths) > self.console.width or (not below and word > room):
            self.say("\n".join([title, "", *(_as_list(head, row) for row in rows)]))
            return
        table = Table(
            title=_plain(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for index, name in enumerate(head[:shown]):
            table.add_column(
                _plain(name), no_wrap=index < len(head) - 1, overflow="fold", style="dim" if index == 0 else None
            )
        for row in rows:
            table.add_row(*map(_plain, row[:shown]))
        self.console.print(table, soft_wrap=False)
        if below:
            about = [f"{head[-1]}:"] if head[-1] else []
            self.say("\n".join([*about, *(f"{row[0]}: {row[-1]}" for row in rows)]) + "\n")

    def measured(self, profile: Profile) -> None:
        head = ("batch", "pass", "fastest – slowest", "speed", "memory")
        rows = [_point_row(point, profile.length) for point in profile.points]
        self.table(f"{profile.how.capitalize()} on {profile.machine.device_name}", head, rows)
        self.say("\n".join(_profile_lines(profile)) + "\n")
        if profile.density is not None:
            self.say(f"corpus: {_density(profile.density)}\n")

    def left_out(self, ledger: Mapping[str, Any]) -> None:
        """Print what a store leaves out of its corpus, with the first examples; nothing where it is complete."""
        counts = [f"{count:,} {name}" for name, count in ledger.items() if name != "examples" and count]
        if counts:
            self.say("left out: " + ", ".join(counts))
            for example in ledger.get("examples", ()):
                self.say(f"  {example}")

    def planned(self, plan: Plan) -> None:
        rows = [(line.quantity, line.value, line.reason) for line in plan.lines]
        self.table("Plan", ("", "value", "reason"), rows)

    def settled(self, plan: Plan) -> None:
        steps, each = f"{plan.steps or 0:,} steps", Seconds(plan.step_seconds or 0.0).short()
        memory = "" if plan.peak_bytes is None else f", {Bytes(plan.peak_bytes).short()} of memory"
        whole = Seconds(plan.seconds or 0.0).short()
        self.say(f"the first steps make the plan final: {steps} of {each}{memory}, {whole} in all")

    def preparing(self, documents: int, total: int | None) -> None:
        self._show(documents, total, f"prepared {documents:,}{f' of {total:,}' if total else ''} documents")

    def training(self, progress: TrainingProgress) -> None:
        self._losses.add(progress.done, progress.loss)
        if self.console.is_terminal and not self._notebook:
            text = progress_line(progress, self._losses.line(), self.console.width - _BAR - 2)
        else:
            text = progress_line(progress)
        self._show(progress.done, progress.total, text, first=progress.done == 1)

    def writing(self, progress: RowsWritten) -> None:
        """Show the progress of writing rows."""
        text = (
            f"{Count(progress.rows).short()} of {with_name(Count(progress.total).short(), 'rows')} · "
            f"{rate(progress.rate, 'positions/s')} · time left {Seconds(progress.seconds_left).short()}"
        )
        self._show(progress.rows, progress.total, text)

    def _show(self, done: int, total: int | None, text: str, first: bool = False) -> None:
        """Show a bar on a terminal; elsewhere print the first and the last line, and some between."""
        if self._notebook or not self.console.is_terminal:
            if first or done == total or time.monotonic() - self._shown > (0.25 if self._notebook else _QUIET_SECONDS):
                self._shown = time.monotonic()
                self.console.print(_plain(text), end="\r" if self._notebook and done != total else "\n")
            return
        if self._progress is None:
            from rich.progress import BarColumn, Progress, TextColumn  # takes a while, and a plan needs none

            self._progress = Progress(
                BarColumn(_BAR), TextColumn("{task.description}", markup=False), console=self.console
            )
            self._progress.add_task("", total=total)
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], completed=done, total=total, description=printable(text))
        if done == total:
            self.close()

    def trained(self) -> None:
        self.close()

    def close(self) -> None:
        """Stop the live display, and leave it on the screen."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def evaluated(self, evaluation: Evaluation) -> None:
        from shoestring.report.scores import (
            CLASS_HEAD,
            ERROR_NOTE,
            SHOWN_CLASSES,
            bits_text,
            class_rows,
            class_scores,
            confusion_table,
            first_note,
            perplexity_text,
            text_table,
            with_error,
        )

        losses = evaluation.baselines | {"this model": evaluation.loss}
        rows = [(name, f"{loss:.3f}", f"{math.exp(loss):,.1f}") for name, loss in losses.items()]
        own = (with_error(evaluation.loss, evaluation.loss_error), perplexity_text(evaluation))
        rows[-1] = (rows[-1][0], *own)
        held = f"{counted(evaluation.rows, 'row')}, {counted(evaluation.tokens, 'prediction')}"
        title = f"\n{evaluation.text or 'Held out'}: {held}"
        what = "nats per token" if evaluation.macro_f1 is None else "nats per row"
        self.table(title, ("baseline", what, "perplexity"), rows)
        if bits := bits_text(evaluation):
            self.say(bits)
        if evaluation.loss_error is not None:
            self.say(f"{ERROR_NOTE}\n")
        if evaluation.texts:
            self.table("Texts of data.validation", *text_table(evaluation))
            self.say(f"{first_note(evaluation)}\n")
        if evaluation.macro_f1 is not None and evaluation.accuracy is not None:
            self.say(class_scores(evaluation) + "\n")
            self.table("Classes", CLASS_HEAD, class_rows(evaluation))
        if 0 < len(evaluation.confusion) <= SHOWN_CLASSES:
            self.table("Rows by true and predicted class", *confusion_table(evaluation))

    def preferred(self, found: Preferences) -> None:
        """Print how often the right choice was the likeliest."""
        from shoestring.report.scores import with_error

        every: list[GroupScore | Preferences] = [*found.groups, found]
        rows = [
            (
                each.name if isinstance(each, GroupScore) else "all",
                f"{each.items:,}",
                with_error(each.accuracy, each.accuracy_error),
                "" if each.oracle is None else f"{each.oracle:.3f}",
            )
            for each in every
        ]
        shown = 3 if found.oracle is None else 4
        head = ("group", "items", "accuracy", "ceiling")[:shown]
        self.table(f"\n{found.source}", head, [row[:shown] for row in rows])
        lines = [f"a guess reaches {found.chance:.3f}; {counted(found.ties, 'tie')}; each counts its share"]
        if found.oracle is not None:
            ceiling = with_error(found.oracle, found.oracle_error)
            lines.append(f"the ceiling is what the model that made the items prefers: {ceiling}")
        if found.accuracy_per_byte is not None:
            per_byte = with_error(found.accuracy_per_byte, found.accuracy_per_byte_error)
            lines.append(f"by likelihood per byte of the choice: {per_byte}")
        self.say("\n".join(lines) + "\n")

    def harness_scores(self, found: HarnessScores) -> None:
        """Print what a run reaches on tasks of lm-evaluation-harness."""
        from shoestring.report.scores import with_error

        rows = [
            (
                each.task,
                each.metric if each.filter == "none" else f"{each.metric} ({each.filter})",
                "" if each.items is None else f"{each.items:,}",
                with_error(each.value, each.error),
            )
            for each in found.scores
        ]
        self.table(f"\nlm-evaluation-harness {found.version}", ("task", "metric", "items", "score"), rows)

    def finished(self, plan: Plan, outcome: Outcome) -> None:
        from shoestring.planning.lines import parts_reason
        from shoestring.report.page import forecast_line, plan_against_actual

        self.table("Plan against actual", ("", "planned", "actual", "difference"), plan_against_actual(plan, outcome))
        if outcome.forecast is not None:
            self.say(forecast_line(outcome.forecast))
        if outcome.timeline:
            self.say(f"{Seconds(outcome.seconds).short()}: {parts_reason(outcome.timeline)}\n")
        for how, reason in (("shortened", outcome.shortened), ("lengthened", outcome.lengthened)):
            if reason:
                self.say(f"{how}: {reason}\n")

    def verdicts(self, found: Sequence[Verdict]) -> None:
        """Print a list of what the numbers of a run say."""
        if found:
            self.say("\n".join(f"- {verdict.text}" for verdict in found) + "\n")


def _broken(line: str, width: int) -> str:
    """The line in pieces of this width, broken between words; a longer word, such as a path, stays whole."""
    if len(line) <= width:
        return line
    return textwrap.fill(
        line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False, expand_tabs=False
    )


def _plain(text: str) -> Text:
    """Text for the console: neither its control characters nor its brackets are commands."""
    return Text(printable(text))


def _printable(cells: Sequence[str]) -> list[str]:
    """Cells of a table, each without control characters; a tab would move what follows."""
    return [printable(cell).expandtabs(4) for cell in cells]


def _as_list(head: Sequence[str], row: Sequence[str]) -> str:
    """A row of a table as lines: its first cell, then the others with their heads."""
    return "\n".join([row[0], *(f"  {name}: {cell}" if name else f"  {cell}" for name, cell in zip(head[1:], row[1:]))])


def _point_row(point: Point, length: int) -> tuple[str, ...]:
    shortest = "" if point.fastest_seconds is None else f"{Seconds(point.fastest_seconds).short()} "
    return (
        f"{point.batch:,}",
        Seconds(point.seconds).short(),
        f"{shortest}– {Seconds(point.slowest_seconds).short()}",
        rate(point.batch * length / point.seconds, "positions/s"),
        "unknown" if point.peak_bytes is None else Bytes(point.peak_bytes).short(),
    )


def _profile_lines(profile: Profile) -> list[str]:
    """The lines below the table of a profile."""
    points = profile.points
    parts = {
        "compile": profile.compile_seconds,
        "warm-up": profile.warmup_seconds,
        "update": profile.update_seconds,
        "evaluation": profile.validate_seconds_per_row,
        "checkpoint": profile.checkpoint_seconds,
        f"sum over {profile.sum_workers} workers": profile.sum_seconds,
        "set-up": profile.setup_seconds,
    }
    others = {name: Seconds(value).short() for name, value in parts.items() if value is not None}
    others["evaluation"] += " per row"
    others["checkpoint"] += f" for {Bytes(profile.checkpoint_bytes).short()}"
    rows = "rows of the recipe's own store" if profile.real else "random tokens"
    together = f", on {profile.devices} devices at the same time" if profile.devices > 1 else ""
    return [
        f"fastest: batch {fastest(points).batch:,}; within 2 % of it: batch {smallest_near(points).batch:,}; the curve "
        f"bends at {knee(points).batch:,}",
        f"no larger batch timed: {profile.stopped}",
        *_memory_lines("training", profile.memory),
        *_memory_lines("evaluation", profile.validation_memory),
        "besides: " + ", ".join(f"{name} {value}" for name, value in others.items()),
        f"measured on {rows}{together}",
    ]


def _memory_lines(use: str, memory: MemoryModel | None) -> list[str]:
    if memory is None:
        return []
    text = f"{use}: {Bytes(memory.fixed_bytes).short()} + {Bytes(round(memory.row_bytes)).short()} per row"
    if memory.limit_bytes is not None:
        limit, margin = Bytes(memory.limit_bytes).short(), Bytes(memory.margin_bytes).short()
        text += f"; {limit} may be used, less a margin of {margin}"
    time_used = Seconds(memory.trial_seconds).short()
    trials = f"{counted(memory.trials, 'trial')}, {memory.out_of_memory} out of memory, {time_used}"
    if memory.largest is not None:
        text += f"; the largest batch is {memory.largest:,} ({memory.verified:,} was tried; {trials})"
    elif memory.verified is not None:
        text += f"; the largest batch that was tried is {memory.verified:,} ({trials})"
    return [text]


def _density(density: Density) -> str:
    """Entries and tokens per gigabyte of text, with 95 % intervals where they are estimated from a sample."""
    entries = _interval(density.entries_per_gb, density.entries_per_gb_error, "entries/GB")
    tokens = _interval(density.tokens_per_gb, density.tokens_per_gb_error, "tokens/GB")
    read = f"{Bytes(density.text_bytes).short()} of text"
    if density.tokens_per_gb_error is None:
        how = f"from its first {counted(density.documents, 'entry', 'entries')}, {read}; unverified"
    elif density.tokens_per_gb_error == 0:
        how = f"all of its {read} counted"
    else:
        how = f"± is 95 %, from a sample of {read}"
    return f"{entries}, {tokens} ({how})"


def _interval(value: float, error: float | None, unit: str) -> str:
    """A value and 1.96 standard errors, as in 1.42M ± 28.3k entries/GB."""
    return f"{rate(value, '')}± {rate(1.96 * error, unit)}" if error else rate(value, unit)
