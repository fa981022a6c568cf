"""How often a run compiles: one graph for all layers, which training and scoring share."""

from __future__ import annotations

from pathlib import Path

from scripts import run_script

FAMILIES = """
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from shoestring.core.sections import Model, Train
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.training.learner import Learner

LENGTH, compile_module = 6, nn.Module.compile

def rows(family, count):
    ids = torch.randint(20, (count, LENGTH + 1), generator=torch.Generator().manual_seed(count))
    if family == "masked_lm":
        return Batch(ids[:, 1:], wanted=ids[:, 1:])
    return Batch(ids, last=3 if family == "perceiver_ar" else None)

def check(graphs, family="llama", recompute="none", **fields):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    nn.Module.compile = lambda self, **how: compile_module(self, backend=counter, fullgraph=True, **how)
    model, what = Model(family=family, width=8, layers=2, heads=2, **fields), (family, recompute, fields)
    settings = [Train(batch=4, compile=compiled, recompute=recompute) for compiled in (True, False)]
    compiled, eager = (Learner(build(model, 20, LENGTH, 0), each, torch.device("cpu")) for each in settings)
    for _ in range(2):
        compiled.update(compiled.accumulate(rows(family, 4), 2), 0.01)
    eager.put_tensors(compiled.saved_tensors())
    for count in (1, 2, 5):
        batch = rows(family, count)
        alone = torch.cat([eager.score(batch.part(i, i + 1), 1) for i in range(count)])
        torch.testing.assert_close(compiled.score(batch, 2), alone, equal_nan=True, msg=str(what))
        torch.testing.assert_close(compiled.log_probs(batch, 2), eager.log_probs(batch, count), msg=str(what))
    for one, two in zip(compiled.model.parameters(), eager.model.parameters()):
        torch.testing.assert_close(one, two, msg=str(what))
        assert one.grad is None or not one.grad.any(), "scoring leaves no gradient"
    assert counter.frame_count == graphs, (what, counter.frame_count)

check(1)
check(1, recompute="full")
check(1, "masked_lm")
check(2, "perceiver_ar", latents=3, prefix_dropout=0.0)
check(2, "gpt2", dropout=0.5)
"""


def test_layers_training_and_scoring_share_one_graph(tmp_path: Path) -> None:
    """However many rows are scored. The first layer of a Perceiver AR is another one; dropout is for training alone."""
    run_script(tmp_path, FAMILIES)
