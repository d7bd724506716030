"""Ranges of sizes for which a decision holds: whatever the variants, the same is chosen everywhere in them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest
from fixtures_runtime import tensor, variant

from tlaot.errors import TlaotError
from tlaot.manifest import Bucket, Variant
from tlaot.runtime.choose import pick_variant
from tlaot.runtime.dispatch import Argument, Place
from tlaot.runtime.region import Range, find_ranges

CPU = Place(1)
END = 2**63 - 1


def make(index: int, a: Any, b: Any, out: Any, *buckets: dict[str, tuple[int, int | None]]) -> Variant:
    """``C = f(A, B)`` of those shapes, told apart by its path, and the faster the lower its index is."""
    params = [tensor("A", *a), tensor("B", *b), tensor("C", *out, written=True)]
    made = variant("k", params, [2], {"M": 1})
    return dataclasses.replace(
        made, path=str(index), latency={"latency": 1.0 + index}, buckets=tuple(map(Bucket, buckets))
    )


def decide(variants: list[Variant], arguments: list[Argument]) -> Variant | str:
    try:
        return pick_variant("k", variants, arguments, CPU, {})
    except TlaotError as error:
        return type(error).__name__


def given(m: int, k: int, n: int, other: int | None = None) -> list[Argument]:
    return [Argument("float32", (m, k)), Argument("float32", (k if other is None else other, n))]


def test_between_fixed_sizes() -> None:
    variants = [make(0, ("m", 8), (8, 8), ("m", 8)), make(1, (4, 8), (8, 8), (4, 8)), make(2, (9, 8), (8, 8), (9, 8))]
    for m, expected in ((2, (0, 3)), (5, (5, 8)), (100, (10, END))):
        found = find_ranges(variants, variants[0], given(m, 8, 8), CPU, {})
        assert found == [[Range(*expected), Range(8, 8)], [Range(8, 8), Range(8, 8)]]
    assert find_ranges(variants, variants[1], given(4, 8, 8), CPU, {}) is None


def test_sizes_that_are_equal_by_name() -> None:
    one = make(0, ("m", "k"), ("k", "n"), ("m", "n"))
    found = find_ranges([one], one, given(3, 4, 5), CPU, {})
    free = Range(0, END)
    assert found == [[free, free], [Range(0, END, 0, 1), free]]
    square = make(1, ("m", "m"), ("m", "n"), ("m", "n"))
    assert find_ranges([one, square], one, given(3, 4, 5), CPU, {}) is None


def shapes(random_: random.Random) -> tuple[Any, Any, Any]:
    sizes = {name: random_.choice([name, name, random_.randint(1, 6)]) for name in "mkn"}
    if random_.random() < 0.1:
        sizes["k"] = sizes["m"]
    return (sizes["m"], sizes["k"]), (sizes["k"], sizes["n"]), (sizes["m"], sizes["n"])


def some_variants(random_: random.Random) -> list[Variant]:
    made = []
    for index in range(random_.randint(1, 5)):
        a, b, out = shapes(random_)
        names = sorted({size for size in (*a, *b) if isinstance(size, str)})
        buckets = []
        for _ in range(random_.choice([0, 0, 1, 2]) if names else 0):
            ends = {}
            for name in names:
                low = random_.randint(1, 5)
                ends[name] = (low, random_.choice([None, low + random_.randint(0, 4)]))
            buckets.append(ends)
        made.append(make(index, a, b, out, *buckets))
    return made


@pytest.mark.parametrize("seed", range(50))
def test_the_same_is_chosen_everywhere_in_the_ranges(seed: int) -> None:
    """All sizes up to 8, of variants at random with fixed and open sizes, with ranges and without."""
    random_ = random.Random(seed)
    variants = some_variants(random_)
    ranges_found = 0
    for m, k, n in itertools.product(range(9), repeat=3):
        if random_.random() > 0.15:
            continue
        chosen = decide(variants, given(m, k, n))
        if isinstance(chosen, str):
            continue
        ranges = find_ranges(variants, chosen, given(m, k, n), CPU, {})
        if ranges is None:
            continue
        ranges_found += 1
        (rows, inner), (inner_too, columns) = ranges
        assert rows.low <= m <= rows.high
        tied = inner_too.arg >= 0
        for sizes in itertools.product(range(9), repeat=4):
            other_m, other_k, other_k_too, other_n = sizes
            inside = (
                rows.low <= other_m <= rows.high
                and inner.low <= other_k <= inner.high
                and inner_too.low <= other_k_too <= inner_too.high
                and columns.low <= other_n <= columns.high
                and (not tied or other_k_too == (other_m, other_k)[inner_too.dim])
                and all(
                    one.arg < 0 or size == (other_m, other_k)[one.dim]
                    for one, size in ((inner, other_k), (columns, other_n))
                )
            )
            if inside:
                assert decide(variants, given(other_m, other_k, other_n, other_k_too)) is chosen, (sizes, ranges)
