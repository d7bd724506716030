"""Choose the winner of a workload, or say why there is none; choose the fewest binaries that serve several workloads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import TuningError
from ..children.child import Failed
from ..measuring.measure import Measured
from ..measuring.timing import Timing
from ..specs.plan import Workload, counted
from .cover import cover_cheaply
from .schedule import Outcome
from .search import Skipped

__all__ = ["at_most", "choose_fewest", "default_timing", "select_winner"]

# Fewer samples say nothing of their own spread.
_FEWEST_SAMPLES = 3


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


def choose_fewest(
    tunings: Sequence[tuple[Workload, Mapping[int, Timing], Mapping[int, str]]],
    max_slowdown: float,
    winners: Sequence[int],
) -> list[int]:
    """What each workload ships, so that together they ship the fewest distinct binaries.

    A candidate may take the place of a winner where its time, with what is uncertain of it, is within ``max_slowdown`` times
    the least time of the workload. Of choices with as few binaries the one with the least sum of slowdowns
    against the winners is taken, then the one with the lowest indexes; a winner whose binary ships anyhow stays the winner. Exact but for
    contrived cases, see :func:`~tlaot.tune.searching.cover.cover_cheaply`.

    Args:
        tunings: For each workload the times of its candidates by index, and the digests of their binaries by index; of
            each, those that are known. Equal digests are one binary, whichever workloads they are of.
        max_slowdown: 1.05: up to 5 % slower than the least time.
        winners: For each workload the index that was decided for; it may always ship.

    Returns:
        For each workload the index of the candidate that ships.
    """
    choices = []
    for number, ((_, timings, digests), winner) in enumerate(zip(tunings, winners, strict=True)):
        own = digests.get(winner, f"workload {number}")  # one that is not known is equal to no other
        limit = max_slowdown * min((timing.latency for timing in timings.values()), default=0.0)
        choices.append(_choices(timings, digests, limit, winner, own))
    taken = cover_cheaply(choices)
    orders = [choice[name][1] for choice, name in zip(choices, taken, strict=True)]
    return [order - 1 if order else winner for order, winner in zip(orders, winners, strict=True)]


def _choices(
    timings: Mapping[int, Timing], digests: Mapping[int, str], limit: float, winner: int, own: str
) -> dict[str, tuple[float, int]]:
    """What a workload may ship, by digest of the binary: the slowdown against the winner, and a number by which ties are broken.

    It is 0 for the winner, and a candidate's index + 1 for others.
    """
    best = timings.get(winner)
    found = {own: (1.0, 0)}
    for index, digest in sorted(digests.items()):
        timing = timings.get(index)
        if best is None or timing is None or at_most(timing) > limit or digest == own:
            continue
        # One that measured faster lost by what tells ties apart.
        found[digest] = min(found.get(digest, (math.inf, 0)), (max(1.0, timing.latency / best.latency), index + 1))
    return found


def at_most(timing: Timing) -> float:
    """The upper end of the 95 % interval of a median (McGill, Tukey and Larsen, "Variations of box plots", 1978)."""
    if timing.samples < _FEWEST_SAMPLES:
        return math.inf
    return timing.latency * (1 + 1.57 * timing.spread / math.sqrt(timing.samples))


def _reasons(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(_reason(outcome) for outcome in outcomes if not isinstance(outcome, Measured))
    return "\n".join(f"  {count} x {reason}" for reason, count in counts.most_common())


def _reason(outcome: Failed | Skipped) -> str:
    return f"{outcome.stage}: {outcome.reason}" if isinstance(outcome, Failed) else f"not tried: {outcome.reason}"
