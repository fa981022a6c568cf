"""The plan of an HMM: rows at a time, seconds an epoch, and how many epochs fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from shoestring.core.errors import PlanError
from shoestring.core.facts import Line, Plan, Point, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.units import Bytes, Count, Flops, Seconds, rate
from shoestring.plan.make import REPORT_SECONDS, RESERVE_SECONDS, RESERVE_SHARE
from shoestring.plan.split import choose_split


def plan_hmm(recipe: Recipe, profile: Profile, rows: int, spent: float = 0.0) -> Plan:
    """`rows` training rows of `data.length` tokens; `spent` seconds of the time budget are gone already."""
    hmm, length = recipe.hmm, recipe.data.length
    assert hmm is not None, "an HMM recipe"
    split = choose_split(profile, recipe.batch, None, recipe.budget.memory)
    updates = 1 if hmm.update == "all" else -(-rows // hmm.update_every)
    counting = _seconds(profile.points, split.per_device, -(-rows // updates))
    epoch = updates * (counting + profile.update_seconds)
    score = recipe.evaluate.rows * profile.validate_seconds_per_row
    evaluations = math.ceil(1 / recipe.evaluate.every)
    # while several starts are compared, each takes three epochs of its own
    extra = 3 * (hmm.restarts - 1)
    parts = {"spent so far": spent, "set-up": profile.setup_seconds, "finish": score + REPORT_SECONDS}
    parts["evaluations"] = evaluations * score
    allowed: dict[str, int] = {}
    if recipe.budget.epochs is not None:
        allowed["epochs"] = max(1, round(recipe.budget.epochs))
    if recipe.budget.time is not None:
        time = float(recipe.budget.time)
        left = time - sum(parts.values()) - RESERVE_SECONDS - RESERVE_SHARE * time
        allowed["time"] = int(left / (epoch + profile.checkpoint_seconds)) - extra
    binding = min(allowed, key=lambda name: allowed[name])
    epochs = allowed[binding]
    if epochs < 1:
        raise PlanError(
            f"nothing fits the time: budget.time = {recipe.budget.time}, and one epoch of {rows:,} rows takes "
            f"{Seconds(epoch).short()}; raise it, or take fewer data.documents or hmm.states"
        )
    parts["train"] = (epochs + extra) * epoch
    parts["checkpoints"] = epochs * profile.checkpoint_seconds
    tokens = epochs * rows * length
    seconds = sum(parts.values())
    in_parts = " + ".join(f"{Seconds(v).short()} {k}" for k, v in parts.items() if v >= 0.05)
    limit = getattr(recipe.budget, binding)
    table = [
        ("rows", Count(rows).short(), f"of {length} tokens"),
        ("rows at a time", f"at most {split.per_device:,}", split.reason),
        ("updates", f"{updates:,} an epoch", f'hmm.update = "{hmm.update}"'),
        ("epochs", f"{epochs:,}", f"budget.{binding} = {limit}"),
        ("an epoch", Seconds(epoch).short(), f"{rows:,} rows at {rate(rows * length / epoch, 'tokens/s')}"),
        ("computation", Flops(tokens * profile.cost.train_flops_per_token).short(), "6 H² a token"),
        ("seconds", Seconds(seconds).short(), in_parts),
        ("memory", "unknown" if split.peak_bytes is None else Bytes(split.peak_bytes).short(), "measured peak"),
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
        devices=1,
        epochs=float(epochs),
        flops=tokens * profile.cost.train_flops_per_token,
        seconds=seconds,
        parts=parts,
        step_seconds=epoch / updates,
        tokens_per_second=rows * length / epoch,
        disk_bytes=2 * profile.checkpoint_bytes,
        peak_bytes=split.peak_bytes,
        evaluations=evaluations,
        lines=tuple(Line(quantity=q, value=v, reason=r) for q, v, r in table),
    )


def _seconds(points: Sequence[Point], most: int, rows: int) -> float:
    """How long counting `rows` rows takes, `most` at a time: by lines between the batches that were measured."""
    known = [(0, points[0].seconds), *((p.batch, p.seconds) for p in points if p.batch <= most)]
    whole, rest = divmod(rows, most)
    (b0, s0), (b1, s1) = next(pair for pair in itertools.pairwise(known) if rest <= pair[1][0])
    return whole * known[-1][1] + (s0 + (s1 - s0) * (rest - b0) / (b1 - b0) if rest else 0.0)
