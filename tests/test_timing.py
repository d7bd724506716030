"""Clocks: which one times what, and how little of it; on CUDA against a torch whose GPU is a counter of ms."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tlaot.tune.measuring.timing import CudaClock, WallClock, summarize, time_cuda, time_wall

FLUSH, LAUNCH = 0.04, 0.007


class Gpu:
    """A GPU: work is done in order as it is enqueued; what is captured is done when it is replayed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.captured: list[Callable[[], None]] | None = None
        self.synchronizations = self.captures = self.replays = 0

    def do(self, work: Callable[[], None]) -> None:
        if self.captured is not None:
            self.captured.append(work)
        else:
            work()

    def busy(self, ms: float) -> None:
        def work() -> None:
            self.now += ms

        self.do(work)

    def torch(self) -> types.ModuleType:
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool, external: bool = False) -> None:
                self.time, self.external = -1.0, external

            def record(self) -> None:
                assert gpu.captured is None or self.external

                def work() -> None:
                    self.time = gpu.now

                gpu.do(work)

            def elapsed_time(self, other: Event) -> float:
                assert self.time >= 0 and other.time >= 0
                return other.time - self.time

        class Stream:
            def wait_stream(self, other: Stream) -> None:
                pass

        class Graph:
            def capture_begin(self) -> None:
                gpu.captured, gpu.captures = [], gpu.captures + 1

            def capture_end(self) -> None:
                assert gpu.captured is not None
                self.works, gpu.captured = gpu.captured, None

            def replay(self) -> None:
                gpu.replays += 1
                for work in self.works:
                    work()

        @contextmanager
        def stream(which: Stream) -> Iterator[None]:
            yield

        def synchronize() -> None:
            if gpu.captured is not None:
                raise RuntimeError("operation not permitted when stream is capturing")
            gpu.synchronizations += 1

        class Memory:
            def __init__(self, count: int) -> None:
                self.count = count

            def numel(self) -> int:
                return self.count

            def __getitem__(self, part: slice) -> Memory:
                return Memory(part.stop)

            def zero_(self) -> None:
                gpu.busy(FLUSH * self.count / (1 << 25))

        module = types.ModuleType("torch")
        module.int32 = "int32"  # type: ignore[attr-defined]
        module.empty = lambda count, **rest: Memory(count)  # type: ignore[attr-defined]
        module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
            Event=Event, Stream=Stream, CUDAGraph=Graph, stream=stream, current_stream=Stream, synchronize=synchronize,
            current_device=lambda: 0, get_device_properties=lambda n: types.SimpleNamespace(L2_cache_size=64 << 20),
        )  # fmt: skip
        return module


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setitem(sys.modules, "torch", made.torch())
    return made


def kernel(gpu: Gpu, ms: float) -> Callable[[], Any]:
    return lambda: gpu.busy(ms)


@pytest.mark.parametrize(
    ("ms", "backend", "samples"),
    [(0.01, "cudagraph", 20), (0.1, "cudagraph", 20), (0.5, "event", 19), (2.0, "event", 4), (20.0, "event", 3)],
)
def test_screening_takes_little_and_a_graph_where_launching_would_show(
    gpu: Gpu, ms: float, backend: str, samples: int
) -> None:
    timing = CudaClock("auto").screen(kernel(gpu, ms))
    assert timing.latency == pytest.approx(ms)
    assert (timing.backend, timing.samples) == (backend, samples)
    assert gpu.synchronizations <= 3
    assert gpu.now < max(30, 9 * ms)  # ms of device time in all


def test_what_cannot_win_is_cut_after_three_calls(gpu: Gpu) -> None:
    timing = CudaClock("auto").screen(kernel(gpu, 5.0), stop_above=1.0)
    assert (timing.latency, timing.samples, timing.spread) == (pytest.approx(5.0), 3, 0.0)
    assert gpu.synchronizations == 1
    assert CudaClock("auto").screen(kernel(gpu, 0.03), stop_above=0.02).samples == 20  # the launch may be in it


@pytest.mark.parametrize("backend", ["auto", "cudagraph", "event"])
def test_a_backend_that_is_asked_for_decides(gpu: Gpu, backend: str) -> None:
    clock = CudaClock(backend)
    visit, name = clock.prepare(kernel(gpu, 0.05), rep=100)
    assert name == ("cudagraph" if backend == "auto" else backend)
    assert visit() == pytest.approx([0.05] * 25)
    assert (gpu.captures > 0) is (name == "cudagraph")
    assert clock.screen(kernel(gpu, 0.05)).backend == name


