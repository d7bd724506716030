"""The tuning loop, one for builds and for Python.

A search says what to try next; candidates are compiled by the pool, screened by the measuring children as their binaries arrive,
and when all is quiet the finalists of each workload are timed again in turns, which decides. What an earlier tuning has found
comes from the store.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import BuildError
from ..children.child import ATTEMPTS, Failed, Lost
from ..compiling.compile import Built
from ..executors.seam import Compilers, Device
from ..measuring import tasks
from ..measuring.measure import Decision, Measured
from ..measuring.timing import Timing
from ..specs.plan import Candidate, Workload
from ..telling.journal import Journal
from ..telling.progress import Progress
from .search import Search, Skipped
from .store import Store

__all__ = ["Outcome", "Stand", "Tuned", "tune_workloads"]

# What became of a candidate.
Outcome = Measured | Failed | Skipped


@dataclass(frozen=True)
class Stand:
    """What a tuning works with.

    Attributes:
        pool: Compiles.
        devices: What measures: devices of one model; the first one decides.
        store: Keeps what is found.
        journal: Is told everything.
        progress: Is told how far it is.
        overlap: Whether candidates are screened while others compile; off where the device is what compiles.
        early_stop_factor: A candidate whose first calls take more than this times the best so far is not timed further.
        on_built: Called with each binary; what it raises ends the tuning.
    """

    pool: Compilers
    devices: Sequence[Device]
    store: Store
    journal: Journal
    progress: Progress
    overlap: bool
    early_stop_factor: float | None = None
    on_built: Callable[[Candidate, Built], None] = lambda candidate, built: None


@dataclass(frozen=True)
class Tuned:
    """What a workload's tuning found.

    Attributes:
        workload: The workload.
        outcomes: One a config, in order.
        decision: The winner among them, the reference's time, and whether the measurement can be trusted.
    """

    workload: Workload
    outcomes: tuple[Outcome, ...]
    decision: Decision


def tune_workloads(
    plans: Sequence[tuple[Sequence[Workload], Search]], stand: Stand, decided: Callable[[Tuned], None]
) -> None:
    """Tune workloads of one frontend and one target.

    Args:
        plans: For each kernel entry its workloads, decided in this order, and the search over all of them.
        stand: What to work with.
        decided: Called with each workload as soon as its winner is known.

    Raises:
        SpecError: The inputs or the reference of a workload raised; its other candidates are not tried.
        TlaotError: What ``stand.on_built`` or ``decided`` raises.
    """
    for workloads, search in plans:
        if search.note:
            stand.journal.write(f"{workloads[0].kernel.name} [{workloads[0].target}]: {search.note}")
    run = _Run(plans, stand)
    try:
        run.collect()
    except BaseException:
        for device in stand.devices:  # or a kernel that nobody wants any more would be waited for
            device.kill()
        raise
    chosen: dict[str, list[Mapping[str, Any]]] = {}
    for workload in (workload for workloads, _ in plans for workload in workloads):
        preferred = chosen.setdefault(workload.kernel.name, [])
        tuned = _decide(workload, run, preferred, stand)
        winner = tuned.decision.winner_index
        if winner is not None:
            preferred.append(workload.configs[winner])
        decided(tuned)


def _decide(workload: Workload, run: _Run, preferred: Sequence[Mapping[str, Any]], stand: Stand) -> Tuned:
    tried = run.results[workload.path]
    decision: Decision = stand.devices[0].submit(tasks.decide, workload, tried, list(preferred)).result()
    for index, result in decision.results.items():
        if isinstance(result, Failed) and result != tried[index]:  # it failed only when it was looked at again
            stand.store.keep_measurement(workload.candidates()[index], result)
    outcomes: dict[int, Outcome] = {**run.skipped(workload), **decision.results}
    # Configs that compile to the same binary share its outcome; the first of them in the spec's order wins, and not the one
    # whose compiler was the first to be done.
    alike = [] if decision.winner_index is None else [decision.winner_index]
    for twin, first in run.twins.get(workload.path, ()):
        same = outcomes[first]
        outcomes[twin.index] = replace(same, candidate=twin) if isinstance(same, Measured) else same
        alike += [twin.index] if first == decision.winner_index else []
    decision = replace(decision, winner_index=min(alike, default=None))
    return Tuned(workload, tuple(outcomes[index] for index in range(len(workload.configs))), decision)


@dataclass
class _Waiting:
    """Binaries that wait for a device, by workload: one workload's inputs and reference are on the device at a time."""

    by_workload: dict[str, list[tuple[Candidate, Built]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.by_workload.values()))

    def put(self, candidate: Candidate, built: Built) -> None:
        self.by_workload.setdefault(candidate.workload.path, []).append((candidate, built))

    def take(self, preferred: str | None) -> tuple[Candidate, Built]:
        """The next one, of the preferred workload if it has any."""
        path = preferred if preferred in self.by_workload else next(iter(self.by_workload))
        assert path is not None
        found = self.by_workload[path].pop(0)
        if not self.by_workload[path]:
            del self.by_workload[path]
        return found


