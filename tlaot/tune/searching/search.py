"""Which candidate to try next, over all shapes of a kernel entry, and when to stop.

A search is asked for candidates, and told what became of them, in any order and with many of them under way. It starts
nothing itself. Every candidate is either tried or passed over with a reason.

==============  ========================================================================================================
``exhaustive``  every candidate; what was fast at the nearest shapes first
``guided``      a few shapes in full; of the others, what could still win by that evidence (``guided.py``)
``optuna``      a budget spent by Optuna's TPE sampler (``optimiser.py``)
``auto``        the first where it is affordable, else the one that suits the kernel's shapes and space
==============  ========================================================================================================
"""

from __future__ import annotations

import importlib.util
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import BuildError, SpecError
from ..children.child import Failed
from ..measuring.timing import Timing
from ..specs.plan import Candidate, Workload, canonical, counted
from ..specs.spec import KernelSpec
from .nearby import distance, place_shapes

__all__ = ["Exhaustive", "Search", "Skipped", "choose_search", "make_search"]

# Up to this many candidates of a kernel entry, over all its shapes, all are tried.
EXHAUSTIVE_UP_TO = 256
# With at least so many shapes, and at most so many configs each, shapes can tell of one another.
GUIDED_FROM_SHAPES = 4
GUIDED_UP_TO_CONFIGS = 512
# A few shapes with so many candidates in all are still tried in full: with 16 cores that is about three minutes of nvcc.
AFFORDABLE = 1024

_NEIGHBOURS = 3
# Added to a shape's distance in octaves, so that one a hair away does not silence all others.
_SOFTENING = 0.5
# A config that failed at a neighbour comes after all that worked: e^3 times as slow.
_FAILED = 3.0
# The order of a workload's configs is made anew when this much more is known.
_ANEW = 1.25
_TINY = 1e-9  # ms


@dataclass(frozen=True)
class Skipped:
    """A candidate that was not tried, and why."""

    candidate: Candidate
    reason: str


