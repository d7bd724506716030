"""Choose the winner of a workload, or say why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import TuningError
from .child import Failed
from .measure import Measured
from .plan import Workload
from .timing import Timing

__all__ = ["default_timing", "select_winner"]


def select_winner(workload: Workload, results: Sequence[Measured | Failed]) -> Measured:
    """The fastest candidate; of equal ones, the first in the spec's order.

    Args:
        workload: For the message.
        results: One a config, in order.

    Raises:
        TuningError: No candidate is left; the message lists every reason by count.
    """
    measured = [result for result in results if isinstance(result, Measured)]
    if measured:
        return min(measured, key=lambda result: (result.timing.latency, result.candidate.index))
    raise TuningError(
        workload.label,
        f"none of {len(results)} candidates can be packaged:\n{_reasons(results)}",
        "autotuner.log in the build folder has each failure in full.",
    )


def default_timing(results: Sequence[Measured | Failed]) -> Timing | None:
    """The time of the spec's first config, None where it failed."""
    first = results[0]
    return first.timing if isinstance(first, Measured) else None


def _reasons(results: Sequence[Measured | Failed]) -> str:
    counts = Counter(f"{result.stage}: {result.reason}" for result in results if isinstance(result, Failed))
    return "\n".join(f"  {count} x {reason}" for reason, count in counts.most_common())
