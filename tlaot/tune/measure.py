"""Check and time candidates, one at a time, in a killable child that has the device to itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..manifest import param_to_json
from .child import Child, Failed
from .compile import EXECUTABLE, Built
from .plan import Candidate, Workload, canonical
from .timing import Timing

__all__ = ["Measured", "measure_workload", "merge_results"]

# Candidates this close to the fastest are timed again, in turns: one pass cannot tell them apart.
_FINALIST_MARGIN = 1.15
_MOST_FINALISTS = 4
_ROUNDS = 5


@dataclass(frozen=True)
class Measured:
    """A candidate that compiled, was right and was timed; ``timing`` is the last one made of it."""

    candidate: Candidate
    built: Built
    timing: Timing


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

    def screen(child: Child) -> None:
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
            request = {**_workload_request(workload, item), "op": "measure", "candidate": _candidate_request(item)}
            if early_stop_factor is not None and best is not None:
                request["stop_above"] = best * early_stop_factor
            timing = _timing(child.request(request, workload.kernel.profile.timeout))
            progress(candidate, timing)
            with lock:
                results[candidate.index] = timing if isinstance(timing, Failed) else Measured(candidate, item, timing)

    if len(children) == 1:
        screen(children[0])
    else:
        with ThreadPoolExecutor(len(children)) as pool:
            list(pool.map(screen, children))
    _time_finalists(workload, results, children[0], again or (lambda candidate, timing: None))
    _refuse_nondeterministic(workload, results, children[0], progress)
    for candidate, first in twins:
        outcome = results[first]
        progress(candidate, outcome if isinstance(outcome, Failed) else outcome.timing)
        results[candidate.index] = outcome if isinstance(outcome, Failed) else replace(outcome, candidate=candidate)
    return results, _time_reference(workload, results, children[0])


def merge_results(
    outcomes: Sequence[Built | Failed], measured: Mapping[int, Measured | Failed]
) -> list[Measured | Failed]:
    """One result a config, in order: what compiling or measuring said of it."""
    return [outcome if isinstance(outcome, Failed) else measured[index] for index, outcome in enumerate(outcomes)]


def _time_finalists(
    workload: Workload,
    results: dict[int, Measured | Failed],
    child: Child,
    again: Callable[[Candidate, Timing], None],
) -> None:
    """Replace the timings of the fastest candidates by ones made in turns, so that drift of the machine hits all alike."""
    measured = [(index, result) for index, result in sorted(results.items()) if isinstance(result, Measured)]
    if len(measured) < 2:
        return
    measured.sort(key=lambda item: item[1].timing.latency)
    limit = measured[0][1].timing.latency * _FINALIST_MARGIN
    finalists = [item for item in measured[:_MOST_FINALISTS] if item[1].timing.latency <= limit]
    if len(finalists) < 2:
        return
    request = {
        **_workload_request(workload, finalists[0][1].built),
        "op": "finals",
        "rounds": _ROUNDS,
        "candidates": [_candidate_request(result.built) for _, result in finalists],
    }
    answer = child.request(request, workload.kernel.profile.timeout * len(finalists))
    if isinstance(answer, Failed):
        return  # the single timings stand
    for (index, result), kept in zip(finalists, answer["timings"], strict=True):
        best = min((Timing(**timing) for timing in kept), key=lambda timing: timing.latency)
        again(result.candidate, best)
        results[index] = Measured(result.candidate, result.built, best)


def _refuse_nondeterministic(
    workload: Workload,
    results: dict[int, Measured | Failed],
    child: Child,
    progress: Callable[[Candidate, Timing | Failed], None],
) -> None:
    """Run the fastest candidate twice more and compare bit by bit, until one gives the same twice: a race is often right once."""
    if not (workload.kernel.check and workload.kernel.deterministic):
        return
    while measured := [result for result in results.values() if isinstance(result, Measured)]:
        best = min(measured, key=lambda result: (result.timing.latency, result.candidate.index))
        request = {
            **_workload_request(workload, best.built),
            "op": "check",
            "candidate": _candidate_request(best.built),
            "deterministic": True,
        }
        answer = child.request(request, workload.kernel.profile.timeout)
        if not isinstance(answer, Failed):
            return
        results[best.candidate.index] = answer
        progress(best.candidate, answer)


def _time_reference(workload: Workload, results: Mapping[int, Measured | Failed], child: Child) -> Timing | None:
    winner = next((result for result in results.values() if isinstance(result, Measured)), None)
    if winner is None or workload.kernel.reference is None:
        return None
    request = {**_workload_request(workload, winner.built), "op": "reference"}
    timing = _timing(child.request(request, workload.kernel.profile.timeout))
    return None if isinstance(timing, Failed) else timing


def _timing(answer: dict[str, Any] | Failed) -> Timing | Failed:
    if isinstance(answer, Failed):
        return answer
    return Timing(**answer) if answer else Failed("time", "there is nothing to time")


def _workload_request(workload: Workload, built: Built) -> dict[str, Any]:
    kernel = workload.kernel
    params = [param_to_json(param) for param in built.params]
    return {
        # Candidates of one workload share their inputs and expected outputs as long as their signature is the same.
        "key": canonical([workload.path, params, list(built.out_idx)]),
        "params": params,
        "out_idx": list(built.out_idx),
        "shape": dict(workload.shape),
        "inputs": kernel.inputs,
        "inputs_style": kernel.inputs_style,
        "inputs_file": kernel.inputs_file,
        "supply": dict(kernel.supply),
        "reference": kernel.reference,
        "manual_check": kernel.manual_check,
        "check": kernel.check,
        "rtol": kernel.rtol,
        "atol": kernel.atol,
        "max_mismatched_ratio": kernel.max_mismatched_ratio,
        "profile": asdict(kernel.profile),
        "where": kernel.where,
    }


def _candidate_request(built: Built) -> Mapping[str, Any]:
    return {"path": str(built.folder / EXECUTABLE), "digest": asdict(built.digest)}


@dataclass(frozen=True)
class Decision:
    results: Mapping[int, Any]
    winner_index: int | None
    reference: Timing | None
    trusted: bool = True
    notes: tuple[str, ...] = ()


def screen(child, workload, candidate, built, stop_above=None):
    request = {**_workload_request(workload, built), "op": "measure", "candidate": _candidate_request(built)}
    if stop_above is not None:
        request["stop_above"] = stop_above
    timing = _timing(child.request(request, workload.kernel.profile.timeout))
    return timing if isinstance(timing, Failed) else Measured(candidate, built, timing)


def decide(workload, results, child, *, preferred=(), journal):
    results = dict(results)
    _time_finalists(workload, results, child, journal.timed_again)
    _refuse_nondeterministic(workload, results, child, journal.measured)
    measured = [r for r in results.values() if isinstance(r, Measured)]
    best = min(measured, key=lambda r: r.timing.latency).candidate.index if measured else None
    return Decision(results, best, _time_reference(workload, results, child))
