"""Plots about being good to each other: one function each, from a scene to the paragraphs of a story."""

from shoestring.data.stories.scene import Person, Plot, Scene, a, capital, paragraph


def sharing(s: Scene) -> tuple[str, ...]:
    """The hero does not want to share a toy, and then does."""
    h, friend, place = s.hero, s.friend, s.place
    toy, other = s.draw(s.words.toys, 2)
    return (
        paragraph(
            s.opening(),
            f"{s.one_day()}, {h.he} took {h.his} {s.size} {s.colour} {toy} {place.to}.",
            s.on_the_way(),
            f"{friend.name} was there, but {friend.he} had no toy.",
        ),
        paragraph(
            s.pick(
                f'"Can I play with your {toy}?" asked {friend.name}.',
                f'"What a pretty {toy}! Can we share it?" asked {friend.name}.',
            ),
            s.pick(
                f'"No! It is my {toy}," said {h.name}.', f'"No," said {h.name}, and held the {s.colour} {toy} tight.'
            ),
            s.sad(friend),
            s.pick(
                f"{friend.name} went away and sat {s.choose(place.spots)}.",
                f"{h.name} played alone, but it was not fun.",
            ),
        ),
        paragraph(
            s.pick(
                f"{h.name} looked at {friend.name} and felt bad.",
                f"{h.name} remembered what {s.elder.name} always said.",
            ),
            s.pick(
                f'"I am sorry," {h.he} said. "You can play with my {toy} too."',
                f'"Let\'s play with the {toy} together," {h.he} said.',
            ),
            s.glad(friend),
            s.pick(
                f"They played with the {s.colour} {toy}, and then they {s.choose(place.games)}.",
                f"They played with the {toy} all {s.choose(('day', 'morning', 'afternoon'))}.",
            ),
            s.maybe(f'"The next time, we can share my {other}," said {friend.name}.'),
        ),
        paragraph(
            s.moral("sharing makes everyone happy", "a toy is more fun with a friend", "it feels good to share"),
            s.nightfall(),
        ),
    )


def new_friend(s: Scene) -> tuple[str, ...]:
    """A lonely child says hello to another."""
    h, friend, elder, place = s.hero, s.friend, s.elder, s.place
    toy = s.choose(s.words.toys)
    return (
        paragraph(
            s.opening(),
            s.pick(
                f"{h.he} was new in town, and {h.he} felt lonely.",
                f'But {h.he} was lonely. "I wish I had a friend," {h.he} said to {elder.name}.',
            ),
        ),
        paragraph(
            f"{s.one_day()}, {h.he} went {place.to} with {elder.name}.",
            s.on_the_way(),
            f"A {friend.kind} with {a(f'{s.size} {s.colour} {toy}')} sat alone {s.choose(place.spots)}.",
            s.pick(
                "",
                f"{h.name} wanted to play too, but that was hard to say.",
                f"{h.name} looked at the {toy} for a long time.",
            ),
            s.pick(f'"Go and say hello," said {elder.name}.', f'"Just smile and say your name," said {elder.name}.'),
        ),
        paragraph(
            s.maybe(f"{h.name} took a deep breath."),
            f'"Hello, I am {h.name}. I like your {toy}," {h.he} said.',
            f'The {friend.kind} smiled. "My name is {friend.name}. Will you play with me?"',
            s.pick(
                f"They played with the {s.colour} {toy}, and then they {s.choose(place.games)}.",
                f"They {s.choose(place.games)} and laughed a lot.",
            ),
            s.maybe(f'"I love to {s.love.to}," said {h.name}. "Me too!" said {friend.name}.'),
            s.maybe(s.glad(h)),
        ),
        paragraph(
            s.pick(
                f'"Will you come back?" asked {friend.name}. "Yes!" said {h.name}.',
                f"Now {h.name} and {friend.name} play {place.at} every day.",
            ),
            s.moral("you can make a friend with one hello", "a friend can start with a smile"),
            s.nightfall(),
        ),
    )


