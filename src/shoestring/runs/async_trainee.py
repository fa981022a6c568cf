"""A network in training by workers on this machine that apply their gradients to shared weights without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

import torch

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.parallel import Parallel
from shoestring.core.registry import dump_added
from shoestring.core.results import Sharing
from shoestring.parallel.shared_weights import CPU, NotShared, SharedWeights
from shoestring.runs.async_start import Waiting, start_worker
from shoestring.runs.async_worker import Order
from shoestring.runs.forks import Worker
from shoestring.runs.network_trainee import NetworkTrainee
from shoestring.track import LineFile
from shoestring.training.asynchronous import Dealer, add_counts, counts
from shoestring.training.checkpoint import State
from shoestring.training.loop import AnyHook, PendingStep, Requests
from shoestring.training.schedule import Schedule


class AsyncTrainee(NetworkTrainee):
    """As `NetworkTrainee`; this process holds weights and optimizer, and the workers compute gradients."""

    _timings: LineFile
    _clock: Clock
    _say: Callable[[str], object]

    _dealer: Dealer | None
    _processes: list[Worker]
    _lines: dict[int, Connection]
    waiting: list[Waiting]
    """Workers that are there already."""

    def build(self, fresh: bool, say: Callable[[str], object] = lambda _: None) -> None:
        """As for any network; the workers build theirs meanwhile."""
        self._say, self._dealer = say, None
        self._staleness: tuple[int, ...] = ()
        self._left: list[int] = []
        self._begin_workers()
        super().build(fresh, say)

    def _compiles_beside(self) -> bool:
        """This process takes no steps."""
        return False

    def _begin_workers(self) -> None:
        """Send the workers their orders, and start those that are not there."""
        self._processes, self._lines = [], {}
        workers, kind = self.recipe.workers, self.group.device.type
        order = Order(recipe_file.dump(self.recipe), self.plan.to_dict(), dump_added(), 0, workers, self._split, kind)
        for number in range(workers):
            worker, self._lines[number] = self.waiting.pop(0) if self.waiting else start_worker(workers)
            self._processes.append(worker)
            with suppress(OSError):  # one that has ended is noticed when it is listened to
                self._lines[number].send(order._replace(worker=number))

    def warm_up(self) -> None:
        """Share the weights with the workers."""
        if self.group.device.type == "cuda":
            self.learner.optimizer.prepare()
        try:
            self._share_weights(self.group.device)
        except NotShared as cause:
            self._share_host_memory(cause)

    def _share_weights(self, device: torch.device) -> None:
        """Tell the workers where the weights are, in memory of a device."""
        masters, workers = self.learner.optimizer.masters, self.recipe.workers
        shared = self._shared = SharedWeights(masters, workers, keep_read=self.recipe.compensates, device=device)
        mapped = [shared.map() for _ in range(workers)]
        if device == self.group.device:
            for name, tensor in shared.weights.items():
                tensor.copy_(masters[name].detach())
                self.learner.parameters[name].data = tensor
        for worker, line in self._lines.items():
            with suppress(OSError):
                line.send(mapped[worker])
                send_handle(line, shared.file, self._processes[worker].pid)

    def _share_host_memory(self, cause: NotShared) -> None:
        """Start the workers again."""
        self._say(f"{cause}; the workers share that of the host, which is slower")
        self.close()
        self._begin_workers()
        self._share_weights(CPU)

    def _check_mapped(self) -> None:
        """Raise NotShared if a worker cannot map the memory of the GPU; one that has ended is noticed later."""
        for worker, line in self._lines.items():
            with suppress(EOFError, OSError):
                answer = line.recv()
                if isinstance(answer, NotShared):
                    raise answer
                if isinstance(answer, str):
                    raise Fault(f"worker {worker}: {answer}")

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> PendingStep:  # type: ignore[override]
        self._known.forget()
        if self._dealer is None:
            if self._shared.device.type == "cuda":
                try:
                    self._check_mapped()
                except NotShared as cause:
                    self._share_host_memory(cause)
            for line in self._lines.values():
                with suppress(OSError):  # one that has ended is noticed when it is listened to
                    line.send((self._before, self.rows_read()))
            parallel = self.recipe.parallel or Parallel()
            most, strength = parallel.max_staleness, parallel.delay_compensation
            self._dealer = Dealer(
                self.learner, self._shared, self._lines, self.recipe.train, most, self._lost, strength
            )
        return self._dealer.begin(step, schedule, requests)

    def _lost(self, worker: int, step: int) -> None:
        self._timings.add(step=step, elapsed=self._clock.elapsed(), event="left", worker=worker)
        self._say(f"step {step:,}: worker {worker} ended; the others go on, and one takes over its rows")

    def hooks(self, metrics: LineFile, timings: LineFile, clock: Clock) -> Sequence[AnyHook]:
        self._timings, self._clock = timings, clock
        return super().hooks(metrics, timings, clock)

    def more_rows(self, steps: int) -> float | None:  # noqa: ARG002
        """The workers have opened the rows that there were at the start."""
        return None

    def _counts(self) -> tuple[tuple[int, ...], list[int]]:
        """Staleness and lost workers of all sessions."""
        if self._dealer is None:
            return self._staleness, self._left
        return add_counts(self._staleness, counts(self._dealer.staleness)), self._left + self._dealer.left

    def saved_values(self) -> dict[str, Any]:
        staleness, left = self._counts()
        return super().saved_values() | {"sharing": {"staleness": list(staleness), "left": left}}

    def put_values(self, values: dict[str, Any]) -> None:
        super().put_values(values)
        if self._dealer is None:  # a run that returns to its best weights has done what it did since
            kept = values.get("sharing", {})
            self._staleness, self._left = tuple(kept.get("staleness", ())), list(kept.get("left", []))

    def sharing(self, state: State) -> Sharing:  # noqa: ARG002
        staleness, left = self._counts()
        workers, memory = self.recipe.workers, self._shared.device.type
        return Sharing(strategy="async", workers=workers, left=tuple(left), staleness=staleness, memory=memory)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        for process in self._processes:
            process.wait()
