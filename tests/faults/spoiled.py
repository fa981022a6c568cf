"""Ways to spoil a file, a path, a record or a number, each with a name."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Act = Callable[[Path], None]


class Bad(NamedTuple):
    """One way to be wrong."""

    name: str
    value: str
    """The argument, or the file that is spoiled."""
    act: Act
    names: tuple[str, ...]
    """What the message must name; any one of the parts of "a|b"."""


def nothing(_: Path) -> None:
    """Leave the world as it is: the argument itself is bad."""


LONG_NAME = "n" * 300
LONG_PATH = "/".join(["d" * 99] * 50)
NOISE = random.Random(0).randbytes(3000)


def bad_paths(kind: str, good: str) -> Iterator[Bad]:
    """Paths that are not the `kind` ("file" or "folder") that is needed; `good` is one that is."""

    def make(name: str, act: Act) -> Bad:
        path = f"spoiled{Path(good).suffix}"
        return Bad(name, path, lambda folder: act(folder / path), ("spoiled",))

    def pipe(path: Path) -> None:
        os.mkfifo(path)

    yield Bad("missing", f"absent{Path(good).suffix}", nothing, ("absent",))
    yield Bad("long name", LONG_NAME, nothing, ("nnn",))
    yield Bad("long path", LONG_PATH, nothing, ("ddd",))
    yield Bad("below a file", "net.toml/x", nothing, ("net.toml",))
    yield Bad("escape", "\x1b[31mred\x07", nothing, ("\\x1b[31mred",))
    yield Bad("not UTF-8", os.fsdecode(b"\xff\xfe"), nothing, ("udcff",))
    yield make("loop of links", lambda path: path.symlink_to(path.name))
    yield make("dangling link", lambda path: path.symlink_to("nowhere"))
    yield make("pipe", pipe)
    yield make("unreadable", unreadable)
    if kind == "file":
        yield make("folder", Path.mkdir)
        yield Bad("device", "/dev/zero", nothing, ("/dev/zero",))
    else:
        yield make("empty folder", Path.mkdir)
        yield make("file", Path.touch)


def unreadable(path: Path) -> None:
    """A file that nobody can read, not even root: reading the memory of a process at zero is an error."""
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/self/mem")


def replaced(content: bytes) -> Act:
    def act(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    return act


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def prepended(content: bytes) -> Act:
    def act(path: Path) -> None:
        path.write_bytes(content + path.read_bytes())

    return act


IN_PLACE: dict[str, Act] = {"folder": a_folder, "pipe": a_pipe, "unreadable": unreadable}
"""For a file whose name is given by another."""
BYTES: dict[str, Act] = {
    "empty": replaced(b""),
    "noise": replaced(NOISE),
    "cut": cut,
    "not UTF-8": replaced(b'{"a": "\xff\xfe"}\n'),
    "UTF-16": replaced('{"a": 1}\n'.encode("utf-16")),
    "NUL": prepended(b"\0\0\0\0"),
}
"""For any file."""
JSON: dict[str, Act] = BYTES | {
    "list": replaced(b"[]\n"),
    "number": replaced(b"3\n"),
    "null": replaced(b"null\n"),
    "text": replaced(b'"text"\n'),
    "object": replaced(b"{}\n"),
    "other object": replaced(b'{"schema": "other/1"}\n'),
    "deep": replaced(b"[" * 100_000),
    "deep and whole": replaced(b'{"schema":' + b"[" * 900 + b"]" * 900 + b"}\n"),
    "digits": replaced(b'{"schema": ' + b"9" * 5000 + b"}\n"),
    "two values": replaced(b"{}\n{}\n"),
}
TOML: dict[str, Act] = BYTES | {
    "statement": replaced(b"batch 4\n"),
    "twice": replaced(b"[run]\n[run]\n"),
    "deep": replaced(b"a = " + b"[" * 5000),
    "deep names": replaced(b"a" + b".a" * 3000 + b" = 1\n"),
    "digits": replaced(b"[train]\nbatch = " + b"9" * 5000 + b"\n"),
    "hexadecimal digits": replaced(b"[budget]\nsteps = 4\n[train]\nbatch = 0x" + b"f" * 5000 + b"\n"),
    "sections": replaced(b"run = 3\ntrain = []\n"),
    "unknown": replaced(b"[budget]\nsteps = 4\n[nonsense]\na = 1\n"),
    "circle": lambda path: path.write_text(f'extends = "{path.name}"\n') and None,
    "extends nothing": replaced(b'extends = "absent.toml"\n'),
    "extends NUL": replaced(b'extends = "a\\u0000b"\n'),
    "extends long": replaced(b'extends = "' + b"x" * 5000 + b'"\n'),
    "extends a folder": replaced(b'extends = "runs"\n'),
    "extends a list": replaced(b'extends = ["net.toml"]\n'),
}


def spoil_field(path: Path, name: str, value: Any) -> None:
    """Give a field of a JSON record another value; a deleted one where that is `...`."""
    values = json.loads(path.read_text())
    if value is ...:
        del values[name]
    else:
        values[name] = value
    path.write_text(json.dumps(values))
