"""Kernels whose code does not depend on what they were tuned for: one binary in the wheel, through the whole build."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from build_settings import Settings

from tlaot.errors import BuildError, CallError
from tlaot.manifest import Variant, read_manifest
from tlaot.runtime.load import open_manifest
from tlaot.tune.pipeline import build_package

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="needs apache-tvm")

KERNELS = '''
def scale(N, factor=2.0, unroll=1):
    """y = factor * x over any number of elements: N is in no line of the code."""
    from tvm.script import tirx as T

    @T.prim_func
    def main(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True})
        n = T.int32()
        X = T.match_buffer(x, (n,), "float32")
        Y = T.match_buffer(y, (n,), "float32")
        for i in range(n // unroll):
            for j in T.unroll(unroll):
                Y[i * unroll + j] = X[i * unroll + j] * T.float32(factor)

    return main

def reference(x):
    return x * 2

def inputs(N):
    import numpy
    return [numpy.arange(N, dtype="float32")]
'''

SPEC = """
[tlaot]
package = "pk"
targets = ["llvm:x86-64-v2"]
{more}
[[kernel]]
name = "scale"
frontend = "tvm"
factory = "sharing_kernels:scale"
reference = "sharing_kernels:reference"
inputs = "sharing_kernels:inputs"
shapes = {{ N = [64, 4096] }}
space = {{ unroll = [1, 4] }}
out-idx = [1]
profile = {{ warmup = 0, rep = 2, decide-budget = 0.1, quiet-timeout = 0 }}
"""


@dataclass
class Project:
    """A project that is built again and again from what the first build found.

    Attributes:
        root: Its folder.
        said: What the last build said.
    """

    root: Path
    said: str = ""

    def build(self, more: str = "") -> list[Variant]:
        lines: list[str] = []
        (self.root / "tltune.toml").write_text(SPEC.format(more=more))
        try:
            build_package(self.root / "tltune.toml", self.root, self.output, Settings(), lines.append)
        finally:
            self.said = "\n".join(lines)
        return list(read_manifest(self.output / "manifest.json").kernels["scale"].variants)

    @property
    def output(self) -> Path:
        return self.root / "out" / "pk" / "_tlaot"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("sharing")
    (root / "sharing_kernels.py").write_text(KERNELS)
    return Project(root)


def test_the_fewest_binaries_ship_and_are_stored_once(project: Project) -> None:
    """However the times come out: any candidate is near enough, so one binary serves both; it is in the wheel once."""
    variants = project.build("max-slowdown = 1000")
    assert len(variants) == 2
    assert len({json.dumps(variant.config) for variant in variants}) == 1
    assert [path.parent.name for path in project.output.rglob("executable.so")] == ["N4096"]
    assert [dict(variant.stored) for variant in variants] == [
        {},
        {name: f"{variants[0].path}/{name}" for name in ("direct.so", "executable.so")},
    ]
    measured = [variant.latency["latency"] for variant in variants]
    assert all(measured), "each says the time of what it ships"

    kernels = open_manifest(read_manifest(project.output / "manifest.json"), project.output)
    for n in (4, 64, 1000, 4096):
        x = np.arange(n, dtype="f4")
        assert (np.asarray(kernels.scale(x)) == 2 * x).all(), "no workload needs to be named: it is one binary"
    assert (np.asarray(kernels.scale(x, N=64)) == 2 * x).all()


def test_two_binaries_leave_the_caller_the_choice(project: Project, tmp_path: Path) -> None:
    """Without max-slowdown each workload has its own winner; where these differ, a symbolic size does not tell them apart."""
    variants = project.build()
    binaries = {variant.files["executable.so"] for variant in variants}
    kernels = open_manifest(read_manifest(project.output / "manifest.json"), project.output)
    x = np.arange(64, dtype="f4")
    if len(binaries) == 1:
        assert (np.asarray(kernels.scale(x)) == 2 * x).all()
    else:
        with pytest.raises(CallError, match="differ in N"):
            kernels.scale(x)
    assert (np.asarray(kernels.scale(x, N=64)) == 2 * x).all()


def test_a_budget_that_is_not_kept_fails_the_build(project: Project) -> None:
    """With the table, and nothing left that could get into a wheel; evidence stays, so that another try costs no tuning."""
    with pytest.raises(BuildError, match=r"size-budget: the kernels take \d+\.\d KiB of the wheel") as caught:
        project.build('max-slowdown = 1000\nsize-budget = "2 KiB"')
    assert "scale   " in str(caught.value) and "What would help:" in str(caught.value)
    assert not project.output.exists()
    assert "candidates of" not in project.said
