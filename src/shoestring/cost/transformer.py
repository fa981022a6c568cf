"""Parameters, FLOPs and saved activations of transformers whose shape a recipe gives, without torch.

Bytes are counted per operation. *Eager* and *compiled* passes save different activations. *Eager* is torch's autograd,
as on a CPU. *Compiled* is torch.compile, which saves the fewest bytes between the forward and the backward pass of a
block: it recomputes a norm from the residual stream, for example, and does not save it in float32.
`tests/cost/test_activations.py` compares both with what torch saves.

D width, K channels of keys, F hidden, H heads, L layers, V vocabulary, T positions of a row, N latents, M kept
positions of a prefix, s bytes per number of the residual stream.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from shoestring.core.errors import UserError
from shoestring.core.family import Family, Recompute, family_of
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost
from shoestring.core.sections import Model

FLEX = 128
"""Positions above which a GPU attends within documents without a mask (`models.layers.attention`)."""
INDEX = 8
"""Bytes of an id or a position."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a training pass over one row computes; every convention of FLOPs follows from it."""

    width: int
    heads: int
    length: int
    """Positions of the row: the tokens of a budget."""
    embedded: int
    """Positions that are embedded; fewer than `length` with prefix dropout."""
    processed: int
    """Positions that go through all layers; the latents of a Perceiver AR."""
    predictions: float
    """Positions that go through the output product."""
    matrices: int
    """Entries of the matrices of all layers."""
    prefix_products: int
    """Multiply-adds that make keys and values of a prefix."""
    pairs: int
    """Queries × keys over all layers, without a discount for the causal mask."""
    before_output: int
    """Entries of the matrix between the last layer and the output product; 0 except in masked_lm."""
    output: int
    """Entries of the output product's matrix."""

    @property
    def forward_flops(self) -> float:
        """FLOPs of the row's forward pass, by the convention of `core.records.Cost`."""
        products = self.matrices * self.processed + self.prefix_products + 2 * self.width * self.pairs
        return 2.0 * products + 2.0 * (self.before_output + self.output) * self.predictions


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Precision and execution of the passes."""

    number: Literal[2, 4]
    """Bytes per number of the residual stream: half precision or fp32."""
    compiled: bool
    gpu: bool
    recompute: Recompute = "none"
    document_mask: bool = False
    """Attention stays within documents."""

    @property
    def fused(self) -> bool:
        """Whether Llama's fused kernels are used: addition with norm, SwiGLU, and rotary heads."""
        return self.gpu and self.number == 2


