"""``tlaot capture`` with TileLang itself, on its CPU target; and without compiling anything, for a GPU's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import has_distribution

from tlaot.capturing.recording import Called, Recording, read_recording
from tlaot.capturing.watch import child_environment
from tlaot.cli import main
from tlaot.tune.specs.spec_file import read_spec

pytestmark = pytest.mark.skipif(not has_distribution("tilelang"), reason="needs tilelang")

KERNELS = '''
import tilelang
import tilelang.language as T
from tilelang.carver.arch import driver


@tilelang.jit(out_idx=[-1], target="c")
def scale(M, N=16, factor=2.0, dtype=T.float32):
    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=1) as bx:
            for j in T.serial(N):
                Y[bx, j] = X[bx, j] * factor

    return main


@tilelang.autotune(configs=[{"width": 1}, {"width": 2}])
@tilelang.jit(target="c")
def rows(hidden, width=1):
    num_tokens = T.dynamic("num_tokens")

    @T.prim_func
    def main(X: T.Tensor((num_tokens, hidden), "float32"), Y: T.Tensor((num_tokens, hidden), "float32")):
        with T.Kernel(num_tokens, threads=1) as bx:
            for j in T.serial(hidden):
                Y[bx, j] = X[bx, j] + 1.0

    return main


@tilelang.jit(target="c")
def add(A, B, k: int = 3):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], "float32"]
    B: T.Tensor[[M, N], "float32"]
    with T.Kernel(M, threads=1) as bx:
        for j in T.serial(N):
            B[bx, j] = A[bx, j] + k


@tilelang.autotune(configs=[{"width": 2}])
@tilelang.jit(target="c")
def tuned(A, B, width: int = 1):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], "float32"]
    B: T.Tensor[[M, N], "float32"]
    with T.Kernel(M // width, threads=1) as bx:
        for i, j in T.grid(width, N):
            B[bx * width + i, j] = A[bx * width + i, j] + 1.0


@tilelang.jit(out_idx=[-1])
def persistent(N):
    """Asks for the GPU when it is elaborated."""
    num_tokens = T.dynamic("num_tokens")
    blocks = driver.get_num_sms()

    @T.prim_func
    def main(X: T.Tensor((num_tokens, N), "float16"), Y: T.Tensor((num_tokens, 2 * N), "float16")):
        with T.Kernel(blocks, threads=128) as bx:
            Y[bx, 0] = X[bx, 0]

    return main
'''

RUN = """
import torch
import tlaot
import tilelang.language as T
import tilelang.autotuner.tuner
from tlpkg.kernels import add, rows, scale, tuned

# On the CPU TileLang's decorator cannot time.
tilelang.autotuner.tuner.AutoTuner._benchmark_target = lambda *given, **named: (1.0, None)
x = torch.ones(4, 16)
before = scale(4)
assert (before(x) == 2).all()

with tlaot.capture(FOLDER) as captured:
    assert (scale(M=4)(x) == 2).all() and scale(4) is before
    before(x[:, :])
    opened = scale(T.dynamic("m"))
    assert (opened(torch.ones(7, 16)) == 2).all() and (opened(torch.ones(9, 16)) == 2).all()
    kernel = rows(16, width=1)
    for n in (1, 6, 6):
        y = torch.empty(n, 16)
        kernel(torch.zeros(n, 16), y)
        assert (y == 1).all()
    y = torch.empty(4, 16)
    add(x, y, 5)
    assert (y == 6).all()
    add.compile(x, y, k=5)
    (one,) = scale.par_compile([{"M": 4, "dtype": T.float32}])
    one(x)
    tuned(x, y), tuned(x, y)
    assert (y == 2).all()
    try:
        before(torch.ones(3, 3))
    except ValueError as error:
        assert "Static shape mismatch" in str(error)
    else:
        raise AssertionError("it takes other shapes")
