"""The sample's CPU kernels in Apache TVM: float32 matmul, softmax and rms_norm.

Each factory takes a workload's sizes and a config, and returns a TVM PrimFunc. The loops are written
out in TVMScript, with the sizes and the config as constants of the enclosing Python function, so that the
compiler sees constant extents. Nothing here calls libm: ``exp`` is a polynomial, and ``sqrt`` an
instruction. Importing this module does not import TVM.
"""

# TVM parses the decorated functions and never calls them; their types are TVM's, not Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, name-defined"

from __future__ import annotations

import math
from typing import Any

__all__ = ["matmul", "matmul_configs", "rms_norm", "rms_norm_configs", "softmax", "softmax_configs"]

Config = dict[str, Any]

# A register tile wider than this many floats is refused: it only spills.
_MAX_TILE = 512


def matmul_configs(M: int, N: int, K: int) -> list[Config]:
    """Configs of :func:`matmul` for one workload; the first is the plain blocked loop nest.

    The first one is what a tutorial's blocking gives: cubes of 64 and one vector accumulator. The others hold a
    tile of C in registers (6x16 and 4x24 leave 4 of AVX2's 16 for A and B; a level with fewer or wider registers
    wants other tiles), pack both operands, and differ in which part of C is a thread's task and in how
    deep a panel is.
    """
    width = next(w for w in (8, 4, 2, 1) if N % w == 0)
    configs: list[Config] = [{"bm": 64, "bn": 64, "bk": 64, "mr": 1, "nr": width, "unroll": 1, "pack": False}]
    for mr, nr in ((6, 16), (4, 24)):
        for bm, bn in ((-(-M // 2), N), (M, -(-N // 2)), (M, 128), (96, 256)):
            for bk in (256, 512, 1024):
                config = {
                    "bm": _even_block(M, bm, mr),
                    "bn": _even_block(N, bn, nr),
                    "bk": min(bk, K),
                    "mr": mr,
                    "nr": nr,
                    "unroll": 4 if K % 4 == 0 else 1,
                    "pack": True,
                }
                if config not in configs:
                    configs.append(config)
    return configs


def matmul(
    M: int,
    N: int,
    K: int,
    bm: int = 64,
    bn: int = 64,
    bk: int = 64,
    mr: int = 1,
    nr: int = 8,
    unroll: int = 1,
    pack: bool = False,
) -> Any:
    """``C[M, N] = A[M, K] @ B[K, N]`` in float32, row-major.

    A task is a block of C, ``bm`` by ``bn``; for each slice of ``bk`` terms it copies its parts of A and B into
    contiguous panels (``pack``), as in Goto and van de Geijn, "Anatomy of High-Performance Matrix
    Multiplication" (2008), and updates C a register tile of ``mr`` by ``nr`` at a time.

    Args:
        M: Rows of A and C.
        N: Columns of B and C.
        K: Columns of A, rows of B.
        bm: Rows of C that one task computes; a multiple of ``mr``.
        bn: Columns of C that one task computes; a multiple of ``nr``.
        bk: Terms of the sum taken at a time; a multiple of ``unroll``.
        mr: Rows of the register tile.
        nr: Columns of the register tile.
        unroll: Terms unrolled in the innermost loop; K must be a multiple of it.
        pack: Copy the operands into panels. Without it M and N must be multiples of ``mr`` and ``nr``.

    Returns:
        A PrimFunc with parameters A, B and the output C.

    Raises:
        ValueError: The config cannot serve these sizes.
    """
    _check_positive("matmul", M=M, N=N, K=K, bm=bm, bn=bn, bk=bk, mr=mr, nr=nr, unroll=unroll)
    _check_multiples("matmul", (("bm", bm, "mr", mr), ("bn", bn, "nr", nr)))
    _check_multiples("matmul", (("bk", bk, "unroll", unroll), ("K", K, "unroll", unroll)))
    if mr * nr > _MAX_TILE:
        raise ValueError(f"matmul: a register tile of mr x nr = {mr} x {nr} is over {_MAX_TILE} floats")
    if not pack:
        _check_multiples("matmul without packing", (("M", M, "mr", mr), ("N", N, "nr", nr)))
    T = _tirx()
    m_blocks, n_blocks, k_blocks = -(-M // bm), -(-N // bn), -(-K // bk)
    m_tiles, n_tiles = -(-M // mr), -(-N // nr)
    lanes = math.gcd(nr, 16)  # LLVM splits a vector of 16 well, and one of 24 badly
    shape_a = (bm // mr, bk // unroll, mr, unroll) if pack else (1, 1, mr, unroll)
    shape_b = (bn // nr, bk, nr) if pack else (1, 1, nr)
    pack_a, pack_b = _pack_a(T, M, mr, unroll), _pack_b(T, N, nr)
    store_tile = _store_tile(T, M, N, mr, nr, lanes)

    @T.prim_func
    def main(a: T.handle, b: T.handle, c: T.handle):
        T.func_attr({"tirx.noalias": True})
        A = T.match_buffer(a, (M, K), "float32")
        B = T.match_buffer(b, (K, N), "float32")
        C = T.match_buffer(c, (M, N), "float32")
        for task in _task_loop(T, m_blocks * n_blocks):
            row0 = T.meta_var(task % m_blocks * bm)
            col0 = T.meta_var(task // m_blocks * bn)
            m_here = T.meta_var(T.min(bm // mr, m_tiles - task % m_blocks * (bm // mr)))
            n_here = T.meta_var(T.min(bn // nr, n_tiles - task // m_blocks * (bn // nr)))
            panels_a = T.alloc_buffer(shape_a, "float32")
            panels_b = T.alloc_buffer(shape_b, "float32")
            for ko in range(k_blocks):
                k_here = T.meta_var(T.min(bk, K - ko * bk))
                if pack:
                    for jt in range(n_here):
                        pack_b(B, panels_b, jt, ko * bk, col0 + jt * nr, k_here)
                    for it in range(m_here):
                        pack_a(A, panels_a, it, ko * bk, row0 + it * mr, k_here)
                for jt, it in T.grid(n_here, m_here):
                    row = T.meta_var(row0 + it * mr)
                    col = T.meta_var(col0 + jt * nr)
                    tile = T.alloc_buffer((mr, nr), "float32", scope="local")
                    for i, w in T.grid(mr, nr // lanes):
                        for v in T.vectorized(lanes):
                            tile[i, w * lanes + v] = T.float32(0)
                    for ki in range(k_here // unroll):
                        for u in T.unroll(unroll):
                            k = T.meta_var(ki * unroll + u)
                            for i in T.unroll(mr):
                                for w in T.unroll(nr // lanes):
                                    for v in T.vectorized(lanes):
                                        j = T.meta_var(w * lanes + v)
                                        if pack:
                                            tile[i, j] = tile[i, j] + panels_a[it, ki, i, u] * panels_b[jt, k, j]
                                        else:
                                            tile[i, j] = tile[i, j] + A[row + i, ko * bk + k] * B[ko * bk + k, col + j]
                    store_tile(C, tile, ko == 0, row, col)

    return main


def _pack_a(T: Any, M: int, mr: int, unroll: int) -> Any:
    """Copy ``mr`` rows of A into a panel, in the order in which the register tile takes them.

    Rows past the end repeat the last one: what they give is not stored.
    """

    @T.inline
    def pack_a(A, panels, it, k0, row, k_here):
        for i in range(mr):
            for ki in range(k_here // unroll):
                for u in T.vectorized(unroll):
                    panels[it, ki, i, u] = A[T.min(row + i, M - 1), k0 + ki * unroll + u]

    return pack_a


def _pack_b(T: Any, N: int, nr: int) -> Any:
    """Copy ``nr`` columns of B into a panel. Columns past the end repeat the last one."""

    @T.inline
    def pack_b(B, panels, jt, k0, col, k_here):
        for k in range(k_here):
            if col + nr <= N:
                for v in T.vectorized(nr):
                    panels[jt, k, v] = B[k0 + k, col + v]
            else:
                for v in range(nr):
                    panels[jt, k, v] = B[k0 + k, T.min(col + v, N - 1)]

    return pack_b


def _store_tile(T: Any, M: int, N: int, mr: int, nr: int, lanes: int) -> Any:
    """Write a register tile to C the first time, add it after that; never past C's edges."""

    @T.inline
    def store_tile(C, tile, first, row, col):
        for i in T.unroll(mr):
            if row + i < M:
                if col + nr <= N:
                    for w in T.unroll(nr // lanes):
                        for v in T.vectorized(lanes):
                            if first:
                                C[row + i, col + w * lanes + v] = tile[i, w * lanes + v]
                            else:
                                C[row + i, col + w * lanes + v] = (
                                    C[row + i, col + w * lanes + v] + tile[i, w * lanes + v]
                                )
                else:
                    for j in range(nr):
                        if col + j < N:
                            if first:
                                C[row + i, col + j] = tile[i, j]
                            else:
                                C[row + i, col + j] = C[row + i, col + j] + tile[i, j]

    return store_tile


def softmax_configs(M: int, N: int) -> list[Config]:
    """Configs of :func:`softmax` for one workload; the first has one vector of 4 lanes."""
    return _row_configs(M, N)


def softmax(M: int, N: int, rows: int = 1, lanes: int = 1) -> Any:
    """``Y[i, :] = exp(X[i, :] - max) / sum(exp(X[i, :] - max))`` in float32, over the last axis of ``[M, N]``.

    Args:
        M: Rows.
        N: Columns.
        rows: Rows that one task computes.
        lanes: Elements taken at a time, each lane with a maximum and a sum of its own; at most N.

    Returns:
        A PrimFunc with parameters X and the output Y.

    Raises:
        ValueError: The config cannot serve these sizes.
    """
    _check_rows("softmax", M, N, rows, lanes)
    T = _tirx()
    chunks, tail = N // lanes, N % lanes

    @T.prim_func
    def main(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True})
        X = T.match_buffer(x, (M, N), "float32")
        Y = T.match_buffer(y, (M, N), "float32")
        for task in _task_loop(T, -(-M // rows)):
            for r in range(T.min(rows, M - task * rows)):
                row = T.meta_var(task * rows + r)
                peaks = T.alloc_buffer((lanes,), "float32", scope="local")
                totals = T.alloc_buffer((lanes,), "float32", scope="local")
                peak = T.alloc_buffer((1,), "float32", scope="local")
                total = T.alloc_buffer((1,), "float32", scope="local")
                for v in T.vectorized(lanes):
                    peaks[v] = T.min_value("float32")
                for c in range(chunks):
                    for v in T.vectorized(lanes):
                        peaks[v] = T.max(peaks[v], X[row, c * lanes + v])
                peak[0] = T.min_value("float32")
                for t in range(tail):
                    peak[0] = T.max(peak[0], X[row, chunks * lanes + t])
                for v in T.unroll(lanes):
                    peak[0] = T.max(peak[0], peaks[v])
                for v in T.vectorized(lanes):
                    totals[v] = T.float32(0)
                for c in range(chunks):
                    for v in T.vectorized(lanes):
                        Y[row, c * lanes + v] = _exp_of_nonpositive(T, X[row, c * lanes + v] - peak[0])
                        totals[v] = totals[v] + Y[row, c * lanes + v]
                total[0] = T.float32(0)
                for t in range(tail):
                    Y[row, chunks * lanes + t] = _exp_of_nonpositive(T, X[row, chunks * lanes + t] - peak[0])
                    total[0] = total[0] + Y[row, chunks * lanes + t]
                for v in T.unroll(lanes):
                    total[0] = total[0] + totals[v]
                total[0] = T.float32(1) / total[0]
                for c in range(chunks):
                    for v in T.vectorized(lanes):
                        Y[row, c * lanes + v] = Y[row, c * lanes + v] * total[0]
                for t in range(tail):
                    Y[row, chunks * lanes + t] = Y[row, chunks * lanes + t] * total[0]

    return main


def rms_norm_configs(M: int, N: int) -> list[Config]:
    """Configs of :func:`rms_norm` for one workload; the first has one vector of 4 lanes."""
    return _row_configs(M, N)


def rms_norm(M: Any, N: int, eps: float = 1e-6, rows: int = 1, lanes: int = 1) -> Any:
    """``Y[i, :] = X[i, :] / sqrt(mean(X[i, :]**2) + eps) * W`` in float32, over the last axis of ``[M, N]``.

    Args:
        M: Rows; a number, or a TVM variable where it is dynamic.
        N: Columns, and the length of the weight.
        eps: Added to the mean square.
        rows: Rows that one task computes.
        lanes: Elements taken at a time, each lane with a sum of its own; at most N.

    Returns:
        A PrimFunc with parameters X, W and the output Y.

    Raises:
        ValueError: The config cannot serve these sizes.
    """
    _check_rows("rms_norm", M, N, rows, lanes)
    T = _tirx()
    chunks, tail = N // lanes, N % lanes

    @T.prim_func
    def main(x: T.handle, w: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True})
        X = T.match_buffer(x, (M, N), "float32")
        W = T.match_buffer(w, (N,), "float32")
        Y = T.match_buffer(y, (M, N), "float32")
        for task in _task_loop(T, (M + rows - 1) // rows):
            for r in range(T.min(rows, M - task * rows)):
                row = T.meta_var(task * rows + r)
                totals = T.alloc_buffer((lanes,), "float32", scope="local")
                scale = T.alloc_buffer((1,), "float32", scope="local")
                for v in T.vectorized(lanes):
                    totals[v] = T.float32(0)
                for c in range(chunks):
                    for v in T.vectorized(lanes):
                        totals[v] = totals[v] + X[row, c * lanes + v] * X[row, c * lanes + v]
                scale[0] = T.float32(0)
                for t in range(tail):
                    scale[0] = scale[0] + X[row, chunks * lanes + t] * X[row, chunks * lanes + t]
                for v in T.unroll(lanes):
                    scale[0] = scale[0] + totals[v]
                scale[0] = T.float32(1) / T.sqrt(scale[0] * T.float32(1 / N) + T.float32(eps))
                for c in range(chunks):
                    for v in T.vectorized(lanes):
                        Y[row, c * lanes + v] = X[row, c * lanes + v] * scale[0] * W[c * lanes + v]
                for t in range(tail):
                    Y[row, chunks * lanes + t] = X[row, chunks * lanes + t] * scale[0] * W[chunks * lanes + t]

    return main


def _row_configs(M: int, N: int) -> list[Config]:
    """``rows`` decides how the rows spread over the threads, ``lanes`` how many sums a row is split into."""
    configs: list[Config] = [{"rows": 1, "lanes": min(4, N)}]
    for lanes in (8, 16, 32, 64):
        for rows in sorted({1, min(16, M), M}):
            if lanes <= N:
                configs.append({"rows": rows, "lanes": lanes})
    return configs


def _exp_of_nonpositive(T: Any, x: Any) -> Any:
    """``exp(x)`` for ``x <= 0``, as vector instructions; 0 below -87.3, where float32 has no normal value left.

    Cody and Waite's range reduction and the polynomial of Cephes' ``expf``; relative error under 2e-7. NaN
    stays NaN.
    """
    low = T.float32(-87.33)
    clamped = T.Select(x < low, low, x)
    # A cast truncates towards zero, which after -0.5 rounds a value that is not positive to the nearest integer.
    power = T.Cast("int32", clamped * T.float32(1.44269504088896341) - T.float32(0.5))
    n = T.Cast("float32", power)
    r = clamped - n * T.float32(0.693359375) - n * T.float32(-2.12194440e-4)
    p = T.float32(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + T.float32(coefficient)
    value = (p * (r * r) + r + T.float32(1)) * T.reinterpret("float32", T.shift_left(power + 127, 23))
    return T.Select(x < low, T.float32(0), value)


def _task_loop(T: Any, tasks: Any) -> Any:
    """A loop over the thread pool; a plain one where it is known that there is nothing to share out."""
    return T.serial(tasks) if isinstance(tasks, int) and tasks <= 1 else T.parallel(tasks)


def _check_rows(kernel: str, M: Any, N: int, rows: int, lanes: int) -> None:
    _check_positive(kernel, N=N, rows=rows, lanes=lanes, **({"M": M} if isinstance(M, int) else {}))
    if lanes > N:
        raise ValueError(f"{kernel}: lanes must be at most N, got lanes={lanes} and N={N}")
    if lanes > _MAX_TILE:
        raise ValueError(f"{kernel}: lanes must be at most {_MAX_TILE}, got {lanes}")


def _even_block(size: int, most: int, multiple: int) -> int:
    """A block of up to ``most`` (and 768, for the caches) that splits ``size`` into nearly equal parts."""
    parts = -(-size // min(size, most, 768))
    return -(-size // parts // multiple) * multiple


def _tirx() -> Any:
    """TVMScript's dialect of loops and buffers; tuning needs TVM, importing this module does not."""
    from tvm.script import tirx

    return tirx


def _check_positive(kernel: str, **values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{kernel}: {name} must be at least 1, got {value}")


def _check_multiples(kernel: str, pairs: tuple[tuple[str, int, str, int], ...]) -> None:
    for name, value, of, divisor in pairs:
        if value % divisor:
            raise ValueError(f"{kernel}: {name} must be a multiple of {of}, got {name}={value} and {of}={divisor}")