class Search(ABC):
    """Chooses among the candidates of one kernel entry and target; used from one thread.

    Args:
        workloads: The shapes.
        note: How the search was chosen; a line for the log.
        clock: Seconds.
    """

    def __init__(
        self, workloads: Sequence[Workload], note: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.workloads = tuple(workloads)
        self.note = note
        self.trials: int | None = workloads[0].kernel.budget.trials if workloads else None
        self.seconds: float | None = workloads[0].kernel.budget.seconds if workloads else None
        self.outcomes: list[dict[int, Timing | Failed]] = [{} for _ in workloads]
        self.under_way: list[set[int]] = [set() for _ in workloads]
        self._clock = clock
        self._began: float | None = None
        self._candidates = [workload.candidates() for workload in workloads]
        # Dicts keep the spec's order and forget in constant time.
        self.left: list[dict[int, None]] = [dict.fromkeys(range(len(c))) for c in self._candidates]
        self._positions = {workload.path: position for position, workload in enumerate(workloads)}
        self._skipped: list[Skipped] = []
        self._remembered = 0

    def ask(self) -> Candidate | None:
        """The next candidate to try; None where results of those under way are needed first, or nothing is left.

        With nothing under way it is None only when the search is :attr:`finished`.
        """
        if self._began is None:
            self._began = self._clock()
        spent = self._spent()
        if spent is not None:
            self._end(spent)
        choice = self.choose() if spent is None else self._first_working()
        if choice is None:
            return None
        position, index = choice
        del self.left[position][index]
        self.under_way[position].add(index)
        return self._candidates[position][index]

    def remember(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        """What an earlier tuning found of a candidate: evidence that takes nothing from the budget; before the first :meth:`ask`."""
        self._remembered += 1
        self.tell(candidate, outcome)

    def tell(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        """What became of a candidate.

        One that was not asked for counts as evidence and as a trial, and is not asked for. Telling again replaces what was told.
        """
        position = self.position(candidate)
        self.left[position].pop(candidate.index, None)
        self.under_way[position].discard(candidate.index)
        self.outcomes[position][candidate.index] = outcome

    @property
    def finished(self) -> bool:
        """Whether every candidate was tried or passed over."""
        return not any(self.left) and not any(self.under_way)

    @property
    def exhausted(self) -> bool:
        """Whether it has nothing more to ask for, whatever becomes of those under way."""
        return not any(self.left)

    def is_closed(self, workload: Workload) -> bool:
        """Whether every candidate of a workload was tried or passed over."""
        position = self._positions[workload.path]
        return not self.left[position] and not self.under_way[position]

    @property
    def count_skipped(self) -> int:
        """How many candidates were passed over until now."""
        return len(self._skipped)

    def skipped(self) -> list[Skipped]:
        """The candidates that were passed over until now."""
        return list(self._skipped)

    @abstractmethod
    def choose(self) -> tuple[int, int] | None:
        """Position of a workload and index of one of its configs that are left; None to wait, never with nothing under way."""

    def skip(self, position: int, index: int, reason: str) -> None:
        del self.left[position][index]
        self._skipped.append(Skipped(self._candidates[position][index], reason))

    def position(self, candidate: Candidate) -> int:
        return self._positions[candidate.workload.path]

    def latencies(self, position: int) -> dict[int, float]:
        """The times in ms of the configs that worked."""
        told = self.outcomes[position].items()
        return {index: outcome.latency for index, outcome in told if isinstance(outcome, Timing)}

    @property
    def limited(self) -> bool:
        return self.trials is not None or self.seconds is not None

    def past(self, share: float) -> bool:
        """Whether so much of a budget in seconds is spent."""
        return (
            self.seconds is not None and self._began is not None and self._clock() >= self._began + share * self.seconds
        )

    def tried(self, position: int) -> int:
        return len(self.outcomes[position]) + len(self.under_way[position])

    def _spent(self) -> str | None:
        if (
            self.trials is not None
            and sum(map(self.tried, range(len(self.workloads)))) - self._remembered >= self.trials
        ):
            return f"the budget of {self.trials} trials is spent"
        return f"the budget of {self.seconds:g} s is spent" if self.past(1.0) else None

    def _end(self, reason: str) -> None:
        """Pass over what is left of the shapes for which something works."""
        for position, left in enumerate(self.left):
            if left and self.latencies(position):
                for index in list(left):
                    self.skip(position, index, reason)

    def _first_working(self) -> tuple[int, int] | None:
        """A budget leaves no shape without a kernel: one at a time is tried there until something works."""
        bare = [p for p in range(len(self.workloads)) if self.left[p] and not self.under_way[p]]
        return (bare[0], next(iter(self.left[bare[0]]))) if bare else None


class Exhaustive(Search):
    """Every candidate.

    Shape after shape, each next one the nearest to those before, its configs by how fast they were at the nearest shapes:
    the first ones tried are good, so that early stop has something to stop by. With a budget all shapes get on alike, and
    where nothing is known configs come in a random order, the spec's first one leading.
    """

    def __init__(
        self, workloads: Sequence[Workload], note: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(workloads, note, clock)
        self._places = place_shapes([workload.values for workload in workloads])
        self._alike = [number_by_name(workload) for workload in workloads]
        self._current: int | None = None
        # What is still to come of each workload, the next one last; and how much was known when it was put in order.
        self._coming = [list(reversed(left)) for left in self.left]
        self._known = [0] * len(self.left)
        if self.limited:
            for position, coming in enumerate(self._coming):
                random.Random(position).shuffle(coming)
                coming.sort(key=lambda index: index == 0)

    def choose(self) -> tuple[int, int] | None:
        position = self._choose_workload()
        if position is None:
            return None
        self._put_in_order(position)
        while (index := self._coming[position].pop()) not in self.left[position]:
            pass
        return position, index

    def _put_in_order(self, position: int) -> None:
        known = sum(len(told) for other, told in enumerate(self.outcomes) if other != position)
        if known <= self._known[position] * _ANEW:
            return
        self._known[position] = known
        guesses = self._guess(position)
        middle = sorted(guesses.values())[len(guesses) // 2] if guesses else 0.0
        # Stable, and the last one is the next: of equal guesses the order stays.
        self._coming[position].sort(key=lambda index: -guesses.get(index, middle))

    def _choose_workload(self) -> int | None:
        unfinished = [position for position, left in enumerate(self.left) if left]
        if not unfinished:
            return None
        if self.limited:
            return min(unfinished, key=self.tried)
        if self._current not in unfinished:
            begun = [position for position in range(len(self.workloads)) if self.tried(position)]
            self._current = min(unfinished, key=lambda p: self._nearness(p, begun))
        return self._current

    def _nearness(self, position: int, others: Sequence[int]) -> float:
        return min((distance(self._places[position], self._places[other]) for other in others), default=0.0)

    def _guess(self, position: int) -> dict[int, float]:
        """How much slower than the best each config is expected to be, in logarithms, from the nearest shapes that know it."""
        told = [other for other in range(len(self.workloads)) if other != position and self.latencies(other)]
        near = sorted(told, key=lambda other: distance(self._places[position], self._places[other]))[:_NEIGHBOURS]
        sums: dict[int, tuple[float, float]] = {}
        for other in near:
            weight = (distance(self._places[position], self._places[other]) + _SOFTENING) ** -2
            best = max(min(self.latencies(other).values()), _TINY)
            for index, name in enumerate(self._alike[position]):
                outcome = self.outcomes[other].get(self._alike[other].get(name, -1))
                if outcome is None:
                    continue
                slower = math.log(max(outcome.latency, _TINY) / best) if isinstance(outcome, Timing) else _FAILED
                total, weights = sums.get(index, (0.0, 0.0))
                sums[index] = total + weight * slower, weights + weight
        return {index: total / weights for index, (total, weights) in sums.items()}


def number_by_name(workload: Workload) -> dict[str, int]:
    """Configs of different shapes are the same where their items are; equal ones of one shape count once."""
    names: dict[str, int] = {}
    for index, config in enumerate(workload.configs):
        names.setdefault(canonical(config), index)
    return names


def choose_search(kernel: KernelSpec, workloads: Sequence[Workload]) -> tuple[str, str]:
    """The search that serves a kernel entry, and why: what its spec names, or the one that suits its shapes and space.

    Returns:
        ``"exhaustive"``, ``"guided"`` or ``"optuna"``, and a line for the log.
    """
    sizes = [len(workload.configs) for workload in workloads]
    total, largest = sum(sizes), max(sizes, default=0)
    trials = kernel.budget.trials
    about = f"{counted(total, 'candidate')} of {counted(len(sizes), 'shape')}"
    if kernel.search != "auto":
        return kernel.search, f"{about}, search = {kernel.search!r}"
    if total <= EXHAUSTIVE_UP_TO and (trials is None or trials >= total):
        return "exhaustive", f"{about}, all are tried"
    if len(sizes) >= GUIDED_FROM_SHAPES and largest <= GUIDED_UP_TO_CONFIGS:
        return "guided", f"{about}, guided by a few shapes in full"
    if total <= AFFORDABLE and (trials is None or trials >= total):
        return "exhaustive", f"{about}, all are tried"
    if importlib.util.find_spec("optuna") is not None:
        return "optuna", f"{about}, chosen by Optuna"
    return "exhaustive", f'{about}, in order; with "tlaot[search]" installed Optuna would choose among them'


def make_search(
    kernel: KernelSpec, workloads: Sequence[Workload], clock: Callable[[], float] = time.monotonic
) -> Search:
    """The search of one kernel entry and target, over all its shapes.

    Args:
        kernel: The entry; its ``search`` and ``budget`` count.
        workloads: Its workloads, in the spec's order.
        clock: Seconds, for ``budget.seconds``, which run from the first ask.

    Raises:
        SpecError: The budget has fewer trials than there are shapes.
        BuildError: ``search = "optuna"``, and Optuna is not installed.
    """
    trials = kernel.budget.trials
    if trials is not None and trials < len(workloads):
        raise SpecError(
            f"{kernel.where} budget trials",
            f"is less than one for each of {len(workloads)} shapes, got {trials}",
            "Raise it, or declare fewer shapes.",
        )
    name, note = choose_search(kernel, workloads)
    if name == "guided":
        from .guided import Guided

        return Guided(workloads, note, clock)
    if name == "optuna":
        if importlib.util.find_spec("optuna") is None:
            raise BuildError(
                f"{kernel.where} search",
                "optuna is not installed in the build environment",
                'Add "tlaot[search]" to [build-system] requires (or pip install optuna), or choose search = "guided".',
            )
        from .optimiser import Optimiser

        return Optimiser(workloads, note, clock)
    return Exhaustive(workloads, note, clock)
