"""What a machine lacks, and the line that mends it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoestring.cli.root import root
from shoestring.probe import doctor
from shoestring.probe.doctor import EXTRAS, Check, examine

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
MODULES = {"vl-convert-python": "vl_convert"}


def found(folder: Path) -> dict[str, Check]:
    return {check.what: check for check in examine(folder)}


def test_the_extras_are_those_of_the_package() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    named = {name: [re.split("[>=<;\\\\[ ]", each)[0] for each in packages] for name, packages in extras.items()}
    for name, modules in EXTRAS.items():
        assert [MODULES.get(package, package) for package in named[name]] == list(modules)
    assert set(named) - set(EXTRAS) == {"dev", "docs"}


def test_what_is_there_is_ok_and_what_is_missing_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    checks = found(tmp_path / "not/there/yet")
    assert checks["Python"].state == "ok" and checks["torch"].state == "ok"
    assert str(tmp_path) in checks["disk"].found
    assert [path.name for path in tmp_path.iterdir()] == [], "nothing is left"
    find = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    board = found(tmp_path)["[board]"]
    assert (board.state, board.mend) == ("missing", "pip install 'shoestring[board]'") and "uvicorn" in board.found


def test_a_broken_torch_a_full_disk_and_a_strange_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(doctor, "free_bytes", lambda _: 10)
    monkeypatch.setenv("SLURM_JOB_ID", "x")
    checks = found(tmp_path)
    assert checks["torch"].state == "wrong" and "pip install 'torch" in checks["torch"].mend
    assert checks["disk"].state == "wrong" and "run.folder" in checks["disk"].mend
    assert checks["Slurm"].state == "wrong"
    assert "GPU" not in checks


def test_the_command_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = CliRunner().invoke(root, ["doctor", str(tmp_path)], catch_exceptions=False)
    assert told.exit_code == 0 and "This machine" in told.stdout
    table = told.stdout.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 80
