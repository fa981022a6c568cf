"""kill -9 at random instants of every command: the same command then ends with the same bytes, and leaves no file.

python bench/kill.py [--kills 200] [--seed 0] [--only train] [--jobs 2] [--out FOLDER]

Half of the kills fall at a random time, half at a random call that opens, locks, renames or removes a file; one in five
commands is killed twice. The command is then run to its end. Every file below its folder is compared with those of one
that nobody killed; its caches and temporary files lie there too. Of records that say how long something took, only the
rest is compared (see `comparable`). The same is done on a disk of 50 MB that is full (root may mount one), and with too
little memory: there a command must end by itself, with one line that says why, and be
completed when there is enough. Processes are forked from one that has loaded torch, as those of the tests are.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record

sys.path[:0] = [str(record.ROOT / "tests"), str(record.ROOT / "tests" / "golden")]
from commands import NO_FIGURES, Started  # noqa: E402
from golden_runs import HMMS, NEOX, NETWORKS  # noqa: E402

from shoestring.core import recipe_file  # noqa: E402
from shoestring.core.recipe import Recipe  # noqa: E402
from shoestring.core.records import Plan  # noqa: E402
from shoestring.core.run_folder import RunFolder  # noqa: E402
from shoestring.storage.tensor_file import read_tensors  # noqa: E402

STEPS, BATCH, DOCUMENTS = 24, 8, 200
SECONDS = 300.0
"""A command that takes longer hangs."""
TWICE = 0.2
DISK = "50m"
LEARNED = ("steps", "tokens", "predictions", "loss", "skipped")
"""Fields of DONE that are compared; the others say what it cost."""
PRESENT = re.compile(r"timings\.jsonl|machine\.json|profile\.json|.*seal.*|[0-9a-f]{16}(\.json)?")
"""Files whose content differs from run to run."""
CLEAR = re.compile(r"^error: \S.*", re.MULTILINE)
NO_LIBRARY = "cannot allocate memory for thread-local data"
"""What the C library says when it ends a process that loads a library."""
NOT_CLEAR = ("Traceback", "this is a bug")


# --- in the command's process

CALLS = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.flock"})
_made = 0


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """Count a call that changes files; at the chosen one, kill the command."""
    global _made
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event in CALLS or writes:
        _made += 1
        if os.environ.get("KILL_AT") == str(_made):
            os.kill(int(os.environ["KILL_PID"]), signal.SIGKILL)
            signal.pause()


def command() -> None:
    """The command line, which may be killed at a call, or have little memory."""
    from shoestring.cli.main import main

    tempfile.tempdir = None
    os.environ["KILL_PID"] = str(os.getpid())
    if room := os.environ.get("MEMORY_ROOM"):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + int(room)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.addaudithook(_note)
    try:
        main()
    finally:
        if count := os.environ.get("COUNT_CALLS"):
            made = _made
            Path(count).write_text(str(made))


# --- commands


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


def scenarios() -> list[Scenario]:
    trained = [Scenario(f"train {name}", ("train", f"{name}.toml"), 9) for name in NETWORKS if name != "hf"]
    fitted = [Scenario(f"hmm fit {name}", ("hmm", "fit", f"{name}.toml"), 8) for name in HMMS]
    table = ("table.csv", "--params", "params", "--tokens", "tokens", "--loss", "loss", "--bootstraps", "50")
    sampled = ("hmm", "sample", "runs/hmm-online", "--rows", "3000", "--length", "16", "--heldout", "64")
    return [
        *trained,
        Scenario("train hf", ("train", "hf.toml"), 3),
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


# --- one command in one folder


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float


class Place:
    """A folder in which a command runs, with its caches and temporary files."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {
            "COLUMNS": "200",
            "NO_COLOR": "1",
            NO_FIGURES: "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "SHOESTRING_CACHE": str(folder / "cache"),
            "TMPDIR": str(folder / "tmp"),
        }

    def start(self, scenario: Scenario, **environment: str) -> Started:
        words = [self._store() if word == "STORE" else word for word in scenario.command]
        return Started(words, self.folder, self.environment | environment, command)

    def _store(self) -> str:
        store = next(path.parent for path in sorted(self.folder.rglob("manifest.json")))
        return str(store.relative_to(self.folder))

    def finish(self, process: Started, started: float) -> Ended:
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode is not None
        return Ended(process.returncode, out, err, time.monotonic() - started)

    def run(self, scenario: Scenario, **environment: str) -> Ended:
        started = time.monotonic()
        return self.finish(self.start(scenario, **environment), started)

    def kill_after(self, scenario: Scenario, seconds: float) -> Ended:
        started = time.monotonic()
        process = self.start(scenario)
        while process.poll() is None and time.monotonic() - started < seconds:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        return self.finish(process, started)

    def kill_at(self, scenario: Scenario, call: int) -> Ended:
        return self.run(scenario, KILL_AT=str(call))

    def comparable(self, scenario: Scenario) -> dict[str, str]:
        """A digest of all that is compared of every file, by its path."""
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(comparable(path, scenario.page)).hexdigest()
            for path in sorted(self.folder.rglob("*"))
            if not path.is_dir()
        }


