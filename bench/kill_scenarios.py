"""The commands that `bench/kill.py` kills, and what they need: recipes with their plans, corpora, a table."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import record

sys.path[:0] = [str(record.ROOT / "tests" / "golden")]
from golden_runs import HMMS, NEOX, NETWORKS  # noqa: E402

from shoestring.core import recipe_file  # noqa: E402
from shoestring.core.recipe import Recipe  # noqa: E402
from shoestring.core.records import Plan  # noqa: E402
from shoestring.core.run_folder import RunFolder  # noqa: E402

STEPS, BATCH, DOCUMENTS = 12, 8, 200
DEMO = (
    "budget.steps=12", "train.per_device=12", "train.checkpoint_every=30ms", "train.keep=1", "data.length=32",
    "data.tokenizer=words:100", "model.width=16", "model.layers=2", "model.heads=2", "evaluate.rows=8",
)  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """A command, and the folder that it starts in."""

    name: str
    command: tuple[str, ...]
    weight: int = 4
    """Its share of the kills."""
    ready: bool = False
    """Whether it needs finished runs."""
    says: bool = False
    """Whether what it prints is compared."""
    page: bool = False
    """Whether the page is compared: it has no times of this command."""
    done_before: str | None = None
    """What it says if it was killed after its work was complete."""
    ranks: bool = False
    """Whether torchrun starts it, in two processes."""
    workers: bool = False
    """Whether it is started in a new interpreter, and starts processes of its own."""

    @property
    def victims(self) -> tuple[str, ...]:
        """Who may be killed: the process that was started, one of those that it started, or all at once."""
        return ("first", "other", "other", "all") if self.ranks or self.workers else ("first",)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The parts without it: torchrun tells of its processes by a traceback, and what is measured is the memory."""
        if self.ranks or self.command[0] == "measure" or self.name == "train hf":
            return ("full disk", "little memory")
        return ("little memory",) if self.workers else ()

    @property
    def trains(self) -> bool:
        return self.command[0] in ("train", "demo") or self.command[:2] == ("hmm", "fit")


def scenarios() -> list[Scenario]:
    trained = [Scenario(f"train {name}", ("train", f"{name}.toml"), 9) for name in NETWORKS if name != "hf"]
    fitted = [Scenario(f"hmm fit {name}", ("hmm", "fit", f"{name}.toml"), 8) for name in HMMS]
    table = ("table.csv", "--params", "params", "--tokens", "tokens", "--loss", "loss", "--bootstraps", "50")
    sampled = ("hmm", "sample", "runs/hmm-online", "--rows", "3000", "--length", "16", "--heldout", "64")
    isoflop = ("law", "isoflop", "llama.toml", "--sizes", "16x2,32x2", "--flops", "1e10,2e10")
    return [
        *trained,
        Scenario("train hf", ("train", "hf.toml"), 3),
        Scenario("torchrun train", ("train", "two.toml"), 6, ranks=True),
        Scenario("torchrun train sharded", ("train", "two-sharded.toml"), 6, ranks=True),
        Scenario("demo", ("demo", *(word for each in DEMO for word in ("--set", each))), 5),
        *fitted,
        Scenario("measure", ("measure", "llama.toml", "--set", "run.name=measured", "--set", "budget.time=5s"), 5),
        Scenario("measure hmm", ("measure", "hmm-online.toml", "--set", "run.name=m", "--set", "budget.time=5s"), 3),
        Scenario("plan", ("plan", "llama.toml", "--set", "run.name=planned"), 4, ready=True),
        Scenario("plan by hand", ("plan", "--time", "5d", "--tokens-per-second", "2500"), 2, says=True),
        Scenario("prepare", ("prepare", "llama.toml"), 8),
        Scenario("prepare packed", ("prepare", "llama-packed.toml"), 8),
        Scenario(
            "prepare unique", ("prepare", "llama-muon.toml", "--set", "run.name=u", "--set", "data.unique=true"), 8
        ),
        Scenario("prepare rows", ("prepare", "hmm-online.toml"), 4),
        Scenario("prepare in processes", ("prepare", "many.toml"), 4, workers=True),
        Scenario("prepare a part", ("prepare", "many.toml", "--shard", "0/2"), 1, workers=True),
        Scenario("evaluate", ("evaluate", "runs/llama"), 6, ready=True, says=True),
        Scenario("evaluate hmm", ("evaluate", "runs/hmm-online"), 3, ready=True, says=True),
        Scenario("export", ("export", "runs/llama", "out/exported"), 8, ready=True, done_before="exists"),
        Scenario("generate", ("generate", "runs/llama", "--max-tokens", "8"), 3, ready=True, says=True),
        Scenario("report", ("report", "runs/llama"), 4, ready=True, page=True),
        Scenario("data check", ("data", "check", "STORE"), 2, ready=True, says=True),
        Scenario("data show", ("data", "show", "STORE"), 2, ready=True, says=True),
        Scenario("hmm sample", (*sampled, "--out", "out/rows"), 9, ready=True),
        Scenario("hmm score", ("hmm", "score", "runs/hmm-online"), 3, ready=True, says=True),
        Scenario("hmm show", ("hmm", "show", "runs/hmm-online"), 3, ready=True, says=True),
        Scenario("law fit", ("law", "fit", *table, "--out", "out/law.json"), 8),
        Scenario("law isoflop", (*isoflop, "--out", "out/isoflop"), 4),
        Scenario(
            "law compare", ("law", "compare", "runs/llama", "runs/perceiver", "--out", "out/c.html"), 4, ready=True
        ),
        Scenario("law optimum", ("law", "optimum", "--flops", "1e21"), 2, says=True),
        Scenario("law flops", ("law", "flops", "llama.toml"), 2, says=True),
        Scenario("law predict", ("law", "predict", "--params", "1e8", "--tokens", "2e9"), 2, says=True),
    ]


