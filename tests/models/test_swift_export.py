"""Swifts in transformers: by its own classes where these are the same network, else by a modelling file beside them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.core.sections import Model
from shoestring.core.tuning import Lora
from shoestring.models.language_model import LanguageModel, build, differences
from shoestring.models.peft_format import save_adapter
from shoestring.models.transformers_format import format_of, read_transformers, refused_formats, save_transformers
from shoestring.models.tuning import add_lora

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 37, 12
ALL = "qk_norm, gains, relu2, zero_outputs, embedding_norm, soft_cap:8, value_embeddings, scales, convolutions"
MODELS = {
    "all parts": Model(
        family="swift", width=36, layers=3, heads=6, kv_heads=2, parts=ALL, pairs=50, pointer=7, tied=False, window=4
    ),
    "no parts": Model(family="swift", width=16, layers=2, heads=2, parts="none", rotary_scaling="llama3:4:1:3:16"),
    "values": Model(family="swift", width=48, layers=2, heads=4, parts="value_embeddings, soft_cap", norm_eps=1e-3),
    "window": Model(family="swift", width=16, layers=3, heads=2, parts="qk_norm, gains", window=3, full_every=2),
    "pairs": Model(family="swift", width=16, layers=2, heads=2, parts="qk_norm, gains", pairs=20),
    "convolutions": Model(family="swift", width=16, layers=2, heads=2, parts="qk_norm, gains, convolutions:1"),
    "pointer": Model(family="swift", width=16, layers=2, heads=2, pointer=8),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def ours_of(model: Model) -> LanguageModel:
    network, noise = build(model, VOCABULARY, LENGTH, 0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.2)
    return network.eval()


def some_ids(tokens: int = LENGTH) -> Tensor:
    return torch.randint(VOCABULARY, (3, tokens), generator=torch.Generator().manual_seed(3))


@every_model
def test_a_folder_with_its_own_file_has_our_logits_loss_and_texts(model: Model, tmp_path: Path) -> None:
    ours, folder = ours_of(model), tmp_path / "model"
    assert save_transformers(ours, model, VOCABULARY, LENGTH, folder, end=5) == "SwiftForCausalLM"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in ours.parameters())
    ids = some_ids()
    with torch.no_grad():
        mine, found = ours.logits(ids), theirs(ids, labels=ids)
        assert mine.abs().max() > 0.3
        torch.testing.assert_close(found.logits, mine, rtol=1e-4, atol=1e-4)
        assert found.loss.item() == pytest.approx(ours.token_losses(ids).mean().item(), rel=1e-4)
        expected = ids[:, :3]
        for _ in range(LENGTH - 3):
            expected = torch.cat((expected, ours.last_logits(expected).argmax(-1, keepdim=True)), dim=1)
        for cached in (True, False):
            told = {"max_new_tokens": LENGTH - 3, "do_sample": False, "use_cache": cached, "eos_token_id": None}
            assert torch.equal(theirs.generate(ids[:, :3], **told), expected)

    theirs(ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in theirs.parameters())

    spec, state = read_transformers(str(folder))
    assert differences(model, spec) == [] and spec.tied == model.tied
    again = build(model, VOCABULARY, LENGTH, 7).eval()
    assert again.take_over(state, "here") == []
    assert torch.equal(again.logits(ids), ours.logits(ids))


def test_padding_on_the_left_changes_nothing(tmp_path: Path) -> None:
    model, folder = MODELS["all parts"], tmp_path / "model"
    save_transformers(ours_of(model), model, VOCABULARY, LENGTH, folder)
    theirs, ids = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True), some_ids(5)
    padded, mask = torch.cat((ids[:, :2] * 0, ids), 1), torch.tensor([[0, 0, 1, 1, 1, 1, 1]] * 3)
    positions = torch.tensor([[0, 0, 0, 1, 2, 3, 4]] * 3)
    with torch.no_grad():
        found = theirs(padded, attention_mask=mask, position_ids=positions).logits[:, 2:]
        torch.testing.assert_close(found, theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_folder_is_loaded_where_there_is_no_shoestring(tmp_path: Path) -> None:
    model, folder = MODELS["all parts"], tmp_path / "model"
    ours = ours_of(model)
    save_transformers(ours, model, VOCABULARY, LENGTH, folder)
    script = f"""
import sys
sys.modules["shoestring"] = None  # importing it is an error
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True)
print(model(torch.tensor([[1, 2, 3, 4, 5, 6]])).logits.double().sum().item())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    expected = ours.logits(torch.tensor([[1, 2, 3, 4, 5, 6]])).double().sum().item()
    assert float(done.stdout.split()[-1]) == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(
    ("parts", "kind", "refused"),
    [
        ("gains, qk_norm, zero_outputs", "qwen3", []),
        ("embedding_norm, relu2, qk_norm, soft_cap:30", "nanochat", ["relu2, embedding_norm, soft_cap, no gains"]),
        ("qk_norm, relu2, gains", "shoestring_swift", ["has relu2", "has gains, no embedding_norm"]),
        ("none", "shoestring_swift", ["no qk_norm, no gains", "no qk_norm, no relu2, no embedding_norm"]),
    ],
)
def test_the_best_class_is_taken_and_the_others_say_why_not(parts: str, kind: str, refused: list[str]) -> None:
    model = Model(family="swift", parts=parts)
    assert format_of(model).kind == kind
    lines = refused_formats(model)
    assert len(lines) == len(refused) and all(said in line for said, line in zip(refused, lines))
    assert format_of(Model(family="swift", parts=parts, window=9)).kind == "shoestring_swift"


def test_adapters_go_where_the_rows_are_the_same(tmp_path: Path) -> None:
    nanochat = Model(family="swift", width=16, layers=1, heads=2, parts="qk_norm, relu2, embedding_norm")
    for model, refused in ((nanochat, True), (MODELS["values"], False)):
        network, lora = build(model, VOCABULARY, LENGTH, 0), Lora(rank=2)
        add_lora(network, lora, 0)
        if refused:
            with pytest.raises(UserError, match="export merged"):
                save_adapter(network, model, lora, "base", tmp_path / "a", causal=True)
        else:
            assert save_adapter(network, model, lora, "base", tmp_path / "b", causal=True) == 4 * model.layers


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    model, folder = MODELS["no parts"], tmp_path / "model"
    save_transformers(ours_of(model), model, VOCABULARY, LENGTH, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="hidden_size"):
        read_transformers(str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 16}))
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"cannot read .*model\.safetensors"):
        read_transformers(str(folder))
