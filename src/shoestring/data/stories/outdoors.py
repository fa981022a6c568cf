"""Plots that happen out of doors: one function each, from a scene to the paragraphs of a story."""

from shoestring.data.stories.scene import Plot, Scene, a, capital, paragraph


def lost_toy(s: Scene) -> tuple[str, ...]:
    """A toy is lost on a trip, looked for in wrong places and found in another."""
    h, friend, pet, place = s.hero, s.friend, s.pet, s.place
    toy = s.choose(s.words.toys)
    thing = f"{s.size} {s.colour} {toy}"
    first, second, last = s.draw(place.spots, 3)
    if s.coin():
        helper, kind = pet, f" the {pet.kind}"
        offer = f"{pet.name} looked at {h.him} and wanted to help."
        found = f"Then {pet.name} ran and stopped {last}. The {s.colour} {toy} was there!"
    else:
        helper, kind = friend, ""
        offer = f'"Don\'t cry. I will help you," said {friend.name}.'
        found = f'Then {friend.name} looked {last} and shouted, "Here is your {toy}!"'
    return (
        paragraph(
            s.opening(),
            f"{h.he} had {a(thing)}.",
            s.pick(f"It was a gift from {s.elder.name}.", f"{h.he} even slept with it at night.", ""),
        ),
        paragraph(
            f"{s.one_day()}, {h.name} went {place.to} with {helper.name}{kind}.",
            s.on_the_way(),
            f"They {s.choose(place.games)} and had fun.",
            s.pick(
                f"But when it was time to go home, the {s.colour} {toy} was gone.",
                f"But then {h.name} looked around and could not see the {s.colour} {toy}.",
            ),
            s.pick(f'"Oh no! Where is my {toy}?" {h.he} cried.', f'"I lost my {thing}!" {h.he} cried.', s.sad(h)),
        ),
        paragraph(
            offer,
            s.pick(
                f"They looked {first}, but there was only {s.choose(s.words.litter)}.",
                f"They looked {first}, but it was not there.",
            ),
            s.maybe(f"They looked {second}, but there was no {toy}."),
            found,
            s.pick(s.glad(h), s.thanks(h, helper)),
        ),
        paragraph(
            s.maybe(f"{h.name} held the {s.colour} {toy} tight all the way home."),
            s.moral("you can find a lost thing if you don't give up", "a good friend helps you look"),
            s.nightfall(),
        ),
    )


def hurt_animal(s: Scene) -> tuple[str, ...]:
    """A wild animal is found hurt, cared for at home and set free."""
    h, elder, place = s.hero, s.elder, s.place
    animal = s.choose(place.creatures)
    kind, part = animal.kind, animal.part
    return (
        paragraph(
            s.opening(),
            f"{s.one_day()}, {h.he} went {place.to} with {elder.name}.",
            s.on_the_way(),
            f"{h.he} heard a quiet sound {s.choose(place.spots)}.",
        ),
        paragraph(
            f"It was a {s.choose(('little', 'small', 'baby', 'tiny'))} {kind}!",
            s.pick(
                f"Its {part} was hurt, and it could not {animal.move}.",
                f"It could not {animal.move}, because its {part} was hurt.",
            ),
            s.pick(
                f'"The poor {kind}!" said {h.name}. "Can we help it?"',
                f'"Look, {elder.name}! This {kind} needs help," said {h.name}.',
            ),
            f"{elder.name} put the {kind} into {a(f'{s.colour} hat')}, and they took it home.",
        ),
        paragraph(
            s.maybe(f"At home, {elder.name} washed the {part}."),
            f"{h.name} made a bed in a box and gave the {kind} some {animal.food}.",
            s.pick(
                "",
                f"Every day, {h.name} gave it more {animal.food}.",
                f"Every night, {h.name} sat by the box and sang a song.",
            ),
            s.pick(
                f"Soon the {part} was well, and the {kind} could {animal.move} again.",
                f"One {s.choose(s.words.times)}, the {kind} could {animal.move} again.",
            ),
        ),
        paragraph(
            f"So {h.name} and {elder.name} took it back {place.to}.",
            s.maybe(f'"Goodbye, little {kind}," said {h.name}.'),
            f"The {kind} looked at {h.him} and {animal.moved} home to its family.",
            s.moral(
                "we have to be kind to animals",
                "even a small child can be a big help",
                "a little love makes the hurt go away",
            ),
            s.maybe(s.bedtime()),
        ),
    )


