"""For which other sizes a decision holds: a call with sizes of its own each time must not be decided anew each time."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..manifest import Param, Variant
from .buckets import find_bucket
from .dispatch import NONE, Argument, Place, find_mismatches, given_params

if TYPE_CHECKING:
    from .call import Described

__all__ = ["Range", "Regions", "find_ranges"]

_MOST = 2**63 - 1


class Range(NamedTuple):
    """The sizes of one dimension of one argument.

    Attributes:
        low: The least.
        high: The most.
        arg: Position of an earlier argument that has the same size; -1: none.
        dim: Its dimension.
    """

    low: int
    high: int
    arg: int = -1
    dim: int = 0


def find_ranges(
    variants: Sequence[Variant],
    chosen: Variant,
    arguments: Sequence[Argument],
    place: Place,
    factory_args: Mapping[str, Any],
) -> list[list[Range]] | None:
    """Sizes around a call's for which the same variant is chosen, of each argument; None where it is chosen for these sizes only.

    Which variants fit, and with that the choice, depends on a size by comparisons alone: with the fixed sizes of variants,
    with the ends of their buckets, and with sizes that bear the same name. Between two such numbers nothing changes.

    Args:
        variants: All variants of the kernel.
        chosen: The one that was chosen; each of its symbolic sizes gets a range.
        arguments: The call's arguments.
        place: Where the call runs.
        factory_args: Arguments of the factory that the caller named.
    """
    given = given_params(chosen, len(arguments))
    if any(argument.dtype == NONE for argument in arguments):
        return None
    if given is None or not any(isinstance(size, str) for param in given for size in param.shape or ()):
        return None
    if any(param.strides is not None for variant in variants for param in variant.params):
        return None
    rivals = [
        other
        for other in variants
        if other is not chosen
        and all(kind in ("shape", "size") for kind, _ in find_mismatches(other, arguments, place, factory_args))
    ]
    named = _positions(given, arguments)
    own = _bucket_of(chosen, {name: _size_at(arguments, places[0]) for name, places in named.items()})
    ranges: dict[str, tuple[int, int]] = {}
    for name, places in named.items():
        size = _size_at(arguments, places[0])
        low, high = own.get(name, (0, _MOST))
        if not low <= size <= high:
            return None
        ranges[name] = low, high
    for other in rivals:
        params = given_params(other, len(arguments)) or ()
        theirs = _positions(params, arguments)
        if any(len(param.shape or ()) != len(a.shape or ()) for param, a in zip(params, arguments, strict=True)):
            continue  # of another rank: it fits no sizes of these
        if not all(_is_one_size(places, given) for places in theirs.values()):
            return None  # it wants sizes to be equal that may differ here
        for name, places in named.items():
            for at in places:
                for edges in _edges(other, _param_size(params, at)):
                    ranges[name] = _narrow(ranges[name], _size_at(arguments, at), edges)
    return [
        _spread(i, param, argument, named, ranges)
        for i, (param, argument) in enumerate(zip(given, arguments, strict=True))
    ]


def _bucket_of(variant: Variant, sizes: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
    """The least and the most of each symbolic size of the bucket that a call's are in; a name that is missing is not bounded."""
    bucket = find_bucket(variant, sizes) if variant.buckets else None
    return {} if bucket is None else {name: _ends(ends) for name, ends in bucket.sizes.items()}


def _ends(ends: tuple[int, int | None]) -> tuple[int, int]:
    low, high = ends
    return low, _MOST if high is None else high


_Place = tuple[int, int]


def _positions(given: Sequence[Param], arguments: Sequence[Argument]) -> dict[str, list[_Place]]:
    """Where each symbolic size is: the argument and its dimension."""
    found: dict[str, list[_Place]] = {}
    for i, (param, argument) in enumerate(zip(given, arguments, strict=True)):
        for d, size in enumerate(param.shape or ()) if argument.shape is not None else ():
            if isinstance(size, str):
                found.setdefault(size, []).append((i, d))
    return found


def _size_at(arguments: Sequence[Argument], at: _Place) -> int:
    shape = arguments[at[0]].shape
    assert shape is not None
    return shape[at[1]]


def _param_size(params: Sequence[Param], at: _Place) -> int | str:
    shape = params[at[0]].shape
    assert shape is not None
    return shape[at[1]]


def _is_one_size(places: Sequence[_Place], given: Sequence[Param]) -> bool:
    """Whether sizes that one variant wants equal are fixed, or bear one name, in another."""
    sizes = {_param_size(given, at) for at in places}
    return len(sizes) == 1 or all(isinstance(size, int) for size in sizes)


def _edges(variant: Variant, size: int | str) -> list[tuple[int, int]]:
    """The ranges that a variant takes for one of its sizes."""
    if isinstance(size, int):
        return [(size, size)]
    return [_ends(bucket.sizes[size]) for bucket in variant.buckets if size in bucket.sizes]


def _narrow(found: tuple[int, int], size: int, other: tuple[int, int]) -> tuple[int, int]:
    """The part of a range around a size in which all sizes are inside of another range, or all outside of it."""
    (low, high), (least, most) = found, other
    if size < least:
        return low, min(high, least - 1)
    if size > most:
        return max(low, most + 1), high
    return max(low, least), min(high, most)


def _spread(
    i: int,
    param: Param,
    argument: Argument,
    named: Mapping[str, Sequence[_Place]],
    ranges: Mapping[str, tuple[int, int]],
) -> list[Range]:
    out = []
    for d, size in enumerate(argument.shape or ()):
        want = (param.shape or ())[d] if argument.shape is not None else size
        if not isinstance(want, str):
            out.append(Range(size, size))
            continue
        first = named[want][0]
        out.append(Range(*ranges[want], *(first if first != (i, d) else (-1, 0))))
    return out


class Regions:
    """Decisions, each with the sizes that it holds for: a call with new sizes is described and looked up, and not decided anew.

    Used by several threads; a decision that is lost by that is made again.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[tuple[Sequence[Sequence[Range]], Any], ...]] = {}

    def add(self, args: Sequence[Any], call: Described, ranges: Sequence[Sequence[Range]], decision: Any) -> None:
        """Keep a decision."""
        key = _kind_of(args, call)
        # Without those that it may have been made beside, by another thread.
        others = tuple(one for one in self._found.get(key, ())[:_MOST_REGIONS] if one[0] != ranges)
        self._found[key] = ((ranges, decision), *others)

    def find(self, args: Sequence[Any], call: Described) -> Any:
        """The decision for a call; None where there is none yet."""
        for ranges, decision in self._found.get(_kind_of(args, call), ()):
            if all(map(_inside, ranges, call.arguments, itertools.repeat(call.arguments))):
                return decision
        return None


# Of one kernel, for arguments of the same types: buckets and fixed sizes make no more.
_MOST_REGIONS = 255


def _kind_of(args: Sequence[Any], call: Described) -> Hashable:
    """What a decision depends on but sizes."""
    return (
        call.device,
        *map(type, args),
        *((a.dtype, None if a.shape is None else len(a.shape)) for a in call.arguments),
    )


def _inside(ranges: Sequence[Range], argument: Argument, every: Sequence[Argument]) -> bool:
    for size, (low, high, arg, dim) in zip(argument.shape or (), ranges, strict=True):
        if not low <= size <= high or (arg >= 0 and (every[arg].shape or ())[dim] != size):
            return False
    return True
