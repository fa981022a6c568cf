"""The page of a run: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from shoestring.core.errors import MissingExtra
from shoestring.core.files import write_whole
from shoestring.core.reading import read_text
from shoestring.core.records import Machine, Plan
from shoestring.core.results import Evaluation, Forecast, Outcome, StateTable
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Bytes, Count, Seconds, counted, rate, with_name
from shoestring.report.figures import NoSpace, divergence_curves, loss_curve, overlap_curves, position_curve, svg
from shoestring.report.interactive import live_figure, script
from shoestring.report.samples import samples_html, texts_by_prompt
from shoestring.report.scores import (
    CLASS_HEAD,
    ERROR_NOTE,
    bits_text,
    class_rows,
    class_scores,
    confusion_table,
    first_note,
    perplexity_text,
    text_table,
    with_error,
)
from shoestring.report.verdicts import verdicts_of
from shoestring.track import read_lines

_NO_SCRIPT = "default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;"
"""The policy of a page without figures."""


def draw(folder: RunFolder) -> dict[str, str]:
    """The figures of a run by title, as HTML; without the drawing library, a line on how to install it."""
    evaluation = Evaluation.read_if_there(folder.evaluation)
    baselines = evaluation.baselines if evaluation else {}
    specifications = {}
    metrics = read_lines(folder.metrics)
    if metrics:
        labelled = evaluation is not None and evaluation.macro_f1 is not None
        specifications["Loss"] = loss_curve(metrics, baselines, "row" if labelled else "token")
    if evaluation and len(evaluation.loss_by_position) > 1:
        specifications["Loss by position"] = position_curve(
            evaluation.loss_by_position, baselines, evaluation.baselines_by_position, evaluation.entropy_rate
        )
    if compared := divergence_curves(metrics):
        specifications["What it predicts like"] = compared
    if drift := overlap_curves(metrics):
        specifications["Tokens shared with the first weights"] = drift
    return {title: live_figure(each, drawn(each)) for title, each in specifications.items()}


def drawn(specification: Mapping[str, Any]) -> str:
    """A figure as SVG, or a line of HTML on how to get it: the drawing library, or address space for it."""
    try:
        return svg(specification)
    except (MissingExtra, NoSpace) as missing:
        return f"<p class='missing'>{escape(str(missing))}</p>"


def plan_against_actual(plan: Plan, outcome: Outcome) -> list[tuple[str, str, str, str]]:
    """(quantity, planned, actual, difference) of everything that is both planned and recorded."""
    quantities: list[tuple[str, float | None, float | None, Callable[[float], str]]] = [
        ("steps", plan.steps, outcome.steps, lambda v: f"{v:,.0f}"),
        ("positions", plan.tokens, outcome.tokens, lambda v: Count(int(v)).short()),
        ("predictions", plan.predictions, outcome.predictions, lambda v: Count(int(v)).short()),
        ("seconds", plan.seconds, outcome.seconds, lambda v: Seconds(v).short()),
        ("speed", plan.tokens_per_second, outcome.tokens_per_second, lambda v: rate(v, "positions/s")),
        ("disk", plan.disk_bytes, outcome.disk_bytes, lambda v: Bytes(int(v)).short()),
        ("memory", plan.peak_bytes, outcome.peak_bytes, lambda v: Bytes(int(v)).short()),
    ]
    rows = []
    for name, planned, actual, show in quantities:
        difference = "unknown"
        if planned and actual is not None:
            difference = f"{actual / planned - 1:+.1%}".replace("-0.0%", "+0.0%")
        first, second = ("unknown" if value is None else show(value) for value in (planned, actual))
        rows.append((name, first, second, difference))
    if (expected := outcome.forecast) is not None:
        difference = f"{outcome.loss / expected.loss - 1:+.1%}" if expected.loss else "unknown"
        rows.append(("held-out loss", f"{expected.loss:.3f}", f"{outcome.loss:.3f}", difference))
    return rows


def forecast_line(expected: Forecast) -> str:
    """When the held-out loss was expected, and its interval, for people."""
    ends = f"{expected.low:.3f} to {expected.high:.3f}"
    by = f", by its curve and {counted(expected.runs, 'earlier run')} on the same data" if expected.runs else ""
    return f"the held-out loss was expected after step {expected.step:,}, at {expected.loss:.3f} ({ends}, 90 %){by}"


def write_page(folder: RunFolder, figures: dict[str, str], outcome: Outcome | None) -> None:
    """Write report.html from the records in the folder; `outcome` is None while the run continues."""
    sections = []
    evaluation = Evaluation.read_if_there(folder.evaluation)
    plan = Plan.read_if_there(folder.plan)
    if found := verdicts_of(folder, outcome):
        listed = "".join(f"<li>{escape(verdict.text)}</li>" for verdict in found)
        sections.append(section("Verdicts", f"<ul>{listed}</ul>"))
    if evaluation:
        sections.append(section("Held-out loss", _scores(evaluation)))
    sections += [section(title, f"<figure>{figure}</figure>") for title, figure in figures.items()]
    if texts := texts_by_prompt(folder):
        unit = "epoch" if folder.read_recipe().kind == "hmm" else "step"
        note = f"<p>After each {unit}: the held-out loss, and what the model wrote.</p>"
        sections.append(section("What it writes", samples_html(texts, unit) + note))
    if (states := StateTable.read_if_there(folder.states)) is not None:
        sections += _states(states)
    if plan and outcome:
        changes = {"Shortened": outcome.shortened, "Lengthened": outcome.lengthened}
        note = "".join(f"<p>{how}: {escape(reason)}.</p>" for how, reason in changes.items() if reason)
        note += f"<p>{escape(skipped_line(outcome.skipped, outcome.steps))}.</p>" if outcome.skipped else ""
        note += "" if outcome.forecast is None else f"<p>{escape(forecast_line(outcome.forecast))}.</p>"
        compared = table(("", "planned", "actual", "difference"), plan_against_actual(plan, outcome))
        sections.append(section("Plan against actual", note + compared))
    if outcome and outcome.timeline:
        sections.append(section("Where the time went", _timeline(outcome)))
    if plan:
        rows = [(line.quantity, line.value, line.reason) for line in plan.lines]
        sections.append(section("Plan", table(("", "value", "reason"), rows)))
    if (machine := Machine.read_if_there(folder.machine)) is not None:
        sections.append(section("Machine", table((), _machine(machine))))
    if changed := folder.changes():
        sections.insert(0, section("Changed records", "".join(f"<p>{escape(line)}.</p>" for line in changed)))
    sections.append(section("Recipe", f"<pre>{escape(read_text(folder.recipe))}</pre>"))
    page = whole_page(folder.path.name, _summary(evaluation, outcome), sections)
    write_whole(folder.report, page, parents=False)


def skipped_line(skipped: int, steps: int) -> str:
    """How many steps made no update, for people."""
    return f"{skipped:,} of {steps:,} steps made no update: their gradients overflowed in fp16, and were scaled down"


def whole_page(title: str, summary: str, sections: Iterable[str]) -> str:
    """The HTML of a page; `summary` and `sections` are HTML, the title is text."""
    template = Template(resources.files("shoestring.report").joinpath("page.html").read_text(encoding="utf-8"))
    body = "\n".join(sections)
    code, policy = script() if "<div data-plot>" in body else ("", _NO_SCRIPT)
    return template.substitute(title=escape(title), summary=summary, body=body, script=code, policy=policy)


def _summary(evaluation: Evaluation | None, outcome: Outcome | None) -> str:
    if outcome is None:
        return "Still running."
    made = with_name(Count(outcome.tokens).short(), "positions")
    if outcome.predictions is not None and outcome.predictions != outcome.tokens:
        made += f" ({with_name(Count(outcome.predictions).short(), 'predictions')})"
    text = f"{counted(outcome.steps, 'step')}, {made} in {Seconds(outcome.seconds).short()}"
    if outcome.segments > 1:
        text += f" over {outcome.segments} sessions"
    if outcome.delivered is not None:
        text += f"; delivered: the weights of step {outcome.delivered:,}, which had the lowest held-out loss"
    if evaluation:
        loss = with_error(evaluation.loss, evaluation.loss_error)
        text += f"; held-out loss {loss} nats per {'token' if evaluation.macro_f1 is None else 'row'}"
        if evaluation.macro_f1 is not None:
            text += f", macro-F1 {evaluation.macro_f1:.3f}"
        if "bigram" in evaluation.baselines:
            text += f", where counting pairs of tokens reaches {evaluation.baselines['bigram']:.3f}"
    return escape(text + ".")


PARTS = {
    "start": "loading the command",
    "measure": "timing passes and their memory",
    "plan": "planning",
    "prepare": "tokenizing and packing",
    "set-up": "loading torch, building or restoring the model",
    "first step": "until its result was there: compiling, loading kernels",
    "train": "steps",
    "evaluations": "held-out rows, between steps",
    "samples": "texts that the model writes, after evaluations",
    "checkpoints": "waiting for them",
    "last evaluation": "and the baselines",
    "last checkpoint": "waiting until it is on disk",
    "page": "figures and results",
    "unknown": "a session was killed, and did not say",
}
"""What a part of a session's time is."""


