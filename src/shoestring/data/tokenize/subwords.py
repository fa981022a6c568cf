"""Subword tokenizers made elsewhere: any file of the `tokenizers` library, or a name on the Hugging Face hub.

    file:PATH     a tokenizer.json or .json.gz, or a folder that holds one, or GPT-2's vocab.json and merges.txt
    hf:NAME       a name on the hub, or a folder

If a folder has other files only, `transformers` reads them. A special token that is written out in a text is read as
that token; none is added. A store keeps the tokenizer itself and not its origin, so one tokenizer in two places has one
fingerprint.
"""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, MissingExtra
from shoestring.core.hub import spare_the_wait
from shoestring.core.reading import read_packed, reading
from shoestring.data.tokenize.vocabulary import in_batches, tokenizer_spec

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

BATCH_CHARACTERS = 1 << 20
"""Text that is encoded at once; the library holds 20 to 200 bytes per character."""

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<sep>", "[SEP]")
_MASKS = ("<mask>", "[MASK]")
_BYTE_LEVEL_SPACES = ("Ġ", "Ċ", "ĉ", "č")
"""Space, line feed, tab and carriage return, as byte-level tokenizers write them."""
_HUB_FILES = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.model", "config.json")


class _Loaded(NamedTuple):
    """A tokenizer, and the settings for special tokens from the files beside it."""

    backend: Backend
    config: Mapping[str, Any]


