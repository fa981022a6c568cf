"""Adapters of models of transformers: trained, merged, resumed, counted; and those of all families as peft has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import write_profile
from safetensors.torch import load_file, save_file

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import RunError, UserError
from shoestring.core.family import learned_of
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.cost.memory import estimate_memory
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers.adapter import adapter_of
from shoestring.models.layers.expert_adapter import expert_adapters
from shoestring.models.peft_format import CONFIG, WEIGHTS
from shoestring.models.tuning import tune
from shoestring.runs.export import export_adapter, export_run
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.trained_model import load_run
from shoestring.training.hooks import Stopped

transformers = pytest.importorskip("transformers")
peft_s = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
"""What peft calls of transformers by an old name."""

V, LENGTH = 102, 16
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
SHAPE |= {"vocab_size": V, "intermediate_size": 32, "max_position_embeddings": 32}
CONFIGS: dict[str, Any] = {
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=V, n_positions=32, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    ),
    "moe": lambda: transformers.Qwen2MoeConfig(
        **SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=16
    ),
}
RECIPE = """
[budget]
steps = 6

[data]
source = "stories"
tokenizer = "words:100"
length = 16
documents = 300
heldout = 0.1

[model]
{model}

[lora]
rank = 2

[train]
batch = 4
lr = 1e-2

[evaluate]
rows = 8
every = 0.5
prompts = []
"""
IDS = torch.arange(2 * LENGTH).view(2, LENGTH) * 7 % V


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder of transformers with random weights."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param]()).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def recipe_at(folder: Path, model: str, *settings: str) -> Recipe:
    path = folder / "tune.toml"
    path.write_text(RECIPE.format(model=model))
    write_profile(path, *settings)
    return recipe_file.load(path, settings)


def hf_recipe(base: Path, *settings: str) -> Recipe:
    return recipe_at(base.parent, f'family = "hf"\nname = "{base}"', *settings)


def trained(recipe: Recipe, **more: Any) -> RunFolder:
    run(recipe, Reporter(), Clock(0.0), **more)
    return RunFolder.of(recipe)


def theirs(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def logits(network: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network.logits(IDS) if isinstance(network, LanguageModel) else network(IDS).logits
    return found


@pytest.mark.parametrize("base", CONFIGS, indirect=True)
def test_adapters_learn_and_the_base_stays(base: Path) -> None:
    recipe = hf_recipe(base)
    folder, before = trained(recipe), dict(theirs(base).named_parameters())
    apart = load_run(folder, merged=False).model
    adapters = {name: adapter for name, each in apart.network.named_modules() if (adapter := adapter_of(each))}
    assert len(adapters) >= 2 * 4 and all(adapter.b.any() for adapter in adapters.values())
    after = {name: p for name, p in apart.network.named_parameters() if ".lora." not in name}
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    export_run(folder, base.parent / "merged")
    merged, changed = theirs(base.parent / "merged"), logits(apart)
    torch.testing.assert_close(logits(merged), changed, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(load_run(folder).model), changed, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(theirs(base)), changed, atol=1e-3)
    names = {f"{name}.weight" for name in adapters}
    experts = {
        f"{path}.{name}": each
        for path, module in apart.network.named_modules()
        for name, each in expert_adapters(module).items()
    }
    assert len(experts) == (4 if "experts" in str(merged) else 0) and all(each.b.any() for each in experts.values())
    names |= experts.keys()
    for name, p in merged.named_parameters():
        assert torch.equal(p, before[name]) == (name not in names), name


@pytest.mark.parametrize("base", CONFIGS, indirect=True)
def test_what_is_counted_is_what_is_built(base: Path) -> None:
    recipe = hf_recipe(base)
    model = build(recipe.model, V, LENGTH, 0)
    plain = sum(p.numel() for p in model.parameters())
    tune(model, recipe, 1)
    learned = [p for p in model.parameters() if p.requires_grad]
    found = learned_of(recipe, V)
    assert found is not None and found.all == sum(p.numel() for p in model.parameters())
    assert found.learned == sum(p.numel() for p in learned) == found.all - plain
    fixed = estimate_memory(recipe, V, "cpu").moments["update"].fixed
    assert fixed["weights"] == 4 * found.all and fixed["gradients"] == 4 * found.learned


@pytest.mark.parametrize("base", CONFIGS, indirect=True)
def test_a_resumed_run_ends_with_the_same_bits(base: Path) -> None:
    whole = trained(hf_recipe(base, "run.name=whole"))
    halves = hf_recipe(base, "run.name=halves")
    with pytest.raises(Stopped):
        trained(halves, until=0.5)
    assert trained(halves).metrics.read_bytes() == whole.metrics.read_bytes()


@peft_s
@pytest.mark.parametrize("base", CONFIGS, indirect=True)
def test_peft_loads_the_adapters(base: Path) -> None:
    peft = pytest.importorskip("peft", reason="pip install 'shoestring[peft]'")
    folder = trained(hf_recipe(base, "lora.alpha=5"))
    made = export_adapter(folder, base.parent / "adapter")
    loaded = peft.PeftModel.from_pretrained(theirs(base), made.folder).eval()
    expected = logits(load_run(folder).model)
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(loaded.merge_and_unload()(IDS).logits, expected, atol=1e-5, rtol=1e-5)
    assert made.parameters == sum(x.numel() for x in load_file(Path(made.folder) / WEIGHTS).values())


@peft_s
@pytest.mark.parametrize("family", ["llama", "gpt2", "swift"])
def test_peft_loads_adapters_of_our_families(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of ours that are divided there have the same first matrix in each part."""
    peft = pytest.importorskip("peft", reason="pip install 'shoestring[peft]'")
    monkeypatch.chdir(tmp_path)
    shape = f'family = "{family}"\nwidth = 16\nlayers = 2\nheads = 2\n' + ("" if family == "gpt2" else "kv_heads = 1\n")
    start = trained(recipe_at(tmp_path, shape, "run.name=start", "budget.steps=1"))
    export_run(start, tmp_path / "base")
    folder = trained(recipe_at(tmp_path, f'{shape}init = "base"', "run.name=tuned"))
    made = export_adapter(folder, tmp_path / "adapter")
    assert made.base == "base" and made.layers == 2 * (4 if family == "gpt2" else 7)
    loaded = peft.PeftModel.from_pretrained(theirs(tmp_path / "base"), made.folder).eval()
    expected = logits(load_run(folder).model)
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(theirs(tmp_path / "base")), expected, atol=1e-3)
    again = trained(recipe_at(tmp_path, f'{shape}init = "adapter"', "run.name=again", "train.lr=1e-12"))
    torch.testing.assert_close(logits(load_run(again).model), expected, atol=1e-5, rtol=1e-5)


