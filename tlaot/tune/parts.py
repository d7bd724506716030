"""What a dynamic workload ships, from its evidence: which of its configs, and which sizes each of them serves.

Nothing is measured here. The same evidence, and the same ``max-slowdown``, give the same variants.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import TuningError
from ..manifest import Bucket
from ..runtime.buckets import holds
from .children.child import Failed
from .groups import Work
from .locks.lock import Entry, Part, Sized, latencies
from .searching.buckets import Known, Point, Share, share_out
from .searching.store import is_passing
from .specs.dynamic import corners
from .specs.plan import Workload, canonical
from .specs.spec import KernelSpec

__all__ = ["Ships", "choose_parts", "gather", "known_of", "share", "spread", "whole_of", "wrong_somewhere"]

# Digits of a regret and a bound, which are rounded up; and of a time.
_RATIO = 1e4


@dataclass(frozen=True)
class Ships:
    """One variant that a dynamic workload ships.

    Attributes:
        config: Its config.
        buckets: The sizes that it serves.
        latency: Times as a package has them, at the largest sizes that it serves of those that were measured.
    """

    config: Mapping[str, Any]
    buckets: tuple[Bucket, ...]
    latency: Mapping[str, float | None]

    @property
    def name(self) -> str:
        """Of its folder among the workload's."""
        return hashlib.sha256(canonical(dict(self.config)).encode()).hexdigest()[:10]


def known_of(sizes: Sequence[Sized], without: Collection[int] = ()) -> dict[Point, Known]:
    """What was found at each point, less the configs that cannot ship.

    Args:
        sizes: The evidence.
        without: Positions of configs that are left out, beside those that are wrong somewhere.
    """
    out = {*without, *wrong_somewhere(sizes)}
    found = {}
    for sized in sizes:
        times = {index: timing for index, timing in sized.times.items() if index not in out}
        if times:
            winner = sized.winner
            if winner not in times:
                winner = min(times, key=lambda index: (times[index].latency, index))
            found[tuple(sized.sizes.values())] = Known(times, winner)
    return found


def wrong_somewhere(sizes: Sequence[Sized]) -> dict[int, tuple[Mapping[str, int], str]]:
    """The configs that failed at a size, with the first such size and the reason; not those that took too long there, or that failed
    for reasons of the machine's.

    One that is wrong at some size is not known to be right at others that nobody looked at: it serves none.
    """
    found: dict[int, tuple[Mapping[str, int], str]] = {}
    for sized in sizes:
        for index, (stage, reason) in sized.failed.items():
            if "timed out" not in reason and not is_passing(Failed(stage, reason)):
                found.setdefault(index, (sized.sizes, f"{stage}: {reason}"))
    return found


def share(
    kernel: KernelSpec,
    sizes: Sequence[Sized],
    binaries: Mapping[int, str],
    without: Collection[int] = (),
    strict: bool = True,
) -> list[Share]:
    """Which configs serve which sizes.

    Raises:
        TuningError: No config is left at some size.
    """
    known = known_of(sizes, without)
    declared = set(itertools.product(*corners(kernel.dynamic, kernel.outside).values()))
    for sized in sizes:
        # Between the declared sizes a point of which nothing is left says nothing.
        point = tuple(sized.sizes.values())
        if point in declared and point not in known:
            at = ", ".join(f"{name}={size}" for name, size in sized.sizes.items())
            lost = wrong_somewhere(sizes)
            reasons = "\n".join(
                f"  #{index} at {dict(where)}: {why}" for index, (where, why) in list(lost.items())[:10]
            )
            raise TuningError(
                f"{kernel.where} dynamic",
                f"at {at} no config is left that is right at every size that was looked at:\n{reasons}",
                "Mend the configs that are wrong somewhere, or declare fewer sizes.",
            )
    axes = [list(axis) for axis in corners(kernel.dynamic, kernel.outside).values()]
    if len(axes) == 1:
        axes = [sorted(point[0] for point in known)]
    slowdown = kernel.max_slowdown or 1.0
    return share_out(known, axes, binaries, slowdown, clamp=kernel.outside == "clamp", strict=strict)


