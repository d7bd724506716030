"""Tensors for checking and timing: numpy or torch on the CPU, torch on CUDA, behind the same few functions.

Runs in the measuring child. Everything is made from a seed, so that every candidate of a workload and every build sees the same data.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...errors import SpecError
from ...manifest import Param
from ..specs.supply import Draw, Supply, draw_for, kind_of

__all__ = ["Arrays", "NumpyArrays", "Supply", "TorchArrays", "bind_sizes", "numpy_hands_over"]

_GIVE_INPUTS = 'Name an inputs function: inputs = "module:function".'
_GIVE_OUTPUTS = "It is computed from others, which tlaot does not do: give the outputs too, after the inputs."
# Halfway points between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 of float4_e2m1fn, whose patterns are in this order; the
# fourth bit is the sign.
_FLOAT4_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Arrays(Protocol):
    """What checking needs of an array library."""

    def supply(self, param: Param, sizes: Mapping[str, int], index: int, supply: Supply) -> Any:
        """A generated input for the parameter at a position."""

    def adopt(self, value: Any) -> Any:
        """A tensor that an author gave, as one of this library and on this device; a number for a scalar."""

    def poisoned(self, param: Param, sizes: Mapping[str, int]) -> Any:
        """A tensor that no kernel leaves behind by chance: NaN, or the largest integer."""

    def poison(self, array: Any, param: Param) -> None:
        """Make a tensor a poisoned one."""

    def clone(self, array: Any) -> Any:
        """A copy of the same strides; what is no tensor is returned as it is."""

    def copy_into(self, destination: Any, source: Any) -> None:
        """Copy between tensors of the same shape and strides."""

    def tensor(self, value: Any) -> Any:
        """What a reference returned, as a tensor of this library on this device; packed numbers are unpacked."""

    def float64(self, array: Any) -> Any:
        """The values as float64, for comparing."""

    def differ(self, left: Any, right: Any) -> Any:
        """Where two tensors differ, without a conversion that loses bits."""

    def same_bits(self, left: Any, right: Any) -> bool: ...

    def check_kind(self, array: Any, param: Param) -> str | None:
        """Why a tensor that an author's callable made does not fit a parameter, or None."""

    def synchronize(self) -> None: ...


