"""`shoestring hmm fit · sample · score · show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shoestring.cli import options


@click.group()
def hmm() -> None:
    """Hidden Markov models."""


@hmm.command()
@options.recipe_file
@options.overrides
@click.option("--over", multiple=True, metavar="FIELD=A,B,…", help="One fit for each value; may be repeated.")
@options.plan_file
@options.time_limit
@options.output
def fit(
    recipe: Path,
    overrides: tuple[str, ...],
    over: tuple[str, ...],
    plan: Path | None,
    time: float | None,
    terminal: options.Terminal,
) -> options.Result:
    """Fit the model of a recipe, or of a grid of them.

    Prepares rows, measures, plans, fits until the budget is spent, scores and writes the page; resumes where it
    stopped. With --over the time of all fits is printed before the first one starts, and finished fits are skipped.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core.clock import Clock
    from shoestring.core.errors import UserError
    from shoestring.studies.sweep import grid, plan_grid

    recipes = grid(recipe, overrides, over)
    if any(loaded.kind != "hmm" for loaded in recipes):
        raise UserError("this recipe has no [hmm] section; a network is trained with: shoestring train RECIPE")
    if over and plan is not None:
        raise UserError("--plan and --over: a plan is of one fit; leave one of them out")
    if over:
        total, lines = plan_grid(recipes, terminal)
        terminal.table("Grid", ("run", "epochs", "per epoch", "seconds"), lines)
        terminal.say(f"{len(recipes)} fits, {total} in all\n")
    one = len(recipes) == 1
    results = [run_in_terminal(loaded, terminal, plan, time, Clock() if one else Clock(0.0)) for loaded in recipes]
    reported = [result for result in results if result is not None]
    return {"runs": reported} if len(reported) > 1 else next(iter(reported), None)


@hmm.command()
@options.run_path
@options.output
def score(run: Path, terminal: options.Terminal) -> options.Result:
    """Score a fitted model on its held-out rows, causally.

    Shows the baselines that only count, in context and from the corpus, and the divergence of the model from each.
    """
    from shoestring.report.scores import with_error
    from shoestring.runs.hmm_trainee import score_run

    scores = score_run(run)
    columns = ("loss", "last_token_loss", "kl_of_model", "kl_of_baseline")
    loss = "infinite" if scores.loss is None else with_error(scores.loss, scores.loss_error)
    rows: list[tuple[str, ...]] = [("this model", loss, _three(scores.last_token_loss), "", "")]
    rows += [
        (name.replace("_", " "), *(_three(getattr(losses, column)) for column in columns))
        for name, losses in scores.baselines.items()
    ]
    head = ("baseline", "nats per token", "last token", "KL(model ‖ it)", "KL(it ‖ model)")
    terminal.table(f"Held out: {scores.sequences:,} rows, {scores.tokens:,} predictions", head, rows)
    if scores.impossible:
        terminal.say(f"{scores.impossible:,} rows have probability zero and are left out")
    return scores.to_dict()


def _three(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3f}"


@hmm.command()
@click.argument("model", type=options.PATH, metavar="MODEL")
@click.option("--rows", required=True, metavar="COUNT", help="Training rows, such as 2B.")
@click.option("--length", required=True, type=click.IntRange(min=1), help="Tokens per row.")
@click.option("--out", required=True, type=options.PATH, metavar="FOLDER", help="Folder of the store.")
@click.option("--heldout", default="1024", show_default=True, metavar="COUNT", help="Held-out rows.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Rows are those of a stream with this run.seed.")
@click.option("--start", type=click.Choice(["model", "stationary"]), default="model", show_default=True)
@click.option("--symbols", default="none", metavar="KIND", help="Permuted symbols: none, sequence, block:N or pool:P.")
@click.option("--states", default="none", metavar="KIND", help="Permuted emissions of states; kinds as for --symbols.")
@options.shard
@options.output
def sample(
    rows: str, heldout: str, out: Path, shard: str, terminal: options.Terminal, **settings: Any
) -> options.Result:
    """Write rows drawn from a fitted model as a token store.

    MODEL is the run folder of an HMM, or its model file. The same command resumes where it stopped. Several machines
    may write parts into one folder. Training needs no file: data.stream = "hmm:RUN" in a recipe computes the same rows
    as they are read.
    """
    from shoestring.core.errors import UserError
    from shoestring.core.units import Bytes, Count
    from shoestring.data.store.fixed_rows import missing_shards
    from shoestring.probe.machine import pick_device
    from shoestring.runs.sample import Wanted, sample_store

    try:
        counts = [int(Count.parse(text)) for text in (rows, heldout)]
    except ValueError as cause:
        raise UserError(f"--rows {rows}, --heldout {heldout}: {cause}") from cause
    part = options.parse_part(shard)
    wanted = Wanted(rows=counts[0], heldout=counts[1], **settings)
    job, manifest = sample_store(wanted, out, part, pick_device(), terminal.writing)
    terminal.close()
    left = 0 if manifest is not None else missing_shards(out, job)
    if manifest is None:
        terminal.say(f"part {shard} is written; {left:,} shards of other parts are missing")
    else:
        answers = out / "answers.json"
        known = f", answers: {answers}" if answers.is_file() else ""
        terminal.say(f"store: {out} ({Bytes(manifest.bytes).short()}){known}")
    return {"store": str(out), "whole": manifest is not None, "missing_shards": left, **job.to_dict()}


@hmm.command()
@options.run_path
@click.option("--states", type=click.IntRange(min=1), default=20, help="How many states, the most visited first.")
@click.option("--sentence", help="Explain this sentence by its most likely path of states.")
@options.output
def show(run: Path, states: int, sentence: str | None, terminal: options.Terminal) -> options.Result:
    """Show what the states of a fitted model mean.

    Prints top words, likely moves, the share of time in each state, sampled sentences, and the path of a sentence.
    """
    from dataclasses import replace

    from shoestring.core.run_folder import RunFolder
    from shoestring.core.schema import encode
    from shoestring.data.tokenize.tokenizers import words_of
    from shoestring.hmm.show import describe, explain, explanation_lines, find_words
    from shoestring.runs.trained_model import load_hmm

    model = load_hmm(RunFolder.open(run))
    alphabet = model.alphabet or ()
    description = describe(model.parameters, alphabet)
    result: dict[str, Any] = {"states": encode(description)}
    lines = replace(description, states=description.states[:states]).lines()
    if sentence is not None:
        steps = explain(model.parameters, alphabet, find_words(words_of(sentence), alphabet))
        result["sentence"] = [encode(step) for step in steps]
        lines += explanation_lines(steps)
    terminal.say("\n".join(lines))
    return result
