"""A recipe from a text and a deadline alone, every field with its reason, for `shoestring best`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from shoestring.core import recipe_file
from shoestring.core.choices import Choices
from shoestring.core.errors import UserError
from shoestring.core.recipe import Recipe
from shoestring.core.registry import registry
from shoestring.core.sections import OF_VOCABULARY
from shoestring.core.specs import LEAST_PIECES
from shoestring.core.units import Bytes, Seconds
from shoestring.runs.look_at import Corpus

HELDOUT = 0.05
FEWEST_SCORED = 8
"""Held-out rows, for which a row is shortened."""
LONGEST = {"cpu": 256, "cuda": 512}
"""Bytes of a row by device; of pieces it has half as many."""
BYTES_PER_PIECE = 3.0
"""About, of 1,024 pieces and more."""
LEAST_TEXT = 3e4
"""Bytes of a text that pieces are fitted to, at least: 60 kB of Shakespeare had 1.62 nats per byte, 1.77 with bytes."""
MOST_PIECES = {"cpu": 1 << 12, "cuda": 1 << 15}
"""By device: the output product of more would take most of a step of a small network."""
USUAL_PIECES = 1 << 12
"""Of a text whose size is not known."""
PIECES_MEASURED = {
    "cpu": "0.75 and 1.05 nats per byte of stories after 90 s on two cores",
    "cuda": "0.495 and 0.548 nats per byte of stories in 60 s of an H200",
}
"""Held-out losses with 2,048 pieces and with bytes."""
OWN_PIECES = ("bytes", "bpe")
"""Kinds of tokenizers with few ids; others have as many as a language has words."""
LITTLE_TEXT = 100_000
"""Bytes. Rows that start elsewhere in each epoch had 2 % less loss of 36 kB, and of 125 kB 0.8 % more and 0.5 % less
(results/log.md)."""
SHORTEST = 16
SCORED_PER_SECOND, LEAST_SCORED, MOST_SCORED = 0.5, 32, 256
"""Held-out rows on a CPU, by the seconds of the deadline: evaluations then take some percent of it."""
SHORT = 600.0
"""Seconds: a shorter run on a CPU is evaluated five times, not ten."""
SCORED_AT_ONCE = 16
"""Rows per scoring pass on a CPU, where a micro-batch may be too small to be fast."""
SWIFT_PARTS = {
    "cpu": "qk_norm, gains, zero_outputs, value_embeddings, scales",
    "cuda": "qk_norm, gains, zero_outputs",
}
"""By device, without those that took time and won nothing when they were left out one at a time (results/log.md): with
small networks on a CPU, with 25 M parameters on a GPU."""
SWIFT_MEASURED = {
    "cpu": "1.185 and 1.257 nats of 64 × 2 on bytes, 0.478 and 0.527 of 128 × 3 on words",
    "cuda": "0.692, with three parts more, and 0.702 nats of 512 × 8 on 7 MB of stories as bytes",
}
"""Held-out losses of a Swift and of a Llama, by device."""


GIVEN = "--set"
"""The reason of a field that a user gives."""

Values = dict[str, dict[str, tuple[Any, str]]]
"""(value, reason) by section and field."""


def best_tokenizer(text_bytes: float | None, device: str) -> tuple[str, str]:
    """Pieces of bytes, as many as the root of the text's bytes, a power of 2; bytes where there is little text."""
    if text_bytes is not None and text_bytes < LEAST_TEXT:
        return "bytes", f"{Bytes(int(text_bytes)).short()} of text are too little to fit pieces to"
    pieces, rule = USUAL_PIECES, "how much text there is, is not known"
    if text_bytes is not None:
        pieces = min(MOST_PIECES[device], max(LEAST_PIECES, 1 << round(math.log2(math.sqrt(text_bytes)))))
        rule = f"about the root of {Bytes(int(text_bytes)).short()}"
    return f"bpe:{pieces}", f"{rule}; pieces learn faster than bytes: {PIECES_MEASURED[device]} (bench/pieces.py)"