counted = captured.read().times
before(x), add(x, y, 5), scale(4)
assert captured.read().times == counted, "it is recorded after its end"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tl")
    (folder / "tlpkg").mkdir()
    (folder / "tlpkg" / "__init__.py").touch()
    (folder / "tlpkg" / "kernels.py").write_text(KERNELS)
    return folder


def run(project: Path, program: str, **environ: str) -> None:
    path = os.pathsep.join([str(project), *[entry for entry in sys.path if entry]])
    own = {"PYTHONPATH": path, "TILELANG_CACHE_DIR": str(project / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **own, **environ},
        capture_output=True,
        text=True,
        cwd=project,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def by_label(recording: Recording) -> dict[str, Called]:
    assert not recording.troubles
    return {f"{one.factory.name if one.factory else one.kernel} {one.label}": one for one in recording.called}


def test_lazy_eager_symbolic_and_tuned(project: Path) -> None:
    """A block: results and errors stay, and each way to get a kernel is recorded under its key."""
    run(project, f"FOLDER = {str(project / 'block')!r}\n{RUN}")
    called = by_label(read_recording([project / "block"]))
    dtype = '{ dtype = "float32" }'
    static = called[f"scale {{ M = 4, N = 16, factor = 2.0, dtype = {dtype} }}"]
    assert (static.times, static.calls, static.outputs, static.defaults) == (3, 2, (1,), ("N", "dtype", "factor"))
    assert sum(launch.failed for launch in static.launches) == 1
    opened = called[f"scale {{ N = 16, factor = 2.0, dtype = {dtype} }}"]
    assert dict(opened.symbols) == {"M": "m"} and opened.times == 2 and opened.params[0]["shape"] == ["m", 16]
    rows = called["rows { hidden = 16, width = 1 }"]
    assert rows.times == 3 and rows.params[0]["shape"] == ["num_tokens", 16]
    eager = called["add { M = 4, N = 16, k = 5 }"]
    assert eager.times == 1 and eager.eager
    tuned = called["tuned { M = 4, N = 16, width = 2 }"]
    assert tuned.times == 2 and tuned.tuned == ("width",)
    assert len(called) == 5


DRY = """
import torch
from tlpkg.kernels import persistent, rows

kernel = persistent(64)
for n in (3, 300):
    y = kernel(torch.ones(n, 64, dtype=torch.float16))
    assert y.shape == (n, 128) and y.dtype == torch.float16 and not y.any()
assert len(kernel.params) == 2 and kernel.get_kernel_source() == ""
assert rows(16)(torch.ones(5, 16), torch.empty(5, 16)) is None
if torch.version.cuda is None:  # tensors that are asked for on the GPU that is not here
    x = torch.ones(5, 16, device="cuda")
    y = torch.empty_like(x.to("cuda:0").cuda(), device=x.device)
    assert x.is_cuda and x.device == y.device == torch.device("cuda", 0)
    assert (x + y).sum().item() is not None
    torch.cuda.synchronize()
    with torch.cuda.device(x.device):
        rows(16)(x, y)
else:
    rows(16)(torch.ones(5, 16), torch.empty(5, 16))
"""


def test_a_dry_run_needs_no_gpu_and_no_compiler(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for a GPU that asks for it; from there into a spec."""
    folder = project / "dry"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project), *[entry for entry in sys.path if entry]]))
    run(project, DRY, **{k: v for k, v in child_environment(folder, os.environ, "cuda:sm_90a").items()})
    recording = read_recording([folder])
    assert recording.dry and recording.times == 4
    monkeypatch.chdir(project)
    assert main(["capture", "--from", str(folder)]) == 0
    path = project / "tltune.toml"
    path.write_text(path.read_text().replace("# reference =", "check = false\n#"))
    kernels = {kernel.name: kernel for kernel in read_spec(path).kernels}
    assert kernels["persistent"].shapes == ({"N": 64},) and kernels["persistent"].dynamic == {"num_tokens": (3, 300)}
    assert kernels["rows"].configs == ({"width": 1}, {"width": 2})
