"""A model and its optimizer on a device: the one place where gradients are made and applied.

The probe measures this very code, so that what is planned is what runs. Nothing in `accumulate` and `update` waits for
the device: what they return lies there, and is read when it is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from shoestring.core.errors import Fault
from shoestring.core.recipe import Train
from shoestring.models import Batch, LanguageModel
from shoestring.parallel.team import Team
from shoestring.train.graphs import Recordings
from shoestring.train.optimizer import Optimizer, squared_norm
from shoestring.train.sharding import forget_whole, only_the_last_pass_sums, shard_model

ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
SomeRows = Batch | Tensor | NDArray[np.int64]
"""What a learner reads: a batch, or the ids of rows that are one stream, (rows, length + 1)."""


class Tally(NamedTuple):
    """What came of some rows, on the device: a loss that is not divided yet."""

    nats: Tensor
    predictions: int
    fitted: bool = True
    """Whether the memory held them; if not, there is no gradient."""

    @property
    def mean(self) -> float:
        """Waits for the device."""
        return self.nats.item() / self.predictions


class Update(NamedTuple):
    """What came of a step, on the device, over all processes."""

    nats: Tensor
    predictions: Tensor
    norm: Tensor
    """Of the gradient, before clipping."""
    unfitted: Tensor
    """How many processes ran out of memory; if any did, the update was not made."""
    others: Tensor
    """Other numbers that were to be added up."""


class OutOfMemory(Fault):
    """A sharded model ran out of memory, and its processes cannot go on together."""

    def __init__(self, rows: int, scored: bool = False):
        self.half, self.scored = half(rows), scored
        what = "rows to be scored" if scored else "rows"
        super().__init__(f"{rows} {what} at a time do not fit the memory; the same command goes on with {self.half}")


def half(rows: int) -> int:
    """Of so many rows at a time, rounded up; a Fault where there is only one."""
    if rows == 1:
        raise Fault("a single row does not fit the memory; take a smaller model or data.length")
    return -(-rows // 2)


class Learner:
    """Accumulate gradients over micro-batches, then update once."""

    def __init__(
        self,
        model: LanguageModel,
        settings: Train,
        device: torch.device,
        team: Team | None = None,
        shard: bool = False,
    ):
        self.model = model.to(device)
        self.device, self.team = device, team or Team(0, 1, device)
        self.sharded = shard and self.team.world > 1
        self.bf16 = settings.precision == "bf16" or (settings.precision == "auto" and device.type == "cuda")
        self.compiled = device.type == "cuda" if settings.compile is None else settings.compile
        for block in self.model.blocks:
            setattr(block, "recompute", settings.recompute)  # noqa: B010 (a module's attributes are typed as tensors)
            if self.compiled:
                block.compile(dynamic=False)
        if self.compiled:
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)  # shapes are measured
        if self.sharded:
            shard_model(self.model)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = Optimizer(self.model, settings)
        self._recordings: Recordings | None = None
        if self.compiled and device.type == "cuda" and not self.sharded:
            self._recordings = Recordings(self._loss, [p for p in self.parameters.values() if p.requires_grad])
        self._fresh = True
        """Whether there is no gradient yet."""
        self._settled = False

    @contextmanager
    def precision(self) -> Iterator[None]:
        """The context that products run in, and attention: the fastest kernel first that can do it."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            if self.device.type != "cuda":
                yield
                return
            with sdpa_kernel(ATTENTION, set_priority=True):
                yield

    def accumulate(self, rows: SomeRows, per_device: int) -> Tally:
        """Add the gradient of the summed loss of all rows, `per_device` rows at a time."""
        batch, nats = Batch.of(rows), torch.zeros((), device=self.device, dtype=torch.float64)
        predictions = batch.predictions()
        parts = [part.to(self.device) for part in batch.split(per_device)]
        try:
            self._settle()
            recording = None if self._recordings is None else self._recordings.of(parts, begin=self._fresh)
            for number, part in enumerate(parts):
                if recording is not None:
                    nats += recording.replay(part, self._fresh)
                else:
                    if self.sharded:
                        only_the_last_pass_sums(self.model, number == len(parts) - 1)
                    loss = self._loss(part)
                    loss.backward()
                    nats += loss.detach()
                self._fresh = False
            return Tally(nats, predictions)
        except torch.OutOfMemoryError as cause:
            if self.sharded:
                # The others wait in the middle of this pass for collectives that this process will not take part in:
                # gathers of weights and sums of gradients are matched by their order alone, and autograd cannot go on
                # from the middle of a backward pass. So there is no place where all could agree to take the step
                # again: this process ends, torchrun ends the others, and half the rows are tried when all start again.
                raise OutOfMemory(per_device) from cause
        self.forget()
        return Tally(torch.zeros_like(nats), predictions, fitted=False)

    def _settle(self) -> None:
        """Before the first pass, take the memory that will be kept: among tensors that come and go, each piece of it
        would hold a large one's memory for good."""
        if not self._settled:
            self.optimizer.prepare()
            if self.device.type == "cuda":
                small = torch.zeros(16, 16, device=self.device)
                small @ small  # the workspace of all products
            self._settled = True

    def rehearse(self, rows: SomeRows) -> bool:
        """Record the passes over rows of a shape that was passed over once, if they can be; no gradient is left."""
        recording = None
        try:
            if self._recordings is not None:
                part = Batch.of(rows).to(self.device)
                recording = self._recordings.of([part], begin=True)
                if recording is not None:
                    recording.rehearse(part)
        except torch.OutOfMemoryError:
            self.forget()
            raise
        self.optimizer.clear()
        self._fresh = True
        return recording is not None

    def _loss(self, part: Batch) -> Tensor:
        with self.precision():
            loss: Tensor = self.model(part)
        return loss

    def forget(self) -> None:
        """Drop the gradient."""
        self._fresh = True
        self.optimizer.clear()
        if self._recordings is not None:
            self._recordings.drop()
        self._free()

    def _free(self) -> None:
        """Give memory back that is kept for shapes that will not come again."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def update(self, tally: Tally, lr: float, others: Sequence[float] = ()) -> Update:
        """Add up the gradients of all processes, divide them once by all predictions, clip, take a step and clear.

        A norm that is not finite takes no step, nor does one when a process ran out of memory; nor any after it.
        """
        numbers = (tally.predictions, not tally.fitted, *others)
        told = torch.stack([tally.nats, *(torch.full_like(tally.nats, float(number)) for number in numbers)])
        gradients = self.optimizer.gradients()
        self.team.add_up([told] if self.sharded else [*gradients, told])
        norm = squared_norm(gradients)
        if self.sharded:
            self.team.add_up([norm])
        nats, predictions, unfitted = told[:3]
        found = self.optimizer.step(norm, predictions, unfitted, lr)
        self._fresh = True
        return Update(nats, predictions, found, unfitted, told[3:])

    def score(self, rows: SomeRows, per_device: int) -> Tensor:
        """The loss of every prediction, (rows, length), on the CPU in float64; no gradient, no change of state.

        NaN where a batch predicts nothing: `nanmean` is the mean over the predictions, of packed rows and of others.
        The processes share the rows; each row is scored once, and all have all of them.
        """
        batch = Batch.of(rows)
        share = -(-len(batch.ids) // self.team.world)
        own = torch.arange(len(batch.ids))[self.team.rank * share :][:share]
        losses = torch.zeros(batch.targets().shape, dtype=torch.float64, device=self.device)
        if self.sharded:  # all take part in every pass, with any row where there is none left
            taken = torch.cat([own, own.new_zeros(share - len(own))])
        else:
            taken = own
        if len(taken):
            found = self._passes(batch.take(taken), per_device, lambda part: self.model.token_losses(part).double())
            losses[own] = found[: len(own)]
        self.team.add_up([losses])
        return losses.cpu().masked_fill(~batch.predicted().cpu(), math.nan)

    def log_probs(self, rows: SomeRows, per_device: int) -> Tensor:
        """The logarithm of the distribution of every next token, (rows, length, vocabulary), on the CPU in float32.

        Also where a batch predicts nothing.
        """

        def log_p(part: Batch) -> Tensor:
            return self.model.logits(part.inputs()).float().log_softmax(-1).cpu()

        return self._passes(Batch.of(rows), per_device, log_p)

    def _passes(self, batch: Batch, per_device: int, score: Callable[[Batch], Tensor]) -> Tensor:
        """Passes of so many rows, or of half as many where there is no memory for them.

        A compiled model passes over the last row again and again, so that its shapes stay.
        """
        count = len(batch.ids)
        per_device = min(per_device, count)
        while True:
            try:
                with self.scoring():
                    found = []
                    for first in range(0, count, per_device):
                        numbers = torch.arange(first, first + per_device)
                        numbers = numbers.clamp(max=count - 1) if self.compiled else numbers[numbers < count]
                        found.append(score(batch.take(numbers).to(self.device)))
                return torch.cat(found)[:count]
            except torch.OutOfMemoryError as cause:
                if self.sharded:
                    raise OutOfMemory(per_device, scored=True) from cause
            self._free()
            per_device = half(per_device)

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Without dropout or gradients, and with the running mean of the weights where there is one."""
        self.model.eval()
        self.optimizer.swap_averages()
        try:
            with torch.no_grad(), self.precision():
                yield
        finally:
            if self.sharded:
                forget_whole(self.model)
            self.optimizer.swap_averages()
            self.model.train()
