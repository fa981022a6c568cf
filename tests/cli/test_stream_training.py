"""A network trained on rows that are computed: killed and resumed, scored beside the baselines, nothing on disk."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import last_json, start

from shoestring.cli.main import main
from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import DataError, RunError, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost, Machine, Point, Profile
from shoestring.core.results import Evaluation
from shoestring.core.run_folder import RunFolder
from shoestring.datasets.corpus import open_corpus
from shoestring.datasets.streams import open_stream
from shoestring.hmm.parameters import load, random_parameters, save
from shoestring.runs import probe_server
from shoestring.runs.plan import plan_task
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import Finished, run
from shoestring.runs.sample import Wanted, sample_store
from shoestring.runs.task import task_of
from shoestring.streams import source
from shoestring.streams.markov import MarkovStream
from shoestring.streams.source import HELDOUT, TRAIN, StreamRows
from shoestring.training.checkpoint import Checkpoints

CPU = torch.device("cpu")
AHEAD_BYTES = source._AHEAD_BYTES
STEPS, BATCH, LENGTH = 150, 4, 12
OF_HMM = {"uniform", "unigram_in_context", "bigram_in_context", "unigram_corpus", "bigram_corpus", "oracle"}
OF_MARKOV = {"uniform", "unigram_in_context", "bigram_in_context", "oracle"}

HMM = """
[run]
name = "an-hmm"

[budget]
epochs = 3

[data]
source = "stories"
documents = 200
tokenizer = "words:300"
length = 8
heldout = 0.1

[hmm]
states = 4
update_every = 64

[evaluate]
rows = 20
every = 0.5
"""
NETWORK = f"""
[run]
name = "network"

[budget]
steps = {STEPS}

[data]
stream = "hmm:runs/an-hmm"
length = {LENGTH}

[stream]
symbols = "sequence"

[model]
width = 16
layers = 1
heads = 2

[train]
batch = {BATCH}
per_device = {BATCH}
lr = 3e-3
checkpoint_every = "50ms"

[evaluate]
rows = 16
every = 0.25
"""
PROFILE = Profile(
    machine=Machine(device="cpu", device_name="", threads=1, memory_bytes=None, system="", python="", versions={}),
    workload="",
    length=LENGTH,
    points=(Point(batch=4, seconds=0.003, slowest_seconds=0.004, peak_bytes=None),),
    setup_seconds=3.0,
    update_seconds=0.001,
    validate_seconds_per_row=0.0003,
    checkpoint_seconds=0.01,
    checkpoint_bytes=100_000,
    available_bytes=None,
    stopped="",
    cost=Cost(parameters={"all": 9000}, forward_flops_per_token=18_000.0),
)


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a fitted HMM; training takes signals for itself, and gives them back here."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "hmm.toml").write_text(HMM)
    (folder / "network.toml").write_text(NETWORK)
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(source, "_AHEAD_BYTES", 1 << 12)  # runs this short would wait for rows that they never read
        recipe = recipe_file.load("hmm.toml")
        _know_the_machine(recipe)
        run(recipe, Reporter(), Clock(0.0))
        shutil.rmtree("stores")  # of the HMM
        yield folder
    for number, handler in kept.items():
        signal.signal(number, handler)


def _know_the_machine(recipe: Recipe) -> None:
    """A profile in the run's folder, so that nothing is measured."""
    profile = replace(PROFILE, workload=task_of(recipe).workload, length=recipe.data.length)
    profile.write(RunFolder.of(recipe).profile)


def network(*overrides: str) -> Recipe:
    return recipe_file.load("network.toml", overrides)


def train(recipe: Recipe) -> Finished:
    _know_the_machine(recipe)
    finished = run(recipe, Reporter(), Clock(0.0))
    assert finished is not None
    return finished


@pytest.fixture(scope="module")
def whole(place: Path) -> Finished:
    """The run without a break."""
    return train(network())


