"""Rows of sentences against a reader that goes character by character, and real stories against independent counts."""

import gzip
import itertools
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import DataError
from shoestring.core.hmm_sections import Hmm
from shoestring.core.sections import Data
from shoestring.core.seeds import derive
from shoestring.data.pack.order import drawn_rows
from shoestring.data.store import sentence_store
from shoestring.data.store.sentence_store import Ledger, SentenceRows, prepare_rows, rows_of, top_words
from shoestring.data.store.work_units import is_heldout
from shoestring.data.tokenize.tokenizers import WordTokenizer

REAL_DATA = Path(__file__).parents[2].parent / "shared" / "data"
TEXTS = ["The dog ran. The cat ran!", "the dog ran. A bird sang", 'Tom said, "Hi." The dog ran... The end?']


def sentence_rows(
    documents: Callable[[], Iterable[str]], words: int, length: int, unique: bool = False, plain: bool = False
) -> SentenceRows:
    """Rows over the most frequent words of the documents themselves, which are read twice."""
    return rows_of(documents(), top_words(documents(), words, plain), length, unique, plain)


def naive_words(text: str) -> list[str]:
    """Words with one apostrophe inside, and single marks, character by character."""
    found: list[str] = []
    at = 0

    def past(at: int) -> int:
        while at < len(text) and re.match(r"\w", text[at]):
            at += 1
        return at

    while at < len(text):
        after = past(at)
        if after > at and text[after : after + 1] == "'" and past(after + 1) > after + 1:
            after = past(after + 1)
        after = max(after, at + 1)
        if not text[at].isspace():
            found.append(text[at:after])
        at = after
    return found


def naive_sentences(text: str) -> Iterator[tuple[str, bool]]:
    current, state = "", "body"
    for character in text:
        if state != "body" and character not in (".!?" if state == "marks" else "") + "\"'”’":
            yield current, True
            current, state = "", "body"
        if character in ".!?":
            state = "marks"
        elif state == "marks":
            state = "quotes"
        current += character
    if current:
        yield current, state != "body"


def naive(
    documents: list[str], words: int, length: int, unique: bool, plain: bool
) -> tuple[list[list[int]], list[str], Ledger]:
    pieces, left_out = [], 0
    for document in documents:
        for piece in document.split("<|endoftext|>"):
            if not plain:
                pieces.append(piece.lower())
                continue
            for line in piece.split("\n"):
                line = line.strip()
                if set(line) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ,."):
                    pieces.append(line.lower())
                else:
                    left_out += 1
    counts = Counter(word for piece in pieces for word in naive_words(piece))
    alphabet = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    found = [pair for piece in pieces for pair in naive_sentences(piece)]
    found = [(text, finished) for text, finished in found if re.split("[.!?]", text)[0].strip()]
    sentences = [naive_words(text) for text, finished in found if finished]
    kept = [sentence for sentence in sentences if all(word in alphabet for word in sentence)]
    used: list[list[str]] = []
    for sentence in kept:
        if not unique or sentence not in used:
            used.append(sentence)
    stream = [alphabet.index(word) for sentence in used for word in sentence]
    rows = [stream[at : at + length] for at in range(0, len(stream) - length + 1, length)]
    ledger = Ledger(
        lines_left_out=left_out,
        sentences=len(sentences),
        unfinished=len(found) - len(sentences),
        kept=len(kept),
        unique=len({tuple(sentence) for sentence in kept}),
        tokens=len(stream),
        dropped=len(stream) - len(rows) * length,
    )
    return rows, alphabet, ledger


characters = st.sampled_from([*"aabbc TZ.!?,.\n '\"”é1", "<|endoftext|>", " a b. ", "b a! "])
documents_of = st.lists(st.lists(characters, max_size=40).map("".join), max_size=6)


@settings(max_examples=150, deadline=None)
@given(documents_of, st.integers(1, 8), st.integers(1, 5), st.booleans(), st.booleans())
def test_rows_alphabet_and_ledger_are_those_of_the_slow_way(
    documents: list[str], words: int, length: int, unique: bool, plain: bool
) -> None:
    rows, alphabet, ledger = naive(documents, words, length, unique, plain)
    if not rows:
        with pytest.raises(DataError, match="no row of"):
            sentence_rows(lambda: iter(documents), words, length, unique, plain)
        return
    found = sentence_rows(lambda: iter(documents), words, length, unique, plain)
    assert found.rows.tolist() == rows
    assert [*found.alphabet] == alphabet
    assert found.ledger == ledger
    again = sentence_rows(lambda: documents, words, length, unique, plain)
    assert np.array_equal(again.rows, found.rows) and again[1:] == found[1:]


