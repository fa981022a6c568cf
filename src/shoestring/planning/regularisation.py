"""Weight decay, dropout, epochs and the cool-down for a text that is repeated, and for one that is not: pure functions.

N is parameters without embeddings, D positions of training, U positions of the training text that are not repeated.
"""

from __future__ import annotations

import math

from shoestring.core.sections import OF_VOCABULARY
from shoestring.core.train_section import COOLDOWN
from shoestring.planning.rates import Chosen, short

TIMESCALE, TIMESCALE_D = 1.084, -0.527
"""Steps that the decay averages over, as a share of all, by D / N (Bergsma et al. 2025)."""
USUAL_DECAY, MOST_DECAY = 0.1, 3.0
"""The published best for little data is up to 30 times the usual (Kim et al. 2025)."""
MOST_MORE, MORE_EPOCHS = 6.0, 4.0
"""Factor for a text that is repeated, and the epochs with N = U that double it. Single runs, with no record: with
N / U = 3.3 and 16 epochs a decay of 0.1, 1 and 4 gave 2.02, 1.92 and 1.67 nats; with N / U = 0.9 and 17 epochs of Muon
0.61 gave 0.563, and 1.1 and a rate that was 10 % higher 0.547; with N / U = 1.5, 23 epochs and dropout 1.2 and 2.4 gave
0.543 and 0.572. `bench/little_data.py` makes a record of the first."""
DROPOUT, DROPOUT_POWER, MOST_DROPOUT = 0.1, 0.6, 0.4
"""Measured: 0.1 and 0.2 at 3 parameters for each position of the text, 0.3 at 5 and 12, 0.4 at 25 (results/log.md)."""


EPOCHS_FACTOR, LEAST_EPOCHS, MOST_EPOCHS, DROPPED_EPOCHS = 16.0, 4.0, 36.0, 32.0


def useful_epochs(n: float, unique: float, regularised: bool = False) -> Chosen:
    """Epochs after which held-out loss is expected to rise: fewer, the more parameters there are for the text."""
    if regularised and n >= unique:
        return Chosen(
            DROPPED_EPOCHS,
            f"more parameters than text, N = {short(n)} and U = {short(unique)} positions, but with dropout: of "
            f"runs with 24, 36 and 60 epochs one with 36 was best (results/log.md)",
        )
    found = min(MOST_EPOCHS, max(LEAST_EPOCHS, EPOCHS_FACTOR * math.sqrt(unique / n)))
    value = float(f"{found:.2g}")
    return Chosen(
        value,
        f"at most {EPOCHS_FACTOR:g} √(U / N), {LEAST_EPOCHS:g} to {MOST_EPOCHS:g}: N = {short(n)}, U = "
        f"{short(unique)} positions; up to 4 are nearly as good as new text (Muennighoff et al. 2023)",
    )


def best_decay(n: float, d: float, steps: float, lr: float, unique: float | None = None) -> Chosen:
    """The weight decay: by its timescale, and more of it where many parameters read a text often."""
    share = TIMESCALE * (d / n) ** TIMESCALE_D
    law = 1 / (lr * steps * share)
    more = 1.0 if unique is None or d <= unique else min(MOST_MORE, 1 + n / unique * (d / unique - 1) / MORE_EPOCHS)
    usual = min(MOST_DECAY, max(USUAL_DECAY, law) * more)
    rule = (
        f"1 / (lr · steps · {share:.2g}), {USUAL_DECAY:g} to {MOST_DECAY:g}: averages over {TIMESCALE:g} "
        f"(D / N)^{TIMESCALE_D:g} of the run (Bergsma et al. 2025)"
    )
    if unique is not None and more > 1:
        repeated = f"N / U = {n / unique:.2g}, {d / unique:.3g} epochs"
        rule += f"; × {more:.2g} = 1 + N / U · (epochs - 1) / {MORE_EPOCHS:g}, at most {MOST_MORE:g}: {repeated}"
    return Chosen(float(f"{usual:.2g}"), rule)


def best_dropout(n: float, unique: float | None, epochs: float | None) -> Chosen:
    """Dropout only where a text is repeated so often that the network could learn it by heart."""
    if unique is None or epochs is None or epochs <= LEAST_EPOCHS or n < unique:
        return Chosen(0.0, "none: the text is not repeated so often that the network could learn it by heart")
    rule = f"{epochs:.3g} epochs over U = {short(unique)} positions with N = {short(n)}: more parameters than text"
    found = min(MOST_DROPOUT, DROPOUT * (n / unique) ** DROPOUT_POWER)
    return Chosen(float(f"{found:.2g}"), f"{DROPOUT:g} (N / U)^{DROPOUT_POWER:g}, at most {MOST_DROPOUT:g}: {rule}")


