"""Configs for a matmul whose number of rows changes from call to call, as that of tokens does where a model is served."""

from __future__ import annotations

from typing import Any

from . import cuda

__all__ = ["matmul_configs"]

# Up to so many rows, reading B takes all the time there is: low and narrow tiles, which occupy all multiprocessors.
_FEW_ROWS = 256
_LOW = ((16, 64, 64, 4, 128), (16, 32, 128, 4, 128), (32, 64, 64, 4, 128), (64, 32, 64, 4, 128), (64, 64, 64, 4, 128))


def matmul_configs(M: int, N: int, K: int) -> list[dict[str, Any]]:
    """Configs of :func:`sample_pkg.cuda.matmul` for one number of rows; a dynamic kernel has those of all its sizes."""
    configs = cuda.matmul_configs(M, N, K)
    if M <= _FEW_ROWS:
        keys = ("block_M", "block_N", "block_K", "num_stages", "threads")
        configs += [dict(zip(keys, values, strict=True)) for values in _LOW]
    return configs
