"""Texts of a recipe that name something: their parts, and what is wrong with those that name nothing."""

from __future__ import annotations

import pytest

from shoestring.core.specs import (
    CheckpointSpec,
    CodeSpec,
    PermutationSpec,
    RotaryScaling,
    SourceSpec,
    Spec,
    StreamSpec,
    TokenizerSpec,
)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (SourceSpec("stories"), {"kind": "stories", "place": "", "has_columns": False}),
        (SourceSpec("text:a:b c.txt"), {"kind": "text", "place": "a:b c.txt", "has_columns": False}),
        (SourceSpec("csv:a.csv"), {"kind": "csv", "place": "a.csv", "has_columns": True}),
        (SourceSpec("hf:a/b:c"), {"kind": "hf", "place": "a/b:c", "has_columns": True}),
        (SourceSpec("store:stores/x"), {"kind": "store", "place": "stores/x", "has_columns": False}),
        (SourceSpec("here/my.py:texts"), {"kind": "code", "has_columns": False}),
        (CodeSpec("here/my.py:texts"), {"file": "here/my.py", "name": "texts"}),
        (TokenizerSpec("bytes"), {"kind": "bytes", "words": None}),
        (TokenizerSpec("words:500"), {"kind": "words", "words": 500}),
        (TokenizerSpec("hf:gpt2"), {"kind": "hf", "place": "gpt2", "words": None}),
        (StreamSpec("hmm:runs/a"), {"kind": "hmm", "place": "runs/a", "symbols": None}),
        (StreamSpec("markov:50"), {"kind": "markov", "symbols": 50}),
        (PermutationSpec("none"), {"kind": "none", "number": 0}),
        (PermutationSpec("block:7"), {"kind": "block", "number": 7}),
        (RotaryScaling("linear:2.5"), {"kind": "linear", "factor": 2.5}),
        (RotaryScaling("llama3:8:1:4:8192"), {"factor": 8.0, "low": 1.0, "high": 4.0, "length": 8192.0}),
        (CheckpointSpec("last"), {"step": None}),
        (CheckpointSpec("12"), {"step": 12}),
    ],
)
def test_a_spec_is_its_text_with_parts(spec: Spec, parts: dict[str, object]) -> None:
    assert type(spec).parse(str(spec)) == spec
    assert {name: getattr(spec, name) for name in parts} == parts


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (SourceSpec, "storys", '"stories"'),
        (SourceSpec, "text:", "with"),
        (SourceSpec, "my.py:not a name", '"file.py:name"'),
        (CodeSpec, "my.py", '"file.py:name"'),
        (TokenizerSpec, "words:0", '"words:N"'),
        (TokenizerSpec, "byte", '"bytes"'),
        (StreamSpec, "markov:0", '"markov:SYMBOLS"'),
        (StreamSpec, "hmm:", '"hmm:RUN"'),
        (PermutationSpec, "block:0", '"block:N"'),
        (PermutationSpec, f"block:{1 << 63}", "below"),
        (PermutationSpec, f"block:{'9' * 5000}", "below"),
        (PermutationSpec, f"pool:{(1 << 24) + 1}", "at most 16,777,216"),
        (RotaryScaling, "linear", '"linear:FACTOR"'),
        (RotaryScaling, "linear:0.5", "at least 1"),
        (RotaryScaling, "llama3:8:4:1:8192", "LOW 4"),
        (CheckpointSpec, "first", '"best"'),
        (CheckpointSpec, "-1", "a step"),
    ],
)
def test_what_names_nothing_is_refused_with_what_is_allowed(kind: type[Spec], text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        kind.parse(text)
    assert said in str(caught.value)
