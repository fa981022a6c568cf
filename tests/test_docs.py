"""What the documents say is true: links lead somewhere, pages are generated, recipes and commands parse."""

from __future__ import annotations

import pydoc
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from shoestring.cli.main import main
from shoestring.cli.root import COMMANDS, root
from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.studies.sweep.grid import read_grid

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "recipes/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RECIPES = sorted([*(ROOT / "recipes").rglob("*.toml"), *(ROOT / "src/shoestring/recipes").glob("*.toml")])
FOLDERS = ("recipes", "examples", "bench", "results", "docs", "tests")
README = (ROOT / "README.md").read_text()


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _commands(document: Path) -> list[str]:
    """The lines of its shell blocks that call shoestring, without what a shell does around them."""
    lines = "\n".join(re.findall(r"```(?:sh|bash|console)\n(.*?)```", document.read_text(), re.DOTALL))
    found = re.findall(r"(?:^|[ /])shoestring ([a-z].*)$", lines.replace("\\\n", " "), re.MULTILINE)
    return [re.split(r" (?:#|\||>|&&|;)", line + " ")[0].strip() for line in found]


LINES = [(_name(document), line) for document in DOCUMENTS for line in _commands(document)]
BY_HAND = [line for _, line in LINES if re.match("plan --(?!history)", line)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(document: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", document.read_text())]
    there = [link for link in links if link and "://" not in link]
    assert [link for link in there if not (document.parent / link).exists()] == []


def test_what_the_reference_of_python_shows_exists() -> None:
    shown = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/python.md").read_text(), re.MULTILINE)
    assert len(shown) > 3
    assert [name for name in shown if pydoc.locate(name) is None] == []


@pytest.mark.parametrize("path", RECIPES, ids=_name)
def test_every_shipped_recipe_parses(path: Path) -> None:
    assert all(isinstance(recipe, Recipe) for recipe in read_grid(path).recipes)


def test_every_shipped_recipe_is_in_the_table_of_recipes() -> None:
    table = ROOT / "recipes/README.md"
    told = {(table.parent / link).resolve() for link in re.findall(r"\]\(([^)]+\.toml)\)", table.read_text())}
    assert told == set(RECIPES)


def test_the_readme_s_own_recipe_parses() -> None:
    first, *others = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    whole = tomllib.loads(first)
    recipe_file.build(whole, "README.md")
    for text in others:  # sections to put in place of the first one's
        recipe_file.build(whole | tomllib.loads(text), "README.md")


def test_the_tour_has_every_folder_and_no_other() -> None:
    packages = [path for path in (ROOT / "src/shoestring").iterdir() if path.is_dir() and path.name != "__pycache__"]
    real = {f"src/shoestring/{path.name}/" for path in packages} | {f"{name}/" for name in FOLDERS}
    tour = (ROOT / "docs/architecture.md").read_text()
    assert set(re.findall(r"^\| `([a-z_/]+/)` \|", tour, re.MULTILINE)) == real


@pytest.mark.parametrize(("page", "all_of_them"), [("docs/index.md", True), ("README.md", False)])
def test_the_commands_of_a_page_are_the_program_s(page: str, all_of_them: bool) -> None:
    """The README has those to begin with."""
    found = set(re.findall(r"^\| `shoestring ([a-z]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert found == set(COMMANDS) if all_of_them else found and found < set(COMMANDS)


def test_there_are_commands_to_check() -> None:
    assert len(LINES) > 10


@pytest.mark.parametrize(("document", "line"), LINES)
def test_every_command_in_a_document_is_one_of_the_program(document: str, line: str) -> None:
    command: click.Command | None = root
    words, context = shlex.split(line), click.Context(root, info_name="shoestring")
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context, info_name=name)
    assert command is not None
    command.make_context(command.name, words, parent=context)


def test_plans_by_hand_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in BY_HAND:
        monkeypatch.setattr(sys, "argv", ["shoestring", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, line


def test_the_run_folder_in_the_reference_is_the_real_one() -> None:
    folder = RunFolder("x")
    names = {path.name for name, path in vars(folder).items() if isinstance(path, Path) and not name.startswith("_")}
    text = (ROOT / "docs/reference/run-folder.md").read_text()
    (drawing,) = re.findall(r"^runs/demo/\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    told = {
        name.strip().rstrip("/")
        for line in drawing.splitlines()
        for name in re.split(r"\s{2,}", line.strip())[0].split(",")
    }
    assert told == names - {"x"}


@pytest.mark.parametrize("script", ["docs/generate.py", "bench/tables.py"])
def test_generated_documents_are_up_to_date(script: str) -> None:
    subprocess.run([sys.executable, ROOT / script, "--check"], check=True, cwd=ROOT)
