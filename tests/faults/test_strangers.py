"""What comes from a stranger is read, and nothing of it runs: one of every kind of file is forged.

Every forged file would make the folder `marker` if its code ran.
"""

from __future__ import annotations

import importlib._bootstrap_external
import importlib.util
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from small_home import COMMANDS, GIVEN, command, copy_home, inside, make_home

import shoestring
from shoestring.cli import main as cli_main
from shoestring.core.errors import DataError, StorageError, UserError
from shoestring.core.files import locked
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import load
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import Data, Model
from shoestring.core.user_code import TRUST
from shoestring.data.read.corpora import open_source, texts
from shoestring.data.tokenize.subwords import load_subwords
from shoestring.models.families.hf import counting
from shoestring.models.families.hf import network as hf
from shoestring.models.transformers_format import read_transformers
from shoestring.storage.tensor_file import read_tensors, write_tensors
from shoestring.track import LineFile

TRAINING = [arguments for arguments in COMMANDS if arguments[0] == "train"]
READING = [arguments for arguments in COMMANDS if arguments[0] != "train"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("strangers") / "home")


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """Exists as soon as code of a stranger has run; it must not at the end of a test."""
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "a stranger's code has run"


class Payload:
    """Makes the marker when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


def pickled(marker: Path) -> bytes:
    return pickle.dumps(Payload(marker))


def source(marker: Path) -> str:
    """The same as Python."""
    return f"import os\nos.makedirs({str(marker)!r}, exist_ok=True)\n"


def npy(marker: Path) -> bytes:
    """An array of objects, which numpy stores as a pickle."""
    content, objects = io.BytesIO(), np.empty(1, dtype=object)
    objects[0] = Payload(marker)
    np.save(content, objects, allow_pickle=True)
    return content.getvalue()


def zipped(marker: Path) -> bytes:
    """As torch saves."""
    content = io.BytesIO()
    torch.save({"model": Payload(marker)}, content)
    return content.getvalue()


FORGERS: dict[str, Callable[[Path], bytes]] = {"pickle": pickled, "npy": npy, "torch": zipped}


def test_a_payload_runs_where_it_is_unpickled(tmp_path: Path) -> None:
    """So that what the other tests show is worth something."""
    for number, read in enumerate((pickle.loads, lambda raw: np.load(io.BytesIO(raw), allow_pickle=True))):
        path = tmp_path / str(number)
        read((pickled, npy)[number](path))
        assert path.exists()
    torch.load(io.BytesIO(zipped(tmp_path / "2")), weights_only=False)
    assert (tmp_path / "2").exists()


class Reader(NamedTuple):
    """A command that reads a file, in a folder whose runs are finished or not."""

    arguments: tuple[str, ...]
    finished: bool


def _opened(home: Path, target: Path, finished: bool, commands: list[tuple[str, ...]]) -> dict[Path, list[Reader]]:
    """For every file, the commands that read it, by what Python itself says it opens."""
    seen: set[Path] = set()

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "open" and isinstance(arguments[0], str | bytes):
            seen.add(Path(os.path.abspath(os.fsdecode(arguments[0]))))

    listening = True
    sys.addaudithook(listen)
    found: dict[Path, list[Reader]] = {}
    try:
        for arguments in commands:
            copy = copy_home(home, target, finished)
            before = {path for path in copy.rglob("*") if path.is_file()}
            seen.clear()
            command(copy, arguments)
            for path in before & seen:
                found.setdefault(path.relative_to(copy), []).append(Reader(arguments, finished))
    finally:
        listening = False
    return found


def test_no_file_of_a_run_or_a_store_runs_code(home: Path, tmp_path: Path, marker: Path) -> None:
    found = _opened(home, tmp_path / "copy", True, READING)
    for path, readers in _opened(home, tmp_path / "copy", False, TRAINING).items():
        found.setdefault(path, []).extend(readers)
    names = {path.name for path in found}
    assert {
        "recipe.toml", "plan.json", "profile.json", "metrics.jsonl", "timings.jsonl", "evaluation.json", "DONE",
        "tokenizer.json", "manifest.json", "rows.safetensors", "model.safetensors", "states.json", "law.json",
        "table.csv", "train-00000-00000.tok", "train-00000-00000.json", "train-00000-00000.at.npy",
        "step-000000006.safetensors",
    } <= names  # fmt: skip
    turns: Counter[Reader] = Counter()

    def forge(path: Path, kind: str, reader: Reader) -> None:
        turns[reader] += 1
        copy = copy_home(home, tmp_path / "copy", reader.finished)
        (copy / path).write_bytes(FORGERS[kind](marker))
        command(copy, reader.arguments)
        assert not marker.exists(), (path, reader)

    for path, readers in sorted(found.items()):
        for kind in FORGERS if path.suffix in (".npy", ".safetensors", ".tok") else ("pickle",):
            forge(path, kind, min(readers, key=lambda each: turns[each]))  # so that every command has its turn
    for path, readers in sorted(found.items(), key=lambda each: len(each[1])):
        for reader in readers:
            if not turns[reader]:
                forge(path, "pickle", reader)
    assert {reader.arguments for reader in turns} == set(COMMANDS)


def _as_parts(folder: Path) -> Path:
    """A run's checkpoint of step 6 as a folder, to which one process has written."""
    checkpoint = folder / "checkpoints/step-000000006.safetensors"
    arrays, state = read_tensors(checkpoint)
    where = {name: [list(array.shape), 0] for name, array in arrays.items()}
    parts = checkpoint.with_suffix(".parts")
    write_tensors(parts / "part-00000.safetensors", arrays, json.dumps({"files": 1, "state": state, "parts": where}))
    checkpoint.unlink()
    return parts


