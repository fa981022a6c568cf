"""Workers of which some may end while the others go on.

Every worker has a connection to the first one, which notices when another ends: its connection is closed. What the
workers do together, such as an average, is tried by all. Each tells the first one whether it succeeded, and the first
one answers: done, or again, without those that ended. A collective operation that fails on one worker fails on all,
as the one that saw it disconnects from the others. So all who are left have the same result, and nothing is done by
some of them only. If the first worker ends, the others do too: it writes the run.

A worker may also end while the others connect again. That attempt fails after CONNECTING, and is tried without it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from shoestring.core.errors import Fault
from shoestring.parallel.process_group import CONNECTING, ProcessGroup, connect, host_group, is_lost, leave

T = TypeVar("T")
TRIES = 3
"""Attempts that may fail in a row without the end of a worker."""
_NUMBER = struct.Struct("!I")


class Members:
    """The workers that are left of a group; all of them make one at the same time."""

    def __init__(self, group: ProcessGroup):
        self.group, self.number = group, group.rank
        """The number of this worker, which it keeps."""
        self.left: list[int] = []
        """Workers that ended, by number."""
        self._numbers = list(range(group.world))
        self._attempt = 0
        self._lines: dict[int, socket.socket] = {}
        if group.world > 1:
            self._backend = dist.get_backend()
            self._store = PrefixStore("members", _get_default_store())
            host_group()  # a collective call: here all processes are together
            self._lines = self._accept() if group.rank == 0 else {0: self._connect()}

    def _accept(self) -> dict[int, socket.socket]:
        """Connections to all others, which are about to make them."""
        found: dict[int, socket.socket] = {}
        until = time.monotonic() + CONNECTING.total_seconds()
        with socket.create_server(("", 0)) as server:
            self._store.set("port", str(server.getsockname()[1]))
            while len(found) < self.group.world - 1:
                server.settimeout(max(until - time.monotonic(), 1e-3))
                try:
                    line, _ = server.accept()
                except TimeoutError as cause:
                    missing = sorted(set(self._numbers[1:]) - found.keys())
                    raise Fault(f"worker {missing[0]} has not connected within {CONNECTING}; see its output") from cause
                line.settimeout(max(until - time.monotonic(), 1e-3))
                said = _exactly(line, _NUMBER.size)
                line.settimeout(None)
                if said:
                    found[_NUMBER.unpack(said)[0]] = line
        return found

    def _connect(self) -> socket.socket:
        self._store.wait(["port"], CONNECTING)
        address = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(self._store.get("port"))
        line = socket.create_connection(address, CONNECTING.total_seconds())
        line.settimeout(None)
        line.sendall(_NUMBER.pack(self.number))
        return line

    def close(self) -> None:
        """Close the connections; nothing more is done together."""
        for line in self._lines.values():
            line.close()

    def together(self, act: Callable[[], T]) -> T:
        """The result of `act` once all who are left have theirs; it is called again where a worker ended meanwhile."""
        tries, connected = 0, True
        while len(self._numbers) > 1:
            failed = None
            try:
                if not connected:
                    self._regroup()
                result = act()
            except (RuntimeError, dist.DistError) as cause:
                if not is_lost(cause):
                    raise
                failed = cause.with_traceback(None)  # its frames would keep the connections open
            if failed is not None:
                leave()
            before = len(self._numbers)
            again = self._decide(failed is None) if self.number == 0 else self._hear(failed is None)
            if not again:
                return result
            connected = False
            leave()
            tries = 0 if len(self._numbers) < before else tries + 1
            if tries >= TRIES:
                raise Fault("the workers lose each other again and again; see the network") from failed
        self.group.rank, self.group.world = 0, 1
        return act()

    def _decide(self, done: bool) -> bool:
        """As the first worker: whether to try again, without those that ended."""
        waiting, ended = dict(self._lines), []
        while waiting:
            for line in select.select(list(waiting.values()), [], [])[0]:
                number = next(n for n, each in waiting.items() if each is line)
                word = _exactly(line, 1)
                done = done and word == b"+"
                if not word:
                    ended.append(number)
                    del self._lines[number]
                del waiting[number]
        self._numbers = [number for number in self._numbers if number not in ended]
        self.left += sorted(ended)
        answer = json.dumps({"again": not done, "numbers": self._numbers, "left": self.left}).encode()
        for line in self._lines.values():
            _send(line, _NUMBER.pack(len(answer)) + answer)
        return not done

    def _hear(self, done: bool) -> bool:
        """As another worker: tell the first one, and follow its answer."""
        line = self._lines[0]
        _send(line, b"+" if done else b"-")
        answer = json.loads(_exactly(line, _NUMBER.unpack(_exactly(line, _NUMBER.size) or bytes(4))[0]) or b"null")
        if answer is None:
            raise Fault("the first worker ended, and the others cannot continue without it")
        self._numbers, self.left = answer["numbers"], answer["left"]
        return bool(answer["again"])

    def _regroup(self) -> None:
        """Connect with those that are left."""
        self._attempt += 1
        rank, world = self._numbers.index(self.number), len(self._numbers)
        connect(self._backend, PrefixStore(f"again/{self._attempt}", self._store), rank, world)
        self.group.rank, self.group.world = rank, world
        host_group()


def _exactly(line: socket.socket, size: int) -> bytes:
    """So many bytes; none if the other end is closed."""
    found = b""
    try:
        while len(found) < size:
            more = line.recv(size - len(found))
            if not more:
                return b""
            found += more
    except (ConnectionError, TimeoutError):
        return b""
    return found


def _send(line: socket.socket, message: bytes) -> None:
    try:
        line.sendall(message)
    except ConnectionError:
        return  # its end is noticed when it is to answer
