"""Trials in a child process: what it answers, and every way in which it can end."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from shoestring.core.errors import UserError
from shoestring.probe.child import Died, OutOfTime, RemoteTrials, alone, looked_for_gpu
from shoestring.probe.search import find_largest

CODE = """
import os, signal, sys, time
from shoestring.core.errors import UserError
from shoestring.probe import child
from shoestring.probe.child import serve

child._FORKS = child._FORKS and "plain" not in sys.argv
time.sleep(0.05)  # a library is loaded
ages = []

def answer(request):
    print("noise of a library")
    match request["do"]:
        case "echo": return request
        case "memory": raise MemoryError("4 rows do not fit")
        case "cuda": raise RuntimeError("CUDA error: out of memory\\nand a long story")
        case "cublas": raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
        case "cpu": raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried 4 bytes")
        case "empty": raise MemoryError
        case "abort":
            print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
            os.abort()
        case "refuse": raise UserError("no such store")
        case "bug": raise RuntimeError("a bug\\nCompile it to see more.")
        case "killed": os.kill(os.getpid(), signal.SIGKILL)
        case "crash": os.kill(os.getpid(), signal.SIGSEGV)
        case "sleep": time.sleep(60)
        case "group": return {"there": "WORLD_SIZE" in os.environ}
        case "who": return {"worker": os.getpid(), "server": os.getppid()}
        case "age":
            ages.append(child.worker_age())
            return {"ages": ages}

serve(answer)
"""

LIMITED = """
import resource, sys
from shoestring.probe.child import answer, serve
from shoestring.probe.trials import Trial
from shoestring.probe.trials import Usage

MB = 1 << 20
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300 * MB, used + 300 * MB))

class Rows:
    def trial(self, batch, seconds, least, scoring):
        hidden = float(sys.argv[1]) if batch > 100 else 1.0
        held = bytearray(int(2 * batch * hidden * MB))  # the system itself says whether this fits
        asked = 2 * batch * MB
        return Trial(batch, (0.001, 0.001), 0.01, 0.0, 0.0, Usage(asked, asked, 0, 0))

serve(lambda request: answer(Rows(), request))
"""


COMMAND = [sys.executable, "-c", CODE]


@pytest.fixture(scope="module", params=["forked", "plain"])
def trials(request: pytest.FixtureRequest) -> Iterator[RemoteTrials]:
    """Of one server for all tests, and as where a process cannot be forked."""
    with RemoteTrials([*COMMAND, request.param], 30) as found:
        yield found


def test_answers_come_through_the_noise(trials: RemoteTrials) -> None:
    assert [trials.ask({"do": "echo", "n": n})["n"] for n in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("do", "error", "said"),
    [
        ("memory", MemoryError, "4 rows"),
        ("cuda", MemoryError, "out of memory$"),
        ("cublas", MemoryError, "ALLOC_FAILED"),
        ("cpu", MemoryError, "DefaultCPUAllocator: not enough memory"),
        ("empty", MemoryError, "^$"),
        ("abort", MemoryError, "std::bad_alloc"),
        ("killed", MemoryError, "the system killed"),
        ("refuse", UserError, "measuring failed: no such store"),
        ("bug", Died, "exit code 1: RuntimeError: a bug$"),
        ("crash", Died, "signal 11"),
    ],
)
def test_every_end_is_told_apart_and_the_next_question_finds_a_new_child(
    trials: RemoteTrials, do: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        trials.ask({"do": do})
    assert trials.ask({"do": "echo"}) == {"do": "echo"}


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_libraries_are_loaded_once_for_all_workers() -> None:
    """A new worker, after any end of the last one, is a fork of the same server, and counts the time of loading."""
    with RemoteTrials(COMMAND, 30) as trials:
        seen = [trials.ask({"do": "who"})]
        for do in ("killed", "crash", "memory"):
            with pytest.raises((MemoryError, Died)):
                trials.ask({"do": do})
            seen.append(trials.ask({"do": "who"}))
        assert trials.ask({"do": "who"}) == seen[-1], "a worker answers until it ends"
        trials.renew()
        (first,), (age, later) = (trials.ask({"do": "age"})["ages"] for _ in range(2))
        seen.append(trials.ask({"do": "who"}))
        assert all(_ended(one["worker"]) for one in seen[:-1])
    assert len({one["server"] for one in seen}) == 1
    assert len({one["worker"] for one in seen}) == 5
    assert 0.05 <= first == age <= later
    _assert_end(seen[-1].values())


@pytest.mark.parametrize("how", ["forked", "plain"])
def test_a_request_that_runs_on_is_ended_when_its_time_is_up(how: str) -> None:
    with RemoteTrials([*COMMAND, how], 30) as trials:
        trials.ask({"do": "echo"})
        trials.until = time.monotonic() + 0.2
        with pytest.raises(OutOfTime, match="did not end within"):
            trials.ask({"do": "sleep"})
        with pytest.raises(OutOfTime, match="the time for measuring is over"):
            trials.ask({"do": "echo"})
        trials.until = math.inf
        assert trials.ask({"do": "echo"}) == {"do": "echo"}


def test_a_server_that_loads_for_too_long_is_ended() -> None:
    with RemoteTrials([sys.executable, "-c", "import time; time.sleep(60)"], 0.2) as trials:
        with pytest.raises(OutOfTime):
            trials.ask({"do": "echo"})
        assert trials._child is None


def test_a_child_is_in_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with RemoteTrials(COMMAND, 30) as trials:
        assert trials.ask({"do": "group"}) == {"there": False}
    assert alone({"RANK": "1", "TORCHELASTIC_RUN_ID": "x", "HOME": "/"}) == {"HOME": "/"}


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="looks for the child in /proc")
def test_a_child_ends_with_its_parent() -> None:
    code = f"""