def test_a_checkpoint_of_several_processes_runs_no_code(home: Path, tmp_path: Path, marker: Path) -> None:
    commands = [("evaluate", "runs/net"), ("export", "runs/net", "again"), *TRAINING[:2]]
    for name in (None, ".metadata", "__0_0.distcp", "state.json", "seal.json", "part-00000.safetensors"):
        for arguments in commands if name == ".metadata" else commands[:1]:
            copy = copy_home(home, tmp_path / "copy")
            (copy / "runs/net/DONE").unlink()
            parts = _as_parts(copy / "runs/net")
            if name is not None:
                (parts / name).write_bytes(pickled(marker))
            result = command(copy, arguments)
            assert name == "part-00000.safetensors" or result.error is None, "it can be read at all"
            assert not marker.exists(), (name, arguments)


# --- code of one's own


def _own(folder: Path, text: str) -> Recipe:
    """The recipe of a network of one's own in folder/net.py."""
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(text)
    (folder / "own.toml").write_text(GIVEN.replace("[model]", '[model]\nfamily = "net.py:Net"'))
    with inside(folder):
        return load("own.toml")


def _claimed(folder: Path, text: str) -> RunFolder:
    """A run of such a network which has run here."""
    recipe = _own(folder, text)
    with inside(folder):
        run = RunFolder(folder / "run")
        run.claim(recipe)
    _forget()
    return run


def _forget() -> None:
    """As in a process that has not run the user's file yet."""
    for name in [name for name in sys.modules if name.startswith("shoestring_user_")]:
        del sys.modules[name]


def test_compiled_code_beside_a_known_copy_is_not_run(tmp_path: Path, marker: Path) -> None:
    """A .pyc that is never compared with its source, beside a source that ran here before."""
    run = _claimed(tmp_path / "mine", "class Net: ...\n# compiled\n")
    copy = run.code / "net.py"
    compiled = Path(importlib.util.cache_from_source(str(copy)))
    compiled.parent.mkdir()
    code = compile(source(marker) + "class Net: ...\n", str(copy), "exec")
    raw = importlib._bootstrap_external._code_to_hash_pyc(  # type: ignore[attr-defined]
        code, importlib.util.source_hash(copy.read_bytes()), checked=False
    )
    compiled.write_bytes(raw)
    assert run.read_recipe().model.family == f"{copy}:Net"


def test_a_module_beside_a_known_copy_is_not_run(tmp_path: Path, marker: Path) -> None:
    run = _claimed(tmp_path / "mine", "try:\n    import helper_of_net\nexcept ImportError: ...\nclass Net: ...\n")
    (run.code / "helper_of_net.py").write_text(source(marker))
    with pytest.raises(UserError, match=r"helper_of_net\.py is code that came with a run and never ran here"):
        run.read_recipe()


def test_copies_that_ran_here_import_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "texts_of_net.py").write_text('texts = ["a cat"]\n')
    text = GIVEN.replace("[model]", '[model]\nfamily = "net.py:Net"')
    (folder / "net.py").write_text("import texts_of_net\nclass Net: ...\n")
    (folder / "own.toml").write_text(text.replace("text:words.txt", "texts_of_net.py:texts"))
    with inside(folder):
        run = RunFolder(folder / "run")
        run.claim(load("own.toml"))
    shutil.copytree(run.path, tmp_path / "elsewhere")
    shutil.rmtree(folder)
    _forget()
    sys.modules.pop("texts_of_net")
    sys.path.remove(str(folder))
    kept = RunFolder(tmp_path / "elsewhere").read_recipe()
    assert list(texts(open_source(kept.data, 0))) == ["a cat"]


