"""Recipes: strict reading, `extends`, `--set`, contradictions, the resolved file, fingerprints."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shoestring.core.errors import RecipeError, StorageError
from shoestring.core.hmm_sections import Hmm
from shoestring.core.recipe import Recipe, differences
from shoestring.core.recipe_file import build, dump, load
from shoestring.core.run_sections import Budget, Run
from shoestring.core.schema import hints
from shoestring.core.scoring_sections import Evaluate
from shoestring.core.sections import Data, Model
from shoestring.core.text import control_in
from shoestring.core.train_section import USUAL, Train
from shoestring.core.units import Bytes, Count, Flops, Seconds

LEAST = "[budget]\nsteps = 10\n[train]\nbatch = 4\n"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str | bytes, name: str = "recipe.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


def problems(path: Path, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as caught:
        load(path, overrides)
    return caught.value.problems


def test_the_least_recipe_is_whole(write: Write) -> None:
    recipe = load(write(LEAST))
    assert recipe == Recipe(budget=Budget(steps=Count(10)), train=Train(batch=4))
    assert recipe.batch == 4


def test_values_are_read_with_their_units(write: Write) -> None:
    recipe = load(write('[budget]\ntime = "2h30m"\ndisk = "1GiB"\nflops = 1e21\ntokens = "2.4B"\n[train]\nbatch = 4'))
    assert recipe.budget == Budget(
        time=Seconds(9000), disk=Bytes(2**30), flops=Flops(1e21), tokens=Count(2_400_000_000)
    )


@pytest.mark.parametrize("name", ["demo.toml", "demo_gpu.toml"])
def test_the_recipes_of_the_package_are_whole(name: str) -> None:
    recipe = load(str(resources.files("shoestring.recipes") / name))
    assert recipe.run.name == "demo"


def test_three_mistakes_are_three_lines_with_field_value_and_what_is_allowed(write: Write) -> None:
    path = write('[budget]\ntime = 120\n[model]\nwidth = 0\n[train]\nbatch = 4\nschedule = "cosin"\n')
    lines = problems(path)
    assert len(lines) == 3
    time, width, schedule = lines
    assert time.startswith("budget.time = 120:") and '"2h30m"' in time
    assert width == "model.width = 0: must be at least 1 and at most 1,000,000,000"
    allowed = '"cosine", "linear", "cooldown", "constant"'
    assert schedule == f"train.schedule = \"cosin\": must be one of {allowed}; did you mean 'cosine'?"


@pytest.mark.parametrize(
    "wrong",
    ["[train]\nbacth = 4\nbatch = 4\n", '[train]\nbatch = 4\nlr = "x"\n', "[train]\nbatch = 4\n[evalute]\nrows = 4\n"],
)
def test_a_field_that_cannot_be_read_does_not_hide_contradictions(wrong: str, write: Write) -> None:
    lines = problems(write("[budget]\nsteps = 10\n[model]\nwidth = 256\nheads = 3\n" + wrong))
    assert len(lines) == 2
    assert any(line.startswith("model.heads = 3: must divide model.width = 256") for line in lines)


@pytest.mark.parametrize(
    "recipe",
    [
        LEAST + "[model]\nwidht = 300\nheads = 12\n",
        LEAST + '[model]\nwidth = "wide"\nheads = 12\n',
        LEAST + '[model]\nfamily = "perceiver"\nlatents = 4\n',
        '[budget]\ntime = "2 hous"\n[train]\nbatch = 4\n',
        '[budget]\ntiem = "2h"\n[train]\nbatch = 4\n',
        '[budgt]\ntime = "2h"\n[train]\nbatch = 4\n',
        "[budget]\nsteps = 10\n[train]\nbacth = 4\n",
        '[budget]\nsteps = 10\n[train]\nbatch = "four"\nper_device = 3\n',
        "train = 4\n[budget]\nsteps = 10\n",
        "[budget]\nsteps = 10\n[train]\ntokens = 1024\nper_device = 3\n[data]\nlenght = 128\n",
    ],
)
def test_what_follows_only_from_a_mistake_is_no_second_problem(recipe: str, write: Write) -> None:
    assert len(problems(write(recipe))) == 1


def test_a_file_of_code_that_is_missing_does_not_hide_other_mistakes(write: Write) -> None:
    lines = problems(write(LEAST + '[model]\nfamily = "absent.py:Net"\nwidht = 4\n'))
    assert len(lines) == 2
    assert "widht" in lines[0] and "absent.py" in lines[1]


def test_the_message_has_the_file_the_count_and_every_line(write: Write) -> None:
    path = write(LEAST + "lr = 0\nbeta1 = 1\n")
    with pytest.raises(RecipeError) as caught:
        load(path)
    first, *rest = str(caught.value).splitlines()
    assert first == f"{path}: 2 problems"
    assert [line.strip() for line in rest] == list(caught.value.problems)
    assert caught.value.exit_code == 2


def test_an_unknown_section_and_an_unknown_field_get_the_nearest_name(write: Write) -> None:
    lines = problems(write(LEAST + "lrr = 1\n[modle]\nwidth = 8\n"))
    assert set(lines) == {
        "modle: unknown section; did you mean 'model'?",
        "train.lrr: unknown field; did you mean 'lr'?",
    }


def test_a_section_that_is_no_table_is_refused(write: Write) -> None:
    assert problems(write("model = 3\n" + LEAST)) == ("model = 3: must be a table of fields",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lr = true", 'train.lr = true: must be a finite number, or "auto"'),
        ("lr = nan", 'train.lr = nan: must be a finite number, or "auto"'),
        ('lr = "1e-3"', 'train.lr = "1e-3": must be a finite number, or "auto"'),
        ("warmup = 1.0", "train.warmup = 1.0: must be at least 0 and below 1"),
        ("keep = 1.0", "train.keep = 1.0: must be a whole number"),
        ("keep = 0", "train.keep = 0: must be at least 1 and at most 1,000,000"),
        ("clip = 0", "train.clip = 0: must be at least 1e-09 and at most 1e+12"),
        (
            'precision = "fp8"',
            'train.precision = "fp8": must be one of "auto", "fp32", "bf16", "fp16"',
        ),
    ],
)
def test_a_value_out_of_bounds_is_refused(write: Write, text: str, line: str) -> None:
    assert problems(write(LEAST + text)) == (line,)


@pytest.mark.parametrize("source", ["storys", "text:", "text", "", "stories "])
def test_a_source_that_there_is_not_is_refused_with_those_there_are(write: Write, source: str) -> None:
    (line,) = problems(write(f'{LEAST}[data]\nsource = "{source}"'))
    assert line.startswith(f'data.source = "{source}": must be "stories", or one of text, paragraphs, jsonl, csv,')


@pytest.mark.parametrize("tokenizer", ["words", "words:0", "words:-1", "words:1e3", "byte"])
def test_a_tokenizer_that_there_is_not_is_refused(write: Write, tokenizer: str) -> None:
    (line,) = problems(write(f'{LEAST}[data]\ntokenizer = "{tokenizer}"'))
    allowed = '"bytes", "words:N" with N at least 1, "bpe:N" with N at least 512, "file:PATH" or "hf:NAME"'
    assert line == f'data.tokenizer = "{tokenizer}": must be {allowed}'


# --- contradictions


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[train]\nbatch = 4", ("budget: nothing limits", "time, flops, tokens, steps, epochs")),
        ('[budget]\ndisk = "1GB"\nmemory = "1GB"\n[train]\nbatch = 4', ("budget: nothing limits",)),
        ("[budget]\nsteps = 1", ("train: no effective batch", "batch", "tokens")),
        (LEAST + "tokens = 1024", ("train.batch = 4", "train.tokens = 1024", "one of the two")),
        ("[budget]\nsteps = 1\n[train]\ntokens = 1000", ("train.tokens = 1k", "multiple", "data.length = 256")),
        (LEAST + "per_device = 3", ("train.per_device = 3", "divide", "4 rows")),
        (LEAST + "[model]\nwidth = 100\nheads = 3", ("model.heads = 3", "model.width = 100")),
        (LEAST + "[model]\nwidth = 12\nheads = 4", ("model.heads = 4", "model.width = 12", "even")),
        (LEAST + '[run]\nname = "a/b"', ('run.name = "a/b"', '"/"')),
        (LEAST + '[run]\nname = ""', ('run.name = ""',)),
        (LEAST + '[run]\nname = ".."', ('run.name = ".."',)),
    ],
)
def test_a_contradiction_is_one_line_with_the_fields_and_their_values(
    write: Write, text: str, parts: tuple[str, ...]
) -> None:
    (line,) = problems(write(text))
    assert all(part in line for part in parts), line


def test_all_contradictions_are_found_at_once(write: Write) -> None:
    assert len(problems(write('[run]\nname = "a/b"\n[model]\nheads = 3'))) == 3


def test_a_batch_in_tokens_is_a_batch_in_rows(write: Write) -> None:
    assert load(write('[budget]\nsteps = 1\n[train]\ntokens = "64Ki"\n[data]\nlength = 128')).batch == 512


@pytest.mark.parametrize(("old", "new"), [("within", "document_mask"), ("shift", "random_offset")])
def test_a_field_by_its_old_name_is_refused_with_the_new_one(write: Write, old: str, new: str) -> None:
    line = f"data.{old}: is now called data.{new}"
    assert problems(write(f"{LEAST}[data]\n{old} = true")) == (line,)
    assert problems(write(LEAST), f"data.{old}=true", "train.lr=0") == (
        line,
        "train.lr = 0: must be at least 1e-12 and at most 1000",
    )


# --- --set


@pytest.mark.parametrize(
    ("override", "section", "name", "value"),
    [
        ("train.lr=1e-3", "train", "lr", 0.001),
        (" train.lr = 1e-3 ", "train", "lr", 0.001),
        ("train.batch=8", "train", "batch", 8),
        ("model.tied=false", "model", "tied", False),
        ("budget.time=5d", "budget", "time", 432_000),
        ('budget.time="5d"', "budget", "time", 432_000),
        ("budget.time=1-12:00:00", "budget", "time", 129_600),
        ("budget.tokens=200M", "budget", "tokens", 200_000_000),
        ("budget.flops=1e21", "budget", "flops", 1e21),
        ("data.source=text:/a b/c.txt", "data", "source", "text:/a b/c.txt"),
        ("data.source=text:a=b.txt", "data", "source", "text:a=b.txt"),
        ("run.name=a#b", "run", "name", "a#b"),
        ("run.name='5'", "run", "name", "5"),
        ("train.schedule=linear", "train", "schedule", "linear"),
        # TOML takes these for a time and a date; no field is one, and from a shell they are Slurm's time and a name
        ("budget.time=12:00:00", "budget", "time", 43_200),
        ("run.name=2025-01-31", "run", "name", "2025-01-31"),
    ],
)
def test_a_setting_is_toml_or_else_plain_text(
    write: Write, override: str, section: str, name: str, value: object
) -> None:
    assert getattr(getattr(load(write(LEAST), [override]), section), name) == value


def test_the_last_setting_of_a_field_wins_and_others_stay(write: Write) -> None:
    recipe = load(write(LEAST + "lr = 1.0\nkeep = 7"), ["train.lr=2.0", "train.lr=3.0"])
    assert (recipe.train.lr, recipe.train.keep) == (3.0, 7)


def test_a_setting_can_make_a_recipe_whole(write: Write) -> None:
    assert load(write(""), ["budget.steps=1", "train.batch=2"]).batch == 2


@pytest.mark.parametrize("text", ["", "=", "train.lr", "lr=1", "train.=1", ".lr=1", "train=1"])
def test_a_setting_of_another_form_is_shown_the_right_one(write: Write, text: str) -> None:
    assert problems(write(LEAST), text) == (
        f"--set {text}: write it as section.field=value, for example --set train.lr=1e-3",
    )


def test_settings_are_checked_like_the_file_and_together_with_it(write: Write) -> None:
    lines = problems(write(LEAST + "lr = 0"), "modl.width=8", "model.widht=8", "model.layers=six", "nonsense")
    assert len(lines) == 5
    assert any(line.startswith("--set modl.width=8:") and "'model'" in line for line in lines)
    assert any(line.startswith("model.widht:") and "'width'" in line for line in lines)
    assert 'model.layers = "six": must be a whole number' in lines
    assert "train.lr = 0: must be at least 1e-12 and at most 1000" in lines
    assert any(line.startswith("--set nonsense:") for line in lines)


def test_a_number_with_thousands_of_digits_is_a_problem_and_no_crash(write: Write) -> None:
    digits = "9" * 5000
    with pytest.raises(RecipeError):
        load(write(f"{LEAST}keep = {digits}"))
    with pytest.raises(RecipeError):
        load(write(LEAST), [f"train.keep={digits}"])


# --- extends


def test_a_recipe_extends_another_beside_it_and_overrides_single_fields(write: Write) -> None:
    write("[budget]\nsteps = 1\n[train]\nbatch = 4\nlr = 1.0\n[model]\nwidth = 64", "base/base.toml")
    recipe = load(write('extends = "../base/base.toml"\n[train]\nlr = 2.0', "deep/recipe.toml"))
    assert recipe == Recipe(budget=Budget(steps=Count(1)), train=Train(batch=4, lr=2.0), model=Model(width=64))


def test_extends_is_relative_to_the_file_and_not_to_the_process(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(LEAST, "a/base.toml")
    write("[train]\nbatch = 9", "base.toml")
    path = write('extends = "base.toml"', "a/recipe.toml")
    monkeypatch.chdir(tmp_path)
    assert load(path).batch == 4


def test_extends_takes_an_absolute_path(write: Write) -> None:
    base = write(LEAST, "elsewhere/base.toml")
    assert load(write(f'extends = "{base}"')).batch == 4


def test_the_nearest_of_a_chain_wins_and_settings_win_over_all(write: Write) -> None:
    write(LEAST + "lr = 1.0\nkeep = 1\nclip = 1.0\nbeta1 = 0.1", "one.toml")
    write('extends = "one.toml"\n[train]\nlr = 2.0\nkeep = 2\nclip = 2.0', "two.toml")
    path = write('extends = "two.toml"\n[train]\nlr = 3.0\nkeep = 3', "three.toml")
    train = load(path, ["train.lr=4.0"]).train
    assert (train.lr, train.keep, train.clip, train.beta1) == (4.0, 3, 2.0, 0.1)


def test_the_same_base_twice_is_no_circle(write: Write) -> None:
    write(LEAST, "base.toml")
    write('extends = "base.toml"', "left.toml")
    assert load(write('extends = "left.toml"')) == load(write('extends = "base.toml"', "right.toml"))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_recipes_in_a_circle_are_refused(write: Write, length: int) -> None:
    paths = [write(f'extends = "./r{(i + 1) % length}.toml"\n' + LEAST, f"r{i}.toml") for i in range(length)]
    (line,) = problems(paths[0])
    assert "circle" in line and "extends" in line


@pytest.mark.parametrize("name", ["missing.toml", "", "."])
def test_a_base_that_there_is_not_is_one_of_the_problems(write: Write, name: str) -> None:
    lines = problems(write(f'extends = "{name}"\n{LEAST}lr = 0'))
    assert len(lines) == 2
    assert lines[0].startswith(f'extends = "{name}": there is no file')
    assert lines[1].startswith("train.lr = 0")


@pytest.mark.parametrize("value", ["3", '["base.toml"]', "true"])
def test_a_base_that_is_no_path_is_refused(write: Write, value: str) -> None:
    (line,) = problems(write(f"extends = {value}\n{LEAST}"))
    assert line.startswith("extends = ") and 'extends = "base.toml"' in line


def test_a_broken_base_is_named(write: Write) -> None:
    write("= broken", "base.toml")
    with pytest.raises(RecipeError, match=r"base\.toml"):
        load(write('extends = "base.toml"'))


# --- files that are no recipes


def test_what_is_not_toml_is_refused_with_the_place(write: Write) -> None:
    (line,) = problems(write("[train]\nbatch 4\n"))
    assert "not valid TOML" in line and "line 2" in line


def test_what_is_not_utf8_is_refused_with_the_place(write: Write) -> None:
    (line,) = problems(write(b"[run]\nname = '\xff'"))
    assert "not UTF-8" in line and "byte 14" in line


def test_a_missing_recipe_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere\.toml: no such file"):
        load(tmp_path / "nowhere.toml")


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="folder, not a file"):
        load(tmp_path)


# --- the resolved recipe

letters = st.characters(codec="utf-8").filter(lambda letter: control_in(letter) is None)
names = st.text(letters, min_size=1, max_size=20).filter(lambda text: "/" not in text and text not in (".", ".."))
places = st.text(letters, max_size=20)
counts = st.integers(1, 10**12).map(Count)
sizes = st.integers(1, 10**9)
units = st.floats(0, 1)
seconds = st.floats(1e-3, 3e9).map(Seconds) | st.integers(1, 10**9).map(Seconds)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    heads, half = draw(st.integers(1, 64)), draw(st.integers(1, 64))
    per_device, accumulate = draw(st.integers(1, 64)), draw(st.integers(1, 64))
    length, in_tokens = draw(st.integers(1, 4096)), draw(st.booleans())
    batch = per_device * accumulate
    budget = Budget(
        time=draw(st.none() | seconds),
        flops=draw(st.none() | st.floats(1, 1e30).map(Flops)),
        tokens=draw(st.none() | counts),
        steps=draw(counts),
        epochs=draw(st.none() | st.floats(1e-9, 1e9)),
        disk=draw(st.none() | st.integers(1, 10**18).map(Bytes)),
        memory=draw(st.none() | st.integers(1, 2**50).map(Bytes)),
    )
    data = Data(
        source=draw(st.just("stories") | st.text(letters, min_size=1).map("text:{}".format)),
        tokenizer=draw(st.just("bytes") | sizes.map("words:{}".format)),
        length=length,
        documents=draw(st.none() | counts),
        heldout=draw(st.floats(1e-6, 0.5)),
        folder=draw(places),
    )
    model = Model(
        width=heads * half * 2,
        layers=draw(sizes),
        heads=heads,
        hidden=draw(st.none() | sizes),
        tied=draw(st.booleans()),
        rotary_base=draw(st.floats(1, 1e12)),
    )
    train = Train(
        batch=None if in_tokens else batch,
        tokens=Count(batch * length) if in_tokens else None,
        per_device=draw(st.none() | st.just(per_device)),
        lr=draw(st.floats(1e-12, 1e3)),
        schedule=draw(st.sampled_from(["cosine", "linear", "cooldown", "constant"])),
        warmup=draw(st.floats(0, 1, exclude_max=True)),
        final_lr=draw(units),
        weight_decay=draw(st.floats(0, 1e3)),
        beta1=draw(st.floats(0, 1, exclude_max=True)),
        clip=draw(st.floats(1e-9, 1e12)),
        precision=draw(st.sampled_from(["auto", "fp32", "bf16"])),
        checkpoint_every=draw(st.none() | seconds),
    )
    return Recipe(
        run=Run(name=draw(names), folder=draw(places), seed=draw(st.integers(0, 2**63 - 1))),
        budget=budget,
        data=data,
        model=model,
        train=train,
        evaluate=Evaluate(rows=draw(sizes), every=draw(st.floats(1e-6, 1))),
    )


def least(**run: Any) -> Recipe:
    return Recipe(run=Run(**run), budget=Budget(steps=Count(10)), train=Train(batch=4))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("dump")
    return (folder / f"{i}.toml" for i in itertools.count())


def test_a_field_that_may_be_none_is_none_by_default() -> None:
    """TOML has no null: another default could neither be set to None nor be read back as None."""
    for section in dataclasses.fields(Recipe):
        defaults = getattr(Recipe(), section.name) or Hmm()
        for name, kind in hints(type(defaults)).items():
            may_be_none = type(None) in get_args(get_args(kind)[0])
            at_once = section.name == "train" and name in USUAL  # what stands for None depends on train.lr
            assert not may_be_none or at_once or getattr(defaults, name) is None, f"{section.name}.{name}"


def test_what_is_left_out_is_chosen_where_the_learning_rate_is_and_as_usual_where_it_is_given() -> None:
    left_out = Train(batch=4)
    assert (left_out.lr, left_out.warmup, left_out.weight_decay, left_out.beta2) == ("auto",) * 4
    given = Train(batch=4, lr=1e-3, beta2=0.99)
    assert (given.warmup, given.weight_decay, given.beta2) == (0.05, 0.1, 0.99)
    chosen = build({"budget": {"steps": 10}, "train": {"batch": 4, "lr": 1e-3, "weight_decay": "auto"}}, "test").train
    assert (chosen.warmup, chosen.weight_decay, chosen.beta2) == (0.05, "auto", 0.95)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=recipes())
@example(recipe=least(name="\"quoted\" 'and' back\\slash \\n"))
@example(recipe=least(name="naïve 名前 🚀 \U0010ffff"))
@example(recipe=least(folder='"""'))
def test_the_written_recipe_reads_back_to_an_equal_one(recipe: Recipe, fresh: Iterator[Path]) -> None:
    path = next(fresh)
    path.write_bytes(dump(recipe).encode())
    again = load(path)
    assert again == recipe
    assert again.fingerprint == recipe.fingerprint
    assert again.workload == recipe.workload
    assert differences(recipe, again) == []


