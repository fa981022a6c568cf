"""Text from files and command lines that is shown to people: nothing in it reaches a terminal as a command."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 control characters, line and paragraph separators, marks that turn the direction of writing, and halves of
pairs, which no file in UTF-8 has."""
_IN_TEXT = "\n\t"
"""Control characters that a text of several lines may have."""
_MOST_SHOWN = 200
"""Characters of a value that a message repeats."""


def control_in(text: str, allowed: str = "") -> str | None:
    """The first control character of a text, as a visible escape; None: it has none but those in `allowed`."""
    return next((_escape(found[0]) for found in _CONTROL.finditer(text) if found[0] not in allowed), None)


def printable(text: str) -> str:
    """The text with visible escapes, such as \\x1b, in place of control characters; lines and tabs stay."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in _IN_TEXT else _escape(found[0]), text)


def one_line(text: str, most: int = _MOST_SHOWN) -> str:
    """The beginning of a text, with visible escapes in place of all control characters."""
    cut = text if len(text) <= most else f"{text[:most]}…"
    return _CONTROL.sub(lambda found: _escape(found[0]), cut)


def _escape(character: str) -> str:
    named = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(character)
    code = ord(character)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
