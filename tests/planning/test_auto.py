"""The values of fields that are "auto", against numbers worked out by hand from the published laws."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoestring.core.choices import Choices
from shoestring.core.errors import PlanError, RecipeError, RecordError
from shoestring.core.family import family_of
from shoestring.core.recipe import AUTOS, Recipe
from shoestring.core.recipe_file import build, dump
from shoestring.core.sections import Model
from shoestring.planning import auto, rates, regularisation
from shoestring.planning.auto import Facts, choose
from shoestring.planning.regularisation import best_decay, best_dropout, useful_epochs

EVERYTHING: dict[str, dict[str, Any]] = {
    "budget": {"time": "10m", "epochs": "auto"},
    "data": {"source": "text:a.txt", "length": 128},
    "model": {"size": "auto", **dict.fromkeys(("dropout", "output_dropout", "word_dropout"), "auto")},
    "train": {
        "schedule": "cooldown",
        **dict.fromkeys(("batch", "lr", "warmup", "weight_decay", "beta2", "cooldown"), "auto"),
    },
}
FACTS = Facts(vocabulary=257, unique=7e6, device="cpu", speed=5e10)


def values_of(choices: Choices) -> dict[str, float]:
    return {choice.field: choice.value for choice in choices.chosen}


def recipe(**sections: dict[str, Any]) -> Recipe:
    values = {section: fields | sections.get(section, {}) for section, fields in EVERYTHING.items()}
    return build(values, "test")


def test_step_law_is_that_of_the_article() -> None:
    """N = 1e9, D = 1e11: 1.79 · 10^(-6.417) · 10^3.377, and 0.58 · 10^6.281 tokens."""
    assert rates.step_law_lr(1e9, 1e11) == pytest.approx(1.79 * 10**-3.040, rel=1e-3)
    assert rates.law_batch(1e11) == pytest.approx(1.8 * 0.58 * 10**6.281, rel=1e-3)
    found = rates.best_lr(1e9, 1e11, rates.law_batch(1e11), "adamw")
    assert found.value == pytest.approx(1.63e-3, rel=1e-2)
    assert found.reason == "Step Law, 1.79 N^-0.713 D^0.307; N = 1B, D = 100B, B = 1.99M"


def test_repeated_text_is_worth_what_the_article_says() -> None:
    """U = 1e9 read 4 times is worth 1e9 · (1 + 15.4 · (1 - e^(-3/15.4))) = 3.73e9, and ever more often 16.4e9."""
    beyond = 1e30
    four, all_of_it = (auto.constrained_loss(beyond, d, 1e9) for d in (4e9, 1e12))
    parameters = auto.constrained_loss(beyond, beyond, 1e9) - 1488 * 16.4e9**-0.353
    assert four - parameters == pytest.approx(1488 * 3.726e9**-0.353, rel=1e-3)
    assert all_of_it - parameters == pytest.approx(1488 * 16.4e9**-0.353, rel=1e-3)
    assert auto.constrained_loss(1e9, 2e10, None) == pytest.approx(521 * 1e9**-0.353 + 1488 * 2e10**-0.353)


def test_a_batch_that_is_four_times_the_law_has_twice_the_learning_rate() -> None:
    n, d = 1e8, 1e9
    law = rates.law_batch(d)
    found = [rates.best_lr(n, d, factor * law, "adamw").value for factor in (0.01, 0.25, 1, 4, 100)]
    assert [rate / found[2] for rate in found] == pytest.approx([0.5, 0.5, 1, 2, 2], rel=0.01)


@pytest.mark.parametrize("optimizer", rates.WITH_LAW)
def test_the_learning_rate_has_no_jump_between_the_laws(optimizer: str) -> None:
    sizes = [10 ** (3 + i / 50) for i in range(400)]
    found = [rates.best_lr(n, 20 * n, rates.law_batch(20 * n), optimizer).value for n in sizes]
    assert all(0.85 < b / a < 1.15 for a, b in itertools.pairwise(found))


def test_large_networks_have_two_and_a_half_times_the_rate_with_muon() -> None:
    found = rates.best_lr(1e9, 1e11, rates.law_batch(1e11), "muon")
    assert found.value == pytest.approx(2.5 * 1.79 * 10**-3.040, rel=1e-2)
    assert found.reason.startswith("Step Law, 1.79 N^-0.713 D^0.307 × 2.5 for muon; N = 1B")


@pytest.mark.parametrize(
    ("n", "d", "b", "best", "losses"),
    [(85e6, 11e6, 11e3, 0.001, (1.0393, 1.0304, 1.0344)), (25e6, 72e6, 65536, 0.0059, (1.9647, 1.9384, 1.9595))],
)
def test_rates_of_large_networks_with_muon_are_near_the_measured_best(
    n: float, d: float, b: float, best: float, losses: tuple[float, float, float]
) -> None:
    """Losses at half, once and twice the best of the measured rates (results/log.md; the first batch is the law's): at
    the chosen rate the parabola through them is at most 0.3 % above its least."""
    low, middle, high = losses
    curvature, slope = (low + high) / 2 - middle, (high - low) / 2
    x = math.log2(rates.best_lr(n, d, b, "muon").value / best)
    above = curvature * (x + slope / (2 * curvature)) ** 2
    assert above < 0.003 * middle


def test_between_the_laws_the_rate_lies_between_their_ends() -> None:
    """D = 1e8: ours at 6 M is 3.97e-4 · 6e6^-0.267 · 2e6^0.364 · 2048^0.095, Step Law's at 46 M 1.79 · 46e6^-0.713 ·
    1e8^0.307; half of the way their geometric mean."""
    middle = (rates.OWN_MOST * rates.STEP_LEAST) ** 0.5
    found = rates.best_lr(middle, 1e8, rates.law_batch(1e8), "adamw")
    ends = 3.97e-4 * 6e6**-0.267 * 2e6**0.364 * 2048**0.095, 1.79 * 46e6**-0.713 * 1e8**0.307
    assert found.value == pytest.approx((ends[0] * ends[1]) ** 0.5, rel=0.01)
    own = "our law of small networks, 0.000397 N^-0.267 D^0.364 B^0.095 (D to 2M, B to 2,048)"
    assert found.reason.startswith(f"between {own}, and Step Law") and "at 6M and 46M (50% of the way)" in found.reason


@pytest.mark.parametrize(("optimizer", "optima"), [("adamw", 6), ("muon", 4)])
def test_the_laws_of_small_networks_are_near_the_optima_of_the_record(optimizer: str, optima: int) -> None:
    """The chosen rate costs at most 2 % of the loss at the best one, by the parabola of each sweep."""
    record = json.loads((Path(__file__).parents[2] / "results/auto_law-cpu.json").read_text())
    found = [o for o in record["optima"] if o["optimizer"] == optimizer]
    assert len(found) == optima
    for o in found:
        rate = rates.best_lr(o["parameters"], o["tokens"], o["batch"], optimizer).value
        assert o["curvature"] * math.log2(rate / o["best_lr"]) ** 2 < 0.02 * o["best_loss"], o["parameters"]


def test_the_squared_gradient_forgets_by_tokens_not_by_steps() -> None:
    small, large = (auto.best_beta2(b).value for b in (2_000, 16_000))
    assert small**8 == pytest.approx(large, rel=1e-2)
    assert auto.best_beta2(1).value == auto.MOST_BETA2 and auto.best_beta2(1e9).value == auto.LEAST_BETA2


def test_fewer_epochs_for_more_parameters() -> None:
    epochs = [useful_epochs(n, 1e7).value for n in (1e5, 1e6, 1e7, 1e8, 1e9)]
    assert epochs == sorted(epochs, reverse=True)
    assert regularisation.LEAST_EPOCHS == epochs[-1] < epochs[0] == regularisation.MOST_EPOCHS


def test_every_field_is_chosen_and_the_recipe_then_has_only_numbers() -> None:
    written = recipe(model={"family": "swift", "pairs": "auto", "pointer": "auto"})
    assert set(written.autos) == set(AUTOS)
    choices = choose(written, FACTS)
    made = choices.applied(written, "test")
    assert made.autos == () and made.model.size is None and '"auto"' not in dump(made).replace('precision = "auto"', "")
    assert written.autos, "what was written stays"
    assert all(choice.reason for choice in choices.chosen)
    assert {line.quantity for line in choices.lines()} == set(values_of(choices))


@pytest.mark.parametrize(
    ("unique", "vocabulary", "rows"),
    [(None, 257, 16_384), (1e12, 257, 16_384), (1e12, 2048, 32_768), (1e12, 30_000, 131_072), (1e4, 257, 0)],
)
def test_pairs_of_tokens_have_rows_where_a_text_is_hardly_read_again(
    unique: float | None, vocabulary: int, rows: int
) -> None:
    written = recipe(model={"family": "swift", "pairs": "auto"}, budget={"epochs": None, "time": "10m"})
    facts = Facts(vocabulary=vocabulary, unique=unique, device="cpu", speed=3e10)
    assert values_of(choose(written, facts))["model.pairs"] == rows


def test_what_is_given_is_kept() -> None:
    written = recipe(train={"batch": 7, "lr": 0.5}, model={"size": None, "width": 96, "layers": 3, "heads": 4})
    made = choose(written, FACTS).applied(written, "test")
    assert (made.batch, made.train.lr, made.model.width, made.model.layers) == (7, 0.5, 96, 3)


def test_a_choice_is_a_function_of_the_recipe_and_the_facts() -> None:
    assert choose(recipe(), FACTS) == choose(recipe(), FACTS)


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("time", ["10s", "1h"])
def test_a_batch_divides_over_the_devices(devices: int, time: str) -> None:
    written = recipe(budget={"time": time})
    facts = Facts(vocabulary=257, unique=1e12, device="cuda", speed=3e14, devices=devices)
    assert values_of(choose(written, facts))["train.batch"] % devices == 0


def test_a_batch_is_a_small_part_of_the_run_and_of_the_text() -> None:
    def rows(tokens: float, unique: float | None) -> float:
        written = build({"budget": {"tokens": str(int(tokens))}, "data": {"length": 128}}, "test")
        return values_of(choose(written, Facts(vocabulary=257, unique=unique, device="cpu", speed=None)))["train.batch"]

    assert rows(1e6, None) * 128 <= 1.5 * 1e6 / auto.FEWEST_STEPS
    assert rows(1e10, 1e6) * 128 <= 1.5 * 1e6 / auto.FEWEST_PER_EPOCH < rows(1e10, None) * 128
    assert rows(10, None) == 1


def test_more_time_buys_a_larger_model_until_the_text_ends() -> None:
    def size(time: str, unique: float | None) -> int:
        facts = Facts(vocabulary=257, unique=unique, device="cuda", speed=3e14)
        epochs = None if unique is None else "auto"
        return int(values_of(choose(recipe(budget={"time": time, "epochs": epochs}), facts))["model.width"])

    assert size("1m", None) < size("1h", None) < size("1d", None)
    assert size("1h", 7e6) == size("1d", 7e6), "more time buys nothing once the epochs are capped"
    assert size("1d", 7e6) < size("1d", None)


def test_regularisation_is_for_a_text_that_is_read_often_by_more_parameters_than_it_has() -> None:
    assert best_dropout(1e7, 1e6, 10.0).value > 0
    assert best_dropout(1e5, 1e6, 10.0).value == best_dropout(1e7, 1e6, 1.0).value == 0
    assert best_dropout(1e7, None, None).value == 0


def test_a_network_with_norms_after_its_parts_gets_a_smaller_learning_rate() -> None:
    plain, masked = (
        rates.best_lr(1e8, 1e9, 1e5, "adamw", family=family_of(Model(family=name))) for name in ("gpt2", "masked_lm")
    )
    assert masked.value == pytest.approx(0.4 * plain.value, rel=1e-2)
    assert masked.reason == f"{plain.reason}; × 0.4 for masked_lm"


def test_a_config_alone_has_random_weights(tmp_path: Path) -> None:
    """A model of transformers is trained already, unless its folder has no weights."""
    family, named = family_of(Model(family="hf")), partial(Model, family="hf")
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert family.begins_trained(named(name="bert-base-uncased"))
    assert not family.begins_trained(named(name=str(tmp_path)))
    assert not family.begins_trained(named(name=str(config)))
    assert family.begins_trained(named(name=str(tmp_path), init="runs/other"))
    (tmp_path / "model.safetensors").touch()
    assert family.begins_trained(named(name=str(tmp_path)))


def test_more_decay_for_many_parameters_that_read_a_text_often() -> None:
    n, d = 1e6, 1e7
    usual, few, many, most = (best_decay(n, d, 5000, 3e-3, unique).value for unique in (None, 3e6, 1e6, 1e4))
    assert best_decay(n, d, 5000, 3e-3, 2e7).value == usual, "nothing is repeated"
    assert usual < few < many < most <= regularisation.MOST_DECAY
    assert most == pytest.approx(usual * regularisation.MOST_MORE, rel=0.1)


def test_weights_that_are_trained_already_get_a_tenth() -> None:
    fresh, trained = (rates.best_lr(1e8, 1e9, 1e5, "adamw", trained).value for trained in (False, True))
    assert trained == pytest.approx(fresh / 10, rel=0.01)


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"model": {"family": "hf", "name": "gpt2"}}, 'model.size: model.family = "hf" has none'),
        ({"model": {"width": 64}}, 'model.width and model.size = "auto": give one of the two'),
        ({"budget": {"time": None, "tokens": 100}}, 'model.size = "auto": needs budget.time or budget.flops'),
        ({"budget": {"steps": 100}}, "train: no effective batch, and budget.steps says nothing without one"),
        ({"model": {"dropout": "automatic"}}, 'model.dropout = "automatic": must be a finite number, or "auto"'),
        ({"model": {"size": "large"}}, 'model.size = "large": must be "auto"'),
        ({"train": {"batch": 2.5}}, 'train.batch = 2.5: must be a whole number, or "auto"'),
        ({"train": {"tokens": "1Ki"}}, "train.batch = auto and train.tokens = 1024: give one of the two"),
    ],
)
def test_auto_where_it_makes_no_sense_is_refused(sections: dict[str, dict[str, Any]], line: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(**sections)
    assert any(line in problem for problem in caught.value.problems), caught.value.problems


def test_epochs_of_an_hmm_are_given() -> None:
    with pytest.raises(RecipeError, match=r'budget.epochs = "auto": is for networks'):
        build({"budget": {"epochs": "auto"}, "data": {"tokenizer": "words:9", "documents": 9}, "hmm": {}}, "test")


def test_little_text_has_the_smaller_network_that_was_measured_to_be_better() -> None:
    """As in results/regret-cpu.json and results/regret_repeated-cpu.json: 64 × 2 with new text, 32 × 2 with little."""
    written = recipe(budget={"time": None, "flops": 4e11})
    fresh = replace(written, budget=replace(written.budget, epochs=None))
    facts = Facts(vocabulary=257, unique=65536, device="cpu", speed=None)
    little, new = choose(written, facts), choose(fresh, replace(facts, unique=None))
    assert (values_of(little)["model.width"], values_of(new)["model.width"]) == (32, 64)


def test_choices_for_other_fields_are_refused() -> None:
    choices = choose(recipe(), FACTS)
    with pytest.raises(RecordError, match=r"chooses .*train.lr.*, not"):
        choices.applied(recipe(train={"lr": 0.1}), "choices.json")


def test_epochs_of_a_corpus_without_end_are_refused() -> None:
    with pytest.raises(PlanError, match=r'budget.epochs = "auto": the corpus has no end'):
        choose(recipe(), Facts(vocabulary=257, unique=None, device="cpu", speed=1e10))


def test_a_budget_that_says_nothing_about_tokens_is_refused() -> None:
    written = build({"budget": {"epochs": 2}, "train": {"lr": "auto", "batch": 4}}, "test")
    with pytest.raises(PlanError, match=r"give budget.tokens"):
        choose(written, Facts(vocabulary=257, unique=None, device="cpu", speed=None))


# Little text


def chosen_for(unique: float, time: str = "10m", device: str = "cuda", **sections: dict[str, Any]) -> Choices:
    facts = Facts(vocabulary=2048, unique=unique, device=device, speed=3e14 if device == "cuda" else 5e10)
    return choose(recipe(budget={"time": time}, **sections), facts)


def test_a_text_that_is_read_often_has_a_larger_network_with_dropout() -> None:
    """U = 2e6 in 10 minutes of a GPU: 12 parameters for each position, and not the 6e5 that the law finds useful."""
    found = chosen_for(2e6)
    values = values_of(found)
    n = 12 * values["model.width"] ** 2 * values["model.layers"]
    assert 0.5 * auto.PER_POSITION * 2e6 < n < 1.2 * auto.PER_POSITION * 2e6
    assert 0.3 <= values["model.dropout"] <= regularisation.MOST_DROPOUT
    assert values["budget.epochs"] == regularisation.DROPPED_EPOCHS
    assert values["train.cooldown"] == regularisation.SHORT_COOLDOWN
    (reason,) = (choice.reason for choice in found.chosen if choice.field == "model.width")
    assert "dropout so that it is not learned by heart" in reason


def test_without_dropout_the_size_is_that_of_the_law() -> None:
    values = values_of(chosen_for(2e6, model={"dropout": 0.0}))
    assert 12 * values["model.width"] ** 2 * values["model.layers"] < 2e6
    assert values["budget.epochs"] < regularisation.DROPPED_EPOCHS


@pytest.mark.parametrize("time", ["20s", "1m", "30m", "4h"])
@pytest.mark.parametrize("unique", [1e3, 2e3, 4e3, 8e3])
@pytest.mark.parametrize(("device", "speed"), [("cpu", 3e10), ("cuda", 3e14)])
def test_a_text_of_some_kilobytes_has_a_small_network(device: str, speed: float, unique: float, time: str) -> None:
    """And not the one that is just too slow to read it once, to which the law of repeated text does not apply."""
    facts = Facts(vocabulary=257, unique=unique, device=device, speed=speed)
    assert values_of(choose(recipe(budget={"time": time}), facts))["model.width"] <= 64


@pytest.mark.parametrize("time", ["30s", "1m", "5m"])
def test_steps_of_a_short_run_on_a_cpu_are_not_so_small_that_they_take_their_time_for_nothing(time: str) -> None:
    """A third of a step's time, at least, is for its positions."""
    written = recipe(budget={"time": time}, model={"family": "swift", "parts": "qk_norm"}, train={"optimizer": "muon"})
    facts = Facts(vocabulary=2048, unique=7e6, device="cpu", speed=6e10)
    values = values_of(choose(written, facts))
    fields = {"size": None, "dropout": 0.0} | {f: int(values[f"model.{f}"]) for f in ("width", "layers", "heads")}
    made = replace(written, model=replace(written.model, **fields))
    each, besides = auto._step_seconds(made, facts, auto._cost(made, facts))
    assert values["train.batch"] * 128 * each > besides / 2


def test_a_batch_in_tokens_is_the_same_run_as_in_rows() -> None:
    """Also where a step takes a time besides its positions."""
    found = [
        {choice.field: choice.value for choice in choose(recipe(budget={"time": "1m"}, train=train), FACTS).chosen}
        for train in ({"batch": 2}, {"batch": None, "tokens": 256})
    ]
    assert found[0] == found[1] and "train.batch" not in found[0]


@pytest.mark.parametrize(("time", "why"), [("30s", "at least 250 steps"), ("10m", "about 1,000 steps at least")])
def test_the_reason_of_a_smaller_step_is_the_one_that_decided(time: str, why: str) -> None:
    facts = replace(FACTS, unique=7e8)
    chosen = {choice.field: choice for choice in choose(recipe(budget={"time": time}), facts).chosen}["train.batch"]
    others = {"at least 250 steps", "about 1,000 steps at least"} - {why}
    assert why in chosen.reason and not any(other in chosen.reason for other in others)


@pytest.mark.parametrize(
    ("vocabulary", "unique", "rates", "cooldown"),
    [
        (33_278, 2.1e6, (0.3, 0.1), 0.99), (1_500, 4e4, (0.3, 0.1), 0.99), (512, 4.8e4, (0.0, 0.0), 0.2),
        (33_278, 1e9, (0.0, 0.0), 0.6),
    ],
)  # fmt: skip
def test_words_of_little_text_are_dropped_and_so_is_what_the_output_reads(
    vocabulary: int, unique: float, rates: tuple[float, float], cooldown: float
) -> None:
    """Where a table of all tokens has many parameters for each position of a text that is repeated."""
    facts = Facts(vocabulary=vocabulary, unique=unique, device="cuda", speed=3e14)
    muon = {"optimizer": "muon"}
    values = values_of(choose(recipe(budget={"time": "15m"}, train=muon), facts))
    assert (values["model.output_dropout"], values["model.word_dropout"]) == rates
    assert values["train.cooldown"] == cooldown
    swift = recipe(budget={"time": "15m"}, train=muon, model={"family": "swift", "pointer": "auto"})
    pointer = values_of(choose(swift, facts))["model.pointer"]
    assert pointer == (regularisation.POINTER if rates[0] else 0)
    for others in ({"train": muon, "model": {"dropout": 0.0}}, {}):  # AdamW has not learned it by heart by then
        given = values_of(choose(recipe(budget={"time": "15m"}, **others), facts))
        assert given["model.output_dropout"] == given["model.word_dropout"] == 0


def test_a_text_that_is_read_once_has_neither_dropout_nor_a_short_cooldown() -> None:
    large, endless = values_of(chosen_for(1e11)), values_of(chosen_for(1e11, time="1m"))
    for values in (large, endless):
        assert (values["model.dropout"], values["train.cooldown"]) == (0.0, regularisation.COOLDOWN)


def test_dropout_grows_with_the_parameters_for_each_position() -> None:
    found = [best_dropout(ratio * 1e6, 1e6, 20.0).value for ratio in (0.5, 1, 3, 5, 12, 100)]
    assert found == [0.0, 0.1, 0.19, 0.26, 0.4, regularisation.MOST_DROPOUT]
    assert best_dropout(1e8, 1e6, 2.0).value == 0 and best_dropout(1e8, None, None).value == 0


def test_a_network_never_has_more_parameters_than_its_time_can_pass_over() -> None:
    """Whatever the text, what is chosen reads it as often as the rule says."""
    for unique in (1e5, 1e6, 1e7, 1e8, 1e9):
        for device, time in (("cuda", "1m"), ("cuda", "1h"), ("cpu", "2m"), ("cpu", "1h")):
            facts = Facts(vocabulary=2048, unique=unique, device=device, speed=3e14 if device == "cuda" else 5e10)
            written = recipe(budget={"time": time})
            model, reason = auto.best_size(written, facts)
            if "learned by heart" in reason:
                cost = auto._cost(replace(written, model=replace(model, dropout=0.0)), facts)
                free = replace(written, model=model, budget=replace(written.budget, epochs=None))
                assert auto.positions(free, facts, cost) >= auto.REPEATS * unique
                assert auto.without_embedding(cost) <= auto.PER_POSITION * unique
