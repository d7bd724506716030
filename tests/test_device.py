"""What a CUDA device can run is asked of the driver, per device; here of a driver made for the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures_runtime import SOURCES

PRELUDE = """
import dataclasses
import os
import re
import pytest
import tlaot
from fixtures_runtime import tensor, variant
from tlaot.manifest import Kernel, Manifest
from tlaot.runtime.device import CudaDevice, cuda_capability, cuda_device, cuda_place, cuda_version
from tlaot.runtime.floors import require_floors
from tlaot.runtime.load import open_manifest

class OnCuda:
    def __init__(self, device):
        self.device_id, self.shape, self.dtype = device, (4,), "float16"
    def __dlpack__(self, **options):
        raise AssertionError("exported")
    def __dlpack_device__(self):
        return 2, self.device_id
"""


def run(code: str, *library_paths: Path, **environ: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES.parent), *filter(None, sys.path)]), **environ}
    env["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, library_paths))
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], env=env, capture_output=True, text=True, timeout=120)
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


def test_a_device_is_described_once(driver: Path, tmp_path: Path) -> None:
    """Name, capability and multiprocessors; what visible devices are is the driver's affair."""
    run(
        """
assert cuda_device(0) == CudaDevice("Device 40", (8, 6), 82, 8000)
assert cuda_device(1) == CudaDevice("Device 41", (9, 0), 132, 9000)
assert [cuda_device(i % 2).sm_count for i in range(10)] == [82, 132] * 5
place = cuda_place(1, {})
assert (place.capability, place.sm_count, place.device, place.ptx) == ((9, 0), 132, "Device 41", True)
assert open(os.environ["LIBCUDA_LOG"]).read() == "iaaaa" * 2
""",
        driver,
        LIBCUDA_LOG=str(tmp_path / "log"),
    )
    run(
        "assert cuda_device(0).capability == (9, 0) and cuda_device(1).capability == (8, 6)",
        driver,
        CUDA_VISIBLE_DEVICES="1,0",
    )
    run(
        """
assert cuda_device(0).sm_count == 132
for _ in range(2):
    with pytest.raises(tlaot.LoadError, match="cuda:1: the CUDA driver answers CUDA_ERROR_INVALID_DEVICE"):
        cuda_device(1)
""",
        driver,
        CUDA_VISIBLE_DEVICES="1",
    )


def test_ptx_is_switched_off_by_a_variable(driver: Path) -> None:
    run(
        """
assert [cuda_place(0, {"TLAOT_PTX": text}).ptx for text in ("", "1", "0", " 0 ")] == [True, True, False, False]
with pytest.raises(tlaot.SpecError, match="TLAOT_PTX: expected 0 or 1, got 'no'"):
    cuda_place(0, {"TLAOT_PTX": "no"})
""",
        driver,
    )


@pytest.mark.parametrize(
    ("offered", "version"), [("12000", (12, 0)), ("12080", (12, 8)), ("13000", (13, 0)), ("13010", (13, 1))]
)
def test_the_driver_says_what_it_offers(driver: Path, offered: str, version: tuple[int, int]) -> None:
    run(f"assert cuda_version() == cuda_version() == {version}", driver, LIBCUDA_VERSION=offered)


def test_an_old_driver_is_refused_with_both_versions(driver: Path) -> None:
    """Of code and of PTX; what needs no more than there is passes, and what says nothing of it."""
    run(
        """
params = [tensor("X", 4, dtype="float16"), tensor("Y", 4, dtype="float16", written=True)]
def needs(floor, target="cuda:sm_100a"):
    return variant("k", params, [1], {}, target, floor=floor)
for floor in ({}, {"glibc": "2.17"}, {"cuda": "12.0"}, {"cuda": "12.8", "toolkit": "12.9"}):
    require_floors("p.k", needs(floor))
with pytest.raises(tlaot.LoadError) as caught:
    require_floors("p.k", needs({"cuda": "13.0", "toolkit": "13.2"}))
assert str(caught.value) == (
    "p.k: the code for cuda:sm_100a, made with CUDA 13.2, needs a driver that offers CUDA 13.0; the driver here offers CUDA 12.8\\n"
    "Update the NVIDIA driver (nvidia-smi shows its CUDA version), or build the package with CUDA 12.x."
)
with pytest.raises(tlaot.LoadError, match="the PTX for cuda:compute_80 needs a driver that offers CUDA 12.10; .* CUDA 12.8"):
    require_floors("p.k", needs({"cuda": "12.10"}, "cuda:compute_80"))
for lie in ("13", "new", "13.0.1", "", 13.0, ["13", "0"]):
    with pytest.raises(tlaot.PackageError, match=re.escape(f"floor of cuda for cuda:sm_100a is no version, got {lie!r}")):
        require_floors("p.k", needs({"cuda": lie}))
    with pytest.raises(tlaot.PackageError, match="floor of glibc for llvm:x86-64 is no version"):
        require_floors("p.k", needs({"glibc": lie}, "llvm:x86-64"))
require_floors("p.k", needs({"glibc": "2.17", "cuda": "99.0"}, "llvm:x86-64"))
""",
        driver,
        LIBCUDA_VERSION="12080",
    )


def test_an_old_c_library_is_refused_with_both_versions(driver: Path) -> None:
    """On the CPU too; another C library than glibc is the dynamic linker's affair."""
    run(
        """
params = [tensor("X", 4), tensor("Y", 4, written=True)]
def needs(glibc):
    return variant("k", params, [1], {}, floor={"glibc": glibc})
for said in ("glibc 2.28", "glibc 2.28.9000"):
    os.confstr = lambda name: said
    require_floors("p.k", needs("2.17"))
    require_floors("p.k", needs("2.28"))
    with pytest.raises(tlaot.LoadError) as caught:
        require_floors("p.k", needs("2.34"))
    assert str(caught.value).startswith("p.k: the binary for llvm:x86-64 needs glibc 2.34; the system here has 2.28\\nUse a newer")
def musl(name):
    raise ValueError("unrecognized configuration name")
for confstr in (musl, lambda name: None, lambda name: "", lambda name: "other 1.2"):
    os.confstr = confstr
    require_floors("p.k", needs("2.34"))
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
with pytest.raises(tlaot.DispatchError, match=r"compute capability 8\\.6 \\(cuda:0\\)(.|\\n)*add cuda:sm_86 to the targets"):
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
with pytest.raises(tlaot.LoadError, match="cuda: the CUDA driver cannot be loaded"):
    cuda_version()
# Without a call a file may be loaded all the same, as by a build.
require_floors("p.k", variant("k", [], [], {}, "cuda:sm_80", floor={"cuda": "12.0"}))
require_floors("p.k", variant("k", [], [], {}, floor={"glibc": "2.17"}))
""",
        tmp_path,
    )
