"""A model and its optimizer on a device: the one place where gradients are computed and applied.

The probe measures this code, so that what is planned is what runs. `accumulate` and `update` do not wait for the
device: their results stay there until they are read.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from shoestring.core.compiled_code import leave_if_full
from shoestring.core.host import give_back, is_out_of_memory
from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel, weights_of
from shoestring.models.layers.blocks import Block, scoring_as_in_training
from shoestring.models.triton_kernels import load_kernels
from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.compiling import CompilingBeside, compile_layers
from shoestring.training.graphs import Recordings
from shoestring.training.loss_scale import LossScale
from shoestring.training.optimizer import Optimizer, squared_norm
from shoestring.training.passes import OutOfMemory, Tally, Update, half
from shoestring.training.precision import ATTENTION, DTYPES, has_bf16, passing, settle_products
from shoestring.training.sharding import forget_whole, local_part, shard_model, sum_gradients

SomeRows = Batch | Tensor | NDArray[np.int64]
"""A batch, or the ids of rows that are one stream, (rows, length + 1)."""


class Learner:
    """Accumulate gradients over micro-batches, then update once."""

    def __init__(
        self,
        model: LanguageModel,
        settings: Train,
        device: torch.device,
        group: ProcessGroup | None = None,
        shard: bool = False,
        beside: bool = False,
        compiled: bool | None = None,
    ):
        """Layers are `compiled`; None: as `settings` say, by default on a GPU. With `beside`, they run as they are
        until a thread has compiled them."""
        self.model = model.to(device)
        self.device, self.group = device, group or ProcessGroup(0, 1, device)
        self.sharded = shard and self.group.world > 1
        self.summed_over = self.group
        """The processes whose gradients make one update."""
        self.dtype = DTYPES[settings.products(device.type, has_bf16(device))]
        """Of products."""
        if device.type == "cpu" and self.dtype != torch.float32:
            settle_products(self.dtype)
        self.loss_scale = LossScale(device) if self.dtype == torch.float16 else None
        gpu = device.type == "cuda"
        by_default = gpu if settings.compile is None else settings.compile
        self.compiled = by_default if compiled is None else compiled
        recorded = gpu and not self.sharded and settings.compile is not False
        self.keeps_shapes = self.compiled or recorded
        """Whether the first passes over rows of a new shape take longer: they are compiled or recorded."""
        for block in self.model.blocks:
            setattr(block, "recompute", settings.recompute)  # noqa: B010 (a module's attributes are typed as tensors)
        self._attention = ExitStack()
        self._beside: CompilingBeside | None = None
        self._scores_as_in_training = False
        if self.compiled and beside:
            if gpu:  # for all threads; each pass sets it again
                self._attention.enter_context(sdpa_kernel(ATTENTION, set_priority=True))
            self._beside = CompilingBeside(self.model.blocks, device, self.precision)
        elif self.compiled:
            self._compile()
        if self.sharded:
            shard_model(self.model)
        self.parameters = dict(self.model.named_parameters())
        self.weights = weights_of(self.model)
        """Parameters and saved buffers."""
        self.optimizer = Optimizer(self.model, settings, self.loss_scale)
        self._recordings: Recordings | None = None
        if recorded:
            learned = [p for p in self.parameters.values() if p.requires_grad]
            self._recordings = Recordings(self._loss, learned, None if self.optimizer.waits else self._apply)
        self._rate = torch.zeros((), device=device) if gpu and not self.optimizer.waits else None
        """The learning rate of a step, on a GPU."""
        self._fresh = True
        """Whether no gradient has been computed since the last update."""
        self._prepared = False
        self.notes_part = False
        """Whether the gradient's squared norm is noted after the first pass of an update."""
        self.part: tuple[Tensor, int] = torch.zeros((), device=device), 0
        """It, of the summed loss, and the predictions of that pass."""
        self.unscored = 0
        """How often rows to be scored did not fit the memory."""

    @property
    def settling(self) -> bool:
        """Whether layers run as they are until they are compiled."""
        return self._beside is not None

    @property
    def unrecorded(self) -> str | None:
        """Why passes could not be recorded as CUDA graphs; None: they could, or were not to be."""
        return None if self._recordings is None else self._recordings.failure

    def _compile(self) -> None:
        compile_layers(self.model.blocks)
        one_mode = all(isinstance(block, Block) and not block.has_modes for block in self.model.blocks)
        self._scores_as_in_training = not self.sharded and one_mode

    def _take_compiled(self) -> None:
        """Compile the layers, with the code that is there by now; recordings of them as they were are dropped."""
        assert self._beside is not None, "it is settling"
        self._beside.wait()
        self._beside = None
        self._attention.close()
        self._compile()
        self.forget()

    def precision(self) -> AbstractContextManager[None]:
        """The context of products and attention."""
        return passing(self.device, self.dtype)

    def accumulate(self, rows: SomeRows, per_device: int) -> Tally:
        """Add the gradient of the summed loss of all rows, in micro-batches of `per_device` rows.

        A worker with a share of the batch passes over its two halves, whose difference tells its noise.
        """
        batch = Batch.of(rows)
        if len(batch.ids) < 2 or not self.optimizer.wants_half:
            return self._accumulate(batch, per_device)
        first, second = batch.split(-(-len(batch.ids) // 2))
        tally = self._accumulate(first, per_device)
        if not tally.fitted:
            return tally
        self.optimizer.keep_half(tally.predictions, second.predictions())
        other = self._accumulate(second, per_device)
        if other.fitted and self.optimizer.wants_half:  # layers were compiled anew, and the gradient was dropped
            self.drop_gradient()
            return self.accumulate(batch, per_device)
        return Tally(tally.nats + other.nats, tally.predictions + other.predictions, other.fitted)

    def _accumulate(self, batch: Batch, per_device: int) -> Tally:
        nats = torch.zeros((), device=self.device, dtype=torch.float64)
        predictions = batch.predictions()
        if self._beside is not None and self._fresh and self._beside.ready:
            self._take_compiled()
        apart = batch.split(per_device)
        parts = [part.to(self.device) for part in apart]
        try:
            self._prepare()
            recording = None if self._recordings is None else self._recordings.of(parts, begin=self._fresh)
            for number, part in enumerate(parts):
                if recording is not None:
                    nats += recording.replay(part, self._fresh)
                else:
                    if self.sharded:
                        sum_gradients(self.model, number == len(parts) - 1)
                    loss = self._loss(part)
                    loss.backward()
                    nats += loss.detach()
                if self._fresh and self.notes_part:
                    self.part = self._square(), apart[0].predictions()
                self._fresh = False
            return Tally(nats, predictions)
        except (RuntimeError, MemoryError, OSError) as cause:
            full = self.compiled and not self.sharded and leave_if_full(cause)
            if not full and not is_out_of_memory(cause):
                raise
            if self._beside is not None:  # compiled layers keep less
                full = True
            if self.sharded:
                # The others wait in the middle of this pass for collectives of this process, which are matched by
                # their order alone, and autograd cannot continue a backward pass from the middle. So the processes
                # cannot agree to repeat the step: this one ends, torchrun ends the others, and all start again.
                raise OutOfMemory(per_device) from cause
        if self._beside is not None:
            self._take_compiled()
        self.forget()
        return self._accumulate(batch, per_device) if full else Tally(torch.zeros_like(nats), predictions, fitted=False)

    def _prepare(self) -> None:
        """Allocate what is kept before the first pass: between tensors that are freed, it would fragment memory."""
        if not self._prepared:
            self.optimizer.prepare()
            if self.device.type == "cuda":
                small = torch.zeros(16, 16, device=self.device)
                small @ small  # the workspace of all products
            self._prepared = True

    def warm_up(self, rows: SomeRows, per_device: int) -> None:
        """Load and compile what a step on rows of this shape needs, and change nothing.

        The update is one that is not made, as after a pass that did not fit.
        """

        def step() -> None:
            self._update(self.accumulate(rows, per_device)._replace(fitted=False), 0.0, ())
            self.optimizer.refused.zero_()

        if self.device.type == "cuda":
            load_kernels(step, self.device)
            self.drop_gradient()
            if self._recordings is not None:
                self._recordings.drop()  # what was never launched cannot be recorded
        step()

    def rehearse(self, rows: SomeRows) -> bool:
        """Record the passes over rows of a shape that was seen once, if possible; leaves no gradient."""
        recording = None
        try:
            if self._recordings is not None:
                part = Batch.of(rows).to(self.device)
                recording = self._recordings.of([part], begin=True)
                if recording is not None:
                    recording.rehearse(part)
        except (RuntimeError, MemoryError) as cause:
            if is_out_of_memory(cause):
                self.forget()
            raise
        self.drop_gradient()
        return recording is not None

    def _loss(self, part: Batch) -> Tensor:
        with self.precision():
            loss: Tensor = self.model(part) if self.loss_scale is None else self.model(part, self.loss_scale.value)
        return loss

    def _square(self) -> Tensor:
        """The squared norm of the gradient of this process."""
        square = squared_norm(self.optimizer.gradients()).double()
        return square if self.loss_scale is None else square / self.loss_scale.value.double() ** 2

    def drop_gradient(self) -> None:
        self._fresh = True
        self.optimizer.clear()

    def forget(self) -> None:
        """Drop the gradient, and what was recorded of its passes."""
        self.drop_gradient()
        if self._recordings is not None:
            self._recordings.drop()
        self._free()

    def _free(self) -> None:
        """Free memory that is cached for shapes that will not recur."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            give_back()

    def update(self, tally: Tally, lr: float, others: Sequence[float | Tensor] = ()) -> Update:
        """Add up the gradients of `summed_over`, divide them once by all predictions, clip, take a step and clear.

        If loss or norm is not finite or a process ran out of memory, neither this step nor any later one is taken. In
        fp16 a norm that is not finite skips only this step.
        """
        found = self._update(tally, lr, others)
        if self._beside is not None:
            self._beside.passed()
        return found

    def _update(self, tally: Tally, lr: float, others: Sequence[float | Tensor]) -> Update:
        numbers = (tally.predictions, not tally.fitted, *others)
        each = (n if isinstance(n, Tensor) else torch.full_like(tally.nats, float(n)) for n in numbers)
        sums = torch.stack([tally.nats, *each])
        if self._rate is not None:
            self._rate.fill_(lr)
        alone, kind = self.summed_over.world == 1, (self.optimizer.shares, self.optimizer.halved)
        recorded = self._recordings.update(sums, kind) if self._recordings is not None and alone else None
        self._fresh = True
        if recorded is None:
            return self._apply(sums, lr)
        self.optimizer.clear()
        return Update(*recorded)

    def _apply(self, sums: Tensor, lr: float = 0.0) -> Update:
        """Update the weights from the gradients and the sums of this process, at `self._rate` or `lr`."""
        gradients = self.optimizer.gradients()
        self.summed_over.all_reduce([sums] if self.sharded else [*gradients, sums])
        square = squared_norm(gradients)
        if self.sharded:
            self.group.all_reduce([square])
        nats, predictions, unfitted = sums[:3]
        rate = lr if self._rate is None else self._rate
        # a worker's few rows may hide no token: then its gradient is 0, and not 0 / 0
        norm = self.optimizer.step(square, predictions.clamp(min=1), unfitted + ~nats.isfinite(), rate)
        return Update(nats, predictions, norm, unfitted, self.optimizer.skipped, sums[3:])

    def saved_tensors(self) -> dict[str, Tensor]:
        """Everything to save, by name, on the device; for a sharded model the parts of this process."""
        found = {f"model/{name}": tensor.detach() for name, tensor in self.optimizer.masters.items()}
        others = {name: kept for name, kept in self.weights.items() if name not in self.optimizer.masters}
        found |= {f"model/{name}": local_part(kept).detach() for name, kept in others.items()}
        return found | self.optimizer.tensors()

    def placement(self, name: str) -> Tensor | None:
        """The parameter that a saved tensor belongs to, and is divided like."""
        if not self.sharded:
            return None
        kind, _, rest = name.partition("/")
        return self.parameters.get(rest.partition("/")[2] if kind == "optimizer" else rest)

    @torch.no_grad()
    def put_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore these tensors: whole ones, or the parts of this process."""
        for name, kept in self.weights.items():
            local_part(kept).copy_(tensors[f"model/{name}"])
        self.optimizer.restore(tensors)
        if self._recordings is not None:
            self._recordings.drop()  # the state is in other places

    def misfits(self, shapes: Mapping[str, torch.Size]) -> list[str]:
        """Names of the weights that these tensors lack, or have in another shape."""
        return [name for name, kept in self.weights.items() if shapes.get(f"model/{name}") != kept.shape]

    def score(self, rows: SomeRows, per_device: int) -> Tensor:
        """The loss of every prediction, (rows, length), on the CPU in float64; no gradient, no change of state.

        NaN where nothing is predicted, so that `nanmean` is the mean over the predictions. The processes share the
        rows, and each gets the losses of all.
        """
        batch = Batch.of(rows)
        share = -(-len(batch.ids) // self.group.world)
        own = torch.arange(len(batch.ids))[self.group.rank * share :][:share]
        losses = torch.zeros(batch.targets().shape, dtype=torch.float64, device=self.device)
        # all processes of a sharded model take part in every pass, with any row if none is left
        scored = torch.cat([own, own.new_zeros(share - len(own))]) if self.sharded else own
        if len(scored):
            found = self._passes(batch.take(scored), per_device, lambda part: self.model.token_losses(part).double())
            losses[own] = found[: len(own)]
        self.group.all_reduce([losses])
        return losses.cpu().masked_fill(~batch.predicted().cpu(), math.nan)

    def log_probs(self, rows: SomeRows, per_device: int) -> Tensor:
        """The log-probabilities of every next token, (rows, length, vocabulary), on the CPU in float32: also where a
        batch predicts nothing."""
        return self._passes(
            Batch.of(rows),
            per_device,
            lambda part: self.model.logits(part.inputs()).detach().float().log_softmax(-1).cpu(),
        )

    def _passes(self, batch: Batch, per_device: int, score: Callable[[Batch], Tensor]) -> Tensor:
        """The scores of all rows, in micro-batches of `per_device`, or of half as many if the memory does not suffice.

        Where the model keeps shapes, the last row is repeated to fill the last micro-batch.
        """
        count = len(batch.ids)
        per_device = per_device if self.keeps_shapes else min(per_device, count)
        while True:
            try:
                with self.scoring():
                    found = []
                    for first in range(0, count, per_device):
                        numbers = torch.arange(first, first + per_device)
                        numbers = numbers.clamp(max=count - 1) if self.keeps_shapes else numbers[numbers < count]
                        found.append(score(batch.take(numbers).to(self.device)))
                return torch.cat(found)[:count]
            except (RuntimeError, MemoryError, OSError) as cause:
                if self.compiled and not self.sharded and leave_if_full(cause):
                    continue
                if not is_out_of_memory(cause):
                    raise
                if self.sharded:
                    raise OutOfMemory(per_device, scored=True) from cause
            self.unscored += 1
            self._free()
            per_device = half(per_device)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """As `scoring`, with layers as they are: every token of a text is a pass of another shape."""
        with self.scoring(), ExitStack() as stack:
            if self.compiled and not self.settling:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Evaluation mode: no dropout, no gradients, and the running means of the weights if there are any."""
        self.model.eval()
        self.optimizer.swap_averages()
        try:
            with scoring_as_in_training() if self._scores_as_in_training else torch.no_grad(), self.precision():
                yield
        finally:
            if self.sharded:
                forget_whole(self.model)
            self.optimizer.swap_averages()
            self.model.train()
