"""Swift against an own float64 reading of its parts, one position at a time; and each part by what it alone does."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from shoestring.core import recipe_file
from shoestring.core.errors import RecipeError
from shoestring.core.family import is_compiled, network_cost
from shoestring.core.recipe import Recipe
from shoestring.core.sections import Data, Model
from shoestring.core.specs import PartsSpec
from shoestring.core.train_section import Train
from shoestring.cost.memory import estimate_memory
from shoestring.models.families.swift import FAMILY, parts_of
from shoestring.models.language_model import LanguageModel, build, differences
from shoestring.models.layers.attention import Documents, attend, attend_to_past
from shoestring.models.layers.pairs import ids_before, pair_ids

VOCABULARY, LENGTH = 11, 7
NAMES = list(PartsSpec.names)
SETS = ["none", "qk_norm, gains", *(", ".join(name for name in NAMES if name != left) for left in NAMES)]
"""A Llama without gains, a Qwen3, and all parts with one left out in turn."""
FIELDS: list[dict[str, Any]] = [
    *({"parts": parts} for parts in SETS),
    {"parts": ", ".join(NAMES), "window": 3, "full_every": 2},
    {"parts": ", ".join(NAMES).replace("soft_cap", "soft_cap:2.5"), "tied": False, "kv_heads": 2, "hidden": 9},
    {"parts": "qk_norm, value_embeddings, convolutions:2"},
    {"parts": "qk_norm, embedding_norm", "pairs": 7},
    {"parts": ", ".join(NAMES), "pairs": 7, "pointer": 5, "tied": False},
    {"parts": "gains", "pointer": 40},
]


def spread(model: Model) -> LanguageModel:
    """In float64, with larger weights than the first ones."""
    network, noise = build(model, VOCABULARY, LENGTH, 0).double(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise, dtype=torch.float64) * 0.4)
    return network.eval()


def rms(x: Tensor, gains: Tensor | None, eps: float = 1e-5) -> Tensor:
    return x / (x.pow(2).mean() + eps).sqrt() * (1.0 if gains is None else gains)


def turned(x: Tensor, place: int) -> Tensor:
    """A vector with its channel pairs (c, c + C/2) rotated, as complex numbers."""
    half = len(x) // 2
    angle = place * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    z = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half, dtype=torch.float64), angle)
    return torch.cat((z.real, z.imag))


def written_out(model: Model, weights: dict[str, Tensor], ids: list[int]) -> Tensor:
    """The logits of one row, with loops over positions and heads in place of every batched operation."""
    parts, layers, c = set(parts_of(model).replace(" ", "").split(",")), model.layers, model.width // model.heads
    reach_back = 2 if "convolutions:2" in parts else 3 if "convolutions" in parts else 0
    cap = 2.5 if "soft_cap:2.5" in parts else 15.0 if "soft_cap" in parts else None
    kv, h = model.kv_heads or model.heads, model.heads
    has = lambda name: any(part.startswith(name) for part in parts)  # noqa: E731

    def convolved(rows: list[Tensor], factors: Tensor) -> list[Tensor]:
        w = factors.view(reach_back, *rows[0].shape)
        return [
            x + sum(w[j - 1] * rows[place - j] for j in range(1, min(reach_back, place) + 1))
            for place, x in enumerate(rows)
        ]

    stream = [weights["embedding.weight"][i] for i in ids]
    if model.pairs:
        table = weights["pair_embedding.weight"]
        for place, i in enumerate(ids):
            pair = (ids[place - 1] if place else VOCABULARY) * VOCABULARY + i
            stream[place] = stream[place] + table[pair % (2**31 - 1) * 48271 % (2**31 - 1) % len(table)]
    if has("embedding_norm"):
        stream = [rms(x, weights.get("embedding_norm.weight")) for x in stream]
    first, valued = stream, sorted(range(layers - 1, -1, -2))
    for layer in range(layers):
        w = {name.removeprefix(f"blocks.{layer}."): value for name, value in weights.items()}
        if has("scales"):
            stream = [w["scales.weight"][0] * x + w["scales.weight"][1] * y for x, y in zip(stream, first)]
        normed = [rms(x, w.get("norm1.weight")) for x in stream]
        made = [(w["qkv.weight"] @ x).view(h + 2 * kv, c) for x in normed]
        if reach_back:
            keys = convolved([x[h:] for x in made], w["convolution1.weight"])
            made = [torch.cat((x[:h], y)) for x, y in zip(made, keys)]
        reach = len(ids) if (layers - 1 - layer) % (model.full_every or 4) == 0 else model.window or len(ids)
        changes = []
        for place in range(len(ids)):
            heads = []
            for head in range(h):
                shared = head // (h // kv)

                def row(of: Tensor, at: int, gains: str) -> Tensor:
                    return turned(rms(of, w.get(gains)) if has("qk_norm") else of, at)  # noqa: B023

                span = range(max(0, place - reach + 1), place + 1)
                query = row(made[place][head], place, "q_norm.weight")
                scores = torch.stack([query @ row(made[j][h + shared], j, "k_norm.weight") for j in span]) / c**0.5
                values = []
                for j in span:
                    value = made[j][h + kv + shared]
                    if has("value_embeddings") and layer in valued:
                        gate = 2 / (1 + torch.exp(-(w["value_gate.weight"][shared] @ normed[j][:32])))
                        table = weights["value_embedding.weight"][ids[j]].view(len(valued), kv, c)
                        value = value + gate * table[valued.index(layer), shared]
                    values.append(value)
                heads.append(sum(p * v for p, v in zip(scores.softmax(0), values)))
            changes.append(w["out.weight"] @ torch.cat(heads))
        stream = [x + change for x, change in zip(stream, changes)]
        inputs = [rms(x, w.get("norm2.weight")) for x in stream]
        inputs = convolved(inputs, w["convolution2.weight"]) if reach_back else inputs
        for place, (x, y) in enumerate(zip(stream, inputs)):
            if has("relu2"):
                inner = (w["up.weight"] @ y).clamp(min=0) ** 2
            else:
                gate, up = (w["gate_up.weight"] @ y).chunk(2)
                inner = gate / (1 + torch.exp(-gate)) * up
            stream[place] = x + w["down.weight"] @ inner
    head = weights["embedding.weight"] if model.tied else weights["head.weight"]
    hidden = [rms(x, weights.get("norm.weight")) for x in stream]
    logits = torch.stack([head @ x for x in hidden])
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    if model.pointer:
        *rows, gate = weights["pointer.weight"]
        queries, keys = torch.stack(rows).chunk(2)
        for place, x in enumerate(hidden):
            weight = torch.exp(gate @ x + weights["pointer.bias"][0])
            shares = weight * logits[place].softmax(0)
            for j in range(place):  # what followed position j is known
                shares[ids[j + 1]] += torch.exp((queries @ x) @ (keys @ hidden[j]) / len(keys) ** 0.5)
            logits[place] = torch.log(shares / shares.sum())
    return logits


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "-".join(str(x) for x in fields.values())[-40:])
def test_the_network_is_the_one_that_is_written_out(fields: dict[str, Any]) -> None:
    model = Model(**{"family": "swift", "width": 36, "layers": 3, "heads": 6} | fields)
    network, ids = spread(model), [3, 1, 4, 1, 5, 9, 2]
    with torch.no_grad():
        expected = written_out(model, dict(network.named_parameters()), ids)
        found = network.logits(torch.tensor([ids]))[0]
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # angles are in float32


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "-".join(str(x) for x in fields.values())[-40:])
def test_counted_parameters_are_those_of_the_network(fields: dict[str, Any]) -> None:
    model = Model(**{"family": "swift", "width": 24, "layers": 4, "heads": 4} | fields)
    network = build(model, VOCABULARY, LENGTH, 0)
    sizes = {name: sum(p.numel() for p in group) for name, group in network.parameter_groups().items()}
    assert sizes == network_cost(model, VOCABULARY, LENGTH).parameters


def test_zero_outputs_leave_the_stream_as_it_is() -> None:
    model = Model(family="swift", width=24, layers=2, heads=2, parts="zero_outputs, gains")
    network, ids = build(model, VOCABULARY, LENGTH, 0), torch.randint(VOCABULARY, (2, LENGTH))
    with torch.no_grad():
        embedded = network.get_submodule("norm")(network.get_submodule("embedding")(ids))
    assert torch.equal(network.logits(ids), network.output().logits(embedded))
    drawn = build(Model(family="swift", width=24, layers=2, heads=2, parts="gains"), VOCABULARY, LENGTH, 0)
    for (name, one), two in zip(network.named_parameters(), drawn.parameters()):
        assert torch.equal(one, two) or (name.endswith(("out.weight", "down.weight")) and not one.any())


def test_the_first_gates_and_scales_change_little() -> None:
    """At first a gate is 1, the stream is kept, the first embedding is not added again, and no position mixed in."""
    some = Model(family="swift", width=24, layers=2, heads=2, parts="gains, scales, convolutions")
    plain = Model(family="swift", width=24, layers=2, heads=2, parts="gains")
    ids = torch.randint(VOCABULARY, (2, LENGTH))
    one, two = (build(model, VOCABULARY, LENGTH, 0).logits(ids) for model in (some, plain))
    assert torch.equal(one, two)


def test_pairs_are_nothing_at_first_and_then_tell_what_came_before() -> None:
    model = Model(family="swift", width=16, layers=1, heads=2, parts="gains", pairs=64)
    network, ids = build(model, VOCABULARY, LENGTH, 0), torch.tensor([[1, 2, 3], [4, 2, 3]])
    table = network.get_submodule("pair_embedding").weight
    assert not table.any() and table.shape == (64, 16)
    pairs = pair_ids(ids_before(ids, VOCABULARY), ids, VOCABULARY, 64)
    assert pairs[0, 2] == pairs[1, 2] and pairs[0, 1] != pairs[1, 1], "2 after 1, and after 4"
    every = torch.meshgrid(torch.arange(258), torch.arange(257), indexing="ij")
    counts = pair_ids(*every, 257, 512).flatten().bincount()
    assert len(counts) == 512 and counts.max() < 1.5 * counts.float().mean(), "pairs are spread over the rows"
    largest = torch.tensor([[2**20 - 1]])
    assert 0 <= pair_ids(largest + 1, largest, 2**20, 99_999_999) < 99_999_999, "no product overflows"


def test_windows_are_counted_and_the_last_layer_sees_all() -> None:
    model = Model(family="swift", width=16, layers=6, heads=2, window=3, full_every=4)
    assert [FAMILY.window(model, layer) for layer in range(6)] == [3, None, 3, 3, 3, None]
    whole = Model(family="swift", width=16, layers=6, heads=2)
    for length in (2, 3, 10):
        pairs = [FAMILY.work(each, VOCABULARY, length).pairs for each in (model, whole)]
        assert pairs == [length * (4 * min(3, length) + 2 * length), 6 * length**2]
    assert FAMILY.decisive(model) != FAMILY.decisive(whole)
    recipe = Recipe(model=model, data=Data(length=64), train=Train(batch=2, lr=1e-3))
    assert estimate_memory(recipe, 50, "cpu").fixed["mask"] == 4 * 64 * 64
    assert "mask" not in estimate_memory(Recipe(model=whole, data=recipe.data, train=recipe.train), 50, "cpu").fixed


@pytest.mark.parametrize("window", [1, 2, 5, 200, 400])
def test_a_window_is_the_last_tokens_of_a_document(window: int) -> None:
    """Masks for SDPA and flex attention against a definition pair by pair, for rows of several blocks."""
    segments = torch.tensor([[1] * 3 + [2] * 290 + [0] * 7, [1] * 150 + [2] * 150])
    q, k = torch.arange(300)[:, None], torch.arange(300)
    for given in (segments, torch.zeros(1, 300, dtype=torch.long)):
        documents = Documents(given, window)
        same = given[:, :, None] == given[:, None, :]
        expected = same & (k <= q) & (q - k < window)
        assert torch.equal(documents.dense(torch.float32)[:, 0] == 0, expected)
        blocks = documents.blocks
        assert torch.equal(create_mask(blocks.mask_mod, len(given), 1, 300, 300, "cpu")[:, 0], expected)
        tiles = torch.nn.functional.pad(expected, (0, 84, 0, 84)).unflatten(2, (3, 128)).unflatten(1, (3, 128))
        assert torch.equal(blocks.to_dense()[:, 0].bool(), tiles.any(4).any(2)), "no block is left out"
    assert torch.equal(documents.positions, torch.arange(300)[None])


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (4, 4), (4, 9), (9, 9)])
@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_queries_after_a_past_see_their_window(queries: int, keys: int, window: int | None) -> None:
    noise = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 4, generator=noise, dtype=torch.float64) for n in (queries, keys, keys))
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    hidden = (distance < 0) | (distance >= (keys if window is None else window))
    expected = (q @ k.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(attend_to_past(q, k, v, window=window), expected)
    if queries == keys and window is not None:
        mask = Documents(torch.zeros(1, keys, dtype=torch.long), window).dense(torch.float64)
        torch.testing.assert_close(attend(q, k, v, mask), expected)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("qk_norm, relu", "did you mean 'relu2'?"),
        ("qk_norm,, relu2", 'must be "none", or of qk_norm'),
        ("", 'must be "none", or of qk_norm'),
        ("none, relu2", 'must be "none", or of qk_norm'),
        ("relu2, relu2", "has relu2 twice"),
        ("soft_cap, soft_cap:30", "has soft_cap twice"),
        ("relu2:3", "only soft_cap has a number"),
        ("soft_cap:", "only soft_cap has a number"),
        ("soft_cap:-1", "only soft_cap has a number"),
        ("soft_cap:0.5", "1 to 10,000"),
        ("soft_cap:99999999999999999999", "1 to 10,000"),
        ("convolutions:0", "convolutions, 1 to 8"),
        ("convolutions:9", "convolutions, 1 to 8"),
        ("convolutions:1.5", "convolutions, 1 to 8"),
        ("convolution", "did you mean 'convolutions'?"),
    ],
)
def test_wrong_parts_are_named(text: str, problem: str) -> None:
    assert problem in (PartsSpec(text).problem() or "")
    with pytest.raises(ValueError, match=r"must|only"):
        PartsSpec.parse(text)


def test_a_recipe_with_wrong_parts_names_the_field() -> None:
    with pytest.raises(RecipeError, match=r"model\.parts"):
        recipe_file.build({"model": {"family": "swift", "parts": "relu"}}, "test")


def test_parts_in_another_order_are_the_same_network() -> None:
    one, two = (Model(family="swift", parts=parts) for parts in ("gains, qk_norm", "qk_norm,gains , zero_outputs"))
    assert differences(one, two) == [] == differences(one, Model(family="swift", parts="gains,qk_norm"))
    other = Model(family="swift", parts="gains, qk_norm, soft_cap")
    assert differences(other, one) == [
        "model.parts is qk_norm, gains there, and qk_norm, gains, soft_cap:15 in the recipe"
    ]
    assert PartsSpec("none").in_order == "none" and PartsSpec("zero_outputs").in_order == "none"
    for first, second in itertools.combinations(SETS, 2):
        same = PartsSpec(first).in_order == PartsSpec(second).in_order
        assert not same


@pytest.mark.parametrize(
    ("fields", "compiled"),
    [
        ({}, False),
        ({"parts": "qk_norm, gains, zero_outputs, value_embeddings, scales", "tied": False}, False),
        ({"parts": "gains, scales"}, False),
        ({"parts": "qk_norm, gains, convolutions"}, False),
        ({"parts": "gains, value_embeddings"}, True),
        ({"parts": "qk_norm, relu2"}, True),
        ({"window": 64}, True),
        ({"dropout": 0.1}, False),
    ],
)
def test_layers_that_are_kernels_are_not_compiled(fields: dict[str, Any], compiled: bool) -> None:
    least: dict[str, Any] = {"budget": {"steps": 10}, "train": {"batch": 4, "lr": 1e-3}}
    recipe = recipe_file.build(least | {"model": {"family": "swift"} | fields}, "test")
    assert is_compiled(recipe, "cuda") is compiled
