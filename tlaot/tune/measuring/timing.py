"""Clocks: how long one call of a kernel takes, in ms.

On the CPU the wall clock over batches of calls. On CUDA the device's own clock: event records inside a CUDA
graph, each around one launch with the L2 cache overwritten before it, so that neither Python nor the launch
path is timed and no candidate finds its data warm.

A clock takes two kinds of measurements: a short one that says whether a candidate is near the best (``screen``), and
visits, each a few samples, of which candidates that are near get many in turns (``prepare``).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

__all__ = [
    "CPU_CLOCKS", "CUDA_CLOCKS", "Clock", "CudaClock", "Timing", "Visit", "WallClock", "summarize", "time_cuda", "time_wall",
]  # fmt: skip

CPU_CLOCKS = ("auto", "wall")
CUDA_CLOCKS = ("auto", "event", "cudagraph", "cupti")

# A sample shorter than this is mostly the clock and the interpreter.
_SHORTEST_SAMPLE_MS = 0.2
_FEWEST_SAMPLES = 5
_MOST_SAMPLES = 400
# An estimate by events may have some of the launch in it.
_LAUNCH_MS = 0.02

# Screening takes samples for so long, with the calls before them and what the clock itself needs.
_SCREEN_MS = 10.0
_SCREEN_SAMPLES = (3, 20)
_LONGEST_SCREEN = 0.05  # s, for a call that keeps being interrupted
# A kernel shorter than this is screened by a graph: between events on a stream there may be a gap of the launch.
_SHORT_MS = 0.2

# Of a call that takes this long one sample a visit has to do.
_LONG_MS = 100.0
_VISITS = 20
_VISIT_SAMPLES = (3, 25)
# Heavy kernels in a row drive a GPU to its power limit, where the frugal one of two wins. From rests of half a visit's time on an
# H200 holds its clock, and two GEMMs stand to each other as they do among other work. What short visits draw is too little for that.
_REST = 1.0
_SHORTEST_REST_MS = 1.0

# Of some 10 us each: longer in all than the time slices of processes that share a GPU.
_PROBES, _PROBE_RUNS = 200, 10


@dataclass(frozen=True)
class Timing:
    """Median of the samples in ms, their interquartile range over the median, and how many there are.

    Attributes:
        latency: The median in ms.
        spread: Interquartile range over the median.
        samples: Number of samples.
        backend: The clock.
        low: The samples' first decile in ms, which a loaded machine disturbs least; None where it was not kept.
    """

    latency: float
    spread: float
    samples: int
    backend: str
    low: float | None = None


# Takes the samples of one visit, in ms.
Visit = Callable[[], list[float]]


class Clock(Protocol):
    """What the measuring child needs of a clock."""

    def screen(self, call: Callable[[], Any], stop_above: float | None = None) -> Timing:
        """Time a call in as little time as says whether it is near the best.

        On the CPU the latency is the lower quartile of the samples, and not the median.

        Args:
            call: One call of the kernel, which has been called before.
            stop_above: Where the first few calls take longer than this many ms each, that is the result.
        """

    def prepare(self, call: Callable[[], Any], rep: float) -> tuple[Visit, str]:
        """What takes the samples of one visit, and the name of the clock.

        Args:
            call: One call of the kernel.
            rep: ms over which samples are taken in all visits.
        """

    def rest(self, samples: Sequence[float]) -> float:
        """Seconds to leave the device idle after a visit that took these samples, in ms, so that it finds the next one's clock rate."""

    def probe(self) -> list[float]:
        """Times in ms of equal pieces of work in a row: longer ones are where another process had the device. Empty on the CPU."""


