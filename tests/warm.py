"""What `commands` loads before it forks: modules, and the compiled loops of the built-in tokenizer, read from disk."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os

from shoestring.cli.root import COMMANDS
from shoestring.data.tokenize.fast_words import WordEncoder
from shoestring.runs import measure

MODULES = (
    "numba",
    "rich.live",
    "rich.table",
    "scipy.linalg",
    *(f"shoestring.cli.{name}" for name in COMMANDS),
    "shoestring.cli.running",
    "shoestring.console.terminal",
    "shoestring.datasets.corpus",
    "shoestring.models.families.gpt2.network",
    "shoestring.models.families.llama.network",
    "shoestring.report.page",
    "shoestring.runs.hmm_trainee",
    "shoestring.runs.hmm_workload",
    "shoestring.runs.network_trainee",
    "shoestring.runs.network_workload",
    "shoestring.runs.probe_server",
    "shoestring.runs.session",
    "shoestring.studies.sweep.driver",
    "shoestring.studies.sweep.orders",
    "shoestring.training.optimizers.adamw",
    "torch._dynamo",
)
"""What commands import, at once or when they come to it."""

for _name in MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)
os.fsync = lambda _: None  # as in the tests themselves
measure._busy = lambda _timings, _machine: None  # other tests keep the machine busy, and profiles are kept all the same
WordEncoder(("a", "b"), 2, 1).encode_batch(["a b"])
gc.collect()
gc.freeze()  # a collection in a forked process would look at, and copy, all of it
