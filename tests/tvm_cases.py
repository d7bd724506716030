"""CUDA kernels of the TVM frontend's GPU tests; each factory works with apache-tvm 0.25 and 0.27.

Where apache-tvm is installed, ``python tests/tvm_cases.py FOLDER`` compiles every case into ``FOLDER/<case>``, so that a machine
with a GPU and without apache-tvm can run them.
"""

# TVM parses the decorated functions and never calls them; their types are TVM's, not Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, name-defined"

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

__all__ = ["CASES", "compile_case"]


def _fetch(schedule: Any, block: Any, threads: int) -> None:
    """Spread a copy into shared memory over the threads of a block, that of (threadIdx.y, threadIdx.x)."""
    loop = schedule.fuse(*schedule.get_loops(block)[-2:])
    _, ty, tx = schedule.split(loop, [None, threads, threads])
    schedule.bind(ty, "threadIdx.y")
    schedule.bind(tx, "threadIdx.x")


def matmul(M: int, N: int, K: int, tile: int = 64, depth: int = 16, scope: str = "shared") -> Any:
    """``C = A @ B`` in float32: a block computes tile by tile elements with 16 by 16 threads, slices of A and B in shared memory."""
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((M, K), "float32", name="A")
    b = te.placeholder((K, N), "float32", name="B")
    k = te.reduce_axis((0, K), name="k")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    schedule = Schedule(te.create_prim_func([a, b, c]))
    block = schedule.get_sblock("C")
    i, j, reduced = schedule.get_loops(block)
    by, ty, row = schedule.split(i, [None, 16, tile // 16])
    bx, tx, column = schedule.split(j, [None, 16, tile // 16])
    outer, inner = schedule.split(reduced, [None, depth])
    schedule.reorder(by, bx, ty, tx, outer, inner, row, column)
    for loop, tag in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
        schedule.bind(loop, tag)
    local = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(local, tx)
    for operand in (0, 1):
        copy = schedule.cache_read(block, operand, scope)
        schedule.compute_at(copy, outer)
        _fetch(schedule, copy, 16)
    schedule.decompose_reduction(block, outer)
    return schedule


def softmax(M: int, N: int, threads: int = 128) -> Any:
    """Softmax of the rows, a block a row; the threads of a block reduce together."""
    from tvm import te, tirx
    from tvm.s_tir import Schedule

    x = te.placeholder((M, N), "float32", name="X")
    k = te.reduce_axis((0, N), name="k")
    largest = te.compute((M,), lambda i: te.max(x[i, k], axis=k), name="largest")
    powers = te.compute((M, N), lambda i, j: tirx.exp(x[i, j] - largest[i]), name="powers")
    r = te.reduce_axis((0, N), name="r")
    total = te.compute((M,), lambda i: te.sum(powers[i, r], axis=r), name="total")
    y = te.compute((M, N), lambda i, j: powers[i, j] / total[i], name="Y")
    schedule = Schedule(te.create_prim_func([x, y]))
    last = schedule.get_sblock("Y")
    row, column = schedule.get_loops(last)
    schedule.bind(row, "blockIdx.x")
    loops = [column]
    for name in ("total", "powers", "largest"):
        block = schedule.get_sblock(name)
        schedule.compute_at(block, row)
        schedule.set_scope(block, 0, "shared")
        loops.append(schedule.get_loops(block)[-1])
    for loop in loops:
        _, tx = schedule.split(loop, [None, threads])
        schedule.bind(tx, "threadIdx.x")
    return schedule


def row_sum(M: int, N: int, threads: int = 256) -> Any:
    """The sum of each row."""
    from tvm import te
    from tvm.s_tir import Schedule

    x = te.placeholder((M, N), "float32", name="X")
    k = te.reduce_axis((0, N), name="k")
    y = te.compute((M,), lambda i: te.sum(x[i, k], axis=k), name="Y")
    schedule = Schedule(te.create_prim_func([x, y]))
    row, column = schedule.get_loops(schedule.get_sblock("Y"))
    _, tx = schedule.split(column, [None, threads])
    schedule.bind(row, "blockIdx.x")
    schedule.bind(tx, "threadIdx.x")
    return schedule


def plus_one(N: int, threads: int = 128) -> Any:
    """``B = A + 1`` through vectors of four elements."""
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((N,), "float32", name="A")
    b = te.compute((N,), lambda i: a[i] + 1.0, name="B")
    schedule = Schedule(te.create_prim_func([a, b]))
    (i,) = schedule.get_loops(schedule.get_sblock("B"))
    bx, tx, lanes = schedule.split(i, [None, threads, 4])
    schedule.vectorize(lanes)
    schedule.bind(bx, "blockIdx.x")
    schedule.bind(tx, "threadIdx.x")
    return schedule


def scale_shift(N: int, threads: int = 128) -> Any:
    """``B[i] = A[i] * factor + shift`` with a float and an integer scalar."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func
    def main(a: T.handle, factor: T.float32, shift: T.int32, b: T.handle):
        T.func_attr({"tirx.noalias": True})
        A = T.match_buffer(a, (N,), "float32")
        B = T.match_buffer(b, (N,), "float32")
        for bx in T.thread_binding(N // threads, thread="blockIdx.x"):
            for tx in T.thread_binding(threads, thread="threadIdx.x"):
                B[bx * threads + tx] = A[bx * threads + tx] * factor + T.Cast("float32", shift)

    return main


def symbolic_rows(N: int, threads: int = 128) -> Any:
    """``B[i, j] = A[i, j] * 2 + i`` for any number of rows."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func
    def main(a: T.handle, b: T.handle):
        T.func_attr({"tirx.noalias": True})
        m = T.int32()
        A = T.match_buffer(a, (m, N), "float32")
        B = T.match_buffer(b, (m, N), "float32")
        for bx in T.thread_binding((m * N + threads - 1) // threads, thread="blockIdx.x"):
            for tx in T.thread_binding(threads, thread="threadIdx.x"):
                if bx * threads + tx < m * N:
                    B[(bx * threads + tx) // N, (bx * threads + tx) % N] = A[
                        (bx * threads + tx) // N, (bx * threads + tx) % N
                    ] * 2.0 + T.Cast("float32", (bx * threads + tx) // N)

    return main


def two_launches(N: int, threads: int = 128) -> Any:
    """``B = A * A`` in one launch, ``C`` = B backwards in the next: right only if the second waits for the first."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func
    def main(a: T.handle, b: T.handle, c: T.handle):
        T.func_attr({"tirx.noalias": True})
        A = T.match_buffer(a, (N,), "float32")
        B = T.match_buffer(b, (N,), "float32")
        C = T.match_buffer(c, (N,), "float32")
        for bx in T.thread_binding(N // threads, thread="blockIdx.x"):
            for tx in T.thread_binding(threads, thread="threadIdx.x"):
                B[bx * threads + tx] = A[bx * threads + tx] * A[bx * threads + tx]
        for cx in T.thread_binding(N // threads, thread="blockIdx.x"):
            for ux in T.thread_binding(threads, thread="threadIdx.x"):
                C[cx * threads + ux] = B[N - 1 - (cx * threads + ux)]

    return main


# Name: the factory, its arguments, and the outputs that a call may leave out.
CASES: dict[str, tuple[Any, dict[str, Any], list[int]]] = {
    "matmul": (matmul, {"M": 256, "N": 192, "K": 320}, [-1]),
    # 2 slices of 64 x 128 float32: 64 KiB of shared memory, more than a kernel has without asking
    "matmul_dynamic": (matmul, {"M": 256, "N": 192, "K": 256, "depth": 128, "scope": "shared.dyn"}, [-1]),
    "softmax": (softmax, {"M": 77, "N": 1000}, [-1]),
    "row_sum": (row_sum, {"M": 33, "N": 4096}, [-1]),
    "plus_one": (plus_one, {"N": 4096}, [-1]),
    "scale_shift": (scale_shift, {"N": 4096}, [-1]),
    "symbolic_rows": (symbolic_rows, {"N": 100}, [-1]),
    "two_launches": (two_launches, {"N": 1 << 20}, [1, 2]),
}


def compile_case(name: str, target: str) -> Any:
    """The compiled kernel of a case: an ``AutotuneResult`` that was not tuned."""
    from tlaot import AutotuneResult, CompileArgs, par_compile

    factory, arguments, out_idx = CASES[name]
    args = CompileArgs(target=target, out_idx=out_idx)
    (kernel,) = par_compile(factory, [arguments], compile_args=args, frontend="tvm")
    return AutotuneResult(None, None, None, kernel.get_kernel_source(), factory, kernel)


def main() -> None:
    target = sys.argv[2] if len(sys.argv) > 2 else "cuda:sm_90a"
    for name in CASES:
        result = compile_case(name, target)
        result.save_to_disk(Path(sys.argv[1]) / name)
        print(name, result.kernel.packed.variant.frontend, flush=True)


if __name__ == "__main__":
    main()
