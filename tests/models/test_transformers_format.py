"""Our networks as folders of transformers, loaded by its own code, which was written by others; and back."""

import dataclasses
import gzip
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.family import network_cost as cost
from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.families.llama.network import Llama
from shoestring.models.families.llama.transformers import FORMAT
from shoestring.models.language_model import LanguageModel, build, differences
from shoestring.models.transformers_format import (
    read_transformers,
    save_transformers,
    spec_of,
)

transformers = pytest.importorskip("transformers")

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"
VOCABULARY, LENGTH = 37, 24
LLAMAS = {
    "plain": Model(width=16, layers=1, heads=2),
    "untied": Model(width=24, layers=3, heads=3, tied=False, hidden=10),
    "grouped": Model(width=32, layers=2, heads=4, kv_heads=2, rotary_base=500.0),
    "one key head, biases": Model(width=32, layers=2, heads=4, kv_heads=1, bias=True, tied=False),
    "linear": Model(width=16, layers=2, heads=2, rotary_scaling="linear:2.5"),
    "another norm": Model(width=16, layers=2, heads=2, norm_eps=1e-2),
    "llama3": Model(width=32, layers=2, heads=2, bias=True, rotary_base=50.0, rotary_scaling="llama3:4:1:3:16"),
}
OTHERS = {
    "gpt2": Model(family="gpt2", width=24, layers=2, heads=3, positions=30),
    "gpt2 untied": Model(family="gpt2", width=16, layers=1, heads=2, tied=False, hidden=20),
    "swift": Model(family="swift", width=32, layers=2, heads=4, kv_heads=2, rotary_base=500.0),
    "swift untied": Model(family="swift", width=24, layers=2, heads=3, tied=False, hidden=10, norm_eps=1e-3),
    "nanochat": Model(family="swift", width=24, layers=2, heads=3, parts="qk_norm, relu2, embedding_norm, soft_cap:7"),
    "nanochat untied": Model(
        family="swift", width=32, layers=1, heads=4, kv_heads=2, parts="qk_norm, embedding_norm, relu2", tied=False
    ),
    "bert": Model(family="masked_lm", width=24, layers=2, heads=3),
    "bert untied": Model(family="masked_lm", width=16, layers=1, heads=2, tied=False, positions=40),
    "classifier": Model(family="masked_lm", width=16, layers=2, heads=2, classes=3),
}
every_llama = pytest.mark.parametrize("model", LLAMAS.values(), ids=LLAMAS)
every_model = pytest.mark.parametrize("model", [*LLAMAS.values(), *OTHERS.values()], ids=[*LLAMAS, *OTHERS])


