"""On a GPU: a recipe that says little but its data, family and batch learns more than counting, within two minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import Command

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

FAMILIES = {
    "llama": "",
    "swift": "",
    "gpt2": "",
    "perceiver_ar": "latents = 64",
    "masked_lm": "width = 512\nlayers = 8",
}
RECIPE = """
[run]
name = "{family}"
[budget]
time = "100s"
steps = 600
[data]
source = "stories"
tokenizer = "words:640"
length = 128
[model]
family = "{family}"
{more}
[train]
batch = 64
lr = "auto"
[evaluate]
rows = 128
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_learn_more_than_counting(family: str, tmp_path: Path, shoestring: Command) -> None:
    """Next tokens: less than the bigram's loss. Hidden ones: half a nat less than the unigram's.

    masked_lm in this size, compiled and in bf16, once ended at the unigram's loss.
    """
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(family=family, more=FAMILIES[family]))
    result = shoestring("train", recipe, "--json")
    assert result.returncode == 0, result.stderr
    evaluation = json.loads(result.stdout)["evaluation"]
    counted = evaluation["baselines"]
    reach = counted["unigram"] - 0.5 if family == "masked_lm" else counted["bigram"]
    assert evaluation["loss"] < reach