def values_for(corpus: Corpus, time: float, device: str, name: str | None, tokenizer: str | None = None) -> Values:
    """The fields of a recipe; what depends on the machine is "auto". Default of `tokenizer`: the best one."""
    if tokenizer is None:
        tokenizer, fitted = best_tokenizer(corpus.bytes, device)
    else:
        fitted = "as given"
    unit, each = ("bytes", 1.0) if tokenizer == "bytes" else ("pieces", BYTES_PER_PIECE)
    words = tokenizer.partition(":")[0] not in OWN_PIECES
    copying = words and device == "cuda"  # rows of 512 and 1,024 words had less loss than those of 256 (results/log.md)
    length = LONGEST[device] if tokenizer == "bytes" or copying else LONGEST[device] // 2
    why = f"{length} {unit} on this {'GPU' if device == 'cuda' else 'CPU'}"
    if corpus.bytes is not None:
        while length > SHORTEST and corpus.bytes * HELDOUT / each / length < FEWEST_SCORED:
            length //= 2
            why = f"{Bytes(int(corpus.bytes)).short()} of text leave at least {FEWEST_SCORED} held-out rows"
        if corpus.bytes * HELDOUT < 2 * SHORTEST:
            raise UserError(
                f"{Bytes(int(corpus.bytes)).short()} of text are too little to train on, and to hold some out"
            )
    auto = ("auto", "")
    moved = "little text" if corpus.bytes is not None and corpus.bytes < LITTLE_TEXT else "many ids" if words else None
    return {
        "run": {"name": (f"best-{corpus.name}" if name is None else name, "its folder in runs/")},
        "budget": {
            "time": (str(Seconds(time)), "--time"),
            **({"epochs": auto} if corpus.bytes is not None else {}),
        },
        "data": {
            **corpus.fields,
            "tokenizer": (tokenizer, fitted),
            "length": (length, why),
            "heldout": (HELDOUT, "for the held-out loss"),
            **({"random_offset": (True, f"{moved}: rows that start elsewhere in each epoch")} if moved else {}),
        },
        "model": {**_network(device, words), "size": auto, "dropout": auto, **dict.fromkeys(OF_VOCABULARY, auto)},
        "train": {
            "optimizer": (
                "muon",
                "small networks learned more with it than with AdamW, each at its best learning rate",
            ),
            **dict.fromkeys(("batch", "lr", "warmup", "weight_decay", "beta2", "cooldown"), auto),
            "schedule": (
                "cooldown",
                "a learning rate that stays, then decays: until then it does not depend on the end",
            ),
        },
        **({"evaluate": _scored(time)} if device == "cpu" else {}),
    }


def _network(device: str, words: bool) -> dict[str, tuple[Any, str]]:
    """The family of networks: a Swift where it was measured to win."""
    tied = words and device == "cuda"
    return {
        "family": ("swift", f"less loss than a Llama: {SWIFT_MEASURED[device]} (results/log.md)"),
        "parts": (SWIFT_PARTS[device], "without those that won nothing for their time"),
        "tied": (
            tied,
            "a second matrix of so many ids won nothing" if tied else "an output matrix of its own paid, too",
        ),
        **({"pairs": ("auto", "")} if device == "cpu" else {}),
        "pointer": ("auto", ""),
    }


def _scored(time: float) -> dict[str, tuple[Any, str]]:
    """The fields of `[evaluate]` on a CPU."""
    rows = int(min(MOST_SCORED, max(LEAST_SCORED, SCORED_PER_SECOND * time)))
    return {
        "rows": (rows, "so that evaluations take some percent of the time"),
        "every": (0.2 if time < SHORT else 0.1, "a fifth of a run below 10 minutes, else a tenth"),
        "per_device": (SCORED_AT_ONCE, "several rows at once are faster to score"),
    }


def with_given(values: Values, overrides: Sequence[str]) -> Values:
    """The fields, with those that a user gives as `section.field=value` in their place."""
    found = {section: dict(fields) for section, fields in values.items()}
    for section, fields in recipe_file.overridden(overrides).items():
        kept = found.setdefault(section, {})
        for name, value in fields.items():
            if value is None:
                kept.pop(name, None)
            else:
                kept[name] = value, GIVEN
    model = found["model"]
    if "size" in model and {"width", "layers", "heads"} & model.keys():
        del model["size"]
    if (family := registry("family").get(str(model["family"][0]))) is not None:
        foreign = model.keys() - family.fields - {"family"}
        found["model"] = {name: kept for name, kept in model.items() if name not in foreign or kept[1] == GIVEN}
    return found


def recipe_of(values: Values) -> Recipe:
    plain = {section: {name: value for name, (value, _) in fields.items()} for section, fields in values.items()}
    return recipe_file.build(plain, "the recipe")


def with_choices(values: Values, choices: Choices) -> Values:
    """The fields with numbers in place of "auto", and their reasons."""
    found = {
        section: {name: kept for name, kept in fields.items() if kept[0] != "auto"}
        for section, fields in values.items()
    }
    for choice in choices.chosen:
        section, _, name = choice.field.partition(".")
        found[section][name] = (choice.value, choice.reason)
    return found


def text_of(values: Values, command: str) -> str:
    """The recipe as TOML, with a comment above each field."""
    lines = [f"# Written by: {command}", "# Edit it, and train it again under another name: shoestring train FILE", ""]
    for section, fields in values.items():
        lines.append(f"[{section}]")
        for name, (value, why) in fields.items():
            lines += [f"# {why}"] * bool(why)
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        lines.append("")
    return "\n".join(lines)
