"""Plots that happen at home: one function each, from a scene to the paragraphs of a story."""

from shoestring.data.stories.scene import Plot, Scene, a, capital, paragraph


def baking(s: Scene) -> tuple[str, ...]:
    """Something is baked for a friend, and goes a little wrong first."""
    h, elder, friend = s.hero, s.elder, s.friend
    treat = s.choose(s.words.treats)
    spill, cleaning = s.choose(s.words.spills)
    return (
        paragraph(
            s.opening(),
            s.pick(
                f"One {s.time}, {h.he} wanted to bake {a(treat.name)} for {friend.name}.",
                f"It was the birthday of {friend.name}, and {h.name} wanted to bake {a(treat.name)}.",
            ),
            s.pick(f'"Will you help me, {elder.name}?" {h.he} asked.', f"{elder.name} was happy to help."),
        ),
        paragraph(
            f"They put flour into {a(f'{s.size} {s.colour} bowl')}.",
            s.pick(f"Then they took {treat.into}.", f"{elder.name} gave {h.him} {treat.into}."),
            f"But then {h.name} {spill}!",
            s.pick(f'"Oh no! I am so sorry," said {h.name}.', s.sad(h), ""),
            s.pick(
                f'"Don\'t worry," said {elder.name}. "We can clean it up."',
                f'{elder.name} laughed and said, "I did that once, too."',
            ),
            f"They {cleaning} together and started again.",
        ),
        paragraph(
            s.pick(
                f"Soon the {treat.name} was done, and the kitchen smelled good.",
                f"{h.name} washed the {s.colour} bowl and waited by the fire.",
            ),
            s.pick(
                f"When {friend.name} came, they all ate the {treat.name}.",
                f"Then {h.name} took the {treat.name} to {friend.name}.",
            ),
            f"It was {treat.taste}.",
            s.pick(s.thanks(friend, h), s.glad(friend), f'"This is the best {treat.name} of all!" said {friend.name}.'),
        ),
        paragraph(
            s.moral(
                "it is fine to make a mess if you clean it up",
                "you can always start again",
                "food is best when we make it together",
            ),
            s.bedtime(),
        ),
    )


def broken_thing(s: Scene) -> tuple[str, ...]:
    """The hero breaks something, tells the truth, and helps to mend it."""
    h, elder, pet = s.hero, s.elder, s.pet
    thing = s.choose(s.words.breakables)
    toy = s.choose(("ball", "truck", "robot", "train"))
    return (
        paragraph(
            s.opening(),
            s.maybe(f"{h.he} lived with {elder.name} and a {pet.kind} called {pet.name}."),
            f"There was {a(f'{s.size} {s.colour} {thing.name}')} {thing.where}, and {elder.name} loved it very much.",
        ),
        paragraph(
            f"One {s.time}, {h.name} played in the house with a {toy}.",
            s.pick(
                f"{h.he} threw the {toy} too hard, and it hit the {s.colour} {thing.name}.",
                f"{h.he} threw the {toy}, and boom! It hit the {thing.name}.",
            ),
            f"The {thing.name} {thing.broke}.",
            s.maybe(s.pick(s.sad(h), f"What would {elder.name} say?")),
            s.pick(
                "",
                f"{h.name} wanted to say that {pet.name} the {pet.kind} did it, but that was not true.",
                f"First {h.name} wanted to hide, but then {h.he} had a better idea.",
            ),
        ),
        paragraph(
            s.pick(
                f"{h.name} went to {elder.name} and told the truth.",
                f"{h.name} took a deep breath and found {elder.name}.",
            ),
            f'"I broke your {thing.name} with my {toy}. I am sorry," {h.he} said.',
            s.pick(
                f"{elder.name} was not angry.",
                f"{elder.name} looked sad, but then {elder.he} smiled.",
                f'"It was brave to tell me," said {elder.name}. "Let\'s fix it."',
            ),
            f"{h.name} held it, and {elder.name} {thing.mended}.",
            s.pick(
                f"Soon the {s.colour} {thing.name} was as good as new.",
                f"Soon the {s.colour} {thing.name} was back {thing.where}.",
            ),
        ),
        paragraph(
            s.pick(s.glad(h), f"{h.name} took the {toy} out of the house to play.", ""),
            s.moral(
                "it is always good to tell the truth",
                "we can fix things when we tell the truth",
                "it is brave to say sorry",
            ),
            s.bedtime(),
        ),
    )