def planting(s: Scene) -> tuple[str, ...]:
    """A seed needs water and a lot of waiting."""
    h, elder, friend = s.hero, s.elder, s.friend
    plant = s.choose(s.words.plants)
    return (
        paragraph(
            s.opening(),
            f"One {s.time} in spring, {elder.name} gave {h.him} a tiny seed.",
            s.maybe(f'"What is it?" asked {h.name}.'),
            f'"It will be {a(plant.name)}," said {elder.name}.',
            f"{h.name} put the seed in {a(f'{s.size} {s.colour} pot')} and gave it water.",
        ),
        paragraph(
            "The next day, nothing was there.",
            s.pick("", f'"Why does it not grow?" asked {h.name}.', f'"I think it is asleep," said {h.name}.'),
            s.pick(f'"You have to wait," said {elder.name}.', f'"It needs sun and time," said {elder.name}.'),
            f"So {h.name} gave it water every {s.choose(('day', 'morning', 'afternoon', 'night'))}.",
            s.pick(
                "",
                f"Some days {h.he} even sang to the {s.colour} pot.",
                f'"It will never grow," said {friend.name}, but {h.name} did not stop.',
            ),
        ),
        paragraph(
            s.pick("Then, one morning, there was a little green leaf!", "Then, one day, there was something green!"),
            s.maybe(s.glad(h)),
            f"It grew and grew, until the {plant.name} was {plant.grown}.",
            s.pick("", f'"You did it!" said {friend.name}.', f"{friend.name} came to look at the {plant.name}."),
            f"Then {h.name} and {friend.name} {plant.use}.",
        ),
        paragraph(
            s.moral("good things need time", "big things start out small", "it is good to wait"),
            s.pick(f"The next spring, {h.he} put a new seed in the {s.colour} pot.", s.bedtime()),
        ),
    )


def stuck_kite(s: Scene) -> tuple[str, ...]:
    """The wind takes a kite into a tree, and someone helps to get it down."""
    h, friend, elder, place = s.hero, s.friend, s.elder, s.place
    kite = f"{s.size} {s.colour} kite"
    helper, way = s.choose(
        (
            (elder, "found a ladder and climbed up"),
            (elder, "hit the branch with a long stick"),
            (friend, "climbed from branch to branch"),
            (friend, "threw a ball at the branch"),
        )
    )
    return (
        paragraph(
            s.opening(),
            s.pick(
                f"{elder.name} made {h.him} {a(kite)}.",
                f"For {h.his} birthday, {h.he} got {a(kite)} from {elder.name}.",
            ),
            s.maybe(f'"When can I fly it?" {h.he} asked every day.'),
        ),
        paragraph(
            f"One windy {s.time}, {h.name} took the kite {place.to}, and {helper.name} came too.",
            f"The {s.colour} kite went up and up.",
            s.pick("", f'"It looks like {a(s.colour)} bird!" said {helper.name}.', s.glad(h)),
            s.pick(
                "But the wind was too strong, and the string broke.",
                f"But then the wind pulled the string out of {h.his} hand.",
            ),
            "The kite flew into a tall tree and got stuck.",
        ),
        paragraph(
            s.pick(f'"My kite! It is too high for me," cried {h.name}.', s.sad(h)),
            s.maybe(f"{h.he} jumped and jumped, but {h.he} was too small."),
            s.pick(
                f"{helper.name} {way}, and soon the {s.colour} kite was free.",
                f'"I can help," said {helper.name}. {capital(helper.he)} {way}, and soon the kite was free.',
                f'"I have an idea," said {helper.name}. {capital(helper.he)} {way}, and soon the kite was free.',
            ),
            s.pick(
                "",
                s.thanks(h, helper),
                f"It had a small hole, but they fixed it with {s.choose(('glue', 'string', 'paper'))}.",
            ),
        ),
        paragraph(
            f"Then the kite danced in the sky again, and {h.name} held the string tight.",
            s.moral("it is fine to ask for help", "two can do more than one", "we have to hold on to what we love"),
            s.pick("By then, the wind was quiet again.", s.bedtime()),
        ),
    )


