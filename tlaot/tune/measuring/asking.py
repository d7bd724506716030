"""What a measuring child is asked, and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import SpecError
from ...manifest import param_to_json
from ..children.child import Child, Failed
from ..compiling.compile import EXECUTABLE, Built
from ..specs.dynamic import bind_params
from ..specs.plan import Candidate, Workload, canonical
from .timing import Timing

__all__ = [
    "Awake",
    "Measured",
    "ask",
    "candidate_request",
    "measuring_processes",
    "prepare",
    "read_timing",
    "wake",
    "workload_request",
]

# Starting a child imports what the device takes, on a machine that may be busy compiling.
_START_TIMEOUT = 180.0

# Several devices are asked at the same time, each by a thread.
_guard = Lock()
# A reference may fail once because memory was short for a moment.
_MOST_ATTEMPTS = 2
# The process of each child that woke.
_processes: WeakKeyDictionary[Child, int] = WeakKeyDictionary()
_unprepared: WeakKeyDictionary[Child, tuple[str, int, Failed]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Measured:
    """A candidate that compiled, was right and was timed; ``timing`` is the last one made of it."""

    candidate: Candidate
    built: Built
    timing: Timing


@dataclass(frozen=True)
class Awake:
    """A child that has imported what its device takes: the device, and the process."""

    device: str
    pid: int


def wake(child: Child) -> Awake | Failed:
    """Have the child import what its device takes, which is no candidate's time, and say which device that is."""
    answer = ask(child, {"op": "wake"}, _START_TIMEOUT)
    if isinstance(answer, Failed):
        answer = ask(child, {"op": "wake"}, _START_TIMEOUT)  # the last candidate may have left it dying
    if isinstance(answer, Failed):
        return answer
    with _guard:
        _processes[child] = answer["pid"]
    return Awake(answer["device"], answer["pid"])


def measuring_processes() -> frozenset[int]:
    """The processes that measure for this one, one a device."""
    with _guard:
        return frozenset(_processes.values())


def prepare(child: Child, request: Mapping[str, Any], timeout: float) -> Failed | None:
    """Make the workload's inputs and run its reference, unless this child has done so; None is success.

    A child that it crashed or hung knows nothing of that; this remembers, so that not every candidate of a workload waits for it.

    Raises:
        SpecError: The author's inputs or reference raised: no candidate of the workload can be checked.
    """
    key, count, failure = _unprepared.get(child, ("", 0, Failed("", "")))
    if key == request["key"] and count >= _MOST_ATTEMPTS:
        return failure
    answer = ask(child, {**request, "op": "prepare"}, timeout)
    if not isinstance(answer, Failed):
        _unprepared.pop(child, None)
        return None
    if child.lost:
        return answer  # which says nothing of the workload
    _unprepared[child] = request["key"], count + 1 if key == request["key"] else 1, answer
    return answer


def ask(child: Child, request: Mapping[str, Any], timeout: float) -> dict[str, Any] | Failed:
    """The child's answer.

    Raises:
        SpecError: The author's inputs or reference raised, whatever the candidate.
    """
    answer = child.request(request, timeout)
    if not isinstance(answer, Failed) and "refused" in answer:
        raise SpecError(**answer["refused"])
    if not isinstance(answer, Failed) and "spoiled" in answer:
        child.kill()  # memory ran out or the device's context is lost: nothing else may be measured in it
        return Failed(**answer["spoiled"])
    return answer


def read_timing(answer: dict[str, Any] | Failed) -> Timing | Failed:
    if isinstance(answer, Failed):
        return answer
    return Timing(**answer) if answer else Failed("time", "there is nothing to time")


def workload_request(workload: Workload, built: Built) -> dict[str, Any]:
    kernel = workload.kernel
    params = [param_to_json(param) for param in bind_params(built.params, workload.sizes, kernel.where)]
    return {
        # Candidates of one workload share their inputs and expected outputs as long as their signature is the same.
        "key": canonical([workload.path, params, list(built.out_idx)]),
        "params": params,
        "out_idx": list(built.out_idx),
        "shape": dict(workload.values),
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


def candidate_request(built: Built) -> Mapping[str, Any]:
    return {"path": str(built.folder / EXECUTABLE), "digest": asdict(built.digest)}
