"""`shoestring hmm fit · score · show`."""

from __future__ import annotations

from typing import Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, RecipeFile, RunPath, Verbose

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
