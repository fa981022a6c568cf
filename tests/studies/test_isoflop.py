"""Runs of equal compute, against the published table of the Perceiver AR experiments, and properties of any design."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core import recipe_file
from shoestring.core.errors import PlanError, RecipeError, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.sections import Data
from shoestring.core.units import Count
from shoestring.cost.transformer import parameters
from shoestring.data.tokenize.tokenizers import open_tokenizer
from shoestring.planning.corpus import full_passes
from shoestring.planning.stops import evaluation_count
from shoestring.runs.prepare import vocabulary_of
from shoestring.studies.accounting import CONVENTIONS, count_all, flops_per_prediction
from shoestring.studies.isoflop import design, fit_size, own_flops, parse_amount, parse_sizes, write_recipes
from shoestring.training.checkpoint import State
from shoestring.training.hooks import Evenly
from shoestring.training.schedule import Schedule

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes/perceiver_scaling"
XLNET = ROOT.parent / "shared/data/tokenizers/xlnet-base-cased"

ARTICLE = """
1_1  512  9 32000 2048 50000  45796096 282335232
1_2  624 11 32000 2048 31421  72704912 449287488
1_3  728 13 32000 2048 21231 107536488 664923168
2a_1 512  9   262 4096 26144  30563078 184836096
2a_2 584 10   262 4096 18275  43497166 264425856
2a_3 584  9   262 4096 20298  39402158 238075776
2a_4 432  7   262 4096 46451  17572726 104032512
2a_5 768 13   262 4096  8276  95401990 583962624
2b_1 512  9   262 2048 26144  29514502 184836096
2b_2 584 10   262 2048 18275  42301134 264425856
"""
"""Run, channels, layers, vocabulary, max_seq_len, num_steps, parameters, training FLOPs per latent, as published."""
TABLE = {line.split()[0]: [int(value) for value in line.split()[1:]] for line in ARTICLE.strip().splitlines()}
CHECKPOINTED = {"1_1", "1_2", "1_3", "2a_5"}


def shipped(name: str, *overrides: str) -> Recipe:
    return recipe_file.load(RECIPES / f"{name}.toml", overrides)


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_of_the_article_is_what_was_published(name: str) -> None:
    width, layers, vocabulary, length, steps, params, flops = TABLE[name]
    recipe = shipped(name)
    model, train = recipe.model, recipe.train
    assert (model.width, model.layers, recipe.data.length, recipe.budget.steps) == (width, layers, length, steps)
    assert sum(parameters(model, vocabulary, length).values()) == params
    assert flops_per_prediction(recipe, vocabulary, "article") == flops
    assert (model.latents, model.heads, model.prefix_dropout, train.batch) == (512, 8, 0.5, 80)
    assert (train.lr, train.final_lr, train.clip, train.weight_decay) == (2e-4, 0.1, 0.5, 0.0)
    assert train.warmup * steps == pytest.approx(200, abs=0.01)
    assert train.recompute == ("full" if name in CHECKPOINTED else "none")
    # as train.hooks.Evaluate rounds: every 1,000 steps, and not one later
    evaluated = [math.ceil(steps * recipe.evaluate.every * k) for k in range(1, steps // 1000 + 1)]
    assert evaluated == [1000 * k for k in range(1, steps // 1000 + 1)]


def test_bytes_are_the_vocabulary_of_experiment_2() -> None:
    perceiver = pytest.importorskip("transformers.models.perceiver.tokenization_perceiver")
    original, ours = perceiver.PerceiverTokenizer(), open_tokenizer(shipped("2b_1").data.tokenizer)
    for text in ("Once upon a time.", "ünï — 你好 \n\t\x00\x7f🙂  two  spaces", "".join(map(chr, range(1, 0x800)))):
        assert ours.encode(text).tolist() == original(text, add_special_tokens=False).input_ids
    assert vocabulary_of(shipped("2b_1")) == ours.vocab_size == len(original) == 262


@pytest.mark.parametrize("family", ["llama", "masked_lm"])
@pytest.mark.parametrize("source", ["bytes", "words:640", "markov", "store"])
def test_a_vocabulary_is_that_of_the_rows(tmp_path: Path, family: str, source: str) -> None:
    from shoestring.data.store.prepare import prepare
    from shoestring.datasets.corpus import vocabulary

    recipe = Recipe(data=Data(tokenizer="words:9" if source in ("markov", "store") else source, documents=Count(40)))
    if source == "markov":
        recipe = replace(recipe, data=Data(stream="markov:7"))
    elif source == "store":
        store = prepare(replace(recipe.data, folder=str(tmp_path)), 0, 40)
        assert store is not None
        recipe = replace(recipe, data=Data(source=f"store:{store.paths.folder}"))
    recipe = replace(recipe, model=replace(recipe.model, family=family))
    assert vocabulary_of(recipe) == vocabulary(recipe)
    assert vocabulary_of(recipe, 5) == 5


def test_the_vocabulary_of_experiment_1_is_32_000() -> None:
    if not XLNET.is_dir():
        pytest.skip("the tokenizer xlnet-base-cased is not beside the project")
    assert vocabulary_of(shipped("1_1", f"data.tokenizer=file:{XLNET}")) == 32000


@pytest.mark.parametrize("experiment", ["1", "2a", "2b"])
def test_the_steps_of_the_article_come_out(experiment: str) -> None:
    names = [name for name in TABLE if name.startswith(experiment + "_")]
    vocabulary = TABLE[names[0]][2]
    reference = shipped(names[0])
    flops = own_flops(reference, vocabulary, "article")
    assert flops == (578222555136000000 if experiment == "1" else 197933256451031040)
    sizes = parse_sizes(",".join(f"{TABLE[n][0]}x{TABLE[n][1]}" for n in names), reference, vocabulary)
    made = design(reference, vocabulary, sizes, [flops], "article")
    assert [one.steps for one in made] == [TABLE[name][4] for name in names]
    assert [one.params for one in made] == [TABLE[name][5] for name in names]


def test_a_perceiver_reads_its_corpus_in_length_over_latents_epochs() -> None:
    assert full_passes(shipped("1_1")) == 4
    assert full_passes(shipped("2a_1")) == 8
    assert full_passes(recipe_file.load(ROOT / "recipes/stories_llama.toml")) == 1


def test_the_miniature_is_of_equal_compute() -> None:
    small, large = shipped("mini_1"), shipped("mini_2")
    sizes = parse_sizes("48x3,64x4", small, 262)
    made = design(small, 262, sizes, [own_flops(small, 262, "exact")])
    assert [one.steps for one in made] == [small.budget.steps, large.budget.steps]
    assert [one.recipe.model for one in made] == [small.model, large.model]


@given(
    family=st.sampled_from(["llama", "gpt2", "perceiver_ar"]),
    width=st.integers(1, 12).map(lambda k: 16 * k),
    layers=st.integers(1, 6),
    flops=st.floats(1e13, 1e18),
    convention=st.sampled_from([*CONVENTIONS, "article", "article-corrected"]),
)
@settings(max_examples=40, deadline=None)
def test_designed_runs_spend_what_is_given(family: str, width: int, layers: int, flops: float, convention: str) -> None:
    fields = {"family": family, "width": width, "layers": layers, "heads": 4}
    values = {"budget": {"time": "2h"}, "data": {"length": 64}, "model": fields, "train": {"batch": 8, "lr": 1e-3}}
    if family == "perceiver_ar":
        fields["latents"] = 32
    recipe = recipe_file.build(values, "test")
    if convention.startswith("article") and family != "perceiver_ar":
        with pytest.raises(UserError, match="Perceiver AR"):
            design(recipe, 300, [recipe.model], [flops], convention)
        return
    (made,) = design(recipe, 300, [recipe.model], [flops], convention)
    predictions = 8 * (32 if family == "perceiver_ar" else 64)
    spent = made.steps * predictions * flops_per_prediction(recipe, 300, convention)
    assert flops * (1 - 1e-9) <= spent < flops + predictions * flops_per_prediction(recipe, 300, convention)
    assert made.tokens <= made.steps * predictions * (1 + 1e-9)
    assert made.recipe.budget.time is None and made.recipe.budget.steps == made.steps


@given(
    family=st.sampled_from(["llama", "gpt2", "perceiver_ar"]),
    heads=st.sampled_from([4, 8]),
    channels=st.sampled_from([16, 32, 64]),
    layers=st.integers(2, 12),
    factor=st.floats(0.6, 40),
)
@settings(max_examples=60, deadline=None)
def test_a_size_in_parameters_keeps_head_and_shape(
    family: str, heads: int, channels: int, layers: int, factor: float
) -> None:
    fields = {"family": family, "width": heads * channels, "layers": layers, "heads": heads}
    if family == "perceiver_ar":
        fields["latents"] = 32
    values = {"budget": {"steps": 1}, "data": {"length": 64}, "model": fields, "train": {"batch": 8, "lr": 1e-3}}
    model = recipe_file.build(values, "test").model
    wanted = int(factor * sum(parameters(model, 300, 64).values()))
    made = fit_size(model, 300, 64, wanted)
    assert made.width // made.heads == channels
    assert 0.5 < sum(parameters(made, 300, 64).values()) / wanted < 2
    if factor >= 4:
        assert 0.75 < sum(parameters(made, 300, 64).values()) / wanted < 1.3
        assert 0.5 < (made.width / made.layers) / (model.width / model.layers) < 2


def test_what_cannot_be_is_refused() -> None:
    recipe = shipped("2b_1")
    with pytest.raises(PlanError, match="less than one step of 512x9"):
        design(recipe, 262, [recipe.model], [1e9])
    with pytest.raises(RecipeError, match=r"model.heads = 8: must divide model.width = 500"):
        design(recipe, 262, parse_sizes("500x9", recipe, 262), [1e17])
    with pytest.raises(UserError, match="WIDTHxLAYERS"):
        parse_sizes("512y9", recipe, 262)
    with pytest.raises(UserError, match="at least one"):
        parse_sizes(" , ", recipe, 262)
    with pytest.raises(UserError, match="channels per head"):
        parse_sizes("1k", recipe, 262)
    with pytest.raises(UserError, match="must be one of exact"):
        flops_per_prediction(recipe, 262, "6n")
    no_steps = recipe_file.load(ROOT / "recipes/stories_llama.toml")
    with pytest.raises(UserError, match="--flops: missing"):
        own_flops(no_steps, 643, "exact")


def test_written_recipes_extend_the_base_and_say_what_was_designed(tmp_path: Path) -> None:
    base = tmp_path / "base.toml"
    base.write_text('[budget]\nsteps = 100\n[model]\nwidth = 64\nlayers = 2\n[train]\nbatch = 4\n[run]\nname = "a"\n')
    recipe = recipe_file.load(base, ["train.lr=0.01"])
    sizes = parse_sizes("64x2,96x3", recipe, 257)
    made = design(recipe, 257, sizes, [own_flops(recipe, 257, "exact"), 1e12])
    files = write_recipes(base, made, tmp_path / "out")
    assert len(files) == 4 and len(set(files)) == 4
    (alone,) = design(recipe, 257, sizes[:1], [1e12])
    assert alone.recipe.run.name == "a-64x2-1e+12"  # another budget does not overwrite it
    for file, one in zip(files, made):
        assert recipe_file.load(file) == one.recipe
        assert file.read_text().startswith('extends = "../base.toml"')
    assert made[0].steps == 100
    assert write_recipes(base, made, tmp_path / "out") == files  # again, and nothing differs
    files[0].write_text("[budget]\nsteps = 1\n")
    with pytest.raises(UserError, match="choose another --out"):
        write_recipes(base, made, tmp_path / "out")


def test_a_time_limit_of_the_base_does_not_cut_runs_of_equal_compute(tmp_path: Path) -> None:
    base = tmp_path / "base.toml"
    base.write_text('[budget]\ntime = "2h"\ndisk = "1GB"\n[train]\nbatch = 4\n')
    recipe = recipe_file.load(base)
    made = design(recipe, 257, [recipe.model], [1e13])
    (file,) = write_recipes(base, made, tmp_path)
    again = recipe_file.load(file)
    assert again == made[0].recipe
    assert again.budget.time is None and str(again.budget.disk) == "1GB"


def test_every_convention_is_listed_with_its_share_of_the_exact_count() -> None:
    rows = {row.convention: row for row in count_all(shipped("1_1"), 32000)}
    assert rows["exact"].against_exact == 1.0
    assert rows["article"].params == rows["6N, all parameters"].params == 45796096
    assert (rows["article, cross"].params, rows["article, cross"].per_prediction) == (786432, 7096320)  # as published
    for row in rows.values():
        assert row.per_prediction == pytest.approx(4 * row.per_token)
        assert row.against_exact == pytest.approx(row.per_token / rows["exact"].per_token)
    assert rows["6N, all parameters"].per_prediction == 6 * 45796096
    assert json.dumps([row._asdict() for row in rows.values()])
    assert "article" not in {
        row.convention for row in count_all(recipe_file.load(ROOT / "recipes/stories_llama.toml"), 643)
    }


@pytest.mark.parametrize("experiment", ["1", "2a"])
@pytest.mark.parametrize("unit", ["steps", "tokens"])
def test_warm_up_and_evaluation_of_the_article_are_alike_in_all_runs(experiment: str, unit: str) -> None:
    names = [name for name in TABLE if name.startswith(experiment + "_")]
    vocabulary, reference = TABLE[names[0]][2], shipped(names[0])
    sizes = parse_sizes(",".join(f"{TABLE[n][0]}x{TABLE[n][1]}" for n in names), reference, vocabulary)
    factor = 1 if unit == "steps" else 80 * 512
    warmup, every = (parse_amount(f"{n * factor} {unit}", "--x") for n in (200, 1000))
    flops = [own_flops(reference, vocabulary, "article")]
    for one, name in zip(design(reference, vocabulary, sizes, flops, "article", warmup, every), names):
        assert one.recipe.train.warmup == pytest.approx(shipped(name).train.warmup, rel=1e-4)
        assert one.recipe.train.least_warmup == 0, "as long as asked for, whatever the family needs"
        state = State(recipe="", data="", schedule=Schedule(total=one.steps))
        due = Evenly(one.recipe.evaluate.every, state)
        for step in range(1000, one.steps + 1, 1000):
            assert due(step, state.schedule) and not due(step - 1, state.schedule)
            due.taken(step, state.schedule)
        assert evaluation_count(one.recipe) == math.ceil(one.steps / 1000)
    rounded = replace(reference, evaluate=replace(reference.evaluate, every=1000 / 49000))
    assert evaluation_count(rounded) == 49


def test_amounts_are_shares_steps_or_tokens(tmp_path: Path) -> None:
    assert [parse_amount(text, "--x")[:2] for text in ("0.05", "200 steps", "1step", "8M tokens")] == [
        (0.05, "share"),
        (200, "steps"),
        (1, "steps"),
        (8e6, "tokens"),
    ]
    for text in ("5%", "1.5", "-1 steps", "steps", "lots", "nan"):
        with pytest.raises(UserError, match="--warmup"):
            parse_amount(text, "--warmup")
    recipe = shipped("2b_1")
    flops = own_flops(recipe, 262, "exact") / 100  # 262 steps
    with pytest.raises(RecipeError, match="has only 262 steps"):
        design(recipe, 262, [recipe.model], [flops], "exact", parse_amount("300 steps", "--warmup"))
    with pytest.raises(RecipeError, match="--evaluate-every 0: must be above 0"):
        design(recipe, 262, [recipe.model], [flops], "exact", None, parse_amount("0", "--evaluate-every"))
    (made,) = design(recipe, 262, [recipe.model], [flops], "exact", None, parse_amount("300 steps", "--x"))
    assert made.recipe.evaluate.every == 1.0 and made.recipe.train.warmup == recipe.train.warmup
