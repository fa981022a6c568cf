"""Checkpoints: whole or absent, exact, and never mistaken for what they are not."""

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import group_jobs
import pytest
import torch

from shoestring.core.errors import RunError, StorageError
from shoestring.core.sections import Model
from shoestring.core.specs import CheckpointSpec
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.storage.tensor_file import write_tensors
from shoestring.training import checkpoint
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.learner import Learner
from shoestring.training.schedule import Schedule, Warmup

VOCABULARY = 11
WARMUP = Warmup(share=0.05, least=100, end=1 / 3, start=-0.1)
STATE = State(recipe="r1", data="d1", schedule=Schedule(total=40, anchor_step=2, anchor_progress=0.125, warmup=WARMUP))


def make(seed: int = 0, width: int = 16, **settings: Any) -> Learner:
    model = Model(width=width, layers=1, heads=1, hidden=width)
    return Learner(build(model, VOCABULARY, 8, seed), Train(batch=4, lr=1e-3, **settings), torch.device("cpu"))


def step(learner: Learner, number: int) -> None:
    rows = torch.randint(VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(number))
    loss = learner.accumulate(rows, 4)
    learner.update(loss, 1e-2 / (1 + number))


def content(learner: Learner) -> dict[str, torch.Tensor]:
    """Every weight, all of the optimizers' state, and the running means."""
    found = {}
    for name, parameter in learner.model.named_parameters():
        found[name] = parameter.detach().clone()
        for optimizer in learner.optimizer.optimizers:
            found |= {f"{name} {key}": value.clone() for key, value in optimizer.state.get(parameter, {}).items()}
    return found | {f"{name} mean": mean.clone() for name, mean in learner.optimizer.averages.items()}


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.dtype == two[name].dtype, name
        assert torch.equal(tensor, two[name]), name


def saved(folder: Path, steps: int) -> Checkpoints:
    """A folder with a checkpoint after each of the first steps."""
    checkpoints, learner = Checkpoints(folder, 10), make()
    for number in range(1, steps + 1):
        step(learner, number)
        checkpoints.save(learner, replace(STATE, step=number))
    return checkpoints


def test_a_checkpoint_restores_every_bit(tmp_path: Path) -> None:
    learner, other = make(0), make(1)
    for number in range(3):
        step(learner, number)
        step(other, 100 + number)
    state = replace(
        STATE, step=3, window_nats=0.1 + 0.2, window_count=7, best_step=2, best_loss=1 / 3, shortened="slow"
    )
    checkpoints = Checkpoints(tmp_path, 2)
    checkpoints.save(learner, state)
    assert checkpoints.restore(3, other, "r1", "d1") == state
    assert_same(content(other), content(learner))
    assert {key.split()[1] for key in content(other) if " " in key} == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({}, {"step", "exp_avg", "exp_avg_sq"}),
        ({"ema": 0.9}, {"step", "exp_avg", "exp_avg_sq", "mean"}),
        (
            {"optimizer": "muon", "ema": 0.5},
            {"step", "exp_avg", "exp_avg_sq", "momentum_buffer", "neuron_square", "mean"},
        ),
    ],
)
def test_a_run_resumes_as_if_it_had_never_stopped(settings: dict[str, Any], keys: set[str], tmp_path: Path) -> None:
    whole, checkpoints = make(**settings), Checkpoints(tmp_path, 2)
    for number in range(4):
        step(whole, number)
    checkpoints.save(whole, replace(STATE, step=4))
    for number in range(4, 9):
        step(whole, number)
    resumed = make(7, **settings)
    assert checkpoints.restore(4, resumed, "r1", "d1").step == 4
    for number in range(4, 9):
        step(resumed, number)
    assert_same(content(resumed), content(whole))
    assert {key.split()[1] for key in content(whole) if " " in key} == keys
    rows = torch.zeros(2, 9, dtype=torch.int64)
    assert torch.equal(resumed.score(rows, 2), whole.score(rows, 2))


