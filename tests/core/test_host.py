"""Limits of memory, and errors of having too little: real ones of torch, numpy, Python and the system."""

from __future__ import annotations

import errno
import mmap
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from shoestring.core import host
from shoestring.core.host import (
    Limit,
    free_host_bytes,
    group_limits,
    host_bytes,
    is_out_of_memory,
    own_limits,
)

HUGE = 1 << 46
"""Bytes that no machine has."""


@pytest.fixture
def limited() -> Iterator[None]:
    """No such tensor has addresses here. Where the system reserves nothing, it would be made, and fill the memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (HUGE // 2, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(HUGE, dtype=torch.uint8),
        lambda: torch.ones(1, HUGE // 4).exp(),
        lambda: np.empty(HUGE, dtype=np.uint8),
        lambda: bytearray(HUGE),
        lambda: mmap.mmap(-1, HUGE),
    ],
    ids=["torch", "ones", "numpy", "python", "mmap"],
)
@pytest.mark.usefixtures("limited")
def test_whatever_cannot_be_allocated_is_out_of_memory(allocate: Callable[[], object]) -> None:
    with pytest.raises((RuntimeError, MemoryError, OSError)) as raised:
        allocate()
    assert is_out_of_memory(raised.value), raised.value


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (torch.OutOfMemoryError("full"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("std::bad_alloc"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("shape '[3]' is invalid for input of size 4"), False),
        (ImportError("no module"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(cause: Exception, expected: bool) -> None:
    assert is_out_of_memory(cause) == expected


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with 1,000 kB, 800 of them free, and a process that takes 300; without limits."""
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 800 kB\n")
    (tmp_path / "status").write_text("VmSize: 300 kB\nVmData: 100 kB\n")
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.update({kind: pair[0]}))
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "own_limits", lambda: own_limits(tmp_path / "status"))
    monkeypatch.setattr(host, "group_limits", lambda: group_limits(tmp_path / "groups", tmp_path / "cgroup"))
    return tmp_path


@pytest.mark.usefixtures("machine")
def test_a_ulimit_is_the_memory_of_the_machine() -> None:
    assert (host_bytes(), free_host_bytes()) == (1000 << 10, 800 << 10)
    resource.setrlimit(resource.RLIMIT_AS, (500 << 10, -1))
    assert (host_bytes(), free_host_bytes()) == (500 << 10, 200 << 10)
    resource.setrlimit(resource.RLIMIT_DATA, (150 << 10, -1))
    assert (host_bytes(), free_host_bytes()) == (150 << 10, 50 << 10)
    resource.setrlimit(resource.RLIMIT_AS, (100 << 10, -1))
    assert (host_bytes(), free_host_bytes()) == (100 << 10, 0), "never below nothing"


def test_the_limit_of_a_control_group_is_the_memory_of_the_machine(machine: Path) -> None:
    group = machine / "groups" / "job"
    group.mkdir(parents=True)
    (machine / "cgroup").write_text("0::/job\n")
    (group / "memory.max").write_text(f"{600 << 10}\n")
    (group / "memory.current").write_text(f"{250 << 10}\n")
    assert (host_bytes(), free_host_bytes()) == (600 << 10, 350 << 10)
    (group / "memory.max").write_text("max\n")
    assert (host_bytes(), free_host_bytes()) == (1000 << 10, 800 << 10)


def test_limits_name_what_they_leave() -> None:
    assert all(isinstance(limit, Limit) and limit.room >= 0 for limit in group_limits())


def test_memory_that_is_freed_is_used_again_without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's count of pages that a child asked for again."""
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    code = """
import resource, time
from shoestring.core.host import keep_freed_memory
keep_freed_memory()
import numpy, torch

def step():
    found = [numpy.ones(1 << 19, "float32") for _ in range(20)], [torch.ones(1 << 19) for _ in range(20)]
    del found
    time.sleep(0.03)

step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step(), step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2000  # each step has 20,480 pages of 4 kB
