"""The kernels that benchmarks/tuning.py tunes, in TileLang: the article's float16 GEMM, and a tiny one to warm up with."""

# TileLang traces the decorated functions; their annotations are values, not Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, valid-type, misc"

from collections.abc import Callable
from typing import Any

import tilelang.language as T  # noqa: N812


def matmul(
    M: int,
    N: int,
    K: int,
    block_M: int = 128,
    block_N: int = 128,
    block_K: int = 32,
    num_stages: int = 3,
    threads: int = 128,
    dtype: str = "float16",
) -> Any:
    """``C[M, N] = A[M, K] @ B[K, N]``, accumulated in float32, as the article has it."""

    @T.prim_func
    def matmul(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            tile_a = T.alloc_shared((block_M, block_K), dtype)
            tile_b = T.alloc_shared((block_K, block_N), dtype)
            sums = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(sums)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], tile_a)
                T.copy(B[k * block_K, bx * block_N], tile_b)
                T.gemm(tile_a, tile_b, sums)
            T.copy(sums, C[by * block_M, bx * block_N])

    return matmul


def matmul_of(M: int, N: int, K: int) -> Callable[..., Any]:
    """The factory of one shape: a plain function of the tunables, which TileLang's AutoTuner wants."""

    def kernel(block_M=128, block_N=128, block_K=32, num_stages=3, threads=128):
        return matmul(M, N, K, block_M, block_N, block_K, num_stages, threads)

    return kernel


def double(threads: int = 128) -> Any:
    """``Y = X + X`` of 1024 numbers."""

    @T.prim_func
    def double(X: T.Tensor((1024,), "float32"), Y: T.Tensor((1024,), "float32")):
        with T.Kernel(1, threads=threads):
            for i in T.Parallel(1024):
                Y[i] = X[i] + X[i]

    return double


def matmul_reference(a: Any, b: Any) -> Any:
    return a @ b


def double_reference(x: Any) -> Any:
    return x + x
