"""Damage to every file of two runs, a network's and an HMM's, and of their stores, under every command that reads them.

    python bench/fuzz.py [--each 40] [--seed 0] [--out FOLDER]

Of each file EACH bytes are flipped (one bit), the file is cut there, and two blocks of up to 64 bytes change places;
all bytes where a file has fewer. A command must notice, or come to what it comes to with the whole file. With
--each 1000000 it is every byte, which takes hours.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import record

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "faults")]

from fuzz import Fuzz, Outcome  # noqa: E402  (tests/faults/fuzz.py, found by the line above)
from small_home import make_home  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=40, help="bytes of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    options = parser.parse_args()
    generator, found, silent = random.Random(options.seed), Counter[str](), list[Outcome]()
    with tempfile.TemporaryDirectory() as scratch:
        fuzz = Fuzz(make_home(Path(scratch) / "home"), Path(scratch) / "copy")
        files = fuzz.files()
        for path in files:
            before = found.total()
            for damage in fuzz.damages(path, generator, options.each):
                for outcome in fuzz.outcomes(path, damage):
                    found[f"{damage.kind}: {outcome.found}"] += 1
                    if outcome.found == "silent":
                        silent.append(outcome)
                        print("SILENT", outcome, flush=True)
            print(f"{path}: {found.total() - before} outcomes", flush=True)
    values = {
        "files": len(files),
        "outcomes": dict(sorted(found.items())),
        "silent": [{"file": one.path, "damage": list(one.damage), "command": list(one.command)} for one in silent],
    }
    print(values["outcomes"])
    record.write("fuzz", values, options.out)
    if silent:
        raise SystemExit(f"{len(silent)} times damage was silent")


if __name__ == "__main__":
    main()
