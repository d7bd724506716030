"""Which variant of a dynamic kernel serves which sizes: plain data, and look-ups that are cheap enough for every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..manifest import Bucket, Variant

__all__ = ["find_bucket", "holds", "measured_range", "spell_range"]


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
    if not variant.buckets or 0 not in sizes.values():
        return None
    written = [param for index, param in enumerate(variant.params) if param.written or index in variant.out_idx]
    least = {name: min(bucket.sizes[name][0] for bucket in variant.buckets) for name in variant.buckets[0].sizes}
    for name, low in least.items():
        if sizes.get(name) == 0 and low == 1 and all(name in (param.shape or ()) for param in written):
            sizes = {**sizes, name: 1}
    return next((bucket for bucket in variant.buckets if holds(bucket, sizes)), None)


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
