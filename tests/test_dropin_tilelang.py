"""A package written for TileLang: built with TileLang for the CPU, one line of it changed, then imported and called without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from build_settings import Settings
from conftest import has_distribution

from tlaot.manifest import read_manifest
from tlaot.tune.pipeline import build_package

if not has_distribution("tilelang"):
    pytest.skip("tilelang is not installed", allow_module_level=True)

SPEC = """
[tlaot]
package = "pk_dropin_tl"
targets = ["c:x86-64-v2"]

[[kernel]]
name = "scale"
frontend = "tilelang"
factory = "pk_dropin_tl.kernels:scale"
measure = false
check = false
shapes = [
    { N = 64, dtype = { dtype = "float32" }, how = { make = "pk_dropin_tl.kernels:How", with = { by = 3.0 } } },
    { N = 64, dtype = "float32", how = { make = "pk_dropin_tl.kernels:How", with = { by = 5.0 } } },
]

[[kernel]]
name = "add"
frontend = "tilelang"
factory = "pk_dropin_tl.kernels:add"
measure = false
check = false
shapes = { N = 32 }

[[kernel]]
name = "rows"
frontend = "tilelang"
factory = "pk_dropin_tl.kernels:rows"
measure = false
check = false
shapes = { N = 8 }
"""

INIT = "import tlaot; tilelang = tlaot.tilelang_for(__name__)\n\nfrom .kernels import add, rows, scale\n"

KERNELS = """
from dataclasses import dataclass

import tilelang
import tilelang.language as T


@dataclass(frozen=True)
class How:
    by: float = 1.0


@tilelang.jit(out_idx=[-1], target="c", execution_backend="cython")
def scale(N: int, dtype: T.dtype = T.float32, how: How = How()):
    assert isinstance(dtype, str) and isinstance(how, How)
    block = 16 * dtype.bytes // 4 if not isinstance(dtype, str) or hasattr(dtype, "bytes") else 16

    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype)):
        with T.Kernel(N // block) as b:
            for i in T.serial(block):
                Y[b * block + i] = X[b * block + i] * how.by

    return main


@tilelang.jit(target="c", execution_backend="cython")
def add(A, B, C):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B: T.Tensor[[N], T.float32]
    C: T.Tensor[[N], T.float32]
    with T.Kernel(1) as _:
        for i in T.serial(N):
            C[i] = A[i] + B[i]


@tilelang.jit(target="c", execution_backend="cython")
def rows(N: int):
    m = T.dynamic("m")

    @T.prim_func
    def main(X: T.Tensor((m, N), T.float32), Y: T.Tensor((m, N), T.float32)):
        with T.Kernel(m) as r:
            for i in T.serial(N):
                Y[r, i] = X[r, i] + 1.0

    return main
"""

# No TileLang for anybody: as where it is not installed.
BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tilelang", "tvm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built where it is."""
    root: Path = tmp_path_factory.mktemp("project")
    package = root / "pk_dropin_tl"
    package.mkdir()
    (package / "__init__.py").write_text(INIT)
    (package / "kernels.py").write_text(KERNELS)
    (root / "tltune.toml").write_text(SPEC)
    said: list[str] = []
    build_package(root / "tltune.toml", root, package / "_tlaot", Settings(), said.append)
    assert "4 workloads compiled as declared, NOT measured or compared (measure = false)" in "\n".join(said)
    return root


def run(project: Path, code: str, **environ: str) -> Any:
    path = os.pathsep.join([str(project), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, **environ}
    code = f"{code}\nimport json, sys\nprint(json.dumps([out, sorted({{m.partition('.')[0] for m in sys.modules}})]))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    out, modules = json.loads(done.stdout.splitlines()[-1])
    return out, modules, done.stderr


CALLS = """
import numpy as np, pk_dropin_tl as pk
from pk_dropin_tl.kernels import How
x = np.arange(64, dtype="f4")
out = [pk.scale(64, how=How(3.0))(x)[2].item(), pk.scale(64, "float32", How(5.0))(x)[2].item()]
a, c = np.ones(32, "f4"), np.zeros(32, "f4")
pk.add(a, a, c)
y = np.zeros((5, 8), "f4")
pk.rows(8)(np.ones((5, 8), "f4"), y)
out += [c.tolist() == [2.0] * 32, y.tolist() == [[2.0] * 8] * 5]
"""


def test_it_is_called_where_there_is_no_tilelang(project: Path) -> None:
    out, modules, _ = run(project, BARE + CALLS)
    assert out == [6.0, 10.0, True, True]
    assert not {"tilelang", "tvm"} & set(modules)


def test_what_ships_says_that_nobody_measured_it(project: Path) -> None:
    manifest = read_manifest(project / "pk_dropin_tl" / "_tlaot" / "manifest.json")
    variants = [variant for kernel in manifest.kernels.values() for variant in kernel.variants]
    assert len(variants) == 4
    for variant in variants:
        assert set(variant.latency.values()) == {None}
        assert (variant.properties["measured"], variant.properties["checked"]) == (False, False)
    assert manifest.factories["pk_dropin_tl.kernels:add"] == ("add",)
    assert not (project / "tltune.lock").exists()


def test_an_installed_tilelang_is_not_even_imported_where_kernels_are_packaged(project: Path) -> None:
    out, modules, _ = run(project, CALLS)
    assert out == [6.0, 10.0, True, True]
    assert not {"tilelang", "tvm"} & set(modules)


def test_a_miss_without_tilelang_names_the_line_to_add(project: Path) -> None:
    code = "import pk_dropin_tl as pk\ntry:\n    pk.scale(128, how=pk.kernels.How(3.0))\nexcept Exception as e:\n    out = str(e)"
    out, _, _ = run(project, BARE + code)
    assert "no kernel of pk_dropin_tl was packaged for { N = 128" in out and "differs in N" in out
    assert "shapes = [{ N = 128, dtype = " in out


MISSES = """
import tilelang.jit, importlib
entered = []
real = importlib.import_module("tilelang.jit").compile
importlib.import_module("tilelang.jit").compile = lambda *a, **k: entered.append(1) or real(*a, **k)
import torch, pk_dropin_tl as pk
from pk_dropin_tl.kernels import How
x = torch.arange(64, dtype=torch.float32)
out = [type(pk.scale(64, how=How(3.0))).__name__, pk.scale(64, how=How(3.0))(x)[2].item(), len(entered)]
out += [type(pk.scale(32, how=How(7.0))).__name__, len(entered), pk.scale(32, how=How(7.0)) is pk.scale(N=32, how=How(7.0))]
"""


def test_tilelang_compiles_what_is_not_packaged_where_the_policy_is_jit(project: Path) -> None:
    """And nothing else: a packaged key never enters ``tilelang.compile``."""
    out, modules, said = run(project, MISSES, TLAOT_ON_MISS="jit")
    assert out == ["JITKernel", 6.0, 0, "JITKernel", 1, True]
    assert "tilelang" in modules
    assert "TileLang compiles it now" in said


def test_a_variable_has_tilelang_itself_whatever_is_packaged(project: Path) -> None:
    code = (
        "import pk_dropin_tl as pk\nout = [type(pk.scale).__module__, pk.tilelang.__name__, type(pk.tilelang).__name__]"
    )
    out, _, _ = run(project, code, TLAOT_DROPIN="tilelang")
    assert out == ["tilelang.jit", "tilelang", "module"]
