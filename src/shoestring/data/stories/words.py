"""The tables the stories draw from: who there is, where things happen, and what belongs to what."""

from typing import NamedTuple


class Person(NamedTuple):
    """Someone with a name and pronouns: a child, a grown-up, or an animal with a name."""

    name: str
    kind: str
    he: str
    him: str
    his: str


class Love(NamedTuple):
    """What a child loves to do, and how the child does it at the end of the day."""

    to: str
    did: str


class Weather(NamedTuple):
    """The weather of the day, what one sees of it, and how it ends."""

    kind: str
    sky: str
    later: str


class Creature(NamedTuple):
    """A wild animal: the part it can hurt, how it moves when well, and what it eats."""

    kind: str
    part: str
    move: str
    moved: str
    food: str


class Place(NamedTuple):
    """Somewhere outdoors, with the landmark, hiding places, games and animals which belong there."""

    name: str
    at: str
    to: str
    landmark: str
    spots: tuple[str, ...]
    games: tuple[str, ...]
    creatures: tuple[Creature, ...]


class Plant(NamedTuple):
    """What grows from a seed: its look when it is grown, and what one does with it then."""

    name: str
    grown: str
    use: str


class Treat(NamedTuple):
    """Something to bake, with what goes into it besides flour and how it tastes."""

    name: str
    into: str
    taste: str


class Fright(NamedTuple):
    """A scary sight or sound of the night, and the harmless thing behind it."""

    seems: str
    where: str
    truth: str


class Skill(NamedTuple):
    """Something hard to learn: the wish, what one wears for it, the failure, the advice and the success."""

    to: str
    wear: str
    failed: str
    advice: str
    did: str


class Gift(NamedTuple):
    """Something a child can make, and what it is made of."""

    name: str
    stuff: str


class Breakable(NamedTuple):
    """A thing that breaks, where it stands, what happens to it and how it is mended."""

    name: str
    where: str
    broke: str
    mended: str


def _boy(name: str, kind: str = "boy") -> Person:
    return Person(name, kind, "he", "him", "his")


def _girl(name: str, kind: str = "girl") -> Person:
    return Person(name, kind, "she", "her", "her")


BOYS = tuple(map(_boy, ("Tom", "Ben", "Sam", "Max", "Leo", "Tim", "Jack", "Finn", "Noah", "Oscar")))
GIRLS = tuple(map(_girl, ("Lily", "Mia", "Anna", "Lucy", "Emma", "Sara", "Zoe", "Ella", "Nora", "Ivy")))
CHILDREN = BOYS + GIRLS
ELDERS = (_girl("Mom"), _boy("Dad"), _girl("Grandma"), _boy("Grandpa"))
PETS = (
    _boy("Rex", "dog"),
    _girl("Bella", "dog"),
    _boy("Buddy", "puppy"),
    _girl("Coco", "puppy"),
    _boy("Spot", "cat"),
    _girl("Fluffy", "cat"),
    _boy("Pip", "kitten"),
    _girl("Daisy", "kitten"),
)
FAST_ANIMALS = ("rabbit", "fox", "deer", "pony")
SLOW_ANIMALS = ("turtle", "snail", "duck", "hen")

TRAITS = ("kind", "brave", "shy", "funny", "clever", "quiet", "gentle", "silly")
SIZES = ("big", "little", "tiny", "shiny", "new", "old", "pretty")
COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "white", "brown")
TOYS = ("ball", "doll", "truck", "train", "robot", "teddy bear", "drum", "boat", "puppet")
LITTER = ("an old shoe", "a sleepy snail", "a long feather", "a lost sock")
SIGHTS = ("bird", "boat", "cat", "bike", "flower", "train", "pony", "kite", "umbrella", "balloon")
AGES = ("three", "four", "five", "six", "seven")
TIMES = ("morning", "afternoon", "day")

LOVES = (
    Love("sing", "sang a happy song"),
    Love("draw", "drew a picture of the day"),
    Love("dance", "danced around the room"),
    Love("read", "read a funny book"),
    Love("eat pancakes", "ate a plate of pancakes"),
    Love("eat soup", "ate a hot bowl of soup"),
    Love("eat apples", "ate a sweet red apple"),
    Love("eat noodles", "ate a big bowl of noodles"),
)

WEATHERS = (
    Weather("sunny", "The sun was shining and the sky was blue.", "When the sun went down, the sky turned pink."),
    Weather("windy", "The wind made the leaves dance.", "By then, the wind was quiet again."),
    Weather("cold", "Everyone wore a warm coat and a hat.", "Back home, they all drank hot milk by the fire."),
    Weather("cloudy", "There were gray clouds in the sky.", "At last, the sun came out from behind the clouds."),
    Weather("warm", "The bees flew from flower to flower.", "Soon the bees went to sleep and the stars came out."),
)

