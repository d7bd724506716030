"""Measuring on several GPUs, through the public interface; with one GPU, the same path with one device left."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)
if importlib.util.find_spec("tilelang") is None:
    pytest.skip("tilelang is not installed", allow_module_level=True)

import tlaot  # noqa: E402

CONFIGS = [
    {"block_M": m, "block_N": n, "block_K": k, "threads": 128} for m in (64, 128) for n in (64, 128) for k in (32, 64)
]
SIZE = 512


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "seen").mkdir()
    return tmp_path


def tune(folder: Path, **run: Any) -> tuple[Any, set[str]]:
    """The result, and the GPUs on which a measuring process has called the reference."""
    from behaviours.gpu_kernels import gemm

    seen = folder / "seen"

    def reference(a: Any, b: Any) -> Any:
        (seen / str(torch.cuda.get_device_properties(a.device).uuid)).touch()
        return a @ b

    tuner = tlaot.AutoTuner.from_kernel(functools.partial(gemm, SIZE, SIZE, SIZE), CONFIGS)
    tuner.set_compile_args(out_idx=[-1]).set_profile_args(ref_prog=reference, warmup=1, rep=5)
    result = tuner.run(use_pipeline=False, **run)
    return result, {path.name for path in seen.iterdir()}


def check(result: Any) -> None:
    assert result.config in CONFIGS
    assert result.latency > 0
    a, b = (torch.randn(SIZE, SIZE, device="cuda").half() for _ in range(2))
    torch.testing.assert_close(result.kernel(a, b), a @ b, rtol=1e-2, atol=1e-1)


def uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def test_devices_that_are_not_there(folder: Path) -> None:
    """They are named and left out; what is left measures."""
    result, seen = tune(folder, benchmark_devices=[0, 77])
    check(result)
    assert seen == {uuid(0)}
    assert "Ignoring invalid benchmark device ids [77]" in (folder / "autotuner.log").read_text()


def test_all_devices_of_a_model(folder: Path) -> None:
    """Each measures some of the candidates, in a process of its own."""
    result, seen = tune(folder, benchmark_multi_gpu=True)
    check(result)
    count = torch.cuda.device_count()
    name = torch.cuda.get_device_name(0)
    assert seen == {uuid(i) for i in range(count) if torch.cuda.get_device_name(i) == name}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_device_alone(folder: Path) -> None:
    result, seen = tune(folder, benchmark_devices=[1])
    check(result)
    assert seen == {uuid(1)}
