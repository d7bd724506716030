"""Which of the candidates that are near the best is the best: statistics alone, no device.

Candidates are timed in rounds, each in every round, in an order that changes. What is compared is the ratio of two candidates
in the same round, so that a drift of the clock rate cancels out. A candidate that is clearly slower drops out; it is
over when those that are left are known so well that it does not matter which of them is taken.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .timing import Timing, summarize

__all__ = ["TIE", "Contest", "choose_finalists"]

# Candidates that differ by less than this are equal to whoever runs them.
TIE = 0.005

# Half the width of an interval, in standard errors; a false drop-out costs little, since it is one of near equals.
_WIDTH = 2.5
# It is over when none of the others is faster than the leader by more than this.
_KNOWN = 0.0065
_FEWEST_ROUNDS = 4
# Between two visits in one round the machine may change by this, relative; known better when there are several rounds.
_DRIFT = {False: 0.005, True: 0.03}
# Screening is short, and on the CPU compilers may take half of the time all the while that a candidate is screened.
_NEAR = 0.05
_MARGIN = {False: _NEAR, True: 1.0}
# A whole visit may be in a burst, too.
_ROUNDS_TO_DROP = {False: 1, True: 2}
# Rounds whose times differ by more than this are not explained by a clock rate that changes.
_UNSTEADY = 0.10


def choose_finalists(screened: Mapping[int, Timing], bursts: bool, affordable: float = math.inf) -> list[int]:
    """Candidates whose interval from screening overlaps the best's, and those within a few percent of it, the fastest first.

    Args:
        screened: Timings of screening.
        bursts: Whether others may take the processor for a while: the CPU. Then samples are compared that were spared, and candidates
            are taken that look much slower.
        affordable: ms that one call of each may take in all; those near the best are taken nevertheless.
    """
    if not screened:
        return []

    def bounds(timing: Timing) -> tuple[float, float]:
        center = timing.low if bursts and timing.low is not None else timing.latency
        # The interval of a median that McGill, Tukey and Larsen (1978) give for comparing two of them.
        width = 1.57 * timing.spread * timing.latency / math.sqrt(max(timing.samples, 1))
        return center - width, center + width

    intervals = {index: bounds(timing) for index, timing in screened.items()}
    center = {index: sum(interval) / 2 for index, interval in intervals.items()}
    best = min(center, key=lambda index: (center[index], index))
    near, limit = (max(intervals[best][1], center[best] * (1 + margin)) for margin in (_NEAR, _MARGIN[bursts]))
    chosen: list[int] = []
    for index in sorted(intervals, key=lambda index: (center[index], index)):
        affordable -= center[index]
        if intervals[index][0] <= (limit if affordable > 0 else near):
            chosen.append(index)
    return chosen


@dataclass
class _Entry:
    """A candidate's visits: for each round the value that is compared, and the standard error that its samples explain."""

    values: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)


