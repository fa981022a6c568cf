"""Mistakes and misfortunes: a clear message, exit code 2, no traceback, never a wrong result."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command
from profiles import write_profile

from shoestring.cli import main as cli_main
from shoestring.cli.main import _of_system, main
from shoestring.cli.root import root
from shoestring.core.errors import Fault, storage_error


def _refused(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    for part in parts:
        assert part in result.stderr


def _text(tmp_path: Path, content: str | bytes) -> tuple[str, ...]:
    """Options that train on a file with this content, all of it."""
    path = tmp_path / "corpus.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ("--set", f"data.source=text:{path}", "--set", "data.heldout=0.5")


def _trees(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))


def test_three_mistakes_are_three_lines_and_nothing_is_written(tmp_path: Path, shoestring: Command) -> None:
    recipe = tmp_path / "wrong.toml"
    recipe.write_text('[budget]\ntime = "5x"\n[train]\nbach = 4\nbatch = 4\n[model]\nwidth = "wide"\n')
    result = shoestring("train", recipe)
    _refused(result)
    lines = [line for line in result.stderr.splitlines() if line.startswith("  ")]
    assert len(lines) == 3
    assert "budget.time" in lines[0]
    assert '"5x"' in lines[0]
    assert "d, h, m, s" in lines[0]
    assert 'model.width = "wide": must be a whole number' in lines[1]
    assert "train.bach: unknown field; did you mean 'batch'?" in lines[2]
    assert _trees(tmp_path) == ["wrong.toml"]


@pytest.mark.parametrize("verb", ["measure", "plan", "prepare", "train"])
def test_a_missing_recipe_is_named(verb: str, tmp_path: Path, shoestring: Command) -> None:
    _refused(shoestring(verb, "absent.toml"), "absent.toml", "no such file")
    assert _trees(tmp_path) == []


@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_a_folder_that_is_no_run_is_named(verb: str, tmp_path: Path, shoestring: Command) -> None:
    _refused(shoestring(verb, tmp_path), "is not a run folder")


def test_a_missing_corpus_is_found_before_anything_is_written(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    _refused(shoestring("train", tiny, "--set", "data.source=text:absent.txt"), "no file or folder absent.txt")
    assert _trees(tmp_path) == ["tiny.toml"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "the corpus is empty"), ("\n\n  \n", "the corpus is empty"), ("one two\nthree four\n", "one row needs 33")],
)
def test_a_corpus_with_too_little_in_it(
    content: str, message: str, tiny: Path, tmp_path: Path, shoestring: Command
) -> None:
    _refused(shoestring("prepare", tiny, *_text(tmp_path, content)), message)


def test_a_corpus_that_is_not_text(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    _refused(shoestring("prepare", tiny, *_text(tmp_path, b"fine\n\xff\xfe\n")), "corpus.txt, line 2", "not UTF-8")


def test_an_unwritable_folder(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    (tmp_path / "taken").write_text("a file")
    _refused(shoestring("train", tiny, "--set", "run.folder=taken"), "cannot make the folder", "taken")
    _refused(shoestring("train", tiny, "--set", "run.folder=/proc/none"), "cannot make the folder /proc/none")


def _store(tmp_path: Path) -> Path:
    (store,) = (tmp_path / "stores").iterdir()
    return store


def test_a_store_with_a_flipped_byte(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    assert shoestring("prepare", tiny).returncode == 0
    shard = _store(tmp_path) / "train-00000-00000.tok"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    write_profile(tiny)
    _refused(shoestring("train", tiny), "train-00000-00000.tok: damaged", "shoestring prepare")


def test_a_tokenizer_that_does_not_match_the_store(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    assert shoestring("prepare", tiny).returncode == 0
    path = _store(tmp_path) / "tokenizer.json"
    path.write_text(path.read_text().replace('"the"', '"teh"'))
    write_profile(tiny)
    _refused(shoestring("train", tiny), "is not the tokenizer that")


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of its own with 3 MB, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


def test_a_full_disk_while_saving(tiny: Path, small_disk: Path, shoestring: Command) -> None:
    settings = ("model.width=192", "model.layers=2", f"run.folder={small_disk}")
    write_profile(tiny, *settings)
    result = shoestring("train", tiny, *(part for setting in settings for part in ("--set", setting)))
    _refused(result, "cannot write the checkpoint", "the disk is full")
    assert not list(small_disk.rglob("step-*.safetensors"))


def test_a_disk_too_small_for_the_store_is_refused_at_once(tiny: Path, small_disk: Path, shoestring: Command) -> None:
    options = ("--set", f"data.folder={small_disk}", "--set", "data.documents=1M")
    _refused(shoestring("prepare", tiny, *options), "they need about", "are free")
    assert not list(small_disk.rglob("*.tok"))


def test_errors_are_one_object_with_json(shoestring: Command) -> None:
    result = shoestring("plan", "absent.toml", "--json")
    assert result.returncode == 2
    assert '"exit_code": 2' in result.stdout
    assert result.stdout.count("\n") == 1


def test_a_traceback_is_shown_when_asked_for(shoestring: Command) -> None:
    result = shoestring("train", "absent.toml", "-v")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def _plan_to(output: str) -> tuple[int, str]:
    """The exit code and the errors of a plan whose standard output is a shell's redirection, as in `| true`."""
    line = f"exec {sys.executable} -m shoestring plan --time 1h --tokens-per-second 1k --json"
    code = f"set -o pipefail; ({line}) {output}"
    found = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    return found.returncode, found.stderr


