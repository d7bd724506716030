"""How far apart shapes are, and configs: what one says of another depends on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..specs.plan import canonical

__all__ = ["distance", "farthest_first", "place_configs", "place_shapes"]

# Octaves by which two values that are no numbers (a dtype, a layout, a flag) are apart.
_UNLIKE = 2.0

Place = tuple[float | str, ...]


def place_shapes(shapes: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Shapes as points whose coordinates are octaves: sizes matter by their ratios."""
    keys = sorted({key for shape in shapes for key in shape})
    return [tuple(_octaves(shape[key]) if key in shape else "absent" for key in keys) for shape in shapes]


def place_configs(configs: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Configs as points; a key's numbers lie between 0 and 1 in their order, by ratio where all are positive."""
    keys = sorted({key for config in configs for key in config})
    axes = [_axis([config.get(key) for config in configs]) for key in keys]
    return [tuple(point) for point in zip(*axes, strict=True)] if axes else [() for _ in configs]


def distance(one: Place, other: Place) -> float:
    """Euclidean; coordinates that are not both numbers are either equal or a fixed length apart."""
    return math.sqrt(sum(_apart(a, b) ** 2 for a, b in zip(one, other, strict=True)))


def farthest_first(places: Sequence[Place], count: int) -> list[int]:
    """Positions of ``count`` points that are spread over all of them.

    The first is the smallest, each further one is the farthest from those before it (Gonzalez 1985): what is fast changes
    most where shapes are small, and between two extremes there is less to guess than beyond them.
    """
    if not places:
        return []
    chosen = [min(range(len(places)), key=lambda i: sum(x for x in places[i] if isinstance(x, float)))]
    gap = [distance(place, places[chosen[0]]) for place in places]
    while len(chosen) < min(count, len(places)):
        farthest = max((i for i in range(len(places)) if i not in chosen), key=lambda i: gap[i])
        chosen.append(farthest)
        gap = [min(old, distance(place, places[farthest])) for old, place in zip(gap, places, strict=True)]
    return chosen


def _octaves(value: Any) -> float | str:
    if type(value) not in (int, float):
        return canonical(value)
    return math.copysign(math.log2(1 + abs(value)), value)


def _axis(values: Sequence[Any]) -> list[float | str]:
    if not all(type(value) in (int, float) for value in values):
        return [canonical(value) for value in values]
    scaled = [math.log2(value) for value in values] if min(values) > 0 else [float(value) for value in values]
    low, high = min(scaled), max(scaled)
    return [(value - low) / (high - low) if high > low else 0.0 for value in scaled]


def _apart(one: float | str, other: float | str) -> float:
    if isinstance(one, str) or isinstance(other, str):
        return 0.0 if one == other else _UNLIKE
    return one - other