CHANGED: dict[str, dict[str, Any]] = {
    "run": {"name": "other", "folder": "other", "seed": 1},
    "budget": {
        "time": "2h",
        "flops": 1e9,
        "tokens": "1M",
        "steps": 11,
        "epochs": 1.0,
        "disk": "1GB",
        "memory": "1GB",
    },
    "data": {
        "source": "text:a",
        "column": "body",
        "delimiter": ";",
        "end_line": "---",
        "split": "test",
        "streaming": True,
        "on_error": "skip",
        "unique": True,
        "end": "</s>",
        "packing": "best_fit",
        "document_mask": True,
        "random_offset": True,
        "stream": "markov:50",
        "tokenizer": "words:5",
        "length": 128,
        "documents": 5,
        "heldout": 0.1,
        "validation": "text:b",
        "folder": "other",
    },
    "model": {"width": 128, "layers": 1, "heads": 4, "hidden": 8, "tied": False, "rotary_base": 1.0},
    "train": {
        "batch": 8,
        "per_device": 2,
        "lr": 1.0,
        "schedule": "linear",
        "warmup": 0.5,
        "least_warmup": 7,
        "cooldown": 0.3,
        "continued": True,
        "final_lr": 0.5,
        "weight_decay": 0.0,
        "beta1": 0.5,
        "beta2": 0.5,
        "clip": 2.0,
        "precision": "fp32",
        "checkpoint_every": "1m",
        "keep": 9,
        "save_every": 9,
        "save_steps": "1,2,...",
        "freeze": "embedding",
        "layer_decay": 0.5,
        "embedding_lr": 2.0,
        "scalar_lr": 2.0,
    },
    "evaluate": {"rows": 9, "context": 64, "every": 0.5, "prompts": ["one"], "overlap": "prints.json"},
}
IN_COMPANY: dict[str, dict[str, Any]] = {
    "data": {"masked": 0.3, "whole_words": True, "label": "kind", "prompt": "ask", "completion": "answer"},
    "model": {
        "family": "gpt2",
        "options": {"layers": 4},
        "name": "gpt2",
        "init": "runs/other",
        "kv_heads": 4,
        "bias": True,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "output_dropout": 0.1,
        "word_dropout": 0.1,
        "rotary_scaling": "linear:2",
        "norm_eps": 1e-6,
        "parts": "none",
        "pairs": 9,
        "pointer": 8,
        "window": 64,
        "full_every": 2,
        "positions": 512,
        "classes": 3,
        "latents": 8,
        "prefix_dropout": 0.1,
    },
    "train": {
        "optimizer": "muon",
        "compile": True,
        "recompute": "full",
        "ema": 0.9,
        "grow": 2,
        "head_lr": 2.0,
        "polar_express": True,
        "normalize_neurons": True,
        "cautious_decay": True,
        "momentum_warmup": 9,
    },
    "evaluate": {"per_device": 3},
}
"""Fields of which some need others beside them, and would be refused alone."""
for _section, _fields in IN_COMPANY.items():
    CHANGED[_section] |= _fields
