"""PTX on a real GPU: what its driver compiles is right, also under capture and from threads; its errors; floors and notes."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

from fixtures_runtime import variant, write_package  # noqa: E402
from native.programs import SET_DEVICE, build, host_program, lowered, run, tensor  # noqa: E402

import tlaot  # noqa: E402
from tlaot.errors import BuildError  # noqa: E402
from tlaot.runtime import notes  # noqa: E402
from tlaot.runtime.device import cuda_device, cuda_version  # noqa: E402
from tlaot.target import Target, read_target  # noqa: E402
from tlaot.tune.compiling.nvcc import compile_cuda  # noqa: E402
from tlaot.tune.compiling.toolchain import CudaCompiler, find_nvcc  # noqa: E402
from tlaot.tune.frontends.lowered import DeviceKernel  # noqa: E402
from tlaot.tune.shipping.floors import find_floors  # noqa: E402

HERE = Path(__file__).parents[1]
AMPERE = read_target("cuda:compute_80")
NATIVE = read_target("cuda:sm_{}{}".format(*torch.cuda.get_device_capability()))

if not AMPERE.runs_on(torch.cuda.get_device_capability()):
    pytest.skip("needs compute capability 8.0 or later", allow_module_level=True)

N = 100_003
SOURCE = """
extern "C" __global__ void triple(const float *in, float *out, int count) {
  extern __shared__ float tile[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < count ? in[i] : 0;
  __syncthreads();
  if (i < count) out[i] = 3 * tile[threadIdx.x];
}
"""
PARAMS = [tensor("X", N), tensor("Y", N, written=True)]
# More dynamic shared memory than a kernel has without asking, so that the attribute is set too.
LAUNCH = ["INT((SIZE(0, 0) + 255) / 256)", "INT(256)", "INT(60000)"]
KERNEL = DeviceKernel("triple", ("ptr", "ptr", "int32"), (4, 4, 0), ("blockIdx.x", "threadIdx.x", "dyn_shared"))


@pytest.fixture(scope="module")
def compiler() -> CudaCompiler:
    try:
        return find_nvcc(os.environ)
    except BuildError as error:
        pytest.skip(str(error))


def link(image: bytes, target: Target, folder: Path) -> bytes:
    call = ("triple", ["PTR(DATA(0))", "PTR(DATA(1))", "INT(SIZE(0, 0))", *LAUNCH])
    program = lowered(host_program([SET_DEVICE, call]), PARAMS, [KERNEL])
    return build(program, folder, "p.triple", target, image).read_bytes()


@pytest.fixture
def package(tmp_path: Path, compiler: CudaCompiler) -> Callable[..., Any]:
    """Kernels of a package with the kernel above for the targets given; fields of the manifest's entries may be changed."""

    def make(*targets: Target, **fields: Any) -> Any:
        built = []
        for target in targets:
            code = compile_cuda(SOURCE, target, (), tmp_path / "work", 300, compiler)
            binary = link(code.data, target, tmp_path / target.slug)
            floor = find_floors(binary, target, code.maker, "p.triple")
            built.append((variant("triple", PARAMS, [1], {}, str(target), **{"floor": floor, **fields}), binary))
        write_package(tmp_path, "p", {"triple": built})
        for key in [key for key in notes._said if key[0] == "p.triple"]:
            del notes._said[key]
        return tlaot.load("p", path=tmp_path)

    return make


@pytest.fixture
def code(tmp_path: Path, compiler: CudaCompiler) -> bytes:
    """PTX that this driver reads."""
    if tuple(map(int, compiler.version.split("."))) > cuda_version():
        pytest.skip(f"the driver offers CUDA {cuda_version()}, the PTX is of {compiler.version}")
    return compile_cuda(SOURCE, AMPERE, (), tmp_path / "work", 300, compiler).data


@pytest.fixture
def ptx(package: Callable[..., Any], code: bytes) -> Any:
    return package(AMPERE).triple


def check(kernel: Any, device: int = 0) -> None:
    x = torch.randn(N, device=f"cuda:{device}")
    y = torch.empty_like(x)
    kernel(x, y)
    assert torch.equal(y, 3 * x)


def test_ptx_runs_and_is_right(ptx: Any) -> None:
    """Said aloud once, with the target that would be better; on every device that there is."""
    with pytest.warns(RuntimeWarning, match=f"compiles the PTX of cuda:compute_80(.|\n)*target {NATIVE}"):
        check(ptx)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for device in range(torch.cuda.device_count()):
            check(ptx, device)


@pytest.mark.filterwarnings("ignore:p.triple")
def test_ptx_is_first_compiled_under_capture(ptx: Any) -> None:
    x, y = torch.randn(N, device="cuda"), torch.empty(N, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ptx(x, y)
    y.zero_()
    graph.replay()
    assert torch.equal(y, 3 * x)


@pytest.mark.filterwarnings("ignore:p.triple")
def test_ptx_from_threads(ptx: Any) -> None:
    failed = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    check(ptx)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_machine_code_goes_first(package: Callable[..., Any]) -> None:
    """And nothing is said of it."""
    kernel = package(AMPERE, NATIVE).triple
    assert kernel.resolve(torch.empty(N, device="cuda")).target == str(NATIVE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(kernel)


def test_ptx_can_be_forbidden(ptx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_PTX", "0")
    with pytest.raises(tlaot.DispatchError, match=f"TLAOT_PTX=0 forbids it(.|\n)*add {NATIVE} to the targets"):
        check(ptx)


def test_another_sm_count_is_noted(package: Callable[..., Any]) -> None:
    """With what this device is called and has; the number that it was tuned for is told once."""
    properties = torch.cuda.get_device_properties(0)
    assert cuda_device(0).sm_count == properties.multi_processor_count
    assert cuda_device(0).name == properties.name
    kernel = package(NATIVE, tuned={"device": "another", "sm_count": properties.multi_processor_count + 1}).triple
    expected = f"{properties.multi_processor_count + 1} multiprocessors; {properties.name} has .*Run: tlaot retune p$"
    with pytest.warns(RuntimeWarning, match=expected):
        check(kernel)
    same = package(NATIVE, tuned={"device": "this", "sm_count": properties.multi_processor_count}).triple
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(kernel)
        check(same)


def test_the_floor_of_this_toolkit(package: Callable[..., Any], compiler: CudaCompiler) -> None:
    """What is built here runs here where the driver is of the toolkit's major release; a floor above the driver is refused."""
    assert cuda_version() >= tuple(map(int, (torch.version.cuda or "12.0").split(".")[:1]))
    if int(compiler.version.split(".")[0]) <= cuda_version()[0]:
        check(package(NATIVE).triple)
    with pytest.raises(
        tlaot.LoadError, match=r"needs a driver that offers CUDA 99\.0; the driver here offers CUDA \d+\.\d"
    ):
        check(package(NATIVE, floor={"cuda": "99.0"}).triple)


SCRIPT = """
import torch, warnings, tvm_ffi
f = open_call(sys.argv[1])
x = torch.randn(100003, device="cuda")
say(attempt(f, t(x), t(torch.empty_like(x))))
"""


def said(image: bytes, tmp_path: Path, **environ: str) -> str:
    link(image, AMPERE, tmp_path)
    script = SCRIPT.replace("import torch", "del sys.modules['torch']\nimport torch")
    output = run(script, tmp_path / "executable.so", environ={**environ, "CUDA_CACHE_DISABLE": "1"})
    return output.splitlines()[-1]


def test_the_compilers_log_is_in_the_error(tmp_path: Path, code: bytes) -> None:
    """PTX that this driver's compiler refuses: an instruction that there is not, a version that is not yet."""
    wrong = said(code.replace(b"ret;", b"nonsense.u32 %r1, %r2;\nret;", 1), tmp_path / "wrong")
    assert "This variant is for cuda:compute_80, PTX that the driver compiles" in wrong
    assert "Its compiler says: " in wrong
    assert "nonsense" in wrong
    later = said(code.replace(b".version ", b".version 9", 1), tmp_path / "later")
    assert "This variant is for cuda:compute_80, PTX that the driver compiles" in later
    assert "offers CUDA {}.{}".format(*cuda_version()) in later


def test_a_compiler_that_is_switched_off(tmp_path: Path, code: bytes) -> None:
    text = said(code, tmp_path, CUDA_DISABLE_PTX_JIT="1")
    assert "failed" in text
    assert "PTX that the driver compiles" in text


@pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="tilelang is not installed")
@pytest.mark.filterwarnings("ignore:pkg.matmul")
def test_a_gemm_of_tilelang_as_ptx(tmp_path: Path) -> None:
    """Lowered for 8.0, compiled by this device's driver: as right as machine code is."""
    from test_ptx import compiled

    from tlaot.tune.children.forkserver import close_servers
    from tlaot.tune.compiling.compile import Workshop
    from tlaot.tune.compiling.toolchain import find_toolchain

    try:
        toolchain = find_toolchain(os.environ, cuda=True)
    except BuildError as error:
        pytest.skip(str(error))
    path = (str(HERE), str(HERE.parent), *filter(None, sys.path))
    workshop = Workshop(tmp_path / "scratch", path, os.environ, tmp_path / "log", 1, toolchain, {})
    shape = {"M": 512, "N": 384, "K": 256}
    try:
        built = compiled(workshop, "tilelang", "sample_pkg.cuda:matmul", AMPERE, shape, {"block_M": 64, "block_N": 64})
    finally:
        close_servers()
    if tuple(map(int, (built.compiler.rpartition(" ")[2] or "99.0").split("."))) > cuda_version():
        pytest.skip("the driver is older than the toolkit")
    binary = (built.folder / "executable.so").read_bytes()
    write_package(tmp_path, "pkg", {"matmul": [(variant("matmul", built.params, [2], shape, str(AMPERE)), binary)]})
    a = torch.randn(512, 256, device="cuda", dtype=torch.float16)
    b = torch.randn(256, 384, device="cuda", dtype=torch.float16)
    c = tlaot.load("pkg", path=tmp_path).matmul(a, b)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-2, atol=2e-1)
