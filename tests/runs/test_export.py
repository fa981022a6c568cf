"""Runs as folders of transformers, and runs that start from the weights of others."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, last_json
from profiles import write_profile
from torch import Tensor

from shoestring.api import open_run
from shoestring.core.errors import RunError, StorageError, UserError
from shoestring.core.hmm_sections import Hmm
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.run_sections import Budget, Run
from shoestring.core.sections import Data, Model
from shoestring.core.specs import CheckpointSpec
from shoestring.core.train_section import Train
from shoestring.core.units import Count
from shoestring.data.store.prepare import prepare
from shoestring.data.store.store import write_tokenizer
from shoestring.data.tokenize.tokenizers import open_tokenizer
from shoestring.data.tokenize.vocabulary import vocabulary_size
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers.cross_entropy import IGNORED
from shoestring.models.transformers_format import save_transformers
from shoestring.runs.export import export_run
from shoestring.runs.network_workload import make_learner
from shoestring.runs.trained_model import start_from, trained_weights
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.learner import Learner
from shoestring.training.schedule import Schedule

transformers = pytest.importorskip("transformers")

CPU, BYTES = torch.device("cpu"), vocabulary_size("bytes")
MODELS = {
    "llama": Model(width=16, layers=1, heads=2, kv_heads=1, tied=False),
    "gpt2": Model(family="gpt2", width=16, layers=1, heads=2),
    "bert": Model(family="masked_lm", width=16, layers=1, heads=2),
    "classifier": Model(family="masked_lm", width=16, layers=1, heads=2, classes=3),
    "perceiver": Model(family="perceiver_ar", width=16, layers=2, heads=2, latents=8),
}


def some_ids(tokens: int = 16) -> Tensor:
    return torch.randint(200, (3, tokens), generator=torch.Generator().manual_seed(3))


def some_batch(model: Model) -> Batch:
    if model.family != "masked_lm":
        return Batch(some_ids(17), last=model.latents)
    if model.classes:
        return Batch(some_ids(), wanted=torch.tensor([[0], [2], [1]]))
    return Batch(some_ids(), wanted=some_ids().masked_fill(some_ids() % 3 == 0, IGNORED))


def some_run(parent: Path, model: Model, ema: float | None = None, steps: int = 3, **data: Any) -> RunFolder:
    """A run with a checkpoint after each of its steps; the second is its best."""
    data |= {"label": "class", "source": "csv:no.csv"} if model.classes else {}
    recipe = Recipe(
        run=Run(name="a", folder=str(parent)),
        budget=Budget(steps=Count(9)),
        data=Data(length=16, **data),
        model=model,
        train=Train(batch=3, lr=3e-4, ema=ema),
    )
    run = RunFolder.of(recipe)
    run.claim(recipe)
    Plan(binding="steps", steps=9, per_device=3, effective_batch=3).write(run.plan)
    write_tokenizer(run.tokenizer, open_tokenizer(recipe.data.tokenizer))
    learner, checkpoints = make_learner(recipe, CPU), Checkpoints(run.checkpoints, keep=9)
    for step in range(1, steps + 1):
        learner.update(learner.accumulate(some_batch(model), 3), 1e-2)
        state = State(recipe=recipe.fingerprint, data="", schedule=Schedule(total=9), step=step, best_step=min(step, 2))
        checkpoints.save(learner, state)
    return run


def learner_of(run: RunFolder, step: int) -> Learner:
    """As its own checkpoint restores it."""
    recipe = run.read_recipe()
    learner = make_learner(recipe, CPU)
    Checkpoints(run.checkpoints, keep=9).restore(step, learner, recipe.fingerprint, "")
    return learner


def theirs_of(folder: Path, name: str) -> Tensor:
    """The logits of the class that is named."""
    network = getattr(transformers, name).from_pretrained(folder)
    with torch.no_grad():
        found: Tensor = network(some_ids()).logits
    return found


def test_weights_of_another_recipe_are_not_exported(tmp_path: Path) -> None:
    scaled = dataclasses.replace(MODELS["llama"], rotary_scaling="linear:2")
    run, other = some_run(tmp_path / "a", MODELS["llama"]), some_run(tmp_path / "b", scaled)
    shutil.rmtree(run.checkpoints)
    shutil.copytree(other.checkpoints, run.checkpoints)
    with pytest.raises(RunError, match="belongs to another recipe"):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "classifier"])
@pytest.mark.parametrize("ema", [None, 0.9])
def test_an_exported_run_predicts_what_its_scores_are_of(name: str, ema: float | None, tmp_path: Path) -> None:
    run = some_run(tmp_path, MODELS[name], ema)
    for checkpoint, step in (("last", 3), ("best", 2), ("1", 1)):
        done = export_run(run, tmp_path / checkpoint, CheckpointSpec(checkpoint))
        assert (done.step, done.tokenizer, done.folder) == (step, None, str(tmp_path / checkpoint))
        learner = learner_of(run, step)
        with learner.scoring():
            mine = learner.model.logits(some_ids())
        theirs = theirs_of(tmp_path / checkpoint, done.architecture)
        torch.testing.assert_close(mine[:, 0] if name == "classifier" else mine, theirs, rtol=1e-5, atol=1e-5)
        assert done.parameters == sum(p.numel() for p in learner.model.parameters())
        if ema:
            plain = learner.model.eval().logits(some_ids())
            assert not torch.allclose(plain, mine, rtol=1e-3, atol=1e-3), "the weights themselves are others"


def test_an_exported_run_is_a_model_of_family_hf(tmp_path: Path) -> None:
    run = some_run(tmp_path, MODELS["llama"])
    export_run(run, tmp_path / "exported")
    model = Model(family="hf", name=str(tmp_path / "exported"))
    again = some_run(tmp_path / "again", model)
    done = export_run(again, tmp_path / "twice")
    assert done.architecture == "LlamaForCausalLM"
    learner = learner_of(again, 2)
    with learner.scoring():
        mine = learner.model.logits(some_ids())
    torch.testing.assert_close(mine, theirs_of(tmp_path / "twice", done.architecture), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'no class for model\.family = "perceiver_ar"'):
        export_run(some_run(tmp_path / "p", MODELS["perceiver"]), tmp_path / "out")
    run = some_run(tmp_path / "l", MODELS["llama"])
    with pytest.raises(RunError, match='no checkpoint "7"; it has last, best, 1, 2, 3'):
        export_run(run, tmp_path / "out", CheckpointSpec("7"))
    with pytest.raises(ValueError, match='must be "best", "last", "peak" or a step'):
        CheckpointSpec.parse("newest")
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="already exists"):
        export_run(run, tmp_path / "there")
    with pytest.raises(RunError, match="no intact checkpoint yet"):
        export_run(some_run(tmp_path / "none", MODELS["llama"], steps=0), tmp_path / "out")
    run.tokenizer.unlink()
    with pytest.raises(RunError, match=r"has no tokenizer\.json yet: it has not begun to train"):
        export_run(run, tmp_path / "out")
    hmm = RunFolder(tmp_path / "hmm")
    hmm.claim(Recipe(budget=Budget(epochs=1), data=Data(tokenizer="words:9", documents=Count(9)), hmm=Hmm()))
    with pytest.raises(UserError, match="an HMM"):
        export_run(hmm, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    run = some_run(tmp_path, MODELS["llama"])
    path = Checkpoints(run.checkpoints, keep=9).path(3)
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    assert export_run(run, tmp_path / "out").step == 2


def test_a_subword_tokenizer_comes_along(tmp_path: Path) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    lines = [f"line {i} says that {i * i} is no more than a number" for i in range(300)]
    backend.train_from_iterator(lines, trainer)
    backend.save(str(tmp_path / "tok.json"))
    (tmp_path / "corpus.txt").write_text("\n".join(lines))

    places: dict[str, Any] = {"source": f"text:{tmp_path / 'corpus.txt'}", "tokenizer": f"file:{tmp_path / 'tok.json'}"}
    run = some_run(tmp_path, MODELS["llama"], folder=str(tmp_path / "stores"), **places)
    recipe = run.read_recipe()
    prepare(recipe.data, recipe.run.seed, None)
    done = export_run(run, tmp_path / "out")
    assert done.tokenizer == places["tokenizer"]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(lines[7], add_special_tokens=False)["input_ids"] == backend.encode(lines[7]).ids
    assert theirs.decode(theirs(lines[7])["input_ids"]) == lines[7]
    assert (theirs.eos_token, theirs.eos_token_id) == ("</s>", backend.token_to_id("</s>"))
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").eos_token_id == theirs.eos_token_id


def weights(model: LanguageModel) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_run_starts_from_what_another_delivered(name: str, ema: float | None, tmp_path: Path) -> None:
    run = some_run(tmp_path, MODELS[name], ema)
    for mark, step in (("", 2), ("#best", 2), ("#last", 3), ("#1", 1)):
        model = dataclasses.replace(MODELS[name], init=f"{run.path}{mark}")
        recipe = dataclasses.replace(run.read_recipe(), model=model, train=Train(batch=3, lr=3e-4))
        started = make_learner(recipe, CPU).model
        learner = learner_of(run, step)
        with learner.scoring():
            expected = weights(learner.model)
        assert all(torch.equal(value, expected[key]) for key, value in weights(started).items())
    random = make_learner(recipe, CPU, init=False).model
    assert not torch.equal(weights(random)["embedding.weight"], expected["embedding.weight"])


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "classifier"])
def test_a_run_starts_from_a_folder_of_transformers(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    first = build(model, BYTES, 16, 7)
    save_transformers(first, model, BYTES, 16, tmp_path / "model")
    second = build(model, BYTES, 16, 8)
    assert start_from(second, model, str(tmp_path / "model")) == []
    assert all(torch.equal(one, two) for one, two in zip(first.parameters(), second.parameters()))


def test_a_classifier_starts_from_a_masked_model(tmp_path: Path) -> None:
    """Of a run and of a folder of transformers: its encoder is taken, and its head is new."""
    run = some_run(tmp_path, MODELS["bert"])
    export_run(run, tmp_path / "exported")
    expected, _ = trained_weights(run)
    for place in (run.path, tmp_path / "exported"):
        model = build(MODELS["classifier"], BYTES, 16, 0)
        first = weights(model)
        kept = start_from(model, MODELS["classifier"], str(place))
        assert sorted(kept) == ["classifier.bias", "classifier.weight", "pooler.bias", "pooler.weight"]
        for key, value in weights(model).items():
            assert torch.equal(value, first[key] if key in kept else expected[key]), key


def test_family_hf_starts_from_a_run_or_a_folder(tmp_path: Path) -> None:
    for seed in (0, 1):
        save_transformers(build(MODELS["gpt2"], BYTES, 16, seed), MODELS["gpt2"], BYTES, 16, tmp_path / f"model{seed}")
    spec = Model(family="hf", name=str(tmp_path / "model0"))
    model = build(spec, BYTES, 16, 0)
    other = weights(build(dataclasses.replace(spec, name=str(tmp_path / "model1")), BYTES, 16, 0))
    start_from(model, spec, str(tmp_path / "model1"))
    assert all(torch.equal(value, other[key]) for key, value in weights(model).items())
    run = some_run(tmp_path, spec)
    start_from(model, spec, str(run.path))
    expected, _ = trained_weights(run)
    assert all(torch.equal(value, expected[key]) for key, value in weights(model).items())


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    run = some_run(tmp_path, MODELS["llama"])
    for changes, said in (
        ({"heads": 1, "kv_heads": 1}, "model.heads is 2 there, and 1 in the recipe"),
        ({"rotary_base": 99.0}, "model.rotary_base is 10000.0 there, and 99.0 in the recipe"),
        ({"width": 32, "layers": 2}, "model.layers is 1 there, and 2 in the recipe"),
        ({"family": "gpt2", "kv_heads": None}, 'model.family is "llama" there, and "gpt2" in the recipe'),
    ):
        spec = dataclasses.replace(MODELS["llama"], **changes)
        model = build(spec, BYTES, 16, 0)
        before = weights(model)
        with pytest.raises(UserError, match=said):
            start_from(model, spec, str(run.path))
        assert all(torch.equal(value, before[key]) for key, value in weights(model).items())
    with pytest.raises(UserError, match=r'model.init = ".*" does not fit .*embedding.weight is \(262, 16\) there'):
        start_from(build(MODELS["llama"], 99, 16, 0), MODELS["llama"], str(run.path))
    with pytest.raises(UserError, match=r"no config\.json"):
        start_from(build(MODELS["llama"], 99, 16, 0), MODELS["llama"], str(tmp_path))


def test_a_trained_run_is_exported_by_the_command_line(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    write_profile(tiny)
    trained = shoestring("train", tiny)
    assert trained.returncode == 0, trained.stderr
    result = shoestring("export", "runs/tiny", "exported", "--json")
    assert result.returncode == 0, result.stderr
    told = last_json(result.stdout)
    assert told["architecture"] == "LlamaForCausalLM" and told["step"] == 40 and told["tokenizer"] is None
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert sum(p.numel() for p in network.parameters()) == told["parameters"]


def test_a_damaged_checkpoint_is_named_with_the_one_that_is_used_instead(tmp_path: Path) -> None:
    """Also where its weights begin another run, which would else differ from its recipe without a word."""
    run, said = some_run(tmp_path / "a", MODELS["llama"]), list[str]()
    last = Checkpoints(run.checkpoints, 9).path(3)
    content = last.read_bytes()
    last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    line = f"left out: {last}: damaged, its content does not match its checksum; step 2 is used instead"
    assert export_run(run, tmp_path / "out", say=said.append).step == 2
    assert said == [line]
    started = dataclasses.replace(run.read_recipe(), model=dataclasses.replace(MODELS["llama"], init=str(run.path)))
    make_learner(started, CPU, say=said.append)
    assert said == [line] * 2
    with pytest.warns(UserWarning, match="step 2 is used instead"):
        assert len(open_run(run.path).generate("a", max_tokens=2)) == 1
    with pytest.raises(StorageError, match="damaged"):
        export_run(run, tmp_path / "named", CheckpointSpec("3"), said.append)
    assert not (tmp_path / "named").exists()
