"""The quantities of a plan by hand: what may be given, how each is written, and the equations between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shoestring.core.units import Bytes, Count, Flops, Seconds, rate

MARGIN = "margin"


class Option(NamedTuple):
    """How a figure is written on the command line."""

    read: Callable[[str], float]
    unit: str
    meaning: str
    may_be_interval: bool = False


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _whole(text: str) -> float:
    return float(Count.parse(text))


BUDGETS: Mapping[str, Option] = {
    "time": Option(Seconds.parse, "TIME", "wall clock, as 5d, 36h or 90s"),
    "flops": Option(Flops.parse, "FLOPS", "training computation, as 1e21 or 3.5P"),
    "tokens": Option(_whole, "COUNT", "tokens to train on, as 2.4B"),
    "steps": Option(_whole, "COUNT", "optimizer steps"),
    "samples": Option(_whole, "COUNT", "rows to train on"),
    "epochs": Option(_number, "NUMBER", "passes over the corpus (--corpus-tokens)"),
    "disk": Option(Bytes.parse, "SIZE", "room for stored tokens (--bytes-per-token) and --checkpoints"),
    "tokens_per_parameter": Option(_number, "NUMBER", "tokens for each of --params; 20 where nothing else limits"),
}
"""Each is a limit; of several the tightest binds."""
OPTIONS: Mapping[str, Option] = {
    "tokens_per_second": Option(_whole, "COUNT", "speed of training on one device", True),
    "flops_per_second": Option(Flops.parse, "FLOPS", "computation that one device does in training", True),
    "flops_per_token": Option(Flops.parse, "FLOPS", "of training; 6 × --params where it is not given", True),
    "params": Option(_whole, "COUNT", "parameters of the model"),
    "per_device": Option(_whole, "COUNT", "rows at a time on a device"),
    "accumulate": Option(_whole, "COUNT", "passes before an update"),
    "devices": Option(_whole, "COUNT", "devices that share a batch; with RECIPE too"),
    "batch": Option(_whole, "COUNT", "effective batch in rows"),
    "batch_tokens": Option(_whole, "COUNT", "effective batch in tokens"),
    "length": Option(_whole, "COUNT", "tokens of a row"),
    "latents": Option(_whole, "COUNT", "positions of a row that a Perceiver AR predicts"),
    "tokens_per_gb": Option(_whole, "COUNT", "tokens in 10^9 bytes of text", True),
    "entries_per_gb": Option(_whole, "COUNT", "documents in 10^9 bytes of text", True),
    "corpus": Option(Bytes.parse, "SIZE", "text that there is"),
    "corpus_tokens": Option(_whole, "COUNT", "tokens that there are: one epoch", True),
    "bytes_per_token": Option(_number, "NUMBER", "on disk: 2 for a vocabulary up to 65,536"),
    "checkpoints": Option(Bytes.parse, "SIZE", "of all that are kept"),
    "memory": Option(Bytes.parse, "SIZE", "that is free on a device"),
    "rows_per_gb": Option(_whole, "COUNT", "rows at a time in 10^9 bytes of memory", True),
    MARGIN: Option(_number, "NUMBER", "get this many times the data needed, as 1.25"),
}
"""Facts, which must agree with each other."""
FIGURES: Mapping[str, Option] = {**BUDGETS, **OPTIONS}


class Quantity(NamedTuple):
    """What a figure or a result is called in the table, how it is printed, and its unit where it is one of several."""

    label: str
    show: Callable[[float], str]
    unit: str = ""


def _count(value: float) -> str:
    return Count(round(value)).short()


def _decimal(value: float) -> str:
    return f"{value:.4g}"


def _per(unit: str) -> Callable[[float], str]:
    return lambda value: rate(value, unit)


def _seconds(value: float) -> str:
    return Seconds(value).short()


def _bytes(value: float) -> str:
    return Bytes(round(value)).short()


def _flops(value: float) -> str:
    return Flops(value).short()


QUANTITIES: Mapping[str, Quantity] = {
    "per_device": Quantity("rows at a time", _count, "rows at a time"),
    "accumulate": Quantity("accumulation", _count, "passes"),
    "devices": Quantity("devices", _count, "devices"),
    "batch": Quantity("effective batch", lambda value: f"{_count(value)} rows"),
    "batch_tokens": Quantity("a step", lambda value: f"{_count(value)} tokens"),
    "length": Quantity("a row", lambda value: f"{_count(value)} tokens"),
    "latents": Quantity("latents", _count, "latents a row"),
    "latent_epochs": Quantity("to read every latent", lambda value: f"{_decimal(value)} epochs"),
    "params": Quantity("parameters", _count, "parameters"),
    "tokens_per_parameter": Quantity("tokens a parameter", _decimal, "tokens a parameter"),
    "flops_per_token": Quantity("computation a token", _flops, "a token"),
    "flops_per_second": Quantity("computation a second", lambda value: f"{_flops(value)}/s"),
    "tokens_per_second": Quantity("speed of a device", _per("tokens/s")),
    "speed": Quantity("speed", _per("tokens/s")),
    "steps": Quantity("steps", _count, "steps"),
    "samples": Quantity("samples", _count, "samples"),
    "tokens": Quantity("tokens", _count, "tokens"),
    "predictions": Quantity("predictions", _count, "predictions"),
    "epochs": Quantity("epochs", _decimal, "epochs"),
    "flops": Quantity("computation", _flops),
    "seconds": Quantity("time", _seconds),
    "tokens_per_gb": Quantity("tokens a GB", _per("tokens/GB")),
    "entries_per_gb": Quantity("entries a GB", _per("entries/GB")),
    "corpus": Quantity("corpus", _bytes),
    "corpus_tokens": Quantity("an epoch", lambda value: f"{_count(value)} tokens"),
    "gigabytes": Quantity("text", lambda value: _bytes(value * 1e9)),
    "entries": Quantity("entries", _count, "entries"),
    "bytes_per_token": Quantity("bytes a token", _decimal, "bytes"),
    "stored": Quantity("disk", _bytes),
    "memory": Quantity("memory", _bytes),
    "rows_per_gb": Quantity("rows a GB", _per("rows/GB")),
    "rows_in_memory": Quantity("rows that fit", _count, "rows at a time"),
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
"""Of a Perceiver AR: its 6 × parameters are of a latent, and its prefix is not counted."""


_TEXT_TO_GET = (
    Relation("gigabytes", ("tokens",), ("tokens_per_gb",)),
    Relation("entries", ("gigabytes", "entries_per_gb")),
)


def relations(*, latents: bool, corpus: bool) -> tuple[Relation, ...]:
    """The equations; with `latents` not all tokens are predicted, and with a `corpus` there is no text to get."""
    return _ALWAYS + (_LATENTS_PREDICTED if latents else _ALL_PREDICTED) + (() if corpus else _TEXT_TO_GET)
