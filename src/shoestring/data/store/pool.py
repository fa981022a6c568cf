"""Processes that prepare a corpus together; they end with the one that started them, and leave nothing behind."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.util
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

from shoestring.core.files import temporary_files, temporary_folder

SOCKET_BYTES = 107
"""The longest path of a socket (Linux)."""
_NAMES = "/.shoestring-0123456789ab.tmp.d/listener-01234567"
"""What is added to the folder of sockets."""


def socket_folder() -> Path:
    """Where sockets of pools lie: with other temporary files, unless their paths would be too long."""
    folder = temporary_files()
    fits = len(os.fsencode(folder)) + len(_NAMES) <= SOCKET_BYTES
    return folder if fits else Path("/tmp")  # noqa: S108 - names in it are random, and locked


def start_pool(processes: int) -> ProcessPoolExecutor:
    """A pool of processes forked from one that has loaded the modules they need."""
    return ProcessPoolExecutor(processes, mp_context=_context(), initializer=_begin)


def begin_loading() -> None:
    """Have that process load the modules now, beside this one, which may need a pool later."""
    _context()
    with contextlib.suppress(OSError):  # whoever starts a pool will say so
        forkserver.ensure_running()


def _context() -> ForkServerContext:
    _sweepable_sockets()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shoestring.data.store.map_stage", "shoestring.data.tokenize.fast_words"])
    return context


@functools.cache
def _sweepable_sockets() -> None:
    """Have the sockets of pools in a folder that is swept after a kill; multiprocessing's own would stay for ever."""
    config = getattr(multiprocessing.current_process(), "_config", {})
    if config.get("tempdir") is None:
        folder = temporary_folder(socket_folder())
        config["tempdir"] = str(folder.__enter__())
        # not atexit, which a forked process does not run
        multiprocessing.util.Finalize(None, folder.__exit__, args=(None, None, None), exitpriority=-200)


def _begin() -> None:
    """Set up a process of the pool: one core for the tokenizers library too, and exit when the parent dies."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
