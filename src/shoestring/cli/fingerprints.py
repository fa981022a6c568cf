"""`shoestring fingerprints`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options

COUNT = click.IntRange(1, 10**6)


@click.command()
@click.argument("base", metavar="BASE")
@click.option("--out", type=options.PATH, default="fingerprints.json", show_default=True, help="File to write.")
@click.option("--tokenizer", metavar="SPEC", help="file:PATH or hf:NAME, of a transformers folder without one.")
@click.option("--prompts", type=COUNT, default=20, show_default=True, help="How many prompts.")
@click.option("--prefix", type=COUNT, default=8, show_default=True, help="Random tokens that each begins with.")
@click.option("--length", type=COUNT, default=64, show_default=True, help="Tokens of each prompt.")
@click.option("--least", type=COUNT, default=50, show_default=True, help="Draw from so many least likely tokens.")
@click.option("--k", type=COUNT, help="Tokens compared at each end; default: 2000, or a tenth of a small vocabulary.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@options.output
def fingerprints(
    base: str,
    out: Path,
    tokenizer: str | None,
    prompts: int,
    prefix: int,
    length: int,
    least: int,
    k: int | None,
    seed: int,
    terminal: options.Terminal,
) -> options.Result:
    """Write prompts that BASE finds unlikely, for [evaluate] overlap.

    BASE is a run (RUN#STEP for one of its checkpoints), or a folder or hub name of transformers. Each prompt is a
    random prefix, extended by tokens that BASE expects least; special tokens are left out.
    """
    from shoestring.runs.fingerprints import Shape, make_fingerprints, open_base

    options.check_outputs({"--out": out})
    found = make_fingerprints(
        open_base(base, length, tokenizer, terminal.say), Shape(prompts, prefix, length, least, k), seed
    )
    found.write(out)
    terminal.say(f"{out}: {prompts} prompts of {length} tokens from {found.base}")
    terminal.say(
        f'compared: {found.k:,} of {found.vocabulary:,} ids at each end; use it with [evaluate] overlap = "{out}"'
    )
    return found.to_dict()
