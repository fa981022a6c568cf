"""BERT against the one of transformers, which was written by others."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from losses import loss_of
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shoestring.core.errors import UserError
from shoestring.core.family import network_cost
from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.families.masked_lm.network import MaskedLM
from shoestring.models.families.masked_lm.transformers import FORMAT
from shoestring.models.layers.cross_entropy import IGNORED

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 37, 12
MASKED = [
    Model(family="masked_lm", width=16, layers=1, heads=1),
    Model(family="masked_lm", width=24, layers=3, heads=3, tied=False, positions=20),
    Model(family="masked_lm", width=32, layers=2, heads=4, hidden=10),
]
CLASSIFIERS = [
    Model(family="masked_lm", width=16, layers=2, heads=2, classes=2),
    Model(family="masked_lm", width=24, layers=1, heads=3, hidden=10, classes=5, positions=20),
]
masked_models = pytest.mark.parametrize("model", MASKED, ids=["one head", "untied", "narrow"])
every_model = pytest.mark.parametrize(
    "model", MASKED + CLASSIFIERS, ids=["one head", "untied", "narrow", "two classes", "five classes"]
)


def some_ids(rows: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def some_batch(model: Model, rows: int = 3, length: int = LENGTH, share: float = 0.4) -> Batch:
    """Rows of different lengths with padding, and something to predict in each."""
    ids, places = some_ids(rows, length), torch.arange(length)
    segments = (places < length - 2 * torch.arange(rows)[:, None]).long()
    if model.classes:
        return Batch(ids, segments, wanted=torch.arange(rows)[:, None] % model.classes)
    chosen = torch.rand(rows, length, generator=torch.Generator().manual_seed(2)) < share
    return Batch(ids, segments, wanted=torch.where(chosen & (segments != 0), some_ids(rows, length, 3), IGNORED))


def spread(network: MaskedLM, size: float = 0.2) -> MaskedLM:
    """Larger weights than the first ones, biases and gains too, so that no part is close to doing nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return network


def theirs_of(model: Model, vocabulary: int = VOCABULARY, length: int = LENGTH) -> torch.nn.Module:
    config = transformers.BertConfig(**FORMAT.config(model, vocabulary, length), attn_implementation="eager")
    kind = transformers.BertForSequenceClassification if model.classes else transformers.BertForMaskedLM
    network: torch.nn.Module = kind(config).eval()
    return network


def twins(model: Model) -> tuple[MaskedLM, torch.nn.Module]:
    """Ours and theirs with the same weights."""
    ours, theirs = spread(MaskedLM(model, VOCABULARY, LENGTH, 0)), theirs_of(model)
    missing, unexpected = theirs.load_state_dict(FORMAT.write(ours), strict=False)
    tied = [] if model.classes or not model.tied else ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]
    assert missing == tied and not unexpected
    return ours.eval(), theirs


def their_logits(theirs: torch.nn.Module, batch: Batch) -> Tensor:
    mask = None if batch.segments is None else (batch.segments != 0).long()
    logits: Tensor = theirs(batch.ids, attention_mask=mask).logits
    return logits


@every_model
@pytest.mark.parametrize("padded", [False, True])
def test_logits_are_those_of_transformers(model: Model, padded: bool) -> None:
    ours, theirs = twins(model)
    batch = some_batch(model)
    batch = batch if padded else batch._replace(segments=None)
    with torch.no_grad():
        mine, expected = ours.logits(batch.inputs()), their_logits(theirs, batch)
    assert expected.abs().max() > 0.5, "the comparison must not be one of small numbers"
    if model.classes:
        assert mine.shape == (3, 1, model.classes)
        mine = mine[:, 0]
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)  # of padding too, which sees what others see


