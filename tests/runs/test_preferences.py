"""Minimal pairs and multiple choice: ties, errors, and likelihoods against ones that are added up token by token."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from enumeration import likelihood
from profiles import write_profile

from shoestring.cli.root import root
from shoestring.core.clock import Clock
from shoestring.core.errors import DataError
from shoestring.core.recipe_file import load
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import Model
from shoestring.data.tokenize.tokenizers import ByteTokenizer
from shoestring.hmm.parameters import Saved, random_parameters
from shoestring.models.language_model import build
from shoestring.runs import session
from shoestring.runs.hmm_pairs import make_pairs
from shoestring.runs.preferences import HmmJudge, Item, Likelihood, NetworkJudge, preferences_of, read_items
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run


def known(scores: dict[str, float]) -> object:
    """A judge that has these log-likelihoods, and no other word."""

    def judge(texts: Sequence[tuple[str, str]]) -> list[Likelihood | None]:
        return [Likelihood(scores[text], tuple(text.encode())) if text in scores else None for _, text in texts]

    return judge


def test_ties_count_their_share_and_errors_are_those_of_items() -> None:
    scores = {"a": -1.0, "b": -2.0, "c": -2.0}
    items = [
        Item("", ("a", "b"), 0, "one"),
        Item("", ("b", "a"), 0, "one"),
        Item("", ("b", "c"), 0, "two"),
        Item("", ("b", "c", "b"), 1, "two"),
        Item("", ("a", "strange"), 0, "two"),
    ]
    found = preferences_of(items, known(scores), "pairs", "x", 7)  # type: ignore[arg-type]
    credits = [1.0, 0.0, 0.5, 1 / 3]
    assert found.accuracy == pytest.approx(statistics.fmean(credits))
    assert found.accuracy_error == pytest.approx(statistics.stdev(credits) / 2)
    assert (found.items, found.ties, found.skipped, found.step) == (4, 2, 1, 7)
    assert found.chance == pytest.approx((3 * 0.5 + 1 / 3) / 4)
    assert [(group.name, group.items, group.accuracy) for group in found.groups] == [
        ("one", 2, 0.5),
        ("two", 2, pytest.approx(5 / 12)),
    ]
    assert found.accuracy_per_byte is None
    longer = preferences_of(
        [Item("", ("long", "no"), 0)],
        known({"long": -4.0, "no": -3.0}),  # type: ignore[arg-type]
        "choices",
        "x",
        None,
    )
    assert (longer.accuracy, longer.accuracy_per_byte, longer.accuracy_error) == (0.0, 1.0, None)


def test_the_same_tokens_are_a_tie_whatever_rounding_says() -> None:
    def judge(texts: Sequence[tuple[str, str]]) -> list[Likelihood | None]:
        return [Likelihood(-1.0 - 1e-9 * place, (1, 2)) for place in range(len(texts))]

    found = preferences_of([Item("", ("x", "y"), 1)], judge, "pairs", "x", None)
    assert (found.accuracy, found.ties) == (0.5, 1)


@pytest.mark.parametrize("family", ["llama", "gpt2", "perceiver_ar"])
def test_a_network_s_likelihood_is_the_sum_over_its_tokens(family: str) -> None:
    fields: dict[str, object] = {"latents": 12} if family == "perceiver_ar" else {}
    tokenizer, length = ByteTokenizer(), 12
    model = Model(family=family, width=16, layers=2, heads=2, **fields)  # type: ignore[arg-type]
    network = build(model, tokenizer.vocab_size, length, 0).eval()
    judge = NetworkJudge(network, tokenizer, length)
    texts = [("", "a cat"), ("", "a dog"), ("the", "cat"), ("the ", "cat"), ("", "x"), ("a long beginning", "end")]
    for (context, choice), found in zip(texts, judge(texts), strict=True):
        joined = f"{context} {choice}" if context and context[-1] != " " else context + choice
        ids = [tokenizer.end, *tokenizer.encode(joined)]
        total = 0.0
        for place in range(1 + len(tokenizer.encode(context)) if context else 1, len(ids)):
            begin = max(0, len(ids) - 1 - length)
            with torch.no_grad():
                logits = network.logits(torch.tensor([[int(i) for i in ids[begin:place]]]))[0, -1].double()
            total += float(logits.log_softmax(0)[int(ids[place])])
        assert found is not None and found.log_p == pytest.approx(total, abs=1e-4)
        assert found.cut is (len(ids) > length + 1)


def test_a_text_longer_than_what_a_network_predicts_is_scored_in_pieces() -> None:
    """A perceiver with 4 latents: every token of a piece is predicted in the pass of its piece."""
    spec, tokenizer = Model(family="perceiver_ar", width=16, layers=1, heads=2, latents=4), ByteTokenizer()
    network = build(spec, tokenizer.vocab_size, 12, 0).eval()
    (found,) = NetworkJudge(network, tokenizer, 12)([("", "longer by far")])
    ids = [int(each) for each in (tokenizer.end, *tokenizer.encode("longer by far"))]
    total = 0.0
    for begin in range(1, len(ids), 4):
        end = min(begin + 4, len(ids))
        with torch.no_grad():
            logits = network.logits(torch.tensor([ids[max(0, end - 13) : end - 1]]))[0].double().log_softmax(-1)
        total += sum(float(logits[place - end, ids[place]]) for place in range(begin, end))
    assert found is not None and found.log_p == pytest.approx(total, abs=1e-4)


def test_an_hmm_s_likelihood_is_that_of_all_paths() -> None:
    model = random_parameters(3, 3, 5)
    judge = HmmJudge(model, ("a", "b", "c"))
    whole, rest, missing = judge([("", "a b c"), ("a b", "c a"), ("", "a d")])
    assert missing is None and whole is not None and rest is not None
    assert whole.log_p == pytest.approx(math.log(likelihood(model, [0, 1, 2])))
    assert rest.log_p == pytest.approx(math.log(likelihood(model, [0, 1, 2, 0]) / likelihood(model, [0, 1])))


def test_pairs_of_an_hmm_have_its_own_preferences_beside_them(tmp_path: Path) -> None:
    model = Saved(random_parameters(4, 6, 1), ("a", "b", "c", "d", "e", "f"), {})
    lines = make_pairs(model, 200, 5, 0)
    assert len(lines) == 200 and make_pairs(model, 200, 5, 0) == lines != make_pairs(model, 200, 5, 1)
    for line in lines:
        good, bad = line["sentence_good"].split(), line["sentence_bad"].split()
        changed = [place for place in range(5) if good[place] != bad[place]]
        assert len(changed) == {"swapped": 2, "replaced": 1}[line["UID"]]
        one, other = (likelihood(model.parameters, ["abcdef".index(word) for word in text]) for text in (good, bad))
        assert line["oracle"] == (1.0 if one > other else 0.0 if one < other else 0.5)
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    judge = HmmJudge(model.parameters, model.alphabet or ())
    found = preferences_of(read_items(path, "pairs"), judge, "pairs", "x", None)
    assert found.accuracy == found.oracle == statistics.fmean(line["oracle"] for line in lines)
    assert found.accuracy > 0.6, "above a guess"
    assert [group.name for group in found.groups] == ["replaced", "swapped"]


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        ("pairs", '{"sentence_good": "a"}', 'needs two texts, "sentence_good" and "sentence_bad"'),
        ("pairs", "[1]", "not an object"),
        ("pairs", '{"good": "a", "bad": "b", "oracle": 2}', '"oracle" = 2: must be 0, 0.5 or 1'),
        ("pairs", "{", "line 2: .*not JSON"),
        ("choices", '{"choices": ["a"], "answer": 0}', "at least two texts"),
        ("choices", '{"choices": ["a", "b"], "answer": 2}', "its number from 0 to 1"),
        ("choices", '{"choices": ["a", "b"], "answer": true}', "its number from 0 to 1"),
        ("choices", '{"choices": ["a", "b"], "answer": 1, "context": 3}', '"context" must be a text'),
        ("pairs", "", "holds no pairs"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, kind: str, line: str, message: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(DataError, match=message):
        read_items(path, kind)  # type: ignore[arg-type]


def test_items_are_read_as_blimp_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"sentence_good": "g", "sentence_bad": "b", "UID": "u", "pairID": "0"}) + "\n")
    assert read_items(path, "pairs") == [Item("", ("g", "b"), 0, "u")]
    path.write_text(json.dumps({"question": "q", "choices": ["x", "y"], "answer": "y", "group": 3}) + "\n")
    assert read_items(path, "choices") == [Item("q", ("x", "y"), 1, "3")]


def test_a_trained_model_prefers_what_it_has_read(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of its corpus against the same words backwards; and another text by name."""
    monkeypatch.chdir(tiny.parent)
    monkeypatch.setattr(session, "draw", lambda _: {})
    settings = ("budget.steps=300", "evaluate.prompts=[]")
    write_profile(tiny, *settings)
    run(load(tiny, settings), Reporter(), Clock(0.0))
    folder = RunFolder.of(load(tiny, settings)).path
    sentences = ["once upon a time there was a little girl .", "the cat was very happy .", "she said to the dog ."]
    lines = [{"good": text, "bad": " ".join(reversed(text.split()))} for text in sentences]
    Path("pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("other.txt").write_text("\n".join(sentences * 20))

    def told(source: str) -> dict[str, object]:
        found = CliRunner().invoke(root, ["evaluate", str(folder), "--on", source, "--json"], catch_exceptions=False)
        values: dict[str, object] = json.loads(found.stdout)
        return values

    pairs = told("pairs:pairs.jsonl")
    assert pairs["items"] == 3 and pairs["accuracy"] == 1.0 and pairs["chance"] == 0.5
    other = told("text:other.txt")
    assert other["text"] == "text:other.txt" and other["loss_error"] is not None


def test_the_ceiling_is_what_the_source_of_the_items_gets_for_those_that_are_scored() -> None:
    items = [
        Item("", ("a", "b"), 0, "one", 1.0),
        Item("", ("b", "a"), 0, "one", 0.0),
        Item("", ("a", "b"), 0, "two", 0.5),
        Item("", ("a", "strange"), 0, "two", 0.0),
    ]
    found = preferences_of(items, known({"a": -1.0, "b": -2.0}), "pairs", "x", None)  # type: ignore[arg-type]
    assert found.oracle == pytest.approx(0.5)
    assert found.oracle_error == pytest.approx(statistics.stdev([1.0, 0.0, 0.5]) / math.sqrt(3))
    assert [group.oracle for group in found.groups] == [0.5, 0.5]
    unknown = preferences_of(
        [*items, Item("", ("a", "b"), 0, "three")], known({"a": -1.0, "b": -2.0}), "pairs", "x", None
    )  # type: ignore[arg-type]
    assert unknown.oracle is None and [group.oracle for group in unknown.groups] == [0.5, None, 0.5]
