"""PTX in place of a cubin: compiled, assembled for several architectures, embedded; without a GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tlaot import elf
from tlaot.errors import BuildError
from tlaot.image import Image, read_image
from tlaot.target import Target, read_target
from tlaot.tune.children.child import Failed
from tlaot.tune.children.forkserver import close_servers
from tlaot.tune.compiling.compile import Built, Workshop, compile_candidates
from tlaot.tune.compiling.nvcc import compile_cuda
from tlaot.tune.compiling.toolchain import CudaCompiler, find_nvcc, find_toolchain, run_tool
from tlaot.tune.specs.plan import Workload
from tlaot.tune.specs.spec import KernelSpec, Profile

HERE = Path(__file__).parent
AMPERE = read_target("cuda:compute_80")

SOURCE = """
#include <cuda_fp16.h>
__device__ const float factors[3] = {1.0f, 2.0f, 3.0f};
// a comment
extern "C" __global__ void __launch_bounds__(256) scale(__half *a, int n) {
  __shared__ float tile[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) tile[threadIdx.x] = __half2float(a[i]);
  __syncthreads();
  asm volatile("// another");
  if (i < n) a[i] = __float2half(tile[255 - threadIdx.x] * factors[i % 3]);
}
"""


@pytest.fixture(scope="module", params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest) -> CudaCompiler:
    """The two ways to PTX."""
    return made_by(request.param)


def made_by(maker: str) -> CudaCompiler:
    try:
        found = find_nvcc(os.environ)
    except BuildError as error:
        pytest.skip(str(error))
    if maker == "nvrtc" and not found.nvrtc:
        pytest.skip("there is no NVRTC of nvcc's release")
    return found if maker == "nvrtc" else replace(found, nvrtc="")


def assemble(ptx: bytes, arch: str, folder: Path) -> Image:
    """NVIDIA's assembler takes the PTX for an architecture, as a driver's does."""
    compiler = find_nvcc(os.environ)
    folder.mkdir(exist_ok=True)
    (folder / "k.ptx").write_bytes(ptx)
    number = arch.removeprefix("sm_")
    generate = f"arch=compute_{number},code={arch}"
    run_tool([compiler.nvcc, "-cubin", "-gencode", generate, "k.ptx", "-o", "k.cubin"], arch, 300, folder)
    return read_image((folder / "k.cubin").read_bytes(), arch)


def test_ptx_is_made_and_taken_by_later_architectures(tmp_path: Path, compiler: CudaCompiler) -> None:
    code = compile_cuda(SOURCE, AMPERE, ("-std=c++17",), tmp_path / "work", 120, compiler)
    assert code.maker == ("nvrtc" if compiler.nvrtc else "nvcc") + f" {compiler.version}"
    assert 0 < code.registers < 64
    assert code.static_shared == 1024
    assert read_image(code.data, "k") == Image("compute_80", True, compiler.version)
    text = code.data.decode("ascii")
    assert ".maxntid 256" in text
    assert ".visible .entry scale(" in text
    # Nothing of the machine, and nothing that only people would read.
    assert str(tmp_path) not in text
    assert not re.search(r"//|^\s|\n\n|/tmp|/usr|device_kernel|\.file|Compiler Build", text, re.MULTILINE)
    for arch in ("sm_80", "sm_86", "sm_90", "sm_90a", "sm_120"):
        assert assemble(code.data, arch, tmp_path / arch).is_for(arch)
    assert list((tmp_path / "work").iterdir()) == []


def test_ptx_does_not_depend_on_the_place(tmp_path: Path, compiler: CudaCompiler) -> None:
    one = compile_cuda(SOURCE, AMPERE, (), tmp_path / "one", 120, compiler)
    other = compile_cuda(SOURCE, AMPERE, (), tmp_path / "another" / "place", 120, compiler)
    assert one.data == other.data


@pytest.mark.parametrize("arch", ["compute_90a", "compute_100f", "compute_103"])
def test_features_of_an_architecture_or_family_reach_ptx(tmp_path: Path, compiler: CudaCompiler, arch: str) -> None:
    target = read_target(f"cuda:{arch}")
    code = compile_cuda(SOURCE, target, (), tmp_path, 120, compiler)
    assert read_image(code.data, "k").arch == arch
    assert assemble(code.data, target.sm, tmp_path / "same").is_for(target.sm)
    other = {"compute_90a": "sm_100", "compute_100f": "sm_120", "compute_103": "sm_100"}[arch]
    with pytest.raises(BuildError):
        assemble(code.data, other, tmp_path / "other")


def test_ptx_that_the_assembler_refuses_is_an_error(tmp_path: Path, compiler: CudaCompiler) -> None:
    """The compilers do not read inline assembly: the customer's driver would be the first to."""
    source = SOURCE.replace("// another", "wgmma.fence.sync.aligned;")
    with pytest.raises(BuildError, match=r"wgmma\.fence"):
        compile_cuda(source, AMPERE, (), tmp_path, 120, compiler)
    for flag in ("-lineinfo", "-G"):
        with pytest.raises(BuildError, match="records paths of this machine"):
            compile_cuda(SOURCE, AMPERE, (flag,), tmp_path, 120, compiler)


