"""The demo, from the start of the process to its end: seconds, plan against actual, losses, and its real output.

python bench/demo.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    folder = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        command = [sys.executable, "-m", "shoestring", "demo", "--json"]
        # with --json the text for people goes to standard error, and the records to standard output
        environment = os.environ | {"SHOESTRING_CACHE": scratch}  # measured anew, as on a user's first day
        demo = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=True, env=environment)
        seconds = time.perf_counter() - started
        told = json.loads(demo.stdout)
        page = Path(scratch, told["run"], "report.html").read_text()
    path = record.write("demo", {"seconds": seconds, **told, "transcript": demo.stderr.rstrip()}, folder)
    path.with_suffix(".html").write_text(page)


if __name__ == "__main__":
    main()