import sys, time
from shoestring.probe.child import Child
child = Child([sys.executable, "-c", {CODE!r}])
print(*child.ask({{"do": "who"}}).values(), flush=True)
child.ask({{"do": "sleep"}})
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    left = [int(number) for number in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _assert_end(left)


def _assert_end(processes: Iterable[int]) -> None:
    for _ in range(200):
        if all(map(_ended, processes)):
            return
        time.sleep(0.05)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    pytest.fail("the children went on for 10 s")


def _ended(process: int) -> bool:
    """Gone, or a zombie that nobody has fetched yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="limits the address space by /proc")
@pytest.mark.parametrize(("hidden", "fails"), [(1.0, 0), (1.1, 1)])
def test_a_process_that_the_system_refuses_memory_costs_one_trial(hidden: float, fails: int) -> None:
    """300 MB are allowed, a row takes 2 MB: 149 fit. One that takes 10 % more above 100 rows meets the wall once."""
    mb = 1 << 20
    with RemoteTrials([sys.executable, "-c", LIMITED, str(hidden)], 30) as trials:
        found = find_largest(lambda batch, *_: trials.trial(batch), 300 * mb, 4 * mb).law
    assert found.out_of_memory == fails
    assert found.trials <= 4
    assert found.largest is not None
    assert found.largest <= 150
    assert found.largest >= (0.85 * 136 if fails else 145)


@contextlib.contextmanager
def _interrupted_by_ctrl_c() -> Iterator[None]:
    """As Python is at its start, whatever ran in this process before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_ctrl_c_while_it_waits_ends_all_processes() -> None:
    with RemoteTrials(COMMAND, 30) as trials, _interrupted_by_ctrl_c():
        processes = [Path(f"/proc/{number}") for number in trials.ask({"do": "who"}).values()]
        assert all(process.exists() for process in processes)
        # to the thread that waits: sent to the process, another thread may take it, and the wait goes on. One in
        # the instant before the wait is noticed only after it, so there is a second one, as of a person
        me = (threading.get_ident(), signal.SIGINT)
        pressed = [threading.Timer(seconds, signal.pthread_kill, me) for seconds in (0.05, 10.0)]
        try:
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the timers start as late as can be
                for each in pressed[::-1]:
                    each.start()
                trials.ask({"do": "sleep"})
        finally:
            pressed[1].cancel()
    assert not any(process.exists() for process in processes)


@pytest.mark.parametrize(("error", "looked"), [(3, False), (0, True), (100, True)])
def test_whether_cuda_is_initialised_is_asked_of_its_driver(
    error: int, looked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 is CUDA_ERROR_NOT_INITIALIZED; 100, no device, is said only by a driver that was initialised."""
    asked: list[tuple[str, int]] = []

    class Driver:
        def __init__(self, name: str, mode: int):
            asked.append((name, mode))

        def cuDeviceGetCount(self, _: object) -> int:  # noqa: N802
            return error

    monkeypatch.setattr("ctypes.CDLL", Driver)
    assert looked_for_gpu() is looked and asked == [("libcuda.so.1", os.RTLD_NOLOAD)]
