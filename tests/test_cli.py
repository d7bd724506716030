"""The command line: what commands share, and inspect, of an installed package and of a wheel."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures_runtime import tensor, variant, write_package

from tlaot.cli import main

PARAMS = [tensor("X", "m", 8), tensor("Y", "m", 8, written=True)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two variants of one kernel, whose binaries no one loads."""
    built = [(variant("k", PARAMS, [1], {"N": n}, "cuda:sm_90a"), b"\x7fELF" + bytes(n)) for n in (8, 9)]
    write_package(tmp_path, "pk_cli", {"k": built}, "raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "pk_cli"


@pytest.fixture
def wheel(folder: Path) -> Callable[[], Path]:
    """Packs the package, as it is by then, into a wheel."""

    def pack() -> Path:
        path = folder.parent / "pk_cli-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
            for file in sorted(p for p in folder.rglob("*") if p.is_file()):
                out.write(file, file.relative_to(folder.parent))
        return path

    return pack


def test_inspect(folder: Path, wheel: Callable[[], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Each variant with its signature, config and times; the same from the package and from its wheel."""
    assert main(["inspect", "pk_cli"]) == 0
    of_package = capsys.readouterr().out
    assert of_package.splitlines()[1] == "2 variants of 1 kernel for cuda:sm_90a: 0.0 KiB, packaged by tlaot 0.1.0"
    assert of_package.splitlines()[3:9] == [
        "k",
        "  cuda:sm_90a  N=8",
        "    (X: float32[m, 8]) -> Y: float32[m, 8]",
        "    1 ms (first config 3 ms, reference 2 ms)",
        "    config: block=1",
        "    0.0 KiB; compiled by no known frontend",
    ]
    assert main(["inspect", str(wheel())]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == of_package.splitlines()[1:]


def test_inspect_says_what_was_measured_and_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = variant(
        "k",
        PARAMS,
        [1],
        {"M": "8", "causal": True},
        "cuda:sm_90a",
        frontend={"name": "tilelang", "version": "0.1.15"},
        properties={"device": "NVIDIA H200", "checked": False},
    )
    two = dataclasses.replace(one, path="k/two", config={}, properties={"checked": True}, latency={"latency": None})
    write_package(tmp_path, "pk_measured", {"k": [(one, bytes(2048)), (two, bytes(100))]})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["inspect", "pk_measured"]) == 0
    assert capsys.readouterr().out.splitlines()[4:] == [
        "  cuda:sm_90a  M='8', causal=True",
        "    (X: float32[m, 8]) -> Y: float32[m, 8]",
        "    1 ms on NVIDIA H200 (first config 3 ms, reference 2 ms)",
        "    config: block=1",
        "    2.0 KiB; compiled by tilelang 0.1.15; results NOT checked (check = false)",
        "  cuda:sm_90a  M='8', causal=True",
        "    (X: float32[m, 8]) -> Y: float32[m, 8]",
        "    not measured",
        "    config: the defaults of the factory",
        "    0.1 KiB; compiled by tilelang 0.1.15; results checked when it was built",
    ]


def test_inspect_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object a variant."""
    assert main(["inspect", "--json", "pk_cli"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["kernel"], r["shape"], r["latency"]["latency"]) for r in rows] == [
        ("k", {"N": 8}, 1),
        ("k", {"N": 9}, 1),
    ]


@pytest.mark.parametrize("command", ["inspect", "check", "seal"])
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("pk_cli_that_is_not_there", "is not installed"),
        ("pytest", "has no packaged kernels"),
        ("missing.whl", "is not a readable wheel"),
        ("dist/nothing", "is neither a file nor the import name of a package"),
        ("not-a-name", "import name of a package"),
    ],
)
def test_what_cannot_be_opened(command: str, what: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and one message that says what to do."""
    assert main([command, what]) == 2
    assert says in capsys.readouterr().err


def test_a_wheel_without_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An ordinary wheel."""
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("x/__init__.py", "")
    assert main(["inspect", str(path)]) == 2
    assert "has no packaged kernels" in capsys.readouterr().err


def test_runs_as_a_module_and_imports_nothing_heavy(folder: Path) -> None:
    """``python -m tlaot.cli``: neither the FFI, nor a framework, nor the package itself."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), *filter(None, sys.path)])}
    code = (
        "import sys; from tlaot.cli import main; assert main(['inspect', 'pk_cli']) == 0;"
        "assert not {'tvm_ffi', 'numpy', 'torch', 'pk_cli', 'tlaot.tune'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-m", "tlaot.cli", "--help"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "inspect" in done.stdout
    assert "check" in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import tlaot

    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"tlaot {tlaot.__version__}\n"