def decoded(documents: list[str], **options: bool) -> str:
    """All kept sentences, in one row."""
    alphabet = top_words(documents, 1000, options.get("plain", False))
    tokens = rows_of(documents, alphabet, 1, **options).rows[:, 0].tolist()
    return " ".join(alphabet[token] for token in tokens)


def test_sentences_keep_their_marks_and_closing_quotes() -> None:
    assert decoded(TEXTS) == (
        'the dog ran . the cat ran ! the dog ran . tom said , " hi . " the dog ran . . . the end ?'
    )
    assert decoded(TEXTS, unique=True) == (
        'the dog ran . the cat ran ! tom said , " hi . " the dog ran . . . the end ?'
    )
    assert decoded(["... A dog. ! B don't?! c"]) == "a dog . b don't ? !"
    assert decoded(["It ran on\nand on. Then <|endoftext|> New."]) == "it ran on and on . new ."


def test_plain_lines_are_those_of_letters_commas_and_stops() -> None:
    texts = ["A dog, ran.\nHe said hi!\nA café. \n\n It sat. ", "He had 3. So.", "Just so."]
    assert decoded(texts, plain=True) == "a dog , ran . it sat . just so ."
    ledger = rows_of(texts, top_words(texts, 20, plain=True), 1, plain=True).ledger
    assert (ledger.lines_left_out, ledger.sentences, ledger.kept) == (3, 3, 3)


def test_only_sentences_of_the_top_words_are_kept() -> None:
    texts = ["a b. a b. a c. b a.", "a a. d a."]
    found = sentence_rows(lambda: texts, 3, 4)
    assert found.alphabet == ("a", ".", "b")
    assert found.rows.tolist() == [[0, 2, 1, 0], [2, 1, 2, 0], [1, 0, 0, 1]]
    expected = Ledger(lines_left_out=0, sentences=6, unfinished=0, kept=4, unique=3, tokens=12, dropped=0)
    assert found.ledger == expected


@pytest.mark.parametrize(("words", "dtype"), [(2, np.uint8), (256, np.uint8), (257, np.uint16), (70_000, np.uint32)])
def test_the_type_is_the_smallest(words: int, dtype: type) -> None:
    text = " ".join(["x", *(f"w{i:05}" for i in range(words - 2)), "x."])
    found = sentence_rows(lambda: [text], words, 3)
    assert found.rows.dtype == dtype and found.rows.flags.writeable
    assert len(found.alphabet) == words
    assert int(found.rows.max()) >= words - 4


def test_held_out_text_takes_the_alphabet_of_the_training_text() -> None:
    found = rows_of(["b c. zebra c. c b."], ("c", "b", "."), 2)
    assert found.alphabet == ("c", "b", ".")
    assert found.rows.tolist() == [[1, 0], [2, 0], [1, 2]]


def test_the_alphabet_is_that_of_the_word_tokenizer() -> None:
    assert top_words(TEXTS, 7) == WordTokenizer.fit(7, TEXTS).words
    assert len(top_words(TEXTS, 1000)) < 1000


def test_what_gives_no_rows_is_named() -> None:
    with pytest.raises(DataError, match="no row of 100 tokens: of 6 sentences, 6 use only the 16 words, 28 tokens"):
        sentence_rows(lambda: TEXTS, 1000, 100)
    with pytest.raises(DataError, match="words = 0: must be at least 1"):
        sentence_rows(lambda: TEXTS, 0, 100)
    with pytest.raises(DataError, match="length = 0: must be at least 1"):
        sentence_rows(lambda: TEXTS, 10, 0)
    with pytest.raises(DataError, match="no row of 1 tokens: of 0 sentences"):
        sentence_rows(list, 10, 1)


def test_work_is_linear_in_the_text() -> None:
    text = "word " * 200_000 + "! " + "." * 200_000  # one endless sentence, then endless marks
    found = sentence_rows(lambda: [text, "'" * 200_000], 4, 10, unique=True)
    assert (found.ledger.sentences, found.ledger.unfinished, found.ledger.tokens) == (1, 1, 200_001)


