"""Little data: weight decay and dropout of a small network whose text is repeated, by parameters over text and epochs.

python bench/little_data.py [--resume FILE] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import record
import torch
from small_runs import Setting, parameters, train

TEXTS = ((32_768, 16), (32_768, 6), (131_072, 6))
"""(positions of text, epochs)."""
DECAYS = ((0.1, 0.0), (1.0, 0.0), (4.0, 0.0), (1.0, 0.1), (0.1, 0.1))
"""(weight decay, dropout)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", type=Path, default=Path("little_data.jsonl"), help="finished runs, a line each")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = arguments.resume.read_text().splitlines() if arguments.resume.is_file() else []
    known = {json.dumps(each["setting"], sort_keys=True): each for each in map(json.loads, lines)}
    for unique, epochs in TEXTS:
        for weight_decay, dropout in DECAYS:
            setting = Setting(
                width=64, layers=2, tokens=unique * epochs, batch=1024, lr=0.01, unique=unique,
                weight_decay=weight_decay, dropout=dropout,
            )  # fmt: skip
            key = json.dumps(asdict(setting), sort_keys=True)
            if key not in known:
                scores = train(setting, 8)
                known[key] = {"setting": asdict(setting), "parameters": parameters(setting), "scores": scores}
                with arguments.resume.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
                print(unique, epochs, weight_decay, dropout, [round(loss, 3) for _, loss in scores], flush=True)
    record.write("little_data", {"runs": list(known.values())}, arguments.out)


if __name__ == "__main__":
    main()
