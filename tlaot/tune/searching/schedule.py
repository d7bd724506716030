"""The tuning loop, one for builds and for Python.

A search says what to try next; candidates are compiled by the pool and screened by any device as their binaries arrive. When all of a
workload's candidates are screened, and it is quiet where the device is, the finalists are timed again in turns on one device, which decides; devices
decide different workloads at the same time. What an earlier tuning has found comes from the store.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import BuildError
from ..children.child import ATTEMPTS, Failed, Lost
from ..compiling.compile import Built
from ..executors.seam import Compilers, Device
from ..measuring import tasks
from ..measuring.decide import undecided
from ..measuring.measure import Decision, Measured
from ..measuring.timing import Timing
from ..specs.plan import Candidate, Workload
from ..telling.journal import Journal
from ..telling.progress import Progress
from .search import Search, Skipped
from .store import Store
from .verdicts import Alike, Outcome, Tuned, Verdicts
from .waiting import Waiting

__all__ = ["Events", "Outcome", "Stand", "Tuned", "tune_workloads"]


class Events(Protocol):
    """What has happened, to be taken in by the thread that runs the loop; ``put`` is for any thread."""

    def put(self, event: Callable[[], None], /) -> None: ...

    def get(self) -> Callable[[], None]:
        """The next one; waits for it."""


@dataclass(frozen=True)
class Stand:
    """What a tuning works with.

    Attributes:
        pool: Compiles.
        devices: What measures: devices of one model. Those that are not apart decide when nothing compiles any more.
        store: Keeps what is found.
        journal: Is told everything.
        progress: Is told how far it is.
        overlap: Whether candidates are screened while others compile; off where the device is what compiles.
        early_stop_factor: A candidate whose first calls take more than this times the best so far is not timed further.
        on_built: Called with each binary; what it raises ends the tuning.
        events: Makes the queue that says what has happened; another one may have a clock of its own.
    """

    pool: Compilers
    devices: Sequence[Device]
    store: Store
    journal: Journal
    progress: Progress
    overlap: bool
    early_stop_factor: float | None = None
    on_built: Callable[[Candidate, Built], None] = lambda candidate, built: None
    events: Callable[[], Events] = queue.SimpleQueue


def tune_workloads(
    plans: Sequence[tuple[Sequence[Workload], Search]], stand: Stand, decided: Callable[[Tuned], None]
) -> None:
    """Tune workloads of one frontend and one target.

    Args:
        plans: For each kernel entry its workloads, decided in this order, and the search over all of them.
        stand: What to work with.
        decided: Called with each workload as soon as its winner is known, those of one kernel in the order of the plans.

    Raises:
        SpecError: The inputs or the reference of a workload raised; its other candidates are not tried.
        TlaotError: What ``stand.on_built`` or ``decided`` raises.
    """
    for workloads, search in plans:
        if search.note:
            stand.journal.write(f"{workloads[0].kernel.name} [{workloads[0].target}]: {search.note}")
    run = _Run(plans, stand, decided)
    try:
        run.go()
    except BaseException:
        run.abandon()
        raise


class _Run:
    """The state of one tuning; every change is made by the thread that calls :meth:`go`."""

    def __init__(
        self, plans: Sequence[tuple[Sequence[Workload], Search]], stand: Stand, decided: Callable[[Tuned], None]
    ) -> None:
        self._stand = stand
        self._search_of = {workload.path: search for workloads, search in plans for workload in workloads}
        self._workloads = [workload for workloads, _ in plans for workload in workloads]
        self._results: dict[str, dict[int, Measured | Failed]] = {path: {} for path in self._search_of}
        self._alike = {workload.path: Alike(workload.candidates()) for workload in self._workloads}
        self._verdicts = Verdicts(self._workloads, self._alike, decided)
        self._open = {workload.path: workload for workload in self._workloads}
        self._asking = [search for _, search in plans]
        # Searches that wait for results: to ask one takes time, and nothing has changed until it is told something.
        self._dry: set[int] = set()
        self._passed = {id(search): 0 for search in self._asking}
        self._skipped: dict[str, dict[int, Skipped]] = {}

        self._events = stand.events()
        self._waiting = Waiting({workload.path: place for place, workload in enumerate(self._workloads)})
        self._compiling = self._screening = self._waking = self._deciding = 0
        self._remembering = self._abandoned = False
        self._devices = list(stand.devices)
        self._idle = list(range(len(self._devices)))
        self._gone = 0
        # How often a candidate, or a workload that was being decided (-1), was lost with the process or host that had it.
        self._lost: Counter[tuple[str, int]] = Counter()
        self._unprepared: list[tuple[Workload, Built]] = []
        self._prepared: set[int] = set()
        self._first_of: dict[Any, int] = {}
        # Sizes of a dynamic workload have their binaries in common: what is being compiled, and what was, by Candidate.binary.
        self._coming: dict[str, Future[Built | Failed]] = {}
        self._made: dict[str, Built] = {}

    def go(self) -> None:
        """Try what the searches ask for until they have enough, and decide."""
        self._wake()
        self._remember()
        while True:
            self._ask()
            self._prepare()
            self._screen()
            self._decide()
            busy = self._compiling or self._screening or self._deciding or (self._waiting.binaries and self._waking)
            if not busy:
                if self._verdicts.complete:
                    return
                if not (self._waking and self._all_told):
                    raise AssertionError("a search waits for results, and nothing is being tried")
            self._events.get()()

    def abandon(self) -> None:
        """End what the devices do; what fails from now on does so because it is ended, as the pool's work will be, and is no finding."""
        self._abandoned = True
        for device in self._stand.devices:  # or a kernel that nobody wants any more would be waited for
            device.kill()

    @property
    def _all_told(self) -> bool:
        return not self._asking and not self._open

    def _ask(self) -> None:
        stand = self._stand
        waiting = self._waiting.binaries
        if not stand.overlap and (self._screening or (waiting and not self._compiling)):
            return
        while self._asking and self._compiling + self._waiting.binaries < self._ahead:
            candidate = self._next()
            if candidate is None:
                return
            self._begin(candidate)

    @property
    def _ahead(self) -> int:
        """How many may be compiling or wait: enough to keep the devices busy, and few enough that what is learnt steers what is compiled."""
        jobs = self._stand.pool.jobs
        return max(2 * jobs, 2 * len(self._devices)) if self._stand.overlap else max(32, 8 * jobs)

    def _next(self) -> Candidate | None:
        for search in list(self._asking):
            if id(search) in self._dry:
                continue
            candidate = search.ask()
            self._note_skipped(search)
            if candidate is not None:
                return candidate
            self._dry.add(id(search))
            if search.exhausted:
                self._asking.remove(search)
        return None

    def _note_skipped(self, search: Search) -> None:
        """Take what a search has passed over since the last look."""
        if search.count_skipped == self._passed[id(search)]:
            return
        new = search.skipped()[self._passed[id(search)] :]
        self._passed[id(search)] += len(new)
        self._stand.progress.skipped(len(new))
        for skipped in new:
            candidate = skipped.candidate
            self._skipped.setdefault(candidate.workload.path, {})[candidate.index] = skipped
        for workload in {skipped.candidate.workload.path: skipped.candidate.workload for skipped in new}.values():
            self._close(workload)

    def _remember(self) -> None:
        """Take what earlier tunings know of any candidate: it is evidence, and all of it may win."""
        self._remembering = True
        for candidate in (candidate for path in self._search_of for candidate in self._alike[path].candidates):
            known = self._stand.store.measurement(candidate)
            if isinstance(known, Failed):
                self._stand.journal.restored(candidate, known)
                self._finish(candidate, known, known)
            elif known is not None and (built := self._stand.store.built(candidate)) is not None:
                self._arrive(candidate, built, known)
        self._remembering = False

    def _begin(self, candidate: Candidate) -> None:
        """Start on a candidate from where an earlier tuning left it."""
        store = self._stand.store
        known = store.measurement(candidate)
        known = None if isinstance(known, Failed) else known
        name = candidate.binary
        built = self._made.get(name) or store.built(candidate)
        if built is not None:
            self._made[name] = built
            self._arrive(candidate, built, known)
            return
        self._compiling += 1
        future = self._coming.get(name) or self._stand.pool.submit(candidate)
        self._coming[name] = future
        self._tell_of(
            future, lambda: self._keep_built(candidate, future), lambda: self._compiled(candidate, known, future)
        )

    def _tell_of(self, future: Future[Any], keep: Callable[[], None], event: Callable[[], None]) -> None:
        """When a future is done, keep what came of it, in the thread that has it: files are slow, and this loop serves everybody. Then tell the loop."""

        def told(done: Future[Any]) -> None:
            try:
                keep()
            except BaseException as error:
                self._events.put(lambda error=error: self._raise(error))  # type: ignore[misc]
            else:
                self._events.put(event)

        future.add_done_callback(told)

    def _raise(self, error: BaseException) -> None:
        raise error

    def _keep_built(self, candidate: Candidate, done: Future[Built | Failed]) -> None:
        outcome = done.result()
        if isinstance(outcome, Failed):
            self._keep_measurement(candidate, outcome)
        elif candidate.binary not in self._made:
            self._made[candidate.binary] = self._stand.store.keep_built(candidate, outcome)

    def _compiled(self, candidate: Candidate, known: Timing | None, done: Future[Built | Failed]) -> None:
        self._compiling -= 1
        outcome = done.result()
        self._stand.journal.compiled(candidate, outcome)
        self._stand.progress.compiled()
        if isinstance(outcome, Failed):
            self._finish(candidate, outcome, outcome)
        else:
            self._arrive(candidate, self._made[candidate.binary], known)

    def _arrive(self, candidate: Candidate, built: Built, known: Timing | None) -> None:
        self._stand.on_built(candidate, built)
        path = candidate.workload.path
        first = self._first_of.setdefault((path, built.digest, built.params, built.out_idx), candidate.index)
        if first != candidate.index:
            self._alike[path].add(first, candidate.index)
            if first in self._results[path]:
                self._tell_twin(candidate, self._results[path][first])
        elif known is not None:
            self._stand.journal.restored(candidate, known)
            self._finish(candidate, Measured(candidate, built, known), known)
        else:
            self._waiting.put(candidate, built)
            entry = id(self._search_of[path])
            if entry not in self._prepared:
                self._prepared.add(entry)
                self._unprepared.append((candidate.workload, built))

    def _wake(self) -> None:
        """Have the devices ready when the first binary is: a CUDA context takes as long to make as a kernel to compile."""
        if not self._stand.overlap:
            return
        for number in self._idle:
            self._await_awake(number, self._devices[number].submit(tasks.wake))
        self._idle = []

    def _await_awake(self, number: int, future: Future[None]) -> None:
        self._waking += 1
        future.add_done_callback(lambda done: self._events.put(lambda: self._awoke(number, done)))

    def _awoke(self, number: int, done: Future[None]) -> None:
        self._waking -= 1
        try:
            done.result()
        except Lost:
            pass  # it wakes, or says why it does not, at its first candidate
        self._rest(number)

    def _rest(self, number: int) -> None:
        """A device has nothing to do, unless it is gone."""
        device = self._devices[number]
        if not device.gone:
            self._idle.append(number)
            return
        self._gone += 1
        self._waiting.leave(number)
        self._stand.journal.say(f"tlaot: {device.name} is lost, and measures no more")
        if self._gone == len(self._devices):
            what = "every device to measure on is lost"
            raise BuildError("measuring", what, "Tune again: it goes on from what it has found.")

    def _prepare(self) -> None:
        """Try each entry's inputs and reference while its candidates compile, to be screened only then: a mistake must not wait so long."""
        while self._idle and self._unprepared and not self._stand.overlap and self._compiling:
            workload, built = self._unprepared.pop()
            number = self._idle.pop()
            self._waiting.settle_in(number, workload)
            self._await_awake(number, self._devices[number].submit(tasks.prepare, workload, built))

    def _screen(self) -> None:
        """Give binaries to idle devices."""
        if not self._stand.overlap and self._compiling:
            return
        while self._idle and self._waiting.binaries:
            number = self._idle.pop()
            candidate, built = self._waiting.take(number)
            self._screening += 1
            limit = self._stop_above(candidate.workload)
            self._await_screened(
                number, candidate, built, self._devices[number].submit(tasks.screen, candidate, built, limit)
            )

    def _await_screened(self, number: int, candidate: Candidate, built: Built, future: Future[Timing | Failed]) -> None:
        self._tell_of(
            future,
            lambda: self._keep_screened(candidate, future),
            lambda: self._screened(number, candidate, built, future),
        )

    def _keep_screened(self, candidate: Candidate, done: Future[Timing | Failed]) -> None:
        if done.exception() is None:
            self._keep_measurement(candidate, done.result())

    def _keep_measurement(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        if not (self._abandoned and isinstance(outcome, Failed)):
            self._stand.store.keep_measurement(candidate, outcome)

    def _screened(self, number: int, candidate: Candidate, built: Built, done: Future[Timing | Failed]) -> None:
        self._screening -= 1
        self._rest(number)
        try:
            outcome = done.result()
        except Lost as lost:
            if self._give_out_again(candidate.workload, candidate.index, candidate.label, lost):
                self._waiting.put(candidate, built)
                return
            outcome = lost.failed
        result = outcome if isinstance(outcome, Failed) else Measured(candidate, built, outcome)
        self._stand.journal.measured(candidate, outcome)
        self._finish(candidate, result, outcome)

    def _give_out_again(self, workload: Workload, index: int, label: str, lost: Lost) -> bool:
        name = workload.path, index
        self._lost[name] += lost.begun
        if self._lost[name] >= ATTEMPTS:
            return False
        self._stand.journal.write(f"again    {label}: lost with who had it: {lost}")
        return True

    def _finish(self, candidate: Candidate, result: Measured | Failed, outcome: Timing | Failed) -> None:
        path = candidate.workload.path
        self._results[path][candidate.index] = result
        self._tell(candidate, outcome)
        for twin in self._alike[path].twins(candidate.index):
            self._tell_twin(twin, result)

    def _tell_twin(self, twin: Candidate, result: Measured | Failed) -> None:
        outcome = result if isinstance(result, Failed) else result.timing
        self._stand.journal.measured(twin, outcome)
        self._tell(twin, outcome)

    def _tell(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        self._stand.progress.measured()
        search = self._search_of[candidate.workload.path]
        self._dry.discard(id(search))
        (search.remember if self._remembering else search.tell)(candidate, outcome)
        self._close(candidate.workload)

    def _close(self, workload: Workload) -> None:
        """A workload whose candidates were all tried or passed over is to be decided."""
        if workload.path in self._open and self._search_of[workload.path].is_closed(workload):
            self._waiting.put_screened(self._open.pop(workload.path))

    def _stop_above(self, workload: Workload) -> float | None:
        factor = self._stand.early_stop_factor
        if factor is None:
            return None
        measured = [r.timing.latency for r in self._results[workload.path].values() if isinstance(r, Measured)]
        return min(measured) * factor if measured else None

    def _decide(self) -> None:
        """Give workloads to devices that have nothing to screen; those that are not apart wait until nothing compiles any more."""
        quiet = self._all_told and not self._compiling
        for number in list(self._idle):
            if not (quiet or self._devices[number].apart):
                continue
            workload = self._waiting.take_screened(number)
            if workload is None:
                return
            self._idle.remove(number)
            self._deciding += 1
            tried = self._alike[workload.path].to_decide(self._results[workload.path])
            future = self._devices[number].submit(tasks.decide, workload, tried)
            self._await_decided(number, workload, future)

    def _await_decided(self, number: int, workload: Workload, future: Future[Decision]) -> None:
        future.add_done_callback(lambda done: self._events.put(lambda: self._decided(number, workload, done)))

    def _decided(self, number: int, workload: Workload, done: Future[Decision]) -> None:
        self._deciding -= 1
        self._rest(number)
        alike = self._alike[workload.path]
        tried = alike.to_decide(self._results[workload.path])
        try:
            decision = done.result()
        except Lost as lost:
            if self._give_out_again(workload, -1, f"{workload.label}, being decided", lost):
                self._waiting.put_screened(workload)
                return
            decision = undecided(tried, lost.failed)
        decision = decision.with_files_of(tried)
        failed = {i: r for i, r in decision.results.items() if isinstance(r, Failed) and r != tried[i]}
        for index, result in alike.of_all(failed).items():  # they failed only when they were looked at again
            assert isinstance(result, Failed)
            self._stand.store.keep_measurement(alike.candidates[index], result)
        self._verdicts.add(workload, decision, self._skipped.get(workload.path, {}))
