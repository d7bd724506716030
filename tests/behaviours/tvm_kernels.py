"""Small TVM kernels. TVM is imported where a kernel is made only: in the test process a module of that name may be TileLang's."""

from __future__ import annotations

from typing import Any

CALLS: list[str] = []  # of functions that tests pass on; where tuning runs in this process, it is the same list


def scale(N: int, factor: float = 2.0, tile: int = 1, mode: str = "right") -> Any:
    """B = factor * A; ``mode`` says how a candidate goes wrong."""
    if mode == "raise":
        raise ValueError(f"mode {mode} refuses N={N}")
    if mode == "exit":
        import os

        os._exit(3)
    from tvm.script import tirx as T  # noqa: N812

    if mode == "hang":

        @T.prim_func(s_tir=True)
        def scale(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for _i in T.serial(T.int64(1) << T.int64(60)):
                B[0] = B[0] + A[0]

        return scale
    if mode == "segfault":

        @T.prim_func(s_tir=True)
        def scale(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(N):
                B[T.int64(i) + T.int64(1 << 44)] = A[i]

        return scale
    wrong = 1.01 if mode == "wrong" else 1.0

    @T.prim_func(s_tir=True)
    def scale(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
        for i in T.serial(N // tile):
            for j in T.unroll(tile):
                B[i * tile + j] = A[i * tile + j] * T.float32(factor * wrong)

    return scale


def increment(N: int, tile: int = 1) -> Any:
    """In place, A += 1."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func(s_tir=True)
    def increment(A: T.Buffer((N,), "float32")):
        for i in T.serial(N // tile):
            for j in T.unroll(tile):
                A[i * tile + j] = A[i * tile + j] + T.float32(1)

    return increment


def repeated(N: int, times: int = 1) -> Any:
    """B = A, after some more work for larger ``times``."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func(s_tir=True)
    def repeated(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
        for i in T.serial(N):
            B[i] = T.float32(0)
        for _t in T.serial(times):
            for i in T.serial(N):
                B[i] = B[i] * T.float32(0.5) + A[N - 1 - i] * T.float32(0.5)
        for i in T.serial(N):
            B[i] = A[i]

    return repeated


def mixed(N: int, tile: int = 1) -> Any:
    """B = A * s, of a tensor and a scalar."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func(s_tir=True)
    def mixed(A: T.Buffer((N,), "float32"), s: T.float32, B: T.Buffer((N,), "float32")):
        for i in T.serial(N // tile):
            for j in T.unroll(tile):
                B[i * tile + j] = A[i * tile + j] * s

    return mixed


def dynamic(tile: int = 1) -> Any:
    """B = 2 A of any length."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func(s_tir=True)
    def dynamic(a: T.handle, b: T.handle):
        m = T.int32()
        A = T.match_buffer(a, (m,), "float32")
        B = T.match_buffer(b, (m,), "float32")
        for i in T.serial(m):
            B[i] = A[i] * T.float32(2)

    return dynamic


def sleep_then_scale(N: int, tile: int = 1, folder: str = "", seconds: float = 0.0, dies: bool = False) -> Any:
    """Leaves in a folder when it ran; may take its process along."""
    import os
    import time

    begin = time.time()
    time.sleep(seconds)
    with open(os.path.join(folder, f"{tile}"), "w", encoding="ascii") as file:
        file.write(f"{begin} {time.time()}")
    return scale(N, tile=tile, mode="exit" if dies else "right")
