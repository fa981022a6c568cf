"""The peak memory of training, before anything is built: what is there at the three moments that can be the fullest.

*loss*: the forward pass is over, and a chunk of logits is made (`models.cross_entropy`). *backward*: the gradients of
the last layer are under way, and nothing that was kept is freed yet. *update*: gradients of all parameters, and no
activations. Each is bytes = a + b · rows, and the largest counts. It is an estimate: `shoestring measure` measures.

It is of one device that holds the whole model, and of what torch allocates there; `device_bytes` adds what torch's
allocator and the CUDA context hold besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoestring.core.bisection import last_that_holds
from shoestring.core.errors import UserError
from shoestring.core.recipe import Recipe
from shoestring.cost.activations import Setting, backward_bytes, kept_bytes, recomputed_bytes
from shoestring.cost.networks import Work, layer_matrices, network_work, parameters

CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}
"""Of logits that are made at once, as in `models.cross_entropy`."""
PROCESS_BYTES = 420 << 20
"""On a CPU: Python, torch and this package after some steps, as measured with torch 2.13 on Linux."""
WORKSPACE_BYTES = 64 << 20
"""On a GPU: of cuBLAS, 32 MiB for each of two streams, which is its default on a Hopper."""
CONTEXT_BYTES = 600 << 20
"""On a GPU: the CUDA context with the kernels that are loaded; assumed, as it differs by card and driver."""
HELD_SHARE = 0.055
"""What an allocator holds beyond what is allocated: on a GPU 2 to 8 % (results/train-h200.json), on a CPU alike."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Bytes by what they are for: some whatever the batch, some for every row."""

    fixed: dict[str, int]
    per_row: dict[str, int]

    @property
    def fixed_bytes(self) -> int:
        return sum(self.fixed.values())

    @property
    def row_bytes(self) -> int:
        return sum(self.per_row.values())

    def at(self, rows: int) -> int:
        return self.fixed_bytes + self.row_bytes * rows


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """The peak of training with so many rows at a time."""

    device: Literal["cpu", "cuda"]
    moments: dict[str, Moment]
    """By name: "loss", "backward" and "update"."""

    @property
    def steepest(self) -> Moment:
        """The moment that counts where rows are many."""
        return max(self.moments.values(), key=lambda moment: moment.row_bytes)

    @property
    def fixed(self) -> dict[str, int]:
        """Of the steepest moment: bytes by part, whatever the batch."""
        return self.steepest.fixed

    @property
    def per_row(self) -> dict[str, int]:
        """Of the steepest moment: bytes by part, for every row."""
        return self.steepest.per_row

    def at(self, rows: int) -> int:
        """The peak in bytes, as torch allocates it; on a CPU with the libraries of the process."""
        return max(moment.at(rows) for moment in self.moments.values())

    def fullest(self, rows: int) -> str:
        """The moment of the peak."""
        return max(self.moments, key=lambda name: self.moments[name].at(rows))

    def device_bytes(self, rows: int) -> int:
        """What has to be free on the device: with what the allocator holds, and on a GPU the CUDA context."""
        return int(self.at(rows) * (1 + HELD_SHARE)) + (CONTEXT_BYTES if self.device == "cuda" else 0)

    def largest(self, free_bytes: int) -> int:
        """The most rows for which `device_bytes` are no more than this; 0 where there is no room for one."""
        if self.device_bytes(1) > free_bytes:
            return 0
        found = last_that_holds(lambda rows: self.device_bytes(rows) <= free_bytes, 1)
        assert found is not None, "every row takes some bytes"
        return found


def estimate_memory(
    recipe: Recipe, vocabulary: int, device: Literal["cpu", "cuda"] = "cuda", accumulate: bool = False
) -> MemoryEstimate:
    """The peak of training a recipe; `accumulate` where a step has several passes, so that gradients are there before.

    A Perceiver AR, Llama, GPT-2 or masked model on its own: a model of transformers and an HMM have to be measured.
    """
    if recipe.hmm is not None:
        raise UserError("[hmm]: the memory of an HMM is measured, not estimated; run shoestring measure")
    model, train, length = recipe.model, recipe.train, recipe.data.length
    setting = setting_of(recipe, device)
    work = network_work(model, vocabulary, length, recipe.data.masked)
    always = _weights(recipe, vocabulary) | {"libraries": PROCESS_BYTES if device == "cpu" else WORKSPACE_BYTES}
    gradients = {"gradients": 4 * sum(parameters(model, vocabulary, length).values())}
    during = always | (gradients if accumulate else {}) | {"copies of weights": _copies(recipe, setting)}
    kept = kept_bytes(model, length, setting, recipe.data.masked)
    read = {"output": kept["output"] + int(setting.number * work.width * work.predictions)}
    passing = {"gradients under way": backward_bytes(model, length, setting)}
    if again := recomputed_bytes(model, length, setting):
        passing["computed again"] = again
    output = 4 * work.output
    moments = {
        "loss": Moment(fixed=during | _logits(recipe, work, setting, device), per_row=kept | read),
        "backward": Moment(fixed=during | {"output's gradient": 2 * output}, per_row=kept | passing),
        "update": Moment(fixed=always | gradients | _running_mean(train.ema, gradients["gradients"]), per_row={}),
    }
    return MemoryEstimate(device=device, moments=moments)


def setting_of(recipe: Recipe, device: Literal["cpu", "cuda"]) -> Setting:
    """How the learner runs a recipe's passes on a device."""
    train, gpu = recipe.train, device == "cuda"
    half = train.precision == "bf16" or (train.precision == "auto" and gpu)
    return Setting(
        number=2 if half else 4,
        compiled=gpu if train.compile is None else train.compile,
        gpu=gpu,
        recompute=train.recompute,
        within=recipe.data.within,
    )


def _weights(recipe: Recipe, vocabulary: int) -> dict[str, int]:
    """What stays from step to step, all in float32: AdamW has two moments of every weight, Muon one of a matrix."""
    sizes = parameters(recipe.model, vocabulary, recipe.data.length)
    count, inside = sum(sizes.values()), sum(layer_matrices(recipe.model).values())
    found = {"weights": 4 * count, "optimizer": 8 * count - (4 * inside if recipe.train.optimizer == "muon" else 0)}
    return found | ({"running mean": 4 * count} if recipe.train.ema else {})


def _running_mean(ema: float | None, size: int) -> dict[str, int]:
    """What is added to the running mean is made for all weights at once."""
    return {"changes of the running mean": size} if ema else {}


def _copies(recipe: Recipe, setting: Setting) -> int:
    """Matrices of the layers in half precision, as far as the backward pass has them still; of one layer at least."""
    if setting.number == 4:
        return 0
    of_parts = layer_matrices(recipe.model)
    kept = {
        "none": sum(of_parts.values()),
        "selective": of_parts["attention"] + of_parts["mlp"] // recipe.model.layers,
        "full": sum(of_parts.values()) // recipe.model.layers,
    }[setting.recompute]
    return setting.number * kept


def _logits(recipe: Recipe, work: Work, setting: Setting, device: str) -> dict[str, int]:
    """A chunk of logits, or fewer where all rows of a batch make fewer; the output matrix, and its gradient."""
    columns = work.output // work.width
    positions = int(recipe.batch * work.predictions)
    chunk = min(CHUNK_BYTES[device], setting.number * columns * positions)
    copy = 0 if setting.number == 4 else setting.number * work.output
    wide = 2 * chunk if device == "cpu" and setting.number == 2 else 0  # in float32, which a GPU's kernel needs not
    return {"logits": chunk + wide, "output matrix": copy, "output's gradient": 4 * work.output}