BASE: dict[str, dict[str, Any]] = {"budget": {"steps": 10}, "train": {"batch": 4, "lr": 3e-4}}
GOLDEN = "9ea9878dd27a44f7"
PLACES = {("run", "name"), ("run", "folder"), ("data", "folder")}
PAIRS = [(section, name) for section, fields in CHANGED.items() for name in fields]


def changed(section: str, name: str) -> Recipe:
    if name in IN_COMPANY.get(section, {}):
        base = build(BASE, "base")
        inner = dataclasses.replace(getattr(base, section), **{name: CHANGED[section][name]})
        return dataclasses.replace(base, **{section: inner})
    return build(BASE | {section: BASE.get(section, {}) | {name: CHANGED[section][name]}}, "changed")


def test_the_table_of_changes_has_every_field() -> None:
    fields = {
        (section.name, inner.name)
        for section in dataclasses.fields(Recipe)
        if getattr(Recipe(), section.name) is not None
        for inner in dataclasses.fields(getattr(Recipe(), section.name))
    }
    assert fields == {*PAIRS, ("train", "tokens"), ("model", "size")}


@pytest.mark.parametrize(("section", "name"), PAIRS)
def test_the_fingerprint_depends_on_everything_but_the_places(section: str, name: str) -> None:
    base = build(BASE, "base")
    assert (changed(section, name).fingerprint == base.fingerprint) is ((section, name) in PLACES)


