"""What is known by DLPack's protocol, as arguments of a call: the FFI's own tensors, CuPy's and JAX's arrays, any other."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any

from ..errors import CallError
from ..manifest import Param
from ..target import DLPACK_CPU
from .capsule import export
from .dispatch import Argument
from .framework import Allocate, Device, Framework, Function, Own, Part, imported, no_allocator, unprotected
from .numpy_arrays import allocate_numpy, spell_dtype

__all__ = ["CUPY", "DLPACK", "JAX", "TVM_FFI", "refuse_tracer"]


# tvm_ffi's own tensors


def _tvm_ffi_key(strides: bool, dtypes: bool) -> tuple[Part, ...]:
    common = ("{}.shape", "str({}.dtype)", "str({}.device)")
    return (*common, "{}.strides") if strides else common


def _describe_tvm_ffi(x: Any, strides: bool) -> tuple[Argument, Device]:
    device_type, device_id = x.__dlpack_device__()
    layout = tuple(map(int, x.strides)) if strides else None
    return Argument(str(x.dtype), tuple(map(int, x.shape)), layout), (int(device_type), int(device_id))


TVM_FFI = Framework("tvm_ffi", _tvm_ffi_key, (), _describe_tvm_ffi, no_allocator, unprotected)


# Anything with __dlpack__ and __dlpack_device__


def _dlpack_key(strides: bool, dtypes: bool) -> tuple[Part, ...]:
    return (_key_with_strides if strides else _key,)


def _key(x: Any) -> Hashable:
    try:
        return tuple(x.shape), str(x.dtype), x.__dlpack_device__()
    except (AttributeError, BufferError):
        return _describe_dlpack(x, False)


def _key_with_strides(x: Any) -> Hashable:
    return _describe_dlpack(x, True)


def _describe_dlpack(x: Any, strides: bool) -> tuple[Argument, Device]:
    try:
        device_type, device_id = x.__dlpack_device__()
        # Layouts have no common attribute, and the protocol asks for none at all: the exported tensor has them.
        if strides or not hasattr(x, "shape") or not hasattr(x, "dtype"):
            return _describe_tvm_ffi(export(x)[0], strides)
    except BufferError as error:
        raise CallError("array", f"cannot be exported ({error})", "Pass an array that lies on one device.") from None
    name = str(x.dtype).rpartition(".")[2]
    return Argument(name, tuple(map(int, x.shape)), None), (int(device_type), int(device_id))


def _lend(param: Param, x: Any) -> Any:
    """The array as an FFI tensor, with the flags that only DLPack 1.0 has.

    Raises:
        CallError: It may only be read, and the kernel writes it.
    """
    tensor, read_only = export(x)
    if read_only and param.written:
        raise CallError(f"argument {param.name}", "is read-only, and the kernel writes it", "Pass a writable array.")
    return tensor


def _protect(function: Function, own: Sequence[Own]) -> Function:
    """Ask each array that the kernel writes whether it may be written, which the FFI's own way does not."""
    written = [(position, param) for position, param, _ in own if param.written]
    if not written:
        return function

    def asking(*args: Any) -> None:
        passed = list(args)
        for position, param in written:
            passed[position] = _lend(param, passed[position])
        function(*passed)

    return asking


def _allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    namespace = (
        like.__array_namespace__()
        if hasattr(like, "__array_namespace__")
        else sys.modules.get(type(like).__module__.partition(".")[0])
    )
    dtype = getattr(namespace, param.dtype, None)
    if dtype is None or param.strides is not None or not hasattr(namespace, "empty"):
        return no_allocator(param, like, sizes)
    if not hasattr(like, "__array_namespace__"):
        return lambda _: namespace.empty(sizes, dtype=dtype)  # type: ignore[union-attr]
    device = like.device
    return lambda _: namespace.empty(sizes, dtype=dtype, device=device)  # type: ignore[union-attr]


DLPACK = Framework("dlpack", _dlpack_key, (), _describe_dlpack, _allocator, _protect, lend=_lend)


# CuPy


def _cupy_allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    cupy = imported("cupy")
    dtype = getattr(cupy, param.dtype, None)
    if dtype is None or param.strides is not None:
        return no_allocator(param, like, sizes)
    device, empty = like.device, cupy.empty

    def beside(_: Any) -> Any:
        with device:  # CuPy allocates on its current one
            return empty(sizes, dtype)

    return beside


def _protect_cupy(function: Function, own: Sequence[Own]) -> Function:
    """Run on CuPy's current stream of the arrays' device, as on torch's for torch's tensors."""
    import tvm_ffi

    cuda = imported("cupy").cuda
    ordinal = int(own[0][2].__dlpack_device__()[1])
    device, use_stream = tvm_ffi.device(f"cuda:{ordinal}"), tvm_ffi.use_raw_stream

    def on_stream(*args: Any) -> None:
        stream = cuda.get_current_stream(ordinal).ptr
        if not stream:  # CUDA's default stream is the FFI's as well
            function(*args)
            return
        with use_stream(device, stream):
            function(*args)

    return on_stream


CUPY = Framework("cupy", _dlpack_key, (), _describe_dlpack, _cupy_allocator, _protect_cupy)


# JAX


def refuse_tracer(kind: type) -> None:
    """Refuse what stands for an array while JAX traces.

    Raises:
        CallError: The type is one of these.
    """
    tracer = getattr(getattr(sys.modules.get("jax"), "core", None), "Tracer", None)
    if tracer is not None and issubclass(kind, tracer):
        raise CallError(
            f"a {kind.__qualname__}",
            "stands for an array while JAX traces, and a packaged kernel runs on values",
            "Call it outside of jax.jit, jax.grad and jax.vmap, or through jax.pure_callback.",
        )


def _describe_jax(x: Any, strides: bool) -> tuple[Argument, Device]:
    argument, device = _describe_dlpack(x, strides)
    return Argument(spell_dtype(x.dtype), argument.shape, argument.strides), device


def _jax_allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    """On the CPU numpy's memory, which becomes a JAX array once it is written; JAX's own is immutable."""
    if int(like.__dlpack_device__()[0]) != DLPACK_CPU:
        raise CallError(
            f"output {param.name}",
            "cannot be allocated by JAX on this device: its arrays are immutable, and ready on streams of its own",
            "Pass the outputs too, as arrays of CuPy or torch.",
        )
    return allocate_numpy(param, sizes, None, 64)  # JAX takes memory over, uncopied, from this alignment on


def _finish_jax(out: Any) -> Any:
    made = imported("jax").device_put(out)
    if made.dtype != out.dtype:
        raise CallError("output", f"JAX has {out.dtype} only with jax_enable_x64", "Enable it, or pass numpy's arrays.")
    return made


def _protect_jax(function: Function, own: Sequence[Own]) -> Function:
    for _, param, x in own:
        if param.written:
            raise CallError(
                f"argument {param.name}",
                f"is a {type(x).__module__}.{type(x).__qualname__}, which is immutable, and the kernel writes it",
                "Leave outputs out (on the CPU), or pass writable arrays: numpy's, CuPy's, torch's.",
            )
    return function


JAX = Framework("jax", _dlpack_key, (), _describe_jax, _jax_allocator, _protect_jax, finish=_finish_jax)
