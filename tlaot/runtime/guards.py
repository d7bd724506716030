"""What stands before some variants' functions: copies of misaligned arguments, and the refusal of what is not deterministic.

The binary itself refuses a misaligned argument before anything has run (``native/entry.c``); so an aligned call pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CallError
from ..manifest import Param, Variant
from .dispatch import copies, differs
from .framework import MISALIGNED, Function, imported
from .frameworks import framework_of
from .saying import warn_once
from .seen import note

__all__ = ["guard"]


def guard(where: str, variant: Variant, function: Function) -> Function:
    """A function that does for a variant what its binary does not.

    Args:
        where: The kernel, for messages.
        variant: The variant.
        function: Its FFI function, which takes all parameters.
    """
    if copies(variant):
        function = _copying(where, variant.params, function)
    if differs(variant):
        function = _refusing(where, function)
    return function


def _refusing(where: str, function: Function) -> Function:
    """Heed ``torch.use_deterministic_algorithms``, which may change between calls."""

    def run(*args: Any) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.are_deterministic_algorithms_enabled():
            what = "does not give the same bits twice (deterministic = false in its tltune.toml)"
            if not torch.is_deterministic_algorithms_warn_only_enabled():
                raise CallError(
                    where,
                    f"{what}, and torch.use_deterministic_algorithms(True) is set",
                    "Call another kernel, or set torch.use_deterministic_algorithms(True, warn_only=True).",
                )
            warn_once(("deterministic", where), f"{where}: {what}, and torch.use_deterministic_algorithms(True) is set")
        function(*args)

    return run


@dataclass(frozen=True)
class _Memory:
    """How to move the arrays of one framework.

    Attributes:
        address: Of an array's first element.
        layout: What two arrays must have in common, beside the address, to be the same.
        copy: A copy with the same strides, at an address that is a multiple of some bytes; in the order of the device's stream.
        put_back: ``(array, copy)``: the array becomes equal to the copy, in that order too.
    """

    address: Callable[[Any], int]
    layout: Callable[[Any], Any]
    copy: Callable[[Any, int], Any]
    put_back: Callable[[Any, Any], None]


def _copying(where: str, params: Sequence[Param], function: Function) -> Function:
    def run(*args: Any) -> None:
        try:
            function(*args)
        except ValueError as error:
            if MISALIGNED not in str(error):
                raise
            copies = _align(params, args)
            if not copies:
                raise
        else:
            return
        # The former error is over: what is raised now is another.
        function(*[copies[i][1] if i in copies else arg for i, arg in enumerate(args)])
        done = set()
        for i, (memory, copy) in copies.items():
            if params[i].written and id(copy) not in done:
                done.add(id(copy))
                memory.put_back(args[i], copy)
        note(where, (params[i].name for i in copies), "any device", "copy")

    return run


def _align(params: Sequence[Param], args: Sequence[Any]) -> dict[int, tuple[_Memory, Any]]:
    """Aligned copies of the arguments that need one, by position; nothing where one is of a framework that cannot be asked."""
    copies: dict[int, tuple[_Memory, Any]] = {}
    known: dict[Any, Any] = {}
    needed = _needed(params, args)
    for i, (memory, align) in needed.items():
        key = memory.address(args[i]), memory.layout(args[i])
        # An array that is passed twice, as input and output say, stays one.
        copy = known.get(key)
        if copy is None:
            widest = max(align, *(other for j, (_, other) in needed.items() if args[j] is args[i]))
            copy = known[key] = memory.copy(args[i], widest)
        if memory.address(copy) % align:
            return {}
        copies[i] = memory, copy
    return copies


def _needed(params: Sequence[Param], args: Sequence[Any]) -> dict[int, tuple[_Memory, int]]:
    found = {}
    for i, (param, arg) in enumerate(zip(params, args, strict=True)):
        framework = framework_of(type(arg))
        memory = None if framework is None else _MEMORIES.get(framework.name)
        if param.shape is None or memory is None:
            continue
        if memory.address(arg) % max(param.align, 1):
            found[i] = memory, param.align
    return found


def _copy_torch(x: Any, align: int) -> Any:
    torch: Any = imported("torch")
    with torch.no_grad():
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _put_back_torch(x: Any, copy: Any) -> None:
    with imported("torch").no_grad():
        x.copy_(copy)


def _copy_numpy(x: Any, align: int) -> Any:
    numpy: Any = imported("numpy")
    span = sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) + x.itemsize
    block = numpy.empty(span + align, numpy.uint8)
    copy = numpy.ndarray(x.shape, x.dtype, block, -block.ctypes.data % align, x.strides)
    copy[...] = x
    return copy


def _copy_cupy(x: Any, align: int) -> Any:
    cupy: Any = imported("cupy")
    with x.device:
        copy = cupy.ndarray(x.shape, x.dtype, strides=x.strides)
        copy[...] = x
    return copy


def _put_back(x: Any, copy: Any) -> None:
    x[...] = copy


_MEMORIES = {
    "torch": _Memory(
        lambda x: int(x.data_ptr()), lambda x: (x.shape, x.stride(), x.dtype, x.device), _copy_torch, _put_back_torch
    ),
    "numpy": _Memory(
        lambda x: int(x.__array_interface__["data"][0]),
        lambda x: (x.shape, x.strides, x.dtype.str),
        _copy_numpy,
        _put_back,
    ),
    "cupy": _Memory(lambda x: int(x.data.ptr), lambda x: (x.shape, x.strides, x.dtype.str), _copy_cupy, _put_back),
}
