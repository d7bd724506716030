"""What is decided of each workload: the same whatever was decided first, and on however many devices.

A device says which candidates of a workload are as good as the best. Which of these wins is settled here, in the spec's order of the workloads: the
config that earlier shapes of the kernel chose. So the winners are a function of what was measured, and not of when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..children.child import Failed
from ..measuring.measure import Decision, Measured
from ..specs.plan import Candidate, Workload, canonical
from .search import Skipped

__all__ = ["Alike", "Outcome", "Tuned", "Verdicts"]

# What became of a candidate.
Outcome = Measured | Failed | Skipped


@dataclass(frozen=True)
class Tuned:
    """What a workload's tuning found.

    Attributes:
        workload: The workload.
        outcomes: One a config, in order.
        decision: The winner among them, the reference's time, and whether the measurement can be trusted.
    """

    workload: Workload
    outcomes: tuple[Outcome, ...]
    decision: Decision


class Alike:
    """Candidates of a workload whose binaries are the same: one is measured, and its outcome is that of all.

    The first of them in the spec's order stands for them, and not the one whose compiler was the first to be done.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        self._others: dict[int, list[int]] = {}

    def add(self, measured: int, twin: int) -> None:
        """A candidate has the binary of another one, which is or will be measured."""
        self._others.setdefault(measured, []).append(twin)

    def twins(self, measured: int) -> list[Candidate]:
        """Those that have a candidate's binary, too."""
        return [self.candidates[index] for index in self._others.get(measured, ())]

    def to_decide(self, results: Mapping[int, Measured | Failed]) -> dict[int, Measured | Failed]:
        """Results by the candidates that were measured, as results by those that stand for them."""
        found: dict[int, Measured | Failed] = {}
        for index, result in results.items():
            first = min(self._group(index))
            found[first] = self._of(first, result)
        return dict(sorted(found.items()))

    def of_all(self, results: Mapping[int, Measured | Failed]) -> dict[int, Measured | Failed]:
        """Results by those that stand for others, as results of all."""
        groups = {min(group): group for group in map(self._group, self._others)}
        return {
            index: self._of(index, result) for first, result in results.items() for index in groups.get(first, [first])
        }

    def configs_of(self, first: int) -> list[str]:
        """The canonical configs of the candidates that one stands for."""
        groups = {min(group): group for group in map(self._group, self._others)}
        return [canonical(dict(self.candidates[index].config)) for index in groups.get(first, [first])]

    def _group(self, measured: int) -> list[int]:
        return [measured, *self._others.get(measured, ())]

    def _of(self, index: int, result: Measured | Failed) -> Measured | Failed:
        if isinstance(result, Failed) or result.candidate.index == index:
            return result
        return replace(result, candidate=self.candidates[index])


class Verdicts:
    """Settles who wins, workload after workload in the spec's order, as soon as those before are decided.

    Args:
        workloads: The workloads in that order.
        alike: Which candidates of each are the same, by path.
        decided: Called with each workload as soon as its winner is known.
    """

    def __init__(
        self, workloads: Sequence[Workload], alike: Mapping[str, Alike], decided: Callable[[Tuned], None]
    ) -> None:
        self._alike = alike
        self._decided = decided
        # By kernel: what is to be settled, the next one last; configs that won, the first one first.
        self._coming: dict[str, list[Workload]] = {}
        for workload in reversed(workloads):
            self._coming.setdefault(workload.kernel.name, []).append(workload)
        self._chosen: dict[str, list[Mapping[str, Any]]] = {name: [] for name in self._coming}
        self._known: dict[str, tuple[Decision, Mapping[int, Skipped]]] = {}

    def add(self, workload: Workload, decision: Decision, skipped: Mapping[int, Skipped]) -> None:
        """Take a workload's decision, and which of its candidates were not tried."""
        self._known[workload.path] = decision, skipped
        coming = self._coming[workload.kernel.name]
        while coming and coming[-1].path in self._known:
            following = coming.pop()
            self._decided(self._settle(following, *self._known.pop(following.path)))

    @property
    def complete(self) -> bool:
        return not any(self._coming.values())

    def _settle(self, workload: Workload, decision: Decision, skipped: Mapping[int, Skipped]) -> Tuned:
        alike, chosen = self._alike[workload.path], self._chosen[workload.kernel.name]
        decision = decision.prefer(chosen, alike.configs_of)
        if decision.winner_index is not None:
            chosen.append(workload.configs[decision.winner_index])
        outcomes: dict[int, Outcome] = {**skipped, **alike.of_all(decision.results)}
        return Tuned(workload, tuple(outcomes[index] for index in range(len(workload.configs))), decision)
