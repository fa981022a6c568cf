"""A plan from figures given by hand: for another machine, or before there is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from shoestring.core.errors import PlanError
from shoestring.core.facts import Line, Plan
from shoestring.core.units import Bytes, Count, Seconds, rate


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is known; None is not known. Densities are per 10⁹ bytes of text."""

    time: Seconds | None = None
    tokens: Count | None = None
    tokens_per_second: float | None = None
    tokens_per_gb: float | None = None
    entries_per_gb: float | None = None
    per_device: int | None = None
    accumulate: int | None = None
    devices: int | None = None
    steps: int | None = None
    margin: float | None = None

    def given(self) -> dict[str, float]:
        return {
            field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) is not None
        }


def plan_by_hand(figures: Figures) -> Plan:
    """Everything that follows from the figures; raises PlanError when they contradict each other or say nothing."""
    for name, value in figures.given().items():
        if not (math.isfinite(value) and value > 0):
            raise PlanError(f"--{name.replace('_', '-')} = {value:g}: must be above zero")
    if figures.margin is not None and figures.margin < 1:
        raise PlanError(f"--margin = {figures.margin:g}: must be at least 1; 1.25 is a quarter more than needed")
    lines: list[Line] = []

    def line(quantity: str, value: str, reason: str) -> None:
        lines.append(Line(quantity=quantity, value=value, reason=reason))

    tokens, seconds = _tokens(figures, line)
    batch = samples = entries = gigabytes = None
    if figures.per_device or figures.accumulate:
        parts = (figures.per_device or 1, figures.accumulate or 1, figures.devices or 1)
        batch = math.prod(parts)
        line("effective batch", f"{batch} rows", " × ".join(map(str, parts)) + ": rows × accumulation × devices")
    if figures.steps and batch:
        samples = figures.steps * batch
        line("samples", f"{samples:,}", f"{figures.steps:,} steps × {batch} rows")
        if figures.margin:
            entries = math.ceil(round(samples * figures.margin, 6))
            line("entries", f"{entries:,}", f"{samples:,} samples × {figures.margin:g} margin")
    if tokens and figures.tokens_per_gb:
        margin = figures.margin or 1.0
        gigabytes = tokens / figures.tokens_per_gb * margin
        reason = f"{Count(tokens).short()} tokens ÷ {rate(figures.tokens_per_gb, 'tokens/GB')}"
        line("text", Bytes(round(gigabytes * 1e9)).short(), reason + (f" × {margin:g} margin" if margin > 1 else ""))
        if figures.entries_per_gb and entries is None:
            entries = math.ceil(round(gigabytes * figures.entries_per_gb, 6))
            line(
                "entries", Count(entries).short(), f"{gigabytes:.3g} GB × {rate(figures.entries_per_gb, 'entries/GB')}"
            )
    if not lines:
        raise PlanError(
            "nothing follows from these figures; give a recipe, or for example --time 5d --tokens-per-second 2500, "
            "or --per-device 4 --accumulate 4 --steps 1000"
        )
    return Plan(
        binding="time" if figures.time else "tokens" if figures.tokens else "steps",
        steps=figures.steps,
        tokens=tokens,
        samples=samples,
        effective_batch=batch,
        per_device=figures.per_device,
        accumulate=figures.accumulate,
        devices=figures.devices,
        entries=entries,
        gigabytes=gigabytes,
        seconds=seconds,
        tokens_per_second=figures.tokens_per_second,
        lines=tuple(lines),
    )


def _tokens(figures: Figures, line: Callable[[str, str, str], None]) -> tuple[int | None, float | None]:
    """Tokens from time and speed, or the other way round."""
    speed = figures.tokens_per_second
    if figures.time and figures.tokens and speed:
        needed = figures.tokens / speed
        if needed > figures.time:
            raise PlanError(
                f"--tokens {figures.tokens} take {Seconds(needed).short()} at {rate(speed, 'tokens/s')}, more than "
                f"--time {figures.time}; {Count(int(figures.time * speed)).short()} tokens fit"
            )
    if figures.tokens:
        line("tokens", Count(figures.tokens).short(), "given")
        if speed:
            line(
                "time", Seconds(figures.tokens / speed).short(), f"{figures.tokens} tokens ÷ {rate(speed, 'tokens/s')}"
            )
        return int(figures.tokens), figures.tokens / speed if speed else None
    if figures.time and speed:
        tokens = int(figures.time * speed)
        line("tokens", Count(tokens).short(), f"{figures.time} × {rate(speed, 'tokens/s')}")
        return tokens, float(figures.time)
    return None, float(figures.time) if figures.time else None
