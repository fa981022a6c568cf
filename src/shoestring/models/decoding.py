"""Further tokens on a GPU: one pass is recorded as a CUDA graph, with the drawing of its token, and replayed for each.

The host launches a graph per token and waits for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoestring.models.language_model import LanguageModel
from shoestring.models.layers.blocks import stream_type
from shoestring.models.layers.next_token import NextToken, Unsupported
from shoestring.models.layers.operators import HALF, HAS_TRITON
from shoestring.models.layers.past import Kept
from shoestring.models.logits_model import first_line
from shoestring.models.recording import after_failure, record
from shoestring.models.triton_kernels import load_kernels

LEAST = 64
"""Tokens from which on recording pays: kernels that are new to a machine take seconds to compile."""
EARLY_FROM = 9
"""Compute capability from which on a kernel can begin while the one before still runs."""


@runtime_checkable
class Choice(Protocol):
    """How a token is drawn."""

    @property
    def temperature(self) -> float:
        """0 takes the likeliest."""

    @property
    def plain(self) -> bool:
        """Whether it is drawn from all tokens, or the likeliest."""

    def shares(self, logits: Float[Tensor, "R V"]) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"] | None]:
        """The probabilities of N tokens, and their ids unless they are all of them."""


class Decoder:
    """Writes the next token of every row, from what is kept of those before.

    `rows`, R T, are the ids with places for all that will be written. Raises Unsupported for a network, a type or a
    device for which there are no kernels.
    """

    def __init__(
        self,
        model: LanguageModel,
        rows: Int[Tensor, "R T"],
        past: Sequence[Kept],
        drawing: Choice,
        generator: torch.Generator | None,
        early: bool | None = None,
    ):
        """`early`: kernels begin while the one before still runs; default: where the device can do that."""
        if not _has_kernels(rows):
            raise Unsupported("there is no GPU with Triton")
        if "parts" not in vars(type(model)):  # what a subclass inherits need not describe it
            raise Unsupported(f"no kernels for a {type(model).__name__}")
        parts = model.parts()
        kind, length = stream_type(parts.embedding), past[0].length
        if kind not in (*HALF, torch.float32):
            raise Unsupported(f"no kernels for numbers of type {kind}")
        if any(tensor.dtype != kind for kept in past for tensor in kept.all_tensors()):
            raise Unsupported(f"keys, values or inputs are not of type {kind}")
        if parts.positions is not None and len(parts.positions) < length:
            raise Unsupported(f"rows of {length} tokens are longer than the {len(parts.positions)} positions")
        if early is None:
            early = rows.is_cuda and torch.cuda.get_device_capability(rows.device)[0] >= EARLY_FROM
        self._rows, self._past, self._drawing, self.generator = rows, past, drawing, generator
        self._step = NextToken(parts, rows, past, kind, early)
        self._noise = torch.empty_like(self._step.logits) if drawing.plain and drawing.temperature else None
        self._place: tuple[int, int] | None = None
        """What is known of `NextToken.place`."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._launched = False

    def write(self, end: int) -> None:
        """Write the tokens at `end` of all rows, and keep what is needed of those before them.

        The first call launches every kernel, which compiles it; the second records.
        """
        with torch.cuda.device_of(self._rows):
            position = self._past[0].count
            if self._place != (position, end):
                self._put(position, end)
            if not self._launched:
                load_kernels(self._step.logits_of_newest, self._rows.device)
                self._put(position, end)  # kernels that were there already have advanced it
                self._launch()
            else:
                if self._graph is None:
                    self._graph, _ = record(self._launch, generator=self.generator)
                self._graph.replay()
        self._launched, self._place = True, (position + 1, end + 1)
        for kept in self._past:
            kept.advance()
        self._past[0].newest = self._rows[:, end - 1 : end]

    def _put(self, position: int, end: int) -> None:
        self._step.place.copy_(torch.tensor((position, end), dtype=torch.int32))

    def _launch(self) -> None:
        logits, drawing = self._step.logits_of_newest(), self._drawing
        if drawing.plain:
            if self._noise is not None:
                self._noise.exponential_(generator=self.generator)
            self._step.choose(drawing.temperature, self._noise)
            return
        shares, ids = drawing.shares(logits)
        # as torch.multinomial draws one, which looks at the shares first, and so waits for the device
        found = (shares / torch.empty_like(shares).exponential_(generator=self.generator)).argmax(dim=-1, keepdim=True)
        written = found if ids is None else ids.gather(1, found)
        self._rows.scatter_(1, (self._step.place[1:].long() - 1).expand(len(written), 1), written)


def _has_kernels(rows: Tensor) -> bool:
    return HAS_TRITON and rows.is_cuda


def try_decoder(
    model: LanguageModel,
    rows: Int[Tensor, "R T"],
    past: Sequence[Kept],
    drawing: Choice,
    generator: torch.Generator | None,
) -> Decoder | str:
    """What writes the next tokens, or why tokens are drawn from logits that are computed as usual."""
    try:
        return Decoder(model, rows, past, drawing, generator)
    except Unsupported as cause:
        return str(cause)
    except torch.OutOfMemoryError:
        return "the memory of the device does not hold what a recording needs"


def try_to_write(decoder: Decoder, end: int) -> str | None:
    """Write the tokens at `end`; where that cannot be compiled or recorded, why. Then nothing is written."""
    try:
        decoder.write(end)
    except Exception as cause:  # compiler, driver and Triton each have their own types; plain passes need less memory
        after_failure(decoder.generator)
        return first_line(cause.__context__ or cause)
    return None