# On disk


BODIES = [f"The dog {'ran ' * (i % 4)}on day {i % 7}. It sat! A {'cat' if i % 3 else 'bird'} came." for i in range(60)]


def data_in(place: Path, **more: object) -> Data:
    corpus = place / "corpus.jsonl"
    if not corpus.exists():
        corpus.write_text("".join(json.dumps({"body": body}) + "\n" for body in BODIES))
    settings = {"source": f"jsonl:{corpus}", "column": "body", "tokenizer": "words:30", "length": 5, "heldout": 0.2}
    return Data(**settings | {"folder": str(place / "stores")} | more)


@pytest.mark.parametrize("documents", [None, 25, 1000])
def test_rows_on_disk_are_those_of_each_split(tmp_path: Path, documents: int | None) -> None:
    hmm = Hmm(unique=True)
    found = prepare_rows(data_in(tmp_path, documents=documents), 3, hmm)
    held_out = is_heldout(derive(0, "heldout"), 0.2)
    read = range(len(BODIES)) if documents is None else drawn_rows(documents, len(BODIES)).tolist()
    train = [BODIES[index] for index in read if not held_out(index)]
    held = [BODIES[index] for index in read if held_out(index)]
    alphabet = top_words(train, 30)
    assert found.alphabet == alphabet, "of the training documents alone"
    for rows, name, texts in ((found.train, "train", train), (found.heldout, "heldout", held)):
        expected = rows_of(texts, alphabet, 5, unique=True)
        assert rows.dtype == expected.rows.dtype and rows.tolist() == expected.rows.tolist()
        assert found.ledger[name] == asdict(expected.ledger)


def test_rows_are_made_once_and_the_same_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (prepare_rows(data_in(tmp_path, folder=str(tmp_path / name)), 0, Hmm()) for name in "ab")
    assert one.path.parent.name == two.path.parent.name
    assert np.array_equal(one.train, two.train) and np.array_equal(one.heldout, two.heldout)
    assert one[2:4] == two[2:4]
    monkeypatch.setattr(sentence_store, "rows_of", None)
    again = prepare_rows(data_in(tmp_path, folder=str(tmp_path / "a")), 0, Hmm())
    assert np.array_equal(again.train, one.train) and np.array_equal(again.heldout, one.heldout)
    assert again[2:] == one[2:]


def test_rows_made_again_are_the_same_file_byte_for_byte(tmp_path: Path) -> None:
    made = [prepare_rows(data_in(tmp_path, folder=str(tmp_path / name)), 0, Hmm()).path for name in "abcdefgh"]
    assert len({path.read_bytes() for path in made}) == 1


def test_other_rows_have_another_place(tmp_path: Path) -> None:
    data, hmm = data_in(tmp_path), Hmm()
    found = [
        prepare_rows(*asked).path
        for asked in (
            (data, 0, hmm),
            (replace(data, length=4), 0, hmm),
            (replace(data, tokenizer="words:29"), 0, hmm),
            (replace(data, heldout=0.3), 0, hmm),
            (replace(data, documents=50), 0, hmm),
            (replace(data, on_error="skip"), 0, hmm),
            (data, 0, Hmm(unique=True)),
        )
    ]
    assert len(set(found)) == len(found)
    assert prepare_rows(data, 0, Hmm(states=7)).path == found[0], "the model is another matter"
    assert prepare_rows(data, 1, hmm).path == found[0], "and so is the seed"


def test_no_flipped_byte_of_the_rows_is_read(tmp_path: Path) -> None:
    data = data_in(tmp_path)
    good = prepare_rows(data, 0, Hmm())
    original = good.path.read_bytes()
    for at, mask in itertools.product(range(0, len(original), 9), (0x01, 0x20)):
        good.path.write_bytes(original[:at] + bytes([original[at] ^ mask]) + original[at + 1 :])
        try:
            found = prepare_rows(data, 0, Hmm())
        except DataError:
            continue
        assert np.array_equal(found.train, good.train) and np.array_equal(found.heldout, good.heldout), f"byte {at}"
        assert found[2:] == good[2:], f"byte {at}"
    good.path.write_bytes(original[:-1])
    with pytest.raises(DataError, match=rf"{good.path}: damaged.*remove the file and run the same command again"):
        prepare_rows(data, 0, Hmm())


