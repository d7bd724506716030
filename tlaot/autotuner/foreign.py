"""What values of array libraries and frontends consist of; told by their types' names, so that nothing is imported for it."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["dissect_foreign"]

Found = tuple[str, list[tuple[str, Any]]]

_TVM = ("tvm", "tvm_ffi", "tilelang")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
# Of TileLang's wrappers, what an author gave them. Their other attributes follow from these, are caches, or change
# nothing in the kernel (verbose, debug_root_path; mode is found out at the first call).
_WRAPPERS = {
    "JITImpl": ("func", "out_idx", "execution_backend", "target", "target_host", "pass_configs", "compile_flags"),
    "JITFunc": ("orig_func",),
    "Macro": ("orig_func",),
    "AutoTuneImpl": ("jit_impl", "configs"),
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
    if not any(cls.__name__ in ("Object", "CObject") for cls in kind.__mro__):
        return None
    if kind.__name__ in ("PrimFunc", "IRModule", "Function") and hasattr(value, "script"):
        # With metadata, where constants are that the text only refers to.
        return f"{name} {value.script(show_meta=True)}", []
    if kind.__name__ == "Buffer":
        fields = ("dtype", "shape", "strides", "elem_offset", "data_alignment", "offset_factor")
        return f"{name} {value.scope()}", [(f".{key}", getattr(value, key)) for key in fields]
    if isinstance(value, Mapping):
        return name, [("", dict(value.items()))]
    if isinstance(value, Sequence):
        return name, [("", list(value))]
    text = str(value)
    if _ADDRESS.search(text) or text.startswith("<"):
        return None
    return f"{name} {getattr(value, 'dtype', '')} {text}", []


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


def _tvm_tensor(tensor: Any) -> Found:
    return "tvm tensor", [("", tensor.numpy())]


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
    ("tvm", "NDArray"): _tvm_tensor,
    ("tvm", "Tensor"): _tvm_tensor,
}