class NumpyArrays:
    """Tensors in host memory. Types that numpy lacks (bfloat16, float8) come from ml_dtypes, which apache-tvm brings."""

    def __init__(self) -> None:
        import numpy

        self._np = numpy

    def supply(self, param: Param, sizes: Mapping[str, int], index: int, supply: Supply) -> Any:
        shape, draw = _sizes(param, sizes), draw_for(param, supply)
        generator = self._np.random.default_rng([supply.seed & ((1 << 64) - 1), index])
        return self._lay_out(self._draw(draw, shape, param.dtype, generator), param, sizes)

    def adopt(self, value: Any) -> Any:
        if isinstance(value, self._np.ndarray):
            return value
        if isinstance(value, self._np.generic):
            return value.item()
        return self._np.from_dlpack(value) if hasattr(value, "__dlpack__") else value

    def poisoned(self, param: Param, sizes: Mapping[str, int]) -> Any:
        array = self._lay_out(self._np.empty(_sizes(param, sizes), self._dtype(param.dtype)), param, sizes)
        self.poison(array, param)
        return array

    def poison(self, array: Any, param: Param) -> None:
        array[...] = float("nan") if "float" in param.dtype else _largest(param.dtype)

    def clone(self, array: Any) -> Any:
        if not isinstance(array, self._np.ndarray):
            return array
        if array.flags.c_contiguous:
            return array.copy()
        raw, offset = self._raw(array)
        return self._np.ndarray(array.shape, array.dtype, raw.copy(), offset, array.strides)

    def copy_into(self, destination: Any, source: Any) -> None:
        if destination.flags.c_contiguous and source.flags.c_contiguous:
            destination[...] = source
        else:  # by the bytes that the strides span, in which elements may overlap
            self._raw(destination)[0][...] = self._raw(source)[0]

    def tensor(self, value: Any) -> Any:
        if type(value).__module__.partition(".")[0] == "torch":
            value = value.detach().cpu()
            name = str(value.dtype).removeprefix("torch.")
            value = (value if numpy_hands_over(name) else value.double()).numpy()
        return self._np.asarray(value)

    def float64(self, array: Any) -> Any:
        return self.tensor(array).astype(self._np.float64)

    def differ(self, left: Any, right: Any) -> Any:
        return self._np.asarray(left) != self._np.asarray(right)

    def same_bits(self, left: Any, right: Any) -> bool:
        return bool(left.tobytes() == right.tobytes()) if isinstance(left, self._np.ndarray) else bool(left == right)

    def check_kind(self, array: Any, param: Param) -> str | None:
        if not isinstance(array, self._np.ndarray):
            return f"is not a numpy array but {type(array).__name__}"
        return None if str(array.dtype) == param.dtype else f"has dtype {array.dtype}, the kernel takes {param.dtype}"

    def synchronize(self) -> None:
        pass

    def _draw(self, draw: Draw, shape: tuple[int, ...], dtype_name: str, generator: Any) -> Any:
        np, dtype = self._np, self._dtype(dtype_name)
        if draw.kind == "constant":
            return np.full(shape, draw.a, dtype)
        if draw.kind == "bytes":
            return generator.integers(draw.a, draw.b, shape, np.uint8).view(dtype)
        if draw.kind == "integers":
            wide = np.uint64 if draw.b > 1 << 63 else np.int64
            return generator.integers(draw.a, draw.b - 1, shape, wide, endpoint=True).astype(dtype)
        if draw.kind == "uniform":
            return generator.uniform(draw.a, draw.b, shape).astype(dtype)
        values = generator.normal(draw.a, draw.b, shape)
        if kind_of(dtype_name) in ("int", "uint"):
            values = np.rint(abs(values) if dtype_name.startswith("uint") else values)
        return values.astype(dtype)

    def _lay_out(self, dense: Any, param: Param, sizes: Mapping[str, int]) -> Any:
        strides = _strides(param, sizes)
        if strides is None:
            return dense
        flat = self._np.zeros(_span(dense.shape, strides), dense.dtype)
        laid = self._np.ndarray(dense.shape, dense.dtype, flat, 0, [s * dense.dtype.itemsize for s in strides])
        laid[...] = dense
        return laid

    def _raw(self, array: Any) -> tuple[Any, int]:
        """The bytes that an array spans, as a view, and where among them its first element is."""
        reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
        low = sum(min(0, r) for r in reach)
        count = sum(max(0, r) for r in reach) - low + array.dtype.itemsize if array.size else 0
        if count == 0:
            return self._np.empty(0, self._np.uint8), 0
        return self._np.frombuffer((ctypes.c_uint8 * count).from_address(array.ctypes.data + low), self._np.uint8), -low

    def _dtype(self, name: str) -> Any:
        if hasattr(self._np, name) or name == "bool":
            return self._np.dtype(name)
        if name.startswith("float4"):
            raise SpecError("inputs", f"numpy has no packed {name}", "Install torch, which has one.")
        import ml_dtypes

        return self._np.dtype(getattr(ml_dtypes, name))