def test_a_source_that_gives_no_rows_leaves_none(tmp_path: Path) -> None:
    data = data_in(tmp_path, length=100_000)
    with pytest.raises(DataError, match="no row of 100,000 tokens"):
        prepare_rows(data, 0, Hmm())
    assert not list((tmp_path / "stores").rglob("*.safetensors"))
    with pytest.raises(DataError, match='no field "text"'):
        prepare_rows(replace(data, column="text"), 0, Hmm())


def lines(path: Path) -> Callable[[], Iterator[str]]:
    if not path.is_file():
        pytest.skip(f"no {path}")

    def read() -> Iterator[str]:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") if path.suffix == ".gz" else open(path) as file:
            yield from (line.strip() for line in file if line.strip())

    return read


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "tokens", "types"),
    [("sentences", 84, 46), ("sentences-100", 4800, 100), ("sentences-200", 5127, 200), ("sentences-300", 5353, 293)],
)
def test_the_sentences_of_the_seed_are_kept_whole(name: str, tokens: int, types: int) -> None:
    path = REAL_DATA / "hmm-sentences" / f"{name}.txt"
    read = lines(path)
    found = sentence_rows(read, types + 10, 7, plain=True)
    assert (found.ledger.tokens, len(found.alphabet)) == (tokens, types)
    texts = [*read()]
    assert found.ledger.sentences == found.ledger.kept == len(texts)
    assert found.ledger.unique == len(set(texts)) and found.ledger.unfinished == 0
    words = " ".join(texts).split()
    assert found.rows.shape == (tokens // 7, 7)
    assert [found.alphabet[token] for token in found.rows.flatten()] == words[: tokens // 7 * 7]
    counts = Counter(words)
    assert [*found.alphabet] == sorted(counts, key=lambda word: (-counts[word], word))


@pytest.mark.realdata
def test_plain_stories_are_those_of_standard_tools(tmp_path: Path) -> None:
    """The seed's way, with sed, grep, awk: plain lines, one sentence a line, top 100 words, only sentences of these."""
    path = REAL_DATA / "tinystories" / "stories.txt.gz"
    read = lines(path)
    script = r"""
        export LC_ALL=C
        zcat "$1" | grep -xE '[a-zA-Z ,.]*' | tr A-Z a-z > "$2/plain"
        sed -e 's/[,.]/ & /g' "$2/plain" | tr -s ' ' '\n' | grep . | sort | uniq -c | sort -k1,1nr -k2,2 | head -100 |
            awk '{print $2}' > "$2/words"
        sed -e 's/\.\.*/&\n/g' "$2/plain" | grep '[a-z].*\.$' |
            sed -e 's/[,.]/ & /g' -e 's/  */ /g' -e 's/^ //;s/ $//' |
            awk -v words="$2/words" 'BEGIN { while ((getline word < words) > 0) top[word] = 1 }
            { for (i = 1; i <= NF; i++) if (!($i in top)) next; print }' > "$2/kept"
    """
    subprocess.run(["bash", "-c", script, "bash", path, tmp_path], check=True)
    alphabet = top_words(read(), 100, plain=True)
    assert [*alphabet] == (tmp_path / "words").read_text().split()
    kept = (tmp_path / "kept").read_text().splitlines()
    for unique, used in ((False, kept), (True, [*dict.fromkeys(kept)])):
        found = rows_of(read(), alphabet, 100, unique, plain=True)
        assert (found.ledger.kept, found.ledger.unique) == (len(kept), len(set(kept)))
        stream = " ".join(used).split()
        assert (found.ledger.tokens, found.ledger.dropped) == (len(stream), len(stream) % 100)
        assert [alphabet[token] for token in found.rows.flatten()] == stream[: found.rows.size]


@pytest.mark.realdata
def test_real_stories_are_read_as_by_the_slow_way() -> None:
    texts = [*lines(REAL_DATA / "tinystories" / "valid_sample.txt.gz")()][:1200]
    rows, alphabet, ledger = naive(texts, 100, 50, False, False)
    found = sentence_rows(lambda: iter(texts), 100, 50)
    assert (found.rows.tolist(), [*found.alphabet], found.ledger) == (rows, alphabet, ledger)
    assert found.ledger.kept > 100
