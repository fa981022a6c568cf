"""An endless stream in which every row has a random Markov chain of its own, computed in integers on any device.

Shapes: n rows, L positions, K the most states of a row, c the concentration. A row of k states fills the first k of K
places. The words of the other places are not used, so that a row does not depend on its neighbours.

The use of each word (see `philox`) of a row is part of the format:

    CHAIN_SHAPE    word 0                  how many states
    SYMBOLS_FIRST  word s                  the symbol of state s, among those not used yet
    CHAIN_ROWS     dirichlet               words scK on: cuts of [0, 2³²) whose spacings are the weights of state s
                   zipf                    words sK on: shuffle of the ranks for state s
                   doubly_stochastic       words 0 on: cuts, for the weights of k permutations; words (1 + m)K on:
                                           shuffle that is permutation m; m = 0 is a cycle through all states, so
                                           that every chain is connected
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
"""Version of the format; raised whenever the same settings and seed give other rows."""
MOST_STATES = 64
MOST_SYMBOLS = 1 << 16
MOST_CONCENTRATION = 1 << 10
MOST_EXPONENT = 8.0
"""With steeper weights, chains hardly ever leave a cycle and take too long to forget their first state."""
MOST_LENGTH = 1 << 34
HORIZON = 1 << 20
"""Most steps before the start within which all states must have led to the same one."""
CHUNK_ROWS = 1 << 16
CHUNK_WORDS = 1 << 21
"""Words drawn at once; drawing them takes about ten times their memory."""
FIRST_STEPS = 8
"""Steps before the start that are drawn for all rows; they decide many of them."""
BLOCK = 64
"""Positions whose words are drawn together."""

Kind = Literal["dirichlet", "zipf", "doubly_stochastic"]


@dataclass(frozen=True, kw_only=True)
class MarkovSettings:
    """How chains are drawn; all numbers of states are equally likely."""

    symbols: int
    """Size of the alphabet."""
    fewest: int = 3
    most: int = 10
    kind: Kind = "dirichlet"
    """How transition probabilities are drawn: from Dirichlet(c, …, c) for every state; ranks to the power -s in random
    order for every state; or as many random permutations as states, mixed by Dirichlet(1, …, 1)."""
    concentration: int = 1
    """For dirichlet: c."""
    exponent: float = 1.0
    """For zipf: s."""

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
    """(n,) int64: number of states."""
    symbols: Tensor
    """(n, K) int64: the symbol of each state, -1 beyond the row's states."""
    weights: Tensor
    """(n, K, K) int64: transition probabilities in units of 2⁻³²; 0 beyond the row's states."""


