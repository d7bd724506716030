"""``tlaot doctor``: what is here, what a project's targets lack, and how to mend it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import locks
import pytest

from tlaot.cli import main
from tlaot.doctor import judge as judging
from tlaot.doctor import survey as surveying
from tlaot.doctor.probe import start_probes
from tlaot.doctor.survey import SUPPORTED, Surroundings, release_of
from tlaot.errors import BuildError
from tlaot.tune import machine as tuning_machine
from tlaot.tune.compiling.toolchain import CudaCompiler, HostCompiler
from tlaot.tune.locks.lock_file import dump_lock
from tlaot.tune.machine import Gpu, Machine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
H200 = Gpu(0, "NVIDIA H200", (9, 0), 132, 13000, "580.65.06")
ALL = {
    "apache-tvm": "0.25.0.post1",
    "tilelang": "0.1.15",
    "apache-tvm-ffi": "0.1.12",
    "torch": "2.13.0",
    "numpy": "2.4.6",
}
NVCC = CudaCompiler("/cuda/bin/nvcc", (), "13.0", nvrtc="/cuda/lib64/libnvrtc.so.13", build="13.0.88")
READY = Surroundings(
    Machine("a CPU", 8, (H200,), ALL),
    3,
    HostCompiler(("/usr/bin/gcc",), ("/usr/bin/g++",), ("/usr/bin/strip",), "gcc 12.2.0"),
    NVCC,
    {"setuptools": "80.1", "cloudpickle": "3", "optuna": "4.5"},
    {"tvm": {}, "tilelang": {}, "torch": {"cuda": "13.0", "available": True}},
)
SPEC = """
[tlaot]
package = "pkg"
targets = ["cuda:sm_90a"]
{head}
[[kernel]]
name = "add"
frontend = "tilelang"
factory = "pkg.kernels:add"
reference = "pkg.kernels:reference"
shapes = {{ N = 64 }}
"""

Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The command in a project, on a machine that the test makes up."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "kernels.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77"]\n[project]\nname = "pkg"\ndependencies = ["tlaot"]\n'
    )
    (tmp_path / "tltune.toml").write_text(SPEC.format(head=""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def run(here: Surroundings = READY, *words: str, requires: str | None = "tlaot[tilelang]") -> tuple[int, str]:
        path = tmp_path / "pyproject.toml"
        if requires is not None:
            path.write_text(path.read_text().replace('"setuptools>=77"]', f'"setuptools>=77", "{requires}"]'))
        monkeypatch.setattr(surveying, "look_around", lambda environ, quick: here)
        status = main(["doctor", *words])
        return status, capsys.readouterr().out

    return run


def without(*names: str, **fields: Any) -> Surroundings:
    kept = {name: version for name, version in ALL.items() if name not in names}
    return replace(READY, machine=replace(READY.machine, distributions=kept, **fields))


def test_a_machine_that_has_everything(doctor: Doctor) -> None:
    status, said = doctor()
    assert status == 0
    assert "NVIDIA H200, sm_90, 132 SMs, driver 580.65.06, CUDA 13.0" in said
    assert "cuda:sm_90a  add (tilelang): tuned here" in said
    assert said.endswith("what is declared can be built here\n")


def test_json(doctor: Doctor) -> None:
    status, said = doctor(READY, "--json")
    body = json.loads(said)
    assert status == 0 and body["ok"] is True
    assert body["targets"][0]["how"] == "tuned here"
    assert {"area", "name", "state", "what", "remedy"} == set(body["items"][0])


@pytest.mark.parametrize(
    ("here", "what", "remedy"),
    [
        (without("tilelang"), "tilelang is not installed", "no-build-isolation"),
        (without(gpus=()), "there is no GPU to tune cuda:sm_90a on (found: none)", "tlaot tune --target cuda:sm_90a"),
        (without("torch"), "torch, which checks and times", 'pip install "tlaot[torch]"'),
        (
            replace(READY, cuda=BuildError("t", "no nvcc was found", "Install CUDA")),
            "no nvcc was found",
            "Install CUDA",
        ),
        (replace(READY, cuda=replace(NVCC, version="11.8")), "nvcc 11.8 does not know sm_90a", "CUDA_HOME"),
        (without(gpus=(replace(H200, driver=12040),)), "the driver is for CUDA 12.4", "update the driver"),
        (
            replace(READY, probes={"torch": {"cuda": None, "available": False}}),
            "torch finds no GPU",
            "--force-reinstall",
        ),
        (
            replace(READY, probes={"tilelang": {"error": "OSError: x"}}),
            "cannot be imported: OSError: x",
            "--force-reinstall",
        ),
        (
            replace(READY, versions={"setuptools": "65.5.0"}),
            "setuptools here is 65.5.0",
            'pip install -U "setuptools>=77"',
        ),
    ],
)
def test_what_a_target_lacks_is_named_with_what_mends_it(
    here: Surroundings, what: str, remedy: str, doctor: Doctor
) -> None:
    """Exit status 1."""
    status, said = doctor(here)
    assert status == 1
    assert what in said
    assert remedy in said[said.index("to be mended") :]
    assert "1 target of 1 cannot be built here" in said


def test_an_optional_target_is_left_out(doctor: Doctor) -> None:
    """It fails nothing as long as something is left to build."""
    second = '\n[[kernel]]\nname = "sub"\nfrontend = "tvm"\nfactory = "pkg.kernels:sub"\ncheck = false\nshapes = { N = 64 }\n'
    head = 'when-available = ["cuda:sm_90a"]'
    Path("tltune.toml").write_text(SPEC.format(head=head) + second + 'targets = ["llvm:x86-64-v3"]\n')
    status, said = doctor(without("torch"))
    assert status == 0
    assert "left out: torch" in said
    assert said.endswith("what is declared can be built here; 1 target would be left out\n")


def test_a_lock_does_without_the_device(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it holds."""
    Path("tltune.lock").write_text(dump_lock(locks.lock(locks.entry(64))))
    monkeypatch.setattr(judging, "fits_present", lambda spec, root: lambda entry: True)
    status, said = doctor(without("torch", gpus=()))
    assert status == 0
    assert "cuda:sm_90a  add (tilelang): compiled from tltune.lock" in said
    monkeypatch.setattr(judging, "fits_present", lambda spec, root: lambda entry: False)
    status, said = doctor(without("torch", gpus=()), requires=None)
    assert status == 1
    assert "tltune.lock does not hold" in said


