"""kill -9 at random instants of every command: the same command then ends with the same bytes, and leaves no file.

    python bench/kill.py [--kills 170] [--limits 30] [--seed 0] [--only train] [--part kills] [--jobs 2]
                         [--minutes M] [--resume FILE] [--out FOLDER]

Half of the kills fall at a random time, half at a random call that opens, locks, renames or removes a file; one in five
commands is killed twice. Where a command has several processes (torchrun, the pool of `prepare`), the first, one of the
others or all are killed. The command is then run to its end. Every file below its folder is compared with those of one
that nobody killed; its caches and temporary files lie there too. Of records that say how long something took, only the
rest is compared (see `comparable`).

The same is done on a disk of 50 MB that is full (root may mount one), and with too little memory: there a command must
end by itself, with one line that says why, and be completed when there is enough. Smaller micro-batches, for want of
memory, have other sums: such a run is compared with one that takes them at the same steps, and that nothing limits or
stops. With --resume FILE every trial is written to FILE as it ends; those of this commit and seed in it are not made
again. Processes are forked from one that has loaded torch, as those of the tests are.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import kill_process
import record
from kill_scenarios import STEPS, Scenario, scenarios, write_inputs

sys.path[:0] = [str(record.ROOT / "tests")]
from commands import NO_FIGURES, Started, forks  # noqa: E402

from shoestring.storage.tensor_file import read_tensors  # noqa: E402

SECONDS, PATIENCE = 300.0, 100.0
"""A command that takes longer hangs; on a busy machine, one that takes so many times what it took before."""
TWICE = 0.2
PROBLEMS = ("differing", "left", "failed")
UNIT_BYTES = 4000
DISK = "50m"
LEARNED = ("steps", "tokens", "predictions", "loss", "skipped")
"""Fields of DONE that are compared; the others say what it cost."""
PRESENT = re.compile(r"(timings|samples)\.jsonl|machine\.json|profile\.json|.*seal.*|[0-9a-f]{16}(\.json)?")
"""Files whose content differs from run to run."""
CLEAR = re.compile(r"^error: \S.*", re.MULTILINE)
NO_LIBRARY = ("cannot allocate memory for thread-local data", "Fatal glibc error: failed to register TLS destructor")
"""What the C library says when it ends a process that loads a library, or starts a thread."""
NOT_CLEAR = ("Traceback", "this is a bug")


# --- one command in one folder


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float
    killed: bool = False
    """Whether a process of it was killed while it ran."""


class Process(Protocol):
    """A command that runs."""

    @property
    def pid(self) -> int | None: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def communicate(self, timeout: float | None = None) -> tuple[str, str]: ...


class Place:
    """A folder in which a command runs, with its caches and temporary files."""

    def __init__(self, folder: Path, seconds: float = SECONDS):
        self.folder, self.seconds = folder, seconds
        self.environment = {
            "COLUMNS": "200",
            "NO_COLOR": "1",
            NO_FIGURES: "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "SHOESTRING_CACHE": str(folder / "cache"),
            "TMPDIR": str(folder / "tmp"),
            "AGENT_TMPDIR": str(folder.parent),
        }

    def beside(self, name: str) -> Path:
        """A file of this place that is not in its folder."""
        return self.folder.parent / f"{self.folder.name}.{name}"

    def start(self, scenario: Scenario, **environment: str) -> Process:
        words = [self._store() if word == "STORE" else word for word in scenario.command]
        environment = self.environment | environment
        if scenario.workers:
            return self._interpreter(words, environment | {"UNIT_BYTES": str(UNIT_BYTES)})
        begin = kill_process.torchrun if scenario.ranks else kill_process.command
        return Started(words, self.folder, environment, begin)

    def _interpreter(self, words: Sequence[str], environment: dict[str, str]) -> Process:
        path = [str(record.ROOT / "src"), str(record.ROOT / "bench")]
        code = "import kill_process; kill_process.command()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=self.folder,
            env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def _store(self) -> str:
        store = next(path.parent for path in sorted(self.folder.rglob("manifest.json")))
        return str(store.relative_to(self.folder))

    def finish(self, process: Process, started: float, sent: bool = False) -> Ended:
        try:
            out, err = process.communicate(timeout=self.seconds)
        finally:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it has started, if that is still there
        assert process.returncode is not None
        killed = sent or process.returncode == -signal.SIGKILL
        return Ended(process.returncode, out, err, time.monotonic() - started, killed)

    def run(self, scenario: Scenario, **environment: str) -> Ended:
        started = time.monotonic()
        return self.finish(self.start(scenario, **environment), started)

    def kill_after(
        self, scenario: Scenario, seconds: float, victim: str, drawn: random.Random, **environment: str
    ) -> Ended:
        started = time.monotonic()
        process = self.start(scenario, **environment)
        while process.poll() is None and time.monotonic() - started < seconds:
            time.sleep(0.001)
        sent = False
        if process.poll() is None and process.pid is not None:
            sent = _kill(process.pid, victim, drawn)
        return self.finish(process, started, sent)

    def kill_at(self, scenario: Scenario, call: int) -> Ended:
        ended = self.run(scenario, KILL_AT=str(call))
        ended.killed |= scenario.ranks and "SIGKILL" in ended.err  # torchrun's agent tells of its process
        return ended

    def comparable(self, scenario: Scenario) -> dict[str, str]:
        """A digest of all that is compared of every file, by its path."""
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(comparable(path, scenario)).hexdigest()
            for path in sorted(self.folder.rglob("*"))
            if not path.is_dir()
        }


def _kill(first: int, victim: str, drawn: random.Random) -> bool:
    """Kill a command's first process, another one, or all; returns whether it was another one, so that it may live."""
    others = _others(first)
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        if victim == "all":
            os.killpg(first, signal.SIGKILL)
        elif victim == "other" and others:
            os.kill(drawn.choice(others), signal.SIGKILL)
            return True
        else:
            os.kill(first, signal.SIGKILL)
    return False