def test_each_change_has_a_fingerprint_of_its_own() -> None:
    kept = [pair for pair in PAIRS if pair not in PLACES]
    assert len({changed(*pair).fingerprint for pair in kept}) == len(kept)


def test_a_batch_in_rows_and_in_tokens_are_two_recipes() -> None:
    rows, tokens = build(BASE, "rows"), build(BASE | {"train": {"tokens": 1024}}, "tokens")
    assert rows.batch == tokens.batch
    assert rows.fingerprint != tokens.fingerprint
    assert rows.workload == tokens.workload


def test_the_same_quantity_in_another_unit_is_the_same_recipe() -> None:
    first, second = (build(BASE | {"budget": {"time": time}}, "") for time in ("2h", "7200s"))
    assert first.fingerprint == second.fingerprint


def test_the_fingerprint_is_what_it_always_was() -> None:
    """Run folders, plans and stores of older sessions are known by it."""
    assert build(BASE, "base").fingerprint == GOLDEN


@pytest.mark.parametrize(("section", "name"), PAIRS)
def test_the_workload_depends_on_what_a_step_costs_and_on_nothing_else(section: str, name: str) -> None:
    costs = {
        ("data", "stream"),
        ("data", "document_mask"),
        ("data", "tokenizer"),
        ("data", "length"),
        ("train", "batch"),
        ("train", "per_device"),
    }
    costs |= {("train", name) for name in ("precision", "optimizer", "compile", "recompute", "ema", "freeze")}
    costs |= {("train", name) for name in ("layer_decay", "normalize_neurons", "cautious_decay")}
    costs |= {*(("model", field) for field in CHANGED["model"])}
    assert (changed(section, name).workload != build(BASE, "").workload) is ((section, name) in costs)


