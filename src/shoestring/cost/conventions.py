"""The FLOPs of training, in the conventions that people mix: one model, one row, eight numbers.

They differ in which parameters are N, in whether attention is counted and how, and in the tables of the vocabulary. For
a small model with a large vocabulary they differ by a factor of two and more, so a number without its convention says
little. All are of a forward and a backward pass, which is twice the forward pass, over one row.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.core.recipe import Model
from shoestring.cost.networks import Work, network_work, parameters

CONVENTIONS = {
    "exact": "matrix products alone, attention over all pairs of positions, the output product where it is made",
    "6N, all parameters": "N is every parameter; a tied output matrix is counted once",
    "6N, with output": "N without token, position and type tables, and with the output matrix, tied or not",
    "6N, no embeddings": "N without token, position and type tables, and without the output matrix, tied or not",
    "Kaplan": "6N + 6 L T D, N the matrices of the layers alone: no tables, no output, half of attention's products",
    "PaLM": "6N + 12 L T D, N every parameter; 12 L H Q T in its letters",
    "Chinchilla": "appendix F as written: embeddings as a product with V, logits, attention, softmax at 3 a weight",
    "Chinchilla's tables": "the same without embeddings and logits, which is what its table A4 agrees with",
}
"""Each with what it counts. D width, L layers, T positions, H heads, Q channels a head, V vocabulary.

Kaplan et al. 2020, table 1; Chowdhery et al. 2022, appendix B; Hoffmann et al. 2022, appendix F. Where these speak of a
decoder whose positions all go through all layers, a Perceiver AR has the same operations at its latents, and besides
those that make keys and values of its prefix and attend to them (the conventions of 6N alone leave them out); a masked
model makes logits at its predictions alone. A SwiGLU has three matrices, and grouped keys smaller ones.
"""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """Training FLOPs of one row by convention, and what to divide them by."""

    row: dict[str, float]
    """By the names of `CONVENTIONS`."""
    length: int
    """Positions of the row: the tokens of a budget or a plan."""
    predictions: float
    """Of them those that are predicted: what D is in an article about Perceiver AR."""
    parameters: dict[str, int]
    """N of each convention that has one."""

    def per_token(self, convention: str = "exact") -> float:
        """FLOPs of a row divided by all of its positions, as `core.facts.Cost.train_flops_per_token`."""
        return self.row[convention] / self.length

    def per_prediction(self, convention: str = "exact") -> float:
        """FLOPs of a row divided by its predictions."""
        return self.row[convention] / self.predictions

    def table(self) -> list[tuple[str, int | None, float, float, str]]:
        """A line for each convention: its name, N or None, FLOPs a token, these against exact, what it counts."""
        exact = self.row["exact"]
        return [
            (name, self.parameters.get(name), self.per_token(name), self.row[name] / exact, counted)
            for name, counted in CONVENTIONS.items()
        ]


def accounting(model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Accounting:
    """All conventions, for rows of `length` positions; `predicted` as for `network_cost`."""
    work, groups = network_work(model, vocabulary, length, predicted), parameters(model, vocabulary, length)
    every = sum(groups.values())
    # an untied output matrix is of the head; one that is tied, of the embedding
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
    """Forward FLOPs of a row by appendix F, but for its first and last line."""
    products = work.matrices * work.processed + work.prefix_products + work.before_output * work.predictions
    return 2.0 * products + (4.0 * work.width + 3.0 * work.heads) * work.pairs
