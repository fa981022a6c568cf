"""What training reads: rows as batches, in an order that is a pure function of seed and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from shoestring.core.recipe import Recipe
from shoestring.core.seeds import derive
from shoestring.data.pack.frame import frame_rows
from shoestring.data.pack.masking import IGNORED, Masked, mask_rows
from shoestring.data.pack.order import Index, Pool, RowIndex
from shoestring.data.pack.packed import PackedSource
from shoestring.data.pack.windows import Windows
from shoestring.data.store.store import StoreRows
from shoestring.data.tokenize.special_tokens import SpecialTokens, special_tokens, word_starts
from shoestring.data.tokenize.tokenizers import Tokenizer
from shoestring.models.batch import Batch
from shoestring.streams.source import StreamRows


class TokenSource(Protocol):
    """Anything that returns rows by number."""

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        """The rows that a step reads: a pure function of its arguments."""
        ...

    def batch(self, index: RowIndex) -> Batch:
        """Rows by epoch and number; tensors may be on any device."""
        ...


class RowsOfStore:
    """Rows of a store, with the documents that they hold where these matter."""

    def __init__(
        self,
        source: StoreRows | PackedSource,
        document_mask: bool,
        marked: int | None = None,
        windows: Windows | None = None,
    ):
        """`marked`: the first of the ids that mark prompts; None if there are none. `windows`: rows to score that
        overlap, in place of those of the store."""
        self._source, self._document_mask, self._marked, self._windows = source, document_mask, marked, windows
        self.order = source.order

    def __len__(self) -> int:
        return len(self._source) if self._windows is None else len(self._windows.starts)

    @property
    def pools(self) -> Sequence[Pool]:
        """What the run had of these rows, from where on."""
        return self._source.pools

    @pools.setter
    def pools(self, pools: Sequence[Pool]) -> None:
        assert pools[-1].rows == len(self), "the last pool has all rows"
        self._source.pools = pools

    def batch(self, index: RowIndex) -> Batch:
        return scored(self._whole(index), index.rows, self._marked, self._windows)

    def _whole(self, index: RowIndex) -> Batch:
        if isinstance(self._source, PackedSource):
            packed = self._source.rows(index.rows)
            return Batch(torch.from_numpy(packed.ids), torch.from_numpy(packed.segments), self._document_mask)
        starts = self._source.starts(index) if self._windows is None else self._windows.starts[index.rows]
        width = self._source.length + 1
        ids = torch.from_numpy(self._source.windows(starts, width))
        if not self._document_mask:
            return Batch(ids)
        return Batch(ids, torch.from_numpy(self._source.segments(starts, width)), True)


def scored(batch: Batch, rows: Index, marked: int | None, windows: Windows | None) -> Batch:
    """Rows by number, without predictions of prompts and of context, where there are any."""
    batch = batch if marked is None else completions(batch, marked)
    return batch if windows is None else after_context(batch, windows.firsts[rows], windows.context)


def after_context(batch: Batch, firsts: Index, context: int) -> Batch:
    """Rows of `length` tokens that predict what they predicted before, from the prediction `firsts` (rows,) on."""
    targets = batch.targets()
    before = torch.arange(targets.shape[1]) < torch.from_numpy(firsts)[:, None]
    return batch.inputs()._replace(wanted=targets.masked_fill(before, IGNORED), context=context)


def completions(batch: Batch, marked: int) -> Batch:
    """Rows of `length` tokens that predict what they predicted before, except the tokens of prompts.

    These have the ids from `marked` on.
    """
    prompts = batch.ids >= marked
    plain = batch._replace(ids=torch.where(prompts, batch.ids - marked, batch.ids))
    # completions differ from step to step, and all positions are their bound
    return plain.inputs()._replace(wanted=plain.targets().masked_fill(prompts[:, 1:], IGNORED), share=1.0)


class RowsOfStream:
    """Rows of a stream, which all belong to one epoch."""

    def __init__(self, rows: StreamRows):
        self._rows = rows

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return RowIndex.first(self._rows.order(seed, step, batch))

    def batch(self, index: RowIndex) -> Batch:
        return Batch(self._rows.rows(index.rows))


class LastPredictions:
    """Rows for which only the last predictions are made."""

    def __init__(self, source: TokenSource, last: int):
        self._source, self._last = source, last
        self.order = source.order

    def batch(self, index: RowIndex) -> Batch:
        batch = self._source.batch(index)
        if batch.wanted is not None:
            batch.wanted[:, : -self._last] = IGNORED
        return batch._replace(last=self._last)


class Masking(NamedTuple):
    """How the tokens of a split are hidden."""

    special: SpecialTokens
    share: float
    word_starts: NDArray[np.bool_] | None
    """(vocabulary,): by id; None if each token is hidden independently."""
    end: int | None
    """The token that ends a document."""
    seed: int

    @classmethod
    def of(cls, recipe: Recipe, tokenizer: Tokenizer, split: str) -> Masking:
        """The masking that a recipe describes; each split alone, held-out rows alike in every run."""
        seed = recipe.run.seed if split == "train" else 0
        starts = word_starts(tokenizer) if recipe.data.whole_words else None
        special, seed = special_tokens(tokenizer), derive(seed, "masks", split)
        return cls(special, recipe.data.masked, starts, tokenizer.end, seed)

    def __call__(self, ids: NDArray[np.int64], rows: Index, epoch: int) -> Masked:
        """The rows (R, T) with the numbers (R,), as they are masked in an epoch."""
        return mask_rows(
            ids,
            rows,
            seed=self.seed,
            epoch=epoch,
            vocab_size=self.special.vocab_size,
            mask_id=self.special.mask,
            special_ids=self.special.fixed,
            share=self.share,
            word_starts=self.word_starts,
        )


class MaskedRows:
    """Rows without one of their tokens, in the tokenizer's special tokens, with some tokens hidden: others in every
    epoch, the same in every evaluation."""

    def __init__(self, source: TokenSource, masking: Masking):
        self._source, self._masking = source, masking
        self.order = source.order

    def batch(self, index: RowIndex) -> Batch:
        """Rows by epoch and number, (n, length)."""
        ids, segments = self._framed(self._source.batch(index))
        inputs, wanted = np.empty_like(ids), np.empty_like(ids)
        for epoch in np.unique(index.epochs).tolist():
            here = index.epochs == epoch
            inputs[here], wanted[here] = self._masking(ids[here], index.rows[here], epoch)
        if segments is not None:
            padding = segments == 0  # its ids are arbitrary
            inputs[padding], wanted[padding] = ids[padding], IGNORED
        documents = None if segments is None else torch.from_numpy(segments)
        return Batch(torch.from_numpy(inputs), documents, wanted=torch.from_numpy(wanted), share=self._masking.share)

    def _framed(self, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """The ids and documents of the rows. A window of a stream has no documents, and is framed as it is cut."""
        ids, special = batch.ids.cpu().numpy(), self._masking.special
        if batch.segments is None:
            text = _window(ids, self._masking.end) if special.suffix else ids[:, :-1]
            return frame_rows(text, np.ones_like(text), special, end=None).ids, None
        framed = frame_rows(ids[:, :-1], batch.segments[:, :-1].cpu().numpy(), special, self._masking.end)
        return framed.ids, framed.segments


def _window(ids: NDArray[np.int64], end: int | None) -> NDArray[np.int64]:
    """The text of windows (R, T + 1) that special tokens will close, (R, T): without the first token.

    A window that is cut at the end of a document keeps its first token and leaves out the last one, which ends the
    document: two tokens would end it otherwise.
    """
    closed = ids[:, -1:] == (-1 if end is None else end)
    return np.where(closed, ids[:, :-1], ids[:, 1:])
