"""Steps that are recorded as CUDA graphs are those that are not: the same losses, norms and weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shoestring.core.recipe import Recipe
from shoestring.core.sections import Data, Model
from shoestring.core.train_section import Train
from shoestring.core.tuning import Lora
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.models.recording import record
from shoestring.models.tuning import tune
from shoestring.training.graphs import Recordings
from shoestring.training.learner import Learner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

CUDA = torch.device("cuda")
VOCABULARY, LENGTH, ROWS = 50, 64, 8
LLAMA = Model(family="llama", width=64, layers=3, heads=2)
MASKED = Model(family="masked_lm", width=64, layers=2, heads=2)


def batches(masked: bool) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(8):
        ids = torch.randint(VOCABULARY, (ROWS, LENGTH + (not masked)), generator=generator)
        hidden = torch.rand(ids.shape, generator=generator) < 0.2
        found.append(Batch(ids, wanted=ids.masked_fill(~hidden, -100), share=0.2) if masked else Batch(ids))
    return found


MUON = {
    "optimizer": "muon", "polar_express": True, "normalize_neurons": True, "cautious_decay": True,
    "momentum_warmup": 5, "embedding_lr": 3.0, "scalar_lr": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"optimizer": "muon"}, MUON, {"ema": 0.9}, {"precision": "fp16"}])
@pytest.mark.parametrize("model", [LLAMA, MASKED], ids=lambda model: model.family)
@pytest.mark.parametrize("passes", [1, 2])
def test_recorded_steps_are_those_that_are_not(model: Model, settings: dict[str, object], passes: int) -> None:
    device = torch.device("cuda")
    learners = [
        Learner(
            build(model, VOCABULARY, LENGTH, 0),
            Train(batch=ROWS, lr=1e-2, compile=compile, **settings),  # type: ignore[arg-type]
            device,
            compiled=False,
        )
        for compile in (None, False)
    ]
    found: list[list[list[float]]] = [[], []]
    for learner, losses in zip(learners, found, strict=True):
        for number, batch in enumerate(batches(model.family == "masked_lm")):
            update = learner.update(learner.accumulate(batch, ROWS // passes), 0.01 / (1 + number))
            losses.append([update.nats.item(), update.predictions.item(), update.norm.item(), update.unfitted.item()])
    recorded, plain = learners
    assert plain._recordings is None
    assert recorded._recordings is not None and recorded._recordings._recording is not None
    assert all(recorded._recordings._recording._updates.values()), "the update is recorded, too"
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)
    for name, tensor in plain.saved_tensors().items():
        torch.testing.assert_close(recorded.saved_tensors()[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def test_a_restored_state_is_that_which_is_updated() -> None:
    device = torch.device("cuda")
    first, second = (
        Learner(build(LLAMA, VOCABULARY, LENGTH, 0), Train(batch=ROWS, lr=1e-2), device, compiled=False)
        for _ in range(2)
    )
    rows = batches(masked=False)
    for batch in rows[:4]:
        first.update(first.accumulate(batch, ROWS), 0.01)
        second.update(second.accumulate(batch.part(0, ROWS // 2), ROWS // 2), 0.02)
    second.put_tensors({name: tensor.clone() for name, tensor in first.saved_tensors().items()})
    for batch in rows[4:]:
        for learner in (first, second):
            learner.update(learner.accumulate(batch, ROWS), 0.005)
    for name, tensor in first.saved_tensors().items():
        assert torch.equal(second.saved_tensors()[name], tensor), name


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
def test_passes_of_transformers_are_recorded_as_compiled(lora: Lora | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    train, model = Train(batch=ROWS, lr=1e-2), Model(family="hf", name=str(tmp_path))
    network = build(model, VOCABULARY, LENGTH, 0)
    tune(network, Recipe(model=model, data=Data(length=LENGTH), train=train, lora=lora), 0)
    learner = Learner(network, train, torch.device("cuda"))
    for batch in batches(False)[:4]:
        learner.update(learner.accumulate(batch, ROWS), 0.01)
    assert learner._recordings is not None and learner._recordings._recording is not None
    assert all(learner._recordings._recording._updates.values())


def test_after_a_recording_that_failed_plain_passes_and_random_numbers_go_on() -> None:
    def waits(batch: Batch) -> Tensor:
        loss = (weight * torch.rand(4, device="cuda")).sum()
        return loss * float(loss.detach() > 0)  # asks the device, which no recording can

    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    recordings = Recordings(waits, [weight])
    (part,) = batches(False)[0].to(torch.device("cuda")).split(ROWS)
    assert recordings.of([part], begin=True) is None and recordings.failure is None, "seen for the first time"
    torch.manual_seed(1)
    expected = torch.rand(8, device="cuda")
    torch.manual_seed(1)
    assert recordings.of([part], begin=True) is None and "captur" in str(recordings.failure)
    assert torch.equal(torch.rand(8, device="cuda"), expected)
    waits(part).backward()
    assert weight.grad is not None and torch.isfinite(weight.grad).all()


@pytest.mark.parametrize("own", [False, True], ids=["the device's", "of its own"])
def test_the_first_replay_draws_what_a_plain_call_would_on_a_busy_device(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a recording does to its generator can come late, on a stream of its own."""
    generator, busy = (torch.Generator(CUDA) if own else None), torch.cuda.Stream()
    torch.cuda.init()  # the default generators are made by it
    seeded = generator or torch.cuda.default_generators[torch.cuda.current_device()]

    def draw() -> Tensor:
        return torch.empty(5, device=CUDA).exponential_(generator=generator)

    seeded.manual_seed(7)
    expected = [draw().tolist() for _ in range(3)]
    seeded.manual_seed(7)
    assert draw().tolist() == expected[0]
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", busy)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with torch.cuda.stream(busy):
        torch.cuda._sleep(1 << 29)  # a third of a second
    graph, found = record(draw, generator=generator)
    for drawn in expected[1:]:
        graph.replay()
        assert found.tolist() == drawn
