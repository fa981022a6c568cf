"""An endless stream in which every row has a random Markov chain of its own, in whole numbers of torch on any device.

Shapes: n rows, L positions, K the most states of a row, c the concentration. A row of k states fills the first k of K
places; the words of the others are not used, so that what a row is does not depend on the rows beside it.

Which word (see `philox`) of a row decides what is part of the format:

    CHAIN_SHAPE    word 0                  how many states
    SYMBOLS_FIRST  word s                  the symbol of state s, among those not taken yet
    CHAIN_ROWS     dirichlet               words scK on: cuts of [0, 2³²) whose spacings are the weights of state s
                   zipf                    words sK on: shuffle of the ranks for state s
                   doubly_stochastic       words 0 on: cuts, for the weights of k permutations; words (1 + m)K on:
                                           shuffle that is permutation m, of which m = 0 is a cycle through all
                                           states, so that no chain falls apart
    CHAIN_START    word (t - 1)K + s       where state s goes t steps before the start (coupling from the past)
                   doubly_stochastic       word 0: the first state
    TOKENS         word t                  the move from position t to t + 1
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from shoestring.core.errors import DataError
from shoestring.core.recipe import fingerprint
from shoestring.core.seeds import derive
from shoestring.streams.philox import Purpose, below, check_numbers, philox, words
from shoestring.streams.tables import UNIT, quantise

VERSION = 1
"""Of the format: another number where the same settings and seed give other rows."""
MOST_STATES = 64
MOST_SYMBOLS = 1 << 16
MOST_CONCENTRATION = 1 << 10
MOST_EXPONENT = 8.0
"""Steeper weights make chains that hardly ever leave a cycle, and take too long to forget where they began."""
MOST_LENGTH = 1 << 34
HORIZON = 1 << 20
"""Steps before the start from which every state must have led to the same one."""
CHUNK_ROWS = 1 << 16
CHUNK_WORDS = 1 << 21
"""Words drawn at a time; drawing them takes about ten times their memory."""
FIRST_STEPS = 8
"""Looked at before the start of all rows; many are decided by then."""
BLOCK = 64
"""Positions whose words are drawn together."""

Kind = Literal["dirichlet", "zipf", "doubly_stochastic"]


@dataclass(frozen=True, kw_only=True)
class MarkovSettings:
    """How chains are drawn; a number of states has the same chance as any other."""

    symbols: int
    """Size of the alphabet."""
    fewest: int = 3
    most: int = 10
    kind: Kind = "dirichlet"
    """How the probabilities of moves are drawn: Dirichlet(c, …, c) for every state; ranks to the power -s in a random
    order for every state; or as many random permutations as states, mixed with Dirichlet(1, …, 1)."""
    concentration: int = 1
    """Of dirichlet: c."""
    exponent: float = 1.0
    """Of zipf: s."""

    def __post_init__(self) -> None:
        limits = {
            "symbols": (2, MOST_SYMBOLS),
            "fewest": (2, MOST_STATES),
            "most": (2, MOST_STATES),
            "concentration": (1, MOST_CONCENTRATION),
        }
        problems = [
            f"{name} = {value}: must be a whole number from {low} to {high:,}"
            for name, (low, high) in limits.items()
            if not isinstance(value := getattr(self, name), int) or not low <= value <= high
        ]
        if self.kind not in get_args(Kind):
            problems.append(f'kind = "{self.kind}": must be one of {", ".join(get_args(Kind))}')
        if not 0 < self.exponent <= MOST_EXPONENT:
            problems.append(f"exponent = {self.exponent}: must be more than 0 and at most {MOST_EXPONENT:g}")
        if self.fewest > self.most:
            problems.append(f"fewest = {self.fewest}: must not be more than most = {self.most}")
        if self.symbols < self.most:
            problems.append(f"symbols = {self.symbols}: must be at least most = {self.most}, one for every state")
        if problems:
            raise DataError(f"Markov stream: {'; '.join(problems)}")


class Chains(NamedTuple):
    """The chains of n rows."""

    states: Tensor
    """(n,) int64: how many each has."""
    symbols: Tensor
    """(n, K) int64: what each state shows, -1 beyond the row's states."""
    weights: Tensor
    """(n, K, K) int64: of the move from one state to another, out of 2³²; 0 beyond the row's states."""


