"""Prompts that a base model finds unlikely: random ids, extended by ids that it expects least.

Shapes: P prompts, T tokens.
"""

from __future__ import annotations

import hashlib

import torch
from jaxtyping import Int
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.models.language_model import LanguageModel, weights_of
from shoestring.models.overlap import least_likely


@torch.no_grad()
def draw_prompts(
    model: LanguageModel, ordinary: Int[Tensor, " ids"], prompts: int, prefix: int, length: int, least: int, seed: int
) -> Int[Tensor, "P T"]:
    """Prompts of `length` ids: `prefix` random `ordinary` ones, then each drawn uniformly from the `least` many
    ordinary ids that the model finds least likely. All prompts are extended in one batch.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    ids = ordinary[torch.randint(len(ordinary), (prompts, prefix), generator=generator)]
    scored = ordinary.to(device)
    for _ in range(length - prefix):
        scores = model.last_logits(ids.to(device)).float()
        if bool(scores.isnan().any()):
            raise UserError("the base predicts NaN, so none of its tokens is the least likely; look at its weights")
        unlikely = ordinary[least_likely(scores[:, scored], least).cpu()]
        drawn = torch.randint(unlikely.shape[1], (prompts, 1), generator=generator)
        ids = torch.cat((ids, unlikely.gather(1, drawn)), dim=1)
    return ids


def weights_fingerprint(model: LanguageModel) -> str:
    """Sixteen hexadecimal digits of all weights with their names and shapes."""
    digest = hashlib.sha256()
    for name, value in sorted(weights_of(model).items()):
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(value.detach().float().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]
