"""`shoestring generate` with every causal family, and the texts it draws against all texts there are."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from enumeration import likelihood
from test_export import some_run

from shoestring.cli.root import root
from shoestring.core.errors import RunError
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import Model
from shoestring.data.tokenize.tokenizers import SymbolTokenizer
from shoestring.hmm.parameters import random_parameters
from shoestring.models.generate import Drawing
from shoestring.models.language_model import LanguageModel, build
from shoestring.runs.export import export_run
from shoestring.runs.generate import HmmWriter, NetworkWriter

SMALL: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2}
OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, vocab_size, width=16):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)

    def forward(self, ids):
        return self.head(self.embedding(ids))
"""


def model_of(family: str, folder: Path) -> Model:
    """A small network of the family, on bytes."""
    if family == "hf":
        exported = folder / "exported"
        export_run(some_run(folder / "first", Model(**SMALL)), exported)
        return Model(family="hf", name=str(exported))
    if family == "custom":
        (folder / "net.py").write_text(OWN)
        return Model(family=f"{folder / 'net.py'}:Net", options={"width": 16})
    return Model(family=family, latents=8 if family == "perceiver_ar" else None, **SMALL)


def told(run: RunFolder, *arguments: str, **more: Any) -> dict[str, Any]:
    asked = ["generate", str(run.path), "--json", "--max-tokens", "12", *arguments]
    found = CliRunner().invoke(root, asked, catch_exceptions=False, **more)
    assert found.exit_code == 0, found.output
    values: dict[str, Any] = json.loads(found.stdout)
    return values


@pytest.mark.parametrize("family", ["llama", "gpt2", "swift", "perceiver_ar", "hf", "custom"])
def test_every_causal_family_writes(family: str, tmp_path: Path) -> None:
    """More tokens than a row has; one seed gives one text, and each of several is drawn anew."""
    run = some_run(tmp_path, model_of(family, tmp_path))
    drawing = ("--temperature", "0.9", "--top-p", "0.95", "--top-k", "200", "--n", "3", "--max-tokens", "24")
    found = told(run, "once", *drawing, "--seed", "5")["texts"]
    assert len(found) == len(set(found)) == 3 and all(text.startswith("once") and len(text) > 4 for text in found)
    assert told(run, "once", *drawing, "--seed", "5")["texts"] == found
    assert told(run, "once", *drawing, "--seed", "6")["texts"] != found
    greedy = [told(run, "once", "--temperature", "0", "--n", "2", "--seed", str(seed))["texts"] for seed in (1, 2)]
    assert len({*greedy[0], *greedy[1]}) == 1, "the likeliest is one text"
    answers = told(run, "--interactive", input="a\n\n")["answers"]
    assert [each["prompt"] for each in answers] == ["a", ""] and answers[0]["texts"][0].startswith("a")


def test_a_masked_network_is_refused(tmp_path: Path) -> None:
    run = some_run(tmp_path, Model(family="masked_lm", **SMALL))
    found = CliRunner().invoke(root, ["generate", str(run.path), "once"])
    assert isinstance(found.exception, RunError) and "cannot write a text" in str(found.exception)


def sharp(model: Model, vocabulary: int, length: int) -> LanguageModel:
    """A network whose predictions depend on all that it has read."""
    network, noise = build(model, vocabulary, length, 0), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.4)
    return network.eval()


def odds_of(logits: torch.Tensor, temperature: float, top_p: float) -> list[float]:
    """Of every token, by hand: the likeliest ones until they reach top_p together."""
    weights = [math.exp(value / temperature) for value in (logits - logits.max()).tolist()]
    order, kept, reached = sorted(range(len(weights)), key=lambda n: -weights[n]), set[int](), 0.0
    for token in order:
        if reached < top_p:
            kept.add(token)
        reached += weights[token] / sum(weights)
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(weights))]


def check(drawn: Counter[str], expected: dict[str, float]) -> None:
    """Pearson's statistic is below its mean by chance plus five standard deviations; nothing impossible is drawn."""
    count = sum(drawn.values())
    assert sum(expected.values()) == pytest.approx(1.0)
    assert all(expected[text] > 0 for text in drawn)
    common = {text: share for text, share in expected.items() if share * count >= 5}
    statistic = sum((drawn[text] - count * share) ** 2 / (count * share) for text, share in common.items())
    assert len(common) > 8 and statistic < len(common) + 5 * math.sqrt(2 * len(common))


@pytest.mark.parametrize(
    "model",
    [Model(**SMALL), Model(family="gpt2", **SMALL), Model(family="perceiver_ar", latents=8, **SMALL)],
    ids=lambda model: model.family,
)
def test_texts_have_the_probabilities_of_all_texts(model: Model) -> None:
    """Of all 125 texts of three symbols after a prompt, at a temperature that leaves several likely."""
    network = sharp(model, 5, 8)
    temperature = float(network.logits(torch.tensor([[1, 2]])).std().detach()) / 0.7
    expected: dict[str, float] = {}
    odds: dict[tuple[int, ...], list[float]] = {}
    for head in (head for size in range(3) for head in itertools.product(range(5), repeat=size)):
        with torch.no_grad():
            odds[head] = odds_of(network.logits(torch.tensor([[1, 2, *head]]))[0, -1].double(), temperature, 0.9)
    for tail in itertools.product(range(5), repeat=3):
        share = math.prod(odds[tail[:place]][token] for place, token in enumerate(tail))
        expected[" ".join(map(str, (1, 2, *tail)))] = share
    writer = NetworkWriter(network, SymbolTokenizer(5), 8)
    texts = writer.write("1 2", 3, Drawing(temperature=temperature, top_p=0.9), 20_000, seed=3)
    check(Counter(texts), expected)


def test_texts_of_an_hmm_have_the_probabilities_of_all_texts() -> None:
    """Sums over all paths, of the symbols after a prompt."""
    model, names = random_parameters(3, 4, 2), tuple("abcd")
    begun = likelihood(model, [0, 3])
    expected = {
        " ".join(names[n] for n in (0, 3, *tail)): likelihood(model, [0, 3, *tail]) / begun
        for tail in itertools.product(range(4), repeat=3)
    }
    check(Counter(HmmWriter(model, names).write("a d", 3, count=20_000, seed=1)), expected)
