"""Bad inputs for every command: a table of what each argument is, times ways to be wrong.

The commands and their arguments come from the command line itself: a new one without an entry here fails a test.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import click
from spoiled import (
    BYTES,
    IN_PLACE,
    JSON,
    LONG_NAME,
    LONG_PATH,
    TOML,
    Act,
    Bad,
    bad_paths,
    nothing,
    spoil_field,
)
from world import TABLE

from shoestring.cli.root import root
from shoestring.core.choices import Choices
from shoestring.core.law_record import Law
from shoestring.core.recipe import Recipe
from shoestring.core.records import Machine, Plan, Profile
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.schema import hints
from shoestring.core.specs import Spec
from shoestring.core.units import Bytes, Count, Flops, Seconds


@dataclass(frozen=True)
class Case:
    """A command line that must be refused."""

    name: str
    arguments: tuple[str, ...]
    names: tuple[str, ...] = ()
    """What the message must name; any one of the parts of "a|b"."""
    act: Act = nothing
    environment: Mapping[str, str | None] = field(default_factory=dict)


def commands() -> dict[str, click.Command]:
    """Every command by its words, from the command line itself."""

    def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                inner = command.get_command(click.Context(command), name)
                assert inner is not None
                yield from walk(inner, (*words, name))
        else:
            yield " ".join(words), command

    return dict(walk(root, ()))


RECIPE, SETTING, RUN, STORE, MODEL, PLAN, PROFILE, LAW, TABLES, SOURCE = (
    "recipe", "setting", "run", "store", "model", "plan", "profile", "law", "tables", "source",
)  # fmt: skip
NUMBER, QUANTITY, CHOICE, COLUMN, NEW_FILE, NEW_FOLDER, PAGE, TEXT, FLAG, RUNS, SWEEP, PIECES = (
    "number", "quantity", "choice", "column", "new file", "new folder", "page", "text", "flag", "runs", "sweep",
    "pieces",
)  # fmt: skip

KINDS: dict[str, str] = {
    "recipe": RECIPE, "overrides": SETTING, "run": RUN, "store": STORE, "model": MODEL, "plan": PLAN,
    "profile": PROFILE, "profiles": RUNS, "law_file": LAW, "law": LAW, "sources": TABLES, "runs": TABLES,
    "history": RUNS, "data": SOURCE, "checkpoint": CHOICE, "time": QUANTITY, "shard": CHOICE, "what_if": SETTING,
    "over": SETTING, "sbatch": NEW_FILE, "gpu": CHOICE, "vocabulary": NUMBER, "folder": NEW_FOLDER, "prompt": TEXT,
    "max_tokens": NUMBER, "temperature": NUMBER, "top_k": NUMBER, "top_p": NUMBER, "count": NUMBER, "seed": NUMBER,
    "split": CHOICE, "first": NUMBER, "rows": NUMBER, "length": NUMBER, "packing": CHOICE, "start": CHOICE,
    "symbols": CHOICE, "states": NUMBER, "sentence": CHOICE, "heldout": NUMBER, "out": NEW_FILE, "loss": COLUMN,
    "flops": QUANTITY, "step": COLUMN, "flops_per_step": QUANTITY, "tokens": QUANTITY, "params": QUANTITY,
    "group": COLUMN, "where": COLUMN, "names": CHOICE, "approach": CHOICE, "penalty": CHOICE, "delta": NUMBER,
    "step_seconds": QUANTITY,
    "window": NUMBER, "exponent": NUMBER, "drop_largest": NUMBER, "bootstraps": NUMBER, "name": TEXT,
    "sizes": CHOICE, "text": SOURCE, "convention": CHOICE, "warmup": QUANTITY, "evaluate_every": QUANTITY,
    "until": NUMBER, "zipped": SETTING, "seeds": NUMBER, "random": NUMBER, "halving": CHOICE, "at_once": NUMBER,
    "by": CHOICE, "columns": CHOICE, "heat": CHOICE, "against": CHOICE, "parquet": NEW_FILE, "simulate": CHOICE,
    "slow_worker": CHOICE, "base": RUN, "tokenizer": CHOICE, "prompts": NUMBER, "prefix": NUMBER, "least": NUMBER,
    "k": NUMBER, "file": PIECES, "pieces": PIECES, "on": SOURCE, "harness": TEXT, "limit": NUMBER, "port": NUMBER,
    "host": CHOICE, "trackers": CHOICE, "plan_file": PLAN, "sampler": CHOICE, "trials": NUMBER, "slurm_options": CHOICE,
    "nodes": NUMBER, "processes": NUMBER,
}  # fmt: skip
"""What an argument is, by its name; flags are left out."""
OTHERS: dict[tuple[str, str], str] = {
    ("law fit", "params"): COLUMN, ("law fit", "tokens"): COLUMN, ("law fit", "flops"): COLUMN,
    ("law fit", "count"): CHOICE, ("law compare", "flops"): COLUMN, ("law compare", "tokens"): COLUMN,
    ("law compare", "out"): PAGE, ("law isoflop", "out"): NEW_FOLDER, ("law isoflop", "flops"): QUANTITY,
    ("hmm sample", "out"): NEW_FOLDER, ("hmm sample", "states"): CHOICE, ("hmm sample", "rows"): QUANTITY,
    ("hmm sample", "heldout"): QUANTITY, ("sweep status", "folder"): SWEEP, ("sweep cancel", "folder"): SWEEP,
    ("sweep report", "folder"): SWEEP, ("drift", "runs"): RUN,
    ("drift", "out"): NEW_FOLDER, ("board", "folder"): TEXT, ("doctor", "folder"): TEXT,
}  # fmt: skip
"""Arguments that are something else than others of that name."""

COMPARE = ("--loss", "loss", "--step", "step", "--flops-per-step", "1e15")
CALLS: dict[str, tuple[str, ...]] = {
    "demo": (),
    "best": ("corpus.txt", "--time", "1m"),
    "measure": ("new.toml", "--estimate"),
    "plan": ("new.toml",),
    "prepare": ("new.toml",),
    "train": ("new.toml",),
    "sweep run": ("new.toml", "--dry-run"),
    "sweep status": ("sweeps/net",),
    "sweep cancel": ("sweeps/net",),
    "sweep report": ("sweeps/net",),
    "evaluate": ("runs/net",),
    "compare": ("runs/net", "runs/hmm"),
    "generate": ("runs/net",),
    "export": ("runs/net", "elsewhere"),
    "convert": ("story.bin", "elsewhere"),
    "fingerprints": ("runs/net", "--length", "8", "--prefix", "2", "--least", "3", "--out", "prints.json"),
    "drift": ("runs/drifted", "--out", "drift"),
    "report": ("runs/net",),
    "board": ("runs",),
    "track": ("runs/net", "--to", "tensorboard"),
    "doctor": (),
    "data check": ("store",),
    "data show": ("store",),
    "hmm fit": ("hmm.toml",),
    "hmm sample": ("runs/hmm", "--rows", "8", "--heldout", "4", "--length", "8", "--out", "sampled"),
    "hmm score": ("runs/hmm",),
    "hmm show": ("runs/hmm",),
    "hmm pairs": ("runs/hmm", "--out", "pairs.jsonl"),
    "law compare": ("curve.csv", "curve.csv", *COMPARE),
    "law fit": ("table.csv", *TABLE, "--bootstraps", "4"),
    "law flops": ("new.toml",),
    "law isoflop": ("new.toml", "--sizes", "8x1,16x1", "--flops", "1e9"),
    "law optimum": ("--flops", "1e18"),
    "law predict": ("--params", "1M", "--tokens", "10M"),
}
"""A call of each command that works, to which something bad is done."""


def kind_of(command: str, parameter: click.Parameter) -> str | None:
    """What an argument is; None: the table does not say."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return FLAG
    name = parameter.name or ""
    if command == "plan" and name in _FIGURES:
        return QUANTITY
    return OTHERS.get((command, name)) or KINDS.get(name)


