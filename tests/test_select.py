"""Which binaries ship: the fewest that serve every workload within a slowdown, against brute force."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tlaot.target import parse_target
from tlaot.tune.measuring.timing import Timing
from tlaot.tune.searching.cover import cover_cheaply
from tlaot.tune.searching.select import choose_fewest
from tlaot.tune.specs.plan import Workload
from tlaot.tune.specs.spec import KernelSpec

LLVM = parse_target("llvm")
SPEC = KernelSpec("k", "tvm", "m:f", (LLVM,), (), (), "here")

Tuning = tuple[Workload, dict[int, Timing], dict[int, str]]


def tuning(latencies: list[float | None], digests: list[str], spread: float = 0.0, samples: int = 50) -> Tuning:
    """A workload whose candidates took so many ms (None: failed)."""
    timings = {
        index: Timing(latency, spread, samples, "wall")
        for index, latency in enumerate(latencies)
        if latency is not None
    }
    return Workload(SPEC, LLVM, {}, ()), timings, dict(enumerate(digests))


def fastest(tunings: list[Tuning]) -> list[int]:
    return [min(timings, key=lambda i: (timings[i].latency, i)) for _, timings, _ in tunings]


def test_one_binary_serves_all_where_it_is_near_enough() -> None:
    tunings = [tuning([1.00, 1.04, 1.5], ["a", "b", "c"]), tuning([1.3, 1.02, 1.00], ["a", "b", "c"])]
    assert fastest(tunings) == [0, 2]
    assert choose_fewest(tunings, 1.05, [0, 2]) == [1, 1]
    assert choose_fewest(tunings, 1.03, [0, 2]) == [0, 2]
    assert choose_fewest(tunings, 1.31, [0, 2]) == [1, 1], "a would do as well, b costs less"
    assert choose_fewest(tunings, 1.0, [0, 2]) == [0, 2]


def test_what_shares_nothing_stays_as_it_was_decided() -> None:
    """A tie that was lost by a little less time does not win it back, nor does a lower index of equal code."""
    tunings = [tuning([0.99, 1.0, 1.0], ["a", "b", "b"]), tuning([2.0, 2.0, 2.0], ["c", "d", "e"])]
    assert choose_fewest(tunings, 1.05, [2, 1]) == [2, 1]


def test_a_time_that_is_not_known_well_is_not_near() -> None:
    """The interval's end counts; too few samples have none."""
    steady, shared = tuning([1.0, 1.03], ["a", "b"], spread=0.001), tuning([2.0, 1.0], ["a", "b"])
    assert choose_fewest([steady, shared], 1.05, [0, 1]) == [1, 1]
    shaky = tuning([1.0, 1.03], ["a", "b"], spread=0.1)  # 1.57 * 0.1 / sqrt(50): 2.2 %
    assert choose_fewest([shaky, shared], 1.05, [0, 1]) == [0, 1]
    few = tuning([1.0, 1.03], ["a", "b"], samples=2)
    assert choose_fewest([few, shared], 1.05, [0, 1]) == [0, 1]


def test_the_limit_is_of_the_fastest_and_the_winner_ships_in_any_case() -> None:
    """A tie went to the slower one; 5 % more than that would be 5 % too much."""
    tied = tuning([1.00, 1.02, 1.06], ["a", "b", "c"])
    assert choose_fewest([tied, tuning([9.0, 9.0, 1.0], ["x", "y", "c"])], 1.05, [1, 2]) == [1, 2]
    slow = tuning([1.0, 3.0], ["a", "b"])
    assert choose_fewest([slow], 1.05, [1]) == [1]


def test_what_is_not_known_takes_no_part() -> None:
    """Failed candidates, binaries that are gone, derived targets with no times at all."""
    workload, timings, digests = tuning([1.0, None, 1.01], ["a", "b", "c"])
    del digests[0]
    other = tuning([5.0, 5.0, 1.0], ["x", "b", "c"])
    assert choose_fewest([(workload, timings, digests), other], 1.05, [0, 2]) == [2, 2]
    derived: Tuning = (workload, {}, {3: "c"})
    assert choose_fewest([derived, other], 1.05, [3, 2]) == [3, 2]
    unknown: Tuning = (workload, {}, {})
    assert choose_fewest([unknown, unknown], 1.05, [3, 4]) == [3, 4]
    assert choose_fewest([], 1.05, []) == []


