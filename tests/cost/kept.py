"""What torch really keeps for the backward pass of a network.

python tests/cost/kept.py FAMILY …     of compiled blocks, by family, as JSON: bytes of a row
python tests/cost/kept.py --record     the same of all families, into tests/golden/compiled_rows.json

To compile takes half a minute, so what came of it is kept in that file, with a hash of what it depends on.
"""

import ast
import hashlib
import inspect
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from shoestring import models
from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers.cross_entropy import IGNORED

VOCABULARY, LENGTH, LATENTS = 31, 20, 12
COMPILED = (
    "llama", "swift", "swift:qk_norm, relu2, scales, value_embeddings", "swift:qk_norm, relu2, convolutions", "gpt2",
    "perceiver_ar", "masked_lm", "llama/dropout", "swift/dropout", "gpt2/dropout", "gpt2/output_dropout",
    "swift/attention_dropout",
)  # fmt: skip
RECORD = Path(__file__).parents[1] / "golden" / "compiled_rows.json"


def small(family: Any) -> Model:
    """One layer, or of a Perceiver AR one of each kind; "swift:PARTS" has these parts, "llama/FIELD" such dropout."""
    family, _, rate = family.partition("/")
    mixed, (family, _, parts) = family == "perceiver_ar", family.partition(":")
    shape: dict[str, Any] = {"width": 32, "layers": 2 if mixed else 1, "heads": 4} | ({rate: 0.1} if rate else {})
    return Model(family=family, latents=LATENTS if mixed else None, parts=parts or None, **shape)


def batch_of(model: Model, rows: int, predicted: float = 1.0, document_mask: bool = False) -> Batch:
    ids = torch.randint(VOCABULARY, (rows, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    if model.family != "masked_lm":
        documents = (torch.arange(LENGTH + 1) >= LENGTH // 2).long().expand(rows, -1) + 1
        return Batch(ids, segments=documents if document_mask else None, document_mask=document_mask)
    ids = ids[:, 1:].contiguous()
    if model.classes:
        return Batch(ids, wanted=ids[:, :1] % model.classes)
    wanted = torch.where(torch.arange(LENGTH) < round(predicted * LENGTH), ids, IGNORED)
    return Batch(ids, wanted=wanted)


def kept_tensors(network: LanguageModel, batch: Batch, bf16: bool) -> int:
    """Bytes of the storages that a forward pass keeps, those of parameters left out; each is counted once."""
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    storages = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage  # which also keeps its address from being used again
        return x

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16), saved_tensors_hooks(keep, lambda x: x):
        loss = network(batch)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def of_a_row(network: LanguageModel, model: Model, bf16: bool, **how: Any) -> float:
    """By the difference of four rows and two, so that weights in half precision and other constants drop out."""
    few, many = (kept_tensors(network, batch_of(model, rows, **how), bf16) for rows in (2, 4))
    return (many - few) / 2


def of_a_compiled_row(model: Model) -> float:
    """As torch divides a block into two passes, run without making code of it."""
    torch._dynamo.reset()  # beyond a number of graphs layers would run as they are
    network, found = build(model, VOCABULARY, LENGTH, 0), []
    for block in network.blocks:
        block.compile(dynamic=False, backend="aot_eager_decomp_partition")
    for rows in (2, 4):
        batch = batch_of(model, rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            network(batch)  # compiles, which makes tensors of its own
        found.append(kept_tensors(network, batch, bf16=True))
    return (found[1] - found[0]) / 2


def key_of_sources(family: str) -> str:
    """Of torch, this file and the code of the models that a family needs, without comments and docstrings."""
    files = [Path(__file__), *sorted(sources_of(family))]
    told = [torch.__version__, inspect.getsource(Model), *(f"{file.name} {_code(file)}" for file in files)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def sources_of(family: str) -> set[Path]:
    """Modules of a family and of what all share, all modules of the models that they import, and so on."""
    package = Path(models.__file__).parent
    found, todo = (
        set[Path](),
        [*package.glob("*.py"), *(package / "families" / re.split("[:/]", family)[0]).rglob("*.py")],
    )
    while todo:
        file = todo.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoestring.models"):
                place = package.parents[1].joinpath(*str(node.module).split("."))
                todo += [place.with_suffix(".py"), place / "__init__.py"]
                todo += [place / f"{name.name}.py" for name in node.names]
    return found


def _code(file: Path) -> str:
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(line: ast.AST) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def recorded_rows() -> dict[str, float]:
    """What was found in a process of its own, of the families whose code is still the same."""
    record = json.loads(RECORD.read_text())
    return {family: size for family, (key, size) in record.items() if key == key_of_sources(family)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    record = sys.argv[1:] == ["--record"]
    rows = {family: of_a_compiled_row(small(family)) for family in (COMPILED if record else sys.argv[1:])}
    if record:
        kept = {family: (key_of_sources(family), size) for family, size in rows.items()}
        RECORD.write_text(json.dumps(kept) + "\n")
    print(json.dumps(rows))