def comparable(path: Path, page: bool) -> bytes:
    """The content of a file without what differs from run to run."""
    if PRESENT.fullmatch(path.name) or (path.name == "report.html" and not page):
        return b""
    if path.name == "DONE":
        done = json.loads(path.read_text())
        return json.dumps([done[name] for name in LEARNED]).encode()
    if path.parent.name == "checkpoints" and path.suffix == ".safetensors":
        arrays, note = read_tensors(path)
        tensors = {name: [str(array.dtype), array.shape, array.tobytes().hex()] for name, array in arrays.items()}
        return json.dumps([without_times(json.loads(note)), tensors]).encode()
    return path.read_bytes()


def without_times(values: Any) -> Any:
    """The values of a record without seconds and rates."""
    if isinstance(values, dict):
        return {name: without_times(value) for name, value in values.items() if "second" not in name}
    return [without_times(value) for value in values] if isinstance(values, list) else values


# --- kills


@dataclass
class Found:
    """What came of the kills of one scenario."""

    kills: int = 0
    at_calls: int = 0
    twice: int = 0
    differing: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class Reference:
    """What a command does that nobody kills."""

    def __init__(self, scenario: Scenario, template: Path, place: Place):
        self.scenario, self.template = scenario, template
        shutil.copytree(template, place.folder, symlinks=True)
        count = place.folder.parent / f"{place.folder.name}.calls"
        ended = place.run(scenario, COUNT_CALLS=str(count))
        assert ended.code == 0, f"{scenario.name}: {ended.err[-2000:]}"
        self.seconds, self.out, self.calls = ended.seconds, ended.out, int(count.read_text())
        self.files = place.comparable(scenario)
        count.unlink()
        shutil.rmtree(place.folder)

    def compare(self, place: Place, ended: Ended, found: Found, what: str) -> None:
        """Add to `found` how the end of a command differs from this one."""
        scenario = self.scenario
        known = scenario.done_before is not None and scenario.done_before in ended.err
        if ended.code != 0 and not known:
            found.failed.append(f"{scenario.name}, {what}: exit code {ended.code}, {ended.err.strip()[-300:]}")
            return
        if scenario.says and ended.out != self.out:
            found.differing.append(f"{scenario.name}, {what}: what it prints")
        files = place.comparable(scenario)
        found.left += [f"{scenario.name}, {what}: {name}" for name in sorted(files.keys() - self.files.keys())]
        found.differing += [
            f"{scenario.name}, {what}: {name}"
            for name, digest in sorted(self.files.items())
            if files.get(name) != digest
        ]