@pytest.mark.parametrize("place", ["run/code/net.py", "run/net.py", "run/checkpoints/net.py"])
def test_code_anywhere_in_a_run_folder_is_a_stranger_s(tmp_path: Path, marker: Path, place: str) -> None:
    """Also where its recipe is given as a recipe."""
    run = tmp_path / "run"
    for folder in ("code", "checkpoints"):
        (run / folder).mkdir(parents=True)
    (tmp_path / place).write_text(source(marker) + "class Net: ...\n")
    (run / "recipe.toml").write_text(GIVEN.replace("[model]", f'[model]\nfamily = "{place}:Net"'))
    for arguments in (("plan", "run/recipe.toml"), ("train", "run/recipe.toml"), ("evaluate", "run")):
        error = command(tmp_path, arguments).error
        assert error is not None and ("never ran here" in error or "cannot read" in error), arguments


def test_code_of_a_user_runs_beside_a_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    _own(folder, f"{source(tmp_path / 'ran')}class Net: ...\n")
    (folder / "own.toml").rename(folder / "recipe.toml")
    with inside(folder):
        load("recipe.toml")
    assert (tmp_path / "ran").exists()


def test_code_that_is_trusted_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _claimed(tmp_path / "mine", "class Net: ...\n# trusted\n")
    (run.code / "net.py").write_text("import other_of_net\nclass Net: ...\n")
    (run.code / "other_of_net.py").write_text(source(tmp_path / "ran"))
    monkeypatch.setenv(TRUST, "1")
    run.read_recipe()
    assert (tmp_path / "ran").exists()


# --- folders of transformers


def _exported(home: Path, tmp_path: Path, **settings: Any) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(home / "exported", folder)
    config = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _openers(folder: Path) -> list[Callable[[], object]]:
    """Every way to open a folder of transformers."""
    model = Model(family="hf", name=str(folder))
    return [
        lambda: hf.HF(model, 14, 8, 0),
        lambda: counting.hf_cost(model, 14, 8),
        lambda: counting.hf_saved_bytes(model, 14, 8, 4),
        lambda: read_transformers(str(folder)),
    ]


def test_weights_that_are_pickled_are_refused(home: Path, tmp_path: Path, marker: Path) -> None:
    folder = _exported(home, tmp_path)
    (folder / "model.safetensors").unlink()
    for number, forge in enumerate(FORGERS.values()):
        (folder / "pytorch_model.bin").write_bytes(forge(tmp_path / "marker"))
        for use in (_openers(folder)[0], _openers(folder)[3]):
            with pytest.raises(UserError, match=r"has no weights as safetensors.*can run code"):
                use()
        assert not marker.exists(), number
    (folder / "model.safetensors").write_bytes(pickled(marker))
    with pytest.raises(UserError, match="cannot be read"):
        read_transformers(str(folder))


def test_code_that_a_model_brings_is_not_run(
    home: Path, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    names = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    for settings in ({}, {"model_type": "evil"}, {"architectures": ["Evil"]}, {"architectures": ["RagRetriever"]}):
        folder = _exported(home, tmp_path, auto_map=names, **settings)
        (folder / "evil.py").write_text(source(marker) + "class Evil: ...\n")
        (folder / "generation_config.json").write_text("{}")
        (folder / "custom_generate").mkdir()
        (folder / "custom_generate/generate.py").write_text(source(marker))
        for use in _openers(folder):
            try:
                use()
            except UserError:
                assert settings
            assert not marker.exists(), settings
        shutil.rmtree(folder)


def test_attention_of_the_hub_is_refused(home: Path, tmp_path: Path) -> None:
    folder = _exported(home, tmp_path, attn_implementation="stranger/kernel")
    for use in (*_openers(folder), lambda: hf.load_stored(str(folder), hf.auto_class(False))):
        with pytest.raises(UserError, match=r'names code of the hub for attention \("stranger/kernel"\)'):
            use()


def test_code_that_a_tokenizer_brings_is_not_run(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers asks in the terminal where it was not told, and somebody answers yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "evil.py").write_text(source(marker) + "class Evil: ...\n")
    (folder / "vocab.txt").write_text("[UNK]\n[SEP]\n[MASK]\na\n")
    (folder / "vocab.pkl").write_bytes(pickled(marker))
    (folder / "chat_template.jinja").write_text(f"{{{{ cycler.__init__.__globals__.os.mkdir('{marker}') }}}}")
    settings = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "eos_token": "[SEP]"}
    for kind in ("Evil", "BertTokenizer", None):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": kind}))
        try:
            load_subwords(f"file:{folder}")
        except DataError:
            assert kind != "BertTokenizer"
        assert not marker.exists(), kind
    (folder / "tokenizer.json").write_bytes(pickled(marker))
    with pytest.raises(DataError, match="not a tokenizer file"):
        load_subwords(f"file:{folder}")


