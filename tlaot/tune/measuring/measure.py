"""Check and time candidates, one at a time, in a killable child that has the device to itself.

``screen`` says of each candidate whether it is right and about how fast it is; it is short, and others may compile meanwhile.
:func:`~tlaot.tune.measuring.decide.decide` says which is the best.
"""

from __future__ import annotations

from collections.abc import Callable

from ..children.child import Child, Failed
from ..compiling.compile import Built
from ..specs.plan import Candidate, Workload
from .asking import Measured, ask, candidate_request, prepare, read_timing, wake, workload_request
from .decide import Decision, Log, decide
from .device_lock import exclusive

__all__ = ["Decision", "Log", "Measured", "decide", "prepare_workload", "screen", "wake"]


def prepare_workload(child: Child, workload: Workload, built: Built) -> None:
    """Have a child make a workload's inputs and reference before a candidate needs them: a mistake in them shows at once.

    Raises:
        SpecError: The author's inputs or reference raised.
    """
    if not isinstance(wake(child), Failed):
        prepare(child, workload_request(workload, built), workload.kernel.profile.timeout)


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

    Raises:
        SpecError: The author's inputs or reference raised: no candidate of the workload can be checked.
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
