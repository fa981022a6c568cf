"""What a plain run imports before its first step: libraries that take a second to load only where they are needed."""

from __future__ import annotations

import gzip
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoestring.core.sections import Data
from shoestring.data.read.corpora import open_source
from shoestring.data.read.density import measure_density
from shoestring.data.store.prepare import prepare

HEAVY = (
    "datasets",
    "matplotlib",
    "numba",
    "pandas",
    "pyarrow",
    "scipy",
    "sympy",
    "tensorboard",
    "tokenizers",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.onnx",
    "transformers",
    "vl_convert",
)
STEPS = """
import sys, torch
from shoestring.core import recipe_file
from shoestring.runs import network_trainee, session
from shoestring.runs.network_workload import make_learner
for rule in "adamw", "muon":
    recipe = recipe_file.load({recipe!r}, [f"train.optimizer={{rule}}", "train.compile=false"])
    learner = make_learner(recipe, torch.device("cpu"))
    rows = torch.arange(34).reshape(2, 17)
    for _ in range(2):
        learner.update(learner.accumulate(rows, 1), 1e-3)
    assert learner.score(rows, 2).isfinite().all()
print(*(name for name in {heavy!r} if name in sys.modules))
"""


def test_first_steps_on_a_cpu_load_torch_and_nothing_heavy_besides(tiny: Path) -> None:
    code = STEPS.format(recipe=str(tiny), heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_a_small_corpus_of_words_is_sampled_and_prepared_without_compiled_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shoestring.data.tokenize.fast_words", None)  # importing it is an error
    data = Data(tokenizer="words:50", folder=str(tmp_path))
    assert measure_density(open_source(data, 0), data).documents == 1000
    store = prepare(data, 0, 100)
    assert store is not None and store.manifest.splits["train"].tokens > 1000
    (tmp_path / "corpus.txt").write_text("one two three\n" * 100)
    data = Data(tokenizer="words:50", folder=str(tmp_path), source=f"text:{tmp_path}/corpus.txt")
    assert measure_density(open_source(data, 0), data).tokens == 400
    with gzip.open(tmp_path / "corpus.txt.gz", "wt") as file:
        file.write("one two three\n" * 100)
    data = Data(tokenizer="words:50", folder=str(tmp_path), source=f"text:{tmp_path}/corpus.txt.gz")
    assert measure_density(open_source(data, 0), data).tokens == 400


def test_what_prepares_rows_beside_a_run_loads_no_torch(tiny: Path) -> None:
    """The child that extends a store, and the processes of a pool; both with a small corpus."""
    code = f"""
import sys
from shoestring.core import recipe_file
from shoestring.core.records import Plan
from shoestring.data.store import map_stage, pool
from shoestring.runs import extend, runner
recipe = recipe_file.load({str(tiny)!r}, [])
extend.extend(recipe, Plan(binding="steps", share=0.5), 0.5)
print(*(name for name in ("torch", *{HEAVY!r}) if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tiny.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


KERNELS = """
import sys, torch
from shoestring.models.layers import add_norm, linear, rotary, short_attention
x = torch.randn(6, 16, requires_grad=True)
weight = torch.randn(16, requires_grad=True)
total, normed, _ = torch.ops.shoestring.add_norm(x, x.detach(), weight, 1e-5)
(total + normed).sum().backward()
assert x.grad is not None and x.grad.isfinite().all()
torch.ops.shoestring.linear(x, torch.randn(8, 16, requires_grad=True))[0].sum().backward()
print(*(name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules))
"""


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_kernels_that_are_not_compiled_with_their_layer_do_not_load_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KERNELS)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "script.py")]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