def kill(reference: Reference, place: Place, drawn: random.Random, found: Found) -> None:
    """Kill the command once or twice, run it to its end, and compare."""
    scenario, said = reference.scenario, []
    shutil.copytree(reference.template, place.folder, symlinks=True)
    kills = 2 if drawn.random() < TWICE else 1
    for _ in range(kills):
        at_call = drawn.random() < 0.5 and reference.calls > 0
        for attempt in range(8):
            if at_call:
                call = drawn.randint(1, max(1, reference.calls - attempt))
                ended, what = place.kill_at(scenario, call), f"call {call}"
            else:
                after = drawn.uniform(0.0, reference.seconds / (1 + attempt))
                ended, what = place.kill_after(scenario, after), f"{after:.3f} s"
            if ended.code == -signal.SIGKILL:
                break
            if scenario.done_before is None or scenario.done_before not in ended.err:
                assert ended.code == 0, ended.err
            shutil.rmtree(place.folder)  # it ended before
            shutil.copytree(reference.template, place.folder, symlinks=True)
            said = []
        else:
            found.failed.append(f"{scenario.name}: never killed")
            return
        said.append(what)
        found.kills, found.at_calls = found.kills + 1, found.at_calls + at_call
    found.twice += kills == 2
    reference.compare(place, place.run(scenario), found, "killed at " + " and ".join(said))


# --- a full disk and little memory


def check_clear(scenario: Scenario, ended: Ended, found: Found, what: str) -> None:
    if ended.code == 0:
        return
    if NO_LIBRARY in ended.err:
        return
    if ended.code not in (1, 2) or not CLEAR.search(ended.err) or any(sign in ended.err for sign in NOT_CLEAR):
        found.failed.append(f"{scenario.name}, {what}: exit code {ended.code}, {ended.err.strip()[-300:]}")


def fill(reference: Reference, place: Place, drawn: random.Random, found: Found) -> None:
    """Run the command on a disk with too little room; then with enough."""
    shutil.copytree(reference.template, place.folder, symlinks=True)
    free = shutil.disk_usage(place.folder).free
    room = int(2 ** drawn.uniform(10, 20))  # 1 kB to 1 MB
    filler = place.folder.parent / "filler"
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - room))
    ended, what = place.run(reference.scenario), f"{room / 1000:.0f} kB free"
    found.kills += ended.code != 0
    if ended.code and "full" not in ended.err and "free" not in ended.err:
        found.failed.append(f"{reference.scenario.name}, {what}: it does not name the disk: {ended.err[-300:]}")
    check_clear(reference.scenario, ended, found, what)
    filler.unlink()
    reference.compare(place, place.run(reference.scenario), found, what)


def squeeze(reference: Reference, place: Place, drawn: random.Random, found: Found) -> None:
    """Run the command with too little memory; then with enough."""
    shutil.copytree(reference.template, place.folder, symlinks=True)
    room = int(2 ** drawn.uniform(16, 28))  # 64 kB to 256 MB
    ended, what = place.run(reference.scenario, MEMORY_ROOM=str(room)), f"{room / 1e6:.1f} MB more"
    found.kills += ended.code != 0
    check_clear(reference.scenario, ended, found, what)
    before = len(found.differing)
    reference.compare(place, place.run(reference.scenario), found, what)
    if reference.scenario.name.startswith(("train", "hmm fit")):
        del found.differing[before:]  # steps that had little memory were taken in smaller parts, whose sums differ


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A mounted disk of 50 MB; None: this user may not mount one."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", folder], capture_output=True, check=False
    )
    try:
        yield folder if made.returncode == 0 else None
    finally:
        if made.returncode == 0:
            subprocess.run(["umount", folder], check=True)


# --- all of them

Trial = Callable[[Reference, Place, random.Random, Found], None]


def templates(work: Path) -> tuple[Path, Path]:
    """A folder with recipes, and one with finished runs too."""
    inputs, ready = write_template(work), work / "ready"
    shutil.copytree(inputs, ready)
    for words in (("train", "llama.toml"), ("hmm", "fit", "hmm-online.toml")):
        ended = Place(ready).run(Scenario(words[0], words))
        assert ended.code == 0, ended.err
    write_profile(ready)
    return inputs, ready


