"""The rates of dropout of a decoder: what each drops, and that the others do not change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoestring.core.recipe_file import build as recipe_of
from shoestring.core.sections import OF_DROPOUT, Model
from shoestring.models.batch import Batch
from shoestring.models.families.gpt2.transformers import _config as of_gpt2
from shoestring.models.families.llama.transformers import _config as of_llama
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers.blocks import Block
from shoestring.models.layers.embedding_lookup import UNSEEN, seen_words

VOCABULARY, LENGTH = 40, 12
MODELS = {
    "llama": Model(width=16, layers=2, heads=2, kv_heads=1),
    "swift": Model(
        family="swift", width=16, layers=2, heads=2, window=5,
        parts="qk_norm, gains, embedding_norm, value_embeddings, scales",
    ),
    "gpt2": Model(family="gpt2", width=16, layers=2, heads=2),
}  # fmt: skip
every_decoder = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
every_rate = pytest.mark.parametrize("name", OF_DROPOUT)


def made(model: Model, **rates: Any) -> LanguageModel:
    return build(dataclasses.replace(model, **rates), VOCABULARY, LENGTH, 0).train()


def some_rows(rows: int = 3) -> Batch:
    return Batch(torch.randint(VOCABULARY, (rows, LENGTH + 1), generator=torch.Generator().manual_seed(1)))


def losses(network: LanguageModel, batch: Batch, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return network.token_losses(batch)


@every_decoder
def test_rates_that_are_left_out_are_those_of_before(model: Model) -> None:
    """Also the numbers that are drawn are as many."""
    batch, found = some_rows(), []
    for rates in ({}, {"attention_dropout": 0.3}, {"output_dropout": 0.0, "word_dropout": 0.0}):
        network = made(model, dropout=0.3, **rates)
        found.append((losses(network, batch), torch.get_rng_state()))
    for each in found[1:]:
        assert torch.equal(each[0], found[0][0]) and torch.equal(each[1], found[0][1])
    without, state = made(model), torch.manual_seed(0).get_state()
    losses(without, batch)
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn"


@every_decoder
@every_rate
def test_scoring_drops_nothing(model: Model, name: str) -> None:
    batch, network = some_rows(), made(model, **{name: 0.5})
    plain = losses(made(model).eval(), batch)
    assert not torch.equal(losses(network, batch, 1), losses(network, batch, 2)), "masks of their own in each pass"
    assert torch.equal(losses(network, batch, 1), losses(network, batch, 1)), "and the same for a seed"
    assert torch.equal(losses(network.eval(), batch), plain)
    ids = batch.ids[:, :LENGTH]
    torch.testing.assert_close(network.read_on(ids, network.past(LENGTH)), network.last_logits(ids))


@every_decoder
def test_each_rate_drops_its_own(model: Model) -> None:
    """What is drawn first with a seed is the mask of the part that alone is dropped."""
    batch = some_rows()
    network, plain = made(model, output_dropout=0.4), made(model)
    torch.manual_seed(0)
    found = network.hidden(batch.inputs())
    torch.manual_seed(0)
    torch.testing.assert_close(found, F.dropout(plain.hidden(batch.inputs()), 0.4), rtol=0, atol=0)
    only = made(model, dropout=0.4, attention_dropout=0.0)
    for block in only.blocks:
        assert isinstance(block, Block)
        assert (block.dropping, block.dropping_attention, block.has_modes) == (0.4, 0.0, True)
    of_attention = made(model, attention_dropout=0.4)
    for block in of_attention.blocks:
        assert isinstance(block, Block)
        assert (block.dropping, block.dropping_attention, block.has_modes) == (0.0, 0.4, True)
        assert block.eval().dropping_attention == 0.0  # type: ignore[operator]
    assert not any(block.has_modes for block in network.blocks), "nor is code of its own compiled for scoring"


@every_decoder
def test_dropped_words_are_those_of_a_table_without_them(model: Model) -> None:
    batch, rate = some_rows(), 0.3
    found = losses(made(model, word_dropout=rate), batch, 5)
    torch.manual_seed(5)
    factors = F.dropout(torch.ones(VOCABULARY), rate)
    assert 0 < int((factors == 0).sum()) < VOCABULARY
    untied = build(dataclasses.replace(model, tied=False), VOCABULARY, LENGTH, 0)
    with torch.no_grad():
        untied.head.weight.copy_(untied.embedding.weight)  # type: ignore[union-attr, operator, arg-type]
        for name in ("embedding", "value_embedding"):
            if isinstance(table := getattr(untied, name, None), nn.Embedding):
                table.weight.mul_(factors[:, None])
        unseen = torch.tensor((UNSEEN, -UNSEEN)).repeat(model.width // 2)
        untied.embedding.weight[factors == 0] = unseen  # type: ignore[index, operator]
    plain = untied.state_dict()
    reference = made(model).state_dict()
    for name in plain.keys() & reference.keys() - {"embedding.weight", "value_embedding.weight", "head.weight"}:
        plain[name].copy_(reference[name])
    torch.testing.assert_close(found, losses(untied, batch), rtol=1e-5, atol=1e-5)


@every_decoder
def test_words_are_the_same_in_all_rows_of_a_pass(model: Model) -> None:
    row = some_rows(1).ids
    for seed in range(3):
        same = losses(made(model, word_dropout=0.5), Batch(row.expand(3, -1).contiguous()), seed)
        torch.testing.assert_close(same[1:], same[:1].expand(2, -1), rtol=1e-5, atol=1e-5)
        other = losses(made(model, output_dropout=0.5), Batch(row.expand(3, -1).contiguous()), seed)
        assert not torch.allclose(other[0], other[1])


@every_decoder
def test_a_first_word_that_is_not_seen_has_finite_gradients(model: Model) -> None:
    """With zeros in its place they overflowed: 32 layers of large weights multiplied them at every norm."""
    network = made(dataclasses.replace(model, layers=32), word_dropout=0.5)
    with torch.no_grad():
        for parameter in network.blocks.parameters():  # type: ignore[union-attr]
            if parameter.ndim == 2:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(2))
    batch, first, states = some_rows(20), set[bool](), []
    for seed in range(3):
        torch.manual_seed(seed)
        hidden = F.dropout(torch.ones(VOCABULARY), 0.5)[batch.ids[:, 0]] == 0
        first |= set(hidden.tolist())
        torch.manual_seed(seed)
        network(batch).backward()
        states.append(all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None))
    assert first == {False, True} and all(states)


def test_factors_of_words_have_a_mean_of_one() -> None:
    table, ids = nn.Embedding(20_000, 1), torch.arange(20_000).view(4, -1)
    torch.manual_seed(0)
    factors = seen_words(table, ids, 0.2, torch.float32)
    assert factors.shape == (4, 5000, 1)
    assert set(factors.unique().tolist()) == {0.0, 1.25}
    assert factors.mean().item() == pytest.approx(1, abs=0.02)
    assert not factors.requires_grad
    beyond = seen_words(table, ids + 1, 0.2, torch.bfloat16)
    assert beyond.dtype == torch.bfloat16, "the table refuses an id outside, not its factor"


@every_decoder
def test_half_of_the_channels_mean_as_much_as_all(model: Model) -> None:
    """The mean of many masks of the output's input is what is not dropped."""
    batch, network = some_rows(2), made(model, output_dropout=0.5)
    torch.manual_seed(0)
    with torch.no_grad():
        mean = torch.stack([network.hidden(batch.inputs()) for _ in range(300)]).mean(0)
        whole = network.eval().hidden(batch.inputs())
    assert (mean - whole).norm() / whole.norm() < 1.5 * 300**-0.5


def test_a_recipe_without_them_keeps_its_fingerprints() -> None:
    values = {"budget": {"steps": 10}, "train": {"batch": 4, "lr": 3e-4}}
    plain = recipe_of(values, "test")
    assert all(getattr(plain.model, name) is None for name in OF_DROPOUT)
    for name in OF_DROPOUT:
        other = recipe_of(values | {"model": {name: 0.5}}, "test")
        assert other.fingerprint != plain.fingerprint and other.workload != plain.workload
        assert other.model.drops and not plain.model.drops


def test_an_export_has_the_rate_of_attention() -> None:
    rates: dict[str, Any] = {"dropout": 0.3, "attention_dropout": 0.1}
    found = of_gpt2(dataclasses.replace(MODELS["gpt2"], **rates), VOCABULARY, LENGTH)
    assert (found["embd_pdrop"], found["resid_pdrop"], found["attn_pdrop"]) == (0.3, 0.3, 0.1)
    assert of_llama(dataclasses.replace(MODELS["llama"], **rates), VOCABULARY, LENGTH)["attention_dropout"] == 0.1
