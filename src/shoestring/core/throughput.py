"""Throughput by batch: the fastest batch, the smallest that is nearly as fast, and the knee of the curve."""

from __future__ import annotations

from collections.abc import Sequence

from shoestring.core.records import Point

NEAR = 0.02
"""A batch within this share of the best rate is nearly as fast."""


def row_rate(point: Point) -> float:
    """Rows per second, by the median pass."""
    return point.batch / point.seconds


def fastest(points: Sequence[Point]) -> Point:
    """The batch with the most rows per second; the smaller of two equal ones."""
    return max(points, key=lambda point: (row_rate(point), -point.batch))


def smallest_near(points: Sequence[Point], share: float = NEAR) -> Point:
    """The smallest batch whose rate is within `share` of the best."""
    return min(near_fastest(points, share), key=lambda point: point.batch)


def near_fastest(points: Sequence[Point], share: float = NEAR) -> list[Point]:
    """The batches whose rates are within `share` of the best."""
    enough = (1 - share) * row_rate(fastest(points))
    return [point for point in points if row_rate(point) >= enough]


def knee(points: Sequence[Point]) -> Point:
    """The point farthest above the line from the first to the fastest, beyond which a larger batch gains little.

    Batches and rates are scaled to 0 to 1 (Satopää et al., 2011, "Finding a Kneedle in a Haystack"). A straight or
    convex curve has no knee; the fastest point is returned.
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
