"""Functions on their way to a child process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tlaot.errors import BuildError, SpecError
from tlaot.tune.children.parcel import write_parcel

pytest.importorskip("cloudpickle")


def test_without_cloudpickle_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        BuildError, match=r"cloudpickle.* is not installed\npip install \"tlaot\[tilelang\]\""
    ) as raised:
        write_parcel(lambda: 1, tmp_path / "p", "f")
    assert raised.value.__suppress_context__


def opened(name: str, code: str) -> str:
    """What a child process prints that opens a parcel as ``value``."""
    program = f"from tlaot.tune.children.parcel import open_parcel\nvalue = open_parcel({name!r})\n{code}"
    environ = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that no child finds by its name: its folder is not on ``sys.path``."""
    path = tmp_path / "elsewhere.py"
    path.write_text(
        "FACTOR = 3\n\ndef helper(n):\n    return FACTOR * n\n\ndef factory(n):\n    return helper(n) + 1\n"
    )
    monkeypatch.delitem(sys.modules, "elsewhere", raising=False)
    return load(path, "elsewhere")


def test_a_function_of_a_module_that_no_child_finds_goes_whole(elsewhere: ModuleType, tmp_path: Path) -> None:
    name = write_parcel(elsewhere.factory, tmp_path / "f.pkl", "test")
    assert opened(name, "print(value(2))") == "7"
    import cloudpickle

    assert "elsewhere" not in cloudpickle.list_registry_pickle_by_value()  # the process is as it was


def test_what_goes_whole_keeps_its_source(elsewhere: ModuleType, tmp_path: Path) -> None:
    """Frontends parse it; cloudpickle drops the name of the file."""
    name = write_parcel(elsewhere.factory, tmp_path / "f.pkl", "test")
    Path(str(elsewhere.__file__)).unlink()
    assert "helper(n) + 1" in opened(name, "import inspect; print(inspect.getsource(value))")


def test_what_children_find_goes_by_name(tmp_path: Path) -> None:
    name = write_parcel(textwrap.dedent, tmp_path / "f.pkl", "test")
    assert opened(name, "import textwrap; print(value is textwrap.dedent)") == "True"


def test_what_cannot_travel_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(SpecError, match="test: cannot be sent to the processes"):
        write_parcel(lambda: lock, tmp_path / "f.pkl", "test")


@pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="needs TileLang")
def test_a_jit_function_travels_without_globals_of_its_inner_functions_names(tmp_path: Path) -> None:
    """TileLang's parsed form reads the inner function's name from the module, where a script has an earlier kernel."""
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent(
            """
            import threading
            import tilelang
            import tilelang.language as T

            @tilelang.jit(out_idx=[-1], target="c")
            def factory(N):
                @T.prim_func
                def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
                    with T.Kernel(1):
                        for i in T.serial(N):
                            B[i] = A[i]
                return kernel

            kernel = threading.Lock()  # as a compiled kernel, nothing to be pickled
            """
        )
    )
    script: Any = load(path, "script_elsewhere")
    name = write_parcel(script.factory, tmp_path / "f.pkl", "test")
    assert opened(name, "print(type(value.get_tir(16)).__name__)") == "PrimFunc"
