"""The stream that a recipe names, and the model behind it."""

from __future__ import annotations

from pathlib import Path

from shoestring.core.errors import DataError
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.seeds import derive
from shoestring.hmm.parameters import HmmError, Saved, load
from shoestring.streams.hmm import HmmStream
from shoestring.streams.markov import MarkovSettings, MarkovStream
from shoestring.streams.stationary import stationary


def read_model(path: Path) -> Saved:
    """The HMM of a run folder or of a model file."""
    file = RunFolder(path).model if path.is_dir() else path
    if not file.is_file():
        hint = "fit one first: shoestring hmm fit RECIPE" if path.is_dir() or not path.suffix else "no such file"
        raise DataError(f"there is no fitted HMM {file}; {hint}")
    return load(file)


def model_stream(
    model: Saved, seed: int, length: int, *, start: str = "model", symbols: str = "none", states: str = "none"
) -> HmmStream:
    """The stream of a model, with rows of `length` tokens."""
    parameters = model.parameters
    if parameters.end is not None:
        raise HmmError("a model with end probabilities makes rows of different lengths; a stream cannot have them")
    transition = parameters.transition.numpy()
    first = parameters.start.numpy() if start == "model" else stationary(transition)
    emission = parameters.emission.numpy()
    return HmmStream(first, transition, emission, seed=seed, length=length, symbols=symbols, states=states)


def hmm_of(recipe: Recipe) -> Saved:
    """The model behind an HMM's stream."""
    assert recipe.data.stream is not None
    return read_model(Path(recipe.data.stream.place))


def open_stream(recipe: Recipe) -> HmmStream | MarkovStream:
    """The stream of a recipe; a row has one token more than predictions."""
    name, settings = recipe.data.stream, recipe.stream_settings
    assert name is not None, "a recipe with a stream"
    seed, length = derive(recipe.run.seed, "stream"), recipe.data.length + 1
    if name.symbols is None:
        kinds = {"start": settings.start, "symbols": settings.symbols, "states": settings.states}
        return model_stream(hmm_of(recipe), seed, length, **kinds)
    chains = MarkovSettings(
        symbols=name.symbols,
        fewest=settings.fewest,
        most=settings.most,
        kind=settings.chain,
        concentration=settings.concentration,
        exponent=settings.exponent,
    )
    return MarkovStream(chains, seed, length)


def symbol_names(recipe: Recipe) -> tuple[str, ...] | None:
    """The words of an HMM's symbols; None if rows permute the symbols, or for Markov chains."""
    stream = recipe.data.stream
    if stream is None or stream.kind != "hmm" or recipe.stream_settings.symbols.kind != "none":
        return None
    return hmm_of(recipe).alphabet
