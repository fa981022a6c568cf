"""Fine-tuning a model of Qwen2.5-0.5B's shape with random weights: ours beside transformers.Trainer (and peft).

    python bench/finetune.py [--steps 1000] [--peer-steps 1000] [--only "ours full"] [--tiny]

The same rows of random ids, 16 × 512 tokens a step, all weights and LoRA of rank 8 on all layers, each in a process of
its own: seconds of a step, and peak memory of the device. Then what comparisons with the fingerprints cost, and the
largest batch by `shoestring measure`, with its trials. The peer may take fewer steps of the same rows: its seconds are
those of a step. `--tiny` tries the flow with a small network, as on a CPU. Needs transformers, and accelerate and peft
for the peer.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record

QWEN = {
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
TINY = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
RANK, RATE, WARM = 8, 1e-5, 3
"""WARM: first steps, which are not timed: they compile and load."""
EVALUATIONS = 10
WAYS = ("ours full", "ours lora", "trainer full", "trainer lora", "overlap full", "overlap lora")
LARGEST_OF = ("largest full", "largest lora")
LARGEST = """[run]
name = "{name}"
[budget]
time = "10m"
[data]
source = "stories"
tokenizer = "{tokenizer}"
length = {length}
[model]
family = "hf"
name = "{folder}"
[train]
batch = 16
lr = {rate}
"""


def rows_of(shape: dict[str, Any], rows: int, length: int, steps: int) -> Any:
    import torch

    return torch.randint(shape["vocab_size"], (steps, rows, length + 1), generator=torch.Generator().manual_seed(0))


def peak_bytes() -> int:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def wait() -> float:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def ours(folder: Path, lora: bool, rows: Any, then: Callable[[Any, Any], Any] | None = None) -> Any:
    """Steps of our learner, with the largest micro-batch that fits; what is found `then`, else their numbers."""
    import torch

    from shoestring.core.recipe import Recipe
    from shoestring.core.sections import Data, Model
    from shoestring.core.train_section import Train
    from shoestring.core.tuning import Lora
    from shoestring.models.language_model import build
    from shoestring.probe.machine import pick_device
    from shoestring.runs.network_workload import tune
    from shoestring.training.learner import Learner

    steps, batch, length = rows.shape[0], rows.shape[1], rows.shape[2] - 1
    recipe = Recipe(
        model=Model(family="hf", name=str(folder)), data=Data(length=length), train=Train(batch=batch, lr=RATE),
        lora=Lora(rank=RANK) if lora else None,
    )  # fmt: skip
    model = build(recipe.model, 2, length, 0)
    tune(model, recipe, 0)
    learner, per_device, tries = Learner(model, recipe.train, pick_device()), batch, 0
    seconds, begun, losses = 0.0, wait(), []
    for step in range(steps):
        if step == WARM:
            begun = wait()
        while not (tally := learner.accumulate(rows[step], per_device)).fitted:
            per_device, tries = -(-per_device // 2), tries + 1
        losses.append(learner.update(tally, RATE).nats / tally.predictions)
    seconds = (wait() - begun) / (steps - WARM)
    if then is not None:
        return then(learner, rows[0])
    losses = torch.stack(losses).tolist()
    return {
        "seconds": seconds, "peak_bytes": peak_bytes(), "per_device": per_device, "halved": tries,
        "first_loss": losses[0], "last_loss": losses[-1],
    }  # fmt: skip


def overlap(learner: Any, rows: Any) -> list[float]:
    """Seconds of comparing a model with its base, at the first evaluations of a run."""
    from shoestring.runs.drift import Drift, _predictions

    prompts = rows[:, :64].repeat(2, 1)[:20]
    drift = Drift(
        prompts, _predictions(learner, prompts).cpu(), min(2000, learner.model.network.config.vocab_size // 10)
    )
    seconds = []
    for _ in range(EVALUATIONS):
        begun = wait()
        drift.scores(learner)
        seconds.append(wait() - begun)
    return seconds


def trainer(folder: Path, lora: bool, rows: Any) -> dict[str, Any]:
    """The same by transformers.Trainer in bf16, and peft."""
    import torch
    import transformers

    steps, batch = rows.shape[:2]
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if lora:
        import peft

        settings = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        network = peft.get_peft_model(network, settings)
    data = [{"input_ids": row[:-1], "labels": row[:-1]} for row in rows.flatten(0, 1)]
    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(wait())

    given = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=steps, per_device_train_batch_size=batch, learning_rate=RATE,
        bf16=torch.cuda.is_available(), logging_strategy="no", save_strategy="no", report_to=[], weight_decay=0.1,
        use_cpu=not torch.cuda.is_available(), disable_tqdm=True, dataloader_pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    done = transformers.Trainer(network, given, train_dataset=data, callbacks=[Clock()]).train()
    seconds = (times[-1] - times[WARM - 1]) / (steps - WARM)
    return {"seconds": seconds, "peak_bytes": peak_bytes(), "per_device": batch, "mean_loss": done.training_loss}


def measure(way: str, folder: Path, steps: int, tiny: bool) -> dict[str, Any]:
    shape, rows, length = (TINY, 4, 64) if tiny else (QWEN, 16, 512)
    who, _, what = way.partition(" ")
    if who == "overlap":
        return {"seconds": ours(folder, what == "lora", rows_of(shape, rows, length, 2 * WARM), overlap)}
    return (ours if who == "ours" else trainer)(folder, what == "lora", rows_of(shape, rows, length, steps))


def make_folder(folder: Path, tiny: bool) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(**(TINY if tiny else QWEN))
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)


def in_process(way: str, folder: Path, steps: int, tiny: bool) -> dict[str, Any]:
    """The numbers of a way, or why there are none."""
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder), "--steps", str(steps)]
    done = subprocess.run([*command, *(["--tiny"] if tiny else [])], capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def largest(folder: Path, lora: bool, tiny: bool) -> dict[str, Any]:
    """The largest batch, as a user finds it, on random tokens."""
    name, words, length = ("lora" if lora else "full"), ("bytes" if tiny else "words:8000"), (64 if tiny else 512)
    file = folder / f"{name}.toml"
    recipe = LARGEST.format(name=name, tokenizer=words, length=length, folder=folder, rate=RATE)
    file.write_text(recipe + (f"[lora]\nrank = {RANK}\n" if lora else ""))
    command = [sys.executable, "-m", "shoestring", "measure", str(file), "--fresh", "--json"]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    law = json.loads(done.stdout)["memory"]
    names = ("largest", "verified", "trials", "out_of_memory", "trial_seconds", "limit_bytes")
    return {key: law[key] for key in names} | {"seconds": time.perf_counter() - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--peer-steps", type=int, help="of transformers.Trainer; default: as many")
    parser.add_argument("--tiny", action="store_true", help="a small network, to try the flow")
    parser.add_argument("--only", nargs="+", choices=(*WAYS, *LARGEST_OF), help="these, beside those of the record")
    parser.add_argument("--way", choices=WAYS, help="one of them, in this process")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    given = parser.parse_args()
    if given.way is not None:
        print(json.dumps(measure(given.way, given.folder, given.steps, given.tiny)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        make_folder(Path(temporary), given.tiny)
        results = record.earlier("finetune", given.out) if given.only and not given.tiny else {}
        for way in given.only or (*WAYS, *LARGEST_OF):
            if way in LARGEST_OF:
                found = largest(Path(temporary), way.endswith("lora"), given.tiny)
            else:
                steps = given.steps if way.startswith("ours") else given.peer_steps or given.steps
                found = in_process(way, Path(temporary), steps, given.tiny)
                found |= {} if way.startswith("overlap") else {"steps": steps}
            results[way] = found | {"commit": record.commit(), "date": time.strftime("%Y-%m-%d")}
            print(way, found, flush=True)
            if not given.tiny or given.out is not None:  # nothing is published of a small network
                record.write("finetune", {"steps": given.steps, "tiny": given.tiny, "results": results}, given.out)


if __name__ == "__main__":
    main()