def test_ptx_of_another_architecture_is_refused(tmp_path: Path) -> None:
    compiler = made_by("nvcc")
    for arch, says in (("90", "compiled for compute_90, expected compute_80"), ("80 -lineinfo", "names files")):
        tool = tmp_path / "nvcc"
        # What a wrapper of nvcc may do: it adds flags to those that it is given.
        changed = arch.split()
        tool.write_text(
            "#!/bin/sh\n"
            f'for a; do shift; case "$a" in arch=compute_80*) a=arch=compute_{changed[0]},code=compute_{changed[0]};; esac\n'
            'set -- "$@" "$a"; done\n'
            f'case "$1" in -ptx) exec {compiler.nvcc} "$@" {" ".join(changed[1:])};; *) : > kernel.cubin;; esac\n'
        )
        tool.chmod(0o755)
        with pytest.raises(BuildError, match=says):
            compile_cuda(SOURCE, AMPERE, (), tmp_path, 120, replace(compiler, nvcc=str(tool)))


# --- kernels of both frontends -----------------------------------------------------------------------------------


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    try:
        toolchain = find_toolchain(os.environ, cuda=True)
    except BuildError as error:
        pytest.skip(str(error))
    search_path = (str(HERE), str(HERE.parent), *filter(None, sys.path))
    devices = {"cuda:sm_80": {"name": "an A100 of mine"}}
    yield Workshop(tmp_path / "scratch", search_path, os.environ, tmp_path / "log", 2, toolchain, devices)
    close_servers()


def compiled(
    workshop: Workshop, frontend: str, factory: str, target: Target, shape: Mapping[str, Any], config: Mapping[str, Any]
) -> Built:
    kernel = KernelSpec(
        "k", frontend, factory, (target,), (shape,), (config,), "here", profile=Profile(compile_timeout=300)
    )
    (built,) = compile_candidates(
        Workload(kernel, target, shape, (config,)).candidates(), frontend, workshop, lambda *_: None
    )
    assert isinstance(built, Built), built
    return built


CASES = {
    "tilelang": [
        ("sample_pkg.cuda:matmul", {"M": 256, "N": 256, "K": 256}, {"block_M": 64, "block_N": 64, "threads": 128}),
        ("sample_pkg.cuda:softmax", {"M": 77, "N": 1000}, {"chunk": 1024, "threads": 256}),
    ],
    "tvm": [("tvm_cases:matmul", {"M": 256, "N": 256, "K": 256}, {})],
}


@pytest.mark.parametrize(("frontend", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_kernels_ship_as_ptx(workshop: Workshop, tmp_path: Path, frontend: str, case: tuple[Any, ...]) -> None:
    """The same worker, the same executable; what is embedded assembles for 8.0, 9.0 and 12.0."""
    if importlib.util.find_spec({"tilelang": "tilelang", "tvm": "tvm"}[frontend]) is None:
        pytest.skip(f"{frontend} is not installed")
    if frontend == "tvm" and importlib.util.find_spec("tilelang") is not None:
        pytest.skip("TVM's own frontend is tested where TileLang is not")
    factory, shape, config = case
    built = compiled(workshop, frontend, factory, AMPERE, shape, config)
    data = (built.folder / "executable.so").read_bytes()
    ptx = elf.device_image(data, "k")
    assert ptx is not None
    assert read_image(ptx, "k").arch == "compute_80"
    assert data.count(ptx + b"\0") == 1
    assert (built.folder / "kernel.ptx").read_bytes() == ptx
    assert not (built.folder / "kernel.cubin").exists()
    for arch in ("sm_80", "sm_90", "sm_120"):
        assert assemble(ptx, arch, tmp_path / arch).is_for(arch)
    assert str(tmp_path).encode() not in data
    real = compiled(workshop, frontend, factory, read_target("cuda:sm_80"), shape, config)
    # The same launch, from the same lowering: only the device code differs.
    assert real.params == built.params
    assert (real.folder / "device_kernel.cu").read_bytes() == (built.folder / "device_kernel.cu").read_bytes()
    assert (real.folder / "host_kernel.c").read_bytes() == (built.folder / "host_kernel.c").read_bytes()


def test_what_later_devices_lack_is_left_out(workshop: Workshop) -> None:
    """128 KiB of shared memory are fine on an A100, for which the config was tuned; not on an L4, which reads the PTX."""
    if importlib.util.find_spec("tilelang") is None:
        pytest.skip("tilelang is not installed")
    config = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 4, "threads": 256}
    shape = {"M": 1024, "N": 1024, "K": 1024}
    outcomes = []
    for target in (read_target("cuda:sm_80"), AMPERE):
        profile = Profile(compile_timeout=300)
        kernel = KernelSpec(
            "k", "tilelang", "sample_pkg.cuda:matmul", (target,), (shape,), (config,), "here", profile=profile
        )
        candidates = Workload(kernel, target, shape, (config,)).candidates()
        outcomes += compile_candidates(candidates, "tilelang", workshop, lambda *_: None)
    assert isinstance(outcomes[0], Built), outcomes[0]
    assert outcomes[0].shared_memory == 131072
    assert outcomes[1] == Failed("prune", "needs 128.0 KiB of shared memory per block, cuda:compute_80 has 99 KiB")
