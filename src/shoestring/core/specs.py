"""Texts of a recipe that name something, with their parts; no other module parses them.

A spec is a string, equal to any string of the same characters; its properties are its parts. `parse` refuses a text of
another form. What a spec names (a file, a folder, a hub name) is looked up where it is opened.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import ClassVar, Self

from shoestring.core.errors import closest
from shoestring.core.registry import registry

_NUMBER = r"[0-9]+(\.[0-9]+)?"
_MOST_SCALING = 10**9
MOST_STEPS = 10**12
"""Steps of a run."""
_MOST_LISTED = 100_000
"""Steps of a run that a list may name or continue to."""


class Spec(str):
    """A text of a certain form."""

    form: ClassVar[str]
    """Regular expression."""
    allowed: ClassVar[str]
    """The form for people."""
    most: ClassVar[int] = 4096
    """Bytes that it may have; the longest path of Linux."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The spec; raises ValueError with what is allowed."""
        spec = cls(text)
        if (problem := spec.problem()) is not None:
            raise ValueError(problem)
        return spec

    def problem(self) -> str | None:
        """What is wrong with it, or None."""
        return None if re.fullmatch(self.form, self) else f"must be {self.allowed}"

    @property
    def kind(self) -> str:
        """The part before the colon, or all of it."""
        return self.partition(":")[0]

    @property
    def place(self) -> str:
        """The part after the colon."""
        return self.partition(":")[2]


def number_problem(digits: str, most: int, name: str) -> str | None:
    """What is wrong with a whole number above `most`; int() refuses one of thousands of digits."""
    if len(digits.lstrip("0")) <= len(str(most)) and int(digits) <= most:
        return None
    return f"{name} must be at most {most:,}"


class CodeSpec(Spec):
    """ "file.py:name": an object in a Python file of the user's own."""

    form = r".+\.py:[A-Za-z_][A-Za-z0-9_]*"
    allowed = '"file.py:name"'

    @property
    def file(self) -> str:
        return self.rpartition(":")[0]

    @property
    def name(self) -> str:
        return self.rpartition(":")[2]


def is_code(text: str) -> bool:
    """Whether a text has the form of a `CodeSpec`."""
    return re.fullmatch(CodeSpec.form, text) is not None


class SourceSpec(Spec):
    """`data.source`: "stories", FORMAT:PATH, "hf:NAME[:CONFIG]", "store:FOLDER" or "file.py:name"."""

    def problem(self) -> str | None:
        known = (*registry("format"), "hf", "store")
        if self == "stories" or is_code(self) or (self.kind in known and self.place):
            return None
        return f'must be "stories", or one of {", ".join(known)} with ":" and a path or name, or "file.py:name"'

    @property
    def kind(self) -> str:
        """The part before the colon; "code" for a function of the user's own."""
        return "code" if is_code(self) else self.partition(":")[0]

    @property
    def has_columns(self) -> bool:
        """Whether a record has named fields, one of which may be a label."""
        return self.kind == "hf" or (self.kind in registry("format") and registry("format")[self.kind].has_columns)


MOST_SYMBOLS = 1 << 31
"""Words of a vocabulary, at most: ids are stored as 32-bit integers."""
LEAST_PIECES, MOST_PIECES = 512, 1 << 20


class TokenizerSpec(Spec):
    """`data.tokenizer`."""

    form = "bytes|(words|bpe):[1-9][0-9]*|(file|hf):.+"
    allowed = '"bytes", "words:N" with N at least 1, "bpe:N" with N at least 512, "file:PATH" or "hf:NAME"'

    def problem(self) -> str | None:
        if (problem := super().problem()) is not None or self.fitted is None:
            return problem
        if problem := number_problem(self.place, MOST_SYMBOLS if self.kind == "words" else MOST_PIECES, "N"):
            return problem
        if self.kind == "bpe" and int(self.place) < LEAST_PIECES:
            return f"N must be at least {LEAST_PIECES:,}: each of the 256 bytes is a piece, too"
        return None

    @property
    def words(self) -> int | None:
        """N of "words:N"; None of any other."""
        return int(self.place) if self.kind == "words" else None

    @property
    def pieces(self) -> int | None:
        """N of "bpe:N"; None of any other."""
        return int(self.place) if self.kind == "bpe" else None

    @property
    def fitted(self) -> int | None:
        """N of a tokenizer that is fitted to the corpus; None: it is there before."""
        return int(self.place) if self.kind in ("words", "bpe") else None


