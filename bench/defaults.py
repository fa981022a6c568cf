"""Every family with the default recipe for two minutes on this device: held-out loss beside unigram and bigram.

python bench/defaults.py [--time 2m] [--families llama,masked_lm] [--out FOLDER]

A recipe gives its data, family, size and batch, and leaves the learning rate to "auto"; everything else is the default.
`reached` says whether the loss is below the bigram's, or for hidden tokens half a nat below the unigram's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from shoestring.probe.machine import pick_device

LESS_THAN_UNIGRAM = 0.5
DATA = {"source": "stories", "tokenizer": "words:640", "length": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "perceiver_ar": {"latents": 64},
    "masked_lm": {},
    "hf": {"name": "neox"},
}
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {"model": {"width": 96, "layers": 2, "heads": 4}, "train": {"batch": 16, "lr": "auto"}},
    "cuda": {"model": {"width": 512, "layers": 8, "heads": 8}, "train": {"batch": 128, "lr": "auto"}},
}
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": 648, "hidden_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 384, "max_position_embeddings": 128,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "use_parallel_residual": True, "rotary_pct": 0.5,
    "tie_word_embeddings": False,
}  # fmt: skip


def recipe(family: str, device: str, time: str) -> str:
    """The recipe as TOML, whose values are written as JSON writes them."""
    size = SIZES[device]
    model = {"family": family} | ({} if family == "hf" else size["model"]) | FAMILIES[family]
    sections = {"run": {"name": family}, "budget": {"time": time}, "data": DATA, "model": model, "train": size["train"]}
    return "\n".join(
        "\n".join([f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())])
        for section, fields in sections.items()
    )


def trained(family: str, device: str, time: str) -> dict[str, Any]:
    """The numbers of one run."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "recipe.toml").write_text(recipe(family, device, time))
        Path(scratch, "neox").mkdir()
        Path(scratch, "neox/config.json").write_text(json.dumps(NEOX))
        environment = os.environ | {"SHOESTRING_CACHE": scratch, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "shoestring", "train", "recipe.toml", "--json"]
        run = subprocess.run(command, cwd=scratch, capture_output=True, text=True, env=environment, check=False)
        if run.returncode:
            raise SystemExit(f"{family}: {run.stderr}")
        told = json.loads(run.stdout)
    evaluation, lines = told["evaluation"], {line["quantity"]: line["value"] for line in told["plan"]["lines"]}
    baselines = evaluation["baselines"]
    hidden = family == "masked_lm"
    reach = baselines["unigram"] - LESS_THAN_UNIGRAM if hidden else baselines["bigram"]
    return {
        "loss": evaluation["loss"],
        "unigram": baselines["unigram"],
        "bigram": baselines.get("bigram"),
        "to_reach": reach,
        "reached": evaluation["loss"] < reach,
        "steps": told["outcome"]["steps"],
        "seconds": told["outcome"]["seconds"],
        "warm-up": lines["warm-up"],
        "parameters": lines["parameters"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    parser.add_argument("--time", default="2m", help="of each run")
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated")
    given = parser.parse_args()
    device, found = pick_device().type, {}
    for family in given.families.split(","):
        found[family] = trained(family, device, given.time)
        print(f"{family}: {json.dumps(found[family])}", flush=True)
    record.write("defaults", {"time": given.time, "families": found}, given.out)
    if missed := [family for family, told in found.items() if not told["reached"]]:
        raise SystemExit(f"not reached: {', '.join(missed)}")


if __name__ == "__main__":
    main()
