"""A recipe is the experiment, as strict frozen dataclasses; `recipe_file` reads and writes it as TOML."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from shoestring.core.kinds import PermutationKind
from shoestring.core.schema import AtLeast, Between, Matches, MoreThan, encode
from shoestring.core.units import Bytes, Count, Flops, Seconds

_NUMBER = r"[0-9]+(\.[0-9]+)?"
ROTARY_SCALING = rf"linear:{_NUMBER}|llama3:{_NUMBER}:{_NUMBER}:{_NUMBER}:[1-9][0-9]*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Where the run goes, and the one seed everything random is derived from."""

    name: Annotated[str, "name of the run's folder"] = "run"
    folder: Annotated[str, "folder that holds run folders"] = "runs"
    seed: Annotated[int, AtLeast(0), "every random choice is derived from it"] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What may be spent. Each limit that is given caps the plan; the tightest one binds."""

    time: Annotated[
        Seconds | None, MoreThan(0), "wall clock from the start of the process, set-up and saving included"
    ] = None
    flops: Annotated[Flops | None, MoreThan(0), "training computation, by the model's own count"] = None
    tokens: Annotated[Count | None, AtLeast(1), "training tokens"] = None
    steps: Annotated[Count | None, AtLeast(1), "optimizer steps"] = None
    epochs: Annotated[float | None, MoreThan(0), "passes over the training rows; needs data.documents or a file"] = None
    disk: Annotated[Bytes | None, AtLeast(1), "token store and checkpoints together"] = None
    memory: Annotated[
        Bytes | None,
        AtLeast(1),
        "peak of the device (on a CPU: the growth of the process by model and training); default: what is free",
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """From documents to packed rows."""

    source: Annotated[
        str,
        Matches(
            "stories|(text|paragraphs|jsonl|csv|parquet|hf|store):.+",
            '"stories" or one of text, paragraphs, jsonl, csv, parquet, hf, store with ":" and a path or name',
        ),
        "stories (built in); text:PATH (a document a line), paragraphs:PATH, jsonl:PATH, csv:PATH or parquet:PATH (a "
        "file, .gz, .zst, .xz or .bz2 too, a folder or a pattern); hf:NAME:CONFIG; or store:FOLDER (made before)",
    ] = "stories"
    column: Annotated[str, "column or field that holds the text"] = "text"
    delimiter: Annotated[str, "between the fields of CSV"] = ","
    end_line: Annotated[str | None, "a line that ends a document of several lines of text"] = None
    split: Annotated[str, "of a hub data set"] = "train"
    streaming: Annotated[bool, "read a hub data set as it comes, and store nothing of it"] = False
    on_error: Annotated[Literal["stop", "skip"], "what a broken record does"] = "stop"
    unique: Annotated[bool, "leave out documents that occurred before"] = False
    stream: Annotated[
        str | None,
        Matches("hmm:.+|markov:[1-9][0-9]*", '"hmm:RUN" or "markov:SYMBOLS"'),
        "rows that are computed, in place of a source: hmm:RUN (or its model file) or markov:SYMBOLS",
    ] = None
    tokenizer: Annotated[
        str,
        Matches("bytes|words:[1-9][0-9]*|(file|hf):.+", '"bytes", "words:N", "file:PATH" or "hf:NAME"'),
        "bytes; words:N for the N most frequent words; file:PATH or hf:NAME for a tokenizer made elsewhere",
    ] = "bytes"
    end: Annotated[str | None, "token that ends a document; default: what the tokenizer's own files say"] = None
    length: Annotated[int, AtLeast(1), "predictions a row makes; a row holds one token more (not so for an HMM)"] = 256
    packing: Annotated[
        Literal["concat", "best_fit", "pad"],
        "documents joined and cut into rows; kept whole where they fit, several a row; or one a row",
    ] = "concat"
    within: Annotated[bool, "attention, positions and predictions stay within documents"] = False
    shift: Annotated[bool, "training rows start at another random place each epoch (concat)"] = False
    masked: Annotated[
        float, Between(0, 1, open_low=True), "masked_lm: share of the tokens that are to be predicted"
    ] = 0.15
    whole_words: Annotated[bool, "masked_lm: the tokens of a word are hidden all or none"] = False
    label: Annotated[
        str | None, "masked_lm: column with the class of a document, 0 and on, to be predicted in place of tokens"
    ] = None
    documents: Annotated[Count | None, AtLeast(1), "read no more than this many; default: what the plan needs"] = None
    heldout: Annotated[float, Between(0, 0.5, open_low=True), "fraction of the documents kept for evaluation"] = 0.02
    folder: Annotated[str, "folder that holds token stores"] = "stores"


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The network. Its vocabulary comes from the tokenizer."""

    family: Annotated[
        Literal["llama", "gpt2", "perceiver_ar", "masked_lm", "hf"],
        "kind of network; masked_lm is BERT's encoder, hf any model of transformers",
    ] = "llama"
    name: Annotated[
        str | None, "hf: a model's hub name, its folder, or the folder of a config.json alone (random weights)"
    ] = None
    init: Annotated[
        str | None, "weights to start from: a run's folder, or a folder or hub name of transformers; default: random"
    ] = None
    width: Annotated[int, AtLeast(1), "channels of the residual stream"] = 256
    layers: Annotated[int, AtLeast(1), "blocks"] = 6
    heads: Annotated[int, AtLeast(1), "attention heads; must divide width into even parts"] = 8
    kv_heads: Annotated[
        int | None, AtLeast(1), "llama: heads of keys and values; must divide heads; default: heads"
    ] = None
    hidden: Annotated[
        int | None,
        AtLeast(1),
        "channels of the MLP; default: 4 width, llama (SwiGLU): 8/3 width, up to a multiple of 32",
    ] = None
    tied: Annotated[bool, "output matrix is the embedding matrix"] = True
    bias: Annotated[bool, "llama: products of attention and MLP add a bias"] = False
    dropout: Annotated[float, Between(0, 1, open_high=True), "share of activations left out in training"] = 0.0
    rotary_base: Annotated[float, MoreThan(0), "llama: base of the rotary frequencies"] = 10000.0
    rotary_scaling: Annotated[
        str | None,
        Matches(ROTARY_SCALING, '"linear:FACTOR" or "llama3:FACTOR:LOW:HIGH:LENGTH"'),
        "llama: positions divided by a factor, all of them (linear) or by frequency as Llama 3 (llama3)",
    ] = None
    norm_eps: Annotated[float | None, MoreThan(0), "llama: added to the mean square in its norms; default: 1e-5"] = None
    positions: Annotated[int | None, AtLeast(1), "gpt2, masked_lm: positions in their table; default: data.length"] = (
        None
    )
    classes: Annotated[int | None, AtLeast(2), "masked_lm: classes of data.label"] = None
    latents: Annotated[int | None, AtLeast(1), "perceiver_ar: last positions of a row, which are predicted"] = None
    prefix_dropout: Annotated[
        float, Between(0, 1, open_high=True), "perceiver_ar: share of the positions before the latents left out"
    ] = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """How the weights are updated. The effective batch is kept whatever the machine; the plan decides its split."""

    batch: Annotated[int | None, AtLeast(1), "effective batch in rows; this or tokens"] = None
    tokens: Annotated[Count | None, AtLeast(1), "effective batch in tokens: a multiple of data.length"] = None
    per_device: Annotated[int | None, AtLeast(1), "rows at a time on a device; default: the fastest that fits"] = None
    optimizer: Annotated[
        Literal["adamw", "muon"], "update rule; muon is for the matrices of the blocks, and adamw for the others"
    ] = "adamw"
    lr: Annotated[float, MoreThan(0), "peak learning rate"] = 3e-4
    schedule: Annotated[
        Literal["cosine", "linear", "constant"], "shape after the warm-up, by fraction of the budget"
    ] = "cosine"
    warmup: Annotated[float, Between(0, 1, open_high=True), "fraction of the budget for the warm-up"] = 0.05
    final_lr: Annotated[float, Between(0, 1), "learning rate at the end, as a fraction of the peak"] = 0.0
    weight_decay: Annotated[float, AtLeast(0), "for matrices; gains and embeddings have none"] = 0.1
    beta1: Annotated[float, Between(0, 1, open_high=True), "decay of the mean gradient"] = 0.9
    beta2: Annotated[float, Between(0, 1, open_high=True), "decay of the mean squared gradient"] = 0.95
    clip: Annotated[float, MoreThan(0), "largest gradient norm"] = 1.0
    precision: Annotated[Literal["auto", "fp32", "bf16"], "of the products; weights stay fp32. auto: bf16 on a GPU"] = (
        "auto"
    )
    compile: Annotated[bool | None, "let torch compile the blocks; default: on a GPU"] = None
    recompute: Annotated[
        Literal["none", "selective", "full"],
        "what the backward pass computes again to save memory: nothing, the MLPs, or whole blocks",
    ] = "none"
    ema: Annotated[
        float | None, Between(0, 1, open_low=True, open_high=True), "score a running mean of the weights, of this decay"
    ] = None
    checkpoint_every: Annotated[
        Seconds | None, MoreThan(0), "default: a twentieth of the time budget, 1 s to 10 min"
    ] = None
    keep: Annotated[int, AtLeast(1), "checkpoints kept, besides the best"] = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Hmm:
    """A hidden Markov model in place of a network: with this section, `[model]` and `[train]` are not used."""

    states: Annotated[int, AtLeast(2), "hidden states"] = 100
    plain: Annotated[bool, "leave out lines with anything but letters, spaces, commas and full stops"] = False
    unique: Annotated[bool, "take a sentence that occurs again only once"] = False
    update: Annotated[
        Literal["all", "every", "online"], "new tables after all rows, after some, or running averages"
    ] = "online"
    update_every: Annotated[int, AtLeast(1), "rows between updates, for every and online"] = 256
    restarts: Annotated[int, AtLeast(1), "random starts, of which the best goes on"] = 1
    prior: Annotated[float, MoreThan(0), "pseudo-count of a row of each table: nothing ever has probability zero"] = (
        1e-3
    )
    concentration: Annotated[float, MoreThan(0), "of the random start: small values make peaked rows"] = 1.0
    tied_start: Annotated[bool, "the start distribution is the stationary one"] = False
    tolerance: Annotated[float | None, MoreThan(0), "stop when an epoch lowers the loss by less than this share"] = None


