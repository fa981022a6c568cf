"""Analytic memory and time against what was measured on an H200, and against themselves."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from shoestring.core.errors import UserError
from shoestring.core.recipe import Data, Hmm, Model, Recipe, Train
from shoestring.cost.cards import CARDS, find_card
from shoestring.cost.memory import CHUNK_BYTES, HELD_SHARE, estimate_memory, setting_of
from shoestring.cost.networks import network_cost
from shoestring.cost.seconds import UTILISATION, estimate_seconds, training_flops
from shoestring.cost.table import MemoryRow, StepRow, memory_rows, step_rows
from shoestring.models import Batch, build, cross_entropy
from shoestring.train.learner import Learner
from shoestring.train.optimizer import Optimizer

MEASURED = json.loads((Path(__file__).parents[2] / "results/train-h200.json").read_text())
SMALL = Recipe(model=Model(width=64, layers=2, heads=4), data=Data(length=32), train=Train(batch=8))


def recipe_of(shape: dict[str, Any], **train: Any) -> Recipe:
    return Recipe(
        model=Model(**shape["model"]), data=Data(length=shape["length"]), train=Train(batch=shape["rows"], **train)
    )


@pytest.mark.parametrize("row", memory_rows(MEASURED), ids=lambda row: row.name)
def test_the_peak_is_near_that_of_a_real_run(row: MemoryRow) -> None:
    assert row.measured_bytes == MEASURED["shapes"][row.name]["ways"][row.way]["peak_bytes"]
    assert abs(row.error) < 0.05


def test_rows_of_a_record_are_those_on_a_gpu() -> None:
    assert {row.name for row in memory_rows(MEASURED)} == set(MEASURED["shapes"])
    other = {"machine": {"device": "cpu"}, "shapes": MEASURED["shapes"]}
    assert memory_rows(other) == []


def test_held_memory_and_utilisation_are_those_of_the_record() -> None:
    ours = [shape["ways"]["ours"] for shape in MEASURED["shapes"].values()]
    held = [run["reserved_bytes"] / run["peak_bytes"] - 1 for run in ours]
    assert statistics.mean(held) == pytest.approx(HELD_SHARE, abs=0.001)
    shares = [run["of_vendor_peak"] for run in ours]
    assert min(shares) == pytest.approx(UTILISATION.low, abs=5e-4)
    assert statistics.median(shares) == pytest.approx(UTILISATION.expected, abs=5e-4)
    assert max(shares) == pytest.approx(UTILISATION.high, abs=5e-4)


@pytest.mark.parametrize("name", MEASURED["shapes"])
def test_measured_seconds_are_in_the_range(name: str) -> None:
    shape = MEASURED["shapes"][name]
    found = estimate_seconds(recipe_of(shape), shape["vocabulary"], "NVIDIA H200", shape["rows"])
    assert found is not None
    assert 0.999 * found.low <= shape["ways"]["ours"]["seconds"] <= 1.001 * found.high
    assert found.low < found.expected < found.high


@pytest.mark.parametrize("row", step_rows(MEASURED), ids=lambda row: f"{row.name} {row.way}")
def test_published_seconds_are_as_if_the_model_had_not_been_measured(row: StepRow) -> None:
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
    assert [(row.name, row.way) for row in step_rows(MEASURED)] == [
        (row.name, row.way) for row in memory_rows(MEASURED)
    ]
    unknown = {**MEASURED, "machine": {"device": "cuda", "device_name": "A card of tomorrow"}}
    assert step_rows(unknown) == []
    assert step_rows({**MEASURED, "machine": {"device": "cpu"}}) == []
    alone = {**MEASURED, "shapes": {"gpt2-124m": MEASURED["shapes"]["gpt2-124m"]}}
    assert step_rows(alone) == [], "there is no other to take a share from"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize(
    ("family", "optimizer", "ema"), [("llama", "adamw", None), ("gpt2", "muon", 0.9), ("masked_lm", "muon", None)]
)
def test_weights_and_optimizer_take_what_they_take(family: Any, optimizer: Any, ema: float | None) -> None:
    recipe = replace(
        SMALL, model=replace(SMALL.model, family=family), train=Train(batch=8, optimizer=optimizer, ema=ema)
    )
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
            train = Train(batch=8, precision=precision, compile=compiles)  # type: ignore[arg-type]
            learner = Learner(build(SMALL.model, 50, 32, 0), train, torch.device("cpu"))
            found = setting_of(replace(SMALL, train=train), "cpu")
            assert (found.number == 2, found.compiled) == (learner.bf16, learner.compiled)
    on_a_gpu = setting_of(SMALL, "cuda")
    assert on_a_gpu.number == 2 and on_a_gpu.compiled and on_a_gpu.fused


def test_chunks_are_those_of_the_loss() -> None:
    assert {"cpu": cross_entropy.CHUNK_BYTES["cpu"], "cuda": cross_entropy.LARGE_CHUNK_BYTES} == CHUNK_BYTES


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_the_largest_batch_is_the_last_that_fits(device: Literal["cpu", "cuda"], accumulate: bool) -> None:
    found = estimate_memory(SMALL, 50, device, accumulate)
    for rows in (1, 2, 3, 100, 4097):
        assert found.largest(found.device_bytes(rows)) == rows
        assert found.largest(found.device_bytes(rows) - 1) == rows - 1
    assert found.largest(0) == 0


def test_parts_add_up_and_a_moment_is_named() -> None:
    found = estimate_memory(SMALL, 50)
    assert sum(found.fixed.values()) + 1000 * sum(found.per_row.values()) == found.steepest.at(1000)
    assert found.at(1000) == found.moments[found.fullest(1000)].at(1000)
    small = replace(SMALL, model=replace(SMALL.model, width=1024), data=Data(length=1))
    assert estimate_memory(small, 50).fullest(1) == "update", "one token, and many weights"


@pytest.mark.parametrize("family", ["llama", "gpt2", "perceiver_ar", "masked_lm"])
def test_recomputing_needs_less_memory_and_more_time(family: Any) -> None:
    model = Model(family=family, width=64, layers=6, heads=4, latents=16 if family == "perceiver_ar" else None)
    found = []
    for recompute in ("none", "selective", "full"):
        recipe = Recipe(model=model, data=Data(length=32), train=Train(batch=8, recompute=recompute))  # type: ignore[arg-type]
        found.append((estimate_memory(recipe, 50).steepest.row_bytes, training_flops(recipe, 50)))
    assert found[0][0] > found[1][0] > found[2][0]
    assert found[0][1] < found[1][1] < found[2][1]
    exact = network_cost(model, 50, 32, Data().masked).train_flops_per_token * 32
    assert found[0][1] == pytest.approx(exact, rel=1e-12)
    assert found[2][1] < exact * 4 / 3


def test_what_cannot_be_estimated_is_said() -> None:
    with pytest.raises(UserError, match="measured, not estimated"):
        estimate_memory(replace(SMALL, hmm=Hmm()), 50)
    with pytest.raises(UserError, match=r'model\.family = "hf"'):
        estimate_memory(replace(SMALL, model=Model(family="hf", name="gpt2")), 50)
    assert find_card("A card of tomorrow") is None
    assert estimate_seconds(SMALL, 50, "A card of tomorrow", 8) is None
    assert estimate_seconds(SMALL, 50, "Tesla T4", 8) is None, "it has no bf16"
    fp32 = replace(SMALL, train=Train(batch=8, precision="fp32"))
    assert estimate_seconds(fp32, 50, "NVIDIA H200", 8) is None


def test_cards_are_found_by_name() -> None:
    assert find_card(" nvidia h200 ") == CARDS["NVIDIA H200"]
    machine = MEASURED["machine"]
    card = find_card(machine["device_name"])
    assert card is not None and card.bf16_flops == MEASURED["vendor_flops"]
    assert 0.97 * card.memory_bytes < machine["memory_bytes"] <= card.memory_bytes
    for known in CARDS.values():
        assert 10e9 < known.memory_bytes < 200e9
        assert known.bf16_flops is None or 50e12 < known.bf16_flops < 1000e12


def test_a_real_pass_on_the_cpu_allocates_about_so_much() -> None:
    """The peak of torch's own allocations in a forward and backward pass, told by its profiler."""
    recipe = Recipe(model=Model(width=64, layers=6, heads=4), data=Data(length=64), train=Train(batch=16))
    learner = Learner(build(recipe.model, 50, 64, 0), recipe.train, torch.device("cpu"))
    peaks = {rows: _allocated(learner, rows) for rows in (8, 16)}
    slope = (peaks[16] - peaks[8]) / 8
    assert estimate_memory(recipe, 50, "cpu").steepest.row_bytes == pytest.approx(slope, rel=0.1)


def _allocated(learner: Learner, rows: int) -> int:
    batch = Batch(torch.randint(50, (rows, 65)))
    learner.accumulate(batch, rows)
    learner.forget()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        learner.accumulate(batch, rows)
    learner.forget()
    total = peak = 0
    results = profile.profiler.kineto_results  # type: ignore[union-attr]
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak
