"""The sections `[data]` and `[model]` of a recipe: every field with its type, its range and its help.

What several sections share is here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from shoestring.core.schema import Between, Each, Registered, Text
from shoestring.core.specs import (
    MOST_STEPS,
    PartsSpec,
    RotaryScaling,
    SourceSpec,
    Spec,
    StreamSpec,
    TokenizerSpec,
)
from shoestring.core.units import Count

Precision = Literal["fp32", "bf16", "fp16"]
Auto = Literal["auto"]
"""A value that is chosen for the run, from laws, its corpus and its machine (`planning/auto.py`)."""

# Ranges are wide: they hold every sensible value, and keep the arithmetic of a plan exact. What fits is for the plan.
SIZE = Between(1, 10**9)
"""Of widths, layers and the like."""
MOST_ROWS = 10**7
"""Rows of an effective batch."""
ROWS = Between(1, MOST_ROWS)
COUNT = Between(1, 10**18)
STEPS = Between(1, MOST_STEPS)
TIME = Between(1e-3, 36500 * 86400)
_SHARE = Between(1e-6, 1)
_RATE = Between(0, 1, open_high=True)
_NAME, PATH = Text(255), Text(4096)


def number(value: float | Auto | None) -> float:
    """The value of a field that may be "auto", where the choice is made."""
    assert value is not None and not isinstance(value, str), "chosen before anything is planned"
    return value


def as_specs(section: object, **kinds: type[Spec]) -> None:
    """Convert the fields of a section that was made with plain texts."""
    for name, kind in kinds.items():
        if (value := getattr(section, name)) is not None:
            object.__setattr__(section, name, kind(value))


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """From documents to packed rows."""

    source: Annotated[
        SourceSpec,
        "stories (built in); text:PATH (a document per line), paragraphs:PATH, jsonl:PATH, csv:PATH or parquet:PATH (a "
        "file, .gz, .zst, .xz or .bz2 too, a folder or a pattern); hf:NAME:CONFIG; store:FOLDER (existing); or "
        "my_data.py:documents, a function of your own that yields texts",
    ] = SourceSpec("stories")
    column: Annotated[str, _NAME, "column or field of the text"] = "text"
    prompt: Annotated[
        str | None,
        _NAME,
        "column of the prompts, in place of column: they are read, and only completions are predicted",
    ] = None
    completion: Annotated[str | None, _NAME, "column of the completions, one for each prompt"] = None
    delimiter: Annotated[str, Text(16, allowed="\t\x1f\x1e\x01"), "delimiter of CSV fields"] = ","
    end_line: Annotated[str | None, Text(4096, allowed="\t\f"), "line that ends a document of several lines"] = None
    split: Annotated[str, _NAME, "of a hub data set"] = "train"
    streaming: Annotated[bool, "read a hub data set without storing it"] = False
    on_error: Annotated[Literal["stop", "skip"], "what to do with a broken record"] = "stop"
    unique: Annotated[bool, "leave out repeated documents"] = False
    stream: Annotated[
        StreamSpec | None,
        "computed rows, in place of a source: hmm:RUN (or its model file) or markov:SYMBOLS",
    ] = None
    tokenizer: Annotated[
        TokenizerSpec,
        "bytes; words:N for the N most frequent words; bpe:N for N pieces of bytes; file:PATH or hf:NAME for others",
    ] = TokenizerSpec("bytes")
    end: Annotated[
        str | None, Text(255, allowed="\n\t\0"), "token that ends a document; default: that of the tokenizer's files"
    ] = None
    length: Annotated[int, SIZE, "predictions per row; a row holds one token more (not for an HMM)"] = 256
    packing: Annotated[
        Literal["concat", "best_fit", "pad"],
        "documents joined and cut into rows; kept whole where they fit, several per row; or one per row",
    ] = "concat"
    document_mask: Annotated[bool, "attention, positions and predictions stay within documents"] = False
    random_offset: Annotated[bool, "training rows start at another random offset each epoch (concat)"] = False
    masked: Annotated[float, _SHARE, "masked_lm: share of the tokens to predict"] = 0.15
    whole_words: Annotated[bool, "masked_lm: mask whole words"] = False
    label: Annotated[
        str | None, _NAME, "masked_lm: column with the class of a document, from 0, to predict in place of tokens"
    ] = None
    documents: Annotated[Count | None, Between(1, 10**12), "most documents to read; default: as the plan needs"] = None
    heldout: Annotated[
        float, Between(1e-6, 0.5, also=0), "fraction of the documents kept for evaluation; 0 only with data.validation"
    ] = 0.02
    validation: Annotated[
        SourceSpec | dict[str, SourceSpec] | None,
        "other text to score instead of held-out rows: files, or a split of a hub data set (hf:NAME:CONFIG#SPLIT). "
        'Several have names: {books = "text:a.txt", news = "text:b.txt"}; the first decides the best checkpoint. '
        "data.heldout still applies to the source",
    ] = None
    folder: Annotated[str, PATH, "folder that holds token stores"] = "stores"

    def __post_init__(self) -> None:
        as_specs(self, source=SourceSpec, stream=StreamSpec, tokenizer=TokenizerSpec)
        if isinstance(self.validation, dict):
            texts = {name: SourceSpec(source) for name, source in self.validation.items()}
            object.__setattr__(self, "validation", texts)
        else:
            as_specs(self, validation=SourceSpec)

    @property
    def pair(self) -> tuple[str, str] | None:
        """The columns of prompts and completions; None: a document is one text."""
        return None if self.prompt is None or self.completion is None else (self.prompt, self.completion)

    @property
    def scored(self) -> dict[str, SourceSpec]:
        """The texts of `validation` by name; that of a single one is empty."""
        if self.validation is None:
            return {}
        return self.validation if isinstance(self.validation, dict) else {"": self.validation}


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The network. Its vocabulary comes from the tokenizer."""

    family: Annotated[
        str,
        PATH,
        Registered("family", may_be_code=True),
        "kind of network: llama, swift (a Llama with the parts of model.parts), gpt2, perceiver_ar, masked_lm (BERT's "
        "encoder), hf (any model of transformers), or my_model.py:Net, a torch module of your own that returns logits",
    ] = "llama"
    options: Annotated[
        dict[str, str | bool | int | float] | None,
        Each({str: Text(4096), int: Between(-(1 << 63), (1 << 63) - 1)}),
        "keyword arguments of a module of your own, as {layers = 4}",
    ] = None
    name: Annotated[
        str | None, PATH, "hf: a model's hub name, its folder, or the folder of a config.json alone (random weights)"
    ] = None
    init: Annotated[
        str | None,
        PATH,
        "weights to start from: a run's folder (its best weights; RUN#last, RUN#STEP: others), or a folder or hub name "
        "of transformers; default: random",
    ] = None
    size: Annotated[
        Auto | None,
        "auto: width, layers and heads are chosen for the budget, at one ratio; so by default if none is given, "
        "only the time is limited and lr is auto",
    ] = None
    width: Annotated[int, SIZE, "channels of the residual stream"] = 256
    layers: Annotated[int, SIZE, "blocks"] = 6
    heads: Annotated[int, SIZE, "attention heads; must divide width into even parts"] = 8
    kv_heads: Annotated[
        int | None, SIZE, "llama, swift: heads of keys and values; must divide heads; default: heads"
    ] = None
    hidden: Annotated[
        int | None,
        SIZE,
        "channels of the MLP; default: 4 width, but with SwiGLU (llama, swift) 8/3 width, up to a multiple of 32",
    ] = None
    tied: Annotated[bool, "output matrix is the embedding matrix"] = True
    bias: Annotated[bool, "llama: products of attention and MLP add a bias"] = False
    dropout: Annotated[
        float | Auto,
        Between(0, 1, open_high=True),
        "share of activations dropped in training; auto by default if only the time is limited and lr is auto",
    ] = 0.0
    attention_dropout: Annotated[
        float | None, _RATE, "llama, swift, gpt2: share of the attention weights dropped in training; default: dropout"
    ] = None
    output_dropout: Annotated[
        float | Auto | None,
        _RATE,
        "llama, swift, gpt2: of the channels that the output product reads; default: 0; best has auto",
    ] = None
    word_dropout: Annotated[
        float | Auto | None,
        _RATE,
        "llama, swift, gpt2: share of the vocabulary that is not seen in a pass of training: one vector stands for all "
        "of it, in all rows of the micro-batch; default: 0; best has auto",
    ] = None
    rotary_base: Annotated[float, Between(1, 1e12), "llama, swift: base of the rotary frequencies"] = 10000.0
    rotary_scaling: Annotated[
        RotaryScaling | None,
        "llama, swift: positions divided by a factor, all alike (linear:FACTOR) or by frequency as in Llama 3 "
        "(llama3:FACTOR:LOW:HIGH:LENGTH)",
    ] = None
    norm_eps: Annotated[
        float | None, Between(1e-12, 1), "llama, swift: added to the mean square in norms; default: 1e-5"
    ] = None
    parts: Annotated[
        PartsSpec | None,
        "swift: none, or some of qk_norm, gains, relu2, zero_outputs, embedding_norm, soft_cap:C, value_embeddings, "
        'scales and convolutions:J (docs/how-to/swift.md); default: "qk_norm, gains"',
    ] = None
    pairs: Annotated[
        int | Auto | None,
        Between(0, 10**8),
        'swift: rows of a table for pairs of a token and the one before it, or "auto"; default: 0, no table',
    ] = None
    pointer: Annotated[
        int | Auto | None,
        Between(0, 1024),
        "swift: channels by which positions are compared, so that a token may be taken from those that followed "
        'earlier ones like its own, or "auto"; default: 0, no pointer; best has auto',
    ] = None
    window: Annotated[int | None, SIZE, "swift: positions that a query sees in layers of local attention"] = None
    full_every: Annotated[
        int | None, SIZE, "swift: of so many layers one sees all positions, the last layer too; default: 4"
    ] = None
    positions: Annotated[int | None, SIZE, "gpt2, masked_lm: learned positions; default: data.length"] = None
    classes: Annotated[int | None, Between(2, 10**6), "masked_lm: classes of data.label"] = None
    latents: Annotated[int | None, SIZE, "perceiver_ar: positions at the end of a row that are predicted"] = None
    prefix_dropout: Annotated[
        float, Between(0, 1, open_high=True), "perceiver_ar: share of the positions before the latents that is dropped"
    ] = 0.5

    def __post_init__(self) -> None:
        as_specs(self, rotary_scaling=RotaryScaling, parts=PartsSpec)

    @property
    def attention_rate(self) -> float | Auto:
        """The share of the attention weights that is dropped."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def drops(self) -> bool:
        """Whether anything is dropped by chance, the prefix of a Perceiver AR aside."""
        return any((self.dropout, self.attention_rate, self.output_dropout, self.word_dropout))


OF_VOCABULARY = ("output_dropout", "word_dropout")
OF_DROPOUT = ("attention_dropout", *OF_VOCABULARY)
"""Fields of `[model]` with a rate beside `dropout`; those `OF_VOCABULARY` are of what is read from and given to the
tables of all tokens."""
