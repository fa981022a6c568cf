"""The cast and the dice of one story, and the sentences that all plots share."""

import random
import tomllib
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_entry: Any = cache(lambda fields: namedtuple("Entry", fields))

_PRONOUNS = {"he": ("he", "him", "his"), "she": ("she", "her", "her")}


class Person(NamedTuple):
    """Someone with a name and pronouns: a child, a grown-up, or an animal with a name."""

    name: str
    kind: str
    he: str
    him: str
    his: str


@cache
def _words() -> Any:
    """The tables of words.toml: each is a list of texts, of people, or of entries with the fields named there."""
    tables = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    for group in ("children", "elders", "pets"):
        tables[group] = [Person(name, kind, *_PRONOUNS[pronoun]) for name, kind, pronoun in tables[group]]
    return _with_fields(tables)


def _with_fields(value: Any) -> Any:
    """The value with its dictionaries, at any depth, as named tuples."""
    if isinstance(value, dict):
        return _entry(tuple(value))(*map(_with_fields, value.values()))
    return [_with_fields(entry) for entry in value] if isinstance(value, list) else value


class Scene:
    """Who and what one story is about.

    All chance comes from the `random()` method of one generator: it is the only method whose numbers Python promises
    never to change for a given seed.
    """

    def __init__(self, number: int) -> None:
        self._random = random.Random(number).random
        self.words = words = _words()
        self.hero, self.friend = self.draw(words.children, 2)
        self.elder = self.choose(words.elders)
        self.pet = self.choose(words.pets)
        self.trait = self.choose(words.traits)
        self.love = self.choose(words.loves)
        self.weather = self.choose(words.weathers)
        self.age = self.choose(words.ages)
        self.time = self.choose(words.times)
        self.place = self.choose(words.places)
        self.colour = self.choose(words.colours)
        self.size = self.choose(words.sizes)
        self.seen = ""

    def choose(self, table: Sequence[T]) -> T:
        """Return one entry of the table, all equally likely."""
        return table[int(self._random() * len(table))]

    def draw(self, table: Sequence[T], count: int) -> list[T]:
        """Return `count` different entries of the table, in random order."""
        rest = list(table)
        return [rest.pop(int(self._random() * len(rest))) for _ in range(count)]

    def pick(self, *sentences: str) -> str:
        """Return one of the sentences, all equally likely."""
        return sentences[int(self._random() * len(sentences))]

    def coin(self) -> bool:
        """Return true half of the time."""
        return self._random() < 0.5

    def maybe(self, sentence: str) -> str:
        """Return the sentence or, half of the time, nothing."""
        return sentence if self._random() < 0.5 else ""

    def _say(self, sentences: Sequence[str], **who: Any) -> str:
        """Return one of the sentences of words.toml, filled in."""
        return sentences[int(self._random() * len(sentences))].format(s=self, **who)

    def opening(self) -> str:
        """Introduce the hero, and often what the hero loves."""
        h, trait, love = self.hero, self.trait, self.love
        return self.pick(
            f"Once upon a time, there was a {trait} {h.kind} named {h.name}.",
            f"Once upon a time, there was a {trait} {h.kind} named {h.name}, who loved to {love.to}.",
            f"{h.name} was a {trait} little {h.kind}, and {h.he} was {self.age} years old.",
            f"Once there was a little {h.kind} called {h.name}. Everyone said that {h.he} was very {trait}.",
            f"{h.name} was a {trait} {h.kind} who lived in a small house near the {self.place.name}.",
            f"There once was a {h.kind} named {h.name}. More than anything, {h.he} loved to {love.to}.",
            f"This is a story about {h.name}, a {trait} little {h.kind} who loved to {love.to}.",
        )

    def one_day(self) -> str:
        """Return the words that begin the day of an outdoor story, such as "One sunny morning"."""
        weather, time = self.weather.kind, self.time
        early = f"Early one {weather} {time}" if time == "morning" else f"One {weather} day"
        return self.pick(f"One {weather} {time}", f"On a {weather} {time}", early)

    def glad(self, who: Person) -> str:
        """Show that someone is happy."""
        return self._say(self.words.glad, who=who)

    def sad(self, who: Person) -> str:
        """Show that someone is sad."""
        return self._say(self.words.sad, who=who)

    def afraid(self, who: Person) -> str:
        """Show that someone is afraid."""
        return self._say(self.words.afraid, who=who)

    def thanks(self, who: Person, to: Person) -> str:
        """Let one person thank another."""
        return self._say(self.words.thanks, who=who, to=to)

    def moral(self, *lessons: str) -> str:
        """Draw one of the lessons, each a clause without a capital letter or a full stop."""
        return self._say(self.words.morals, lesson=self.choose(lessons))

    def on_the_way(self) -> str:
        """Tell of the weather, or let the hero see something that bedtime remembers, or do neither."""
        if self.coin():
            return self.maybe(self.weather.sky)
        self.seen = f"{self.choose(self.words.colours)} {self.choose(self.words.sights)}"
        return self.pick(
            f"On the way, {self.hero.name} saw {a(self.seen)}.",
            f"There was {a(f'{self.choose(self.words.sizes)} {self.seen}')} on the way.",
        )

    def bedtime(self) -> str:
        """End the day with what the hero saw on the way, or with what the hero loves, or not at all."""
        h, words = self.hero, self.words
        if self.seen:
            story = f"That night, {h.name} told a story about the {self.seen}."
            return self.pick(story, f"Before bed, {h.he} drew the {self.seen}.", "")
        return self.pick(
            f"That night, {h.name} dreamed of {a(f'{self.choose(words.colours)} {self.choose(words.sights)}')}.",
            f"That night, {h.name} {self.love.did} and went to bed with a smile.",
            f"Before bed, {h.he} {self.love.did} with {self.elder.name}.",
            f"The {self.trait} {h.kind} slept very well that night.",
            "",
            "",
        )

    def nightfall(self) -> str:
        """End a day outdoors with its weather, or as any other day."""
        return self.pick(self.weather.later, self.bedtime())


Plot = Callable[[Scene], tuple[str, ...]]
"""A plot turns a scene into the paragraphs of a story."""


def capital(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def paragraph(*sentences: str) -> str:
    """Join the sentences, leaving out empty ones and giving each a capital letter."""
    return " ".join([sentence[0].upper() + sentence[1:] for sentence in sentences if sentence])


def a(thing: str) -> str:
    """Return the thing with its article: a ball, an owl."""
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"