MOST_MARKOV_SYMBOLS = 1 << 16


class StreamSpec(Spec):
    """`data.stream`."""

    form = "hmm:.+|markov:[1-9][0-9]*"
    allowed = '"hmm:RUN" or "markov:SYMBOLS"'

    def problem(self) -> str | None:
        if (problem := super().problem()) is None and self.kind == "markov":
            return number_problem(self.place, MOST_MARKOV_SYMBOLS, "SYMBOLS")
        return problem

    @property
    def symbols(self) -> int | None:
        """Symbols of random Markov chains; None where a model determines them."""
        return int(self.place) if self.kind == "markov" else None


class PermutationSpec(Spec):
    """`stream.symbols` and `stream.states`; N is below 2^63, and P at most 2^24."""

    form = "none|sequence|(block|pool):[1-9][0-9]*"
    allowed = '"none", "sequence", "block:N" or "pool:P"'

    def problem(self) -> str | None:
        if (problem := super().problem()) is not None:
            return problem
        if self.place and number_problem(self.place, (1 << 63) - 1, "N"):
            return "must be below 2^63"
        if self.kind == "pool" and self.number > 1 << 24:
            return f'a pool holds at most {1 << 24:,} permutations; "sequence" has no limit'
        return None

    @property
    def number(self) -> int:
        return int(self.place or 0)


class RotaryScaling(Spec):
    """`model.rotary_scaling`."""

    form = rf"linear:{_NUMBER}|llama3:{_NUMBER}:{_NUMBER}:{_NUMBER}:[1-9][0-9]*"
    allowed = '"linear:FACTOR" or "llama3:FACTOR:LOW:HIGH:LENGTH"'

    def problem(self) -> str | None:
        if (problem := super().problem()) is not None:
            return problem
        if self.factor < 1:
            return "its factor must be at least 1"
        if (largest := max(self._numbers)) > _MOST_SCALING:
            return f"its numbers must be at most {_MOST_SCALING:,}, and one is {largest:g}"
        if self.kind == "llama3" and not 0 < self.low < self.high:
            return f"LOW {self.low:g} must be above 0 and below HIGH {self.high:g}"
        return None

    @property
    def _numbers(self) -> list[float]:
        return [float(part) for part in self.split(":")[1:]]

    @property
    def factor(self) -> float:
        return float(self.split(":")[1])

    @property
    def low(self) -> float:
        return float(self.split(":")[2])

    @property
    def high(self) -> float:
        return float(self.split(":")[3])

    @property
    def length(self) -> float:
        """Of llama3: the training length that LOW and HIGH refer to."""
        return float(self.split(":")[4])


