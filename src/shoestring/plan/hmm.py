"""The plan of an HMM: rows at a time, seconds an epoch, and how many epochs fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

from shoestring.core.facts import Line, Plan, Point, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.units import Bytes, Count, Flops, Interval, Seconds, rate
from shoestring.plan.history import NO_HISTORY, Correction
from shoestring.plan.intervals import seconds_ends
from shoestring.plan.lines import devices_note, parts_reason
from shoestring.plan.make import REPORT_SECONDS, checkpoint_interval, reserve_seconds
from shoestring.plan.refusal import Refusal, plan_or_nearest
from shoestring.plan.split import choose_split, most_memory

EPOCH_BYTES = 400
"""At most, of what a checkpoint notes of each epoch."""


def plan_hmm(
    recipe: Recipe,
    profile: Profile,
    rows: int,
    spent: float = 0.0,
    correction: Correction = NO_HISTORY,
    devices: int = 1,
) -> Plan:
    """`rows` training rows of `data.length` tokens; `spent` seconds of the time budget are gone already.

    The devices share the rows of each update. Raises PlanError as `make_plan`, with the nearest recipe that fits.
    """
    attempt = partial(_plan, profile=profile, rows=rows, spent=spent, correction=correction, devices=devices)
    return plan_or_nearest(recipe, attempt, most_memory(profile))


def _plan(recipe: Recipe, *, profile: Profile, rows: int, spent: float, correction: Correction, devices: int) -> Plan:
    hmm, length = recipe.hmm, recipe.data.length
    assert hmm is not None, "an HMM recipe"
    split = choose_split(profile, recipe.batch, None, recipe.budget.memory)
    updates = 1 if hmm.update == "all" else -(-rows // hmm.update_every)
    counted = -(-rows // updates // devices)
    counting = _seconds(profile.points, split.point, counted)
    epoch = updates * (counting + profile.update_seconds) * correction.factor
    score = recipe.evaluate.rows * profile.validate_seconds_per_row
    evaluations = math.ceil(1 / recipe.evaluate.every)
    # while several starts are compared, each takes three epochs of its own
    extra = 3 * (hmm.restarts - 1)
    parts = {"spent so far": spent, "set-up": profile.setup_seconds, "finish": score + REPORT_SECONDS}
    parts["evaluations"] = evaluations * score
    saving_share = profile.checkpoint_seconds / max(epoch, checkpoint_interval(recipe))
    allowed: dict[str, int] = {}
    if recipe.budget.epochs is not None:
        allowed["epochs"] = max(1, round(recipe.budget.epochs))
    if recipe.budget.time is not None:
        time = float(recipe.budget.time)
        left = time - sum(parts.values()) - reserve_seconds(time)
        allowed["time"] = int(left / (epoch * (1 + saving_share))) - extra
    binding = min(allowed, key=lambda name: allowed[name])
    epochs = allowed[binding]
    if epochs < 1:
        raise Refusal(
            f"nothing fits the time: budget.time = {recipe.budget.time}, and one epoch of {rows:,} rows takes "
            f"{Seconds(epoch).short()}; raise it, or take fewer data.documents or hmm.states",
            "time",
        )
    parts["train"] = (epochs + extra) * epoch
    parts["checkpoints"] = parts["train"] * saving_share
    tokens = epochs * rows * length
    seconds = sum(parts.values())
    passes = (epochs + extra) * updates * -(-counted // split.per_device)
    ends = seconds_ends(parts, profile, split.point, passes, correction.spread)
    limit = getattr(recipe.budget, binding)
    at_once = min(split.per_device, counted)  # scoring was measured beside them
    peak = _peak(profile.points, at_once)
    disk = profile.checkpoint_bytes + EPOCH_BYTES * (epochs + extra)
    if recipe.budget.disk is not None and disk > recipe.budget.disk:
        raise Refusal(
            f"nothing fits the disk: budget.disk = {recipe.budget.disk}, and the model and its checkpoint take "
            f"{Bytes(disk).short()}",
            "disk",
        )
    table = [
        ("rows", Count(rows).short(), f"of {length} tokens"),
        ("rows at a time", f"at most {split.per_device:,}", split.reason),
        *(("devices", str(devices), note) for note in devices_note(devices, profile)),
        ("updates", f"{updates:,} an epoch", f'hmm.update = "{hmm.update}"'),
        ("epochs", f"{epochs:,}", f"budget.{binding} = {limit}"),
        ("an epoch", Seconds(epoch).short(), f"{rows:,} rows at {rate(rows * length / epoch, 'tokens/s')}"),
        ("computation", Flops(tokens * profile.cost.train_flops_per_token).short(), "6 H² a token"),
        (
            "seconds",
            Interval(ends[0], seconds, ends[1]).show(lambda value: Seconds(value).short()),
            parts_reason(parts),
        ),
        (
            "memory",
            "unknown" if peak is None else Bytes(peak).short(),
            f"measured; {at_once:,} rows at once",
        ),
        *_rows_per_gigabyte(profile),
        ("parameters", Count(profile.cost.total_parameters).short(), "start, transitions, emissions"),
    ]
    return Plan(
        binding=binding,
        recipe=recipe.fingerprint,
        steps=epochs * updates,
        tokens=tokens,
        samples=epochs * rows,
        effective_batch=rows if hmm.update == "all" else min(rows, hmm.update_every),
        per_device=split.per_device,
        accumulate=1,
        devices=devices,
        epochs=float(epochs),
        flops=tokens * profile.cost.train_flops_per_token,
        seconds=seconds,
        parts=parts,
        step_seconds=epoch / updates,
        tokens_per_second=rows * length / epoch,
        disk_bytes=disk,
        peak_bytes=peak,
        evaluations=evaluations,
        intervals={"seconds": ends},
        correction=correction.factor if correction.runs else None,
        measured_on=profile.machine.fingerprint,
        lines=(*(Line(quantity=q, value=v, reason=r) for q, v, r in table), *correction.lines()),
    )


def _peak(points: Sequence[Point], rows: int) -> int | None:
    """What so many rows at once take, by lines between measured batches; never less than the smallest of them took."""
    known = [(point.batch, point.peak_bytes) for point in points if point.peak_bytes is not None]
    if not known:
        return None
    for (b0, y0), (b1, y1) in itertools.pairwise(known):
        if b0 < rows <= b1:
            return round(y0 + (y1 - y0) * (rows - b0) / (b1 - b0))
    return known[0][1] if rows <= known[0][0] else known[-1][1]


def _rows_per_gigabyte(profile: Profile) -> list[tuple[str, str, str]]:
    """How many more rows at a time a gigabyte of memory holds; nothing where that was not measured."""
    if profile.memory is not None:
        row_bytes, how = profile.memory.row_bytes, "by the line through all measured peaks"
    else:
        known = [(point.batch, point.peak_bytes) for point in profile.points if point.peak_bytes is not None]
        if len(known) < 2 or known[-1][1] <= known[0][1]:
            return []
        (small, little), (large, much) = known[0], known[-1]
        row_bytes, how = (much - little) / (large - small), f"between {small:,} and {large:,} rows at a time"
    if row_bytes <= 0:
        return []
    return [("rows a GB", Count(int(1e9 / row_bytes)).short(), f"{Bytes(round(row_bytes)).short()} a row, {how}")]


def _seconds(points: Sequence[Point], largest: Point, rows: int) -> float:
    """How long counting `rows` rows takes, as many as `largest` at a time: by lines between measured batches."""
    smaller = sorted((p for p in points if p.batch < largest.batch), key=lambda p: p.batch)
    known = [(p.batch, p.seconds) for p in (*smaller, largest)]
    known = [(0, known[0][1]), *known]
    whole, rest = divmod(rows, largest.batch)
    (b0, s0), (b1, s1) = next(pair for pair in itertools.pairwise(known) if rest <= pair[1][0])
    return whole * largest.seconds + (s0 + (s1 - s0) * (rest - b0) / (b1 - b0) if rest else 0.0)