def spread(network: nn.Module, size: float = 0.2) -> nn.Module:
    """Larger weights than the first ones, biases and gains too, so that no part is close to doing nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return network


def ours_of(model: Model) -> LanguageModel:
    network = spread(build(model, VOCABULARY, LENGTH, 0)).eval()
    assert isinstance(network, LanguageModel)
    return network


def some_ids(rows: int = 3, tokens: int = LENGTH) -> Tensor:
    return torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(3))


def loaded(folder: Path, model: Model) -> Any:
    """By the class that the folder itself names."""
    kind = transformers.AutoModelForCausalLM
    if model.family == "masked_lm":
        kind = transformers.AutoModelForSequenceClassification if model.classes else transformers.AutoModelForMaskedLM
    network, told = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    return network


def close(mine: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.3, "the comparison must not be one of small numbers"
    size = max(1.0, theirs.abs().max().item())  # rounding is that of the largest logits
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * size)


@every_llama
def test_a_llama_has_the_logits_of_transformers_both_ways(model: Model) -> None:
    config = transformers.LlamaConfig(**FORMAT.config(model, VOCABULARY, LENGTH), attn_implementation="eager")
    ours, theirs = ours_of(model), transformers.LlamaForCausalLM(config).eval()
    assert isinstance(ours, Llama)
    missing, unexpected = theirs.load_state_dict(FORMAT.write(ours), strict=False)
    assert missing == (["lm_head.weight"] if model.tied else []) and not unexpected
    with torch.no_grad():
        close(ours.logits(some_ids()), theirs(some_ids()).logits)
    spread(theirs, 0.05)  # other weights, and now the other way
    ours.load_state_dict(FORMAT.read(theirs.state_dict()))
    with torch.no_grad():
        close(ours.logits(some_ids()), theirs(some_ids()).logits)


@every_llama
def test_gradients_of_a_llama_are_those_of_transformers(model: Model) -> None:
    config = transformers.LlamaConfig(**FORMAT.config(model, VOCABULARY, LENGTH), attn_implementation="eager")
    ours, theirs = ours_of(model), transformers.LlamaForCausalLM(config).eval()
    assert isinstance(ours, Llama)
    theirs.load_state_dict(FORMAT.write(ours), strict=False)
    ids = some_ids()
    ours(ids).backward()
    (theirs(ids, labels=ids).loss * ids[:, 1:].numel()).backward()
    expected = FORMAT.read({name: p.grad for name, p in theirs.named_parameters()})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-4, msg=name)


@every_model
def test_a_folder_is_loaded_with_the_same_logits_and_back(model: Model, tmp_path: Path) -> None:
    ours, folder = ours_of(model), tmp_path / "deep" / "model"
    save_transformers(ours, model, VOCABULARY, LENGTH, folder, end=5)
    theirs = loaded(folder, model)
    sizes = [sum(p.numel() for p in network.parameters()) for network in (ours, theirs)]
    twice = VOCABULARY if model.family == "masked_lm" and not (model.tied or model.classes) else 0  # of a bias there
    assert sizes[0] == sizes[1] - twice == cost(model, VOCABULARY, LENGTH).total_parameters
    with torch.no_grad():
        mine, expected = ours.logits(some_ids()), theirs(some_ids()).logits
    close(mine[:, 0] if model.classes else mine, expected)
    if model.family != "masked_lm":
        assert theirs.config.eos_token_id == 5

    spec, state = read_transformers(str(folder))
    assert differences(model, spec) == []
    again = build(model, VOCABULARY, LENGTH, 7).eval()
    assert again.take_over(state, "here") == []
    for (name, one), two in zip(ours.named_parameters(), again.parameters()):
        assert torch.equal(one, two), name


@every_llama
def test_what_transformers_saves_is_read(model: Model, tmp_path: Path) -> None:
    """Its own folder, with its own way to write rotary scaling."""
    config = transformers.LlamaConfig(**FORMAT.config(model, VOCABULARY, LENGTH))
    theirs = spread(transformers.LlamaForCausalLM(config).eval())
    theirs.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
    spec, state = read_transformers(str(tmp_path / "theirs"))
    ours = build(spec, VOCABULARY, LENGTH, 0).eval()
    ours.take_over(state, "here")
    with torch.no_grad():
        close(ours.logits(some_ids()), theirs(some_ids()).logits)


@pytest.mark.parametrize(("width", "least", "most"), [(512, 33e6, 39e6), (1024, 130e6, 140e6)])
def test_the_models_of_the_first_experiments_have_the_parameters_of_transformers(
    width: int, least: float, most: float
) -> None:
    model = Model(width=width, layers=8, heads=8, hidden=4 * width, tied=False)
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**FORMAT.config(model, 200, 100)))
    count = sum(p.numel() for p in theirs.parameters())
    assert cost(model, 200, 100).total_parameters == count
    assert least < count < most


def test_gpt2_of_124_million_has_the_parameters_of_transformers() -> None:
    model = Model(family="gpt2", width=768, layers=12, heads=12)
    with torch.device("meta"):
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    assert cost(model, 50257, 1024).total_parameters == sum(p.numel() for p in theirs.parameters()) == 124_439_808


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    model, folder = LLAMAS["plain"], tmp_path / "model"
    save_transformers(ours_of(model), model, VOCABULARY, LENGTH, folder, files={"note.txt": "ä"})
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "note.txt"}
    before = (folder / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(UserError, match="exists already"):
        save_transformers(ours_of(model), model, VOCABULARY, LENGTH, folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="cannot write"):
        save_transformers(ours_of(model), model, VOCABULARY, LENGTH, tmp_path / "other", files={"x" * 300: ""})
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_a_family_without_a_class_says_so(tmp_path: Path) -> None:
    model = Model(family="perceiver_ar", width=16, layers=2, heads=2, latents=8)
    with pytest.raises(UserError, match=r'no class for model\.family = "perceiver_ar"'):
        save_transformers(build(model, VOCABULARY, LENGTH, 0), model, VOCABULARY, LENGTH, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "qwen2"}, 'model.family = "hf" takes any'),
        ({"hidden_act": "gelu"}, "hidden_act = gelu"),
        ({"mlp_bias": True}, "biases in attention or MLP only"),
        ({"head_dim": 5}, "heads of another size"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 'type "yarn"'),
    ],
)
def test_another_network_is_not_taken_for_ours(changes: dict[str, object], said: str) -> None:
    config = {"model_type": "llama", **FORMAT.config(LLAMAS["plain"], VOCABULARY, LENGTH)}
    assert differences(LLAMAS["plain"], spec_of(config)) == []
    with pytest.raises(UserError, match=said):
        spec_of(config | changes)


def test_the_norm_of_a_folder_is_taken_over() -> None:
    config = {"model_type": "llama", **FORMAT.config(LLAMAS["plain"], VOCABULARY, LENGTH)}
    found = spec_of(config | {"rms_norm_eps": 1e-6})
    assert found.norm_eps == 1e-6
    assert differences(LLAMAS["plain"], found) == ["model.norm_eps is 1e-06 there, and 1e-05 in the recipe"]


def test_weights_that_do_not_fit_are_named() -> None:
    model, other = LLAMAS["plain"], dataclasses.replace(LLAMAS["plain"], heads=4, rotary_scaling="linear:2")
    assert differences(model, other) == [
        "model.heads is 4 there, and 2 in the recipe",
        "model.kv_heads is 4 there, and 2 in the recipe",
        "model.rotary_scaling is linear:2.0 there, and none in the recipe",
    ]
    ours, state = ours_of(model), dict(build(model, 40, LENGTH, 0).named_parameters())
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    with pytest.raises(
        UserError, match=r"here does not fit .*embedding.weight is \(40, 16\) there, and \(37, 16\) here"
    ):
        ours.take_over(state, "here")
    wide = dict(build(dataclasses.replace(model, width=32, layers=2), VOCABULARY, LENGTH, 0).named_parameters())
    with pytest.raises(UserError, match=r"; and [0-9]+ more"):
        ours.take_over(wide, "here")
    assert all(torch.equal(p, before[name]) for name, p in ours.named_parameters())


def test_a_tied_model_may_become_an_untied_one_and_not_the_reverse() -> None:
    tied, untied = LLAMAS["plain"], dataclasses.replace(LLAMAS["plain"], tied=False)
    assert differences(untied, tied) == []
    assert differences(tied, untied) == ["model.tied is false there, and true in the recipe"]
    one, two = ours_of(tied), build(untied, VOCABULARY, LENGTH, 5).eval()
    two.take_over(dict(one.named_parameters()), "here")
    assert torch.equal(one.logits(some_ids()), two.logits(some_ids()))
    assert isinstance(two, Llama) and two.head.weight is not two.embedding.weight


# -- a real model: llama2.c's stories260K --------------------------------------------------------------------------


STORIES = REAL_DATA / "models" / "stories260K"
real = pytest.mark.skipif(not STORIES.is_dir(), reason="the real model is not beside the project")
GREEDY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to the park.\" "
    "Lily was sad and didn't know what to do. She said, \"I want to play with your ball, but I can't find it.\"\nLily "
    "was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\nLily didn't want to "
    "help her mom, so she"
)
"""What llama2.c writes with this model in 200 steps at temperature 0, by its own test."""


def read_llama2c(path: Path) -> tuple[Model, int, int, dict[str, Tensor]]:
    """The shape, vocabulary, length and state of a model file of llama2.c: seven numbers, then weights by kind.

    Its rotary pairs are channels side by side, so that the rows of queries and keys are put in another order.
    """
    raw = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack("7i", raw[:28])
    assert vocabulary > 0, "the head is the embedding"
    weights, at = torch.from_numpy(np.frombuffer(raw, dtype="<f4", offset=28).copy()), 0

    def take(*shape: int) -> Tensor:
        nonlocal at
        at += int(np.prod(shape))
        return weights[at - int(np.prod(shape)) : at].view(shape)

    def halves(x: Tensor, count: int) -> Tensor:
        """Rows (2c, 2c + 1) of each head to (c, c + C/2)."""
        return x.view(layers, count, -1, 2, dim).transpose(2, 3).reshape(layers, -1, dim)

    shared = dim // heads * kv_heads
    embedding, norm1 = take(vocabulary, dim), take(layers, dim)
    q, k, v = (take(layers, rows, dim) for rows in (dim, shared, shared))
    out, norm2 = take(layers, dim, dim), take(layers, dim)
    gate, down, up = take(layers, hidden, dim), take(layers, dim, hidden), take(layers, hidden, dim)
    state = {"embedding.weight": embedding, "head.weight": embedding, "norm.weight": take(dim)}
    assert at + length * (dim // heads) == len(weights), "what is left are the angles"
    qkv = torch.cat([halves(q, heads), halves(k, kv_heads), v], dim=1)
    parts = {"norm1": norm1, "qkv": qkv, "out": out, "norm2": norm2, "gate_up": torch.cat([gate, up], 1), "down": down}
    for i in range(layers):
        state |= {f"blocks.{i}.{name}.weight": part[i] for name, part in parts.items()}
    model = Model(width=dim, layers=layers, heads=heads, kv_heads=kv_heads, hidden=hidden)
    return model, vocabulary, length, state


class Pieces:
    """llama2.c's tokenizer: the two neighbours whose union scores best are joined, again and again."""

    def __init__(self, path: Path):
        raw, at = path.read_bytes(), 4
        self.texts, self.scores = list[bytes](), list[float]()
        while at < len(raw):
            score, size = struct.unpack("<fi", raw[at : at + 8])
            self.scores.append(score)
            self.texts.append(raw[at + 8 : at + 8 + size])
            at += 8 + size
        self.ids = {text: i for i, text in reversed(list(enumerate(self.texts)))}

    def encode(self, text: str) -> list[int]:
        """With the token that begins a text before it, and a space."""
        found = [1]
        for character in " " + text:
            raw = character.encode()
            found += [self.ids[raw]] if raw in self.ids else [byte + 3 for byte in raw]
        while True:
            pairs = [self.ids.get(self.texts[a] + self.texts[b]) for a, b in itertools.pairwise(found)]
            known = [(self.scores[joined], -at) for at, joined in enumerate(pairs) if joined is not None]
            if not known:
                return found
            at = -max(known)[1]
            found[at : at + 2] = [pairs[at]]  # type: ignore[list-item]

    def decode(self, ids: list[int]) -> str:
        pieces = [bytes([i - 3]) if 3 <= i < 259 else self.texts[i] for i in ids]
        return b"".join(pieces).decode().removeprefix(" ")


