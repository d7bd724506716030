"""Many shapes of one kernel: a few are searched in full, the others as far as these leave doubts."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..children.child import Failed
from ..measuring.timing import Timing
from ..specs.plan import Candidate, Workload, canonical
from .blas import one_thread
from .evidence import Evidence, Prediction
from .nearby import farthest_first, place_configs, place_shapes
from .search import Search

__all__ = ["Guided"]

# Of the predicted times: how many standard deviations below is as fast as a candidate may be taken to be.
SURENESS = 2.0
# A candidate that would win by less is not worth a trial.
WORTHWHILE = 0.01
# Of a shape that is not searched in full at least so many of the best predicted are tried.
BEST_PREDICTED = 2
# And so many of which the least is known, among those expected to be less than twice as slow as the best.
EXPLORED, FAR = 2, math.log(2)
# Of a budget, for the pilots: where they cannot be searched in full with that, they are by a random sample.
PILOTS_SHARE = 0.5
# Predictions are made anew when this share more is known, hyperparameters when this one is.
_PREDICT_ANEW, _FIT_ANEW = 1.1, 1.4
_TINY = 1e-9  # ms


def count_pilots(shapes: int) -> int:
    """How many shapes are searched in full."""
    return min(shapes, max(2, math.ceil(shapes / 8)))


@dataclass(frozen=True)
class _Wish:
    """A candidate that is worth trying, and by how much (in logarithms of time) it may win."""

    gain: float
    position: int
    index: int


class Guided(Search):
    """Pilots in full, spread over the shapes; elsewhere what may win by the evidence, the likeliest first.

    Predictions take the candidates under way at what is expected of them, so that many can be. No shape is closed before
    all are: what is learnt late may raise doubts anywhere.
    """

    def __init__(
        self, workloads: Sequence[Workload], note: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(workloads, note, clock)
        places = place_shapes([workload.values for workload in workloads])
        self.pilots = farthest_first(places, count_pilots(len(workloads)))
        distinct: dict[str, int] = {}
        configs: list[Mapping[str, Any]] = []
        self._names: list[list[int]] = []
        for workload in workloads:
            names = []
            for config in workload.configs:
                name = canonical(config)
                if name not in distinct:
                    distinct[name] = len(configs)
                    configs.append(config)
                names.append(distinct[name])
            self._names.append(names)
        self._evidence = Evidence(places, place_configs(configs))
        # What is known, by shape and name of the config: logarithms of times; and failures.
        self._known: dict[int, dict[int, float]] = {position: {} for position in range(len(workloads))}
        self._failed: dict[int, dict[int, Failed]] = {}
        self._worked: set[int] = set()
        self._fitted_at = 0
        self._predicted: dict[int, tuple[int, Prediction]] = {}
        # By shape, with what they were made from.
        self._wishes: dict[int, tuple[Prediction, tuple[int, ...], _Wish | None]] = {}
        self._quota = math.inf if self.trials is None else int(self.trials * PILOTS_SHARE) // max(1, len(self.pilots))
        self._chance = random.Random(0)

    def tell(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        super().tell(candidate, outcome)
        position = self.position(candidate)
        name = self._names[position][candidate.index]
        if isinstance(outcome, Failed):
            self._known[position].pop(name, None)  # what is looked at again may fail
            self._failed.setdefault(name, {})[position] = outcome
        else:
            self._known[position][name] = math.log(max(outcome.latency, _TINY))
            self._worked.add(name)

    @one_thread()
    def choose(self) -> tuple[int, int] | None:
        pilots = [position for position in self.pilots if self.left[position] and self.tried(position) < self._quota]
        if pilots and not self.past(PILOTS_SHARE):
            left = list(self.left[pilots[0]])
            return pilots[0], left[0] if left[0] == 0 or not self.limited else self._chance.choice(left)
        wishes = [wish for p, left in enumerate(self.left) if left and (wish := self._wish(p)) is not None]
        if wishes:
            best = max(wishes, key=lambda wish: (wish.gain, -self.tried(wish.position)))
            return best.position, best.index
        if not any(self.under_way):
            self._close()
        return None

    def _wish(self, position: int) -> _Wish | None:
        """The candidate of a workload that is the most worth trying; None where none is, or not now."""
        prediction = self._predict(position)
        counts = len(self._failed), self.tried(position), len(self.outcomes[position])
        known = self._wishes.get(position)
        # The prediction itself, not its id: another one may be where one that is gone was.
        if known is None or known[0] is not prediction or known[1] != counts:
            known = self._wishes[position] = prediction, counts, self._think(position, prediction)
        return known[2]

    def _think(self, position: int, prediction: Prediction) -> _Wish | None:
        left = [index for index in self.left[position] if not self._hopeless(self._names[position][index])]
        here, coming = self._known[position], sorted(self.under_way[position])
        if not left:
            # Where nothing works yet, what failed everywhere else is tried all the same.
            return None if here or coming else _Wish(math.inf, position, next(iter(self.left[position])))
        times = {i: here[n] for i, n in enumerate(self._names[position]) if n in here and i in self.outcomes[position]}
        tried = [*times, *coming]
        if tried:
            values = [*times.values(), *[None] * len(coming)]
            prediction = prediction.given(tried, values, self._evidence.noise)
        mean, sd = prediction.mean, prediction.sd
        if 0 in left:  # the spec's first config, with which the winner is compared
            return _Wish(math.inf, position, 0)
        if len(tried) <= BEST_PREDICTED:
            return _Wish(math.inf, position, min(left, key=lambda i: mean[i]))
        best = min([*times.values(), *(float(mean[i]) for i in coming)])
        if len(tried) <= BEST_PREDICTED + EXPLORED:
            near = [i for i in left if mean[i] < best + FAR] or left
            return _Wish(math.inf, position, max(near, key=lambda i: sd[i]))
        index = min(left, key=lambda i: mean[i] - SURENESS * sd[i])
        gain = best - float(mean[index] - SURENESS * sd[index])
        return _Wish(gain, position, index) if gain > WORTHWHILE else None

    def _predict(self, position: int) -> Prediction:
        total = sum(map(len, self._known.values()))
        if total > self._fitted_at * _FIT_ANEW:
            self._fitted_at = total
            self._evidence.fit(self._known)
            self._predicted.clear()
        elsewhere = total - len(self._known[position])
        if position not in self._predicted or elsewhere > self._predicted[position][0] * _PREDICT_ANEW:
            names = self._names[position]
            self._predicted[position] = elsewhere, self._evidence.predict(position, names, self._known)
        return self._predicted[position][1]

    def _hopeless(self, name: int) -> bool:
        """Whether a config failed in the same way wherever it was tried, at two shapes at least."""
        failures = self._failed.get(name, {})
        reasons = {(failure.stage, failure.reason) for failure in failures.values()}
        return name not in self._worked and len(failures) > 1 and len(reasons) == 1

    def _close(self) -> None:
        for position, left in enumerate(self.left):
            for index in list(left):
                self.skip(position, index, self._reason(self._names[position][index]))

    def _reason(self, name: int) -> str:
        if self._hopeless(name):
            failure = next(iter(self._failed[name].values()))
            return f"failed at every shape where it was tried: {failure.stage}: {failure.reason}"
        return "cannot win by what was measured at other shapes"