RATES = ("model.dropout", *(f"model.{name}" for name in OF_VOCABULARY))
MOST_OF_VOCABULARY, LARGE_TABLE = (0.3, 0.1), 2.0
"""Dropout of the output's input and of words, where a table of all tokens has this many parameters for each position of
the text, and Muon learns it fast. Held-out loss without and with both: with 3.5 to 4.1 parameters 3.55 and 3.44, 3.97
and 3.77, 3.86 and 3.71; with 0.8 and 0.9 3.23 and 3.30, 2.89 and 3.00; with AdamW 3.46 and 3.57 (results/log.md)."""


def best_vocabulary_dropout(
    most: float, rate: float, table: float, unique: float | None, epochs: float | None
) -> Chosen:
    """Dropout of what is read from a `table` of so many parameters, with a row for every token, or is multiplied with
    it: where that could learn by heart a text of so many `epochs` of Muon, which dropout of layers does not prevent."""
    often = 0.0 if epochs is None else epochs
    if unique is None or often <= LEAST_EPOCHS or not rate:
        return Chosen(0.0, "none: only where Muon learns a text by heart that is repeated often")
    rule = f"a table of all tokens has {short(table)} parameters for U = {short(unique)} positions"
    if table < LARGE_TABLE * unique:
        return Chosen(0.0, f"none: {rule}, fewer than {LARGE_TABLE:g} for each")
    return Chosen(min(most, rate), f"{most:g}, at most the dropout of layers: {rule}, {often:.3g} epochs")


LEAST_PAIRS, MOST_PAIRS, PAIRS_PER_ID = 1 << 14, 1 << 17, 16
"""Rows of the table of pairs. In 600 steps of 64 × 3 on stories as bytes, with and without it: 1.018 and 1.051 of text
read once, 1.022 and 1.057 twice, 1.059 and 1.074 four times, 1.690 and 1.394 ten times."""


def best_pairs(vocabulary: int, epochs: float | None) -> Chosen:
    """A table of a token and the one before it, only for text that is hardly read again."""
    if epochs is not None and epochs > LEAST_EPOCHS:
        return Chosen(0, f"none: a text that is read {epochs:.3g} times would be learned by heart (results/log.md)")
    rows = min(MOST_PAIRS, max(LEAST_PAIRS, PAIRS_PER_ID * vocabulary))
    rule = f"{PAIRS_PER_ID} rows for each of {vocabulary:,} ids, {LEAST_PAIRS:,} to {MOST_PAIRS:,}"
    return Chosen(rows, f"{rule}: no text is read more than {LEAST_EPOCHS:g} times (results/log.md)")


POINTER = 64
"""Channels of a pointer's queries and keys."""


def best_pointer(table: float, unique: float | None) -> Chosen:
    """A pointer where a table of all tokens is too large for the text, so that rare tokens are learned best by copying
    them: WikiText-2 by words had a perplexity of 54.8 with it, and 75.6 without, and stories as 2,048 pieces 1.5 % more
    loss with it (results/log.md)."""
    rule = f"a table of all tokens has {short(table)} parameters"
    if unique is None or table < LARGE_TABLE * unique:
        return Chosen(0, f"none: {rule}, fewer than {LARGE_TABLE:g} for each position of the text")
    gain = "WikiText-2 by words: a perplexity of 56.5 in place of 76.0, results/log.md"
    return Chosen(POINTER, f"{rule} for U = {short(unique)} positions: rare tokens are copied, not learned ({gain})")


SHORT_COOLDOWN = 0.2
"""Where a text is repeated: with little dropout 0.1 is ahead of 0.4, with much 0.4 of 0.1."""


WHOLE_COOLDOWN = 0.99
"""Where there is dropout of tokens, which prevents that. Held-out loss with 0.2 and 0.99: 36 kB of stories 3.631 and
3.579, of Shakespeare 3.703 and 3.691, WikiText-2 by words 4.189 and 4.152."""


def best_cooldown(epochs: float | None, drops_tokens: bool = False) -> Chosen:
    """The share of the steps in which the learning rate decays: a long decay learns a repeated text by heart."""
    if epochs is None or epochs <= LEAST_EPOCHS:
        return Chosen(COOLDOWN, f"{COOLDOWN:.0%} of the steps: no text is read more than {LEAST_EPOCHS:g} times")
    if drops_tokens:
        return Chosen(WHOLE_COOLDOWN, "all of the steps after the warm-up: there is dropout of tokens (results/log.md)")
    return Chosen(
        SHORT_COOLDOWN,
        f"{SHORT_COOLDOWN:.0%} of the steps: while the rate is high, a text that is read {epochs:.3g} times is not "
        f"learned by heart (results/log.md)",
    )
