"""A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, causal attention, no biases.

Shapes: R rows, T positions, D width, H heads, C = D / H channels a head, F hidden, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from shoestring.core.facts import Cost
from shoestring.core.recipe import Model
from shoestring.models.attention import Documents, attend
from shoestring.models.protocol import Batch, LanguageModel, Rows


def hidden_channels(model: Model) -> int:
    """F: as given, or 8/3 D up to a multiple of 32, which makes the SwiGLU as large as a plain MLP of 4 D."""
    return model.hidden or -(-8 * model.width // (3 * 32)) * 32


def llama_cost(model: Model, vocab_size: int, length: int) -> Cost:
    """Parameters by group and forward FLOPs a token, by the convention of `Cost`."""
    d, f, n = model.width, hidden_channels(model), model.layers
    products = {"attention": n * 4 * d * d, "mlp": n * 3 * d * f, "head": vocab_size * d}
    pairs = n * 2 * 2 * length * d  # queries with keys, and weights with values, each 2 T D a token and layer
    parameters = {
        "embedding": vocab_size * d,
        "attention": products["attention"],
        "mlp": products["mlp"],
        "norm": (2 * n + 1) * d,
        "head": 0 if model.tied else products["head"],
    }
    return Cost(parameters=parameters, forward_flops_per_token=2.0 * sum(products.values()) + pairs)


class Llama(LanguageModel):
    """Next-token prediction. Weights are drawn from `seed` on the CPU: the same on every device."""

    def __init__(self, model: Model, vocab_size: int, seed: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, model.width)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = nn.RMSNorm(model.width, eps=1e-5)
        self.head = nn.Linear(model.width, vocab_size, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight
        self.channels = model.width // model.heads
        self.rotary_base = model.rotary_base
        self._draw_weights(seed, model.layers)

    @torch.no_grad()
    def _draw_weights(self, seed: int, layers: int) -> None:
        """Normal, deviation 0.02; the two matrices of a block that write to the residual stream by 1/√(2 layers)."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                scale = (2 * layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                parameter.normal_(0.0, 0.02 * scale, generator=generator)

    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        batch = Batch.of(batch)
        logits = self.logits(batch.inputs())
        losses = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets().flatten(), reduction="none")
        return losses.view(len(batch.ids), -1)

    def logits(self, batch: Batch | Rows) -> Float[Tensor, "rows tokens vocabulary"]:
        batch = Batch.of(batch)
        x = self.embedding(batch.ids)  # R T D
        turns = rotary_turns(batch.ids.shape[1], self.channels, self.rotary_base, x.device)
        documents = None
        if batch.within and batch.segments is not None:
            documents = Documents(batch.segments)
            turns = turns_at(documents.positions, turns)
        for block in self.blocks:
            x = block(x, turns, documents)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups: dict[str, list[nn.Parameter]] = {name: [] for name in ("embedding", "attention", "mlp", "norm", "head")}
        for name, parameter in self.named_parameters():  # a tied head is the embedding, and is named once
            groups[_GROUPS[name.split(".")[-2].rstrip("12")]].append(parameter)
        return groups


_GROUPS = {"qkv": "attention", "out": "attention", "gate_up": "mlp", "down": "mlp"}
_GROUPS |= {name: name for name in ("embedding", "norm", "head")}


class Block(nn.Module):
    """Attention, then SwiGLU, each on a normalised copy of the stream and added to it."""

    def __init__(self, model: Model):
        super().__init__()
        d, f = model.width, hidden_channels(model)
        self.heads = model.heads
        self.norm1 = nn.RMSNorm(d, eps=1e-5)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.norm2 = nn.RMSNorm(d, eps=1e-5)
        self.gate_up = nn.Linear(d, 2 * f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(
        self, x: Float[Tensor, "R T D"], turns: Turns, documents: Documents | None = None
    ) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(r, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each R H T C
        mixed = attend(rotate(q, turns), rotate(k, turns), v, documents)
        x = x + self.out(mixed.transpose(1, 2).reshape(r, t, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)  # R T F
        change: Tensor = self.down(F.silu(gate) * up)
        return x + change


Turns = tuple[Tensor, Tensor]
"""Cosine and sine of position × frequency, in float32: each (T, C/2), or (R, 1, T, C/2) where rows differ."""


def rotary_turns(length: int, channels: int, base: float, device: torch.device) -> Turns:
    """Of the positions from 0 on."""
    frequencies = base ** (-torch.arange(0, channels, 2, device=device, dtype=torch.float32) / channels)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def turns_at(positions: Int[Tensor, "R T"], turns: Turns) -> Turns:
    """Of these positions, the same for all heads."""
    cos, sin = turns
    return cos[positions][:, None], sin[positions][:, None]


def rotate(x: Float[Tensor, "R H T C"], turns: Turns) -> Float[Tensor, "R H T C"]:
    """Turn the channel pairs (c, c + C/2) by their position's angle."""
    cos, sin = turns
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
