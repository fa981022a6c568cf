"""`shoestring data check · show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoestring.cli import options
from shoestring.core.units import counted

if TYPE_CHECKING:
    from shoestring.data.store.store import SplitEntry

store_folder = click.argument("store", type=options.PATH, metavar="STORE")


@click.group()
def data() -> None:
    """Inspect token stores."""


@data.command()
@store_folder
@options.output
def check(store: Path, terminal: options.Terminal) -> options.Result:
    """Read a whole store and verify its checksums."""
    from shoestring.core.units import Bytes, Count
    from shoestring.data.store.sentence_store import find_rows
    from shoestring.data.store.store import Store

    if (file := find_rows(store)) is not None:
        return _check_sentences(file, terminal)
    opened = Store(store)
    opened.verify()
    manifest = opened.manifest
    rows = [
        (name, f"{split.documents:,}", Count(split.tokens).short(), f"{len(split.shards):,}", _per_token(split))
        for name, split in manifest.splits.items()
    ]
    terminal.table(f"{store} is whole", ("split", "documents", "tokens", "shards", "bytes per token"), rows)
    terminal.left_out(manifest.ledger)
    prompts = "; prompts with completions, and only these are predicted" if manifest.prompts else ""
    about = f"{Bytes(manifest.bytes).short()}, tokenizer {manifest.tokenizer}, {manifest.vocab_size:,} ids"
    terminal.say(f"{about}{prompts}")
    return {"store": str(store), **manifest.to_dict()}


def _check_sentences(file: Path, terminal: options.Terminal) -> options.Result:
    """Read the rows of an HMM, whose checksum covers every byte."""
    from shoestring.core.units import Bytes
    from shoestring.data.store.sentence_store import read_rows

    rows = read_rows(file)
    lines = [
        (name, f"{ledger['sentences']:,}", f"{ledger['kept']:,}", f"{ledger['tokens']:,}", f"{len(split):,}")
        for name, split in (("train", rows.train), ("heldout", rows.heldout))
        for ledger in [rows.ledger[name]]
    ]
    terminal.table(f"{file} is whole", ("split", "sentences", "kept", "tokens", "rows"), lines)
    terminal.say(f"{rows.reason}\n{Bytes(file.stat().st_size).short()}, {counted(len(rows.alphabet), 'word')}")
    return {"store": str(file), "alphabet": list(rows.alphabet), "ledger": rows.ledger}


def _per_token(split: SplitEntry) -> str:
    return f"{split.text_bytes / split.tokens:.3f}" if split.text_bytes and split.tokens else ""


@data.command()
@store_folder
@click.option("--split", default="train", show_default=True, help="train or heldout.")
@click.option("--first", type=click.IntRange(min=0), default=0, help="Number of the first row.")
@click.option("--rows", type=click.IntRange(min=1), default=5, show_default=True, help="How many rows.")
@click.option("--length", type=click.IntRange(min=1), help="Predictions per row; default: 128.")
@click.option("--packing", type=click.Choice(["concat", "best_fit", "pad"]), default="concat", show_default=True)
@options.output
def show(
    store: Path, split: str, first: int, rows: int, length: int | None, packing: str, terminal: options.Terminal
) -> options.Result:
    """Print rows of a store as text."""
    import numpy as np

    from shoestring.core.errors import DataError
    from shoestring.data.pack.packed import PackedSource
    from shoestring.data.store.sentence_store import find_rows
    from shoestring.data.store.store import Store
    from shoestring.data.tokenize.prompts import unmarked

    if (file := find_rows(store)) is not None:
        if length is not None or packing != "concat":
            raise DataError("--length, --packing: the rows of an HMM are shown as they were made; leave them out")
        return _show_sentences(file, split, first, rows, terminal)
    opened = Store(store)
    if split not in opened.manifest.splits:
        raise DataError(f"--split {split}: {store} has {', '.join(opened.manifest.splits)}")
    length = length or (opened.manifest.row - 1 if opened.manifest.row else 128)
    source = opened.split(split, length) if packing == "concat" else PackedSource(opened, split, length, packing)
    if first >= len(source):
        raise DataError(
            f"--first {first}: {store} has {counted(len(source), f'{split} row')} of {length:,}, numbered from 0"
        )
    numbers = np.arange(first, min(first + rows, len(source)))
    batch, ids_of_text = source.rows(numbers), opened.manifest.vocab_size
    shown: list[dict[str, object]] = []
    for place, number in enumerate(numbers.tolist()):
        if isinstance(batch, tuple):
            ids, segments = batch.ids[place], batch.segments[place]
            documents = [ids[segments == s] for s in range(1, int(segments.max()) + 1)]
        else:
            documents = [batch[place]]
        texts = [opened.tokenizer.decode(unmarked(each, ids_of_text)) for each in documents]
        row: dict[str, object] = {"row": number, "documents": texts}
        lines = [repr(text) for text in texts]
        if opened.manifest.prompts:
            row["predicted"] = only = [opened.tokenizer.decode(each[each < ids_of_text]) for each in documents]
            lines = [f"{line}, predicted {text!r}" for line, text in zip(lines, only, strict=True)]
        shown.append(row)
        terminal.say("\n".join([f"row {number}", *(f"  {line}" for line in lines)]))
    return {"store": str(store), "split": split, "length": length, "rows": shown}


def _show_sentences(file: Path, split: str, first: int, rows: int, terminal: options.Terminal) -> options.Result:
    """Print rows of an HMM as words; a sentence may continue in the next row."""
    from shoestring.core.errors import DataError
    from shoestring.data.store.sentence_store import read_rows

    opened = read_rows(file)
    splits = {"train": opened.train, "heldout": opened.heldout}
    if split not in splits:
        raise DataError(f"--split {split}: {file} has train and heldout")
    kept = splits[split]
    if first >= len(kept):
        raise DataError(f"--first {first}: {file} has {counted(len(kept), f'{split} row')}, numbered from 0")
    shown = [
        {"row": number, "documents": [" ".join(opened.alphabet[token] for token in kept[number].tolist())]}
        for number in range(first, min(first + rows, len(kept)))
    ]
    for row in shown:
        terminal.say(f"row {row['row']}\n  {row['documents'][0]!r}")  # type: ignore[index]
    return {"store": str(file), "split": split, "length": int(kept.shape[1]), "rows": shown}
