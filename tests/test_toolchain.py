"""Finding compilers, running them with a time limit, compiling CUDA to cubins."""

from __future__ import annotations

import os
import shutil
import stat
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tlaot.elf import cubin_architecture
from tlaot.errors import BuildError
from tlaot.target import parse_target
from tlaot.tune.compiling.nvcc import compile_cuda
from tlaot.tune.compiling.toolchain import CudaCompiler, find_cc, find_nvcc, find_toolchain, run_tool

SOURCE = """
extern "C" __global__ void scale(float *a, int n) {
  __shared__ float tile[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) tile[threadIdx.x] = a[i];
  __syncthreads();
  if (i < n) a[i] = tile[255 - threadIdx.x] * 2;
}
"""


@pytest.fixture(scope="module")
def nvcc() -> CudaCompiler:
    try:
        return find_nvcc(os.environ)
    except BuildError as error:
        pytest.skip(str(error))


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_compiler_is_cc_or_on_path(tmp_path: Path) -> None:
    found = find_cc(os.environ)
    assert Path(found.cc[0]).is_absolute()
    assert found.version
    with pytest.raises(BuildError, match="no C compiler was found") as caught:
        find_cc({"PATH": str(tmp_path)})
    assert "apt-get install gcc" in caught.value.remedy
    with pytest.raises(BuildError, match="CC: names a compiler that is not there, got 'no-such-cc -m64'"):
        find_cc({**os.environ, "CC": "no-such-cc -m64"})
    assert find_cc({**os.environ, "CC": f"{found.cc[0]} -m64"}).cc == (found.cc[0], "-m64")


def test_nvcc_is_looked_for_in_three_places(tmp_path: Path) -> None:
    say = "echo 'Cuda compilation tools, release 99.1, V99.1.0'"
    nvcc = script(tmp_path / "cuda" / "bin" / "nvcc", say)
    for environ in ({"CUDA_HOME": str(tmp_path / "cuda")}, {"CUDA_PATH": str(tmp_path / "cuda")}):
        assert find_nvcc({**environ, "PATH": "/usr/bin:/bin"}, tmp_path) == CudaCompiler(
            str(nvcc), (), "99.1", build="99.1.0"
        )
    assert find_nvcc({"PATH": f"{nvcc.parent}:/usr/bin"}, tmp_path).nvcc == str(nvcc)
    wheel = script(tmp_path / "site" / "nvidia" / "cu13" / "bin" / "nvcc", say)
    (wheel.parents[1] / "include" / "cccl").mkdir(parents=True)
    found = find_nvcc({"PATH": "/nowhere"}, tmp_path / "site")
    assert found.nvcc == str(wheel)
    assert found.flags == (f"-I{wheel.parents[1] / 'include'}", f"-I{wheel.parents[1] / 'include' / 'cccl'}")
    with pytest.raises(BuildError, match="no nvcc was found") as caught:
        find_nvcc({"PATH": "/nowhere"}, tmp_path)
    assert "pip install 'nvidia-cuda-nvcc" in caught.value.remedy
    with pytest.raises(BuildError, match="CUDA_HOME: there is no bin/nvcc below it"):
        find_nvcc({"CUDA_HOME": str(tmp_path)}, tmp_path)
    with pytest.raises(BuildError, match="does not say its version"):
        find_nvcc({"CUDA_HOME": str(script(tmp_path / "odd" / "bin" / "nvcc", "echo hello").parents[1])}, tmp_path)
    assert find_toolchain(os.environ, cuda=False).cuda is None


def test_a_time_out_kills_the_tool_and_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    tool = script(tmp_path / "tool", f"(sleep 10; touch {mark}) &\nsleep 60")
    start = time.monotonic()
    with pytest.raises(BuildError, match=r"tool ran out of time \(0.5 s\) and was killed"):
        run_tool([str(tool)], "kernel", 0.5)
    assert time.monotonic() - start < 30, "the tool sleeps for 60 s"
    time.sleep(max(0.0, start + 13 - time.monotonic()))
    assert not mark.exists()
    with pytest.raises(BuildError, match="failed with exit status 7:\nwhy") as caught:
        run_tool([str(script(tmp_path / "tool", "echo why >&2; exit 7"))], "kernel", 10)
    assert caught.value.where == "kernel"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a", "sm_100f"])
