"""`lock.txt` has a version of everything that is asked for, on every Python and processor that it is for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def _lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCK = _lock()


@pytest.mark.parametrize(
    "where", LOCK.ENVIRONMENTS, ids=lambda where: f"{where['platform_machine']}-{where['python_version']}"
)
def test_every_version_is_one_that_is_asked_for(where: dict[str, str]) -> None:
    lines = [line for line in (ROOT / "lock.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {}
    for line in map(Requirement, lines):
        if line.marker is None or line.marker.evaluate(where):
            (pin,) = line.specifier
            assert pin.operator == "=="
            pinned[line.name] = pin.version
    needed = LOCK.needed(where)
    assert needed.keys() - {"torch"} == pinned.keys(), "a dependency was added or removed: make lock"
    wrong = [
        f"{name}=={version} is not {asked}: make lock"
        for name, version in pinned.items()
        for asked in needed[name]
        if not asked.specifier.contains(version, prereleases=True)
    ]
    assert wrong == []
