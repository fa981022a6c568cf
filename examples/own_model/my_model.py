"""A network of your own: any torch module from ids (rows, tokens) to logits (rows, tokens, vocabulary)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GatedUnit(nn.Module):
    """A gated linear recurrence: h_t = a_t h_{t-1} + (1 - a_t) v_t, channel by channel."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.gate_value(self.norm(x)).chunk(2, dim=-1)
        keep = torch.sigmoid(gate + 2.0)
        state, states = torch.zeros_like(value[:, 0]), []
        for t in range(x.shape[1]):
            state = keep[:, t] * state + (1 - keep[:, t]) * value[:, t]
            states.append(state)
        return x + self.out(torch.stack(states, dim=1))


class Net(nn.Module):
    """`vocab_size` and `length` come from the data, `width` and `layers` from `[model]`, `mix` from `model.options`."""

    def __init__(self, vocab_size: int, width: int, layers: int, mix: float = 1.0):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(GatedUnit(width) for _ in range(layers))
        self.head = nn.Linear(width, vocab_size)
        self.mix = mix

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + self.mix * (layer(x) - x)
        logits: Tensor = self.head(x)
        return logits
