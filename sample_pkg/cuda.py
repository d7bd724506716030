"""The sample's CUDA kernels in TileLang: float16 matmul and softmax, bfloat16 rms_norm.

Each factory takes a workload's sizes and a config, and returns a TileLang PrimFunc whose last parameter is the
output. All accumulate in float32. The same source serves every architecture from sm_80 on; TileLang picks the copy and
tensor-core instructions. Importing this module imports TileLang; only tlaot's compiling worker does.
"""

# TileLang traces the decorated functions; their annotations are values, not Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, valid-type, misc"

import itertools
import math
from typing import Any

import tilelang.language as T  # noqa: N812

__all__ = ["matmul", "matmul_configs", "rms_norm", "rms_norm_configs", "softmax", "softmax_configs"]

Config = dict[str, Any]

_LOG2_E = math.log2(math.e)

# Elements of a row tile that one thread may hold in float32 registers; more only spill.
_MAX_PER_THREAD = 128

# A thread moves 16 bytes of a 2-byte type at once.
_VECTOR = 8


def matmul_configs(M: int, N: int, K: int) -> list[Config]:
    """Configs of :func:`matmul`; the first is the usual tutorial's.

    Large results get wider tiles too, which feed Hopper's tensor cores better.
    """
    keys = ("block_M", "block_N", "block_K", "num_stages", "threads")
    space = list(itertools.product((64, 128), (64, 128), (32, 64), (2, 3), (128, 256)))
    if M * N >= 2048 * 2048:
        space += [(128, 256, 64, 3, 256), (128, 256, 64, 4, 256), (128, 128, 64, 4, 256)]
    first = (128, 128, 32, 3, 128)
    space.sort(key=lambda values: values != first)
    return [dict(zip(keys, values, strict=True)) for values in space]


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
    """``C[M, N] = A[M, K] @ B[K, N]``, row-major, accumulated in float32.

    Args:
        M: Rows of A and C; may be symbolic.
        N: Columns of B and C, a multiple of 8.
        K: Columns of A, rows of B, a multiple of 8.
        block_M: Rows of C that one block computes.
        block_N: Columns of C that one block computes.
        block_K: Terms of the sum that one pipeline stage holds.
        num_stages: Pipeline stages in shared memory.
        threads: Threads that compute (TileLang may add a group that only loads).
        dtype: Type of A, B and C.

    Raises:
        ValueError: The config cannot serve these sizes.
    """
    if N % _VECTOR or K % _VECTOR:
        raise ValueError(
            f"matmul: rows are read 16 bytes at a time; N = {N} and K = {K} are not multiples of {_VECTOR}"
        )
    if block_K > K:
        raise ValueError(f"matmul: block_K = {block_K} is over K = {K}")
    _check_threads("matmul", threads)

    @T.prim_func
    def matmul(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            tile_a = T.alloc_shared((block_M, block_K), dtype)
            tile_b = T.alloc_shared((block_K, block_N), dtype)
            tile_c = T.alloc_shared((block_M, block_N), dtype)
            sums = T.alloc_fragment((block_M, block_N), "float32")
            # Neighbouring blocks share rows and columns of the operands in the L2 cache.
            T.use_swizzle(panel_size=10)
            T.clear(sums)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], tile_a)
                T.copy(B[k * block_K, bx * block_N], tile_b)
                T.gemm(tile_a, tile_b, sums)
            T.copy(sums, tile_c)
            T.copy(tile_c, C[by * block_M, bx * block_N])

    return matmul


def softmax_configs(M: int, N: int) -> list[Config]:
    """Configs of :func:`softmax`: whole rows in registers, or rows in pieces; the first has small pieces."""
    width = _round_up_to_power_of_two(N)
    configs: list[Config] = [{"block_rows": 1, "chunk": 256, "threads": 128}]
    for block_rows, threads in ((1, 128), (1, 256), (1, 512), (2, 128), (2, 256), (4, 128), (4, 256)):
        configs.append({"block_rows": block_rows, "chunk": width, "threads": threads})
    for chunk, threads in ((1024, 128), (2048, 256), (4096, 512)):
        configs.append({"block_rows": 1, "chunk": chunk, "threads": threads})
    return _usable(configs, width)