@pytest.fixture(scope="module")
def killed(whole: Finished) -> Path:
    """The folder of runs with the same run, killed in mid-way: to be copied, not to be resumed."""
    folder = RunFolder("killed/network")
    again = ("train", "network.toml", "--set", "run.folder=killed", "--plan", whole.folder.plan)
    process = start(*again, cwd=Path.cwd())
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        saved = folder.checkpoints.is_dir() and Checkpoints(folder.checkpoints, 1).steps()
        if saved and saved[0] > STEPS // 4 and folder.metrics.read_bytes().count(b"\n") > saved[0]:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not folder.done.exists()
    return folder.path.parent


def lines_of(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


# --- a whole run


def test_a_stream_has_no_end_and_needs_no_disk(whole: Finished, place: Path) -> None:
    lines = {line.quantity: line for line in whole.plan.lines}
    assert (lines["rows"].value, lines["epochs"].value) == ("no end", "less than 1")
    assert "nothing is prepared" in lines["rows"].reason
    assert f"{STEPS * BATCH} rows, each read once" in lines["epochs"].reason
    assert "store" not in lines["disk"].reason
    assert "documents" not in lines
    assert (whole.plan.epochs, whole.plan.entries, whole.plan.gigabytes) == (None, None, None)
    assert whole.plan.parts["prepare"] == 0
    assert whole.plan.disk_bytes == 4 * PROFILE.checkpoint_bytes
    assert not (place / "stores").exists()


def test_the_evaluation_holds_the_baselines(whole: Finished) -> None:
    found = Evaluation.read(whole.folder.evaluation)
    assert found == whole.evaluation
    assert found.baselines.keys() == found.baselines_by_position.keys() == OF_HMM
    assert len(found.loss_by_position) == LENGTH
    for name, curve in found.baselines_by_position.items():
        assert len(curve) == LENGTH
        assert found.baselines[name] == pytest.approx(np.mean(curve))
        assert found.baselines["oracle"] <= found.baselines[name]
    assert found.baselines["oracle"] < found.loss
    assert found.baselines["uniform"] == pytest.approx(np.log(300))
    assert found.entropy_rate is not None and found.entropy_rate_error is not None
    assert 0 < found.entropy_rate_error < 0.1
    assert found.entropy_rate < found.baselines["oracle"] + 1
    assert found.bits_per_byte is None


def test_the_divergence_of_every_baseline_is_taken_with_the_held_out_loss(whole: Finished) -> None:
    scored = [line for line in lines_of(whole.folder) if "heldout_loss" in line]
    assert [line["step"] for line in scored] == [38, 75, 113, 150]
    names = {"kl_of_unigram_in_context", "kl_of_bigram_in_context", "kl_of_oracle"}
    for line in scored:
        assert {name for name in line if name.startswith("kl_of_")} == names
        assert all(line[name] > 0 for name in names)
    assert min(line["heldout_loss"] for line in scored) == pytest.approx(whole.evaluation.loss, rel=1e-6)
    page = whole.folder.report.read_text()
    assert "What it predicts like" in page
    assert "This model has learned" in page


def test_evaluate_says_the_same_again(
    whole: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = whole.folder.evaluation.read_bytes()
    monkeypatch.setattr(sys, "argv", ["shoestring", "evaluate", str(whole.folder.path), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert last_json(capsys.readouterr().out) == whole.evaluation.to_dict()
    assert whole.folder.evaluation.read_bytes() == before


def test_training_rows_are_read_once_in_their_order_and_no_held_out_row_is_among_them(whole: Finished) -> None:
    recipe = network()
    corpus, stream = open_corpus(recipe, whole.plan), open_stream(recipe)
    rows = corpus.training(CPU)
    read = torch.cat([rows.batch(rows.order(0, step, BATCH)).ids for step in range(STEPS)])
    assert read.equal(stream.rows(TRAIN, STEPS * BATCH).long())
    heldout = corpus.heldout().ids
    assert heldout.equal(stream.rows(HELDOUT, recipe.evaluate.rows).long())
    assert not {tuple(row) for row in read.tolist()} & {tuple(row) for row in heldout.tolist()}
    # far more rows than any run reads before the first held-out one
    assert int(rows.order(0, 10**9, 10**6).rows[-1]) + TRAIN < HELDOUT


# --- killed, and resumed


def test_a_run_that_was_killed_ends_as_if_it_had_not_been(
    whole: Finished, killed: Path, tmp_path: Path, place: Path
) -> None:
    shutil.copytree(killed, tmp_path / "again")
    said: list[str] = []
    reporter = Reporter()
    reporter.say = said.append  # type: ignore[method-assign]
    run(network(f"run.folder={tmp_path / 'again'}"), reporter, Clock(0.0))
    assert any("resuming after step" in text for text in said)
    again = RunFolder(tmp_path / "again/network")
    assert again.metrics.read_bytes() == whole.folder.metrics.read_bytes()
    assert again.evaluation.read_bytes() == whole.folder.evaluation.read_bytes()
    assert not (place / "stores").exists()


def test_a_run_does_not_resume_with_a_model_that_was_fitted_again(killed: Path, tmp_path: Path, place: Path) -> None:
    shutil.copytree(killed, tmp_path / "again")
    model = place / "runs/an-hmm/model.safetensors"
    kept = model.read_bytes()
    before = {path.name: path.read_bytes() for path in (tmp_path / "again/network/checkpoints").iterdir()}
    try:
        save(model, random_parameters(4, 300, seed=5), load(model).alphabet)
        with pytest.raises(RunError, match=r"step-\d+\.safetensors was trained on") as caught:
            run(network(f"run.folder={tmp_path / 'again'}"), Reporter(), Clock(0.0))
    finally:
        model.write_bytes(kept)
    assert open_stream(network()).fingerprint in str(caught.value)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "again/network/checkpoints").iterdir()}


def test_a_model_that_is_gone_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no fitted HMM runs/nobody.*shoestring hmm fit RECIPE"):
        run(network("data.stream=hmm:runs/nobody", f"run.folder={tmp_path / 'runs'}"), Reporter(), Clock(0.0))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_makes_no_rows_is_named_before_anything_is_written(tmp_path: Path) -> None:
    save(tmp_path / "ends.safetensors", random_parameters(3, 5, seed=0, end=True))
    recipe = network(f"data.stream=hmm:{tmp_path / 'ends.safetensors'}", f"run.folder={tmp_path / 'runs'}")
    with pytest.raises(UserError, match="end probabilities"):
        run(recipe, Reporter(), Clock(0.0), tmp_path / "plan.json")
    assert not (tmp_path / "runs").exists()


# --- other streams, and a store of rows


def test_a_short_run_does_not_wait_for_rows_that_it_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains are drawn at some ten thousand rows per second on a core."""
    made: list[int] = []

    def rows(self: MarkovStream, first: int, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        made.append(count)
        return torch.zeros(count, self.length, dtype=torch.uint8)

    monkeypatch.setattr(source, "_AHEAD_BYTES", AHEAD_BYTES)
    monkeypatch.setattr(MarkovStream, "rows", rows)
    few = StreamRows(open_stream(network("data.stream=markov:20")), TRAIN, CPU)
    for step in range(10):
        few.rows(few.order(0, step, BATCH))
    assert sum(made) < 1000 * 10 * BATCH


@pytest.mark.parametrize("chain", ["dirichlet", "zipf"])
def test_a_markov_stream_trains(chain: str, tmp_path: Path) -> None:
    options = ("data.stream=markov:20", "stream.symbols=none", f"stream.chain={chain}", "stream.most=6")
    recipe = network(*options, f"run.folder={tmp_path}", "budget.steps=12", "evaluate.every=0.5")
    finished = train(recipe)
    found = finished.evaluation
    assert found.baselines.keys() == found.baselines_by_position.keys() == OF_MARKOV
    assert found.baselines["oracle"] == min(found.baselines.values())
    assert found.baselines["oracle"] < found.loss
    assert (found.entropy_rate, found.entropy_rate_error) == (None, None)
    scored = [line for line in lines_of(finished.folder) if "heldout_loss" in line]
    assert [line["step"] for line in scored] == [6, 12]
    assert all(line["kl_of_unigram_in_context"] > 0 and line["kl_of_bigram_in_context"] > 0 for line in scored)


@pytest.fixture(scope="module")
def sampled(place: Path) -> Path:
    """The rows of the network's stream as a store."""
    wanted = Wanted(model=place / "runs/an-hmm", rows=400, heldout=16, length=LENGTH + 1, symbols="sequence")
    sample_store(wanted, place / "sampled", (0, 1), CPU)
    return place / "sampled"


def on_the_store(folder: Path, *overrides: str) -> Recipe:
    text = NETWORK.replace('stream = "hmm:runs/an-hmm"', f'source = "store:{folder}"')
    values = Path("on-the-store.toml")
    values.write_text(text.replace('[stream]\nsymbols = "sequence"\n', ""))
    return recipe_file.load(values, overrides)


def test_a_store_of_sampled_rows_trains(sampled: Path, tmp_path: Path, place: Path) -> None:
    recipe = on_the_store(sampled, f"run.folder={tmp_path}", "budget.steps=20")
    before = {path: path.stat().st_mtime_ns for path in sampled.iterdir()}
    finished = train(recipe)
    assert finished.evaluation.baselines.keys() == {"uniform", "unigram", "bigram"}
    assert finished.plan.epochs == pytest.approx(20 * BATCH / 400)
    lines = {line.quantity: line for line in finished.plan.lines}
    assert lines["rows"].value == "400"
    assert str(sampled) in lines["rows"].reason
    assert before == {path: path.stat().st_mtime_ns for path in sampled.iterdir()}
    assert not (place / "stores").exists()
    mine, streamed = (open_corpus(each, finished.plan).heldout() for each in (recipe, network()))
    assert mine.ids.equal(streamed.ids), "the held-out rows of the store are those of the stream"


def test_an_epoch_of_a_sampled_store_has_a_length(sampled: Path) -> None:
    text = "data.length=6", "budget.epochs=2"
    recipe = on_the_store(sampled, *text)
    made = plan_task(task_of(recipe), replace(PROFILE, length=6))
    assert (made.steps, made.binding) == (STEPS, "steps")
    assert made.epochs == STEPS * BATCH / 400
    longer = plan_task(task_of(on_the_store(sampled, *text, "budget.steps=1000")), replace(PROFILE, length=6))
    assert (longer.steps, longer.binding, longer.epochs) == (200, "epochs", 2.0)


def test_a_store_with_shorter_rows_or_none_is_refused_before_anything_is_written(sampled: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a token store"):
        run(on_the_store(tmp_path / "absent", f"run.folder={tmp_path / 'runs'}"), Reporter(), Clock(0.0))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=r"holds rows of 13 tokens, and data\.length = 13 needs 14"):
        train(on_the_store(sampled, "data.length=13", f"run.folder={tmp_path / 'runs'}"))


# --- the verbs before training


def test_a_stream_is_measured_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child process of a measurement does: the size of the network comes from the fitted HMM."""
    server = probe_server.Server(task_of(network()), lambda: torch.device("cpu"), real=False)
    told = server({"begin": 1, "passes": 1})
    assert told["cost"]["parameters"]["embedding"] == 300 * 16
    assert server({"trial": 4, "seconds": 0.05, "least": 2, "scoring": False})["batch"] == 4
    assert server({"around": 4, "scored": 4, "passes": 2})["checkpoint_bytes"] > 0


def test_plan_knows_a_stream(whole: Finished) -> None:
    """Time that was spent before a plan is in its seconds alone; a run beside it says which loss to expect."""
    plans = [plan_task(task_of(network()), PROFILE), whole.plan]
    mine, theirs = (replace(plan, parts={}, seconds=None, intervals={}, lines=(), loss=None) for plan in plans)
    assert mine == theirs


def test_measure_takes_a_store(sampled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = on_the_store(sampled)
    measured = replace(PROFILE, workload=recipe.workload)
    monkeypatch.setattr("shoestring.runs.measure.measure_task", lambda *_: measured)
    options = ["--set", f"run.folder={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["shoestring", "measure", "on-the-store.toml", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert Profile.read(tmp_path / "network/profile.json") == measured


def test_prepare_says_that_a_stream_needs_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--set", f"run.folder={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["shoestring", "prepare", "network.toml", *options])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr()
    assert "stream" in said.out + said.err
    assert "data.documents" not in said.out + said.err
