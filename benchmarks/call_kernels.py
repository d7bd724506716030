"""The kernels of benchmarks/call.py on a GPU, in TileLang: a GEMM, a sum of 18 tensors, and a scaling of any number of rows."""

# TileLang traces the decorated functions; their annotations are values, not Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, valid-type, misc"

from typing import Any

import tilelang.language as T  # noqa: N812
from tuning_gemm import matmul

__all__ = ["COLUMNS", "SIZE", "make"]

SIZE = 1024
COLUMNS = 256


def make(which: str = "matmul") -> Any:
    """One of them, whose last parameter is the output."""
    if which == "matmul":
        return matmul(SIZE, SIZE, SIZE, 128, 128, 32, 3, 128)
    return sum_of_18() if which == "many" else scale()


def sum_of_18() -> Any:
    """``Y = A + B + ... + R``: 19 parameters of 1024 numbers."""

    @T.prim_func
    def many(
        A: T.Tensor((1024,), "float32"),
        B: T.Tensor((1024,), "float32"),
        C: T.Tensor((1024,), "float32"),
        D: T.Tensor((1024,), "float32"),
        E: T.Tensor((1024,), "float32"),
        F: T.Tensor((1024,), "float32"),
        G: T.Tensor((1024,), "float32"),
        H: T.Tensor((1024,), "float32"),
        S: T.Tensor((1024,), "float32"),
        J: T.Tensor((1024,), "float32"),
        K: T.Tensor((1024,), "float32"),
        L: T.Tensor((1024,), "float32"),
        M: T.Tensor((1024,), "float32"),
        N: T.Tensor((1024,), "float32"),
        U: T.Tensor((1024,), "float32"),
        P: T.Tensor((1024,), "float32"),
        Q: T.Tensor((1024,), "float32"),
        R: T.Tensor((1024,), "float32"),
        Y: T.Tensor((1024,), "float32"),
    ):
        with T.Kernel(8, threads=128) as block:
            for i in T.Parallel(128):
                at = block * 128 + i
                Y[at] = (A[at] + B[at] + C[at] + D[at] + E[at] + F[at] + G[at] + H[at] + S[at]) + (
                    J[at] + K[at] + L[at] + M[at] + N[at] + U[at] + P[at] + Q[at] + R[at]
                )

    return many


def scale() -> Any:
    """``Y = X + X`` of any number of rows."""
    rows = T.dynamic("rows")

    @T.prim_func
    def scale(X: T.Tensor((rows, COLUMNS), "float32"), Y: T.Tensor((rows, COLUMNS), "float32")):
        with T.Kernel(rows, threads=128) as row:
            for i in T.Parallel(COLUMNS):
                Y[row, i] = X[row, i] + X[row, i]

    return scale
