"""A scene, which is the cast of one story and its dice, and the sentences which all plots share."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from shoestring.data.stories import words
from shoestring.data.stories.words import Person

T = TypeVar("T")


class Scene:
    """Who and what one story is about.

    All chance comes from the `random()` method of one generator, the only one whose numbers Python promises never to
    change for a given seed.
    """

    def __init__(self, number: int) -> None:
        self._random = random.Random(number).random
        self.hero, self.friend = self.draw(words.CHILDREN, 2)
        self.elder = self.choose(words.ELDERS)
        self.pet = self.choose(words.PETS)
        self.trait = self.choose(words.TRAITS)
        self.love = self.choose(words.LOVES)
        self.weather = self.choose(words.WEATHERS)
        self.age = self.choose(words.AGES)
        self.time = self.choose(words.TIMES)
        self.place = self.choose(words.PLACES)
        self.colour = self.choose(words.COLOURS)
        self.size = self.choose(words.SIZES)
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


Plot = Callable[[Scene], tuple[str, ...]]
"""A plot turns a scene into the paragraphs of a story."""


def capital(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def paragraph(*sentences: str) -> str:
    """Join the sentences, leaving out empty ones and giving each a capital letter."""
    return " ".join([capital(sentence) for sentence in sentences if sentence])


def a(thing: str) -> str:
    """Return the thing with its article: a ball, an owl."""
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"


def opening(s: Scene) -> str:
    """Introduce the hero, and often what the hero loves."""
    h = s.hero
    return s.pick(
        f"Once upon a time, there was a {s.trait} {h.kind} named {h.name}.",
        f"Once upon a time, there was a {s.trait} {h.kind} named {h.name}, who loved to {s.love.to}.",
        f"{h.name} was a {s.trait} little {h.kind}, and {h.he} was {s.age} years old.",
        f"Once there was a little {h.kind} called {h.name}. Everyone said that {h.he} was very {s.trait}.",
        f"{h.name} was a {s.trait} {h.kind} who lived in a small house near the {s.place.name}.",
        f"There once was a {h.kind} named {h.name}. More than anything, {h.he} loved to {s.love.to}.",
        f"This is a story about {h.name}, a {s.trait} little {h.kind} who loved to {s.love.to}.",
    )


def one_day(s: Scene) -> str:
    """Return the words which begin the day of an outdoor story, such as "One sunny morning"."""
    return s.pick(
        f"One {s.weather.kind} {s.time}",
        f"On a {s.weather.kind} {s.time}",
        f"Early one {s.weather.kind} {s.time}" if s.time == "morning" else f"One {s.weather.kind} day",
    )


def glad(s: Scene, who: Person) -> str:
    """Show that someone is happy."""
    return s.pick(
        f"{who.name} was so happy that {who.he} jumped up and down.",
        f"{who.name} laughed and clapped {who.his} hands.",
        f"{who.name} had a big smile on {who.his} face.",
        f"{who.name} felt warm and happy inside.",
        f"{who.name} smiled from ear to ear.",
        f'"This is the best day!" said {who.name}.',
        f"{who.name} danced around and sang.",
        f"Now {who.name} was happy.",
    )


def sad(s: Scene, who: Person) -> str:
    """Show that someone is sad."""
    return s.pick(
        f"{who.name} was very sad and began to cry.",
        f"A tear ran down {who.his} face.",
        f"{who.name} sat down and hid {who.his} face in {who.his} hands.",
        f"{who.name} felt sad and did not know what to do.",
        f"{who.name} looked down at {who.his} feet.",
        f"That made {who.name} very sad.",
        f'"Oh no," said {who.name}.',
    )


def afraid(s: Scene, who: Person) -> str:
    """Show that someone is afraid."""
    return s.pick(
        f"{who.name} was so scared that {who.his} knees shook.",
        f"{who.his} heart went boom, boom, boom.",
        f"{who.name} was afraid and could not move.",
        f"{who.name} was very scared.",
        f'"I am afraid," said {who.name}.',
        f"{who.name} pulled the blanket over {who.his} head.",
    )


def thanks(s: Scene, who: Person, to: Person) -> str:
    """Let one thank the other."""
    return s.pick(
        f'"Thank you, {to.name}!" said {who.name}.',
        f'{who.name} gave {to.name} a big hug and said, "Thank you so much!"',
        f'"You are the best, {to.name}," said {who.name}.',
        f'{who.name} smiled and said, "Thank you, {to.name}."',
        f"{who.name} thanked {to.name} with a big hug.",
    )


def moral(s: Scene, *lessons: str) -> str:
    """Draw one of the lessons, each a clause without a capital letter or a full stop."""
    lesson = s.choose(lessons)
    name = s.hero.name
    return s.pick(
        f"{name} learned that {lesson}.",
        f"Now {name} knew that {lesson}.",
        f"{name} smiled, because now {s.hero.he} knew that {lesson}.",
        f'"Now I know that {lesson}," said {name}.',
        f"From then on, {name} always remembered that {lesson}.",
        f'"You see, {lesson}," said {s.elder.name}.',
    )


def on_the_way(s: Scene) -> str:
    """Tell of the weather, or let the hero see something which bedtime remembers, or do neither."""
    if s.coin():
        return s.maybe(s.weather.sky)
    s.seen = f"{s.choose(words.COLOURS)} {s.choose(words.SIGHTS)}"
    return s.pick(
        f"On the way, {s.hero.name} saw {a(s.seen)}.",
        f"There was {a(f'{s.choose(words.SIZES)} {s.seen}')} on the way.",
    )


def bedtime(s: Scene) -> str:
    """End the day with what the hero saw on the way, or with what the hero loves, or not at all."""
    h = s.hero
    if s.seen:
        return s.pick(
            f"That night, {h.name} told a story about the {s.seen}.",
            f"Before bed, {h.he} drew the {s.seen}.",
            "",
        )
    return s.pick(
        f"That night, {h.name} dreamed of {a(f'{s.choose(words.COLOURS)} {s.choose(words.SIGHTS)}')}.",
        f"That night, {h.name} {s.love.did} and went to bed with a smile.",
        f"Before bed, {h.he} {s.love.did} with {s.elder.name}.",
        f"The {s.trait} {h.kind} slept very well that night.",
        "",
        "",
    )


def nightfall(s: Scene) -> str:
    """End a day outdoors with its weather, or as any other day."""
    return s.pick(s.weather.later, bedtime(s))