def rainy_day(s: Scene) -> tuple[str, ...]:
    """Rain spoils a trip, and something better comes of it, out in the rain or inside."""
    h, friend, place = s.hero, s.friend, s.place
    morning = paragraph(
        s.opening(),
        s.pick(
            f"One {s.time}, {h.he} wanted to go {place.to} with {friend.name}.",
            f"{friend.name} came one {s.time}, because they wanted to go {place.to}.",
        ),
        s.pick("But then dark clouds came, and it started to rain.", "But there was rain, and it did not stop."),
        s.pick(f'"Now we can\'t play {place.at}," said {h.name}.', s.sad(h)),
    )
    middle, lessons = _out_in_the_rain(s) if s.coin() else _inside_the_house(s)
    end = paragraph(
        s.pick("Then the rain stopped, and there was a rainbow in the sky.", "Then the sun came out again."),
        s.glad(s.choose((h, friend))),
        s.moral(*lessons, "a wet day can be a good day"),
        s.bedtime(),
    )
    return morning, middle, end


def _out_in_the_rain(s: Scene) -> tuple[str, tuple[str, ...]]:
    """Let the children go out; return the paragraph and the lessons it teaches."""
    h, friend, elder = s.hero, s.friend, s.elder
    middle = paragraph(
        f'"Rain is only water," said {elder.name}, and gave them {a(f"{s.size} {s.colour} umbrella")}.',
        f"{h.name} and {friend.name} put on their boots and went out under the {s.colour} umbrella.",
        s.pick("They jumped in every puddle, splash, splash, splash!", "They made a paper boat and it swam away."),
        s.maybe(f"They even saw {a(s.choose(s.place.creatures).kind)} that hid from the rain."),
        s.pick(f"{friend.name} got wet feet, and {h.name} got a wet nose.", "Their socks got wet, but it was fun."),
        f"Back home, {elder.name} gave them dry socks.",
    )
    return middle, ("a little rain can be fun", "you need rain to get a rainbow")


def _inside_the_house(s: Scene) -> tuple[str, tuple[str, ...]]:
    """Let the children stay in; return the paragraph and the lessons it teaches."""
    friend, elder, pet, place = s.friend, s.elder, s.pet, s.place
    middle = paragraph(
        s.pick(f'"Then play inside," said {elder.name}.', f'"I have an idea," said {elder.name}.'),
        s.pick(
            f"They put {a(f'{s.colour} blanket')} over the table and made a tent.",
            f"They made a castle out of a chair and {a(f'{s.colour} blanket')}.",
        ),
        f'"This is our {place.name}!" said {friend.name}, and everyone laughed.',
        f"{pet.name} the {pet.kind} came in and slept under the {s.colour} blanket.",
        s.maybe(f"{elder.name} gave them hot milk and {s.choose(('pancakes', 'cake', 'apples'))}."),
    )
    return middle, ("a day with a friend is always fun", "you can play without the sun")


OUTDOOR_PLOTS: tuple[Plot, ...] = (lost_toy, hurt_animal, planting, stuck_kite, rainy_day)
