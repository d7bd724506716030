"""What times measured at some shapes say of times at others.

A Gaussian process over pairs of a shape and a config predicts logarithms of times. Its covariance is a sum: the level of a shape,
which nothing is assumed about; what a config is worth everywhere; what it is worth at shapes of a kind; what similar configs
have in common at one shape, such as the last wave's fill; and the rest. How much each matters, and how far shapes and
configs reach, is what makes the times that are known the likeliest (Rasmussen and Williams 2006, chapter 5). Since such a model is
too sure of itself where a surface is not smooth, its errors are scaled by what leaving out each shape in turn shows (5.4.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .nearby import Place

__all__ = ["Evidence", "Prediction"]

Array = Any  # numpy.ndarray; numpy's own types are not at hand where it is not installed

# Variance of a shape's level: times from ns to s are all likely.
_LEVEL = 100.0
# Degrees of freedom of what is foretold of a shape: how slowly surprises change the mind.
_FREEDOM = 3.0
# How much likelihood it takes to move a hyperparameter away from its usual value.
_HABIT = 0.25
# Two measurements of one kernel agree no better than this.
_REST, _LEAST_REST = 3, 0.008
# A fit, which takes half a second at this many points, uses no more.
_MOST_FITTED = 200
# Points that a prediction uses: whole shapes, the nearest ones first.
_MOST_USED = 1200


@dataclass(frozen=True)
class Prediction:
    """Expected logarithms of times and their covariance, over all configs of a shape."""

    mean: Array
    covariance: Array

    def given(self, indexes: Sequence[int], values: Sequence[float | None], noise: float) -> Prediction:
        """What is expected when some are known; None is a value that is still to come.

        Where the known ones are farther from what was foretold than foreseen, so are the others taken to be: the rule of a
        Student-t process (Shah, Wilson and Ghahramani 2014).
        """
        rows = np.array(indexes, dtype=int)
        gain = np.linalg.solve(self.covariance[np.ix_(rows, rows)] + noise * np.eye(len(rows)), self.covariance[rows])
        covariance = self.covariance - self.covariance[:, rows] @ gain
        told = [i for i, value in enumerate(values) if value is not None]
        if not told:
            return Prediction(self.mean, covariance)
        known = rows[told]
        error = np.array([values[i] for i in told]) - self.mean[known]
        step = np.linalg.solve(self.covariance[np.ix_(known, known)] + noise * np.eye(len(known)), error)
        # The level, about which nothing was foretold, takes one of the errors.
        surprise = (_FREEDOM + float(error @ step)) / (_FREEDOM + len(known) - 1)
        return Prediction(self.mean + self.covariance[:, known] @ step, covariance * max(1.0, surprise))

    @property
    def sd(self) -> Array:
        return np.sqrt(np.maximum(np.diag(self.covariance), 1e-12))


@dataclass
class _Weights:
    """Hyperparameters, all positive; ``shapes`` and ``configs`` are inverse reaches of their coordinates."""

    everywhere: float = 0.3
    kind: float = 0.2
    here: float = 0.05
    rest: float = 0.03
    alike: float = 1.0
    shapes: list[float] = field(default_factory=list)
    configs: list[float] = field(default_factory=list)

    def vector(self) -> list[float]:
        return [self.everywhere, self.kind, self.here, self.rest, self.alike, *self.shapes, *self.configs]

    def changed(self, at: int, value: float) -> _Weights:
        v = self.vector()
        v[at] = value
        cut = 5 + len(self.shapes)
        return _Weights(v[0], v[1], v[2], v[3], v[4], v[5:cut], v[cut:])


class Evidence:
    """The times that are known, and what they say.

    Args:
        shapes: Where each shape is.
        configs: Where each distinct config is.
    """

    def __init__(self, shapes: Sequence[Place], configs: Sequence[Place]) -> None:
        self._shapes, self._configs = _coordinates(shapes), _coordinates(configs)
        self._weights = _Weights(shapes=[0.3] * self._shapes.shape[1], configs=[1.0] * self._configs.shape[1])
        self._scale = 1.0

    @property
    def noise(self) -> float:
        """Variance of what is particular to one candidate, its measurement's error included."""
        return self._weights.rest**2 * self._scale

    def fit(self, known: Mapping[int, Mapping[int, float]]) -> None:
        """Choose the hyperparameters by times (in logarithms) of configs, by shape."""
        use: dict[int, Mapping[int, float]] = {}
        for shape, times in sorted(known.items(), key=lambda item: -len(item[1])):
            if not use or sum(map(len, use.values())) + len(times) <= _MOST_FITTED:
                use[shape] = times
        points = _points(use)
        if len(points[0]) < 3:
            return
        pairs = self._pair(points, points)
        self._weights = _climb(self._weights, lambda weights: _likelihood(weights, pairs, points[2]))
        self._scale = max(1.0, _left_out(self._weights, pairs, points))

    def predict(self, shape: int, configs: Sequence[int], known: Mapping[int, Mapping[int, float]]) -> Prediction:
        """Times at a shape, from those at other shapes."""
        there = np.full(len(configs), shape), np.array(configs, dtype=int)
        prior = _covariance(self._weights, self._pair(there, there))
        points = _points(self._nearest(shape, known))
        if len(points[0]) == 0:
            return Prediction(np.zeros(len(configs)), prior * self._scale)
        factor = _factor(self._weights, self._pair(points, points))
        cross = _covariance(self._weights, self._pair(points, there))
        half = np.linalg.solve(factor, np.column_stack([cross, points[2]]))
        mean = half[:, :-1].T @ half[:, -1]
        return Prediction(mean, (prior - half[:, :-1].T @ half[:, :-1]) * self._scale)

    def _nearest(self, shape: int, known: Mapping[int, Mapping[int, float]]) -> dict[int, Mapping[int, float]]:
        gaps = ((self._shapes - self._shapes[shape]) ** 2).sum(-1)
        use: dict[int, Mapping[int, float]] = {}
        for other in sorted((o for o in known if o != shape and known[o]), key=lambda o: float(gaps[o])):
            if use and sum(map(len, use.values())) + len(known[other]) > _MOST_USED:
                break
            use[other] = known[other]
        return use

    def _pair(self, one: tuple[Array, ...], other: tuple[Array, ...]) -> _Pairs:
        return _Pairs(_Axis.of(self._shapes, one[0], other[0]), _Axis.of(self._configs, one[1], other[1]))


