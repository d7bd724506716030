"""What tlaot knows of an array framework, as plain data; the frameworks themselves are in the modules beside this one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ..errors import CallError
from ..manifest import Param
from ..plain import record
from .dispatch import Argument

__all__ = [
    "MISALIGNED",
    "Allocate",
    "Device",
    "Framework",
    "Function",
    "Part",
    "compact_strides",
    "imported",
    "no_allocator",
    "static_strides",
    "unprotected",
]

# How entry.c begins what it says of an argument at such an address: nothing has run yet.
MISALIGNED = "misaligned data, expected"

Device = tuple[int, int]
Allocate = Callable[[Any], Any]
Function = Callable[..., Any]
# Of a key: an expression with {} for the argument, or a function of it.
Part = str | Callable[[Any], Hashable]
# An argument of a call: its position among the kernel's parameters, the parameter, the argument.
Own = tuple[int, Param, Any]


_imported: dict[str, Any] = {}


def imported(name: str) -> Any:
    """A module that the caller of a kernel has imported; a process that is ending knows those no more that it is asked for, while destructors still call."""
    found = sys.modules.get(name)
    if found is None:
        return _imported[name]
    _imported[name] = found
    return found


@record(frozen=True)
class Framework:
    """How to treat the arguments of one framework.

    Attributes:
        name: ``"torch"``, ``"numpy"``, ``"tvm_ffi"``, ``"jax"``, ``"cupy"``, ``"dlpack"`` or ``"number"``.
        key: ``(strides, dtypes)`` to an argument's part of a call's key, beyond its type: equal only for arguments that
            ``describe`` finds equal, but for strides and dtypes, which are left out unless asked for, and the device.
        place: What tells the device, where that is not in ``key``; asked of a call's first tensor only, since the binary refuses
            tensors on several devices.
        describe: The argument as data (with strides if the flag says so), and its device.
        allocator: ``(param, like, sizes)`` to a function that makes an output beside ``like``; its argument is ignored.
        protect: ``(function, own)`` to a function that does for the arguments of this framework what the FFI does not.
        lend: ``(param, argument)`` to a form of the argument that DLPack can express, where its own export is refused; None
            where there is none.
        finish: From what ``allocator`` made, once the kernel has written it, to what the caller gets; None: that itself.
    """

    name: str
    key: Callable[[bool, bool], tuple[Part, ...]]
    place: tuple[Part, ...]
    describe: Callable[[Any, bool], tuple[Argument, Device | None]]
    allocator: Callable[[Param, Any, tuple[int, ...]], Allocate]
    protect: Callable[[Function, Sequence[Own]], Function]
    lend: Callable[[Param, Any], Any] | None = None
    finish: Callable[[Any], Any] | None = None


def unprotected(function: Function, own: Sequence[Own]) -> Function:
    return function


def no_allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    raise CallError(
        f"output {param.name}",
        f"cannot be allocated beside a {type(like).__module__}.{type(like).__qualname__}",
        "Pass the outputs too, after the inputs.",
    )


def static_strides(param: Param) -> tuple[int, ...]:
    """A parameter's own strides, all of which must be known.

    Raises:
        CallError: One is not.
    """
    layout = tuple(s for s in param.strides or () if isinstance(s, int))
    if len(layout) != len(param.strides or ()):
        raise CallError(f"output {param.name}", "has strides that the inputs do not give", "Pass the outputs too.")
    return layout


def compact_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a compact row-major tensor."""
    steps: list[int] = []
    step = 1
    for n in reversed(sizes):
        steps.append(step)
        step *= max(n, 1)
    return tuple(reversed(steps))
