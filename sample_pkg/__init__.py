"""A package that ships tuned kernels: matmul, softmax and rms_norm, on the CPU and on CUDA.

    import sample_pkg
    c = sample_pkg.matmul(a, b)

Each function runs the packaged kernel that fits the device, the dtype and the shape of its arguments (float32 on the
CPU, float16 and bfloat16 on CUDA; ``python -m sample_pkg`` lists the shapes). Importing the package loads nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tlaot import Kernels

__all__ = ["kernels", "matmul", "rms_norm", "softmax"]


@cache
def kernels() -> Kernels:
    """The packaged kernels, read at the first use."""
    import tlaot

    return tlaot.load(__name__)


def matmul(a: Any, b: Any) -> Any:
    """``a @ b``.

    Args:
        a: ``[M, K]``, a torch tensor, numpy array or anything with ``__dlpack__``.
        b: ``[K, N]``, of the same dtype, on the same device.

    Returns:
        ``[M, N]``, of the same framework, on the same device.

    Raises:
        tlaot.DispatchError: No kernel was packaged for this device, dtype or shape.
    """
    return kernels().matmul(a, b)


def softmax(x: Any) -> Any:
    """Softmax over the last axis.

    Args:
        x: ``[M, N]``.

    Returns:
        ``[M, N]``.

    Raises:
        tlaot.DispatchError: No kernel was packaged for this device, dtype or shape.
    """
    return kernels().softmax(x)


def rms_norm(x: Any, w: Any) -> Any:
    """``x / sqrt(mean(x**2) + 1e-6) * w`` over the last axis.

    Args:
        x: ``[M, N]``.
        w: The weight, ``[N]``, of the same dtype, on the same device.

    Returns:
        ``[M, N]``.

    Raises:
        tlaot.DispatchError: No kernel was packaged for this device, dtype or shape.
    """
    return kernels().rms_norm(x, w)