@pytest.mark.parametrize(("section", "name"), PAIRS)
def test_a_difference_is_one_line_with_both_values_and_places_do_not_count(section: str, name: str) -> None:
    old, new = build(BASE, "old"), changed(section, name)
    lines = differences(old, new)
    if (section, name) in PLACES:
        assert lines == []
    else:
        was, now = (getattr(getattr(recipe, section), name) for recipe in (old, new))
        now = [*now] if isinstance(now, tuple) else now
        assert lines == [f"{section}.{name} was {was}, is now {now}"]


def test_a_recipe_does_not_differ_from_itself() -> None:
    assert differences(build(BASE, ""), build(BASE, "")) == []


def test_an_hmm_recipe_is_read_and_written_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "hmm.toml"
    path.write_text('[budget]\nepochs = 5\n[data]\ntokenizer = "words:100"\ndocuments = 9\n[hmm]\nstates = 50\n')
    recipe = load(path)
    assert recipe.hmm == Hmm(states=50)
    path.write_text(dump(recipe))
    assert load(path) == recipe
    assert differences(recipe, build(BASE, "base"))
    assert recipe.fingerprint != build(BASE, "base").fingerprint


def test_the_budget_and_the_alphabet_of_an_hmm_are_its_own() -> None:
    wrong = {"budget": {"steps": 5, "flops": 1e9}, "data": {"tokenizer": "bytes", "length": 1}, "hmm": {}}
    with pytest.raises(RecipeError) as caught:
        build(wrong, "hmm")
    assert [line.split(" =")[0] for line in caught.value.problems] == [
        "data.tokenizer",
        "budget.flops",
        "budget.steps",
        "data.source",
        "data.length",
    ]


def test_an_override_without_a_value_clears_the_field(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        '[run]\nname = "x"\n[budget]\nsteps = 1\n[data]\nsource = "stories"\n[model]\nhidden = 64\n[train]\nbatch = 1\n'
    )
    assert load(path, ["model.hidden="]).model.hidden is None
    with pytest.raises(RecipeError, match=r"train\.lr"):
        load(path, ["train.lr="])


@pytest.mark.parametrize(
    ("disk", "memory", "expected"),
    [
        ("1.5GB", "100264KiB", "d67a100b4e8e9b47"),
        ("3.9MB", "1GiB", "5541cf69547a30a3"),
        ("1KiB", "1MB", "8f56b95bab1e8b5b"),
    ],
)
def test_the_fingerprint_of_a_budget_is_that_of_earlier_runs(disk: str, memory: str, expected: str) -> None:
    """A run resumes by it, however sizes are printed."""
    values = {"budget": {"steps": 10, "disk": disk, "memory": memory}, "train": {"batch": 4, "lr": 3e-4}}
    assert build(values, "test").fingerprint == expected
