"""Perceiver AR against the published sizes, and against a loop over positions, heads and keys in float64."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from functools import partial

import jaxtyping
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from losses import loss_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shoestring.core.errors import UserError
from shoestring.core.family import network_cost
from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.families.perceiver_ar import kept_of
from shoestring.models.families.perceiver_ar.network import PerceiverAR, attend_to_past
from shoestring.models.generate import Drawing, generate
from shoestring.models.layers.blocks import Block

VOCABULARY, LENGTH = 19, 11
SMALL = Model(family="perceiver_ar", width=16, layers=3, heads=2, latents=4)
MODELS = [
    SMALL,
    dataclasses.replace(SMALL, layers=1, heads=4, hidden=10, tied=False),
    dataclasses.replace(SMALL, width=24, layers=2, heads=1, latents=7, prefix_dropout=0.3),
    dataclasses.replace(SMALL, width=21, layers=2, heads=3, latents=5),
]
every_model = pytest.mark.parametrize(
    "model", MODELS, ids=["three layers", "untied, one layer", "one head", "odd heads"]
)


written = partial(generate, length=LENGTH)


def made(model: Model, seed: int = 0, length: int = LENGTH) -> PerceiverAR:
    """A network with weights so large that every part matters, biases and gains included; in evaluation."""
    network = PerceiverAR(model, VOCABULARY, length, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            centre, size = float("norm" in name and name.endswith("weight")), 0.3 if p.ndim == 2 else 0.2
            p.copy_(centre + size * torch.randn(p.shape, generator=generator))
    return network.eval()


def some_rows(rows: int, length: int, seed: int = 3) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length + 1), generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------ the plain implementation


def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.sum() / len(x)
    return centred / ((centred * centred).sum() / len(x) + 1e-5).sqrt() * weight + bias


def plain_turn(vector: Tensor, position: int) -> Tensor:
    """Of 16 channels: c and c + 4 for c < 4 are a point of the plane, turned by position / 10000^(2c/8).

    A half that is odd has one pair more, as in the published models with 54 and 91 channels a head.
    """
    half, turned = len(vector) // 2, list(vector)
    pairs = (half + 1) // 2
    for c in range(pairs):
        angle = position / 10000 ** (2 * c / half)
        a, b = vector[c], vector[c + pairs]
        turned[c] = a * math.cos(angle) - b * math.sin(angle)
        turned[c + pairs] = b * math.cos(angle) + a * math.sin(angle)
    return torch.stack(turned)


def plain_logits(model: Model, w: dict[str, Tensor], row: list[int], kept: list[int] | None = None) -> Tensor:
    """Of the latents of one row; `kept` are the positions of the prefix that are there."""
    split = max(0, len(row) - (model.latents or 0))
    prefix = list(range(split)) if kept is None else kept
    latents = list(range(split, len(row)))
    stream = {at: w["embedding.weight"][row[at]] + w["positions.weight"][at] for at in prefix + latents}
    width, size = model.width, model.width // model.heads
    for layer in range(model.layers):
        p = {name.split(".", 2)[2]: value for name, value in w.items() if name.startswith(f"blocks.{layer}.")}
        normed = {at: plain_norm(stream[at], p["norm1.weight"], p["norm1.bias"]) for at in latents}
        if layer == 0:
            gain, shift = p["prefix_norm.weight"], p["prefix_norm.bias"]
            normed |= {at: plain_norm(stream[at], gain, shift) for at in prefix}
        else:
            stream = {at: stream[at] for at in latents}
        after = {}
        for at in latents:
            parts = []
            for head in range(model.heads):
                own = [slice(i * width + head * size, i * width + (head + 1) * size) for i in range(3)]
                q, k, v = (p["qkv.weight"][part] for part in own)
                seen = [s for s in normed if s <= at]
                query = plain_turn(q @ normed[at], at)
                scores = torch.stack([query @ plain_turn(k @ normed[s], s) for s in seen]) / math.sqrt(size)
                shares = scores.exp() / scores.exp().sum()
                parts.append(sum(share * (v @ normed[s]) for share, s in zip(shares, seen)))
            x = stream[at] + p["out.weight"] @ torch.cat(parts) + p.get("out.bias", 0.0)
            up = p["up.weight"] @ plain_norm(x, p["norm2.weight"], p["norm2.bias"])
            after[at] = x + p["down.weight"] @ (up * (1 + torch.erf(up / math.sqrt(2))) / 2)
        stream = after
    return torch.stack([w["head.weight"] @ stream[at] + w["head.bias"] for at in latents])


def weights64(network: PerceiverAR) -> dict[str, Tensor]:
    """Leaves of their own; a tied head is the embedding here too."""
    found = {name: p.detach().double().requires_grad_() for name, p in network.named_parameters()}
    return {"head.weight": found["embedding.weight"]} | found


def plain_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([x.exp().sum().log() - x[target] for x, target in zip(logits, targets)])


@every_model
@pytest.mark.parametrize("length", [LENGTH, 8, 5, 3, 1], ids=lambda n: f"{n} positions")
def test_logits_and_losses_are_those_of_a_plain_implementation(model: Model, length: int) -> None:
    """Rows of the full length, shorter ones, and those without a prefix."""
    network, rows = made(model), some_rows(2, length)
    latents = min(model.latents or 0, length)
    with torch.no_grad():
        logits, losses = network.logits(rows[:, :-1]), network.token_losses(rows)
    assert logits.shape == (2, latents, VOCABULARY) and losses.shape == (2, length)
    assert (losses[:, :-latents] == 0).all()
    for row, mine, lost in zip(rows, logits, losses):
        expected = plain_logits(model, weights64(network), row[:-1].tolist()).detach()
        assert expected.abs().max() > 1, "the comparison must not be one of small numbers"
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(lost[-latents:].double(), plain_loss(expected, row[-latents:]), rtol=1e-4, atol=1e-4)


@every_model
def test_gradients_in_training_are_those_of_a_plain_implementation_without_the_dropped_prefix(model: Model) -> None:
    network, rows = made(model).train(), some_rows(2, LENGTH)
    looked_up: list[Tensor] = []
    hook = network.positions.register_forward_hook(lambda _, inputs, __: looked_up.append(inputs[0]))
    torch.manual_seed(0)
    loss = loss_of(network, rows)
    hook.remove()
    loss.nats.backward()
    kept = next(places for places in looked_up if places.ndim == 2)  # R M
    latents = model.latents or 0
    assert loss.predictions == 2 * latents
    assert kept.shape == (2, LENGTH - latents - int((LENGTH - latents) * model.prefix_dropout))
    weights = weights64(network)
    expected = torch.zeros((), dtype=torch.float64)
    for row, places in zip(rows, kept.tolist()):
        assert sorted(set(places)) == places and max(places) < LENGTH - latents
        logits = plain_logits(model, weights, row[:-1].tolist(), places)
        expected = expected + plain_loss(logits, row[-latents:]).sum()
    assert loss.nats.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad.double(), weights[name].grad, rtol=1e-3, atol=1e-4, msg=name)


# ------------------------------------------------------------------ sizes and FLOPs

PUBLISHED = [
    # channels, layers, vocabulary, positions, N, N of the prefix, c_self, c_cross
    (512, 9, 32000, 2048, 45796096, 786432, 282335232, 7096320),
    (624, 11, 32000, 2048, 72704912, 958464, 449287488, 9906624),
    (728, 13, 32000, 2048, 107536488, 1118208, 664923168, 12920544),
    (512, 9, 262, 4096, 30563078, 1835008, 184836096, 16558080),
    (584, 10, 262, 4096, 43497166, 2093056, 264425856, 20652576),
    (584, 9, 262, 4096, 39402158, 2093056, 238075776, 20652576),
    (432, 7, 262, 4096, 17572726, 1548288, 104032512, 12519360),
    (768, 13, 262, 4096, 95401990, 2752512, 583962624, 33094656),
    (512, 9, 262, 2048, 29514502, 786432, 184836096, 7096320),
    (584, 10, 262, 2048, 42301134, 897024, 264425856, 8851104),
]
published = pytest.mark.parametrize("numbers", PUBLISHED, ids=lambda n: f"{n[0]}x{n[1]}-{n[2]}-{n[3]}")
Numbers = tuple[int, int, int, int, int, int, int, int]


@published
def test_sizes_are_the_published_ones(numbers: Numbers) -> None:
    """All parameters are counted: tables, output bias, norms. Those of cross-attention are positions of the prefix."""
    d, layers, vocabulary, length, size, of_prefix, _, _ = numbers
    model = Model(family="perceiver_ar", width=d, layers=layers, heads=8, latents=512)
    assert network_cost(model, vocabulary, length).total_parameters == size
    without_prefix = network_cost(model, vocabulary, 512).total_parameters
    assert size - without_prefix == of_prefix


def test_the_network_of_a_published_model_has_its_size() -> None:
    d, layers, vocabulary, length, size, of_prefix, _, _ = PUBLISHED[6]
    network = PerceiverAR(
        Model(family="perceiver_ar", width=d, layers=layers, heads=8, latents=512), vocabulary, length, 0
    )
    assert sum(p.numel() for p in network.parameters()) == size
    assert network.positions.weight[:-512].numel() == of_prefix


@published
def test_flops_of_the_article_are_ours_by_its_own_count(numbers: Numbers) -> None:
    """The article counts 4 D for an embedded token, of attention only queries with keys, and per latent."""
    d, layers, vocabulary, length, _, _, of_self, of_cross = numbers
    n, model = 512, Model(family="perceiver_ar", width=d, layers=layers, heads=8, latents=512)
    latents = network_cost(model, vocabulary, n).forward_flops_per_token * n
    row = network_cost(model, vocabulary, length).forward_flops_per_token * length
    assert 3 * round(latents / n - layers * 2 * d * n + 4 * d) == of_self
    m = length - n
    assert 3 * int(4 * d * m / n + round(row - latents - m / 2 * 2 * d * n) / n) == of_cross


@every_model
@pytest.mark.parametrize("length", [LENGTH, 9, 8])
def test_flops_are_those_of_a_counter_in_training(model: Model, length: int) -> None:
    network, rows = PerceiverAR(model, VOCABULARY, length, 0), some_rows(3, length)
    cost = network_cost(model, VOCABULARY, length)
    expected = cost.forward_flops_per_token * rows[:, 1:].numel()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network.logits(rows[:, :-1])
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-12)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = network.logits(rows[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), rows[:, -logits.shape[1] :].flatten()).backward()
    assert counter.get_total_flops() == pytest.approx(3 * expected, rel=1e-12)
    kept_all = network_cost(dataclasses.replace(model, prefix_dropout=0.0), VOCABULARY, length)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network.eval().logits(rows[:, :-1])
    evaluated = kept_all.forward_flops_per_token * rows[:, 1:].numel()
    assert counter.get_total_flops() == pytest.approx(evaluated, rel=1e-12)


@every_model
def test_groups_hold_every_parameter_once_and_have_the_counted_sizes(model: Model) -> None:
    network = PerceiverAR(model, VOCABULARY, LENGTH, 0)
    groups = network.parameter_groups()
    ids = [id(p) for group in groups.values() for p in group]
    assert sorted(ids) == sorted(id(p) for p in network.parameters())
    sizes = {name: sum(p.numel() for p in group) for name, group in groups.items()}
    assert sizes == network_cost(model, VOCABULARY, LENGTH).parameters
    assert (network.output().weight is network.embedding.weight) == model.tied
    tables = {id(network.embedding.weight), id(network.positions.weight)}
    decayed = {id(p) for p in network.decayed()}
    assert decayed == {id(p) for p in network.parameters() if p.ndim == 2} - tables


def test_first_weights_are_those_of_the_seed() -> None:
    model = dataclasses.replace(SMALL, width=128, tied=False)
    torch.manual_seed(1)
    one, other = (PerceiverAR(model, 200, 64, seed).state_dict() for seed in (5, 6))
    torch.manual_seed(2)
    again = PerceiverAR(model, 200, 64, 5)
    for name, p in again.named_parameters():
        assert torch.equal(p, one[name]), name
        if p.ndim == 2:
            assert not torch.equal(p, other[name]), name
            assert p.std().item() == pytest.approx(0.02, rel=0.05), name
        else:
            assert (p == float("norm" in name and name.endswith("weight"))).all(), name
    assert again.state_dict().keys() == dict(again.named_parameters()).keys(), "frequencies are not saved"


# ------------------------------------------------------------------ what is seen


@every_model
def test_a_later_token_changes_no_earlier_loss_and_every_earlier_one_is_seen(model: Model) -> None:
    network, rows = made(model), some_rows(2, LENGTH)
    before = network.token_losses(rows)
    for at in range(LENGTH + 1):
        changed = rows.clone()
        changed[:, at] = (changed[:, at] + 1) % VOCABULARY
        after = network.token_losses(changed)
        same = max(0, at - 1)
        torch.testing.assert_close(after[:, :same], before[:, :same], rtol=1e-6, atol=1e-6)
        assert (after[:, -1] != before[:, -1]).all()


def test_rows_do_not_see_each_other() -> None:
    network, rows = made(SMALL), some_rows(4, LENGTH)
    alone = torch.cat([network.token_losses(row[None]) for row in rows])
    torch.testing.assert_close(network.token_losses(rows), alone, rtol=1e-5, atol=1e-5)


def test_attention_to_the_past_leaves_out_what_comes_later() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 4, generator=generator, dtype=torch.float64) for n in (3, 7, 7))
    mixed = attend_to_past(q, k, v)
    for i in range(3):
        seen = 7 - 3 + i + 1
        scores = (q[:, :, i, None] * k[:, :, :seen]).sum(-1) / 2
        shares = scores.exp() / scores.exp().sum(-1, keepdim=True)
        torch.testing.assert_close(mixed[:, :, i], (shares[..., None] * v[:, :, :seen]).sum(2))


def test_every_position_of_the_prefix_is_kept_as_often_as_the_others() -> None:
    model = dataclasses.replace(SMALL, prefix_dropout=0.6)
    network = PerceiverAR(model, VOCABULARY, 14, 0).train()
    counts = torch.zeros(10)

    def count(_: object, inputs: tuple[Tensor, ...], __: object) -> None:
        if inputs[0].ndim == 2:
            assert inputs[0].shape[1] == kept_of(10, 0.6) == 4
            assert (inputs[0].diff(dim=1) > 0).all(), "no position twice"
            counts.add_(torch.bincount(inputs[0].flatten(), minlength=10))

    network.positions.register_forward_hook(count)
    torch.manual_seed(0)
    loss_of(network, some_rows(4000, 14))
    assert counts.sum() == 16000
    np.testing.assert_allclose(counts.numpy() / 4000, 0.4, atol=5 * math.sqrt(0.24 / 4000))


def test_nothing_is_random_in_evaluation_or_without_dropout() -> None:
    rows = some_rows(3, LENGTH)
    network = made(dataclasses.replace(SMALL, dropout=0.3))
    assert torch.equal(network.token_losses(rows), network.token_losses(rows))
    network.train()
    assert not torch.equal(network.token_losses(rows), network.token_losses(rows))
    sure = made(dataclasses.replace(SMALL, prefix_dropout=0.0))
    assert torch.equal(sure.train().token_losses(rows), sure.eval().token_losses(rows))


def test_only_latents_are_predicted_and_fewer_where_a_batch_says_so() -> None:
    network, rows = made(SMALL), some_rows(3, LENGTH)
    losses = network.token_losses(rows)
    for last, predicted in ((None, 4), (9, 4), (4, 4), (2, 2)):
        loss = loss_of(network, Batch(rows, last=last))
        assert loss.predictions == 3 * predicted
        assert loss.nats.item() == pytest.approx(losses[:, -predicted:].sum().item(), rel=1e-5)
    assert loss_of(network, rows[:, :3]).predictions == 3 * 2


def test_padding_at_the_end_of_a_row_changes_nothing_before_it() -> None:
    network, rows = made(SMALL), some_rows(2, LENGTH)
    segments = torch.ones_like(rows)
    segments[1, -2:] = 0
    losses = network.token_losses(Batch(rows, segments))
    assert (losses[1, -2:] == 0).all()
    expected = network.token_losses(rows)
    torch.testing.assert_close(losses[1, :-2], expected[1, :-2])
    assert loss_of(network, Batch(rows, segments)).predictions == 4 + 2


def test_what_cannot_be_done_is_said() -> None:
    network, rows = made(SMALL), some_rows(2, LENGTH)
    with pytest.raises(UserError, match=r"data\.document_mask"):
        loss_of(network, Batch(rows, torch.ones_like(rows), document_mask=True))
    with pytest.raises(UserError, match=f"12 positions.*at most {LENGTH}"):
        loss_of(network, some_rows(2, LENGTH + 1))
    with pytest.raises(UserError, match=r"latents = 4.*length = 3"):
        PerceiverAR(SMALL, VOCABULARY, 3, 0)
    for heads in (3, 16):
        with pytest.raises(UserError, match=f"heads = {heads}"):
            PerceiverAR(dataclasses.replace(SMALL, heads=heads), VOCABULARY, LENGTH, 0)


# ------------------------------------------------------------------ how it is computed


@pytest.mark.parametrize("length", [LENGTH, 4], ids=["prefix", "no prefix"])
def test_recomputing_gives_the_same_gradients(length: int) -> None:
    model, rows = dataclasses.replace(SMALL, dropout=0.2), some_rows(3, length)
    found = []
    for recompute in ("none", "selective", "full"):
        network = made(model).train()
        for block in network.blocks:
            assert isinstance(block, Block)
            block.recompute = recompute
        torch.manual_seed(7)
        network(rows).backward()
        found.append({name: p.grad for name, p in network.named_parameters()})
    for name, gradient in found[0].items():
        assert gradient is not None, f"{name}: every process must have a gradient to share"
        for others in found[1:]:
            torch.testing.assert_close(others[name], gradient, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_half_precision_is_close_and_keeps_the_stream_small() -> None:
    network, rows = made(SMALL), some_rows(4, LENGTH)
    expected = network.token_losses(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network.hidden(Batch(rows[:, :-1])).dtype == torch.bfloat16
        losses = network.token_losses(rows)
        nats = network.train()(rows)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, expected, rtol=0.1, atol=0.3)
    nats.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_blocks_are_traced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph break: the compiler's front end takes every block as one graph."""
    network, rows = made(SMALL), some_rows(2, LENGTH)
    expected = network.token_losses(rows)
    torch._dynamo.reset()
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the checks of shapes cannot be traced
    traced = copy.deepcopy(network)
    for block in traced.blocks:
        assert isinstance(block, Block)
        block.compile(fullgraph=True, backend="eager")
    torch.testing.assert_close(traced.token_losses(rows), expected)