def softmax(M: int, N: int, block_rows: int = 1, chunk: int = 256, threads: int = 128, dtype: str = "float16") -> Any:
    """Softmax of each row of ``X[M, N]``, computed in float32.

    With ``chunk`` of at least N a block holds whole rows in registers and reads them once. Otherwise it takes the
    maximum and the sum piece by piece (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018),
    then reads the rows again.

    Args:
        M: Rows; may be symbolic.
        N: Columns.
        block_rows: Rows that one block computes.
        chunk: Columns held at once, a power of two.
        threads: Threads of a block.
        dtype: Type of X and Y.

    Raises:
        ValueError: The config cannot serve these sizes.
    """
    _check_row_tile("softmax", block_rows, chunk, threads)
    pieces = -(-N // chunk)

    @T.prim_func
    def softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_rows), threads=threads) as bx:
            x = T.alloc_fragment((block_rows, chunk), "float32")
            top = T.alloc_fragment((block_rows,), "float32")
            before = T.alloc_fragment((block_rows,), "float32")
            here = T.alloc_fragment((block_rows,), "float32")
            total = T.alloc_fragment((block_rows,), "float32")
            T.fill(top, -T.infinity("float32"))
            T.clear(total)
            for piece in T.serial(pieces):
                for i, j in T.Parallel(block_rows, chunk):
                    x[i, j] = T.if_then_else(
                        piece * chunk + j < N,
                        T.cast(X[bx * block_rows + i, piece * chunk + j], "float32") * _LOG2_E,
                        -T.infinity("float32"),
                    )
                T.copy(top, before)
                T.reduce_max(x, top, dim=1, clear=False)
                for i, j in T.Parallel(block_rows, chunk):
                    x[i, j] = T.exp2(x[i, j] - top[i])
                T.reduce_sum(x, here, dim=1)
                for i in T.Parallel(block_rows):
                    total[i] = total[i] * T.exp2(before[i] - top[i]) + here[i]
            if pieces == 1:
                for i, j in T.Parallel(block_rows, chunk):
                    if j < N:
                        Y[bx * block_rows + i, j] = x[i, j] / total[i]
            else:
                for piece in T.serial(pieces):
                    for i, j in T.Parallel(block_rows, chunk):
                        if piece * chunk + j < N:
                            scaled = T.cast(X[bx * block_rows + i, piece * chunk + j], "float32") * _LOG2_E
                            Y[bx * block_rows + i, piece * chunk + j] = T.exp2(scaled - top[i]) / total[i]

    return softmax


def rms_norm_configs(M: int, N: int) -> list[Config]:
    """Configs of :func:`rms_norm`; the first reads rows in small pieces, twice."""
    width = _round_up_to_power_of_two(N)
    configs: list[Config] = [{"block_rows": 1, "chunk": 256, "threads": 128}]
    for block_rows, threads in ((1, 128), (1, 256), (1, 512), (2, 128), (2, 256), (4, 128), (4, 256)):
        configs.append({"block_rows": block_rows, "chunk": width, "threads": threads})
    for chunk, threads in ((1024, 128), (2048, 256)):
        configs.append({"block_rows": 1, "chunk": chunk, "threads": threads})
    return _usable(configs, width)


def rms_norm(
    M: int,
    N: int,
    block_rows: int = 1,
    chunk: int = 256,
    threads: int = 128,
    eps: float = 1e-6,
    dtype: str = "bfloat16",
) -> Any:
    """``Y = X / sqrt(mean(X * X) + eps) * W`` for each row of ``X[M, N]``, computed in float32.

    Args:
        M: Rows; may be symbolic.
        N: Columns.
        block_rows: Rows that one block computes.
        chunk: Columns held at once, a power of two; at least N to read the rows once.
        threads: Threads of a block.
        eps: Added to the mean of the squares.
        dtype: Type of X, W and Y.

    Raises:
        ValueError: The config cannot serve these sizes.
    """
    _check_row_tile("rms_norm", block_rows, chunk, threads)
    pieces = -(-N // chunk)

    @T.prim_func
    def rms_norm(X: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_rows), threads=threads) as bx:
            x = T.alloc_fragment((block_rows, chunk), "float32")
            squares = T.alloc_fragment((block_rows, chunk), "float32")
            scale = T.alloc_fragment((block_rows,), "float32")
            T.clear(squares)
            for piece in T.serial(pieces):
                for i, j in T.Parallel(block_rows, chunk):
                    x[i, j] = T.if_then_else(
                        piece * chunk + j < N, T.cast(X[bx * block_rows + i, piece * chunk + j], "float32"), 0.0
                    )
                for i, j in T.Parallel(block_rows, chunk):
                    squares[i, j] += x[i, j] * x[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block_rows):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            if pieces == 1:
                for i, j in T.Parallel(block_rows, chunk):
                    if j < N:
                        Y[bx * block_rows + i, j] = x[i, j] * scale[i] * T.cast(W[j], "float32")
            else:
                for piece in T.serial(pieces):
                    for i, j in T.Parallel(block_rows, chunk):
                        if piece * chunk + j < N:
                            value = T.cast(X[bx * block_rows + i, piece * chunk + j], "float32") * scale[i]
                            Y[bx * block_rows + i, piece * chunk + j] = value * T.cast(W[piece * chunk + j], "float32")

    return rms_norm


def _usable(configs: list[Config], width: int) -> list[Config]:
    """The configs that fit rows of this width, each once."""
    fitting = [c for c in configs if c["chunk"] <= width and _row_tile_error(**c) is None]
    return [c for position, c in enumerate(fitting) if c not in fitting[:position]]


def _check_row_tile(kernel: str, block_rows: int, chunk: int, threads: int) -> None:
    _check_threads(kernel, threads)
    error = _row_tile_error(block_rows, chunk, threads)
    if error is not None:
        raise ValueError(f"{kernel}: {error}")


def _row_tile_error(block_rows: int, chunk: int, threads: int) -> str | None:
    if block_rows < 1 or chunk < 1 or chunk & (chunk - 1):
        return f"block_rows must be positive and chunk a power of two, got {block_rows} and {chunk}"
    share = block_rows * chunk / threads
    if not 1 <= share <= _MAX_PER_THREAD:
        return (
            f"{threads} threads hold {block_rows} x {chunk} elements, {share:g} each; "
            f"from 1 to {_MAX_PER_THREAD} each are possible"
        )
    return None


def _check_threads(kernel: str, threads: int) -> None:
    if threads % 32 or not 32 <= threads <= 1024:
        raise ValueError(f"{kernel}: threads must be a multiple of 32 from 32 to 1024, got {threads}")


def _round_up_to_power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