def test_what_cannot_be_captured_is_timed_by_events(gpu: Gpu) -> None:
    torch = sys.modules["torch"]

    def call() -> None:
        gpu.busy(0.05)
        torch.cuda.synchronize()  # type: ignore[attr-defined]

    assert CudaClock("auto").screen(call).backend == "event"
    assert CudaClock("auto").prepare(call, 100)[1] == "event"
    assert time_cuda(call, 1, 2, "auto").backend == "event"
    for take in (CudaClock("cudagraph").screen, lambda call: CudaClock("cudagraph").prepare(call, 100)):
        with pytest.raises(RuntimeError, match="capturing"):
            take(call)


@pytest.mark.parametrize(("ms", "count"), [(0.01, 25), (0.5, 10), (2.0, 3), (50.0, 3), (200.0, 1)])
def test_a_visit_is_short(gpu: Gpu, ms: float, count: int) -> None:
    visit, _ = CudaClock("auto").prepare(kernel(gpu, ms), rep=100)
    before = gpu.synchronizations
    assert len(visit()) == count
    assert gpu.synchronizations == before + 1


def test_visits_to_several_kernels_share_events_and_do_not_mix(gpu: Gpu) -> None:
    clock = CudaClock("auto")
    visits = [clock.prepare(kernel(gpu, ms), rep=100)[0] for ms in (0.01, 0.02, 0.03)]
    for n in (2, 0, 1, 1, 0, 2):
        assert visits[n]() == pytest.approx([0.01 * (n + 1)] * 25)


def test_the_probe_is_of_equal_pieces(gpu: Gpu) -> None:
    clock = CudaClock("auto")
    times = clock.probe()
    assert len(times) == 2000 and max(times) == pytest.approx(min(times))
    assert gpu.now < 30
    captures = gpu.captures
    assert clock.probe() and gpu.captures == captures


def test_a_profilers_timing_honours_warmup_and_rep(gpu: Gpu) -> None:
    timing = time_cuda(kernel(gpu, 0.5), warmup=10, rep=40, backend="auto")
    assert timing.latency == pytest.approx(0.5) and 80 <= timing.samples <= 120
    assert gpu.now > 50
    assert time_cuda(kernel(gpu, 0.001), 0, 100, "event").samples == 400


# --- the CPU ---------------------------------------------------------------------------------------------------------


class Watch:
    """``time.perf_counter`` of a machine on which calls take what they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
        self.now, self.times, self.calls = 0.0, list(times), 0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def call(self) -> None:
        self.now += self.times[self.calls % len(self.times)] / 1e3
        self.calls += 1


def test_screening_on_the_cpu_is_short_and_spared_of_interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, 0.5)
    timing = WallClock().screen(watch.call)
    assert timing.latency == pytest.approx(0.5) and timing.samples == 20 and watch.calls == 23
    watch = Watch(monkeypatch, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 1.0)
    timing = WallClock().screen(watch.call)
    assert timing.latency == pytest.approx(1.0)
    assert watch.now < 0.12
    watch = Watch(monkeypatch, 1000.0)
    assert WallClock().screen(watch.call).samples == 3 and watch.calls == 3
    watch = Watch(monkeypatch, 5.0)
    timing = WallClock().screen(watch.call, stop_above=1.0)
    assert (timing.samples, timing.spread, timing.latency) == (1, 0.0, pytest.approx(5.0))


def test_short_calls_are_timed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, 0.001)
    assert WallClock().screen(watch.call).latency == pytest.approx(0.001)
    visit, name = WallClock().prepare(watch.call, rep=100)
    before = watch.calls
    assert visit() == pytest.approx([0.001] * 25) and name == "wall"
    assert watch.calls - before >= 25 * 190
    watch = Watch(monkeypatch, 500.0)
    visit, _ = WallClock().prepare(watch.call, rep=100)
    assert len(visit()) == 1 and watch.calls == 2


def test_wall_time_takes_what_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, 1.0)
    timing = time_wall(watch.call, warmup=10, rep=50)
    assert timing.latency == pytest.approx(1.0) and timing.samples in (49, 50) and watch.calls in (62, 63)


def test_a_summary_is_the_median_the_spread_and_the_first_decile() -> None:
    timing = summarize([1.0, 2.0, 3.0, 4.0, 100.0], "x")
    assert (timing.latency, timing.samples, timing.backend, timing.low) == (3.0, 5, "x", 1.0)
    assert timing.spread == pytest.approx((52 - 1.5) / 3)
    assert summarize([2.0], "x").spread == 0.0
