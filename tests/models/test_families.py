"""What holds for every family: the cost is the counted one, nothing is seen that must not be, the loss falls."""

import dataclasses
import itertools
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from losses import loss_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shoestring.core.family import network_cost as cost
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.models.families import FAMILIES
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers.blocks import Block, Recompute
from shoestring.models.layers.cross_entropy import IGNORED
from shoestring.training.learner import Learner

VOCABULARY, LENGTH = 23, 16
OWN = sorted(set(FAMILIES) - {"hf"})
"""Those whose shapes a recipe gives."""
OF_FAMILY: dict[str, dict[str, Any]] = {"perceiver_ar": {"latents": 5}}
SHAPES: list[dict[str, Any]] = [
    {"width": 16, "layers": 1, "heads": 2},
    {"width": 24, "layers": 3, "heads": 3, "tied": False},
    {"width": 32, "layers": 2, "heads": 4, "hidden": 7},
]


ALL_PARTS = "qk_norm, gains, relu2, zero_outputs, embedding_norm, soft_cap:9, value_embeddings, scales, convolutions"
SWIFTS = [
    Model(family="swift", width=16, layers=3, heads=2, parts=ALL_PARTS, pairs=30, pointer=8, tied=False),
    Model(family="swift", width=48, layers=2, heads=6, kv_heads=3, parts="embedding_norm, value_embeddings, soft_cap"),
]


def shaped(family: str, shape: dict[str, Any]) -> Model:
    """A model of a family, with what that needs besides its shape."""
    return Model(**{"family": family} | shape | OF_FAMILY.get(family, {}))


TOKEN_MODELS = [*(shaped(family, shape) for family in OWN for shape in SHAPES), *SWIFTS]
CLASSIFIER = shaped("masked_lm", SHAPES[2] | {"classes": 4})
CAUSAL = [model for model in TOKEN_MODELS if model.family != "masked_lm"]
ENCODERS = [CLASSIFIER, *(model for model in TOKEN_MODELS if model.family == "masked_lm")]


def name_of(model: Model) -> str:
    return f"{model.family}-{model.classes or model.width}{'-parts' * (model.parts is not None)}"


every_family = pytest.mark.parametrize("family", OWN)
every_model = pytest.mark.parametrize("model", [*TOKEN_MODELS, CLASSIFIER], ids=name_of)
every_causal_model = pytest.mark.parametrize("model", CAUSAL, ids=name_of)
every_encoder = pytest.mark.parametrize("model", ENCODERS, ids=name_of)


def small(family: str, **fields: Any) -> Model:
    return shaped(family, {"width": 16, "layers": 2, "heads": 2} | fields)


