"""Text generation with a causal network, token by token.

Shapes: R rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoestring.core.errors import Fault, UserError
from shoestring.models.decoding import LEAST, Decoder, try_decoder, try_to_write
from shoestring.models.families.perceiver_ar.network import KeysValues, PerceiverAR
from shoestring.models.language_model import LanguageModel
from shoestring.models.layers.past import Kept


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How a token is drawn from a prediction."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token."""
    top_k: int | None = None
    """Draw from so many of the likeliest tokens; None: from all."""
    top_p: float | None = None
    """Draw from the likeliest tokens that reach this probability together, at least one; None: from all."""

    def __post_init__(self) -> None:
        for name, allowed, condition in (
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1"),
        ):
            if not allowed:
                raise UserError(f"{name} = {getattr(self, name)}: must be {condition}")

    @property
    def plain(self) -> bool:
        """Whether nothing is sorted: from all tokens, or the likeliest."""
        return self.temperature == 0 or (self.top_k is None and self.top_p is None)

    def draw(self, logits: Float[Tensor, "R V"], generator: torch.Generator | None = None) -> Int[Tensor, " R"]:
        """One id per row; the generator must be on the device of the logits."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        shares, ids = self.shares(logits)
        found = torch.multinomial(shares, 1, generator=generator)
        return found[:, 0] if ids is None else ids.gather(1, found)[:, 0]

    def shares(self, logits: Float[Tensor, "R V"]) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"] | None]:
        """The probabilities of the N tokens that may be drawn, and their ids unless they are all of them."""
        if self.top_k is None and self.top_p is None:  # nothing to sort
            values = logits.float()
            return ((values - values.amax(dim=-1, keepdim=True)) / self.temperature).softmax(dim=-1), None
        count = logits.shape[-1] if self.top_k is None else min(self.top_k, logits.shape[-1])
        values, likeliest = logits.float().topk(count, dim=-1)
        shares = ((values - values[:, :1]) / self.temperature).softmax(dim=-1)
        if self.top_p is not None:
            before = shares.cumsum(dim=-1) - shares
            shares = shares.masked_fill(before >= self.top_p, 0.0)
        return shares, likeliest


PLAIN = Drawing()


@torch.no_grad()
def generate(
    model: LanguageModel,
    ids: Int[Tensor, "R T"],
    tokens: int,
    *,
    length: int,
    drawing: Drawing = PLAIN,
    generator: torch.Generator | None = None,
    stride: int | None = None,
    cached: bool = True,
    recorded: bool | None = None,
) -> Int[Tensor, "R more"]:
    """The rows with so many more tokens, each drawn from the prediction after the last ones, at most `length`.

    `stride` and `cached` are those of `RowReader`, or `LatentReader` of a Perceiver AR. On a GPU the pass over a
    further token is `recorded`, which gives the same up to rounding; default: where it is possible and pays; True
    raises UserError where it is not possible.
    """
    if ids.shape[1] < 1:
        raise UserError("generate: rows without tokens; give at least one to begin with")
    if tokens < 0:
        raise UserError(f"generate: tokens = {tokens}: must be at least 0")
    if isinstance(model, PerceiverAR):
        reader: LatentReader | RowReader = LatentReader(model, ids, stride, cached)
    else:
        reader = RowReader(model, ids, length, stride, cached)
    training, begun = model.training, ids.shape[1]
    ids = torch.cat((ids, ids.new_zeros(len(ids), tokens)), dim=1)
    if recorded or (recorded is None and ids.is_cuda and tokens >= LEAST):
        reader.record(ids, drawing, generator)
    model.eval()
    try:
        for end in range(begun, begun + tokens):
            if not reader.write(end):
                logits = reader.logits(ids[:, :end])
                if end == begun and not logits.amax(dim=-1).isfinite().all():
                    raise Fault("the model predicts NaN or infinity: its weights are damaged, or its training diverged")
                ids[:, end] = drawing.draw(logits, generator)
    finally:
        model.train(training)
    if recorded and reader.reason is not None:
        raise UserError(f"generate: recorded = true: {reader.reason}")
    return ids


class RowReader:
    """The predictions of a causal network after rows that grow by a token at a time.

    What it keeps of the tokens before makes a prediction cost one position. When the rows are longer than `length`, the
    oldest `stride` tokens are dropped and the rest is read again; so the prediction is that of `model.logits` for the
    last `length` tokens, or for up to stride − 1 fewer. Default: half of `length`, so that a token costs two positions
    on average. With stride 1 it is always for the last `length` tokens, and long rows are read again for each token.

    `cached = False` reads all of them again for every token, as is done for networks that keep nothing; the result is
    the same up to rounding.
    """

    def __init__(
        self,
        model: LanguageModel,
        ids: Int[Tensor, "R T"],
        length: int,
        stride: int | None = None,
        cached: bool = True,
    ):
        self._stride = max(1, length // 2) if stride is None else stride
        if not 1 <= self._stride <= length:
            raise UserError(f"generate: stride = {stride}: must be between 1 and the {length} tokens of a row")
        self._model, self._length, self._cached = model, length, cached
        self._begin = max(0, ids.shape[1] - length)
        self._past: Any = None
        self._open: Callable[[list[Kept]], Decoder | str] | None = None
        self.decoder: Decoder | None = None
        """What writes tokens without the host, once it is asked for and the first token is there."""
        self.reason: str | None = None
        """Why it does not."""

    def record(self, ids: Int[Tensor, "R T"], drawing: Drawing, generator: torch.Generator | None) -> None:
        """Let the next tokens be written into these rows by a recording of the pass, if that can be had."""
        self._open = lambda past: try_decoder(self._model, ids, past, drawing, generator)

    def write(self, end: int) -> bool:
        """Whether the tokens at `end` of all rows were written; otherwise they are to be drawn from `logits`."""
        if self._open is None or self._past is None or end - self._begin > self._length:
            return False
        if self.decoder is None and self.reason is None:
            keeps = isinstance(self._past, list) and all(isinstance(kept, Kept) for kept in self._past)
            found = self._open(self._past) if keeps else f"a {type(self._model).__name__} keeps its own past"
            self.decoder, self.reason = (None, found) if isinstance(found, str) else (found, None)
        if self.decoder is not None:
            self.reason = try_to_write(self.decoder, end)
            self.decoder = self.decoder if self.reason is None else None
        return self.decoder is not None

    def logits(self, ids: Int[Tensor, "R T"]) -> Float[Tensor, "R V"]:
        """The prediction after the rows, which have one token more than in the last call."""
        new = ids[:, -1:]
        if ids.shape[1] - self._begin > self._length:
            self._begin, self._past = self._begin + self._stride, self._cleared()
            new = ids[:, self._begin :]
        if self._past is None:
            new, self._past = ids[:, self._begin :], self._model.past(self._length) if self._cached else None
        if self._past is None:
            return self._model.last_logits(new)
        return self._model.read_on(new, self._past)

    def _cleared(self) -> Any:
        """What was kept, to begin anew in the tensors that were recorded; None: there is no recording."""
        if self.decoder is None:
            return None
        for kept in self._past:
            kept.clear()
        return self._past


class LatentReader:
    """The predictions of a Perceiver AR, whose keys and values are kept from one token to the next.

    At first the last `model.latents` tokens are latents, and those before them the prefix. Generated tokens become
    latents too. When there are too many, the oldest `stride` latents become prefix. When the prefix exceeds its length
    in training, length − latents, the oldest tokens are dropped, and positions count from the new first token. Training
    has seen every number of latents, because the first latents of a row have few beside them. The latents of a text
    that is shorter than `model.length` are at positions where training had prefix.

    With stride 1 every prediction is that of `model.logits` for the last `model.length` tokens, but all latents are
    computed for each. A larger stride (default: half of the latents) leaves up to stride − 1 fewer latents beside a
    token, which is another, equally valid reading of the text, and computes about latents / stride of them per token.

    The cache is exact for every stride. Keys and values are kept while only latents are added, which changes none of
    them; after any other change they are computed again. `cached = False` computes them again for every token, with
    the same result up to rounding.
    """

    def __init__(self, model: PerceiverAR, ids: Int[Tensor, "R T"], stride: int | None = None, cached: bool = True):
        self._stride = max(1, model.latents // 2) if stride is None else stride
        if not 1 <= self._stride <= model.latents:
            raise UserError(f"generate: stride = {stride}: must be between 1 and the model's {model.latents} latents")
        self._begin, self._split = max(0, ids.shape[1] - model.length), max(0, ids.shape[1] - model.latents)
        self._model, self._cached = model, cached
        self._past: list[KeysValues | None] | None = None
        self.reason: str | None = None

    def record(self, ids: Int[Tensor, "R T"], drawing: Drawing, generator: torch.Generator | None) -> None:  # noqa: ARG002
        self.reason = "no kernels for a PerceiverAR"

    def write(self, end: int) -> bool:  # noqa: ARG002
        """Nothing is recorded."""
        return False

    def logits(self, ids: Int[Tensor, "R T"]) -> Float[Tensor, "R V"]:
        """The prediction after the rows, which have one token more than in the last call."""
        model = self._model
        if ids.shape[1] - self._split > model.latents:
            self._split += self._stride
            self._begin, self._past = max(self._begin, self._split - (model.length - model.latents)), None
        new, past = ids[:, -1:], self._past
        if past is None or not self._cached:
            new, past = ids[:, self._split :], model.read_prefix(ids[:, self._begin : self._split])
        hidden, self._past = model.extend(new, past)
        return model.output().logits(hidden[:, -1])
