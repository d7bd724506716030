"""The GEMM of the article on TileLang's autotuner, for CUDA."""

# No postponed annotations: TileLang evaluates those of the kernels.

import functools
import itertools
from typing import Any, ClassVar

import tilelang
import tilelang.language as T  # noqa: N812

import tlaot


def gemm(
    M: int,
    N: int,
    K: int,
    block_M: int = 128,
    block_N: int = 128,
    block_K: int = 32,
    threads: int = 128,
    num_stages: int = 3,
    dtype: str = "float16",
    accum_dtype: str = "float32",
) -> Any:
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


@tilelang.jit(out_idx=[-1])
def matmul(
    M: int,
    N: int,
    K: int,
    block_M: int = 128,
    block_N: int = 128,
    block_K: int = 32,
    threads: int = 128,
    num_stages: int = 3,
    dtype: str = "float16",
    accum_dtype: str = "float32",
) -> Any:
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


class Article:
    """What the article's examples need, for a GPU."""

    target, size, device, dtype = "auto", 1024, "cuda", "float16"
    pass_configs: ClassVar = {"tl.disable_warp_specialized": True}
    timing: ClassVar = {"warmup": 25, "rep": 100, "timeout": 60}
    gemm, matmul = staticmethod(gemm), matmul
    small: ClassVar = {"block_M": 64}
    large: ClassVar = {"block_M": 128}

    @staticmethod
    def configs(M: int, N: int, K: int) -> list[dict[str, Any]]:
        space = itertools.product((64, 128), (64, 128), (32, 64), (2, 3), (128, 256))
        names = ("block_M", "block_N", "block_K", "num_stages", "threads")
        return [dict(zip(names, values, strict=True)) for values in space]


def tune_matmul(size: int, **profile: Any) -> tlaot.AutotuneResult:
    """Tune the GEMM over two configs."""
    tuner = tlaot.AutoTuner.from_kernel(functools.partial(gemm, size, size, size), [{"block_M": 64}, {"block_M": 128}])
    tuner.set_compile_args(out_idx=[-1])
    return tuner.set_profile_args(**{"warmup": 5, "rep": 20, **profile}).run()


def compile_matmul(arguments: tlaot.CompileArgs) -> Any:
    (kernel,) = tlaot.par_compile(matmul, [(1024, 1024, 1024)], compile_args=arguments)
    return kernel