class TorchArrays:
    """Tensors of torch on one device, ``"cpu"`` or ``"cuda:0"``."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def supply(self, param: Param, sizes: Mapping[str, int], index: int, supply: Supply) -> Any:
        shape, draw = _sizes(param, sizes), draw_for(param, supply)
        seed = (supply.seed * 1_000_003 + index) & ((1 << 63) - 1)
        generator = self._torch.Generator(self._device).manual_seed(seed)
        if kind_of(param.dtype) == "float4":
            return self._draw_float4(draw, _packed(param, shape), generator)
        return self._lay_out(self._draw(draw, shape, param.dtype, generator), param, sizes)

    def adopt(self, value: Any) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return value.detach().to(self._device)
        if not hasattr(value, "__dlpack__"):
            return value.item() if hasattr(value, "item") else value  # a number, numpy's or Python's
        if type(value).__module__.partition(".")[0] == "numpy":
            name = str(value.dtype)
            if not numpy_hands_over(name):
                return (
                    torch.from_numpy(value.view(f"u{value.dtype.itemsize}")).view(getattr(torch, name)).to(self._device)
                )
            return torch.from_numpy(value).to(self._device)
        return torch.from_dlpack(value).to(self._device)

    def poisoned(self, param: Param, sizes: Mapping[str, int]) -> Any:
        torch, shape = self._torch, _sizes(param, sizes)
        if kind_of(param.dtype) == "float4":
            array = torch.empty(_packed(param, shape), dtype=torch.float4_e2m1fn_x2, device=self._device)
        else:
            array = torch.empty(shape, dtype=getattr(torch, param.dtype), device=self._device)
            array = self._lay_out(array, param, sizes)
        self.poison(array, param)
        return array

    def poison(self, array: Any, param: Param) -> None:
        if kind_of(param.dtype) == "float4":
            array.view(self._torch.uint8).fill_(0xFF)  # it has no NaN: the least number
        else:
            array.fill_(float("nan") if "float" in param.dtype else _largest(param.dtype))

    def clone(self, array: Any) -> Any:
        if not isinstance(array, self._torch.Tensor):
            return array
        if array.is_contiguous():
            return array.clone()
        return self._raw(array).clone().as_strided(array.shape, array.stride())

    def copy_into(self, destination: Any, source: Any) -> None:
        if destination.is_contiguous() and source.is_contiguous():
            destination.copy_(source)
        else:  # by the elements that the strides span, which may overlap
            self._raw(destination).copy_(self._raw(source))

    def tensor(self, value: Any) -> Any:
        tensor = self._torch.as_tensor(self.adopt(value), device=self._device)
        packed = tensor.dtype == getattr(self._torch, "float4_e2m1fn_x2", None)
        return self._unpack_float4(tensor) if packed else tensor

    def float64(self, array: Any) -> Any:
        return self.tensor(array).double()

    def differ(self, left: Any, right: Any) -> Any:
        torch = self._torch
        other = self.tensor(right).to(left.dtype)
        # CUDA compares no unsigned integers but bytes.
        signed = {f"torch.uint{bits}": f"int{bits}" for bits in (16, 32, 64)}.get(str(left.dtype))
        if signed is None:
            return left != other
        return left.view(getattr(torch, signed)) != other.view(getattr(torch, signed))

    def same_bits(self, left: Any, right: Any) -> bool:
        torch = self._torch
        if not isinstance(left, torch.Tensor):
            return bool(left == right)
        flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
        return bool(torch.equal(*flat))

    def check_kind(self, array: Any, param: Param) -> str | None:
        if not isinstance(array, self._torch.Tensor):
            return f"is not a torch tensor but {type(array).__name__}"
        if array.device != self._device:
            return f"is on {array.device}, the kernel runs on {self._device}"
        dtype = str(array.dtype).removeprefix("torch.").replace("_x2", "x2")
        taken = f"{param.dtype}x2" if param.dtype == "float4_e2m1fn" else param.dtype
        return None if dtype == taken else f"has dtype {dtype}, the kernel takes {param.dtype}"

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def _draw(self, draw: Draw, shape: tuple[int, ...], dtype_name: str, generator: Any) -> Any:
        torch = self._torch
        dtype = getattr(torch, dtype_name)
        options = {"device": self._device, "generator": generator}
        if draw.kind == "constant":
            return torch.full(shape, draw.a, dtype=dtype, device=self._device)
        if draw.kind == "bytes":
            return torch.randint(int(draw.a), int(draw.b), shape, dtype=torch.uint8, **options).view(dtype)
        if draw.kind == "integers":
            high = min(int(draw.b), (1 << 63) - 1)
            wide = torch.int8 if draw.a >= -128 and high <= 128 else torch.int64
            return torch.randint(int(draw.a), high, shape, dtype=wide, **options).to(dtype)
        short = kind_of(dtype_name) != "float"
        values = torch.empty(shape, dtype=torch.float32 if short else dtype, device=self._device)
        if draw.kind == "uniform":
            values.uniform_(draw.a, draw.b, generator=generator)
        else:
            values.normal_(draw.a, draw.b, generator=generator)
        if kind_of(dtype_name) in ("int", "uint"):
            values = (values.abs_() if dtype_name.startswith("uint") else values).round_()
        return values.to(dtype)

    def _draw_float4(self, draw: Draw, shape: tuple[int, ...], generator: Any) -> Any:
        torch = self._torch
        if draw.kind == "bytes":
            packed = self._draw(draw, shape, "uint8", generator)
        else:
            values = self._draw(draw, (*shape, 2), "float32", generator)
            nibbles = torch.bucketize(values.abs(), torch.tensor(_FLOAT4_BOUNDS, device=self._device))
            nibbles = (nibbles + 8 * (values < 0)).to(torch.uint8)
            packed = nibbles[..., 0] | nibbles[..., 1] << 4
        return packed.contiguous().view(torch.float4_e2m1fn_x2)

    def _unpack_float4(self, tensor: Any) -> Any:
        torch = self._torch
        packed = tensor.contiguous().view(torch.uint8)
        nibbles = torch.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1).long()
        table = torch.tensor(_FLOAT4_VALUES + tuple(-v for v in _FLOAT4_VALUES), device=self._device).double()
        return table[nibbles]

    def _lay_out(self, dense: Any, param: Param, sizes: Mapping[str, int]) -> Any:
        strides = _strides(param, sizes)
        if strides is None:
            return dense
        flat = self._torch.zeros(_span(dense.shape, strides), dtype=dense.dtype, device=self._device)
        laid = flat.as_strided(tuple(dense.shape), strides)
        laid.copy_(dense)
        return laid

    def _raw(self, array: Any) -> Any:
        """The elements that a tensor spans, as a view."""
        return array.as_strided((_span(array.shape, array.stride()),), (1,), array.storage_offset())


def numpy_hands_over(dtype: str) -> bool:
    """Whether numpy passes arrays of a type to a kernel: the types that its DLPack export knows."""
    return re.fullmatch(r"bool|u?int(8|16|32|64)|float(16|32|64)", dtype) is not None


def bind_sizes(params: Sequence[Param], arrays: Sequence[Any], where: str) -> dict[str, int]:
    """Values of the symbolic sizes, from the tensors that are there (None for one that is not).

    Raises:
        SpecError: A tensor does not have the shape that the kernel declares.
    """
    sizes: dict[str, int] = {}
    for param, array in zip(params, arrays, strict=True):
        if array is None or param.shape is None:
            continue
        shape = tuple(int(size) for size in array.shape)
        if param.dtype == "float4_e2m1fn" and "x2" in str(array.dtype) and shape:
            shape = (*shape[:-1], 2 * shape[-1])
        expected = tuple(
            sizes.setdefault(d, s) if isinstance(d, str) else d for d, s in zip(param.shape, shape, strict=False)
        )
        if len(shape) != len(param.shape) or shape != expected:
            what = f"tensor {param.name} has shape {shape}, the kernel takes {param.shape}"
            raise SpecError(where, what, "Mend the inputs function.")
    return sizes


def _sizes(param: Param, sizes: Mapping[str, int]) -> tuple[int, ...]:
    if param.shape is None:
        raise SpecError(f"scalar {param.name}", "is an input that no generated value suits", _GIVE_INPUTS)
    free = [size for size in param.shape if isinstance(size, str) and size not in sizes]
    if free:
        remedy = _GIVE_INPUTS if free[0].isidentifier() else _GIVE_OUTPUTS
        raise SpecError(f"tensor {param.name}", f"must have a static shape, but got {free[0]}", remedy)
    return tuple(sizes[size] if isinstance(size, str) else size for size in param.shape)


def _packed(param: Param, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the packed tensor of a float4 parameter, two elements to a byte along the last dimension."""
    if param.dtype.endswith("x2"):
        return shape
    if not shape or shape[-1] % 2:
        raise SpecError("inputs", f"tensor {param.name} has shape {shape}", "float4 needs an even last size.")
    return (*shape[:-1], shape[-1] // 2)


def _strides(param: Param, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Strides of a tensor that is not compact and row-major, in elements; a symbolic stride is as compact as it can be."""
    if param.strides is None:
        return None
    strides: list[int] = []
    compact = 1
    for size, stride in zip(reversed(_sizes(param, sizes)), reversed(param.strides), strict=True):
        strides.append(compact if isinstance(stride, str) else stride)
        compact = max(compact, strides[-1] * max(size, 1))
    return tuple(reversed(strides))


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Number of elements between the first and the last, both included."""
    if 0 in tuple(shape):
        return 0
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1


def _largest(dtype: str) -> int:
    if dtype == "bool":
        return 1
    match = re.search(r"\d+", dtype)
    bits = int(match[0]) if match else 8
    return (1 << bits) - 1 if dtype.startswith("uint") else (1 << (bits - 1)) - 1
