"""The learner: one division, one update, and no step where the gradient is not finite."""

import copy
import math

import pytest
import torch
from group_jobs import weights
from losses import loss_of

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel, build
from shoestring.training.learner import Learner
from shoestring.training.loop import Sum
from shoestring.training.passes import Tally

VOCABULARY = 29
CPU = torch.device("cpu")


def make(double: bool = False, tied: bool = True, **settings: object) -> Learner:
    model = build(Model(width=16, layers=2, heads=2, tied=tied), VOCABULARY, 8, 3)
    return Learner(model.double() if double else model, Train(**{"batch": 8, "lr": 1e-3} | settings), CPU)  # type: ignore[arg-type]


def some_rows(rows: int = 8, length: int = 11) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length + 1), generator=torch.Generator().manual_seed(5))


def some_packed(document_mask: bool = True) -> Batch:
    """Eight rows of one to three documents and padding; the second predicts nothing within documents."""
    numbers = [[1] * 12, [1] + [2] + [0] * 10, [1] * 5 + [2] * 7, [1] * 3 + [2] + [3] * 6 + [0] * 2]
    return Batch(some_rows(), torch.tensor(numbers * 2), document_mask)


def adam_of(learner: Learner) -> torch.optim.Optimizer:
    (found,) = learner.optimizer.optimizers
    assert isinstance(found, torch.optim.AdamW)
    return found


def gradients(learner: Learner) -> list[torch.Tensor]:
    return [p.grad.clone() for p in learner.model.parameters() if p.grad is not None]


def mean_gradient(model: LanguageModel, rows: torch.Tensor) -> list[torch.Tensor]:
    """The gradient of the mean loss over all predictions, by autograd alone."""
    return list(
        torch.autograd.grad(loss_of(model, rows).nats / loss_of(model, rows).predictions, list(model.parameters()))
    )


def norm_of(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float((t.double() ** 2).sum()) for t in tensors))


