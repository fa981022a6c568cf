"""Each verb by itself, in the order of an experiment, through the real command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import Command, last_json

from shoestring.cli.root import COMMANDS


def test_the_whole_way_verb_by_verb(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    """Of a text file; a second run of the same model has its profile from the first."""
    (tmp_path / "corpus.txt").write_text("\n".join(f"line {i} says {i * i} and no more" for i in range(400)))
    recipe = tiny.read_text().replace('"stories"', '"text:corpus.txt"').replace('"words:100"', '"bytes"')
    recipe = recipe.replace("documents = 300", 'documents = "1M"').replace("steps = 40", 'steps = 40\nmemory = "150MB"')
    tiny.write_text(recipe)  # with so little memory, the largest batch is found soon

    def told(*arguments: str | Path, **environment: str) -> dict[str, Any]:
        result = shoestring(*arguments, "--json", **environment)
        assert result.returncode == 0, result.stderr
        return last_json(result.stdout)

    profile = told("measure", tiny)
    assert profile["schema"] == "shoestring.profile/2"
    plan = told("plan", tiny)
    assert plan["steps"] == 40
    assert plan["effective_batch"] == plan["per_device"] * plan["accumulate"] * plan["devices"]
    assert plan["entries"] == 400
    store = told("prepare", tiny)
    assert Path(tmp_path, store["store"], "manifest.json").is_file()
    trained = told("train", tiny)
    assert trained["plan"] == plan
    assert trained["outcome"]["steps"] == 40
    assert trained["evaluation"]["bits_per_byte"] > 0
    assert "noise" in {verdict["kind"] for verdict in trained["verdicts"]}
    run = tmp_path / "runs/tiny"
    assert told("evaluate", run) == trained["evaluation"]
    best = told("evaluate", run, "--checkpoint", "best")
    assert best["loss"] <= trained["evaluation"]["loss"]
    page = Path(tmp_path, told("report", run, NO_FIGURES="")["page"]).read_text()
    assert "Plan against actual" in page and "<svg" in page
    written = told("generate", run, "line", "--max-tokens", "5", "--n", "2")
    assert [type(text) for text in written["texts"]] == [str, str]
    assert told("generate", run, "line", "--max-tokens", "5", "--n", "2") == written, "of one seed"
    names = {path.name for path in run.iterdir()}
    expected = {"recipe.toml", "machine.json", "profile.json", "plan.json", "metrics.jsonl", "timings.jsonl"}
    assert names == expected | {
        "tokenizer.json",
        "checkpoints",
        "evaluation.json",
        "report.html",
        "DONE",
        "seal.json",
        "samples.jsonl",
    }
    second = shoestring("train", tiny, "--set", "run.name=second", "--json")
    assert second.returncode == 0, second.stderr
    assert "measured on" in second.stderr and "kept in" in second.stderr
    assert last_json(second.stdout)["evaluation"] == trained["evaluation"]


def test_a_shell_completes_commands_and_options(shoestring: Command) -> None:
    for words, number, expected in (("shoestring ge", 1, "generate"), ("shoestring generate --te", 2, "--temperature")):
        found = shoestring(_SHOESTRING_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(number))
        assert expected in found.stdout
    assert "complete" in shoestring(_SHOESTRING_COMPLETE="zsh_source").stdout


def test_a_plan_needs_a_profile_or_figures(tiny: Path, shoestring: Command) -> None:
    result = shoestring("plan", tiny)
    assert result.returncode == 2
    assert "shoestring measure RECIPE" in result.stderr


def test_help_imports_neither_torch_nor_numpy() -> None:
    """Of no verb and of each: what one imports is there for all that come after it, and the first is told."""
    code = (
        "import sys, shoestring.cli.main as m\n"
        f"for verb in [], *([verb] for verb in {COMMANDS!r}):\n"
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
