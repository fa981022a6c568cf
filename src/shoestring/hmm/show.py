"""What a model has learned, for people: the words and moves of its states, sampled sentences, and most likely paths.

`lines()` and `explanation_lines` turn these data into plain text.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.core.units import counted
from shoestring.hmm.inference import token_log_probs, viterbi
from shoestring.hmm.parameters import HmmError, Parameters
from shoestring.hmm.sampling import CLOSING, SENTENCE_ENDS, from_sentence_start, stationary


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word that a state emits."""

    word: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """A state that the chain may move to."""

    state: int
    probability: float


@dataclass(frozen=True, kw_only=True)
class State:
    """One state, with its most likely words and moves, without those of probability zero."""

    state: int
    """Its number in the tables of the model."""
    stationary: float
    """The long-run share of time in this state."""
    start: float
    end: float | None
    words: tuple[Word, ...]
    moves: tuple[Move, ...]
    """Where the chain moves if it does not stop; it may stay."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """A model for people."""

    symbols: int
    states: tuple[State, ...]
    """The most visited first."""
    sentences: tuple[str, ...]
    """Drawn from the model, words separated by spaces."""

    def lines(self, most: int | None = None) -> list[str]:
        """The description as text: for each of the `most` first states, or for all, a line of words and a line of
        moves; then the sentences."""
        wide = len(str(max(state.state for state in self.states)))
        found = [f"{counted(len(self.states), 'state')} over {counted(self.symbols, 'word')}, the most visited first"]
        for state in self.states[:most]:
            share, words = f"{state.stationary:6.2%}", _words(state.words)
            moves = ", ".join(f"{move.state} {move.probability:.2f}" for move in state.moves)
            found.append(f"state {state.state:>{wide}}  {share}  {words}")
            found.append(" " * (len("state ") + wide + 2) + f"{'to':>{len(share)}}  {moves}")
        return [*found, *(["sentences drawn from the model"] if self.sentences else []), *self.sentences]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One word of a sentence, with its state on the most likely path."""

    word: str
    state: int
    probability: float
    """Of the word in this state."""
    words: tuple[Word, ...]
    """What the state emits most."""


def describe(
    parameters: Parameters, alphabet: Sequence[str], top: int = 8, sentences: int = 5, length: int = 20, seed: int = 0
) -> Description:
    """The states with their `top` words and moves, and some sampled sentences of at most `length` words.

    A sentence is drawn from its first word to its end, where marks of the alphabet end sentences.

    For a model with end probabilities, the stationary distribution is that of one sequence after another, each from a
    new start.
    """
    _check(parameters, alphabet, top)
    exact = parameters.to("cpu", torch.float64)
    moves = exact.transition if exact.end is None else exact.moves() + exact.end[:, None] * exact.start
    shares = stationary(moves)
    states = tuple(
        State(
            state=i,
            stationary=float(shares[i]),
            start=float(exact.start[i]),
            end=None if exact.end is None else float(exact.end[i]),
            words=_top_words(exact.emission[i], alphabet, top),
            moves=tuple(Move(state=j, probability=p) for j, p in _most(exact.transition[i], top)),
        )
        for i in shares.sort(descending=True, stable=True).indices.tolist()
    )
    rows = from_sentence_start(exact, alphabet, sentences, length, seed)
    named = [[alphabet[token] for token in row] for row in rows]
    if exact.end is None:
        named = [_first_sentence(words) for words in named]
    return Description(symbols=parameters.symbols, states=states, sentences=tuple(map(" ".join, named)))


def _first_sentence(words: list[str]) -> list[str]:
    """The words to the first mark that ends a sentence, with the marks that follow it; all where none does."""
    end = next((at for at, word in enumerate(words) if word in SENTENCE_ENDS), len(words))
    past = next((at for at, word in enumerate(words[end:], start=end) if word not in CLOSING), len(words))
    return words[:past]


def find_words(words: Sequence[str], alphabet: Sequence[str]) -> list[int]:
    """The ids of words; raises HmmError for a word that is not in the alphabet, and names the nearest one."""
    ids = {word: index for index, word in enumerate(alphabet)}
    for position, word in enumerate(words):
        if word not in ids:
            close = difflib.get_close_matches(word, alphabet, n=1, cutoff=0.0)
            hint = f'; the nearest is "{close[0]}"' if close else ""
            raise HmmError(
                f'word {position + 1}, "{word}", is not among the {counted(len(ids), "word")} of the model{hint}'
            )
    return [ids[word] for word in words]


def explain(parameters: Parameters, alphabet: Sequence[str], text_ids: Sequence[int], top: int = 4) -> list[Step]:
    """The most likely path through a sentence of word ids (from `find_words`), with the words of each state."""
    _check(parameters, alphabet, top)
    exact = parameters.to("cpu", torch.float64)
    tokens = torch.tensor([list(text_ids)], dtype=torch.int64)
    path = viterbi(exact, tokens)
    if bool(path.impossible[0]):
        raise HmmError(_impossible(exact, alphabet, tokens))
    return [
        Step(
            word=alphabet[token],
            state=state,
            probability=float(exact.emission[state, token]),
            words=_top_words(exact.emission[state], alphabet, top),
        )
        for token, state in zip(text_ids, path.states[0].tolist())
    ]


def explanation_lines(steps: Sequence[Step]) -> list[str]:
    """A line for every word: the word, its state, its probability there, and the state's most likely words."""
    word = max((len(step.word) for step in steps), default=0)
    wide = max((len(str(step.state)) for step in steps), default=0)
    return [f"{s.word:<{word}}  state {s.state:>{wide}}  {s.probability:.3f}  {_words(s.words)}" for s in steps]


def _check(parameters: Parameters, alphabet: Sequence[str], top: int) -> None:
    if len(alphabet) != parameters.symbols:
        raise HmmError(f"{counted(len(alphabet), 'word')} for a model of {counted(parameters.symbols, 'symbol')}")
    if top < 1:
        raise HmmError(f"top = {top}: must be at least 1")


def _impossible(parameters: Parameters, alphabet: Sequence[str], tokens: Tensor) -> str:
    ruled_out = token_log_probs(parameters, tokens).log_probabilities[0].isneginf().nonzero()
    if not len(ruled_out):  # every word is possible, but not to stop after the last, or to continue after another
        return "the model gives this sentence probability zero: it does not end where the sentence does"
    at = int(ruled_out[0])
    word = alphabet[int(tokens[0, at])]
    return f'the model gives this sentence probability zero: word {at + 1}, "{word}", cannot stand there'


def _top_words(row: Float[Tensor, " E"], alphabet: Sequence[str], top: int) -> tuple[Word, ...]:
    return tuple(Word(word=alphabet[token], probability=p) for token, p in _most(row, top))


def _most(row: Float[Tensor, " cells"], top: int) -> list[tuple[int, float]]:
    """The largest cells above zero with their places; of equal cells, the lower place first."""
    values, places = row.sort(descending=True, stable=True)
    return [(place, p) for place, p in zip(places[:top].tolist(), values[:top].tolist()) if p > 0]


def _words(words: Sequence[Word]) -> str:
    return ", ".join(f"{word.word} {word.probability:.2f}" for word in words)
