"""The process that holds a lock file of `core.files`."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import NamedTuple

from shoestring.core.files import is_locked


class Holder(NamedTuple):
    """A process, as it wrote itself into its lock file."""

    pid: int
    host: str
    since: str

    @property
    def is_here(self) -> bool:
        """Whether it runs on this host."""
        return self.host == socket.gethostname()


def holder_of(path: Path) -> Holder | None:
    """Who holds the lock file `path`; None: nobody, or it is not known."""
    try:
        if not is_locked(path):
            return None
        written = json.loads(path.read_text())
        return Holder(int(written["pid"]), str(written["host"]), str(written["since"]))
    except (OSError, ValueError, KeyError, TypeError):  # it ended just now
        return None
