"""On a GPU: the recorded pass over a further token writes what passes that are launched one by one do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.core.sections import Model
from shoestring.models import decoding
from shoestring.models.generate import Drawing, RowReader, generate
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers import next_token
from shoestring.models.layers.next_token import NextToken

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore:::torch"),
]

CUDA = torch.device("cuda")
VOCABULARY, LENGTH = 211, 96
LIKELIEST = Drawing(temperature=0.0)
FIELDS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "shared keys": {"family": "llama", "kv_heads": 2, "bias": True, "tied": False},
    "one key head": {"family": "llama", "kv_heads": 1, "width": 160, "hidden": 200},
    "gpt2": {"family": "gpt2"},
    "long sums": {"family": "llama", "hidden": 3072},
    "swift": {"family": "swift", "kv_heads": 2},
    "all parts of swift": {
        "family": "swift",
        "parts": "qk_norm, gains, relu2, embedding_norm, soft_cap:8, value_embeddings, scales",
        "window": 20,
        "full_every": 2,
    },
    "convolutions": {"family": "swift", "parts": "qk_norm, gains, value_embeddings, scales, convolutions"},
    "pairs": {"family": "swift", "pairs": 300},
}


def network(
    fields: dict[str, Any], length: int = LENGTH, kind: torch.dtype = torch.float32, vocabulary: int = VOCABULARY
) -> LanguageModel:
    found = build(Model(**{"width": 128, "layers": 3, "heads": 4} | fields), vocabulary, length, 0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.05)
    return found.to(CUDA, kind).eval()


def begun(rows: int, tokens: int = 3) -> Tensor:
    return torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(3)).to(CUDA)


def off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SETTINGS = [  # network, type, rows, whether kernels begin early; each compiles anew
    *(("llama", BF16, rows, True) for rows in (1, 2, 5, 20)),
    *(("llama", BF16, rows, False) for rows in (1, 5)),
    *(("llama", FP32, rows, True) for rows in (1, 5)),
    ("llama", FP16, 5, True),
    *((name, BF16, rows, True) for name in ("shared keys", "gpt2", "all parts of swift") for rows in (1, 5)),
    ("one key head", BF16, 1, True),
    ("swift", BF16, 5, True),
    *(("long sums", BF16, rows, True) for rows in (1, 5, 20)),
]


@pytest.mark.parametrize(("name", "kind", "rows", "early"), SETTINGS)
@torch.no_grad()
def test_logits_are_as_near_to_float64_as_those_of_plain_passes(
    name: str, kind: torch.dtype, rows: int, early: bool
) -> None:
    check(network(FIELDS[name], kind=kind), rows, kind, early)


@pytest.mark.parametrize("few", [0, 2, 9], ids=["none", "up to 2", "all"])
@pytest.mark.parametrize(("name", "rows"), [("llama", 1), ("gpt2", 2), ("all parts of swift", 1), ("long sums", 5)])
@torch.no_grad()
def test_the_next_kernel_begins_first_of_all_or_after_the_wait(
    name: str, rows: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to so many rows; the products are those of few rows, too. Later, two logits differ by rounding alone."""
    monkeypatch.setattr(next_token, "FEW", few)
    ours = network(FIELDS[name])
    found, plain = (
        generate(ours, begun(rows), 150, length=LENGTH, drawing=LIKELIEST, recorded=recorded)
        for recorded in (True, False)
    )
    assert torch.equal(found, plain)


@pytest.mark.parametrize("drawing", [LIKELIEST, Drawing()], ids=["likeliest", "drawn"])
def test_several_programs_choose_among_many_tokens(drawing: Drawing) -> None:
    ours = network(FIELDS["llama"], vocabulary=5000)
    found, plain = (
        generate(
            ours, begun(3), 80, length=LENGTH, drawing=drawing, recorded=recorded,
            generator=torch.Generator(CUDA).manual_seed(1),
        )
        for recorded in (True, False)
    )  # fmt: skip
    assert torch.equal(found, plain)


def check(
    ours: LanguageModel, rows: int, kind: torch.dtype, early: bool, count: int = 50, length: int = LENGTH
) -> None:
    """Ten tokens after `count`, beside plain passes and float64."""
    exact = copy.deepcopy(ours).double()
    ids, pasts = begun(rows, count + 10), [ours.past(length) for _ in range(2)]
    for past in pasts:
        ours.read_on(ids[:, :count], past)
    step = NextToken(ours.parts(), ids, pasts[0], kind, early)
    step.place.copy_(torch.tensor((count, count + 1)))
    for end in range(count + 1, count + 11):
        found, plain = step.logits_of_newest(), ours.read_on(ids[:, end - 1 : end], pasts[1])
        with torch.autocast("cuda", enabled=False):
            expected = exact.logits(ids[:, :end])[:, -1]
        assert off(found, expected) < 1.3 * off(plain, expected) + 1e-5
        assert step.place.tolist() == [end, end + 1]


