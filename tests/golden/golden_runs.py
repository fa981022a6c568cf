"""Short seeded runs of every family, of HMMs, streams and a law, and what came of them as hashes and losses.

`python tests/golden/golden_runs.py` adds the hashes of this machine to golden.json: do so only when a change of the
numbers is meant.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.track import read_lines

RECORD = Path(__file__).with_name("golden.json")
STEPS, BATCH, DOCUMENTS = 12, 8, 200

STORIES = {"source": "stories", "tokenizer": "words:100", "length": 32, "documents": DOCUMENTS, "heldout": 0.1}
SMALL = {"width": 16, "layers": 2, "heads": 2}
NETWORKS: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {"data": STORIES | {"random_offset": True}, "model": SMALL, "train": {"ema": 0.9, "per_device": 4}},
    "llama-packed": {
        "data": STORIES | {"packing": "best_fit", "document_mask": True},
        "model": SMALL | {"bias": True, "kv_heads": 1, "rotary_scaling": "llama3:8:1:4:16", "tied": False},
        "train": {"schedule": "linear", "final_lr": 0.1},
    },
    "llama-muon": {
        "data": {"source": "jsonl:lines.jsonl", "tokenizer": "bytes", "length": 24, "heldout": 0.2},
        "model": SMALL,
        "train": {"optimizer": "muon", "recompute": "selective", "normalize_neurons": False},
    },
    "llama-normuon": {
        "data": {"source": "jsonl:lines.jsonl", "tokenizer": "bytes", "length": 24, "heldout": 0.2},
        "model": SMALL,
        "train": {"optimizer": "muon", "recompute": "selective"},
    },
    "gpt2": {
        "data": STORIES | {"packing": "pad"},
        "model": SMALL | {"family": "gpt2", "dropout": 0.1, "tied": False},
        "train": {"per_device": 4},
    },
    "gpt2-within": {
        "data": STORIES | {"document_mask": True},
        "model": SMALL | {"family": "gpt2"},
        "train": {"recompute": "full"},
    },
    "perceiver": {
        "data": STORIES,
        "model": SMALL | {"family": "perceiver_ar", "latents": 8},
        "train": {"schedule": "constant"},
    },
    "masked": {
        "data": STORIES | {"random_offset": True, "whole_words": True},
        "model": SMALL | {"family": "masked_lm"},
        "train": {"per_device": 4},
    },
    "classes": {
        "data": {"source": "csv:tweets.csv", "label": "label", "tokenizer": "bytes", "length": 32, "heldout": 0.2},
        "model": SMALL | {"family": "masked_lm", "classes": 3},
        "train": {},
    },
    "hf": {"data": STORIES, "model": {"family": "hf", "name": "neox"}, "train": {}},
    "markov": {"data": {"stream": "markov:20", "length": 32}, "model": SMALL, "train": {}},
}
HMMS: dict[str, dict[str, Any]] = {
    "hmm-online": {"update_every": 32, "restarts": 2},
    "hmm-all": {"update": "all", "tied_start": True},
    "hmm-every": {"update": "every", "update_every": 64, "prior": 0.01},
}
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": 102, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "use_parallel_residual": True, "rotary_pct": 0.5,
    "tie_word_embeddings": False,
}  # fmt: skip


def hardware() -> str:
    """What bits depend on: the processor, its widest vectors, and torch."""
    fields = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    chip = " ".join(fields.get(name, "?") for name in ("vendor_id", "cpu family", "model", "CPU part"))
    return f"{platform.machine()} {chip} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"


def _documents(count: int) -> list[tuple[str, int]]:
    random, words = np.random.default_rng(0), ["tree", "sun", "moon", "river", "stone", "cloud", "bird", "fish"]
    found = []
    for _ in range(count):
        text = " ".join(words[i] for i in random.integers(0, 8, size=int(random.integers(3, 12))))
        found.append((text, int(random.integers(0, 3))))
    return found


def _hash(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
    return digest.hexdigest()[:16]


def _weights(file: Path) -> str:
    parts: list[object] = []
    for name, tensor in sorted(load_file(file).items()):
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), raw]
    return _hash(*parts)


def _trained(recipe: Recipe, plan: Plan) -> RunFolder:
    folder = RunFolder.of(recipe)
    folder.claim(recipe)
    plan.write(folder.plan)
    run(recipe, Reporter(), Clock(0.0))
    return folder


def _told(folder: RunFolder, weights: Path) -> dict[str, Any]:
    lines = read_lines(folder.metrics)
    losses = [line["heldout_loss"] for line in lines if "heldout_loss" in line]
    return {"weights": _weights(weights), "metrics": _hash(json.dumps(lines, sort_keys=True)), "losses": losses}


def network(name: str, stream: dict[str, Any] | None = None) -> dict[str, Any]:
    """A run of some steps, in the present folder."""
    Path("lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in _documents(300)))
    Path("tweets.csv").write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in _documents(60)))
    Path("neox").mkdir(exist_ok=True)
    Path("neox/config.json").write_text(json.dumps(NEOX))
    case = NETWORKS[name] if stream is None else {"data": stream, "model": SMALL, "train": {}}
    values = {
        "run": {"name": name},
        "budget": {"steps": STEPS},
        "data": case["data"],
        "model": case["model"],
        "train": {"batch": BATCH, "per_device": BATCH, "lr": 3e-3, "least_warmup": 0} | case["train"],
        "evaluate": {"rows": 8, "per_device": 4, "every": 0.25},
    }
    if stream is not None:
        values["stream"] = {"symbols": "sequence", "states": "block:4"}
    recipe = recipe_file.build(values, name)
    rows, whole = recipe.train.per_device or BATCH, recipe.data.source.kind in ("csv", "jsonl")
    plan = Plan(
        binding="steps", recipe=recipe.fingerprint, steps=STEPS, effective_batch=BATCH, per_device=rows,
        accumulate=BATCH // rows, devices=1, entries=None if whole else DOCUMENTS, every_entry=whole, evaluations=4,
    )  # fmt: skip
    folder = _trained(recipe, plan)
    return _told(folder, max(folder.checkpoints.glob("step-*.safetensors")))


def hmm(name: str) -> dict[str, Any]:
    """A fit of some epochs, in the present folder."""
    data = STORIES | {"tokenizer": "words:200", "length": 16, "documents": 400}
    evaluate = {"rows": 16, "every": 0.5}
    values = {"run": {"name": name}, "budget": {"epochs": 4}, "data": data, "evaluate": evaluate}
    recipe = recipe_file.build({**values, "hmm": {"states": 5} | HMMS[name]}, name)
    parts = {"finish": 0.1, "train": 1.0}
    plan = Plan(
        binding="epochs", recipe=recipe.fingerprint, steps=100, epochs=4.0, step_seconds=0.01, per_device=64,
        parts=parts,
    )  # fmt: skip
    folder = _trained(recipe, plan)
    return _told(folder, folder.model)


def hmm_stream() -> dict[str, Any]:
    """A network on the stream of a fitted HMM, and the rows themselves."""
    from shoestring.datasets.streams import open_stream
    from shoestring.streams.source import HELDOUT

    hmm("hmm-online")
    found = network("hmm-stream", {"stream": "hmm:runs/hmm-online", "length": 32})
    stream = open_stream(RunFolder("runs/hmm-stream").read_recipe())
    rows = [stream.rows(first, 64).numpy().tobytes() for first in (0, HELDOUT)]
    return found | {"rows": _hash(*rows)}


def law() -> dict[str, Any]:
    """A law of a table of points, with resamples."""
    from shoestring.studies.law import fit_law
    from shoestring.studies.law_data import Columns, read_given
    from shoestring.studies.law_options import ask

    random, lines = np.random.default_rng(1), ["params,tokens,loss"]
    for n in np.geomspace(1e6, 1e9, 7):
        for d in np.geomspace(1e8, 1e10, 6):
            loss = (1.7 + 400 / n**0.34 + 410 / d**0.28) * np.exp(random.normal() * 0.005)
            lines.append(f"{n:.0f},{d:.0f},{loss:.6f}")
    Path("table.csv").write_text("\n".join(lines) + "\n")
    given = read_given([Path("table.csv")], Columns(loss="loss", params="params", tokens="tokens"))
    found = fit_law(given, ask("3", "huber", 100, None)).law
    values = [found.coefficients[name].value for name in sorted(found.coefficients)]
    return {"law": _hash(json.dumps(found.to_dict(), sort_keys=True)), "losses": values}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: lambda name=name: network(name) for name in NETWORKS},  # type: ignore[misc]
    **{name: lambda name=name: hmm(name) for name in HMMS},  # type: ignore[misc]
    "hmm-stream": hmm_stream,
    "law": law,
}

if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    known = json.loads(RECORD.read_text()) if RECORD.is_file() else {"losses": {}, "bits": {}}
    bits = known["bits"].setdefault(hardware(), {})
    for case in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            made = CASES[case]()
        known["losses"].setdefault(case, made.pop("losses"))
        bits[case] = made
        print(case, made)
    RECORD.write_text(json.dumps(known, indent=1) + "\n")
