"""``record`` makes what ``dataclass(frozen=True)`` makes, but for the time that it takes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tlaot.plain import record


def define(decorate: Any) -> Any:
    """One class with every kind of field that is in use."""

    @decorate(frozen=True)
    class Point:
        """A point."""

        x: int
        y: int = 2
        tags: dict[str, int] = dataclasses.field(default_factory=dict)
        hidden: str = dataclasses.field(default="", repr=False, compare=False)

        @property
        def total(self) -> int:
            return self.x + self.y

        def __str__(self) -> str:
            return f"({self.x}, {self.y})"

    Point.__qualname__ = "Point"
    return Point


OURS, THEIRS = define(record), define(dataclasses.dataclass)

USES: list[Callable[[Any], Any]] = [
    lambda point: repr(point(1)),
    lambda point: str(point(1, 3)),
    lambda point: point(x=1, y=5).total,
    lambda point: point(1) == point(1, 2, {}, "other"),
    lambda point: point(1) == point(2),
    lambda point: point(1) == (1, 2),
    lambda point: point(1) != point(1),
    lambda point: point(1).tags is point(1).tags,
    lambda point: dataclasses.asdict(point(1, hidden="h")),
    lambda point: [(f.name, f.default is dataclasses.MISSING) for f in dataclasses.fields(point)],
    lambda point: repr(dataclasses.replace(point(1), y=7)),
    lambda point: dataclasses.is_dataclass(point),
    lambda point: copy.deepcopy(point(1, 2, {"a": 1})) == point(1, 2, {"a": 1}),
    lambda point: copy.copy(point(4)).x,
    lambda point: point.__doc__,
    lambda point: point.__match_args__ if hasattr(point, "__match_args__") else None,
]


@pytest.mark.parametrize("use", USES)
def test_as_a_dataclass(use: Callable[[Any], Any]) -> None:
    """Values, comparison, text, copies, and what the module ``dataclasses`` does with it."""
    assert use(OURS) == use(THEIRS)


FAULTS: list[Callable[[Any], Any]] = [
    lambda point: point(),
    lambda point: point(1, 2, {}, "", 5),
    lambda point: point(1, x=2),
    lambda point: point(1, z=2),
    lambda point: point(y=2),
    lambda point: hash(point(1)),
    lambda point: setattr(point(1), "x", 3),
    lambda point: setattr(point(1), "new", 3),
    lambda point: delattr(point(1), "x"),
    lambda point: dataclasses.replace(point(1), z=7),
]


@pytest.mark.parametrize("use", FAULTS)
def test_errors_are_of_the_same_kinds(use: Callable[[Any], Any]) -> None:
    """Arguments that are missing, too many, given twice or not known; changes; a hash of what has none."""
    kinds = []
    for point in (OURS, THEIRS):
        with pytest.raises((TypeError, AttributeError)) as caught:
            use(point)
        kinds.append(caught.type)
    assert kinds[0] is kinds[1]


@record(frozen=True)
class Pair:
    a: int
    b: tuple[int, ...] = ()


def test_hash_and_pickle() -> None:
    """Equal ones have equal hashes; across processes they are what they were."""
    assert hash(Pair(1, (2,))) == hash(Pair(1, (2,)))
    assert len({Pair(1), Pair(1), Pair(2)}) == 2
    assert pickle.loads(pickle.dumps(Pair(1, (2,)))) == Pair(1, (2,))