def test_an_output_that_cannot_be_written() -> None:
    code, said = _plan_to(">/dev/full")
    assert (code, said.splitlines()[-1]) == (
        2,
        "error: cannot write the output: the disk is full; free some space or choose another folder",
    )
    assert "Traceback" not in said
    code, said = _plan_to("| true")  # as in `| head`
    assert code == 1
    assert "rror" not in said
    code, said = _plan_to(">&-")
    assert code == 0
    assert "rror" not in said


def test_a_call_that_the_system_refuses_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["shoestring", "report", "x" * 300])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith("recipe.toml: the path is too long\n")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_what_cannot_be_read_is_not_told_to_be_written_elsewhere(number: int) -> None:
    cause = OSError(number, "no")
    for doing in ("read", "read the recipe", "use"):
        text = str(storage_error(doing, "a.toml", cause))
        assert text.startswith(f"cannot {doing} a.toml: ")
        assert "ask its owner for access" in text
        assert "write" not in text
    assert "choose a folder that you may write to" in str(storage_error("write", "a.toml", cause))


def test_ctrl_c_is_one_line_and_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["shoestring", "measure", "tiny.toml"])
    monkeypatch.setattr(root, "invoke", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == "interrupted; the same command continues with what is there"


@pytest.mark.parametrize("cause", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory\nframe 1")])
def test_memory_that_runs_out_is_no_bug(cause: Exception) -> None:
    error = _of_system(cause)
    assert isinstance(error, Fault) and error.exit_code == 1
    assert str(error).startswith("the memory ran out; take a smaller model") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("code", "loaded", "watched", "ends"),
    [
        (0, True, False, ["handlers", 0]),
        (None, True, False, ["handlers", 0]),
        (1, True, False, []),
        (0, False, False, []),
        (0, True, True, []),
    ],
)
def test_a_process_that_loaded_torch_and_went_well_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, code: int | None, loaded: bool, watched: bool, ends: list[object]
) -> None:
    """After what was to run at its end; not where it failed, or where somebody measures it."""
    done: list[object] = []

    def ended() -> None:
        raise SystemExit(code)

    monkeypatch.setattr(cli_main, "main", ended)
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: done.append("handlers"))
    monkeypatch.setattr(os, "_exit", done.append)
    monkeypatch.setattr(sys, "getprofile", lambda: print if watched else None)
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    if loaded:
        monkeypatch.setitem(sys.modules, "torch", sys)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    with contextlib.ExitStack() as stack:
        if not ends:
            stack.enter_context(pytest.raises(SystemExit))
        cli_main.start()
    assert done == ends