@dataclass(frozen=True)
class _Axis:
    """The shapes (or the configs) of two lists of points: squared distances between the distinct ones by coordinate, and
    where in that the points are."""

    squares: Array
    rows: Array
    columns: Array
    same: Array

    @staticmethod
    def of(coordinates: Array, one: Array, other: Array) -> _Axis:
        a, rows = np.unique(one, return_inverse=True)
        b, columns = np.unique(other, return_inverse=True)
        squares = (coordinates[a].T[:, :, None] - coordinates[b].T[:, None, :]) ** 2
        return _Axis(squares, rows[:, None], columns[None, :], one[:, None] == other[None, :])

    def likeness(self, reaches: Sequence[float]) -> Array:
        return np.exp(-0.5 * np.tensordot(np.square(reaches), self.squares, 1))


@dataclass(frozen=True)
class _Pairs:
    shapes: _Axis
    configs: _Axis


def _coordinates(places: Sequence[Place]) -> Array:
    """Places as rows of numbers; what is no number becomes one column a value, so that unlike ones are apart."""
    columns: list[list[float]] = []
    for axis in zip(*places, strict=True):
        if all(isinstance(value, float) for value in axis):
            columns.append([float(value) for value in axis])
        else:
            columns += [[float(value == known) for value in axis] for known in dict.fromkeys(axis)]
    varied = [column for column in columns if len(set(column)) > 1]
    return np.array(varied, dtype=float).T if varied else np.zeros((len(places), 0))


