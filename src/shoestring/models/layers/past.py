"""What a causal network keeps of the tokens it has read, so that the next one needs one pass over one position.

Shapes: R rows, K heads of keys and values, T tokens, C channels per head, D width, J inputs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Inputs:
    """The last J inputs of a convolution; that of position p is in place p mod J + 1.

    One place more than are read: writing the newest input again changes nothing.
    """

    def __init__(self, number: int):
        self._number, self.count = number, 0
        self._kept: Tensor | None = None

    def add(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R some D"]:
        """Add those of further tokens. Returns the last before them, J where there are so many, and all of them."""
        if self._kept is None:
            self._kept = x.new_empty(len(x), self._number + 1, x.shape[2])
        begin, self.count = self.count, self.count + x.shape[1]
        found = torch.cat((self._kept[:, self._places(begin)], x), dim=1)
        last = self._places(self.count)
        self._kept[:, last] = found[:, -len(last) :]
        return found

    def _places(self, end: int) -> list[int]:
        """Of the last inputs before this position."""
        return [position % (self._number + 1) for position in range(max(0, end - self._number), end)]

    def tensor(self) -> Float[Tensor, "R places D"]:
        """Where they lie, once any were added."""
        assert self._kept is not None, "there are none yet"
        return self._kept


class Read:
    """The tokens of rows, at most `length`, and a pointer's key of each."""

    def __init__(self, length: int):
        self._length, self.count = length, 0
        self._keys: Tensor | None = None
        self._ids: Tensor | None = None

    def add(self, keys: Float[Tensor, "R T C"], ids: Int[Tensor, "R T"]) -> None:
        """Add further tokens."""
        if self._keys is None or self._ids is None:
            self._keys = keys.new_empty(len(keys), self._length, keys.shape[2])
            self._ids = ids.new_empty(len(ids), self._length)
        begin, self.count = self.count, self.count + ids.shape[1]
        self._keys[:, begin : self.count] = keys
        self._ids[:, begin : self.count] = ids

    def all(self) -> tuple[Float[Tensor, "R all C"], Int[Tensor, "R all"]]:
        """The keys and the tokens so far, once there are any."""
        assert self._keys is not None and self._ids is not None, "there are none yet"
        return self._keys[:, : self.count], self._ids[:, : self.count]


class Kept:
    """The keys and values of a layer, in tensors for rows of at most `length` tokens; a query sees `window` of them.

    Also the inputs of its convolutions, where it has some; the first layer keeps the newest token, and what a pointer
    has read.
    """

    def __init__(
        self,
        length: int,
        window: int | None = None,
        inputs: tuple[Inputs, Inputs] | None = None,
        read: Read | None = None,
    ):
        self.length, self.window, self.count, self.inputs, self.read = length, window, 0, inputs, read
        self.newest: Int[Tensor, "R 1"] | None = None
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def add(
        self, k: Float[Tensor, "R K T C"], v: Float[Tensor, "R K T C"]
    ) -> tuple[Float[Tensor, "R K all C"], Float[Tensor, "R K all C"]]:
        """Add those of further tokens. Returns all of them, in the order of the tokens."""
        if self._keys is None or self._values is None:
            shape = (*k.shape[:2], self.length, k.shape[3])
            self._keys, self._values = k.new_empty(shape), v.new_empty(shape)
        begin, self.count = self.count, self.count + k.shape[2]
        self._keys[:, :, begin : self.count] = k
        self._values[:, :, begin : self.count] = v
        return self._keys[:, :, : self.count], self._values[:, :, : self.count]

    def tensors(self) -> tuple[Float[Tensor, "R K length C"], Float[Tensor, "R K length C"]]:
        """Where keys and values lie, once any were added."""
        assert self._keys is not None and self._values is not None, "there are none yet"
        return self._keys, self._values

    def all_tensors(self) -> list[Tensor]:
        """All that is kept, once there is something."""
        return [*self.tensors(), *(inputs.tensor() for inputs in self.inputs or ())]

    def advance(self) -> None:
        """Count a token whose numbers were written into the tensors."""
        self._set_counts(self.count + 1)

    def clear(self) -> None:
        """Begin anew, in the same tensors."""
        self._set_counts(0)
        self.newest = None
        if self.read is not None:
            self.read.count = 0

    def _set_counts(self, count: int) -> None:
        self.count = count
        for inputs in self.inputs or ():
            inputs.count = count