@pytest.fixture(scope="module")
def stories() -> tuple[LanguageModel, Model, Pieces]:
    model, vocabulary, length, state = read_llama2c(STORIES / "stories260K.bin")
    network = build(model, vocabulary, length, 0).eval()
    network.load_state_dict(state)
    return network, model, Pieces(STORIES / "tok512.bin")


@real
@pytest.mark.realdata
def test_the_story_model_has_its_loss_here_and_in_transformers(
    stories: tuple[LanguageModel, Model, Pieces], tmp_path: Path
) -> None:
    ours, model, pieces = stories
    assert sum(p.numel() for p in ours.parameters()) == 260_032
    save_transformers(ours, model, 512, 512, tmp_path / "stories", end=1)
    theirs = loaded(tmp_path / "stories", model)
    with gzip.open(REAL_DATA / "tinystories" / "stories.txt.gz", "rt", encoding="utf-8") as file:
        texts = file.read().split("\n<|endoftext|>\n")[::500]
    nats, count = 0.0, 0
    for number, text in enumerate(texts):
        ids = torch.tensor([pieces.encode(text[:800])])
        losses = ours.token_losses(ids)
        nats, count = nats + losses.sum().item(), count + losses.numel()
        if number < 5:
            with torch.no_grad():
                close(ours.logits(ids), theirs(ids).logits)
            assert losses.mean().item() == pytest.approx(theirs(ids, labels=ids).loss.item(), rel=1e-5)
    assert count > 3000
    assert nats / count == pytest.approx(1.35, abs=0.08)
    assert json.loads((tmp_path / "stories" / "config.json").read_text())["eos_token_id"] == 1


@real
@pytest.mark.realdata
def test_the_story_model_writes_what_llama2c_writes(
    stories: tuple[LanguageModel, Model, Pieces], tmp_path: Path
) -> None:
    ours, model, pieces = stories
    save_transformers(ours, model, 512, 512, tmp_path / "stories")
    theirs = loaded(tmp_path / "stories", model)
    ids = theirs.generate(torch.tensor([[1]]), max_new_tokens=200, do_sample=False)
    assert pieces.decode(ids[0, 1:].tolist()) == GREEDY
    with torch.no_grad():
        chosen = ours.logits(Batch(ids[:, :-1])).argmax(-1)
    assert torch.equal(chosen, ids[:, 1:]), "each of them is our choice too, so we write the same text"
    assert pieces.decode(pieces.encode(GREEDY)[1:]) == GREEDY
