"""plan --gpu for a trained model: the ways to tune it, and the nearest that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoestring.core.recipe import Recipe
from shoestring.core.run_sections import Budget
from shoestring.core.sections import Data, Model
from shoestring.core.train_section import Train
from shoestring.core.tuning import Lora
from shoestring.core.units import Bytes, Count
from shoestring.cost.gpus import GPUS
from shoestring.cost.memory import estimate_memory
from shoestring.runs.tuning_ways import nearest, ways_of, ways_on_gpu

GPU, V = "NVIDIA GeForce RTX 4090", 32000
SMALL = Recipe(
    budget=Budget(steps=Count(100)),
    model=Model(width=512, layers=8, heads=8, init="runs/base"),
    data=Data(length=512),
    train=Train(batch=16, lr=1e-4),
)
LARGE = replace(SMALL, model=replace(SMALL.model, width=2048, layers=32, heads=16))


def test_a_small_model_fits_as_it_is() -> None:
    ways = ways_on_gpu(SMALL, V, GPU)
    names = ("full", "full, 8-bit AdamW", "LoRA, rank 8")
    assert [way.name for way in ways] == [f"{name}{again}" for name in names for again in ("", ", recompute")]
    assert all(way.fits and way.rows == 16 for way in ways)
    assert nearest(ways, GPU) == f"full fits {GPU}, with a micro-batch of 16"
    for way, (_, recipe) in zip(ways, ways_of(SMALL).values()):
        assert way.bytes == estimate_memory(recipe, V, "cuda").device_bytes(16)
    full, again, _, _, lora, _ = (way.seconds for way in ways)
    weights = ways[0].least_bytes, ways[2].least_bytes
    assert weights[0] and weights[1] and weights[1] < weights[0], "states of 8 bits take less"
    assert full and again and lora and lora.expected < full.expected < again.expected


def test_a_large_model_needs_adapters() -> None:
    ways = ways_on_gpu(LARGE, V, GPU)
    full, *_ = ways
    assert full.least_bytes is not None and full.least_bytes > GPUS[GPU].memory_bytes * 0.9 and not full.fits
    eight = "the nearest that does is full, 8-bit AdamW: --set train.optimizer=adamw8bit"
    assert eight in nearest(ways, GPU)
    larger = replace(LARGE, model=replace(LARGE.model, layers=56))
    assert "the nearest that does is LoRA, rank 8: --set lora.rank=8" in nearest(ways_on_gpu(larger, V, GPU), GPU)
    assert full.row()[-1] == "no" and ways[4].row()[-1] == "yes"


def test_nothing_fits() -> None:
    tight = replace(LARGE, budget=replace(LARGE.budget, memory=Bytes(1 << 30)))
    assert "none fits" in nearest(ways_on_gpu(tight, V, GPU), GPU)


@pytest.mark.parametrize("family", ["perceiver_ar"])
def test_a_family_without_adapters(family: str) -> None:
    recipe = replace(SMALL, model=replace(SMALL.model, family=family, latents=64))
    names = ["full", "full, recompute", "full, 8-bit AdamW", "full, 8-bit AdamW, recompute"]
    assert list(ways_of(recipe)) == names
    assert ways_of(replace(SMALL, lora=Lora(rank=4)))["LoRA, rank 4"][0] == "lora.rank=4"