def race(s: Scene) -> tuple[str, ...]:
    """A fast animal who boasts and a slow one who does not run a race."""
    place = s.place
    fast, slow = s.draw(s.words.pets, 2)
    fast = fast._replace(kind=s.choose(s.words.fast_animals))
    slow = slow._replace(kind=s.choose(s.words.slow_animals))
    virtue = s.choose(("kind", "brave", "clever", "gentle"))
    ending, lessons = (_fast_one_sleeps if s.coin() else _fast_one_falls)(s, fast, slow)
    return (
        paragraph(
            f"Once upon a time, {a(fast.kind)} named {fast.name} lived {place.at}.",
            s.pick(
                f'"No one is as fast as me!" {fast.he} always said.',
                f"{fast.name} was very fast and told everyone about it.",
            ),
            f"{slow.name} the {slow.kind} lived there too, and {slow.he} was slow but {virtue}.",
        ),
        paragraph(
            f"{s.one_day()}, the two wanted to have a race.",
            s.maybe(s.weather.sky),
            f'"The first one at {place.landmark} gets {a(f"{s.size} {s.colour} hat")}," said {fast.name}.',
            s.pick(
                f"All the animals laughed, but {slow.name} said yes.",
                f'"I will try," said {slow.name}.',
                "One, two, three, go!",
            ),
        ),
        ending,
        paragraph(
            s.pick(
                f"So {slow.name} got the {s.colour} hat and wore it every day.",
                f"So {slow.name} got the {s.colour} hat, but {slow.he} shared it with {fast.name}.",
            ),
            s.maybe(s.weather.later),
            s.pick(
                f"All the animals learned that {s.choose(lessons)}.",
                f"{fast.name} the {fast.kind} learned that {s.choose(lessons)}.",
            ),
        ),
    )


def _fast_one_sleeps(s: Scene, fast: Person, slow: Person) -> tuple[str, tuple[str, ...]]:
    """Let the fast one fall asleep; return the paragraph and the lessons it teaches."""
    ending = paragraph(
        f"{fast.name} ran like the wind, and soon {slow.name} was far behind.",
        s.pick(
            f"But {fast.name} stopped {s.choose(s.place.spots)} and fell asleep.",
            f"But {fast.name} stopped to eat, and {fast.he} ate so much that {fast.he} fell asleep.",
        ),
        f"{slow.name} did not stop. {capital(slow.he)} went on and on, and was the first at {s.place.landmark}!",
        s.pick("", f'"You did it, {slow.name}!" everyone shouted.', f"When {fast.name} woke up, it was too late."),
        s.maybe(f'"I was silly. You are a great {slow.kind}," said {fast.name}.'),
    )
    return ending, ("even the slow can win", "you can win if you don't give up")


def _fast_one_falls(s: Scene, fast: Person, slow: Person) -> tuple[str, tuple[str, ...]]:
    """Let the fast one get hurt; return the paragraph and the lessons it teaches."""
    ending = paragraph(
        f"{fast.name} ran like the wind, and soon {slow.name} was far behind.",
        s.pick(
            f"But then {fast.name} fell {s.choose(s.place.spots)} and hurt {fast.his} foot.",
            f"But {fast.name} fell into a hole and could not get out.",
        ),
        f"{slow.name} saw it and stopped to help.",
        f'"Why do you help me? You can win now!" said {fast.name}.',
        f'"A friend is better than a hat," said {slow.name}.',
        f"They walked to {s.place.landmark} together.",
    )
    return ending, ("a friend is better than a race", "it is good to be kind", "the kind ones really win")