@every_model
def test_loss_and_gradients_are_those_of_transformers(model: Model) -> None:
    ours, theirs = twins(model)
    batch = some_batch(model)
    assert batch.wanted is not None
    nats = ours(batch)
    nats.backward()
    logits = their_logits(theirs, batch).view(*batch.wanted.shape, -1)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.wanted.flatten(), reduction="sum", ignore_index=IGNORED)
    expected.backward()
    assert nats.item() == pytest.approx(expected.item(), rel=1e-5)
    gradients = FORMAT.read({name: p.grad for name, p in theirs.named_parameters() if p.grad is not None})
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-4, msg=name)


@every_model
def test_token_losses_add_up_to_the_loss(model: Model) -> None:
    network, batch = spread(MaskedLM(model, VOCABULARY, LENGTH, 0)), some_batch(model)
    assert batch.wanted is not None
    losses, loss = network.token_losses(batch), loss_of(network, batch)
    assert losses.shape == batch.wanted.shape and losses.dtype == torch.float32
    assert loss.predictions == int((batch.wanted != IGNORED).sum())
    assert losses.sum().item() == pytest.approx(loss.nats.item(), rel=1e-5)
    assert ((losses > 0) == (batch.wanted != IGNORED)).all()


@masked_models
def test_a_part_of_the_positions_gives_the_loss_of_all(model: Model) -> None:
    """Whatever number of positions goes through the head, if it is enough."""
    batch = some_batch(model, rows=16, share=0.15)
    assert batch.wanted is not None
    count = int((batch.wanted != IGNORED).sum())
    assert 5 < count < 64
    network = spread(MaskedLM(model, VOCABULARY, LENGTH, 0))
    logits = network.logits(batch.inputs())
    losses = F.cross_entropy(logits.transpose(1, 2), batch.wanted, reduction="none", ignore_index=IGNORED)
    losses.sum().backward()
    expected = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    for most in (None, count, 100, 10_000):
        network.zero_grad()
        bounded = batch._replace(most=most)
        nats = network(bounded)
        nats.backward()
        assert nats.item() == pytest.approx(losses.sum().item(), rel=1e-5)
        for parameter, gradient in zip(network.parameters(), expected):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(network.token_losses(bounded), losses.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.02, 0.15, 0.5, 1.0])
def test_batches_of_a_shape_have_one_bound_whatever_chance_hides(share: float) -> None:
    """What goes through the head has one size then, and a device's memory no holes of other sizes."""
    generator, ids = torch.Generator().manual_seed(0), some_ids(64, 512)
    whole, halves = set(), set()
    for _ in range(200):
        hidden = torch.rand(ids.shape, generator=generator) < share
        batch = Batch(ids, wanted=ids.masked_fill(~hidden, IGNORED), share=share)
        assert (
            batch.predictions()
            <= batch.bound()
            <= min(ids.numel(), batch.predictions() * (1.2 if share > 0.1 else 1.4))
        )
        whole.add(batch.bound())
        halves |= {half.bound() for half in batch.split(32)}
    assert len(whole) == len(halves) == 1


def test_a_bound_is_never_passed_and_known_where_nothing_is_hidden_by_chance() -> None:
    ids = some_ids(4, LENGTH)
    assert Batch(ids, wanted=ids, share=0.01).bound() == ids.numel(), "more were hidden than chance explains"
    assert Batch(ids, wanted=ids.masked_fill(ids > 3, IGNORED)).bound() == int((ids <= 3).sum())
    assert Batch(ids).bound() == Batch(ids).predictions()


def test_too_small_a_bound_is_noticed() -> None:
    network, ids = MaskedLM(MASKED[0], VOCABULARY, LENGTH, 0), some_ids(16, LENGTH)
    batch = Batch(ids, wanted=ids)  # 192 predictions
    assert math.isfinite(network(batch._replace(most=192)).item())
    nats = network(batch._replace(most=128))
    nats.backward()
    assert math.isnan(nats.item())
    assert network.embedding.weight.grad is not None and network.embedding.weight.grad.isnan().any(), "no step is taken"
    assert network.token_losses(batch._replace(most=128)).isnan().sum() == 64


