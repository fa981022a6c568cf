"""Shuffled batches of 1,024-token rows from page cache: the peers of our token store, each in its own usual format.

    python bench/data_peers.py --peer NAME --folder F --tokens N [--peers FOLDER] [--workers 0 1 2]

prints one JSON line: for every form of the peer the rows and tokens per second of its fastest number of workers, which
rows of an epoch came, and how long a fresh process needs to resume at a given batch. `measure` is for other scripts.

Row i is tokens[1024 i : 1024 i + 1025], uint16 on disk; a batch is (256, 1025) int64 in the main process. All peers
read the same F/tokens.bin, made where it is missing; what a peer prepares from it stays in F/NAME. Its packages come
from the environment or from FOLDER/NAME. Every configuration runs in a fresh process, after its files were read once;
one run at a time on a folder.

Not all is equal. Rows overlap by one token, so datasets, litdata and streaming hold each row apart (0.1 % more bytes).
litdata mixes rows only near each other: `regions` says of how many 64ths of the file an average batch holds rows (63
when each row may come from anywhere). Ends of an epoch are not timed, so neither is starting workers again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

Tokens = NDArray[np.uint16]
State = dict[str, Any]

LENGTH = 1024
WIDTH = LENGTH + 1
VOCABULARY = 50257
REGIONS = 64
PIECE = 1000
"""Rows handled at once where a format is written or hashed."""


@dataclass(frozen=True)
class Job:
    """One configuration to read in; `state` is where a former reading stopped."""

    folder: Path
    tokens: Path
    form: str
    workers: int
    batch: int
    seed: int
    state: State | None = None


class Reading(NamedTuple):
    """One epoch's batches, (batch, 1025) int64."""

    batches: Iterator[torch.Tensor]
    state: Callable[[], State] | None = None
    """What to save to resume after the batches taken so far; None where their number is enough."""


class Peer(NamedTuple):
    package: str
    load: Callable[[], object]
    """Imports it, which is not what is measured."""
    prepare: Callable[[Path, Path], None]
    """From the tokens' file to a folder."""
    open: Callable[[Job], Reading]
    forms: dict[str, bool]
    """Ways to read, and whether each takes workers."""


def rows_of(path: Path) -> Tokens:
    """All rows of the tokens' file as a view (rows, 1025) whose rows overlap by one token."""
    # A plain array: slicing numpy's memmap class costs more than copying a row.
    tokens = np.asarray(np.memmap(path, dtype=np.uint16, mode="r"))
    count = (len(tokens) - 1) // LENGTH
    return np.lib.stride_tricks.as_strided(tokens, (count, WIDTH), (2 * LENGTH, 2), writeable=False)


def pieces(path: Path) -> Iterator[Tokens]:
    rows = rows_of(path)
    for first in range(0, len(rows), PIECE):
        yield rows[first : first + PIECE]


def int64(batch: Tokens | torch.Tensor) -> torch.Tensor:
    """By numpy: torch splits so small a conversion over its threads and loses by it."""
    return torch.from_numpy(np.asarray(batch).astype(np.int64))


def passed(job: Job) -> int:
    """The rows taken before, where the order is a list that is made again."""
    return job.batch * job.state["batch"] if job.state else 0


def permutation(job: Job, count: int) -> NDArray[np.int64]:
    return np.random.default_rng(job.seed).permutation(count)


def nothing(*_: Path) -> None:
    """Some need no preparation: they read the tokens' file itself."""


# --- ours ----------------------------------------------------------------------------------------------------------


