"""`shoestring law fit · optimum · predict · isoflop · compare · flops`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shoestring.cli import options
from shoestring.cli.law_design import design_json, flops_list, print_design

Command = Callable[..., Any]

vocabulary_option = click.option(
    "--vocabulary", type=options.VOCABULARY, help="Vocabulary size; default: the tokenizer's."
)
profiles_option = click.option(
    "--profile", "profiles", multiple=True, type=options.PATH, metavar="RUN", help="A measured run folder per size."
)

law_option = click.option(
    "--law", "law_file", type=options.PATH, metavar="FILE", help="From `law fit`; default: Chinchilla's 240 points."
)


def column_options(tables: str, **meanings: str) -> Callable[[Command], Command]:
    """Add an option for each column that a command reads from `tables`, and --where, which chooses rows."""
    added = [click.option(f"--{name}", metavar="COLUMN", help=f"{tables}: {text}.") for name, text in meanings.items()]
    rows = f"{tables}: only these rows; may be repeated."
    added.append(click.option("--where", multiple=True, metavar="COLUMN=VALUE", help=rows))

    def add(command: Command) -> Command:
        for option in reversed(added):
            command = option(command)
        return command

    return add


@click.group()
def law() -> None:
    """Scaling laws: what runs teach about the next one."""


@law.command()
@click.argument("sources", nargs=-1, required=True, type=options.PATH, metavar="TABLE | RUN… | SWEEP")
@column_options(
    "Table",
    params="parameters",
    tokens="training tokens",
    loss="final loss",
    flops="training FLOPs",
    group="the run of a row; rows of one run share its noise",
)
@click.option("--count", default="total", show_default=True, help="What N is: total, or no-embeddings.")
@click.option(
    "--approach", default="all", show_default=True,
    help="1 envelope of curves, 2 parabolas at equal FLOPs, 3 the surface; or all.",
)  # fmt: skip
@click.option("--penalty", default="huber", show_default=True, help="Of log residuals: huber, l1 or squares.")
@click.option("--delta", type=float, metavar="NUMBER", help="Where Huber's penalty turns straight; default: 0.001.")
@click.option(
    "--window", type=float, default=5.0, show_default=True, metavar="FACTOR",
    help="Parabolas: sizes within this factor of the lowest loss; inf: all.",
)  # fmt: skip
@click.option(
    "--exponent", type=float, metavar="A",
    help="Approaches 1 and 2: N = k C^A and D = k C^(1-A), with k fitted; default: A is fitted too.",
)  # fmt: skip
@click.option("--optima", is_flag=True, help="Table: each row is the best model of its compute; needs no --loss.")
@click.option("--drop-largest", type=click.IntRange(min=0), default=0, help="Leave out this many largest losses.")
@click.option("--skip-bad", is_flag=True, help="Leave bad rows and runs out, and name them.")
@click.option(
    "--bootstraps", type=click.IntRange(0, 100_000), default=4000, show_default=True,
    help="Resamples, or laws at the edge of the 95 % region (1000 at most), for intervals.",
)  # fmt: skip
@click.option("--name", help="Name of the law; default: its source.")
@click.option(
    "--out", type=options.PATH, default=Path("law.json"), metavar="FILE", help="The record; its page is put beside it."
)
@options.output
def fit(
    sources: tuple[Path, ...],
    where: tuple[str, ...],
    count: str,
    approach: str,
    penalty: str,
    delta: float | None,
    window: float,
    exponent: float | None,
    optima: bool,
    drop_largest: int,
    skip_bad: bool,
    bootstraps: int,
    name: str | None,
    out: Path,
    terminal: options.Terminal,
    **columns: str | None,
) -> options.Result:
    """Fit a scaling law to trained models.

    In a table, two of --params, --tokens and --flops give the third by C = 6 N D. For run folders, N is counted as
    --count says, D is the number of predictions, and FLOPs are exact. Where rows are checkpoints of fewer runs, name
    the column of the run with --group: the intervals are then those of noise by run. With --optima, power laws go
    through the rows of a table of best models. Writes law.json and law.html.
    """
    from shoestring.report.law_page import OPTIMUM_HEAD, coefficient_rows, fit_rows
    from shoestring.studies.allocation import fit_optima, one_table
    from shoestring.studies.law import fit_law
    from shoestring.studies.law_data import Columns, read_given
    from shoestring.studies.law_options import ask
    from shoestring.studies.law_report import optimum_rows, write_optima_report, write_report

    asked = ask(approach, penalty, bootstraps, name, delta, window, exponent)
    page = _page_of(out)
    options.check_outputs({"--out": out, "its page": page}, sources)
    if optima:
        table = one_table(sources, approach, drop_largest)
        made, said = fit_optima(table, Columns(**columns), where, count, skip_bad, asked)
        made.write(out)
        write_optima_report(page, made, said)
    else:
        given = read_given(sources, Columns(**columns), where, count, skip_bad, drop_largest)
        fitted = fit_law(given, asked)
        made, said = fitted.law, given.said
        made.write(out)
        write_report(page, given, fitted)
    for line in said:
        terminal.say(line)
    terminal.table(f"Law of {made.source}", ("", "value", "95 %", "meaning"), coefficient_rows(made))
    if rows := optimum_rows(made):
        terminal.table("The best model by compute", OPTIMUM_HEAD, rows)
    terminal.table("How it was fitted", ("", ""), fit_rows(made))
    terminal.say(f"law: {out}, page: {page}")
    values = made.to_dict()
    for part in (values, *values["allocations"]):
        del part["samples"]  # only in the file
    return {"file": str(out), "page": str(page), "said": list(said), **values}


def _page_of(out: Path) -> Path:
    """The page beside a record."""
    from shoestring.core.errors import UserError

    if not out.name:
        raise UserError(f"--out {out}: it is a folder; give the name of a file in it")
    return out.with_suffix(".html")


@law.command()
@click.option("--flops", metavar="FLOPS", help="The budget, such as 1e21.")
@click.option("--time", metavar="TIME", help="The budget, such as 5d; needs --profile.")
@profiles_option
@law_option
@click.option(
    "--approach", type=click.IntRange(1, 3),
    help="1 or 2: by the power laws of `law fit --approach`; 3: by the surface. Default: 3 if the law has it.",
)  # fmt: skip
@options.output
def optimum(
    flops: str | None,
    time: str | None,
    profiles: tuple[Path, ...],
    law_file: Path | None,
    approach: int | None,
    terminal: options.Terminal,
) -> options.Result:
    """Find the best model for a budget of FLOPs or time.

    With --time, the speed of each size is as measured on this machine: `shoestring measure` a few sizes, and name their
    run folders. Approaches 1 and 2 tell the best size for --flops, but no losses. The law that comes with the package
    is a new fit, with Huber's penalty, of Hoffmann et al.'s data as extracted by Epoch AI. Its losses are in nats per
    token of their corpus and vocabulary.
    """
    from shoestring.core.units import Seconds
    from shoestring.report.law_page import OPTIMUM_HEAD, optimum_row
    from shoestring.studies.optimum import FACTORS, find_best, off_rows
    from shoestring.studies.sizing import read_law

    best = find_best(read_law(law_file), flops, time, profiles, FACTORS, approach)
    row = optimum_row(best.flops, best.params, best.tokens, best.loss)
    head = OPTIMUM_HEAD if best.seconds is None else (f"FLOPs in {Seconds(best.seconds).short()}", *OPTIMUM_HEAD[1:])
    terminal.table(f"The best model, by the law of {best.law}", head, [row])
    if best.off:
        last = f"more {'compute' if best.seconds is None else 'time'} for the best loss"
        terminal.table("Other sizes", ("size", "parameters", "tokens", "loss", last), off_rows(best))
    for line in best.notes:
        terminal.say(line)
    return best.to_json()


@law.command()
@click.option("--params", required=True, metavar="N", help="Parameters, such as 7B.")
@click.option("--tokens", required=True, metavar="D", help="Training tokens, such as 140B.")
@law_option
@options.output
def predict(params: str, tokens: str, law_file: Path | None, terminal: options.Terminal) -> options.Result:
    """Predict the loss of a model from its parameters and tokens.

    The interval includes the error that the law made on points held out from it, in proportion to the distance from the
    data. Says by which factor parameters, tokens or FLOPs are outside the data.
    """
    from shoestring.core.errors import UserError
    from shoestring.core.units import Count, amount
    from shoestring.report.law_page import OPTIMUM_HEAD, optimum_row
    from shoestring.studies.optimum import estimate
    from shoestring.studies.optimum import predict as predict_loss
    from shoestring.studies.sizing import read_law

    try:
        amounts = [float(amount(Count, text)) for text in (params, tokens)]
    except ValueError as cause:
        raise UserError(f"--params {params} --tokens {tokens}: {cause}") from cause
    found = predict_loss(read_law(law_file), *amounts)
    row = optimum_row(found.flops, estimate(found.params, None), estimate(found.tokens, None), found.loss)
    terminal.table(f"The loss, by the law of {found.law}", OPTIMUM_HEAD, [row])
    for line in found.notes:
        terminal.say(line)
    return found.to_json()


@law.command()
@options.recipe_file
@options.overrides
@vocabulary_option
@options.output
def flops(
    recipe: Path, overrides: tuple[str, ...], vocabulary: int | None, terminal: options.Terminal
) -> options.Result:
    """Count parameters and FLOPs in every convention.

    These are the conventions that are often mixed up: with or without embeddings, 6 N or exact, with or without
    attention.
    """
    from shoestring.core import recipe_file
    from shoestring.core.errors import UserError
    from shoestring.core.units import Count, Flops
    from shoestring.cost.transformer import parameters
    from shoestring.runs.prepare import vocabulary_of
    from shoestring.studies.accounting import count_all
    from shoestring.studies.run_results import row_predictions

    loaded = recipe_file.load(recipe, overrides)
    if loaded.model.size is not None:
        raise UserError(f"{recipe}: its size is chosen for a machine and a time; give model.width and model.layers")
    symbols = vocabulary_of(loaded, vocabulary)
    conventions = count_all(loaded, symbols)
    groups = parameters(loaded.model, symbols, loaded.data.length)
    shown = [(name.replace("_", " "), f"{count:,}") for name, count in groups.items() if count]
    terminal.table(f"{symbols:,} symbols", ("parameters", "count"), [*shown, ("in all", f"{sum(groups.values()):,}")])
    table = [
        (
            row.convention,
            "" if row.params is None else Count(row.params).short(),
            *(Flops(value).short() for value in (row.per_prediction, row.per_token)),
            f"{row.against_exact:.2f}",
            row.counts,
        )
        for row in conventions
    ]
    head = ("training FLOPs", "N", "per prediction", "per position", "of exact", "what is counted")
    terminal.table("", head, table)
    predicted, length = row_predictions(loaded), loaded.data.length
    if predicted < length:
        terminal.say(f"the last {predicted:,} of {length:,} positions are predicted; D counts predictions")
    return {"vocabulary": symbols, "parameters": groups, "conventions": [row._asdict() for row in conventions]}


@law.command()
@options.recipe_file
@click.option("--sizes", required=True, metavar="LIST", help="512x9,624x11 (width x layers) or 40M,60M.")
@click.option("--flops", metavar="LIST", help="1e17,1e18; default: what the recipe's own steps take.")
@click.option("--out", type=options.PATH, metavar="FOLDER", help="Where to write the recipes.")
@click.option("--convention", default="exact", show_default=True, help="How FLOPs are counted; see `law flops`.")
@click.option(
    "--warmup", metavar="AMOUNT", help="0.05 of the steps, '200 steps' or '8M tokens'; default: the recipe's."
)
@click.option("--evaluate-every", metavar="AMOUNT", help="Likewise, between evaluations; default: the recipe's.")
@profiles_option
@click.option("--gpu", metavar="NAME", help="A GPU by name, for an estimate of the time.")
@options.overrides
@vocabulary_option
@options.output
def isoflop(
    recipe: Path,
    sizes: str,
    flops: str | None,
    out: Path | None,
    convention: str,
    warmup: str | None,
    evaluate_every: str | None,
    profiles: tuple[Path, ...],
    gpu: str | None,
    overrides: tuple[str, ...],
    vocabulary: int | None,
    terminal: options.Terminal,
) -> options.Result:
    """Design runs of equal compute.

    Writes a recipe for each size, with the steps that spend the FLOPs. The recipes extend RECIPE and are written to
    --out (default: a folder beside the runs). Train each, then use `law fit` or `law compare` on their run folders. The
    time comes from --profile (measured sizes; one alone is scaled by FLOPs), or is estimated from --gpu. A warm-up or
    an interval of evaluations in steps or tokens (predictions) is the same in all runs, whatever their length.
    """
    from shoestring.core import recipe_file
    from shoestring.planning.corpus import full_passes
    from shoestring.runs.prepare import vocabulary_of
    from shoestring.studies.isoflop import design, own_flops, parse_amount, parse_sizes, write_recipes
    from shoestring.studies.optimum import time_runs

    loaded = recipe_file.load(recipe, overrides)
    symbols = vocabulary_of(loaded, vocabulary)
    amounts = flops_list(flops) if flops else [own_flops(loaded, symbols, convention)]
    warm = None if warmup is None else parse_amount(warmup, "--warmup")
    every = None if evaluate_every is None else parse_amount(evaluate_every, "--evaluate-every")
    designed = design(loaded, symbols, parse_sizes(sizes, loaded, symbols), amounts, convention, warm, every)
    times, how = time_runs([made.recipe for made in designed], symbols, profiles, gpu)
    files = write_recipes(recipe, designed, out or Path(loaded.run.folder) / f"{loaded.run.name}-isoflop")
    print_design(designed, times, how, convention, terminal)
    passes = full_passes(loaded)
    if passes > 1:
        terminal.say(f"an epoch predicts 1 in {passes:g} positions, so {passes:g} epochs read the corpus once")
    if loaded.data.documents is None and loaded.data.stream is None and loaded.data.source.kind != "store":
        terminal.say(
            "each run will read the documents that its steps need; to give all runs the same vocabulary and held-out "
            "rows, set data.documents, or set data.source to a store"
        )
    for file in files:
        terminal.say(f"shoestring train {file}")
    runs = [design_json(made, file, time) for made, file, time in zip(designed, files, times)]
    return {"convention": convention, "vocabulary": symbols, "full_passes": passes, "runs": runs}


@law.command()
@click.argument("runs", nargs=-1, required=True, type=options.PATH, metavar="RUN… | SWEEP | TABLE…")
@column_options(
    "Tables",
    loss="the loss",
    flops="FLOPs so far; or --step, or --tokens",
    step="steps so far; needs --flops-per-step",
    tokens="tokens so far; needs --params, for C = 6 N D",
    group="the run of a row; default: a table is one curve",
)
@click.option("--flops-per-step", metavar="LIST", help="One number for each curve, or one for all.")
@click.option("--params", metavar="LIST", help="Parameters of each curve, such as 40M,60M.")
@click.option("--names", metavar="LIST", help="Names of the curves, one for each; default: their files or groups.")
@click.option("--skip-bad", is_flag=True, help="Tables: leave bad rows out, and name them.")
@click.option("--out", type=options.PATH, default=Path("compare.html"), metavar="FILE", help="The page.")
@options.output
def compare(runs: tuple[Path, ...], out: Path, terminal: options.Terminal, **columns: Any) -> options.Result:
    """Compare a finished run with others, over compute.

    Tells for the first run and each of the others which held-out loss is lower at equal compute, and whether the curves
    cross. A difference counts where it is more than twice the noise: how much a held-out loss varies from one
    evaluation to the next. Another seed may differ by more: give several runs of each that differ in run.seed alone,
    and their losses at the end are compared by Welch's t, at 95 %. Tables (CSV, or .jsonl) are curves that a tracker
    exported: name their columns.
    """
    from shoestring.studies.compare import compare_runs
    from shoestring.studies.run_results import CurveColumns

    options.check_outputs({"--out": out}, runs)
    compared = compare_runs(runs, out, CurveColumns(**columns))
    terminal.table("Held-out loss at equal compute", compared.rows[0], compared.rows[1:])
    for line in compared.said:
        terminal.say(line)
    terminal.say(f"page: {out}")
    return {"page": str(out), "comparisons": compared.to_json()}
