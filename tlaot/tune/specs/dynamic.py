"""``dynamic`` of a kernel: dimensions that its code leaves open, and the sizes at which it is tuned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import SpecError
from ...manifest import Param
from .spec import OUTSIDES, KernelSpec
from .tables import one_of, optional

__all__ = ["bind_params", "corners", "grid_of", "open_shape", "read_dynamic", "refuse_both", "spell_dynamic"]

# Of all dimensions together; each is measured with every config that may win there.
_MOST_POINTS = 256
_LARGEST = 1 << 31
_MOST_PROBES = 256

_EXAMPLE = "Write for instance dynamic = { M = [1, 64, 1024, 8192] }."

Sizes = Mapping[str, int]


def read_dynamic(keys: Mapping[str, Any], shapes: Any, where: str) -> dict[str, Any]:
    """The keys ``dynamic``, ``outside`` and ``probes`` of a kernel's table, as fields of its :class:`KernelSpec`.

    Args:
        keys: The table.
        shapes: Its shapes: the static rest.
        where: The kernel, for messages.

    Raises:
        SpecError: One of them is wrong, or says something without ``dynamic``.
    """
    table = optional(keys, "dynamic", dict, where, None)
    if table is None:
        for key in ("outside", "probes"):
            if key in keys:
                raise SpecError(f"{where} {key}", "means nothing without dynamic dimensions", _EXAMPLE)
        return {}
    dynamic = {name: _read_sizes(name, sizes, f"{where} dynamic") for name, sizes in table.items()}
    if not dynamic:
        raise SpecError(f"{where} dynamic", "names no dimension", _EXAMPLE)
    count = math.prod(map(len, dynamic.values()))
    if count > _MOST_POINTS:
        raise SpecError(
            f"{where} dynamic",
            f"the sizes of all dimensions multiply out to {count} points, and each is measured; {_MOST_POINTS} are allowed",
            "Give fewer sizes.",
        )
    for shape in shapes if not isinstance(shapes, str) else ():
        refuse_both(dynamic, shape, where)
    probes = keys.get("probes", KernelSpec.probes)
    if type(probes) is not int or not 0 <= probes <= _MOST_PROBES:
        raise SpecError(
            f"{where} probes", f"is not a whole number of 0 to {_MOST_PROBES}, got {probes!r}", "Write probes = 16."
        )
    outside = one_of(optional(keys, "outside", str, where, "error"), "outside", OUTSIDES, where)
    return {"dynamic": dynamic, "outside": outside, "probes": probes}


def refuse_both(dynamic: Mapping[str, Any], shape: Mapping[str, Any], where: str) -> None:
    """Refuse a dimension that is dynamic and has a fixed size as well.

    Raises:
        SpecError: There is one.
    """
    both = sorted(dynamic.keys() & shape.keys())
    if both:
        raise SpecError(
            f"{where} dynamic",
            f"{both[0]} is in shapes, too ({both[0]} = {shape[both[0]]!r})",
            f"Take it out of one; for a static variant beside the dynamic one write a [[kernel]] of its own with {both[0]} in shapes.",
        )


def open_shape(dynamic: Mapping[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    """A workload's arguments of the factory, in which an open dimension has its own name for a size."""
    return {**{name: name for name in dynamic}, **shape}


def grid_of(dynamic: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Every combination of the declared sizes."""
    return [dict(zip(dynamic, sizes, strict=True)) for sizes in itertools.product(*dynamic.values())]


def bind_params(params: Sequence[Param], sizes: Sizes, where: str) -> tuple[Param, ...]:
    """The parameters of a kernel called with these sizes.

    Raises:
        SpecError: A dimension is no size of any of them.
    """
    found = {size for param in params for size in param.shape or () if isinstance(size, str)}
    for name in sizes:
        if name not in found:
            open_ = ", ".join(sorted(found)) or "none"
            raise SpecError(
                f"{where} dynamic",
                f"{name} is the size of no tensor of the kernel; sizes that it leaves open: {open_}",
                "The factory makes its tensors with what it gets for that argument: a TileLang or TVM variable of that name.",
            )

    def bound(extents: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
        return None if extents is None else tuple(sizes.get(e, e) if isinstance(e, str) else e for e in extents)

    return tuple(replace(param, shape=bound(param.shape), strides=bound(param.strides)) for param in params)


def corners(dynamic: Mapping[str, Sequence[int]], outside: str) -> dict[str, tuple[int, ...]]:
    """The sizes of each dimension at which every config is measured: the declared ones.

    Where sizes outside are clamped, also the least, 1, and one that is well past the largest and a multiple of nothing: what serves
    there is checked there.
    """
    if outside != "clamp":
        return {name: tuple(sizes) for name, sizes in dynamic.items()}
    return {name: tuple(sorted({1, *sizes, sizes[-1] + sizes[-1] // 2 + 1})) for name, sizes in dynamic.items()}


def spell_dynamic(dynamic: Mapping[str, Sequence[int]]) -> str:
    """The key as a spec has it: ``{ M = [1, 16] }``."""
    return "{ " + ", ".join(f"{name} = {list(sizes)}" for name, sizes in dynamic.items()) + " }"


def _read_sizes(name: str, sizes: Any, where: str) -> tuple[int, ...]:
    if not name.isidentifier():
        raise SpecError(where, f"{name!r} is no argument of a factory", _EXAMPLE)
    where = f"{where} {name}"
    if not isinstance(sizes, list) or not all(type(size) is int and 0 < size < _LARGEST for size in sizes):
        raise SpecError(where, f"is not a list of whole numbers from 1 to 2^31 - 1, got {sizes!r}", _EXAMPLE)
    if len(sizes) < 2:
        raise SpecError(
            where,
            f"needs two sizes at least, the ends of what is served, got {sizes!r}",
            f"Add the largest size that callers have; a single one belongs into shapes: {name} = {sizes[0] if sizes else 64}.",
        )
    if sorted(set(sizes)) != sizes:
        raise SpecError(
            where, f"is not in ascending order, each size once, got {sizes!r}", f"Write {sorted(set(sizes))}."
        )
    return tuple(sizes)
