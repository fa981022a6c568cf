"""`shoestring hmm sample`: the rows of a stream as a store, restartable, in parts, and refused where it cannot be."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import Command, last_json, start
from numpy.typing import NDArray

from shoestring.baselines import streams as answers
from shoestring.cli.main import main
from shoestring.core import recipe_file
from shoestring.core.files import locked
from shoestring.core.seeds import derive
from shoestring.data.store import fixed_rows
from shoestring.data.store.store import Store
from shoestring.datasets.streams import model_stream, open_stream, read_model
from shoestring.hmm import parameters as hmm
from shoestring.hmm.parameters import HmmError, Parameters, random_parameters, save
from shoestring.runs import sample
from shoestring.runs.sample import StoreAnswers
from shoestring.streams.source import HELDOUT

WORDS = ("once", "upon", "a", "time", "there", "was", "girl", "who")
LENGTH = 9
SMALL = 50 * LENGTH
"""Bytes of a shard of fifty rows."""


class Said(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


Here = Callable[..., Said]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """The command line in this process, which spares the imports of another."""

    def run(*arguments: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["shoestring", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with nothing in it but its model."""
    folder = tmp_path_factory.mktemp("runs") / "an-hmm"
    save(folder / "model.safetensors", random_parameters(4, len(WORDS), seed=1, concentration=0.3), WORDS)
    return folder