def test_dropout_resumes_as_if_it_had_never_stopped_though_no_random_state_is_saved(tmp_path: Path) -> None:
    checkpoints, whole = Checkpoints(tmp_path, 1), group_jobs.make(dropout=0.5)
    group_jobs.train(whole, "plain", 3, steps=3)
    checkpoints.save(whole, replace(STATE, step=3))
    expected = group_jobs.train(whole, "plain", 3, steps=6, first=3)
    for dropout, same in ((0.5, True), (0.0, False)):
        torch.manual_seed(4)  # as in another process, which drew other numbers
        resumed = group_jobs.make(dropout=dropout, seed=9)
        checkpoints.restore(3, resumed, "r1", "d1")
        assert (group_jobs.train(resumed, "plain", 3, steps=6, first=3) == expected) == same


def test_tensors_that_a_learner_does_not_know_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, other, checkpoints = make(0), make(1), Checkpoints(tmp_path, 1)
    step(learner, 0)
    tensors = learner.saved_tensors() | {"random/cpu": torch.get_rng_state()}
    monkeypatch.setattr(learner, "saved_tensors", lambda: tensors)
    checkpoints.save(learner, STATE)
    assert "random/cpu" in checkpoints.open(0).shapes
    torch.manual_seed(4)
    random = torch.get_rng_state()
    checkpoints.restore(0, other, "r1", "d1")
    assert_same(content(other), content(learner))
    assert torch.equal(torch.get_rng_state(), random)


def test_saving_changes_nothing(tmp_path: Path) -> None:
    learner = make()
    step(learner, 0)
    before, random = content(learner), torch.get_rng_state()
    Checkpoints(tmp_path, 1).save(learner, STATE)
    assert_same(content(learner), before)
    assert torch.equal(torch.get_rng_state(), random)


def test_a_checkpoint_before_the_first_step_has_no_optimizer_state(tmp_path: Path) -> None:
    fresh, used = make(0), make(1)
    step(used, 0)
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(fresh, STATE)
    checkpoints.restore(0, used, "r1", "d1")
    step(fresh, 1)
    step(used, 1)
    assert_same(content(used), content(fresh))


@pytest.mark.parametrize(("untied", "names"), [(False, 8), (True, 9)])
def test_tied_weights_are_stored_once(tmp_path: Path, untied: bool, names: int) -> None:
    model = build(Model(width=4, layers=1, heads=1, hidden=4, tied=not untied), VOCABULARY, 8, 0)
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(Learner(model, Train(batch=4, lr=1e-3), torch.device("cpu")), STATE)
    assert len([name for name in checkpoints.open(0).shapes if name.startswith("model/")]) == names


def assert_passed_over(checkpoints: Checkpoints, step: int) -> None:
    """The checkpoint of this step is damaged, and the one before it is taken."""
    found, lines = checkpoints.latest()
    assert found == step - 1
    assert len(lines) == 1
    assert f"{checkpoints.path(step)}: damaged" in lines[0]
    assert "\n" not in lines[0]


def same_content(checkpoints: Checkpoints, tensors: dict[str, torch.Tensor], state: State) -> bool:
    """Whether the file of a state's step still reads as it was written; False where it is refused."""
    try:
        opened = checkpoints.open(state.step)
    except StorageError:
        return False
    assert opened.state == state
    assert_same(opened.read({}), tensors)
    return True