# ------------------------------------------------------------------ generation


LIKELIEST = Drawing(temperature=0.0)


def writer(model: Model) -> PerceiverAR:
    """A network whose likeliest next token is seldom the one it has just read."""
    return made(dataclasses.replace(model, tied=False))


def greedy(network: PerceiverAR, ids: Tensor, tokens: int) -> Tensor:
    """From the logits of whole rows."""
    for _ in range(tokens):
        logits = network.logits(ids[:, -network.length :])
        ids = torch.cat((ids, logits[:, -1:].argmax(-1)), dim=1)
    return ids


def by_stride(network: PerceiverAR, ids: Tensor, tokens: int, stride: int) -> Iterator[tuple[int, int]]:
    """Where the row and its latents begin, for each token: written apart from the code, from its description."""
    begin, split = max(0, ids.shape[1] - network.length), max(0, ids.shape[1] - network.latents)
    for total in range(ids.shape[1], ids.shape[1] + tokens):
        if total - split == network.latents + 1:
            split += stride
            while split - begin > network.length - network.latents:
                begin += 1
        yield begin, split


@every_model
@pytest.mark.parametrize("start", [1, 3, 6, LENGTH, LENGTH + 4])
def test_greedy_text_is_that_of_whole_rows_from_a_short_start_over_a_growing_prefix_to_a_sliding_row(
    model: Model, start: int
) -> None:
    network, ids = writer(model), some_rows(3, start - 1)
    expected = greedy(network, ids, 16)
    assert len(expected[:, start:].unique()) > 3, "and it is no text of one word"
    for cached in (True, False):
        assert torch.equal(written(network, ids, 16, drawing=LIKELIEST, stride=1, cached=cached), expected)