def test_a_batch_without_predictions_costs_nothing_and_has_a_gradient() -> None:
    network, ids = MaskedLM(MASKED[0], VOCABULARY, LENGTH, 0), some_ids(16, LENGTH)
    nats = network(Batch(ids, wanted=torch.full_like(ids, IGNORED)))
    nats.backward()
    assert nats.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in network.parameters())


@every_model
def test_weights_go_to_transformers_and_back(model: Model) -> None:
    ours, theirs = twins(model)
    state = ours.state_dict()
    for given in (theirs.state_dict(), FORMAT.write(ours)):
        found = FORMAT.read(given)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)
    assert all(value.is_contiguous() for value in FORMAT.write(ours).values())
    places = [value.untyped_storage().data_ptr() for value in FORMAT.write(ours).values()]
    assert len(places) == len(set(places)), "a file of weights holds each once"


@every_model
def test_a_folder_of_these_weights_is_one_of_transformers(model: Model, tmp_path: Path) -> None:
    ours, theirs = twins(model)
    transformers.BertConfig(**FORMAT.config(model, VOCABULARY, LENGTH)).save_pretrained(tmp_path)
    save_file(FORMAT.write(ours), tmp_path / "model.safetensors", {"format": "pt"})
    kind = transformers.BertForSequenceClassification if model.classes else transformers.BertForMaskedLM
    ids = some_ids(2, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(kind.from_pretrained(tmp_path).eval()(ids).logits, theirs(ids).logits)


def test_the_published_file_is_understood() -> None:
    """It has old names for norms, positions as a buffer, a pooler, and a head for pairs of sentences."""
    model = MASKED[0]
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**FORMAT.config(model, VOCABULARY, LENGTH)))
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in theirs.state_dict().items()
    }
    state["bert.embeddings.position_ids"] = torch.arange(LENGTH)[None]
    network = MaskedLM(model, VOCABULARY, LENGTH, 0)
    assert network.take_over(FORMAT.read(state), "here") == []
    ids = some_ids(2, LENGTH)
    with torch.no_grad():
        expected = theirs.eval()(ids).prediction_logits
        torch.testing.assert_close(network.logits(ids), expected, rtol=1e-5, atol=1e-5)
    bare = {name.removeprefix("bert."): value for name, value in theirs.bert.state_dict().items()}
    kept = MaskedLM(CLASSIFIERS[0], VOCABULARY, LENGTH, 0)
    with pytest.raises(UserError, match=r"here does not fit .*: blocks\.1\.qkv\.weight is missing"):
        kept.take_over(FORMAT.read(bare), "here")
    with pytest.raises(UserError, match=r"bert\.visual\.weight: BERT has no such weights"):
        FORMAT.read(bare | {"visual.weight": torch.zeros(1)})
    with pytest.raises(UserError, match="not the weights of a BERT"):
        FORMAT.read({"transformer.wte.weight": torch.zeros(2, 2)})


@pytest.mark.parametrize("tied", [True, False])
def test_an_encoder_goes_from_masked_model_to_classifier_and_back(tied: bool) -> None:
    model = Model(family="masked_lm", width=16, layers=2, heads=2, tied=tied)
    masked = spread(MaskedLM(model, VOCABULARY, LENGTH, 0))
    classifier = MaskedLM(dataclasses.replace(model, classes=3), VOCABULARY, LENGTH, 1)
    kept = classifier.take_over(masked.state_dict(), "here")
    assert kept == ["pooler.weight", "pooler.bias", "classifier.weight", "classifier.bias"]
    batch = Batch(some_ids(2, LENGTH))
    assert torch.equal(classifier.encode(batch), masked.encode(batch))
    again = MaskedLM(model, VOCABULARY, LENGTH, 2)
    kept = again.take_over(classifier.state_dict(), "here")
    own = [] if tied else ["head.weight"]
    transform = ["transform.weight", "transform.bias", "transform_norm.weight", "transform_norm.bias"]
    assert sorted(kept) == sorted([*transform, "head.bias", *own])
    assert torch.equal(again.encode(batch), masked.encode(batch))
    assert torch.equal(again.embedding.weight, masked.embedding.weight)
    more = MaskedLM(dataclasses.replace(model, classes=4), VOCABULARY, LENGTH, 3)
    assert more.take_over(classifier.state_dict(), "here") == ["classifier.weight", "classifier.bias"]


