"""Searches: what they try, in which order, and when they stop."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tlaot.errors import SpecError
from tlaot.target import parse_target
from tlaot.tune.child import Failed
from tlaot.tune.nearby import distance, farthest_first, place_configs, place_shapes
from tlaot.tune.plan import Candidate, Workload
from tlaot.tune.search import Search, make_search
from tlaot.tune.spec import Budget, KernelSpec
from tlaot.tune.timing import Timing

TARGET = parse_target("cuda:sm_90a")
NO_LIMIT = Budget()
Answer = Callable[[Candidate], Timing | Failed]


def ms(latency: float) -> Timing:
    return Timing(latency, 0.01, 100, "cudagraph")


def plan(
    shapes: Sequence[Mapping[str, Any]],
    configs: Sequence[Mapping[str, Any]],
    search: str = "auto",
    budget: Budget = NO_LIMIT,
) -> tuple[KernelSpec, list[Workload]]:
    kernel = KernelSpec(
        "k", "tvm", "m:f", (TARGET,), tuple(shapes), tuple(configs), "tltune.toml", search=search, budget=budget
    )
    return kernel, [Workload(kernel, TARGET, shape, tuple(configs)) for shape in shapes]


def drive(search: Search, answer: Answer, ahead: int = 1, seed: int = 0) -> list[Candidate]:
    """Ask and tell until the search is finished, ``ahead`` candidates under way, results in a random order."""
    order, under_way, chance = [], [], random.Random(seed)
    while True:
        while len(under_way) < ahead and (candidate := search.ask()) is not None:
            order.append(candidate)
            under_way.append(candidate)
        if not under_way:
            assert search.finished, "the search waits for results, and nothing is under way"
            return order
        assert not search.finished
        candidate = under_way.pop(chance.randrange(len(under_way)))
        search.tell(candidate, answer(candidate))


def assert_accounted(search: Search, tried: Sequence[Candidate]) -> None:
    """Every candidate is tried once or passed over once, with a reason."""
    names = [(c.workload.path, c.index) for c in tried]
    passed = [(s.candidate.workload.path, s.candidate.index) for s in search.skipped()]
    everything = [(w.path, index) for w in search.workloads for index in range(len(w.configs))]
    assert sorted(names + passed) == sorted(everything)
    assert all(skipped.reason for skipped in search.skipped())
    assert search.ask() is None
    assert all(search.settled(workload) for workload in search.workloads)


SHAPES = [{"M": 2**m, "N": 1024} for m in (6, 10, 7, 13)]
CONFIGS = [{"block": b, "threads": t} for b in (16, 32, 64) for t in (128, 256)]


def test_exhaustive_tries_everything_once() -> None:
    for ahead in (1, 5, 100):
        search = make_search(*plan(SHAPES, CONFIGS))
        assert_accounted(search, drive(search, lambda c: ms(1 + c.index), ahead, seed=ahead))
        assert search.skipped() == []


def test_exhaustive_goes_from_shape_to_the_nearest_shape() -> None:
    search = make_search(*plan(SHAPES, CONFIGS))
    order = drive(search, lambda c: ms(1))
    assert [c.workload.shape["M"] for c in order[:: len(CONFIGS)]] == [64, 128, 1024, 8192]
    assert [c.index for c in order[: len(CONFIGS)]] == list(range(len(CONFIGS)))  # nothing is known: the spec's order


def test_exhaustive_tries_first_what_was_fast_nearby_and_last_what_failed() -> None:
    times = [5.0, 2.0, 9.0, 1.0, None, 3.0]
    search = make_search(*plan(SHAPES, CONFIGS))
    order = drive(search, lambda c: ms(t) if (t := times[c.index]) else Failed("check", "is wrong"))
    for start in range(len(CONFIGS), len(order), len(CONFIGS)):
        assert [c.index for c in order[start : start + len(CONFIGS)]] == [3, 1, 5, 0, 2, 4]


def test_what_a_store_knows_is_told_unasked_and_not_asked_for() -> None:
    kernel, workloads = plan(SHAPES, CONFIGS)
    search = make_search(kernel, workloads)
    known = workloads[1].candidates()
    for candidate in known:
        search.tell(candidate, ms(6 - candidate.index))
    order = drive(search, lambda c: ms(1 + c.index), ahead=3)
    assert not {c.workload.path for c in order} & {workloads[1].path}
    assert_accounted(search, [*known, *order])


@pytest.mark.parametrize("name", ["exhaustive"])
def test_a_budget_of_trials_holds_and_is_shared_fairly(name: str) -> None:
    search = make_search(*plan(SHAPES, CONFIGS, name, Budget(trials=10)))
    order = drive(search, lambda c: ms(1), ahead=4)
    assert len(order) == 10
    assert_accounted(search, order)
    counts = [sum(c.workload.path == w.path for c in order) for w in search.workloads]
    assert min(counts) >= 2
    assert {s.reason for s in search.skipped()} == {"the budget of 10 trials is spent"}
    assert all(any(c.index == 0 for c in order if c.workload is w) for w in search.workloads)  # the spec's own default


@pytest.mark.parametrize("name", ["exhaustive"])
def test_a_budget_leaves_no_shape_without_a_kernel(name: str) -> None:
    # In the second shape only the last config that is tried there works.
    kernel, workloads = plan(SHAPES, CONFIGS, name, Budget(trials=8))
    search = make_search(kernel, workloads)
    tried: set[int] = set()

    def answer(candidate: Candidate) -> Timing | Failed:
        if candidate.workload is not workloads[1]:
            return ms(1)
        tried.add(candidate.index)
        return ms(1) if len(tried) == len(CONFIGS) else Failed("check", f"is wrong {candidate.index}")

    order = drive(search, answer, ahead=4)
    assert_accounted(search, order)
    assert len(tried) == len(CONFIGS)
    assert len([c for c in order if c.workload is not workloads[1]]) <= 8


@pytest.mark.parametrize("name", ["exhaustive"])
def test_a_budget_of_seconds_runs_from_the_first_ask(name: str) -> None:
    now = [1000.0]
    search = make_search(*plan(SHAPES, CONFIGS, name, Budget(seconds=60)), lambda: now[0])

    def answer(candidate: Candidate) -> Timing:
        now[0] += 7
        return ms(1)

    now[0] += 500
    order = drive(search, answer)
    assert len(order) == 9  # asked at 0, 7, .. 56 s
    assert_accounted(search, order)
    assert {s.reason for s in search.skipped()} == {"the budget of 60 s is spent"}


def test_fewer_trials_than_shapes_are_refused() -> None:
    with pytest.raises(SpecError, match=r"tltune.toml budget trials: is less than one for each of 4 shapes, got 3"):
        make_search(*plan(SHAPES, CONFIGS, "auto", Budget(trials=3)))


def test_a_search_knows_its_candidates() -> None:
    kernel, workloads = plan(SHAPES, CONFIGS)
    other = [replace(workload, target=parse_target("cuda:sm_100a")) for workload in workloads]
    search = make_search(kernel, workloads)
    assert search.concerns(workloads[2].candidates()[1])
    assert not search.concerns(other[2].candidates()[1])


def test_a_large_space_is_asked_for_quickly() -> None:
    configs = [{"a": a, "b": b, "c": c} for a, b, c in itertools.product(range(30), repeat=3)]
    search = make_search(*plan([{"M": 64}, {"M": 128}], configs, "exhaustive"))
    order = drive(search, lambda c: ms(1 + c.index % 97), ahead=16)
    assert len(order) == 54_000


def test_no_shape_is_a_finished_search() -> None:
    kernel, _ = plan(SHAPES, CONFIGS)
    search = make_search(kernel, [])
    assert search.ask() is None
    assert search.finished


def test_shapes_are_apart_by_ratio_and_configs_by_order() -> None:
    a, b, c = place_shapes([{"M": 63, "dtype": "float16"}, {"M": 255, "dtype": "float16"}, {"M": 63, "dtype": "int8"}])
    assert distance(a, b) == pytest.approx(2)
    assert distance(a, c) == 2
    assert place_configs([{"x": 16}, {"x": 32}, {"x": 64}]) == [(0.0,), (0.5,), (1.0,)]
    assert place_configs([{"x": 0}, {"x": 1}, {"x": 4}]) == [(0.0,), (0.25,), (1.0,)]
    x, y = place_configs([{"x": True}, {"x": 1}])
    assert distance(x, y) == 2


def test_pilots_are_spread() -> None:
    line = place_shapes([{"M": 2**m - 1} for m in range(9)])
    assert farthest_first(line, 3) == [4, 0, 8]
    assert farthest_first(line, 99)[:2] == [4, 0] and len(farthest_first(line, 99)) == 9
