"""The threads of torch's operations on the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Operations of this thread of Python take one core, if `wanted`.

    For many small ones: several threads gain nothing there, and where processes share the cores they wait for each
    other in each. The last evaluation of a stream took 30 s in one of three runs on two cores, and 2 s in one alone.
    """
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
