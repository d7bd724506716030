"""DLPack's capsules: what is in them that the FFI does not look at."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

__all__ = ["export", "export_as"]

_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class _DLTensor(ctypes.Structure):
    """The head of DLPack's DLTensor (dlpack.h), up to the dtype."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Versioned(ctypes.Structure):
    """The head of DLPack's DLManagedTensorVersioned (dlpack.h), up to the flags."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


@cache
def _capsule_functions() -> tuple[Any, Any]:
    """``PyCapsule_IsValid`` and ``PyCapsule_GetPointer``: our own, since ctypes.pythonapi's are everybody's to declare."""
    valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return (
        valid(("PyCapsule_IsValid", ctypes.pythonapi)),
        pointer(("PyCapsule_GetPointer", ctypes.pythonapi)),
    )


def export(x: Any) -> tuple[Any, bool]:
    """An array as an FFI tensor, through DLPack 1.0 where its producer has it, and whether its memory may only be read.

    Raises:
        BufferError: The producer refuses.
    """
    import tvm_ffi

    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except (TypeError, NotImplementedError):  # a producer from before DLPack 1.0
        return tvm_ffi.from_dlpack(x.__dlpack__()), False
    is_valid, pointer = _capsule_functions()
    name = b"dltensor_versioned"
    read_only = is_valid(capsule, name) and _Versioned.from_address(pointer(capsule, name)).flags & _READ_ONLY
    return tvm_ffi.from_dlpack(capsule), bool(read_only)


def export_as(x: Any, dtype: str) -> Any:
    """An array of unsigned integers as an FFI tensor of another element type of the same size."""
    import tvm_ffi

    capsule = x.__dlpack__()
    head = _DLTensor.from_address(_capsule_functions()[1](capsule, b"dltensor"))
    wanted = tvm_ffi.dtype(dtype)
    head.code, head.bits, head.lanes = wanted.type_code, wanted.bits, wanted.lanes
    return tvm_ffi.from_dlpack(capsule)