def test_cubins_are_for_their_target(tmp_path: Path, nvcc: CudaCompiler, arch: str) -> None:
    cubin = compile_cuda(SOURCE, parse_target(f"cuda:{arch}"), (), tmp_path, 120, nvcc)
    assert cubin_architecture(cubin.data, "x") == int("".join(c for c in arch[3:] if c.isdigit()))
    assert 0 < cubin.registers < 64
    assert cubin.spills == 0
    assert cubin.static_shared == 1024
    # NVIDIA's own tool, of the toolkit or of the PyPI package nvidia-cuda-cuobjdump.
    package = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin")
    dumper = shutil.which("cuobjdump", path=f"{os.environ.get('PATH', '')}:{package}")
    if dumper:
        (tmp_path / "k.cubin").write_bytes(cubin.data)
        shown = run_tool([dumper, "-elf", str(tmp_path / "k.cubin")], "x", 60)
        assert f"sm={arch[3:].removesuffix('f')}," in shown  # cuobjdump does not tell sm_100f from sm_100


def test_cubins_do_not_depend_on_the_place(tmp_path: Path, nvcc: CudaCompiler) -> None:
    target = parse_target("cuda:sm_90a")
    one = compile_cuda(SOURCE, target, (), tmp_path / "one", 120, nvcc)
    other = compile_cuda(SOURCE, target, (), tmp_path / "other" / "place", 120, nvcc)
    assert one.data == other.data
    assert str(tmp_path).encode() not in one.data
    assert list((tmp_path / "one").iterdir()) == []


def test_what_nvcc_refuses_is_an_error_that_says_why(tmp_path: Path, nvcc: CudaCompiler) -> None:
    target = parse_target("cuda:sm_90a")
    with pytest.raises(BuildError, match='identifier "nonsense" is undefined'):
        compile_cuda(SOURCE.replace("* 2", "* nonsense"), target, (), tmp_path, 120, nvcc, "matmul")
    with pytest.raises(BuildError, match="-lineinfo records paths of this machine in what ships"):
        compile_cuda(SOURCE, target, ("-lineinfo",), tmp_path, 120, nvcc)
    with pytest.raises(BuildError, match="ran out of time"):
        compile_cuda(SOURCE, target, (), tmp_path, 0.01, replace(nvcc, nvrtc=""))  # NVRTC may be done by then
    with pytest.raises(BuildError):
        cubin_architecture(b"\x7fELF\x02\x01" + bytes(100), "x")


def test_another_architecture_than_the_target_is_refused(tmp_path: Path, nvcc: CudaCompiler) -> None:
    built = compile_cuda(SOURCE, parse_target("cuda:sm_80"), (), tmp_path, 120, nvcc).data
    (tmp_path / "sm_80.cubin").write_bytes(built)
    copier = script(tmp_path / "nvcc", f"cp {tmp_path / 'sm_80.cubin'} kernel.cubin")
    with pytest.raises(BuildError, match="nvcc compiled for sm_80, expected sm_90a"):
        compile_cuda(SOURCE, parse_target("cuda:sm_90a"), (), tmp_path, 10, CudaCompiler(str(copier), (), "13.0"))


def test_the_architecture_is_read_of_old_and_new_cubins() -> None:
    def header(abi: int, flags: int) -> bytes:
        head = bytearray(64)
        head[:9] = b"\x7fELF\x02\x01\x01\x41" + bytes([abi])
        head[18:20] = (190).to_bytes(2, "little")
        head[48:52] = flags.to_bytes(4, "little")
        return bytes(head)

    assert cubin_architecture(header(7, 0x00560556), "x") == 0x56
    assert cubin_architecture(header(8, 0x06005A02), "x") == 0x5A
