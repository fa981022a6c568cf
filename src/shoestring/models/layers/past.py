"""What a causal network keeps of the tokens it has read, so that the next one needs one pass over one position.

Shapes: R rows, K heads of keys and values, T tokens, C channels per head.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


class Kept:
    """The keys and values of a layer, in tensors for rows of at most `length` tokens; a query sees `window` of them."""

    def __init__(self, length: int, window: int | None = None):
        self.length, self.window, self.count = length, window, 0
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

    def clear(self) -> None:
        """Begin anew, in the same tensors."""
        self.count = 0
