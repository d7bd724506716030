"""References of the sample's kernels, at a higher precision than the kernels'.

They take numpy arrays, or torch tensors on any device, and return the same kind. torch is touched
only where an argument is already a torch tensor; it is never imported from here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["matmul", "rms_norm", "softmax"]


def matmul(a: Any, b: Any) -> Any:
    """``a @ b``, summed in float64, rounded once to the type of ``a``.

    Args:
        a: ``[M, K]``.
        b: ``[K, N]``.
    """
    return _round_to(_widen(a) @ _widen(b), a)


def softmax(x: Any) -> Any:
    """Softmax over the last axis, in float64, rounded once to the type of ``x``."""
    wide = _widen(x)
    if _is_torch(x):
        return _round_to(wide.softmax(dim=-1), x)
    exps = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return _round_to(exps / exps.sum(axis=-1, keepdims=True), x)


def rms_norm(x: Any, w: Any, eps: float = 1e-6) -> Any:
    """``x / sqrt(mean(x**2) + eps) * w`` over the last axis, in float64, rounded once to the type of ``x``.

    Args:
        x: ``[..., N]``.
        w: The weight, ``[N]``.
        eps: Added to the mean square.
    """
    wide = _widen(x)
    mean = (wide * wide).mean(-1)[..., None]
    return _round_to(wide / (mean + eps) ** 0.5 * _widen(w), x)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _widen(value: Any) -> Any:
    return value.double() if _is_torch(value) else np.asarray(value).astype(np.float64)


def _round_to(value: Any, like: Any) -> Any:
    return value.to(like.dtype) if _is_torch(like) else value.astype(np.asarray(like).dtype)
