"""Learning rates and batches by law: published ones, our own for small networks, and what earlier runs say of them.

N is parameters without embeddings, D positions of training, B positions of a step. The published laws were fitted on
networks of 46 M parameters and more, ours were measured on 27 k to 6 M and are used up to there; between the two ranges
rates are interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shoestring.core.family import Family
from shoestring.core.units import Count
from shoestring.planning.earlier import Tried, by_earlier_runs

STEP_LR, STEP_LR_N, STEP_LR_D = 1.79, -0.713, 0.307
STEP_BATCH, STEP_BATCH_D = 0.58, 0.571
"""Step Law (Li et al. 2025): peak learning rate and batch in tokens, fitted on 60 M to 1 B parameters."""
STEP_LEAST = 46e6
"""Parameters from which on independent optima agree with it."""
BATCH_FACTOR = 1.8
"""By which 18 independent optima of 46 M to 2.9 B parameters had larger batches."""


class OwnLaw(NamedTuple):
    """Peak learning rate of small networks, at most `highest`: factor · N^n · D^d · B^b; of large ones, `large` times
    Step Law's."""

    factor: float
    n: float
    d: float
    b: float
    highest: float
    large: float


OWN = {"adamw": OwnLaw(3.97e-4, -0.267, 0.364, 0.095, 0.02, 1.0), "muon": OwnLaw(0.64, -0.304, 0.0, 0.0, 0.05, 2.5)}
OWN_D, OWN_B, OWN_MOST = (5e5, 2e6), (512, 2048), 6e6
"""Our laws by update rule: the positions and batches that they were measured with, beyond which they stay as they are,
and the parameters up to which they are used. AdamW's is fitted to six optima of single sweeps with 27 k to 603 k
parameters (results/auto_law-cpu.json). Muon's is a line of logs through four of those and two more on an H200
(results/log.md): 0.007 with 3.2 M, the vertex of three rates, and 0.0065 with 6.2 M, where only 0.0031 and 0.006 were
tried; all without normalized neurons, with which the best of three rates was the same after 600 steps. With 3.2 M
AdamW's vertex was 0.0026, and its law says 0.003. Large networks with Muon have 2.5 times Step Law's rate, though
Muon's updates are as large as AdamW's: with 85 M the vertex of four rates is 2.3 times it; with 25 M twice the rate on
the line between had 0.4 and 1.3 % less loss than that rate, and 4 times more again (results/log.md)."""
WITH_LAW = tuple(OWN)
"""Update rules whose learning rate is known."""


class Chosen(NamedTuple):
    value: float
    reason: str


def law_batch(d: float) -> float:
    """The best batch in positions."""
    return float(BATCH_FACTOR * STEP_BATCH * d**STEP_BATCH_D)


def step_law_lr(n: float, d: float) -> float:
    return float(STEP_LR * n**STEP_LR_N * d**STEP_LR_D)


def own_lr(law: OwnLaw, n: float, d: float, b: float) -> float:
    d, b = (min(most, max(least, x)) for x, (least, most) in ((d, OWN_D), (b, OWN_B)))
    return float(law.factor * n**law.n * d**law.d * b**law.b)


def best_lr(
    n: float, d: float, b: float, optimizer: str, trained: bool = False, family: Family | None = None
) -> Chosen:
    """The peak learning rate: our law of small networks, Step Law from 46 M on, between them a line of logs from the
    last rate of the one to the first rate of the other."""
    mine, law_b = OWN[optimizer], law_batch(d)
    batch = min(2.0, max(0.5, math.sqrt(b / law_b)))
    share = min(1.0, max(0.0, math.log(n / OWN_MOST) / math.log(STEP_LEAST / OWN_MOST)))
    large = mine.large * batch * step_law_lr(max(n, STEP_LEAST), d)
    law = large**share * own_lr(mine, min(n, OWN_MOST), d, b) ** (1 - share)
    terms = [f"{name}^{power:.3g}" for name, power in zip("NDB", (mine.n, mine.d, mine.b), strict=True) if power]
    own = f"our law of small networks, {' '.join([f'{mine.factor:.3g}', *terms])}"
    if mine.d or mine.b:
        own += f" (D to {short(OWN_D[1])}, B to {short(OWN_B[1])})"
    step = f"Step Law, {STEP_LR} N^{STEP_LR_N} D^{STEP_LR_D}"
    if mine.large != 1:
        step += f" × {mine.large:g} for {optimizer}"
    if not math.isclose(batch, 1.0, rel_tol=0.05):
        step += f" × {batch:.2g} = √(batch / {short(law_b)}), 0.5 to 2 (nanochat)"
    rule = own if share == 0 else step
    if 0 < share < 1:
        ends = f"{short(OWN_MOST)} and {short(STEP_LEAST)}"
        rule = f"between {own}, and {step}, at {ends} ({share:.0%} of the way)"
    rule += f"; N = {short(n)}, D = {short(d)}, B = {short(b)}"
    factor = 1.0
    if family is not None and family.lr_factor != 1:
        factor, rule = factor * family.lr_factor, f"{rule}; × {family.lr_factor:g} for {family.name}"
    if trained:
        factor, rule = factor * TRAINED_FACTOR, f"{rule}; × {TRAINED_FACTOR:g} for weights that are trained already"
    return Chosen(float(f"{min(mine.highest, law * factor):.3g}"), rule)


TRAINED_FACTOR = 0.1


def corrected_lr(law: Chosen, tried: Sequence[Tried], n: float, d: float) -> Chosen:
    """The law's rate, times what earlier runs say of it."""
    found = by_earlier_runs(tried, n, d)
    if found is None:
        return law
    return Chosen(float(f"{law.value * found.factor:.3g}"), f"{found.reason}; {law.value:g} by {law.reason}")


def short(value: float) -> str:
    return Count(round(value)).short()
