"""Write lock.txt: the version of every package of the development environment, so that nothing has to be resolved.

`make lock` resolves anew, and then calls this. What another Python or processor needs, and this one has not, is named:
pin it by hand in `ELSEWHERE`.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRAS = ("report", "board", "track", "docs", "dev")
"""What the Makefile installs of pyproject.toml."""
ALONE = ("pomegranate", "lm-eval")
"""Installed without what they ask for: an oracle, and a harness of whose tasks few are used."""
ELSEWHERE = {"appnope": "0.1.4"}
"""Versions of what other environments need, by name."""
ENVIRONMENTS = [
    {"sys_platform": system.lower(), "platform_system": system, "platform_machine": machine}
    | {"python_version": python, "python_full_version": f"{python}.0"}
    for python in ("3.11", "3.12", "3.13")
    for system, machine in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"))
]
HEAD = """\
# Versions of all that `make` installs, for Python 3.11 to 3.13 on Linux and macOS; written by `make lock`. The build of
# torch differs from machine to machine: it is in constraints.txt.
"""


def roots() -> list[Requirement]:
    """What pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(each for name in EXTRAS for each in project["optional-dependencies"][name])]
    return [*map(Requirement, asked), *map(Requirement, ALONE)]


def needed(environment: dict[str, str]) -> dict[str, list[Requirement]]:
    """By name, what is asked of every package in an environment, directly or by another; torch's own are left out."""
    found: dict[str, list[Requirement]] = {}
    walked: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in roots()]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({**environment, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.setdefault(name, []).append(requirement)
        try:
            asks = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for each in {"", *requirement.extras} - {done for other, done in walked if other == name}:
            walked.add((name, each))
            if name not in ("torch", *ALONE):
                waiting += [(Requirement(text), each) for text in asks]
    return found


def lines() -> list[str]:
    """One line for each package; a package that only some environments need has a marker."""
    by_environment = [needed(environment) for environment in ENVIRONMENTS]
    made = []
    for name in sorted(set().union(*by_environment) - {"torch"}):
        version = ELSEWHERE.get(name) or _installed(name)
        if version is None:
            sys.exit(f"{name} is needed elsewhere, and is not installed here: give its version in {__file__}")
        where = [e for e, found in zip(ENVIRONMENTS, by_environment) if name in found]
        made.append(f"{name}=={version}{_marker(where)}")
    return made


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def _marker(where: list[dict[str, str]]) -> str:
    """For the environments in which a package is needed."""
    if len(where) == len(ENVIRONMENTS):
        return ""
    for system in ("linux", "darwin"):
        if where == [each for each in ENVIRONMENTS if each["sys_platform"] == system]:
            return f" ; sys_platform == '{system}'"
    names = ("sys_platform", "platform_machine", "python_version")
    return " ; " + " or ".join("(" + " and ".join(f"{name} == '{e[name]}'" for name in names) + ")" for e in where)


if __name__ == "__main__":
    (ROOT / "lock.txt").write_text(HEAD + "".join(line + "\n" for line in lines()))
