"""Losses row by row, by which two models that were scored on the same rows are compared."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest(tokens: NDArray[np.integer[Any]], counted: NDArray[np.bool_] | None = None) -> str:
    """What names the rows: equal for the same tokens in the same order, where the same ones are `counted`."""
    rows = (tokens if counted is None else np.where(counted, tokens, -1)).astype("<i8")
    return hashlib.sha256(repr(rows.shape).encode() + rows.tobytes()).hexdigest()[:16]


def row_fields(sums: NDArray[np.float64], counts: NDArray[np.int64], rows: str) -> dict[str, Any]:
    """The fields of an evaluation: nats and predictions of each row, and the name of the rows."""
    return {"nats_by_row": tuple(sums.tolist()), "predictions_by_row": tuple(counts.tolist()), "scored_rows": rows}