class PartsSpec(Spec):
    """`model.parts`: what a Swift has beyond a Llama, separated by commas."""

    names: ClassVar[dict[str, str]] = {
        "qk_norm": "norms of queries and keys",
        "gains": "norms with learned gains",
        "relu2": "an MLP of two matrices with squared ReLU, in place of SwiGLU",
        "zero_outputs": "outputs of attention and MLP that begin at 0",
        "embedding_norm": "a norm of the embedded tokens",
        "soft_cap": "logits within ±15, or ±C for soft_cap:C",
        "value_embeddings": "gated embeddings of tokens, added to the values of every second layer",
        "scales": "scales of the stream and of the first embedding before each layer",
        "convolutions": "keys, values and the MLP's input mixed with those of 3 positions before, or J with :J",
    }
    """The parts, and what each is."""
    usual_cap: ClassVar[float] = 15.0
    usual_before: ClassVar[int] = 3
    allowed = f'"none", or of {", ".join(names)}, as "qk_norm, gains, soft_cap:30"'

    def problem(self) -> str | None:
        found = self._parts
        if unknown := [name for name in found if name not in self.names]:
            close = closest(unknown[0], list(self.names))
            return f"must be {self.allowed}" + ("" if close is None else f"; did you mean {close!r}?")
        if len(set(found)) < len(found):
            return f"must name each part once, and has {next(name for name in found if found.count(name) > 1)} twice"
        numbered = rf"soft_cap:{_NUMBER}|convolutions:[1-8]"
        wrong = [part for part in self._texts if ":" in part and not re.fullmatch(numbered, part)]
        if wrong or (self.cap is not None and not 1 <= self.cap <= 1e4):
            return (
                'only soft_cap has a number, 1 to 10,000 ("soft_cap:30"), and convolutions, 1 to 8 ("convolutions:3")'
            )
        return None

    def has(self, name: str) -> bool:
        """Whether it names this part."""
        return name in self._parts

    @property
    def cap(self) -> float | None:
        """C of the soft cap; None: there is none."""
        return float(self._number("soft_cap") or self.usual_cap) if self.has("soft_cap") else None

    @property
    def positions_before(self) -> int:
        """How many positions before its own a convolution reads; 0 without convolutions."""
        return int(self._number("convolutions") or self.usual_before) if self.has("convolutions") else 0

    @property
    def in_order(self) -> str:
        """The parts of the network, without what matters only for its first weights: equal for equal networks."""
        numbers = {"soft_cap": self.cap, "convolutions": self.positions_before}
        plain = (name for name in self.names if name not in numbers and name != "zero_outputs")
        numbered = (f"{name}:{number:.10g}" for name, number in numbers.items() if number)
        return ", ".join([*(name for name in plain if self.has(name)), *numbered]) or "none"

    def _number(self, name: str) -> str:
        """What follows the name of a part that it has."""
        return next(part.partition(":")[2] for part in self._texts if part.partition(":")[0] == name)

    @property
    def _texts(self) -> list[str]:
        return [] if self == "none" else [part.strip() for part in self.split(",")]

    @property
    def _parts(self) -> list[str]:
        return [part.partition(":")[0] for part in self._texts]


class CheckpointSpec(Spec):
    """The checkpoint of a run."""

    form = r"best|last|peak|[0-9]{1,18}"
    allowed = '"best", "last", "peak" or a step'

    @property
    def step(self) -> int | None:
        """The step; None of the others."""
        return int(self) if self.isdecimal() else None


class StepsSpec(Spec):
    """Steps of a run in rising order; "..." continues with the ratio of the last two."""

    form = r"[0-9]+(, *[0-9]+)*(, *(\.\.\.|…))?"
    most = 1_000_000
    allowed = 'steps such as "1,10,100" or "1,2,4,..."'

    def problem(self) -> str | None:
        if (problem := super().problem()) is not None:
            return problem
        if any(number_problem(part, MOST_STEPS, "") for part in self._parts):
            return f"a step must be at most {MOST_STEPS:,}"
        given = self.given
        if given[0] < 1 or any(a >= b for a, b in itertools.pairwise(given)) or (self._continues and len(given) < 2):
            return f"must be {self.allowed}, from 1 on and rising"
        if len(list(itertools.islice(self._all(), _MOST_LISTED + 1))) > _MOST_LISTED:
            return f"its steps up to {MOST_STEPS:,} are more than {_MOST_LISTED:,}; give fewer, or a larger ratio"
        return None

    @property
    def _parts(self) -> list[str]:
        return [part.strip() for part in self.split(",") if part.strip().isdecimal()]

    @property
    def given(self) -> list[int]:
        """The steps that it names."""
        return [int(part) for part in self._parts]

    @property
    def _continues(self) -> bool:
        return self.endswith(("...", "…"))

    def up_to(self, last: int) -> list[int]:
        """All of its steps, none beyond `last`."""
        return list(itertools.takewhile(lambda step: step <= last, self._all()))

    def _all(self) -> Iterator[int]:
        """Its steps up to `MOST_STEPS`, the last that any run has."""
        given = self.given
        yield from given
        if self._continues:
            step, ratio = given[-1], given[-1] / given[-2]
            while (step := max(step + 1, round(step * ratio))) <= MOST_STEPS:
                yield step
