"""Short runs of any family and optimizer, whole and cut in the middle; also on a CPU without half precision."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pairs import pairs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.core.family import Family, family_of
from shoestring.core.registry import registry
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.data.pack.order import RowIndex, step_rows
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.models.layers.cross_entropy import IGNORED
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.learner import Learner
from shoestring.training.loop import Loop
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import Stepper

VOCABULARY, LENGTH, ROWS, BATCH = 23, 16, 12, 4
CUT, STEPS = 2, 4
FIELDS: dict[str, Any] = {
    "width": 16, "layers": 2, "heads": 2, "dropout": 0.1, "tied": False, "latents": 5, "prefix_dropout": 0.25,
    "attention_dropout": 0.2, "output_dropout": 0.1, "word_dropout": 0.2,
}  # fmt: skip
"""What a family is given of these is what it has a field for."""
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": VOCABULARY, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64,
    "hidden_dropout": 0.1, "attention_dropout": 0.0, "rotary_pct": 0.5, "tie_word_embeddings": False,
}  # fmt: skip


MUON: dict[str, Any] = {
    "polar_express": True, "normalize_neurons": True, "cautious_decay": True, "momentum_warmup": CUT + 1,
    "embedding_lr": 2.0, "scalar_lr": 0.5,
}  # fmt: skip
"""Parts of Muon; those runs of a Llama have none."""


class Case(NamedTuple):
    family: str
    bias: bool | None
    """None: the family has no such field."""
    optimizer: str
    precision: str


PRECISIONS = ("fp32", "bf16", "fp16")


def families() -> list[tuple[str, bool | None]]:
    """All that are registered, with and without bias."""
    return [
        (family, bias)
        for family, found in registry("family").items()
        for bias in ((False, True) if "bias" in found.fields else (None,))
    ]


def cases() -> list[Case]:
    """Every family with every optimizer and precision, every optimizer with every precision, and what once failed."""
    once_failed = [Case("llama", True, "muon", precision) for precision in PRECISIONS]
    found = [Case(*family, *rest) for family, *rest in pairs(families(), list(registry("optimizer")), PRECISIONS)]
    return [*found, *(case for case in once_failed if case not in found)]


def model_of(case: Case, folder: Path) -> Model:
    family: Family = registry("family")[case.family]
    fields = {name: value for name, value in FIELDS.items() if name in family.fields}
    if case.bias is not None:
        fields["bias"] = case.bias
    if "name" in family.fields:
        (folder / "config.json").write_text(json.dumps(NEOX))
        fields["name"] = str(folder / "config.json")
    return Model(family=case.family, **fields)


def make(case: Case, folder: Path, seed: int) -> Learner:
    model = model_of(case, folder)
    more = MUON if case.optimizer == "muon" and case.family != "llama" else {}
    settings = Train(batch=BATCH, lr=1e-2, optimizer=case.optimizer, precision=case.precision, ema=0.9, **more)  # type: ignore[arg-type]
    return Learner(build(model, VOCABULARY, LENGTH, seed), settings, torch.device("cpu"))


class RandomRows:
    """Rows of the kind that a family reads."""

    def __init__(self, model: Model):
        generator, family = torch.Generator().manual_seed(1), family_of(model)
        self._hides, self._last = family.predicts_hidden(model), family.last_predictions(model)
        self._ids = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return step_rows(seed, ROWS, step, batch)

    def batch(self, index: RowIndex) -> Batch:
        ids = self._ids[index.rows]
        if not self._hides:
            return Batch(ids, last=self._last)
        shown = (torch.arange(LENGTH) % 3 != 1).expand(len(ids), -1)
        return Batch(ids[:, :-1], wanted=ids[:, 1:].masked_fill(shown, IGNORED))

    rows = batch


def train(learner: Learner, model: Model, first: int, steps: int) -> None:
    settings = Train(batch=BATCH, lr=1e-2)
    stepper = Stepper(learner, RandomRows(model), settings, batch=BATCH, per_device=2, seed=1)  # type: ignore[arg-type]
    Loop(stepper, ()).run(State(recipe="r", data="d", schedule=Schedule(total=steps), step=first))


def run_whole(case: Case, folder: Path) -> dict[str, Tensor]:
    """All that is saved after the last step; a checkpoint of the middle is left in the folder."""
    learner, model = make(case, folder, seed=0), model_of(case, folder)
    train(learner, model, 0, CUT)
    state = State(recipe="r", data="d", schedule=Schedule(total=CUT), step=CUT)
    Checkpoints(folder / "checkpoints", 1).save(learner, state)
    train(learner, model, CUT, STEPS)
    return learner.saved_tensors()


def run_rest(case: Case, folder: Path) -> dict[str, Tensor]:
    """The same from the checkpoint."""
    learner, model = make(case, folder, seed=5), model_of(case, folder)
    Checkpoints(folder / "checkpoints", 1).restore(CUT, learner, "r", "d")
    train(learner, model, CUT, STEPS)
    return learner.saved_tensors()


def hash_of(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    """`whole` or `rest`, the folder, and a case: in a process of its own, which prints a hash."""
    _, part, folder, family, bias, optimizer, precision = sys.argv
    case = Case(family, {"True": True, "False": False}.get(bias), optimizer, precision)
    print(hash_of((run_whole if part == "whole" else run_rest)(case, Path(folder))))


class NoHalf(TorchDispatchMode):
    """A process on a CPU without half precision, as torch treats it.

    oneDNN computes products of float32 until the first one in half precision fails. That one warns, with the stack of
    torch, and from then on BLAS computes all products, whose last bits differ.
    """

    PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")

    def __init__(self) -> None:
        super().__init__()
        self.onednn = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.onednn and func._schema.name in self.PRODUCTS and "out" not in kwargs:
            if any(isinstance(x, Tensor) and x.dtype in (torch.bfloat16, torch.float16) for x in args):
                self.onednn = False
                warnings.warn("mkldnn_matmul failed, switching to BLAS gemm\n" + 30 * "frame #\n", stacklevel=2)
            elif all(x.dtype == torch.float32 for x in args if isinstance(x, Tensor)):
                found: Tensor = func(*(x.double() if isinstance(x, Tensor) else x for x in args), **kwargs)
                return found.float()
        return func(*args, **kwargs)
