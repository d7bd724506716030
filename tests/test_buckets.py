"""Which configs of a dynamic kernel serve which sizes: on made-up times, of tiles that run in waves, where the truth is known."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from tlaot.manifest import Bucket
from tlaot.runtime.buckets import find_bucket, holds, measured_range, spell_range
from tlaot.tune.measuring.timing import Timing
from tlaot.tune.searching.buckets import Known, Share, next_sizes, open_edges, share_out, worth_measuring
from tlaot.tune.sizing import one_of_each_wording

DECLARED = (1, 16, 64, 256, 1024, 4096, 16384)
# Rows and columns of a tile, and how well it uses a multiprocessor.
TILES = [
    (bm, bn, quality)
    for (bm, bn), base in {(64, 64): 0.7, (64, 128): 0.74, (128, 64): 0.76, (128, 128): 0.8, (128, 256): 0.85}.items()
    for quality in (base, base * 0.98, base * 1.02)
]


def waves(config: int, rows: int) -> float:
    """Time in ms of a matmul with 4096 columns and terms on 132 multiprocessors."""
    bm, bn, quality = TILES[config]
    tiles = math.ceil(rows / bm) * math.ceil(4096 / bn)
    computing = math.ceil(tiles / 132) * bm * bn * 1.1e-6 / quality
    return max(computing, 0.02 + rows * 3e-6)


def timing(ms: float) -> Timing:
    return Timing(ms, 0.01, 50, "made up", ms)


class Bench:
    """Measures configs at sizes of one dimension, with noise."""

    def __init__(self, time: Callable[[int, int], float], configs: int, noise: float = 0.0) -> None:
        self.time, self.configs, self.noise = time, configs, noise
        self.known: dict[int, Known] = {}
        self._random = random.Random(1)

    def measure(self, size: int, configs: Iterable[int] | None = None) -> None:
        chosen = range(self.configs) if configs is None else configs
        times = {c: timing(self.time(c, size) * math.exp(self._random.gauss(0, self.noise))) for c in chosen}
        self.known[size] = Known(times, min(times, key=lambda c: times[c].latency))

    def share(self, strict: bool = True, **options: bool) -> list[Share]:
        points = {(size,): known for size, known in self.known.items()}
        names = {c: f"binary {c}" for c in range(self.configs)}
        return share_out(points, [sorted(self.known)], names, 1.05, strict=strict, **options)

    def settle(self, declared: Sequence[int], probes: int) -> list[Share]:
        for size in declared:
            self.measure(size)
        while sizes := next_sizes(self.known, declared, probes):
            for size in sizes:
                self.measure(size, worth_measuring(self.known, size))
        for _ in range(8):
            edges = open_edges(self.share(strict=False), {(size,): known for size, known in self.known.items()})
            for (size,) in edges:
                self.measure(size, worth_measuring(self.known, size))
        return self.share()

    def regret(self, shares: Sequence[Share], size: int) -> float:
        taken = next(s.config for s in shares if s.low[0] <= size and (s.high[0] is None or size <= s.high[0]))
        return self.time(taken, size) / min(self.time(c, size) for c in range(self.configs))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02])
def test_sizes_between_measured_ones_are_served_well(noise: float) -> None:
    """At every size, of tiles whose waves end everywhere; and no more than some 150 sizes are measured for 16384."""
    bench = Bench(waves, len(TILES), noise)
    shares = bench.settle(DECLARED, 16)
    draw = random.Random(3)
    sizes = [draw.randint(1, 16384) for _ in range(500)] + [round(math.exp(draw.uniform(0, 9.7))) for _ in range(500)]
    regrets = sorted(bench.regret(shares, size) for size in sizes)
    assert regrets[len(regrets) // 2] <= 1.03
    assert regrets[-1] <= 1.15
    assert len(bench.known) <= 150
    assert len({share.config for share in shares}) <= 8


def test_ranges_lie_end_to_end_and_begin_at_measured_sizes() -> None:
    bench = Bench(waves, len(TILES), 0.01)
    shares = bench.settle(DECLARED, 8)
    assert shares[0].low == (1,) and shares[-1].high == (16384,)
    for one, other in itertools.pairwise(shares):
        assert one.high[0] is not None and other.low == (one.high[0] + 1,)
        assert one.config != other.config, "neighbours of one config are joined"
    for share in shares:
        assert share.low[0] in bench.known and share.high[0] in bench.known
        assert None not in share.ends
        assert 1 <= share.regret <= share.bound + 1e-9 or share.low == share.high or share.regret < 1.1


def test_the_bound_holds_where_time_grows_with_size() -> None:
    bench = Bench(waves, len(TILES))
    for share in bench.settle(DECLARED, 6):
        high = share.high[0]
        assert high is not None
        for size in {
            share.low[0],
            high,
            *random.Random(0).sample(range(share.low[0], high + 1), min(50, high - share.low[0] + 1)),
        }:
            best = min(waves(c, size) for c in range(len(TILES)))
            assert waves(share.config, size) / best <= share.bound + 1e-9


def test_one_config_that_always_wins_serves_all_and_takes_few_sizes() -> None:
    bench = Bench(lambda config, size: (1 + config) * 0.01, 3)
    (share,) = bench.settle((1, 64, 1024), 16)
    assert (share.config, share.low, share.high, share.regret) == (0, (1,), (1024,), 1.0)
    assert len(bench.known) == 3, "time does not change between them"


def test_the_fewest_variants_serve() -> None:
    """Of two that are each the best somewhere and a third that is within 4 % of both everywhere, the third."""

    def time(config: int, size: int) -> float:
        base = size * 1e-3
        return base * ((1.0 if size < 100 else 1.2), (1.2 if size < 100 else 1.0), 1.04)[config]

    bench = Bench(time, 3)
    for size in (10, 100, 1000):
        bench.measure(size)
    assert {share.config for share in bench.share()} == {2}


def test_a_change_is_found_where_it_is() -> None:
    """A crossing that is no step: between two measured sizes, nearer than one in a hundred."""

    def time(config: int, size: int) -> float:
        return 1 + size * 1e-3 if config == 0 else 3.1 + size * 1e-4

    bench = Bench(time, 2)
    first, second = bench.settle((1, 8192), 16)
    assert (first.config, second.config) == (0, 1)
    crossing = 2.1 / 9e-4
    # On either side of it the other one is within the tolerance for a while.
    assert first.high[0] is not None and 0.9 * crossing <= first.high[0] <= 1.15 * crossing
    assert max(first.regret, second.regret) <= 1.05


def test_what_was_not_measured_at_a_size_does_not_serve_there() -> None:
    bench = Bench(lambda config, size: 1.0 + 0.1 * config, 2)
    bench.measure(1, [1])
    bench.measure(2)
    bench.measure(10)
    assert [(share.config, share.low, share.high) for share in bench.share()] == [(1, (1,), (1,)), (0, (2,), (10,))]


def test_clamped_ranges_have_no_end() -> None:
    bench = Bench(lambda config, size: 1.0, 1)
    for size in (1, 64, 97):
        bench.measure(size)
    (share,) = bench.share(clamp=True)
    assert (share.low, share.high) == ((1,), (None,))
    assert share.ends == (1.0, 1.0)


def test_several_dimensions() -> None:
    """Boxes of a grid cover it once; those of one config that make a box are joined."""

    def time(config: int, m: int, n: int) -> float:
        return 1.0 if config == (m > 16 and n > 16) else 2.0

    axes = [[1, 16, 64], [8, 16, 128]]
    known = {}
    for point in itertools.product(*axes):
        times = {c: timing(time(c, *point)) for c in range(2)}
        known[point] = Known(times, min(times, key=lambda c: times[c].latency))
    shares = share_out(known, axes, {0: "a", 1: "b"}, 1.05)
    for point in itertools.product((1, 2, 16, 17, 64), (8, 9, 16, 17, 128)):
        (own,) = [
            s.config
            for s in shares
            if all(
                low <= at and (high is None or at <= high) for low, high, at in zip(s.low, s.high, point, strict=True)
            )
        ]
        assert own == (point[0] > 16 and point[1] > 16)
    assert len(shares) <= 4
    assert {s.low for s in shares if s.config == 1} == {(17, 17)}


def test_what_cannot_win_between_two_sizes_is_not_measured_there() -> None:
    bench = Bench(lambda config, size: size * (1.0, 1.5, 10.0)[config], 3)
    for size in (100, 120):
        bench.measure(size)
    assert worth_measuring(bench.known, 110) == [0]
    assert worth_measuring(bench.known, 200) is None
    bench.measure(200)
    assert worth_measuring(bench.known, 150) == [0, 1]


def test_which_bucket_sizes_are_in() -> None:
    from fixtures_runtime import tensor, variant

    params = [tensor("X", "m", 4), tensor("Y", "m", 4, written=True)]
    one = variant("k", params, [1], {"m": "m"}, buckets=(Bucket({"m": (1, 8)}), Bucket({"m": (17, None)})))
    other = variant("k", params, [1], {"m": "m"}, buckets=(Bucket({"m": (9, 16)}),))
    assert [find_bucket(one, {"m": m}) is not None for m in (0, 1, 8, 9, 16, 17, 1 << 40)] == [True] * 3 + [
        False
    ] * 2 + [True] * 2
    assert find_bucket(other, {"m": 0}) is None, "the least size is another's"
    assert not holds(other.buckets[0], {"n": 9})
    total = variant("k", [tensor("X", "m"), tensor("Y", 1, written=True)], [1], {}, buckets=(Bucket({"m": (1, 8)}),))
    assert find_bucket(total, {"m": 0}) is None, "the sum of nothing is something to compute"
    assert measured_range([other]) == {"m": (9, 16)}
    assert measured_range([one, other]) == {"m": (1, None)}
    assert [spell_range(ends) for ends in ((1, 8), (8, 8), (17, None))] == ["1 to 8", "8", "17 and more"]


def test_a_step_somewhere_else_takes_few_sizes() -> None:
    """Of two near sizes the time steps up between them, and not just above the lower one."""
    bench = Bench(lambda config, size: 1.0 if size <= 4300 else 1.3, 1)
    bench.settle((4096, 4608), 16)
    assert 4097 in bench.known
    assert len(bench.known) <= 10
    assert min(size for size in bench.known if size > 4300) - max(size for size in bench.known if size <= 4300) <= 64


def test_notes_of_many_sizes_are_told_once_a_wording() -> None:
    """With the largest number of each: a busy machine has one a size."""
    busy = [f"measured while other processes kept {n} of 2 CPUs busy" for n in (1.9, 2.1, 2.0)]
    assert one_of_each_wording([busy[0], "not steady", *busy[1:]]) == [busy[1], "not steady"]
