"""A pool and devices that only pass time, on a clock of their own: the real tuning loop runs on them in seconds, whatever it would take.

The loop takes its events from :class:`Clock`, which stands for the loop's queue: where nothing has happened it goes to the next thing that will. What
the loop itself computes takes time on that clock, too, if it is to (``driver``): a driver that is too slow shows as it would.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tlaot.manifest import FileDigest
from tlaot.tune.children.child import Failed
from tlaot.tune.compiling.compile import Built
from tlaot.tune.measuring.measure import Decision, Measured
from tlaot.tune.measuring.timing import Timing
from tlaot.tune.specs.plan import Candidate, Workload

__all__ = ["Clock", "SimulatedDevice", "SimulatedPool", "draw", "latency_of"]

Event = Callable[[], None]


class Clock:
    """Simulated seconds, and the queue of events of the loop that runs on them.

    Args:
        driver: How many simulated seconds a second of the loop's own processor time takes; 0: it takes none.
        candidate_s: Further seconds of the driver for each thing that it submits, for what is not simulated.

    Attributes:
        now: Simulated seconds.
        driver_s: Of these, the loop's own.
    """

    def __init__(self, driver: float = 0.0, candidate_s: float = 0.0) -> None:
        self.now = 0.0
        self.driver_s = 0.0
        self._driver, self._candidate_s = driver, candidate_s
        self._share = _Share()
        self._since = time.perf_counter()
        self._coming: list[tuple[float, int, Event]] = []
        self._number = 0
        self._events: deque[Event] = deque()

    def put(self, event: Event) -> None:
        self._events.append(event)

    def get(self) -> Event:
        """The next event; the clock goes on to when it happens."""
        took = time.perf_counter() - self._since
        self._charge(took * self._share.own() * self._driver)
        while not self._events:
            moment, _, action = heapq.heappop(self._coming)
            self.now = max(self.now, moment)
            action()
        self._since = time.perf_counter()
        return self._events.popleft()

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """What is done here is the simulation's, and not the loop's."""
        start = time.perf_counter()
        self._charge(self._candidate_s)
        yield
        self._since += time.perf_counter() - start

    def at(self, moment: float, action: Event) -> None:
        """Do something at a moment, or now if that is past."""
        self._number += 1
        heapq.heappush(self._coming, (moment, self._number, action))

    def _charge(self, seconds: float) -> None:
        self.now += seconds
        self.driver_s += seconds


class _Share:
    """The share of the time that this thread had a processor, of late: others may run here. Asking for it each time would take longer than an event."""

    def __init__(self) -> None:
        self._asked, self._share = 0, 1.0
        self._last = time.perf_counter(), time.thread_time()

    def own(self) -> float:
        self._asked += 1
        if self._asked % 500 == 0:
            now = time.perf_counter(), time.thread_time()
            self._share = min(1.0, (now[1] - self._last[1]) / max(now[0] - self._last[0], 1e-9))
            self._last = now
        return self._share


class SimulatedPool:
    """Compiles by waiting.

    Args:
        clock: The clock.
        jobs: Candidates at the same time.
        seconds: How long a candidate takes.
    """

    def __init__(self, clock: Clock, jobs: int, seconds: Callable[[Candidate], float]) -> None:
        self.jobs = jobs
        self.busy_s = 0.0
        self.last = 0.0
        self._clock, self._seconds = clock, seconds
        self._free = jobs
        self._waiting: deque[tuple[Candidate, Future[Built | Failed]]] = deque()

    def submit(self, candidate: Candidate) -> Future[Built | Failed]:
        with self._clock.submitting():
            future: Future[Built | Failed] = Future()
            self._waiting.append((candidate, future))
            self._start(self._clock.now)
            return future

    def close(self) -> None:
        """Nothing is left."""

    def _start(self, now: float) -> None:
        while self._free and self._waiting:
            self._free -= 1
            candidate, future = self._waiting.popleft()
            took = self._seconds(candidate)
            self.busy_s += took
            end = now + took
            self._clock.at(end, lambda c=candidate, f=future, t=end: self._end(c, f, t))  # type: ignore[misc]

    def _end(self, candidate: Candidate, future: Future[Built | Failed], moment: float) -> None:
        self._free += 1
        self.last = moment
        future.set_result(self._built(candidate))
        self._start(moment)

    def _built(self, candidate: Candidate) -> Built:
        digest = FileDigest(hashlib.sha256(candidate.binary.encode()).hexdigest(), 60000)
        return Built(Path("/none"), digest, (), (), {}, {})


class SimulatedDevice:
    """Measures by waiting, with a clock that says the same each time.

    Args:
        clock: The clock.
        name: Its name.
        seconds: How long a task takes: its name, then the workload; "prepare" is charged where the device has not had the workload before.
        apart: Whether it may decide at any time.
    """

    gone = False

    def __init__(
        self, clock: Clock, name: str, seconds: Callable[[str, Workload, int], float], apart: bool = False
    ) -> None:
        self.name, self.apart = name, apart
        self.busy_s = {"prepare": 0.0, "screen": 0.0, "decide": 0.0}
        self.did: list[str] = []
        self._clock, self._seconds = clock, seconds
        self._prepared: set[str] = set()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with self._clock.submitting():
            return self._submit(function, *arguments)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        kind = function.__name__
        if kind == "wake":
            self._clock.at(self._clock.now, lambda: future.set_result(None))
            return future
        first = arguments[0]
        workload = first.workload if isinstance(first, Candidate) else first
        took = self._prepare(workload)
        if kind != "prepare":
            own = self._seconds(kind, workload, first.index if isinstance(first, Candidate) else -1)
            self.busy_s[kind] += own
            took += own
        self.did.append(f"{kind} {workload.path}")
        result = _screened(first) if kind == "screen" else _decided(arguments[1]) if kind == "decide" else None
        self._clock.at(self._clock.now + took, lambda: future.set_result(result))
        return future

    def kill(self) -> None:
        """Nothing runs."""

    def _prepare(self, workload: Workload) -> float:
        if workload.path in self._prepared:
            return 0.0
        self._prepared.add(workload.path)
        took = self._seconds("prepare", workload, -1)
        self.busy_s["prepare"] += took
        return took


def draw(low: float, high: float, *what: object) -> float:
    """A number between two that is always the same for the same thing."""
    return random.Random(repr(what)).uniform(low, high)


def latency_of(candidate: Candidate) -> float:
    """A candidate's time in ms: configs that are good at one shape are so at others, more or less; some are equal."""
    config = candidate.index
    good = draw(1.0, 3.0, "config", candidate.workload.kernel.name, config)
    return round(good * draw(1.0, 1.15, candidate.workload.path, config), 2)


def _screened(candidate: Candidate) -> Timing:
    return Timing(latency_of(candidate), 0.01, 20, "cudagraph")


def _decided(results: Mapping[int, Measured | Failed]) -> Decision:
    times = {index: result.timing.latency for index, result in results.items() if isinstance(result, Measured)}
    best = min(times.values(), default=0.0)
    equals = tuple(index for index, took in sorted(times.items()) if took <= best * 1.005)
    return Decision(dict(results), equals[0] if equals else None, None, True, (), equals)