def _others(first: int) -> list[int]:
    """The processes of a group besides its first one; of these, those that others than the first one started."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, group, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(group) == first and int(folder.name) != first and state != "Z":
                found[int(folder.name)] = int(parent)
    workers = [number for number, parent in found.items() if parent != first]
    return sorted(workers or found)


def comparable(path: Path, scenario: Scenario) -> bytes:
    """The content of a file without what differs from run to run."""
    if not path.is_file():
        return b"a link, a socket or a pipe"
    if PRESENT.fullmatch(path.name) or (path.name == "report.html" and not scenario.page):
        return b""
    if path.name == "DONE":
        done = json.loads(path.read_text())
        return json.dumps([done[name] for name in LEARNED]).encode()
    if "checkpoints" in path.parts and path.suffix == ".safetensors":
        arrays, note = read_tensors(path)
        tensors = {name: [str(array.dtype), array.shape, array.tobytes().hex()] for name, array in arrays.items()}
        return json.dumps([without_times(json.loads(note or "null")), tensors]).encode()
    if "checkpoints" in path.parts and path.suffix == ".json":
        return json.dumps(without_times(json.loads(path.read_text()))).encode()
    return path.read_bytes()


def without_times(values: Any) -> Any:
    """The values of a record without seconds and rates."""
    if isinstance(values, dict):
        return {name: without_times(value) for name, value in values.items() if "second" not in name}
    return [without_times(value) for value in values] if isinstance(values, list) else values


# --- kills


@dataclass
class Found:
    """What came of trials of one scenario."""

    trials: int = 0
    kills: int = 0
    """Or runs that ended for want of disk or memory."""
    at_calls: int = 0
    twice: int = 0
    others: int = 0
    """Kills of another process than the first one."""
    smaller: int = 0
    """Runs that took smaller micro-batches for want of memory."""
    differing: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Reference:
    """What a command does that nobody kills."""

    def __init__(self, scenario: Scenario, template: Path, place: Place):
        self.scenario, self.template = scenario, template
        shutil.copytree(template, place.folder, symlinks=True)
        count, rows = place.beside("calls"), place.beside("rows")
        noted = {"NOTE_ROWS": str(rows)} if scenario.trains and not scenario.ranks else {}
        ended = place.run(scenario, COUNT_CALLS=str(count), **noted)
        assert ended.code == 0, f"{scenario.name}: {ended.err[-2000:]}"
        self.seconds, self.out, self.calls = ended.seconds, ended.out, int(count.read_text())
        self.files, self.rows = place.comparable(scenario), kill_process.read_rows(rows)
        for path in (count, rows):
            path.unlink(missing_ok=True)
        shutil.rmtree(place.folder)

    @cached_property
    def patience(self) -> float:
        return max(SECONDS, PATIENCE * self.seconds)

    def compare(
        self, place: Place, ended: Ended, found: Found, what: str, expected: dict[str, str] | None = None
    ) -> None:
        """Add to `found` how the end of a command differs from this one, or its files from those that are expected."""
        scenario, expected = self.scenario, self.files if expected is None else expected
        known = scenario.done_before is not None and scenario.done_before in ended.err
        if ended.code != 0 and not known:
            found.failed.append(f"{scenario.name}, {what}: exit code {ended.code}, {ended.err.strip()[-300:]}")
            return
        if scenario.says and ended.out != self.out:
            found.differing.append(f"{scenario.name}, {what}: what it prints")
        files = place.comparable(scenario)
        found.left += [f"{scenario.name}, {what}: {name}" for name in sorted(files.keys() - expected.keys())]
        found.differing += [
            f"{scenario.name}, {what}: {name}" for name, digest in sorted(expected.items()) if files.get(name) != digest
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
                ended, what, victim = place.kill_at(scenario, call), f"call {call}", "first"
            else:
                after, victim = drawn.uniform(0.0, reference.seconds / (1 + attempt)), drawn.choice(scenario.victims)
                ended, what = place.kill_after(scenario, after, victim, drawn), f"{after:.3f} s ({victim})"
            if ended.killed:
                break
            if scenario.done_before is None or scenario.done_before not in ended.err:
                assert ended.code == 0, ended.err
            shutil.rmtree(place.folder)  # it ended before
            shutil.copytree(reference.template, place.folder, symlinks=True)
            said = []
        else:
            found.failed.append(f"{scenario.name}: never killed")
            return
        if ended.code != -signal.SIGKILL and not scenario.ranks:  # torchrun tells of its processes by a traceback
            check_clear(scenario, ended, found, what)
        said.append(what)
        found.kills, found.at_calls = found.kills + 1, found.at_calls + at_call
        found.others += victim == "other"
    found.twice += kills == 2
    reference.compare(place, place.run(scenario), found, "killed at " + " and ".join(said))


# --- a full disk and little memory


def check_clear(scenario: Scenario, ended: Ended, found: Found, what: str) -> None:
    if ended.code == 0:
        return
    if any(end in ended.err for end in NO_LIBRARY):
        return
    if ended.code not in (1, 2) or not CLEAR.search(ended.err) or any(sign in ended.err for sign in NOT_CLEAR):
        found.failed.append(f"{scenario.name}, {what}: exit code {ended.code}, {ended.err.strip()[-300:]}")


def fill(reference: Reference, place: Place, drawn: random.Random, found: Found) -> None:
    """Run the command on a disk with too little room; then with enough."""
    with small_disk(place.folder) as disk:
        assert disk is not None, "it could be mounted before"
        _fill(reference, Place(disk / "place", place.seconds), drawn, found)


def _fill(reference: Reference, place: Place, drawn: random.Random, found: Found) -> None:
    shutil.copytree(reference.template, place.folder, symlinks=True)
    free = shutil.disk_usage(place.folder).free
    room = int(2 ** drawn.uniform(10, 20))  # 1 kB to 1 MB
    filler = place.beside("filler")
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
    """Run the command with too little memory; then with enough.

    Of training, some have it from a step on; some can take only few rows at a time from a step on, and are killed.
    Before the first steps and the first evaluation of a network it would be too early: without memory for its buffers,
    a library below torch takes another way, whose sums differ in the last bits, and tells nobody.
    """
    scenario, notes = reference.scenario, place.beside("rows")
    shutil.copytree(reference.template, place.folder, symlinks=True)
    room = int(2 ** drawn.uniform(16, 28))  # 64 kB to 256 MB
    step = drawn.randrange(1 if scenario.command[0] == "hmm" else STEPS // 4 + 1, STEPS)
    kind, noted = drawn.random() if scenario.trains else 0.0, {"NOTE_ROWS": str(notes)} if scenario.trains else {}
    if kind < 0.3:
        what = f"{room / 1e6:.1f} MB more"
        ended = place.run(scenario, **noted, MEMORY_ROOM=str(room))
    elif kind < 0.5:
        what = f"{room / 1e6:.1f} MB more from step {step} on"
        ended = place.run(scenario, **noted, MEMORY_ROOM=str(room), MEMORY_STEP=str(step))
    else:
        rows = max(1, max(reference.rows.values()) * drawn.randrange(1, 4) // 4)
        after = drawn.uniform(0.0, reference.seconds)
        what = f"room for {rows} rows from step {step} on, killed at {after:.3f} s"
        limits = {"MEMORY_ROWS": str(rows), "MEMORY_STEP": str(step)}
        ended = place.kill_after(scenario, after, "first", drawn, **noted, **limits)
    found.kills += ended.code != 0
    if not ended.killed:
        check_clear(scenario, ended, found, what)
    ended = place.run(scenario, **noted)
    expected = None
    if kill_process.read_rows(notes) != reference.rows:
        found.smaller += 1
        expected = same_rows(reference, place, notes)
    reference.compare(place, ended, found, what, expected)
    notes.unlink(missing_ok=True)


def same_rows(reference: Reference, place: Place, notes: Path) -> dict[str, str]:
    """The files of a run that nothing stops, with the micro-batches that are noted."""
    other = Place(place.beside("same"), place.seconds)
    shutil.copytree(reference.template, other.folder, symlinks=True)
    again = other.beside("rows")
    try:
        ended = other.run(reference.scenario, TAKE_ROWS=str(notes), NOTE_ROWS=str(again))
        assert ended.code == 0, f"{reference.scenario.name}: {ended.err[-2000:]}"
        assert kill_process.read_rows(again) == kill_process.read_rows(notes), "it takes the rows that are noted"
        return other.comparable(reference.scenario)
    finally:
        again.unlink(missing_ok=True)
        shutil.rmtree(other.folder)


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
            subprocess.run(["umount", "--lazy", folder], check=True)  # a process of it may not have ended yet


# --- all of them

Trial = Callable[[Reference, Place, random.Random, Found], None]


class Templates:
    """Folders in which commands begin: one with recipes, and one with finished runs too."""

    def __init__(self, work: Path):
        self._work = work
        self.inputs = write_template(work)

    def of(self, scenario: Scenario) -> Path:
        return self.ready if scenario.ready else self.inputs

    @cached_property
    def ready(self) -> Path:
        import profiles

        ready = self._work / "ready"
        shutil.copytree(self.inputs, ready)
        with contextlib.chdir(ready):
            for recipe, *settings in (("llama.toml",), ("perceiver.toml",), ("llama.toml", "run.name=planned")):
                profiles.write_profile(Path(recipe), *settings)
        for words in (("train", "llama.toml"), ("train", "perceiver.toml"), ("hmm", "fit", "hmm-online.toml")):
            ended = Place(ready).run(Scenario(words[0], words))
            assert ended.code == 0, ended.err
        return ready


def write_template(work: Path) -> Path:
    """A new folder with recipes and what they need."""
    inputs = work / "inputs"
    for folder in (inputs, inputs / "cache", inputs / "tmp"):
        folder.mkdir()
    with contextlib.chdir(inputs):
        write_inputs()
    return inputs


class Journal:
    """The trials that have ended, by their number, part and command; kept in a file for another call, if one is given.

    Only trials of this commit and seed count.
    """

    def __init__(self, path: Path | None, seed: int):
        self._path, self._key, self._lock = path, [record.commit(), seed], threading.Lock()
        self.known: dict[tuple[int, str, str], Found] = {}
        for line in path.read_text().splitlines() if path is not None and path.is_file() else ():
            values = json.loads(line)
            if values["key"] == self._key:
                number, part, name = values["trial"]
                self.known[number, part, name] = Found(**values["found"])

    def add(self, found: Found, number: int, part: str, name: str) -> None:
        with self._lock:
            self.known[number, part, name] = found
            for kind in PROBLEMS:
                for line in getattr(found, kind):
                    print(f"{kind}: {line}", flush=True)
            if self._path is not None:
                with open(self._path, "a") as file:
                    file.write(
                        json.dumps({"key": self._key, "trial": [number, part, name], "found": asdict(found)}) + "\n"
                    )


def counts(total: int, chosen: Sequence[Scenario]) -> dict[str, int]:
    """The trials of each scenario: by its weight, at least one."""
    weight = sum(scenario.weight for scenario in chosen)
    return {scenario.name: max(1, round(total * scenario.weight / weight)) for scenario in chosen} if total else {}


@dataclass
class Bench:
    """Trials of commands, each in a folder of its own."""

    chosen: Sequence[Scenario]
    work: Path
    seed: int
    jobs: int
    journal: Journal
    until: float
    """When no other trial is begun, on the monotonic clock."""

    def __post_init__(self) -> None:
        forks()  # before there are threads
        self._templates = Templates(self.work)
        Place(self._templates.inputs).run(Scenario("warm", ("--version",)))  # it waits until all is loaded
        self._references: dict[str, Reference] = {}

    def run(self, parts: dict[str, tuple[Trial, int]]) -> dict[str, dict[str, Found]]:
        """About so many trials of each part, the first ones of all commands first; what came of them, by command."""
        trials = sorted(
            (number, part, name)
            for part, (_, total) in parts.items()
            for name, count in counts(total, self._chosen(part)).items()
            for number in range(count)
        )
        missing = [each for each in trials if each not in self.journal.known and time.monotonic() < self.until]
        self._refer({name for _, _, name in missing})
        print(f"{len(trials)} trials, {len(trials) - len(missing)} were made before", flush=True)
        with ThreadPoolExecutor(self.jobs) as pool:
            for future in [
                pool.submit(self._one, parts[part][0], number, part, name) for number, part, name in missing
            ]:
                future.result()
        found = {part: {scenario.name: Found() for scenario in self._chosen(part)} for part in parts}
        for number, part, name in self.journal.known.keys() & set(trials):
            found[part][name].add(self.journal.known[number, part, name])
        return found

    def _chosen(self, part: str) -> list[Scenario]:
        return [each for each in self.chosen if part not in each.left_out]

    def _one(self, trial: Trial, number: int, part: str, name: str) -> None:
        if time.monotonic() >= self.until:
            return
        found, reference = Found(trials=1), self._references[name]
        place = Place(self.work / re.sub(r"[^a-z0-9]+", "-", f"{part} {name} {number}"), reference.patience)
        try:
            trial(reference, place, random.Random(f"{self.seed} {name} {number}"), found)
        except (AssertionError, subprocess.TimeoutExpired, OSError) as cause:
            found.failed.append(f"{name}: {cause!r}"[:500])
        finally:
            shutil.rmtree(place.folder, ignore_errors=True)
        self.journal.add(found, number, part, name)

    def _refer(self, names: set[str]) -> None:
        """Find what these commands do that nobody kills."""
        wanted = [each for each in self.chosen if each.name in names and each.name not in self._references]
        starts = [self._templates.of(scenario) for scenario in wanted]

        def one(scenario: Scenario, template: Path) -> Reference:
            place = Place(self.work / f"reference-{re.sub(r'[^a-z0-9]+', '-', scenario.name)}")
            return Reference(scenario, template, place)

        with ThreadPoolExecutor(self.jobs) as pool:
            for reference in pool.map(one, wanted, starts):
                self._references[reference.scenario.name] = reference
                print(f"{reference.scenario.name}: {reference.seconds:.1f} s, {reference.calls} calls", flush=True)


def summary(found: dict[str, Found]) -> dict[str, Any]:
    total = Found()
    for each in found.values():
        total.add(each)
    values = asdict(total)
    return {
        **{name: value for name, value in values.items() if name not in PROBLEMS},
        **{name: len(values[name]) for name in PROBLEMS},
        "commands": {name: each.kills for name, each in found.items()},
        "problems": [line for name in PROBLEMS for line in values[name]],
    }


def earlier(folder: Path | None) -> dict[str, Any]:
    """The parts of the record that is there, each with the commit that it was made of."""
    paths = sorted((folder or record.ROOT / "results").glob("kill-*.json"))
    parts: dict[str, Any] = json.loads(paths[0].read_text())["parts"] if paths else {}
    return parts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=170, help="commands that are killed, some of them twice")
    parser.add_argument("--limits", type=int, default=30, help="runs on a full disk, and as many with little memory")
    parser.add_argument("--part", action="append", help='"kills", "full disk" or "little memory"; default: all')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands whose name begins so")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no trial after so long, and record those"
    )
    parser.add_argument("--resume", type=Path, help="file of the trials so far; they are not made again")
    parser.add_argument("--out", type=Path, help="folder of the record; default: none is written with --only")
    given = parser.parse_args()
    chosen = [scenario for scenario in scenarios() if scenario.name.startswith(given.only)]
    with tempfile.TemporaryDirectory(prefix="kill-") as name:
        work = Path(name)
        journal, until = Journal(given.resume, given.seed), time.monotonic() + 60 * given.minutes
        bench = Bench(chosen, work, given.seed, given.jobs, journal, until)
        parts: dict[str, tuple[Trial, int]] = {
            "kills": (kill, given.kills), "full disk": (fill, given.limits), "little memory": (squeeze, given.limits),
        }  # fmt: skip
        with small_disk(work / "disk") as disk:
            chosen_parts = [part for part in given.part or parts if disk is not None or part != "full disk"]
        found = bench.run({part: parts[part] for part in chosen_parts})
    made = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d"), "seed": given.seed}
    values = {part: made | summary(of_part) for part, of_part in found.items()}
    print(json.dumps(values, indent=1))
    if given.out or not given.only:
        record.write("kill", {"disk": DISK, "parts": earlier(given.out) | values}, given.out)


if __name__ == "__main__":
    main()
