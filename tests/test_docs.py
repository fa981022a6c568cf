"""What the documents say is true: links lead somewhere, tables are generated, recipes parse, the tour is whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
RECIPES = sorted([*(ROOT / "recipes").rglob("*.toml"), *(ROOT / "src/shoestring/recipes").glob("*.toml")])
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_shipped_recipe_parses(path: Path) -> None:
    assert isinstance(recipe_file.load(path), Recipe)


def test_every_shipped_recipe_is_in_the_readme() -> None:
    assert [path.name for path in RECIPES if f"]({path.relative_to(ROOT)})" not in README] == []


def test_the_readme_s_own_recipe_parses() -> None:
    first, *others = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    whole = tomllib.loads(first)
    recipe_file.build(whole, "README.md")
    for text in others:  # sections to put in place of the first one's
        recipe_file.build(whole | tomllib.loads(text), "README.md")


def test_the_tour_has_every_folder_and_no_other() -> None:
    packages = [path for path in (ROOT / "src/shoestring").iterdir() if path.is_dir() and path.name != "__pycache__"]
    tracked = ["recipes", "bench", "results", "docs", "tests"]
    real = {f"src/shoestring/{path.name}/" for path in packages} | {f"{name}/" for name in tracked}
    told = set(re.findall(r"^\| `([a-z_/]+/)` \|", README, re.MULTILINE))
    assert told == real


def test_the_readme_s_commands_are_the_program_s() -> None:
    told = set(re.findall(r"^\| `shoestring ([a-z]+)", README, re.MULTILINE))
    environment = os.environ | {"COLUMNS": "200"}
    shown = subprocess.run(
        [sys.executable, "-m", "shoestring", "--help"], capture_output=True, text=True, check=True, env=environment
    )
    assert told == set(re.findall(r"^  ([a-z]+) {2,}\S", shown.stdout.partition("Commands:")[2], re.MULTILINE))


@pytest.mark.parametrize(
    "line",
    re.findall(r"^\.venv/bin/shoestring (plan --(?!history).*)$", README, re.MULTILINE),
    ids=lambda line: line[:30],
)
def test_the_readme_s_plans_by_hand_run(line: str) -> None:
    subprocess.run([sys.executable, "-m", "shoestring", *line.split()], capture_output=True, check=True)


def test_the_run_folder_in_the_readme_is_the_real_one() -> None:
    from shoestring.core.run_folder import RunFolder

    folder = RunFolder("x")
    names = {path.name for name, path in vars(folder).items() if isinstance(path, Path) and not name.startswith("_")}
    (drawing,) = re.findall(r"^runs/demo/\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    told = {
        name.strip().rstrip("/")
        for line in drawing.splitlines()
        for name in re.split(r"\s{2,}", line.strip())[0].split(",")
    }
    assert told == names - {"x"}


@pytest.mark.parametrize("script", ["docs/fields.py", "bench/tables.py"])
def test_generated_documents_are_up_to_date(script: str) -> None:
    subprocess.run([sys.executable, ROOT / script, "--check"], check=True, cwd=ROOT)
