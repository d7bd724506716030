"""Packaged kernels as operators of torch.

    import tlaot.torch
    tlaot.torch.register("sample_pkg")
    c = torch.ops.sample_pkg.matmul(a, b)         # in torch.compile(fullgraph=True) and torch.export too

This module imports torch; ``import tlaot`` does not.
"""

from __future__ import annotations

from .library import Registration, register

__all__ = ["Registration", "register"]
