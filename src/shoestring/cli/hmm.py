"""`shoestring hmm fit · sample · score · show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shoestring.cli import options
from shoestring.core.units import counted

NO_HMM = "this recipe has no [hmm] section; a network is trained with: shoestring train RECIPE"
model_path = click.argument("model", type=options.PATH, metavar="MODEL")


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
    stopped. With --over it is `shoestring sweep` with this option.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file
    from shoestring.core.errors import UserError

    if over:
        from shoestring.cli.sweep import Asked, sweep_in_terminal

        if plan is not None:
            raise UserError("--plan and --over: a plan is of one fit; leave one of them out")
        return sweep_in_terminal(Asked(recipe=recipe, overrides=overrides, over=over, time=time, kind="hmm"), terminal)
    loaded = recipe_file.load(recipe, overrides)
    if loaded.kind != "hmm":
        raise UserError(NO_HMM)
    return run_in_terminal(loaded, terminal, plan, time)


@hmm.command()
@model_path
@click.option(
    "--data", metavar="SOURCE", help="Score this instead, named as in data.source: text:PATH, store:FOLDER, …"
)
@click.option("--split", help="Of a store: train or heldout; default: heldout where it has one.")
@click.option("--rows", type=click.IntRange(min=1), default=16384, show_default=True, help="The most rows of --data.")
@click.option("--length", type=click.IntRange(min=1), help="Tokens per row of a text; default: as the run, or 100.")
@click.option("--unique", is_flag=True, help="Score each distinct sentence of a text once.")
@options.output
def score(
    model: Path,
    data: str | None,
    split: str | None,
    rows: int,
    length: int | None,
    unique: bool,
    terminal: options.Terminal,
) -> options.Result:
    """Score a fitted model causally, on its held-out rows or on any other text or store.

    MODEL is the run folder of an HMM, or its model file. Of a text, the sentences are scored that use only the model's
    words. Shows the baselines that only count, in context and from the training rows, and the divergence of the model
    from each.
    """
    from shoestring.core.errors import UserError
    from shoestring.core.specs import SourceSpec
    from shoestring.report.scores import with_error
    from shoestring.runs.hmm_scoring import Other, score_model

    other = None
    if data is not None:
        source = SourceSpec(data)
        if problem := source.problem():
            raise UserError(f'--data "{data}": {problem}')
        other = Other(source=source, split=split, rows=rows, length=length, unique=unique)
    elif split or length or unique:
        raise UserError("--split, --length and --unique are of --data; leave them out, or name a source")
    scores, what, notes = score_model(model, other)
    columns = ("loss", "last_token_loss", "kl_of_model", "kl_of_baseline")
    loss = "infinite" if scores.loss is None else with_error(scores.loss, scores.loss_error)
    lines: list[tuple[str, ...]] = [("this model", loss, _three(scores.last_token_loss), "", "")]
    lines += [
        (name.replace("_", " "), *(_three(getattr(losses, column)) for column in columns))
        for name, losses in scores.baselines.items()
    ]
    head = ("baseline", "nats per token", "last token", "KL(model ‖ it)", "KL(it ‖ model)")
    terminal.table(f"{what}: {counted(scores.sequences, 'row')}, {counted(scores.tokens, 'prediction')}", head, lines)
    if scores.impossible:
        terminal.say(f"left out: {counted(scores.impossible, 'row')} of probability zero")
    for note in notes:
        terminal.say(note)
    return {"scored": what, "notes": notes, **scores.to_dict()}


def _three(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3f}"


@hmm.command()
@model_path
@click.option("--rows", required=True, metavar="COUNT", help="Training rows, such as 2B.")
@click.option("--length", required=True, type=click.IntRange(1, 10**9), help="Tokens per row.")
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
    from shoestring.core.specs import PermutationSpec
    from shoestring.core.units import Bytes, Count, amount
    from shoestring.data.store.fixed_rows import missing_shards
    from shoestring.probe.machine import pick_device
    from shoestring.runs.sample import Wanted, sample_store

    try:
        counts = [int(amount(Count, text)) for text in (rows, heldout)]
    except ValueError as cause:
        raise UserError(f"--rows {rows}, --heldout {heldout}: {cause}") from cause
    for name in ("symbols", "states"):
        if problem := PermutationSpec(settings[name]).problem():
            raise UserError(f'--{name} "{settings[name]}": {problem}')
    part = options.parse_part(shard)
    wanted = Wanted(rows=counts[0], heldout=counts[1], **settings)
    job, manifest = sample_store(wanted, out, part, pick_device(), terminal.writing)
    terminal.close()
    left = 0 if manifest is not None else missing_shards(out, job)
    if manifest is None:
        terminal.say(f"part {shard} is written; missing: {counted(left, 'shard')} of other parts")
    else:
        answers = out / "answers.json"
        known = f", answers: {answers}" if answers.is_file() else ""
        terminal.say(f"store: {out} ({Bytes(manifest.bytes).short()}){known}")
    return {"store": str(out), "whole": manifest is not None, "missing_shards": left, **job.to_dict()}


@hmm.command()
@model_path
@click.option("--out", required=True, type=options.PATH, metavar="FILE", help="File of JSON lines.")
@click.option("--n", "count", type=click.IntRange(1, 10**6), default=1000, show_default=True, help="How many pairs.")
@click.option("--length", type=click.IntRange(2, 10**4), default=12, show_default=True, help="Words of a sentence.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@options.output
def pairs(model: Path, out: Path, count: int, length: int, seed: int, terminal: options.Terminal) -> options.Result:
    """Write minimal pairs of a fitted model: sentences that it draws, each beside a spoiled one.

    MODEL is the run folder of an HMM, or its model file. In a spoiled sentence two words have changed places, or one is
    replaced. `evaluate RUN --on pairs:FILE` then shows how often a run prefers the right one, beside the model itself.
    """
    import json
    from statistics import fmean

    from shoestring.core.files import write_whole
    from shoestring.runs.hmm_pairs import make_pairs
    from shoestring.runs.trained_model import read_hmm

    options.check_outputs({"--out": out}, [model])
    lines = make_pairs(read_hmm(model), count, length, seed)
    write_whole(out, "".join(json.dumps(line) + "\n" for line in lines))
    own = fmean(line["oracle"] for line in lines)
    terminal.say(f"{out}: {counted(len(lines), 'pair')}; the model itself prefers the right one in {own:.1%}")
    return {"file": str(out), "pairs": len(lines), "oracle": own}


@hmm.command()
@model_path
@click.option("--states", type=click.IntRange(min=1), default=20, help="How many states, the most visited first.")
@click.option("--sentence", help="Explain this sentence by its most likely path of states.")
@options.output
def show(model: Path, states: int, sentence: str | None, terminal: options.Terminal) -> options.Result:
    """Show what the states of a fitted model mean.

    MODEL is the run folder of an HMM, or its model file.
    Prints top words, likely moves, the share of time in each state, sampled sentences, and the path of a sentence.
    """
    from shoestring.core.schema import encode
    from shoestring.data.tokenize.tokenizers import words_of
    from shoestring.hmm.show import describe, explain, explanation_lines, find_words
    from shoestring.runs.trained_model import alphabet_of, read_hmm

    saved = read_hmm(model)
    alphabet = alphabet_of(saved)
    description = describe(saved.parameters, alphabet)
    result: dict[str, Any] = {"states": encode(description)}
    lines = description.lines(states)
    if sentence is not None:
        steps = explain(saved.parameters, alphabet, find_words(words_of(sentence), alphabet))
        result["sentence"] = [encode(step) for step in steps]
        lines += explanation_lines(steps)
    terminal.say("\n".join(lines))
    return result