def brute_force(members: list[dict[str, tuple[float, int]]]) -> tuple[int, float, tuple[int, ...]]:
    """The best rank over all sets of sets."""
    names = sorted({name for costs in members for name in costs})
    for size in range(len(names) + 1):
        ranks = []
        for chosen in itertools.combinations(names, size):
            taken = [min((c for n, c in costs.items() if n in chosen), default=None) for costs in members]
            if None not in taken:
                known = [c for c in taken if c is not None]
                ranks.append((size, math.fsum(c for c, _ in known), tuple(i for _, i in known)))
        if ranks:
            return min(ranks)
    raise AssertionError("no cover")


def rank(members: list[dict[str, tuple[float, int]]], taken: list[str]) -> tuple[int, float, tuple[int, ...]]:
    costs = [costs[name] for costs, name in zip(members, taken, strict=True)]
    return len(set(taken)), math.fsum(c for c, _ in costs), tuple(i for _, i in costs)


@pytest.mark.parametrize("seed", range(8))
def test_covers_are_as_good_as_brute_force_finds(seed: int) -> None:
    """Random problems: from sparse ones that fall apart to dense ones with many ties."""
    random_ = random.Random(seed)
    for _ in range(60):
        sets, density = random_.randint(1, 9), random_.choice([0.2, 0.4, 0.7])
        grid = random_.choice([2, 1000])
        members = []
        for _ in range(random_.randint(1, 8)):
            found = [s for s in range(sets) if random_.random() < density] or [random_.randrange(sets)]
            members.append({f"s{s}": (1 + random_.randrange(grid) / grid, s) for s in found})
        assert rank(members, cover_cheaply(members)) == brute_force(members)


@pytest.mark.parametrize("seed", range(5))
def test_random_tunings_keep_the_promise(seed: int) -> None:
    """Each choice is within the slowdown or the winner; no choice with fewer binaries is."""
    random_ = random.Random(seed)
    for _ in range(40):
        tunings = []
        for _ in range(random_.randint(1, 5)):
            latencies: list[float | None] = [1 + random_.randrange(12) / 100 for _ in range(6)]
            tunings.append(tuning(latencies, [random_.choice("abcdefgh") for _ in range(6)]))
        winners, slowdown = fastest(tunings), random_.choice([1.0, 1.03, 1.05, 1.2])
        chosen = choose_fewest(tunings, slowdown, winners)
        allowed = []
        for (_, timings, digests), index, winner in zip(tunings, chosen, winners, strict=True):
            limit = slowdown * min(t.latency for t in timings.values())
            near = {i for i, t in timings.items() if t.latency <= limit} | {winner}
            assert index in near
            allowed.append({digests[i] for i in near})
        count = len({digests[i] for (_, _, digests), i in zip(tunings, chosen, strict=True)})
        everything = sorted({d for digests in allowed for d in digests})
        for smaller in itertools.combinations(everything, count - 1):
            assert any(not digests & set(smaller) for digests in allowed)
        backwards = choose_fewest(tunings[::-1], slowdown, winners[::-1])[::-1]
        assert len({digests[i] for (_, _, digests), i in zip(tunings, backwards, strict=True)}) == count


def test_large_problems_end() -> None:
    """Hundreds of workloads and binaries: the search is cut off, and what it has is a cover no worse than greedy's."""
    random_ = random.Random(1)
    members = [
        {f"s{s}": (1 + random_.random(), s) for s in random_.sample(range(400), random_.randint(2, 30))}
        for _ in range(300)
    ]
    taken = cover_cheaply(members)
    assert all(name in costs for name, costs in zip(taken, members, strict=True))
    sets: dict[str, set[int]] = {}
    for i, costs in enumerate(members):
        for name in costs:
            sets.setdefault(name, set()).add(i)
    left, greedy = set(range(len(members))), 0
    while left:
        left -= max(sets.values(), key=lambda mine: len(mine & left))
        greedy += 1
    assert len(set(taken)) <= greedy + 2
    assert cover_cheaply(members) == taken


def test_a_long_chain_is_no_deeper_than_python_goes() -> None:
    """Each workload shares a binary with the next one: one connected problem of a thousand, for the greedy rule."""
    members = [{f"s{i}": (1.0, 0), f"s{i + 1}": (1.0, 1)} for i in range(1200)]
    taken = cover_cheaply(members)
    assert all(name in costs for name, costs in zip(taken, members, strict=True))
    assert 600 <= len(set(taken)) <= 600 * (1 + math.log(2))
