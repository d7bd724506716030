"""A kernel small enough that tuning it takes seconds: c = a + b."""

from __future__ import annotations

from typing import Any


def add(N: int, lanes: int = 1) -> Any:
    """``c = a + b`` over N float32, ``lanes`` at a time."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func
    def main(a: T.handle, b: T.handle, c: T.handle):
        T.func_attr({"tirx.noalias": True})
        A = T.match_buffer(a, (N,), "float32")
        B = T.match_buffer(b, (N,), "float32")
        C = T.match_buffer(c, (N,), "float32")
        for i in range(N // lanes):
            for v in T.vectorized(lanes):
                C[i * lanes + v] = A[i * lanes + v] + B[i * lanes + v]

    return main


def add_reference(a: Any, b: Any) -> Any:
    """What ``add`` must give."""
    return a + b
