"""numpy's arrays, and those of ml_dtypes' element types, as arguments of a call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..errors import CallError
from ..manifest import Param
from ..target import DLPACK_CPU
from .capsule import export, export_as
from .dispatch import Argument
from .framework import Allocate, Device, Framework, Part, compact_strides, imported, static_strides, unprotected

__all__ = ["NUMPY", "allocate_numpy", "numpy_dtype", "spell_dtype"]

# Element types of ml_dtypes that are less than a byte: numpy gives each element a byte, a kernel packs them.
_SUB_BYTE = frozenset(
    ("int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
)


# Names of dtypes that were asked for: numpy imports something for each, which takes its time and which a process that is ending refuses.
_spelled: dict[Any, str] = {}
_MOST_SPELLED = 64


def spell_dtype(dtype: Any) -> str:
    """DLPack's name of numpy's dtype; what no kernel takes gets a name that is no dtype's."""
    found = _spelled.get(dtype)
    if found is None:
        name = str(dtype.name)
        if name in _SUB_BYTE:
            found = f"{name} of a byte each"
        else:
            found = name if dtype.isnative else f"{name} of foreign byte order"
        if len(_spelled) >= _MOST_SPELLED:  # there is no end of record dtypes
            _spelled.clear()
        _spelled[dtype] = found
    return found


def _key(strides: bool, dtypes: bool) -> tuple[Part, ...]:
    if strides:
        return "{}.shape", "{}.dtype", "{}.strides"
    return ("{}.shape", "{}.dtype") if dtypes else ("{}.shape",)


def _describe(x: Any, strides: bool) -> tuple[Argument, Device]:
    size = x.dtype.itemsize
    layout = tuple(s // size if size and s % size == 0 else -1 for s in x.strides) if strides else None
    return Argument(spell_dtype(x.dtype), tuple(x.shape), layout), (DLPACK_CPU, 0)


def _allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    return allocate_numpy(param, sizes, numpy_dtype(param, like), 16)


def numpy_dtype(param: Param, like: Any) -> Any:
    """numpy's dtype for an output beside an array; raises CallError where it has none."""
    return like.dtype if spell_dtype(like.dtype) == param.dtype else _numpy_dtype(param)


def allocate_numpy(param: Param, sizes: tuple[int, ...], dtype: Any, align: int) -> Allocate:
    """A function that makes numpy arrays for an output.

    Args:
        param: The output.
        sizes: Its sizes.
        dtype: numpy's dtype for it; None finds it.
        align: Alignment in bytes to have beyond the parameter's own; numpy itself gives 16, what malloc guarantees.

    Raises:
        CallError: numpy has no such dtype, or strides are not known.
    """
    numpy = imported("numpy")
    dtype = _numpy_dtype(param) if dtype is None else dtype
    align = max(align, param.align)
    if align <= 16 and param.strides is None:
        empty = numpy.empty
        return lambda _: empty(sizes, dtype)
    steps = compact_strides(sizes) if param.strides is None else static_strides(param)
    layout = tuple(s * dtype.itemsize for s in steps)
    span = _span(sizes, steps) * dtype.itemsize

    def aligned(_: Any) -> Any:
        block = numpy.empty(span + align, numpy.uint8)
        return numpy.ndarray(sizes, dtype, block, -block.ctypes.data % align, layout)

    return aligned


def _span(sizes: Sequence[int], steps: Sequence[int]) -> int:
    """Elements from the first to the last, both included."""
    return 0 if 0 in sizes else sum((n - 1) * s for n, s in zip(sizes, steps, strict=True)) + 1


def _numpy_dtype(param: Param) -> Any:
    numpy = imported("numpy")
    if param.dtype in _SUB_BYTE:
        raise CallError(
            f"output {param.name}",
            f"numpy gives each {param.dtype} a byte, a kernel packs them",
            "Pass tensors of a framework that packs them, the outputs too.",
        )
    try:
        return numpy.dtype(param.dtype)
    except TypeError:
        # bfloat16 and float8 exist in numpy where ml_dtypes has been imported.
        scalar = getattr(sys.modules.get("ml_dtypes"), param.dtype, None)
        if scalar is not None:
            return numpy.dtype(scalar)
    raise CallError(
        f"output {param.name}",
        f"numpy has no dtype {param.dtype}",
        "Import ml_dtypes, or pass the outputs too, after the inputs.",
    )


def _lend(param: Param, x: Any) -> Any:
    """The array's memory in a form that DLPack can express; not a copy.

    numpy's own export refuses read-only arrays and ml_dtypes' element types.
    """
    numpy = imported("numpy")
    if not x.flags.writeable and param.written:
        raise CallError(f"argument {param.name}", "is read-only, and the kernel writes it", "Pass a writable array.")
    # 2: a dtype that another package registered, here ml_dtypes.
    registered = x.dtype.isbuiltin == 2
    if x.flags.writeable and not registered:
        return x
    raw = x.view(f"u{x.dtype.itemsize}") if registered else x
    if not registered:
        try:
            return export(raw)[0]
        except BufferError:  # numpy before 2.1 has no DLPack 1.0, and none before that for read-only memory
            pass
    open_view = raw if raw.flags.writeable else numpy.asarray(_Lent(raw))
    return export_as(open_view, x.dtype.name) if registered else open_view


class _Lent:
    """The memory of a read-only array, through which numpy makes a writable one."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        interface = owner.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


NUMPY = Framework("numpy", _key, (), _describe, _allocator, unprotected, lend=_lend)