def _points(known: Mapping[int, Mapping[int, float]]) -> tuple[Array, Array, Array]:
    flat = [(shape, config, value) for shape, times in sorted(known.items()) for config, value in sorted(times.items())]
    shapes, configs, values = zip(*flat, strict=True) if flat else ((), (), ())
    return np.array(shapes, dtype=int), np.array(configs, dtype=int), np.array(values, dtype=float)


def _covariance(weights: _Weights, pairs: _Pairs) -> Array:
    shapes, configs = pairs.shapes.likeness(weights.shapes), pairs.configs.likeness(weights.configs)
    # Of what a config is worth, a part it has in common with similar ones and a part of its own.
    own = 1 / (1 + weights.alike**2)
    common = configs[pairs.configs.rows, pairs.configs.columns]
    worth = own * pairs.configs.same + (1 - own) * common
    kinds = weights.everywhere**2 + weights.kind**2 * shapes
    return (
        kinds[pairs.shapes.rows, pairs.shapes.columns] * worth + (_LEVEL + weights.here**2 * common) * pairs.shapes.same
    )


def _factor(weights: _Weights, pairs: _Pairs) -> Array:
    covariance = _covariance(weights, pairs)
    return np.linalg.cholesky(covariance + weights.rest**2 * np.eye(len(covariance)))


def _likelihood(weights: _Weights, pairs: _Pairs, values: Array) -> float:
    try:
        factor = _factor(weights, pairs)
    except np.linalg.LinAlgError:
        return -math.inf
    half = np.linalg.solve(factor, values)
    # Hyperparameters that the data say nothing of stay where they are of themselves: near 1 in their logarithms.
    habit = sum(math.log(value / usual) ** 2 for value, usual in zip(weights.vector(), _usual(weights), strict=True))
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum() - _HABIT * habit)


def _usual(weights: _Weights) -> list[float]:
    return _Weights(shapes=[0.3] * len(weights.shapes), configs=[1.0] * len(weights.configs)).vector()


def _climb(weights: _Weights, height: Any) -> _Weights:
    """Coordinate by coordinate, with steps that shrink: no gradient to get wrong, and a fit takes well under a second."""
    best = height(weights)
    for step in (3.0, 3.0, 1.7, 1.7, 1.3):
        for at in range(len(weights.vector())):
            for factor in (step, 1 / step):
                value = weights.vector()[at] * factor
                if not (_LEAST_REST if at == _REST else 0.003) <= value <= 30:
                    continue
                candidate = weights.changed(at, value)
                if (there := height(candidate)) > best:
                    weights, best = candidate, there
                    break
    return weights


def _left_out(weights: _Weights, pairs: _Pairs, points: tuple[Array, ...]) -> float:
    """How many times larger squared errors are than foretold, when each shape is foretold from all others."""
    inverse = np.linalg.inv(_factor(weights, pairs))
    inverse = inverse.T @ inverse
    weighted = inverse @ points[2]
    errors: list[float] = []
    for shape in np.unique(points[0]):
        rows = np.flatnonzero(points[0] == shape)
        if len(rows) > 2 and len(rows) < len(points[0]):
            covariance = np.linalg.inv(inverse[np.ix_(rows, rows)])
            error = covariance @ weighted[rows]
            # The level is nothing that was foretold.
            centred = np.eye(len(rows)) - 1 / len(rows)
            variance = np.diag(centred @ covariance @ centred)
            errors += list((centred @ error) ** 2 / np.maximum(variance, 1e-12))
    if not errors:
        return 1.0
    # Surfaces have steps, so that errors have heavier tails than a normal distribution's, of which 1.96^2 leaves out 5 %.
    return max(float(np.mean(errors)), float(np.quantile(errors, 0.95)) / 1.96**2)
