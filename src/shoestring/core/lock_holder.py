"""The process that holds a lock file of `core.files`, as it wrote itself into it."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple


class Holder(NamedTuple):
    """A process."""

    pid: int
    host: str
    since: str

    @classmethod
    def own(cls) -> Holder:
        """This process, from now on."""
        return cls(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S"))

    @classmethod
    def read(cls, path: Path) -> Holder | None:
        """Who wrote itself into a lock file last; None: there is no such file, or it does not say."""
        try:
            written = json.loads(path.read_text())
            return cls(int(written["pid"]), str(written["host"]), str(written["since"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def is_here(self) -> bool:
        """Whether it runs on this host."""
        return self.host == socket.gethostname()

    @property
    def is_this_process(self) -> bool:
        return self.is_here and self.pid == os.getpid()

    @property
    def is_alive(self) -> bool | None:
        """None: it is on another host."""
        if not self.is_here:
            return None
        try:
            os.kill(self.pid, 0)
        except PermissionError:  # another user's
            return True
        except (OSError, OverflowError):
            return False
        return True
