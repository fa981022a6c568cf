"""How often a run compiles: one graph for all layers, which training and scoring share."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from products import PRODUCTS
from scripts import run_script
from torch import Tensor

from shoestring.core.compiled_code import keep_compiled_code
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.training.learner import Learner

FAMILIES = """
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.core.specs import PartsSpec
from shoestring.models.batch import Batch
from shoestring.models.generate import Drawing, generate
from shoestring.models.language_model import build
from shoestring.training.learner import Learner

LENGTH, compile_module = 6, nn.Module.compile

def rows(family, count):
    ids = torch.randint(20, (count, LENGTH + 1), generator=torch.Generator().manual_seed(count))
    if family == "masked_lm":
        return Batch(ids[:, 1:], wanted=ids[:, 1:])
    return Batch(ids, last=3 if family == "perceiver_ar" else None)

def check(graphs, family="llama", recompute="none", layers=2, **fields):
    torch._dynamo.reset()
    torch.manual_seed(0)  # of dropout
    counter = CompileCounterWithBackend("eager")
    nn.Module.compile = lambda self, **how: compile_module(self, backend=counter, fullgraph=True, **how)
    model, what = Model(family=family, width=8, layers=layers, heads=2, **fields), (family, recompute, fields)
    settings = [Train(batch=4, lr=1e-3, compile=compiled, recompute=recompute) for compiled in (True, False)]
    compiled, eager = (Learner(build(model, 20, LENGTH, 0), each, torch.device("cpu")) for each in settings)
    for _ in range(2):
        compiled.update(compiled.accumulate(rows(family, 4), 2), 0.01)
    eager.put_tensors(compiled.saved_tensors())
    for count in (1, 2, 5):
        batch = rows(family, count)
        alone = torch.cat([eager.score(batch.part(i, i + 1), 1) for i in range(count)])
        found = compiled.score(batch, 2)  # sums in float32, in another order
        torch.testing.assert_close(found, alone, rtol=1e-6, atol=0, equal_nan=True, msg=str(what))
        torch.testing.assert_close(compiled.log_probs(batch, 2), eager.log_probs(batch, count), msg=str(what))
    if family != "masked_lm":
        texts = []
        for learner in (compiled, eager):
            with learner.writing():
                ids, likeliest = rows(family, 2).ids[:, :3], Drawing(temperature=0.0)
                texts.append(generate(learner.model, ids, 5, length=LENGTH, drawing=likeliest))
        assert torch.equal(*texts), (what, "and a text is written without another graph")
    for one, two in zip(compiled.model.parameters(), eager.model.parameters()):
        torch.testing.assert_close(one, two, msg=str(what))
        assert one.grad is None or not one.grad.any(), "scoring leaves no gradient"
    assert counter.frame_count == graphs, (what, counter.frame_count)

check(1)
check(1, recompute="full")
check(1, "masked_lm")
check(2, "perceiver_ar", latents=3, prefix_dropout=0.0)
check(2, "gpt2", dropout=0.5)
parts = PartsSpec("qk_norm, gains, zero_outputs, value_embeddings, scales, convolutions")
check(2, "swift", layers=4, parts=parts, pairs=50)
"""


def test_layers_training_and_scoring_share_one_graph(tmp_path: Path) -> None:
    """However many rows are scored. The first layer of a Perceiver AR is another one; dropout is for training alone;
    every second layer of a Swift has value embeddings."""
    run_script(tmp_path, FAMILIES)


CACHED = """
import multiprocessing
import os
import threading
from pathlib import Path
import torch._inductor.compile_fx  # once for both processes
from torch._inductor import codecache
from torch._inductor.runtime.cache_dir_utils import cache_dir
from shoestring.training.compiling import start_compiler
"""
CACHED += (
    PRODUCTS
    + """
def check(compiled, read):
    cache_dir()  # writes torch's own choice into the environment, as some of its modules do when they are loaded
    readers, read_files = set(), codecache.build_code_hash
    codecache.build_code_hash = lambda *given: readers.add(threading.current_thread()) or read_files(*given)
    start_compiler(torch.device("cpu"))
    learner = Learner(Products(), Train(batch=4, lr=1e-3, compile=True), torch.device("cpu"))
    for _ in range(2):
        learner.update(learner.accumulate(torch.zeros(4, 5, dtype=torch.int64), 2), 0.01)
    learner.score(torch.zeros(3, 5, dtype=torch.int64), 2)
    found = counters["inductor"]
    assert (found["fxgraph_cache_miss"], found["fxgraph_cache_hit"]) == (compiled, read), found
    if hasattr(codecache.torch_key, "prefetch"):
        assert readers and threading.main_thread() not in readers, "torch reads its own files beside the rest"
    kept = Path(os.environ["SHOESTRING_CACHE"], "compiled")
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(kept)
    assert len(list(kept.glob("*/inductor/fxgraph/*/*/*"))) == 2

for expected in ((2, 0), (0, 2)):
    process = multiprocessing.get_context("fork").Process(target=check, args=expected)
    process.start()
    process.join()
    assert process.exitcode == 0, expected
"""
)


def test_another_process_finds_what_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward and the backward pass of a layer are compiled, and no more; the next process reads both."""
    monkeypatch.setenv("SHOESTRING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    run_script(tmp_path, CACHED)


def test_a_run_leaves_a_cache_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass is repeated, and torch keeps the code where it would by itself; other errors are raised."""
    monkeypatch.setenv("SHOESTRING_CACHE", str(tmp_path))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    model, rows = Model(width=8, layers=1, heads=2), torch.arange(21).reshape(3, 7) % 20
    learner, plain = (Learner(build(model, 20, 6, 0), Train(batch=3, lr=1e-3), torch.device("cpu")) for _ in range(2))
    learner.compiled = True
    hidden, failing = learner.model.hidden, [errno.EPERM]

    def fail(inputs: Batch) -> Tensor:
        found = hidden(inputs)
        if not failing:
            return found
        try:
            raise OSError(failing.pop(0), "cannot write")
        except OSError:
            raise RuntimeError("compiling failed") from None

    monkeypatch.setattr(learner.model, "hidden", fail)
    assert keep_compiled_code(torch.__version__) is not None
    with pytest.raises(RuntimeError, match="compiling failed"):
        learner.accumulate(rows, 2)
    learner.forget()
    failing.append(errno.ENOSPC)
    assert learner.accumulate(rows, 2).nats == plain.accumulate(rows, 2).nats
    for one, two in zip(learner.model.parameters(), plain.model.parameters(), strict=True):
        assert one.grad is not None and two.grad is not None and torch.equal(one.grad, two.grad)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ and "TRITON_CACHE_DIR" not in os.environ
    assert keep_compiled_code(torch.__version__) is not None
    failing.append(errno.EDQUOT)
    assert torch.equal(learner.score(rows, 3), plain.score(rows, 3))
    assert not failing and "TORCHINDUCTOR_CACHE_DIR" not in os.environ