def prepare_shoestring(tokens: Path, folder: Path) -> None:
    """A store of one long document, in shards as `shoestring prepare` makes them."""
    from shoestring.data.store.map_stage import SHARD_TOKENS
    from shoestring.data.store.shards import write_shard
    from shoestring.data.store.store import Manifest, ShardEntry, SplitEntry, StorePaths, write_tokenizer
    from shoestring.data.tokenize.tokenizers import SymbolTokenizer, tokenizer_fingerprint

    paths, tokenizer = StorePaths(folder), SymbolTokenizer(VOCABULARY)
    ids = np.memmap(tokens, dtype=np.uint16, mode="r")
    shards = []
    for number, first in enumerate(range(0, len(ids), SHARD_TOKENS)):
        path, part = paths.shard("train", number, 0), np.asarray(ids[first : first + SHARD_TOKENS])
        seal = write_shard(path, part, np.array([len(part)], dtype=np.uint64))
        size = path.stat().st_size
        shards.append(ShardEntry(name=path.name, tokens=len(part), documents=1, bytes=size, seal=seal))
    write_tokenizer(paths.tokenizer, tokenizer)
    manifest = Manifest(
        source={}, tokenizer=tokenizer.spec, tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        vocab_size=VOCABULARY, itemsize=2, end=None,
        splits={"train": SplitEntry(tokens=len(ids), documents=len(shards), text_bytes=0, shards=tuple(shards))},
    )  # fmt: skip
    replace(manifest, check=manifest.expected_check()).write(paths.manifest)


