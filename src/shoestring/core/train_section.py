"""The section `[train]` of a recipe: every field with its type, its range and its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from shoestring.core.schema import Between, Registered
from shoestring.core.sections import COUNT, ROWS, STEPS, TIME, Auto, Precision, as_specs, number
from shoestring.core.specs import StepsSpec
from shoestring.core.tuning import FreezeSpec
from shoestring.core.units import Count, Seconds

_FACTOR = Between(1e-6, 1e6)

USUAL = {"warmup": 0.05, "weight_decay": 0.1, "beta2": 0.95}
"""Fields that are left out, where the learning rate is given: as in many published recipes."""
COOLDOWN = 0.6
"""The share of the steps in which a learning rate cools down, where the recipe names none. Of text that is read once,
0.4 has 0.6 % more loss, and 0.8 the same (results/log.md)."""
OF_RATES = ("embedding_lr", "head_lr", "scalar_lr")
"""Fields with factors of the learning rate."""
OF_MUON = ("polar_express", "normalize_neurons", "cautious_decay", "momentum_warmup")
"""Fields that only Muon reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """The optimization. The effective batch is the same on every machine; the plan chooses its split."""

    batch: Annotated[int | Auto | None, ROWS, "effective batch in rows; this or tokens; default: auto"] = None
    tokens: Annotated[Count | None, COUNT, "effective batch in positions: a multiple of data.length"] = None
    grow: Annotated[
        int | None, Between(1, 5), "how often the batch may double where gradient noise is larger; default: never"
    ] = None
    per_device: Annotated[int | None, ROWS, "micro-batch: rows per device and pass; default: fastest that fits"] = None
    optimizer: Annotated[
        str,
        Registered("optimizer"),
        "update rule: adamw; muon for the matrices of the blocks with adamw for the others; or adamw8bit, whose state "
        "takes a quarter of the memory (bitsandbytes)",
    ] = "adamw"
    lr: Annotated[float | Auto, Between(1e-12, 1e3), "peak learning rate; default: auto"] = "auto"
    schedule: Annotated[
        Literal["cosine", "linear", "cooldown", "constant"],
        "shape after the warm-up, by fraction of the budget; cooldown: constant, then linear",
    ] = "cosine"
    warmup: Annotated[
        float | Auto | None,
        Between(0, 1, open_high=True),
        "fraction of the budget for the warm-up; 0: none; default: auto, but 0.05 if lr is a number",
    ] = None
    least_warmup: Annotated[
        int | None,
        Between(0, 10**9),
        "steps of the warm-up at least, up to a quarter of the run; default: what the family needs",
    ] = None
    cooldown: Annotated[
        float | Auto | None,
        Between(0, 1, open_low=True),
        'share of the steps, the last ones, in which a cooldown decays; default: 0.6, or "auto"',
    ] = None
    continued: Annotated[
        bool | None,
        "continue the run of model.init with its optimizer and its place in the text: from before its cool-down, or "
        "from the checkpoint that RUN#CHECKPOINT names",
    ] = None
    final_lr: Annotated[float, Between(0, 1), "learning rate at the end, as a fraction of the peak"] = 0.0
    weight_decay: Annotated[
        float | Auto | None,
        Between(0, 1e3),
        "of matrices; gains and embeddings have none; default: auto, but 0.1 if lr is a number",
    ] = None
    beta1: Annotated[float, Between(0, 1, open_high=True), "decay of the mean gradient"] = 0.9
    beta2: Annotated[
        float | Auto | None,
        Between(0, 1, open_high=True),
        "decay of the mean squared gradient; default: auto, but 0.95 if lr is a number",
    ] = None
    clip: Annotated[float, Between(1e-9, 1e12), "largest gradient norm"] = 1.0
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        "of the products; weights stay fp32. auto: on a GPU bf16, or fp16 where it has no bf16 (T4, V100)",
    ] = "auto"
    compile: Annotated[
        bool | None, "compile the blocks with torch; default: on a GPU, unless they are fused kernels"
    ] = None
    recompute: Annotated[
        Literal["none", "selective", "full"],
        "what the backward pass recomputes to save memory: nothing, the MLPs, or whole blocks",
    ] = "none"
    freeze: Annotated[
        FreezeSpec | None,
        "parts that keep their first weights, without gradient and optimizer state: embedding, attention, mlp, norm, "
        'head, blocks, blocks.N or blocks.N-M, as "embedding, blocks.0-5"',
    ] = None
    layer_decay: Annotated[
        float | None,
        Between(0, 1, open_low=True),
        "factor of the learning rate from a block to the one before it, and to the embedding: the last block and what "
        "follows it have the whole rate",
    ] = None
    embedding_lr: Annotated[
        float | None, _FACTOR, "factor of the learning rate for embeddings, and a head that is tied to them; default: 1"
    ] = None
    head_lr: Annotated[float | None, _FACTOR, "for the output matrix, where it is not tied; default: 1"] = None
    scalar_lr: Annotated[float | None, _FACTOR, "for gains, biases and other vectors and scalars; default: 1"] = None
    polar_express: Annotated[
        bool | None, "muon: five optimal quintics make updates more orthogonal than Newton–Schulz's; default: no"
    ] = None
    normalize_neurons: Annotated[
        bool | None,
        "muon: divide each output neuron's update by its running root mean square, and keep the norm of the whole "
        "(NorMuon); default: yes",
    ] = None
    cautious_decay: Annotated[
        bool | None, "muon: weights decay only where their update has their sign; default: no"
    ] = None
    momentum_warmup: Annotated[
        int | None, Between(0, 10**9), "muon: updates in which the momentum rises from 0.85 to 0.95; default: 0"
    ] = None
    ema: Annotated[
        float | None,
        Between(0, 1, open_low=True, open_high=True),
        "score a running mean of the weights with this decay",
    ] = None
    checkpoint_every: Annotated[
        Seconds | None,
        TIME,
        "time between checkpoints; default: a twentieth of the time budget, 1 s to 10 min, "
        "but ten times what writing one takes where that is over a second",
    ] = None
    keep: Annotated[
        int, Between(1, 10**6), "checkpoints kept, besides the best and those of save_every and save_steps"
    ] = 2
    save_every: Annotated[int | None, STEPS, "steps between checkpoints that are all kept"] = None
    save_steps: Annotated[
        StepsSpec | None,
        'steps whose checkpoints are all kept: "1,10,100", or "1,2,4,...", which continues to the end with that ratio',
    ] = None

    @property
    def normalizes(self) -> bool:
        """Whether Muon normalizes neurons."""
        return self.normalize_neurons is not False

    @property
    def cools(self) -> bool:
        """Whether the learning rate stays until it decays in a share of the steps, the last ones."""
        return self.schedule == "cooldown"

    @property
    def cooling(self) -> float | None:
        """The share of the steps, the last ones, in which the learning rate decays; None: it decays otherwise."""
        if not self.cools:
            return None
        return COOLDOWN if self.cooldown is None else number(self.cooldown)

    def __post_init__(self) -> None:
        as_specs(self, save_steps=StepsSpec, freeze=FreezeSpec)
        for name, value in USUAL.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, "auto" if self.lr == "auto" else value)

    def saved_count(self, total: int) -> int:
        """How many checkpoints of a run of `total` steps are kept to the end."""
        every = 0 if self.save_every is None else total // self.save_every
        listed = [] if self.save_steps is None else self.save_steps.up_to(total)
        return every + sum(self.save_every is None or step % self.save_every != 0 for step in listed)

    def is_saved(self, step: int) -> bool:
        """Whether the checkpoint of a step is kept to the end."""
        every = self.save_every is not None and step % self.save_every == 0
        return every or (self.save_steps is not None and step in self.save_steps.up_to(step))

    def products(self, device: str, has_bf16: bool) -> Precision:
        """The precision of products on a device of this type, which computes in bf16 or not."""
        if self.precision != "auto":
            return self.precision
        return "fp32" if device != "cuda" else "bf16" if has_bf16 else "fp16"
