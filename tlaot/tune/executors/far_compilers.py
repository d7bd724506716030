"""A pool of compilers on the nodes of a cluster, as the tuning loop sees it."""

from __future__ import annotations

import itertools
import shutil
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import BuildError
from ...manifest import digest_of
from ..children.child import STOPPED, Failed
from ..compiling.compile import EXECUTABLE, Built, Workshop
from ..specs.plan import Candidate
from .crew import Crew, Unit
from .far import Compiled
from .nodes import Node
from .remote import Gone, Remote

__all__ = ["ClusterPool"]

# How often a candidate is given out whose node or actor is lost meanwhile. A compiler that is killed is the node's own business, which
# tries again by itself; so this is for a candidate that takes whole nodes down.
_MOST_LOSSES = 6

# A candidate is compiled twice where nothing else waits and it has taken so many times the median of the others, and so many seconds.
_STRAGGLES, _STRAGGLES_S, _FEWEST_ENDED = 3.0, 5.0, 3

_numbers = itertools.count(1)


@dataclass
class _Attempt:
    """One actor at work on a candidate."""

    job: int
    unit: Unit
    remote: Remote
    began: float


@dataclass
class _Item:
    """A candidate that was submitted."""

    candidate: Candidate
    future: Future[Built | Failed] = field(default_factory=Future)
    attempts: list[_Attempt] = field(default_factory=list)
    losses: int = 0
    done: bool = False