def test_pip_brings_a_frontend(doctor: Doctor) -> None:
    """What is not installed here is, in the environment that pip makes."""
    head = (
        '[[kernel]]\nname = "sub"\nfrontend = "tvm"\nfactory = "pkg.kernels:sub"\ncheck = false\nshapes = { N = 64 }\n'
    )
    Path("tltune.toml").write_text(f'[tlaot]\npackage = "pkg"\ntargets = ["llvm"]\n{head}')
    bare = replace(without("apache-tvm"), versions={})
    status, said = doctor(bare, requires="tlaot[tvm]")
    assert status == 0
    assert "tuned here, in the environment that pip wheel makes" in said


def test_a_build_that_would_package_nothing(doctor: Doctor) -> None:
    status, said = doctor(READY, requires=None)
    assert status == 1
    assert "does not ask for tlaot: pip wheel packages no kernels" in said


def test_a_search_that_needs_optuna(doctor: Doctor) -> None:
    Path("tltune.toml").write_text(SPEC.format(head="") + 'search = "optuna"\n')
    status, said = doctor(replace(READY, versions={"setuptools": "80"}))
    assert status == 1
    assert 'pip install "tlaot[search]"' in said[said.index("to be mended") :]
    assert doctor()[0] == 0


def test_what_the_project_has_no_use_for_is_not_advised(doctor: Doctor) -> None:
    """Of a project for the CPU: no GPU, nothing of CUDA; where there is no project, everything."""
    kernel = '[[kernel]]\nname = "k"\nfrontend = "tvm"\nfactory = "pkg.kernels:k"\ncheck = false\nshapes = { N = 64 }\n'
    Path("tltune.toml").write_text(f'[tlaot]\npackage = "pkg"\ntargets = ["llvm"]\n{kernel}')
    here = without("torch", "tilelang", gpus=())
    status, said = doctor(here, requires="tlaot[tvm]")
    assert status == 0 and "optional" not in said
    Path("tltune.toml").unlink()
    assert 'tilelang: pip install "tlaot[tilelang]"' in doctor(here, requires=None)[1]


def test_a_processor_below_the_target(doctor: Doctor) -> None:
    head = (
        '[[kernel]]\nname = "sub"\nfrontend = "tvm"\nfactory = "pkg.kernels:sub"\ncheck = false\nshapes = { N = 64 }\n'
    )
    Path("tltune.toml").write_text(f'[tlaot]\npackage = "pkg"\ntargets = ["llvm:x86-64-v4"]\n{head}')
    status, said = doctor()
    assert status == 1
    assert "this processor runs x86-64-v3 and lower" in said


def test_what_is_wrong_with_the_spec_is_said_beside_the_rest(doctor: Doctor) -> None:
    Path("tltune.toml").write_text(SPEC.format(head="targts = 1"))
    status, said = doctor()
    assert status == 1
    assert "did you mean 'targets'" in said
    assert "NVIDIA H200" in said


def test_no_project(tmp_path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "pkg")
    status, said = doctor(READY, requires=None)
    assert status == 0
    assert "tlaot init" in said and said.endswith("no project was looked at\n")


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """In its own process, on this machine as it is."""
    code = (
        "import sys\nfrom tlaot.cli import main\nmain(['doctor', '--quick', '--json'])\n"
        "assert not {'tvm', 'tilelang', 'torch', 'numpy'} & set(sys.modules), sys.modules.keys()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TLAOT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert {item["area"] for item in json.loads(done.stdout)["items"]} >= {"machine", "compilers", "python", "disk"}


def test_probes_say_why_an_import_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it ends the process, and whatever it prints."""
    (tmp_path / "dies.py").write_text("import os\nprint('before')\nos._exit(7)\n")
    (tmp_path / "raises.py").write_text("raise OSError('libx.so: no such file')\n")
    (tmp_path / "fine.py").write_text("print('hello', end='')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = start_probes(["dies", "raises", "fine"], dict(os.environ))
    assert said["fine"] == {}
    assert said["raises"] == {"error": "OSError: libx.so: no such file"}
    assert said["dies"]["error"] == "its import ended the process (exit status 7) before"


def test_supported_versions_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["tvm"], *extras["tilelang"], *extras["torch"], *extras["search"]]
    for name, (first, last) in SUPPORTED.items():
        assert f"{name}>={first}" + (f",<{last}" if last else "") in asked


def test_releases() -> None:
    assert release_of("0.25.0.post1") == (0, 25, 0)
    assert release_of("2.13.0+cpu") == (2, 13, 0)
    assert release_of("") == ()


def test_levels_of_processors(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    flags = [flag for level in tuning_machine._LEVEL_FLAGS for flag in level]
    for count, level in ((0, 1), (6, 2), (15, 3), (20, 4)):
        info.write_text(f"model name : x\nflags : fpu {' '.join(flags[:count])}\n")
        assert tuning_machine.cpu_level(info) == level
