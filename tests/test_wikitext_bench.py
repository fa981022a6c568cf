"""The benchmark of WikiText-2: what a variant is, and one that fails beside others."""

import argparse
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benches import load_bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_bench("wikitext", monkeypatch)


@pytest.mark.parametrize(
    ("text", "name", "changes"),
    [
        ("a:model.width=64,model.layers=2", "a", ["model.width=64", "model.layers=2"]),
        ("b:model.parts=qk_norm, gains,run.seed=1", "b", ["model.parts=qk_norm, gains", "run.seed=1"]),
        ("c:model.parts=a,b", "c", ["model.parts=a,b"]),
        ("as-it-is", "as-it-is", []),
    ],
)
def test_a_variant_is_a_name_and_changed_fields(bench: ModuleType, text: str, name: str, changes: list[str]) -> None:
    assert bench.as_variant(text) == (name, changes)


@pytest.mark.parametrize("text", ["", ":model.width=64", "a/b:model.width=64", "a:width=64"])
def test_what_is_no_variant_is_refused(bench: ModuleType, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        bench.as_variant(text)


def test_variants_that_fail_are_kept_beside_others(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def recipe(_: Any, name: str, __: Any, folder: Path) -> Path:
        if name == "refused":
            raise ValueError("no such field")
        (folder / name).mkdir()
        return folder / name / "wikitext.toml"

    def trained(file: Path, changes: list[str], _: Any, log: Any) -> dict[str, Any]:
        log.write("its log\n")
        log.flush()
        if file.parent.name == "broken":
            raise ChildProcessError("the run was not finished")
        return {"changes": changes, "test_perplexity": 65.0}

    monkeypatch.setattr(bench, "variant_recipe", recipe)
    monkeypatch.setattr(bench, "trained", trained)
    monkeypatch.setattr(bench.recipe_file, "load", lambda _: None)
    monkeypatch.setattr(bench.RunFolder, "of", lambda _: None)
    monkeypatch.setattr(bench, "validation_curve", lambda _: [(0.5, 4.0)])
    variants = {"good": ["run.seed=1"], "broken": [], "refused": ["run.sed=1"]}
    asked = argparse.Namespace(variants=variants, changes=["run.seed=0"], time="1m", context=None, out=tmp_path / "out")
    bench.run_variants(asked, tmp_path)
    (file,) = (tmp_path / "out").glob("wikitext_variants-*.json")
    found = json.loads(file.read_text())["results"]
    assert found["1m, good"]["changes"] == ["run.seed=0", "run.seed=1"]
    assert found["1m, good"]["test_perplexity"] == 65.0 and found["1m, good"]["validation_curve"] == [[0.5, 4.0]]
    assert found["1m, broken"]["failed"] == "the run was not finished" and found["1m, broken"]["log"] == "its log\n"
    assert found["1m, refused"]["failed"] == "no such field"
    said = [json.loads(line)["variant"] for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert sorted(said) == sorted(variants)