def _figures() -> frozenset[str]:
    from shoestring.planning.figures import FIGURES

    return frozenset(FIGURES)


_FIGURES = _figures()

FORM = {
    RECIPE: ("file", "new.toml"), PLAN: ("file", "runs/net/plan.json"), PROFILE: ("file", "runs/net/profile.json"),
    LAW: ("file", "law.json"), TABLES: ("file", "table.csv"), RUN: ("folder", "runs/net"),
    STORE: ("folder", "store"), MODEL: ("file", "runs/hmm/model.safetensors"), RUNS: ("folder", "runs/net"),
    SWEEP: ("folder", "sweeps/net"), PIECES: ("file", "story.bin"),
}  # fmt: skip

NUMBERS = ("", "abc", "nan", "-1", "1e", "9" * 5000, "1e400", "0x10", "½")
QUANTITIES = ("", "abc", "nan", "inf", "-1", "5 bananas", "9" * 5000, "1e999", "1e308", "..", "1..0", "\x1b[1m")
CHOICES = ("", "nonsense", "-1", "n" * 5000, "\x1b[31m", "1e308")
COLUMNS = ("", "absent", "x" * 5000, "\x1b[31m")
SETTINGS = (
    "",
    "=",
    "train",
    "train.batch",
    "nonsense.a=1",
    "train.nonsense=1",
    "train.=1",
    ".=",
    "train.batch=[[",
    "\x1b=1",
)


