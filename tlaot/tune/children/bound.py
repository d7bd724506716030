"""A factory with arguments that a request, which is JSON, cannot carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Bound", "TensorLayout"]


@dataclass(frozen=True)
class Bound:
    """A factory, with arguments and configs of kinds that JSON has not; it travels to a worker in a parcel.

    Attributes:
        factory: The factory.
        arguments: Further arguments that make the workload.
        configs: All candidates, where a request says ``{"config_index": 3}`` instead of a config; None where it says the config.
    """

    factory: Callable[..., Any]
    arguments: Mapping[str, Any]
    configs: tuple[Mapping[str, Any], ...] | None

    def unwrap(
        self, shape: Mapping[str, Any], config: Mapping[str, Any]
    ) -> tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]:
        """The factory, and shape and config as the author wrote them."""
        chosen = config if self.configs is None else self.configs[config["config_index"]]
        return self.factory, {**self.arguments, **shape}, dict(chosen)


@dataclass(frozen=True)
class TensorLayout:
    """What a kernel's shape can depend on of a tensor that it was called with: a worker needs no more, and has no device.

    Attributes:
        shape: Sizes.
        strides: Strides in elements.
        dtype: Name of the element type.
        device: Name of the device, as the tensor's own library writes it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str

    @classmethod
    def of(cls, tensor: Any) -> TensorLayout:
        """The layout of a torch or NumPy tensor, or of anything else that has a shape and a dtype."""
        shape = tuple(int(size) for size in tensor.shape)
        if callable(getattr(tensor, "stride", None)):
            strides = tuple(int(step) for step in tensor.stride())
        elif getattr(tensor, "strides", None) is not None:
            strides = tuple(int(step) // tensor.dtype.itemsize for step in tensor.strides)
        else:
            strides = _compact(shape)
        return cls(shape, strides, str(tensor.dtype).rpartition(".")[2], str(getattr(tensor, "device", "")))

    def stride(self) -> tuple[int, ...]:
        """Strides in elements, as a torch tensor says them."""
        return self.strides


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
