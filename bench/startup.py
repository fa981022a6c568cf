"""How long the command line takes to answer: the median of many starts, and of a bare interpreter beside it.

python bench/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import record

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "shoestring --help": ["-m", "shoestring", "--help"],
    "shoestring plan --help": ["-m", "shoestring", "plan", "--help"],
    "shoestring plan --time 5d --tokens-per-second 2500": (
        ["-m", "shoestring", "plan", "--time", "5d", "--tokens-per-second", "2500"]
    ),
    "python -c 'import torch'": ["-c", "import torch"],
}


def seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - started


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(11):  # in turn, so that a busy moment touches all of them
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    record.write("startup", {"seconds": {name: statistics.median(found) for name, found in times.items()}})


if __name__ == "__main__":
    main()
