"""Models of llama2.c: the real story model writes what its own program writes, and damaged files are told."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from shoestring.core.errors import StorageError
from shoestring.models.generate import Drawing, generate
from shoestring.models.llama2c import BEGIN, read_model, read_tokenizer_file
from shoestring.models.transformers_format import save_transformers

STORY = Path(__file__).resolve().parents[3] / "shared/data/models/stories260K"
needs_story = pytest.mark.skipif(not STORY.is_dir(), reason="needs shared/data/models/stories260K")
GREEDY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to the park.\" "
    "Lily was sad and didn't know what to do. She said, \"I want to play with your ball, but I can't find it.\"\nLily "
    "was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\nLily didn't want to "
    "help her mom, so she"
)
"""200 tokens at temperature 0, as llama2.c's own tests have them."""


@needs_story
def test_the_story_model_writes_its_greedy_text(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    found = read_model(STORY / "stories260K.bin")
    assert sum(p.numel() for p in found.model.parameters()) == 260_032
    rows = generate(found.model, torch.tensor([[BEGIN]]), 200, length=512, drawing=Drawing(temperature=0.0))
    files = read_tokenizer_file(STORY / "tok512.bin", found.vocabulary)
    save_transformers(found.model, found.spec, found.vocabulary, found.length, tmp_path / "story", files=files)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "story")
    assert tokenizer.decode(rows[0].tolist(), skip_special_tokens=True) == GREEDY
    ids = tokenizer.encode(GREEDY, add_special_tokens=False)
    assert ids == rows[0, 1:].tolist()  # the model was taught texts that were cut so
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "story")
    with torch.no_grad():
        assert torch.allclose(theirs(rows).logits, found.model.logits(rows), atol=1e-4)


@needs_story
def test_text_that_no_piece_spells_is_bytes(tmp_path: Path) -> None:
    import tokenizers

    made = tokenizers.Tokenizer.from_str(read_tokenizer_file(STORY / "tok512.bin", 512)["tokenizer.json"])
    assert made.decode(made.encode("日本 été").ids) == "日本 été"
    assert "<0xE6>" in made.encode("日").tokens


def turned(x: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """Rotary positions on adjacent channels, as complex numbers: (positions, heads, channels)."""
    t, _, c = x.shape
    angles = torch.arange(t)[:, None] * base ** (-torch.arange(0, c, 2) / c)
    spun = (
        torch.view_as_complex(x.reshape(t, -1, c // 2, 2).contiguous())
        * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    return torch.view_as_real(spun).flatten(2)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_is_what_the_format_says(tied: bool, tmp_path: Path) -> None:
    """Against a plain pass over the arrays as llama2.c lays them out."""
    d, f, heads, kv, v, length = 8, 12, 2, 1, 11, 6
    shapes = [(v, d), (1, d), (1, d, d), (1, 4, d), (1, 4, d), (1, d, d), (1, d), (1, f, d), (1, d, f), (1, f, d), (d,)]
    draw = np.random.default_rng(0)
    arrays = [draw.normal(size=shape).astype("<f4") for shape in [*shapes, (2, length, 2), *([] if tied else [(v, d)])]]
    path = tmp_path / "model.bin"
    header = struct.pack("<7i", d, f, 1, heads, kv, v if tied else -v, length)
    path.write_bytes(header + b"".join(array.tobytes() for array in arrays))
    emb, norm1, q, k, value, out, norm2, gate, down, up, norm, _, *head = [torch.from_numpy(a) for a in arrays]

    def rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain

    ids = torch.tensor([3, 1, 4, 1, 5])
    x = emb[ids]
    h = rms(x, norm1[0])
    queries, keys, values = (
        turned((h @ q[0].T).view(5, 2, 4)),
        turned((h @ k[0].T).view(5, 1, 4)),
        (h @ value[0].T).view(5, 1, 4),
    )
    scores = torch.einsum("qhc,kgc->hqk", queries, keys) / 2 + torch.full((5, 5), float("-inf")).triu(1)
    x = x + torch.einsum("hqk,kgc->qhc", scores.softmax(-1), values).reshape(5, d) @ out[0].T
    h = rms(x, norm2[0])
    x = x + (torch.nn.functional.silu(h @ gate[0].T) * (h @ up[0].T)) @ down[0].T
    wanted = rms(x, norm) @ (head[0] if head else emb).T
    with torch.no_grad():
        assert torch.allclose(read_model(path).model.logits(ids[None])[0], wanted, atol=1e-5)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(StorageError, match="its header says"):
        read_model(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    for content in (b"", b"abc", b"\xff" * 64, b"\0" * 28):
        path.write_bytes(content)
        with pytest.raises(StorageError, match=r"x\.bin"):
            read_model(path)
        with pytest.raises(StorageError, match=r"x\.bin"):
            read_tokenizer_file(path, 300)
