"""The layers of the package: upper ones import lower ones, and packages side by side know nothing of each other."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import shoestring

ROOT = Path(shoestring.__file__).parent
LAYERS = [  # from the top
    {"cli", "api"},
    {"console", "board"},
    {"studies"},
    {"runs"},
    {"report", "probe", "training", "baselines"},
    {"datasets"},
    {"data", "models", "hmm", "streams", "planning", "laws", "track"},
    {"parallel", "cost", "storage"},
    {"core"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
BARE = {"core", "cost", "planning"}  # with the standard library only
DATA = "recipes"  # TOML files in a package; imports nothing
ENTRY = "__main__"  # python -m shoestring: stands for the command line
ROOT_NAME = "__init__"  # import shoestring: hands on what `api` has, and the registry
MAY_IMPORT = {ENTRY: {"cli"}, ROOT_NAME: {"api", "core"}}
BY_NAME = {  # may import what a name made at run time says
    "shoestring.core.registry",
    "shoestring.core.user_code",
    "shoestring.cli.root",
}
IMPORTERS = ("import_module", "__import__", "spec_from_file_location")
FILES = sorted(ROOT.rglob("*.py"))


@cache
def imports(source: str, module: str) -> tuple[str, ...]:
    """Absolute names of all modules that a source imports, also inside functions; `module` is its own dotted name."""
    return tuple(_imports(source, module))


def _imports(source: str, module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            if base == "shoestring":  # each name may be a package
                yield from (f"shoestring.{alias.name}" for alias in node.names)
            else:
                yield base
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
            first = node.args[0] if node.args else None
            yield first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else "?"


def violations(source: str, module: str) -> list[str]:
    """The imports of a module that its layer does not allow."""
    own = package_of(module)
    names = [name for name in imports(source, module) if name != "?" or module not in BY_NAME]
    return [f"{module} imports {name}: {why}" for name in names if (why := objection(own, name))]


def objection(own: str, name: str) -> str | None:
    """Why a module of the package `own` may not import `name`."""
    top, _, rest = name.partition(".")
    other = rest.partition(".")[0]
    if own == DATA:
        return "it is to import nothing"
    if name == "?":
        return "a name made at run time cannot be checked"
    if top != "shoestring":
        bare = own in {*BARE, ROOT_NAME} and top not in sys.stdlib_module_names
        return f"{own} has the standard library only" if bare else None
    if other in ("", "__version__", own) or other in MAY_IMPORT.get(own, ()):
        return None
    if own not in LEVEL or other not in LEVEL:
        return "not in the table of layers"
    return "not a lower layer" if LEVEL[other] <= LEVEL[own] else None


def package_of(module: str) -> str:
    """The second part of a module's name: "core" of "shoestring.core.units"."""
    return module.split(".")[1]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)


@pytest.mark.parametrize("path", FILES, ids=[module_of(path) for path in FILES])
def test_a_module_imports_lower_layers_only(path: Path) -> None:
    assert violations(path.read_text(), module_of(path)) == []


def test_every_package_has_its_layer() -> None:
    packages = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert packages - set(LEVEL) - {DATA} == set()
    assert {path.stem for path in ROOT.glob("*.py")} <= {ROOT_NAME, ENTRY, *LEVEL}


def test_every_file_was_looked_at() -> None:
    assert len(FILES) > 200
    assert {package_of(module_of(path)) for path in FILES} == {*LEVEL, DATA, ENTRY, ROOT_NAME}