PLACES = (
    Place(
        name="park",
        at="at the park",
        to="to the park",
        landmark="the slide",
        spots=("under the bench", "behind the slide", "near the swings", "in the sandbox"),
        games=("went down the slide", "played on the swings", "rolled in the grass"),
        creatures=(
            Creature("squirrel", "paw", "climb", "climbed", "nuts"),
            Creature("bird", "wing", "fly", "flew", "seeds"),
        ),
    ),
    Place(
        name="forest",
        at="in the forest",
        to="to the forest",
        landmark="the oak tree",
        spots=("under a log", "behind the oak tree", "in the bushes", "near the path"),
        games=("jumped over a log", "climbed the oak tree", "picked berries"),
        creatures=(
            Creature("fox", "paw", "run", "ran", "berries"),
            Creature("rabbit", "leg", "hop", "hopped", "carrots"),
        ),
    ),
    Place(
        name="beach",
        at="at the beach",
        to="to the beach",
        landmark="the rocks",
        spots=("behind the rocks", "under a towel", "near the waves", "in the sand"),
        games=("made a castle of sand", "jumped over the waves", "picked up shells"),
        creatures=(
            Creature("turtle", "foot", "swim", "swam", "leaves"),
            Creature("seagull", "wing", "fly", "flew", "fish"),
        ),
    ),
    Place(
        name="farm",
        at="on the farm",
        to="to the farm",
        landmark="the barn",
        spots=("in the hay", "behind the barn", "under the cart", "near the fence"),
        games=("fed the pony", "jumped in the hay", "ran around the barn"),
        creatures=(
            Creature("lamb", "leg", "jump", "jumped", "milk"),
            Creature("mouse", "paw", "run", "ran", "cheese"),
        ),
    ),
    Place(
        name="lake",
        at="at the lake",
        to="to the lake",
        landmark="the bridge",
        spots=("under the bridge", "in the mud", "behind the old boat", "near the water"),
        games=("threw stones into the water", "ran over the bridge", "looked at the fish"),
        creatures=(
            Creature("duck", "foot", "swim", "swam", "corn"),
            Creature("frog", "leg", "hop", "hopped", "bugs"),
        ),
    ),
)

PLANTS = (
    Plant("sunflower", "as tall as a door", "gave the seeds to the birds"),
    Plant("pumpkin", "as round as the moon", "made a big pot of soup"),
    Plant("rose", "as red as an apple", "put it in a vase by the window"),
    Plant("carrot", "as long as a shoe", "fed it to a hungry pony"),
)
TREATS = (
    Treat("apple pie", "apples and sugar", "sweet and warm"),
    Treat("honey cake", "honey and eggs", "soft and sweet"),
    Treat("cheese pie", "cheese and milk", "soft and warm"),
)
SPILLS = (
    ("dropped the bag of flour, and everything turned white", "cleaned the floor"),
    ("spilled the milk all over the table", "washed the table"),
    ("dropped an egg on the floor", "washed the floor"),
)
FRIGHTS = (
    Fright("a tall man", "by the door", "only a coat"),
    Fright("two green eyes", "under the bed", "only the cat"),
    Fright("a long hand", "at the window", "only a branch of the tree"),
    Fright("a round monster", "on the chair", "only a pile of clothes"),
    Fright("a white ghost", "near the wall", "only a towel"),
)
SKILLS = (
    Skill("ride a bike", "helmet", "fell off the bike", "look up and don't stop", "rode down the whole street"),
    Skill("swim", "swimsuit", "went under the water", "kick your legs", "swam across the lake"),
    Skill("whistle", "scarf", "made no sound", "make your mouth round and blow", "whistled a whole song"),
    Skill("climb a tree", "shoes", "fell into the grass", "hold every branch tight", "climbed up to the top"),
)
BREAKABLES = (
    Breakable("vase", "on the table", "broke into three pieces", "put it together with glue"),
    Breakable("lamp", "by the sofa", "went dark", "gave it a new light"),
    Breakable("chair", "in the kitchen", "lost a leg", "put the leg back with glue and string"),
    Breakable("clock", "near the window", "stopped", "turned a small wheel inside it"),
)
GIFTS = (
    Gift("card", "paper and paint"),
    Gift("necklace", "shells and string"),
    Gift("scarf", "soft wool"),
    Gift("crown", "paper and glue"),
)
