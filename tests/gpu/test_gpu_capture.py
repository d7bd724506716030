"""``tlaot capture`` on a GPU: TileLang's own autotuner under it, CUDA graphs, and what a launch costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import has_distribution

from tlaot.capturing.recording import read_recording
from tlaot.capturing.watch import child_environment

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not has_distribution("tilelang"), reason="needs tilelang"),
]

KERNELS = """
import tilelang
import tilelang.language as T


@tilelang.autotune(configs=[{"threads": 128}, {"threads": 256}], warmup=2, rep=5)
@tilelang.jit(out_idx=[-1])
def double(N, threads=64):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, N), "float32"), Y: T.Tensor((rows, N), "float32")):
        with T.Kernel(rows, threads=threads) as bx:
            for j in T.Parallel(N):
                Y[bx, j] = X[bx, j] * 2.0

    return main


@tilelang.autotune(configs=[{"threads": 128}, {"threads": 256}], warmup=2, rep=5)
@tilelang.jit
def add(A, B, threads: int = 64):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], "float32"]
    B: T.Tensor[[M, N], "float32"]
    with T.Kernel(M, threads=threads) as bx:
        for j in T.Parallel(N):
            B[bx, j] = A[bx, j] + 1.0
"""

PROGRAM = """
import torch
from tilelang.autotuner import set_autotune_inputs
from gpukernels import add, double

x = torch.ones(32, 512, device="cuda")
y = torch.empty_like(x)
with set_autotune_inputs(x):
    kernel = double(512)
with set_autotune_inputs(x, y):
    add(x, y)
assert (kernel(x) == 2).all() and (y == 2).all()
for rows in (1, 32):
    double(512)(torch.ones(rows, 512, device="cuda"))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = kernel(x)
z.zero_()
graph.replay()
assert (z == 2).all()
"""


def test_the_candidates_of_a_tuning_are_no_launches(tmp_path: Path) -> None:
    (tmp_path / "gpukernels.py").write_text(KERNELS)
    folder = tmp_path / "recording"
    folder.mkdir()
    path = os.pathsep.join([str(tmp_path), *[entry for entry in sys.path if entry]])
    environ = {**os.environ, "PYTHONPATH": path, "TILELANG_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=child_environment(folder, environ), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    recording = read_recording([folder])
    assert not recording.troubles and not recording.lost
    called = {one.factory.name: one for one in recording.called if one.factory is not None}
    assert len(recording.called) == 2 and set(called) == {"double", "add"}
    assert called["double"].times == 4 and called["add"].times == 1
    for one in called.values():
        assert one.tuned == ("threads",) and one.arguments["threads"] in (128, 256)
    assert called["add"].arguments["M"] == 32
    (first, *_) = called["double"].launches
    assert first.arguments is not None and first.arguments[0]["device"] == "cuda:0"
