"""Text that a Perceiver AR writes, token after token.

Shapes: R rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.models.perceiver_ar import KeysValues, PerceiverAR


@torch.no_grad()
def generate(
    model: PerceiverAR,
    ids: Int[Tensor, "R T"],
    tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    stride: int | None = None,
    cached: bool = True,
) -> Int[Tensor, "R more"]:
    """The rows with so many more tokens, each drawn from what the model predicts (see `draw`); without dropout.

    At first the last `model.latents` tokens are latents, and those before them the prefix. Tokens that are written
    become latents too. When there are too many, the oldest `stride` latents become prefix; when that has more positions
    than in training, length − latents, the oldest tokens are forgotten, and positions count from the new first token.
    Every number of latents is one that training has seen, as the first latents of a row have few beside them. Latents
    of a text that is shorter than `model.length` stand where training, on rows of that length, had prefix.

    With stride 1 every token is drawn from `model.logits` of the last `model.length` tokens, but all latents are
    computed for each. A larger stride (default: half of the latents) leaves up to stride − 1 fewer latents beside a
    token, which is another, equally valid reading of the text, and computes about latents / stride of them a token.

    The cache is exact for every stride: keys and values are kept from one token to the next while prefix, latents and
    positions only have a latent added, which changes none of them, and are made anew where anything else changes.
    Rounding apart, `cached = False`, which makes them anew for every token, gives the same.
    """
    stride = max(1, model.latents // 2) if stride is None else stride
    _check(model, ids, tokens, stride)
    begin, split = max(0, ids.shape[1] - model.length), max(0, ids.shape[1] - model.latents)
    past: list[KeysValues | None] | None = None
    weight, bias = model.output()
    training = model.training
    model.eval()
    try:
        for _ in range(tokens):
            if ids.shape[1] - split > model.latents:
                split += stride
                begin, past = max(begin, split - (model.length - model.latents)), None
            if past is None or not cached:
                hidden, past = model.extend(ids[:, split:], model.read_prefix(ids[:, begin:split]))
            else:
                hidden, past = model.extend(ids[:, -1:], past)
            drawn = draw(F.linear(hidden[:, -1], weight, bias), temperature, top_k, generator)
            ids = torch.cat((ids, drawn[:, None]), dim=1)
    finally:
        model.train(training)
    return ids


def draw(
    logits: Float[Tensor, "R V"],
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " R"]:
    """One id a row: of softmax(logits / temperature) over the `top_k` likeliest, or over all; the likeliest at 0.

    The generator is one of the logits' device.
    """
    if temperature < 0 or (top_k is not None and top_k < 1):
        raise UserError(f"temperature = {temperature}, top_k = {top_k}: must be at least 0, and at least 1")
    if temperature == 0:
        return logits.argmax(dim=-1)
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    values, likeliest = logits.float().topk(count, dim=-1)
    shares = ((values - values[:, :1]) / temperature).softmax(dim=-1)
    return likeliest.gather(1, torch.multinomial(shares, 1, generator=generator))[:, 0]


def _check(model: PerceiverAR, ids: Tensor, tokens: int, stride: int) -> None:
    if ids.shape[1] < 1:
        raise UserError("generate: rows without tokens; give at least one to begin with")
    if tokens < 0:
        raise UserError(f"generate: tokens = {tokens}: must be at least 0")
    if not 1 <= stride <= model.latents:
        raise UserError(f"generate: stride = {stride}: must be between 1 and the model's {model.latents} latents")
