"""From a corpus to a token store: passes over its units in parallel, then the manifest.

The result depends on the corpus and the tokenizer alone: not on how many processes or machines write it, and
not on how often they were killed.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path

from shoestring.core.errors import DataError, StorageError
from shoestring.core.files import (
    drop_lock,
    folder_bytes,
    free_bytes,
    locked,
    sweep,
)
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.records import START_SECONDS, Density, Plan
from shoestring.core.sections import Data
from shoestring.core.units import Bytes, counted
from shoestring.data.read.corpora import open_source
from shoestring.data.read.density import estimate_density
from shoestring.data.read.documents import Corpus
from shoestring.data.store.maker import Maker, Progress, Wanted, clear
from shoestring.data.store.pool import socket_folder
from shoestring.data.store.sizes import estimate_bytes
from shoestring.data.store.store import (
    Store,
    StorePaths,
)
from shoestring.data.store.work_units import UNIT_BYTES
from shoestring.data.tokenize.tokenizers import (
    tokenizer_identity,
)

_FORMAT = 3


def given_store(data: Data) -> Store | None:
    """The store that a recipe names in place of a corpus; None if it names a corpus."""
    return Store(Path(data.source.place)) if data.source.kind == "store" else None


def planned_documents(data: Data, plan: Plan | None) -> int | None:
    """How many documents the store of a plan is limited to; None: none is left out, though not all may be read yet."""
    if plan is not None and plan.share is None and not plan.every_entry:
        return plan.entries
    return None if data.documents is None else int(data.documents)


def scored_tokens(recipe: Recipe) -> int:
    """Held-out tokens that suffice for the scored rows, however they are packed; none if other text is scored."""
    return 0 if recipe.data.validation is not None else recipe.evaluate.rows * (recipe.data.length + 1)


def store_folder(data: Data, seed: int, documents: int | None, source: Corpus | None = None) -> Path:
    """The folder of the store of these documents; it depends on the source, the tokenizer and the count.

    The seed matters to the stories alone, so runs of other corpora that differ in their seed share a store.
    """
    source = source or open_source(data, seed)
    tokenizer = tokenizer_identity(data.tokenizer, data.end)
    identity = [_FORMAT, source.identity(), tokenizer, documents, data.heldout, data.unique]
    label = f"{Path(data.source).name.split('.')[0]}-{Path(data.tokenizer).name.split('.')[0]}"
    name = re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-")
    return Path(data.folder) / f"{name}-{fingerprint(identity)[:8]}"


def prepare(
    data: Data,
    seed: int,
    documents: int | None,
    progress: Progress = lambda _: None,
    part: tuple[int, int] = (0, 1),
    processes: int | None = None,
    share: float | None = None,
    heldout_tokens: int = 0,
) -> Store | None:
    """The store of `documents` documents (None: all), drawn over the corpus; what is missing of it is made.

    It holds at least a `share` of the corpus for training (None: all of it), and more of it for held-out documents, if
    these would have fewer than `heldout_tokens` tokens. Part i of n makes every n-th unit. Returns None if it cannot
    continue before other parts are made.
    """
    source = open_source(data, seed)
    if documents is None and source.endless:
        raise DataError(
            f'data.source = "{data.source}" has no end; set data.documents, or plan first: shoestring plan RECIPE'
        )
    paths = StorePaths(store_folder(data, seed, documents, source))
    wanted = Wanted(share, heldout_tokens)
    sweep(socket_folder())  # of a pool that was killed
    if wanted.is_in(paths):
        drop_lock(paths.lock(part))
        clear(paths)
    else:
        alone = _check_room(paths.folder, source, data, seed, documents, share)
        processes = processes or _worth(alone)
        with locked(paths.lock(part), f"the store {paths.folder}"):
            paths.sweep()
            maker = Maker(paths, source, data, documents, progress, part, processes, wanted)
            if not wanted.is_in(paths) and not maker.make():
                return None
    return Store(paths.folder, data.tokenizer)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _worth(alone: float | None) -> int:
    """How many processes to use for work that takes one process `alone` seconds; None: unknown."""
    cores = _cores()
    return 1 if alone is not None and alone - alone / _together(cores) < START_SECONDS else cores


def _together(processes: int) -> float:
    """The speed-up by so many processes, which share memory bandwidth; measured: 2.0 on 2 cores, 10.7 on 16."""
    return float(processes**0.85)


def _passes(data: Data) -> int:
    return 1 + data.unique + (data.tokenizer.fitted is not None)


def with_all_passes(density: Density, data: Data, cores: int | None = None) -> Density:
    """The density of a sample that one process read and tokenized once, with the seconds of all passes in parallel.

    An endless corpus has a unit for every core; the number of units of another is estimated from its text.
    """
    alone, processes = density.seconds * _passes(data), cores or _cores()
    if density.total_documents is not None:
        text_bytes = density.total_documents * density.text_bytes / density.documents
        processes = min(processes, max(1, math.ceil(text_bytes / UNIT_BYTES)))
    together = alone / _together(processes)
    return dataclasses.replace(density, seconds=together, alone_seconds=alone if processes > 1 else None)


def _check_room(
    folder: Path, source: Corpus, data: Data, seed: int, documents: int | None, share: float | None = None
) -> float | None:
    """Raise StorageError now if the disk cannot hold the store, rather than after an hour.

    Returns the seconds that one process would take for the whole store, if known.
    """
    density = estimate_density(source, data, seed)
    limits = [count for count in (documents, density.total_documents) if count is not None]
    if not limits:
        return None
    total = math.ceil(min(limits) * (1.0 if share is None else share))
    written = folder_bytes(folder) if folder.is_dir() else 0
    needed = estimate_bytes(density.tokens_per_document * total, total, data) - written
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"cannot prepare {counted(total, 'document')} in {folder}: they need about {Bytes(needed).short()}, and "
            f"{Bytes(free).short()} are free; choose another data.folder or fewer data.documents"
        )
    return density.seconds / density.documents * total * _passes(data)