def some_ids(rows: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def some_rows(model: Model, rows: int, length: int, every: bool = False) -> Batch:
    """Rows of the kind that a family reads; of an encoder all tokens are to be predicted, or every third."""
    if model.family != "masked_lm":
        return Batch(some_ids(rows, length + 1), last=model.latents)
    wanted = some_ids(rows, length, 1)
    if model.classes:
        return Batch(some_ids(rows, length), wanted=wanted[:, :1] % model.classes)
    left_out = (torch.arange(length) % 3 != 1).expand(rows, -1)
    return Batch(some_ids(rows, length), wanted=wanted if every else wanted.masked_fill(left_out, IGNORED))


def made(model: Model, length: int = LENGTH) -> LanguageModel:
    """A network with larger weights than the first ones, so that no part is close to doing nothing; in evaluation."""
    network, generator = build(model, VOCABULARY, length, 0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return network.eval()


def plain_loss(network: LanguageModel, batch: Batch) -> Tensor:
    """The summed loss from all logits."""
    logits = network.logits(batch.inputs())
    targets = batch.targets()[:, -logits.shape[1] :]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


@every_model
def test_every_parameter_is_in_one_group_and_the_groups_are_the_cost(model: Model) -> None:
    network = build(model, VOCABULARY, LENGTH, 0)
    groups = network.parameter_groups()
    ids = [id(parameter) for group in groups.values() for parameter in group]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in network.parameters()}
    sizes = {name: sum(parameter.numel() for parameter in group) for name, group in groups.items()}
    assert sizes == cost(model, VOCABULARY, LENGTH).parameters
    assert cost(model, VOCABULARY, LENGTH).total_parameters == sum(p.numel() for p in network.parameters())


@every_model
@pytest.mark.parametrize(("rows", "length"), [(1, 8), (3, 8), (2, 13)])
def test_flops_are_those_of_a_counter(model: Model, rows: int, length: int) -> None:
    expected = cost(model, VOCABULARY, length)
    batch = some_rows(model, rows, length, every=True)
    network = build(model, VOCABULARY, length, 0)  # in training, as the cost says
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as forward:
        loss_of(network, batch)
    assert forward.get_total_flops() == pytest.approx(expected.forward_flops_per_token * rows * length, rel=1e-12)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as both:
        plain_loss(network, batch).backward()
    assert both.get_total_flops() == pytest.approx(expected.train_flops_per_token * rows * length, rel=0.02)


@every_causal_model
def test_a_later_token_changes_no_earlier_loss(model: Model) -> None:
    network, batch = made(model), some_rows(model, 2, 10)
    before = network.token_losses(batch)
    for at in range(1, 11):
        changed = batch.ids.clone()
        changed[:, at] = (changed[:, at] + 1) % VOCABULARY
        after = network.token_losses(batch._replace(ids=changed))
        torch.testing.assert_close(after[:, : at - 1], before[:, : at - 1], rtol=1e-6, atol=1e-6)
        assert (after[:, at - 1 :] != before[:, at - 1 :]).any(dim=1).all()
        if at < 10:
            assert (after[:, -1] != before[:, -1]).all(), "and every earlier token is seen"


@every_encoder
def test_an_encoder_sees_all_tokens_of_a_row(model: Model) -> None:
    network, batch = made(model), some_rows(model, 2, 10)
    before = network.token_losses(batch)
    for at in range(10):
        changed = batch.ids.clone()
        changed[:, at] = (changed[:, at] + 1) % VOCABULARY
        after = network.token_losses(batch._replace(ids=changed))
        assert ((after != before) == batch.predicted()).all()


@every_model
def test_padding_is_not_seen(model: Model) -> None:
    network, batch = made(model), some_rows(model, 3, 10)
    used = torch.tensor([[10], [8], [9]]) > torch.arange(batch.ids.shape[1])
    batch = batch._replace(segments=used.long())
    if model.family == "masked_lm" and not model.classes:
        batch = batch._replace(wanted=batch.targets().masked_fill(~used, IGNORED))
    other = batch._replace(ids=torch.where(used, batch.ids, (batch.ids + 1) % VOCABULARY))
    losses = network.token_losses(batch)
    torch.testing.assert_close(network.token_losses(other), losses, rtol=1e-6, atol=1e-6)
    assert ((losses != 0) == batch.predicted()).all(), "nor predicted"


@every_model
def test_rows_do_not_see_each_other(model: Model) -> None:
    network, batch = made(model), some_rows(model, 4, 9)
    together = network.token_losses(batch)
    alone = torch.cat([network.token_losses(batch.part(row, row + 1)) for row in range(4)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@every_model
def test_the_loss_is_the_sum_over_all_predictions_and_that_of_all_logits(model: Model) -> None:
    network, batch = made(model), some_rows(model, 3, 7)
    losses = network.token_losses(batch)
    assert losses.shape == batch.targets().shape
    loss = loss_of(network, batch)
    assert loss.predictions == batch.predictions() == int((losses != 0).sum())
    assert loss.nats.item() == pytest.approx(losses.double().sum().item(), rel=1e-5)
    plain = plain_loss(network, batch)
    assert loss.nats.item() == pytest.approx(plain.item(), rel=1e-5)
    parameters = [p for p in network.parameters() if p.requires_grad]
    ours = torch.autograd.grad(loss.nats, parameters, allow_unused=True)
    for mine, expected in zip(ours, torch.autograd.grad(plain, parameters, allow_unused=True)):
        assert (mine is None) == (expected is None)
        if mine is not None and expected is not None:
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


@every_model
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_changes_no_gradient(model: Model, dropout: float) -> None:
    model = dataclasses.replace(model, dropout=dropout)
    batch, found = some_rows(model, 3, 9), []
    for recompute in get_args(Recompute):
        network = made(model).train()
        for block in network.blocks:
            assert isinstance(block, Block)
            block.recompute = recompute
        torch.manual_seed(0)  # some positions of a prefix are left out, and some channels
        loss_of(network, batch).nats.backward()
        found.append([p.grad for p in network.parameters()])
    for others in found[1:]:
        for mine, first in zip(others, found[0]):
            assert (mine is None) == (first is None)
            if mine is not None and first is not None:
                torch.testing.assert_close(mine, first, rtol=1e-5, atol=1e-5)


@every_model
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_half_precision_is_close(model: Model) -> None:
    network, batch = build(model, VOCABULARY, LENGTH, 0).eval(), some_rows(model, 3, 9)
    exact = loss_of(network, batch).nats.item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network.hidden(batch.inputs()).dtype == torch.bfloat16
        assert loss_of(network, batch).nats.item() == pytest.approx(exact, rel=0.01)


@every_model
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_weights_in_half_precision_are_close(model: Model) -> None:
    """No autocast: all weights are in bf16, as one may load them to save memory."""
    network, batch = build(model, VOCABULARY, LENGTH, 0).eval(), some_rows(model, 3, 9)
    exact = loss_of(network, batch).nats.item()
    assert loss_of(network.bfloat16(), batch).nats.item() == pytest.approx(exact, rel=0.01)


@every_family
def test_dropout_is_for_training_alone(family: str) -> None:
    model = small(family, dropout=0.5) if family != "perceiver_ar" else small(family, dropout=0.5, prefix_dropout=0.0)
    network, batch = made(model), some_rows(model, 3, 9)
    scored = [network.token_losses(batch) for _ in range(2)]
    assert torch.equal(*scored)
    network.train()
    assert not torch.equal(*(network.token_losses(batch) for _ in range(2)))


@every_model
def test_first_weights_predict_nothing_in_particular(model: Model) -> None:
    network, batch = build(model, VOCABULARY, LENGTH, 0), some_rows(model, 8, LENGTH)
    losses = network.token_losses(batch)[batch.predicted()]
    assert losses.mean().item() == pytest.approx(np.log(model.classes or VOCABULARY), abs=0.1)


@every_model
def test_the_loss_falls_on_a_tiny_corpus(model: Model) -> None:
    stream = torch.tensor(list(itertools.islice(itertools.cycle([3, 7, 1, 7, 3, 2, 9, 20]), 200)))
    rows = stream[:192].view(12, 16)
    batch = Batch(rows, last=model.latents)
    if model.classes:
        batch = Batch(rows, wanted=torch.arange(12)[:, None] % 2)
        batch.ids[::2, 4] = 11  # what tells the two classes apart
    elif model.family == "masked_lm":
        shown = (torch.arange(16) % 3 != 1).expand(12, -1)
        batch = Batch(torch.where(shown, rows, VOCABULARY - 1), wanted=rows.masked_fill(shown, IGNORED))
    learner = Learner(build(model, VOCABULARY, LENGTH, 0), Train(batch=12, lr=1e-3), torch.device("cpu"))
    before = learner.score(batch, 12).nanmean().item()
    for _ in range(25):
        learner.update(learner.accumulate(batch, 12), 2e-2)
    assert learner.score(batch, 12).nanmean().item() < 0.5 * before


@every_model
def test_a_seed_decides_every_weight(model: Model) -> None:
    torch.manual_seed(1)
    one = build(model, VOCABULARY, LENGTH, 5).state_dict()
    torch.manual_seed(2)
    two, other = build(model, VOCABULARY, LENGTH, 5).state_dict(), build(model, VOCABULARY, LENGTH, 6).state_dict()
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name
        drawn = tensor.ndim >= 2 and bool(tensor.any())
        assert not drawn or not torch.equal(tensor, other[name]), name


@every_model
def test_a_state_is_the_whole_network(model: Model) -> None:
    network, other = made(model), build(model, VOCABULARY, LENGTH, 9).eval()
    other.load_state_dict(network.state_dict())
    batch = some_rows(model, 2, LENGTH)
    assert torch.equal(other.token_losses(batch), network.token_losses(batch))


@every_family
def test_a_tied_head_is_the_embedding_and_costs_nothing_more(family: str) -> None:
    tied = small(family, tied=True)
    untied = dataclasses.replace(tied, tied=False)
    sizes = [sum(p.numel() for p in build(model, VOCABULARY, LENGTH, 0).parameters()) for model in (tied, untied)]
    assert sizes[1] - sizes[0] == VOCABULARY * 16
    heads = [cost(model, VOCABULARY, LENGTH).parameters["head"] for model in (tied, untied)]
    assert heads[1] - heads[0] == VOCABULARY * 16
    flops = {cost(model, VOCABULARY, LENGTH).forward_flops_per_token for model in (tied, untied)}
    assert len(flops) == 1, "the product is computed either way"


@every_model
def test_decay_is_for_matrices_other_than_the_embedding(model: Model) -> None:
    network = build(model, VOCABULARY, LENGTH, 0)
    embedding = {id(parameter) for parameter in network.parameter_groups()["embedding"]}
    decayed = {id(parameter) for parameter in network.decayed()}
    for parameter in network.parameters():
        assert (id(parameter) in decayed) == (parameter.ndim >= 2 and id(parameter) not in embedding)


@every_model
def test_the_layers_are_all_there_is_of_attention_and_mlp(model: Model) -> None:
    network = build(model, VOCABULARY, LENGTH, 0)
    assert len(network.blocks) == model.layers
    inside = {id(parameter) for block in network.blocks for parameter in block.parameters()}
    groups = network.parameter_groups()
    assert {id(parameter) for name in ("attention", "mlp") for parameter in groups[name]} <= inside
    assert not inside & {id(parameter) for name in ("embedding", "head") for parameter in groups[name]}
