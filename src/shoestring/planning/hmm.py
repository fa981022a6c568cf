"""The plan of an HMM: micro-batch, seconds per epoch, and the epochs that fit."""

from __future__ import annotations

from collections.abc import Sequence

from shoestring.core.errors import Refusal
from shoestring.core.numeric import interpolate
from shoestring.core.recipe import Recipe
from shoestring.core.records import Line, Plan, Point, Profile
from shoestring.core.sections import number
from shoestring.core.units import Bytes, Count, Flops, Interval, Seconds, counted, rate
from shoestring.planning.figures import show_seconds
from shoestring.planning.history import NO_HISTORY, Correction
from shoestring.planning.lines import devices_note, parts_reason
from shoestring.planning.make import REPORT_SECONDS, reserve_seconds, seconds_ends
from shoestring.planning.refusal import naming_the_nearest
from shoestring.planning.split import choose_split
from shoestring.planning.stops import checkpoint_interval, evaluation_count

HMM_ROWS = 1 << 16
"""Largest useful micro-batch."""
EPOCH_BYTES = 400
"""Upper bound of what a checkpoint records per epoch."""


@naming_the_nearest
def plan_hmm(
    recipe: Recipe,
    profile: Profile,
    rows: int,
    spent: float = 0.0,
    correction: Correction = NO_HISTORY,
    devices: int = 1,
    rows_reason: str = "",
) -> Plan:
    """The plan for `rows` training rows; `spent` seconds of the time budget are gone.

    The devices share the rows of each update. Raises PlanError as `make_plan`.
    """
    hmm = recipe.hmm
    assert hmm is not None, "a recipe with [hmm]"
    length = recipe.data.length
    split = choose_split(profile, HMM_ROWS, None, recipe.budget.memory)
    updates = 1 if hmm.update == "all" else -(-rows // hmm.update_every)
    own_rows = -(-rows // updates // devices)
    counting = _seconds(profile.points, split.point, own_rows)
    epoch = updates * (counting + profile.update_seconds) * correction.factor
    score = recipe.evaluate.rows * profile.validate_seconds_per_row
    evaluations = evaluation_count(recipe)
    # several starts are compared after three epochs each
    extra = 3 * (hmm.restarts - 1)
    parts = {"spent so far": spent, "set-up": profile.setup_seconds, "finish": score + REPORT_SECONDS}
    parts["evaluations"] = evaluations * score
    saving_share = profile.checkpoint_seconds / max(epoch, checkpoint_interval(recipe))
    allowed: dict[str, int] = {}
    if recipe.budget.epochs is not None:
        allowed["epochs"] = max(1, round(number(recipe.budget.epochs)))
    if recipe.budget.time is not None:
        time = float(recipe.budget.time)
        left = time - sum(parts.values()) - reserve_seconds(time)
        allowed["time"] = int(left / (epoch * (1 + saving_share))) - extra
    binding = min(allowed, key=lambda name: allowed[name])
    epochs = allowed[binding]
    if epochs < 1:
        raise Refusal(
            f"nothing fits the time: budget.time = {recipe.budget.time}, and one epoch of {counted(rows, 'row')} takes "
            f"{Seconds(epoch).short()}; raise it, or choose fewer data.documents or hmm.states",
            "time",
        )
    parts["train"] = (epochs + extra) * epoch
    parts["checkpoints"] = parts["train"] * saving_share
    tokens = epochs * rows * length
    seconds = sum(parts.values())
    passes = (epochs + extra) * updates * -(-own_rows // split.per_device)
    ends = seconds_ends(parts, profile, split.point, passes, correction.spread)
    limit = getattr(recipe.budget, binding)
    at_once = min(split.per_device, own_rows)  # the measured peak includes scoring
    peak = _peak(profile.points, at_once)
    disk = (recipe.train.keep + 2) * (profile.checkpoint_bytes + EPOCH_BYTES * (epochs + extra))
    if recipe.budget.disk is not None and disk > recipe.budget.disk:
        raise Refusal(
            f"nothing fits the disk: budget.disk = {recipe.budget.disk}, and the model and its checkpoints take "
            f"{Bytes(disk).short()}",
            "disk",
        )
    table = [
        ("rows", Count(rows).short(), "; ".join(filter(None, (f"of {length} tokens", rows_reason)))),
        ("micro-batch", f"at most {counted(split.per_device, 'row')}", split.reason),
        *(("devices", str(devices), note) for note in devices_note(devices, profile)),
        ("updates", f"{updates:,} per epoch", f'hmm.update = "{hmm.update}"'),
        ("epochs", f"{epochs:,}", f"budget.{binding} = {limit}"),
        (
            "time per epoch",
            Seconds(epoch).short(),
            f"{counted(rows, 'row')} at {rate(rows * length / epoch, 'positions/s')}",
        ),
        ("computation", Flops(tokens * profile.cost.train_flops_per_token).short(), "6 H² per token"),
        ("seconds", Interval(ends[0], seconds, ends[1]).show(show_seconds), parts_reason(parts)),
        (
            "memory",
            "unknown" if peak is None else Bytes(peak).short(),
            f"measured; micro-batch of {counted(at_once, 'row')}",
        ),
        *_rows_per_gigabyte(profile),
        ("parameters", Count(profile.cost.total_parameters).short(), "start, transitions, emissions"),
    ]
    return Plan(
        binding=binding,
        recipe=recipe.fingerprint,
        steps=epochs * updates,
        tokens=tokens,
        predictions=tokens,
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
    """The peak of a micro-batch of `rows`, interpolated between measured batches; at least that of the smallest."""
    known = [(point.batch, point.peak_bytes) for point in points if point.peak_bytes is not None]
    return round(interpolate(known, rows)) if known else None


def _rows_per_gigabyte(profile: Profile) -> list[tuple[str, str, str]]:
    """The line on how many more rows a gigabyte of memory holds; none where that was not measured."""
    if profile.memory is not None:
        row_bytes, how = profile.memory.row_bytes, "by the line through all measured peaks"
    else:
        known = [(point.batch, point.peak_bytes) for point in profile.points if point.peak_bytes is not None]
        if len(known) < 2 or known[-1][1] <= known[0][1]:
            return []
        (small, little), (large, much) = known[0], known[-1]
        row_bytes, how = (much - little) / (large - small), f"between micro-batches of {small:,} and {large:,} rows"
    if row_bytes <= 0:
        return []
    return [("rows per GB", Count(int(1e9 / row_bytes)).short(), f"{Bytes(round(row_bytes)).short()} per row, {how}")]


def _seconds(points: Sequence[Point], largest: Point, rows: int) -> float:
    """Seconds to count `rows` rows in micro-batches of `largest`; the rest is interpolated between measured batches."""
    smaller = sorted((p for p in points if p.batch < largest.batch), key=lambda p: p.batch)
    known = [(p.batch, p.seconds) for p in (*smaller, largest)]
    whole, rest = divmod(rows, largest.batch)
    return whole * largest.seconds + (interpolate(known, rest) if rest else 0.0)