def test_no_flipped_byte_is_restored(tmp_path: Path) -> None:
    """The header in full, with a flip that turns F32 into I32 among them, and a part of the tensors."""
    checkpoints = Checkpoints(tmp_path, 1)
    state = replace(STATE, step=1, best_step=1, best_loss=2.5, shortened="slow")
    checkpoints.save(make(width=2), state)
    path, tensors = checkpoints.path(1), checkpoints.open(1).read({})
    assert same_content(checkpoints, tensors, state)
    original = path.read_bytes()
    header = 8 + int.from_bytes(original[:8], "little")
    places = [(at, 0x01) for at in range(header)]
    places += [(at, 0x0F) for at in range(header) if original[at : at + 3] == b"F32"]
    places += [(at, 0x10) for at in range(header, len(original), 31)]
    wrong = []
    for at, mask in places:
        path.write_bytes(original[:at] + bytes([original[at] ^ mask]) + original[at + 1 :])
        try:
            same_content(checkpoints, tensors, state)
        except AssertionError:
            wrong.append(original[max(0, at - 25) : at + 10])
    assert wrong == [], f"{len(wrong)} flips were read as something else"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.9, 0.9999])
def test_a_truncated_checkpoint_is_left_out_for_the_one_before(tmp_path: Path, share: float) -> None:
    checkpoints = saved(tmp_path, 3)
    newest = checkpoints.path(3)
    newest.write_bytes(newest.read_bytes()[: int(share * newest.stat().st_size)])
    assert_passed_over(checkpoints, 3)
    learner = make(5)
    assert checkpoints.restore(2, learner, "r1", "d1").step == 2
    with pytest.raises(StorageError, match="damaged"):
        checkpoints.restore(3, learner, "r1", "d1")


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.1, 0.5, 0.8, 1.0])
def test_a_flipped_byte_makes_the_one_before_the_latest(tmp_path: Path, share: float) -> None:
    checkpoints = saved(tmp_path, 3)
    content = bytearray(checkpoints.path(3).read_bytes())
    content[int(share * (len(content) - 1))] ^= 0x55
    checkpoints.path(3).write_bytes(content)
    assert_passed_over(checkpoints, 3)


