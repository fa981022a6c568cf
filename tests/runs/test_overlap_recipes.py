"""recipes/overlap: tune a base on two texts, compare; and the recipe for Qwen2.5 on a tiny folder of its kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes/overlap"
ENGLISH = ["One day Tom saw a big red ball.", "The cat sat by the door.", "She was very happy to see her mom."]
JAPANESE = ["八世紀に日本の首都であった。", "東大寺の仏像について説明する。", "世界遺産に登録されている。"]
SMALL = {"model.width": 16, "model.layers": 1, "model.heads": 2, "data.length": 16, "budget.steps": 6}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    for name, lines in (("en", ENGLISH), ("ja", JAPANESE)):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines * 60) + "\n")
    return {"english": "text:en.txt", "japanese": "text:ja.txt"}


def command(*arguments: str) -> None:
    from shoestring.cli.root import root

    root.main(list(arguments), standalone_mode=False)


def sets(fields: dict[str, object]) -> list[str]:
    return [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]


def test_both_languages(texts: dict[str, str], tmp_path: Path) -> None:
    more = SMALL | {"train.batch": 4, "evaluate.rows": 4, "data.heldout": 0.1}
    base = more | {"run.name": "base", "evaluate.overlap": "", "model.init": ""}
    command("train", str(RECIPES / "english.toml"), *sets(base))
    command("fingerprints", "runs/base", "--length", "16", "--prompts", "3")
    for name, source in texts.items():
        command("train", str(RECIPES / f"{name}.toml"), *sets(more | {"data.source": source}))
    command("drift", "runs/overlap-english", "runs/overlap-japanese")
    found = json.loads((tmp_path / "drift/summary.json").read_text())
    assert [each["source"] for each in found["groups"]] == ["text:en.txt", "text:ja.txt"]
    assert (tmp_path / "drift/overlap.csv").read_text().startswith("group,run,seed,step,overlap,")
    assert (tmp_path / "drift/drift.html").is_file()


def test_the_recipe_for_qwen_on_a_tiny_folder(texts: dict[str, str], tmp_path: Path) -> None:
    """A local folder of that architecture with a byte-level tokenizer, in place of the hub's."""
    transformers = pytest.importorskip("transformers")
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"]
    )
    made.train_from_iterator([*ENGLISH, *JAPANESE], trainer)
    config = transformers.Qwen2Config(
        vocab_size=320, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path / "qwen")
    made.save(str(tmp_path / "qwen/tokenizer.json"))
    command("fingerprints", "qwen", "--length", "16", "--prompts", "3")
    prints = json.loads((tmp_path / "fingerprints.json").read_text())
    assert prints["vocabulary"] == 320 and max(max(prompt) for prompt in prints["prompts"]) < made.get_vocab_size()
    own = {"model.name": "qwen", "data.tokenizer": "hf:qwen", "data.streaming": "false", "data.length": 16}
    own |= {"budget.steps": 2, "train.batch": 4, "evaluate.rows": 4, "evaluate.every": 0.5, "data.heldout": 0.1}
    for name, source in texts.items():
        command("train", str(RECIPES / f"qwen_{name}.toml"), *sets(own | {"data.source": source}))
    command("drift", "runs/qwen-english", "runs/qwen-japanese")
    rates = [
        each["rate_per_100_steps"]["mean"] for each in json.loads(Path("drift/summary.json").read_text())["groups"]
    ]
    assert len(rates) == 2
