"""Candidates that no device of their target can run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tlaot.errors import BuildError
from tlaot.target import parse_target
from tlaot.tune.compiling.devices import device_for
from tlaot.tune.compiling.limits import find_excess, find_excess_after_compiling, find_excess_in_error
from tlaot.tune.compiling.nvcc import DeviceCode, compile_cuda
from tlaot.tune.compiling.toolchain import find_nvcc
from tlaot.tune.frontends.lowered import DeviceKernel

HOPPER = parse_target("cuda:sm_90a")
KIB = 1024


def kernel(dyn_shared: int | None = 0, threads: int | None = 128) -> DeviceKernel:
    return DeviceKernel("k", (), (), ("dyn_shared", "cooperative", "cluster.x"), dyn_shared, threads)


def cubin(registers: int = 32, static_shared: int = 0) -> DeviceCode:
    return DeviceCode(b"", registers, 0, static_shared, "")


@pytest.mark.parametrize(
    ("target", "most"), [("cuda:sm_75", 64), ("cuda:sm_80", 163), ("cuda:sm_86", 99), ("cuda:sm_90a", 227)]
)
def test_shared_memory_up_to_the_limit_of_the_target(target: str, most: int) -> None:
    asked = parse_target(target)
    device = device_for(asked)
    assert find_excess([kernel(most * KIB)], device, asked) is None
    assert find_excess([kernel(1), kernel(most * KIB + 512)], device, asked) == (
        f"needs {most}.5 KiB of shared memory per block, {target} has {most} KiB"
    )


def test_the_spec_may_describe_another_device() -> None:
    device = device_for(HOPPER, {"shared_memory": 100 * KIB})
    assert find_excess([kernel(101 * KIB)], device, HOPPER) is not None
    assert find_excess([kernel(100 * KIB)], device, HOPPER) is None


def test_threads_of_a_block() -> None:
    device = device_for(HOPPER)
    assert find_excess([kernel(threads=1024)], device, HOPPER) is None
    assert find_excess([kernel(threads=1056)], device, HOPPER) == "needs 1056 threads per block, cuda:sm_90a has 1024"


def test_what_depends_on_a_size_may_fit() -> None:
    device = device_for(HOPPER)
    assert find_excess([kernel(None, None)], device, HOPPER) is None
    assert find_excess_after_compiling([kernel(None, None)], cubin(255, 48 * KIB), device, HOPPER) is None


def test_static_and_dynamic_shared_memory_together() -> None:
    device = device_for(HOPPER)
    assert find_excess_after_compiling([kernel(200 * KIB)], cubin(static_shared=27 * KIB), device, HOPPER) is None
    assert find_excess_after_compiling([kernel(200 * KIB)], cubin(static_shared=28 * KIB), device, HOPPER) == (
        "needs 228.0 KiB of shared memory per block, cuda:sm_90a has 227 KiB"
    )


def test_registers_of_a_block() -> None:
    device = device_for(HOPPER)
    for registers, threads in ((64, 1024), (255, 256), (168, 384), (128, 512)):
        assert find_excess_after_compiling([kernel(threads=threads)], cubin(registers), device, HOPPER) is None
    assert find_excess_after_compiling([kernel(threads=1024)], cubin(65), device, HOPPER) == (
        "needs 73728 registers per block (65 for each of 1024 threads), cuda:sm_90a has 65536"
    )


def test_the_largest_of_several_kernels_is_held_against_the_smallest_launch() -> None:
    device = device_for(HOPPER)
    kernels = [kernel(200 * KIB, 1024), kernel(0, 64)]
    assert find_excess_after_compiling(kernels, cubin(128, 48 * KIB), device, HOPPER) is None


def _compile(source: str, tmp_path: Path) -> DeviceCode:
    try:
        compiler = find_nvcc(os.environ)
    except BuildError:
        pytest.skip("there is no nvcc")
    return compile_cuda(source, HOPPER, (), tmp_path, 300, compiler)


def test_what_the_compiler_says_of_static_shared_memory(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void k(float *a) { __shared__ float s[%d]; s[threadIdx.x] = a[0]; __syncthreads(); a[1] = s[7]; }'
    device = device_for(HOPPER)
    compiled = _compile(source % (12 * KIB), tmp_path)
    assert compiled.static_shared == 48 * KIB
    assert find_excess_after_compiling([kernel(179 * KIB)], compiled, device, HOPPER) is None
    assert find_excess_after_compiling([kernel(180 * KIB)], compiled, device, HOPPER) == (
        "needs 228.0 KiB of shared memory per block, cuda:sm_90a has 227 KiB"
    )
    try:
        reason = find_excess_after_compiling([kernel(0)], _compile(source % (60 * KIB), tmp_path), device, HOPPER)
    except BuildError as error:  # some releases of ptxas refuse it themselves
        reason = find_excess_in_error(error.what, HOPPER)
    assert reason is not None and reason.startswith("needs 240.0 KiB of")


def test_what_the_compiler_refuses() -> None:
    refused = "nvcc failed with exit status 255:\nptxas error   : Entry function 'k' uses too much shared data (0x20000 bytes, 0xc000 max)"
    assert find_excess_in_error(refused, HOPPER) == (
        "needs 128.0 KiB of static shared memory per block, cuda:sm_90a has 48 KiB"
    )
    assert find_excess_in_error("ptxas fatal: no such instruction", HOPPER) is None


def test_what_the_compiler_says_of_registers(tmp_path: Path) -> None:
    source = """
    extern "C" __global__ void k(float *a) {
      float kept[160];
      #pragma unroll
      for (int i = 0; i < 160; ++i) kept[i] = a[i * blockDim.x + threadIdx.x];
      __syncthreads();
      #pragma unroll
      for (int i = 0; i < 160; ++i) a[i * blockDim.x + threadIdx.x] = kept[159 - i];
    }
    """
    compiled = _compile(source, tmp_path)
    assert compiled.registers > 150
    device = device_for(HOPPER)
    assert find_excess_after_compiling([kernel(threads=256)], compiled, device, HOPPER) is None
    reason = find_excess_after_compiling([kernel(threads=512)], compiled, device, HOPPER)
    assert reason is not None and "registers per block" in reason
