"""An estimate of the peak memory of training, from the recipe alone; `shoestring measure` measures it.

Three moments can be the peak. *loss*: after the forward pass, with a chunk of logits (`models.layers.cross_entropy`).
*backward*: at the last layer, with its gradients and all saved activations. *update*: with the gradients of all
parameters, and no activations. Each takes bytes = a + b · rows.

The estimate is for one device that holds the whole model, and for what torch allocates; `device_bytes` adds the
overhead of torch's allocator and the CUDA context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from shoestring.core.errors import UserError
from shoestring.core.family import family_of, learned_of
from shoestring.core.numeric import last_that_holds
from shoestring.core.recipe import Recipe
from shoestring.core.registry import registry
from shoestring.core.tuning import Learned
from shoestring.cost.transformer import Setting, Transformer, Work, transformer_of

CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}
"""Logits that are made at once, as in `models.layers.cross_entropy`."""
CHUNK_ROWS = {"cpu": 128, "cuda": 1}
"""Positions that such a chunk has at least."""
PROCESS_BYTES = 420 << 20
"""On a CPU: Python, torch and this package after some steps, measured with torch 2.13 on Linux."""
WORKSPACE_BYTES = 64 << 20
"""On a GPU: the workspace of cuBLAS, by default 32 MiB for each of two streams on Hopper."""
CONTEXT_BYTES = 600 << 20
"""On a GPU: the CUDA context with its loaded kernels; assumed, as it differs by GPU and driver."""
HELD_SHARE = 0.055
"""Allocator overhead as a share: on a GPU 2 to 8 % (results/train-h200.json), similar on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Bytes by purpose: a fixed part, and a part per row."""

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
    """The peak of training by micro-batch."""

    device: Literal["cpu", "cuda"]
    moments: dict[str, Moment]
    """By name: "loss", "backward" and "update"."""

    @property
    def steepest(self) -> Moment:
        """The moment that is the peak for large micro-batches."""
        return max(self.moments.values(), key=lambda moment: moment.row_bytes)

    @property
    def fixed(self) -> dict[str, int]:
        """Fixed bytes of the steepest moment, by purpose."""
        return self.steepest.fixed

    @property
    def per_row(self) -> dict[str, int]:
        """Bytes per row of the steepest moment, by purpose."""
        return self.steepest.per_row

    def at(self, rows: int) -> int:
        """The peak in bytes as torch allocates it; on a CPU with the libraries of the process."""
        return max(moment.at(rows) for moment in self.moments.values())

    def device_bytes(self, rows: int) -> int:
        """Bytes that must be free on the device, with the allocator's overhead and on a GPU the CUDA context."""
        return int(self.at(rows) * (1 + HELD_SHARE)) + (CONTEXT_BYTES if self.device == "cuda" else 0)

    def largest(self, free_bytes: int) -> int:
        """The largest micro-batch whose `device_bytes` fit into `free_bytes`; 0: none fits."""
        if self.device_bytes(1) > free_bytes:
            return 0
        found = last_that_holds(lambda rows: self.device_bytes(rows) <= free_bytes, 1)
        assert found is not None, "every row takes some bytes"
        return found


def estimate_memory(
    recipe: Recipe, vocabulary: int, device: Literal["cpu", "cuda"] = "cuda", accumulate: bool = False
) -> MemoryEstimate:
    """The peak of training a recipe; with `accumulate`, gradients of earlier passes are kept during a pass.

    For transformers whose shape the recipe gives, and networks that count their own activations; others are measured.
    """
    recipe.need_network("[hmm]: the memory of an HMM is measured, not estimated; run shoestring measure")
    if not isinstance(family_of(recipe.model), Transformer):
        return _estimate_by_passes(recipe, vocabulary, device, accumulate)
    model, train, length = recipe.model, recipe.train, recipe.data.length
    family, setting = transformer_of(model), setting_of(recipe, device)
    work, tuned = family.work(model, vocabulary, length, recipe.data.masked), learned_of(recipe, vocabulary)
    always = _weights(recipe, vocabulary, tuned) | {"libraries": PROCESS_BYTES if device == "cpu" else WORKSPACE_BYTES}
    count = sum(family.parameters(model, vocabulary, length).values())
    gradients = {"gradients": 4 * (count if tuned is None else tuned.learned)}
    during = always | (gradients if accumulate else {}) | {"copies of weights": _copies(recipe, setting)}
    if shared := family.shared_bytes(model, length, setting):
        during["mask"] = shared
    passed = model if tuned is None else replace(model, layers=model.layers - tuned.begins)
    kept = family.saved_bytes(passed, length, setting, recipe.data.masked)
    if recipe.lora is not None:
        kept["adapters"] = adapter_bytes(recipe, setting)
    head = 0 if tuned is not None and not tuned.head else work.output
    read = {"output": kept["output"] + int(setting.number * work.width * work.predictions)}
    passing = {"gradients under way": family.backward_bytes(model, length, setting)}
    if again := family.recomputed_bytes(model, length, setting):
        passing["computed again"] = again
    # the running mean is updated for all weights at once
    mean = {"changes of the running mean": gradients["gradients"]} if train.ema else {}
    moments = {
        "loss": Moment(
            fixed=during | _logits(recipe, work, setting, device) | {"output's gradient": 4 * head}, per_row=kept | read
        ),
        "backward": Moment(fixed=during | {"output's gradient": 8 * head}, per_row=kept | passing),
        "update": Moment(fixed=always | gradients | mean, per_row={}),
    }
    return MemoryEstimate(device=device, moments=moments)


