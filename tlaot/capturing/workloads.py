"""From what was called to what is worth packaging: workloads by use, and sizes for what the code leaves open."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..keys import key_of
from .recording import Called

__all__ = ["Workload", "choose", "dynamic_sizes", "open_sizes", "workloads_of"]

# Between the ends, one size of each band [4^k, 4^(k+1)): the tuner measures between declared sizes by itself.
_BAND = 4
# All dimensions of a kernel are multiplied out, and every config is measured at each point.
_MOST_POINTS = 64


@dataclass
class Workload:
    """One entry of a kernel's shapes.

    Attributes:
        shape: Arguments of the factory, encoded.
        times: Launches.
        sizes: By each dimension that the code leaves open: how often which size was launched.
        unbound: Open sizes of the code that no launch told.
    """

    shape: dict[str, Any]
    times: int = 0
    sizes: dict[str, Counter[int]] = field(default_factory=dict)
    unbound: set[str] = field(default_factory=set)

    @property
    def opened(self) -> tuple[str, ...]:
        """All sizes that the code leaves open."""
        return tuple(sorted({*self.sizes, *self.unbound}))


def workloads_of(calls: Iterable[Called], names: Collection[str]) -> list[Workload]:
    """The calls of one factory as entries of shapes, most launched first.

    Args:
        calls: Its calls.
        names: The arguments that entries name.
    """
    found: dict[Any, Workload] = {}
    for one in calls:
        shape = {name: value for name, value in one.arguments.items() if name in names}
        workload = found.setdefault(key_of(shape), Workload(shape))
        workload.times += one.times
        sizes, unbound = open_sizes(one)
        for name, counter in sizes.items():
            workload.sizes.setdefault(name, Counter()).update(counter)
        workload.unbound = (workload.unbound | unbound) - workload.sizes.keys()
    return sorted(found.values(), key=lambda workload: (-workload.times, *map(_order, workload.shape.items())))


def _order(item: tuple[str, Any]) -> tuple[str, str, float, str]:
    """Numbers by size, other values by their spelling."""
    name, value = item
    number = float(value) if isinstance(value, (int, float)) else 0.0
    return name, type(value).__name__, number, str(value)


def choose(workloads: Sequence[Workload], min_count: int, cover: float) -> tuple[list[Workload], dict[int, str]]:
    """The fewest workloads that cover a share of the launches.

    Args:
        workloads: Most launched first.
        min_count: Fewer launches than this are no reason.
        cover: Share of all launches, up to 1.

    Returns:
        Those, and why each other one, by its position, is not among them.
    """
    total = sum(workload.times for workload in workloads)
    chosen: list[Workload] = []
    left: dict[int, str] = {}
    covered = 0
    for i, workload in enumerate(workloads):
        if workload.times == 0:
            left[i] = "never launched"
        elif covered >= cover * total and cover < 1:
            left[i] = f"the others cover {covered / total:.2%} of the launches"
        elif workload.times < min_count:
            left[i] = f"fewer than {min_count} launches"
        else:
            chosen.append(workload)
            covered += workload.times
    return chosen, left


def open_sizes(one: Called) -> tuple[dict[str, Counter[int]], set[str]]:
    """What the dimensions that the code leaves open were in launches, by the name that a spec has for them.

    That is the factory's argument where it was given a symbolic size, else the size's own name in the code.
    """
    names = {symbol: argument for argument, symbol in one.symbols.items()}
    declared = {
        size for param in one.params for size in param.get("shape", ()) if isinstance(size, str) and size.isidentifier()
    }
    found: dict[str, Counter[int]] = {names.get(size, size): Counter() for size in sorted(declared)}
    inputs = [param for i, param in enumerate(one.params) if i not in one.outputs]
    for launch in one.launches:
        given = launch.arguments or ()
        params = one.params if len(given) == len(one.params) else inputs if len(given) == len(inputs) else ()
        seen: dict[str, int] = {}
        for param, argument in zip(params, given, strict=False):
            for size, value in zip(param.get("shape", ()), argument.get("shape", ()), strict=False):
                if isinstance(size, str) and size in declared:
                    seen.setdefault(size, value)
        for size, value in seen.items():
            if value > 0:  # nothing is launched for none
                found[names.get(size, size)][value] += launch.times - launch.failed
    unbound = {name for name, counter in found.items() if not +counter}
    return {name: +counter for name, counter in found.items() if +counter}, unbound


def dynamic_sizes(seen: Mapping[str, Counter[int]]) -> dict[str, tuple[int, ...]]:
    """Sizes to tune at, from those that were launched.

    The ends are the smallest and the largest that were seen, since these are the ends of what is served; between them, of each power
    of four the size that was launched most. Where several dimensions multiply out to many points, of each power of sixteen, and so
    on. Of a dimension that had one size only: from 1 to that.
    """
    band = _BAND
    while True:
        sizes = {name: _representative(counter, band) for name, counter in seen.items()}
        if math.prod(map(len, sizes.values())) <= _MOST_POINTS or band > 1 << 31:
            return sizes
        band *= _BAND


def _representative(counter: Counter[int], band: int) -> tuple[int, ...]:
    low, high = min(counter), max(counter)
    if low == high:
        return (1, high) if high > 1 else (1, 2)
    best: dict[int, int] = {}
    for size in sorted(counter):
        place = int(math.log(size, band) + 1e-9)
        if place not in best or counter[size] > counter[best[place]]:
            best[place] = size
    return tuple(sorted({low, *best.values(), high}))