@pytest.fixture(autouse=True)
def few_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers from few tokens in this process, where they are not what is tested."""
    monkeypatch.setattr(sample, "ANSWERED_ROWS", 8)
    for name, number in {"COUNTED_ROWS": 64, "RATE_ROWS": 4, "RATE_TOKENS": 40, "RATE_BURN_IN": 8}.items():
        monkeypatch.setattr(answers, name, number)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".lock")}


def all_rows(folder: Path, split: str, length: int = LENGTH) -> NDArray[np.int64]:
    rows = Store(folder).split(split, length - 1)
    return rows.rows(np.arange(len(rows)))


def stream_rows(model: Path, first: int, count: int, seed: int = 0, **kinds: str) -> NDArray[np.int64]:
    stream = model_stream(read_model(model), derive(seed, "stream"), LENGTH, **kinds)
    return stream.rows(first, count).long().numpy()


# --- what is written


def test_twenty_thousand_rows_in_a_process_of_their_own(run_folder: Path, tmp_path: Path, shoestring: Command) -> None:
    options = ("--rows", "20k", "--length", str(LENGTH), "--seed", "3", "--symbols", "sequence", "--json")
    result = shoestring("hmm", "sample", run_folder, *options, "--out", "store")
    assert result.returncode == 0, result.stderr
    told = last_json(result.stdout)
    assert (told["store"], told["whole"], told["missing_shards"]) == ("store", True, 0)
    assert told["rows"] == {"train": 20_000, "heldout": 1024}
    assert (told["length"], told["symbols"]) == (LENGTH, len(WORDS))
    assert "21,024 of 21,024 rows" in result.stderr
    folder = tmp_path / "store"
    names = {"manifest.json", "tokenizer.json", "job.json", "answers.json", "train-00000.tok", "heldout-00000.tok"}
    assert files_of(folder).keys() == names
    train, heldout = all_rows(folder, "train"), all_rows(folder, "heldout")
    assert (train == stream_rows(run_folder, 0, 20_000, seed=3, symbols="sequence")).all()
    assert (heldout == stream_rows(run_folder, HELDOUT, 1024, seed=3, symbols="sequence")).all()
    values = {
        "run": {"seed": 3},
        "budget": {"steps": 1},
        "data": {"stream": f"hmm:{run_folder}", "length": LENGTH - 1},
        "stream": {"symbols": "sequence"},
        "train": {"batch": 1, "lr": 1e-3},
    }
    stream = open_stream(recipe_file.build(values, "test"))
    assert (train[:500] == stream.rows(0, 500).long().numpy()).all(), "a recipe's rows are those of the store"
    known = StoreAnswers.read(folder / "answers.json")
    assert known.rows == 1024
    assert min(known.losses, key=lambda name: known.losses[name]) == "oracle"
    assert all(len(curve) == LENGTH - 1 for curve in known.losses_by_position.values())
    assert known.entropy_rate == pytest.approx(known.losses["oracle"], rel=0.2)
    assert 0 < known.entropy_rate_error < 0.01


@pytest.mark.parametrize(
    "kinds",
    [
        {},
        {"start": "stationary"},
        {"symbols": "block:7"},
        {"states": "pool:3"},
        {"symbols": "pool:2", "states": "sequence"},
    ],
)
def test_rows_are_those_of_the_stream(kinds: dict[str, str], run_folder: Path, tmp_path: Path, here: Here) -> None:
    options = [text for name, kind in kinds.items() for text in (f"--{name}", kind)]
    sized = ("--rows", "300", "--heldout", "20", "--length", str(LENGTH))
    said = here("hmm", "sample", run_folder, *sized, "--out", tmp_path / "store", *options)
    assert said.code == 0, said.err
    assert (all_rows(tmp_path / "store", "train") == stream_rows(run_folder, 0, 300, **kinds)).all()
    assert (all_rows(tmp_path / "store", "heldout") == stream_rows(run_folder, HELDOUT, 20, **kinds)).all()


def test_symbols_have_their_words_unless_they_are_permuted(run_folder: Path, tmp_path: Path, here: Here) -> None:
    sized = ("--rows", "10", "--heldout", "2", "--length", str(LENGTH))
    for kind in ("none", "sequence"):
        assert here("hmm", "sample", run_folder, *sized, "--out", tmp_path / kind, "--symbols", kind).code == 0
    row = all_rows(tmp_path / "none", "train")[0]
    assert Store(tmp_path / "none").tokenizer.decode(row) == " ".join(WORDS[i] for i in row)
    row = all_rows(tmp_path / "sequence", "train")[0]
    assert Store(tmp_path / "sequence").tokenizer.decode(row) == " ".join(map(str, row))


@pytest.mark.parametrize("options", [("--length", "1", "--heldout", "5"), ("--length", "5", "--heldout", "0")])
def test_without_a_prediction_or_a_held_out_row_there_are_no_answers(
    options: tuple[str, ...], run_folder: Path, tmp_path: Path, here: Here
) -> None:
    said = here(
        "hmm", "sample", run_folder / "model.safetensors", "--rows", "10", *options, "--out", tmp_path / "store"
    )
    assert said.code == 0, said.err
    assert (tmp_path / "store/manifest.json").is_file()
    assert not (tmp_path / "store/answers.json").exists()


def test_answers_that_there_are_not_are_not_named(run_folder: Path, tmp_path: Path, here: Here) -> None:
    said = here("hmm", "sample", run_folder, "--rows", "10", "--heldout", "0", "--length", "5", "--out", tmp_path / "s")
    assert said.code == 0
    assert "answers.json" not in said.out


def test_a_chain_of_separate_parts_starts_from_the_model(tmp_path: Path, here: Here) -> None:
    apart = torch.eye(2, dtype=torch.float64)
    save(tmp_path / "model.safetensors", Parameters(apart.mean(0), apart, apart.clone()))
    sized = ("--rows", "10", "--heldout", "4", "--length", "5")
    said = here("hmm", "sample", tmp_path / "model.safetensors", *sized, "--out", tmp_path / "store")
    assert said.code == 0, said.err
    assert StoreAnswers.read(tmp_path / "store/answers.json").losses["oracle"] == 0


# --- cut and resumed, and in parts


def with_small_shards() -> None:
    """The command line, in a process of its own."""
    fixed_rows.SHARD_BYTES = SMALL
    main()


def test_a_process_that_was_killed_ends_with_the_same_bytes(
    run_folder: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real command, with shards so small that it writes hundreds of them."""
    monkeypatch.setattr(fixed_rows, "SHARD_BYTES", SMALL)
    options = ("hmm", "sample", run_folder, "--rows", "20k", "--heldout", "64", "--length", str(LENGTH))
    assert here(*options, "--out", tmp_path / "whole").code == 0
    folder = tmp_path / "killed"
    process = start(*options, "--out", folder, cwd=tmp_path, begin=with_small_shards)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and len(list(folder.glob("train-*.tok"))) < 20:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert 20 <= len(list(folder.glob("*.tok"))) < 402, "killed in mid-way"
    assert not (folder / "manifest.json").exists()
    said = here(*options, "--out", folder, "--json")
    assert said.code == 0, said.err
    assert last_json(said.out)["whole"] is True
    assert files_of(folder) == files_of(tmp_path / "whole")


def test_parts_make_the_same_store_as_one_command(
    run_folder: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_rows, "SHARD_BYTES", SMALL)
    options = ("hmm", "sample", run_folder, "--rows", "410", "--heldout", "60", "--length", str(LENGTH), "--json")
    assert here(*options, "--out", tmp_path / "whole").code == 0
    left = []
    for part in ("2/3", "0/3", "2/3", "1/3"):
        said = here(*options, "--out", tmp_path / "parts", "--shard", part)
        assert said.code == 0, said.err
        told = last_json(said.out)
        left.append(told["missing_shards"])
        assert told["whole"] is (part == "1/3") is (tmp_path / "parts/manifest.json").is_file()
        assert told["whole"] or f"part {part} is written; missing: {left[-1]} shards of other parts" in said.err
    assert left == [8, 4, 4, 0], "of nine shards of training rows, and two of held-out ones"
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


