"""TileLang kernels whose launches carry attributes; imported in a child process only, as tilelang_cases is."""

# No postponed annotations here: TileLang evaluates those of the kernels, with the sizes of the enclosing function.

from collections.abc import Mapping
from typing import Any

import tilelang.language as T  # noqa: N812

from tlaot.target import parse_target
from tlaot.tune.frontends import Lowered, import_frontend


def lower(case: str, target: str, sizes: Mapping[str, Any] | None = None) -> Lowered:
    """Lower one of the factories below."""
    return import_frontend("tilelang").lower(globals()[case], sizes or {}, {}, parse_target(target))


def cluster_exchange() -> Any:
    """B's block of rows is that of the neighbour in the cluster of two, fetched from the neighbour's shared memory."""

    @T.prim_func
    def cluster_exchange(A: T.Tensor((1024, 128), "float16"), B: T.Tensor((1024, 128), "float16")):
        with T.Kernel(8, threads=128, cluster_dims=(2, 1, 1)) as bx:
            mine = T.alloc_shared((128, 128), "float16")
            theirs = T.alloc_shared((128, 128), "float16")
            arrived = T.alloc_cluster_barrier([1])
            T.copy(A[bx * 128, 0], mine)
            T.cluster_sync()
            T.copy_cluster(mine, theirs, dst_block=1 - bx % 2, remote_barrier=arrived[0])
            T.mbarrier_wait_parity(arrived[0], 0)
            T.copy(theirs, B[bx * 128, 0])
            T.cluster_sync()

    return cluster_exchange


def chained() -> Any:
    """C = A + 2 in two kernels, the second launched while the first still runs."""

    @T.prim_func
    def chained(
        A: T.Tensor((4096, 128), "float32"), B: T.Tensor((4096, 128), "float32"), C: T.Tensor((4096, 128), "float32")
    ):
        with T.Kernel(32, threads=128) as bx:
            T.pdl_trigger()
            for i, j in T.Parallel(128, 128):
                B[bx * 128 + i, j] = A[bx * 128 + i, j] + 1.0
        with T.Kernel(32, threads=128) as bx:
            T.pdl_sync()
            for i, j in T.Parallel(128, 128):
                C[bx * 128 + i, j] = B[4095 - bx * 128 - i, j] + 1.0

    return chained


def grid_exchange() -> Any:
    """C is B backwards, and B is A + 1 of other blocks: right only if all blocks wait for each other."""

    @T.prim_func
    def grid_exchange(
        A: T.Tensor((8192, 128), "float32"), B: T.Tensor((8192, 128), "float32"), C: T.Tensor((8192, 128), "float32")
    ):
        with T.Kernel(64, threads=128) as bx:
            for i, j in T.Parallel(128, 128):
                B[bx * 128 + i, j] = A[bx * 128 + i, j] + 1.0
            T.sync_grid()
            for i, j in T.Parallel(128, 128):
                C[bx * 128 + i, j] = B[8191 - bx * 128 - i, j]

    return grid_exchange


def convolution(
    N: int = 2, H: int = 14, W: int = 12, C: int = 64, F: int = 128, K: int = 3, S: int = 1, D: int = 1, P: int = 1
) -> Any:
    """A 2-D convolution, NHWC by KKCF in float16, as a product with im2col loads."""
    out_h, out_w = (H + 2 * P - D * (K - 1) - 1) // S + 1, (W + 2 * P - D * (K - 1) - 1) // S + 1
    block_m, block_n, block_k = 64, 128, 32

    @T.prim_func
    def convolution(
        data: T.Tensor((N, H, W, C), "float16"),
        weight: T.Tensor((K, K, C, F), "float16"),
        out: T.Tensor((N, out_h, out_w, F), "float16"),
    ):
        with T.Kernel(T.ceildiv(F, block_n), T.ceildiv(N * out_h * out_w, block_m), threads=128) as (bx, by):
            tile = T.alloc_shared((block_m, block_k), "float16")
            filters = T.alloc_shared((block_k, block_n), "float16")
            total = T.alloc_fragment((block_m, block_n), "float32")
            made = T.alloc_shared((block_m, block_n), "float16")
            flat_weight = T.Tensor((K * K * C, F), "float16", weight.data)
            flat_out = T.Tensor((N * out_h * out_w, F), "float16", out.data)
            T.clear(total)
            for step in T.Pipelined(T.ceildiv(K * K * C, block_k), num_stages=2):
                T.im2col(data, tile, by, step, K, S, D, P)
                T.copy(flat_weight[step * block_k, bx * block_n], filters)
                T.gemm(tile, filters, total)
            T.copy(total, made)
            T.copy(made, flat_out[by * block_m, bx * block_n])

    return convolution


def resident(N: int = 1 << 20) -> Any:
    """B = A * 3, with A kept in the L2 cache."""

    @T.prim_func
    def resident(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N // 1024, threads=128) as bx:
            T.annotate_l2_hit_ratio({A: 0.5})
            for i in T.Parallel(1024):
                B[bx * 1024 + i] = A[bx * 1024 + i] * 3.0

    return resident
