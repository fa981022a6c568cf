"""The tutorials run: every command of five of them, in small, in the order in which they are read."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from profiles import write_profile

from shoestring.cli.root import root
from shoestring.core.results import Outcome

DOCS = Path(__file__).resolve().parents[2] / "docs/tutorials"
LINES = ["the cat sat on the mat .", "a dog ran to the cat .", "she said no .", "the dog sat and she ran ."] * 30
SMALL = {
    "budget.time": "", "budget.epochs": "", "budget.steps": "8", "data.length": "16", "data.documents": "120",
    "model.width": "16", "model.layers": "1", "model.heads": "2", "train.batch": "4", "evaluate.rows": "8",
    "evaluate.every": "0.25", "evaluate.prompts": "[]",
}  # fmt: skip
"""What makes a run of any recipe small."""
TWEETS = {"data.tokenizer": "words:20", "data.heldout": "0.2", "model.positions": "16"}
MORE: dict[str, dict[str, dict[str, str]]] = {
    "your-text": {"train": SMALL | {"train.tokens": ""}},
    "in-context-hmm": {
        "hmm fit": {
            "budget.epochs": "2", "data.documents": "300", "data.length": "16", "hmm.states": "4", "evaluate.rows": "8",
            "evaluate.every": "0.5",
        },
        "train": SMALL | {"data.documents": "", "model.hidden": ""},
    },
    "masked": {"train": SMALL | TWEETS | {"train.batch": "16"}},
    "perceiver-scaling": {"train": SMALL | {"data.tokenizer": "bytes", "model.latents": "4", "train.per_device": "4"}},
    "workers": {"train": SMALL | TWEETS | {"train.batch": "16"}},
}  # fmt: skip
"""By tutorial and command: settings that are added to those of the tutorial."""
LEFT_OUT = ("law fit runs/size-*", "law optimum --law law.json")
"""What needs runs that a tutorial speaks of but does not make."""


def commands_of(tutorial: str) -> list[list[str]]:
    """The commands of its shell blocks; of those for one run, the last, which is the one in small."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", (DOCS / f"{tutorial}.md").read_text(), re.DOTALL))
    found: dict[tuple[str, ...], list[str]] = {}
    for line in re.findall(r"^shoestring (.*)$", blocks.replace("\\\n", " "), re.MULTILINE):
        words = shlex.split(line, comments=True)
        name = [word for word in words if word.startswith("run.name=")]
        first = 3 if words[0] in ("hmm", "law") else 2
        found[(*words[:first], *name)] = words
    return [words for words in found.values() if not " ".join(words).startswith(LEFT_OUT)]


def small(words: list[str], tutorial: str) -> list[str]:
    """The command with settings that make it take a second."""
    for command, settings in MORE[tutorial].items():
        if words[: len(command.split())] == command.split():
            if "parallel.strategy=local" in words:
                settings = settings | {"parallel.sync_every": "4"}
            elif "run.name=tweets-sync" in words and "parallel.workers=2" in words:
                settings = settings | {"parallel.workers": "1"}  # each process takes seconds to load torch
            return [*words, *(part for item in settings.items() for part in ("--set", "=".join(item)))]
    return words


@pytest.mark.parametrize("tutorial", sorted(MORE))
def test_a_tutorial_does_what_it_says(tutorial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DOCS.parents[1] / "recipes", "recipes")
    Path("shakespeare.txt").write_text("\n\n".join(LINES))
    tweets = "".join(f"{line.replace(',', ' ')},{number % 3}\n" for number, line in enumerate(LINES))
    Path("labeled_data.csv").write_text("tweet,class\n" + tweets)
    runs = 0
    for words in commands_of(tutorial):
        if words[:2] == ["hmm", "fit"]:  # measuring it would take longer than it does
            given = small(words, tutorial)
            profile = write_profile(Path(words[2]), *given[given.index("--set") + 1 :: 2])
            Path("runs/icll-hmm").mkdir(parents=True)
            profile.write(Path("runs/icll-hmm/profile.json"))
        found = CliRunner().invoke(root, small(words, tutorial), catch_exceptions=False)
        assert found.exit_code == 0 and found.output.strip(), (words, found.output)
        runs += words[0] in ("train", "hmm") and words[1] != "show"
    done = [path for path in Path("runs").rglob("DONE") if Outcome.read(path).steps]
    assert len(done) == runs > 0
    assert all(path.with_name("report.html").is_file() for path in done)


@pytest.mark.parametrize("tutorial", sorted(MORE))
def test_a_tutorial_shows_its_answer(tutorial: str) -> None:
    assert re.search(r"^!\[[^\]]+\]\(\.\./images/", (DOCS / f"{tutorial}.md").read_text(), re.MULTILINE)
