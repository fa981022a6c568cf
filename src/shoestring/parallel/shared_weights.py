"""Weights in memory that several processes of one machine share, with a place for the gradients of each worker.

The first process alone changes the weights, under a lock; a worker copies them under the same lock, so that it never
sees half an update. The system releases the lock of a process that ends.

The memory is the host's or a GPU's. That of a GPU belongs to the first process, and the others map it (CUDA IPC), each
once: addresses stay, whatever has recorded them. A process gives the lock back, or says that its gradient is there,
only when the device is done with it. Where the first process ends, the others are ended too. Weights and gradients of
GPUs may also lie in the memory of the host, and are copied there and back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from shoestring.core.errors import Fault
from shoestring.core.host import is_out_of_memory
from shoestring.core.units import Bytes

_ALIGNED = 64
UNREAD = -1
"""The version of a worker that has not read the weights for its present work."""
CPU = torch.device("cpu")
Mapped = tuple[Any, tuple[Any, ...]]
"""How another process maps the memory of a GPU: a function, and what to call it with."""


class NotShared(Fault):
    """Processes cannot map the memory of a GPU here."""


class SharedWeights:
    """The weights by name, the gradients of each worker, how often the weights changed, and what each worker read."""

    def __init__(
        self,
        like: Mapping[str, Tensor],
        workers: int,
        file: int | None = None,
        keep_read: bool = False,
        device: torch.device = CPU,
        mapped: Mapped | None = None,
    ):
        """Tensors shaped `like` these, on `device`: in new memory, or in that of an open file and of what another
        process has `mapped`. The weights that each worker has read are there too if `keep_read`."""
        self._like, sizes = like, [_aligned(each.numel() * each.element_size()) for each in like.values()]
        self._size, head = sum(sizes), _aligned(8 * (1 + workers))
        numbers = (1 + (2 if keep_read else 1) * workers) * self._size
        whole = head + (numbers if device.type == "cpu" else 0)
        self.file = os.memfd_create("weights") if file is None else file
        if file is None:
            os.ftruncate(self.file, whole)
        self._memory = mmap.mmap(self.file, whole)
        if device.type == "cpu":
            self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8, offset=head)
        else:
            self._bytes = _allocated(numbers, workers, device) if mapped is None else opened(mapped)
        counts = np.frombuffer(self._memory, dtype=np.int64, count=1 + workers)
        self._version, self.read = counts[:1], counts[1:]
        """By worker: the version of the weights that its gradient is of."""
        self.weights = self._tensors(sizes, 0)
        self.gradients = [self._tensors(sizes, 1 + worker) for worker in range(workers)]
        kept = range(workers if keep_read else 0)
        self.weights_read = [self._tensors(sizes, 1 + workers + worker) for worker in kept]
        """By worker: the weights that its gradient is of; none are kept otherwise."""

    def _tensors(self, sizes: Sequence[int], place: int) -> dict[str, Tensor]:
        found, offset = {}, place * self._size
        for (name, like), size in zip(self._like.items(), sizes, strict=True):
            flat = self._bytes[offset : offset + like.numel() * like.element_size()].view(like.dtype)
            found[name], offset = flat.view(like.shape), offset + size
        return found

    def map(self) -> Mapped | None:
        """What one other process needs to map the memory of a GPU; None for the host's, which the file names."""
        return None if self._bytes.device.type == "cpu" else mapped_by_another(self._bytes)

    @property
    def device(self) -> torch.device:
        return self._bytes.device

    @property
    def version(self) -> int:
        """How often the weights changed."""
        return int(self._version[0])

    @contextmanager
    def changing(self) -> Iterator[None]:
        """No other process reads the weights while this one changes them."""
        with self._locked(fcntl.LOCK_EX):
            yield
            self.wait()
            self._version[0] += 1

    @torch.no_grad()
    def copy_to(self, weights: Mapping[str, Tensor], worker: int) -> None:
        """Give a worker the weights as they are, and note their version as what it has read."""
        own = list(weights.values())
        with self._locked(fcntl.LOCK_SH):
            self.read[worker] = self.version
            torch._foreach_copy_(own, [self.weights[name] for name in weights])
            self.wait()
        if self.weights_read:
            torch._foreach_copy_([self.weights_read[worker][name] for name in weights], own)

    @torch.no_grad()
    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights of the first process, unless they lie here."""
        apart = [name for name, tensor in weights.items() if tensor.data_ptr() != self.weights[name].data_ptr()]
        if apart:
            torch._foreach_copy_([self.weights[name] for name in apart], [weights[name] for name in apart])
        self.wait()

    @torch.no_grad()
    def put_gradients(self, gradients: Sequence[Tensor], worker: int) -> None:
        """Put the gradients of a worker, in the order of the weights, where the first process finds them."""
        torch._foreach_copy_(list(self.gradients[worker].values()), list(gradients))
        self.wait()

    def wait(self) -> None:
        """Return when the device has done what this process gave it: another process may then see it."""
        if self._bytes.is_cuda:
            for device in {self._bytes.device.index, torch.cuda.current_device()}:
                torch.cuda.current_stream(device).synchronize()

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        fcntl.lockf(self.file, kind)
        try:
            yield
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN)


def _allocated(size: int, workers: int, device: torch.device) -> Tensor:
    try:
        return torch.zeros(size, dtype=torch.uint8, device=device)
    except RuntimeError as cause:
        if not is_out_of_memory(cause):
            raise
        needs, free = (Bytes(each).short() for each in (size, torch.cuda.mem_get_info(device)[0]))
        raise Fault(
            f"the weights and the gradients of {workers} workers take {needs}, and {free} are free on the GPU; take "
            f"fewer parallel.workers or a smaller model"
        ) from cause


def mapped_by_another(tensor: Tensor) -> Mapped:
    """What another process needs to map a tensor of a GPU, which must live as long; raises NotShared."""
    with _sharing_a_gpu():
        found: Mapped = reduce_tensor(tensor)
    return found


def opened(mapped: Mapped) -> Tensor:
    """A tensor in the memory of another process; raises NotShared."""
    rebuild, arguments = mapped
    with _sharing_a_gpu():
        found: Tensor = rebuild(*arguments)
    return found


@contextmanager
def _sharing_a_gpu() -> Iterator[None]:
    try:
        yield
    except RuntimeError as cause:
        raise NotShared(
            f"processes cannot share the memory of the GPU here ({cause}; expandable segments in "
            f"PYTORCH_CUDA_ALLOC_CONF may be the reason)"
        ) from cause


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
