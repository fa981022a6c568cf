"""`shoestring data check · show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoestring.cli.options import AsJson, Verbose

if TYPE_CHECKING:
    from shoestring.data.store import SplitEntry

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

StoreFolder = Annotated[Path, typer.Argument(metavar="STORE", help="A store's folder.", show_default=False)]


@app.callback()
def stores() -> None:
    """Look into token stores."""


@app.command()
def check(store: StoreFolder, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Read all of a store and compare every byte with its checksums."""
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.units import Bytes, Count
    from shoestring.data.store import Store

    terminal = Terminal(to_stderr=as_json)
    opened = Store(store)
    opened.verify()
    manifest = opened.manifest
    rows = [
        (name, f"{split.documents:,}", Count(split.tokens).short(), f"{len(split.shards):,}", _per_token(split))
        for name, split in manifest.splits.items()
    ]
    terminal.table(f"{store} is whole", ("split", "documents", "tokens", "shards", "bytes a token"), rows)
    terminal.left_out(manifest.ledger)
    terminal.say(f"{Bytes(manifest.bytes).short()}, tokenizer {manifest.tokenizer}, {manifest.vocab_size:,} ids")
    if as_json:
        print_json({"store": str(store), **manifest.to_dict()})


def _per_token(split: SplitEntry) -> str:
    return f"{split.text_bytes / split.tokens:.3f}" if split.text_bytes and split.tokens else ""


@app.command()
def show(
    store: StoreFolder,
    split: Annotated[str, typer.Option("--split", help='"train" or "heldout".')] = "train",
    first: Annotated[int, typer.Option("--first", min=0, help="Number of the first row.")] = 0,
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many rows.")] = 5,
    length: Annotated[int | None, typer.Option("--length", min=1, help="Predictions of a row; default: 128.")] = None,
    packing: Annotated[str, typer.Option("--packing", help='"concat", "best_fit" or "pad".')] = "concat",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Print rows of a store as text."""
    import numpy as np

    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.errors import DataError
    from shoestring.data.packed import PackedSource
    from shoestring.data.store import Store

    terminal = Terminal(to_stderr=as_json)
    opened = Store(store)
    if packing not in ("concat", "best_fit", "pad"):
        raise DataError(f'--packing {packing}: must be "concat", "best_fit" or "pad"')
    length = length or (opened.manifest.row - 1 if opened.manifest.row else 128)
    source = opened.split(split, length) if packing == "concat" else PackedSource(opened, split, length, packing)
    if first >= len(source):
        raise DataError(f"--first {first}: {store} has {len(source):,} {split} rows of {length:,}, from number 0 on")
    numbers = np.arange(first, min(first + rows, len(source)))
    found = source.rows(numbers)
    told = []
    for place, number in enumerate(numbers.tolist()):
        if isinstance(found, tuple):
            ids, segments = found.ids[place], found.segments[place]
            texts = [opened.tokenizer.decode(ids[segments == s]) for s in range(1, int(segments.max()) + 1)]
        else:
            texts = [opened.tokenizer.decode(found[place])]
        told.append({"row": number, "documents": texts})
        terminal.say(f"row {number}")
        for text in texts:
            terminal.say(f"  {text!r}")
    if as_json:
        print_json({"store": str(store), "split": split, "length": length, "rows": told})
