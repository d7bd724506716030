"""What importing costs and touches, in fresh interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, tensor, variant, write_package

import tlaot
import tlaot.autotuner

HEAVY = {"tlaot.tune", "tlaot.build_hooks", "tilelang", "tvm", "setuptools", "torch", "numpy", "tvm_ffi", "ctypes"}


def fresh(code: str, *paths: str) -> Any:
    """Run code in a fresh interpreter; what it leaves in ``out`` comes back through JSON."""
    path = os.pathsep.join([*paths, *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path}
    code = f"import json, sys\n{code}\nprint(json.dumps(out))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True, timeout=120
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_import_tlaot_imports_nothing_else() -> None:
    """Not even its own modules: names are looked up at first use."""
    out = fresh("before = set(sys.modules)\nimport tlaot\nout = sorted(set(sys.modules) - before)")
    assert [name for name in out if name.partition(".")[0] == "tlaot"] == ["tlaot"]
    assert not HEAVY & set(out)


def test_what_suggests_names_is_imported_when_a_name_is_wrong() -> None:
    code = (
        "before = 'difflib' in sys.modules\nimport tlaot.errors, tlaot.runtime.load\nafter = 'difflib' in sys.modules\n"
    )
    code += "hint = tlaot.errors.did_you_mean('ad', ['add'])\nout = [before, after, 'difflib' in sys.modules]"
    before, after, once_needed = fresh(code)
    assert after == before
    assert once_needed


def test_load_imports_the_ffi_and_no_framework_of_its_own(tmp_path: Path) -> None:
    """Listing the kernels of a package imports no array framework and nothing of the build side, but what the FFI brings."""
    params = [tensor("X", 4), tensor("Y", 4, written=True)]
    write_package(tmp_path, "pk_import", {"k": [(variant("k", params, [1], {}), compile_kernel(2, 0b10))]})
    code = "import tvm_ffi\nbefore = set(sys.modules)\nimport tlaot\nk = tlaot.load('pk_import')\nrepr(k.k)\n"
    assert not HEAVY & set(fresh(code + "out = sorted(set(sys.modules) - before)", str(tmp_path)))


def test_a_call_imports_no_framework_of_its_own(tmp_path: Path) -> None:
    """With numpy arrays torch stays out, unless the FFI itself brings it in where it is installed."""
    pytest.importorskip("numpy")
    params = [tensor("X", 4), tensor("Y", 4, written=True)]
    write_package(tmp_path, "pk_import", {"k": [(variant("k", params, [1], {}), compile_kernel(2, 0b10))]})
    code = (
        "import numpy, tvm_ffi\nbefore = set(sys.modules)\nimport tlaot\n"
        "tlaot.load('pk_import').k(numpy.ones(4, 'f4'))\nout = sorted(set(sys.modules) - before)"
    )
    assert not {"torch", "tilelang", "tvm", "tlaot.tune", "tlaot.build_hooks"} & set(fresh(code, str(tmp_path)))


def test_looking_after_the_cache_imports_nothing_that_tunes(tmp_path: Path) -> None:
    code = (
        f"import os\nos.environ['TLAOT_CACHE_DIR'] = {str(tmp_path)!r}\nimport contextlib, io\n"
        "from tlaot.cli import main\nwith contextlib.redirect_stdout(io.StringIO()) as said:\n"
        "    codes = [main(['cache', 'path']), main(['cache', 'list']), main(['cache', 'clear'])]\n"
        "out = [codes, said.getvalue().splitlines()[0], sorted(sys.modules)]"
    )
    codes, folder, modules = fresh(code)
    assert (codes, folder) == ([0, 0, 0], str(tmp_path))
    assert not {"tlaot.tune", "tlaot.autotuner.tuner", "tlaot.autotuner.decorator", "numpy", "cloudpickle"} & set(
        modules
    )


def test_import_adds_less_than_20_ms() -> None:
    """On top of ``import tvm_ffi``: the least of several fresh interpreters. benchmarks/load.py has the rest."""
    code = "import time, tvm_ffi\nstart = time.perf_counter()\nimport tlaot\nout = (time.perf_counter() - start) * 1e3"
    assert min(fresh(code) for _ in range(5)) < 20


def test_import_opens_no_device_and_writes_nothing(tmp_path: Path) -> None:
    """Every file opened is opened for reading, none is a device, and no library is loaded: Python's own audit says so."""
    code = """
seen = []
def hook(event, args):
    if event == 'open':
        seen.append([str(args[0]), str(args[1]), int(args[2] or 0)])
    elif event == 'ctypes.dlopen' and args[0] is not None:  # None: Python itself, by ``import ctypes``
        seen.append([event, 'w', 0])
    elif event in ('subprocess.Popen', 'os.fork', 'os.mkdir', 'os.remove', 'os.rename', 'socket.connect'):
        seen.append([event, 'w', 0])
sys.dont_write_bytecode = True
sys.addaudithook(hook)
import tlaot
tlaot.load
out = seen
"""
    import os as flags

    for name, mode, bits in fresh(code):
        assert not set(mode) & set("wax+"), name
        assert bits & flags.O_ACCMODE == flags.O_RDONLY, name
        assert not name.startswith("/dev/"), name


@pytest.mark.parametrize("module", [tlaot, tlaot.autotuner])
def test_public_names(module: Any) -> None:
    """All of ``__all__`` exists; what does not exist is an AttributeError."""
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = module.nothing_of_the_kind


def test_every_folder_of_the_package_is_in_its_wheels() -> None:
    """``pyproject.toml`` lists them; one that it lacks is missing where tlaot is installed, and nowhere else."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "tlaot" / "__init__.py").is_file():
        pytest.skip("the tests run without the repository around them")
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    folders = {".".join(path.parent.relative_to(root).parts) for path in (root / "tlaot").rglob("__init__.py")}
    assert "tlaot.dropin" in folders
    assert not [name for name in folders if f'    "{name}",' not in text]