class MarkovStream:
    """Rows number 0 to 2⁶³ - 1; any of them can be made alone."""

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
        """Identifies everything that determines token t of row i; the length does not."""
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
        """Chunks of rows: where each begins, and its row numbers; at least one chunk."""
        most, each = self.settings.most, max(self.settings.concentration * self.settings.most, FIRST_STEPS)
        size = max(1, min(CHUNK_ROWS, CHUNK_WORDS // (most * each)))
        for begin in range(0, max(count, 1), size):
            yield begin, torch.arange(min(size, count - begin), device=device) + (first + begin)

    def _chains(self, numbers: Tensor) -> Chains:
        settings = self.settings
        shape = philox(self.key, numbers, 0, Purpose.CHAIN_SHAPE)[0]
        states = settings.fewest + below(shape, settings.most - settings.fewest + 1)
        unused = torch.arange(settings.most, device=numbers.device) >= states[:, None]  # (n, K)
        symbols = _different(words(self.key, numbers, settings.most, Purpose.SYMBOLS_SHUFFLE), settings.symbols)
        weights = self._weights(numbers, states)
        return Chains(states, symbols.masked_fill(unused, -1), weights.masked_fill(unused[:, :, None], 0))

    def _weights(self, numbers: Tensor, states: Tensor) -> Tensor:
        """Transition weights, (n, K, K); rows of unused places hold arbitrary values."""
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
        """Write the rows with these numbers into `out`, (n, L)."""
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
            for word in words(self.key, numbers, size, Purpose.TOKENS, begin).unbind(1):
                visited.append(state)
                state = _moves(sums.index_select(0, lines + state), word[:, None])[:, 0]
            shown = chains.symbols.gather(1, torch.stack(visited, dim=1))
            out[:, begin : begin + size] = shown.to(self.dtype)


def start_states(weights: Tensor, numbers: Tensor, key: int) -> Tensor:
    """A state from the stationary distribution of each chain, (n,), exactly (Propp & Wilson 1996).

    At every time before the start, each state has a word that says which state follows. Once all states at some time
    lead to the same state at the start, every earlier beginning leads there too: that state is the draw. Weights are
    (n, K, K) in units of 2⁻³²; rows of zeros, after the others, are unused places.
    """
    most = weights.shape[1]
    starts = torch.empty_like(numbers)
    left = torch.arange(len(numbers), device=numbers.device)  # rows not yet decided
    sums = _sums(weights)
    reached = torch.arange(most, device=numbers.device).repeat(len(numbers), 1)  # from `back` steps before the start
    back, steps = 0, FIRST_STEPS
    while len(left):
        if back >= HORIZON:
            raise DataError(
                f"row {int(numbers[left[0]])}: its chain still depends on its state {back:,} steps ago; "
                "its transitions are too close to certain to draw a first state"
            )
        drawn = words(key, numbers[left], steps * most, Purpose.CHAIN_START, back * most)
        maps = _moves(sums, drawn.unflatten(1, (steps, most)).transpose(1, 2))  # (left, state, time back)
        while maps.shape[2] > 1:  # the earlier of two neighbouring steps, then the later
            maps = maps[:, :, 0::2].gather(1, maps[:, :, 1::2])
        reached = reached.gather(1, maps[:, :, 0])
        back += steps
        one = (reached == reached[:, :1]).all(1)  # unused places lead to the first state, and agree one step later
        starts[left[one]] = reached[one, 0]
        left, sums, reached = left[~one], sums[~one], reached[~one]
        while steps < back and 2 * steps * most * len(left) <= CHUNK_WORDS:
            steps *= 2
    return starts


def oracle_log_probs(tokens: Tensor, chains: Chains) -> Tensor:
    """Log-probability of every token of (n, L) given the row's chain and the tokens before it, float64."""
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
    """The stationary distribution of each chain, (n, K) float64; 0 for unused places.

    It is uniform if columns sum to 2³² as rows do, also for a disconnected chain, which has other ones too.
    """
    states = weights.sum(2) > 0
    distribution = states.double() / states.sum(1, keepdim=True)
    uneven = (weights.sum(1) != weights.sum(2)).any(1)
    moves = weights[uneven].double() / UNIT
    system = moves.transpose(1, 2) - torch.eye(moves.shape[1], dtype=moves.dtype, device=moves.device)
    system[:, 0] = 1  # one equation follows from the others; it is replaced by: the sum is 1
    right_side = torch.zeros_like(moves[:, 0])
    right_side[:, 0] = 1
    distribution[uneven] = torch.linalg.solve(system, right_side).clamp(min=0)
    return distribution


def _ranked(settings: MarkovSettings) -> Tensor:
    """Row k has the weights of the ranks for k states, then zeros, (K + 1, K)."""
    table = np.zeros((settings.most + 1, settings.most), np.int64)
    for states in range(settings.fewest, settings.most + 1):
        shares = [rank**-settings.exponent for rank in range(1, states + 1)]
        table[states, :states] = quantise("zipf", np.array(shares) / math.fsum(shares))[0]
    return torch.from_numpy(table)


def _different(drawn: Tensor, symbols: int) -> Tensor:
    """Distinct symbols for the places of each row, (n, K): word s chooses among those not used before place s."""
    chosen = torch.empty_like(drawn)
    for place in range(drawn.shape[1]):
        rank = below(drawn[:, place : place + 1], symbols - place)
        used = chosen[:, :place].sort(1).values
        smaller = used - torch.arange(place, device=drawn.device) <= rank  # used symbols to skip
        chosen[:, place] = rank[:, 0] + smaller.sum(1)
    return chosen


def _spacings(drawn: Tensor, states: Tensor, concentration: int) -> Tensor:
    """Dirichlet weights that sum to 2³², (…, K) from words (…, cK); `states` broadcasts to the words."""
    unused = torch.arange(drawn.shape[-1], device=drawn.device) >= concentration * states - 1
    ends = drawn.masked_fill(unused, UNIT).sort(-1).values[..., concentration - 1 :: concentration]
    return ends.diff(dim=-1, prepend=torch.zeros_like(ends[..., :1]))


def _shuffles(drawn: Tensor, states: Tensor, cyclic: Tensor | int = 0) -> Tensor:
    """Fisher and Yates' shuffle of the first places, as many as states, from words (…, K); other places stay.

    Where `cyclic` is 1, Sattolo's shuffle: one cycle through all places, all such cycles equally likely.
    """
    size = drawn.shape[-1]
    order = torch.arange(size, device=drawn.device).expand(drawn.shape).clone()
    for place in range(1, size):
        other = below(drawn[..., place : place + 1], place + 1 - cyclic).where(states > place, place)
        order[..., place : place + 1] = order.gather(-1, other)
        order.scatter_(-1, other, place)
    return order


def _sums(weights: Tensor) -> Tensor:
    """Running sums of (…, K) weights; all 2³² if all weights are zero, so that every word leads to the first state."""
    sums = weights.cumsum(-1)
    return sums.masked_fill(sums[..., -1:] == 0, UNIT)


def _moves(sums: Tensor, drawn: Tensor) -> Tensor:
    """The state that each word (…, W) leads to: how many of the running sums (…, K) are at most the word."""
    return torch.searchsorted(sums, drawn.contiguous(), right=True)
