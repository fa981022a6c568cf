"""What holds for every family: the cost is the counted one, the future is unseen, the loss falls."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shoestring.core.recipe import Model, Train
from shoestring.models import LanguageModel, build, cost
from shoestring.models.families import FAMILIES
from shoestring.train.learner import Learner

VOCABULARY = 23
SHAPES = [
    {"width": 16, "layers": 1, "heads": 2},
    {"width": 24, "layers": 3, "heads": 3, "tied": False},
    {"width": 32, "layers": 2, "heads": 4, "hidden": 7},
]

every_family = pytest.mark.parametrize("family", sorted(FAMILIES))
every_model = pytest.mark.parametrize(
    "model",
    [Model(family=family, **shape) for family in sorted(FAMILIES) for shape in SHAPES],
    ids=lambda model: f"{model.family}-{model.width}",
)


def some_rows(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length + 1), generator=torch.Generator().manual_seed(seed))


def spread(network: LanguageModel) -> LanguageModel:
    """Larger weights than the first ones, so that no part of the network is close to doing nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return network


def counted(network: LanguageModel, rows: torch.Tensor, backward: bool) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        nats = network.loss(rows).nats
        if backward:
            nats.backward()
    return counter.get_total_flops()


@every_model
def test_every_parameter_is_in_one_group_and_the_groups_are_the_cost(model: Model) -> None:
    network = build(model, VOCABULARY, 0)
    groups = network.parameter_groups()
    ids = [id(parameter) for group in groups.values() for parameter in group]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in network.parameters()}
    sizes = {name: sum(parameter.numel() for parameter in group) for name, group in groups.items()}
    assert sizes == cost(model, VOCABULARY, 8).parameters
    assert cost(model, VOCABULARY, 8).total_parameters == sum(p.numel() for p in network.parameters())


@every_model
@pytest.mark.parametrize(("rows", "length"), [(1, 8), (3, 8), (2, 13)])
def test_flops_are_those_of_a_counter(model: Model, rows: int, length: int) -> None:
    expected = cost(model, VOCABULARY, length)
    batch = some_rows(rows, length)
    network = build(model, VOCABULARY, 0)
    assert counted(network, batch, backward=False) == expected.forward_flops_per_token * rows * length
    trained = counted(network, batch, backward=True)
    assert trained == pytest.approx(expected.train_flops_per_token * rows * length, rel=0.02)


@every_model
def test_a_later_token_changes_no_earlier_loss(model: Model) -> None:
    network, rows = spread(build(model, VOCABULARY, 0)), some_rows(2, 10)
    with torch.no_grad():
        before = network.token_losses(rows)
        for at in range(1, 11):
            changed = rows.clone()
            changed[:, at] = (changed[:, at] + 1) % VOCABULARY
            after = network.token_losses(changed)
            torch.testing.assert_close(after[:, : at - 1], before[:, : at - 1], rtol=1e-6, atol=1e-6)
            assert (after[:, at - 1 :] != before[:, at - 1 :]).any(dim=1).all()
            if at < 10:
                assert (after[:, -1] != before[:, -1]).all(), "and every earlier token is seen"


@every_model
def test_rows_do_not_see_each_other(model: Model) -> None:
    network, rows = spread(build(model, VOCABULARY, 0)), some_rows(4, 9)
    with torch.no_grad():
        together = network.token_losses(rows)
        alone = torch.cat([network.token_losses(row[None]) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@every_model
def test_the_loss_is_the_sum_over_all_predictions(model: Model) -> None:
    network, rows = spread(build(model, VOCABULARY, 0)), some_rows(3, 7)
    losses = network.token_losses(rows)
    assert losses.shape == (3, 7)
    loss = network.loss(rows)
    assert loss.predictions == 21
    assert loss.nats.item() == pytest.approx(losses.double().sum().item(), rel=1e-5)
    assert loss.nats.requires_grad


@every_family
def test_first_weights_predict_nothing_in_particular(family: str) -> None:
    network = build(Model(family=family, width=32, layers=2, heads=2), VOCABULARY, 0)
    assert network.token_losses(some_rows(8, 16)).mean().item() == pytest.approx(np.log(VOCABULARY), abs=0.1)


@every_model
def test_the_loss_falls_on_a_tiny_corpus(model: Model) -> None:
    stream = torch.tensor(list(itertools.islice(itertools.cycle([3, 7, 1, 7, 3, 2, 9, 20]), 200)))
    rows = stream[:192].view(12, 16)
    learner = Learner(build(model, VOCABULARY, 0), Train(batch=12), torch.device("cpu"))
    before = learner.score(rows, 12).mean().item()
    for _ in range(30):
        loss = learner.accumulate(rows, 12)
        learner.update(loss.predictions, 1e-2)
    assert learner.score(rows, 12).mean().item() < 0.5 * before


@every_model
def test_a_seed_decides_every_weight(model: Model) -> None:
    torch.manual_seed(1)
    one = build(model, VOCABULARY, 5).state_dict()
    torch.manual_seed(2)
    two, other = build(model, VOCABULARY, 5).state_dict(), build(model, VOCABULARY, 6).state_dict()
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name
        assert tensor.ndim < 2 or not torch.equal(tensor, other[name]), name


@every_family
def test_a_tied_head_is_the_embedding_and_costs_nothing_more(family: str) -> None:
    tied = Model(family=family, width=16, layers=1, heads=2, tied=True)
    untied = dataclasses.replace(tied, tied=False)
    sizes = [sum(p.numel() for p in build(model, VOCABULARY, 0).parameters()) for model in (tied, untied)]
    assert sizes[1] - sizes[0] == VOCABULARY * 16
    assert cost(untied, VOCABULARY, 8).parameters["head"] == VOCABULARY * 16
    assert cost(tied, VOCABULARY, 8).parameters["head"] == 0
    flops = {cost(model, VOCABULARY, 8).forward_flops_per_token for model in (tied, untied)}
    assert len(flops) == 1, "the product is computed either way"


@every_model
def test_decay_is_for_matrices_other_than_the_embedding(model: Model) -> None:
    network = build(model, VOCABULARY, 0)
    groups = network.parameter_groups()
    decayed = {id(parameter) for parameter in network.decayed()}
    embedding = {id(parameter) for parameter in groups["embedding"]}
    for parameter in network.parameters():
        assert (id(parameter) in decayed) == (parameter.ndim >= 2 and id(parameter) not in embedding)
    assert all(id(parameter) in decayed for parameter in groups["head"])
