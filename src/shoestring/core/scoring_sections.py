"""The sections of a recipe about what a run tells of itself: its evaluation, and its trackers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from shoestring.core.schema import Between, Each, Registered, Text
from shoestring.core.sections import MOST_ROWS, SIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate:
    """The evaluation on held-out rows."""

    rows: Annotated[int, SIZE, "most held-out rows to score"] = 256
    context: Annotated[
        int | None,
        Between(0, MOST_ROWS),
        "tokens at the beginning of a row that are only context: rows begin every data.length − context tokens of the "
        "text, and each token is scored once. Default: rows are cut one after the other, and all of a row is scored",
    ] = None
    per_device: Annotated[
        int | None, Between(1, MOST_ROWS), "micro-batch; default: that of training, on a CPU at least 2,048 positions"
    ] = None
    every: Annotated[float, Between(1e-6, 1), "fraction of the planned steps between evaluations"] = 0.1
    prompts: Annotated[
        tuple[str, ...] | None,
        Each({str: Text(4096, "\n\t")}),
        "beginnings of the texts that the model writes at evaluations; default: three of held-out rows. []: no texts",
    ] = None
    overlap: Annotated[
        str | None,
        Text(4096),
        "file of `shoestring fingerprints`: after step 1 and at evaluations, compare the least and most likely tokens "
        "after its prompts with those of the first weights",
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Track:
    """Trackers of metrics, besides the run folder."""

    to: Annotated[
        tuple[str, ...], Each({str: Registered("tracker")}), "tensorboard, wandb, trackio: any number of them"
    ] = ()