def test_what_may_import_by_a_name_made_at_run_time_does() -> None:
    sources = {module_of(path): path.read_text() for path in FILES}
    assert {module for module, source in sources.items() if "?" in imports(source, module)} == BY_NAME


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("shoestring.core.x", "import shoestring.data.store.store"),
        ("shoestring.core.x", "from shoestring.planning import make"),
        ("shoestring.core.x", "from shoestring import track"),
        ("shoestring.core.x", "import numpy as np"),
        ("shoestring.core.x", "def f():\n    from torch import nn"),
        ("shoestring.core.x", "from ..plan import make"),
        ("shoestring.core.__init__", "from ..plan import make"),
        ("shoestring.planning.x", "import numpy.linalg"),
        ("shoestring.cost.x", "import torch"),
        ("shoestring.cost.x", "def f():\n    import numpy"),
        ("shoestring.cost.x", "from shoestring.models import cost"),
        ("shoestring.cost.x", "from shoestring.parallel.process_group import ProcessGroup"),
        ("shoestring.planning.x", "import torch"),
        ("shoestring.planning.x", "from shoestring.data.store.store import Store"),
        ("shoestring.data.x", "def f():\n    def g():\n        import shoestring.models"),
        ("shoestring.data.deep.x", "from shoestring.models import build"),
        ("shoestring.data.deep.x", "from ...models import build"),
        ("shoestring.training.x", "from shoestring.baselines.ngram import count"),
        ("shoestring.training.x", "from shoestring.runs import session"),
        ("shoestring.training.x", "if True:\n    import shoestring.cli"),
        ("shoestring.training.x", "import importlib\nimportlib.import_module('shoestring.cli.main')"),
        ("shoestring.training.x", "import importlib\nimportlib.import_module(name)"),
        ("shoestring.training.x", "import importlib.util\nimportlib.util.spec_from_file_location(name, path)"),
        ("shoestring.core.registry", "import importlib\nimportlib.import_module('shoestring.models')"),
        ("shoestring.runs.x", "from shoestring.studies import sweep"),
        ("shoestring.runs.x", "from shoestring.console.terminal import Terminal"),
        ("shoestring.runs.x", "from shoestring.unheard import of"),
        ("shoestring.console.x", "from shoestring import api"),
        ("shoestring.cli.x", "from shoestring.api import train"),
        ("shoestring.unheard.x", "from shoestring.core import units"),
        ("shoestring.recipes.x", "from shoestring.core import units"),
        ("shoestring.recipes.x", "import json"),
        ("shoestring.__init__", "from shoestring.runs import runner"),
        ("shoestring.__init__", "import torch"),
        ("shoestring.__main__", "from shoestring.core import units"),
    ],
)
def test_a_violation_is_caught(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("shoestring.core.x", "import json\nfrom shoestring.core.units import Seconds\nfrom . import units"),
        ("shoestring.planning.x", "from shoestring.core import units\nfrom shoestring.planning.split import Split"),
        ("shoestring.planning.x", "from shoestring.core.family import network_cost"),
        ("shoestring.data.deep.x", "from .y import z\nfrom ..store import Store\nimport numpy"),
        ("shoestring.training.x", "import torch\nfrom shoestring.track import LineFile"),
        ("shoestring.cli.x", "from shoestring import __version__\nfrom shoestring.runs.runner import run"),
        ("shoestring.cli.x", "from shoestring.report.page import draw\nfrom shoestring.probe import machine"),
        ("shoestring.core.registry", "import importlib\nimportlib.import_module(name)"),
        ("shoestring.__main__", "from shoestring.cli.main import main"),
        ("shoestring.__init__", "from shoestring import api\nfrom shoestring.core.registry import registry"),
    ],
)
def test_what_is_allowed_is_not_taken_for_a_violation(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_the_package_itself_loads_nothing_and_what_plans_and_counts_neither_torch_nor_numpy() -> None:
    counting = [module_of(path) for path in FILES if package_of(module_of(path)) == "cost"]
    assert len(counting) > 4
    code = f"""
import sys
import shoestring
print(sorted(name for name in sys.modules if name.startswith("shoestring.")))
import shoestring.planning.by_hand, shoestring.planning.make, {", ".join(counting)}
for kind in ("family", "optimizer", "tracker", "format", "gpu"):
    entries = shoestring.registry(kind)
    assert [entries[name] for name in entries]
print(sorted({{"torch", "numpy", "safetensors"}} & {{name.partition(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n[]\n"