class _Run:
    """The state of one tuning; every change is made by the thread that calls :meth:`collect`."""

    def __init__(self, plans: Sequence[tuple[Sequence[Workload], Search]], stand: Stand) -> None:
        self._search_of = {workload.path: search for workloads, search in plans for workload in workloads}
        self.results: dict[str, dict[int, Measured | Failed]] = {path: {} for path in self._search_of}
        self.twins: dict[str, list[tuple[Candidate, int]]] = {}
        self._searches = [search for _, search in plans]
        self._workloads = [workload for workloads, _ in plans for workload in workloads]
        self._stand = stand
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting = _Waiting()
        self._compiling = 0
        self._screening = 0
        self._waking = 0
        self._gone = 0
        self._remembering = False
        self._passed = 0
        self._idle = list(stand.devices)
        self._last: dict[int, str] = {}
        self._unprepared: list[tuple[Workload, Built]] = []
        self._prepared: set[int] = set()
        self._first_of: dict[Any, int] = {}
        # Sizes of a dynamic workload have their binaries in common: what is being compiled, and what was, by Candidate.binary.
        self._coming: dict[str, Future[Built | Failed]] = {}
        self._made: dict[str, Built] = {}
        # How often each candidate was lost with the process or host that had it.
        self._lost: Counter[tuple[str, int]] = Counter()
        jobs = stand.pool.jobs
        # Enough to keep the device busy, and few enough that what is learnt steers what is compiled.
        self._ahead = 2 * jobs if stand.overlap else max(32, 8 * jobs)

    def skipped(self, workload: Workload) -> dict[int, Skipped]:
        found = self._search_of[workload.path].skipped()
        return {one.candidate.index: one for one in found if one.candidate.workload.path == workload.path}

    def collect(self) -> None:
        """Try what the searches ask for until they have enough."""
        self._wake()
        self._remember()
        while True:
            self._ask()
            self._prepare()
            self._screen()
            if self._compiling == 0 and self._screening == 0 and not (self._waiting and self._waking):
                if all(search.finished for search in self._searches):
                    return
                raise AssertionError("a search waits for results, and nothing is being tried")
            self._events.get()()

    def _ask(self) -> None:
        stand = self._stand
        if not stand.overlap and (self._screening or (self._waiting and not self._compiling)):
            return
        while self._compiling + len(self._waiting) < self._ahead:
            candidate = next((found for search in self._searches if (found := search.ask()) is not None), None)
            if candidate is None:
                break
            self._begin(candidate)
        self._show_skipped()

    def _show_skipped(self) -> None:
        passed = sum(len(search.skipped()) for search in self._searches)
        if passed > self._passed:
            self._stand.progress.skipped(passed - self._passed)
            self._passed = passed

    def _remember(self) -> None:
        """Take what earlier tunings know of any candidate: it is evidence, and all of it may win."""
        self._remembering = True
        for candidate in (candidate for workload in self._workloads for candidate in workload.candidates()):
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
        future.add_done_callback(lambda done: self._events.put(lambda: self._compiled(candidate, known, done)))

    def _compiled(self, candidate: Candidate, known: Timing | None, done: Future[Built | Failed]) -> None:
        self._compiling -= 1
        outcome = done.result()
        self._stand.journal.compiled(candidate, outcome)
        self._stand.progress.compiled()
        if isinstance(outcome, Failed):
            self._stand.store.keep_measurement(candidate, outcome)
            self._finish(candidate, outcome, outcome)
            return
        name = candidate.binary
        if name not in self._made:
            self._made[name] = self._stand.store.keep_built(candidate, outcome)
        self._arrive(candidate, self._made[name], known)

    def _arrive(self, candidate: Candidate, built: Built, known: Timing | None) -> None:
        self._stand.on_built(candidate, built)
        path = candidate.workload.path
        first = self._first_of.setdefault((path, built.digest, built.params, built.out_idx), candidate.index)
        if first != candidate.index:
            self.twins.setdefault(path, []).append((candidate, first))
            if first in self.results[path]:
                self._tell_twin(candidate, self.results[path][first])
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
        for device in self._idle:
            self._await_awake(device, device.submit(tasks.wake))
        self._idle = []

    def _await_awake(self, device: Device, future: Future[None]) -> None:
        self._waking += 1
        future.add_done_callback(lambda done: self._events.put(lambda: self._awoke(device, done)))

    def _awoke(self, device: Device, done: Future[None]) -> None:
        self._waking -= 1
        try:
            done.result()
        except Lost:
            pass  # it wakes, or says why it does not, at its first candidate
        self._rest(device)

    def _rest(self, device: Device) -> None:
        """A device has nothing to do, unless it is gone."""
        if not device.gone:
            self._idle.append(device)
            return
        self._gone += 1
        self._stand.journal.say(f"tlaot: {device.name} is lost, and measures no more")
        if self._gone == len(self._stand.devices):
            raise BuildError(
                "measuring", "every device to measure on is lost", "Tune again: it goes on from what it has found."
            )

    def _prepare(self) -> None:
        """Try each entry's inputs and reference while its candidates compile, to be screened only then: a mistake must not wait so long."""
        while self._idle and self._unprepared and not self._stand.overlap and self._compiling:
            workload, built = self._unprepared.pop()
            device = self._idle.pop()
            self._last[id(device)] = workload.path
            self._await_awake(device, device.submit(tasks.prepare, workload, built))

    def _screen(self) -> None:
        """Give binaries to idle devices."""
        if not self._stand.overlap and self._compiling:
            return
        while self._idle and self._waiting:
            device = self._idle.pop()
            candidate, built = self._waiting.take(self._last.get(id(device)))
            self._last[id(device)] = candidate.workload.path
            self._screening += 1
            future = device.submit(tasks.screen, candidate, built, self._stop_above(candidate.workload))
            self._await_screened(device, candidate, built, future)

    def _await_screened(
        self, device: Device, candidate: Candidate, built: Built, future: Future[Timing | Failed]
    ) -> None:
        future.add_done_callback(lambda done: self._events.put(lambda: self._screened(device, candidate, built, done)))

    def _screened(self, device: Device, candidate: Candidate, built: Built, done: Future[Timing | Failed]) -> None:
        self._screening -= 1
        self._rest(device)
        try:
            outcome = done.result()
        except Lost as lost:
            name = candidate.workload.path, candidate.index
            self._lost[name] += 1
            if self._lost[name] < ATTEMPTS:
                self._stand.journal.write(f"again    {candidate.label}: lost with its process: {lost}")
                self._waiting.put(candidate, built)
                return
            outcome = lost.failed
        result = outcome if isinstance(outcome, Failed) else Measured(candidate, built, outcome)
        self._stand.journal.measured(candidate, outcome)
        self._stand.store.keep_measurement(candidate, outcome)
        self._finish(candidate, result, outcome)

    def _finish(self, candidate: Candidate, result: Measured | Failed, outcome: Timing | Failed) -> None:
        path = candidate.workload.path
        self.results[path][candidate.index] = result
        self._tell(candidate, outcome)
        for twin, first in self.twins.get(path, ()):
            if first == candidate.index:
                self._tell_twin(twin, result)

    def _tell_twin(self, twin: Candidate, result: Measured | Failed) -> None:
        outcome = result if isinstance(result, Failed) else result.timing
        self._stand.journal.measured(twin, outcome)
        self._tell(twin, outcome)

    def _tell(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        self._stand.progress.measured()
        search = self._search_of[candidate.workload.path]
        (search.remember if self._remembering else search.tell)(candidate, outcome)

    def _stop_above(self, workload: Workload) -> float | None:
        factor = self._stand.early_stop_factor
        measured = [r.timing.latency for r in self.results[workload.path].values() if isinstance(r, Measured)]
        return None if factor is None or not measured else min(measured) * factor
