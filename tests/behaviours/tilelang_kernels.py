"""The same small kernels in TileLang, for its ``c`` target."""

# No postponed annotations: TileLang evaluates those of the kernels.

import os
import time
from typing import Any, ClassVar

import tilelang
import tilelang.language as T  # noqa: N812

CALLS: list[str] = []  # of functions that tests pass on; where tuning runs in this process, it is the same list


def scale(N: int, factor: float = 2.0, tile: int = 1, mode: str = "right") -> Any:
    """B = factor * A; ``mode`` says how a candidate goes wrong."""
    if mode == "raise":
        raise ValueError(f"mode {mode} refuses N={N}")
    if mode == "exit":
        os._exit(3)
    if mode == "hang":

        @T.prim_func
        def scale(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
            with T.Kernel(1):
                for i in T.serial(2000000000):
                    for j in T.serial(2000000000):
                        B[j % N] = B[i % N] + A[j % N]

        return scale
    if mode == "segfault":

        @T.prim_func
        def scale(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
            with T.Kernel(1):
                for i in T.serial(2000000000):
                    B[i] = A[i % N]

        return scale
    wrong = 1.01 if mode == "wrong" else 1.0

    @T.prim_func
    def scale(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N // tile) as bx:
            for i in T.serial(tile):
                B[bx * tile + i] = A[bx * tile + i] * (factor * wrong)

    return scale


def increment(N: int, tile: int = 1) -> Any:
    """In place, A += 1."""

    @T.prim_func
    def increment(A: T.Tensor((N,), "float32")):
        with T.Kernel(N // tile) as bx:
            for i in T.serial(tile):
                A[bx * tile + i] = A[bx * tile + i] + 1.0

    return increment


def repeated(N: int, times: int = 1) -> Any:
    """B = A, after some more work for larger ``times``."""

    @T.prim_func
    def repeated(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                B[i] = 0.0
            for _t in T.serial(times):
                for i in T.serial(N):
                    B[i] = B[i] * 0.5 + A[N - 1 - i] * 0.5
            for i in T.serial(N):
                B[i] = A[i]

    return repeated


def mixed(N: int, tile: int = 1) -> Any:
    """B = A * s, of a tensor and a scalar."""

    @T.prim_func
    def mixed(A: T.Tensor((N,), "float32"), s: T.float32, B: T.Tensor((N,), "float32")):
        with T.Kernel(N // tile) as bx:
            for i in T.serial(tile):
                B[bx * tile + i] = A[bx * tile + i] * s

    return mixed


def dynamic(tile: int = 1) -> Any:
    """B = 2 A of any length."""
    m = T.dynamic("m")

    @T.prim_func
    def dynamic(A: T.Tensor((m,), "float32"), B: T.Tensor((m,), "float32")):
        with T.Kernel(m) as bx:
            B[bx] = A[bx] * 2.0

    return dynamic


@tilelang.jit(out_idx=[-1], target="c")
def jitted(N: int, tile: int = 1, dtype: str = "float32") -> Any:
    @T.prim_func
    def jitted(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(N // tile) as bx:
            for i in T.serial(tile):
                B[bx * tile + i] = A[bx * tile + i] * 2.0

    return jitted


@tilelang.jit(target="c")
def eager(A, tile: int = 1):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], T.float32]
    B = T.empty((M, N), "float32")
    with T.Kernel(M) as bx:
        for j in T.serial(N):
            B[bx, j] = A[bx, j] * 2.0
    return B


def gemm(M: int, N: int, K: int, block_M: int = 16, block_N: int = 16, block_K: int = 8) -> Any:
    """The article's GEMM in the form that the CPU has: tiles in local memory."""

    @T.prim_func
    def main(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
            tile_a = T.alloc_local((block_M, block_K), "float32")
            tile_b = T.alloc_local((block_K, block_N), "float32")
            tile_c = T.alloc_local((block_M, block_N), "float32")
            T.clear(tile_c)
            for k in T.serial(T.ceildiv(K, block_K)):
                T.copy(A[by * block_M, k * block_K], tile_a)
                T.copy(B[k * block_K, bx * block_N], tile_b)
                T.gemm(tile_a, tile_b, tile_c)
            T.copy(tile_c, C[by * block_M, bx * block_N])

    return main


@tilelang.jit(out_idx=[-1], target="c")
def matmul(M: int, N: int, K: int, block_M: int = 16, block_N: int = 16, block_K: int = 8) -> Any:
    @T.prim_func
    def main(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
            tile_a = T.alloc_local((block_M, block_K), "float32")
            tile_b = T.alloc_local((block_K, block_N), "float32")
            tile_c = T.alloc_local((block_M, block_N), "float32")
            T.clear(tile_c)
            for k in T.serial(T.ceildiv(K, block_K)):
                T.copy(A[by * block_M, k * block_K], tile_a)
                T.copy(B[k * block_K, bx * block_N], tile_b)
                T.gemm(tile_a, tile_b, tile_c)
            T.copy(tile_c, C[by * block_M, bx * block_N])

    return main


class Article:
    """What the article's examples need, for the CPU."""

    target, size, device, dtype = "c", 32, "cpu", "float32"
    pass_configs: ClassVar = {"tl.disable_safe_memory_legalize": False}
    timing: ClassVar = {"warmup": 0.2, "rep": 0.5, "timeout": 60}
    gemm, matmul = staticmethod(gemm), matmul
    small: ClassVar = {"block_M": 8}
    large: ClassVar = {"block_M": 16}

    @staticmethod
    def configs(M: int, N: int, K: int) -> list[dict[str, Any]]:
        return [{"block_M": m, "block_K": k} for m in (8, 16) for k in (8, 16)]


def sleep_then_scale(N: int, tile: int = 1, folder: str = "", seconds: float = 0.0, dies: bool = False) -> Any:
    """Leaves in a folder when it ran; may take its process along."""
    begin = time.time()
    time.sleep(seconds)
    with open(os.path.join(folder, f"{tile}"), "w", encoding="ascii") as file:
        file.write(f"{begin} {time.time()}")
    return scale(N, tile=tile, mode="exit" if dies else "right")
