"""On a GPU: the loss of a Swift with a pointer, against a CPU in float64, and its texts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.generate import Drawing, generate
from shoestring.models.language_model import build
from shoestring.models.layers import pointer

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

PARTS = "qk_norm, gains, zero_outputs, scales"


def outcome(device: str, kind: torch.dtype, batch: Batch, vocabulary: int) -> list[Tensor]:
    """The mean loss, the losses of tokens, the gradients of the pointer, and those of all else."""
    model = Model(family="swift", width=128, layers=2, heads=2, parts=PARTS, pointer=64)
    network = build(model, vocabulary, 128, 0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2:
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
                parameter.add_(noise * 0.05)
    network = network.to(device, torch.float64 if kind == torch.float64 else torch.float32)
    batch = batch.to(torch.device(device))
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=kind == torch.bfloat16):
        loss = network(batch) / batch.predictions()
        tokens = network.token_losses(batch)
    loss.backward()
    gradients: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        gradients["pointer" in name].append(parameter.grad.flatten())
    return [x.detach().double().cpu() for x in (loss, tokens, *map(torch.cat, gradients.values()))]


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 2e-4), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("vocabulary", [300, 9_000])
def test_loss_and_gradients_are_those_of_a_cpu(
    vocabulary: int, masked: bool, kind: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pointer, "MORE_SCORES_BYTES", 4 * 128 * 128 * 3)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary // 30, (8, 129), generator=generator)
    segments = torch.tensor([1] * 50 + [2] * 79).expand(8, -1)
    batch = Batch(ids, segments, document_mask=True) if masked else Batch(ids)
    exact = outcome("cpu", torch.float64, batch, vocabulary)
    found = outcome("cuda", kind, batch, vocabulary)
    for mine, theirs in zip(found, exact, strict=True):
        assert (mine - theirs).norm() <= tolerance * theirs.norm()


def test_a_text_is_that_of_whole_rows() -> None:
    model = Model(family="swift", width=128, layers=2, heads=2, parts=PARTS, pointer=64)
    network = build(model, 50, 64, 0).double().cuda()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ids = torch.randint(50, (3, 5), generator=torch.Generator().manual_seed(1)).cuda()
    likeliest = Drawing(temperature=0.0)
    kept, whole = (
        generate(network, ids, 50, length=64, drawing=likeliest, cached=cached, recorded=False)
        for cached in (True, False)
    )
    assert torch.equal(kept, whole) and kept.unique().numel() > 5
    with pytest.raises(UserError, match="no kernels for a pointer"):
        generate(network, ids, 50, length=64, recorded=True)
