"""What a model wrote while it learned: the same prompts after some of its evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from shoestring.core.errors import RecordError
from shoestring.core.run_folder import RunFolder
from shoestring.track import read_lines

_SHOWN = 6
"""Evaluations that a page shows, from the first to the last."""


class Written(NamedTuple):
    """A text after a step, with the prompt that it begins with."""

    step: int
    loss: float | None
    """Held out, after this step."""
    prompt: str
    text: str


def texts_by_prompt(folder: RunFolder, most: int = _SHOWN) -> list[list[Written]]:
    """For each prompt its texts, in order of steps: at most `most`, the first and the last among them."""
    lines = _spread(read_lines(folder.samples), most)
    losses = {line["step"]: line["heldout_loss"] for line in read_lines(folder.metrics) if "heldout_loss" in line}
    found: dict[int, list[Written]] = {}
    for line in lines:
        for place, (prompt, text) in enumerate(_pairs(line, folder.samples)):
            found.setdefault(place, []).append(Written(line["step"], losses.get(line["step"]), prompt, text))
    return list(found.values())


def _pairs(line: Mapping[str, Any], path: Path) -> list[tuple[str, str]]:
    """The prompts and texts of a line; raises RecordError where it has none."""
    try:
        pairs = [(sample["prompt"], sample["text"]) for sample in line["samples"]]
        if isinstance(line["step"], int) and all(isinstance(text, str) for pair in pairs for text in pair):
            return pairs
    except (KeyError, TypeError):
        pass
    raise RecordError(f"{path}: not a line of samples: {str(line)[:80]}")


def _spread(lines: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    if len(lines) <= most:
        return list(lines)
    return [lines[round(place * (len(lines) - 1) / (most - 1))] for place in range(most)]


def samples_html(prompts: Sequence[Sequence[Written]], unit: str) -> str:
    """A table per prompt: the step, the held-out loss, and the text with its prompt in bold."""
    return "".join(f"<table class=samples>{''.join(_row(text, unit) for text in texts)}</table>" for texts in prompts)


def _row(written: Written, unit: str) -> str:
    loss = "" if written.loss is None else f"{written.loss:.2f}"
    rest, begins = written.text, written.text.startswith(written.prompt)
    prompt = f"<b>{escape(written.prompt)}</b>" if written.prompt and begins else ""
    rest = rest[len(written.prompt) :] if prompt else rest
    return f"<tr><td>{unit} {written.step:,}</td><td>{loss}</td><td>{prompt}{escape(rest)}</td></tr>"
