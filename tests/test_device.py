"""What a CUDA device can run is asked of the driver, per device; here of a driver made for the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures_runtime import SOURCES

PRELUDE = """
import re
import pytest
import tlaot
from fixtures_runtime import tensor, variant
from tlaot.manifest import Kernel, Manifest
from tlaot.runtime.device import cuda_capability
from tlaot.runtime.load import open_manifest

class OnCuda:
    def __init__(self, device):
        self.device_id, self.shape, self.dtype = device, (4,), "float16"
    def __dlpack__(self, **options):
        raise AssertionError("exported")
    def __dlpack_device__(self):
        return 2, self.device_id
"""


def run(code: str, *library_paths: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES.parent), *filter(None, sys.path)])}
    env["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, library_paths))
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a ``libcuda.so.1`` with two devices."""
    folder = tmp_path_factory.mktemp("driver")
    source = str(SOURCES / "libcuda.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), source], check=True)
    return folder


def test_capability_is_per_device(driver: Path) -> None:
    """By ordinal, without a framework; an ordinal that is not there is an error with the driver's name for it."""
    run(
        """
assert cuda_capability(0) == (8, 6)
assert cuda_capability(1) == (9, 0)
with pytest.raises(tlaot.LoadError, match="cuda:7: the CUDA driver answers CUDA_ERROR_INVALID_DEVICE"):
    cuda_capability(7)
""",
        driver,
    )


def test_each_device_gets_its_own_variant(driver: Path) -> None:
    """Two GPUs of two kinds in one process: each tensor's device decides, not the first one's."""
    run(
        """
params = [tensor("X", 4, dtype="float16"), tensor("Y", 4, dtype="float16", written=True)]
built = [variant("k", params, [1], {}, f"cuda:{arch}") for arch in ("sm_80", "sm_90a", "sm_100a")]
kernel = open_manifest(Manifest("p", {"k": Kernel("k", tuple(built))}, "0"), ".").k
assert kernel.resolve(OnCuda(0)).target == "cuda:sm_80"
assert kernel.resolve(OnCuda(1)).target == "cuda:sm_90a"
assert kernel.resolve(OnCuda(0)).target == "cuda:sm_80"
with pytest.raises(tlaot.CallError, match="argument 1 is on cuda:1, argument 0 on cuda:0"):
    kernel.resolve(OnCuda(0), OnCuda(1))
only = open_manifest(Manifest("p", {"k": Kernel("k", tuple(built[1:]))}, "0"), ".").k
with pytest.raises(tlaot.DispatchError, match=r"compute capability 8\\.6 \\(cuda:0\\)(.|\\n)*add sm_86 to the targets"):
    only.resolve(OnCuda(0))
cpu = open_manifest(Manifest("p", {"k": Kernel("k", (variant("k", params, [1], {}),))}, "0"), ".").k
with pytest.raises(tlaot.DispatchError, match=r"packaged for the CPU only"):
    cpu.resolve(OnCuda(0))
""",
        driver,
    )


def test_without_a_driver(tmp_path: Path) -> None:
    """LoadError; and a kernel for the CPU only never asks."""
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    run(
        """
with pytest.raises(tlaot.LoadError, match="cuda:0: the CUDA driver cannot be loaded"):
    cuda_capability(0)
""",
        tmp_path,
    )
