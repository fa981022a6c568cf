"""The pointer of a Swift: its loss and gradients by products that are written out, and what it learns."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.models.layers import pointer
from shoestring.models.layers.cross_entropy import IGNORED, linear_cross_entropy, soft_cap, token_cross_entropy
from shoestring.models.layers.pointer import Pointer

ROWS, LENGTH, WIDTH, CHANNELS, IDS = 3, 7, 6, 4, 5
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 says so once


@pytest.fixture(params=[1 << 20, 1], ids=["at once", "row by row"])
def scores_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointer, "SCORES_BYTES", {"cpu": request.param})


def leaves(dtype: torch.dtype = torch.float64, weight: float = 0.5) -> list[Tensor]:
    """The stream, an output matrix, and the two parameters of a pointer."""
    generator = torch.Generator().manual_seed(1)
    shapes = (ROWS, LENGTH, WIDTH), (IDS, WIDTH), (2 * CHANNELS + 1, WIDTH), (1,)
    found = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    found[3].fill_(weight)
    return [x.to(dtype).requires_grad_() for x in found]


def some_rows() -> tuple[Tensor, Tensor, Tensor]:
    """Ids, targets, of which some are not predicted, and the numbers of documents."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(IDS - 1, (ROWS, LENGTH + 1), generator=generator)
    targets = ids[:, 1:].clone()
    targets[0, 2], targets[2] = IGNORED, IGNORED
    targets[1, 4] = IDS - 1  # a target that no row has
    documents = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [1, 2, 2, 2, 2, 3, 3], [1, 1, 1, 1, 0, 0, 0]])
    return ids[:, :-1], targets, documents


def module_of(weight: Tensor, bias: Tensor) -> Pointer:
    found = Pointer(WIDTH, CHANNELS)
    del found.weight, found.bias
    found.weight, found.bias = weight, bias  # type: ignore[assignment]
    return found


def ours(
    inputs: list[Tensor], documents: Tensor | None, cap: float | None = None, scale: Tensor | None = None
) -> Tensor:
    hidden, output, weight, bias = inputs
    ids, targets, _ = some_rows()
    copies = module_of(weight, bias)(hidden, ids, targets, documents)
    return linear_cross_entropy(hidden.flatten(0, 1), output, None, targets.flatten(), scale, cap, copies)


def written_out(inputs: list[Tensor], documents: Tensor | None, cap: float | None = None) -> Tensor:
    """The loss of every position, one by one."""
    hidden, output, weight, bias = inputs
    ids, targets, _ = some_rows()
    queries, keys = weight[:-1].chunk(2)
    losses = []
    for row in range(ROWS):
        for t in range(LENGTH):
            if targets[row, t] == IGNORED:
                losses.append(hidden.new_zeros(()))
                continue
            x = hidden[row, t]
            shares = (weight[-1] @ x + bias[0]).exp() * soft_cap(output @ x, cap).softmax(0)
            for j in range(t):
                if documents is None or documents[row, j] == documents[row, t]:
                    score = (queries @ x) @ (keys @ hidden[row, j]) / math.sqrt(CHANNELS)
                    shares = shares + score.exp() * F.one_hot(ids[row, j + 1], IDS)
            losses.append(-(shares[targets[row, t]] / shares.sum()).log())
    return torch.stack(losses)


@pytest.mark.usefixtures("scores_bytes")
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradients_are_those_written_out(masked: bool, cap: float | None) -> None:
    inputs, documents = leaves(), some_rows()[2] if masked else None
    exact = written_out(inputs, documents, cap)
    found = ours(inputs, documents, cap)
    torch.testing.assert_close(found, exact.sum())
    expected = torch.autograd.grad(exact.sum() * 3, inputs)
    for mine, theirs in zip(torch.autograd.grad(found * 3, inputs), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    scale = torch.tensor(0.25, dtype=torch.float64)
    for mine, theirs in zip(torch.autograd.grad(ours(inputs, documents, cap, scale), inputs), expected, strict=True):
        torch.testing.assert_close(mine, theirs / 12)
    assert torch.autograd.gradcheck(lambda *each: ours(list(each), documents, cap), inputs)


@pytest.mark.usefixtures("scores_bytes")
def test_losses_of_tokens_are_those_written_out() -> None:
    inputs, (ids, targets, documents) = leaves(), some_rows()
    hidden, output, weight, bias = inputs
    copies = module_of(weight, bias)(hidden, ids, targets, documents)
    found = token_cross_entropy(hidden.flatten(0, 1), output, None, targets.flatten(), None, copies)
    torch.testing.assert_close(found, written_out(inputs, documents))


@pytest.mark.parametrize("weight", [-30.0, 0.5, 30.0, 80.0])
def test_no_weight_of_the_vocabulary_loses_digits(weight: float) -> None:
    """In float32, whichever of the two predicts; and an unknown target is left to the vocabulary."""
    exact = written_out(inputs := leaves(weight=weight), None).sum()
    expected = torch.autograd.grad(exact, inputs)
    single = leaves(torch.float32, weight)
    found = ours(single, None)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(torch.autograd.grad(found, single), expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)


def test_half_precision_is_near() -> None:
    exact, single = written_out(leaves(), None).sum(), leaves(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ours([single[0].bfloat16(), *single[1:]], None)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(exact.item(), rel=0.01)


def test_probabilities_are_those_of_the_losses() -> None:
    model = Model(family="swift", width=16, layers=2, heads=2, parts="qk_norm, gains, soft_cap", pointer=8)
    network, ids = build(model, 9, 12, 0).double(), torch.randint(9, (4, 13))
    segments = torch.tensor([1] * 5 + [2] * 8).expand(4, -1)
    for batch in (Batch(ids), Batch(ids, segments, document_mask=True)):
        with torch.no_grad():
            logits = network.logits(batch.inputs())
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(4, 12, dtype=torch.float64))
        expected = F.cross_entropy(
            logits.flatten(0, 1), batch.targets().flatten(), reduction="none", ignore_index=IGNORED
        )
        torch.testing.assert_close(network.token_losses(batch).flatten(), expected)
        torch.testing.assert_close(network(batch), expected.sum())


def test_documents_are_as_rows_of_their_own() -> None:
    model = Model(family="swift", width=16, layers=1, heads=2, parts="gains", pointer=8)
    network, ids = build(model, 4, 12, 0).double(), torch.randint(4, (1, 13))
    segments = torch.tensor([[1] * 5 + [2] * 8])
    together = network.token_losses(Batch(ids, segments, document_mask=True))[0]
    torch.testing.assert_close(together[:4], network.token_losses(ids[:, :5])[0])
    torch.testing.assert_close(together[5:], network.token_losses(ids[:, 5:])[0])


@pytest.mark.parametrize(("channels", "learned"), [(16, True), (0, False)])
def test_it_learns_to_copy(channels: int, learned: bool) -> None:
    """Rows of 8 tokens of 60 and the same again: one layer can compare neighbours only by a pointer."""
    torch.manual_seed(0)
    network = build(
        Model(family="swift", width=32, layers=1, heads=2, parts="gains, convolutions:1", pointer=channels), 60, 15, 0
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for _ in range(120):
        half = torch.randint(60, (32, 8))
        loss = network(torch.cat((half, half), dim=1)) / (32 * 15)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    half = torch.randint(60, (64, 8))
    found = network.token_losses(torch.cat((half, half), dim=1))[:, 8:].mean().item()
    assert (found < 1.0) == learned, found
