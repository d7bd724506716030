"""Clocks: how long one call of a kernel takes, in ms.

On the CPU the wall clock over batches of calls. On CUDA the device's own clock: event records inside a CUDA
graph, each around one launch with the L2 cache overwritten before it, so that neither Python nor the launch
path is timed and no candidate finds its data warm.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["CPU_CLOCKS", "CUDA_CLOCKS", "Timing", "time_cuda", "time_wall"]

# A sample shorter than this is mostly the clock and the interpreter.
_SHORTEST_SAMPLE_MS = 0.2
_FEWEST_SAMPLES = 5
_MOST_SAMPLES = 400
_LAUNCH_MS = 0.02


CPU_CLOCKS = ("auto", "wall")
CUDA_CLOCKS = ("auto", "event", "cudagraph", "cupti")


@dataclass(frozen=True)
class Timing:
    """Median of the samples in ms, their interquartile range over the median, and how many there are."""

    latency: float
    spread: float
    samples: int
    backend: str


def time_wall(call: Callable[[], Any], warmup: float, rep: float, stop_above: float | None = None) -> Timing:
    """Time a call that has ended when it returns.

    Args:
        call: One call of the kernel.
        warmup: ms of calls before the first sample.
        rep: ms over which samples are taken; at least 5 are, however slow the kernel.
        stop_above: Where the first few calls take longer than this many ms each, that is the result: the call cannot win.
    """
    with _quiet_interpreter():
        elapsed, calls = 0.0, 0
        while elapsed < warmup or calls < 1:
            elapsed += _wall(call, 1)
            calls += 1
        estimate = min(_wall(call, 1) for _ in range(3))
        if stop_above is not None and estimate > stop_above:
            return Timing(estimate, 0.0, 1, "wall")
        batch = max(1, int(_SHORTEST_SAMPLE_MS / max(estimate, 1e-6)))
        count = int(min(_MOST_SAMPLES, max(_FEWEST_SAMPLES, rep / max(batch * estimate, 1e-6))))
        samples = [_wall(call, batch) / batch for _ in range(count)]
    return _summarize(samples, "wall")


def time_cuda(
    call: Callable[[], Any], warmup: float, rep: float, backend: str, stop_above: float | None = None
) -> Timing:
    """Time a call that launches work on the current CUDA stream.

    Args:
        call: One call of the kernel; must not synchronize under ``"cudagraph"``.
        warmup, rep, stop_above: As for :func:`time_wall`, in ms of device time.
        backend: ``"cudagraph"``; ``"event"``; ``"cupti"``, kernel times as the profiler records them; or ``"auto"``, which
            falls back from the first to the second where the call cannot be captured.
    """
    import torch

    flush = torch.empty(_flush_bytes(torch) // 4, dtype=torch.int32, device="cuda")
    estimate = _events(torch, call, flush, 3)
    estimate_ms = max(min(estimate), 1e-3)
    # An estimate by events has the launch in it; a kernel that short is never cut on that ground.
    if stop_above is not None and estimate_ms > stop_above + _LAUNCH_MS:
        return Timing(estimate_ms, 0.0, len(estimate), "event")
    for _ in range(int(min(1000, max(1, warmup / estimate_ms)))):
        call()
    torch.cuda.synchronize()
    count = int(min(_MOST_SAMPLES, max(_FEWEST_SAMPLES * 2, rep / estimate_ms)))
    if backend == "cupti":
        return _summarize(_profiled(torch, call, flush, count), "cupti")
    if backend == "event":
        return _summarize(_events(torch, call, flush, count), "event")
    try:
        return _summarize(_graph_events(torch, call, flush, count), "cudagraph")
    except RuntimeError:
        if backend == "cudagraph":
            raise
        torch.cuda.synchronize()
        return _summarize(_events(torch, call, flush, count), "event")


def _graph_events(torch: Any, call: Callable[[], Any], flush: Any, count: int) -> list[float]:
    per_graph = min(count, 20)
    pairs = [(_external_event(torch), _external_event(torch)) for _ in range(per_graph)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for start, end in pairs:
            flush.zero_()
            start.record()
            call()
            end.record()
    graph.replay()  # the first replay uploads the graph
    torch.cuda.synchronize()
    samples: list[float] = []
    while len(samples) < count:
        graph.replay()
        torch.cuda.synchronize()
        samples.extend(start.elapsed_time(end) for start, end in pairs)
    return samples


def _profiled(torch: Any, call: Callable[[], Any], flush: Any, count: int) -> list[float]:
    """Times of a call's kernels as CUPTI records them, by way of torch's profiler; no launch gap is in them."""

    def record(body: Callable[[], None]) -> list[tuple[str, float]]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            body()
            torch.cuda.synchronize()
        cuda = torch.autograd.DeviceType.CUDA
        return [
            (event.name, event.time_range.elapsed_us() / 1e3) for event in profile.events() if event.device_type == cuda
        ]

    def repeat() -> None:
        for _ in range(count):
            flush.zero_()
            call()

    other = {name for name, _ in record(lambda: flush.zero_())}
    times = [time for name, time in record(repeat) if name not in other]
    kernels = len(times) // count
    if kernels == 0:
        raise RuntimeError("the profiler recorded no kernel of the call")
    return [sum(times[start : start + kernels]) for start in range(0, kernels * count, kernels)]


def _external_event(torch: Any) -> Any:
    # An "external" event becomes a record node of the graph and can be read after each replay.
    return torch.cuda.Event(enable_timing=True, external=True)


def _events(torch: Any, call: Callable[[], Any], flush: Any, count: int) -> list[float]:
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    call()
    for start, end in pairs:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


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


def _summarize(samples: list[float], backend: str) -> Timing:
    median = statistics.median(samples)
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [median] * 3
    return Timing(median, (quartiles[2] - quartiles[0]) / median if median else 0.0, len(samples), backend)
