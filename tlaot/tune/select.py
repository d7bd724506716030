"""Choose the winner of a workload, or say why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..errors import TuningError
from .child import Failed
from .measure import Measured
from .plan import Workload, counted
from .schedule import Outcome
from .search import Skipped
from .timing import Timing

__all__ = ["default_timing", "select_winner"]


def select_winner(workload: Workload, outcomes: Sequence[Outcome], winner_index: int | None, log: Path) -> Measured:
    """The candidate that was decided for.

    Args:
        workload: For the message.
        outcomes: One a config, in order.
        winner_index: Of the decision.
        log: For the message.

    Raises:
        TuningError: No candidate is left; the message lists every reason by count.
    """
    winner = None if winner_index is None else outcomes[winner_index]
    if isinstance(winner, Measured):
        return winner
    raise TuningError(
        workload.label,
        f"none of {counted(len(outcomes), 'candidate')} can be packaged:\n{_reasons(outcomes)}",
        f"{log} has each failure in full.",
    )


def default_timing(outcomes: Sequence[Outcome]) -> Timing | None:
    """The time of the spec's first config, None where it failed or was not tried."""
    first = outcomes[0]
    return first.timing if isinstance(first, Measured) else None


def _reasons(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(_reason(outcome) for outcome in outcomes if not isinstance(outcome, Measured))
    return "\n".join(f"  {count} x {reason}" for reason, count in counts.most_common())


def _reason(outcome: Failed | Skipped) -> str:
    return f"{outcome.stage}: {outcome.reason}" if isinstance(outcome, Failed) else f"not tried: {outcome.reason}"