def learning(s: Scene) -> tuple[str, ...]:
    """Something hard is learned by trying again."""
    h = s.hero
    skill = s.choose(s.words.skills)
    teacher = s.choose((s.elder, s.friend))
    return (
        paragraph(
            s.opening(),
            s.pick(
                f"All {h.his} friends could {skill.to}, but {h.name} could not.",
                f"There was one thing {h.he} really wanted. {capital(h.he)} wanted to {skill.to}.",
            ),
            s.pick(
                "",
                f'"I will never learn it," {h.he} said.',
                f'"I am {s.age} years old, and I will learn it," {h.he} said.',
            ),
        ),
        paragraph(
            f"One {s.time}, {h.name} put on {h.his} {s.size} {s.colour} {skill.wear} and tried to {skill.to}.",
            f"But {h.he} {skill.failed}.",
            s.pick(f"{h.he} tried again, and {skill.failed} again.", "Again and again it went wrong.", ""),
            s.pick(s.sad(h), f'"This is too hard!" {h.he} shouted. {capital(h.he)} was very angry.'),
        ),
        paragraph(
            s.pick(f"Then {teacher.name} came and sat near {h.him}.", f"{teacher.name} saw it and wanted to help."),
            s.pick(
                f'"At first I could not {skill.to}," said {teacher.name}. "Try again, but {skill.advice}."',
                f'"Don\'t worry," said {teacher.name}. "If you want to {skill.to}, {skill.advice}."',
            ),
            f"So {h.name} tried {s.choose(('the next day', 'one more time', 'again every morning'))}.",
            s.pick(f"At last, {h.he} {skill.did}!", f"And then {h.he} {skill.did}!"),
            s.pick(
                "",
                f'"I can {skill.to}! I can {skill.to}!" {h.he} shouted.',
                f'"Look at me, {teacher.name}!" {h.he} shouted.',
            ),
        ),
        paragraph(
            s.pick(f"{h.name} was very proud.", s.glad(h), s.thanks(h, teacher)),
            s.moral(
                "you have to try again and again",
                "you can do hard things if you don't give up",
                "hard things need time",
            ),
            s.bedtime(),
        ),
    )


def gift(s: Scene) -> tuple[str, ...]:
    """A gift made by hand is worth more than one from the shop."""
    h, elder, friend = s.hero, s.elder, s.friend
    present = s.choose(s.words.gifts)
    look = s.choose(("big", "new", "pretty", "shiny"))
    return (
        paragraph(
            s.opening(),
            f"The next day was the birthday of {elder.name}.",
            f"{h.name} wanted to buy {a(f'{look} {s.colour} {present.name}')}, but {h.he} had only one coin.",
            s.maybe(s.sad(h)),
        ),
        paragraph(
            s.pick(
                f'Then {h.name} met {friend.name}. "Why are you so sad?" asked {friend.name}.',
                f'Then {friend.name} came to play. "What is wrong?" asked {friend.name}.',
            ),
            f'"I have no gift for {elder.name}," said {h.name}.',
            s.pick(
                f'"Then make one!" said {friend.name}.',
                f'"Don\'t worry. We can make {a(present.name)}," said {friend.name}.',
            ),
            f"They found {present.stuff}, and soon they had {a(f'{s.colour} {present.name}')}.",
            s.maybe(f"{s.pet.name} the {s.pet.kind} wanted to play with it, but {h.name} held it up high."),
        ),
        paragraph(
            s.pick(
                f'In the morning, {h.name} gave it to {elder.name} and said, "Happy birthday!"',
                f'"Happy birthday, {elder.name}!" shouted {h.name} the next morning.',
            ),
            s.pick(
                f'"Did you make this {present.name} for me?" asked {elder.name}.',
                f'"What a pretty {s.colour} {present.name}!" said {elder.name}.',
            ),
            s.pick(s.glad(elder), s.thanks(elder, h)),
        ),
        paragraph(
            s.moral(
                "the best gift is made with love",
                "you can give a lot without a coin",
                "you make a gift with your heart",
            ),
            s.bedtime(),
        ),
    )


FRIENDS_PLOTS: tuple[Plot, ...] = (sharing, new_friend, race, learning, gift)
