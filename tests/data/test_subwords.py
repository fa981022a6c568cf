"""Subword tokenizers: known ids and counts, the same result from every kind of file, and an end that can be trusted."""

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import DataError, MissingExtra, StorageError
from shoestring.data.tokenize import subwords
from shoestring.data.tokenize.subwords import SubwordTokenizer, load_subwords
from shoestring.data.tokenize.tokenizers import Tokenizer, tokenizer_fingerprint
from shoestring.data.tokenize.vocabulary import in_batches

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"
TOKENIZERS = REAL_DATA / "tokenizers"

checked = settings(max_examples=50, deadline=None)


def byte_level() -> Any:
    """Every byte, and a few merges."""
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o")]
    symbols = [*sorted(library.pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    backend = library.Tokenizer(library.models.BPE({symbol: index for index, symbol in enumerate(symbols)}, merges))
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    return backend


def word_piece() -> Any:
    """A tokenizer as BERT's: [CLS] in front, [SEP] behind, [MASK]."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "a", "b", "."]
    backend = library.Tokenizer(
        library.models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    backend.decoder = library.decoders.WordPiece()
    backend.add_special_tokens(words[:5])
    backend.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return backend


def sentence_piece() -> Any:
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("<mask>", 0.0), ("▁", -2.0), ("▁a", -1.0), ("▁b", -1.0), ("b", -2.0)]
    backend = library.Tokenizer(library.models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = library.pre_tokenizers.Metaspace()
    backend.decoder = library.decoders.Metaspace()
    backend.add_special_tokens(["<unk>", "</s>", "<mask>"])
    return backend


def word_level() -> Any:
    backend = library.Tokenizer(library.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "[SEP]": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = library.pre_tokenizers.Whitespace()
    return backend


def write(backend: Any, folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


def load(backend: Any, folder: Path, end: str | None = None, **config: Any) -> SubwordTokenizer:
    return load_subwords(f"file:{write(backend, folder, **config)}", end)


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> SubwordTokenizer:
    backend = byte_level()
    backend.add_special_tokens(["<|endoftext|>"])
    return load(backend, tmp_path_factory.mktemp("hello"))


def test_it_is_a_tokenizer(hello: SubwordTokenizer) -> None:
    tokenizer: Tokenizer = hello
    assert tokenizer.encode("hello world").dtype == np.uint32
    assert tokenizer.encode("hello world").tolist()[:2] == [259, 261]
    assert (tokenizer.vocab_size, tokenizer.end) == (263, 262)
    assert tokenizer.decode(np.array([259, 262])) == "hello<|endoftext|>"
    assert (hello.mask, hello.specials) == (None, (262,))


@checked
@given(st.lists(st.text(), max_size=8))
def test_any_text_comes_back_and_a_batch_is_its_documents(hello: SubwordTokenizer, documents: list[str]) -> None:
    ids, sizes = hello.encode_batch(documents)
    assert (ids.dtype, sizes.dtype) == (np.uint32, np.int64)
    assert int(sizes.sum()) == len(ids) and len(sizes) == len(documents)
    for text, part in zip(documents, np.split(ids, np.cumsum(sizes)[:-1])):
        assert part.tolist() == hello.encode(text).tolist()
        assert hello.decode(part) == text


def test_a_batch_is_cut_into_pieces_of_bounded_length(hello: SubwordTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = ["hello world " * count for count in range(20)]
    whole = hello.encode_batch(documents)
    monkeypatch.setattr(subwords, "BATCH_CHARACTERS", 300)
    lengths = [sum(map(len, batch)) for batch in in_batches(documents, subwords.BATCH_CHARACTERS)]
    assert len(lengths) > 3 and max(lengths) < 300 + 12 * 20
    for part, expected in zip(hello.encode_batch(documents), whole):
        assert np.array_equal(part, expected)


def test_nothing_is_added_and_nothing_is_cut(tmp_path: Path) -> None:
    backend = word_piece()
    backend.enable_truncation(3)
    backend.enable_padding(length=10)
    tokenizer = load(backend, tmp_path)
    assert tokenizer.encode("a b a b a b").tolist() == [8, 9, 8, 9, 8, 9]
    ids, sizes = tokenizer.encode_batch(["a b a b a", "", "b"])
    assert (ids.tolist(), sizes.tolist()) == ([8, 9, 8, 9, 8, 9], [5, 0, 1])
    assert tokenizer.decode([2, 5, 6, 3]) == "[CLS] playing [SEP]"


def with_added(*tokens: str, special: bool = True) -> Any:
    backend = byte_level()
    (backend.add_special_tokens if special else backend.add_tokens)([*tokens])
    return backend


@pytest.mark.parametrize(
    ("backend", "config", "end"),
    [
        (with_added("</s>", "<|endoftext|>"), {}, "<|endoftext|>"),
        (with_added("<sep>", "</s>", special=False), {}, "</s>"),
        (with_added("<|im_end|>", "<|endoftext|>"), {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        (with_added("<stop>"), {"eos_token": {"content": "<stop>", "special": True}}, "<stop>"),
        (with_added("</s>"), {"eos_token": "<elsewhere>"}, "</s>"),
        (with_added("</s>"), {"eos_token": None, "model_max_length": 3}, "</s>"),
        (word_piece(), {"eos_token": "[PAD]"}, "[SEP]"),
        (sentence_piece(), {}, "</s>"),
    ],
)
def test_the_end_is_found(tmp_path: Path, backend: Any, config: dict[str, Any], end: str) -> None:
    tokenizer = load(backend, tmp_path, **config)
    assert tokenizer.end == backend.token_to_id(end)
    assert load(backend, tmp_path, "b", **config).end == backend.token_to_id("b") != tokenizer.end


def test_the_end_is_found_in_the_older_file_too(tmp_path: Path) -> None:
    backend = with_added("<stop>", "</s>")
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<stop>", "mask_token": {"content": "a"}}')
    tokenizer = load(backend, tmp_path)
    assert (tokenizer.end, tokenizer.mask) == (backend.token_to_id("<stop>"), backend.token_to_id("a"))


def test_an_end_that_cannot_be_told_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot tell which of its tokens ends a document; name one in data\.end"):
        load(byte_level(), tmp_path)
    with pytest.raises(DataError, match=r'data\.end = "<no>": file:.* has no such token'):
        load(byte_level(), tmp_path, "<no>")


def test_masked_models_have_a_mask(tmp_path: Path) -> None:
    assert load(word_piece(), tmp_path).mask == 4
    assert load(word_piece(), tmp_path).specials == (0, 1, 2, 3, 4)
    assert load(sentence_piece(), tmp_path).mask == 2
    assert load(sentence_piece(), tmp_path, mask_token="▁").mask == 3


def test_the_vocabulary_reaches_to_the_largest_id(tmp_path: Path) -> None:
    values = json.loads(word_level().to_str())
    values["model"]["vocab"]["far"] = 99
    tokenizer = load(library.Tokenizer.from_str(json.dumps(values)), tmp_path)
    assert tokenizer.vocab_size == 100
    assert tokenizer.encode("a far").tolist() == [1, 99]
    assert tokenizer.word_starts().shape == (100,)


@pytest.mark.parametrize(
    ("make", "text", "starts"),
    [
        (byte_level, "hello wo\n\tx", [False, True, True, True, False]),
        (word_piece, "playing a plays.", [True, False, True, True, False, True]),
        (sentence_piece, "a bb", [True, True, False]),
        (word_level, "a b z", [True, True, True]),
    ],
)
def test_where_words_begin(tmp_path: Path, make: Callable[[], Any], text: str, starts: list[bool]) -> None:
    backend = make()
    backend.add_special_tokens(["<end>"])
    tokenizer = load(backend, tmp_path, "<end>")
    found = tokenizer.word_starts()
    assert (found.dtype, found.shape) == (np.bool_, (tokenizer.vocab_size,))
    assert found[tokenizer.encode(text)].tolist() == starts
    assert found[[*tokenizer.specials]].all()


def test_words_that_show_their_end_only_cannot_be_masked(tmp_path: Path) -> None:
    model = library.models.BPE({"a": 0, "a</w>": 1}, [], end_of_word_suffix="</w>")
    tokenizer = load(library.Tokenizer(model), tmp_path, "a")
    with pytest.raises(DataError, match="do not show where a word begins"):
        tokenizer.word_starts()


def places(folder: Path) -> Iterator[str]:
    path = write(with_added("</s>"), folder)
    yield f"file:{path}"
    yield f"file:{folder}"
    yield f"hf:{folder}"
    packed = folder / "packed"
    packed.mkdir()
    (packed / "tokenizer.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    yield f"file:{packed / 'tokenizer.json.gz'}"
    (packed / "marked.json").write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    yield f"file:{packed / 'marked.json'}"
    yield f"file:{packed}"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3))
    yield f"file:{path}"


def test_a_tokenizer_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    tokenizers = [load_subwords(spec) for spec in places(tmp_path)]
    assert len({tokenizer_fingerprint(tokenizer) for tokenizer in tokenizers}) == 1
    assert len({tokenizer.spec for tokenizer in tokenizers}) > 3
    others = [
        load(with_added("</s>"), tmp_path, "a"),
        load(with_added("<eos>"), tmp_path),
        load(word_piece(), tmp_path),
    ]
    assert len({tokenizer_fingerprint(tokenizer) for tokenizer in [tokenizers[0], *others]}) == 4


@pytest.mark.parametrize("make", [byte_level, word_piece, sentence_piece, word_level])
def test_a_tokenizer_comes_back_from_what_a_store_keeps(tmp_path: Path, make: Callable[[], Any]) -> None:
    tokenizer = load(make(), tmp_path, "b")
    kept = json.dumps(tokenizer.to_dict(), ensure_ascii=False, indent=1)
    (tmp_path / "tokenizer.json").unlink()
    read = SubwordTokenizer.from_dict(json.loads(kept))
    assert tokenizer_fingerprint(read) == tokenizer_fingerprint(tokenizer)
    for text in ("a b", "playing hello", "日本 é"):
        assert read.encode(text).tolist() == tokenizer.encode(text).tolist()
        assert read.decode(read.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    same = ("vocab_size", "end", "mask", "specials")
    assert [getattr(read, name) for name in same] == [getattr(tokenizer, name) for name in same]


def test_the_two_files_of_gpt2_make_a_tokenizer(tmp_path: Path) -> None:
    backend = with_added("</s>")
    backend.model.save(str(tmp_path))
    tokenizer = load_subwords(f"file:{tmp_path}", "h")
    assert tokenizer.encode("hello world").tolist() == backend.encode("hello world").ids
    assert tokenizer.specials == ()
    (tmp_path / "merges.txt").write_text("#version: 0.2\nx\n")
    with pytest.raises(DataError, match=r"cannot read vocab\.json and merges\.txt"):
        load_subwords(f"file:{tmp_path}", "h")


@pytest.mark.parametrize("spec", ["", "file", "file:", "hf:", "bytes", "words:3", "http://x"])
def test_other_tokenizers_are_refused_by_name(spec: str) -> None:
    with pytest.raises(DataError, match=f'data.tokenizer = "{spec}": must be .*"file:PATH" or "hf:NAME"'):
        load_subwords(spec)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"model": {}}', b"\xff\xfe", gzip.compress(b"{}", mtime=0)]
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.json.gz"])
def test_a_file_that_is_no_tokenizer_is_a_data_error(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="not a tokenizer file"):
        load_subwords(f"file:{tmp_path / name}")


@pytest.mark.parametrize("content", ["", "[]", "3", "{"])
def test_settings_that_are_none_are_a_data_error(tmp_path: Path, content: str) -> None:
    write(word_piece(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer_config\.json: not JSON"):
        load_subwords(f"file:{tmp_path}")


def test_a_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        load_subwords(f"file:{tmp_path / 'tokenizer.json'}")


def test_without_transformers_older_files_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"needs transformers; .*shoestring\[hf\]"):
        load_subwords(f"hf:{tmp_path}")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
def test_two_such_files_of_another_family_are_not_taken_for_gpt2(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level().model.save(str(tmp_path))
    (tmp_path / name).write_text(
        '{"tokenizer_class": "Qwen2Tokenizer"}' if "tok" in name else '{"model_type": "qwen2"}'
    )
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra):
        load_subwords(f"file:{tmp_path}", "h")


def test_a_name_that_cannot_be_fetched_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    with pytest.raises(DataError, match="could not be downloaded"):
        load_subwords("hf:no name can be like this!")

    def fail(*_: object, **__: object) -> str:
        raise hub.errors.LocalEntryNotFoundError("no connection\nand much more")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(DataError) as caught:
        load_subwords("hf:some/name")
    assert str(caught.value) == (
        "hf:some/name: not a folder here, and it could not be downloaded from the hub (no connection); without a "
        "connection, download it elsewhere and name its folder or its tokenizer.json: file:PATH"
    )


def test_a_name_is_read_from_the_folder_that_the_hub_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    write(with_added("<stop>"), tmp_path, eos_token="<stop>")
    monkeypatch.setattr(hub, "snapshot_download", lambda _, **__: str(tmp_path))
    assert load_subwords("hf:some/name").end == with_added("<stop>").token_to_id("<stop>")


def test_older_files_are_read_by_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf")
    with pytest.raises(DataError, match=r"no tokenizer\.json in .*, and transformers cannot make one"):
        load_subwords(f"hf:{tmp_path}")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing"]))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    tokenizer = load_subwords(f"hf:{tmp_path}")
    assert tokenizer.encode("Playing").tolist() == [5, 6]
    assert (tokenizer.vocab_size, tokenizer.end, tokenizer.mask) == (7, 3, 4)


def real(name: str) -> SubwordTokenizer:
    path = TOKENIZERS / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return load_subwords(f"file:{path}")


def paragraphs(language: str) -> list[str]:
    path = REAL_DATA / "wikipedia" / f"{language}_paragraphs.txt.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    return gzip.decompress(path.read_bytes()).decode().rstrip("\n").split("\n")


@pytest.mark.realdata
def test_gpt2() -> None:
    tokenizer = real("gpt2")
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert (tokenizer.vocab_size, tokenizer.end, tokenizer.mask) == (50257, 50256, None)
    assert tokenizer.word_starts()[[15496, 995, 50256]].tolist() == [False, True, True]
    ids, sizes = tokenizer.encode_batch(paragraphs("en"))
    assert (len(ids), len(sizes)) == (573_000, 5134)


@pytest.mark.realdata
def test_qwen() -> None:
    tokenizer = real("qwen2.5")
    assert tokenizer.encode("Hello world").tolist() == [9707, 1879]
    assert tokenizer.vocab_size == 151_643 + 22
    assert tokenizer.decode([tokenizer.end]) == "<|im_end|>"
    ids, _ = tokenizer.encode_batch(paragraphs("en"))
    assert len(ids) == 594_971
    japanese = paragraphs("ja")[::100]
    ids, sizes = tokenizer.encode_batch(japanese)
    found = [tokenizer.decode(part) for part in np.split(ids, np.cumsum(sizes)[:-1])]
    assert found == japanese


@pytest.mark.realdata
def test_xlnet() -> None:
    tokenizer = real("xlnet-base-cased")
    assert tokenizer.encode("Hello world").tolist() == [17, 11368, 185]
    assert (tokenizer.vocab_size, tokenizer.end, tokenizer.mask) == (32_000, 4, 6)
    assert tokenizer.specials == tuple(range(9))
    assert tokenizer.word_starts()[[17, 11368, 185, 4]].tolist() == [True, False, True, True]