# --- corpora


def _texts(source: str, **settings: Any) -> list[str]:
    return list(texts(open_source(Data(source=source, **settings), 0)))


def test_a_corpus_runs_no_code(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a.txt", "b.jsonl", "c.csv", "d.parquet", "e.txt.gz", "f.jsonl.zst"):
        (folder / name).write_bytes(pickled(marker))
        kind = {"txt": "text"}.get(name.split(".")[1], name.split(".")[1])
        with pytest.raises(DataError):
            _texts(f"{kind}:{folder / name}")
        assert not marker.exists(), name
    extension = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": b"\x80"}
    extension["ARROW:extension:metadata"] = pickled(marker)
    schema = pa.schema([pa.field("text", pa.string(), metadata=extension)])
    parquet.write_table(pa.table([["a cat"]], schema=schema), folder / "g.parquet")
    try:
        _texts(f"parquet:{folder / 'g.parquet'}")
    except DataError:
        assert not marker.exists()


def test_a_data_set_of_a_folder_runs_no_code(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "stranger"
    folder.mkdir()
    (folder / "stranger.py").write_text(source(marker))
    for name in ("train.pkl", "train.pickle", "train.npy", "state.json", "dataset_info.json"):
        (folder / name).write_bytes(pickled(marker))
        shutil.copy(folder / name, tmp_path)
        for place in (str(folder), "stranger", "pandas"):
            with pytest.raises(DataError):
                _texts(f"hf:{place}")
            assert not marker.exists(), (name, place)
    with pytest.raises(DataError, match="reads pickles, which can run code"):
        _texts("hf:pandas")


# --- links, modules of the current folder, pages


def test_links_of_a_stranger_do_not_lead_to_files_of_the_user(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    for name in (".lock", "timings.jsonl", "metrics.jsonl", "plan.json", "evaluation.json", "report.html", "DONE"):
        is_appended = name in (".lock", "timings.jsonl", "metrics.jsonl")
        for arguments in [("train", "net.toml")] if is_appended else [("evaluate", "runs/net"), ("report", "runs/net")]:
            copy = copy_home(home, tmp_path / "copy", finished=False)
            content = (copy / "runs/net" / name).read_bytes() if (copy / "runs/net" / name).is_file() else b"mine\n"
            mine.write_bytes(content)
            (copy / "runs/net" / name).unlink(missing_ok=True)
            (copy / "runs/net" / name).symlink_to(mine)
            command(copy, arguments)
            assert mine.read_bytes() == content, (name, arguments)


def test_a_link_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with (
        pytest.raises(StorageError, match="link: it is a link that is not followed"),
        locked(tmp_path / "link", "x"),
    ):
        ...
    with pytest.raises(StorageError, match="link: it is a link that is not followed"):
        LineFile(tmp_path / "link")


def test_children_import_nothing_of_the_current_folder(
    tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "socket", "shoestring", "numpy", "ctypes"):
        (tmp_path / f"{name}.py").write_text(source(marker))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(tmp_path))])
    cli_main._import_as_here()
    root = str(Path(shoestring.__file__).parents[1])
    child = [sys.executable, "-m", "shoestring.runs.extend", "none", "1.0", '{"path": [], "added": {}}']
    ended = subprocess.run(child, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (2, "none is not a run folder: it has no recipe.toml\n")


def test_a_process_that_imports_from_the_current_folder_has_such_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    cli_main._import_as_here()
    assert "PYTHONSAFEPATH" not in os.environ


def test_texts_of_a_stranger_are_no_part_of_a_page(home: Path, tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    copy = copy_home(home, tmp_path / "copy")

    def marked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item if key == "schema" else marked(item) for key, item in value.items()}
        if isinstance(value, list):
            return [marked(item) for item in value]
        return value + script if isinstance(value, str) else value

    for path in [*copy.glob("runs/*/*.json"), *copy.glob("runs/*/DONE"), copy / "law.json"]:
        if path.name not in ("tokenizer.json", "profile.json", "choices.json"):
            path.write_text(json.dumps(marked(json.loads(path.read_text()))))
    for name in ("net", "hmm"):
        recipe = copy / f"runs/{name}/recipe.toml"
        recipe.write_text(f"{recipe.read_text()}\n# {script}\n")
        assert command(copy, ("report", f"runs/{name}")).error is None
        page = (copy / f"runs/{name}/report.html").read_text()
        assert "alert(1)" in page and script not in page