def test_an_encoder_of_another_shape_is_refused_and_nothing_changes() -> None:
    network, other = (MaskedLM(Model(family="masked_lm", width=16, layers=1, heads=2), 37, n, n) for n in (12, 20))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(UserError, match=r"positions\.weight is \(20, 16\) there, and \(12, 16\) here"):
        network.take_over(other.state_dict(), "here")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@every_model
def test_the_configuration_describes_the_same_network(model: Model) -> None:
    theirs = theirs_of(model)
    count = sum(p.numel() for p in theirs.parameters())
    if not model.tied:
        count -= VOCABULARY  # a second bias, which nothing reads
    assert count == network_cost(model, VOCABULARY, LENGTH).total_parameters


def test_the_sizes_of_the_published_model() -> None:
    base = Model(family="masked_lm", width=768, layers=12, heads=12, positions=512)
    classifier = Model(family="masked_lm", width=768, layers=12, heads=12, positions=512, classes=2)
    assert network_cost(base, 30_522, 128).total_parameters == 109_514_298
    with torch.device("meta"):
        for model in (base, classifier):
            count = sum(p.numel() for p in theirs_of(model, 30_522, 128).parameters())
            assert count == network_cost(model, 30_522, 128).total_parameters


@every_model
def test_the_cost_is_the_counted_one(model: Model) -> None:
    network, batch = MaskedLM(model, VOCABULARY, LENGTH, 0), some_batch(model)
    expected = network_cost(model, VOCABULARY, LENGTH)
    sizes = {name: sum(p.numel() for p in group) for name, group in network.parameter_groups().items()}
    assert sizes == expected.parameters
    assert sum(sizes.values()) == sum(p.numel() for p in network.parameters())
    if not model.classes:
        batch = batch._replace(wanted=batch.ids)
    assert counted(network, batch) == pytest.approx(expected.forward_flops_per_token * 3 * LENGTH, rel=1e-12)


@masked_models
def test_a_part_of_the_predictions_costs_its_part_of_the_head(model: Model) -> None:
    network, ids = MaskedLM(model, VOCABULARY, 16, 0), some_ids(3, 16)
    batch = Batch(ids, wanted=torch.where(torch.arange(16) % 4 == 0, ids, IGNORED))
    expected = network_cost(model, VOCABULARY, 16, predicted=0.25)
    assert counted(network, batch) == expected.forward_flops_per_token * 3 * 16


def counted(network: MaskedLM, batch: Batch) -> int:
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network(batch)
    return int(counter.get_total_flops())


@every_model
def test_padding_changes_nothing(model: Model) -> None:
    network, batch = spread(MaskedLM(model, VOCABULARY, LENGTH, 0)), some_batch(model)
    assert batch.segments is not None and batch.wanted is not None
    before = network.token_losses(batch)
    other = torch.where(batch.segments == 0, (batch.ids + 7) % VOCABULARY, batch.ids)
    torch.testing.assert_close(network.token_losses(batch._replace(ids=other)), before, rtol=1e-6, atol=1e-6)
    for row in range(3):
        length = LENGTH - 2 * row
        alone = Batch(batch.ids[row : row + 1, :length], wanted=batch.wanted[row : row + 1, :length])
        torch.testing.assert_close(
            network.token_losses(alone)[0], before[row, :length], rtol=1e-5, atol=1e-5, msg=f"row {row}"
        )