class Contest:
    """A contest among finalists.

    Args:
        finalists: Their indices, the likeliest first.
        bursts: Whether others may take the processor for a while; then a visit counts by its lower quartile, and not its median.
        seed: Of the orders.
    """

    def __init__(self, finalists: Sequence[int], *, bursts: bool = False, seed: int = 0) -> None:
        self.alive = list(finalists)
        self._bursts = bursts
        self._random = random.Random(seed)
        self._entries = {index: _Entry() for index in finalists}
        self._order: list[int] = []

    @property
    def rounds(self) -> int:
        """Rounds that are complete."""
        return min((len(self._entries[index].values) for index in self.alive), default=0)

    def order(self) -> list[int]:
        """The order of the next round: at random, and then the reverse, so that each comes early as often as late."""
        if set(self._order) == set(self.alive):
            order, self._order = self._order[::-1], []
            return order
        order = list(self.alive)
        self._random.shuffle(order)
        self._order = order
        return list(order)

    def add(self, index: int, samples: Sequence[float]) -> None:
        """Take the samples of a visit."""
        entry, ordered = self._entries[index], sorted(samples)
        value = ordered[len(ordered) // 4] if self._bursts else statistics.median(ordered)
        quartiles = statistics.quantiles(ordered, n=4) if len(ordered) > 2 else [ordered[0], 0.0, ordered[-1]]
        deviation = (quartiles[2] - quartiles[0]) / 1.349
        entry.values.append(math.log(max(value, 1e-9)))
        entry.errors.append(1.2533 * deviation / value / math.sqrt(len(ordered)) if value > 0 else 0.0)
        entry.samples.extend(samples)

    def drop(self, index: int) -> None:
        """A candidate that failed is not in it any more."""
        self.alive = [other for other in self.alive if other != index]

    def drop_slower(self) -> list[int]:
        """Drop those that are clearly slower than the leader, and say which."""
        if self.rounds < _ROUNDS_TO_DROP[self._bursts]:
            return []
        dropped = [index for index, (ahead, width) in self._behind().items() if ahead - width > 0]
        self.alive = [index for index in self.alive if index not in dropped]
        return dropped

    @property
    def settled(self) -> bool:
        """Whether more rounds would change nothing that matters."""
        if len(self.alive) < 2:
            return self.rounds >= _FEWEST_ROUNDS or not self.alive
        return self.rounds >= _FEWEST_ROUNDS and self.uncertainty <= _KNOWN

    @property
    def uncertainty(self) -> float:
        """How much faster than the leader another one may be at most, relative; 0 where the leader is alone."""
        return max((max(0.0, width - ahead) for ahead, width in self._behind().values()), default=0.0)

    def equals(self) -> list[int]:
        """The best and those that are as good; the steadiest first, then the first."""
        behind, leader = self._behind(), self._leader()
        if not self.rounds:
            return [leader]
        equal = [leader, *(i for i, (ahead, width) in behind.items() if ahead <= TIE and ahead - width <= 0)]
        return sorted(equal, key=lambda index: (round(self.timing(index, "").spread, 2), index))

    def timing(self, index: int, backend: str, winner: int | None = None) -> Timing:
        """Median and spread of all samples of a candidate.

        With a winner, the median is the winner's times the ratio of the two in the rounds that both were in: whoever dropped out early
        was timed at another clock rate.
        """
        own = summarize(self._entries[index].samples, backend)
        if winner is None or winner == index or not self.visited(winner):
            return own
        pairs = zip(self._entries[index].values, self._entries[winner].values, strict=False)
        scale = (
            self.timing(winner, backend).latency * math.exp(statistics.median(a - b for a, b in pairs)) / own.latency
        )
        return replace(own, latency=own.latency * scale, low=None if own.low is None else own.low * scale)

    def visited(self, index: int) -> bool:
        return bool(self._entries[index].samples)

    def unsteadiness(self, index: int) -> float:
        """By how much a candidate's rounds differ beyond what a round's samples explain: relative; 0 where that is little."""
        entry = self._entries[index]
        if len(entry.values) < 3:
            return 0.0
        ordered = sorted(entry.values)
        cut = len(ordered) // 10
        between = ordered[len(ordered) - 1 - cut] - ordered[cut]
        within = 2 * _WIDTH * math.sqrt(statistics.fmean(error**2 for error in entry.errors))
        return between if between > max(within, _UNSTEADY) else 0.0

    def _leader(self) -> int:
        count = self.rounds
        if count == 0:
            return self.alive[0]
        base = [statistics.fmean(self._entries[index].values[n] for index in self.alive) for n in range(count)]

        def score(index: int) -> float:
            values = self._entries[index].values
            return statistics.median(values[n] - base[n] for n in range(count))

        return min(self.alive, key=lambda index: (score(index), index))

    def _behind(self) -> dict[int, tuple[float, float]]:
        """For each but the leader: by how much it is slower, relative, and half the width of the interval of that."""
        if not self.rounds:
            return {index: (0.0, math.inf) for index in self.alive[1:]}
        leader = self._leader()
        return {index: self._compare(index, leader) for index in self.alive if index != leader}

    def _compare(self, index: int, leader: int) -> tuple[float, float]:
        count = self.rounds
        mine, theirs = self._entries[index], self._entries[leader]
        ratios = [mine.values[n] - theirs.values[n] for n in range(count)]
        center = statistics.median(ratios)
        deviation = 1.4826 * statistics.median(abs(ratio - center) for ratio in ratios)
        explained = math.sqrt(statistics.fmean(e**2 for e in (*mine.errors[:count], *theirs.errors[:count])) * 2)
        # Few rounds say little about how they vary.
        unknown = _DRIFT[self._bursts] / count
        error = 1.2533 * max(deviation, explained / 1.2533) / math.sqrt(count) * (1 + 2 / count)
        return center, _WIDTH * error + unknown
