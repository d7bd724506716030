"""Which variants of a dynamic kernel ship, and which sizes each of them serves: pure functions on measured times.

A kernel for a larger size is taken to need no less time than for a smaller one. So what is measured at two sizes bounds what lies
between: no config is faster there than the best was at the lower end, and none is slower than it was at the upper end. A range of
sizes is served by what is fast at its upper end, which is what keeps that bound lowest; with tiles it is exact, since a kernel's
time steps up just above a multiple of its tile and stays until the next one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..measuring.timing import Timing
from .cover import cover_cheaply
from .select import at_most

__all__ = ["Known", "Point", "Share", "best_of", "next_sizes", "open_edges", "share_out", "worth_measuring"]

# Sizes of the dynamic dimensions, in the order of their names.
Point = tuple[int, ...]

# Two neighbouring sizes are near enough where the best time grows by no more than this from one to the other.
_GOAL = 1.10
# A step of the time is looked for at its usual place, just above the lower size, once the two are as near as this.
_NARROW = 1.16
# ... and no further where they are as near as this.
_NARROWEST = 1 / 100
# A config that already took this many times the best at the upper end of a range, at its lower end, is not tried between.
_HOPELESS = 1.10

# What a change of variants costs between two sizes, as a logarithm of time; and a size at which a variant is past the tolerance,
# and a change where the first size of the new range was not measured.
_CHANGE, _PAST, _UNMEASURED = 0.01, 0.5, 10.0
# A size alone weighs so much less than a range of them.
_ALONE = 0.2


@dataclass(frozen=True)
class Known:
    """What is known at one point.

    Attributes:
        times: Time of each config that is right there, by index.
        winner: The one that was decided for.
    """

    times: Mapping[int, Timing]
    winner: int


@dataclass(frozen=True)
class Share:
    """A range of sizes that one config serves.

    Attributes:
        config: Its index.
        low, high: The least and the largest sizes; a ``high`` of None has no end.
        ends: Times of the config in ms at both, as measured; None where it was not.
        regret: How many times the best config's time it takes where it is worst, of the measured points inside.
        bound: How many times the best config's time it may take at any size inside, if time never falls as sizes grow.
    """

    config: int
    low: Point
    high: tuple[int | None, ...]
    ends: tuple[float | None, float | None]
    regret: float
    bound: float


def best_of(known: Known) -> float:
    """The least time at a point."""
    return min(timing.latency for timing in known.times.values())


def next_sizes(known: Mapping[int, Known], declared: Sequence[int], most: int) -> list[int]:
    """Sizes between the declared ones of one dimension that are worth measuring next, at most one between each two of these.

    Args:
        known: What is known, by size.
        declared: The declared sizes, ascending.
        most: Sizes to measure between each two of them.
    """
    found = []
    for low, high in itertools.pairwise(declared):
        inside = sorted(size for size in known if low <= size <= high)
        if len(inside) - 2 >= most:
            continue
        gaps = [
            (best_of(known[b]) / best_of(known[a]), middle)
            for a, b in itertools.pairwise(inside)
            if (middle := _between(a, b, stepped=a - 1 in known)) is not None
        ]
        growth, size = max(gaps, default=(0.0, 0))
        if growth > _GOAL:
            found.append(size)
    return found


def _between(low: int, high: int, stepped: bool) -> int | None:
    """A size between two, at a multiple of a power of two about half-way by ratio; None where they are too near.

    Of two that are near it is the one just above the lower, where a step is; unless that is ``stepped``: it is such a size itself.
    """
    gap = high - low
    if gap < 2 or gap <= low * _NARROWEST:
        return None
    if high <= low * _NARROW and not stepped:
        return low + 1
    unit = 1 << max(0, (gap // 4).bit_length() - 1)
    size = round(math.sqrt(max(low, 1) * high) / unit) * unit
    return min(max(size, low + 1), high - 1)


def worth_measuring(known: Mapping[int, Known], size: int) -> list[int] | None:
    """The configs that may be the fastest at a size, by what is known at its neighbours; None for all."""
    below = max((s for s in known if s < size), default=None)
    above = min((s for s in known if s > size), default=None)
    if below is None or above is None:
        return None
    # Where times fall from one to the other, as where they are uncertain, what was near the best at either may be it.
    limit = _HOPELESS * max(best_of(known[above]), best_of(known[below]))
    lower = known[below].times
    both = sorted({*lower, *known[above].times})
    return [i for i in both if i not in lower or lower[i].latency <= limit or i == known[above].winner]


def share_out(
    known: Mapping[Point, Known],
    axes: Sequence[Sequence[int]],
    binaries: Mapping[int, str],
    max_slowdown: float,
    *,
    clamp: bool = False,
    strict: bool = True,
) -> list[Share]:
    """Say which configs ship and which sizes each of them serves.

    The fewest binaries are taken of which one is within ``max_slowdown`` times the best at each known point (an exact set cover, see
    :func:`~tlaot.tune.searching.cover.cover_cheaply`); neighbouring ranges of one config are joined.

    Args:
        known: What is known; it has every combination of the axes' sizes.
        axes: For each dimension sizes that ranges may end at, ascending; all that are known, where there is one dimension.
        binaries: Digest of each config's binary, by index: equal ones are one.
        max_slowdown: 1.05: up to 5 % slower than the best.
        clamp: Whether the last range of each dimension has no end.
        strict: Of one dimension: whether a range begins only where its first size is known.
    """
    chosen = _cover(known, binaries, max_slowdown)
    cells = [_Cell.of(steps) for steps in itertools.product(*(_steps(axis, clamp) for axis in axes))]
    if len(axes) == 1:
        configs = _assign(cells, known, chosen, max_slowdown, strict)
    else:
        configs = [_cheapest(chosen, known[cell.upper], max_slowdown) for cell in cells]
    shares = [_share(cell, config, known) for cell, config in zip(cells, configs, strict=True)]
    return _measure(_join(shares), known)


def open_edges(shares: Sequence[Share], known: Mapping[Point, Known]) -> list[Point]:
    """What is to be measured so that every range begins at a known size.

    That is the first size of a range; or, of one dimension, where the change has moved on from such a size by one, a size half-way to
    the next known one: the change is somewhere between, and not at a step.
    """
    found: list[Point] = []
    for share in shares:
        if share.low in known:
            continue
        if len(share.low) == 1 and (share.low[0] - 2,) in known:
            before, after = share.low[0] - 1, min((p[0] for p in known if p > share.low), default=share.low[0])
            if after - before > 3:
                unit = 1 << max(0, ((after - before) // 4).bit_length() - 1)
                found.append((max((before + after) // 2 // unit * unit, before + 1),))
                continue
        found.append(share.low)
    return found


@dataclass(frozen=True)
class _Cell:
    """A box of sizes without a known point but its upper corner: from ``low`` to ``high``, both inclusive.

    ``lower`` and ``upper`` are the known points that bound its times.
    """

    low: Point
    high: tuple[int | None, ...]
    lower: Point
    upper: Point

    @staticmethod
    def of(steps: Sequence[tuple[int, int | None, int, int]]) -> _Cell:
        low, high, lower, upper = zip(*steps, strict=True)
        return _Cell(low, high, lower, upper)


def _steps(axis: Sequence[int], clamp: bool) -> list[tuple[int, int | None, int, int]]:
    """The pieces of one dimension: first and last size, and the known sizes that bound them."""
    pieces: list[tuple[int, int | None, int, int]] = [(axis[0], axis[0], axis[0], axis[0])]
    pieces += [(a + 1, b, a if b > a + 1 else b, b) for a, b in itertools.pairwise(axis)]
    if clamp:
        low, _, lower, upper = pieces[-1]
        pieces[-1] = low, None, lower, upper
    return pieces


def _cover(known: Mapping[Point, Known], binaries: Mapping[int, str], max_slowdown: float) -> list[int]:
    """The fewest configs, of different binaries, that are good enough somewhere at every point."""
    first = {binary: index for index, binary in sorted(binaries.items(), reverse=True)}
    members = []
    for _, point in sorted(known.items()):
        best = best_of(point)
        costs: dict[str, tuple[float, int]] = {}
        for index, timing in sorted(point.times.items()):
            if index == point.winner or at_most(timing) <= max_slowdown * best:
                name = binaries.get(index, f"config {index}")
                costs.setdefault(name, (timing.latency / best, index))
        members.append(costs)
    return sorted({first.get(name, -1) if name in first else int(name.split()[1]) for name in cover_cheaply(members)})


def _cost(known: Known, config: int, max_slowdown: float) -> float:
    """What it costs to take a config at a point, as a logarithm of time."""
    timing = known.times.get(config)
    if timing is None:
        return _PAST * 10
    best = min(known.times.values(), key=lambda timing: timing.latency)
    slower = timing.latency / best.latency
    # What is no slower than the two times are uncertain is as good.
    behind = max(0.0, math.log(slower) - _uncertain(timing) - _uncertain(best))
    return behind + (_PAST if slower > max_slowdown and behind > 0 and config != known.winner else 0.0)


def _uncertain(timing: Timing) -> float:
    """Half the width of the 95 % interval of a time, relative; 0 where nothing is known of it."""
    upper = at_most(timing)
    return 0.0 if math.isinf(upper) else upper / timing.latency - 1


def _cheapest(chosen: Sequence[int], known: Known, max_slowdown: float) -> int:
    return min(chosen, key=lambda config: (_cost(known, config, max_slowdown), config))


def _assign(
    cells: Sequence[_Cell], known: Mapping[Point, Known], chosen: Sequence[int], max_slowdown: float, strict: bool
) -> list[int]:
    """The config of each cell of one dimension: what is good at its upper end, with few changes from one cell to the next."""
    totals = {config: 0.0 for config in chosen}
    back: list[dict[int, int]] = []
    for number, cell in enumerate(cells):
        change = _CHANGE + (_UNMEASURED if strict and cell.low not in known else 0.0)
        leader = min(totals, key=lambda config: (totals[config], config))
        came = {c: c if number == 0 or totals[c] <= totals[leader] + change else leader for c in chosen}
        weight = _ALONE if cell.low == cell.high else 1.0
        totals = {
            c: totals[came[c]] + (change if came[c] != c else 0.0) + weight * _cost(known[cell.upper], c, max_slowdown)
            for c in chosen
        }
        back.append(came)
    config = min(totals, key=lambda c: (totals[c], c))
    found = [config]
    for came in reversed(back[1:]):
        config = came[config]
        found.append(config)
    return found[::-1]


def _share(cell: _Cell, config: int, known: Mapping[Point, Known]) -> Share:
    timing = known[cell.upper].times.get(config)
    bound = math.inf if timing is None else timing.latency / best_of(known[cell.lower])
    return Share(config, cell.low, cell.high, (None, None), 1.0, max(bound, 1.0))


def _join(shares: Sequence[Share]) -> list[Share]:
    """Boxes of one config that together are a box, as one."""
    left = list(shares)
    axis, count = 0, len(shares[0].low)
    while axis < count:
        joined: list[Share] = []
        for share in sorted(left, key=lambda s: (*(v for i, v in enumerate(s.low) if i != axis), s.low[axis])):
            last = joined[-1] if joined else None
            if last is not None and last.config == share.config and _continues(last, share, axis):
                joined[-1] = replace(last, high=share.high, bound=max(last.bound, share.bound))
            else:
                joined.append(share)
        # What was joined along one dimension may now be joined along another.
        axis = 0 if len(joined) < len(left) and axis else axis + 1
        left = joined
    return sorted(left, key=lambda s: s.low)


def _continues(one: Share, other: Share, axis: int) -> bool:
    high = one.high[axis]
    return (
        high is not None
        and other.low[axis] == high + 1
        and all(one.low[i] == other.low[i] and one.high[i] == other.high[i] for i in range(len(one.low)) if i != axis)
    )


def _measure(shares: Sequence[Share], known: Mapping[Point, Known]) -> list[Share]:
    """With the times at both ends and the regret of the points inside."""
    return [_with_figures(share, known) for share in shares]


def _with_figures(share: Share, known: Mapping[Point, Known]) -> Share:
    inside = {point: k for point, k in sorted(known.items()) if _holds(share, point) and share.config in k.times}
    own = {point: k.times[share.config].latency for point, k in inside.items()}
    regret = max((own[point] / best_of(k) for point, k in inside.items()), default=1.0)
    last = max(inside, default=share.low)
    return replace(share, ends=(own.get(share.low), own.get(last)), regret=regret)


def _holds(share: Share, point: Point) -> bool:
    return all(
        low <= size and (high is None or size <= high)
        for low, high, size in zip(share.low, share.high, point, strict=True)
    )
