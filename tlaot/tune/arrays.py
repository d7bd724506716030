"""Tensors for checking and timing: numpy on the CPU, torch on CUDA, behind the same few functions.

Runs in the measuring child. Everything is made from a seed, so that every candidate of a workload and every build sees the same data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..errors import SpecError
from ..manifest import Param

__all__ = ["Arrays", "NumpyArrays", "TorchArrays", "bind_sizes"]

_SEED = 20240229


class Arrays(Protocol):
    """What checking needs of an array library."""

    def random(self, param: Param, sizes: Mapping[str, int], index: int) -> Any:
        """Inputs of a parameter: floats uniform in [-1, 1), integers in [-2, 2], unsigned in [0, 2]; a scalar is a Python number."""

    def poisoned(self, param: Param, sizes: Mapping[str, int]) -> Any:
        """A tensor that no kernel leaves behind by chance: NaN, or the largest integer."""

    def clone(self, array: Any) -> Any: ...

    def copy_into(self, destination: Any, source: Any) -> None: ...

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

    def random(self, param: Param, sizes: Mapping[str, int], index: int) -> Any:
        generator = self._np.random.default_rng(_SEED + index)
        if param.shape is None:
            return _scalar(param)
        shape, dtype = _sizes(param, sizes), self._dtype(param.dtype)
        if param.dtype.startswith(("float", "bfloat")):
            return generator.uniform(-1.0, 1.0, shape).astype(dtype)
        low, high = _integer_range(param.dtype)
        return generator.integers(low, high, shape).astype(dtype)

    def poisoned(self, param: Param, sizes: Mapping[str, int]) -> Any:
        dtype = self._dtype(param.dtype)
        value = float("nan") if param.dtype.startswith(("float", "bfloat")) else _largest(param.dtype)
        return self._np.full(_sizes(param, sizes), value, dtype=dtype)

    def clone(self, array: Any) -> Any:
        return array.copy() if isinstance(array, self._np.ndarray) else array

    def copy_into(self, destination: Any, source: Any) -> None:
        destination[...] = source

    def float64(self, array: Any) -> Any:
        return self._np.asarray(array).astype(self._np.float64)

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

    def _dtype(self, name: str) -> Any:
        if hasattr(self._np, name) or name == "bool":
            return self._np.dtype(name)
        import ml_dtypes

        return self._np.dtype(getattr(ml_dtypes, name))


class TorchArrays:
    """Tensors on one CUDA device."""

    def __init__(self, device: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", device)
        torch.cuda.set_device(self._device)

    def random(self, param: Param, sizes: Mapping[str, int], index: int) -> Any:
        torch = self._torch
        if param.shape is None:
            return _scalar(param)
        generator = torch.Generator(self._device).manual_seed(_SEED + index)
        shape, dtype = _sizes(param, sizes), getattr(torch, param.dtype)
        if param.dtype.startswith(("float", "bfloat")):
            values = torch.rand(shape, generator=generator, device=self._device, dtype=torch.float32) * 2 - 1
            return values.to(dtype)
        low, high = _integer_range(param.dtype)
        return torch.randint(low, high, shape, generator=generator, device=self._device).to(dtype)

    def poisoned(self, param: Param, sizes: Mapping[str, int]) -> Any:
        torch = self._torch
        dtype = getattr(torch, param.dtype)
        if param.dtype.startswith(("float", "bfloat")):
            return torch.full(_sizes(param, sizes), float("nan"), device=self._device).to(dtype)
        return torch.full(_sizes(param, sizes), _largest(param.dtype), dtype=dtype, device=self._device)

    def clone(self, array: Any) -> Any:
        return array.clone() if isinstance(array, self._torch.Tensor) else array

    def copy_into(self, destination: Any, source: Any) -> None:
        destination.copy_(source)

    def float64(self, array: Any) -> Any:
        return self._torch.as_tensor(array, device=self._device).double()

    def differ(self, left: Any, right: Any) -> Any:
        return left != self._torch.as_tensor(right, device=self._device)

    def same_bits(self, left: Any, right: Any) -> bool:
        torch = self._torch
        if not isinstance(left, torch.Tensor):
            return bool(left == right)
        return bool(torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)))

    def check_kind(self, array: Any, param: Param) -> str | None:
        if not isinstance(array, self._torch.Tensor):
            return f"is not a torch tensor but {type(array).__name__}"
        if array.device != self._device:
            return f"is on {array.device}, the kernel runs on {self._device}"
        dtype = str(array.dtype).removeprefix("torch.")
        return None if dtype == param.dtype else f"has dtype {dtype}, the kernel takes {param.dtype}"

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self._device)


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
        expected = tuple(
            sizes.setdefault(d, s) if isinstance(d, str) else d for d, s in zip(param.shape, shape, strict=False)
        )
        if len(shape) != len(param.shape) or shape != expected:
            raise SpecError(
                where,
                f"tensor {param.name} has shape {shape}, the kernel takes {param.shape}",
                "Mend the inputs function.",
            )
    return sizes


def _sizes(param: Param, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert param.shape is not None
    free = [size for size in param.shape if isinstance(size, str) and size not in sizes]
    if free:
        raise SpecError(
            f"tensor {param.name}",
            f"has the symbolic size {free[0]}",
            'Name an inputs function: inputs = "module:function".',
        )
    return tuple(sizes[size] if isinstance(size, str) else size for size in param.shape)


def _scalar(param: Param) -> Any:
    raise SpecError(
        f"scalar {param.name}",
        "is an input that no random value suits",
        'Name a function that returns the inputs: inputs = "module:function".',
    )


def _integer_range(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 2
    return (0, 3) if dtype.startswith("uint") else (-2, 3)


def _largest(dtype: str) -> int:
    if dtype == "bool":
        return 1
    match = re.search(r"\d+", dtype)
    bits = int(match[0]) if match else 8
    return (1 << bits) - 1 if dtype.startswith("uint") else (1 << (bits - 1)) - 1
