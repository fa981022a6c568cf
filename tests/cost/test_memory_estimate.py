"""Analytic memory and time against what was measured on an H200, and against themselves."""

import importlib.util
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from shoestring.core.errors import UserError
from shoestring.core.family import network_cost
from shoestring.core.hmm_sections import Hmm
from shoestring.core.recipe import Recipe
from shoestring.core.sections import Data, Model
from shoestring.core.train_section import Train
from shoestring.cost.gpus import GPUS, find_gpu
from shoestring.cost.memory import CHUNK_BYTES, CHUNK_ROWS, CONTEXT_BYTES, estimate_memory, setting_of
from shoestring.cost.seconds import UTILISATION, estimate_seconds, training_flops
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.models.layers import cross_entropy
from shoestring.training.learner import Learner
from shoestring.training.optimizer import Optimizer

ROOT = Path(__file__).resolve().parents[2]


def _bench_module(name: str) -> ModuleType:
    """A script of bench/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"bench/{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ERRORS = _bench_module("estimate_error")
MEASURED = json.loads((ROOT / "results/train-h200.json").read_text())
MEMORY_ROWS, STEP_ROWS = ERRORS.memory_rows(MEASURED), ERRORS.step_rows(MEASURED)
SMALL = Recipe(model=Model(width=64, layers=2, heads=4), data=Data(length=32), train=Train(batch=8, lr=1e-3))


def recipe_of(shape: dict[str, Any], **train: Any) -> Recipe:
    return Recipe(
        model=Model(**shape["model"]),
        data=Data(length=shape["length"]),
        train=Train(batch=shape["rows"], lr=1e-3, **train),
    )


@pytest.mark.parametrize("row", MEMORY_ROWS, ids=lambda row: row.name)
def test_the_peak_is_near_that_of_a_real_run(row: Any) -> None:
    assert row.measured_bytes == MEASURED["shapes"][row.name]["ways"][row.way]["peak_bytes"]
    assert abs(row.error) < 0.05


def test_rows_of_a_record_are_those_on_a_gpu() -> None:
    assert {row.name for row in MEMORY_ROWS} == set(MEASURED["shapes"])
    other = {"machine": {"device": "cpu"}, "shapes": MEASURED["shapes"]}
    assert ERRORS.memory_rows(other) == []


@pytest.mark.parametrize("row", [row for row in MEMORY_ROWS if row.way == "ours"], ids=lambda row: row.name)
def test_what_has_to_be_free_is_near_what_torch_held(row: Any) -> None:
    """Estimated peak and share that is held on top, without the CUDA context, which the record has not."""
    shape = MEASURED["shapes"][row.name]
    found = estimate_memory(recipe_of(shape), shape["vocabulary"]).device_bytes(row.rows) - CONTEXT_BYTES
    assert found == pytest.approx(shape["ways"]["ours"]["reserved_bytes"], rel=0.04)


@pytest.mark.parametrize("row", STEP_ROWS, ids=lambda row: f"{row.name} {row.way}")
def test_expected_seconds_are_near_those_of_a_model_that_had_no_say_in_them(row: Any) -> None:
    """The share of the peak is that of the other models; a Perceiver AR, alone in its kind, reaches less of it."""
    assert abs(row.error) < (0.35 if row.name.startswith("perceiver") else 0.12)


@pytest.mark.parametrize("row", STEP_ROWS, ids=lambda row: f"{row.name} {row.way}")
def test_published_seconds_are_as_if_the_model_had_not_been_measured(row: Any) -> None:
    shape = MEASURED["shapes"][row.name]
    others = sorted(
        other["ways"]["ours"]["of_vendor_peak"] for name, other in MEASURED["shapes"].items() if name != row.name
    )
    recipe = recipe_of(shape, recompute="none" if row.way == "ours" else "full")
    at_peak = row.rows * training_flops(recipe, shape["vocabulary"]) / MEASURED["vendor_flops"]
    found = (row.estimated.low, row.estimated.expected, row.estimated.high)
    assert found == pytest.approx([at_peak / share for share in (others[-1], statistics.median(others), others[0])])
    assert row.measured_seconds == shape["ways"][row.way]["seconds"]
    assert row.error == pytest.approx(row.estimated.expected / row.measured_seconds - 1)
    assert row.is_within == (row.estimated.low <= row.measured_seconds <= row.estimated.high)


def test_every_measured_step_on_a_known_gpu_is_published() -> None:
    assert [(row.name, row.way) for row in STEP_ROWS] == [(row.name, row.way) for row in MEMORY_ROWS]
    unknown = {**MEASURED, "machine": {"device": "cuda", "device_name": "A gpu of tomorrow"}}
    assert ERRORS.step_rows(unknown) == []
    assert ERRORS.step_rows({**MEASURED, "machine": {"device": "cpu"}}) == []
    alone = {**MEASURED, "shapes": {"gpt2-124m": MEASURED["shapes"]["gpt2-124m"]}}
    assert ERRORS.step_rows(alone) == [], "there is no other to take a share from"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize(
    ("family", "optimizer", "more"),
    [
        ("llama", "adamw", {}),
        ("gpt2", "muon", {"ema": 0.9}),
        ("masked_lm", "muon", {}),
        *((family, "muon", {"normalize_neurons": True}) for family in ("llama", "swift", "gpt2", "masked_lm")),
        ("perceiver_ar", "muon", {"normalize_neurons": True, "momentum_warmup": 5}),
    ],
)
def test_weights_and_optimizer_take_what_they_take(family: Any, optimizer: Any, more: dict[str, Any]) -> None:
    latents = 8 if family == "perceiver_ar" else None
    model = replace(SMALL.model, family=family, latents=latents)
    recipe = replace(SMALL, model=model, train=Train(batch=8, lr=1e-3, optimizer=optimizer, **more))
    network = build(recipe.model, 50, 32, 0)
    made = Optimizer(network, recipe.train)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step(torch.ones(()), torch.ones(()), torch.zeros(()), 1e-3)
    state = [tensor for tensor in made.tensors().values() if tensor.ndim]
    found = estimate_memory(recipe, 50, "cpu").moments["update"].fixed
    assert found["weights"] == sum(p.numel() * 4 for p in network.parameters())
    assert found["gradients"] == found["weights"]
    assert found["optimizer"] + found.get("running mean", 0) == sum(tensor.numel() * 4 for tensor in state)


def test_a_setting_is_that_of_the_learner() -> None:
    for precision in ("auto", "fp32", "bf16"):
        for compiles in (None, False):
            train = Train(batch=8, lr=1e-3, precision=precision, compile=compiles)  # type: ignore[arg-type]
            learner = Learner(build(SMALL.model, 50, 32, 0), train, torch.device("cpu"))
            found = setting_of(replace(SMALL, train=train), "cpu")
            assert (found.number == 2, found.compiled) == (learner.dtype != torch.float32, learner.compiled)
    on_a_gpu = setting_of(SMALL, "cuda")
    assert on_a_gpu.number == 2 and on_a_gpu.compiled and on_a_gpu.fused


def test_chunks_are_those_of_the_loss() -> None:
    assert {"cpu": cross_entropy.CHUNK_BYTES["cpu"], "cuda": cross_entropy.LARGE_CHUNK_BYTES} == CHUNK_BYTES
    assert {"cpu": cross_entropy.LEAST_ROWS, "cuda": 1} == CHUNK_ROWS


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_the_largest_batch_is_the_last_that_fits(device: Literal["cpu", "cuda"], accumulate: bool) -> None:
    found = estimate_memory(SMALL, 50, device, accumulate)
    for rows in (1, 2, 3, 100, 4097):
        assert found.largest(found.device_bytes(rows)) == rows
        assert found.largest(found.device_bytes(rows) - 1) == rows - 1
    assert found.largest(0) == 0


def test_parts_add_up_and_the_fullest_moment_counts() -> None:
    found = estimate_memory(SMALL, 50)
    assert sum(found.fixed.values()) + 1000 * sum(found.per_row.values()) == found.steepest.at(1000)
    assert found.at(1000) == max(moment.at(1000) for moment in found.moments.values()) == found.steepest.at(1000)
    few = estimate_memory(replace(SMALL, model=replace(SMALL.model, width=1024), data=Data(length=1)), 50)
    assert few.at(1) == few.moments["update"].at(1) > few.steepest.at(1), "one token, and many weights"


@pytest.mark.parametrize("family", ["llama", "gpt2", "perceiver_ar", "masked_lm"])
def test_recomputing_needs_less_memory_and_more_time(family: Any) -> None:
    model = Model(family=family, width=64, layers=6, heads=4, latents=16 if family == "perceiver_ar" else None)
    found = []
    for recompute in ("none", "selective", "full"):
        recipe = Recipe(model=model, data=Data(length=32), train=Train(batch=8, lr=1e-3, recompute=recompute))  # type: ignore[arg-type]
        found.append((estimate_memory(recipe, 50).steepest.row_bytes, training_flops(recipe, 50)))
    assert found[0][0] > found[1][0] > found[2][0]
    assert found[0][1] < found[1][1] < found[2][1]
    exact = network_cost(model, 50, 32, Data().masked).train_flops_per_token * 32
    assert found[0][1] == pytest.approx(exact, rel=1e-12)
    assert found[2][1] < exact * 4 / 3


def test_what_cannot_be_estimated_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="measured, not estimated"):
        estimate_memory(replace(SMALL, hmm=Hmm()), 50)
    (tmp_path / "own.py").write_text("class Net: ...\n")
    with pytest.raises(UserError, match=r"model\.family = .*own\.py:Net.*must be measured"):
        estimate_memory(replace(SMALL, model=Model(family=f"{tmp_path}/own.py:Net")), 50)
    assert find_gpu("A gpu of tomorrow") is None
    assert estimate_seconds(SMALL, 50, "A gpu of tomorrow", 8) is None
    bf16 = replace(SMALL, train=Train(batch=8, lr=1e-3, precision="bf16"))
    assert estimate_seconds(bf16, 50, "Tesla T4", 8) is None, "it has no bf16"
    fp32 = replace(SMALL, train=Train(batch=8, lr=1e-3, precision="fp32"))
    assert estimate_seconds(fp32, 50, "NVIDIA H200", 8) is None


@pytest.mark.parametrize(("gpu", "peak"), [("Tesla T4", 65e12), ("Tesla V100-SXM2-32GB", 125e12)])
def test_a_gpu_without_bf16_is_estimated_in_fp16(gpu: str, peak: float) -> None:
    for precision in ("auto", "fp16"):
        found = estimate_seconds(replace(SMALL, train=Train(batch=8, lr=1e-3, precision=precision)), 50, gpu, 8)  # type: ignore[arg-type]
        assert found is not None
        assert found.expected == pytest.approx(8 * training_flops(SMALL, 50) / peak / UTILISATION.expected)
    half = replace(SMALL, train=Train(batch=8, lr=1e-3, precision="fp16"))
    assert estimate_memory(half, 50) == estimate_memory(SMALL, 50), "two bytes per number in both"
    assert estimate_seconds(half, 50, "NVIDIA H200", 8) == estimate_seconds(SMALL, 50, "NVIDIA H200", 8)


def test_gpus_are_found_by_name() -> None:
    assert find_gpu(" nvidia h200 ") == GPUS["NVIDIA H200"]
    machine = MEASURED["machine"]
    gpu = find_gpu(machine["device_name"])
    assert gpu is not None and gpu.bf16_flops == MEASURED["vendor_flops"]
    assert 0.97 * gpu.memory_bytes < machine["memory_bytes"] <= gpu.memory_bytes
    for known in GPUS.values():
        assert 10e9 < known.memory_bytes < 200e9
        assert 50e12 < (known.peak_flops("fp16") or 0) < 1000e12
        assert known.bf16_flops in (None, known.peak_flops("fp16"))


class Alive(TorchDispatchMode):
    """The most bytes that the tensors made since its beginning have at once, looked at after every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {x.untyped_storage()._cdata for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for tensor in (x for x in tree_flatten(found)[0] if isinstance(x, torch.Tensor)):
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._storages = {key: kept for key, kept in self._storages.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._storages.values()))
        return found


PARTS = "qk_norm, gains, relu2, embedding_norm, soft_cap, value_embeddings, scales, convolutions"


@pytest.mark.parametrize(
    "fields", [{}, {"family": "swift", "parts": PARTS, "pairs": 99, "pointer": 8, "window": 16}], ids=["llama", "swift"]
)
def test_tensors_of_a_real_pass_on_the_cpu_take_about_so_much(fields: dict[str, Any]) -> None:
    model = Model(width=64, layers=6, heads=4, **fields)
    recipe = Recipe(model=model, data=Data(length=64), train=Train(batch=16, lr=1e-3))
    learner = Learner(build(recipe.model, 50, 64, 0), recipe.train, torch.device("cpu"))
    peaks = {rows: _most_alive(learner, rows) for rows in (8, 16)}
    slope = (peaks[16] - peaks[8]) / 8
    assert estimate_memory(recipe, 50, "cpu").steepest.row_bytes == pytest.approx(slope, rel=0.1)


def _most_alive(learner: Learner, rows: int) -> int:
    batch = Batch(torch.randint(50, (rows, 65)))
    learner.accumulate(batch, rows)
    learner.forget()
    with Alive() as alive:
        learner.accumulate(batch, rows)
    learner.forget()
    return alive.peak