def arguments_with(command: str, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """A working call with another value of one argument; one that looks like an option is given after "--"."""
    base, name = CALLS[command], (command, parameter.name or "")
    places = tuple(itertools.takewhile(lambda part: not part.startswith("--"), base))
    named = base[len(places) :]
    if isinstance(parameter, click.Option):
        option = parameter.opts[-1]
        if option in named:
            at = named.index(option) + 1
            return (*places, *named[:at], value, *named[at + 1 :])
        kept = tuple(part for part in base if part not in DROPPED.get(name, ()))
        return (*kept, *NEEDED.get(name, ()), option, value)
    at = [each for each in commands()[command].params if isinstance(each, click.Argument)].index(parameter)
    return (*named, "--", *places[:at], value, *places[at + 1 :])


NEEDED: dict[tuple[str, str], tuple[str, ...]] = {
    ("plan", "vocabulary"): ("--gpu", "NVIDIA A100-SXM4-80GB"),
    ("hmm score", "split"): ("--data", "store:store"),
    ("hmm score", "length"): ("--data", "text:corpus.txt"),
    ("hmm score", "rows"): ("--data", "text:corpus.txt"),
    ("law optimum", "profiles"): ("--time", "1h"),
    ("law compare", "tokens"): ("--params", "1M"),
}
DROPPED: dict[tuple[str, str], tuple[str, ...]] = {
    ("law optimum", "time"): ("--flops", "1e18"),
    ("law optimum", "profiles"): ("--flops", "1e18"),
    ("law compare", "flops"): ("--step", "step", "--flops-per-step", "1e15"),
    ("law compare", "tokens"): ("--step", "step", "--flops-per-step", "1e15"),
    **{("plan", name): ("new.toml",) for name in _FIGURES},
}


def of_arguments() -> Iterator[Case]:
    """Every argument of every command, in every way that fits what it is."""
    for command, found in commands().items():
        for parameter in found.params:
            kind = kind_of(command, parameter)
            for bad in _bad_values(command, kind or "", parameter):
                name = f"{command}: {parameter.name}: {bad.name}"
                arguments = (*command.split(), *arguments_with(command, parameter, bad.value))
                yield Case(name, arguments, bad.names, bad.act)


def _bad_values(command: str, kind: str, parameter: click.Parameter) -> Iterator[Bad]:
    option = "|".join(parameter.opts)
    if kind in FORM:
        form, good = FORM[kind]
        if command == "law compare":
            good = "curve.csv"
        yield from bad_paths(form, good)
    elif kind in (NEW_FILE, NEW_FOLDER, PAGE):
        yield from _bad_outputs(kind)
    elif kind == SOURCE:
        yield from _bad_sources(option)
    else:
        values = {NUMBER: NUMBERS, QUANTITY: QUANTITIES, CHOICE: CHOICES, COLUMN: COLUMNS, SETTING: SETTINGS}
        others = {SETTING: "|--set", COLUMN: "|.csv", CHOICE: "|split|word 1|row 0"}.get(kind, "")
        for value in values.get(kind, ()):
            if (command, parameter.name, value) not in HARMLESS:
                also = f"|{value.partition('=')[0]}" if kind == SETTING and value else ""
                yield Bad(repr(value[:12]), value, nothing, (f"{option}|{parameter.name}{others}{also}",))


HARMLESS: set[tuple[str, str | None, str]] = {
    *(("measure", "gpu", value) for value in CHOICES),  # it says "unknown", and nothing is guessed
    *(("generate", "temperature", value) for value in ("9" * 5000, "1e400")),  # all tokens are alike
    *(("law fit", "window", value) for value in ("9" * 5000, "1e400")),  # all sizes
    *((command, "group", "") for command in ("law fit", "law compare")),  # as if it were not given
    ("law isoflop", "flops", ""),
    ("hmm score", "split", ""),
    ("sweep report", "columns", ""),
    ("sweep report", "heat", ""),
}
"""Values that are fine after all."""


def _bad_outputs(kind: str) -> Iterator[Bad]:
    end = {NEW_FILE: ".json", PAGE: ".html"}.get(kind, "")
    yield Bad("below a file", f"net.toml/x{end}", nothing, ("net.toml",))
    yield Bad("in no folder", f"/proc/none/x{end}", nothing, ("/proc/none",))
    yield Bad("long name", LONG_NAME + end, nothing, ("nnn",))
    yield Bad("long path", LONG_PATH + end, nothing, ("ddd",))
    if kind == NEW_FOLDER:
        yield Bad("a file", "net.toml", nothing, ("net.toml",))
    else:
        yield Bad("a folder", "runs", nothing, ("runs",))


def _bad_sources(option: str) -> Iterator[Bad]:
    for value in ("", "nonsense", "text:", "text:absent.txt", "nope:x", "store:absent", f"text:{LONG_NAME}"):
        yield Bad(value[:12], value, nothing, (f"{option}|absent|nnn|to be scored",))


TEXTS = {name: act for name, act in BYTES.items() if name != "cut"}
FILES: tuple[tuple[str, str, Mapping[str, Act], tuple[str, ...]], ...] = (
    ("recipe", "new.toml", TOML, tuple(f"{words} new.toml" for words in (
        "measure --estimate", "plan", "prepare", "train", "law flops", "hmm fit", "law isoflop --sizes 8x1",
    ))),
    ("recipe of a run", "runs/net/recipe.toml", TOML, (
        "evaluate runs/net", "generate runs/net", "export runs/net elsewhere", "train net.toml",
    )),
    ("recipe of an HMM", "runs/hmm/recipe.toml", TOML, ("hmm show runs/hmm", "hmm score runs/hmm")),
    ("choices", "runs/net/choices.json", JSON, (
        "evaluate runs/net", "generate runs/net", "export runs/net elsewhere", "train net.toml",
    )),
    ("plan", "runs/net/plan.json", JSON, ("train net.toml --plan runs/net/plan.json", "report runs/net")),
    ("profile", "runs/new/profile.json", JSON, ("plan new.toml", "plan new.toml --profile runs/new/profile.json")),
    ("profile of a run", "runs/net/profile.json", JSON, (
        "law optimum --time 1h --profile runs/net", "law isoflop new.toml --sizes 8x1 --profile runs/net",
    )),
    ("machine", "runs/net/machine.json", JSON, ("report runs/net",)),
    ("outcome", "runs/net/DONE", JSON, ("report runs/net", "train net.toml")),
    ("evaluation", "runs/net/evaluation.json", JSON, (
        "report runs/net", "train net.toml", "compare runs/net runs/hmm",
    )),
    ("metrics", "runs/net/metrics.jsonl", JSON, ("law fit runs/net", "law compare runs/net runs/net")),
    ("states", "runs/hmm/states.json", JSON, ("report runs/hmm",)),
    ("tokenizer of a run", "runs/net/tokenizer.json", JSON, ("generate runs/net", "export runs/net elsewhere")),
    ("checkpoint", "runs/net/checkpoints", BYTES, (
        "evaluate runs/net", "generate runs/net", "export runs/net elsewhere",
    )),
    ("model", "runs/hmm/model.safetensors", BYTES, (
        "hmm show runs/hmm", "hmm score runs/hmm/model.safetensors", "generate runs/hmm",
        "hmm sample runs/hmm --rows 8 --length 8 --out sampled",
    )),
    ("stream", "runs/hmm/model.safetensors", BYTES, (
        "prepare net.toml --set run.name=s --set data.stream=hmm:runs/hmm --set data.source=stories "
        "--set data.documents= --set data.packing=concat",
    )),
    ("manifest", "store/manifest.json", JSON, ("data check store", "data show store",
        "prepare new.toml --set data.source=store:store --set data.documents=",
    )),
    ("tokenizer of a store", "store/tokenizer.json", JSON, ("data check store", "data show store")),
    ("shard", "store/train-00000-00000.tok", BYTES, ("data check store", "data show store")),
    ("sentences", "sentences/rows.safetensors", BYTES, ("data check sentences", "data show sentences")),
    ("law", "law.json", JSON, (
        "law optimum --flops 1e18 --law law.json", "law predict --params 1M --tokens 10M --law law.json",
        "plan new.toml --law law.json",
    )),
    ("table", "table.csv", BYTES, (" ".join(("law fit table.csv", *TABLE)),)),
    ("curve", "curve.csv", BYTES, (" ".join(("law compare curve.csv curve.csv", *COMPARE)),)),
    ("text", "corpus.txt", TEXTS, ("prepare new.toml",)),
    ("JSON lines", "corpus.jsonl", JSON, ("prepare new.toml --set data.source=jsonl:corpus.jsonl",)),
    ("CSV", "corpus.csv", TEXTS, ("prepare new.toml --set data.source=csv:corpus.csv",)),
    ("parquet", "corpus.parquet", BYTES, ("prepare new.toml --set data.source=parquet:corpus.parquet",)),
    ("tokenizer", "subwords.json", JSON, (
        "prepare new.toml --set data.tokenizer=file:subwords.json",
        "law flops new.toml --set data.tokenizer=file:subwords.json",
    )),
)  # fmt: skip
"""Files by what they hold: the ways to spoil them, and commands that read them, one for each way in turn."""


def of_files() -> Iterator[Case]:
    """Every file that is read, in every way to spoil its content, by the commands that read it in turn."""
    for what, path, ways, lines in FILES:
        for (name, act), line in zip((IN_PLACE | dict(ways)).items(), itertools.cycle(lines)):
            if (what, name) not in HARMLESS_FILES:
                arguments = tuple(line.split())
                shown = NAMES.get(what, Path(path).name)
                yield Case(f"{what}: {name}: {line[:24]}", arguments, (shown,), on_each(path, act))


NAMES = {"manifest": "manifest", "sentences": "sentences", "checkpoint": "step-0"}
"""How a message names a file, if not by its name."""
HARMLESS_FILES: set[tuple[str, str]] = {
    ("table", "cut"),
    ("curve", "cut"),
}
"""Tables of the user's own have no sum, and many whole ones end without a newline: fewer rows are a table too."""


def on_each(path: str, act: Act) -> Act:
    """Do it to a file of the world, or to all files of a folder."""

    def run(folder: Path) -> None:
        target = folder / path
        for file in sorted(target.iterdir()) if target.is_dir() else [target]:
            act(file)

    return run


RECORDS: tuple[tuple[type, str, str], ...] = (
    (Choices, "runs/net/choices.json", "report runs/net"),
    (Plan, "runs/net/plan.json", "report runs/net"),
    (Profile, "runs/new/profile.json", "plan new.toml"),
    (Machine, "runs/net/machine.json", "report runs/net"),
    (Outcome, "runs/net/DONE", "report runs/net"),
    (Evaluation, "runs/net/evaluation.json", "report runs/net"),
    (Law, "law.json", "law predict --params 1M --tokens 10M --law law.json"),
)


def of_records() -> Iterator[Case]:
    """Every field of every record: missing where it must be given, of a wrong type, out of all range."""
    for record, path, line in RECORDS:
        for one in dataclasses.fields(record):
            needed = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
            wrong: dict[str, Any] = {"deep": [[[[{}]]]], "digits": 10**4000}
            wrong |= {"missing": ...} if needed else {}
            for name, value in wrong.items():
                act = _field_act(path, one.name, value)
                yield Case(
                    f"{record.__name__}: {one.name}: {name}", tuple(line.split()), (Path(path).name, one.name), act
                )
        for name, value in {"future": record.SCHEMA.rpartition("/")[0] + "/99", "other": "shoestring.other/1"}.items():  # type: ignore[attr-defined]
            act = _field_act(path, "schema", value)
            yield Case(f"{record.__name__}: {name}", tuple(line.split()), (Path(path).name, value), act)


def _field_act(path: str, name: str, value: Any) -> Act:
    return lambda folder: spoil_field(folder / path, name, value)


LOADS = ("plan", "prepare", "train", "law flops", "measure --estimate", "law isoflop --sizes 8x1", "plan --gpu A100")
"""Commands that load a recipe, one for each field in turn."""


def of_fields() -> Iterator[Case]:
    """Every field of a recipe with values that no field of its type can have, by commands in turn."""
    loads = itertools.cycle(LOADS)
    for section, kind in hints(Recipe).items():
        section_type = next((part for part in (kind, *get_args(kind)) if dataclasses.is_dataclass(part)), None)
        assert section_type is not None
        base = "hmm.toml" if section == "hmm" else "new.toml"
        for name, of in hints(section_type).items():  # type: ignore[arg-type]
            for value in _wrong_values(of):
                if name in ("end", "end_line", "delimiter") and "\\" in value:
                    continue  # a token or a line may hold any character
                shown = f"{section}.{name}"
                arguments = (*next(loads).split(), base, "--set", f"{shown}={value}")
                yield Case(f"field: {shown}={value[:16]!r}", arguments, (shown,))


def _wrong_values(kind: Any) -> Iterable[str]:
    """TOML values that are wrong for every field of this type."""
    every = ["[[[[1]]]]", "{a={b={c=1}}}", "1979-05-27"]
    plain = plain_types(kind)
    if plain & {int, float, Count, Flops, Seconds, Bytes}:
        return [*every[:2], '"abc"', "nan", "-inf", "true", "-1e300", "9" * 4000, "0x" + "f" * 5000, '"\\u0000"']
    if bool in plain:
        return [*every[:2], '"yes"', "1", "nan"]
    return [*every[:1], "3", '"a\\u0000b"', '"a\\u001b[31mb"', '"a\\nb"', '"' + "x" * 9000 + '"']


def plain_types(kind: Any) -> set[Any]:
    if get_origin(kind) in (Union, types.UnionType) or (
        get_origin(kind) is not None and get_origin(kind) is not Literal
    ):
        return set().union(
            *(plain_types(part) for part in get_args(kind)[: 1 if hasattr(kind, "__metadata__") else None])
        )
    if isinstance(kind, type) and issubclass(kind, Spec):
        return {str}
    return {str} if get_origin(kind) is Literal else {kind}


JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "99999999999"}
GROUP = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def of_environment() -> Iterator[Case]:
    """Variables that are no numbers, by the commands that run."""
    lines = itertools.cycle(("train new.toml", "hmm fit hmm.toml", "hmm fit hmm.toml --over hmm.states=2,3", "demo"))
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT"):
        for value in ("abc", "", "-1", "1.5", "9" * 400):
            yield Case(f"{name}={value[:9]!r}", tuple(next(lines).split()), (name,), environment=GROUP | {name: value})
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        yield Case(f"no {name}", ("train", "new.toml"), (name,), environment={**GROUP, name: None})
    for value in ("two words", "a\nb", "\x1b[31m", "x" * 400, "[::", "../x"):
        yield Case(
            f"MASTER_ADDR={value[:9]!r}",
            ("train", "new.toml"),
            ("MASTER_ADDR",),
            environment=GROUP | {"MASTER_ADDR": value},
        )
    for name in JOB:
        for value in ("abc", "-1", "1.5", "9" * 400, "7\n8", "1e3", "\x1b[31m", "--all", "7,8", "٣"):
            yield Case(f"{name}={value[:9]!r}", tuple(next(lines).split()), (name,), environment=JOB | {name: value})
    for value in ("0", "1", "1600000000"):
        yield Case(
            f"ended {value}",
            tuple(next(lines).split()),
            ("SLURM_JOB_END_TIME",),
            environment=JOB | {"SLURM_JOB_END_TIME": value},
        )


