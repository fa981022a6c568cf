"""Each verb by itself, in the order of an experiment, through the real command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import Command, last_json
from profiles import write_profile

VERBS = ("demo", "measure", "plan", "prepare", "train", "evaluate", "export", "report")


def test_the_whole_way_verb_by_verb(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    def told(*arguments: str | Path) -> dict[str, object]:
        result = shoestring(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return last_json(result.stdout)

    profile = told("measure", tiny)
    assert profile["schema"] == "shoestring.profile/2"
    plan = told("plan", tiny)
    assert plan["steps"] == 40
    assert plan["effective_batch"] == plan["per_device"] * plan["accumulate"] * plan["devices"]  # type: ignore[operator]
    store = told("prepare", tiny)
    assert Path(tmp_path, str(store["store"]), "manifest.json").is_file()
    trained = told("train", tiny)
    assert trained["plan"] == plan
    assert trained["outcome"]["steps"] == 40  # type: ignore[index]
    assert told("evaluate", tmp_path / "runs/tiny") == trained["evaluation"]
    best = told("evaluate", tmp_path / "runs/tiny", "--checkpoint", "best")
    assert best["loss"] <= trained["evaluation"]["loss"]  # type: ignore[index, operator]
    page = told("report", tmp_path / "runs/tiny")
    assert "Plan against actual" in Path(tmp_path, str(page["page"])).read_text()
    names = {path.name for path in (tmp_path / "runs/tiny").iterdir()}
    expected = {"recipe.toml", "machine.json", "profile.json", "plan.json", "metrics.jsonl", "timings.jsonl"}
    assert names == expected | {"checkpoints", "evaluation.json", "report.html", "DONE", ".lock"}


def test_a_text_file_goes_the_whole_way(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(f"line {i} says {i * i} and no more" for i in range(400)))
    options = ("--set", "data.source=text:corpus.txt", "--set", "data.tokenizer=bytes", "--set", "data.documents=1M")
    result = shoestring("train", tiny, *options, "--json")
    assert result.returncode == 0, result.stderr
    told = last_json(result.stdout)
    assert told["plan"]["entries"] == 400  # type: ignore[index]
    assert told["evaluation"]["bits_per_byte"] > 0  # type: ignore[index, operator]


def test_a_plan_needs_a_profile_or_figures(tiny: Path, shoestring: Command) -> None:
    result = shoestring("plan", tiny)
    assert result.returncode == 2
    assert "shoestring measure RECIPE" in result.stderr


def test_a_run_that_has_begun_keeps_its_plan(tiny: Path, shoestring: Command) -> None:
    write_profile(tiny)
    assert shoestring("train", tiny).returncode == 0
    result = shoestring("plan", tiny)
    assert result.returncode == 2
    assert "keeps its plan" in result.stderr


def test_help_imports_neither_torch_nor_numpy() -> None:
    """Of no verb and of each: what one imports is there for all that come after it, and the first is told."""
    code = (
        "import sys, shoestring.cli.main as m\n"
        f"for verb in [], *([verb] for verb in {VERBS!r}):\n"
        "    sys.argv = ['shoestring', *verb, '--help']\n"
        "    try: m.main()\n"
        "    except SystemExit as e: assert e.code == 0, (verb, e.code)\n"
        "    assert not {'torch', 'numpy', 'vl_convert'} & sys.modules.keys(), verb"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_planning_by_hand_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, shoestring.cli.main as m\n"
        "sys.argv = 'shoestring plan --time 5d --tokens-per-second 2500 --tokens-per-gb 200M'.split()\n"
        "try: m.main()\n"
        "except SystemExit as e: assert e.code == 0, e.code\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
