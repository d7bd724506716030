"""TileLang kernels of the frontend's tests, and lowering them; imported in a child process only.

TileLang brings its own TVM under the name ``tvm``, so the test process itself stays free of it.
"""

# No postponed annotations here: TileLang evaluates those of the kernels, with the sizes of the enclosing function.

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tilelang
import tilelang.language as T  # noqa: N812

import tlaot
from sample_pkg import cuda as sample
from tlaot.target import parse_target
from tlaot.tune.children.bound import Bound, TensorLayout
from tlaot.tune.frontends import Lowered, import_frontend


def lower(
    case: str,
    target: str,
    shape: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    pass_configs: Mapping[str, Any] | None = None,
    out_idx: Sequence[int] | None = None,
) -> Lowered:
    """Lower one of the factories below."""
    frontend = import_frontend("tilelang")
    return frontend.lower(globals()[case], shape or {}, config or {}, parse_target(target), pass_configs, out_idx)


def lower_partial(
    case: str, target: str, args: tuple[Any, ...], fixed: Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> Lowered:
    """Lower a partial of a partial of one of the factories below."""
    partial = functools.partial(functools.partial(globals()[case], *args), **fixed)
    return import_frontend("tilelang").lower(partial, {}, config or {}, parse_target(target))


def lower_called(case: str, target: str, shape: Mapping[str, Any], *tensors: TensorLayout) -> Lowered:
    """Lower an eager kernel as it is called: with tensors, of which only the layout is known."""
    factory = globals()[case]
    given = dict(zip(factory.func.tensor_args, tensors, strict=False))
    bound, shape, config = Bound(factory, {"dtype": T.float32, **given}, ({"threads": 128},)).unwrap(
        shape, {"config_index": 0}
    )
    return import_frontend("tilelang").lower(bound, shape, config, parse_target(target))


def configs(kernel: str, *sizes: int) -> list[dict[str, Any]]:
    """The config space of one of the sample's kernels."""
    space: list[dict[str, Any]] = getattr(sample, f"{kernel}_configs")(*sizes)
    return space


matmul = sample.matmul
softmax = sample.softmax
rms_norm = sample.rms_norm


def scalars() -> Any:
    @T.prim_func
    def scalars(
        A: T.Tensor((64,), "float32"),
        f: T.float32,
        q: T.uint8,
        big: T.int64,
        h: T.float16,
        flag: T.bool,
        B: T.Tensor((64,), "float32"),
    ):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = (
                    A[i] * f
                    + T.cast(q, "float32")
                    + T.cast(big, "float32")
                    + T.cast(h, "float32")
                    + T.cast(flag, "float32")
                )

    return scalars


def cluster() -> Any:
    @T.prim_func
    def cluster(A: T.Tensor((1024, 128), "float16"), B: T.Tensor((1024, 128), "float16")):
        with T.Kernel(8, threads=128, cluster_dims=(2, 1, 1)) as bx:
            tile = T.alloc_shared((128, 128), "float16")
            T.copy(A[bx * 128, 0], tile)
            T.cluster_sync()
            T.copy(tile, B[bx * 128, 0])

    return cluster


def chained() -> Any:
    @T.prim_func
    def chained(
        A: T.Tensor((1024, 128), "float32"), B: T.Tensor((1024, 128), "float32"), C: T.Tensor((1024, 128), "float32")
    ):
        with T.Kernel(8, threads=128) as bx:
            for i, j in T.Parallel(128, 128):
                B[bx * 128 + i, j] = A[bx * 128 + i, j]
            T.pdl_trigger()
        with T.Kernel(8, threads=128) as bx:
            T.pdl_sync()
            for i, j in T.Parallel(128, 128):
                C[bx * 128 + i, j] = B[bx * 128 + i, j]

    return chained


def cooperative() -> Any:
    @T.prim_func
    def cooperative(A: T.Tensor((1024, 128), "float32"), B: T.Tensor((1024, 128), "float32")):
        with T.Kernel(8, threads=128) as bx:
            for i, j in T.Parallel(128, 128):
                B[bx * 128 + i, j] = A[bx * 128 + i, j]
            T.sync_grid()
            for i, j in T.Parallel(128, 128):
                B[bx * 128 + i, j] = A[1023 - bx * 128 - i, j]

    return cooperative


def strided(N: int = 4) -> Any:
    m, stride = T.dynamic("m"), T.dynamic("stride")

    @T.prim_func
    def strided(X: T.StridedTensor((m, N), (stride, 1), "bfloat16"), Y: T.Tensor((m, N), "float32")):
        with T.Kernel(T.ceildiv(m, 64), threads=64) as bx:
            for i in T.Parallel(64):
                Y[bx * 64 + i, 0] = T.cast(X[bx * 64 + i, 1], "float32")

    return strided


def rows(N: int = 65536) -> Any:
    m = T.dynamic("m")

    @T.prim_func
    def rows(X: T.Tensor((m, N), "float32"), Y: T.Tensor((m, N), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.serial(m):
                for j in T.serial(N):
                    Y[i, j] = X[i, j]

    return rows


def wide(N: int = 4096) -> Any:
    """256-bit accesses on sm_100 and later."""

    @T.prim_func
    def wide(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N // 1024, threads=128) as bx:
            for i in T.Parallel(1024):
                B[bx * 1024 + i] = A[bx * 1024 + i] + 1.0

    return wide


def atomic(N: int = 256) -> Any:
    @T.prim_func
    def atomic(A: T.Tensor((N,), "float32"), total: T.Tensor((1,), "float32")):
        with T.Kernel(N // 128, threads=128) as bx:
            for i in T.Parallel(128):
                T.atomic_add(total[0], A[bx * 128 + i])

    return atomic


@tilelang.jit(
    out_idx=[-1], target="cuda", pass_configs={"tl.enable_fast_math": True}, compile_flags=["-DONE", "-DTWO=2 -DTHREE"]
)
def lazy(N: int, threads: int = 64) -> Any:
    @T.prim_func
    def lazy(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, threads), threads=threads) as bx:
            for i in T.Parallel(threads):
                B[bx * threads + i] = T.exp(A[bx * threads + i])

    return lazy


@tilelang.autotune(configs=[{"threads": 64}, {"threads": 128}])
@tilelang.jit(out_idx=[-1])
def autotuned(N: int, threads: int = 64) -> Any:
    @T.prim_func
    def autotuned(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, threads), threads=threads) as bx:
            for i in T.Parallel(threads):
                B[bx * threads + i] = A[bx * threads + i] + 1.0

    return autotuned


def wrapping(N: int, threads: int) -> Any:
    """A plain function that calls a jit function: TileLang itself would compile here."""
    return lazy(N, threads=threads)


def returning_jit(N: int) -> Any:
    """A plain function that returns a jit function."""

    @tilelang.jit(out_idx=[1])
    def inner() -> Any:
        @T.prim_func
        def inner(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
            with T.Kernel(1, threads=64):
                for i in T.serial(N):
                    B[i] = A[i]

        return inner

    return inner


@tilelang.jit
def eager(A, B, threads: int = 64):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], T.float32]
    B: T.Tensor[[M, N], T.float32]
    with T.Kernel(M, threads=threads) as bx:
        for j in T.Parallel(N):
            B[bx, j] = A[bx, j] * 2.0


@tilelang.jit
def eager_returning(A, threads: int = 64):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], T.float32]
    B = T.empty((M, N), "float32")
    with T.Kernel(M, threads=threads) as bx:
        for j in T.Parallel(N):
            B[bx, j] = A[bx, j] * 2.0
    return B


