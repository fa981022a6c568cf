"""The built-in corpus: the same on every machine, varied, well formed, and more than its bigrams."""

import hashlib
import math
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import shoestring
from shoestring.data.stories import CORPUS_VERSION, story

TOKEN = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
HERO = re.compile(r"\b(?:named|called|about) ([A-Z][a-z]+)|^([A-Z][a-z]+) was a")
GOLDEN = "8da9c6ab3b62c08b906d29ca19f05bca4fbb817d27bc5b098854ca64a930b046"


def tokens(text: str) -> list[str]:
    return TOKEN.findall(text.lower())


def digest(seed: int, count: int) -> str:
    return hashlib.sha256("\n\n".join(story(seed, i) for i in range(count)).encode()).hexdigest()


@pytest.fixture(scope="module")
def stories() -> list[str]:
    return [story(0, i) for i in range(20_000)]


@pytest.fixture(scope="module")
def some(stories: list[str]) -> list[str]:
    """As many as are read word by word."""
    return stories[:8_000]


def test_first_stories_are_what_they_always_were() -> None:
    assert CORPUS_VERSION == 1, "a new corpus version needs a new golden digest"
    assert digest(0, 100) == GOLDEN


def test_order_of_calls_does_not_matter() -> None:
    forward = [story(3, i) for i in range(50)]
    backward = [story(3, i) for i in reversed(range(50))]
    assert forward == backward[::-1]


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_other_processes_tell_the_same_stories(hash_seed: str) -> None:
    code = "import sys; from shoestring.data.stories import story; print([story(5, i) for i in range(50)])"
    source = str(Path(shoestring.__file__).parents[1])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": source}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == str([story(5, i) for i in range(50)])


def test_seeds_tell_different_stories() -> None:
    assert not {story(1, i) for i in range(500)} & {story(2, i) for i in range(500)}


def test_large_numbers_are_fine_and_negative_ones_are_not() -> None:
    assert story(2**64 - 1, 2**40) != story(2**64 - 1, 2**40 + 1)
    with pytest.raises(ValueError, match="at least 0"):
        story(0, -1)
    with pytest.raises(ValueError, match="at least 0"):
        story(-1, 0)


def test_no_story_is_told_twice(stories: list[str]) -> None:
    assert len(set(stories)) == len(stories)


def test_vocabulary_is_small(some: list[str]) -> None:
    counts = Counter(token for text in some for token in tokens(text))
    assert 560 <= len(counts) <= 640
    assert min(counts.values()) >= 20, "every word must be seen often enough to be learned"


def test_lengths(stories: list[str]) -> None:
    lengths = [len(text.split()) for text in stories]
    assert min(lengths) >= 70
    assert max(lengths) <= 220
    assert 120 <= sum(lengths) / len(lengths) <= 140


def test_paragraphs_are_lines(stories: list[str]) -> None:
    for text in stories:
        paragraphs = text.split("\n")
        assert 3 <= len(paragraphs) <= 5
        assert all(paragraph and paragraph == paragraph.strip() for paragraph in paragraphs)


def test_quotes_are_balanced(stories: list[str]) -> None:
    assert all(paragraph.count('"') % 2 == 0 for text in stories for paragraph in text.split("\n"))


@pytest.mark.parametrize(
    "mistake",
    [
        r'\."? [a-z]',  # a sentence without a capital letter
        r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]",  # the wrong article
        r"  | [,.!?]|[,.!?]{2}|[{}_]",  # bad spacing, double punctuation, leftovers of a template
        r"\b(\w+) \1\b",  # a word said twice
    ],
)
def test_english_is_clean(some: list[str], mistake: str) -> None:
    pattern = re.compile(mistake)
    assert [found.group() for found in map(pattern.search, some) if found] == []


def test_no_sentence_is_repeated_within_a_story(stories: list[str]) -> None:
    for text in stories[:5_000]:
        sentences = re.split(r"(?<=[.!?])\s", text)
        assert len(set(sentences)) == len(sentences), text


def test_hero_stays_in_the_story(some: list[str]) -> None:
    kept = 0
    for text in some:
        first, rest = text.split("\n", 1)
        match = HERO.search(first)
        assert match, first
        kept += (match.group(1) or match.group(2)) in TOKEN.findall(rest)
    assert kept >= 0.99 * len(some)


class WittenBell:
    """A word model of a given order, each order backed by the next shorter one."""

    def __init__(self, order: int, texts: list[str]) -> None:
        self.order = order
        self.counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for text in texts:
            words = self._padded(text)
            for i in range(order - 1, len(words)):
                for length in range(order):
                    self.counts[tuple(words[i - length : i])][words[i]] += 1
        self.totals = {context: sum(counter.values()) for context, counter in self.counts.items()}
        self.floor = 1 / (len(self.counts[()]) + 1)

    def loss(self, texts: list[str]) -> float:
        """Return the mean negative log likelihood of a token, in nats."""
        total, count = 0.0, 0
        for text in texts:
            words = self._padded(text)
            for i in range(self.order - 1, len(words)):
                total -= math.log(self._probability(words, i))
                count += 1
        return total / count

    def _probability(self, words: list[str], i: int) -> float:
        probability = self.floor
        for length in range(self.order):
            context = tuple(words[i - length : i])
            counter = self.counts.get(context)
            if counter is None:
                break
            total, kinds = self.totals[context], len(counter)
            probability = (counter[words[i]] + kinds * probability) / (total + kinds)
        return probability

    def _padded(self, text: str) -> list[str]:
        return ["<s>"] * (self.order - 1) + tokens(text) + ["</s>"]


def test_context_beats_bigrams(stories: list[str]) -> None:
    train, held_out = stories[:1_000], stories[1_000:1_150]
    bigram, fourgram = (WittenBell(order, train).loss(held_out) for order in (2, 4))
    assert fourgram < bigram - 0.25, f"bigram {bigram:.3f}, 4-gram {fourgram:.3f} nats per token"