@every_model
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_the_cache_changes_no_token(model: Model, stride: int) -> None:
    network, ids = writer(model), some_rows(4, 2)
    cached, anew = (
        written(network, ids, 16, drawing=LIKELIEST, stride=stride, cached=cached) for cached in (True, False)
    )
    assert torch.equal(cached, anew)
    drawn = [
        written(network, ids, 16, stride=stride, cached=cached, generator=torch.Generator().manual_seed(0))
        for cached in (True, False)
    ]
    assert torch.equal(*drawn) and len(drawn[0].unique()) > 10
    for token in (1, 4):
        one_by_one = written(network, ids, token, drawing=LIKELIEST, stride=stride)
        assert torch.equal(one_by_one, cached[:, : 3 + token])


@every_model
def test_the_stride_is_half_of_the_latents_where_none_is_given(model: Model) -> None:
    network, ids = writer(model), some_rows(2, 2)
    found, half = (
        written(network, ids, 12, drawing=LIKELIEST, stride=stride) for stride in (None, (model.latents or 0) // 2)
    )
    assert torch.equal(found, half)


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("start", [1, 7, 20])
def test_every_token_is_one_that_a_plain_implementation_writes(stride: int, start: int) -> None:
    """The latents of a plain implementation are as many as the row has left; nothing is cached in it."""
    network, ids = writer(SMALL), some_rows(1, start - 1)
    weights = {name: p.detach() for name, p in weights64(network).items()}
    row = written(network, ids, 20, drawing=LIKELIEST, stride=stride)[0].tolist()
    counts = set()
    for at, (begin, split) in enumerate(by_stride(network, ids, 20, stride), start):
        counts.add(at - split)
        assert 1 <= at - split <= 4 and split - begin <= LENGTH - 4
        logits = plain_logits(dataclasses.replace(SMALL, latents=at - split), weights, row[begin:at])[-1]
        assert logits.argmax() == row[at]
    assert 4 in counts and 5 - stride in counts


def test_latents_may_be_given_at_once_or_in_parts() -> None:
    network, ids = made(dataclasses.replace(SMALL, latents=6)), some_rows(2, LENGTH - 1)
    with torch.no_grad():
        whole = network.hidden(Batch(ids))
        for parts in ([6], [1] * 6, [2, 3, 1]):
            past, found, at = network.read_prefix(ids[:, :5]), [], 5
            for part in parts:
                hidden, past = network.extend(ids[:, at : at + part], past)
                found.append(hidden)
                at += part
            torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-5, atol=1e-5)


