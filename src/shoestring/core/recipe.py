"""A recipe: the experiment as its sections. `recipe_file` reads and writes it as TOML."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from shoestring.core.errors import UserError
from shoestring.core.hmm_sections import Hmm, Stream
from shoestring.core.parallel import Parallel, Strategy
from shoestring.core.run_sections import Budget, Run
from shoestring.core.schema import encode
from shoestring.core.scoring_sections import Evaluate, Track
from shoestring.core.sections import OF_DROPOUT, Data, Model
from shoestring.core.specs import CodeSpec, is_code
from shoestring.core.train_section import Train
from shoestring.core.tuning import Lora
from shoestring.core.user_code import code_fingerprint


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A whole experiment."""

    run: Run = field(default_factory=Run)
    budget: Budget = field(default_factory=Budget)
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)
    hmm: Hmm | None = None
    stream: Stream | None = None
    parallel: Parallel | None = None
    track: Track | None = None
    lora: Lora | None = None

    @property
    def batch(self) -> int:
        """Effective batch in rows."""
        if self.train.tokens is not None:
            return int(self.train.tokens) // self.data.length
        assert isinstance(self.train.batch, int), "chosen before anything is planned"
        return self.train.batch

    @property
    def autos(self) -> tuple[str, ...]:
        """The fields whose values are to be chosen: those that are "auto", and a batch that is not given."""
        if self.kind == "hmm":
            return ()
        found = [name for name in AUTOS if self.value(name) == "auto"]
        if self.train.batch is None and self.train.tokens is None:
            found.append("train.batch")
        return tuple(found)

    def value(self, name: str) -> Any:
        """The value of "section.field"."""
        section, _, field_name = name.partition(".")
        return getattr(getattr(self, section), field_name)

    @property
    def stream_settings(self) -> Stream:
        """`stream`, or its defaults."""
        return self.stream or Stream()

    @property
    def compensates(self) -> bool:
        """Whether stale gradients are corrected."""
        return self.parallel is not None and self.parallel.delay_compensation is not None

    @property
    def strategy(self) -> Strategy:
        """How workers share what they learn."""
        return "sync" if self.parallel is None else self.parallel.shares

    @property
    def workers(self) -> int:
        """Processes that share the work, unless torchrun started others."""
        return 1 if self.parallel is None else self.parallel.workers or 1

    @property
    def kind(self) -> str:
        """What is trained: "hmm", or the family of the network."""
        return self.model.family if self.hmm is None else "hmm"

    def need_network(self, otherwise: str) -> None:
        """Raise a UserError with this message if an HMM is trained."""
        if self.kind == "hmm":
            raise UserError(otherwise)

    @property
    def code(self) -> list[CodeSpec]:
        """The user's own files that it names."""
        return [CodeSpec(text) for text in (self.model.family, self.data.source) if is_code(text)]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything that determines the result; the folders do not, and a run may be resumed with
        another number of workers."""
        parts = encode(self)
        sizes = {name: getattr(self.budget, name) for name in ("disk", "memory")}
        parts["budget"] |= {name: size.in_whole_units() for name, size in sizes.items() if size is not None}
        for section, name in _PLACES:
            if parts[section] is not None:
                del parts[section][name]
        for section, name in CODE:
            parts[section][name] = _content(parts[section][name])
        if isinstance(texts := parts["data"]["validation"], dict):
            parts["data"]["validation"] = list(texts.items())  # their order matters
        # without None, so that a future optional field does not change the fingerprint
        given = {section: fields for section, fields in parts.items() if fields is not None}
        return fingerprint({s: {n: v for n, v in fields.items() if v is not None} for s, fields in given.items()})

    @property
    def workload(self) -> str:
        """Fingerprint of everything that the memory and time of a training step depend on."""
        from shoestring.core.family import family_of  # imports this module

        data, train = self.data, self.train
        symbols = data.stream or (data.source if data.source.kind == "store" else data.tokenizer)
        model = encode(self.model) | {"family": _content(self.model.family)}
        del model["size"]  # chosen: width, layers and heads say it
        for name in OF_DROPOUT:
            if model[name] is None:
                del model[name]  # profiles from before there were such fields hold
        rows: list[object] = [data.length, data.document_mask]
        if "masked" in family_of(self.model).data_fields:  # for other families packing and masking cost nothing
            rows += [data.masked, data.packing, data.label is not None]
        shared = None if self.parallel is None else {n: v for n, v in encode(self.parallel).items() if v is not None}
        passes = [train.precision, train.optimizer, self.batch, train.per_device, train.compile, train.recompute]
        tuned = [encode(self.lora), train.freeze, train.layer_decay is not None] if self.is_tuned else []
        parts = (train.normalize_neurons, train.cautious_decay)
        update = [] if parts == (None, None) else [*parts]
        return fingerprint([model, symbols, *rows, *passes, train.ema is not None, shared, *tuned, *update])

    @property
    def is_tuned(self) -> bool:
        """Whether weights differ in how they are learned."""
        return self.lora is not None or self.train.freeze is not None or self.train.layer_decay is not None

    @property
    def corpus(self) -> str:
        """Fingerprint of everything that the density of the corpus depends on: its text and its tokens."""
        fields = encode(self.data) | {"source": _content(self.data.source)}
        return fingerprint({name: fields[name] for name in _TEXT if fields[name] is not None})


AUTOS = (
    "model.size",
    "budget.epochs",
    "train.batch",
    "train.lr",
    "train.warmup",
    "train.weight_decay",
    "train.beta2",
    "train.cooldown",
    "model.dropout",
    "model.output_dropout",
    "model.word_dropout",
    "model.pairs",
    "model.pointer",
)
"""Fields that may be "auto"."""
CODE = (("model", "family"), ("data", "source"))
"""Fields that may name an object in the user's own file."""
_PLACES = (("run", "name"), ("run", "folder"), ("data", "folder"), ("parallel", "workers"))
"""Where a run is, and with how many workers."""


_TEXT = (
    "source",
    "column",
    "prompt",
    "completion",
    "delimiter",
    "end_line",
    "split",
    "on_error",
    "unique",
    "tokenizer",
    "end",
)
"""Fields of `[data]` that decide which text is read, and its tokens; the others decide its rows."""


def _content(text: str) -> str:
    """The name, with the fingerprint of its file in place of the path if it is code."""
    return f"{CodeSpec(text).name}@{code_fingerprint(CodeSpec(text))}" if is_code(text) else text


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Recipe, new: Recipe) -> list[str]:
    """A line per field in which two recipes differ, folders aside."""
    lines = []
    was, now = encode(old), encode(new)
    for section in was:
        old_fields, new_fields = was[section] or {}, now[section] or {}
        for name in {**old_fields, **new_fields}:
            before, after = (_named(fields.get(name)) for fields in (old_fields, new_fields))
            if before != after and (section, name) not in _PLACES:
                lines.append(f"{section}.{name} was {before}, is now {after}")
    return lines


def _named(value: Any) -> Any:
    """Code without the folder of its file: a run has a copy."""
    return value.rpartition("/")[2] if isinstance(value, str) and is_code(value) else value
