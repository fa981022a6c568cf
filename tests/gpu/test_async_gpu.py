"""Several processes on one GPU: asynchronous workers, and groups, which map the memory of each other."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.multiprocessing
from conftest import TINY
from torch import Tensor

from shoestring.core.results import Evaluation, Outcome
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.parallel.members import Members
from shoestring.parallel.process_group import ProcessGroup, join
from shoestring.parallel.shared_weights import NotShared, SharedWeights
from shoestring.training.learner import Learner
from shoestring.training.local import Average, LocalSettings

sys.path.append(str(Path(__file__).parents[1] / "runs"))
from test_async import STEPS, accident, losses, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]
GPU = torch.device("cuda", 0)
SHAPES = {"matrix": (1031, 517), "gain": (517,), "one": (1,), "embedding": (3001, 64)}
LATE = 120.0


def double_weights(file: Connection, mapped: Any, results: Any) -> None:
    """As a worker: read the weights, and give twice their values as gradients, by a recording that is replayed."""
    like = {name: torch.zeros(shape, device=GPU) for name, shape in SHAPES.items()}
    shared = SharedWeights(like, 2, file.fileno(), True, GPU, mapped)
    own = {name: torch.empty_like(tensor) for name, tensor in like.items()}
    found = [torch.empty_like(tensor) for tensor in like.values()]

    def double() -> None:
        torch._foreach_copy_(found, torch._foreach_mul(list(own.values()), 2.0))

    double()  # loads its kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        double()
    for _ in range(2):
        shared.copy_to(own, 1)
        graph.replay()
        shared.put_gradients(found, 1)
        results.send(int(shared.read[1]))
        results.recv()


def test_what_a_process_maps_is_what_the_other_has() -> None:
    like = {name: torch.zeros(shape, device=GPU) for name, shape in SHAPES.items()}
    shared = SharedWeights(like, 2, keep_read=True, device=GPU)
    assert all(tensor.data_ptr() % 16 == 0 for tensor in shared.weights.values()), "the kernel of AdamW reads words"
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    file = Connection(os.dup(shared.file))  # as such it is passed to a process
    process = context.Process(target=double_weights, args=(file, shared.map(), theirs))
    for version in (1, 2):
        with shared.changing():
            for tensor in shared.weights.values():
                tensor.normal_()
        if version == 1:
            process.start()
            theirs.close()
        else:
            ours.send(None)
        assert ours.poll(LATE)
        assert ours.recv() == version == shared.version
        for name, tensor in shared.weights.items():
            assert shared.gradients[1][name].equal(2 * tensor)
            assert shared.weights_read[1][name].equal(tensor)
            assert not shared.gradients[0][name].any(), "no other worker has written"
    ours.send(None)
    process.join(LATE)
    assert process.exitcode == 0


def made(group: ProcessGroup | None = None) -> Learner:
    model = build(Model(width=128, layers=2, heads=4), 500, 64, seed=1)
    return Learner(model, Train(batch=16, lr=1e-3, precision="fp32", compile=False), GPU, group)


def rows() -> Tensor:
    return torch.randint(500, (16, 65), generator=torch.Generator().manual_seed(0))


def two_steps(learner: Learner, own: Tensor) -> Tensor:
    """The weights after two updates, in one row."""
    for _ in range(2):
        learner.update(learner.accumulate(own, 4), 1e-3)
    return torch.cat([p.detach().cpu().flatten() for p in learner.parameters.values()])


def drifted(rank: int) -> Tensor:
    return torch.randn(3, 1000, generator=torch.Generator().manual_seed(rank))


def take_part(rank: int, port: int, results: Any) -> None:
    """A worker of two on one GPU: synchronous steps, their evaluation, and averages in 32 and 8 bits."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"}
    group = join(torch.device("cuda"))
    members, learner = Members(group), made(group)
    stepped = two_steps(learner, rows()[rank::2])
    averages = []
    for bits in (32, 8):
        own = torch.zeros(3, 1000, device=group.device)
        average = Average({"w": own}, LocalSettings(1, 1.0, 0.0, bits, 1), group)
        own.copy_(drifted(rank))
        average.apply(members.together(lambda average=average: average.exchange([0], torch.ones(1, device=GPU))))
        averages.append(average.model["w"].cpu().numpy())
    score = learner.score(rows(), 4).numpy()
    members.close()
    results.put((rank, (group.shares_gpus, group.device.index, stepped.numpy(), averages, score)))