class SubwordTokenizer:
    """A tokenizer of the `tokenizers` library behind the project's own protocol; `text` is its JSON."""

    KIND = "subwords"

    def __init__(self, spec: str, backend: Backend, text: str, end: int, mask: int | None):
        self.spec = spec
        self.end = end
        self.mask = mask
        """The token that replaces a hidden one; None if the tokenizer has none."""
        self._backend, self._text = backend, text
        self.vocab_size = max(backend.get_vocab().values(), default=-1) + 1
        added = backend.get_added_tokens_decoder()
        self.specials = tuple(sorted(index for index, token in added.items() if token.special))
        """Ids that are not part of a text."""

    def encode(self, text: str) -> NDArray[np.uint32]:
        return np.array(self._backend.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of all documents, concatenated, and how many each has.

        Runs on all cores and without Python's lock; TOKENIZERS_PARALLELISM=false limits it to one core.
        """
        ids, sizes = array("I"), array("q")
        for encodings in self._encodings(documents):
            for encoding in encodings:
                ids.fromlist(encoding.ids)
                sizes.append(len(encoding))
        return np.array(ids, dtype=np.uint32), np.array(sizes, dtype=np.int64)

    def _encodings(self, documents: Sequence[str]) -> Iterator[list[Encoding]]:
        """The encodings of the documents, in batches; the next batch is encoded while the caller reads the last."""
        encode = partial(self._backend.encode_batch_fast, add_special_tokens=False)
        with ThreadPoolExecutor(1) as worker:
            coming: Future[list[Encoding]] | None = None
            for batch in in_batches(documents, BATCH_CHARACTERS):
                ready, coming = coming, worker.submit(encode, batch)
                if ready is not None:
                    yield ready.result()
            if coming is not None:
                yield coming.result()

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._backend.decode([int(index) for index in ids], skip_special_tokens=False))

    def added(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the tokenizer's own post-processor adds before and after a text."""
        return _added(self._backend)

    def word_starts(self) -> NDArray[np.bool_]:
        """Whether each id starts a word, for masking whole words; special tokens do, and so do ids without a token.

        The first token of a document or a line starts a word whatever its id, which cannot be seen here.
        """
        begins = _word_test(json.loads(self._text), self.spec)
        starts = np.ones(self.vocab_size, dtype=np.bool_)
        for token, index in self._backend.get_vocab().items():
            starts[index] = begins(token)
        starts[list(self.specials)] = True
        return starts

    def to_dict(self) -> dict[str, Any]:
        return {"spec": self.KIND, "end": self.end, "mask": self.mask, "json": self._text}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SubwordTokenizer:
        text = values["json"]
        return cls(cls.KIND, _parse(text, cls.KIND), text, int(values["end"]), values["mask"])


def _word_test(values: Mapping[str, Any], spec: str) -> Callable[[str], bool]:
    """The test for a token that starts a word, from the JSON of its tokenizer."""
    model = values["model"]
    around = json.dumps([values["normalizer"], values["pre_tokenizer"], values["decoder"]], ensure_ascii=False)
    if model["type"] == "WordLevel":
        return lambda _: True
    if prefix := model.get("continuing_subword_prefix"):
        return lambda token: not token.startswith(prefix)
    if not model.get("end_of_word_suffix"):
        if '"ByteLevel"' in around:
            return lambda token: token.startswith(_BYTE_LEVEL_SPACES)
        if "▁" in around:
            return lambda token: token.startswith("▁")
    raise DataError(f"{spec}: its tokens do not show where a word begins, so whole words cannot be masked")


def load_subwords(spec: str, end: str | None = None) -> SubwordTokenizer:
    """The tokenizer that "file:PATH" or "hf:NAME" names; `end` is the token that ends a document.

    Without `end` it is the token that the tokenizer itself adds after a text (</s>, [SEP], XLNet's <sep>), else the
    eos_token of the files beside it, else a well-known one.
    """
    named = tokenizer_spec(spec)
    if named.kind not in ("file", "hf"):
        raise DataError(f'data.tokenizer = "{spec}": must be "file:PATH" or "hf:NAME"')
    path = Path(named.place).expanduser()
    if path.is_dir() or named.kind == "hf":
        loaded = _from_folder(path if path.is_dir() else _fetch(named.place, spec), spec)
    else:
        loaded = _Loaded(_parse(_read(path), spec), _config(path.parent))
    loaded.backend.no_truncation()
    loaded.backend.no_padding()
    mask = _first_known(loaded, [_content(loaded.config.get("mask_token")), *_MASKS])
    return SubwordTokenizer(spec, loaded.backend, loaded.backend.to_str(), _end_of(loaded, spec, end), mask)


def _end_of(loaded: _Loaded, spec: str, end: str | None) -> int:
    if end is not None:
        index = loaded.backend.token_to_id(end)
        if index is None:
            raise DataError(f'data.end = "{end}": {spec} has no such token')
        return int(index)
    index = _closing(loaded.backend)
    if index is None:
        index = _first_known(loaded, [_content(loaded.config.get("eos_token")), *_ENDS])
    if index is None:
        raise DataError(f"{spec}: cannot tell which of its tokens ends a document; name one in data.end")
    return index


def _closing(backend: Backend) -> int | None:
    """The special token that the tokenizer itself adds after a text."""
    _, after = _added(backend)
    return after[0] if after else None


def _added(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that the tokenizer itself adds before and after a text."""
    if not backend.num_special_tokens_to_add(False):
        return (), ()
    for text in itertools.chain(("a",), backend.get_vocab()):  # most tokenizers know "a"
        encoding = backend.encode(text)
        own = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
        if own:
            return tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :])
    return (), ()


def _first_known(loaded: _Loaded, tokens: Iterable[str | None]) -> int | None:
    ids = (loaded.backend.token_to_id(token) for token in tokens if token is not None)
    return next((int(index) for index in ids if index is not None), None)


def _content(token: Any) -> str | None:
    """The text of a token, which some files wrap in an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _from_folder(folder: Path, spec: str) -> _Loaded:
    config = _config(folder)
    for name in ("tokenizer.json", "tokenizer.json.gz"):
        if (folder / name).is_file():
            return _Loaded(_parse(_read(folder / name), spec), config)
    files = folder / "vocab.json", folder / "merges.txt"
    family = config.get("tokenizer_class") or _settings(folder / "config.json").get("model_type") or "gpt2"
    if all(file.is_file() for file in files) and str(family).lower().startswith("gpt2"):
        return _Loaded(_gpt2(*files, spec), config)
    return _from_transformers(folder, spec)


def _gpt2(vocab: Path, merges: Path, spec: str) -> Backend:
    """GPT-2's tokenizer, which is older than the library's own format."""
    import tokenizers

    try:
        backend: Backend = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    except Exception as cause:  # the library raises nothing more specific
        raise DataError(f"{spec}: cannot read vocab.json and merges.txt ({cause})") from cause
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    backend.add_special_tokens([token for token in _ENDS[:1] if backend.token_to_id(token) is not None])
    return backend


def _from_transformers(folder: Path, spec: str) -> _Loaded:
    """The tokenizer of older files, which `transformers` can convert."""
    try:
        from transformers import AutoTokenizer
    except ImportError as cause:
        raise MissingExtra(f"{spec} has no tokenizer.json; reading its other files", "transformers", "hf") from cause
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        backend = tokenizer.backend_tokenizer
    except Exception as cause:  # anything: there are many kinds of files
        reason = str(cause).strip().partition("\n")[0]
        raise DataError(
            f"{spec}: no tokenizer.json in {folder}, and transformers cannot make one from the other files ({reason})"
        ) from cause
    return _Loaded(backend, {"eos_token": tokenizer.eos_token, "mask_token": tokenizer.mask_token})


def _fetch(name: str, spec: str) -> Path:
    """The folder of a tokenizer's files, from the hub or its cache."""
    from huggingface_hub import snapshot_download  # comes with tokenizers

    spare_the_wait()
    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except (OSError, ValueError) as cause:
        reason = str(cause).strip().partition("\n")[0]
        raise DataError(
            f"{spec}: not a folder here, and it could not be downloaded from the hub ({reason}); without a connection, "
            f"download it elsewhere and name its folder or its tokenizer.json: file:PATH"
        ) from cause


def _parse(text: str, spec: str) -> Backend:
    import tokenizers

    try:
        backend: Backend = tokenizers.Tokenizer.from_str(text)
    except Exception as cause:  # the library raises nothing more specific
        raise DataError(f"{spec}: not a tokenizer file ({cause})") from cause
    return backend


def _read(path: Path) -> str:
    with reading(path, DataError, "a tokenizer file"):
        return read_packed(path).decode("utf-8-sig")


def _config(folder: Path) -> dict[str, Any]:
    """The settings for special tokens from the files in a tokenizer's folder."""
    return _settings(folder / "special_tokens_map.json") | _settings(folder / "tokenizer_config.json")


def _settings(path: Path) -> dict[str, Any]:
    """The values of a JSON file that are not null; empty if there is no file."""
    if not path.is_file():
        return {}
    with reading(path, DataError, "JSON with the settings of a tokenizer"):
        return {name: value for name, value in json.loads(_read(path)).items() if value is not None}
