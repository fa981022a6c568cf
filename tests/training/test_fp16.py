"""fp16 with a loss scale, beside plain torch with GradScaler and beside fp32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from group_jobs import BATCH, PlainRows, make, train, weights
from torch import Tensor, nn

from shoestring.core.errors import Fault
from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.models.logits_model import LogitsModel
from shoestring.training import loss_scale
from shoestring.training.checkpoint import State
from shoestring.training.hooks import Log
from shoestring.training.learner import Learner
from shoestring.training.loop import AnyHook, Loop, Report, Sum
from shoestring.training.precision import has_bf16
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import Stepper

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without half precision says so, once
CPU = torch.device("cpu")


def fp16(**settings: Any) -> Learner:
    return make(precision="fp16", **settings)


def scale_of(learner: Learner) -> Tensor:
    assert learner.loss_scale is not None
    return learner.loss_scale.value


def batches(count: int) -> Iterator[Batch]:
    source = PlainRows()
    for step in range(count):
        yield source.batch(source.order(1, step, BATCH))


def everything(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.saved_tensors().items()}


def by_grad_scaler(count: int, interval: int, clip: float) -> tuple[list[tuple[bool, float]], dict[str, Tensor]]:
    """Plain torch: autocast, cross entropy of all logits, GradScaler, clip_grad_norm_, AdamW.

    Whether each step was skipped, the scale after it, and the weights in the end.
    """
    model = make().model
    decayed = {id(p) for p in model.decayed()}
    groups = [
        {"params": [p for p in model.parameters() if (id(p) in decayed) == decays], "weight_decay": 0.1 * decays}
        for decays in (False, True)
    ]
    adam = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale.FIRST, growth_interval=interval)
    found = []
    for batch in batches(count):
        adam.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model.logits(batch.inputs())
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch.targets().flatten(), reduction="sum")
        scaler.scale(loss).backward()
        scaler.unscale_(adam)
        for p in model.parameters():
            assert p.grad is not None
            p.grad /= batch.predictions()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(adam)
        before = scaler.get_scale()
        scaler.update()
        found.append((scaler.get_scale() < before, scaler.get_scale()))
    return found, {name: p.detach() for name, p in model.named_parameters()}


def test_steps_are_those_of_grad_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale grows every third step until a gradient overflows, again and again."""
    monkeypatch.setattr(loss_scale, "INTERVAL", 3)
    expected, reference = by_grad_scaler(30, 3, clip=0.4)
    learner, found, clipped = fp16(clip=0.4, weight_decay=0.1), [], 0
    for batch in batches(30):
        update = learner.update(learner.accumulate(batch, BATCH), 1e-2)
        found.append((bool(update.skipped), scale_of(learner).item()))
        clipped += update.norm.item() > 0.4
    assert found == expected
    assert 2 <= sum(skipped for skipped, _ in found) < 20 and clipped > 10
    for name, tensor in weights(learner).items():
        torch.testing.assert_close(tensor, reference[name], rtol=0, atol=2e-3)
    moved = max(float((tensor - p).abs().max()) for tensor, p in zip(reference.values(), weights(make()).values()))
    assert moved > 0.05, "far more than they differ by"


@pytest.mark.parametrize("per_device", [4, BATCH])
def test_losses_and_norms_are_those_of_fp32_for_any_micro_batch(per_device: int) -> None:
    half, whole = fp16(clip=0.5), make(clip=0.5)
    ours, exact = (torch.tensor(train(learner, "packed", per_device, steps=6)) for learner in (half, whole))
    torch.testing.assert_close(ours, exact, rtol=0.02, atol=0.01)
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    assert half.dtype == torch.float16


