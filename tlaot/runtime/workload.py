"""Which workload a call's arguments are of, that no variant was packaged for: what would have to be added to ``tltune.toml``.

A manifest does not say how a factory's arguments make a kernel's sizes; but of the packaged variants each has both. An argument
that equals one and the same size in all of them is taken to be that size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..keys import spell_key
from ..manifest import Variant
from .dispatch import Argument, given_params

__all__ = ["infer_workloads", "spell_toml"]

# Of an ambiguous call so many ways to read it are tried.
_MOST_TRIED = 256
_MOST_FOUND = 4

# A size (or the dtype, -1) of a parameter.
_Spot = tuple[int, int]
_DTYPE = -1


def infer_workloads(
    variants: Sequence[Variant], arguments: Sequence[Argument], factory_args: Mapping[str, Any], fixed: bool = False
) -> list[dict[str, Any]]:
    """The workloads that a call may be of; none where the packaged variants do not tell, several where they leave it open.

    Args:
        variants: Variants of the kernel, the nearest to the call first: what no size tells is taken from it.
        arguments: The call's arguments.
        factory_args: Arguments of the factory that the caller named.
        fixed: Give a size that is symbolic in every variant the number that it has in the call.
    """
    alike = [v for v in variants if _is_alike(v, arguments)]
    alike = [v for v in alike if v.shape.keys() == alike[0].shape.keys()]
    if not alike:
        return []
    found = dict(_spots(arguments))
    at = {name: _spots_of(name, alike, len(arguments)) for name in alike[0].shape}
    choices: list[list[Any]] = []
    for name, value in alike[0].shape.items():
        if name in factory_args:
            choices.append([factory_args[name]])
        elif not at[name] or (not fixed and _is_open(name, alike, at[name])):
            choices.append([value])
        else:
            # As arguments are named mostly: the first of them by the first size.
            choices.append(list(dict.fromkeys(found[spot] for spot in sorted(at[name]))))
    told = {spot for spots in at.values() for spot in spots}
    workloads = []
    for values in itertools.islice(itertools.product(*choices), _MOST_TRIED):
        workload = dict(zip(alike[0].shape, values, strict=True))
        # Each size must be what some argument says, or left open.
        right = {
            spot
            for name, spots in at.items()
            for spot in spots
            if workload[name] == found[spot] or _is_open(name, alike, spots)
        }
        if right == told:
            workloads.append(workload)
    return workloads[:_MOST_FOUND]


def spell_toml(workload: Mapping[str, Any]) -> str:
    """A workload as an entry of ``shapes``: ``{ M = 300, causal = true }``."""
    return spell_key(workload)


def _is_alike(variant: Variant, arguments: Sequence[Argument]) -> bool:
    """Whether it takes as many arguments, of the same kinds and numbers of dimensions."""
    given = given_params(variant, len(arguments))
    return given is not None and all(
        (param.shape is None) == (argument.shape is None) and len(param.shape or ()) == len(argument.shape or ())
        for param, argument in zip(given, arguments, strict=True)
    )


def _spots(arguments: Sequence[Argument]) -> Iterator[tuple[_Spot, Any]]:
    """The sizes and dtypes of a call's tensors."""
    for position, argument in enumerate(arguments):
        if argument.shape is not None:
            yield (position, _DTYPE), argument.dtype
            yield from (((position, axis), size) for axis, size in enumerate(argument.shape))


def _spots_of(name: str, variants: Iterable[Variant], count: int) -> set[_Spot]:
    """The sizes and dtypes that equal an argument of the factory in every variant."""
    common: set[_Spot] | None = None
    for variant in variants:
        value = variant.shape[name]
        mine = set()
        for position, param in enumerate(given_params(variant, count) or ()):
            if param.shape is None or isinstance(value, bool):
                continue
            if value == param.dtype:
                mine.add((position, _DTYPE))
            mine |= {(position, axis) for axis, size in enumerate(param.shape) if size == value}
        common = mine if common is None else common & mine
    return common or set()


def _is_open(name: str, variants: Iterable[Variant], spots: Iterable[_Spot]) -> bool:
    """Whether an argument is a symbolic size in every variant, so that each call says what it is."""
    sizes = all(axis != _DTYPE for _, axis in spots)
    return sizes and all(isinstance(variant.shape[name], str) for variant in variants)
