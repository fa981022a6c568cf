"""Packed rows: every document of a row is computed as if it were alone, and padding as if it were not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from losses import loss_of
from scripts import run_script
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers import attention
from shoestring.models.layers.attention import Documents, Heads, attend
from shoestring.models.layers.cross_entropy import IGNORED

VOCABULARY = 23
SHAPES = [{"width": 16, "layers": 1, "heads": 2}, {"width": 24, "layers": 3, "heads": 3, "tied": False}]

SWIFT = Model(
    family="swift",
    width=16,
    layers=2,
    heads=2,
    parts="qk_norm, value_embeddings, scales, convolutions",
    pairs=40,
    window=3,
)
every_model = pytest.mark.parametrize(
    "model",
    [*(Model(family=family, **shape) for family in ("gpt2", "llama") for shape in SHAPES), SWIFT],
    ids=lambda model: f"{model.family}-{model.width}",
)
every_packing = pytest.mark.parametrize("seed", range(5))

Place = tuple[int, slice]
"""Row, and where in it."""


def network_of(model: Model) -> LanguageModel:
    """In float64, with larger weights than the first ones, so that no part of it is close to doing nothing."""
    network, generator = build(model, VOCABULARY, 16, 0).double(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return network


def packed(seed: int, rows: int = 4, tokens: int = 14) -> tuple[Batch, list[Place]]:
    """Rows of random documents, some of one token, most rows with padding; and where the documents lie."""
    random = np.random.default_rng(seed)
    segments, places = torch.zeros(rows, tokens, dtype=torch.long), []
    for row in range(rows):
        at = 0
        for number in range(1, int(random.integers(2, 6))):
            size = int(random.choice([1, 2, 3, 5, 8]))
            place = slice(at, min(at + size, tokens))
            segments[row, place], at = number, place.stop
            places += [(row, place)] if place.start < place.stop else []
    ids = torch.from_numpy(random.integers(0, VOCABULARY, (rows, tokens)))
    return Batch(ids, segments, document_mask=True), places


def gradient(nats: Tensor, network: LanguageModel) -> list[Tensor]:
    return list(torch.autograd.grad(nats, list(network.parameters())))


def assert_all_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6 * float(two.abs().max()))


@every_packing
def test_the_packings_of_these_tests_have_what_they_are_to_test(seed: int) -> None:
    batch, places = packed(seed)
    sizes = [place.stop - place.start for _, place in places]
    assert 1 in sizes and max(sizes) > 3 and len(sizes) > len(batch.ids)
    assert batch.segments is not None and (batch.segments == 0).any()


@every_model
@every_packing
def test_logits_of_a_packed_document_are_those_of_the_document_alone(model: Model, seed: int) -> None:
    network, (batch, places) = network_of(model), packed(seed)
    with torch.no_grad():
        logits = network.logits(batch)
        for row, place in places:
            alone = network.logits(batch.ids[row : row + 1, place])
            torch.testing.assert_close(logits[row : row + 1, place], alone, rtol=1e-10, atol=1e-10)
        across = network.logits(batch.ids)
    later = [(row, place.start) for row, place in places if place.start]
    assert all((across[at] != logits[at]).any() for at in later), "and are others where documents see each other"


@every_model
@every_packing
def test_losses_and_gradients_of_packed_rows_are_the_sums_over_their_documents(model: Model, seed: int) -> None:
    network, (batch, places) = network_of(model), packed(seed)
    expected = torch.zeros(len(batch.ids), batch.ids.shape[1] - 1, dtype=torch.float64)
    nats, predictions = torch.zeros(()), 0
    for row, place in places:
        if place.stop - place.start > 1:
            losses = network.token_losses(batch.ids[row : row + 1, place])
            expected[row, place.start : place.stop - 1] = losses[0]
            alone = loss_of(network, batch.ids[row : row + 1, place])
            nats, predictions = nats + alone.nats, predictions + alone.predictions
    loss = loss_of(network, batch)
    assert loss.predictions == predictions
    assert loss.nats.item() == pytest.approx(nats.item(), rel=1e-5)
    losses = network.token_losses(batch).detach()
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    assert ((losses != 0) == (expected != 0)).all()
    assert_all_close(gradient(loss.nats, network), gradient(nats, network))


@every_model
@every_packing
def test_not_kept_within_documents_only_padding_is_left_out(model: Model, seed: int) -> None:
    network, (packing, _) = network_of(model), packed(seed)
    batch = packing._replace(document_mask=False)
    assert batch.segments is not None
    nats, predictions = torch.zeros(()), 0
    losses = network.token_losses(batch).detach()
    for row, found in enumerate(losses):
        filled = int((batch.segments[row] != 0).sum())
        alone = network.token_losses(batch.ids[row : row + 1, :filled])
        torch.testing.assert_close(found[: filled - 1], alone[0].detach(), rtol=1e-5, atol=1e-6)
        assert (found[filled - 1 :] == 0).all()
        nats, predictions = nats + loss_of(network, batch.ids[row : row + 1, :filled]).nats, predictions + alone.numel()
    loss = loss_of(network, batch)
    assert loss.predictions == predictions
    assert_all_close(gradient(loss.nats, network), gradient(nats, network))


@every_model
@pytest.mark.parametrize("document_mask", [True, False])
def test_what_padding_holds_is_never_seen(model: Model, document_mask: bool) -> None:
    network, (packing, _) = network_of(model), packed(0)
    batch = packing._replace(document_mask=document_mask)
    assert batch.segments is not None
    other = batch._replace(ids=torch.where(batch.segments == 0, (batch.ids + 5) % VOCABULARY, batch.ids))
    assert torch.equal(network.token_losses(other), network.token_losses(batch))
    assert_all_close(gradient(loss_of(network, other).nats, network), gradient(loss_of(network, batch).nats, network))


@every_model
def test_rows_of_one_document_are_plain_rows(model: Model) -> None:
    network, ids = network_of(model), packed(0)[0].ids
    plain, ones = network.token_losses(ids), torch.ones_like(ids)
    for same in (Batch(ids), Batch(ids, document_mask=True), Batch(ids, ones)):
        assert torch.equal(network.token_losses(same), plain), "to the last bit"
        assert loss_of(network, same).predictions == plain.numel()
    torch.testing.assert_close(network.token_losses(Batch(ids, ones, document_mask=True)), plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network.logits(Batch(ids, ones, document_mask=True)), network.logits(ids))


@every_model
def test_rows_that_predict_nothing_have_no_loss_and_no_gradient(model: Model) -> None:
    network, ids = network_of(model), packed(0, rows=2, tokens=4)[0].ids
    loss = loss_of(network, Batch(ids, torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), document_mask=True))
    assert (loss.nats.item(), loss.predictions) == (0, 0)
    assert all((part == 0).all() for part in gradient(loss.nats, network))


@pytest.mark.parametrize(
    ("segments", "document_mask", "predicted"),
    [
        ([1, 1, 1, 1], True, [1, 1, 1]),
        ([1, 1, 2, 2], True, [1, 0, 1]),
        ([1, 1, 2, 2], False, [1, 1, 1]),
        ([1, 1, 2, 0], True, [1, 0, 0]),
        ([1, 1, 2, 0], False, [1, 1, 0]),
        ([1, 0, 0, 0], True, [0, 0, 0]),
        ([1, 0, 0, 0], False, [0, 0, 0]),
        ([1, 2, 3, 4], True, [0, 0, 0]),
        ([1, 2, 3, 4], False, [1, 1, 1]),
        ([0, 0, 0, 0], False, [0, 0, 0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_predictions_are_counted(
    segments: list[int], document_mask: bool, predicted: list[int], dtype: torch.dtype
) -> None:
    batch = Batch(torch.tensor([[5, 6, 7, 8]]), torch.tensor([segments], dtype=dtype), document_mask)
    assert batch.predicted().tolist() == [[bool(x) for x in predicted]]
    assert batch.predictions() == sum(predicted)
    assert batch.targets().tolist() == [[x if y else IGNORED for x, y in zip([6, 7, 8], predicted)]]


def test_a_batch_is_taken_apart_by_rows() -> None:
    batch, _ = packed(3, rows=7)
    assert batch.segments is not None
    parts = batch.split(3)
    assert [len(part.ids) for part in parts] == [3, 3, 1]
    assert all(part.document_mask and part.segments is not None for part in parts)
    assert torch.equal(torch.cat([part.ids for part in parts]), batch.ids)
    assert torch.equal(torch.cat([part.segments for part in parts if part.segments is not None]), batch.segments)
    assert sum(part.predictions() for part in parts) == batch.predictions()
    assert [len(part.ids) for part in batch.split(100)] == [7]
    assert [len(part.ids) for part in batch.part(0, 0).split(3)] == [0]
    assert batch.part(2, 4).ids.tolist() == batch.ids[2:4].tolist()
    inputs = batch.inputs()
    assert inputs.segments is not None
    assert inputs.ids.shape == inputs.segments.shape == batch.targets().shape == (7, 13)
    moved = batch.to(torch.device("cpu"))
    assert torch.equal(moved.ids, batch.ids) and moved.document_mask


def test_rows_alone_are_one_stream() -> None:
    array = np.arange(12).reshape(3, 4)
    for rows in (array, torch.from_numpy(array)):
        batch = Batch.of(rows)
        assert batch.ids.tolist() == array.tolist()
        assert (batch.segments, batch.document_mask, batch.predictions()) == (None, False, 9)
        assert [part.segments for part in batch.split(2)] == [None, None]
        assert batch.targets().tolist() == array[:, 1:].tolist()
        assert Batch.of(batch) is batch


def seen(segments: Tensor) -> Tensor:
    """Query q sees key k: no later than itself, and no other document lies between them."""
    rows, length = segments.shape
    mask = torch.zeros(rows, 1, length, length, dtype=torch.bool)
    for row in range(rows):
        for q in range(length):
            for k in range(q + 1):
                mask[row, 0, q, k] = len(set(segments[row, k : q + 1].tolist())) == 1
    return mask


@every_packing
def test_a_token_sees_its_document_up_to_itself(seed: int) -> None:
    segments = packed(seed)[0].segments
    assert segments is not None
    documents = Documents(segments)
    for dtype in (torch.float32, torch.bfloat16):
        added = documents.dense(dtype)
        assert added.dtype == dtype
        assert torch.equal(added == 0, seen(segments)) and torch.equal(added == -torch.inf, ~seen(segments))
    assert torch.equal(documents.positions, seen(segments).sum(-1)[:, 0] - 1)
    blocks, (rows, length) = documents.blocks, segments.shape
    assert torch.equal(create_mask(blocks.mask_mod, rows, 1, length, length, "cpu"), seen(segments))


def listed(counts: Tensor, indices: Tensor) -> list[list[int]]:
    """The blocks of each block, without the places that do not count."""
    return [sorted(some[:count]) for count, some in zip(counts.flatten().tolist(), indices.flatten(0, 2).tolist())]


@pytest.mark.parametrize("length", [1, 100, 128, 129, 300, 512])
def test_blocks_are_those_of_the_whole_mask(length: int) -> None:
    chances = np.array([0, 0.003, 0.01, 0.1, 1])[:, None]
    segments = np.cumsum(np.random.default_rng(length).random((5, length)) < chances, axis=1)
    found = Documents(torch.from_numpy(segments)).blocks
    expected = create_block_mask(found.mask_mod, 5, None, length, length, "cpu")
    assert found.shape == expected.shape == (5, 1, length, length)
    for of in ("kv", "full_kv", "q", "full_q"):
        one, two = (
            listed(getattr(blocks, f"{of}_num_blocks"), getattr(blocks, f"{of}_indices"))
            for blocks in (found, expected)
        )
        assert one == two, of
        assert length < 300 or any(one), of


class Flex:
    """Stands in for flex attention: counts calls, and fails as told."""

    def __init__(self, error: Exception | None = None):
        self.calls, self.error = 0, error

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, block_mask: object, enable_gqa: bool) -> Tensor:
        self.calls += 1
        if self.error:
            raise self.error
        return q + k + v


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Flex], Flex]:
    def put(flex: Flex) -> Flex:
        monkeypatch.setattr(attention, "_tried", {})
        monkeypatch.setattr(attention, "_flex", lambda: flex)
        return flex

    return put


def works(dtype: torch.dtype = torch.float32) -> bool:
    with torch.no_grad():
        return attention._flex_works(torch.device("cpu"), dtype, Heads(2, 2, 8))


def test_flex_attention_is_tried_once_and_left_alone_where_it_fails(install: Callable[[Flex], Flex]) -> None:
    flex = install(Flex())
    assert works() and works()
    assert flex.calls == 1
    assert works(torch.bfloat16)
    assert flex.calls == 2, "another type is another program"
    flex = install(Flex(RuntimeError("no compiler")))
    assert not works() and not works()
    assert flex.calls == 1


def test_memory_that_runs_out_is_no_reason_to_leave_flex_attention(install: Callable[[Flex], Flex]) -> None:
    flex = install(Flex(torch.OutOfMemoryError("full")))
    for calls in (1, 2):
        with pytest.raises(torch.OutOfMemoryError):
            works()
        assert flex.calls == calls


def test_what_is_known_of_flex_attention_is_not_tried(
    install: Callable[[Flex], Flex], monkeypatch: pytest.MonkeyPatch
) -> None:
    capability, flex, gpu = [9, 0], install(Flex()), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: tuple(capability))
    assert attention._flex_works(gpu, torch.bfloat16, Heads(8, 2, 64)) and not flex.calls
    assert not attention._known_to_work(gpu, torch.float32, Heads(8, 2, 64)), "needs twice the shared memory"
    assert not attention._known_to_work(gpu, torch.bfloat16, Heads(8, 2, 8)), "fewer channels than a tile"
    capability[:] = 8, 6
    assert not attention._known_to_work(gpu, torch.bfloat16, Heads(8, 2, 64)), "has less shared memory"


def test_a_cpu_never_uses_flex_attention(install: Callable[[Flex], Flex]) -> None:
    flex = install(Flex())
    q, k, v = torch.randn(3, 2, 2, 256, 8, generator=torch.Generator().manual_seed(0))
    seen = Documents(torch.arange(256).expand(2, -1) // 100).seen(torch.zeros(2, 256, 16), Heads(2, 2, 8))
    torch.testing.assert_close(attend(q, k, v, seen)[:, :, :100], attend(q, k, v)[:, :, :100])
    assert flex.calls == 0


LAYERS = """
import numpy as np
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from shoestring.core.recipe import Model
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.models.layers.attention import Documents

