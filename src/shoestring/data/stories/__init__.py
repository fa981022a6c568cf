"""The built-in corpus: small children's stories, generated, endless and the same on every machine.

`story(seed, index)` is a pure function, so a corpus needs no files: any range of indices is a data set, any two
disjoint ranges are a training and a held-out set, and a range can be read from the middle at no cost.
"""

from shoestring.data.stories.friends import FRIENDS_PLOTS
from shoestring.data.stories.home import HOME_PLOTS
from shoestring.data.stories.outdoors import OUTDOOR_PLOTS
from shoestring.data.stories.scene import Plot, Scene

__all__ = ["CORPUS_VERSION", "story"]

CORPUS_VERSION: int = 1
"""Part of every data fingerprint: raised by one whenever the text of any story changes."""

_PLOTS: tuple[Plot, ...] = HOME_PLOTS + FRIENDS_PLOTS + OUTDOOR_PLOTS
_MASK = 2**64 - 1


def story(seed: int, index: int) -> str:
    """Return story number `index` of the endless book `seed`: a few paragraphs, one line each, no final newline.

    Both numbers must be at least 0 and count modulo 2**64.
    """
    if seed < 0 or index < 0:
        raise ValueError(f"seed and index must be at least 0, got seed={seed}, index={index}")
    scene = Scene(_mix(_mix(seed) + index))
    return "\n".join(scene.choose(_PLOTS)(scene))


def _mix(number: int) -> int:
    """Scramble an integer into 64 well mixed bits (the finaliser of splitmix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