@every_model
def test_a_row_of_padding_is_finite(model: Model) -> None:
    network, batch = spread(MaskedLM(model, VOCABULARY, LENGTH, 0)), some_batch(model)
    assert batch.segments is not None and batch.wanted is not None
    batch.segments[1], batch.wanted[1] = 0, IGNORED
    nats = network(batch)
    nats.backward()
    assert nats.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@masked_models
def test_every_position_sees_every_token(model: Model) -> None:
    network, ids = spread(MaskedLM(model, VOCABULARY, LENGTH, 0)), some_ids(2, LENGTH)
    with torch.no_grad():
        before = network.logits(ids)
        for at in range(LENGTH):
            changed = ids.clone()
            changed[:, at] = (changed[:, at] + 1) % VOCABULARY
            assert (network.logits(changed) != before).any(-1).all()


@pytest.mark.parametrize("classes", [None, 3])
def test_dropout_is_for_training_alone(classes: int | None) -> None:
    one, two = (
        MaskedLM(
            Model(family="masked_lm", width=16, layers=2, heads=2, dropout=d, classes=classes), VOCABULARY, LENGTH, 0
        )
        for d in (0.0, 0.4)
    )
    batch = some_batch(Model(classes=classes))
    assert torch.equal(one.eval().token_losses(batch), two.eval().token_losses(batch))
    two.train()
    assert not torch.equal(two.token_losses(batch), two.token_losses(batch))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 products
@every_model
def test_half_precision_is_close(model: Model) -> None:
    network, batch = spread(MaskedLM(model, VOCABULARY, LENGTH, 0), 0.05), some_batch(model)
    exact = network(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network.hidden(batch.inputs()).dtype == torch.bfloat16
        half = network(batch)
    half.backward()
    assert half.item() == pytest.approx(exact.item(), rel=1e-2)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in network.parameters())


@every_model
def test_a_seed_decides_every_weight(model: Model) -> None:
    torch.manual_seed(1)
    one = MaskedLM(model, VOCABULARY, LENGTH, 5).state_dict()
    torch.manual_seed(2)
    two, other = (MaskedLM(model, VOCABULARY, LENGTH, seed).state_dict() for seed in (5, 6))
    for name, value in one.items():
        assert torch.equal(value, two[name]), name
        assert value.ndim < 2 or not torch.equal(value, other[name]), name
        expected = 0.02 if value.ndim == 2 else float(name.endswith("weight"))
        assert (value.std() if value.ndim == 2 else value.mean()).item() == pytest.approx(expected, rel=0.4), name


@pytest.mark.parametrize("classes", [None, 3])
def test_a_row_that_is_too_long_is_refused(classes: int | None) -> None:
    network = MaskedLM(Model(family="masked_lm", width=16, layers=1, heads=2, classes=classes), VOCABULARY, LENGTH, 0)
    with pytest.raises(UserError, match="a row of 13 tokens: the model has 12 positions"):
        network.logits(some_ids(1, 13))


def test_the_stream_is_wide_in_half_precision() -> None:
    """In bf16 the stream itself is not rounded, and the encoder's output is as near to fp32 as its products allow."""
    model = Model(family="masked_lm", width=32, layers=8, heads=4)
    network, inputs = spread(MaskedLM(model, VOCABULARY, LENGTH, 0), 0.02), Batch(some_ids(4, LENGTH))
    exact, seen = network.encode(inputs), list[Tensor]()
    for block in network.blocks:
        block.register_forward_hook(lambda _, given, found: seen.extend((*given[:1], found)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = network.encode(inputs)
    assert len(seen) == 2 * model.layers
    assert all(x.dtype == torch.float32 and not torch.equal(x, x.bfloat16().float()) for x in seen)
    assert (found - exact).norm() < 2**-9 * exact.norm(), "less than one rounding to bf16"