random, plain = np.random.default_rng(0), Documents.seen

def packed():
    segments = 1 + np.cumsum(random.random((3, 300)) < 0.02, axis=1)
    return Batch(torch.from_numpy(random.integers(0, 50, (3, 300))), torch.from_numpy(segments), document_mask=True)

for family in ("llama", "gpt2"):
    torch._dynamo.reset()
    model = build(Model(family=family, width=64, layers=2, heads=4), 50, 300, seed=1)
    batches, counter = [packed() for _ in range(3)], CompileCounterWithBackend("aot_eager")
    with torch.no_grad():
        Documents.seen = plain
        expected = [model.token_losses(batch) for batch in batches]
        Documents.seen = lambda documents, *_: documents.blocks
        for block in model.blocks:
            block.compile(backend=counter, dynamic=False, fullgraph=True)
        for batch, losses in zip(batches, expected):
            torch.testing.assert_close(model.token_losses(batch), losses, msg=family)
    assert counter.frame_count == 1, f"{family}: layers and batches share a program"
"""


def test_a_compiled_layer_takes_blocks_whole_and_is_compiled_once(tmp_path: Path) -> None:
    """By a compiler that makes the graph and runs it as it is: a CPU has no kernel of flex attention."""
    run_script(tmp_path, LAYERS)
