"""`shoestring law fit · optimum · isoflop · compare · flops`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, RecipeFile, Verbose

if TYPE_CHECKING:
    from shoestring.core.units import Interval
    from shoestring.stages.isoflop import Designed

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Vocabulary = Annotated[
    int | None, typer.Option("--vocabulary", min=1, help="Symbols of the model; default: what the tokenizer has.")
]
Counting = Annotated[str, typer.Option("--count", help="What N is: total, or no-embeddings.")]


@app.callback()
def laws() -> None:
    """Scaling laws: what runs teach about the next one."""


@app.command()
def fit(
    sources: Annotated[
        list[Path], typer.Argument(metavar="TABLE | RUN…", help="A CSV or .jsonl file, or finished run folders.")
    ],
    params: Annotated[str | None, typer.Option(metavar="COLUMN", help="Table: parameters.")] = None,
    tokens: Annotated[str | None, typer.Option(metavar="COLUMN", help="Table: training tokens.")] = None,
    loss: Annotated[str | None, typer.Option(metavar="COLUMN", help="Table: final loss.")] = None,
    flops: Annotated[str | None, typer.Option(metavar="COLUMN", help="Table: training FLOPs.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Table: only these rows; may be repeated.")
    ] = None,
    count: Counting = "total",
    approach: Annotated[
        str, typer.Option(help="1 envelope of curves, 2 parabolas at equal FLOPs, 3 the surface; or all.")
    ] = "all",
    penalty: Annotated[str, typer.Option(help="Of log residuals: huber, l1 or squares.")] = "huber",
    drop_largest: Annotated[int, typer.Option(min=0, help="Leave out so many of the largest losses.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows and runs out, and name them.")] = False,
    bootstraps: Annotated[int, typer.Option(min=0, help="Resamples for intervals of 95 %.")] = 4000,
    name: Annotated[str | None, typer.Option(help="What the law is called; default: its source.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The record; its page lies beside it.")] = Path(
        "law.json"
    ),
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Fit a scaling law to trained models.

    Of a table, two of --params, --tokens and --flops give the third by C = 6 N D. Of run folders, N is counted as
    --count says, D is predictions, and FLOPs are exact. Writes law.json and law.html.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.report.law_page import OPTIMUM_HEAD, coefficient_rows, fit_rows
    from shoestring.stages.law import Columns, ask, fit_law, read_given
    from shoestring.stages.law_report import optimum_rows, write_report

    asked = ask(approach, penalty, bootstraps, name)
    columns = Columns(loss=loss, params=params, tokens=tokens, flops=flops)
    given = read_given(sources, columns, where or (), count, skip_bad, drop_largest)
    fitted = fit_law(given, asked)
    page = out.with_suffix(".html")
    fitted.law.write(out)
    write_report(page, given, fitted)
    terminal = Terminal(to_stderr=as_json)
    for line in given.said:
        terminal.say(line)
    terminal.table(f"Law of {fitted.law.source}", ("", "value", "95 %", "meaning"), coefficient_rows(fitted.law))
    if rows := optimum_rows(fitted.law):
        terminal.table("The best model by compute", OPTIMUM_HEAD, rows)
    terminal.table("How it was fitted", ("", ""), fit_rows(fitted.law))
    terminal.say(f"law: {out}, page: {page}")
    if as_json:
        told = fitted.law.to_dict()
        del told["samples"]  # in the file
        print_json({"file": str(out), "page": str(page), "said": list(given.said), **told})


@app.command()
def optimum(
    flops: Annotated[str | None, typer.Option("--flops", metavar="FLOPS", help="The budget, as 1e21.")] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="The budget, as 5d; needs --profile.")
    ] = None,
    profiles: Annotated[
        list[Path] | None,
        typer.Option("--profile", metavar="RUN", help="A measured run folder; one for each of several sizes."),
    ] = None,
    law: Annotated[
        Path | None, typer.Option("--law", metavar="FILE", help="From `law fit`; default: Chinchilla's 240 points.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Find the best model for a budget of FLOPs, or of time.

    With --time the speed of each size is what was measured on this machine: `shoestring measure` a few sizes, and name
    their run folders. The law that comes with the package is Hoffmann et al.'s data as extracted by Epoch AI, fitted
    anew with Huber's penalty: its losses are in nats a token of their corpus and vocabulary.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.units import Seconds
    from shoestring.report.law_page import OPTIMUM_HEAD, optimum_row
    from shoestring.stages.optimum import FACTORS, find_best, off_rows
    from shoestring.stages.sizing import read_law

    best = find_best(read_law(law), flops, time, profiles or [], FACTORS)
    terminal = Terminal(to_stderr=as_json)
    row = optimum_row(best.flops, best.params, best.tokens, best.loss)
    head = OPTIMUM_HEAD if best.seconds is None else (f"FLOPs in {Seconds(best.seconds).short()}", *OPTIMUM_HEAD[1:])
    terminal.table(f"The best model, by the law of {best.law}", head, [row])
    what = "more compute" if best.seconds is None else "more time"
    terminal.table(
        "Another size", ("size", "parameters", "tokens", "loss", f"{what} for the best loss"), off_rows(best)
    )
    for line in best.notes:
        terminal.say(line)
    if as_json:
        print_json(best.to_json())


@app.command()
def flops(
    recipe: RecipeFile,
    overrides: Overrides = None,
    vocabulary: Vocabulary = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Count parameters and FLOPs, in every convention.

    The ways of counting that people mix: with and without embeddings, 6 N against exact, attention or not.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core import recipe_file
    from shoestring.core.units import Count, Flops
    from shoestring.cost.networks import parameters
    from shoestring.stages.accounting import count_all, vocabulary_of
    from shoestring.stages.trained import row_predictions

    loaded = recipe_file.load(recipe, overrides or ())
    symbols = vocabulary_of(loaded, vocabulary)
    rows = count_all(loaded, symbols)
    groups = parameters(loaded.model, symbols, loaded.data.length)
    terminal = Terminal(to_stderr=as_json)
    shown = [(name.replace("_", " "), f"{count:,}") for name, count in groups.items() if count]
    terminal.table(f"{symbols:,} symbols", ("parameters", "count"), [*shown, ("in all", f"{sum(groups.values()):,}")])
    table = [
        (
            row.convention,
            "" if row.params is None else Count(row.params).short(),
            Flops(row.per_prediction).short(),
            Flops(row.per_token).short(),
            f"{row.against_exact:.2f}",
            row.counts,
        )
        for row in rows
    ]
    head = ("training FLOPs", "N", "a prediction", "a position", "of exact", "what is counted")
    terminal.table("", head, table)
    predicted, length = row_predictions(loaded), loaded.data.length
    if predicted < length:
        terminal.say(f"the last {predicted:,} of {length:,} positions are predicted; D counts predictions")
    if as_json:
        print_json({"vocabulary": symbols, "parameters": groups, "conventions": [row._asdict() for row in rows]})


@app.command()
def isoflop(
    recipe: RecipeFile,
    sizes: Annotated[str, typer.Option("--sizes", metavar="LIST", help="512x9,624x11 (width x layers) or 40M,60M.")],
    flops: Annotated[
        str | None,
        typer.Option("--flops", metavar="LIST", help="1e17,1e18; default: what the recipe's own steps take."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where the recipes go.")] = None,
    convention: Annotated[
        str, typer.Option("--convention", help="How FLOPs are counted; `law flops` lists the ways.")
    ] = "exact",
    profiles: Annotated[
        list[Path] | None, typer.Option("--profile", metavar="RUN", help="A measured run folder, for the time.")
    ] = None,
    card: Annotated[str | None, typer.Option("--card", help="A GPU by name, for an estimate of the time.")] = None,
    overrides: Overrides = None,
    vocabulary: Vocabulary = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Design runs of equal compute.

    A recipe for each size, with the steps that spend the FLOPs. The recipes extend RECIPE and are written to --out
    (default: a folder beside the runs). Train each, then close the circle with `law fit` or `law compare` on their run
    folders. The time is from --profile (measured sizes; one alone is scaled by FLOPs), or estimated from --card.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core import recipe_file
    from shoestring.core.units import Count, Flops, Seconds
    from shoestring.stages.accounting import vocabulary_of
    from shoestring.stages.isoflop import design, full_passes, own_flops, parse_sizes, write_recipes
    from shoestring.stages.speeds import time_runs

    loaded = recipe_file.load(recipe, overrides or ())
    symbols = vocabulary_of(loaded, vocabulary)
    amounts = _flops_list(flops) if flops else [own_flops(loaded, symbols, convention)]
    designed = design(loaded, symbols, parse_sizes(sizes, loaded, symbols), amounts, convention)
    times, how = time_runs([made.recipe for made in designed], symbols, profiles or [], card)
    folder = out or Path(loaded.run.folder) / f"{loaded.run.name}-isoflop"
    files = write_recipes(recipe, designed, folder)
    terminal = Terminal(to_stderr=as_json)
    sizes_of = {(made.recipe.model.width, made.recipe.model.layers): made for made in designed}
    costs = [
        (
            f"{width}x{layers}",
            Count(made.params).short(),
            Count(made.params_no_embeddings).short(),
            Flops(made.flops_per_prediction).short(),
            Flops(made.exact_per_prediction).short(),
        )
        for (width, layers), made in sizes_of.items()
    ]
    head = ("size", "parameters", "no embeddings", f"a token, {convention}", "exact")
    shown = len(head) - (convention == "exact")  # the last column would be the one before it
    terminal.table("Sizes", head[:shown], [row[:shown] for row in costs])
    rows = [
        (
            made.recipe.run.name,
            Flops(made.flops).short(),
            Count(made.tokens).short(),
            f"{made.tokens_per_parameter:.3g}",
            f"{made.steps:,}",
            "unknown" if time is None else time.show(lambda value: Seconds(value).short()),
        )
        for made, time in zip(designed, times)
    ]
    terminal.table("Runs of equal compute", ("run", "FLOPs", "tokens", "a parameter", "steps", "time"), rows)
    known = [time for time in times if time is not None]
    if known:
        terminal.say(f"{Seconds(sum(time.expected for time in known)).short()} in all; {how}")
    else:
        terminal.say(f"time: {how}")
    passes = full_passes(loaded)
    if passes > 1:
        terminal.say(f"an epoch predicts 1 in {passes:g} positions, so {passes:g} epochs are one reading of the corpus")
    if loaded.data.documents is None and loaded.data.stream is None and not loaded.data.source.startswith("store:"):
        terminal.say(
            "each run will read the documents that its steps need; set data.documents, or data.source to a store, and "
            "all have the same vocabulary and held-out rows"
        )
    for file in files:
        terminal.say(f"shoestring train {file}")
    if as_json:
        runs = [_design_json(made, file, time) for made, file, time in zip(designed, files, times)]
        print_json({"convention": convention, "vocabulary": symbols, "full_passes": passes, "runs": runs})


def _flops_list(text: str) -> list[float]:
    from shoestring.core.errors import UserError
    from shoestring.core.units import Flops

    try:
        amounts = [float(Flops.parse(part)) for part in text.split(",")]
    except ValueError as cause:
        raise UserError(f"--flops {text}: {cause}") from cause
    if min(amounts) <= 0:
        raise UserError(f"--flops {text}: must be above zero")
    return amounts


def _design_json(made: Designed, file: Path, time: Interval | None) -> dict[str, object]:
    model = made.recipe.model
    return {
        "recipe": str(file),
        "name": made.recipe.run.name,
        "width": model.width,
        "layers": model.layers,
        "heads": model.heads,
        "params": made.params,
        "params_no_embeddings": made.params_no_embeddings,
        "flops": made.flops,
        "exact_flops": made.exact_flops,
        "flops_per_token": made.flops_per_prediction,
        "exact_flops_per_token": made.exact_per_prediction,
        "tokens": made.tokens,
        "steps": made.steps,
        "seconds": None if time is None else time._asdict(),
    }


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Finished run folders, the first one against each.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page.")] = Path("compare.html"),
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Compare runs over compute.

    Whose held-out loss is lower at equal compute, and whether the curves cross. A difference counts where it is more
    than twice the noise, which is how much a held-out loss goes up and down from one evaluation to the next; another
    seed may differ by more.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.stages.comparing import compare_runs

    found = compare_runs(runs, out)
    terminal = Terminal(to_stderr=as_json)
    terminal.table("Held-out loss at equal compute", found.rows[0], found.rows[1:])
    for line in found.said:
        terminal.say(line)
    terminal.say(f"page: {out}")
    if as_json:
        print_json({"page": str(out), "comparisons": found.to_json()})