class WallClock:
    """The wall clock, for a call that has ended when it returns."""

    def screen(self, call: Callable[[], Any], stop_above: float | None = None) -> Timing:
        with _quiet_interpreter():
            # The first call wakes the threads of a parallel kernel.
            times = [_wall(call, 1) for _ in range(3)]
            estimate = min(times)
            if stop_above is not None and estimate > stop_above:
                return Timing(estimate, 0.0, 1, "wall", estimate)
            batch = _batch(estimate)
            count = _fit(_SCREEN_MS, batch * estimate, _SCREEN_SAMPLES)
            if count > len(times):
                times, deadline = [], time.perf_counter() + _LONGEST_SCREEN
                while len(times) < count and (len(times) < _SCREEN_SAMPLES[0] or time.perf_counter() < deadline):
                    times.append(_wall(call, batch) / batch)
        timing = summarize(times, "wall")
        # Compilers may run beside it, and take the processor for longer than a call: the quicker calls say more.
        return replace(timing, latency=sorted(times)[len(times) // 4])

    def prepare(self, call: Callable[[], Any], rep: float) -> tuple[Visit, str]:
        estimate = _wall(call, 1)
        if estimate < _LONG_MS:
            estimate = min(_wall(call, 1) for _ in range(2))
        batch = _batch(estimate)
        count = _visit_count(rep, batch * estimate)

        def visit() -> list[float]:
            with _quiet_interpreter():
                if count > 1:
                    call()  # finds the caches and the threads as another candidate left them
                return [_wall(call, batch) / batch for _ in range(count)]

        return visit, "wall"

    def rest(self, samples: Sequence[float]) -> float:
        return 0.0

    def probe(self) -> list[float]:
        return []


class CudaClock:
    """The clock of the current CUDA device, for calls that launch work on the current stream.

    Args:
        backend: ``"cudagraph"``: the call must not synchronize; ``"event"``; ``"cupti"``: kernel times as the profiler records them; or
            ``"auto"``, which falls back from the first to the second where the call cannot be captured.
    """

    def __init__(self, backend: str) -> None:
        import torch

        self._torch = torch
        self._backend = backend
        self._flush = torch.empty(_flush_bytes(torch) // 4, dtype=torch.int32, device="cuda")
        self._pairs: list[tuple[Any, Any]] = []
        self._marks: list[tuple[Any, Any]] = []
        self._probe: Visit | None = None
        self._names_of_flush: set[str] | None = None

    def screen(self, call: Callable[[], Any], stop_above: float | None = None) -> Timing:
        samples = self._events(call, _SCREEN_SAMPLES[0])
        estimate = max(min(samples), 1e-3)
        if stop_above is not None and estimate > stop_above + _LAUNCH_MS:
            return Timing(estimate, 0.0, len(samples), "event", estimate)
        count = _fit(_SCREEN_MS, estimate + _LAUNCH_MS, _SCREEN_SAMPLES)
        # Flushing takes longer than launching, so that events tell the time of all but short kernels.
        if self._backend == "event" or estimate > _SHORT_MS:
            return summarize(self._events(call, count) if count > len(samples) else samples, "event")
        try:
            return summarize(self._capture(call, count)(), "cudagraph")
        except RuntimeError:
            if self._backend == "cudagraph":
                raise
            self._torch.cuda.synchronize()
            return summarize(self._events(call, count), "event")

    def prepare(self, call: Callable[[], Any], rep: float) -> tuple[Visit, str]:
        count = _visit_count(rep, max(min(self._events(call, 1)), 1e-3))
        if self._backend == "cupti":
            return (lambda: self._profiled(call, max(count, 10))), "cupti"
        if self._backend != "event":
            try:
                return self._capture(call, count), "cudagraph"
            except RuntimeError:
                if self._backend == "cudagraph":
                    raise
                self._torch.cuda.synchronize()
        return (lambda: self._events(call, count)), "event"

    def rest(self, samples: Sequence[float]) -> float:
        busy = sum(samples)
        return _REST * busy / 1e3 if busy >= _SHORTEST_REST_MS else 0.0

    def probe(self) -> list[float]:
        # In a graph, so that a processor that is busy does not look like a GPU that is.
        if self._probe is None:
            piece = self._flush[: max(1, self._flush.numel() // 8)]
            self._probe = self._capture(piece.zero_, _PROBES, flush=False)
        return [took for _ in range(_PROBE_RUNS) for took in self._probe()]

    def _capture(self, call: Callable[[], Any], count: int, flush: bool = True) -> Visit:
        """A graph of so many calls, the cache overwritten before each; a visit replays it."""
        torch = self._torch
        while len(self._marks) < count:  # graphs are read before another one is replayed, and share them
            # An "external" event becomes a record node of the graph and can be read after each replay.
            self._marks.append(tuple(torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)))
        marks = self._marks[:count]
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        # Not torch.cuda.graph(): it collects garbage and gives the allocator's memory back at each capture.
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                for start, end in marks:
                    if flush:
                        self._flush.zero_()
                    start.record()
                    call()
                    end.record()
            finally:
                graph.capture_end()

        def visit() -> list[float]:
            graph.replay()
            torch.cuda.synchronize()
            return [start.elapsed_time(end) for start, end in marks]

        visit()  # the first replay uploads the graph
        return visit

    def _events(self, call: Callable[[], Any], count: int) -> list[float]:
        torch = self._torch
        while len(self._pairs) < count:
            self._pairs.append(tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)))
        pairs = self._pairs[:count]
        call()
        for start, end in pairs:
            self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    def _profiled(self, call: Callable[[], Any], count: int) -> list[float]:
        """Times of a call's kernels as CUPTI records them, by way of torch's profiler; no launch gap is in them."""
        torch = self._torch

        def record(body: Callable[[], None]) -> list[tuple[str, float]]:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                body()
                torch.cuda.synchronize()
            cuda = torch.autograd.DeviceType.CUDA
            events = [event for event in profile.events() if event.device_type == cuda]
            return [(event.name, event.time_range.elapsed_us() / 1e3) for event in events]

        def repeat() -> None:
            for _ in range(count):
                self._flush.zero_()
                call()

        if self._names_of_flush is None:
            self._names_of_flush = {name for name, _ in record(lambda: self._flush.zero_())}
        times = [time for name, time in record(repeat) if name not in self._names_of_flush]
        kernels = len(times) // count
        if kernels == 0:
            raise RuntimeError("the profiler recorded no kernel of the call")
        return [sum(times[start : start + kernels]) for start in range(0, kernels * count, kernels)]


def time_wall(call: Callable[[], Any], warmup: float, rep: float) -> Timing:
    """Time a call that has ended when it returns.

    Args:
        call: One call of the kernel.
        warmup: ms of calls before the first sample.
        rep: ms over which samples are taken; at least 5 are, however slow the kernel.
    """
    with _quiet_interpreter():
        elapsed, calls = 0.0, 0
        while elapsed < warmup or calls < 1:
            elapsed += _wall(call, 1)
            calls += 1
        estimate = min(_wall(call, 1) for _ in range(3))
        batch = _batch(estimate)
        count = _fit(rep, batch * estimate, (_FEWEST_SAMPLES, _MOST_SAMPLES))
        samples = [_wall(call, batch) / batch for _ in range(count)]
    return summarize(samples, "wall")


def time_cuda(call: Callable[[], Any], warmup: float, rep: float, backend: str) -> Timing:
    """Time a call that launches work on the current CUDA stream.

    Args:
        call: One call of the kernel.
        warmup, rep: As for :func:`time_wall`, in ms of device time.
        backend: As for :class:`CudaClock`.
    """
    visit, name = CudaClock(backend).prepare(call, rep)
    spent, samples = 0.0, list[float]()
    while spent < warmup:
        spent += max(sum(visit()), _LAUNCH_MS)
    while len(samples) < 2 * _FEWEST_SAMPLES or (sum(samples) < rep and len(samples) < _MOST_SAMPLES):
        samples.extend(visit())
    return summarize(samples, name)


def summarize(samples: Sequence[float], backend: str) -> Timing:
    """Median, spread and first decile of some samples in ms."""
    median = statistics.median(samples)
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [median] * 3
    low = sorted(samples)[len(samples) // 10]
    return Timing(median, (quartiles[2] - quartiles[0]) / median if median else 0.0, len(samples), backend, low)


def _fit(total: float, each: float, bounds: tuple[int, int]) -> int:
    return int(min(bounds[1], max(bounds[0], total / max(each, 1e-6))))


def _visit_count(rep: float, sample_ms: float) -> int:
    return 1 if sample_ms > _LONG_MS else _fit(rep / _VISITS, sample_ms, _VISIT_SAMPLES)


def _batch(estimate: float) -> int:
    return max(1, int(_SHORTEST_SAMPLE_MS / max(estimate, 1e-6)))


def _flush_bytes(torch: Any) -> int:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return max(2 * int(getattr(properties, "L2_cache_size", 0)), 64 << 20)


def _wall(call: Callable[[], Any], batch: int) -> float:
    start = time.perf_counter()
    for _ in range(batch):
        call()
    return (time.perf_counter() - start) * 1e3


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
