"""What test scripts that run in a process of their own start from: ``from driver import *``."""

import ctypes
import json
import os
import sys
import threading
import time

import numpy as np

sys.modules["torch"] = None  # tvm_ffi would import it where it is installed, which takes seconds

import tvm_ffi  # noqa: E402

__all__ = [
    "attempt",
    "ctypes",
    "cuda",
    "json",
    "np",
    "open_call",
    "os",
    "say",
    "sys",
    "t",
    "threading",
    "time",
    "tvm_ffi",
]

_DTYPES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_kept = []
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Fake:
    def __init__(self, managed, device):
        self._managed, self._device = managed, device

    def __dlpack__(self, *args, **kwargs):
        return _capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self):
        return self._device


def cuda(*shape, dtype="float32", device=0, data=0x7F0000000000, strides=None, byte_offset=0, kind=2):
    """A tensor that claims to be on a CUDA device; nothing may read its memory."""
    base = dtype.rstrip("0123456789")
    bits = int(dtype[len(base) :] or 8)
    array = ctypes.c_int64 * max(len(shape), 1)
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
    sizes, steps = array(*shape), array(*strides)
    tensor = _Tensor(data, kind, device, len(shape), _DTYPES[base], bits, 1, sizes, steps, byte_offset)
    managed = _Managed(tensor, None, None)
    _kept.append((sizes, steps, managed))
    return tvm_ffi.from_dlpack(_Fake(managed, (kind, device)))


def t(array):
    return tvm_ffi.from_dlpack(array)


def open_call(path):
    return tvm_ffi.load_module(str(path))["tlaot_call"]


def attempt(function, *args):
    """None, or the kind and the text of the error."""
    try:
        function(*args)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def say(value):
    print(json.dumps(value), flush=True)