class Transformer(Family):
    """The counts of GPT-2: a norm before each part, an MLP of two matrices. Families override what differs."""

    fields = frozenset({"size", "width", "layers", "heads", "hidden", "tied", "dropout"})
    """A decoder has those of `OF_DROPOUT` too."""
    document_mask = True
    adapts = True
    recompute = ("none", "selective", "full")
    even_heads = False
    """Whether the channels of a head must be even, as for rotary positions."""
    warmup = 20
    """Steps that the learning rate rises at least: few where norms stand before each part."""
    norm_in_mlp = True
    """Whether "selective" recomputes the second norm."""

    def problems(self, recipe: Recipe) -> list[str]:
        model, found = recipe.model, []
        channels, odd = divmod(model.width, model.heads)
        if odd or (self.even_heads and channels % 2):
            parts = " into even parts" if self.even_heads else ""
            found.append(f"model.heads = {model.heads}: must divide model.width = {model.width}{parts}")
        if (model.positions or recipe.data.length) < recipe.data.length:
            found.append(f"model.positions = {model.positions}: must be at least data.length = {recipe.data.length}")
        return found

    def least_warmup(self, model: Model) -> int:  # noqa: ARG002
        return self.warmup

    def hidden(self, model: Model) -> int:
        """F: model.hidden, or 4 D."""
        return model.hidden or 4 * model.width

    def key_channels(self, model: Model) -> int:
        """K: channels of all heads of keys, and of values."""
        return model.width

    def block_products(self, model: Model) -> dict[str, list[tuple[int, int]]]:
        """The (output, input) channels of the matrices of one layer, by part, in order of use."""
        d, f = model.width, self.hidden(model)
        return {"attention": [(d + 2 * self.key_channels(model), d), (d, d)], "mlp": [(f, d), (d, f)]}

    def matrices(self, model: Model) -> dict[str, int]:
        """Entries of the matrices of all layers, by part."""
        shapes = self.block_products(model).items()
        return {part: model.layers * sum(into * out_of for into, out_of in each) for part, each in shapes}

    def biases(self, model: Model) -> dict[str, int]:
        """Entries of the biases of all layers, by part, if every matrix has one."""
        return {part: model.layers * sum(into for into, _ in each) for part, each in self.block_products(model).items()}

    @abstractmethod
    def parameters(self, model: Model, vocabulary: int, length: int) -> dict[str, int]:
        """Parameters by group; each is in exactly one, and a tied output matrix is an embedding."""

    def work(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Work:  # noqa: ARG002
        """The work of a training pass over a row of `length`."""
        return Work(
            width=model.width,
            heads=model.heads,
            length=length,
            embedded=length,
            processed=length,
            predictions=length,
            matrices=sum(self.matrices(model).values()),
            prefix_products=0,
            pairs=model.layers * length * length,
            before_output=0,
            output=vocabulary * model.width,
        )

    def cost(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Cost:
        """Parameters, and FLOPs of a training pass (with prefix dropout) divided by all positions of a row."""
        flops = self.work(model, vocabulary, length, predicted).forward_flops
        return Cost(parameters=self.parameters(model, vocabulary, length), forward_flops_per_token=flops / length)

    def decisive(self, model: Model) -> dict[str, object]:
        return {"width": model.width, "layers": model.layers, "heads": model.heads, "hidden": self.hidden(model)}

    def logit_cap(self, model: Model) -> float | None:  # noqa: ARG002
        """The soft cap of its logits; None: there is none."""
        return None

    # bytes of saved activations

    def saved_bytes(self, model: Model, length: int, setting: Setting, predicted: float = 1.0) -> dict[str, int]:
        """Saved activations of one row of `length` predictions, by part; `predicted` as for `cost`."""
        work = self.work(model, 1, length, predicted)
        found = self.outside_bytes(model, work, setting)
        for prefix, layers in self._prefixes(model, work).items():
            block = self._block_bytes(model, work, setting, prefix)
            found.update({part: layers * size for part, size in block.items()})
        return {part: int(size) for part, size in found.items() if size}

    def recomputed_bytes(self, model: Model, length: int, setting: Setting) -> int:
        """Bytes per row that the backward pass of a block recomputes, for the block with the most."""
        if setting.recompute == "none":
            return 0
        work, plain = self.work(model, 1, length), replace(setting, recompute="none")
        blocks = [self._block_bytes(model, work, plain, prefix) for prefix in self._prefixes(model, work)]
        if setting.recompute == "selective":
            return max(int(block["mlp"]) for block in blocks)
        return max(sum(int(size) for size in block.values()) for block in blocks)

    def backward_bytes(self, model: Model, length: int, setting: Setting) -> int:
        """Bytes per row of gradients within the backward pass of an MLP, at its peak."""
        return self.work(model, 1, length).processed * setting.number * self.backward_channels(model)

    def backward_channels(self, model: Model) -> int:
        """Channels of the gradients of an MLP's input, output and hidden layer."""
        return 2 * model.width + self.hidden(model)

    def _prefixes(self, model: Model, work: Work) -> Counter[int]:
        """The positions of a prefix that a layer sees, each with the number of layers that see so many."""
        return Counter({work.embedded - work.processed: 1}) + Counter({0: model.layers - 1})

    def _block_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> dict[str, int]:
        """Saved activations of one layer and row, by part."""
        n, s, d = work.processed, setting.number, model.width
        if setting.recompute == "full":
            return {"stream": self.stream_bytes(model, work, setting, prefix)}
        return {
            "norms": n * self.norm_bytes(model, setting) + prefix * (8 + (s * d if setting.compiled else 4 * d)),
            "attention": self._attention_bytes(model, work, setting, prefix),
            "mlp": n * self.mlp_bytes(model, setting),
            "dropout": 2 * n * d * (1 if setting.gpu or setting.compiled else s) * bool(model.dropout),
        }

    def stream_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        """The input of a block."""
        return setting.number * model.width * (work.processed + prefix)

    def norm_bytes(self, model: Model, setting: Setting) -> int:
        """Bytes per position: the inputs of two norms and their statistics."""
        inside = setting.recompute == "selective" and self.norm_in_mlp  # the second one is recomputed with the MLP
        norms = 1 if inside else 2
        if setting.compiled:
            return norms * 8 + 2 * setting.number * model.width  # the stream, and what is added to it
        return norms * (8 + 4 * model.width)

    def _attention_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        """Bytes per row: the input of the first product, queries, keys and values, and the output of attention."""
        n, s, d, h = work.processed, setting.number, model.width, model.heads
        read, mixed, keys = s * d * (n + prefix), s * d * n, n + prefix
        if model.attention_rate and not setting.gpu:  # plain products with all attention weights
            # eager: in float32, and three times; compiled: in float32, as they are dropped if not in half, and a byte
            number, weight = (s, 5 if s == 2 else 9) if setting.compiled else (4, 12)
            turned = self.angle_bytes(model, prefix)
            return read + mixed + turned + number * d * (n + 2 * keys) + weight * h * n * keys
        return read + self.heads_bytes(model, work, setting, prefix)

    def heads_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:  # noqa: ARG002
        """Bytes per row: queries, keys and values, the output of attention, and the sums of softmax."""
        n, s, d = work.processed, setting.number, model.width
        return 4 * s * d * n + 4 * model.heads * n

    def mask_bytes(self, model: Model, work: Work, setting: Setting) -> int:
        """Bytes per row of the mask that all layers share, if attention stays within documents."""
        n, dropped = work.processed, bool(model.attention_rate)
        if not setting.document_mask or (setting.gpu and n >= FLEX and not dropped):
            return 0
        if dropped and not setting.gpu and setting.recompute != "full":  # plain products do not save it
            return 0
        return setting.number * n * n

    def shared_bytes(self, model: Model, length: int, setting: Setting) -> int:  # noqa: ARG002
        """Saved bytes that do not depend on the number of rows."""
        return 0

    def angle_bytes(self, model: Model, prefix: int) -> int:  # noqa: ARG002
        """Bytes of the cosines and sines of a row's own positions."""
        return 0

    def mlp_bytes(self, model: Model, setting: Setting) -> int:
        """Bytes per position: the inputs of its products, and what is between them."""
        d, f, s = model.width, self.hidden(model), setting.number
        if setting.recompute == "selective":
            return 0 if setting.compiled and self.norm_in_mlp else s * d  # its input
        return s * (d + 2 * f)

    def outside_bytes(self, model: Model, work: Work, setting: Setting) -> Counter[str]:
        """Bytes per row before the first layer and after the last one, which are not compiled."""
        s, d = setting.number, model.width
        found = Counter({"embedding": INDEX * (work.length + 1), "output": s * d * work.processed})
        found["mask"] = self.mask_bytes(model, work, setting)
        if model.dropout:
            found["dropout"] += work.embedded * d * (1 if setting.gpu else self.embedded_number(setting))
        if model.output_dropout:
            found["dropout"] += work.processed * d * (1 if setting.gpu else s)
        if model.word_dropout:  # the factor of a token, which is 0 for a word that is not seen
            found["dropout"] += work.embedded * self.embedded_number(setting)
        return found

    def embedded_number(self, setting: Setting) -> int:  # noqa: ARG002
        """Bytes per number of an embedded token, where it is dropped."""
        return 4


def table_positions(model: Model, length: int) -> int:
    """Positions in a table of learned positions, for rows of `length`."""
    return model.positions or length


def transformer_of(model: Model) -> Transformer:
    """The family of a model whose shape the recipe gives; raises UserError for any other."""
    found = family_of(model)
    if not isinstance(found, Transformer):
        raise UserError(f'model.family = "{found.name}": the recipe does not give its shape, so it must be measured')
    return found


def parameters(model: Model, vocabulary: int, length: int) -> dict[str, int]:
    """Parameters by group, of a model whose shape the recipe gives."""
    return transformer_of(model).parameters(model, vocabulary, length)
