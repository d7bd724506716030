"""Check and time candidates, one at a time, in a killable child that has the device to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..manifest import param_to_json
from .child import Child, Failed
from .compile import EXECUTABLE, Built
from .plan import Candidate, Workload, canonical
from .timing import Timing

__all__ = ["Measured", "measure_workload"]

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
    built: Sequence[tuple[Candidate, Built]],
    child: Child,
    progress: Callable[[Candidate, Timing | Failed], None],
) -> tuple[list[Measured | Failed], Timing | None]:
    """Measure the candidates of one workload.

    Args:
        workload: The workload.
        built: Its candidates that compiled.
        child: The measuring child of the target's device.
        progress: Called with each result as it comes.

    Returns:
        One result a candidate, in order, the finalists' from a second, interleaved round; and the reference's time, None
        where it has none.
    """
    results: list[Measured | Failed] = []
    for candidate, item in built:
        request = {**_workload_request(workload, item), "op": "measure", "candidate": _candidate_request(item)}
        timing = _timing(child.request(request, workload.kernel.profile.timeout))
        progress(candidate, timing)
        results.append(timing if isinstance(timing, Failed) else Measured(candidate, item, timing))
    _time_finalists(workload, results, child)
    return results, _time_reference(workload, results, child)


def _time_finalists(workload: Workload, results: list[Measured | Failed], child: Child) -> None:
    """Replace the timings of the fastest candidates by ones made in turns, so that drift of the machine hits all alike."""
    measured = [(index, result) for index, result in enumerate(results) if isinstance(result, Measured)]
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
        results[index] = Measured(result.candidate, result.built, best)


def _time_reference(workload: Workload, results: Sequence[Measured | Failed], child: Child) -> Timing | None:
    winner = next((result for result in results if isinstance(result, Measured)), None)
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
        "reference": kernel.reference,
        "check": kernel.check,
        "rtol": kernel.rtol,
        "atol": kernel.atol,
        "max_mismatched_ratio": kernel.max_mismatched_ratio,
        "profile": asdict(kernel.profile),
        "where": kernel.where,
    }


def _candidate_request(built: Built) -> Mapping[str, Any]:
    return {"path": str(built.folder / EXECUTABLE), "digest": asdict(built.digest)}
