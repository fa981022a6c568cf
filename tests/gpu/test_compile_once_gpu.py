"""On a GPU: layers, training and scoring share one graph, also beside recorded passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.training.learner import Learner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore:::torch"),  # the compiler's own
]

VOCABULARY, LENGTH = 300, 256
FAMILIES = [{}, {"kv_heads": 2}, {"family": "gpt2"}, {"family": "masked_lm"}]


def _rows(count: int, masked: bool, documents: bool) -> Batch:
    ids = torch.randint(VOCABULARY, (count, LENGTH + 1), generator=torch.Generator().manual_seed(count))
    if masked:
        return Batch(ids[:, 1:].contiguous(), wanted=ids[:, 1:].contiguous())
    segments = (torch.arange(LENGTH + 1) // 100 + 1).repeat(count, 1)
    return Batch(ids, segments, document_mask=True) if documents else Batch(ids)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("fields", FAMILIES, ids=str)
def test_training_and_scoring_share_one_graph(fields: dict[str, Any], documents: bool) -> None:
    from torch._dynamo.utils import counters

    masked = fields.get("family") == "masked_lm"
    if masked and documents:
        pytest.skip("an encoder sees the whole of a row")
    torch.compiler.reset()
    counters.clear()
    device = torch.device("cuda")
    settings = [Train(batch=8, lr=1e-3, precision="bf16", compile=compiled) for compiled in (True, False)]
    model = Model(width=128, layers=3, heads=4, **fields)
    compiled, eager = (Learner(build(model, VOCABULARY, LENGTH, 0), each, device) for each in settings)
    for _ in range(3):  # the second and third pass are recorded
        compiled.update(compiled.accumulate(_rows(8, masked, documents), 4), 1e-3)
    batches = [_rows(count, masked, documents) for count in (1, 4, 6)]
    scores = [compiled.score(rows, 4) for rows in batches]
    eager.put_tensors(compiled.saved_tensors())
    compiled.update(compiled.accumulate(_rows(8, masked, documents), 4), 1e-3)
    assert counters["stats"]["unique_graphs"] == 1, counters["frames"]
    for rows, found in zip(batches, scores, strict=True):
        alone = torch.cat([eager.score(rows.part(row, row + 1), 1) for row in range(len(rows.ids))])
        torch.testing.assert_close(found, alone, rtol=0.02, atol=0.02, equal_nan=True)
