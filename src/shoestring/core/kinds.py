"""The kinds of permutation that the rows of a stream may have, as text: the one rule for what is such a kind."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile("none|sequence|(block|pool):[1-9][0-9]*")
_ALLOWED = '"none", "sequence", "block:N" or "pool:P"'
_LARGEST = (1 << 63) - 1
_LARGEST_POOL = 1 << 24


@dataclass(frozen=True)
class PermutationKind:
    """The text must be "none", "sequence", "block:N" with N below 2^63, or "pool:P" with P up to 2^24."""

    def has_form(self, value: str) -> bool:
        """Whether it is a kind but for its number, which may be too large."""
        return _FORM.fullmatch(value) is not None

    def problem(self, value: str) -> str | None:
        if not self.has_form(value):
            return f"must be {_ALLOWED}"
        name, _, number = value.partition(":")
        if len(number) > len(str(_LARGEST)) or int(number or 0) > _LARGEST:  # int() refuses thousands of digits
            return "must be below 2^63"
        if name == "pool" and int(number) > _LARGEST_POOL:
            return f'a pool holds at most {_LARGEST_POOL:,} permutations; "sequence" has no limit'
        return None
