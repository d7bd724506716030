"""Consumer projects, as their authors would write them: built by ``pip wheel``, run where their sources are not."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pyproject_hooks
import pytest
from conftest import Environment, clean_environ, copy_project

pytest.importorskip(
    "tlaot.build_hooks", reason="tlaot is not installed here: pip install a wheel of it, as .ci/run does"
)
pytest.importorskip("tvm", reason="the consumers' kernels are lowered by apache-tvm")

pytestmark = pytest.mark.slow

CONSUMERS = {
    "flat_plugin": "flat_kernels",
    "setup_py": "setup_kernels",
    "src_backend": "src_kernels",
    "mixed": "mixed_kernels",
}

CALL = """
import sys
import numpy as np
import {package} as package
assert package.__file__.startswith(sys.prefix), package.__file__
for size in (1024, 4096):
    a, b = np.arange(size, dtype="float32"), np.ones(size, dtype="float32")
    np.testing.assert_array_equal(np.asarray(package.add(a, b)), a + b)
import tlaot
try:
    package.add(np.ones(7, dtype="float32"), np.ones(7, dtype="float32"))
except tlaot.DispatchError as error:
    assert "1024" in str(error) and "4096" in str(error), error
else:
    raise SystemExit("a shape that was not packaged was accepted")
assert not {{"tvm", "torch", "setuptools"}} & set(sys.modules)
print("ok")
"""


def pip_wheel(project: Path, out: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", str(project), "--no-deps", "--wheel-dir", str(out), *options]
    done = subprocess.run(
        command, cwd=project.parent, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.mark.parametrize("name", CONSUMERS)
def test_consumer(name: str, clean_environment: Environment, tmp_path: Path) -> None:
    package = CONSUMERS[name]
    project = copy_project(name, tmp_path / "project")
    wheel = pip_wheel(project, tmp_path / "out", "--no-build-isolation")
    assert (f"{package}-1.0-py3-none-manylinux_2_" in wheel.name) is (name != "mixed")
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read(f"{package}/_tlaot/manifest.json"))
    assert [variant["shape"] for variant in manifest["kernels"]["add"]] == [{"N": 1024}, {"N": 4096}]
    project.rename(tmp_path / "out of reach")
    clean_environment.install("--no-deps", "--force-reinstall", wheel)
    assert clean_environment.run(["-c", CALL.format(package=package)]).strip() == "ok"


def test_two_builds_from_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    first = pip_wheel(project, tmp_path / "a", "--no-build-isolation")
    second = pip_wheel(project, tmp_path / "b", "--no-build-isolation")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_isolated_build_gets_what_the_targets_need(
    tlaot_wheel: Path, clean_environment: Environment, tmp_path: Path
) -> None:
    """pip makes an environment with setuptools and tlaot, asks the backend, and adds apache-tvm."""
    project = copy_project("src_backend", tmp_path / "project")
    wheel = pip_wheel(project, tmp_path / "out", "--find-links", str(tlaot_wheel.parent))
    project.rename(tmp_path / "out of reach")
    clean_environment.install("--no-deps", "--force-reinstall", wheel)
    assert clean_environment.run(["-c", CALL.format(package="src_kernels")]).strip() == "ok"


def test_editable_install_works_and_says_how_to_get_kernels(clean_environment: Environment, tmp_path: Path) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    before = {path.name for path in clean_environment.site_packages.iterdir()}
    (tmp_path / "out").mkdir()
    # What pip install --editable does; its --no-build-isolation would want setuptools in the clean environment.
    caller = pyproject_hooks.BuildBackendHookCaller(str(project), "setuptools.build_meta")
    with caller.subprocess_runner(pyproject_hooks.quiet_subprocess_runner):
        wheel = caller.build_editable(str(tmp_path / "out"))
    clean_environment.install("--no-deps", "--force-reinstall", tmp_path / "out" / wheel)
    added = {path.name for path in clean_environment.site_packages.iterdir()} - before
    assert not [name for name in added if "_tlaot" in name]
    assert not list(project.rglob("executable.so"))
    body = f"""
import flat_kernels, tlaot
assert flat_kernels.__file__.startswith({str(project)!r}), flat_kernels.__file__
try:
    flat_kernels.add(1, 2)
except tlaot.TlaotError as error:
    print(error)
"""
    message = clean_environment.run(["-c", body])
    assert "flat_kernels" in message
    assert "pip" in message, message


def test_project_without_kernels_is_built_as_ever(clean_environment: Environment, tmp_path: Path) -> None:
    wheel = pip_wheel(copy_project("untouched", tmp_path / "project"), tmp_path / "out", "--no-build-isolation")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}-linux_" in wheel.name
    clean_environment.install("--no-deps", "--force-reinstall", wheel)
    assert clean_environment.run(["-c", "import plain_package; print(plain_package.answer)"]).strip() == "42"
