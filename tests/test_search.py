"""Searches: what they try, in which order, and when they stop."""

from __future__ import annotations

import itertools
import math
import random
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import surfaces

from tlaot.errors import BuildError, SpecError
from tlaot.target import parse_target
from tlaot.tune.children.child import Failed
from tlaot.tune.measuring.timing import Timing
from tlaot.tune.searching.nearby import distance, farthest_first, place_configs, place_shapes
from tlaot.tune.searching.search import Search, choose_search, make_search
from tlaot.tune.specs.plan import Candidate, Workload
from tlaot.tune.specs.spec import Budget, KernelSpec

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
    assert search.finished


# Optuna is an extra; its tests run where it is installed.
OPTUNA = pytest.param("optuna", marks=pytest.mark.skipif(find_spec("optuna") is None, reason="optuna is not installed"))
SEARCHES = ["exhaustive", "guided", OPTUNA]
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


@pytest.mark.parametrize("name", SEARCHES)
def test_a_budget_of_trials_holds_and_is_shared_fairly(name: str) -> None:
    search = make_search(*plan(SHAPES, CONFIGS, name, Budget(trials=10)))
    order = drive(search, lambda c: ms(1), ahead=4)
    assert len(order) == 10
    assert_accounted(search, order)
    counts = [sum(c.workload.path == w.path for c in order) for w in search.workloads]
    assert min(counts) >= 2
    assert {s.reason for s in search.skipped()} == {"the budget of 10 trials is spent"}
    assert all(any(c.index == 0 for c in order if c.workload is w) for w in search.workloads)  # the spec's own default


@pytest.mark.parametrize("name", SEARCHES)
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


@pytest.mark.parametrize("name", SEARCHES)
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
    assert farthest_first(line, 3) == [0, 8, 4]
    assert sorted(farthest_first(line, 99)) == list(range(9))


# Kernels, their shapes and configs, and what share of the candidates may be measured on average.
KERNELS = {
    "gemm, a grid of shapes": (surfaces.Gemm, surfaces.GRID_16, surfaces.GEMM_32, 0.42),
    "gemm, a model's layers": (surfaces.Gemm, surfaces.LAYERS_16, surfaces.GEMM_32, 0.42),
    "gemm, many M": (surfaces.Gemm, surfaces.LINE_16, surfaces.GEMM_32, 0.46),
    "gemm, a space that shared memory limits": (surfaces.Gemm, surfaces.LAYERS_16[::2], surfaces.GEMM_144, 0.45),
    "rows": (surfaces.Rows, surfaces.ROWS_16, surfaces.ROWS_48, 0.38),
}


def search_surface(
    surface: surfaces.Surface, shapes: Sequence[Mapping[str, Any]], configs: Sequence[Mapping[str, Any]], ahead: int
) -> tuple[float, list[float]]:
    """The share of the candidates that a guided search measures, and by how much each shape's best of them misses the best."""
    search = make_search(*plan(shapes, configs, "guided"))

    def answer(candidate: Candidate) -> Timing | Failed:
        latency = surface.measure(candidate.workload.shape, candidate.config)
        return Failed("prune", "needs too much shared memory") if latency is None else ms(latency)

    order = drive(search, answer, ahead, seed=surface.seed)
    assert_accounted(search, order)
    regrets = []
    for workload in search.workloads:
        true = [surface.true(workload.shape, config) or math.inf for config in configs]
        regrets.append(min(true[c.index] for c in order if c.workload is workload) / min(true))
    return len(order) / len(shapes) / len(configs), regrets


@pytest.mark.parametrize("kernel", KERNELS)
def test_guided_measures_a_part_and_finds_the_best(kernel: str) -> None:
    make, shapes, configs, share = KERNELS[kernel]
    runs = [search_surface(make(seed), shapes, configs, ahead) for seed, ahead in ((3, 32), (20, 16))]
    regrets = sorted(regret for _, regrets in runs for regret in regrets)
    assert sum(measured for measured, _ in runs) / len(runs) <= share
    assert regrets[-1] <= 1.02
    assert sum(regret > 1.005 for regret in regrets) <= len(regrets) // 10


