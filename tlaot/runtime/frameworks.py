"""The array frameworks that a call's arguments come from, none of which is ever imported here.

One ``Framework`` for each: how to describe an argument, its part of a call's key, and how to allocate an output.
A tensor's framework has been imported by whoever made the tensor.
"""

from __future__ import annotations

import ctypes
import numbers
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import CallError
from ..manifest import Param
from ..target import DLPACK_CPU, DLPACK_CUDA
from .dispatch import Argument

__all__ = ["Allocate", "Device", "Framework", "Function", "framework_of", "leave_untraced"]

Device = tuple[int, int]
Allocate = Callable[[Any], Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Framework:
    """How to treat the arguments of one framework.

    Attributes:
        name: ``"torch"``, ``"numpy"``, ``"tvm_ffi"``, ``"dlpack"`` or ``"number"``.
        probe_for: ``(strides, dtypes)`` to the function that gives an argument's part of a call's key: equal only for
            arguments that ``describe`` finds equal, but for strides and dtypes, which are left out unless asked for.
        describe: The argument as data (with strides if the flag says so), and its device.
        allocator: ``(param, like, sizes)`` to a function that makes an output beside ``like``; its argument is ignored.
        protect: ``(function, given, args, params)`` to a function that checks or passes what the FFI does not;
            ``given`` are the parameters of ``args``, ``params`` all those that the function takes.
    """

    name: str
    probe_for: Callable[[bool, bool], Callable[[Any], Hashable]]
    describe: Callable[[Any, bool], tuple[Argument, Device | None]]
    allocator: Callable[[Param, Any, tuple[int, ...]], Allocate]
    protect: Callable[[Function, Sequence[Param], Sequence[Any], Sequence[Param]], Function]


def framework_of(kind: type) -> Framework | None:
    """The framework of arguments of a type; None for what no kernel takes."""
    return _framework_of(kind)


@cache
def _framework_of(kind: Hashable) -> Framework | None:
    assert isinstance(kind, type)
    if issubclass(kind, (bool, numbers.Real)):
        return _NUMBER
    # By the modules that are already imported: never an import of ours.
    for root, attribute, framework in (
        ("torch", "Tensor", _TORCH),
        ("numpy", "ndarray", _NUMPY),
        ("tvm_ffi", "Tensor", _TVM_FFI),
    ):
        base = getattr(sys.modules.get(root), attribute, None)
        if isinstance(base, type) and issubclass(kind, base):
            if root == "numpy" and issubclass(kind, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
                raise CallError("array", "is masked, and a kernel would not see the mask", "Pass x.filled(value).")
            # Such a subclass may have no memory (FakeTensor, DTensor), or wants to see what is done to it.
            if root == "torch" and getattr(kind, "__torch_dispatch__", None) != getattr(
                base, "__torch_dispatch__", None
            ):
                raise CallError(
                    f"a {kind.__qualname__}",
                    "is a tensor subclass with its own __torch_dispatch__, which a call would pass by",
                    "Pass a plain tensor, or register the kernels (tlaot.torch.register) and call torch.ops.",
                )
            return framework
    return _DLPACK if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__") else None


def _unprotected(function: Function, given: Sequence[Param], args: Sequence[Any], params: Sequence[Param]) -> Function:
    return function


def _no_allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    raise CallError(
        f"output {param.name}",
        f"cannot be allocated beside a {type(like).__module__}.{type(like).__qualname__}",
        "Pass the outputs too, after the inputs.",
    )


# Python numbers


def _describe_number(value: Any, strides: bool) -> tuple[Argument, None]:
    if isinstance(value, bool):
        return Argument("bool", None), None
    return Argument("int" if isinstance(value, numbers.Integral) else "float", None), None


_NUMBER = Framework("number", lambda strides, dtypes: type, _describe_number, _no_allocator, _unprotected)


# torch


def _torch_probe(strides: bool, dtypes: bool) -> Callable[[Any], Hashable]:
    # is_neg: DLPack exports a lazily negated view as what lies in memory, without the minus.
    if strides:
        return lambda x: (x.shape, x.get_device(), x.requires_grad, x.is_neg(), x.dtype, x.stride())
    if dtypes:
        return lambda x: (x.shape, x.get_device(), x.requires_grad, x.is_neg(), x.dtype)
    return lambda x: (x.shape, x.get_device(), x.requires_grad, x.is_neg())


def _describe_torch(x: Any, strides: bool) -> tuple[Argument, Device]:
    device_type = {"cpu": DLPACK_CPU, "cuda": DLPACK_CUDA}.get(x.device.type)
    torch = sys.modules["torch"]
    if device_type is None or x.layout is not torch.strided:
        raise CallError("tensor", f"is a {x.layout} tensor on {x.device}", "Pass a dense tensor on cpu or cuda.")
    if x.is_neg() or x.is_conj():
        raise CallError("tensor", "is a lazily negated or conjugated view", "Pass x.resolve_neg().resolve_conj().")
    if x._is_zerotensor():
        raise CallError("tensor", "is a zero tensor without memory", "Pass x.clone().")
    if torch._C._functorch.is_functorch_wrapped_tensor(x) or torch._is_functional_tensor(x):
        raise CallError(
            "tensor",
            "is inside a transform of torch.func (vmap, grad, functionalize...), which a call would pass by",
            "Call the kernel outside of it, or register the kernels (tlaot.torch.register) and call torch.ops.",
        )
    return (
        Argument(str(x.dtype).removeprefix("torch."), tuple(x.shape), tuple(x.stride()) if strides else None),
        (device_type, x.device.index or 0),
    )


def _torch_allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    torch = sys.modules["torch"]
    dtype = getattr(torch, param.dtype, None)
    if dtype is None:
        raise CallError(f"output {param.name}", f"torch has no dtype {param.dtype}", "Pass the outputs too.")
    device = like.device
    layout = _compact(sizes) if param.strides is None else _static_layout(param)
    # empty() does the same and takes 40 % longer to parse its arguments.
    empty = torch.empty_strided
    return lambda _: empty(sizes, layout, dtype=dtype, device=device)


def _protect_torch(
    function: Function, given: Sequence[Param], args: Sequence[Any], params: Sequence[Param]
) -> Function:
    """Refuse to cut a tensor that wants a gradient out of its graph, which would be silently wrong."""
    wanting = [p.name for p, x in zip(given, args, strict=True) if getattr(x, "requires_grad", False)]
    if not wanting:
        return function
    is_grad_enabled = sys.modules["torch"].is_grad_enabled

    def without_gradient(*args: Any) -> None:
        if is_grad_enabled():
            raise CallError(
                f"argument {', '.join(wanting)}",
                "requires a gradient, and a packaged kernel has none",
                "Call under torch.no_grad(), pass x.detach(), or wrap the call in a torch.autograd.Function.",
            )
        function(*args)

    return without_gradient


def leave_untraced(function: Any) -> None:
    """Have torch.compile, where torch is there, call a function as it is: else it traces seconds long into what it cannot trace.

    As torch.compiler.disable does, without its wrapper, which every call would pay for.
    """
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "a packaged kernel is called; tlaot.torch.register makes operators that trace"
    frames: Any = getattr(getattr(sys.modules.get("torch._C"), "_dynamo", None), "eval_frame", None)
    try:
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except (AttributeError, TypeError):
        pass  # no torch, or one that has no such thing: slower, and right


_TORCH = Framework("torch", _torch_probe, _describe_torch, _torch_allocator, _protect_torch)


# numpy


def _numpy_probe(strides: bool, dtypes: bool) -> Callable[[Any], Hashable]:
    if strides:
        return lambda x: (x.shape, x.dtype, x.strides)
    if dtypes:
        return lambda x: (x.shape, x.dtype)
    return lambda x: x.shape


def _describe_numpy(x: Any, strides: bool) -> tuple[Argument, Device]:
    name = str(x.dtype.name) + ("" if x.dtype.isnative else " of foreign byte order")
    size = x.dtype.itemsize
    layout = tuple(s // size if s % size == 0 else -1 for s in x.strides) if strides else None
    return Argument(name, tuple(x.shape), layout), (DLPACK_CPU, 0)


def _numpy_allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    numpy = sys.modules["numpy"]
    dtype = _numpy_dtype(param, like)
    # What malloc guarantees, and numpy with it.
    if param.align <= 16 and param.strides is None:
        empty = numpy.empty
        return lambda _: empty(sizes, dtype)
    steps = _compact(sizes) if param.strides is None else _static_layout(param)
    last = sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    span = 0 if 0 in sizes else (last + 1) * dtype.itemsize
    layout = tuple(s * dtype.itemsize for s in steps)

    def aligned(_: Any) -> Any:
        block = numpy.empty(span + param.align, numpy.uint8)
        return numpy.ndarray(sizes, dtype, block, -block.ctypes.data % param.align, layout)

    return aligned


def _numpy_dtype(param: Param, like: Any) -> Any:
    numpy = sys.modules["numpy"]
    if like.dtype.name == param.dtype:
        return like.dtype
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


def _protect_numpy(
    function: Function, given: Sequence[Param], args: Sequence[Any], params: Sequence[Param]
) -> Function:
    """Pass read-only arrays and ml_dtypes' element types, which numpy's own DLPack export refuses."""

    def retrying(*args: Any) -> None:
        try:
            function(*args)
        except BufferError:
            # Raised while the arguments were converted: nothing has run yet.
            function(*[_lend(param, x) for param, x in zip(params, args, strict=True)])

    return retrying


def _lend(param: Param, x: Any) -> Any:
    """The array's memory in a form that DLPack can express; not a copy."""
    numpy = sys.modules["numpy"]
    if not isinstance(x, numpy.ndarray):
        return x
    if not x.flags.writeable and param.written:
        raise CallError(f"argument {param.name}", "is read-only, and the kernel writes it", "Pass a writable array.")
    # 2: a dtype that another package registered, here ml_dtypes.
    registered = x.dtype.isbuiltin == 2
    if x.flags.writeable and not registered:
        return x
    raw = x.view(f"u{x.dtype.itemsize}") if registered else x
    interface = dict(raw.__array_interface__, data=(raw.__array_interface__["data"][0], False))
    open_view = numpy.asarray(type("Lent", (), {"__array_interface__": interface, "owner": x})())
    if raw is x:
        return open_view
    return _export_as(open_view, x.dtype.name)


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


def _export_as(x: Any, dtype: str) -> Any:
    """An array of unsigned integers as an FFI tensor of another element type of the same size."""
    import tvm_ffi

    capsule = x.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    head = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    wanted = tvm_ffi.dtype(dtype)
    head.code, head.bits, head.lanes = wanted.type_code, wanted.bits, wanted.lanes
    return tvm_ffi.from_dlpack(capsule)


_NUMPY = Framework("numpy", _numpy_probe, _describe_numpy, _numpy_allocator, _protect_numpy)


# tvm_ffi's own tensors


def _tvm_ffi_probe(strides: bool, dtypes: bool) -> Callable[[Any], Hashable]:
    if strides:
        return lambda x: (x.shape, str(x.dtype), str(x.device), x.strides)
    return lambda x: (x.shape, str(x.dtype), str(x.device))


def _describe_tvm_ffi(x: Any, strides: bool) -> tuple[Argument, Device]:
    device_type, device_id = x.__dlpack_device__()
    layout = tuple(map(int, x.strides)) if strides else None
    return Argument(str(x.dtype), tuple(map(int, x.shape)), layout), (int(device_type), int(device_id))


_TVM_FFI = Framework("tvm_ffi", _tvm_ffi_probe, _describe_tvm_ffi, _no_allocator, _unprotected)


# Anything else with __dlpack__: CuPy, JAX, ...


def _dlpack_probe(strides: bool, dtypes: bool) -> Callable[[Any], Hashable]:
    if strides:
        # Layouts have no common attribute: ask the exported tensor.
        return lambda x: (type(x), _describe_dlpack(x, True))
    return lambda x: (type(x), tuple(x.shape), str(x.dtype), x.__dlpack_device__())


def _describe_dlpack(x: Any, strides: bool) -> tuple[Argument, Device]:
    device_type, device_id = x.__dlpack_device__()
    if not strides:
        name = str(x.dtype).rpartition(".")[2]
        return Argument(name, tuple(map(int, x.shape)), None), (int(device_type), int(device_id))
    import tvm_ffi

    return _describe_tvm_ffi(tvm_ffi.from_dlpack(x), True)


def _dlpack_allocator(param: Param, like: Any, sizes: tuple[int, ...]) -> Allocate:
    root = type(like).__module__.partition(".")[0]
    namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else sys.modules.get(root)
    dtype = getattr(namespace, param.dtype, None)
    # JAX's arrays are immutable: a kernel must not write one.
    if root in ("jax", "jaxlib") or dtype is None or param.strides is not None:
        return _no_allocator(param, like, sizes)
    if not hasattr(like, "__array_namespace__"):
        return lambda _: namespace.empty(sizes, dtype=dtype)  # type: ignore[union-attr]
    device = like.device
    return lambda _: namespace.empty(sizes, dtype=dtype, device=device)  # type: ignore[union-attr]


_DLPACK = Framework("dlpack", _dlpack_probe, _describe_dlpack, _dlpack_allocator, _unprotected)


def _static_layout(param: Param) -> tuple[int, ...]:
    layout = tuple(s for s in param.strides or () if isinstance(s, int))
    if len(layout) != len(param.strides or ()):
        raise CallError(f"output {param.name}", "has strides that the inputs do not give", "Pass the outputs too.")
    return layout


def _compact(sizes: Sequence[int]) -> tuple[int, ...]:
    steps: list[int] = []
    step = 1
    for n in reversed(sizes):
        steps.append(step)
        step *= max(n, 1)
    return tuple(reversed(steps))
