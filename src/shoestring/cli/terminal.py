"""What a person sees in the terminal: tables, lines, and a live display while training."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoestring.cli.measured import HEAD, point_rows, profile_lines
from shoestring.core.facts import Density, Evaluation, Outcome, Plan, Profile
from shoestring.core.units import Bytes, Count, Seconds, rate
from shoestring.stages.voice import Live, Voice

if TYPE_CHECKING:
    from rich.live import Live as Screen

    from shoestring.data.fixed_rows import Progress

_QUIET_SECONDS = 10.0
"""Between lines of progress where there is no terminal to draw on."""


def print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


class Terminal(Voice):
    """Speaks to standard output, or to standard error when that one is kept for JSON."""

    def __init__(self, to_stderr: bool = False):
        self.console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self._screen: Screen | None = None
        self._shown = time.monotonic()

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for index, name in enumerate(head):
            table.add_column(name, no_wrap=index < len(head) - 1, overflow="fold", style="dim" if index == 0 else None)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.console.print(table, soft_wrap=False)

    def measured(self, profile: Profile) -> None:
        self.table(f"Measured on {profile.machine.device_name}", HEAD, point_rows(profile))
        self.say("\n".join(profile_lines(profile)) + "\n")
        if profile.density is not None:
            self.say(f"corpus: {_density(profile.density)}\n")

    def left_out(self, ledger: Mapping[str, Any]) -> None:
        """Of a corpus when its store was made, with the first examples; nothing where it is all there."""
        counts = [f"{count:,} {name}" for name, count in ledger.items() if name != "examples" and count]
        if counts:
            self.say("left out: " + ", ".join(counts))
            for example in ledger.get("examples", ()):
                self.say(f"  {example}")

    def planned(self, plan: Plan) -> None:
        rows = [(line.quantity, line.value, line.reason) for line in plan.lines]
        self.table("Plan", ("", "value", "how it was got"), rows)

    def preparing(self, documents: int, total: int | None) -> None:
        done = documents == total
        if done or time.monotonic() - self._shown > _QUIET_SECONDS:
            self._shown = time.monotonic()
            self.say(f"prepared {documents:,} of {total:,} documents" if total else f"prepared {documents:,} documents")

    def training(self, live: Live) -> None:
        if self.console.is_terminal:
            self._show(_progress(live))
        elif live.step in (1, live.total) or time.monotonic() - self._shown > _QUIET_SECONDS:
            self._shown = time.monotonic()
            self.say(_progress(live).plain)

    def writing(self, progress: Progress) -> None:
        """Rows that are being written."""
        text = Text(
            f"{Count(progress.rows).short()} of {Count(progress.total).short()} rows · "
            f"{rate(progress.rate, 'tokens/s')} · time left {Seconds(progress.seconds_left).short()}"
        )
        if self.console.is_terminal:
            self._show(text)
        elif progress.rows == progress.total or time.monotonic() - self._shown > _QUIET_SECONDS:
            self._shown = time.monotonic()
            self.say(text.plain)

    def _show(self, text: Text) -> None:
        if self._screen is None:
            from rich.live import Live as Screen

            self._screen = Screen(console=self.console, refresh_per_second=4, transient=False)
            self._screen.start()
        self._screen.update(text)

    def trained(self) -> None:
        self.close()

    def close(self) -> None:
        """Leave the live display as it is."""
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    def evaluated(self, evaluation: Evaluation) -> None:
        losses = evaluation.strategies | {"this model": evaluation.loss}
        rows = [(name, f"{loss:.3f}", f"{math.exp(loss):,.1f}") for name, loss in losses.items()]
        title = f"\nHeld out: {evaluation.rows:,} rows, {evaluation.tokens:,} predictions"
        what = "nats a token" if evaluation.macro_f1 is None else "nats a row"
        self.table(title, ("strategy", what, "perplexity"), rows)
        if evaluation.macro_f1 is not None and evaluation.accuracy is not None:
            from shoestring.report.page import class_scores

            self.say(class_scores(evaluation) + "\n")

    def finished(self, plan: Plan, outcome: Outcome) -> None:
        from shoestring.report.page import plan_against_actual

        self.table("Plan against actual", ("", "planned", "actual", "difference"), plan_against_actual(plan, outcome))
        for how, reason in (("shortened", outcome.shortened), ("lengthened", outcome.lengthened)):
            if reason:
                self.say(f"{how}: {reason}\n")


def _density(density: Density) -> str:
    """What a gigabyte of text holds, with intervals of 95 % where it was estimated from a sample."""
    entries = _interval(density.entries_per_gb, density.entries_per_gb_error, "entries/GB")
    tokens = _interval(density.tokens_per_gb, density.tokens_per_gb_error, "tokens/GB")
    read = f"{Bytes(density.text_bytes).short()} of text"
    if density.tokens_per_gb_error is None:
        how = f"from its first {density.documents:,} entries, {read}; nobody knows how far off"
    elif density.tokens_per_gb_error == 0:
        how = f"all of its {read} counted"
    else:
        how = f"± is 95 %, from a sample of {read}"
    return f"{entries}, {tokens} ({how})"


def _interval(value: float, error: float | None, unit: str) -> str:
    """A value and 1.96 standard errors, as in 1.42M ± 28.3k entries/GB."""
    return f"{rate(value, '')}± {rate(1.96 * error, unit)}" if error else rate(value, unit)


def _progress(live: Live) -> Text:
    share = live.step / live.total
    filled = round(share * 24)
    bar = "━" * filled + "─" * (24 - filled)
    budget = "" if live.budget_left is None else f" · budget left {Seconds(max(0.0, live.budget_left)).short()}"
    return Text.assemble(
        (bar, "cyan"),
        f" step {Count(live.step).short()}/{Count(live.total).short()} · loss {live.loss:.3f}",
        f" · {rate(live.tokens_per_second, 'tokens/s')} · time left {Seconds(live.seconds_left).short()}{budget}",
    )
