"""Parameters and FLOPs of every family whose shape a recipe gives, without torch. "hf" is counted in `models.hf`.

D width, F hidden, L layers, V vocabulary, T positions of a row, N latents, M positions of a prefix that are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.core.errors import UserError
from shoestring.core.facts import Cost
from shoestring.core.recipe import Model
from shoestring.cost.shapes import TOKEN_TYPES, hidden_channels, kept_of, key_channels, latents_of, table_positions


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a training pass over one row computes, in numbers that every way of counting is made from."""

    width: int
    heads: int
    layers: int
    length: int
    """Positions of the row: what a token of a budget is."""
    embedded: int
    """Positions that are looked up; fewer than `length` where a prefix is partly left out."""
    processed: int
    """Positions that go through all layers: of a Perceiver AR its latents."""
    predictions: float
    """Positions that go through the output product."""
    matrices: int
    """Entries of the matrices of all layers."""
    prefix_products: int
    """Multiply-adds that make keys and values of a prefix."""
    pairs: int
    """Queries times keys, over all layers, without a discount for the causal mask."""
    before_output: int
    """Entries of the matrix between the last layer and the output product; 0 but for masked_lm."""
    output: int
    """Entries of the output product's matrix."""

    @property
    def forward_flops(self) -> float:
        """Of the row, by the convention of `core.facts.Cost`."""
        products = self.matrices * self.processed + self.prefix_products + 2 * self.width * self.pairs
        return 2.0 * products + 2.0 * (self.before_output + self.output) * self.predictions


def network_cost(model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Cost:
    """Parameters by group and forward FLOPs a token, by the convention of `Cost`, for rows of `length` predictions.

    `predicted` is for masked_lm without classes alone: the share of the positions that go through its head. A
    classifier's head reads one position a row. FLOPs of a Perceiver AR are those of a training pass, where prefix
    dropout leaves positions out; they are a row's, divided by all of its positions, predicted or not.
    """
    work = network_work(model, vocabulary, length, predicted)
    return Cost(parameters=parameters(model, vocabulary, length), forward_flops_per_token=work.forward_flops / length)


def parameters(model: Model, vocabulary: int, length: int) -> dict[str, int]:
    """By group; each parameter is in exactly one, and a tied output matrix is an embedding."""
    count = {
        "llama": _llama_parameters,
        "gpt2": _gpt2_parameters,
        "perceiver_ar": _perceiver_ar_parameters,
        "masked_lm": _masked_lm_parameters,
    }.get(model.family)
    if count is None:
        raise UserError(
            f'model.family = "{model.family}": its shape is not in the recipe; it is counted by shoestring.models'
        )
    return count(model, vocabulary, length)


def block_products(model: Model) -> dict[str, list[tuple[int, int]]]:
    """The matrices of one layer by the part they belong to, (into, from) channels, in the order they are used."""
    d, f = model.width, hidden_channels(model)
    shared = key_channels(model) if model.family == "llama" else d
    into = 2 * f if model.family == "llama" else f  # a SwiGLU's first matrix makes the gate too
    return {"attention": [(d + 2 * shared, d), (d, d)], "mlp": [(into, d), (d, f)]}


def network_work(model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Work:
    """What a training pass over a row of `length` computes."""
    d, layers = model.width, model.layers
    processed, kept = length, 0
    if model.family == "perceiver_ar":
        processed = min(latents_of(model), length)
        kept = kept_of(length - processed, model.prefix_dropout)
    encoder = model.family == "masked_lm"
    predictions = (1 if model.classes else predicted * length) if encoder else processed
    return Work(
        width=d,
        heads=model.heads,
        layers=layers,
        length=length,
        embedded=processed + kept,
        processed=processed,
        predictions=predictions,
        matrices=sum(layer_matrices(model).values()),
        prefix_products=kept * 2 * d * d,
        pairs=layers * processed * processed + processed * kept,
        before_output=d * d if encoder else 0,
        output=(model.classes or vocabulary if encoder else vocabulary) * d,
    )


def layer_matrices(model: Model) -> dict[str, int]:
    """Entries of the matrices of all layers, by part."""
    return {
        part: model.layers * sum(into * out_of for into, out_of in shapes)
        for part, shapes in block_products(model).items()
    }


def _biases(model: Model) -> dict[str, int]:
    """Where every matrix of a layer has a bias: of all layers, by part."""
    return {part: model.layers * sum(into for into, _ in shapes) for part, shapes in block_products(model).items()}


def _llama_parameters(model: Model, vocabulary: int, length: int) -> dict[str, int]:  # noqa: ARG001 (as of the others)
    matrices, biases = layer_matrices(model), _biases(model)
    return {
        "embedding": vocabulary * model.width,
        **{part: matrices[part] + model.bias * biases[part] for part in matrices},
        "norm": (2 * model.layers + 1) * model.width,
        "head": 0 if model.tied else vocabulary * model.width,
    }


def _gpt2_parameters(model: Model, vocabulary: int, length: int) -> dict[str, int]:
    matrices, biases, d = layer_matrices(model), _biases(model), model.width
    return {
        "embedding": (vocabulary + table_positions(model, length)) * d,
        **{part: matrices[part] + biases[part] for part in matrices},
        "norm": (2 * model.layers + 1) * 2 * d,
        "head": 0 if model.tied else vocabulary * d,
    }


def _perceiver_ar_parameters(model: Model, vocabulary: int, length: int) -> dict[str, int]:
    """The hybrid layer has a norm for the prefix, and a bias where its attention ends; there is no last norm."""
    matrices, d = layer_matrices(model), model.width
    return {
        "embedding": (vocabulary + length) * d,
        "attention": matrices["attention"] + d,
        "mlp": matrices["mlp"],
        "norm": (2 * model.layers + 1) * 2 * d,
        "head": 0 if model.tied else vocabulary * d,
        "output_bias": vocabulary,
    }


def _masked_lm_parameters(model: Model, vocabulary: int, length: int) -> dict[str, int]:
    matrices, biases, d = layer_matrices(model), _biases(model), model.width
    if model.classes:
        output = model.classes * (d + 1)
    else:
        output = vocabulary * (1 if model.tied else d + 1)
    return {
        "embedding": (vocabulary + table_positions(model, length) + TOKEN_TYPES) * d,
        **{part: matrices[part] + biases[part] for part in matrices},
        "norm": (2 * model.layers + (1 if model.classes else 2)) * 2 * d,
        "head": d * d + d + output,
    }
