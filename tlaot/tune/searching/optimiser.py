"""Large spaces: a budget of trials, spent where Optuna's TPE sampler expects fast configs.

One study a shape (Bergstra et al. 2011; multivariate as by Falkner et al. 2018, candidates under way as by "constant liar").
What was the fastest at the nearest shapes is tried first. A key's values are numbered in their order, and a combination that the
space does not have is refused.
"""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import optuna

from ..children.child import Failed
from ..measuring.timing import Timing
from ..specs.plan import Candidate, Workload, canonical
from .nearby import distance, place_shapes
from .search import Search, number_by_name

__all__ = ["Optimiser"]

# Without a budget, so many trials a shape.
TRIALS_A_SHAPE = 200
# After so many suggestions that are refused, what is left next to the last one is taken, of so many that are looked at.
_REFUSALS, _COMPARED = 3, 2000
_NEIGHBOURS = 3
# A failure is slower than anything; TPE only compares.
_FAILED = 1e6


class Optimiser(Search):
    """Trials in turn over the shapes; the spec's first config and the nearest shapes' fastest come before Optuna's own."""

    def __init__(
        self, workloads: Sequence[Workload], note: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(workloads, note, clock)
        if self.trials is None and self.seconds is None:
            self.trials = sum(min(TRIALS_A_SHAPE, len(workload.configs)) for workload in workloads)
        self._places = place_shapes([workload.values for workload in workloads])
        self._names = [number_by_name(workload) for workload in workloads]
        self._spaces = [_Space(workload, seed) for seed, workload in enumerate(workloads)]
        self._best: dict[int, tuple[float, int]] = {}

    def choose(self) -> tuple[int, int] | None:
        unfinished = [position for position, left in enumerate(self.left) if left]
        if not unfinished:
            return None
        position = min(unfinished, key=self.tried)
        index = self._first(position)
        return position, self._spaces[position].suggest(index, self.left[position])

    def tell(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        super().tell(candidate, outcome)
        position = self.position(candidate)
        self._spaces[position].learn(candidate.index, outcome)
        if isinstance(outcome, Timing):
            found = outcome.latency, candidate.index
            self._best[position] = min(self._best.get(position, found), found)

    def _first(self, position: int) -> int | None:
        """The spec's first config, with which the winner is compared, then what won nearby; None when they are tried."""
        if 0 in self.left[position]:
            return 0
        others = [other for other in self._best if other != position]
        for other in sorted(others, key=lambda o: distance(self._places[position], self._places[o]))[:_NEIGHBOURS]:
            won = self.workloads[other].configs[self._best[other][1]]
            index = self._names[position].get(canonical(won))
            if index in self.left[position]:
                return index
        return None


class _Space:
    """A workload's configs as Optuna sees them: a number for the place of each key's value among its values."""

    def __init__(self, workload: Workload, seed: int) -> None:
        keys = sorted({key for config in workload.configs for key in config})
        values = {key: _in_order([config.get(key) for config in workload.configs]) for key in keys}
        self._points = [
            {key: values[key][canonical(config.get(key))] for key in keys if len(values[key]) > 1}
            for config in workload.configs
        ]
        self._distributions: dict[str, Any] = {}
        for key in keys:
            if len(values[key]) > 1:
                self._distributions[key] = _distribution([config.get(key) for config in workload.configs], values[key])
        self._indexes: dict[tuple[int, ...], list[int]] = {}
        for index, point in enumerate(self._points):
            self._indexes.setdefault(tuple(point.values()), []).append(index)
        self._trials: dict[int, Any] = {}
        self._told: set[int] = set()
        self._chance = random.Random(seed)
        self._study = _make_study(seed)

    def suggest(self, index: int | None, left: dict[int, None]) -> int:
        """An index that is left: the one that is given, or Optuna's choice."""
        point: tuple[int, ...] | None = None
        for _ in range(_REFUSALS if index is None and self._distributions else 0):
            trial = self._study.ask(self._distributions)
            point = tuple(trial.params[key] for key in self._distributions)
            found = next((i for i in self._indexes.get(point, ()) if i in left), None)
            if found is not None:
                self._trials[found] = trial
                return found
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if index is None:
            some = self._chance.sample(list(left), min(len(left), _COMPARED))
            index = min(some, key=lambda i: self._apart(i, point))
        self._study.enqueue_trial(self._points[index])
        self._trials[index] = self._study.ask(self._distributions)
        return index

    def _apart(self, index: int, point: tuple[int, ...] | None) -> int:
        """Steps along the values of all keys."""
        return sum(abs(a - b) for a, b in zip(self._points[index].values(), point or (), strict=False))

    def learn(self, index: int, outcome: Timing | Failed) -> None:
        if index in self._told:  # timed once more
            return
        self._told.add(index)
        value = math.log(max(outcome.latency, 1e-9)) if isinstance(outcome, Timing) else _FAILED
        trial = self._trials.pop(index, None)
        if trial is not None:
            self._study.tell(trial, value)
        else:  # known from elsewhere
            made = optuna.trial.create_trial(params=self._points[index], distributions=self._distributions, value=value)
            self._study.add_trial(made)


def _make_study(seed: int) -> Any:
    said = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "multivariate" is called experimental by versions before 5
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        return optuna.create_study(sampler=sampler)
    finally:
        optuna.logging.set_verbosity(said)


def _in_order(values: Sequence[Any]) -> dict[str, int]:
    """Each distinct value's place: numbers in their order, others as they come."""
    if all(type(value) in (int, float) for value in values):
        values = sorted(values)
    return {name: place for place, name in enumerate(dict.fromkeys(map(canonical, values)))}


def _distribution(values: Sequence[Any], places: dict[str, int]) -> Any:
    if all(type(value) in (int, float) for value in values):
        return optuna.distributions.IntDistribution(0, len(places) - 1)
    return optuna.distributions.CategoricalDistribution(list(range(len(places))))