_KINDS = PermutationKind()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """How the rows of `data.stream` are made; a row of its own for every number, and nothing on disk."""

    symbols: Annotated[
        str, _KINDS, "hmm: rows that share a permutation of the symbols; sequence: every row its own"
    ] = "none"
    states: Annotated[str, _KINDS, "hmm: rows that share a shuffle of which state emits what; kinds as for symbols"] = (
        "none"
    )
    start: Annotated[Literal["model", "stationary"], "hmm: what the first state is drawn from"] = "model"
    chain: Annotated[
        Literal["dirichlet", "zipf", "doubly_stochastic"], "markov: how the transitions of a row's chain are drawn"
    ] = "dirichlet"
    fewest: Annotated[int, Between(2, 64), "markov: states of the smallest chain"] = 3
    most: Annotated[int, Between(2, 64), "markov: states of the largest chain"] = 10
    concentration: Annotated[int, Between(1, 64), "markov: of dirichlet; 1 draws all chains alike, more evens out"] = 1
    exponent: Annotated[float, Between(0, 8, open_low=True), "markov: of zipf"] = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate:
    """What is scored on held-out rows, and how often."""

    rows: Annotated[int, AtLeast(1), "held-out rows, or all where there are fewer"] = 256
    per_device: Annotated[int | None, AtLeast(1), "rows at a time; default: as many as in training"] = None
    every: Annotated[float, Between(0, 1, open_low=True), "fraction of the planned steps between evaluations"] = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """How several devices share the work, under torchrun; without this section each has a copy of the model."""

    shard: Annotated[bool, "divide weights, gradients and optimizer state over the devices (FSDP)"] = False


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

    @property
    def batch(self) -> int:
        """Effective batch in rows; of an HMM, the most rows that are worth trying at once."""
        if self.hmm is not None:
            return HMM_ROWS
        if self.train.tokens is not None:
            return int(self.train.tokens) // self.data.length
        assert self.train.batch is not None, "checked when the recipe was read"
        return self.train.batch

    @property
    def stream_settings(self) -> Stream:
        """How a stream's rows are made, where the recipe says nothing about it too."""
        return self.stream or Stream()

    @property
    def kind(self) -> str:
        """What is trained: "hmm", or the family of the network."""
        return self.model.family if self.hmm is None else "hmm"

    @property
    def fingerprint(self) -> str:
        """Of everything that decides the result: all but where it is kept."""
        parts = encode(self)
        for section, name in _PLACES:
            del parts[section][name]
        for section, name, default in _LATER:
            if parts[section][name] == default:
                del parts[section][name]
        given = {section: fields for section, fields in parts.items() if fields is not None}
        # what is not given says nothing, so a field that is new tomorrow leaves this fingerprint as it is
        return fingerprint({s: {n: v for n, v in fields.items() if v is not None} for s, fields in given.items()})

    @property
    def workload(self) -> str:
        """Fingerprint of everything that the bytes and seconds of a step depend on."""
        if self.hmm is not None:
            rows = self.hmm.update if self.hmm.update == "all" else [self.hmm.update, self.hmm.update_every]
            return fingerprint(["hmm", self.hmm.states, self.data.tokenizer, self.data.length, rows])
        stored = self.data.source if self.data.source.startswith("store:") else self.data.tokenizer
        symbols = stored if self.data.stream is None else self.data.stream
        parts = [encode(self.model), symbols, self.data.length, self.data.within, self.train.precision]
        if self.model.family in ("masked_lm", "hf"):
            parts += [self.data.masked, self.data.packing, self.data.label is not None]
        parts += [self.train.optimizer, self.batch, self.train.per_device, self.train.compile, self.train.recompute]
        return fingerprint([*parts, self.train.ema is not None, encode(self.parallel)])


HMM_ROWS = 1 << 16
_PLACES = (("run", "name"), ("run", "folder"), ("data", "folder"))
_LATER = (
    ("data", "masked", 0.15),
    ("data", "whole_words", False),
    ("model", "bias", False),
    ("model", "dropout", 0.0),
    ("model", "prefix_dropout", 0.5),
    ("train", "recompute", "none"),
)
"""Fields that came after the first recipes, which did what their defaults say."""


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits of a plain value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The fields in which two recipes differ, one line each, those that only say where things are kept left out."""
    lines = []
    was, now = encode(old), encode(new)
    for section in was:
        old_fields, new_fields = was[section] or {}, now[section] or {}
        for name in {**old_fields, **new_fields}:
            before, after = old_fields.get(name), new_fields.get(name)
            if before != after and (section, name) not in _PLACES:
                lines.append(f"{section}.{name} was {before}, is now {after}")
    return lines
