"""How a token is drawn, and the text of networks, with what they keep from one token to the next and without."""

import math

import numpy as np
import pytest
import torch

from shoestring.core.errors import Fault, UserError
from shoestring.core.sections import Model
from shoestring.models.generate import Drawing, generate
from shoestring.models.language_model import LanguageModel, build

VOCABULARY, LENGTH = 19, 6
LIKELIEST = Drawing(temperature=0.0)


def writer(**fields: object) -> LanguageModel:
    """A network whose likeliest next token is seldom the one it has just read."""
    model = Model(**{"width": 16, "layers": 2, "heads": 2, "tied": False} | fields)  # type: ignore[arg-type]
    network, noise = build(model, VOCABULARY, LENGTH, 0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.5)
    return network.eval()


def begun(tokens: int = 3) -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, tokens), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("family", ["llama", "gpt2", "swift"])
def test_every_token_is_the_likeliest_after_the_last_ones_of_a_row(family: str) -> None:
    network, expected = writer(family=family), begun()
    with torch.no_grad():
        for _ in range(12):
            expected = torch.cat((expected, network.logits(expected[:, -LENGTH:])[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(generate(network, begun(), 12, length=LENGTH, drawing=LIKELIEST, stride=1), expected)
    assert len(expected[:, 3:].unique()) > 2, "and it is no text of one word"
    assert torch.equal(generate(network, begun(), 0, length=LENGTH), begun())


FIELDS: dict[str, dict[str, object]] = {
    "llama": {"family": "llama"},
    "shared keys": {"family": "llama", "heads": 4, "kv_heads": 2, "bias": True, "rotary_scaling": "linear:2"},
    "gpt2": {"family": "gpt2", "tied": True},
    "swift": {"family": "swift", "heads": 4, "kv_heads": 1},
    "all parts of swift": {
        "family": "swift",
        "layers": 3,
        "parts": "qk_norm, gains, relu2, embedding_norm, soft_cap:4, value_embeddings, scales, convolutions",
        "pairs": 40,
        "pointer": 8,
        "window": 2,
        "full_every": 2,
    },
    "some parts of swift": {"family": "swift", "parts": "value_embeddings, soft_cap", "window": 4, "tied": True},
    "pairs": {"family": "swift", "parts": "gains", "pairs": 40},
    "convolutions": {"family": "swift", "parts": "gains, convolutions:1"},
    "pointer": {"family": "swift", "parts": "gains", "pointer": 8},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("parts", [[6], [1] * 6, [3, 1, 2], [1, 4, 1]])
def test_rows_read_in_parts_have_the_predictions_of_whole_ones(fields: dict[str, object], parts: list[int]) -> None:
    network, ids = writer(**fields).double(), begun(LENGTH)
    past, end = network.past(LENGTH), 0
    with torch.no_grad():
        for count in parts:
            end += count
            found = network.read_on(ids[:, end - count : end], past)
            torch.testing.assert_close(found, network.logits(ids[:, :end])[:, -1])


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("stride", [None, 1, 2, 6])
@pytest.mark.parametrize("tokens", [1, 5, 9])
def test_what_is_kept_changes_no_token(fields: dict[str, object], stride: int | None, tokens: int) -> None:
    network = writer(**fields).double()
    expected, begin = begun(tokens), max(0, tokens - LENGTH)
    with torch.no_grad():
        for _ in range(15):
            if expected.shape[1] - begin > LENGTH:
                begin += stride or LENGTH // 2
            expected = torch.cat((expected, network.logits(expected[:, begin:])[:, -1:].argmax(-1)), dim=1)
    for cached in (True, False):
        found = generate(network, begun(tokens), 15, length=LENGTH, drawing=LIKELIEST, stride=stride, cached=cached)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("stride", [0, LENGTH + 1])
def test_a_stride_that_makes_no_sense_is_refused(stride: int) -> None:
    with pytest.raises(UserError, match=f"stride = {stride}"):
        generate(writer(), begun(), 2, length=LENGTH, stride=stride)


@pytest.mark.parametrize(("family", "reason"), [("llama", "GPU"), ("perceiver_ar", "PerceiverAR")])
def test_a_recording_that_is_asked_for_and_cannot_be_had_is_an_error(family: str, reason: str) -> None:
    more = {"latents": 1} if family == "perceiver_ar" else {}
    with pytest.raises(UserError, match=f"recorded = true: .*{reason}"):
        generate(writer(family=family, **more), begun(), 3, length=LENGTH, recorded=True)


def test_a_perceiver_writes_with_its_latents() -> None:
    network = writer(family="perceiver_ar", latents=1)  # with one latent every token is made from the whole row
    expected = begun()
    with torch.no_grad():
        for _ in range(8):
            expected = torch.cat((expected, network.logits(expected[:, -LENGTH:])[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(generate(network, begun(), 8, length=LENGTH, drawing=LIKELIEST), expected)


def test_generation_needs_no_mode_and_keeps_it() -> None:
    network = writer(dropout=0.5)
    expected = generate(network, begun(), 10, length=LENGTH, drawing=LIKELIEST)
    assert torch.equal(generate(network.train(), begun(), 10, length=LENGTH, drawing=LIKELIEST), expected)
    assert network.training and all(block.training for block in network.blocks)


def test_text_is_that_of_the_generator() -> None:
    network = writer()
    one, two, other = (
        generate(network, begun(), 12, length=LENGTH, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, two) and not torch.equal(one, other)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "kept"),
    [
        (1.0, None, None, 4),
        (0.5, 2, None, 2),
        (2.0, 9, None, 4),
        (1.0, None, 0.6, 1),  # the likeliest has 0.64 of the probability
        (1.0, None, 0.7, 2),
        (1.0, None, 0.9, 3),
        (1.0, 2, 0.9, 2),
        (1.0, None, 1.0, 4),
    ],
)
def test_draws_have_the_odds_of_the_likeliest(
    temperature: float, top_k: int | None, top_p: float | None, kept: int
) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]]).expand(20000, -1)
    drawn = Drawing(temperature=temperature, top_k=top_k, top_p=top_p).draw(logits, torch.Generator().manual_seed(0))
    odds = np.array([math.exp(x / temperature) * (x > 3 - kept) for x in (0, 3, 1, 2)])
    shares = torch.bincount(drawn, minlength=4).numpy() / 20000
    np.testing.assert_allclose(shares, odds / odds.sum(), atol=0.015)
    assert not shares[odds == 0].any()


def test_draws_do_not_overflow() -> None:
    logits = 1e30 * torch.tensor([[0.0, 3.0, 1.0, 2.0]]).expand(100, -1)
    assert (Drawing(temperature=1e-30).draw(logits, torch.Generator().manual_seed(0)) == 1).all()


@pytest.mark.parametrize("wrong", [{"temperature": -0.1}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_a_drawing_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(UserError, match=f"{name} = {value}"):
        Drawing(**wrong)  # type: ignore[arg-type]


def test_rows_without_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="at least one"):
        generate(writer(), begun(0), 2, length=LENGTH)
    with pytest.raises(UserError, match="tokens = -1"):
        generate(writer(), begun(), -1, length=LENGTH)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("drawing", [Drawing(), Drawing(temperature=0.0), Drawing(top_k=3)], ids=str)
def test_a_model_that_predicts_no_numbers_is_refused(value: float, drawing: Drawing) -> None:
    network = build(Model(width=32, layers=1, heads=1), 50, 16, 0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)
    with pytest.raises(Fault, match="predicts NaN or infinity"):
        generate(network, torch.zeros(1, 2, dtype=torch.int64), 5, length=16, drawing=drawing)
