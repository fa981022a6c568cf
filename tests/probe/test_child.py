"""Trials in a child process: what it answers, and every way in which it can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoestring.core.errors import Fault, UserError
from shoestring.probe.child import Child, Died, RemoteTrials, alone
from shoestring.probe.search import find_largest

CODE = """
import os, signal, sys, time
from shoestring.core.errors import UserError
from shoestring.probe.child import serve

def answer(request):
    print("noise of a library")
    match request["do"]:
        case "echo": return request
        case "memory": raise MemoryError("4 rows do not fit")
        case "cuda": raise RuntimeError("CUDA error: out of memory\\nand a long story")
        case "cublas": raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
        case "refuse": raise UserError("no such store")
        case "bug": raise RuntimeError("a bug")
        case "killed": os.kill(os.getpid(), signal.SIGKILL)
        case "crash": os.kill(os.getpid(), signal.SIGSEGV)
        case "sleep": time.sleep(60)
        case "group": return {"there": "WORLD_SIZE" in os.environ}

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


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-c", CODE]


@pytest.fixture
def trials(command: list[str]) -> RemoteTrials:
    return RemoteTrials(command, 30)


def test_answers_come_through_the_noise(trials: RemoteTrials) -> None:
    with trials:
        assert [trials.ask({"do": "echo", "n": n})["n"] for n in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("do", "error", "said"),
    [
        ("memory", MemoryError, "4 rows"),
        ("cuda", MemoryError, "out of memory$"),
        ("cublas", MemoryError, "ALLOC_FAILED"),
        ("killed", MemoryError, "the system killed"),
        ("refuse", UserError, "measuring failed: no such store"),
        ("bug", Died, "exit code 1: RuntimeError: a bug"),
        ("crash", Died, "signal 11"),
    ],
)
def test_every_end_is_told_apart_and_the_next_question_finds_a_new_child(
    trials: RemoteTrials, do: str, error: type[Exception], said: str
) -> None:
    with trials:
        with pytest.raises(error, match=said):
            trials.ask({"do": do})
        assert trials.ask({"do": "echo"}) == {"do": "echo"}


def test_a_child_that_does_not_answer_is_ended(command: list[str]) -> None:
    child = Child(command, 1)
    with pytest.raises(Fault, match="did not end within 1 s"):
        child.ask({"do": "sleep"})
    child.close()


def test_a_child_is_in_no_process_group(trials: RemoteTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with trials:
        assert trials.ask({"do": "group"}) == {"there": False}
    assert alone({"RANK": "1", "TORCHELASTIC_RUN_ID": "x", "HOME": "/"}) == {"HOME": "/"}


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="looks for the child in /proc")
def test_a_child_ends_with_its_parent() -> None:
    code = f"""
import sys, time
from shoestring.probe.child import Child
child = Child([sys.executable, "-c", {CODE!r}], 30)
child.ask({{"do": "echo"}})
print(child._process.pid, flush=True)
child.ask({{"do": "sleep"}})
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(200):
        if _ended(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child went on for 10 s")


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
