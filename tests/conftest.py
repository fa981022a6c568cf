"""Shared by all tests: shape checks on, a tiny recipe, and the real command line in a process of its own."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
from commands import NO_FIGURES, Started, forks, measure_in_forks, share_forks, start_workers_in_forks
from side_by_side import SideBySide

# two test processes with two threads each wait for one another on two cores; a user's own setting is kept
os.environ.setdefault("OMP_NUM_THREADS", "1")

# nothing here has to last through a power failure; a test that kills a process finds what the system keeps
os.fsync = lambda _: None

# what one test has measured is not what a user keeps, nor the other way round
os.environ["SHOESTRING_CACHE"] = tempfile.mkdtemp(prefix="shoestring-tests-")


def _with_shapes(*packages: str) -> list[str]:
    """Modules that have shapes in signatures. Others are left as they are: the checker draws from `random`."""
    spec = importlib.util.find_spec("shoestring")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    files = [file for package in packages for file in (root / package).rglob("*.py") if "jaxtyping" in file.read_text()]
    return [".".join(file.relative_to(root.parent).with_suffix("").parts) for file in files]


def _has_gpu() -> bool:
    import torch  # after OMP_NUM_THREADS is set

    return torch.cuda.is_available()


# shapes are checked wherever the checker is installed, except on a GPU: models are compiled there, and so would it be
if importlib.util.find_spec("beartype") and not _has_gpu():
    import shapes  # loads torch

    shapes.check(_with_shapes("models", "hmm"))

if not _has_gpu():  # a process that has looked for a GPU must not be forked
    measure_in_forks()
    start_workers_in_forks()

DRAWING = {"report", "laws", "studies", "test_other_text", "test_strangers"}
"""Folders and files of tests that look at figures."""

TINY = """
[run]
name = "tiny"

[budget]
steps = 40

[data]
source = "stories"
tokenizer = "words:100"
length = 32
documents = 300
heldout = 0.1

[model]
width = 16
layers = 1
heads = 2

[train]
batch = 4
lr = 3e-3

[evaluate]
rows = 8
every = 0.25
"""


def _prepare() -> None:
    """Start the process from which commands are forked; what these say by themselves is not for the terminal."""
    kept, nowhere = [os.dup(number) for number in (1, 2)], os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    forks()
    for number, own in enumerate(kept, start=1):
        os.dup2(own, number)
    for end in (*kept, nowhere):
        os.close(end)


def _begin() -> None:
    """In a process of its own for some of the tests."""
    os.environ["SHOESTRING_CACHE"] = tempfile.mkdtemp(prefix="shoestring-tests-")
    share_forks()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """`-n` means forks of this process; with a GPU, which none of them could use, it is left to pytest-xdist."""
    count = config.getoption("numprocesses", None)
    if isinstance(count, int) and count > 1 and not config.getoption("usepdb") and not _has_gpu():
        config.option.numprocesses, config.option.dist = 0, "no"
        config.pluginmanager.register(SideBySide(count, _prepare, _begin))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What torch's compiler warns of on a GPU is no error of ours: it differs from version to version.

    Tests of a real Slurm, which mostly wait, come first: others run meanwhile.
    """
    items.sort(key=lambda item: item.path.parent.name != "slurm")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True, scope="module")
def _keep_what_is_loaded() -> None:
    """A run collects garbage several times; it need not look at all modules and tests, which takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _figures_are_not_drawn(request: pytest.FixtureRequest) -> Iterator[None]:
    """In this process, except by tests that look at them: each takes a tenth of a second, and a run has several."""
    with pytest.MonkeyPatch.context() as patch:
        if DRAWING.isdisjoint((request.path.parent.name, request.path.stem)):
            patch.setitem(sys.modules, "vl_convert", SimpleNamespace(vegalite_to_svg=lambda _: "<svg></svg>"))
        yield


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Give back the environment: the command line, run in this process, sets variables for its children."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _shapes_are_checked_again() -> None:
    """In every test."""
    import shapes

    shapes.check_again()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe that trains in a second, in a folder of its own."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


Command = Callable[..., "subprocess.CompletedProcess[str]"]


def start(*arguments: str | Path, cwd: Path, begin: Callable[[], object] | None = None, **environment: str) -> Started:
    """`shoestring …` in a process of its own, with more in its environment; NO_FIGURES="" draws what pages show."""
    given = {"COLUMNS": "200", "NO_COLOR": "1", NO_FIGURES: "1"} | environment
    return Started([*map(str, arguments)], cwd, given, begin)


@pytest.fixture
def shoestring(tmp_path: Path) -> Command:
    """Run the command line to its end in `tmp_path`."""

    def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        process = start(*arguments, cwd=tmp_path, **environment)
        out, err = process.communicate(timeout=120)
        assert process.returncode is not None
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


def last_json(text: str) -> dict[str, object]:
    """The one object on standard output."""
    value = json.loads(text)
    assert isinstance(value, dict)
    return value


# no property is one of time: a busy machine took 475 ms for an example of 4
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