class Faint(LogitsModel):
    """Predicts the next of a cycle of ids through a large and a small factor, between which gradients are minute."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.blocks = nn.ModuleList()
        self.network = nn.Sequential(nn.Embedding(16, 32), nn.Linear(32, 32), nn.Linear(32, 16))
        for p in self.network.parameters():
            nn.init.normal_(p, 0.0, 0.02, generator=generator)
        for p in (*self.network[0].parameters(), *self.network[2].parameters()):
            p.requires_grad_(False)

    def logits(self, inputs: Batch | Tensor) -> Tensor:
        x = self.network[1](self.network[0](Batch.of(inputs).ids) * 100)
        return self.network[2]((x * 2.0**10) * 2.0**-10)  # type: ignore[no-any-return]


@pytest.mark.parametrize("scaled", [True, False])
def test_what_underflows_without_a_scale_is_learned_with_it(scaled: bool) -> None:
    learner = Learner(Faint(), Train(batch=4, lr=1e-3, precision="fp16", weight_decay=0.0), CPU)
    if not scaled:
        scale_of(learner).fill_(2.0**-12)  # as if the loss were divided by 4,096 predictions
    rows = (torch.arange(17) + torch.arange(4)[:, None]) % 16
    losses = []
    for _ in range(60):
        tally = learner.accumulate(rows, 4)
        losses.append(tally.nats.item() / tally.predictions)
        learner.update(tally, 0.01)
    if scaled:
        assert losses[-1] < 0.5 * losses[0]
    else:
        assert losses[-1] == losses[0]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_overflow_skips_its_step_alone(optimizer: str) -> None:
    learner, twin = (fp16(optimizer=optimizer, ema=0.9) for _ in range(2))
    first, second = batches(2)
    for each in (learner, twin):
        each.update(each.accumulate(first, 2), 1e-2)
    before = everything(learner)
    scale_of(learner).fill_(loss_scale.MOST)
    while scale_of(learner) > 2 * loss_scale.FIRST:
        was = scale_of(learner).item()
        update = learner.update(learner.accumulate(second, 2), 1e-2)
        if not update.skipped:
            break
        assert scale_of(learner) == was / 2 and update.nats.isfinite()
        after = everything(learner)
        changed = {name for name, tensor in before.items() if not torch.equal(after[name], tensor)}
        assert changed == {"loss scale", "steps since loss scale changed"}
    scale_of(learner).fill_(loss_scale.FIRST)
    for each in (learner, twin):
        each.put_tensors(before | {"loss scale": torch.tensor(loss_scale.FIRST)})
        assert not each.update(each.accumulate(second, 2), 1e-2).skipped
    assert all(torch.equal(tensor, everything(twin)[name]) for name, tensor in everything(learner).items())


def steps_of(
    learner: Learner, count: int = 6, *hooks: AnyHook, first: int = 0, skipped: int = 0
) -> tuple[State, list[Report]]:
    reports: list[Report] = []

    def note(state: State, report: Report) -> State:
        reports.append(report)
        return state

    stepper = Stepper(learner, PlainRows(), Train(batch=BATCH, lr=1e-2), batch=BATCH, per_device=2, seed=1)
    state = State(recipe="", data="", schedule=Schedule(total=count), step=first, skipped=skipped)
    return Loop(stepper, (note, *hooks)).run(state), reports


def test_skipped_steps_are_counted_and_the_run_goes_on() -> None:
    learner = fp16()
    scale_of(learner).fill_(loss_scale.MOST)
    state, reports = steps_of(learner, 20)
    assert state.step == 20 and 3 < state.skipped < 19
    assert [report.skipped for report in reports] == [True] * state.skipped + [False] * (20 - state.skipped)
    assert all(math.isfinite(report.grad_norm) != report.skipped for report in reports)


def test_a_loss_that_is_not_finite_still_stops_the_run_before_the_update() -> None:
    learner = fp16()
    with torch.no_grad():
        learner.model.blocks[0].down.weight.fill_(1e9)  # type: ignore[union-attr,operator]
    before = everything(learner)
    with pytest.raises(Fault, match=r"step 0: the loss is not finite.*train\.precision"):
        steps_of(learner)
    assert all(torch.equal(tensor, before[name]) for name, tensor in everything(learner).items() if name in before)


def test_a_gradient_that_overflows_at_the_least_scale_stops_the_run() -> None:
    learner = fp16()
    p = next(iter(learner.parameters.values()))
    p.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(Fault, match=r"step 20: the gradient is not finite, though the loss is \d"):
        steps_of(learner, 100)
    assert scale_of(learner) == loss_scale.LEAST


def test_a_resumed_run_is_bit_by_bit_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "INTERVAL", 3)
    straight, resumed = fp16(ema=0.9), fp16(ema=0.9, seed=8)
    kept: list[tuple[dict[str, Tensor], int]] = []

    def keep(state: State, _: Report) -> State:
        if state.step == 14:
            kept.append((everything(straight), state.skipped))
        return state

    setattr(keep, "due", lambda step, _: step == 14)  # noqa: B010 (a function has no such attribute)
    scale_of(straight).fill_(2.0**17)
    state, _ = steps_of(straight, 24, keep)
    ((tensors, skipped),) = kept
    resumed.put_tensors(tensors)
    again, _ = steps_of(resumed, 24, first=14, skipped=skipped)
    assert 0 < skipped < state.skipped == again.skipped
    assert all(torch.equal(tensor, everything(resumed)[name]) for name, tensor in everything(straight).items())


def test_a_checkpoint_of_another_precision_starts_with_the_first_scale() -> None:
    exact, learner = make(), fp16()
    scale_of(learner).fill_(2.0)
    learner.put_tensors(everything(exact))
    assert scale_of(learner) == loss_scale.FIRST
    exact.put_tensors(everything(learner))


def test_auto_is_bf16_on_a_gpu_that_has_it_and_else_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda:0")
    for name, capability, expected in (("V100", (7, 0), "fp16"), ("T4", (7, 5), "fp16"), ("A100", (8, 0), "bf16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert Train().products("cuda", has_bf16(cuda)) == expected, name
        assert Train(precision="bf16").products("cuda", has_bf16(cuda)) == "bf16"
    assert Train().products("cpu", has_bf16(CPU)) == "fp32"
    assert Train(precision="fp16").products("cpu", has_bf16(CPU)) == "fp16"


class Lines(list[dict[str, Any]]):
    def add(self, **values: Any) -> None:
        self.append(values)


def test_metrics_have_the_steps_skipped_and_no_infinite_norm() -> None:
    class Clock:
        def elapsed(self) -> float:
            return 0.0

    metrics = Lines()
    log = Log(metrics, Lines(), Clock(), 1, 10)  # type: ignore[arg-type]
    for step, skipped in ((1, 0), (2, 1), (3, 1)):
        norm = math.inf if step == 2 else 1.0
        state = State(recipe="", data="", schedule=Schedule(total=9), step=step, skipped=skipped)
        log(state, Report(Sum(1.0, 1), grad_norm=norm, skipped=step == 2, seconds=1.0))
    assert [line.get("grad_norm") for line in metrics] == [1.0, None, 1.0]
    assert [line.get("skipped") for line in metrics] == [None, 1, 1]