def test_generation_needs_no_mode_and_keeps_it() -> None:
    network, ids = made(dataclasses.replace(SMALL, dropout=0.5)), some_rows(2, 8)
    expected = written(network, ids, 10, drawing=LIKELIEST)
    assert torch.equal(written(network.train(), ids, 10, drawing=LIKELIEST), expected)
    assert network.training and all(block.training for block in network.blocks)
    assert torch.equal(written(network, ids, 0), ids)


def test_draws_are_those_of_the_generator_and_of_the_likeliest() -> None:
    network, ids = made(SMALL), some_rows(2, 8)
    one, two, other = (
        written(network, ids, 12, drawing=Drawing(top_k=5), generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, two) and not torch.equal(one, other)
    assert torch.equal(
        written(network, ids, 12, drawing=Drawing(top_k=1)),
        written(network, ids, 12, drawing=LIKELIEST),
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": -1}, "tokens = -1"),
        ({"stride": 0}, "between 1 and the model's 4"),
        ({"stride": 5}, "between 1 and the model's 4"),
        ({"ids": torch.zeros(2, 0, dtype=torch.int64)}, "at least one"),
    ],
)
def test_generation_refuses_what_makes_no_sense(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(made(SMALL), **({"ids": some_rows(2, 3), "tokens": 2} | wrong))  # type: ignore[arg-type]