def timeline_rows(outcome: Outcome) -> list[tuple[str, str, str, str]]:
    """(part, seconds, share, meaning) of the parts that took any time worth a line."""
    whole = sum(outcome.timeline.values()) or 1.0
    return [
        (part, Seconds(seconds).short(), f"{seconds / whole:.1%}", PARTS.get(part, ""))
        for part, seconds in outcome.timeline.items()
        if seconds >= 0.0005 * whole
    ]


def _timeline(outcome: Outcome) -> str:
    rows, most = timeline_rows(outcome), max(outcome.timeline.values()) or 1.0
    bars = [(*row, outcome.timeline[row[0]] / most, row[0] == "train") for row in rows]
    body = "".join(
        _bar_row(part, f"<td class=number>{took}</td><td class=number>{share}</td><td>{escape(what)}</td>", width, ours)
        for part, took, share, what, width, ours in bars
    )
    return f"<table class=scores>{body}</table><p>Until DONE; the page follows it.</p>"


def _bar_row(name: str, cells: str, width: float, ours: bool) -> str:
    """A row of a table with a bar; `cells` are HTML."""
    return (
        f"<tr{' class=ours' if ours else ''}><td>{escape(name)}</td>{cells}"
        f"<td class=bar><div style='width:{width:.1%}'></div></td></tr>"
    )


