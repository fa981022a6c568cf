"""Checkpoints of 1, 2 and 3 processes, in one file or in parts, read by each of them: every bit is there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from group_jobs import ALONE, make, train, weights
from processes import together
from torch import Tensor

from shoestring.core.errors import RunError, StorageError
from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.learner import Learner
from shoestring.training.schedule import Schedule

pytestmark = pytest.mark.slow
STATE = State(recipe="r1", data="d1", schedule=Schedule(total=9), step=5)
KINDS = [(1, False), (2, False), (2, True), (3, False), (3, True)]
"""Processes, and whether the model is sharded."""
SETTINGS: dict[str, Any] = {"ema": 0.9, "width": 2}  # a gain of two channels: one of three processes has none of it


def name(world: int, shard: bool) -> str:
    return f"{world}-{'sharded' if shard else 'plain'}"


def content(learner: Learner) -> dict[str, Tensor]:
    """Everything that is saved, whole: the parts of all processes, one after another."""
    own = learner.saved_tensors()
    if not learner.sharded:
        return {key: tensor.clone() for key, tensor in own.items()}
    parts: list[dict[str, Tensor]] = [{}] * learner.group.world
    dist.all_gather_object(parts, own)
    return {key: torch.cat([part[key] for part in parts]) if own[key].ndim else own[key].clone() for key in own}


def write(group: ProcessGroup, folder: Path) -> dict[str, Any]:
    """Checkpoints of every kind that so many processes make, and what went into them."""
    found = {}
    for shard in (False, True) if group.world > 1 else (False,):
        learner = make(group, shard, **SETTINGS)
        train(learner, "packed", 1, steps=2)
        checkpoints = Checkpoints(folder / name(group.world, shard), 2)
        checkpoints.save(learner, replace(STATE, step=4), wait=False)  # another one is begun at once
        checkpoints.save(learner, STATE, wait=False)
        found[name(group.world, shard)] = content(learner), train(learner, "packed", 1, steps=7, first=5)
        group.on_all(checkpoints.wait)
    return found


def read(group: ProcessGroup, folder: Path) -> dict[str, Any]:
    """All checkpoints that there are, as every kind of learner of so many processes has them."""
    found = {}
    for path in sorted(folder.glob("?-*")):
        for shard in (False, True) if group.world > 1 else (False,):
            learner = make(group, shard, seed=99, **SETTINGS)
            train(learner, "packed", 1, steps=1)
            state = Checkpoints(path, 2).restore(5, learner, "r1", "d1")
            assert state == STATE
            found[path.name, shard] = content(learner), train(learner, "packed", 1, steps=7, first=5)
    return found


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[Any, Any]]:
    """A folder of checkpoints, what was saved, and what was read, by processes and kinds."""
    folder = tmp_path_factory.mktemp("grid")
    written, found = write(ALONE, folder), {}
    for world in (2, 3):
        written |= together(write, world, folder)[0]
    for world in (2, 3):
        for rank, result in enumerate(together(read, world, folder)):
            found |= {(world, rank, *key): value for key, value in result.items()}
    found |= {(1, 0, *key): value for key, value in read(ALONE, folder).items()}
    return folder, written, found


@pytest.mark.parametrize(("writers", "sharded"), KINDS)
@pytest.mark.parametrize(("readers", "shard"), KINDS)
def test_what_some_saved_others_have_bit_for_bit(
    writers: int, sharded: bool, readers: int, shard: bool, grid: Any
) -> None:
    _, written, found = grid
    expected, onwards = written[name(writers, sharded)]
    assert {key.partition("/")[0] for key in expected} == {"model", "optimizer", "ema", "ema updates"}
    for rank in range(readers):
        tensors, losses = found[readers, rank, name(writers, sharded), shard]
        assert tensors.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(tensors[key], tensor), key
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(onwards), rtol=0, atol=1e-5)
        if (writers, sharded) == (readers, shard):
            assert losses == onwards, "as if it had never stopped"


def test_a_sharded_checkpoint_is_a_folder_with_a_file_of_every_process(grid: Any) -> None:
    folder, _, _ = grid
    assert sorted(path.name for path in (folder / "2-sharded").iterdir()) == [
        "step-000000004.parts",
        "step-000000005.parts",
    ]
    names = {path.name for path in (folder / "2-sharded" / "step-000000005.parts").iterdir()}
    assert names == {"part-00000.safetensors", "part-00001.safetensors"}


def test_a_flipped_byte_in_any_file_makes_the_one_before_the_latest(grid: Any, tmp_path: Path) -> None:
    shutil.copytree(grid[0] / "3-sharded", tmp_path / "copy")
    checkpoints = Checkpoints(tmp_path / "copy", 2)
    assert checkpoints.latest() == (5, [])
    files = sorted(checkpoints.parts(5).iterdir())
    assert len(files) == 3
    for path in files:
        original = path.read_bytes()
        for at in (0, len(original) // 3, len(original) // 2, len(original) - 1):
            path.write_bytes(original[:at] + bytes([original[at] ^ 0x10]) + original[at + 1 :])
            found, lines = checkpoints.latest()
            assert found == 4, (path, at)
            assert len(lines) == 1
            assert f"{path}: damaged" in lines[0]
        path.unlink()
        assert checkpoints.latest()[0] == 4, path
        path.write_bytes(original)
    assert checkpoints.latest() == (5, [])


def test_a_sharded_checkpoint_of_another_recipe_data_or_model_is_refused(grid: Any) -> None:
    checkpoints = Checkpoints(grid[0] / "3-sharded", 2)
    learner = make(**SETTINGS)
    before = weights(learner)
    with pytest.raises(RunError, match="another recipe"):
        checkpoints.restore(5, learner, "r2", "d1")
    with pytest.raises(RunError, match="other data"):
        checkpoints.restore(5, learner, "r1", "d2")
    with pytest.raises(RunError, match="another model: 14 tensors"):
        checkpoints.restore(5, make(width=4), "r1", "d1")
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())


def test_one_process_resumes_with_a_file_where_others_left_parts(grid: Any, tmp_path: Path) -> None:
    """A damaged folder of the same step never hides the file that was written after it."""
    shutil.copytree(grid[0] / "2-sharded", tmp_path / "copy")
    checkpoints, learner = Checkpoints(tmp_path / "copy", 2), make(**SETTINGS)
    (checkpoints.parts(5) / "part-00001.safetensors").unlink()
    step, lines = checkpoints.latest()
    assert (step, len(lines)) == (4, 1)
    checkpoints.save(learner, STATE)
    assert checkpoints.latest() == (5, [])
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [
        "step-000000004.parts",
        "step-000000005.safetensors",
    ]


def troubles(group: ProcessGroup, folder: Path) -> dict[str, str]:
    """What all processes raise when one of them meets something."""
    found = {}
    for shard in (False, True):
        learner = make(group, shard)
        broken = Checkpoints(folder / f"absent-{shard}", 1)
        if group.rank == 0:
            broken.folder.write_text("in the way")
        found[f"folder {shard}"] = _said(StorageError, broken.save, learner, STATE)
        good = Checkpoints(folder / f"good-{shard}", 1)
        good.save(learner, STATE)
        wrong = make(group, shard, width=4 if group.rank else 8)  # refused in one process only
        found[f"model {shard}"] = _said(RunError, good.restore, 5, wrong, "r1", "d1")
        if group.rank == 1:
            good._writing = _failed()
        found[f"thread {shard}"] = _said(StorageError, good.save, learner, STATE)
        if group.rank == (1 if shard else 0):  # of a model that is not sharded the first process writes all
            os.fsync, kept = _full, os.fsync
        found[f"disk {shard}"] = _said(StorageError, good.save, learner, replace(STATE, step=6))
        if group.rank == (1 if shard else 0):
            os.fsync = kept
        group.all_gather(None)  # the first process has removed what it wrote
        found[f"left {shard}"] = " ".join(sorted(path.name for path in good.folder.iterdir()))
    return found


def _said(kind: type[Exception], call: Callable[..., object], *arguments: object) -> str:
    """What an error of this kind says, which the call is to raise."""
    with pytest.raises(kind) as caught:
        call(*arguments)
    return str(caught.value)


def _full(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _failed() -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(StorageError("the disk is full"))
    return future


def test_an_error_in_one_process_is_an_error_in_all(tmp_path: Path) -> None:
    one, two = together(troubles, 2, tmp_path)
    assert one == two
    for shard in (False, True):
        assert "in the way" in one[f"folder {shard}"]
        assert "belongs to another model" in one[f"model {shard}"]
        assert one[f"thread {shard}"] == "the disk is full"
        assert "cannot write the checkpoint" in one[f"disk {shard}"] and "the disk is full" in one[f"disk {shard}"]
        assert one[f"left {shard}"] == f"step-000000005.{'parts' if shard else 'safetensors'}", "nothing that is half"