@tilelang.jit
def eager_typed(A, B, dtype, threads: int = 64):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], dtype]
    B: T.Tensor[[M, N], dtype]
    with T.Kernel(M, threads=threads) as bx:
        for j in T.Parallel(N):
            B[bx, j] = A[bx, j] * 2.0


@tilelang.jit
def eager_symbolic(A, B, f: T.float32, dtype, threads: int = 64):
    rows = T.dynamic("rows")
    A: T.Tensor[[rows, 64], dtype]
    B: T.Tensor[[rows, 64], dtype]
    with T.Kernel(rows, threads=threads) as bx:
        for j in T.Parallel(64):
            B[bx, j] = A[bx, j] * f


@tilelang.jit
def eager_cpu(A, f: T.float32, dtype, rows: int = 1):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    B = T.empty((M, N), dtype)
    with T.Kernel(M // rows) as bx:
        for i, j in T.grid(rows, N):
            B[bx * rows + i, j] = A[bx * rows + i, j] * f
    return B


def tune_eager_cpu(folder: str) -> tuple[list[Any], list[int]]:
    """Tune ``eager_cpu`` by calling it with tensors, another scalar and sizes; each result less what is right, and how many were tuned."""
    os.environ["TLAOT_DISABLE_CACHE"] = "1"
    os.chdir(folder)
    ref = functools.partial(_scaled, dtype="float32")
    tuned = tlaot.autotune(configs=[{"rows": 1}, {"rows": 2}], ref_prog=ref, target="c", warmup=0.1, rep=0.2)(eager_cpu)
    a = np.arange(32, dtype="float32").reshape(4, 8)
    errors, tunings = [], []
    with tlaot.set_autotune_inputs(a, 3.0):
        errors.append(np.asarray(tuned(a, 3.0, dtype=T.float32)) - a * 3)
        tunings.append(len(tuned._results))
        errors.append(np.asarray(tuned(f=5.0, A=a, dtype=T.float32)) - a * 5)
        tunings.append(len(tuned._results))
        errors.append(np.asarray(tuned.compile(M=4, N=8, dtype=T.float32)(a, 2.0)) - a * 2)
    return [float(np.abs(error).max()) for error in errors], tunings


def _scaled(a: Any, f: float, dtype: str) -> Any:
    return a.astype(dtype) * np.float32(f)


def raising(N: int) -> Any:
    raise ValueError(f"no kernel for N = {N}")


def returning_text(N: int) -> Any:
    return "kernel"


def raw_pointer() -> Any:
    @T.prim_func
    def raw_pointer(p: T.handle, B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = 1.0

    return raw_pointer


def workspace() -> Any:
    @T.prim_func
    def workspace(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        W = T.alloc_global((64,), "float32")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                W[i] = A[i]
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = W[63 - i]

    return workspace


def cpu_add(dtype: str = "float32") -> Any:
    m, n, stride = T.dynamic("m"), T.dynamic("n"), T.dynamic("stride")

    @T.prim_func
    def cpu_add(
        X: T.StridedTensor((m, n), (stride, 1), dtype),
        k: T.int64,
        f: T.float32,
        B: T.Tensor((n,), dtype),
        A: T.Tensor((m, n), dtype),
    ):
        with T.Kernel(m) as bx:
            for j in T.serial(n):
                A[bx, j] = X[bx, j] * T.cast(f, dtype) + B[j] + T.cast(k, dtype)

    return cpu_add


def computed_size(strided: bool = False) -> Any:
    m = T.dynamic("m")
    strides = (m * 2,) if strided else (1,)

    @T.prim_func
    def computed_size(A: T.Tensor((m,), "float32"), B: T.StridedTensor((m if strided else m * 2,), strides, "float32")):
        with T.Kernel(T.ceildiv(m, 128), threads=128) as bx:
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i]

    return computed_size


def cpu_matmul(M: int, N: int, K: int, block: int = 16) -> Any:
    @T.prim_func
    def cpu_matmul(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block)) as (bx, by):
            tile_a = T.alloc_local((block, block), "float32")
            tile_b = T.alloc_local((block, block), "float32")
            tile_c = T.alloc_local((block, block), "float32")
            T.clear(tile_c)
            for k in T.serial(T.ceildiv(K, block)):
                T.copy(A[by * block, k * block], tile_a)
                T.copy(B[k * block, bx * block], tile_b)
                T.gemm(tile_a, tile_b, tile_c)
            T.copy(tile_c, C[by * block, bx * block])

    return cpu_matmul
