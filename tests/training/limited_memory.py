"""Work in a process whose address space is limited, as by `ulimit -v`: torch raises what it raises there."""

from __future__ import annotations

import json
import resource
import sys

import torch
from group_jobs import VOCABULARY

from shoestring.core.host import STATUS, give_back, proc_table
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.training.learner import Learner
from shoestring.training.passes import Tally

ROWS, LENGTH, MB = 64, 128, 1 << 20


def some_rows() -> torch.Tensor:
    return torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))


def make() -> Learner:
    model = build(Model(width=128, layers=2, heads=2), VOCABULARY, LENGTH, 0)
    return Learner(model, Train(batch=ROWS, lr=1e-2), torch.device("cpu"))


def norm_of(learner: Learner, tally: Tally) -> float:
    return learner.update(tally, 1e-3).norm.item()


def _is_reserved(size: int) -> bool:
    """Whether the allocator has addresses of its own for so much, which no limit takes from it."""
    try:
        return torch.empty(size, dtype=torch.uint8).numel() == size
    except RuntimeError:
        return False


def main() -> None:
    """Print whether all rows at once fitted, and the micro-batch, loss, norm and scores of what did."""
    torch.set_num_threads(1)
    learner, rows = make(), some_rows()
    learner.accumulate(rows[:1], 1)  # the state of the optimizer is there, and so are the buffers of products
    learner.forget()
    give_back()
    most = proc_table(STATUS)["VmSize"] + int(sys.argv[1]) * MB
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if _is_reserved(200 * MB):
        print(json.dumps({"reserved": True}))
        return
    tried, tally = ROWS, learner.accumulate(rows, ROWS)
    while not tally.fitted:
        tried //= 2
        tally = learner.accumulate(rows, tried)
    scores = learner.score(rows, ROWS).mean().item()
    print(json.dumps({"rows": tried, "nats": tally.nats.item(), "norm": norm_of(learner, tally), "scores": scores}))