@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="two processes share a GPU where there is one")
def test_two_processes_on_one_gpu_take_the_steps_of_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    started = [context.Process(target=take_part, args=(rank, port, results)) for rank in range(2)]
    for process in started:
        process.start()
    try:
        said = dict(results.get(timeout=60) for _ in started)
    finally:
        for process in started:
            process.join(10)
            process.kill()
    alone = made()
    expected, mean = two_steps(alone, rows()), (drifted(0).double() + drifted(1).double()) / 2
    for shares, number, stepped, (exact, rounded), score in said.values():
        assert (shares, number) == (True, 0)
        assert (torch.from_numpy(stepped) - expected).norm() / expected.norm() < 1e-4
        torch.testing.assert_close(torch.from_numpy(exact).double(), mean, rtol=1e-6, atol=1e-6)
        assert (torch.from_numpy(rounded).double() - mean).abs().max() < 0.05
        assert (score == said[0][-1]).all(), "every process has the same evaluation"
        torch.testing.assert_close(torch.from_numpy(score), alone.score(rows(), 4), rtol=1e-3, atol=1e-3)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def refuse_gpu(shared: SharedWeights) -> None:
    if shared.device.type == "cuda":
        raise NotShared("as in a sandbox")


def test_one_worker_takes_the_synchronous_steps(there: Path) -> None:
    """By another process, whose gradients this one applies: in the memory of the GPU, or else of the host."""
    exact = ("train.precision=fp32", "train.checkpoint_every=1h")
    sync, one = train(there, "sync", *exact), train(there, "one", "parallel.strategy=async", *exact)
    with patch.object(SharedWeights, "map", refuse_gpu):
        host = train(there, "host", "parallel.strategy=async", *exact)
    for run, memory in ((one, "cuda"), (host, "cpu")):
        assert losses(run) == pytest.approx(losses(sync), rel=1e-4)
        assert Evaluation.read(run.evaluation).loss == pytest.approx(Evaluation.read(sync.evaluation).loss, rel=1e-4)
        sharing = Outcome.read(run.done).sharing
        assert sharing is not None and (sharing.staleness, sharing.memory) == ((STEPS,), memory)


TWO = ("killed", "parallel.strategy=async", "parallel.workers=2")


def killed(folder: Path) -> None:
    with accident(lambda _: os.getpid()):
        train(folder, *TWO)


def test_a_run_whose_processes_are_killed_resumes_goes_on_and_learns(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First kill -9 of the process that holds the memory, whose workers end too; then of a worker."""
    monkeypatch.setenv("SHOESTRING_STEP_SECONDS", "200ms")  # one worker may be ready a little later than the other
    dead = torch.multiprocessing.get_context("spawn").Process(target=killed, args=(there,))
    dead.start()
    dead.join(LATE)
    assert dead.exitcode == -signal.SIGKILL
    with accident(lambda trainee: trainee._processes[1].pid):
        folder = train(there, *TWO)
    outcome, found = Outcome.read(folder.done), losses(folder)
    assert outcome.sharing is not None
    assert (outcome.segments, outcome.sharing.left) == (2, (1,))
    assert sum(outcome.sharing.staleness) == 2 * STEPS, "every gradient of every step, once"
    assert outcome.predictions == STEPS * 4 * 32
    assert len(found) == STEPS and all(map(math.isfinite, found))
    assert sum(found[-4:]) / 4 < sum(found[:4]) / 4 - 0.1
    assert math.isfinite(outcome.loss)
