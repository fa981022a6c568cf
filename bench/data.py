"""The way of tokens: rows, resuming, tokenizing, packing and memory; ours beside the peers, in one run.

    python bench/data.py [--peers FOLDER] [--out FOLDER]

Rows: `data_peers` reads the same 50 M tokens by every peer; its own text says what is not equal among them. litdata
and streaming come from FOLDER, datasets and torch from the environment; a peer that is missing has an error in its
place. Tokenizing: one core, the real stories over and over, and `tokenizers` itself beside our use of it. Packing: the
lengths of real stories, drawn again to 5 M. Where these are not beside the project, the built-in ones are taken.

The peers that would pull another torch are unpacked without what they ask for:

    pip install --no-deps -c constraints.txt --target FOLDER/litdata litdata==0.2.76 lightning-utilities boto3 \\
        botocore jmespath s3transfer requests urllib3 certifi charset-normalizer tifffile obstore python-dateutil six
    pip install --no-deps -c constraints.txt --target FOLDER/streaming mosaicml-streaming==0.13.0 brotli \\
        python-snappy cramjam zstd catalogue pillow "xxhash<4"
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import data_peers
import numpy as np
import record

from shoestring.data.pack import packing
from shoestring.data.read.corpora import Stories
from shoestring.data.store.shards import write_shard
from shoestring.data.store.store import Manifest, ShardEntry, SplitEntry, Store, StorePaths, write_tokenizer
from shoestring.data.tokenize.fast_words import WordCounter, WordEncoder
from shoestring.data.tokenize.subwords import load_subwords
from shoestring.data.tokenize.tokenizers import ByteTokenizer, SymbolTokenizer, tokenizer_fingerprint

SHARED = record.ROOT.parent / "shared/data"
ROW_TOKENS = 50_000_000
FAR_ROWS = 100_000_000


def rows(folder: Path, peers: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("gather", "shoestring", "torch", "datasets", "litdata", "streaming", "shoestring", "gather"):
        told = data_peers.measure(
            name, folder, ROW_TOKENS, peers, ["--mark", "100", "--warm", "20", "--batches", "50", "--workers", "0", "2"]
        )
        known = found.get(name)
        found[name] = told if known is None else _faster(known, told)  # ours and the bare gather first and last
        print(name, [(f["form"], round(f.get("rows_per_second", 0))) for f in told.get("forms", [])], flush=True)
    return found


def _faster(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    return max(one, two, key=lambda told: max(form["rows_per_cpu_second"] for form in told["forms"]))


def resuming(folder: Path) -> dict[str, float]:
    """Seconds to the first batch of 256 rows after row 10⁸, in a store of rows of 8, its blocks not checked yet."""
    paths, tokenizer, length = StorePaths(folder), SymbolTokenizer(50_000), 8
    each, shards = 1 << 26, []
    drawn = np.random.default_rng(0).integers(0, 50_000, each, dtype=np.uint16)
    for number in range(-(-(FAR_ROWS + 1_000_000) * length // each)):
        path = paths.shard("train", number, 0)
        seal = write_shard(path, drawn, np.array([each], dtype=np.uint64))
        size = path.stat().st_size
        shards.append(ShardEntry(name=path.name, tokens=each, documents=1, bytes=size, seal=seal))
    write_tokenizer(paths.tokenizer, tokenizer)
    split = SplitEntry(tokens=each * len(shards), documents=len(shards), text_bytes=0, shards=tuple(shards))
    manifest = Manifest(
        source={}, tokenizer=tokenizer.spec, tokenizer_fingerprint=tokenizer_fingerprint(tokenizer), vocab_size=50_000,
        itemsize=2, end=None, splits={"train": split},
    )  # fmt: skip
    replace(manifest, check=manifest.expected_check()).write(paths.manifest)
    times: dict[str, list[float]] = {"open": [], "batch": []}
    for _ in range(5):
        started = time.perf_counter()
        source = Store(folder).split("train", length)
        opened = time.perf_counter()
        source.rows(source.order(0, FAR_ROWS // 256, 256).rows)
        times["open"].append(opened - started)
        times["batch"].append(time.perf_counter() - opened)
    return {name: statistics.median(values) for name, values in times.items()}


def stories(size: int) -> tuple[str, list[str]]:
    """About `size` characters of stories."""
    path = SHARED / "tinystories/stories.txt.gz"
    if path.is_file():
        name, texts = "TinyStories", gzip.open(path, "rt", encoding="utf-8").read().split("<|endoftext|>")
    else:
        name, texts = "built-in stories", [doc.text for doc, _ in zip(Stories(0).documents(), range(5000))]
    total = sum(map(len, texts))
    return name, texts * max(1, size // total)


def tokenizing() -> dict[str, Any]:
    name, texts = stories(32_000_000)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    batches = [texts[at : at + 2000] for at in range(0, len(texts), 2000)]

    def rate(work: Callable[[], object], size: float) -> float:
        def once() -> float:
            started = time.process_time()
            work()
            return time.process_time() - started

        once()
        return size / min(once() for _ in range(3))

    def count() -> list[str]:
        counter = WordCounter()
        for batch in batches:
            counter.add(batch)
        counted = zip(*counter.counted())
        return [word for word, _ in sorted(counted, key=lambda pair: (-pair[1], pair[0]))[:10_000]]

    encoder = WordEncoder(count(), 2, 1)
    found: dict[str, Any] = {
        "text": name,
        "words_counted_mb_per_cpu_second": rate(count, megabytes),
        "words_encoded_mb_per_cpu_second": rate(lambda: [encoder.encode_batch(batch) for batch in batches], megabytes),
        "bytes_mb_per_cpu_second": rate(lambda: [ByteTokenizer().encode_batch(batch) for batch in batches], megabytes),
    }
    if (SHARED / "tokenizers/gpt2").is_dir():
        ours = load_subwords(f"file:{SHARED / 'tokenizers/gpt2'}")
        some = texts[:3000]
        size = sum(len(text.encode()) for text in some) / 1e6
        library = ours._backend
        found["gpt2_mb_per_cpu_second"] = rate(lambda: ours.encode_batch(some), size)
        direct = rate(lambda: library.encode_batch_fast(some, add_special_tokens=False), size)
        found["tokenizers_alone_mb_per_cpu_second"] = direct
    print(found, flush=True)
    return found


def packed() -> dict[str, Any]:
    _, texts = stories(1)
    lengths = np.array([len(text.split()) + 1 for text in texts])
    drawn = np.random.default_rng(0).choice(lengths, 5_000_000)
    packing.best_fit(drawn[:1000], 1025)
    found = {}
    for capacity in (513, 1025, 2049):
        times = []
        for _ in range(3):
            started = time.perf_counter()
            made = packing.best_fit(drawn, capacity)
            times.append(time.perf_counter() - started)
        ledger = made.ledger
        share = ledger.padded / (ledger.used + ledger.repeated + ledger.padded)
        found[str(capacity)] = {"documents_per_second": len(drawn) / min(times), "padding": share}
    print(found, flush=True)
    return found


PREPARE = """
import sys
from shoestring.core.recipe import Data
from shoestring.data.store.prepare import prepare
prepare(Data(source=f"text:{sys.argv[1]}", tokenizer=sys.argv[3], folder=sys.argv[2]), 0, None)
"""


class Spent(NamedTuple):
    """What a command and all that it started took."""

    seconds: float
    largest_bytes: int
    """The peak of its largest process, as the kernel keeps it."""
    together_bytes: int
    """The most that all of them held at one time when looked at, with what they share counted once."""


def spent_by(command: Sequence[str | Path]) -> Spent:
    """Run a command and look at its processes fifty times per second.

    Not by ru_maxrss: a process inherits that of the one that started it, and it says nothing of workers which another
    process started. VmHWM begins anew with a program, and stays: only what a process takes in its last 20 ms is missed.
    """
    started = time.perf_counter()
    largest = together = 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            here = descendants(process.pid)
            largest = max(largest, *(told_bytes(place / "status", "VmHWM:") for place in here))
            together = max(together, sum(told_bytes(place / "smaps_rollup", "Pss:") for place in here))
            time.sleep(0.02)
    took = time.perf_counter() - started
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Spent(took, largest, together)


def descendants(pid: int) -> list[Path]:
    """Where Linux tells about a process and about all that it started and that still run."""
    found = [Path("/proc", str(pid))]
    for place in found:  # which grows
        with contextlib.suppress(OSError):  # it may end meanwhile
            tasks = list((place / "task").iterdir())
            found += [Path("/proc", child) for task in tasks for child in (task / "children").read_text().split()]
    return found


def told_bytes(path: Path, name: str) -> int:
    """The number in a line of a file of /proc; 0 where the process has ended."""
    with contextlib.suppress(OSError):
        return next((1024 * int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name)), 0)
    return 0


def preparing(folder: Path) -> dict[str, Any]:
    """Seconds and memory of preparing 100 MB and 400 MB of text on all cores."""
    found = {}
    for megabytes in (100, 400):
        _, texts = stories(1)
        path = folder / f"{megabytes}.txt"
        with open(path, "w") as file:
            while file.tell() < megabytes * 1_000_000:
                file.writelines(text.replace("\n", " ") + "\n" for text in texts)
        spent = spent_by([sys.executable, "-c", PREPARE, path, folder / "stores", "words:5000"])
        found[str(megabytes)] = {
            "bytes": path.stat().st_size,
            "seconds": spent.seconds,
            "peak_bytes": spent.largest_bytes,
            "together_bytes": spent.together_bytes,
        }
        path.unlink()
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=record.ROOT) as temporary:
        folder = Path(temporary)
        values = {
            "preparing": preparing(folder),
            "rows": rows(folder / "rows", arguments.peers),
            "resume_at_row_100M_seconds": resuming(folder / "far"),
            "tokenizing": tokenizing(),
            "packing": packed(),
        }
    record.write("data", values, arguments.out)


if __name__ == "__main__":
    main()