def test_guided_measures_more_where_shapes_say_nothing_of_one_another() -> None:
    class Unrelated(surfaces.Gemm):
        def true(self, shape: Mapping[str, Any], config: Mapping[str, Any]) -> float:
            return math.exp(
                random.Random(f"{self.seed} {sorted(shape.items())} {sorted(config.items())}").gauss(0, 0.3)
            )

    measured, regrets = search_surface(Unrelated(1), surfaces.GRID_16, surfaces.GEMM_32, 16)
    assert measured > 0.8
    assert sum(regrets) / len(regrets) <= 1.03


def test_guided_thinks_again_whenever_a_prediction_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it may lie where one that is gone was, and have its id."""
    search, thoughts = make_search(*plan(surfaces.GRID_16, surfaces.GEMM_32, "guided")), []
    monkeypatch.setattr(search, "_predict", lambda position: types.SimpleNamespace())
    monkeypatch.setattr(search, "_think", lambda position, prediction: thoughts.append(position))
    for _ in range(10):
        search._wish(0)  # type: ignore[attr-defined]
    assert len(thoughts) == 10


def test_guided_measures_little_where_all_shapes_are_alike() -> None:
    class Alike(surfaces.Gemm):
        def true(self, shape: Mapping[str, Any], config: Mapping[str, Any]) -> float:
            level = shape["M"] * shape["N"] * shape["K"] * 1e-9
            return level * math.exp(random.Random(f"{sorted(config.items())}").gauss(0, 0.3))

    measured, regrets = search_surface(Alike(1), surfaces.GRID_16, surfaces.GEMM_32, 16)
    assert measured < 0.3
    assert max(regrets) == 1


def test_guided_tries_what_failed_at_some_shapes_and_not_what_failed_at_all() -> None:
    shapes = [{"M": 2**m} for m in range(6, 14)]
    configs = [{"block": 2**b, "threads": t} for b in range(4, 8) for t in (64, 128)]

    def answer(candidate: Candidate) -> Timing | Failed:
        size, block = candidate.workload.shape["M"], candidate.config["block"]
        if block == 128:
            return Failed("prune", "needs 264.0 KiB of shared memory per block, cuda:sm_90a has 227 KiB")
        if block == 64 and size < 1024:
            return Failed("check", "is wrong")
        return ms(size / block * (1 + candidate.config["threads"] / 1000))

    search = make_search(*plan(shapes, configs, "guided"))
    order = drive(search, answer, ahead=3)
    assert_accounted(search, order)
    for workload in search.workloads:
        tried = [c.config for c in order if c.workload is workload]
        block = 64 if workload.shape["M"] >= 1024 else 32
        assert {"block": block, "threads": 64} in tried  # the best there is
    # Both shapes that are searched in full and the candidates under way then; nowhere else.
    assert sum(c.config["block"] == 128 for c in order) <= 2 * len(search.pilots) + 3
    reasons = {s.reason for s in search.skipped() if s.candidate.config["block"] == 128}
    assert reasons == {
        "failed at every shape where it was tried: prune: needs 264.0 KiB of shared memory per block, cuda:sm_90a has 227 KiB"
    }


def test_guided_tries_everything_at_a_shape_where_nothing_works() -> None:
    shapes = [{"M": 2**m} for m in range(6, 14)]

    def answer(candidate: Candidate) -> Timing | Failed:
        size = candidate.workload.shape["M"]
        if size == 512:
            return Failed("check", "is wrong")
        return Failed("prune", "is too large") if candidate.index > 2 else ms(size * (1 + candidate.index))

    search = make_search(*plan(shapes, CONFIGS, "guided"))
    order = drive(search, answer, ahead=4)
    assert_accounted(search, order)
    assert sum(c.workload.shape["M"] == 512 for c in order) == len(CONFIGS)


def test_guided_goes_on_where_a_store_leaves_off() -> None:
    surface = surfaces.Gemm(3)

    def answer(candidate: Candidate) -> Timing:
        return ms(surface.true(candidate.workload.shape, candidate.config) or 0)

    kernel, workloads = plan(surfaces.GRID_16, surfaces.GEMM_32, "guided")
    whole = drive(make_search(kernel, workloads), answer)
    resumed = make_search(kernel, workloads)
    for candidate in whole[:100]:
        resumed.tell(candidate, answer(candidate))
    rest = drive(resumed, answer)
    assert not {(c.workload.path, c.index) for c in rest} & {(c.workload.path, c.index) for c in whole[:100]}
    assert_accounted(resumed, [*whole[:100], *rest])
    assert len(rest) < len(whole) - 80


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(
    "configs", [[{}], [{"a": 1}] * 3, [{"a": 1}, {"b": "x"}, {"a": [1, 2]}, {"a": None, "b": True}]]
)
def test_odd_spaces(name: str, configs: list[dict[str, Any]]) -> None:
    shapes: list[dict[str, Any]] = [{}, {"M": 0}, {"M": -5, "dtype": "float16"}, {"M": 2.5}, {"transposed": True}]
    for ahead in (1, 7):
        search = make_search(*plan(shapes, configs, name))
        order = drive(search, lambda c: Failed("check", "is wrong") if c.index == 2 else ms(1), ahead)
        assert_accounted(search, order)
        assert {c.workload.path for c in order} == {w.path for w in search.workloads}


@pytest.mark.parametrize("name", SEARCHES)
def test_everything_may_fail(name: str) -> None:
    search = make_search(*plan(SHAPES, CONFIGS, name))
    order = drive(search, lambda c: Failed("lower", "no such layout"), ahead=5)
    assert_accounted(search, order)
    assert len(order) == len(SHAPES) * len(CONFIGS)


@pytest.mark.skipif(find_spec("optuna") is None, reason="optuna is not installed")
def test_optuna_spends_its_budget_and_transfers_winners() -> None:
    surface = surfaces.Gemm(3)
    kernel, workloads = plan(surfaces.GRID_16[:2], surfaces.GEMM_144, "optuna", Budget(trials=60))

    def answer(candidate: Candidate) -> Timing | Failed:
        latency = surface.measure(candidate.workload.shape, candidate.config)
        return ms(latency) if latency else Failed("prune", "needs too much shared memory")

    search = make_search(kernel, workloads)
    order = drive(search, answer, ahead=8, seed=1)
    assert_accounted(search, order)
    assert len(order) == 60
    again = make_search(kernel, workloads)
    assert [c.index for c in drive(again, answer, 8, 1)][:8] == [c.index for c in order][:8]  # seeded
    for workload in workloads:
        true = [surface.true(workload.shape, config) or math.inf for config in workload.configs]
        assert min(true[c.index] for c in order if c.workload is workload) / min(true) <= 1.1


def test_optuna_that_is_not_installed_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"search: optuna is not installed.*\n.*tlaot\[search\]"):
        make_search(*plan(SHAPES, CONFIGS, "optuna"))
    kernel, workloads = plan(SHAPES[:1], [{"x": x} for x in range(2000)])
    assert choose_search(kernel, workloads)[0] == "exhaustive"
    assert "tlaot[search]" in make_search(kernel, workloads).note


def test_auto_is_exhaustive_while_that_is_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())

    def chosen(shapes: int, configs: int, budget: Budget = NO_LIMIT) -> str:
        kernel, workloads = plan([{"M": m} for m in range(shapes)], [{"x": x} for x in range(configs)], "auto", budget)
        return choose_search(kernel, workloads)[0]

    assert chosen(8, 32) == "exhaustive"
    assert chosen(16, 32) == "guided"
    assert chosen(2, 500) == "exhaustive"
    assert chosen(1, 2000) == chosen(16, 2000) == "optuna"
    assert chosen(1, 100, Budget(trials=50)) == "optuna"
    assert chosen(8, 32, Budget(trials=50)) == "guided"
    assert chosen(8, 32, Budget(trials=256)) == "exhaustive"
