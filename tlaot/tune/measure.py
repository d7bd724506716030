"""Check and time candidates, one at a time, in a killable child that has the device to itself.

``screen`` says of each candidate whether it is right and about how fast it is; it is short, and others may compile meanwhile.
:func:`~tlaot.tune.decide.decide` says which is the best.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from .asking import Measured, ask, candidate_request, prepare, read_timing, wake, workload_request
from .child import Child, Failed
from .compile import Built
from .decide import Decision, Log, decide
from .device_lock import exclusive
from .plan import Candidate, Workload
from .timing import Timing

__all__ = ["Decision", "Log", "Measured", "decide", "measure_workload", "merge_results", "screen"]


def screen(
    child: Child,
    workload: Workload,
    candidate: Candidate,
    built: Built,
    stop_above: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Measured | Failed:
    """Check a candidate and time it shortly.

    Args:
        child: A measuring child; it makes the workload's inputs at its first candidate.
        workload: What the candidate is of.
        candidate: The candidate.
        built: Its files.
        stop_above: Where its first few calls take longer than this many ms each, that is its time: it cannot win.
        say: Told once where another process has the device and is waited for; the wait is not the candidate's.

    Returns:
        Its time, or why it has none. A child that it crashed or hung is replaced at the next request.
    """
    awake = wake(child)
    if isinstance(awake, Failed):
        return awake
    request = workload_request(workload, built)
    with exclusive(awake.device, say or (lambda text: None)):
        unprepared = prepare(child, request, workload.kernel.profile.timeout)
        if unprepared is not None:
            return unprepared
        asked = {**request, "op": "measure", "candidate": candidate_request(built), "stop_above": stop_above}
        timing = read_timing(ask(child, asked, workload.kernel.profile.timeout))
    return timing if isinstance(timing, Failed) else Measured(candidate, built, timing)


def measure_workload(
    workload: Workload,
    built: Iterable[tuple[Candidate, Built]],
    children: Sequence[Child],
    progress: Callable[[Candidate, Timing | Failed], None],
    early_stop_factor: float | None = None,
    again: Callable[[Candidate, Timing], None] | None = None,
) -> tuple[dict[int, Measured | Failed], Timing | None]:
    """Measure the candidates of one workload.

    Args:
        workload: The workload.
        built: Its candidates that compiled; may yield them while others still compile.
        children: Measuring children, one a device, of devices of one kind.
        progress: Called with each result as it comes, from one thread a child.
        again: Called with each timing of the second round.
        early_stop_factor: A candidate whose first few calls take more than this times the best so far is not timed further; None
            times all.

    Returns:
        A result for each candidate's index, the finalists' from a second, interleaved round; and the reference's time, None
        where it has none.
    """
    results: dict[int, Measured | Failed] = {}
    # Configs that compile to the same binary are one candidate: the first of them.
    first_of: dict[Any, int] = {}
    twins: list[tuple[Candidate, int]] = []
    waiting, lock = iter(built), threading.Lock()

    def screen_all(child: Child) -> None:
        while True:
            with lock:
                candidate, item = next(waiting, (None, None))
                best = min((r.timing.latency for r in results.values() if isinstance(r, Measured)), default=None)
                if candidate is None or item is None:
                    return
                first = first_of.setdefault((item.digest, item.params, item.out_idx), candidate.index)
                if first != candidate.index:
                    twins.append((candidate, first))
                    continue
            limit = None if early_stop_factor is None or best is None else best * early_stop_factor
            result = screen(child, workload, candidate, item, limit)
            progress(candidate, result.timing if isinstance(result, Measured) else result)
            with lock:
                results[candidate.index] = result

    if len(children) == 1:
        screen_all(children[0])
    else:
        with ThreadPoolExecutor(len(children)) as pool:
            list(pool.map(screen_all, children))
    decision = decide(workload, results, children[0], journal=_Callbacks(progress, again))
    results = decision.results
    for candidate, first in twins:
        outcome = results[first]
        progress(candidate, outcome if isinstance(outcome, Failed) else outcome.timing)
        results[candidate.index] = outcome if isinstance(outcome, Failed) else replace(outcome, candidate=candidate)
    return results, decision.reference


@dataclass(frozen=True)
class _Callbacks:
    """A log that tells two functions of results, and nobody of the rest."""

    progress: Callable[[Candidate, Timing | Failed], None]
    again: Callable[[Candidate, Timing], None] | None

    def say(self, text: str) -> None:
        pass

    def write(self, text: str) -> None:
        pass

    def measured(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        self.progress(candidate, outcome)

    def timed_again(self, candidate: Candidate, timing: Timing) -> None:
        if self.again is not None:
            self.again(candidate, timing)


def merge_results(
    outcomes: Sequence[Built | Failed], measured: Mapping[int, Measured | Failed]
) -> list[Measured | Failed]:
    """One result a config, in order: what compiling or measuring said of it."""
    return [outcome if isinstance(outcome, Failed) else measured[index] for index, outcome in enumerate(outcomes)]