def write_template(work: Path) -> Path:
    """A new folder with recipes and what they need."""
    inputs = work / "inputs"
    for folder in (inputs, inputs / "cache", inputs / "tmp"):
        folder.mkdir()
    with contextlib.chdir(inputs):
        write_inputs()
    return inputs


def write_profile(ready: Path) -> None:
    import profiles

    with contextlib.chdir(ready):
        profiles.write_profile(Path("llama.toml"), "run.name=planned")


def refer(chosen: Sequence[Scenario], inputs: Path, ready: Path, work: Path, jobs: int) -> dict[str, Reference]:
    """What every command does that nobody kills."""

    def one(scenario: Scenario) -> Reference:
        place = Place(work / f"reference-{re.sub(r'[^a-z0-9]+', '-', scenario.name)}")
        return Reference(scenario, ready if scenario.ready else inputs, place)

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip((scenario.name for scenario in chosen), pool.map(one, chosen), strict=True))


def counts(total: int, chosen: Sequence[Scenario]) -> dict[str, int]:
    """The kills of each scenario: by its weight, at least one."""
    weight = sum(scenario.weight for scenario in chosen)
    return {scenario.name: max(1, round(total * scenario.weight / weight)) for scenario in chosen} if total else {}


def run_all(
    trial: Trial, references: dict[str, Reference], many: dict[str, int], work: Path, seed: int, jobs: int
) -> dict[str, Found]:
    found = {name: Found() for name in many}

    def one(name: str, number: int) -> None:
        place = Place(work / f"{re.sub(r'[^a-z0-9]+', '-', name)}-{number}")
        try:
            trial(references[name], place, random.Random(f"{seed} {name} {number}"), found[name])
        except (AssertionError, subprocess.TimeoutExpired, OSError) as cause:
            found[name].failed.append(f"{name}: {cause!r}"[:500])
        finally:
            shutil.rmtree(place.folder, ignore_errors=True)
            show(found[name])

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(one, name, number) for name, count in many.items() for number in range(count)]:
            future.result()
    return found


def show(found: Found) -> None:
    """Print what went wrong, once."""
    for kind in ("differing", "left", "failed"):
        for line in getattr(found, kind):
            if line not in _SHOWN:
                _SHOWN.add(line)
                print(f"{kind}: {line}", flush=True)


_SHOWN = set[str]()


def summary(found: dict[str, Found]) -> dict[str, Any]:
    every = Counter[str]()
    for each in found.values():
        every.update(kills=each.kills, at_calls=each.at_calls, twice=each.twice)
    problems = {
        kind: [line for each in found.values() for line in getattr(each, kind)]
        for kind in ("differing", "left", "failed")
    }
    return {**every, **{kind: len(lines) for kind, lines in problems.items()}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--limits", type=int, default=30, help="runs on a full disk, and as many with little memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands whose name begins so")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder of the record; default: none is written with --only")
    given = parser.parse_args()
    chosen = [scenario for scenario in scenarios() if scenario.name.startswith(given.only)]
    with tempfile.TemporaryDirectory(prefix="kill-") as name:
        work = Path(name)
        inputs, ready = templates(work)
        references = refer(chosen, inputs, ready, work, given.jobs)
        print(f"{len(references)} commands; {sum(each.calls for each in references.values())} calls", flush=True)
        many = counts(given.kills, chosen)
        killed = run_all(kill, references, many, work, given.seed, given.jobs)
        values: dict[str, Any] = {
            "seed": given.seed,
            "kills": summary(killed),
            "by_command": {name: each.kills for name, each in killed.items()},
        }
        limited = [each for each in chosen if not each.name.startswith(("measure", "train hf"))]
        few = counts(given.limits, limited)
        with small_disk(work / "disk") as disk:
            full = None if disk is None else run_all(fill, references, few, disk, given.seed, jobs=1)
        values["full_disk"] = None if full is None else summary(full)
        values["little_memory"] = summary(run_all(squeeze, references, few, work, given.seed, given.jobs))
    print(json.dumps(values, indent=1))
    if given.out or not given.only:
        record.write("kill", values, given.out)


if __name__ == "__main__":
    main()