BEYOND: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("generate", "max_tokens", ("100000001", "1000000000000", str(2**63), str(2**64), "9" * 400)),
    ("generate", "count", ("1000001", "1000000000000", str(2**63 - 1), str(2**64), "9" * 400)),
    ("plan", "vocabulary", ("1000000001", str(2**63), "9" * 400)),
    ("law flops", "vocabulary", ("1000000001", str(2**63), "9" * 400)),
    ("law isoflop", "vocabulary", ("1000000001", str(2**63), "9" * 400)),
    ("law isoflop", "sizes", ("0", "0x1", "8x0", "1000000000x1", "9" * 30 + "x1", "8x" + "9" * 400, "1e39")),
    ("law fit", "bootstraps", ("100001", "1000000000000", str(2**64), "9" * 400)),
    ("data show", "first", ("1000000", str(2**63), "9" * 400)),
    ("data show", "length", ("1000000", "1000000000000", str(2**64), "9" * 400)),
    ("hmm sample", "rows", ("0", "1e15", "1e18", "1e19", "1e30", "1e39")),
    ("hmm sample", "heldout", ("1e15", "1e18", "1e19", "1e30")),
    ("hmm sample", "length", ("1000000000000", str(2**63), str(2**64), "9" * 400)),
    ("hmm sample", "shard", ("1/1", "0/0", "0/9999999999", "-1/2", "1/2/3", "٠/١")),
)
"""Numbers that are no mistakes of form, and still cannot be."""


def of_amounts() -> Iterator[Case]:
    """More than there is, fits, or can be counted."""
    for command, name, values in BEYOND:
        parameter = next(each for each in commands()[command].params if each.name == name)
        for value in values:
            names = (f"{parameter.opts[-1]}|{name}|sampled",)
            arguments = (*command.split(), *arguments_with(command, parameter, value))
            yield Case(f"{command}: {name}: {value[:20]}", arguments, names)


def every_case() -> list[Case]:
    makers: tuple[Callable[[], Iterator[Case]], ...] = (
        of_arguments, of_amounts, of_files, of_records, of_fields, of_environment,
    )  # fmt: skip
    return [case for make in makers for case in make()]
