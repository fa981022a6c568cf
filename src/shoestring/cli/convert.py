"""`shoestring convert`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options
from shoestring.core.units import counted


@click.command()
@click.argument("file", type=options.PATH, metavar="FILE")
@click.argument("folder", type=options.PATH, metavar="FOLDER")
@click.option("--pieces", type=options.PATH, metavar="FILE", help="Its tokenizer, as tok512.bin.")
@options.output
def convert(file: Path, folder: Path, pieces: Path | None, terminal: options.Terminal) -> options.Result:
    """Write a model of llama2.c (a .bin file) as a new folder that transformers loads."""
    from shoestring.models.llama2c import END, read_model, read_tokenizer_file
    from shoestring.models.transformers_format import save_transformers

    model, spec, vocabulary, length = read_model(file)
    files = {} if pieces is None else read_tokenizer_file(pieces, vocabulary)
    name = save_transformers(model, spec, vocabulary, length, folder, end=END, files=files)
    count = sum(parameter.numel() for parameter in model.parameters())
    terminal.say(f"{folder}: {name}, {counted(count, 'parameter')}{', with its tokenizer' if files else ''}")
    return {"folder": str(folder), "architecture": name, "parameters": count, "tokenizer": bool(files)}
