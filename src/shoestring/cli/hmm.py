"""`shoestring hmm fit · sample · score · show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, RecipeFile, RunPath, Verbose, parse_part

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def workshop() -> None:
    """The workshop for hidden Markov models."""


@app.command()
def fit(
    recipe: RecipeFile,
    overrides: Overrides = None,
    over: Annotated[
        list[str] | None, typer.Option("--over", metavar="FIELD=A,B,…", help="One fit for each value; may be repeated.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Fit the model of a recipe, or of a grid of them.

    Prepares rows, measures, plans, fits to the budget, scores and writes the page; goes on where it was cut. With
    --over the time of all fits is printed before the first one starts; those that are done are not done again.
    """
    from shoestring.cli.running import print_finished
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.clock import Clock
    from shoestring.stages.grid import grid, plan_grid
    from shoestring.stages.hmm import fit_recipe

    terminal = Terminal(to_stderr=as_json)
    made = grid(recipe, overrides or [], over or [])
    if over:
        total, lines = plan_grid(made, terminal)
        terminal.table("Grid", ("run", "epochs", "an epoch", "seconds"), lines)
        terminal.say(f"{len(made)} fits, {total} in all\n")
    found = []
    for loaded in made:
        try:
            finished = fit_recipe(loaded, terminal, Clock() if len(made) == 1 else Clock(0.0))
        finally:
            terminal.close()
        if finished is not None:
            found.append(print_finished(terminal, finished))
    if as_json and found:
        print_json(found[0] if len(found) == 1 else {"runs": found})


@app.command()
def score(run: RunPath, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Score a fitted model on its held-out rows, causally.

    Beside it the strategies that only count, in context and from the corpus, and how far the model is from each.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.stages.hmm import score_run

    scores = score_run(run)
    rows = [("this model", _three(scores.loss), _three(scores.last_token_loss), "", "")]
    rows += [
        (
            name.replace("_", " "),
            _three(value.loss),
            _three(value.last_token_loss),
            _three(value.kl_of_model),
            _three(value.kl_of_strategy),
        )
        for name, value in scores.strategies.items()
    ]
    terminal = Terminal(to_stderr=as_json)
    head = ("strategy", "nats a token", "last token", "KL(model ‖ it)", "KL(it ‖ model)")
    terminal.table(f"Held out: {scores.sequences:,} rows, {scores.tokens:,} predictions", head, rows)
    if scores.impossible:
        terminal.say(f"{scores.impossible:,} rows have probability zero and are left out")
    if as_json:
        print_json(scores.to_dict())


@app.command()
def sample(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An HMM's run folder, or its model file.")],
    rows: Annotated[str, typer.Option("--rows", metavar="COUNT", help="Training rows, such as 2B.")],
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of a row.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the store goes.")],
    heldout: Annotated[str, typer.Option("--heldout", metavar="COUNT", help="Held-out rows.")] = "1024",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Rows are those of a stream with this run.seed.")] = 0,
    start: Annotated[str, typer.Option("--start", help='"model" or "stationary".')] = "model",
    symbols: Annotated[
        str, typer.Option("--symbols", metavar="KIND", help="Permuted symbols: none, sequence, block:N or pool:P.")
    ] = "none",
    states: Annotated[
        str, typer.Option("--states", metavar="KIND", help="Shuffled emissions of states; kinds as for --symbols.")
    ] = "none",
    shard: Annotated[str, typer.Option("--shard", metavar="I/N", help="Write part I of N, from 0 on.")] = "0/1",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Write the rows of a fitted model as a token store.

    The same command goes on where it was cut; parts may be written by many machines into one folder. For training no
    file is needed: data.stream = "hmm:RUN" in a recipe computes the same rows as they are read.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.errors import UserError
    from shoestring.core.units import Bytes, Count
    from shoestring.data.fixed_rows import missing_shards
    from shoestring.probe.machine import pick_device
    from shoestring.stages.sample import Wanted, sample_store

    try:
        counts = [int(Count.parse(text)) for text in (rows, heldout)]
    except ValueError as cause:
        raise UserError(f"--rows {rows}, --heldout {heldout}: {cause}") from cause
    if start not in ("model", "stationary"):
        raise UserError(f'--start {start}: must be "model" or "stationary"')
    part = parse_part(shard)
    wanted = Wanted(
        model=model,
        rows=counts[0],
        heldout=counts[1],
        length=length,
        seed=seed,
        start=start,
        symbols=symbols,
        states=states,
    )
    terminal = Terminal(to_stderr=as_json)
    try:
        job, manifest = sample_store(wanted, out, part, pick_device(), terminal.writing)
    finally:
        terminal.close()
    left = 0 if manifest is not None else missing_shards(out, job)
    if manifest is None:
        terminal.say(f"part {shard} is written; {left:,} shards of other parts are missing")
    else:
        answers = out / "answers.json"
        known = f", answers: {answers}" if answers.is_file() else ""
        terminal.say(f"store: {out} ({Bytes(manifest.bytes).short()}){known}")
    if as_json:
        print_json({"store": str(out), "whole": manifest is not None, "missing_shards": left, **job.to_dict()})


@app.command()
def show(
    run: RunPath,
    states: Annotated[int, typer.Option(min=1, help="How many states, the most visited first.")] = 20,
    sentence: Annotated[
        str | None, typer.Option(help="Explain this sentence by its most likely path of states.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show what the states of a fitted model mean.

    Top words, likely moves, the share of time in each state, sampled sentences, and the path of a sentence.
    """
    from dataclasses import replace

    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.schema import encode
    from shoestring.data.tokenizers import words_of
    from shoestring.hmm.show import describe, explain, explanation_lines, find_words
    from shoestring.stages.hmm import open_model

    model = open_model(run).model
    alphabet = model.alphabet or ()
    terminal = Terminal(to_stderr=as_json)
    description = describe(model.parameters, alphabet)
    told: dict[str, object] = {"states": encode(description)}
    for line in replace(description, states=description.states[:states]).lines():
        terminal.say(line)
    if sentence is not None:
        steps = explain(model.parameters, alphabet, find_words(words_of(sentence), alphabet))
        told["sentence"] = [encode(step) for step in steps]
        for line in explanation_lines(steps):
            terminal.say(line)
    if as_json:
        print_json(told)


def _three(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3f}"
