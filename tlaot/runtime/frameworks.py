"""Which framework an argument is of; none of them is ever imported here, whoever made the argument has done that.

Python's numbers and torch are in this module, the others in ``numpy_arrays`` and ``dlpack_arrays``.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

from ..errors import CallError
from ..manifest import Param
from ..target import DLPACK_CPU, DLPACK_CUDA
from .dispatch import NONE, Argument
from .dlpack_arrays import CUPY, DLPACK, JAX, TVM_FFI, refuse_tracer
from .framework import (
    Allocate,
    Device,
    Framework,
    Function,
    Own,
    Part,
    compact_strides,
    imported,
    no_allocator,
    static_strides,
    unprotected,
)
from .numpy_arrays import NUMPY

__all__ = ["Allocate", "Framework", "Function", "framework_of"]


def framework_of(kind: type) -> Framework | None:
    """The framework of arguments of a type; None for what no kernel takes."""
    return _framework_of(kind)


@cache
def _framework_of(kind: Hashable) -> Framework | None:
    assert isinstance(kind, type)
    if issubclass(kind, (bool, numbers.Real)):
        return _NUMBER
    if kind is type(None):
        return _NONE
    refuse_tracer(kind)
    # By the modules that are already imported: never an import of ours.
    for root, attribute, framework in (
        ("torch", "Tensor", _TORCH),
        ("numpy", "ndarray", NUMPY),
        ("tvm_ffi", "Tensor", TVM_FFI),
        ("jax", "Array", JAX),
        ("cupy", "ndarray", CUPY),
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
    return DLPACK if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__") else None


# Python numbers


def _describe_number(value: Any, strides: bool) -> tuple[Argument, None]:
    if isinstance(value, bool):
        return Argument("bool", None), None
    return Argument("int" if isinstance(value, numbers.Integral) else "float", None), None


_NUMBER = Framework("number", lambda strides, dtypes: (), (), _describe_number, no_allocator, unprotected)


# None, for a tensor that a kernel never looks at


def _describe_none(value: Any, strides: bool) -> tuple[Argument, None]:
    return Argument(NONE, None), None


_NONE = Framework("none", lambda strides, dtypes: (), (), _describe_none, no_allocator, unprotected)


# torch


def _torch_key(strides: bool, dtypes: bool) -> tuple[Part, ...]:
    # is_neg: DLPack exports a lazily negated view as what lies in memory, without the minus.
    common = ("{}.shape", "{}.requires_grad", "{}.is_neg()")
    if strides:
        return (*common, "{}.dtype", "{}.stride()")
    return (*common, "{}.dtype") if dtypes else common


def _describe_torch(x: Any, strides: bool) -> tuple[Argument, Device]:
    device_type = {"cpu": DLPACK_CPU, "cuda": DLPACK_CUDA}.get(x.device.type)
    torch = imported("torch")
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
    torch = imported("torch")
    dtype = getattr(torch, param.dtype, None)
    if dtype is None:
        raise CallError(f"output {param.name}", f"torch has no dtype {param.dtype}", "Pass the outputs too.")
    device = like.device
    layout = compact_strides(sizes) if param.strides is None else static_strides(param)
    # empty() does the same and takes 40 % longer to parse its arguments.
    empty = torch.empty_strided
    return lambda _: empty(sizes, layout, dtype=dtype, device=device)


def _protect_torch(function: Function, own: Sequence[Own]) -> Function:
    """Refuse to cut a tensor that wants a gradient out of its graph, which would be silently wrong."""
    wanting = [param.name for _, param, x in own if x.requires_grad]
    if not wanting:
        return function
    is_grad_enabled = imported("torch").is_grad_enabled

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


_TORCH = Framework("torch", _torch_key, ("{}.get_device()",), _describe_torch, _torch_allocator, _protect_torch)
