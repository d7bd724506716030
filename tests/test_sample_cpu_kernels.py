"""The sample's CPU kernels: right for their configs, free of outside calls, and faster for being tuned."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_pkg import cpu, reference

tvm = pytest.importorskip("tvm")

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3"}
# With the step through the space: every config of some shapes, some of the others.
MATMUL_SHAPES = [((100, 75, 33), 1), ((1, 1, 1), 1), ((7, 16, 5), 3), ((65, 48, 300), 4), ((13, 200, 520), 4)]
ROW_SHAPES = [(1, 1), (7, 13), (33, 100)]
SPACES: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "matmul": cpu.matmul_configs,
    "softmax": cpu.softmax_configs,
    "rms_norm": cpu.rms_norm_configs,
}


def compile_kernel(func: Any) -> Callable[..., None]:
    """Compile with TVM itself and return a function of numpy arrays, the last one written."""
    call = tvm.compile(tvm.IRModule({"main": func}), target=tvm.target.Target(TARGET)).jit()["main"]

    def run(*arrays: Any) -> None:
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        call(*tensors)
        arrays[-1][...] = tensors[-1].numpy()

    return run


def poisoned(*shape: int) -> Any:
    return np.full(shape, np.nan, np.float32)


def normal(*shape: int, scale: float = 1.0) -> Any:
    return (np.random.default_rng(7).standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize(("shape", "step"), MATMUL_SHAPES, ids=str)
def test_matmul_is_right(shape: tuple[int, int, int], step: int) -> None:
    M, N, K = shape
    a, b = normal(M, K), normal(K, N)
    expected = reference.matmul(a, b)
    for config in cpu.matmul_configs(M, N, K)[::step]:
        c = poisoned(M, N)
        compile_kernel(cpu.matmul(M, N, K, **config))(a, b, c)
        np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5 * K**0.5, err_msg=str(config))


def test_matmul_reads_nothing_beyond_its_operands() -> None:
    """An infinity in the last row and column reaches exactly the results that depend on it."""
    M, N, K = 13, 27, 9
    a, b = np.ones((M, K), np.float32), np.ones((K, N), np.float32)
    a[-1, -1], b[-1, -1] = np.inf, np.inf
    for config in cpu.matmul_configs(M, N, K)[::4]:
        c = poisoned(M, N)
        compile_kernel(cpu.matmul(M, N, K, **config))(a, b, c)
        assert np.isinf(c[-1, :]).all() and np.isinf(c[:, -1]).all(), config
        assert (c[:-1, :-1] == K).all(), config


@pytest.mark.parametrize("shape", ROW_SHAPES, ids=str)
def test_softmax_is_right(shape: tuple[int, int]) -> None:
    x = normal(*shape, scale=5)
    expected = reference.softmax(x)
    for config in cpu.softmax_configs(*shape)[::2]:
        y = poisoned(*shape)
        compile_kernel(cpu.softmax(*shape, **config))(x, y)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-35, err_msg=str(config))


def test_softmax_special_values() -> None:
    x = np.zeros((7, 40), np.float32)
    x[0, :] = -np.inf  # no element left: NaN, as numpy gives
    x[1, 3] = np.nan
    x[2, 39] = np.inf
    x[3, 5:] = -np.inf  # a mask: exact zeros
    x[4, :] = 3e38
    x[5, 0] = 88  # exp(-88) is below the smallest normal float32
    x[6, 0] = -3e38
    for lanes in (1, 16):
        y = poisoned(7, 40)
        compile_kernel(cpu.softmax(7, 40, lanes=lanes))(x, y)
        assert np.isnan(y[:3]).all()
        assert (y[3, :5] == np.float32(0.2)).all() and (y[3, 5:] == 0).all()
        np.testing.assert_allclose(y[4], 1 / 40, rtol=1e-6)
        assert y[5, 0] == 1 and (y[5, 1:] < 2e-38).all()
        assert y[6, 0] == 0


def test_exp_is_accurate_over_its_whole_range() -> None:
    """A softmax over (0, x) gives exp(x) to within its own rounding where exp(x) is small."""
    x = np.zeros((4096, 2), np.float32)
    x[:, 1] = np.linspace(-87, -17, 4096, dtype=np.float32)
    y = poisoned(4096, 2)
    compile_kernel(cpu.softmax(4096, 2, lanes=2, rows=64))(x, y)
    relative = np.abs(y[:, 1] / np.exp(x[:, 1].astype(np.float64)) - 1)
    assert relative.max() < 5e-7


@pytest.mark.parametrize("shape", ROW_SHAPES, ids=str)
def test_rms_norm_is_right(shape: tuple[int, int]) -> None:
    x, w = normal(*shape), normal(shape[1])
    expected = reference.rms_norm(x, w)
    for config in cpu.rms_norm_configs(*shape)[::2]:
        y = poisoned(*shape)
        compile_kernel(cpu.rms_norm(*shape, **config))(x, w, y)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6, err_msg=str(config))


def test_rms_norm_takes_its_eps() -> None:
    x, w, y = np.zeros((2, 8), np.float32), np.ones(8, np.float32), poisoned(2, 8)
    x[0] = 1
    compile_kernel(cpu.rms_norm(2, 8, eps=3.0))(x, w, y)
    np.testing.assert_allclose(y[0], 0.5, rtol=1e-6)
    assert (y[1] == 0).all()


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_objects_need_only_tvm(level: str, tmp_path: Path) -> None:
    """No libm, no memcpy, nothing that a machine's libc would have to give, at any instruction level."""
    kernels = {
        "matmul": [cpu.matmul(100, 75, 33, **c) for c in cpu.matmul_configs(100, 75, 33)[::3]],
        "whole tiles": [cpu.matmul(96, 96, 64, **c) for c in cpu.matmul_configs(96, 96, 64)[::3]],
        "softmax": [cpu.softmax(33, 100, **c) for c in cpu.softmax_configs(33, 100)[::5]],
        "rms_norm": [cpu.rms_norm(33, 100, **c) for c in cpu.rms_norm_configs(33, 100)[::5]],
    }
    target = tvm.target.Target({"kind": "llvm", "mcpu": level})
    for name, funcs in kernels.items():
        for func in funcs:
            tvm.compile(tvm.IRModule({"main": func}), target=target).mod.write_to_file(str(tmp_path / "kernel.o"))
            listing = subprocess.run(["nm", "-u", tmp_path / "kernel.o"], capture_output=True, text=True, check=True)
            symbols = [line.split()[-1] for line in listing.stdout.splitlines()]
            assert symbols, name  # at least TVM FFI's own
            assert [s for s in symbols if not s.startswith(("TVMFFI", "TVMBackend"))] == [], name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bm": 32, "mr": 6}, "bm must be a multiple of mr, got bm=32 and mr=6"),
        ({"bn": 0}, "bn must be at least 1, got 0"),
        ({"mr": 64, "nr": 64, "bm": 64, "bn": 64}, "register tile"),
        ({"unroll": 4, "pack": True}, "K must be a multiple of unroll, got K=33"),
        ({"nr": 8, "pack": False}, "N must be a multiple of nr, got N=75 and nr=8"),
    ],
)
def test_a_config_that_cannot_serve_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cpu.matmul(100, 75, 33, **config)


