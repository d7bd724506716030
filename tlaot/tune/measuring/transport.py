"""Tensors on their way to the measuring child: a file of raw bytes, and a description that is plain JSON.

Element type, shape and strides survive, gaps between elements included. The child maps the file instead of reading it, so that
a tensor that stays on the CPU is in memory once.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ...errors import SpecError

__all__ = ["carried", "read_tensors", "write_tensors"]

_DATA = "tensors.bin"
_PAGE = 4096  # every tensor starts on a page: as aligned as any allocator makes it
_CHUNK = 64 << 20  # bytes of a device tensor that are in host memory at a time
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class _Stored:
    """One tensor: ``nbytes`` at ``start`` of the file, of which ``first`` is where element 0 is; strides in bytes."""

    library: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    nbytes: int
    first: int


@contextmanager
def carried(values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Write values to a private folder, in shared memory where there is room, and remove it at the end.

    Args:
        values: Tensors of torch, numpy or anything with ``__dlpack__``; numbers.

    Yields:
        The description for :func:`read_tensors`.
    """
    folder = Path(tempfile.mkdtemp(prefix="tlaot-inputs-", dir=_roomy(sum(map(_bytes_of, values)))))
    try:
        yield write_tensors(values, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_tensors(values: Sequence[Any], folder: Path) -> dict[str, Any]:
    """Write tensors and numbers for another process.

    Args:
        values: Tensors of torch, numpy or anything with ``__dlpack__``; numbers.
        folder: Takes the file; it must outlive the readers' use of the tensors.

    Returns:
        The description, which is plain JSON.

    Raises:
        SpecError: A value is no dense tensor and no number.
    """
    path = Path(folder) / _DATA
    items: list[dict[str, Any]] = []
    with path.open("wb") as file:
        for position, value in enumerate(values):
            items.append(_write(file, value, f"input {position}"))
        file.truncate(file.tell() + 1)  # an empty file cannot be mapped
    return {"file": str(path), "items": items}


def read_tensors(description: Mapping[str, Any], device: str) -> list[Any]:
    """The values that were written, in order.

    Args:
        description: What :func:`write_tensors` returned.
        device: Where the values are wanted: on ``"cuda:0"`` every tensor becomes a torch tensor there; on ``"cpu"`` numpy arrays stay
            numpy's. They may be written to, which changes nothing in the file.
    """
    tensors = [item for item in description["items"] if "number" not in item]
    if not tensors:
        return [item["number"] for item in description["items"]]
    import numpy

    mapped = numpy.memmap(description["file"], numpy.uint8, "c")
    return [
        item["number"] if "number" in item else _read(numpy, mapped, _stored(item), device)
        for item in description["items"]
    ]


def _write(file: IO[bytes], value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, (bool, int, float)):
        return {"number": value}
    if _comes_from(value, "torch", "Tensor"):
        return asdict(_write_torch(file, value, where))
    if not _comes_from(value, "numpy", "ndarray"):
        if _comes_from(value, "numpy", "generic"):
            return {"number": value.item()}
        if not hasattr(value, "__dlpack__"):
            raise SpecError(where, f"is no tensor and no number but {type(value).__name__}", "Pass a tensor.")
        return _write(file, _import_dlpack(value), where)
    return asdict(_write_numpy(file, value, where))


def _import_dlpack(value: Any) -> Any:
    if "torch" in sys.modules:
        return sys.modules["torch"].from_dlpack(value)
    import numpy

    return numpy.from_dlpack(value)


def _write_torch(file: IO[bytes], tensor: Any, where: str) -> _Stored:
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise SpecError(where, f"is a tensor of layout {tensor.layout} on {tensor.device}", "Pass a dense one.")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    size, strides = tensor.element_size(), tuple(tensor.stride())
    count = _span(tensor.shape, strides)
    flat = tensor.as_strided((count,), (1,), tensor.storage_offset()).view(torch.uint8)
    start = _to_page(file)
    for begin in range(0, count * size, _CHUNK):
        file.write(flat[begin : begin + _CHUNK].cpu().numpy())
    return _Stored(
        "torch",
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tuple(stride * size for stride in strides),
        start,
        count * size,
        0,
    )


def _write_numpy(file: IO[bytes], array: Any, where: str) -> _Stored:
    if array.dtype.hasobject or array.dtype.names is not None or not array.dtype.isnative:
        raise SpecError(where, f"is an array of dtype {array.dtype}", "Pass numbers in this machine's byte order.")
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(min(0, r) for r in reach)
    count = sum(max(0, r) for r in reach) - low + array.dtype.itemsize if array.size else 0
    start = _to_page(file)
    if count:
        file.write((ctypes.c_uint8 * count).from_address(array.ctypes.data + low))
    return _Stored("numpy", array.dtype.name, array.shape, array.strides, start, count, -low if count else 0)


def _read(numpy: Any, mapped: Any, stored: _Stored, device: str) -> Any:
    raw = mapped[stored.start : stored.start + stored.nbytes]
    if device == "cpu" and stored.library == "numpy":
        dtype = _numpy_dtype(numpy, stored.dtype)
        return numpy.ndarray(stored.shape, dtype, raw, stored.first, stored.strides)
    import torch

    name, shape, strides, first = stored.dtype, stored.shape, stored.strides, stored.first
    if any(stride < 0 for stride in strides):  # torch has no negative strides
        array = numpy.ndarray(shape, _numpy_dtype(numpy, name), raw, first, strides).copy()
        raw, strides, first = array.reshape(-1).view(numpy.uint8), array.strides, 0
    dtype = getattr(torch, name)
    size = dtype.itemsize
    if any(stride % size for stride in (*strides, first)):
        raise SpecError("inputs", f"an array of dtype {name} has strides {strides}", "Pass a copy of it.")
    flat = torch.from_numpy(raw).to(device) if len(raw) else torch.empty(0, dtype=torch.uint8, device=device)
    return flat.view(dtype).as_strided(shape, tuple(stride // size for stride in strides), first // size)


def _stored(item: Mapping[str, Any]) -> _Stored:
    return _Stored(**{**item, "shape": tuple(item["shape"]), "strides": tuple(item["strides"])})


def _numpy_dtype(numpy: Any, name: str) -> Any:
    if hasattr(numpy, name) or name == "bool":
        return numpy.dtype(name)
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, name))


def _to_page(file: IO[bytes]) -> int:
    start = -(-file.tell() // _PAGE) * _PAGE
    file.seek(start)
    return start


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in tuple(shape):
        return 0
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1


def _comes_from(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a library's type, without importing the library: whoever made the value has."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _bytes_of(value: Any) -> int:
    """About how large a tensor is; the strides' gaps are not counted."""
    return int(getattr(value, "nbytes", 0) or 0)


def _roomy(needed: int) -> str:
    """Shared memory where the tensors take at most half of what is free there, else the folder for temporary files."""
    try:
        free = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:
        return tempfile.gettempdir()
    writable = os.access(_SHARED_MEMORY, os.W_OK)
    return str(_SHARED_MEMORY) if writable and 2 * needed < free else tempfile.gettempdir()