def test_a_rehearsal_leaves_no_gradient_and_nothing_else_where_nothing_is_recorded() -> None:
    plain, rehearsed = make(), make()
    rehearsed.accumulate(some_rows(), 8)
    rehearsed.rehearse(some_rows())
    assert not gradients(rehearsed)
    for learner in (plain, rehearsed):
        learner.update(learner.accumulate(some_rows(), 8), 1e-3)
    for name, tensor in weights(plain).items():
        assert torch.equal(tensor, weights(rehearsed)[name])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_memory_that_is_kept_is_taken_before_the_first_pass(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among tensors that come and go, each piece of it would hold a large one's memory for good."""
    learner, seen = make(optimizer=optimizer), []
    forward = learner.model.forward

    def noted(batch: Batch) -> torch.Tensor:
        seen.append({name: tensor.data_ptr() for name, tensor in learner.optimizer.tensors().items()})
        return forward(batch)

    monkeypatch.setattr(learner.model, "forward", noted)
    for _ in range(2):
        learner.update(learner.accumulate(some_rows(), 8), 1e-3)
    after = {name: tensor.data_ptr() for name, tensor in learner.optimizer.tensors().items()}
    assert seen == [after, after] and len(after) > len(learner.parameters)


@pytest.mark.parametrize("per_device", [1, 2, 3, 5, 7, 8, 100])
def test_micro_batches_of_any_size_add_up_to_the_whole_batch(per_device: int) -> None:
    whole, parts = make(double=True), make(double=True)
    expected, found = whole.accumulate(some_rows(), 8), parts.accumulate(some_rows(), per_device)
    assert found.predictions == expected.predictions == 8 * 11
    assert found.nats.item() == pytest.approx(expected.nats.item(), rel=1e-6)
    assert found.nats.item() / found.predictions == pytest.approx(
        whole.model.token_losses(some_rows()).mean().item(), rel=1e-6
    )
    for one, two in zip(gradients(whole), gradients(parts), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-8)
    whole.update(expected, 1e-3)
    parts.update(found, 1e-3)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(tensor, weights(parts)[name], rtol=1e-5, atol=1e-6)


def test_batches_of_several_calls_add_up_as_well() -> None:
    whole, parts = make(double=True), make(double=True)
    whole.accumulate(some_rows(), 4)
    for part in some_rows().split(3):
        parts.accumulate(part, 2)
    for one, two in zip(gradients(whole), gradients(parts), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("document_mask", [True, False])
@pytest.mark.parametrize("per_device", [1, 3, 5, 100])
def test_micro_batches_of_packed_rows_add_up_to_the_whole_batch(per_device: int, document_mask: bool) -> None:
    whole, parts, batch = make(double=True), make(double=True), some_packed(document_mask)
    expected, found = whole.accumulate(batch, 8), parts.accumulate(batch, per_device)
    loss = loss_of(whole.model, batch)
    assert found.predictions == expected.predictions == loss.predictions == 2 * (28 if document_mask else 32)
    assert found.nats.item() == pytest.approx(expected.nats.item(), rel=1e-6)
    assert found.nats.item() == pytest.approx(loss.nats.item(), rel=1e-6)
    by_autograd = torch.autograd.grad(loss.nats, list(whole.model.parameters()))
    for one, two, three in zip(gradients(whole), gradients(parts), by_autograd, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(one, three, rtol=1e-5, atol=1e-8)


def test_an_array_a_tensor_and_a_batch_of_the_same_rows_are_one() -> None:
    learner, rows = make(), some_rows()
    for same in (rows.numpy(), Batch(rows)):
        assert torch.equal(learner.score(same, 3), learner.score(rows, 3))
        assert torch.equal(learner.log_probs(same, 3), learner.log_probs(rows, 3))
        assert learner.accumulate(same, 3) == learner.accumulate(rows, 3)


def test_the_gradient_is_divided_once_by_all_predictions() -> None:
    learner = make(double=True, clip=1e9, beta1=0.9)
    expected = mean_gradient(learner.model, some_rows())
    loss = learner.accumulate(some_rows(), 3)
    norm = learner.update(loss, 1e-3).norm.item()
    assert norm == pytest.approx(norm_of(expected), rel=1e-6)
    for parameter, gradient in zip(learner.model.parameters(), expected, strict=True):
        momentum = adam_of(learner).state[parameter]["exp_avg"]
        torch.testing.assert_close(momentum, 0.1 * gradient, rtol=1e-5, atol=1e-9)


def test_rows_that_predict_nothing_have_no_gradient_and_end_nothing() -> None:
    """As the few rows of a worker may hide no token of a masked model."""
    learner, alone = make(weight_decay=0.0), torch.tensor([[1, 2] + [0] * 10] * 8)
    before = {name: value.clone() for name, value in weights(learner).items()}
    update = learner.update(learner.accumulate(Batch(some_rows(), alone, document_mask=True), 8), 1e-3)
    assert (update.predictions, update.norm) == (0, 0)
    assert all(torch.equal(before[name], value) for name, value in weights(learner).items())
    update = learner.update(learner.accumulate(some_rows(), 8), 1e-3)
    assert update.norm > 0 and not all(torch.equal(before[name], value) for name, value in weights(learner).items())


def test_one_update_is_the_formula_of_adamw() -> None:
    learner = make(double=True, clip=1e9, weight_decay=0.1, beta1=0.8, beta2=0.9)
    decayed = {id(p) for p in learner.model.decayed()}
    before, expected = weights(learner), []
    gradient = mean_gradient(learner.model, some_rows())
    for (name, parameter), g in zip(learner.model.named_parameters(), gradient, strict=True):
        kept = before[name] * (1 - 0.01 * 0.1) if id(parameter) in decayed else before[name]
        expected.append(kept - 0.01 * g / (g.abs() + 1e-8))  # after one step mean and root mean square are g and |g|
    learner.update(learner.accumulate(some_rows(), 8), 0.01)
    for tensor, wanted in zip(weights(learner).values(), expected, strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-4, atol=1e-5)


def test_the_gradient_is_cleared_by_an_update() -> None:
    learner = make()
    learner.update(learner.accumulate(some_rows(), 8), 1e-3)
    assert not gradients(learner)


@pytest.mark.parametrize("factor", [0.01, 0.5, 2.0])
def test_a_gradient_is_clipped_to_the_largest_norm_and_reported_unclipped(factor: float) -> None:
    free = norm_of(mean_gradient(make(double=True).model, some_rows()))
    learner = make(double=True, clip=factor * free)
    norm = learner.update(learner.accumulate(some_rows(), 8), 1e-3).norm.item()
    assert norm == pytest.approx(free, rel=1e-6)
    momentum = [adam_of(learner).state[p]["exp_avg"] for p in learner.model.parameters()]
    assert norm_of(momentum) == pytest.approx(0.1 * free * min(1.0, factor), rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_takes_no_step(bad: float) -> None:
    learner = make()
    learner.update(learner.accumulate(some_rows(), 8), 1e-3)
    before, state = weights(learner), copy.deepcopy(adam_of(learner).state_dict()["state"])
    tally = learner.accumulate(some_rows(), 8)
    gradient = next(learner.model.parameters()).grad
    assert gradient is not None
    gradient[0, 0] = bad
    assert not math.isfinite(learner.update(tally, 1e-3).norm.item())
    for name, tensor in weights(learner).items():
        assert torch.equal(tensor, before[name]), name
    for index, values in adam_of(learner).state_dict()["state"].items():
        assert all(torch.equal(value, state[index][key]) for key, value in values.items())
    assert not gradients(learner), "the next step must not begin with it"


@pytest.mark.parametrize("tied", [True, False])
def test_decay_shrinks_matrices_alone(tied: bool) -> None:
    learner = make(tied=tied, weight_decay=0.5)
    before = weights(learner)
    for parameter in learner.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.update(Tally(torch.zeros((), dtype=torch.float64), 1), 0.1)
    shrunk = set()
    for name, tensor in weights(learner).items():
        if torch.equal(tensor, before[name]):
            continue
        torch.testing.assert_close(tensor, before[name] * (1 - 0.1 * 0.5))
        shrunk.add(name)
    blocks = {f"blocks.{i}.{name}.weight" for i in range(2) for name in ("qkv", "out", "gate_up", "down")}
    assert shrunk == (blocks if tied else blocks | {"head.weight"})


def test_the_rate_of_an_update_is_the_one_given() -> None:
    learner = make(lr=1.0)
    before = weights(learner)
    learner.update(learner.accumulate(some_rows(), 8), 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())


@pytest.mark.parametrize("per_device", [1, 3, 8, 50])
def test_scores_are_the_losses_of_every_prediction(per_device: int) -> None:
    learner = make()
    scores = learner.score(some_rows(), per_device)
    assert scores.shape == (8, 11)
    assert scores.dtype == torch.float64
    with torch.no_grad():
        torch.testing.assert_close(scores, learner.model.token_losses(some_rows()).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("document_mask", [True, False])
@pytest.mark.parametrize("per_device", [1, 3, 8])
def test_scores_of_packed_rows_are_nan_where_nothing_is_predicted(per_device: int, document_mask: bool) -> None:
    learner, batch = make(), some_packed(document_mask)
    scores = learner.score(batch, per_device)
    assert torch.equal(scores.isnan(), ~batch.predicted())
    with torch.no_grad():
        expected = learner.model.token_losses(batch).double()
    torch.testing.assert_close(scores.nan_to_num(), expected, rtol=1e-5, atol=1e-5)
    tally = learner.accumulate(batch, 8)
    assert scores.nanmean().item() == pytest.approx(tally.nats.item() / tally.predictions, rel=1e-6)


@pytest.mark.parametrize("per_device", [1, 3, 8])
def test_log_probs_are_distributions_and_hold_the_losses(per_device: int) -> None:
    learner, packed = make(), some_packed()
    for batch in (Batch(some_rows()), packed):
        found = learner.log_probs(batch, per_device)
        assert found.shape == (8, 11, VOCABULARY)
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(8, 11))
        losses = -found.gather(-1, batch.ids[:, 1:, None])[..., 0].double()
        at = batch.predicted()
        torch.testing.assert_close(losses[at], learner.score(batch, 8)[at], rtol=1e-5, atol=1e-5)


def test_scoring_changes_nothing() -> None:
    scored, left = make(), make()
    for learner in (scored, left):
        tally = learner.accumulate(some_rows(), 8)
    before, random = weights(scored), torch.get_rng_state()
    held, state = gradients(scored), {name: tensor.clone() for name, tensor in scored.optimizer.tensors().items()}
    scored.score(some_rows(5), 2)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(scored).items())
    assert all(torch.equal(one, two) for one, two in zip(gradients(scored), held, strict=True))
    assert scored.model.training == left.model.training
    assert state.keys() == scored.optimizer.tensors().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in scored.optimizer.tensors().items())
    for learner in (scored, left):
        learner.update(tally, 1e-3)
    assert all(torch.equal(tensor, weights(left)[name]) for name, tensor in weights(scored).items())


@pytest.mark.parametrize(("precision", "half"), [("auto", False), ("fp32", False), ("bf16", True), ("fp16", True)])
def test_products_run_in_the_precision_asked_for_and_weights_stay_float32(precision: str, half: bool) -> None:
    learner = make(precision=precision)
    assert learner.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    exact = make(precision="fp32").score(some_rows(), 8)
    scores = learner.score(some_rows(), 8)
    torch.testing.assert_close(scores, exact, rtol=0.05, atol=0.05)
    assert torch.equal(scores, exact) != half
    learner.update(learner.accumulate(some_rows(), 4), 1e-3)
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    packed = make(precision=precision).score(some_packed(), 8)
    exact = make(precision="fp32").score(some_packed(), 8)
    torch.testing.assert_close(packed, exact, rtol=0.05, atol=0.05, equal_nan=True)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_takes_no_step_even_if_its_gradient_is(bad: float) -> None:
    learner = make()
    tally, before = learner.accumulate(some_rows(), 8), weights(learner)
    update = learner.update(tally._replace(nats=torch.tensor(bad, dtype=torch.float64)), 1e-3)
    assert math.isfinite(update.norm.item())
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())


def test_a_sum_is_divided_when_asked() -> None:
    assert Sum(12.0, 8).mean == 1.5
