"""The training FLOPs of one row in eight conventions, and by the article on Perceiver AR.

The conventions differ in the parameters that N counts, in how attention is counted, and in the tables of the
vocabulary. For a small model with a large vocabulary they differ by a factor of two or more. The backward pass counts
as two forward passes.

The article "Training compute-optimal Perceiver AR language models" counts FLOPs per latent, which is a predicted token:

    https://krasserm.github.io/2023/01/23/scaling-perceiver-ar/

Like Kaplan et al., its first count takes only queries × keys of attention; it adds 4 D per embedded position and the
logits. Its correction leaves out embeddings and logits, and counts softmax and values as Chinchilla's appendix F does.
Compute is that of the self-attention part, a plain decoder; the prefix is counted separately.

D width, L layers (hybrid one included), T positions of a row, H heads, Q channels per head, V vocabulary, N latents,
M = T - N positions of the prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoestring.core.sections import Model
from shoestring.cost.transformer import Work, parameters, transformer_of

CONVENTIONS = {
    "exact": "matrix products alone, attention over all pairs of positions, the output product where it is made",
    "6N, all parameters": "N is every parameter; a tied output matrix is counted once",
    "6N, with output": "N without token, position and type tables, and with the output matrix, tied or not",
    "6N, no embeddings": "N without token, position and type tables, and without the output matrix, tied or not",
    "Kaplan": "6N + 6 L T D, N the matrices of the layers alone: no tables, no output, half of attention's products",
    "PaLM": "6N + 12 L T D, N every parameter; 12 L H Q T in its letters",
    "Chinchilla": "appendix F as written: embeddings as a product with V, logits, attention, softmax at 3 per weight",
    "Chinchilla's tables": "the same without embeddings and logits, which is what its table A4 agrees with",
}
"""Each convention with what it counts.

Kaplan et al. 2020, table 1; Chowdhery et al. 2022, appendix B; Hoffmann et al. 2022, appendix F. These describe a plain
decoder. A Perceiver AR has the same operations at its latents; the operations that make keys and values of its prefix
and attend to them are added, except in the conventions of 6N alone. A masked model makes logits only at its
predictions. A SwiGLU has three matrices, and grouped keys have smaller ones.
"""
Count = Literal["first", "corrected"]
"""Of the article."""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """Training FLOPs of one row by convention, and the counts to divide them by."""

    row: dict[str, float]
    """By the names of `CONVENTIONS`."""
    length: int
    """Positions of the row: the tokens of a budget or a plan."""
    predictions: float
    """Predicted positions: the D of the article on Perceiver AR."""
    parameters: dict[str, int]
    """N of each convention that has one."""

    def per_token(self, convention: str = "exact") -> float:
        """FLOPs per position of the row, as `core.records.Cost.train_flops_per_token`."""
        return self.row[convention] / self.length

    def per_prediction(self, convention: str = "exact") -> float:
        """FLOPs per prediction of the row."""
        return self.row[convention] / self.predictions

    def table(self) -> list[tuple[str, int | None, float, float, str]]:
        """A row per convention: name, N or None, FLOPs per token, their ratio to exact, and what it counts."""
        exact = self.row["exact"]
        return [
            (name, self.parameters.get(name), self.per_token(name), self.row[name] / exact, counted)
            for name, counted in CONVENTIONS.items()
        ]


def accounting(model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Accounting:
    """The FLOPs of rows of `length` positions in all conventions; `predicted` as for `network_cost`."""
    family = transformer_of(model)
    work, groups = family.work(model, vocabulary, length, predicted), family.parameters(model, vocabulary, length)
    every = sum(groups.values())
    # an untied output matrix is counted with the head, a tied one with the embedding
    own_output = 0 if model.tied and not model.classes else work.output
    inside = every - groups["embedding"] - own_output
    counts = {
        "6N, all parameters": every,
        "6N, with output": inside + work.output,
        "6N, no embeddings": inside,
        "Kaplan": work.matrices,
        "PaLM": every,
    }
    six = {name: 6.0 * count * work.processed for name, count in counts.items()}
    attention, prefix = work.width * work.pairs, 6.0 * work.prefix_products
    row = {"exact": 3 * work.forward_flops} | six
    row["Kaplan"] += 6.0 * attention + prefix
    row["PaLM"] += 12.0 * attention + prefix
    row["Chinchilla's tables"] = 3 * _chinchilla_layers(work)
    tables = 2.0 * vocabulary * work.width * work.embedded + 2.0 * work.output * work.predictions
    row["Chinchilla"] = row["Chinchilla's tables"] + 3 * tables
    return Accounting(row=row, length=length, predictions=work.predictions, parameters=counts)


def _chinchilla_layers(work: Work) -> float:
    """Forward FLOPs of a row by appendix F, without its first and last line."""
    products = work.matrices * work.processed + work.prefix_products + work.before_output * work.predictions
    return 2.0 * products + (4.0 * work.width + 3.0 * work.heads) * work.pairs


@dataclass(frozen=True, kw_only=True)
class ArticleCost:
    """A model by the article's accounting; FLOPs are those of training, per latent."""

    parameters: int
    cross_parameters: int
    """Learned positions of the prefix."""
    self_flops: int
    """Those of a decoder that sees only the latents: the article's compute."""
    cross_flops: int
    """Added by the prefix."""
    latents: int


def counts_like_the_article(model: Model) -> bool:
    """Whether the article's formulas apply: to a Perceiver AR with an MLP of 4 D and a tied output."""
    return model.latents is not None and model.tied and transformer_of(model).hidden(model) == 4 * model.width


def article_cost(model: Model, vocabulary: int, length: int, count: Count = "first") -> ArticleCost:
    """The cost of a model that `counts_like_the_article`, for rows of `length` positions."""
    d, layers, n = model.width, model.layers, model.latents
    assert n is not None and counts_like_the_article(model), "the article's network"
    m, kept = length - n, 1 - model.prefix_dropout
    if count == "first":
        of_self = 4 * d + layers * (24 * d * d + 2 * d * n) + 2 * d * vocabulary
        of_cross = 4 * d * m / n + (4 * d * d + 2 * d * n) * m / n * kept
    else:
        weights = 3 * model.heads  # FLOPs of softmax per query and key
        of_self = layers * (24 * d * d + (4 * d + weights) * n)
        of_cross = (4 * d * d * m / n + (4 * d + weights) * m) * kept
    return ArticleCost(
        parameters=sum(parameters(model, vocabulary, length).values()),
        cross_parameters=d * m,
        self_flops=3 * of_self,
        cross_flops=3 * int(of_cross),
        latents=n,
    )