@pytest.mark.parametrize("name", ["llama", "shared keys", "gpt2", "all parts of swift"])
@pytest.mark.parametrize(("rows", "stride"), [(1, None), (5, 7), (5, None)])
def test_the_likeliest_tokens_are_those_of_plain_passes(name: str, rows: int, stride: int | None) -> None:
    ours = network(FIELDS[name])
    found, plain = (
        generate(ours, begun(rows), 250, length=LENGTH, drawing=LIKELIEST, stride=stride, recorded=recorded)
        for recorded in (True, False)
    )
    assert torch.equal(found, plain)
    assert len(found.unique()) > 2, "and it is no text of one word"


DRAWINGS = [Drawing(), Drawing(temperature=0.7), Drawing(top_k=9), Drawing(top_p=0.8), Drawing(top_k=5, top_p=0.9)]


@pytest.mark.parametrize("drawing", DRAWINGS, ids=str)
@pytest.mark.parametrize("rows", [1, 5])
def test_drawn_tokens_are_those_of_the_seed(drawing: Drawing, rows: int) -> None:
    ours = network(FIELDS["llama"])
    found = [
        generate(
            ours, begun(rows), 120, length=LENGTH, drawing=drawing, recorded=recorded,
            generator=torch.Generator(CUDA).manual_seed(seed),
        )
        for seed, recorded in ((1, True), (1, True), (1, False), (2, True))
    ]  # fmt: skip
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])


def test_drawn_tokens_are_those_of_the_device_without_a_generator() -> None:
    ours, found = network(FIELDS["llama"]), []
    for recorded in (True, False):
        torch.cuda.manual_seed(5)
        found.append(generate(ours, begun(2), 80, length=LENGTH, recorded=recorded))
        found.append(torch.rand(3, device=CUDA))  # and what is drawn after them
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


@pytest.mark.parametrize("fields", [{"family": "llama"}, {"family": "llama", "kv_heads": 2}, {"family": "gpt2"}])
@pytest.mark.parametrize("kind", [FP32, BF16])
@torch.no_grad()
def test_long_rows_are_divided_among_programs(fields: dict[str, Any], kind: torch.dtype) -> None:
    for count in (200, 1700):
        check(network(fields, 2048, kind), 1, kind, True, count, 2048)


@torch.no_grad()
def test_weights_in_float32_are_converted_once_under_autocast() -> None:
    ours = network(FIELDS["swift"])
    with torch.autocast("cuda", BF16):
        check(ours, 5, BF16, True)
        found = generate(ours, begun(3), 100, length=LENGTH, drawing=LIKELIEST, recorded=True)
    assert found.shape == (3, 103) and (found < VOCABULARY).all()


@pytest.mark.parametrize("at", ["launch", "record"])
def test_what_cannot_be_recorded_is_written_as_before(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = network(FIELDS["llama"])
    told: dict[str, Any] = {"length": LENGTH, "drawing": LIKELIEST}
    expected = generate(ours, begun(2), 70, generator=torch.Generator(CUDA).manual_seed(1), recorded=False, **told)

    def refuse(*_: object) -> None:
        raise RuntimeError("no kernel today")

    if at == "launch":
        monkeypatch.setattr(NextToken, "logits_of_newest", refuse)
    else:
        waits = NextToken.choose

        def choose(self: NextToken, *given: Any) -> None:
            if torch.cuda.is_current_stream_capturing():
                refuse()
            waits(self, *given)

        monkeypatch.setattr(NextToken, "choose", choose)
    generator = torch.Generator(CUDA).manual_seed(1)
    assert torch.equal(generate(ours, begun(2), 70, generator=generator, **told), expected)
    with pytest.raises(UserError, match="no kernel today"):
        generate(ours, begun(2), 70, recorded=True, **told)


def test_a_network_of_other_numbers_is_read_as_before() -> None:
    ours = network(FIELDS["llama"]).double()
    reader, ids = RowReader(ours, begun(1), LENGTH), begun(1, 10)
    reader.record(ids, LIKELIEST, None)
    assert not reader.write(5)
    reader.logits(ids[:, :5])
    assert not reader.write(6) and reader.reason is not None and "float64" in reader.reason


def test_few_tokens_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(decoding.Decoder, "write", lambda _, end: made.append(end))
    generate(network(FIELDS["llama"]), begun(1), decoding.LEAST - 1, length=LENGTH, drawing=LIKELIEST)
    assert not made
