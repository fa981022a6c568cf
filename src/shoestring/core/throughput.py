"""How fast rows pass by the batch: the best batch, the smallest that is nearly as good, and where the curve bends."""

from __future__ import annotations

from collections.abc import Sequence

from shoestring.core.facts import Point

NEAR = 0.02
"""A batch within this share of the best rate is as good as it."""


def row_rate(point: Point) -> float:
    """Rows a second, by the median pass."""
    return point.batch / point.seconds


def fastest(points: Sequence[Point]) -> Point:
    """The batch whose rows pass the fastest; the smaller one where two are equal."""
    return max(points, key=lambda point: (row_rate(point), -point.batch))


def smallest_near(points: Sequence[Point], share: float = NEAR) -> Point:
    """The smallest batch whose rate is within `share` of the best."""
    return min(near_fastest(points, share), key=lambda point: point.batch)


def near_fastest(points: Sequence[Point], share: float = NEAR) -> list[Point]:
    """The batches whose rates are within `share` of the best."""
    enough = (1 - share) * row_rate(fastest(points))
    return [point for point in points if row_rate(point) >= enough]


def knee(points: Sequence[Point]) -> Point:
    """Where a larger batch begins to bring little: the point farthest above the line from the first to the last.

    Batches and rates count from 0 to 1 each, up to the fastest point (Satopää et al., 2011, "Finding a Kneedle in a
    Haystack"). A straight or hollow curve has no bend: its knee is its fastest point.
    """
    best = fastest(points)
    curve = sorted((point for point in points if point.batch <= best.batch), key=lambda point: point.batch)
    first = curve[0]
    wide, high = best.batch - first.batch, row_rate(best) - row_rate(first)
    if wide == 0 or high <= 0:
        return best

    def above(point: Point) -> float:
        return (row_rate(point) - row_rate(first)) / high - (point.batch - first.batch) / wide

    bend = max(curve, key=above)
    return bend if above(bend) > 0 else best
