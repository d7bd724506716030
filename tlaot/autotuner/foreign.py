"""What values of array libraries and frontends consist of; told by their types' names, so that nothing is imported for it."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["dissect_foreign"]

Found = tuple[str, list[tuple[str, Any]]]

_TVM = ("tvm", "tvm_ffi", "tilelang")
# Of TileLang's wrappers, what an author gave them. Their other attributes follow from these, are caches, or change
# nothing in the kernel (verbose, debug_root_path; mode is found out at the first call).
_WRAPPERS = {
    "JITImpl": ("func", "out_idx", "execution_backend", "target", "target_host", "pass_configs", "compile_flags"),
    "JITFunc": ("orig_func",),
    "Macro": ("orig_func",),
    "AutoTuneImpl": ("jit_impl", "configs"),
}


# Of TVM's objects, what they are made of. Not by their text: it leaves types and definitions out.
_FIELDS: dict[str, tuple[str, ...]] = {
    "Buffer": ("dtype", "shape", "strides", "elem_offset", "data_alignment", "offset_factor", "scope"),
    "Range": ("min", "extent"),
    **dict.fromkeys(("Var", "SizeVar"), ("name",)),
    **dict.fromkeys(("IntImm", "FloatImm", "StringImm", "Cast"), ("value",)),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"), ("a", "b")),
    **dict.fromkeys(("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or"), ("a", "b")),
    "Not": ("a",),
    "Select": ("condition", "true_value", "false_value"),
}


def dissect_foreign(value: Any) -> Found | None:
    """A label and parts; None where the value is nothing that is known here."""
    for cls in type(value).__mro__:
        root = cls.__module__.partition(".")[0]
        take = _TAKERS.get((root, cls.__name__))
        if take is not None:
            return take(value)
        if root in _TVM:
            return _tvm(value)
    return None


def _tvm(value: Any) -> Found | None:
    kind = type(value)
    name = f"{kind.__module__.partition('.')[0]} {kind.__qualname__}"
    if kind.__name__ in _WRAPPERS:
        return name, [(f".{key}", getattr(value, key)) for key in _WRAPPERS[kind.__name__]]
    if isinstance(value, str):  # T.float16 and all dtypes
        return f"{name} {value!s}", []
    bases = {cls.__name__ for cls in kind.__mro__}
    if not bases & {"Object", "CObject"}:
        return None
    if kind.__name__ in _FIELDS:
        fields = [(f".{key}", _field(value, key)) for key in _FIELDS[kind.__name__]]
        return f"{name} {getattr(value, 'dtype', None) or getattr(value, 'ty', '')}", fields
    if kind.__name__ == "Target":
        return f"{name} {value!s}", []
    if kind.__name__ in ("PrimFunc", "IRModule", "Function") and hasattr(value, "script"):
        # With metadata, where constants are that the text only refers to.
        return f"{name} {value.script(show_meta=True)}", []
    if isinstance(value, Mapping):
        return name, [("", dict(value.items()))]
    if isinstance(value, Sequence):
        return name, [("", list(value))]
    if ("tvm_ffi.core", "Tensor") in {(cls.__module__, cls.__name__) for cls in kind.__mro__}:
        return "tvm tensor", [("", _as_numpy(value))]
    # The text of others, packed functions for one, does not tell them apart, and to have TVM serialize one can crash.
    raise TypeError(f"{name} objects are not taken apart")


def _torch_tensor(tensor: Any) -> Found:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    size = flat.numel() * flat.element_size()
    data = ctypes.string_at(flat.data_ptr(), size) if size else b""
    digest = hashlib.sha256(data).hexdigest()
    return f"torch tensor {tensor.dtype} {tuple(tensor.shape)} {tuple(tensor.stride())} {digest}", []


def _numpy_array(array: Any) -> Found:
    label = f"numpy {array.dtype!r} {array.shape} {array.strides}"
    if array.dtype.hasobject:
        return label, [("", array.tolist())]
    return f"{label} {hashlib.sha256(array.tobytes()).hexdigest()}", []


def _field(value: Any, key: str) -> Any:
    found = getattr(value, key)
    return found() if key == "scope" else found


def _as_numpy(tensor: Any) -> Any:
    import numpy

    return numpy.from_dlpack(tensor)


def _spelled(value: Any) -> Found:
    return f"{type(value).__module__}.{type(value).__qualname__} {value!r}", []


_TAKERS: dict[tuple[str, str], Callable[[Any], Found]] = {
    ("torch", "Tensor"): _torch_tensor,
    ("torch", "dtype"): _spelled,
    ("torch", "device"): _spelled,
    ("torch", "layout"): _spelled,
    ("torch", "memory_format"): _spelled,
    ("numpy", "ndarray"): _numpy_array,
    ("numpy", "generic"): _numpy_array,
    ("numpy", "dtype"): _spelled,
}