def _scores(evaluation: Evaluation) -> str:
    losses = evaluation.baselines | {"this model": evaluation.loss}
    worst, shown = max(losses.values()), {name: f"{loss:.3f}" for name, loss in losses.items()}
    shown["this model"] = with_error(evaluation.loss, evaluation.loss_error)
    rows = "".join(
        _bar_row(name, f"<td class=number>{shown[name]}</td>", loss / worst, name == "this model")
        for name, loss in losses.items()
    )
    bits = f", {bits_text(evaluation)}" if evaluation.bits_per_byte is not None else ""
    about = (
        f"{escape(evaluation.text or 'held out')}: "
        f"{counted(evaluation.rows, 'row')}, {counted(evaluation.tokens, 'prediction')}, after step {evaluation.step:,}"
        f"; perplexity {perplexity_text(evaluation)}{bits}"
    )
    note = "" if evaluation.loss_error is None else f" {ERROR_NOTE}"
    more = f"{_texts(evaluation)}{_classes(evaluation)}{_possible(evaluation)}"
    return f"<table class=scores>{rows}</table><p>{about}.{note}</p>{more}"


def _texts(evaluation: Evaluation) -> str:
    """A line per text of data.validation, if they have names."""
    if not evaluation.texts:
        return ""
    return f"{table(*text_table(evaluation))}<p>{escape(first_note(evaluation))}</p>"


def _classes(evaluation: Evaluation) -> str:
    """The scores of a classifier, by class, and its confusion matrix."""
    if evaluation.macro_f1 is None:
        return ""
    found = f"<p>{escape(class_scores(evaluation))}</p>{table(CLASS_HEAD, class_rows(evaluation))}"
    return found + table(*confusion_table(evaluation)) if evaluation.confusion else found


def _possible(evaluation: Evaluation) -> str:
    """The share of the learnable that was learned, where the source is known."""
    oracle, worst = evaluation.baselines.get("oracle"), evaluation.baselines.get("uniform")
    if oracle is None or worst is None or worst <= oracle:
        return ""
    share = (worst - evaluation.loss) / (worst - oracle)
    text = (
        f"This model has learned {share:.1%} of the {worst - oracle:.3f} nats between a uniform guess and the oracle, "
        f"which knows the source and how each row was made from it."
    )
    if evaluation.entropy_rate is not None and evaluation.entropy_rate_error is not None:
        rate = f"{evaluation.entropy_rate:.3f} ± {evaluation.entropy_rate_error:.3f}"
        text += f" The source's entropy rate is {rate} nats per token."
    return f"<p>{escape(text)}</p>"


def _states(states: StateTable) -> list[str]:
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in states.sentences)
    rows = [(str(row.state), f"{row.share:.2%}", row.words, row.moves) for row in states.rows]
    listed = table(("state", "time", "words", "moves to"), rows)
    return [section("States, the most visited first", listed), section("Sentences drawn from the model", sentences)]


def _machine(machine: Machine) -> list[tuple[str, str]]:
    memory = "unknown" if machine.memory_bytes is None else Bytes(machine.memory_bytes).short()
    return [
        ("device", machine.device_name),
        ("threads", str(machine.threads)),
        ("memory", memory),
        ("system", f"{machine.system}, Python {machine.python}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())),
    ]


def section(title: str, content: str) -> str:
    """A section of a page; `content` is HTML."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """An HTML table of text cells; `kind` "prose" wraps the second column."""
    top = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table{f' class={kind}' if kind else ''}>{top}{body}</table>"