def test_a_store_that_is_whole_is_left_as_it_is(run_folder: Path, tmp_path: Path, here: Here) -> None:
    options = (
        "hmm",
        "sample",
        run_folder,
        "--rows",
        "50",
        "--heldout",
        "8",
        "--length",
        "6",
        "--out",
        tmp_path,
        "--json",
    )
    first = here(*options)
    before = files_of(tmp_path)
    (tmp_path / "answers.json").unlink()  # as if cut right after the manifest
    again = here(*options)
    assert (again.code, again.out) == (0, first.out)
    assert files_of(tmp_path) == before


# --- mistakes


def refused(said: Said, *parts: str) -> None:
    assert said.code == 2, said
    assert said.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in said.err
    assert "bug" not in said.err
    for part in parts:
        assert part in said.err


SIZED = {"--rows": "100", "--length": "5", "--heldout": "8"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--rows": "0"}, "--rows 0: a stream has 1 to 2^62"),
        ({"--rows": str((1 << 62) + 1)}, "--rows 4,611,686,018,427,387,905"),
        ({"--rows": "1e30"}, ": a stream has 1 to 2^62"),
        ({"--rows": "-3"}, "'-3' is not a count"),
        ({"--rows": "1.5"}, "'1.5' is not a whole number"),
        ({"--rows": "many"}, "'many' is not a count; write for example"),
        ({"--rows": "3GB"}, "unknown unit 'GB'"),
        ({"--heldout": "1e20"}, "--heldout 100,000,000,000,000,000,000: must be 0 to 2^61"),
        ({"--heldout": "some"}, "--heldout some"),
        ({"--shard": "4/4"}, "--shard 4/4: must be I/N with I from 0 to N - 1"),
        ({"--shard": "0/0"}, "--shard 0/0"),
        ({"--shard": "-1/4"}, "--shard -1/4"),
        ({"--shard": "3"}, "such as 0/4"),
        ({"--shard": "a/b"}, "--shard a/b"),
        ({"--symbols": "sequences"}, '--symbols "sequences": must be "none", "sequence"'),
        ({"--symbols": "block:0"}, '--symbols "block:0": must be'),
        ({"--states": "pool"}, '--states "pool": must be'),
        ({"--states": "pool:99999999"}, 'a pool holds at most 16,777,216 permutations; "sequence" has no limit'),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    changes: dict[str, str], message: str, run_folder: Path, tmp_path: Path, here: Here
) -> None:
    options = [text for pair in (SIZED | changes).items() for text in pair]
    refused(here("hmm", "sample", run_folder, *options, "--out", tmp_path / "store"), message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changes", [{"--length": "0"}, {"--length": "x"}, {"--seed": "-1"}, {"--start": "anywhere"}])
def test_options_out_of_range_are_wrong_usage(
    changes: dict[str, str], run_folder: Path, tmp_path: Path, here: Here
) -> None:
    options = [text for pair in (SIZED | changes).items() for text in pair]
    said = here("hmm", "sample", run_folder, *options, "--out", tmp_path / "store")
    assert said.code == 2
    assert f"Invalid value for '{next(iter(changes))}'" in said.err
    assert list(tmp_path.iterdir()) == []


def sized(model: Path, out: Path, *more: str) -> tuple[Any, ...]:
    return ("hmm", "sample", model, *(text for pair in SIZED.items() for text in pair), "--out", out, *more)


def test_a_model_that_is_not_there_is_named(tmp_path: Path, here: Here) -> None:
    (tmp_path / "empty").mkdir()
    for name, hint in (
        ("absent", "shoestring hmm fit RECIPE"),
        ("empty", "shoestring hmm fit RECIPE"),
        ("absent.safetensors", "no such file"),
    ):
        refused(here(*sized(tmp_path / name, tmp_path / "store")), f"there is no fitted HMM {tmp_path / name}", hint)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_model_that_ends_makes_no_rows_of_one_length(tmp_path: Path, here: Here) -> None:
    save(tmp_path / "ends.safetensors", random_parameters(3, 5, seed=0, end=True))
    said = here(*sized(tmp_path / "ends.safetensors", tmp_path / "store"), "--json")
    refused(said, "a model with end probabilities makes rows of different lengths")
    told = {"error": said.err.removeprefix("error: ").strip(), "exit_code": 2, "kind": "HmmError"}
    assert last_json(said.out) == told
    assert not (tmp_path / "store").exists()


def test_an_alphabet_that_two_bytes_do_not_hold_is_refused(tmp_path: Path, here: Here) -> None:
    one, symbols = torch.ones(1, 1, dtype=torch.float64), (1 << 16) + 1
    spread = torch.full((1, symbols), 1 / symbols, dtype=torch.float64)
    save(tmp_path / "wide.safetensors", Parameters(one[0].clone(), one, spread))
    refused(here(*sized(tmp_path / "wide.safetensors", tmp_path / "store")), "65,537 outcomes", "at most 65,536")
    assert not (tmp_path / "store").exists()


def test_a_chain_of_separate_parts_has_no_stationary_start(tmp_path: Path, here: Here) -> None:
    apart = torch.eye(2, dtype=torch.float64)
    save(tmp_path / "model.safetensors", Parameters(apart.mean(0), apart, apart.clone()))
    said = here(*sized(tmp_path / "model.safetensors", tmp_path / "store", "--start", "stationary"))
    refused(said, "ends in one of 2 classes", "start it from the model's start")
    assert not (tmp_path / "store").exists()


def test_rows_that_do_not_sum_to_one_are_neither_saved_nor_read(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, path = random_parameters(3, 5, seed=0), tmp_path / "model.safetensors"
    wrong = good._replace(emission=good.emission * torch.tensor([[1.0], [0.9], [1.0]], dtype=torch.float64))
    with pytest.raises(HmmError, match=r"emission\[1\] sums to 0\.9"):
        save(path, wrong)
    assert not path.exists()
    with monkeypatch.context() as patch:  # a writer that does not check
        patch.setattr(hmm, "check", lambda _: None)
        save(path, wrong)
    refused(here(*sized(path, tmp_path / "store")), "emission[1] sums to 0.9, not to 1")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("where", ["start", "middle", "end"])
def test_a_model_file_with_a_flipped_bit_is_refused(where: str, run_folder: Path, tmp_path: Path, here: Here) -> None:
    content = bytearray((run_folder / "model.safetensors").read_bytes())
    content[{"start": 20, "middle": len(content) // 2, "end": -1}[where]] ^= 1
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refused(here(*sized(path, tmp_path / "store")), f"{path}: damaged")
    path.write_bytes(content[: len(content) // 2])
    refused(here(*sized(path, tmp_path / "store")), f"{path}: damaged")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("change", [("--rows", "101"), ("--length", "6"), ("--seed", "1"), ("--symbols", "sequence")])
def test_other_rows_in_the_folder_are_left_alone(
    change: tuple[str, str], run_folder: Path, tmp_path: Path, here: Here
) -> None:
    assert here(*sized(run_folder, tmp_path)).code == 0
    before = files_of(tmp_path)
    refused(here(*sized(run_folder, tmp_path, *change)), f"{tmp_path} holds, or was started for, other rows")
    assert files_of(tmp_path) == before


def test_rows_of_a_model_that_was_fitted_again_are_other_rows(tmp_path: Path, here: Here) -> None:
    model = tmp_path / "model.safetensors"
    save(model, random_parameters(3, 5, seed=0))
    assert here(*sized(model, tmp_path / "store")).code == 0
    save(model, random_parameters(3, 5, seed=1))
    refused(here(*sized(model, tmp_path / "store")), "other rows")


def test_a_store_that_another_process_writes_is_left_to_it(run_folder: Path, tmp_path: Path, here: Here) -> None:
    with locked(tmp_path / "store/.lock", "the store"):
        refused(here(*sized(run_folder, tmp_path / "store")), "part 0/1 of the store", "is in use by process")
    assert files_of(tmp_path / "store") == {}


def test_a_disk_that_is_too_small_is_said_at_once(
    run_folder: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_rows, "free_bytes", lambda _: 400)
    refused(here(*sized(run_folder, tmp_path / "store")), "108 rows of 5 tokens", "still need", "400 B are free")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_named(run_folder: Path, tmp_path: Path, here: Here) -> None:
    (tmp_path / "store").write_text("a file")
    refused(here(*sized(run_folder, tmp_path / "store")), "cannot make the folder", "a file of that name is in the way")


def test_a_run_folder_is_no_place_for_a_store(run_folder: Path, tmp_path: Path, here: Here) -> None:
    (tmp_path / "recipe.toml").write_text("")
    refused(here(*sized(run_folder, tmp_path)), f"--out {tmp_path}: it is the folder of a run")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_a_flipped_byte_of_a_shard_is_noticed_by_the_same_command(run_folder: Path, tmp_path: Path, here: Here) -> None:
    command = sized(run_folder, tmp_path / "store")
    assert here(*command).code == 0
    shard = tmp_path / "store/train-00000.tok"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    refused(here(*command), f"{shard}: damaged, its content does not match its checksums; remove this file")
    shard.unlink()
    assert here(*command).code == 0
    content[len(content) // 2] ^= 1
    assert shard.read_bytes() == content
