"""Plans on a GPU by name: arithmetic on counted FLOPs and bytes, and said to be that."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoestring.core import recipe_file
from shoestring.core.errors import PlanError, UserError
from shoestring.core.records import Plan
from shoestring.cost.gpus import GPUS
from shoestring.cost.memory import estimate_memory
from shoestring.cost.seconds import UTILISATION
from shoestring.runs.estimate import estimate_profile, plan_on_gpu

RECIPES = Path(__file__).resolve().parents[2] / "recipes/perceiver_scaling"
H200 = "NVIDIA H200"


@pytest.mark.parametrize(("name", "vocabulary"), [("1_1", 32000), ("2a_5", 262), ("2b_2", 262)])
def test_the_plan_of_the_article_s_runs(name: str, vocabulary: int) -> None:
    recipe = recipe_file.load(RECIPES / f"{name}.toml")
    plan = plan_on_gpu(recipe, vocabulary, H200)
    d, layers, n, m = recipe.model.width, recipe.model.layers, 512, (recipe.data.length - 512) // 2
    block = 12 * d * d * layers * n + m * 2 * d * d + 2 * d * (layers * n * n + n * m)
    forward = 2 * (block + vocabulary * d * n)
    row = 3 * forward + (2 * block if recipe.train.recompute == "full" else 0)
    peak = GPUS[H200].bf16_flops
    assert peak is not None and recipe.budget.steps is not None
    seconds = int(recipe.budget.steps) * 80 * row / peak
    assert plan.parts["train"] == pytest.approx(seconds / UTILISATION.expected, rel=1e-9)
    low, high = plan.intervals["seconds"]
    assert plan.seconds is not None and low < plan.seconds < high
    assert high - low == pytest.approx(seconds / UTILISATION.low - seconds / UTILISATION.high, rel=1e-6)
    assert (plan.per_device, plan.accumulate, plan.epochs) == (80, 1, None)
    assert plan.lines[0].reason.startswith("nothing was measured")
    assert not any("measured" in line.reason for line in plan.lines[1:])


def test_a_smaller_gpu_takes_fewer_rows_at_a_time() -> None:
    recipe = recipe_file.load(RECIPES / "2a_2.toml")
    small, large = (estimate_profile(recipe, 262, gpu) for gpu in ("NVIDIA GeForce RTX 3080 Ti", H200))
    most = small.points[-1].batch
    assert most < large.points[-1].batch == 80
    memory = estimate_memory(recipe, 262, "cuda")
    free = 0.92 * (small.available_bytes or 0)
    larger = min(rows for rows in (40, 80) if rows > most)
    assert memory.device_bytes(most) <= free < memory.device_bytes(larger)
    assert plan_on_gpu(recipe, 262, "NVIDIA GeForce RTX 3080 Ti").per_device == most


@pytest.mark.parametrize(("devices", "per_device"), [(1, 80), (2, 40), (4, 20), (80, 1)])
def test_several_devices_divide_the_rows(devices: int, per_device: int) -> None:
    recipe = recipe_file.load(RECIPES / "1_1.toml")
    plan, alone = (plan_on_gpu(recipe, 32000, "NVIDIA GeForce RTX 3080 Ti", many) for many in (devices, 1))
    assert (plan.per_device, plan.accumulate, plan.devices) == (per_device, 1, devices)
    assert plan.step_seconds == pytest.approx((alone.step_seconds or 0.0) / devices)
    low, high = plan.intervals["seconds"]
    assert plan.seconds is not None and low < plan.seconds < high


def test_less_memory_takes_fewer_rows_at_a_time() -> None:
    settings = ["model.width=512", "model.layers=8", "train.batch=512"]
    gpu = "NVIDIA GeForce RTX 3080 Ti"

    def planned(*more: str) -> Plan:
        return plan_on_gpu(recipe_file.load(RECIPES.parent / "stories_llama.toml", [*settings, *more]), 642, gpu)

    assert planned().per_device == 256
    less = planned("budget.memory=9GB")
    assert (less.per_device, less.accumulate) == (128, 4)
    assert less.peak_bytes is not None and less.peak_bytes <= 9e9
    with pytest.raises(PlanError, match=r"nothing fits the memory: a micro-batch of 1 needs .* --set budget.memory="):
        planned("budget.memory=100MB")
    with pytest.raises(PlanError, match=r"nothing fits the memory.* --set train.per_device=128"):
        planned("budget.memory=9GB", "train.per_device=256")


def test_a_per_device_that_does_not_divide_the_rows_of_a_device_is_refused() -> None:
    recipe = recipe_file.load(RECIPES / "2b_2.toml", ["train.per_device=16"])
    assert plan_on_gpu(recipe, 262, H200).accumulate == 5
    with pytest.raises(PlanError, match=r"train.per_device = 16: does not divide the 20 rows .* 1, 2, 4, 5, 10, 20$"):
        plan_on_gpu(recipe, 262, H200, 4)


def test_a_corpus_at_hand_is_looked_at() -> None:
    recipe = recipe_file.load(RECIPES / "mini_1.toml")
    plan = plan_on_gpu(recipe, 262, H200)
    assert plan.entries is not None and plan.entries > 1000 and plan.epochs is not None


def test_what_nobody_knows_is_refused() -> None:
    recipe = recipe_file.load(RECIPES / "2b_1.toml")
    with pytest.raises(UserError, match="unknown; known ones are for example NVIDIA H200"):
        plan_on_gpu(recipe, 262, "H200")
    with pytest.raises(UserError, match="its peak in bf16 is not known"):
        plan_on_gpu(recipe_file.load(RECIPES / "2b_1.toml", ["train.precision=bf16"]), 262, "Tesla T4")
    with pytest.raises(UserError, match="its peak in fp32 is not known"):
        plan_on_gpu(recipe_file.load(RECIPES / "2b_1.toml", ["train.precision=fp32"]), 262, H200)
    huge = recipe_file.load(RECIPES / "2b_1.toml", ["model.width=16384", "model.layers=64"])
    with pytest.raises(UserError, match="use a smaller model"):
        plan_on_gpu(huge, 262, "NVIDIA GeForce RTX 3080 Ti")