def test_rows_refuse_too_many_lanes() -> None:
    for factory in (cpu.softmax, cpu.rms_norm):
        with pytest.raises(ValueError, match="lanes must be at most N, got lanes=16 and N=8"):
            factory(4, 8, lanes=16)


@pytest.mark.parametrize("kernel", sorted(SPACES))
@pytest.mark.parametrize("shape", [(512, 512, 512), (64, 1024, 1024), (100, 75, 33), (1, 1, 1)], ids=str)
def test_spaces_are_lists_of_distinct_configs(kernel: str, shape: tuple[int, int, int]) -> None:
    sizes = shape if kernel == "matmul" else shape[:2]
    configs = SPACES[kernel](*sizes)
    assert 1 <= len(configs) <= 30
    assert len({tuple(sorted(c.items())) for c in configs}) == len(configs)
    for config in configs[::6]:
        getattr(cpu, kernel)(*sizes, **config)


def test_tuning_matters() -> None:
    """The best of a few configs is well ahead of the space's first one (over 5x on a quiet machine)."""
    M = N = K = 256
    a, b = normal(M, K), normal(K, N)
    configs = cpu.matmul_configs(M, N, K)

    def seconds(config: dict[str, Any]) -> float:
        call = tvm.compile(
            tvm.IRModule({"main": cpu.matmul(M, N, K, **config)}), target=tvm.target.Target(TARGET)
        ).jit()["main"]
        tensors = [tvm.runtime.tensor(array) for array in (a, b, poisoned(M, N))]
        return min(timed(call, tensors) for _ in range(30))

    assert seconds(configs[0]) > 2 * min(seconds(config) for config in configs[1:4])


def timed(call: Callable[..., None], tensors: list[Any]) -> float:
    start = time.perf_counter()
    call(*tensors)
    return time.perf_counter() - start


def test_importing_the_factories_imports_no_compiler() -> None:
    code = "import sys, sample_pkg.cpu, sample_pkg.reference; print({'tvm', 'torch', 'tilelang'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


def test_references_agree_with_each_other_in_torch() -> None:
    torch = pytest.importorskip("torch")
    a, b, w = normal(5, 8), normal(8, 6), normal(8)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        ta, tb, tw = (torch.from_numpy(v).to(dtype) for v in (a, b, w))
        na, nb, nw = (t.double().numpy() for t in (ta, tb, tw))
        for got, want in (
            (reference.matmul(ta, tb), reference.matmul(na, nb)),
            (reference.softmax(ta), reference.softmax(na)),
            (reference.rms_norm(ta, tw, 1e-5), reference.rms_norm(na, nw, 1e-5)),
        ):
            assert got.dtype == dtype
            np.testing.assert_allclose(got.double().numpy(), want, rtol=tolerance, atol=tolerance)


def test_references_keep_numpy_dtypes() -> None:
    x = normal(3, 4)
    for result in (reference.softmax(x), reference.rms_norm(x, x[0]), reference.matmul(x, x.T)):
        assert isinstance(result, np.ndarray) and result.dtype == np.float32
    np.testing.assert_allclose(reference.softmax(x).sum(-1), 1, rtol=1e-6)
