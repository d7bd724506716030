"""Tune a dynamic workload: measure its configs at the declared sizes, and between them until no range of sizes is a guess.

Each config is compiled once. What was measured at a size is kept by itself, so that one more declared size costs that size alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .locks.lock import Entry, Sized, Tried
from .parts import choose_parts, gather, known_of, share, wrong_somewhere
from .searching.buckets import Known, Point, Share, next_sizes, open_edges, worth_measuring
from .specs.dynamic import corners
from .specs.plan import Workload, canonical, counted
from .specs.spec import Budget, KernelSpec

__all__ = ["Measure", "one_of_each_wording", "size_workload"]

# Measures workloads, each at one size of every open dimension, and returns the evidence of each by its path.
Measure = Callable[[Sequence[Workload]], Mapping[str, Entry]]

# Sizes between the declared ones are many: to tell two configs apart there, so many seconds at most; and to wait for others to leave
# the device alone.
_PROBE_BUDGET, _PROBE_QUIET = 0.3, 3.0
# Rounds in which changes of variants are looked for; and sizes in all of them, at the least.
_MOST_ROUNDS, _FEWEST_EDGES = 10, 8
# Notes of sizes that are told with the whole.
_MOST_NOTES = 3
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def size_workload(workload: Workload, measure: Measure, say: Callable[[str], None]) -> Entry:
    """The evidence of a dynamic workload at all the sizes that it takes to know which variant serves which.

    Args:
        workload: The workload, with its sizes open.
        measure: Measures it at sizes, or knows what was measured.
        say: Told the outcome, a line.

    Raises:
        TuningError: No config is right at some size.
    """
    sizing = _Sizing(workload, measure)
    sizing.measure_declared()
    if len(sizing.names) == 1:
        sizing.measure_between()
    shares = sizing.settle_edges()
    entry = sizing.conclude()
    for line in sizing.describe(shares):
        say(line)
    return entry


class _Sizing:
    """What is known of one workload so far.

    Attributes:
        names: Its open dimensions.
    """

    def __init__(self, workload: Workload, measure: Measure) -> None:
        kernel = workload.kernel
        self.names = tuple(kernel.dynamic)
        self._workload = workload
        self._measure = measure
        self._corners = corners(kernel.dynamic, kernel.outside)
        self._positions = {canonical(dict(config)): index for index, config in enumerate(workload.configs)}
        # Between declared sizes there is little to search for: what cannot win there is left out beforehand.
        profile = replace(
            kernel.profile,
            decide_budget=min(kernel.profile.decide_budget, _PROBE_BUDGET),
            quiet_timeout=min(kernel.profile.quiet_timeout, _PROBE_QUIET),
        )
        self._between = replace(kernel, search="exhaustive", budget=Budget(), profile=profile)
        self._sizes: dict[Point, Sized] = {}
        self._first: Entry | None = None
        self._binaries: dict[int, str] = {}
        self._failed: dict[int, tuple[str, str]] = {}

    def measure_declared(self) -> None:
        """Every config at the declared sizes, as far as the search goes; then what won anywhere at all of them."""
        points = list(itertools.product(*self._corners.values()))
        self._take(points, self._workload.kernel, {})
        winners = {sized.winner for sized in self._sizes.values()}
        lacking = {}
        for point, sized in self._sizes.items():
            left = sorted(winners - sized.times.keys() - sized.failed.keys())
            if left:
                lacking[point] = left
        self._take(list(lacking), self._between, lacking, "winners")
        self._check_tails()

    def _check_tails(self) -> None:
        """Every config at sizes that no tile divides: what is wrong there is out before anything is decided by its times."""
        crooked = []
        for sizes in self._corners.values():
            low, high = sizes[(len(sizes) - 1) // 2], sizes[(len(sizes) - 1) // 2 + 1]
            crooked.append(min(high, (low + 2 * (high - low) // 3) | 1))
        point = tuple(crooked)
        if point not in self._sizes:
            everything = sorted({index for sized in self._sizes.values() for index in sized.times})
            self._take([point], self._between, {point: everything})

    def measure_between(self) -> None:
        """Sizes between the declared ones, where these say least of what lies between them."""
        declared = [point[0] for point in itertools.product(*self._corners.values())]
        while True:
            known = {point[0]: what for point, what in self._known().items()}
            sizes = next_sizes(known, declared, self._workload.kernel.probes)
            if not sizes:
                return
            self._probe([(size,) for size in sizes])

    def settle_edges(self) -> list[Share]:
        """The first size of each range that is to be served, until all are measured; and a size that no tile divides in each."""
        intervals = sum(len(sizes) - 1 for sizes in self._workload.kernel.dynamic.values())
        left = max(_FEWEST_EDGES, self._workload.kernel.probes * intervals)
        for _ in range(_MOST_ROUNDS):
            points = [p for p in open_edges(self._share(strict=False), self._known()) if p not in self._sizes][:left]
            left -= len(points)
            points += [p for p in map(self._unproven, self._share(strict=True)) if p is not None and p not in points]
            if not points:
                break
            self._probe(points)
        return self._share(strict=True)

    def conclude(self) -> Entry:
        """The evidence as the lock has it."""
        assert self._first is not None
        largest = tuple(sizes[-1] for sizes in self._workload.kernel.dynamic.values())
        top = self._sizes[largest]
        configs = self._workload.configs
        candidates = tuple(self._tried(index, config, top) for index, config in enumerate(configs))
        sizes = tuple(sized for _, sized in sorted(self._sizes.items()))
        entry = replace(
            self._first,
            shape=dict(self._workload.shape),
            winner=dict(configs[top.winner]),
            ships=dict(configs[top.winner]),
            code={},
            trusted=all(sized.trusted for sized in sizes),
            notes=self._notes(sizes),
            reference=top.reference,
            candidates=candidates,
            sizes=sizes,
        )
        kernel = self._workload.kernel
        return gather(kernel, entry, [(ships, {}) for ships in choose_parts(kernel, entry)])

    def describe(self, shares: Sequence[Share]) -> list[str]:
        """The outcome in words."""
        kernel = self._workload.kernel
        spans = ", ".join(f"{name} from {sizes[0]} to {sizes[-1]}" for name, sizes in kernel.dynamic.items())
        variants = counted(len({one.config for one in shares}), "variant")
        bound = max(one.bound for one in shares)
        parts = [
            f"{self._workload.label}: {spans}: {variants} for {counted(len(shares), 'range')}",
            f"at most {max(one.regret for one in shares):.3f} times the best at {counted(len(self._sizes), 'measured size')}",
            f"{bound:.3f} times between them, if time grows with size",
        ]
        lines = ["; ".join(parts)]
        everything = [sized for _, sized in sorted(self._sizes.items())]
        for index, (at, why) in sorted(wrong_somewhere(everything).items()):
            if any(index in sized.times for sized in everything):
                where = ", ".join(f"{name}={size}" for name, size in at.items())
                lines.append(
                    f"{self._workload.label}: config #{index} is left out at every size, since it fails at {where}: {why}"
                )
        return lines

    def _known(self) -> dict[Point, Known]:
        return known_of([sized for _, sized in sorted(self._sizes.items())])

    def _share(self, strict: bool) -> list[Share]:
        sizes = [sized for _, sized in sorted(self._sizes.items())]
        return share(self._workload.kernel, sizes, self._binaries, strict=strict)

    def _unproven(self, share: Share) -> Point | None:
        """A size in a range at which what serves it is to be checked: no power of two divides it, as it divides tiles.

        None where such a size has been measured, or the range is one size.
        """
        inside = [
            point
            for point, sized in self._sizes.items()
            if share.config in sized.times
            and all(
                low <= size and (high is None or size <= high)
                for low, high, size in zip(share.low, share.high, point, strict=True)
            )
        ]
        point, proven = [], True
        for axis, (low, high) in enumerate(zip(share.low, share.high, strict=True)):
            last = max((at[axis] for at in inside), default=low) if high is None else high
            odd = next((at[axis] for at in inside if at[axis] % 2), None)
            if odd is None and low < last:
                proven, odd = False, min(last, (low + 2 * (last - low) // 3) | 1)
            point.append(low if odd is None else odd)
        return None if proven or tuple(point) in self._sizes else tuple(point)

    def _probe(self, points: Sequence[Point]) -> None:
        """Measure what may win at some points by what is known about them."""
        known = self._known()
        chosen: dict[Point, Sequence[int]] = {}
        for point in points:
            likely = None
            if len(point) == 1:
                likely = worth_measuring({at[0]: what for at, what in known.items()}, point[0])
            if likely is None:
                likely = sorted({index for what in known.values() for index in what.times})
            chosen[point] = likely
        self._take(points, self._between, chosen)

    def _take(
        self, points: Sequence[Point], kernel: KernelSpec, chosen: Mapping[Point, Sequence[int]], part: str = ""
    ) -> None:
        """Measure configs at points, and take down what was found."""
        if not points:
            return
        asked = {}
        for point in points:
            configs = self._workload.configs
            if point in chosen:
                configs = tuple(configs[index] for index in chosen[point])
            sizes = dict(zip(self.names, point, strict=True))
            asked[point] = replace(self._workload, kernel=kernel, configs=configs, sizes=sizes, part=part)
        found = self._measure(list(asked.values()))
        for point, workload in asked.items():
            self._note(point, workload, found[workload.path])

    def _note(self, point: Point, workload: Workload, entry: Entry) -> None:
        self._first = self._first or entry
        old = self._sizes.get(point)
        times = {} if old is None else dict(old.times)
        failed = {} if old is None else dict(old.failed)
        for tried in entry.candidates:
            index = self._positions[canonical(dict(tried.config))]
            if tried.binary:
                self._binaries[index] = tried.binary
            if tried.timing is not None:
                times[index] = tried.timing
            elif tried.failed is not None:
                failed[index] = tried.failed
                self._failed.setdefault(index, tried.failed)
        winner = self._positions[canonical(dict(entry.winner))]
        if old is not None and old.winner in times and times[old.winner].latency <= times[winner].latency:
            winner = old.winner
        self._sizes[point] = Sized(
            dict(workload.sizes),
            winner,
            times,
            failed,
            entry.reference,
            entry.trusted and (old is None or old.trusted),
            entry.notes if not entry.trusted else (),
        )

    def _tried(self, index: int, config: Mapping[str, Any], top: Sized) -> Tried:
        binary = self._binaries.get(index, "")
        if index in top.times:
            return Tried(dict(config), timing=top.times[index], binary=binary)
        failed = top.failed.get(index) or self._failed.get(index)
        if failed is not None:
            return Tried(dict(config), failed=failed, binary=binary)
        return Tried(dict(config), skipped="cannot win by what was measured at other sizes", binary=binary)

    def _notes(self, sizes: Sequence[Sized]) -> tuple[str, ...]:
        doubtful = [sized for sized in sizes if not sized.trusted]
        notes = one_of_each_wording(note for sized in doubtful for note in sized.notes)
        more = [f"and {len(notes) - _MOST_NOTES} notes more"] if len(notes) > _MOST_NOTES else []
        what = [f"at {len(doubtful)} of {len(sizes)} sizes"] if doubtful and len(doubtful) < len(sizes) else []
        return (*notes[:_MOST_NOTES], *more, *what)


def one_of_each_wording(notes: Iterable[str]) -> list[str]:
    """Of notes that differ in numbers only, the one with the largest: else a busy machine has a note a size, that all say the same."""
    found: dict[str, str] = {}
    for note in notes:
        wording = _NUMBER.sub("#", note)
        found[wording] = max(found.get(wording, note), note, key=lambda one: [float(n) for n in _NUMBER.findall(one)])
    return list(found.values())