def choose_parts(kernel: KernelSpec, entry: Entry, without: Collection[int] = ()) -> list[Ships]:
    """The variants of a dynamic workload, by the positions of their configs.

    Args:
        kernel: The spec's entry.
        entry: The evidence.
        without: Positions of configs that do not build for the target.

    Raises:
        TuningError: No config is left at some size.
    """
    binaries = {index: tried.binary for index, tried in enumerate(entry.candidates) if tried.binary}
    shares = share(kernel, entry.sizes, binaries, without)
    by_config: dict[int, list[Share]] = {}
    for one in shares:
        by_config.setdefault(one.config, []).append(one)
    names = tuple(kernel.dynamic)
    return [
        Ships(
            dict(entry.candidates[config].config),
            tuple(_bucket(names, one) for one in own),
            _latency(config, own[-1], entry.sizes),
        )
        for config, own in sorted(by_config.items())
    ]


def spread(
    work: Work, entries: Mapping[str, Entry], without: Mapping[str, Collection[int]] | None = None
) -> tuple[Work, dict[str, Entry], dict[str, Ships]]:
    """A group and its evidence with each dynamic workload as what it ships: a workload of its own for each variant.

    Args:
        work: The group.
        entries: The evidence, by path.
        without: Positions of configs that do not build, by path.

    Returns:
        The group, the evidence of each variant by its own path, and what is special of those of dynamic workloads.
    """
    workloads: dict[str, Workload] = {}
    found: dict[str, Entry] = {}
    special: dict[str, Ships] = {}
    for path, workload in work.workloads.items():
        if path not in entries:
            continue
        if not workload.is_dynamic:
            workloads[path], found[path] = workload, entries[path]
            continue
        entry = entries[path]
        codes = {canonical(dict(part.config)): part.code for part in entry.parts}
        for one in choose_parts(workload.kernel, entry, (without or {}).get(path, ())):
            own = replace(workload, part=one.name)
            workloads[own.path] = own
            code = codes.get(canonical(dict(one.config)), {})
            found[own.path] = replace(entry, ships=dict(one.config), code=dict(code))
            special[own.path] = one
    return replace(work, workloads=workloads), found, special


def whole_of(workload: Workload) -> Workload:
    """The workload that a variant is of."""
    return replace(workload, part="")


def gather(kernel: KernelSpec, entry: Entry, shipped: Sequence[tuple[Ships, Mapping[str, str]]]) -> Entry:
    """A dynamic workload's entry with what it ships; what serves the largest declared sizes is named as other workloads' is.

    Args:
        kernel: The spec's entry.
        entry: The evidence.
        shipped: The variants, each with digests of its code.
    """
    largest = {name: sizes[-1] for name, sizes in kernel.dynamic.items()}
    top, code = next(
        (ships, code) for ships, code in shipped if any(holds(bucket, largest) for bucket in ships.buckets)
    )
    parts = tuple(Part(dict(ships.config), dict(own)) for ships, own in shipped)
    return replace(entry, ships=dict(top.config), code=dict(code), parts=parts)


def _bucket(names: Sequence[str], share: Share) -> Bucket:
    ends = tuple(zip(share.low, share.high, strict=True))
    bound = None if math.isinf(share.bound) else _up(share.bound)
    return Bucket(dict(zip(names, ends, strict=True)), share.ends, _up(share.regret), bound)


def _up(ratio: float) -> float:
    return math.ceil(round(ratio * _RATIO, 3)) / _RATIO


def _latency(config: int, share: Share, sizes: Sequence[Sized]) -> dict[str, float | None]:
    inside = [
        sized
        for sized in sizes
        if config in sized.times
        and all(
            low <= size and (high is None or size <= high)
            for low, high, size in zip(share.low, share.high, sized.sizes.values(), strict=True)
        )
    ]
    last = max(inside, key=lambda sized: tuple(sized.sizes.values()))
    return latencies(last.times[config], last.times.get(0), last.reference)