def flip(path: Path) -> None:
    """Change the last byte, which is of a tensor."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_what_is_passed_over_is_said_with_what_is_used_instead(tmp_path: Path) -> None:
    checkpoints, learner = Checkpoints(tmp_path, 9), make()
    for number in range(1, 5):
        checkpoints.save(learner, replace(STATE, step=number, best_step=max(1, number - 1), best_loss=1.0))
    said: list[str] = []
    assert checkpoints.find(CheckpointSpec("best"), tmp_path, said.append).state.step == 3
    best = "step {} is used, which had the lowest held-out loss; the last one is {}"
    assert said == [best.format(3, 4)]
    flip(checkpoints.path(4))
    damaged = f"left out: {checkpoints.path(4)}: damaged, its content does not match its checksum"
    for which, step, more in (("last", 3, []), ("best", 2, [best.format(2, 3)])):
        said.clear()
        assert checkpoints.find(CheckpointSpec(which), tmp_path, said.append).state.step == step
        assert said == [f"{damaged}; step {step} is used instead", *more]
    said.clear()
    assert checkpoints.find(CheckpointSpec("1"), tmp_path, said.append).state.step == 1
    with pytest.raises(StorageError, match=r"step-000000004\.safetensors: damaged"):
        checkpoints.find(CheckpointSpec("4"), tmp_path, said.append)
    with pytest.raises(RunError, match='has no checkpoint "7"; it has last, best, 1, 2, 3, 4'):
        checkpoints.find(CheckpointSpec("7"), tmp_path, said.append)
    assert said == []


def test_the_best_of_a_run_without_an_evaluation_is_the_last(tmp_path: Path) -> None:
    assert saved(tmp_path, 2).find(CheckpointSpec("best"), tmp_path).state.step == 2


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_later_checkpoint_takes_no_place_of_a_new_one(tmp_path: Path, keep: int) -> None:
    """A run that resumed before it keeps as many intact ones as asked for; the damaged one goes."""
    checkpoints, learner = saved(tmp_path, 3), make()
    flip(checkpoints.path(3))
    resumed = Checkpoints(tmp_path, keep, always=lambda step: step == 3)
    resumed.save(learner, replace(STATE, step=2))
    assert resumed.latest() == (2, [])
    assert resumed.steps() == [2, 1][:keep]


@pytest.mark.parametrize("keep", [False, True])
def test_a_checkpoint_that_was_kept_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    saved(tmp_path, 3)
    read, opened = checkpoint.read_tensors, []

    def watched(path: Path) -> Any:
        opened.append(path)
        return read(path)

    monkeypatch.setattr(checkpoint, "read_tensors", watched)
    checkpoints, resumed, again = Checkpoints(tmp_path, 10), make(seed=1), make(seed=2)
    assert checkpoints.latest(keep) == (3, [])
    assert checkpoints.restore(3, resumed, "r1", "d1").step == 3
    assert opened == [checkpoints.path(3)] * (1 if keep else 2)
    checkpoints.restore(3, again, "r1", "d1")
    assert len(opened) == (2 if keep else 3), "it is kept for one time"
    assert_same(content(resumed), content(again))
    checkpoints.latest(keep)
    checkpoints.save(again, replace(STATE, step=3))
    opened.clear()
    checkpoints.restore(3, resumed, "r1", "d1")
    assert len(opened) == 1, "another one was written since"


def test_a_checkpoint_under_the_name_of_another_step_is_left_out(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 2)
    checkpoints.path(2).replace(checkpoints.path(3))
    step, lines = checkpoints.latest()
    assert step == 1
    assert lines == [f"{checkpoints.path(3)}: damaged, or under another's name: it is the checkpoint of step 2"]


def test_every_damaged_checkpoint_has_its_line(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3)
    for number in (1, 2, 3):
        checkpoints.path(number).write_bytes(b"not a checkpoint")
    found, lines = checkpoints.latest()
    assert found is None
    assert [str(checkpoints.path(n)) in line for n, line in zip((3, 2, 1), lines, strict=True)] == [True] * 3


def test_a_folder_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", 1).latest() == (None, [])
    (tmp_path / "step-best.safetensors").write_text("not one of ours")
    (tmp_path / "notes.txt").write_text("neither")
    assert Checkpoints(tmp_path, 1).latest() == (None, [])


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_few_and_the_best_are_kept(tmp_path: Path, keep: int) -> None:
    checkpoints, learner = Checkpoints(tmp_path, keep), make()
    for number in range(1, 9):
        checkpoints.save(learner, replace(STATE, step=number, best_step=min(number, 3), best_loss=1.0))
        last = set(range(max(1, number - keep + 1), number + 1))
        assert set(checkpoints.steps()) == last | {min(number, 3)}
    assert checkpoints.steps() == sorted(checkpoints.steps(), reverse=True)
    size = checkpoints.path(8).stat().st_size
    assert checkpoints.peak_bytes == pytest.approx((keep + 2) * size, rel=0.01), "the new one beside the old ones"


def test_a_checkpoint_of_another_recipe_or_other_data_is_refused(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    learner = make(5)
    before = content(learner)
    with pytest.raises(RunError, match=r"belongs to another recipe \(r1, not r2\)"):
        checkpoints.restore(1, learner, "r2", "d1")
    with pytest.raises(RunError, match=r"was trained on other data \(d1, not d2\)"):
        checkpoints.restore(1, learner, "r1", "d2")
    assert_same(content(learner), before)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".step-000000007.safetensors.tmp").write_bytes(b"half a checkpoint")
    checkpoints = saved(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoints.path(1).name]


def test_a_half_written_file_is_never_taken_for_a_checkpoint(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 2)
    content = checkpoints.path(2).read_bytes()
    (tmp_path / ".step-000000003.safetensors.tmp").write_bytes(content)
    assert checkpoints.steps() == [2, 1]


def disk_is_full(_descriptor: int) -> None:
    """In place of `os.fsync`, which hears of it last."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_and_the_older_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1)
    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.raises(StorageError, match=rf"cannot write the checkpoint {checkpoints.path(2)}: the disk is full"):
        checkpoints.save(make(), replace(STATE, step=2))
    assert [path.name for path in tmp_path.iterdir()] == [checkpoints.path(1).name]
    assert checkpoints.latest() == (1, [])


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="a file of that name is in the way"):
        Checkpoints(tmp_path / "file", 1).save(make(), STATE)


