"""The sections of a recipe as frozen dataclasses: every field with its type, its range and its help."""

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
    StepsSpec,
    StreamSpec,
    TokenizerSpec,
)
from shoestring.core.tuning import FreezeSpec
from shoestring.core.units import Count, Seconds

Precision = Literal["fp32", "bf16", "fp16"]
Auto = Literal["auto"]
"""A value that is chosen for the run, from laws, its corpus and its machine (`planning/auto.py`)."""

# Ranges are wide: they hold every sensible value, and keep the arithmetic of a plan exact. What fits is for the plan.
SIZE = Between(1, 10**9)
"""Of widths, layers and the like."""
MOST_ROWS = 10**7
"""Rows of an effective batch."""
_ROWS = Between(1, MOST_ROWS)
COUNT = Between(1, 10**18)
STEPS = Between(1, MOST_STEPS)
TIME = Between(1e-3, 36500 * 86400)
_SHARE = Between(1e-6, 1)
_FACTOR = Between(1e-6, 1e6)
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
        float | None, _RATE, "llama, swift, gpt2: of the channels that the output product reads; default: 0"
    ] = None
    word_dropout: Annotated[
        float | None,
        _RATE,
        "llama, swift, gpt2: share of the vocabulary that is not seen in a pass of training: one vector stands for all "
        "of it, in all rows of the micro-batch; default: 0",
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


OF_DROPOUT = ("attention_dropout", "output_dropout", "word_dropout")
"""Fields of `[model]` with a rate beside `dropout`."""


USUAL = {"warmup": 0.05, "weight_decay": 0.1, "beta2": 0.95}
"""Fields that are left out, where the learning rate is given: as in many published recipes."""
COOLDOWN = 0.6
"""The share of the steps in which a learning rate cools down, where the recipe names none. Of text that is read once,
0.4 has 0.6 % more loss, and 0.8 the same (results/log.md)."""
OF_RATES = ("embedding_lr", "head_lr", "scalar_lr")
"""Fields with factors of the learning rate."""
OF_MUON = ("polar_express", "normalize_neurons", "cautious_decay", "momentum_warmup")
"""Fields that only Muon reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """The optimization. The effective batch is the same on every machine; the plan chooses its split."""

    batch: Annotated[int | Auto | None, _ROWS, "effective batch in rows; this or tokens; default: auto"] = None
    tokens: Annotated[Count | None, COUNT, "effective batch in positions: a multiple of data.length"] = None
    grow: Annotated[
        int | None, Between(1, 5), "how often the batch may double where gradient noise is larger; default: never"
    ] = None
    per_device: Annotated[int | None, _ROWS, "micro-batch: rows per device and pass; default: fastest that fits"] = None
    optimizer: Annotated[
        str,
        Registered("optimizer"),
        "update rule: adamw; muon for the matrices of the blocks with adamw for the others; or adamw8bit, whose state "
        "takes a quarter of the memory (bitsandbytes)",
    ] = "adamw"
    lr: Annotated[float | Auto, Between(1e-12, 1e3), "peak learning rate; default: auto"] = "auto"
    schedule: Annotated[
        Literal["cosine", "linear", "cooldown", "constant"],
        "shape after the warm-up, by fraction of the budget; cooldown: constant, then linear",
    ] = "cosine"
    warmup: Annotated[
        float | Auto | None,
        Between(0, 1, open_high=True),
        "fraction of the budget for the warm-up; 0: none; default: auto, but 0.05 if lr is a number",
    ] = None
    least_warmup: Annotated[
        int | None,
        Between(0, 10**9),
        "steps of the warm-up at least, up to a quarter of the run; default: what the family needs",
    ] = None
    cooldown: Annotated[
        float | Auto | None,
        Between(0, 1, open_low=True),
        'share of the steps, the last ones, in which a cooldown decays; default: 0.6, or "auto"',
    ] = None
    continued: Annotated[
        bool | None,
        "continue the run of model.init, with optimizer and place in the text, before its cool-down or at RUN#last",
    ] = None
    final_lr: Annotated[float, Between(0, 1), "learning rate at the end, as a fraction of the peak"] = 0.0
    weight_decay: Annotated[
        float | Auto | None,
        Between(0, 1e3),
        "of matrices; gains and embeddings have none; default: auto, but 0.1 if lr is a number",
    ] = None
    beta1: Annotated[float, Between(0, 1, open_high=True), "decay of the mean gradient"] = 0.9
    beta2: Annotated[
        float | Auto | None,
        Between(0, 1, open_high=True),
        "decay of the mean squared gradient; default: auto, but 0.95 if lr is a number",
    ] = None
    clip: Annotated[float, Between(1e-9, 1e12), "largest gradient norm"] = 1.0
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        "of the products; weights stay fp32. auto: on a GPU bf16, or fp16 where it has no bf16 (T4, V100)",
    ] = "auto"
    compile: Annotated[
        bool | None, "compile the blocks with torch; default: on a GPU, unless they are fused kernels"
    ] = None
    recompute: Annotated[
        Literal["none", "selective", "full"],
        "what the backward pass recomputes to save memory: nothing, the MLPs, or whole blocks",
    ] = "none"
    freeze: Annotated[
        FreezeSpec | None,
        "parts that keep their first weights, without gradient and optimizer state: embedding, attention, mlp, norm, "
        'head, blocks, blocks.N or blocks.N-M, as "embedding, blocks.0-5"',
    ] = None
    layer_decay: Annotated[
        float | None,
        Between(0, 1, open_low=True),
        "factor of the learning rate from a block to the one before it, and to the embedding: the last block and what "
        "follows it have the whole rate",
    ] = None
    embedding_lr: Annotated[
        float | None, _FACTOR, "factor of the learning rate for embeddings, and a head that is tied to them; default: 1"
    ] = None
    head_lr: Annotated[float | None, _FACTOR, "for the output matrix, where it is not tied; default: 1"] = None
    scalar_lr: Annotated[float | None, _FACTOR, "for gains, biases and other vectors and scalars; default: 1"] = None
    polar_express: Annotated[
        bool | None, "muon: five optimal quintics make updates more orthogonal than Newton–Schulz's; default: no"
    ] = None
    normalize_neurons: Annotated[
        bool | None,
        "muon: divide each output neuron's update by its running root mean square, and keep the norm of the whole "
        "(NorMuon); default: yes",
    ] = None
    cautious_decay: Annotated[
        bool | None, "muon: weights decay only where their update has their sign; default: no"
    ] = None
    momentum_warmup: Annotated[
        int | None, Between(0, 10**9), "muon: updates in which the momentum rises from 0.85 to 0.95; default: 0"
    ] = None
    ema: Annotated[
        float | None,
        Between(0, 1, open_low=True, open_high=True),
        "score a running mean of the weights with this decay",
    ] = None
    checkpoint_every: Annotated[
        Seconds | None,
        TIME,
        "time between checkpoints; default: a twentieth of the time budget, 1 s to 10 min, "
        "but ten times what writing one takes where that is over a second",
    ] = None
    keep: Annotated[
        int, Between(1, 10**6), "checkpoints kept, besides the best and those of save_every and save_steps"
    ] = 2
    save_every: Annotated[int | None, STEPS, "steps between checkpoints that are all kept"] = None
    save_steps: Annotated[
        StepsSpec | None,
        'steps whose checkpoints are all kept: "1,10,100", or "1,2,4,...", which continues to the end with that ratio',
    ] = None

    @property
    def normalizes(self) -> bool:
        """Whether Muon normalizes neurons."""
        return self.normalize_neurons is not False

    @property
    def cools(self) -> bool:
        """Whether the learning rate stays until it decays in a share of the steps, the last ones."""
        return self.schedule == "cooldown"

    @property
    def cooling(self) -> float | None:
        """The share of the steps, the last ones, in which the learning rate decays; None: it decays otherwise."""
        if not self.cools:
            return None
        return COOLDOWN if self.cooldown is None else number(self.cooldown)

    def __post_init__(self) -> None:
        as_specs(self, save_steps=StepsSpec, freeze=FreezeSpec)
        for name, value in USUAL.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, "auto" if self.lr == "auto" else value)

    def saved_count(self, total: int) -> int:
        """How many checkpoints of a run of `total` steps are kept to the end."""
        every = 0 if self.save_every is None else total // self.save_every
        listed = [] if self.save_steps is None else self.save_steps.up_to(total)
        return every + sum(self.save_every is None or step % self.save_every != 0 for step in listed)

    def is_saved(self, step: int) -> bool:
        """Whether the checkpoint of a step is kept to the end."""
        every = self.save_every is not None and step % self.save_every == 0
        return every or (self.save_steps is not None and step in self.save_steps.up_to(step))

    def products(self, device: str, has_bf16: bool) -> Precision:
        """The precision of products on a device of this type, which computes in bf16 or not."""
        if self.precision != "auto":
            return self.precision
        return "fp32" if device != "cuda" else "bf16" if has_bf16 else "fp16"
