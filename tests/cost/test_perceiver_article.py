"""The accounting of the Perceiver AR article: every published number, from our own parameter counts."""

import math

import pytest

from shoestring.core.sections import Model
from shoestring.cost.conventions import ArticleCost, Count, accounting, article_cost

# channels, layers, vocabulary, positions, steps, N, N_cross, C_self, C_cross
TABLE = {
    "1.1": (512, 9, 32000, 2048, 50000, 45796096, 786432, 282335232, 7096320),
    "1.2": (624, 11, 32000, 2048, 31421, 72704912, 958464, 449287488, 9906624),
    "1.3": (728, 13, 32000, 2048, 21231, 107536488, 1118208, 664923168, 12920544),
    "2a.1": (512, 9, 262, 4096, 26144, 30563078, 1835008, 184836096, 16558080),
    "2a.2": (584, 10, 262, 4096, 18275, 43497166, 2093056, 264425856, 20652576),
    "2a.3": (584, 9, 262, 4096, 20298, 39402158, 2093056, 238075776, 20652576),
    "2a.4": (432, 7, 262, 4096, 46451, 17572726, 1548288, 104032512, 12519360),
    "2a.5": (768, 13, 262, 4096, 8276, 95401990, 2752512, 583962624, 33094656),
    "2b.1": (512, 9, 262, 2048, 26144, 29514502, 786432, 184836096, 7096320),
    "2b.2": (584, 10, 262, 2048, 18275, 42301134, 897024, 264425856, 8851104),
}
ROWS = 80
"""Of a batch, in all runs."""
C_REF = {"1": 578222555136000000, "2a": 197933256451031040, "2b": 197933256451031040}


def network(channels: int, layers: int) -> Model:
    return Model(family="perceiver_ar", width=channels, layers=layers, heads=8, latents=512)


def cost_of(name: str, count: Count = "first") -> ArticleCost:
    channels, layers, vocabulary, positions, *_ = TABLE[name]
    return article_cost(network(channels, layers), vocabulary, positions, count)


@pytest.mark.parametrize("name", TABLE)
def test_every_row_of_the_table(name: str) -> None:
    *_, size, of_prefix, of_self, of_cross = TABLE[name]
    found = cost_of(name)
    assert (found.parameters, found.cross_parameters) == (size, of_prefix)
    assert (found.self_flops, found.cross_flops) == (of_self, of_cross)


def tokens_for(flops: float, cost: ArticleCost) -> float:
    """D_iso: the latents that take so much compute of the self-attention part."""
    return flops / cost.self_flops


def steps_of(tokens: float) -> int:
    """Batches of 512 latents a row that hold so many, the last one whole."""
    return math.ceil(tokens / 512 / ROWS)


@pytest.mark.parametrize("experiment", C_REF)
def test_runs_of_an_experiment_take_the_compute_of_its_first_one(experiment: str) -> None:
    first, *others = [name for name in TABLE if name.startswith(f"{experiment}.")]
    assert cost_of(first).self_flops * ROWS * cost_of(first).latents * TABLE[first][4] == C_REF[experiment]
    for name in others:
        assert steps_of(tokens_for(C_REF[experiment], cost_of(name))) == TABLE[name][4]


def test_the_corrected_count_gives_the_steps_of_the_run_that_was_made_again() -> None:
    """592 channels, 10 layers: 34,336 steps, in the update of the article."""
    again = article_cost(network(592, 10), 32000, 2048, "corrected")
    flops = cost_of("1.1", "corrected").self_flops * ROWS * 512 * 50000
    assert steps_of(tokens_for(flops, again)) == 34336


@pytest.mark.parametrize("name", TABLE)
def test_the_correction_is_that_of_chinchillas_tables(name: str) -> None:
    """Without a prefix the same number as the convention, which is counted from other parts."""
    channels, layers, vocabulary, positions, *_ = TABLE[name]
    alone = accounting(network(channels, layers), vocabulary, 512)
    assert cost_of(name, "corrected").self_flops == alone.per_prediction("Chinchilla's tables")
    whole = accounting(network(channels, layers), vocabulary, positions)
    prefix = whole.per_prediction("Chinchilla's tables") - alone.per_prediction("Chinchilla's tables")
    assert cost_of(name, "corrected").cross_flops == pytest.approx(prefix, abs=3)
