"""GPT-2 against the one of transformers, which was written by others."""

from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shoestring.core.errors import UserError
from shoestring.core.family import network_cost
from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.families.gpt2.network import GPT2
from shoestring.models.families.gpt2.transformers import FORMAT
from shoestring.models.layers.blocks import Block, Recompute

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 37, 12
MODELS = [
    Model(family="gpt2", width=16, layers=1, heads=1),
    Model(family="gpt2", width=24, layers=3, heads=3, tied=False, positions=20),
    Model(family="gpt2", width=32, layers=2, heads=4, hidden=10),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=["one head", "untied", "narrow"])


def some_ids(rows: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def spread(network: GPT2, size: float = 0.2) -> GPT2:
    """Larger weights than the first ones, biases and gains too, so that no part is close to doing nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return network


def twins(model: Model) -> tuple[GPT2, torch.nn.Module]:
    """Ours and theirs with the same weights."""
    ours = spread(GPT2(model, VOCABULARY, LENGTH, 0))
    config = transformers.GPT2Config(**FORMAT.config(model, VOCABULARY, LENGTH), attn_implementation="eager")
    theirs = transformers.GPT2LMHeadModel(config).eval()
    missing, unexpected = theirs.load_state_dict(FORMAT.write(ours), strict=False)
    assert missing == (["lm_head.weight"] if model.tied else []) and not unexpected
    return ours.eval(), theirs


@every_model
def test_logits_are_those_of_transformers(model: Model) -> None:
    ours, theirs = twins(model)
    ids = some_ids(3, LENGTH)
    with torch.no_grad():
        expected = theirs(ids).logits
        assert expected.abs().max() > 1, "the comparison must not be one of small numbers"
        torch.testing.assert_close(ours.logits(ids), expected, rtol=1e-5, atol=1e-5)


@every_model
def test_loss_and_gradients_are_those_of_transformers(model: Model) -> None:
    ours, theirs = twins(model)
    rows = some_ids(3, LENGTH + 1)
    nats = ours(rows)
    nats.backward()
    logits = theirs(rows[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
    expected.backward()
    assert nats.item() == pytest.approx(expected.item(), rel=1e-5)
    gradients = FORMAT.read({name: p.grad for name, p in theirs.named_parameters() if p.grad is not None})
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-4, msg=name)


@every_model
def test_weights_go_to_transformers_and_back(model: Model) -> None:
    ours, theirs = twins(model)
    state = ours.state_dict()
    whole = theirs.state_dict()
    base = {name.removeprefix("transformer."): value for name, value in whole.items() if name != "lm_head.weight"}
    base["h.0.attn.bias"] = torch.ones(1, 1, 8, 8).tril()  # as the published file has them
    for given in [whole, FORMAT.write(ours)] + ([base] if model.tied else []):
        found = FORMAT.read(given)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)
    assert all(value.is_contiguous() for value in FORMAT.write(ours).values())


@every_model
def test_a_folder_of_these_weights_is_one_of_transformers(model: Model, tmp_path: Path) -> None:
    ours, theirs = twins(model)
    transformers.GPT2Config(**FORMAT.config(model, VOCABULARY, LENGTH)).save_pretrained(tmp_path)
    save_file(FORMAT.write(ours), tmp_path / "model.safetensors", {"format": "pt"})
    kind = transformers.GPT2LMHeadModel
    ids = some_ids(2, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(kind.from_pretrained(tmp_path).eval()(ids).logits, theirs(ids).logits)


def test_weights_of_another_network_are_refused() -> None:
    state = FORMAT.write(GPT2(MODELS[0], VOCABULARY, LENGTH, 0))
    with pytest.raises(UserError, match=r"score\.weight"):
        FORMAT.read(state | {"score.weight": torch.zeros(2, 16)})
    with pytest.raises(UserError, match="not the weights of a GPT-2"):
        FORMAT.read({"model.embed_tokens.weight": torch.zeros(2, 2)})


@every_model
def test_the_configuration_describes_the_same_network(model: Model) -> None:
    config = transformers.GPT2Config(**FORMAT.config(model, VOCABULARY, LENGTH))
    theirs = transformers.GPT2LMHeadModel(config)
    assert sum(p.numel() for p in theirs.parameters()) == network_cost(model, VOCABULARY, LENGTH).total_parameters
    assert config.tie_word_embeddings == model.tied


def test_the_size_of_the_published_model() -> None:
    model = Model(family="gpt2", width=768, layers=12, heads=12)
    assert network_cost(model, 50_257, 1024).total_parameters == 124_439_808
    with torch.device("meta"):
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**FORMAT.config(model, 50_257, 1024)))
        assert sum(p.numel() for p in theirs.parameters()) == 124_439_808


@every_model
def test_the_cost_is_the_counted_one(model: Model) -> None:
    network = GPT2(model, VOCABULARY, LENGTH, 0)
    expected = network_cost(model, VOCABULARY, LENGTH)
    sizes = {name: sum(p.numel() for p in group) for name, group in network.parameter_groups().items()}
    assert sizes == expected.parameters
    assert sum(sizes.values()) == sum(p.numel() for p in network.parameters())
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network(some_ids(2, LENGTH + 1))
    assert counter.get_total_flops() == expected.forward_flops_per_token * 2 * LENGTH


@every_model
def test_a_later_token_changes_nothing_before_it(model: Model) -> None:
    network, ids = spread(GPT2(model, VOCABULARY, LENGTH, 0)), some_ids(2, LENGTH)
    with torch.no_grad():
        before = network.logits(ids)
        for at in range(LENGTH):
            changed = ids.clone()
            changed[:, at] = (changed[:, at] + 1) % VOCABULARY
            after = network.logits(changed)
            torch.testing.assert_close(after[:, :at], before[:, :at], rtol=1e-6, atol=1e-6)
            assert (after[:, at:] != before[:, at:]).any(-1).all(), "and all later ones see it"


def test_documents_of_a_packed_row_are_as_if_alone() -> None:
    network = spread(GPT2(MODELS[2], VOCABULARY, LENGTH, 0))
    lengths = (5, 4, 2)
    documents = [some_ids(1, length, seed) for seed, length in enumerate(lengths)]
    ids = torch.cat([*documents, torch.zeros(1, 1, dtype=torch.long)], dim=1)  # and padding
    segments = torch.tensor([[1] * 5 + [2] * 4 + [3] * 2 + [0]])
    with torch.no_grad():
        packed = network.logits(Batch(ids, segments, document_mask=True))
        alone = torch.cat([network.logits(document) for document in documents], dim=1)
    torch.testing.assert_close(packed[:, :11], alone, rtol=1e-5, atol=1e-5)
    assert packed.isfinite().all()


def test_padding_changes_nothing() -> None:
    network, rows = spread(GPT2(MODELS[2], VOCABULARY, LENGTH, 0)), some_ids(2, 8)
    short = network(rows)
    padded = torch.cat([rows, some_ids(2, 5, seed=9)], dim=1)
    segments = (torch.arange(13) < 8).long().expand(2, 13)
    for document_mask in (False, True):
        long = network(Batch(padded, segments, document_mask))
        assert long.item() == pytest.approx(short.item(), rel=1e-6)


def test_what_is_computed_again_within_documents_changes_no_gradient() -> None:
    model = Model(family="gpt2", width=16, layers=3, heads=2, dropout=0.3)
    rows = some_ids(3, LENGTH + 1)
    batch = Batch(rows, (rows > 18).long().cummax(1).values + 1, document_mask=True)
    found = {}
    for recompute in get_args(Recompute):
        network = spread(GPT2(model, VOCABULARY, LENGTH, 0))
        for block in network.blocks:
            assert isinstance(block, Block)
            block.recompute = recompute
        torch.manual_seed(3)
        network(batch).backward()
        found[recompute] = [p.grad for p in network.parameters()]
    for recompute in ("selective", "full"):
        for mine, plain in zip(found[recompute], found["none"]):
            torch.testing.assert_close(mine, plain, rtol=1e-6, atol=1e-6)


def test_dropout_is_for_training_alone() -> None:
    plain = Model(family="gpt2", width=16, layers=2, heads=2)
    dropping = Model(family="gpt2", width=16, layers=2, heads=2, dropout=0.4)
    rows, one, two = some_ids(3, LENGTH + 1), GPT2(plain, VOCABULARY, LENGTH, 0), GPT2(dropping, VOCABULARY, LENGTH, 0)
    assert torch.equal(one.eval().token_losses(rows), two.eval().token_losses(rows))
    two.train()
    assert not torch.equal(two.token_losses(rows), two.token_losses(rows))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 products
def test_half_precision_is_close() -> None:
    network, rows = spread(GPT2(MODELS[2], VOCABULARY, LENGTH, 0), 0.05), some_ids(4, LENGTH + 1)
    exact = network(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network.hidden(Batch(rows[:, :-1])).dtype == torch.bfloat16
        half = network(rows)
    half.backward()
    assert half.item() == pytest.approx(exact.item(), rel=1e-2)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in network.parameters())


def test_a_seed_decides_every_weight() -> None:
    torch.manual_seed(1)
    one = GPT2(MODELS[1], VOCABULARY, LENGTH, 5).state_dict()
    torch.manual_seed(2)
    two, other = (GPT2(MODELS[1], VOCABULARY, LENGTH, seed).state_dict() for seed in (5, 6))
    for name, value in one.items():
        assert torch.equal(value, two[name]), name
        assert value.ndim < 2 or not torch.equal(value, other[name]), name


def test_first_weights_have_the_documented_sizes() -> None:
    network = GPT2(Model(family="gpt2", width=128, layers=8, heads=4, tied=False), 200, 100, 0)
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (0 if name.endswith("bias") else 1)).all(), name
        else:
            written = name.endswith(("out.weight", "down.weight"))
            assert parameter.std().item() == pytest.approx(0.02 / 4 if written else 0.02, rel=0.05), name


def test_a_row_that_is_too_long_is_refused() -> None:
    network = GPT2(MODELS[0], VOCABULARY, LENGTH, 0)
    with pytest.raises(UserError, match="a row of 13 tokens: the model has 12 positions"):
        network.logits(some_ids(1, 13))
    assert GPT2(MODELS[1], VOCABULARY, LENGTH, 0).logits(some_ids(1, 20)).shape == (1, 20, VOCABULARY)
