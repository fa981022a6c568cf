"""Damage to every file of a run and a store: bytes that flip, files that are cut, blocks that change places.

A command that reads a damaged file must notice, or come to what it comes to otherwise; all else is *silent*.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from small_home import SENTENCES, STORE, command, copy_home

READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "runs/net": (
        ("evaluate", "runs/net", "--checkpoint", "6"),
        ("evaluate", "runs/net", "--checkpoint", "3"),
        ("generate", "runs/net", "--max-tokens", "4"),
        ("report", "runs/net"),
        ("law", "compare", "runs/net", "runs/net"),
    ),
    "runs/hmm": (
        ("evaluate", "runs/hmm"),
        ("generate", "runs/hmm", "--max-tokens", "4"),
        ("hmm", "show", "runs/hmm"),
        ("hmm", "score", "runs/hmm"),
        ("report", "runs/hmm"),
    ),
    "stores/text": (("data", "check", STORE), ("data", "show", STORE, "--length", "8", "--packing", "best_fit")),
    "stores/sentences": (("data", "check", SENTENCES), ("data", "show", SENTENCES)),
}
"""By the beginning of a file's path, the commands that read it."""


class Damage(NamedTuple):
    kind: str
    where: int
    """Byte."""

    def of(self, content: bytes) -> bytes:
        at = self.where
        if self.kind == "cut":
            return content[:at]
        if self.kind == "flip":
            return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
        half = min(64, len(content) // 2)
        other = (at + len(content) // 2) % (len(content) - half + 1)
        first, second = sorted((min(at, len(content) - half), other))
        second = max(second, first + half)
        if second + half > len(content):
            first, second = 0, half
        middle = content[first + half : second]
        return content[:first] + content[second:][:half] + middle + content[first:][:half] + content[second + half :]


class Outcome(NamedTuple):
    """What a command came to on a damaged file: "noticed", "harmless" or "silent"."""

    path: str
    damage: Damage
    command: tuple[str, ...]
    found: str
    said: str


class Fuzz:
    """A home whose files are damaged one after the other, each in a copy that is mended afterwards."""

    def __init__(self, home: Path, copy: Path):
        self._home, self._copy = home, copy_home(home, copy)
        self._whole = {arguments: self._shown(arguments) for several in READERS.values() for arguments in several}
        again = {arguments: self._shown(arguments) for arguments in self._whole}
        assert again == self._whole, "commands must say the same twice"

    def files(self) -> list[Path]:
        """Those with content, relative to the home."""
        found = sorted(path for top in ("runs", "stores") for path in (self._home / top).rglob("*") if path.is_file())
        return [path.relative_to(self._home) for path in found if path.name != ".lock" and path.stat().st_size]

    def damages(self, path: Path, generator: random.Random, each: int) -> list[Damage]:
        """`each` of every kind, at random bytes; every byte where there are fewer."""
        size = (self._home / path).stat().st_size
        places = list(range(size)) if size <= each else sorted(generator.sample(range(size), each))
        return [Damage(kind, at) for kind in ("flip", "cut", "swap") for at in places]

    def outcomes(self, path: Path, damage: Damage, most: int | None = None) -> Iterator[Outcome]:
        """Of the commands that read it, or the first `most` of them in an order that the damage decides."""
        content = (self._home / path).read_bytes()
        broken = damage.of(content)
        if broken == content:
            return
        commands = next((several for top, several in READERS.items() if str(path).startswith(top)), ())
        turn = damage.where % max(1, len(commands))
        for arguments in (*commands[turn:], *commands[:turn])[: most or len(commands)]:
            (self._copy / path).write_bytes(broken)
            try:
                yield self._outcome(path, damage, arguments)
            finally:
                self._mend()

    def _outcome(self, path: Path, damage: Damage, arguments: tuple[str, ...]) -> Outcome:
        result = command(self._copy, arguments)
        shown = self._shown(arguments, (result.error, result.said))
        if result.error is not None:
            found = "noticed"
        elif shown == self._whole[arguments]:
            found = "harmless"
        else:
            found = "noticed" if path.name in result.said else "silent"
        return Outcome(str(path), damage, arguments, found, result.error or result.said)

    def _shown(
        self, arguments: Sequence[str], told: tuple[str | None, str] | None = None
    ) -> tuple[str | None, str, str]:
        """What a command says, and the page that it writes."""
        error, said = told or command(self._copy, arguments)
        page = self._copy / arguments[1] / "report.html"
        drawn = page.read_text(encoding="utf-8") if arguments[0] == "report" and page.is_file() else ""
        return error, said, drawn

    def _mend(self) -> None:
        """Make the copy as the home again."""
        there = {path.relative_to(self._copy) for path in self._copy.rglob("*")}
        for path in sorted(there - {path.relative_to(self._home) for path in self._home.rglob("*")}, reverse=True):
            place = self._copy / path
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        for path in self._home.rglob("*"):
            place = self._copy / path.relative_to(self._home)
            if path.is_file() and (not place.is_file() or place.read_bytes() != path.read_bytes()):
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