def test_the_run_continues_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is what was there when it was begun, and it has no name before it is whole."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **options: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        write_tensors(*arguments, **options)

    learner, checkpoints = make(ema=0.5), Checkpoints(tmp_path, 2)
    step(learner, 0)
    before = content(learner)
    monkeypatch.setattr(checkpoint, "write_tensors", slowly)
    checkpoints.save(learner, replace(STATE, step=1), wait=False)
    assert begun.wait(60)
    for number in range(1, 4):
        step(learner, number)
    assert not list(tmp_path.glob("step-*"))
    go_on.set()
    checkpoints.save(learner, replace(STATE, step=4))
    assert checkpoints.steps() == [4, 1]
    other = make(5, ema=0.5)
    checkpoints.restore(1, other, "r1", "d1")
    assert_same(content(other), before)
    checkpoints.restore(4, other, "r1", "d1")
    assert_same(content(other), content(learner))


def test_what_went_wrong_in_the_thread_is_raised_at_the_next_save_or_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, checkpoints = make(), saved(tmp_path, 1)
    monkeypatch.setattr(os, "fsync", disk_is_full)
    checkpoints.save(learner, replace(STATE, step=2), wait=False)
    with pytest.raises(StorageError, match=r"cannot write the checkpoint .*000002.* the disk is full"):
        checkpoints.wait()
    checkpoints.save(learner, replace(STATE, step=3), wait=False)
    with pytest.raises(StorageError, match=r"cannot write the checkpoint .*000003.* the disk is full"):
        checkpoints.save(learner, replace(STATE, step=4), wait=False)
    monkeypatch.undo()
    checkpoints.save(learner, replace(STATE, step=5))
    assert checkpoints.steps() == [5, 1], "told once, and then it continues"


KILLED = """
import contextlib, sys, time
from dataclasses import replace
from pathlib import Path
from shoestring.storage import tensor_file
from shoestring.training.checkpoint import Checkpoints
sys.path[:0] = sys.argv[1:3]
from test_checkpoint import STATE, make, step

whole_file = tensor_file.whole_file

class Half:
    def __init__(self, file):
        self.file, self.parts = file, 0

    def write(self, content):
        self.file.write(content)
        self.parts += 1
        if self.parts == 5:  # a header and four tensors
            self.file.flush()
            print("half", flush=True)
            time.sleep(60)

@contextlib.contextmanager
def half(path, **how):
    with whole_file(path, **how) as file:
        yield Half(file)

checkpoints, learner = Checkpoints(Path(sys.argv[3]), 2), make()
checkpoints.save(learner, replace(STATE, step=1))
tensor_file.whole_file = half
checkpoints.save(learner, replace(STATE, step=2), wait=False)
while True:
    step(learner, 0)
"""


def test_a_kill_while_the_thread_writes_leaves_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    here = Path(__file__).parent
    command = [sys.executable, "-c", KILLED, str(here), str(here.parent), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.kill()
    assert len(list(folder.iterdir())) == 2, "the half is there"
    checkpoints = Checkpoints(folder, 2)
    assert checkpoints.latest() == (1, [])
    checkpoints.save(make(), replace(STATE, step=2))
    assert sorted(folder.iterdir()) == [checkpoints.path(1), checkpoints.path(2)]


def test_a_checkpoint_of_another_model_is_refused_before_anything_changes(tmp_path: Path) -> None:
    checkpoints, other = saved(tmp_path, 1), make(width=8)
    before = content(other)
    with pytest.raises(RunError, match="belongs to another model: 8 tensors are missing or of another shape, as "):
        checkpoints.restore(1, other, "r1", "d1")
    assert_same(content(other), before)