def documents(count: int) -> list[tuple[str, int]]:
    drawn, words = random.Random(0), ["tree", "sun", "moon", "river", "stone", "cloud", "bird", "fish"]
    return [(" ".join(drawn.choices(words, k=drawn.randint(3, 11))), drawn.randrange(3)) for _ in range(count)]


def write_inputs() -> None:
    """Recipes with their plans, corpora and a table, in the present folder."""
    Path("lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in documents(300)))
    Path("tweets.csv").write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in documents(60)))
    Path("neox").mkdir()
    Path("neox/config.json").write_text(json.dumps(NEOX))
    drawn, lines = random.Random(1), ["params,tokens,loss"]
    for n in (1e6, 1e7, 1e8, 1e9):
        for d in (1e8, 3e8, 1e9, 3e9, 1e10):
            loss = (1.7 + 400 / n**0.34 + 410 / d**0.28) * (1 + drawn.gauss(0, 0.005))
            lines.append(f"{n:.0f},{d:.0f},{loss:.6f}")
    Path("table.csv").write_text("\n".join(lines) + "\n")
    for name in NETWORKS:
        put(*network(name))
    for name in HMMS:
        put(*hmm(name))
    put(*for_two("two", sharded=False))
    put(*for_two("two-sharded", sharded=True))
    put(*many())
    put(*demo())


def put(recipe: Recipe, plan: Plan) -> None:
    Path(f"{recipe.run.name}.toml").write_text(recipe_file.dump(recipe))
    folder = RunFolder.of(recipe)
    folder.claim(recipe)
    plan.write(folder.plan)


def network(name: str) -> tuple[Recipe, Plan]:
    case = NETWORKS[name]
    saving = {"checkpoint_every": "30ms", "keep": 1}
    values = {
        "run": {"name": name},
        "budget": {"steps": STEPS},
        "data": case["data"],
        "model": case["model"],
        "train": {"batch": BATCH, "per_device": BATCH, "lr": 3e-3} | saving | case["train"],
        "evaluate": {"rows": 8, "per_device": 4, "every": 0.25},
    }
    recipe = recipe_file.build(values, name)
    rows, whole = recipe.train.per_device or BATCH, recipe.data.source.kind in ("csv", "jsonl")
    return recipe, Plan(
        binding="steps", recipe=recipe.fingerprint, steps=STEPS, effective_batch=BATCH, per_device=rows,
        accumulate=BATCH // rows, devices=1, entries=None if whole else DOCUMENTS, every_entry=whole, evaluations=4,
    )  # fmt: skip


def for_two(name: str, sharded: bool) -> tuple[Recipe, Plan]:
    """The recipe of "llama" for two processes."""
    (recipe, plan), rows = network("llama"), BATCH // 4
    values = {"run.name": name, "train.per_device": rows, "parallel.shard": sharded}
    recipe = recipe_file.replaced(recipe, values)
    return recipe, replace(plan, recipe=recipe.fingerprint, per_device=rows, accumulate=2, devices=2)


def demo() -> tuple[Recipe, Plan]:
    """The demo with a plan: the clock would decide on one of its own, and another plan is another run."""
    with resources.as_file(resources.files("shoestring.recipes")) as folder:
        recipe = recipe_file.load(folder / "demo.toml", DEMO)
    return recipe, Plan(
        binding="steps", recipe=recipe.fingerprint, steps=STEPS, effective_batch=12, per_device=12, accumulate=1,
        devices=1, entries=DOCUMENTS, evaluations=4,
    )  # fmt: skip


def many() -> tuple[Recipe, Plan]:
    """A corpus in several units, with every pass: duplicates, words, tokens."""
    recipe, plan = network("llama-muon")
    values = {"run.name": "many", "data.unique": True, "data.tokenizer": "words:6"}
    recipe = recipe_file.replaced(recipe, values)
    return recipe, replace(plan, recipe=recipe.fingerprint)


def hmm(name: str) -> tuple[Recipe, Plan]:
    data = NETWORKS["perceiver"]["data"] | {"tokenizer": "words:200", "length": 16, "documents": 400}
    recipe = recipe_file.build(
        {
            "run": {"name": name},
            "budget": {"epochs": 4},
            "data": data,
            "evaluate": {"rows": 16, "every": 0.5},
            "train": {"checkpoint_every": "30ms", "keep": 1},
            "hmm": {"states": 5} | HMMS[name],
        },
        name,
    )
    return recipe, Plan(
        binding="epochs", recipe=recipe.fingerprint, steps=100, epochs=4.0, step_seconds=0.01, per_device=64,
        parts={"finish": 0.1, "train": 1.0},
    )  # fmt: skip
