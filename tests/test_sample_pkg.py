"""The sample's public functions and its table, with plain C in place of the tuned kernels.

What a real build packages is tested where the wheel is built; here it is the sample's own code.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from fixtures_runtime import compile_source, tensor, variant, write_package

import tlaot

np = pytest.importorskip("numpy")

SOURCE = Path(__file__).resolve().parents[1] / "sample_pkg"


def build(root: Path, wrong: bool = False) -> None:
    """A copy of the sample with kernels for small shapes, and one for a GPU that is not here."""
    matmul = [tensor("A", 24, 16), tensor("B", 16, 8), tensor("C", 24, 8, written=True)]
    rows = [tensor("X", 6, 10), tensor("Y", 6, 10, written=True)]
    norm = [tensor("X", 6, 10), tensor("W", 10), tensor("Y", 6, 10, written=True)]
    level, cuda = "llvm:x86-64-v3", "cuda:sm_90a"
    write_package(
        root,
        "sample_pkg",
        {
            "matmul": [
                (
                    variant("matmul", matmul, [2], {"M": 24, "N": 8, "K": 16}, level),
                    compile_source("sample.c", KERNEL=0),
                ),
                (variant("matmul", matmul, [2], {"M": 24, "N": 8, "K": 16}, cuda), b"not loaded"),
                (variant("matmul", matmul, [2], {"M": 24, "N": 8, "K": 16}, "llvm:x86-64-v4"), b"not loaded either"),
            ],
            "softmax": [
                (variant("softmax", rows, [1], {"M": 6, "N": 10}, level), compile_source("sample.c", KERNEL=1))
            ],
            "rms_norm": [
                (
                    variant("rms_norm", norm, [2], {"M": 6, "N": 10}, level),
                    compile_source("sample.c", KERNEL=0 if wrong else 2),
                )
            ],
        },
    )
    for file in ("__init__.py", "__main__.py", "reference.py"):
        shutil.copy(SOURCE / file, root / "sample_pkg" / file)


def run(root: Path, *args: str, code: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(Path(tlaot.__file__).parents[1])])}
    what = ["-c", code] if code else ["-m", "sample_pkg", *args]
    return subprocess.run(
        [sys.executable, *what], env=env, cwd=root.parent, capture_output=True, text=True, timeout=120
    )


def test_table(tmp_path: Path) -> None:
    """A row for each variant that runs here, a line for each that does not, all right."""
    build(tmp_path)
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("kernel")
    assert [line.split()[0] for line in lines[1:4]] == ["matmul", "rms_norm", "softmax"]
    assert all(line.endswith("yes") for line in lines[1:4])
    assert any(line.startswith("not run: matmul cuda:sm_90a") for line in lines)
    assert any(line.startswith("not run: matmul llvm:x86-64-v4") for line in lines)


def test_json(tmp_path: Path) -> None:
    """The same as data: what was measured at the build beside what is measured now."""
    build(tmp_path)
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert [row["kernel"] for row in printed["rows"]] == ["matmul", "rms_norm", "softmax"]
    assert len(printed["skipped"]) == 2
    for row in printed["rows"]:
        assert row["tuned_ms_at_build"] == 1
        assert row["default_ms_at_build"] == 3
        assert row["correct"] is True
        assert row["error"] < 1e-5
        assert 0 < row["now_ms"] < row["first_call_ms"] < 1000
        assert row["rival"] == "numpy"
        assert row["rival_ms"] > 0


def test_a_wrong_kernel_fails_the_run(tmp_path: Path) -> None:
    """Exit status 1, and the row says NO with the error."""
    build(tmp_path, wrong=True)
    done = run(tmp_path)
    assert done.returncode == 1
    assert "NO, error" in next(line for line in done.stdout.splitlines() if line.startswith("rms_norm"))


def test_without_kernels(tmp_path: Path) -> None:
    """Exit status 2, and how to build them."""
    build(tmp_path)
    shutil.rmtree(tmp_path / "sample_pkg" / "_tlaot")
    done = run(tmp_path)
    assert done.returncode == 2
    installed = "sample_pkg" in metadata.packages_distributions()  # where the tests run against tlaot's wheel
    assert ("run it from another folder" if installed else "pip wheel . -w dist") in done.stderr


def test_nothing_that_runs_here(tmp_path: Path) -> None:
    """A table without a row is no success."""
    build(tmp_path)
    one = variant("matmul", [tensor("A", 4), tensor("C", 4, written=True)], [1], {}, "cuda:sm_90a")
    write_package(tmp_path / "x", "sample_pkg", {"matmul": [(one, b"")]})
    shutil.rmtree(tmp_path / "sample_pkg" / "_tlaot")
    shutil.move(tmp_path / "x" / "sample_pkg" / "_tlaot", tmp_path / "sample_pkg" / "_tlaot")
    done = run(tmp_path)
    assert done.returncode == 2
    assert "not run: matmul cuda:sm_90a" in done.stdout


def test_functions(tmp_path: Path) -> None:
    """The public functions, against the reference; importing the package loads nothing."""
    build(tmp_path)
    code = """
import sys
import sample_pkg
assert not {"tlaot", "numpy", "tvm_ffi"} & set(sys.modules)
import numpy as np
import tlaot
from sample_pkg import reference
r = np.random.default_rng(1)
a, b, x, w = (r.standard_normal(s, dtype="f4") for s in ((24, 16), (16, 8), (6, 10), (10,)))
np.testing.assert_allclose(sample_pkg.matmul(a, b), reference.matmul(a, b), rtol=1e-5, atol=1e-5)
np.testing.assert_allclose(sample_pkg.softmax(x), reference.softmax(x), rtol=1e-5)
np.testing.assert_allclose(sample_pkg.rms_norm(x, w), reference.rms_norm(x, w), rtol=1e-5)
try:
    sample_pkg.softmax(a)
except tlaot.DispatchError as error:
    assert "expected (6, 10)" in str(error)
else:
    raise AssertionError("a shape that was not packaged was accepted")
"""
    done = run(tmp_path, code=code)
    assert done.returncode == 0, done.stderr