def _estimate_by_passes(
    recipe: Recipe, vocabulary: int, device: Literal["cpu", "cuda"], accumulate: bool
) -> MemoryEstimate:
    """As `estimate_memory`, for a network whose passes are counted as a whole."""
    model, length, setting = recipe.model, recipe.data.length, setting_of(recipe, device)
    saved = family_of(model).saved_row_bytes(model, vocabulary, length, setting.number)
    if saved is None:
        transformer_of(model)  # raises the error that it must be measured
        raise AssertionError("a transformer counts its own bytes")
    if recipe.train.recompute == "full":
        raise UserError('train.recompute = "full": the memory of this network is measured; run shoestring measure')
    groups = family_of(model).cost(model, vocabulary, length, recipe.data.masked).parameters
    count, layers = sum(groups.values()), groups["attention"] + groups["mlp"]
    by_neurons = registry("optimizer")[recipe.train.optimizer].neuron_numbers(recipe.train) > 0
    tuned = learned_of(recipe, vocabulary, by_neurons) or Learned(count, count, layers, 0, count, count, True, 0)
    always = _kept(recipe, tuned) | {"libraries": PROCESS_BYTES if device == "cpu" else WORKSPACE_BYTES}
    gradients = {"gradients": 4 * tuned.learned}
    copies = {"copies of weights": 2 * count if setting.number == 2 else 0}
    chunk = {} if "logits" in saved else {"logits": CHUNK_BYTES[device]}
    # gradients exist layer by layer while the activations of earlier layers are still saved
    during = always | copies | gradients | chunk
    if tuned.changed:
        during["changed experts"] = 4 * tuned.changed
    mean = gradients | ({"changes of the running mean": 4 * tuned.learned} if recipe.train.ema else {})
    early = during if accumulate else {name: size for name, size in during.items() if name != "gradients"}
    under_way = {"gradient of changed experts": 4 * tuned.changed_at_once} if tuned.changed else {}
    moments = {
        "loss": Moment(fixed=early, per_row=saved),
        "backward": Moment(fixed=during | under_way, per_row=saved),
        "update": Moment(fixed=always | mean, per_row={}),
    }
    return MemoryEstimate(device=device, moments=moments)


def setting_of(recipe: Recipe, device: Literal["cpu", "cuda"]) -> Setting:
    """The setting of a recipe's passes on a device."""
    train, gpu = recipe.train, device == "cuda"
    return Setting(
        number=4 if train.products(device, has_bf16=True) == "fp32" else 2,
        compiled=gpu if train.compile is None else train.compile,
        gpu=gpu,
        recompute=train.recompute,
        document_mask=recipe.data.document_mask,
    )


def _weights(recipe: Recipe, vocabulary: int, tuned: Learned | None) -> dict[str, int]:
    """Bytes that persist between steps, all in float32."""
    family = transformer_of(recipe.model)
    if tuned is None:
        count = sum(family.parameters(recipe.model, vocabulary, recipe.data.length).values())
        matrices, neurons = (sum(of(recipe.model).values()) for of in (family.matrices, family.biases))
        tuned = Learned(count, count, matrices, neurons, count, count, True, 0)
    return _kept(recipe, tuned)


def _kept(recipe: Recipe, tuned: Learned) -> dict[str, int]:
    """Bytes of all weights, of the optimizer's state, and of what is kept beside weights that are learned."""
    rule = registry("optimizer")[recipe.train.optimizer]
    state = rule.count_state(tuned.learned, tuned.matrices, tuned.neurons, recipe.train)
    found = {"weights": 4 * tuned.all, "optimizer": 4 * state}
    found |= {"running mean": 4 * tuned.learned} if recipe.train.ema else {}
    if recipe.strategy == "local":
        found["average and its momentum"] = 8 * tuned.learned
        if recipe.parallel is not None and recipe.parallel.batch_moments is not False:
            found["noise, and half of the gradient"] = 8 * tuned.learned
    return found


def adapter_bytes(recipe: Recipe, setting: Setting) -> int:
    """Bytes per row that the adapters of all layers save: the small product of each, its input where another operation
    does not save it, and the unfused gate of a SwiGLU, which is all where the matrix is changed instead."""
    assert recipe.lora is not None, "there are adapters"
    family, model, n = transformer_of(recipe.model), recipe.model, recipe.data.length
    products = [pair for part in family.block_products(model).values() for pair in part]
    if setting.fused:
        gate = products[-2][0] - products[-1][1]
        return setting.number * n * model.layers * gate
    small = len(products) * recipe.lora.rank + sum(out_of for _, out_of in products)
    return setting.number * n * model.layers * small


def _copies(recipe: Recipe, setting: Setting) -> int:
    """Bytes of half-precision copies of the layers' matrices that the backward pass still holds."""
    if setting.number == 4:
        return 0
    of_parts = transformer_of(recipe.model).matrices(recipe.model)
    kept = {
        "none": sum(of_parts.values()),
        "selective": of_parts["attention"] + of_parts["mlp"] // recipe.model.layers,
        "full": sum(of_parts.values()) // recipe.model.layers,
    }[setting.recompute]
    return setting.number * kept


def _logits(recipe: Recipe, work: Work, setting: Setting, device: str) -> dict[str, int]:
    """A chunk of logits, or those of a whole batch if fewer; the output matrix, and its gradient."""
    columns = work.output // work.width
    positions = int(recipe.batch * work.predictions)
    row = setting.number * columns
    chunk = min(max(CHUNK_BYTES[device], CHUNK_ROWS[device] * row), row * positions)
    copy = 0 if setting.number == 4 else setting.number * work.output
    wide = 4 // setting.number * chunk if device == "cpu" else 0  # in float32, which a GPU's kernel does not need
    capped = transformer_of(recipe.model).logit_cap(recipe.model) is not None
    apart = wide * ((setting.number == 2) + capped)  # of logits in half precision, and the slopes of a cap
    return {"logits": chunk + apart, "output matrix": copy}