@peft_s
@pytest.mark.parametrize("base", ["qwen2", "gpt2"], indirect=True)
def test_a_run_starts_from_an_adapter_of_peft(base: Path) -> None:
    peft = pytest.importorskip("peft", reason="pip install 'shoestring[peft]'")
    turned = CONFIGS["gpt2"]().model_type == theirs(base).config.model_type
    names = ["c_attn"] if turned else ["q_proj", "v_proj"]
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=names, fan_in_fan_out=turned, init_lora_weights=False)
    made = peft.get_peft_model(theirs(base), config)
    made.save_pretrained(base.parent / "theirs")
    given = json.loads((base.parent / "theirs" / CONFIG).read_text())
    (base.parent / "theirs" / CONFIG).write_text(json.dumps(given | {"base_model_name_or_path": str(base)}))
    folder = trained(hf_recipe(base, "model.init=theirs", "train.lr=1e-12"))
    torch.testing.assert_close(logits(load_run(folder).model), logits(made.eval()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("base", ["qwen2"], indirect=True)
def test_adapters_that_are_not_plain_are_refused(base: Path) -> None:
    export_adapter(trained(hf_recipe(base)), base.parent / "adapter")
    file = base.parent / "adapter" / CONFIG
    given = json.loads(file.read_text())
    for change, line in (
        ({"use_dora": True}, "use_dora = True is not supported; only plain LoRA is read"),
        ({"peft_type": "IA3"}, "only adapters of peft_type LORA are read"),
        ({"r": 0}, "needs r, lora_alpha and base_model_name_or_path"),
    ):
        file.write_text(json.dumps(given | change))
        with pytest.raises(UserError, match=line):
            trained(hf_recipe(base, "model.init=adapter", f"run.name={next(iter(change))}"))
    file.write_text(json.dumps(given))
    weights = load_file(file.parent / WEIGHTS)
    name = next(name for name in weights if "q_proj.lora_A" in name)
    for tensors, line in (
        ({key: x for key, x in weights.items() if key != name}, "is missing, or no matrix of an adapter"),
        ({key.replace("q_proj", "other"): x for key, x in weights.items()}, "the base has no layer"),
        (weights | {name: torch.zeros(2, 5)}, r"there, and \(16, 16\) in the base"),
    ):
        save_file(tensors, file.parent / WEIGHTS)
        with pytest.raises(UserError, match=line):
            trained(hf_recipe(base, "model.init=adapter", "run.name=other"))


@pytest.mark.parametrize("base", ["qwen2"], indirect=True)
def test_what_has_no_adapter_is_not_exported_as_one(base: Path) -> None:
    recipe = hf_recipe(base, "run.name=full")
    text = (base.parent / "tune.toml").read_text().replace("[lora]\nrank = 2\n", "")
    (base.parent / "tune.toml").write_text(text)
    write_profile(base.parent / "tune.toml", "run.name=full")
    full = trained(recipe_file.load(base.parent / "tune.toml", ["run.name=full"]))
    with pytest.raises(RunError, match=r"has no adapters: its recipe has no \[lora\]"):
        export_adapter(full, base.parent / "adapter")
    assert recipe.lora is not None
