"""Which variant of a dynamic kernel serves which sizes: plain data, and look-ups that are cheap enough for every call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..manifest import Bucket, Variant

__all__ = ["Ladder", "find_bucket", "holds", "make_ladder", "measured_range", "spell_range"]


def holds(bucket: Bucket, sizes: Mapping[str, int]) -> bool:
    """Whether sizes by name are in a bucket; a dimension without a size is in none."""
    for name, (low, high) in bucket.sizes.items():
        size = sizes.get(name, -1)
        if size < low or (high is not None and size > high):
            return False
    return True


def find_bucket(variant: Variant, sizes: Mapping[str, int]) -> Bucket | None:
    """The bucket of a variant that sizes by name are in; None where it serves others.

    A size of zero of which every output has a dimension leaves nothing to compute: it is in the bucket of the least size.
    """
    for bucket in variant.buckets:
        if holds(bucket, sizes):
            return bucket
    if 0 not in sizes.values():
        return None
    written = [param for index, param in enumerate(variant.params) if param.written or index in variant.out_idx]
    least = {name: min(bucket.sizes[name][0] for bucket in variant.buckets) for name in variant.buckets[0].sizes}
    for name, low in least.items():
        if sizes.get(name) == 0 and low == 1 and all(name in (param.shape or ()) for param in written):
            sizes = {**sizes, name: 1}
    return next((bucket for bucket in variant.buckets if holds(bucket, sizes)), None)


@dataclass(frozen=True)
class Ladder:
    """The buckets of one dimension, of several variants that share it: one search by halves finds who serves a size.

    Attributes:
        name: The dimension.
        first: The least size that is served.
        ends: Last size of each bucket, ascending; the last one may be beyond every size.
        owners: For each bucket the position of its variant.
    """

    name: str
    first: int
    ends: tuple[int, ...]
    owners: tuple[int, ...]

    def owner(self, size: int) -> int:
        """Position of the variant that serves a size; -1 for none."""
        if size < self.first:
            return -1
        place = bisect_left(self.ends, size)
        return self.owners[place] if place < len(self.owners) else -1


def make_ladder(variants: Sequence[Variant]) -> Ladder | None:
    """The ladder of variants that share one dynamic dimension; None where their buckets are of several, or leave a gap."""
    rungs = sorted(
        (*ends, name, position)
        for position, variant in enumerate(variants)
        for bucket in variant.buckets
        for name, ends in _only(bucket)
    )
    names = {name for *_, name, _ in rungs}
    if len(names) != 1 or len(rungs) != sum(len(variant.buckets) for variant in variants):
        return None
    for (_, end, *_), (start, *_) in pairwise(rungs):
        if start != end + 1:
            return None
    return Ladder(rungs[0][2], rungs[0][0], tuple(rung[1] for rung in rungs), tuple(rung[3] for rung in rungs))


# Larger than any size of a tensor.
_ENDLESS = 1 << 63


def _only(bucket: Bucket) -> list[tuple[str, tuple[int, int]]]:
    """The one dimension of a bucket; none where there are several."""
    if len(bucket.sizes) != 1:
        return []
    ((name, (low, high)),) = bucket.sizes.items()
    return [(name, (low, _ENDLESS if high is None else high))]


def measured_range(variants: Sequence[Variant]) -> dict[str, tuple[int, int | None]]:
    """For each dimension the least and the largest size that any of the variants serves."""
    found: dict[str, tuple[int, int | None]] = {}
    for bucket in (bucket for variant in variants for bucket in variant.buckets):
        for name, (low, high) in bucket.sizes.items():
            least, most = found.get(name, (low, high))
            found[name] = min(least, low), None if most is None or high is None else max(most, high)
    return found


def spell_range(ends: tuple[int, int | None]) -> str:
    """``64 to 4096``."""
    low, high = ends
    return f"{low} and more" if high is None else str(low) if low == high else f"{low} to {high}"
