"""Behaviours 73-76: targets, execution backends, outputs."""

from __future__ import annotations

import functools
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

import tlaot
from tlaot.autotuner import here
from tlaot.errors import SpecError, TuningError
from tlaot.tune.machine import Gpu, Machine

np = pytest.importorskip("numpy")

TILES = [{"tile": 1}, {"tile": 2}]
H200 = Machine("cpu", 1, (Gpu(0, "NVIDIA H200", (9, 0), 132, 13000),), {})
NO_GPU = Machine("cpu", 1, (), {})


def resolve(target: Any, frontend: str = "tilelang", machine: Machine = NO_GPU, **arguments: Any) -> str:
    request: Any = SimpleNamespace(
        compile_args=tlaot.CompileArgs(target=target, **arguments),
        factory=SimpleNamespace(target=arguments.pop("own", None), frontend=frontend),
    )
    return str(here.resolve_target(request, machine))


def test_073_targets_in_every_spelling() -> None:
    for spelt in ("cuda:sm_90a", {"kind": "cuda", "arch": "sm_90a"}, tlaot.parse_target("cuda:sm_90a")):
        assert resolve(spelt) == "cuda:sm_90a"
    for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"):
        assert resolve({"kind": "cuda", "arch": arch}) == f"cuda:{arch}"
    assert resolve("auto").startswith("c:")
    assert resolve("auto", machine=H200) == "cuda:sm_90a"
    assert resolve("auto", frontend="tvm").startswith("llvm")
    assert resolve("c").startswith("c:") and resolve("llvm", frontend="tvm").startswith("llvm:")


def test_073_targets_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "machine_here", lambda: (NO_GPU, (), {}))
    with pytest.raises(SpecError, match="foo"):
        resolve("foo")
    with pytest.raises(SpecError, match="cannot build llvm"):
        resolve("llvm")
    with pytest.raises(SpecError, match="cannot build c:"):
        resolve("c", frontend="tvm")
    with pytest.raises(SpecError, match="names no architecture and this machine has no GPU"):
        here._parse("cuda") if not here.machine_here()[0].gpus else resolve(
            "foo, names no architecture and this machine has no GPU"
        )


def test_073_a_tvm_target(lab: Any) -> None:
    if lab.frontend == "tilelang":
        import tilelang  # noqa: F401 - brings its tvm
    tvm = pytest.importorskip("tvm")
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    assert resolve(target, lab.frontend) == "cuda:sm_90a"


@pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="needs TileLang")
def test_073_the_articles_architecture(lab: Any) -> None:
    """``sm_90`` has no wgmma, so that the article's GEMM cannot be compiled for it; the reason is told."""
    from behaviours import gpu_kernels

    arguments = tlaot.CompileArgs(target={"kind": "cuda", "arch": "sm_90a"})
    assert gpu_kernels.compile_matmul(arguments) is not None


def test_074_execution_backends() -> None:
    for backend in ("auto", "tvm_ffi", None):
        assert resolve("cuda:sm_90a", execution_backend=backend) == "cuda:sm_90a"
    for backend in ("cython", "nvrtc", "torch", "cutedsl", "nonsense"):
        with pytest.raises(SpecError, match=f"'{backend}' does not give a library that can be shipped") as error:
            resolve("cuda:sm_90a", execution_backend=backend)
        assert "tvm_ffi" in error.value.remedy


def test_075_none_takes_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_DEFAULT_TARGET", '{"kind": "cuda", "arch": "sm_80"}')
    for target in (None, "auto"):
        assert resolve(target) == "cuda:sm_80"
    assert resolve("cuda:sm_90a") == "cuda:sm_90a"
    monkeypatch.setenv("TLAOT_EXECUTION_BACKEND", "nvrtc")
    with pytest.raises(SpecError, match="nvrtc"):
        resolve(None, execution_backend=None)


def test_075_verbose_of_the_environment(
    lab: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TLAOT_VERBOSE", "1")
    tuner = lab.tuner(functools.partial(lab.scale, 16), TILES)
    tuner.set_compile_args(out_idx=[-1], target=lab.target, verbose=None).run()
    assert "measured scale" in capsys.readouterr().out


def test_076_outputs(lab: Any) -> None:
    ones = np.ones(16, "float32")
    for out_idx in (-1, 1, [-1], [1], (1,)):
        kernel = lab.autotune(lab.scale, TILES, out_idx=out_idx)(16)
        assert kernel.out_idx == [1]
        assert np.array_equal(np.asarray(kernel(ones)), ones * 2)
    for wrong in (5, [-3]):
        with pytest.raises(TuningError, match=r"out of range|outside the kernel"):
            lab.autotune(lab.scale, TILES, out_idx=wrong)(16)


@pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="needs TileLang")
def test_076_outputs_of_the_kernels_own(lab: Any) -> None:
    a = np.ones((2, 16), "float32")
    with pytest.raises((TuningError, ValueError), match="out_idx"):
        tlaot.autotune(configs=TILES, out_idx=[0], warmup=0.1, rep=0.2)(lab.kernels.eager)(a)
