"""`shoestring generate`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from shoestring.cli import options
from shoestring.core.errors import UserError
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
@click.option("-i", "--interactive", is_flag=True, help="Ask for prompts, line by line, until the input ends.")
@options.checkpoint
@options.output
def generate(
    run: Path,
    prompt: str,
    max_tokens: int,
    count: int,
    seed: int,
    interactive: bool,
    checkpoint: CheckpointSpec,
    terminal: options.Terminal,
    **drawing: Any,
) -> options.Result:
    """Generate text with a trained causal network or a fitted HMM.

    The text ends with a document of the corpus, or after --max-tokens. With --interactive the model is loaded once,
    and answers every line; each line draws anew.
    """
    from shoestring.console.terminal import Terminal
    from shoestring.core.run_folder import RunFolder
    from shoestring.models.generate import Drawing
    from shoestring.runs.generate import check_amount, open_writer

    if interactive and prompt:
        raise UserError("--interactive asks for prompts: leave the prompt out")
    drawn, say = Drawing(**drawing), Terminal(to_stderr=True).say  # standard output is for the texts
    check_amount(max_tokens, count)
    writer = open_writer(RunFolder.open(run), checkpoint, say)
    if not interactive:
        texts = writer.write(prompt, max_tokens, drawn, count, seed)
        terminal.say("\n\n".join(texts))
        return {"prompt": prompt, "texts": texts}
    answers = []
    for number, line in enumerate(_prompts(say)):
        try:
            texts = writer.write(line, max_tokens, drawn, count, seed + number)
        except UserError as mistake:  # a word that the model does not know
            say(f"error: {mistake}")
            continue
        terminal.say("\n\n".join(texts) + "\n")
        answers.append({"prompt": line, "texts": texts})
    return {"answers": answers}


def _prompts(say: Callable[[str], None]) -> Iterator[str]:
    """Lines of standard input; on a terminal, each is asked for, and can be edited."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (`input` uses it)
    say("a prompt, or an empty line for a text from the beginning; Ctrl-D ends")
    while True:
        try:
            yield input("> ")
        except EOFError:
            say("")
            return
