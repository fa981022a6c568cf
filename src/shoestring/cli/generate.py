"""`shoestring generate`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from shoestring.cli import options
from shoestring.core.specs import CheckpointSpec


@click.command()
@options.run_path
@click.argument("prompt", default="")
@click.option("--max-tokens", type=click.IntRange(min=1), default=100, show_default=True, help="Tokens to generate.")
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True, help="0: the likeliest.")
@click.option("--top-k", type=click.IntRange(min=1), help="Draw only from this many of the likeliest tokens.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Nucleus sampling with this probability.")
@click.option("--n", "count", type=click.IntRange(min=1), default=1, show_default=True, help="How many texts.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@options.checkpoint
@options.output
def generate(
    run: Path,
    prompt: str,
    max_tokens: int,
    count: int,
    seed: int,
    checkpoint: CheckpointSpec,
    terminal: options.Terminal,
    **drawing: Any,
) -> options.Result:
    """Generate text with a trained causal network or a fitted HMM."""
    from shoestring.core.run_folder import RunFolder
    from shoestring.models.generate import Drawing
    from shoestring.runs.trained_model import generate_text

    drawn, say = Drawing(**drawing), functools.partial(click.echo, err=True)  # standard output is for the texts
    texts = generate_text(RunFolder.open(run), prompt, max_tokens, drawn, count, seed, checkpoint, say)
    terminal.say("\n\n".join(texts))
    return {"prompt": prompt, "texts": texts}
