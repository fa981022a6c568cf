"""How long the command line takes to answer: the median of many starts, and of a bare interpreter beside it.

python bench/startup.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import record

from shoestring.core import recipe_file
from shoestring.core.run_folder import RunFolder
from shoestring.runs.measure import Measuring, ensure_profile
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import task_of

RECIPE = record.ROOT / "recipes" / "stories_llama.toml"
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
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=environment)
    return time.perf_counter() - started


def plans_of_a_recipe(folder: str) -> dict[str, list[str]]:
    """Commands that plan a recipe which was measured; the profile is in `folder`."""
    change = f"run.folder={folder}"
    recipe = recipe_file.load(RECIPE, [change])
    ensure_profile(task_of(recipe), RunFolder.of(recipe), Reporter(), Measuring(seconds=1.0, fresh=True))
    questions: tuple[list[str], ...] = (
        [],
        ["--what-if", "model.width=64"],
        ["--law", "chinchilla"],
        ["--gpu", "NVIDIA H200"],
    )
    plain = ["-m", "shoestring", "plan", str(RECIPE), "--set", change]
    return {" ".join([f"shoestring plan {RECIPE.relative_to(record.ROOT)}", *more]): plain + more for more in questions}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        commands = COMMANDS | plans_of_a_recipe(folder)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for arguments in commands.values():
            seconds(arguments)  # compiled files are there afterwards, as after an installation
        for _ in range(11):  # in turn, so that a busy moment touches all of them
            for name, arguments in commands.items():
                times[name].append(seconds(arguments))
    record.write("startup", {"seconds": {name: statistics.median(found) for name, found in times.items()}})


if __name__ == "__main__":
    main()
