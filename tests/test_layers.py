"""The layers of the package: upper ones import lower ones, and packages side by side know nothing of each other."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoestring

ROOT = Path(shoestring.__file__).parent
LAYERS = [  # from the top
    {"cli"},
    {"stages", "launch"},
    {"report", "probe", "train", "evaluate"},
    {"data", "models", "hmm", "streams", "plan", "laws", "track"},
    {"parallel", "cost"},
    {"core"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
BARE = {"core", "cost", "plan"}  # with the standard library only
DATA = "recipes"  # TOML files in a package; imports nothing
ENTRY = "__main__"  # python -m shoestring: stands for the command line
ROOT_NAME = "__init__"
FILES = sorted(ROOT.rglob("*.py"))


def imports(source: str, module: str) -> Iterator[str]:
    """Absolute names of all modules that a source imports, also inside functions; `module` is its own dotted name."""
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
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            first = node.args[0] if node.args else None
            yield first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else "?"


def violations(source: str, module: str) -> list[str]:
    """The imports of a module that its layer does not allow."""
    own = package_of(module)
    return [f"{module} imports {name}: {why}" for name in imports(source, module) if (why := objection(own, name))]


def objection(own: str, name: str) -> str | None:
    """Why a module of the package `own` may not import `name`."""
    top, _, rest = name.partition(".")
    other = rest.partition(".")[0]
    if own in (ROOT_NAME, DATA):
        return "it is to import nothing"
    if name == "?":
        return "a name made at run time cannot be checked"
    if top != "shoestring":
        bare = own in BARE and top not in sys.stdlib_module_names
        return f"{own} has the standard library only" if bare else None
    if other in ("", "__version__", own) or (own == ENTRY and other == "cli"):
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
    assert {path.stem for path in ROOT.glob("*.py")} <= {"__init__", ENTRY}


def test_every_file_was_looked_at() -> None:
    assert len(FILES) > 40
    assert {module_of(path).split(".")[1] for path in FILES} >= {"core", "plan", "cli", "stages", DATA}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("shoestring.core.x", "import shoestring.data.store"),
        ("shoestring.core.x", "from shoestring.plan import make"),
        ("shoestring.core.x", "from shoestring import track"),
        ("shoestring.core.x", "import numpy as np"),
        ("shoestring.core.x", "def f():\n    from torch import nn"),
        ("shoestring.core.x", "from ..plan import make"),
        ("shoestring.core.__init__", "from ..plan import make"),
        ("shoestring.plan.x", "import numpy.linalg"),
        ("shoestring.cost.x", "import torch"),
        ("shoestring.cost.x", "def f():\n    import numpy"),
        ("shoestring.cost.x", "from shoestring.models import cost"),
        ("shoestring.cost.x", "from shoestring.parallel.team import Team"),
        ("shoestring.plan.x", "import torch"),
        ("shoestring.plan.x", "from shoestring.data.store import Store"),
        ("shoestring.data.x", "def f():\n    def g():\n        import shoestring.models"),
        ("shoestring.data.deep.x", "from shoestring.models import build"),
        ("shoestring.data.deep.x", "from ...models import build"),
        ("shoestring.train.x", "from shoestring.evaluate.score import score"),
        ("shoestring.train.x", "from shoestring.stages import session"),
        ("shoestring.train.x", "if True:\n    import shoestring.cli"),
        ("shoestring.train.x", "import importlib\nimportlib.import_module('shoestring.cli.main')"),
        ("shoestring.train.x", "import importlib\nimportlib.import_module(name)"),
        ("shoestring.stages.x", "from shoestring.launch import slurm"),
        ("shoestring.stages.x", "from shoestring.cli.terminal import Terminal"),
        ("shoestring.stages.x", "from shoestring.unheard import of"),
        ("shoestring.unheard.x", "from shoestring.core import units"),
        ("shoestring.recipes.x", "from shoestring.core import units"),
        ("shoestring.recipes.x", "import json"),
        ("shoestring.__init__", "from shoestring.core import units"),
        ("shoestring.__main__", "from shoestring.core import units"),
    ],
)
def test_a_violation_is_caught(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("shoestring.core.x", "import json\nfrom shoestring.core.units import Seconds\nfrom . import units"),
        ("shoestring.plan.x", "from shoestring.core import units\nfrom shoestring.plan.split import Split"),
        ("shoestring.plan.x", "from shoestring.cost.networks import network_cost"),
        ("shoestring.data.deep.x", "from .y import z\nfrom ..store import Store\nimport numpy"),
        ("shoestring.train.x", "import torch\nfrom shoestring.track import LineFile"),
        ("shoestring.cli.x", "from shoestring import __version__\nfrom shoestring.stages.train import run"),
        ("shoestring.cli.x", "from shoestring.report.page import draw\nfrom shoestring.probe import machine"),
        ("shoestring.__main__", "from shoestring.cli.main import main"),
    ],
)
def test_what_is_allowed_is_not_taken_for_a_violation(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_planning_and_counting_load_neither_torch_nor_numpy() -> None:
    counting = [module_of(path) for path in FILES if package_of(module_of(path)) == "cost"]
    assert len(counting) > 4
    code = f"""
import sys
import shoestring.plan.by_hand, shoestring.plan.make, {", ".join(counting)}
print(sorted({{"torch", "numpy", "safetensors"}} & {{name.partition(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
