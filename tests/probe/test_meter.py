"""What memory some work takes on a CPU, by the system's own account, beside arrays whose size is known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoestring.probe.machine import available_bytes, group_room, resident
from shoestring.probe.meter import Meter

MB = 1 << 20
LINUX = Path("/proc/self/clear_refs").exists()
CODE = """
import numpy as np, torch
from shoestring.probe.meter import Meter
MB = 1 << 20
noise = np.ones(50 * MB, np.uint8)
meter = Meter(torch.device("cpu"))
kept = np.ones(40 * MB, np.uint8)
found = []
for size in (100, 300, 100):
    meter.reset()
    work = np.ones(size * MB, np.uint8)
    del work
    usage = meter.usage()
    found += [usage.asked / MB, usage.rest / MB, usage.held / MB]
print(found)
"""


@pytest.mark.skipif(not LINUX, reason="the peak of a process is read from /proc")
def test_a_meter_reads_the_arrays_that_were_made() -> None:
    """In a process of its own: 40 MB stay, and 100, 300, 100 MB come and go. What was there before does not count."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    found = [float(text) for text in done.stdout.strip(" []\n").split(",")]
    for index, size in enumerate((100, 300, 100)):
        asked, rest, held = found[3 * index : 3 * index + 3]
        assert asked == pytest.approx(size + 40, abs=6)
        assert rest == pytest.approx(40, abs=6)
        assert held == asked


FILES = """
import mmap, sys
from pathlib import Path
import numpy as np, torch
from shoestring.probe.meter import Meter
MB = 1 << 20
file = Path(sys.argv[1])
file.write_bytes(bytes(200 * MB))
meter = Meter(torch.device("cpu"))
read = np.memmap(file, np.uint8)
read[::4096].sum()  # a store that is read
work = np.ones(100 * MB, np.uint8)
meter.look()
del work
other = np.memmap(file, np.uint8, mode="c")
other[: 50 * MB : 4096].sum()  # files that are read after the peak, which they do not pass
print(meter.usage().asked / MB)
"""


@pytest.mark.skipif(not LINUX, reason="the peak of a process is read from /proc")
def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILES, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) == pytest.approx(100, abs=6)


def test_a_system_that_tells_nothing_has_no_account(tmp_path: Path) -> None:
    assert resident(tmp_path / "absent") is None
    (tmp_path / "status").write_text("VmRSS:\t  30 kB\nVmHWM:\t  50 kB\n")  # before Linux 4.5
    assert resident(tmp_path / "status") == (30 * 1024, 50 * 1024, 0)


@pytest.mark.skipif(not LINUX, reason="the memory that is free is read from /proc")
def test_what_is_free_is_less_than_there_is() -> None:
    meter = Meter(torch.device("cpu"))
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(meminfo["MemTotal"].split()[0]) * 1024
    assert meter.available is not None
    assert 0 < meter.available <= total
    assert available_bytes(torch.device("cpu")) == pytest.approx(meter.available, rel=0.5)
    found = resident()
    assert found is not None
    assert 10 * MB < found.now <= found.highest < total
    assert 0 < found.files < found.now


def test_limits_of_control_groups_count_with_those_around_them(tmp_path: Path) -> None:
    """Version 2: the inner group leaves 700 of 1,000, files that can go among them; the outer one 250 of 2,000."""
    inner = tmp_path / "outer/inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("1000\n")
    (inner / "memory.current").write_text("500\n")
    (inner / "memory.stat").write_text("anon 100\ninactive_file 200\n")
    (inner.parent / "memory.max").write_text("2000\n")
    (inner.parent / "memory.current").write_text("1750\n")
    (tmp_path / "memory.max").write_text("max\n")
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    assert group_room(tmp_path, own) == [700, 250]


def test_limits_of_the_first_version_of_control_groups(tmp_path: Path) -> None:
    group = tmp_path / "memory/job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("900")
    (group / "memory.usage_in_bytes").write_text("400")
    (group / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 100\n")
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/job\n4:memory:/job\n")
    assert group_room(tmp_path, own) == [600]


def test_no_control_groups_are_no_limit(tmp_path: Path) -> None:
    assert group_room(tmp_path, tmp_path / "absent") == []
