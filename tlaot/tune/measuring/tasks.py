"""The pieces of work that are done where a device is: plain functions of a measuring child, a log, and plain data.

An executor calls them (``executors/seam.py``), here or on another host, and carries their arguments and results there and back.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..children.child import Child, Failed, Lost
from ..compiling.compile import Built
from ..specs.plan import Candidate, Workload
from .asking import Measured
from .asking import wake as wake_child
from .decide import Decision, Log
from .decide import decide as decide_workload
from .measure import prepare_workload
from .measure import screen as screen_candidate
from .timing import Timing

__all__ = ["decide", "prepare", "screen", "wake"]


def wake(child: Child, log: Log) -> None:
    """Have the child import what its device takes."""
    wake_child(child)  # one that does not wake says why at its first candidate


def prepare(child: Child, log: Log, workload: Workload, built: Built) -> None:
    """Make a workload's inputs and reference before a candidate needs them: a mistake in them shows at once.

    Raises:
        SpecError: The author's inputs or reference raised.
    """
    prepare_workload(child, workload, built)


def screen(child: Child, log: Log, candidate: Candidate, built: Built, stop_above: float | None) -> Timing | Failed:
    """Check a candidate and time it shortly, see :func:`~tlaot.tune.measuring.measure.screen`.

    Raises:
        SpecError: The author's inputs or reference raised.
        Lost: The child was killed from outside.
    """
    found = screen_candidate(child, candidate.workload, candidate, built, stop_above, log.say)
    if not isinstance(found, Failed):
        return found.timing
    if child.lost:
        raise Lost(found)
    return found


def decide(child: Child, log: Log, workload: Workload, results: Mapping[int, Measured | Failed]) -> Decision:
    """Tell those near the best of a workload apart, see :func:`~tlaot.tune.measuring.decide.decide`.

    Raises:
        SpecError: The author's inputs or reference raised.
    """
    return decide_workload(workload, results, child, journal=log)
