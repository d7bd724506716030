"""What of a launch's arguments makes it another kind of launch: dtypes, shapes, strides, alignment, device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Describe", "as_plain", "describe_types", "learn"]

Describe = Callable[[Any], Any]

# Addresses beyond this alignment are not told apart: no load of a GPU asks for more of a tensor's address.
_ALIGNMENTS = {0: 16, 8: 8, 4: 4, 12: 4, **dict.fromkeys((2, 6, 10, 14), 2)}

# By the argument's type; filled as types are met.
describe_types: dict[type, Describe] = {}


def learn(value: Any) -> Describe:
    """How arguments of a value's type are described; remembered in :data:`describe_types`."""
    kind = type(value)
    if hasattr(value, "data_ptr") and hasattr(value, "stride") and hasattr(value, "shape"):
        found: Describe = _torch_tensor
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        found = _other_array
    else:
        found = _scalar
    describe_types[kind] = found
    return found


def _torch_tensor(tensor: Any) -> Any:
    try:
        low = tensor.data_ptr() & 15
    except RuntimeError:
        low = 0  # one that has no memory: a fake, or a functional one
    return tensor.dtype, tensor.shape, tensor.stride(), low, tensor.device


def _other_array(array: Any) -> Any:
    strides = getattr(array, "strides", None)
    size = getattr(array, "itemsize", None) or 1
    elements = None if strides is None else tuple(stride // size for stride in strides)
    return str(array.dtype), tuple(array.shape), elements, 0, str(getattr(array, "device", "cpu"))


def _scalar(value: Any) -> Any:
    # Not its value: a scalar of each call would make each call a kind of its own.
    return type(value).__name__


def as_plain(described: Sequence[Any]) -> list[Any]:
    """Descriptions as JSON has them, and :class:`~tlaot.capturing.recording.Argument` reads them."""
    return [_plain(one) for one in described]


def _plain(one: Any) -> Any:
    if isinstance(one, str):
        return {"scalar": one}
    dtype, shape, strides, low, device = one
    shape = [int(size) for size in shape]
    plain: dict[str, Any] = {
        "dtype": str(dtype).rpartition(".")[2],
        "shape": shape,
        "device": str(device),
        "align": _ALIGNMENTS.get(low, 1),
    }
    if strides is not None and list(strides) != _dense(shape):
        plain["strides"] = [int(stride) for stride in strides]
    return plain


def _dense(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