class ClusterPool:
    """Compiles candidates of one frontend and one target on the nodes that can.

    Args:
        frontend: The frontend.
        workshop: The driver's; binaries are brought to its scratch folder, what is printed to its log.
        crew: Room on the nodes.
        fits: Says which nodes can.
    """

    def __init__(self, frontend: str, workshop: Workshop, crew: Crew, fits: Callable[[Node], bool]) -> None:
        self._frontend = frontend
        self._workshop = workshop
        self._crew = crew
        self._fits = fits
        self._guard = threading.RLock()
        self._queue: deque[_Item] = deque()
        self._running: list[_Item] = []
        self._took: deque[float] = deque(maxlen=200)
        self._closed = False
        crew.open(fits)

    @property
    def jobs(self) -> int:
        return max(1, min(self._workshop.jobs, self._crew.slots(self._fits)))

    def submit(self, candidate: Candidate) -> Future[Built | Failed]:
        item = _Item(candidate)
        with self._guard:
            if self._closed:
                item.future.cancel()
                return item.future
            self._queue.append(item)
        self._crew.open(self._fits)
        self.pump()
        return item.future

    def pump(self) -> None:
        """Give out what waits, as far as there is room."""
        while True:
            with self._guard:
                if self._closed or not self._queue or self._count() >= self._workshop.jobs:
                    return
                unit = self._crew.take(self._fits)
                if unit is None:
                    return
                item = self._queue.popleft()
                if not item.losses and not item.future.set_running_or_notify_cancel():
                    attempt = None
                else:
                    attempt = self._note(item, unit)
            if attempt is None:
                assert unit.remote is not None
                self._crew.give_back(unit, unit.remote, compiled=False)
            else:
                self._start(item, attempt)

    def welcome(self) -> None:
        """Nodes have joined: ask them for room, if there is work."""
        with self._guard:
            busy = not self._closed and bool(self._queue or self._running)
        if busy:
            self._crew.open(self._fits)

    def rush(self) -> None:
        """Compile once more, elsewhere, what takes much longer than the others while nothing else waits: one node may be ill."""
        with self._guard:
            if self._closed or self._queue or len(self._took) < _FEWEST_ENDED:
                return
            patience = max(_STRAGGLES_S, _STRAGGLES * statistics.median(self._took))
            now = time.monotonic()
            late = [i for i in self._running if len(i.attempts) == 1 and now - i.attempts[0].began > patience]
        for item in late:
            with self._guard:
                if self._closed or item.done or len(item.attempts) != 1 or self._count() >= self._workshop.jobs:
                    continue
                unit = self._crew.take(self._fits, [item.attempts[0].unit])
                if unit is None:
                    return
                attempt = self._note(item, unit)
            self._start(item, attempt)

    def close(self) -> None:
        """Stop at once: what waits is cancelled, what compiles fails."""
        with self._guard:
            self._closed = True
            waiting, self._queue = list(self._queue), deque()
            running, self._running = self._running, []
            for item in running:
                item.done = True
        for item in waiting:
            if not item.future.cancel():
                item.future.set_result(Failed("start", f"{STOPPED} before it began"))
        for item in running:
            for attempt in item.attempts:
                attempt.remote.call("stop", attempt.job)
            item.future.set_result(Failed("start", STOPPED))

    def __enter__(self) -> ClusterPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count(self) -> int:
        return sum(len(item.attempts) for item in self._running)

    def _note(self, item: _Item, unit: Unit) -> _Attempt:
        assert unit.remote is not None
        attempt = _Attempt(next(_numbers), unit, unit.remote, time.monotonic())
        item.attempts.append(attempt)
        if item not in self._running:
            self._running.append(item)
        return attempt

    def _start(self, item: _Item, attempt: _Attempt) -> None:
        # The other configs of the workload are no concern of a compiler's.
        bare = replace(item.candidate, workload=replace(item.candidate.workload, configs=()))
        call = attempt.remote.call("compile", attempt.job, self._frontend, bare)
        call.add_done_callback(lambda done: self._ended(item, attempt, done))

    def _ended(self, item: _Item, attempt: _Attempt, done: Future[Any]) -> None:
        error = done.exception()
        compiled: Compiled | None = None if error is not None else done.result()
        if compiled is not None:
            self._say(compiled.said)
        with self._guard:
            item.attempts.remove(attempt)
            first, item.done = not item.done, True
        self._crew.give_back(attempt.unit, attempt.remote, compiled=compiled is not None and first)
        if first:
            self._conclude(item, self._judge(item, attempt, error, compiled))
        self.pump()

    def _conclude(self, item: _Item, outcome: Built | Failed | BuildError | None) -> None:
        with self._guard:
            if self._closed:
                return  # its future is done
            others = list(item.attempts)
            if outcome is None:  # to be made again, unless somebody else is at it
                item.done = False
                if not others:
                    self._running.remove(item)
                    self._queue.appendleft(item)
                return
            self._running.remove(item)
        for other in others:
            other.remote.call("stop", other.job)
        if isinstance(outcome, BuildError):
            item.future.set_exception(outcome)
        else:
            item.future.set_result(outcome)

    def _judge(
        self, item: _Item, attempt: _Attempt, error: BaseException | None, compiled: Compiled | None
    ) -> Built | Failed | BuildError | None:
        """What an attempt comes to; None where it is to be made again."""
        where = attempt.unit.node.facts.host
        if compiled is not None and compiled.unfit is not None:
            return BuildError(
                "executor ray",
                f"{where}: what the driver imports cannot be imported there: {compiled.unfit}",
                "Install on every node what the package needs besides its own modules.",
            )
        if compiled is not None and isinstance(compiled.outcome, Failed):
            return compiled.outcome
        if compiled is not None:
            try:
                built = self._bring(item.candidate, compiled)
            except OSError as full:  # a full disk costs one candidate
                return Failed("start", f"its folder cannot be used ({full.strerror})")
            if built is not None:
                self._took.append(time.monotonic() - attempt.began)
                return built
        elif not isinstance(error, Gone):
            return Failed("start", f"{where}: {type(error).__name__}: {error}")
        item.losses += 1
        if item.losses < _MOST_LOSSES:
            return None
        return Failed("start", f"{item.losses} nodes were lost, one after the other, while it compiled there")

    def _bring(self, candidate: Candidate, compiled: Compiled) -> Built | None:
        """Write a candidate's files where a local build would have made them; None where they are not those that were made."""
        built = compiled.outcome
        assert isinstance(built, Built)
        if digest_of(compiled.files.get(EXECUTABLE, b"")) != built.digest:
            return None
        folder = self._workshop.scratch / "candidates" / candidate.workload.path / str(candidate.index)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, data in compiled.files.items():
            (folder / name).write_bytes(data)
        return replace(built, folder=folder)

    def _say(self, said: bytes) -> None:
        if said:
            try:
                with self._workshop.log.open("ab") as log:
                    log.write(said)
            except OSError:
                pass