class MarkovStream:
    """Rows number 0 to 2⁶³ - 1, of which any can be made alone."""

    def __init__(self, settings: MarkovSettings, seed: int, length: int) -> None:
        if not 1 <= length <= MOST_LENGTH:
            raise DataError(f"length = {length}: a row of a stream has 1 to {MOST_LENGTH:,} tokens")
        self.settings = settings
        self.symbols = settings.symbols
        self.length = length
        self.dtype = torch.uint8 if settings.symbols <= 256 else torch.uint16
        drawn_by = fingerprint(["markov", VERSION, {**asdict(settings), "exponent": float(settings.exponent)}])
        self.key = derive(seed, "stream", drawn_by)
        self.fingerprint = fingerprint([drawn_by, seed])
        """Of all that decides token t of row i: the length does not."""
        self._ranked = _ranked(settings)

    def rows(self, first: int, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Rows first to first + count, (count, length)."""
        check_numbers(first, count)
        made = torch.empty(count, self.length, dtype=self.dtype, device=device)
        for begin, numbers in self._chunks(first, count, device):
            self._fill(made[begin : begin + len(numbers)], numbers)
        return made

    def chains(self, first: int, count: int, device: torch.device | str = "cpu") -> Chains:
        """The chains of rows first to first + count."""
        check_numbers(first, count)
        parts = [self._chains(numbers) for _, numbers in self._chunks(first, count, device)]
        return Chains(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def _chunks(self, first: int, count: int, device: torch.device | str) -> Iterator[tuple[int, Tensor]]:
        """Where parts of some rows begin, and the numbers of their rows; one part at least."""
        most, each = self.settings.most, max(self.settings.concentration * self.settings.most, FIRST_STEPS)
        size = max(1, min(CHUNK_ROWS, CHUNK_WORDS // (most * each)))
        for begin in range(0, max(count, 1), size):
            yield begin, torch.arange(min(size, count - begin), device=device) + (first + begin)

    def _chains(self, numbers: Tensor) -> Chains:
        settings = self.settings
        shape = philox(self.key, numbers, 0, Purpose.CHAIN_SHAPE)[0]
        states = settings.fewest + below(shape, settings.most - settings.fewest + 1)
        unused = torch.arange(settings.most, device=numbers.device) >= states[:, None]  # (n, K)
        symbols = _different(words(self.key, numbers, settings.most, Purpose.SYMBOLS_FIRST), settings.symbols)
        weights = self._weights(numbers, states)
        return Chains(states, symbols.masked_fill(unused, -1), weights.masked_fill(unused[:, :, None], 0))

    def _weights(self, numbers: Tensor, states: Tensor) -> Tensor:
        """Weights of moves, (n, K, K); rows of places that are no state hold anything."""
        kind, most, concentration = self.settings.kind, self.settings.most, self.settings.concentration
        lines = {"dirichlet": most * concentration, "zipf": most, "doubly_stochastic": most + 1}[kind]
        drawn = words(self.key, numbers, lines * most, Purpose.CHAIN_ROWS)
        states = states[:, None, None]
        if kind == "dirichlet":
            return _spacings(drawn.unflatten(1, (most, -1)), states, concentration)
        drawn = drawn.unflatten(1, (-1, most))
        if kind == "zipf":
            ranked = self._ranked.to(numbers.device)[states[:, 0, 0]]  # (n, K)
            return ranked[:, None].expand(-1, most, -1).gather(2, _shuffles(drawn, states))
        shares = _spacings(drawn[:, :1], states, 1).expand(-1, most, -1)  # of permutations, (n, K, K)
        cyclic = (torch.arange(most, device=numbers.device) == 0)[:, None].long()
        goals = _shuffles(drawn[:, 1:], states, cyclic).transpose(1, 2)  # (n, state, permutation)
        return torch.zeros_like(goals).scatter_add_(2, goals, shares)

    def _fill(self, out: Tensor, numbers: Tensor) -> None:
        """The rows of these numbers into `out`, (n, L)."""
        chains, most = self._chains(numbers), self.settings.most
        if self.settings.kind == "doubly_stochastic":  # all states are equally likely
            state = below(philox(self.key, numbers, 0, Purpose.CHAIN_START)[0], chains.states)
        else:
            state = start_states(chains.weights, numbers, self.key)
        sums = _sums(chains.weights).flatten(0, 1)
        lines = torch.arange(len(numbers), device=numbers.device) * most
        for begin in range(0, self.length, BLOCK):
            size = min(BLOCK, self.length - begin)
            visited = []
            for word in _words_from(self.key, numbers, begin, size, Purpose.TOKENS).unbind(1):
                visited.append(state)
                state = _moves(sums.index_select(0, lines + state), word[:, None])[:, 0]
            shown = chains.symbols.gather(1, torch.stack(visited, dim=1))
            out[:, begin : begin + size] = shown.to(self.dtype)


def start_states(weights: Tensor, numbers: Tensor, key: int) -> Tensor:
    """A state from the stationary distribution of each chain, (n,), exactly (Propp & Wilson 1996).

    Every state of every time before the start has a word of its own that says where it leads. As soon as, far enough
    back, all states lead to the same one, so does anything that began before: that one is the draw. Weights are
    (n, K, K) out of 2³², and rows of zeros, after the others, are no states.
    """
    most = weights.shape[1]
    found = torch.empty_like(numbers)
    left = torch.arange(len(numbers), device=numbers.device)  # rows not yet decided
    sums = _sums(weights)
    reached = torch.arange(most, device=numbers.device).repeat(len(numbers), 1)  # from `back` steps before the start
    back, steps = 0, FIRST_STEPS
    while len(left):
        if back >= HORIZON:
            raise DataError(
                f"row {int(numbers[left[0]])}: its chain still depends on where it began {back:,} steps ago; "
                "its moves are too nearly certain to draw a first state"
            )
        drawn = _words_from(key, numbers[left], back * most, steps * most, Purpose.CHAIN_START)
        maps = _moves(sums, drawn.unflatten(1, (steps, most)).transpose(1, 2))  # (left, state, time back)
        while maps.shape[2] > 1:  # the earlier of two neighbouring steps, then the later
            maps = maps[:, :, 0::2].gather(1, maps[:, :, 1::2])
        reached = reached.gather(1, maps[:, :, 0])
        back += steps
        one = (reached == reached[:, :1]).all(1)  # places that are no state lead to the first: they follow a step later
        found[left[one]] = reached[one, 0]
        left, sums, reached = left[~one], sums[~one], reached[~one]
        while steps < back and 2 * steps * most * len(left) <= CHUNK_WORDS:
            steps *= 2
    return found


def oracle_log_probs(tokens: Tensor, chains: Chains) -> Tensor:
    """Log-probability of every token of (n, L) for one who knows the row's chain and the tokens before, float64."""
    tokens = tokens.long().contiguous()
    shown, order = chains.symbols.sort(1)
    places = torch.searchsorted(shown, tokens).clamp(max=shown.shape[1] - 1)
    strange = (shown.gather(1, places) != tokens).nonzero()
    if len(strange):
        row, position = strange[0].tolist()
        raise DataError(f"row {row}, position {position}: its chain never shows token {int(tokens[row, position])}")
    states = order.gather(1, places)
    moves = chains.weights.double() / UNIT
    first = stationary(chains.weights).gather(1, states[:, :1])
    each = torch.arange(len(tokens), device=tokens.device)[:, None]
    return torch.cat([first, moves[each, states[:, :-1], states[:, 1:]]], dim=1).log()


def stationary(weights: Tensor) -> Tensor:
    """The stationary distribution of each chain, (n, K) float64; 0 for places that are no state.

    It is uniform where columns sum to 2³² as rows do, also for a chain of separate parts, which has others besides.
    """
    states = weights.sum(2) > 0
    found = states.double() / states.sum(1, keepdim=True)
    uneven = (weights.sum(1) != weights.sum(2)).any(1)
    moves = weights[uneven].double() / UNIT
    system = moves.transpose(1, 2) - torch.eye(moves.shape[1], dtype=moves.dtype, device=moves.device)
    system[:, 0] = 1  # one of the equations follows from the others; in its place: the sum is 1
    wanted = torch.zeros_like(moves[:, 0])
    wanted[:, 0] = 1
    found[uneven] = torch.linalg.solve(system, wanted).clamp(min=0)
    return found


def _ranked(settings: MarkovSettings) -> Tensor:
    """For k states, the weights of ranks in row k, (K + 1, K), zeros beyond."""
    table = np.zeros((settings.most + 1, settings.most), np.int64)
    for states in range(settings.fewest, settings.most + 1):
        shares = [rank**-settings.exponent for rank in range(1, states + 1)]
        table[states, :states] = quantise("zipf", np.array(shares) / math.fsum(shares))[0]
    return torch.from_numpy(table)


def _words_from(key: int, numbers: Tensor, first: int, count: int, purpose: Purpose) -> Tensor:
    """As `philox.words`, from word `first`, a multiple of 4, on."""
    calls = torch.arange(first // 4, -(-(first + count) // 4), device=numbers.device)
    return torch.stack(philox(key, numbers[:, None], calls, purpose), dim=2).flatten(1)[:, :count]


def _different(drawn: Tensor, symbols: int) -> Tensor:
    """Different symbols for the places of each row, (n, K): word s chooses among those that places before s left."""
    found = torch.empty_like(drawn)
    for place in range(drawn.shape[1]):
        rank = below(drawn[:, place : place + 1], symbols - place)
        taken = found[:, :place].sort(1).values
        smaller = taken - torch.arange(place, device=drawn.device) <= rank  # taken ones to be passed over
        found[:, place] = rank[:, 0] + smaller.sum(1)
    return found


def _spacings(drawn: Tensor, states: Tensor, concentration: int) -> Tensor:
    """Dirichlet weights that sum to 2³², (…, K) from words (…, cK); `states` broadcasts to the words."""
    unused = torch.arange(drawn.shape[-1], device=drawn.device) >= concentration * states - 1
    ends = drawn.masked_fill(unused, UNIT).sort(-1).values[..., concentration - 1 :: concentration]
    return ends.diff(dim=-1, prepend=torch.zeros_like(ends[..., :1]))


def _shuffles(drawn: Tensor, states: Tensor, cyclic: Tensor | int = 0) -> Tensor:
    """Fisher and Yates' shuffle of the first places, as many as states, for the words (…, K) of each; others stay.

    Where `cyclic` is 1, Sattolo's: one cycle through all places, and all such cycles are equally likely.
    """
    size = drawn.shape[-1]
    found = torch.arange(size, device=drawn.device).expand(drawn.shape).clone()
    for place in range(1, size):
        other = below(drawn[..., place : place + 1], place + 1 - cyclic).where(states > place, place)
        found[..., place : place + 1] = found.gather(-1, other)
        found.scatter_(-1, other, place)
    return found


def _sums(weights: Tensor) -> Tensor:
    """Running sums of (…, K) weights; all 2³² where all weights are zero, so that every word leads to the first."""
    sums = weights.cumsum(-1)
    return sums.masked_fill(sums[..., -1:] == 0, UNIT)


def _moves(sums: Tensor, drawn: Tensor) -> Tensor:
    """How many of the running sums (…, K) are at most each word (…, W): the state that the word leads to."""
    return torch.searchsorted(sums, drawn.contiguous(), right=True)