def scared_of_the_dark(s: Scene) -> tuple[str, ...]:
    """Something scary in the night turns out to be harmless."""
    h, elder = s.hero, s.elder
    fright = s.choose(s.words.frights)
    toy = s.choose(s.words.toys)
    light = s.choose(("lamp", "candle", "light"))
    return (
        paragraph(
            s.opening(),
            s.pick(
                f"But there was one thing {h.he} did not like. {capital(h.he)} was afraid of the dark.",
                f"In the day {h.he} was never afraid, but at night {h.he} did not like the dark.",
            ),
            f"Every night, {h.he} took {h.his} {s.size} {s.colour} {toy} to bed.",
        ),
        paragraph(
            s.pick(
                f"One night, {h.name} woke up and saw {fright.seems} {fright.where}.",
                f"One night, {h.name} could not sleep. {capital(h.he)} saw {fright.seems} {fright.where}.",
            ),
            s.afraid(h),
            s.maybe(f"{h.he} held the {s.colour} {toy} very tight."),
            s.pick(
                f'"{elder.name}! {elder.name}! Come here!" {h.he} shouted.', f'"Help me, {elder.name}!" cried {h.name}.'
            ),
            f"{elder.name} ran into the room with a {light}.",
        ),
        paragraph(
            f'"I saw {fright.seems} {fright.where}!" said {h.name}.',
            s.pick(
                f'"Let\'s look together," said {elder.name}.', f"{elder.name} sat on the bed and took {h.his} hand."
            ),
            f"They looked {fright.where}, and it was {fright.truth}!",
            s.pick(f"{h.name} laughed, and {elder.name} laughed too.", f'"How silly of me!" said {h.name}.', ""),
            s.pick(f"{elder.name} left the {light} by the bed.", f"{elder.name} sang a quiet song for {h.him}."),
        ),
        paragraph(
            s.moral(
                "things only look scary in the dark",
                "a brave child looks again",
                "the dark is only the day without the sun",
            ),
            s.pick(
                f"{h.he} held the {toy} and fell asleep.",
                f"The {s.trait} {h.kind} slept very well that night.",
                f"{h.he} was never afraid of {fright.seems} again.",
            ),
        ),
    )


def storm(s: Scene) -> tuple[str, ...]:
    """A storm at night frightens a pet more than the hero."""
    h, elder, pet = s.hero, s.elder, s.pet
    passed, hidden = s.draw(("under the bed", "behind the sofa", "under the table", "behind the door"), 2)
    return (
        paragraph(s.opening(), f"{h.he} had a {pet.kind} called {pet.name}, who slept on {a(f'{s.colour} blanket')}."),
        paragraph(
            s.pick("One night, there was a big storm.", "One night, a storm came from far away."),
            s.pick("", "The wind blew and the thunder went boom.", "Rain hit the roof, and the thunder was very loud."),
            s.pick("Then all the lights went out.", "Then the whole house was dark."),
            s.maybe(s.afraid(h)),
            f'"Where is {pet.name}?" asked {h.name}. The {pet.kind} was not on the {s.colour} blanket.',
        ),
        paragraph(
            f"{elder.name} gave {h.him} a candle, and they looked {passed}, but {pet.name} was not there.",
            f"Then they heard a quiet sound {hidden}.",
            s.pick(
                f"There was {pet.name}! The poor {pet.kind} was afraid.", f"It was {pet.name}, the poor {pet.kind}!"
            ),
            s.maybe(f'"Don\'t be afraid, {pet.name}," said {h.name}. "It is only a storm."'),
            s.pick(
                f"{h.name} put the {s.colour} blanket around {pet.him} and held {pet.him} tight.",
                f"{h.name} sang to {pet.him} under the {s.colour} blanket.",
            ),
            s.pick(f"Soon {h.name} was not scared at all.", f"Soon {pet.name} fell asleep.", ""),
        ),
        paragraph(
            s.pick("In the morning, the storm was gone.", "When they woke up, the sky was blue again."),
            s.pick(
                "",
                "A big branch was on the grass, but the house was fine.",
                f"{elder.name} made pancakes, and {pet.name} got milk.",
            ),
            s.moral(
                "we are brave when we help a friend",
                "every storm goes away",
                "a storm is not so bad when we are together",
            ),
        ),
    )


HOME_PLOTS: tuple[Plot, ...] = (baking, broken_thing, scared_of_the_dark, storm)
