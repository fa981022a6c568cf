"""The quantities of a plan by hand: the figures that may be given, their printed forms, and their equations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shoestring.core.units import Bytes, Count, Flops, Seconds, rate, with_name

MARGIN = "margin"


class Option(NamedTuple):
    """A figure on the command line."""

    read: Callable[[str], float]
    unit: str
    meaning: str
    may_be_interval: bool = False


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


BUDGETS: Mapping[str, Option] = {
    "time": Option(Seconds.parse, "TIME", "wall clock, as 5d, 36h or 90s"),
    "flops": Option(Flops.parse, "FLOPS", "training computation, as 1e21 or 3.5P"),
    "tokens": Option(Count.parse, "COUNT", "tokens to train on, as 2.4B"),
    "steps": Option(Count.parse, "COUNT", "optimizer steps"),
    "samples": Option(Count.parse, "COUNT", "rows to train on"),
    "epochs": Option(_number, "NUMBER", "passes over the corpus (--corpus-tokens)"),
    "disk": Option(Bytes.parse, "SIZE", "room for stored tokens (--bytes-per-token) and --checkpoints"),
    "tokens_per_parameter": Option(_number, "NUMBER", "tokens per parameter (--params); 20 without another budget"),
}
"""Limits; the tightest one binds."""
OPTIONS: Mapping[str, Option] = {
    "tokens_per_second": Option(Count.parse, "COUNT", "speed of training on one device", True),
    "flops_per_second": Option(Flops.parse, "FLOPS", "training computation of one device", True),
    "flops_per_token": Option(Flops.parse, "FLOPS", "of training; default: 6 × --params", True),
    "params": Option(Count.parse, "COUNT", "parameters of the model"),
    "per_device": Option(Count.parse, "COUNT", "micro-batch: rows per device and pass"),
    "accumulate": Option(Count.parse, "COUNT", "forward–backward passes per update"),
    "devices": Option(Count.parse, "COUNT", "devices that share a batch; also with RECIPE"),
    "batch": Option(Count.parse, "COUNT", "effective batch in rows"),
    "batch_tokens": Option(Count.parse, "COUNT", "effective batch in tokens"),
    "length": Option(Count.parse, "COUNT", "tokens per row"),
    "latents": Option(Count.parse, "COUNT", "positions of a row that a Perceiver AR predicts"),
    "tokens_per_gb": Option(Count.parse, "COUNT", "tokens per 10^9 bytes of text", True),
    "entries_per_gb": Option(Count.parse, "COUNT", "documents per 10^9 bytes of text", True),
    "corpus": Option(Bytes.parse, "SIZE", "size of the available text"),
    "corpus_tokens": Option(Count.parse, "COUNT", "available tokens: one epoch", True),
    "bytes_per_token": Option(_number, "NUMBER", "on disk: 2 for a vocabulary up to 65,536"),
    "checkpoints": Option(Bytes.parse, "SIZE", "size of all checkpoints that are kept"),
    "memory": Option(Bytes.parse, "SIZE", "free memory of a device"),
    "rows_per_gb": Option(Count.parse, "COUNT", "micro-batch rows per 10^9 bytes of memory", True),
    MARGIN: Option(_number, "NUMBER", "multiple of the needed data to get, as 1.25; also with RECIPE"),
}
"""Facts, which must agree."""
FIGURES: Mapping[str, Option] = {**BUDGETS, **OPTIONS}


class Quantity(NamedTuple):
    """A row of the table: its label, its printer, and the unit that reasons add to the printed value."""

    label: str
    show: Callable[[float], str]
    unit: str = ""


def show_count(value: float) -> str:
    return Count(round(value)).short()


def _decimal(value: float) -> str:
    return f"{value:.4g}"


def _per(unit: str) -> Callable[[float], str]:
    return lambda value: rate(value, unit)


def show_seconds(value: float) -> str:
    return Seconds(value).short()


def show_bytes(value: float) -> str:
    return Bytes(round(value)).short()


def show_flops(value: float) -> str:
    return Flops(value).short()


QUANTITIES: Mapping[str, Quantity] = {
    "per_device": Quantity("micro-batch", show_count, "rows per micro-batch"),
    "accumulate": Quantity("accumulation", show_count, "passes"),
    "devices": Quantity("devices", show_count, "devices"),
    "batch": Quantity("effective batch", lambda value: with_name(show_count(value), "rows")),
    "batch_tokens": Quantity("tokens per step", lambda value: with_name(show_count(value), "tokens")),
    "length": Quantity("row length", lambda value: with_name(show_count(value), "tokens")),
    "latents": Quantity("latents", show_count, "latents per row"),
    "latent_epochs": Quantity("to predict every position", lambda value: with_name(_decimal(value), "epochs")),
    "params": Quantity("parameters", show_count, "parameters"),
    "tokens_per_parameter": Quantity("tokens per parameter", _decimal, "tokens per parameter"),
    "flops_per_token": Quantity("computation per token", show_flops, "per token"),
    "flops_per_second": Quantity("computation per second", lambda value: f"{show_flops(value)}/s"),
    "tokens_per_second": Quantity("speed per device", _per("tokens/s")),
    "speed": Quantity("speed", _per("tokens/s")),
    "steps": Quantity("steps", show_count, "steps"),
    "samples": Quantity("samples", show_count, "samples"),
    "tokens": Quantity("tokens", show_count, "tokens"),
    "predictions": Quantity("predictions", show_count, "predictions"),
    "epochs": Quantity("epochs", _decimal, "epochs"),
    "flops": Quantity("computation", show_flops),
    "seconds": Quantity("time", show_seconds),
    "tokens_per_gb": Quantity("tokens per GB", _per("tokens/GB")),
    "entries_per_gb": Quantity("entries per GB", _per("entries/GB")),
    "corpus": Quantity("corpus", show_bytes),
    "corpus_tokens": Quantity("tokens per epoch", lambda value: with_name(show_count(value), "tokens")),
    "gigabytes": Quantity("text", lambda value: show_bytes(value * 1e9)),
    "entries": Quantity("entries", show_count, "entries"),
    "bytes_per_token": Quantity("bytes per token", _decimal, "bytes"),
    "stored": Quantity("disk", show_bytes),
    "memory": Quantity("memory", show_bytes),
    "rows_per_gb": Quantity("rows per GB", _per("rows/GB")),
    "rows_in_memory": Quantity("rows that fit", show_count, "rows per micro-batch"),
}
"""In the order of the table."""


class Relation(NamedTuple):
    """`result` = `constant` × the product of `factors` ÷ the product of `divisors`."""

    result: str
    factors: tuple[str, ...]
    divisors: tuple[str, ...] = ()
    constant: float = 1.0


_ALWAYS = (
    Relation("batch", ("per_device", "accumulate", "devices")),
    Relation("batch_tokens", ("batch", "length")),
    Relation("flops_per_token", ("params",), constant=6.0),
    Relation("speed", ("tokens_per_second", "devices")),
    Relation("corpus_tokens", ("corpus", "tokens_per_gb"), constant=1e-9),
    Relation("latent_epochs", ("length",), ("latents",)),
    Relation("rows_in_memory", ("memory", "rows_per_gb"), constant=1e-9),
    Relation("samples", ("steps", "batch")),
    Relation("tokens", ("samples", "length")),
    Relation("tokens", ("steps", "batch_tokens")),
    Relation("tokens", ("seconds", "speed")),
    Relation("tokens", ("epochs", "corpus_tokens")),
    Relation("stored", ("tokens", "bytes_per_token")),
)
_ALL_PREDICTED = (
    Relation("tokens_per_second", ("flops_per_second",), ("flops_per_token",)),
    Relation("flops", ("tokens", "flops_per_token")),
)
_LATENTS_PREDICTED = (
    Relation("tokens_per_second", ("flops_per_second", "length"), ("flops_per_token", "latents")),
    Relation("predictions", ("samples", "latents")),
    Relation("flops", ("predictions", "flops_per_token")),
)
"""Of a Perceiver AR: its 6 × parameters are per latent, and its prefix is not counted."""
_TEXT_TO_GET = (
    Relation("gigabytes", ("tokens",), ("tokens_per_gb",)),
    Relation("entries", ("gigabytes", "entries_per_gb")),
)


def relations(*, latents: bool, corpus: bool) -> tuple[Relation, ...]:
    """The equations. With `latents` only some tokens are predicted; with a `corpus` there is no text to get."""
    return _ALWAYS + (_LATENTS_PREDICTED if latents else _ALL_PREDICTED) + (() if corpus else _TEXT_TO_GET)
