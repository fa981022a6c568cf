"""What memory some work takes on a CPU, by the system's account of a process whose pages are known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shoestring.core.host import group_limits
from shoestring.probe import meter as meter_module
from shoestring.probe.machine import Resident, resident
from shoestring.probe.meter import Meter
from shoestring.probe.trials import Usage

CPU = torch.device("cpu")
MB = 1 << 20
LINUX = Path("/proc/self/clear_refs").exists()


class Process:
    """A process whose pages are counted by hand, as the system does; what is freed is kept until it is given back."""

    def __init__(self) -> None:
        self.own, self.kept, self.files, self.highest = 300 * MB, 0, 80 * MB, 0
        self.note()

    def note(self) -> None:
        self.highest = max(self.highest, self.own + self.kept + self.files)

    def take(self, size: int) -> None:
        reused = min(size, self.kept)
        self.own, self.kept = self.own + size, self.kept - reused
        self.note()

    def free(self, size: int) -> None:
        self.own, self.kept = self.own - size, self.kept + size

    def read_file(self, size: int) -> None:
        self.files += size
        self.note()

    def give_back(self) -> None:
        self.kept = 0

    def reset_peak(self, _device: torch.device) -> None:
        self.highest = 0
        self.note()

    def resident(self) -> Resident:
        return Resident(self.own + self.kept + self.files, self.highest, self.files)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    made = Process()
    for name in ("resident", "reset_peak", "give_back"):
        monkeypatch.setattr(meter_module, name, getattr(made, name))
    monkeypatch.setattr(meter_module, "available_bytes", lambda _device: 5000 * MB)
    monkeypatch.setattr(meter_module, "gc", SimpleNamespace(collect=lambda: None))
    return made


def usage(meter: Meter) -> Usage:
    found = meter.usage()
    assert found is not None
    return found


def test_a_meter_reads_the_arrays_that_were_made(process: Process) -> None:
    """40 MB stay, and 100, 300, 100 MB come and go. What was there before does not count."""
    meter = Meter(CPU)
    assert meter.available == 5000 * MB
    process.take(40 * MB)
    for size in (100, 300, 100):
        meter.reset()
        process.take(size * MB)
        process.free(size * MB)
        found = usage(meter)
        assert (found.asked, found.rest, found.held) == ((size + 40) * MB, 40 * MB, (size + 40) * MB)


def test_what_is_done_aside_does_not_count(process: Process) -> None:
    meter = Meter(CPU)
    process.take(130 * MB)
    process.free(30 * MB)
    with meter.aside():
        process.take(70 * MB)
        process.read_file(5 * MB)
        process.free(60 * MB)  # 10 MB stay
    assert usage(meter).asked == 130 * MB
    process.take(50 * MB)
    assert (usage(meter).asked, usage(meter).rest) == (150 * MB, 150 * MB)


def test_pages_of_files_do_not_count(process: Process) -> None:
    meter = Meter(CPU)
    process.read_file(200 * MB)  # a store that is read
    process.take(100 * MB)
    meter.look()
    process.free(100 * MB)
    process.give_back()
    process.read_file(50 * MB)  # files that are read after the peak, which they do not pass
    assert usage(meter).asked == 100 * MB


def test_a_peak_that_nobody_looked_at_is_the_system_s(process: Process) -> None:
    meter = Meter(CPU)
    process.take(100 * MB)
    process.free(100 * MB)
    process.give_back()
    assert (usage(meter).asked, usage(meter).rest) == (100 * MB, 0)


def test_where_the_system_tells_nothing_there_is_no_usage(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "resident", lambda: None)
    assert Meter(CPU).usage() is None


def test_a_system_that_tells_nothing_has_no_account(tmp_path: Path) -> None:
    assert resident(tmp_path / "absent") is None
    (tmp_path / "status").write_text("VmRSS:\t  30 kB\nVmHWM:\t  50 kB\n")  # before Linux 4.5
    assert resident(tmp_path / "status") == (30 * 1024, 50 * 1024, 0)


@pytest.mark.skipif(not LINUX, reason="the memory that is free is read from /proc")
def test_what_is_free_is_less_than_there_is() -> None:
    meter = Meter(CPU)
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(meminfo["MemTotal"].split()[0]) * 1024
    assert meter.available is not None
    assert 0 < meter.available <= total
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
    assert [limit.room for limit in group_limits(tmp_path, own)] == [700, 250]


def test_limits_of_the_first_version_of_control_groups(tmp_path: Path) -> None:
    group = tmp_path / "memory/job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("900")
    (group / "memory.usage_in_bytes").write_text("400")
    (group / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 100\n")
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/job\n4:memory:/job\n")
    assert [limit.room for limit in group_limits(tmp_path, own)] == [600]


def test_no_control_groups_are_no_limit(tmp_path: Path) -> None:
    assert group_limits(tmp_path, tmp_path / "absent") == []