def open_shoestring(job: Job) -> Reading:
    from shoestring.data.store.store import Store

    source = Store(job.folder).split("train", LENGTH)

    def batches() -> Iterator[torch.Tensor]:
        for step in range(passed(job) // job.batch, -(-len(source) // job.batch)):
            indices = source.order(job.seed, step, job.batch).rows[
                : len(source) - step * job.batch
            ]  # to the epoch's end
            yield torch.from_numpy(source.rows(indices))

    return Reading(batches())


# --- the bare memory map -------------------------------------------------------------------------------------------


def open_gather(job: Job) -> Reading:
    """`index` is numpy's fancy index on the view of rows; `copy` copies row by row into one array that is kept."""
    rows = rows_of(job.tokens)
    order = permutation(job, len(rows))[passed(job) :]

    def copied(indices: NDArray[np.int64], kept: Tokens) -> Tokens:
        for place, row in enumerate(indices.tolist()):
            kept[place] = rows[row]
        return kept[: len(indices)]

    def batches() -> Iterator[torch.Tensor]:
        kept = np.empty((job.batch, WIDTH), dtype=np.uint16)
        for at in range(0, len(order), job.batch):
            indices = order[at : at + job.batch]
            yield int64(rows[indices] if job.form == "index" else copied(indices, kept))

    return Reading(batches())


# --- torch: a map-style dataset and a random sampler ---------------------------------------------------------------


class MapRows(Dataset[torch.Tensor]):
    """A dataset that gives one row at a time."""

    def __init__(self, rows: Tokens):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return int64(self.rows[index])


class MapBatches(MapRows):
    """The same, asked for a batch at once."""

    def __getitems__(self, indices: list[int]) -> Tokens:
        return self.rows[indices]


def open_torch(job: Job) -> Reading:
    """`rows` is the usual dataset with the default collation; `batched` has `__getitems__`, one gather a batch."""
    rows = rows_of(job.tokens)
    order = permutation(job, len(rows))[passed(job) :].tolist()
    if job.form == "rows":
        return Reading(iter(DataLoader(MapRows(rows), job.batch, sampler=order, num_workers=job.workers)))
    loader = DataLoader(
        MapBatches(rows), job.batch, sampler=order, num_workers=job.workers, collate_fn=torch.from_numpy
    )
    return Reading(map(int64, loader))


# --- Hugging Face datasets: a column of fixed-size lists in Arrow --------------------------------------------------


def prepare_datasets(tokens: Path, folder: Path) -> None:
    import pyarrow as pa
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    with ArrowWriter(path=str(folder / "rows.arrow"), features=Features(row=List(Value("uint16"), length=WIDTH))) as to:
        for piece in pieces(tokens):
            lists = pa.FixedSizeListArray.from_arrays(pa.array(piece.reshape(-1)), WIDTH)
            to.write_table(pa.table({"row": lists}))
        to.finalize()


def open_datasets(job: Job) -> Reading:
    """`numpy` and `arrow` ask for `ds[indices]` in that format; `loader` is `.shuffle()` under torch's DataLoader."""
    import datasets

    datasets.disable_progress_bars()
    data = datasets.Dataset.from_file(str(job.folder / "rows.arrow"))
    if job.form == "loader":
        mixed = data.shuffle(seed=job.seed, keep_in_memory=True).with_format("torch")
        loader = DataLoader(mixed.select(range(passed(job), len(mixed))), job.batch, num_workers=job.workers)
        return Reading(batch["row"] for batch in loader)
    order = permutation(job, len(data))[passed(job) :]
    data = data.with_format(job.form)

    def batches() -> Iterator[torch.Tensor]:
        for at in range(0, len(order), job.batch):
            found = data[order[at : at + job.batch]]["row"]
            if job.form == "arrow":
                found = found.combine_chunks().flatten().to_numpy().reshape(-1, WIDTH)
            yield int64(found)

    return Reading(batches())


# --- litdata: chunks of tokens -------------------------------------------------------------------------------------


def flat_piece(tokens: Path, number: int) -> torch.Tensor:
    return torch.from_numpy(rows_of(tokens)[number * PIECE : (number + 1) * PIECE].reshape(-1))


def prepare_litdata(tokens: Path, folder: Path) -> None:
    from litdata import TokensLoader, optimize

    optimize(
        partial(flat_piece, tokens),
        list(range(-(-len(rows_of(tokens)) // PIECE))),
        str(folder / "chunks"),
        chunk_bytes="64MB",
        num_workers=1,
        item_loader=TokensLoader(block_size=WIDTH),
        verbose=False,
    )


def open_litdata(job: Job) -> Reading:
    """`window` is its default, blocks of 256 rows in a chunk; `chunk` mixes a whole chunk of 64 MB."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    data = StreamingDataset(
        str(job.folder / "chunks"),
        item_loader=TokensLoader(block_size=WIDTH),
        shuffle=True,
        seed=job.seed,
        item_shuffle_window="full" if job.form == "chunk" else "auto",
    )
    loader = StreamingDataLoader(data, batch_size=job.batch, num_workers=job.workers)
    if job.state:
        loader.load_state_dict(job.state)
    return Reading(map(int64, loader), loader.state_dict)


# --- MosaicML Streaming: MDS shards --------------------------------------------------------------------------------


def import_streaming() -> ModuleType:
    """Without its vision part, which wants torchvision."""
    sys.modules.setdefault("streaming.vision", ModuleType("streaming.vision"))
    return import_module("streaming")


def prepare_streaming(tokens: Path, folder: Path) -> None:
    columns = {"row": f"ndarray:uint16:{WIDTH}"}
    with import_streaming().MDSWriter(out=str(folder / "shards"), columns=columns, progress_bar=False) as to:
        for piece in pieces(tokens):
            for row in piece:
                to.write({"row": row})


def stack_rows(samples: Sequence[dict[str, Tokens]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([sample["row"] for sample in samples]))


def open_streaming(job: Job) -> Reading:
    streaming = import_streaming()
    data = streaming.StreamingDataset(
        local=str(job.folder / "shards"), shuffle=True, batch_size=job.batch, shuffle_seed=job.seed
    )
    loader = streaming.StreamingDataLoader(data, batch_size=job.batch, num_workers=job.workers, collate_fn=stack_rows)
    if job.state:
        loader.load_state_dict(job.state)
    return Reading(map(int64, loader), loader.state_dict)


PEERS = {
    "shoestring": Peer("shoestring", nothing, prepare_shoestring, open_shoestring, {"store": False}),
    "gather": Peer("numpy", nothing, nothing, open_gather, {"index": False, "copy": False}),
    "torch": Peer("torch", nothing, nothing, open_torch, {"rows": True, "batched": True}),
    "datasets": Peer(
        "datasets", partial(import_module, "datasets"), prepare_datasets, open_datasets,
        {"numpy": False, "arrow": False, "loader": True},
    ),
    "litdata": Peer(
        "litdata", partial(import_module, "litdata"), prepare_litdata, open_litdata, {"window": True, "chunk": True}
    ),
    "streaming": Peer("mosaicml-streaming", import_streaming, prepare_streaming, open_streaming, {"shards": True}),
}  # fmt: skip


# --- what is measured ----------------------------------------------------------------------------------------------


def speed(job: Job, warm: int, batches: int, repeats: int) -> dict[str, Any]:
    """Rows per second over `repeats` stretches of one epoch, the first `warm` batches apart; the median counts."""
    for path in (job.tokens, *job.folder.rglob("*")):
        if path.is_file():
            path.read_bytes()  # into the page cache
    before = own_bytes()
    first_batch, reading, _ = opened(job)
    take(reading.batches, warm - 1)
    rates, worked = [], cpu_seconds()
    for _ in range(repeats):
        started = time.perf_counter()
        take(reading.batches, batches)
        rates.append(batches * job.batch / (time.perf_counter() - started))
    worked = cpu_seconds() - worked
    return {
        "form": job.form, "workers": job.workers,
        "rows_per_second": statistics.median(rates), "tokens_per_second": statistics.median(rates) * LENGTH,
        "slowest_rows_per_second": min(rates), "fastest_rows_per_second": max(rates),
        "rows_per_cpu_second": repeats * batches * job.batch / worked if worked else None,
        "first_batch_seconds": first_batch, "own_bytes": own_bytes() - before,
    }  # fmt: skip


def opened(job: Job) -> tuple[float, Reading, torch.Tensor]:
    """A reading, its first batch, and how long they took."""
    started = time.perf_counter()
    reading = PEERS[job.folder.name].open(job)
    first = next(reading.batches)
    return time.perf_counter() - started, reading, first


def take(batches: Iterator[torch.Tensor], count: int) -> None:
    for _ in range(count):
        if next(batches, None) is None:
            raise ValueError("the epoch is too short for the batches to be timed")


def processes() -> list[Path]:
    """Where Linux tells about this process and its workers."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    return [Path("/proc", str(pid)) for pid in pids]


def own_bytes() -> int:
    """Memory that is not the page cache's; what processes share is counted once."""
    lines = [line.split() for process in processes() for line in (process / "smaps_rollup").read_text().splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:"))


def cpu_seconds() -> float:
    fields = [(process / "stat").read_text().rpartition(")")[2].split() for process in processes()]
    return sum(int(ticks) for found in fields for ticks in found[11:13]) / os.sysconf("SC_CLK_TCK")


def hashes(rows: Tokens | NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits a row, and another number for another order of the same tokens."""
    weights = np.random.default_rng(0).integers(0, 1 << 63, WIDTH, dtype=np.uint64)
    return rows.astype(np.uint64) @ weights


def verify(job: Job, mark: int) -> dict[str, Any]:
    """Which rows an epoch holds, how they are mixed, and a digest of all that follows batch `mark`.

    Leaves the state at `mark` in the folder, for `resume`.
    """
    state_path(job).unlink(missing_ok=True)
    expected = np.concatenate([hashes(piece) for piece in pieces(job.tokens)])
    order = np.argsort(expected)
    reading = PEERS[job.folder.name].open(job)
    rest = hashlib.sha256()
    found, regions, state = [], [], None
    for number, batch in enumerate(reading.batches):
        here = hashes(batch.numpy())
        if number >= mark:
            rest.update(here.tobytes())
        if number == mark - 1:
            state = reading.state() if reading.state else {"batch": mark}
        places = order[np.searchsorted(expected, here, sorter=order).clip(max=len(order) - 1)]
        found.append(np.where(expected[places] == here, places, -1))
        regions.append(len(np.unique(found[-1] * REGIONS // len(expected))))
    if state is None:
        raise ValueError(f"an epoch has {len(found):,} batches; the state cannot be saved after {mark:,}")
    state_path(job).write_text(json.dumps(state))
    rows = np.concatenate(found)
    times = np.bincount(rows[rows >= 0], minlength=len(expected))
    return {
        "rows": len(expected), "delivered": len(rows), "missing": int((times == 0).sum()),
        "repeated": int((times - 1).clip(min=0).sum()), "foreign": int((rows < 0).sum()),
        "regions": statistics.mean(regions[: len(rows) // job.batch]), "rest": rest.hexdigest(),
    }  # fmt: skip


def resume(job: Job) -> dict[str, Any]:
    """How long a fresh process takes to the first batch after the saved state, and a digest of all that follows."""
    seconds, reading, first = opened(replace(job, state=json.loads(state_path(job).read_text())))
    rest = hashlib.sha256(hashes(first.numpy()).tobytes())
    for batch in reading.batches:
        rest.update(hashes(batch.numpy()).tobytes())
    return {"seconds": seconds, "rest": rest.hexdigest()}


def state_path(job: Job) -> Path:
    return job.folder / f"state-{job.form}-{job.workers}.json"


# --- running them --------------------------------------------------------------------------------------------------


def prepare(peer: str, folder: Path, count: int) -> float | None:
    """The tokens, and the peer's own format of them, each once; seconds for the latter, None where it was there."""
    tokens = folder / "tokens.bin"
    if not tokens.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(0)
        with tokens.open("wb") as file:
            for first in range(0, count, 1 << 24):
                file.write(draw.integers(0, VOCABULARY, min(1 << 24, count - first), dtype=np.uint16).tobytes())
    if tokens.stat().st_size != 2 * count:
        raise ValueError(f"{tokens} holds {tokens.stat().st_size // 2:,} tokens, not {count:,}")
    own, marker = folder / peer, folder / peer / "prepared"
    if marker.exists():
        return None
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    started = time.perf_counter()
    PEERS[peer].prepare(tokens, own)
    marker.touch()
    return time.perf_counter() - started


def in_fresh_process(arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON line that this script prints, or what went wrong."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure(
    peer: str, folder: Path, tokens: int, peers: Path | None = None, more: Sequence[str] = ()
) -> dict[str, Any]:
    """All of one peer from another script; `more` are further arguments."""
    command = ["--peer", peer, "--folder", str(folder), "--tokens", str(tokens), *more]
    return {"peer": peer, **in_fresh_process([*command, *(["--peers", str(peers)] if peers else [])])}


def best(told: list[str], form: str, workers: list[int]) -> dict[str, Any]:
    """A form with every number of workers; then the rows and the resuming of the fastest."""

    def single(action: str, number: int) -> dict[str, Any]:
        return in_fresh_process([*told, "--action", action, "--form", form, "--workers", str(number)])

    tried = {number: single("speed", number) for number in workers}
    number = max(tried, key=lambda number: tried[number].get("rows_per_second", 0))
    epoch, resumed = single("verify", number), single("resume", number)
    if "error" not in resumed:
        resumed["exact"] = epoch.pop("rest", None) == resumed.pop("rest")
    by_workers = {key: value.get("rows_per_second") for key, value in tried.items()}
    return {"form": form, **tried[number], "rows_per_second_by_workers": by_workers, "epoch": epoch, "resume": resumed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=list(PEERS), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--peers", type=Path, default=None, help="a folder with each peer's packages in a folder")
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch")
    parser.add_argument("--warm", type=int, default=60, help="batches before the clock starts")
    parser.add_argument("--batches", type=int, default=200, help="batches timed at a stretch")
    parser.add_argument("--repeats", type=int, default=3, help="stretches; the median counts")
    parser.add_argument("--mark", type=int, default=500, help="the batch to resume at")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--action", choices=["all", "speed", "verify", "resume"], default="all")
    parser.add_argument("--form", default=None, help="the way to read, for a single action")
    options = parser.parse_args()
    if options.peers:
        sys.path.insert(0, str((options.peers / options.peer).resolve()))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder, peer = options.folder.resolve(), PEERS[options.peer]
    if options.action == "all":
        found = {"peer": options.peer, "tokens": options.tokens, "batch": options.batch, "resume_at": options.mark}
        try:
            peer.load()
            found["version"] = version(peer.package)
            found["prepare_seconds"] = prepare(options.peer, folder, options.tokens)
            forms = {form: options.workers if takes else [0] for form, takes in peer.forms.items()}
            found["forms"] = [best(sys.argv[1:], form, workers) for form, workers in forms.items()]
        except ImportError as cause:
            found["error"] = str(cause)
    else:
        peer.load()
        form, workers = options.form, options.workers[0]
        job = Job(folder / options.peer, folder / "tokens.bin", form, workers, options.batch, options.seed)
        if options.action == "speed":
            found = speed(job, options.warm, options.batches, options.repeats)
        elif options.action == "verify":
            found = verify(job, options.mark)
        else:
            found = resume(job)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
