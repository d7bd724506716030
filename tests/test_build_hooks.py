"""The hooks alone: settings, tags, commands; the pipeline behind them is a stand-in (hook_driver.py)."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, clean_environ, copy_project

pytest.importorskip(
    "tlaot.build_hooks", reason="tlaot is not installed here: pip install a wheel of it, as .ci/run does"
)

from tlaot.build_hooks.requirements import FRONTEND_REQUIRES, NVCC_REQUIRES, SEARCH_REQUIRES, requirements_of
from tlaot.build_hooks.settings import KEYS, RUN_TIME_VARIABLES, STAGE_VARIABLES, Settings, read_settings, show_settings
from tlaot.build_hooks.wheel_tag import audit_platform

from tlaot.errors import BuildError, SpecError
from tlaot.tune.specs.spec_file import read_spec

PLUGIN, BACKEND = "setuptools.build_meta", "tlaot.build_hooks"
CONSUMERS = [
    ("flat_plugin", PLUGIN, "flat_kernels"),
    ("setup_py", PLUGIN, "setup_kernels"),
    ("src_backend", BACKEND, "src_kernels"),
]
BINARY = "_tlaot/add/llvm-x86-64-v2/N1024/executable.so"
MACHINE = os.uname().machine


# Settings


def test_settings_default() -> None:
    assert read_settings(None, {"PATH": "/bin"}) == Settings("on", None, None, False)


def test_settings_of_both_channels() -> None:
    environ = {"TLAOT_TUNE": "force", "TLAOT_JOBS": "3", "TLAOT_NUM_THREADS": "1", "TLAOT_NVRTC": "0"}
    config = {"tune": "off", "targets": "cuda:sm_90a, llvm", "--build-option": ["-q"], "editable_mode": "strict"}
    assert read_settings(config, environ) == Settings("off", ("cuda:sm_90a", "llvm:x86-64-v3"), 3, False)


def test_settings_of_build_frontend_lists_and_empty_values() -> None:
    settings = read_settings({"targets": ["cuda:sm_80", "cuda:sm_90a"], "keep": "yes", "jobs": ""}, {"TLAOT_TUNE": ""})
    assert settings == Settings("on", ("cuda:sm_80", "cuda:sm_90a"), None, True)


def test_what_the_lock_is_to_a_build() -> None:
    assert read_settings(None, {"TLAOT_LOCK": "frozen"}).lock == "frozen"
    assert read_settings({"lock": "update", "tune": "force"}, {"TLAOT_LOCK": "frozen"}).lock == "update"
    assert read_settings({"lock": ""}, {}).lock == "auto"


def test_settings_of_devices() -> None:
    assert read_settings({"devices": ["1", "0, 1"]}, {"TLAOT_DEVICES": "7"}).devices == (1, 0)
    assert read_settings(None, {"TLAOT_DEVICES": "2", "TLAOT_EXECUTOR": "local"}) == Settings(
        executor="local", devices=(2,)
    )


def test_settings_are_shown_on_one_line() -> None:
    shown = show_settings(Settings("force", ("cuda:sm_80",), 2, True))
    assert (
        shown == "tlaot: tune=force lock=auto targets=cuda:sm_80 jobs=2 keep=true executor=(the spec's) devices=(all)"
    )
    assert show_settings(Settings(executor="local", devices=(0, 2))).endswith(" executor=local devices=0,2")


@pytest.mark.parametrize(
    ("config", "environ", "message"),
    [
        ({"tunee": "off"}, {}, r"-C tunee: .*, did you mean 'tune'\?\nKnown: "),
        ({"--glbal-option": "x"}, {}, r"did you mean '--global-option'\?"),
        ({"zzz": "1"}, {}, r"-C zzz: tlaot knows no such setting\nKnown: tune, lock, targets"),
        ({}, {"TLAOT_TARGTES": "llvm"}, r"environment variable TLAOT_TARGTES: .*, did you mean 'TLAOT_TARGETS'\?"),
        ({"tune": "maybe"}, {}, r"-C tune: expected on, off, force, got 'maybe'"),
        ({}, {"TLAOT_TUNE": "1"}, r"TLAOT_TUNE: expected on, off, force, got '1'"),
        ({"lock": "forzen"}, {}, r"-C lock: expected auto, .*, got 'forzen', did you mean 'frozen'\?"),
        ({}, {"TLAOT_LOCK": "1"}, r"TLAOT_LOCK: expected auto, update, frozen, ignore, got '1'\n"),
        ({"tune": "force"}, {"TLAOT_LOCK": "frozen"}, r"-C tune and TLAOT_LOCK: tune=force tunes everything"),
        ({"jobs": "0"}, {}, r"-C jobs: expected a whole number of at least 1, got '0'"),
        ({"jobs": "two"}, {}, r"got 'two'"),
        ({"jobs": ["1", "2"]}, {}, r"-C jobs: given 2 times"),
        ({"keep": "perhaps"}, {}, r"-C keep: expected true or false, got 'perhaps'"),
        ({"executor": "locale"}, {}, r"-C executor: expected local.*, got 'locale', did you mean 'local'\?"),
        ({}, {"TLAOT_EXECUTOR": "lokal"}, r"TLAOT_EXECUTOR: expected local.*, did you mean 'local'\?"),
        ({"devices": "one"}, {}, r"-C devices: expected numbers of GPUs, got 'one'\nWrite -C devices=0,1"),
        ({"targets": "cuda:90"}, {}, r"-C targets: a cuda target names an architecture, got 'cuda:90'"),
        ({"targets": "llvm:native"}, {}, r"-C targets: a wheel must not depend on the machine"),
    ],
)
def test_settings_refuse(config: dict[str, Any], environ: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_settings(config, environ)


def test_every_variable_that_the_sources_read_is_known() -> None:
    known = {*RUN_TIME_VARIABLES, *STAGE_VARIABLES, *(f"TLAOT_{key.upper()}" for key in KEYS)}
    package = Path(importlib.import_module("tlaot").__file__ or "").parent
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".c", ".h")]
    # Only as a whole string literal: include guards and macros of the C sources are no variables.
    used = {name for path in files for name in re.findall(r"""["'](TLAOT_[A-Z_]+)["']""", path.read_text())}
    assert used - known == set()
    assert "TLAOT_NUM_THREADS" in used


# Requirements


def _metadata_extras(name: str) -> set[str]:
    texts = importlib.metadata.requires("tlaot") or []
    chosen = [text for text in texts if f'extra == "{name}"' in text and "python_version" not in text]
    return {text.partition(";")[0].strip() for text in chosen}


def _normalised(requirement: str) -> str:
    name, bounds = re.fullmatch(r"([\w.-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
    return name + ",".join(sorted(bounds.split(",")))


@pytest.mark.parametrize("frontend", sorted(FRONTEND_REQUIRES))
def test_frontend_requirements_are_the_extras(frontend: str) -> None:
    assert {_normalised(text) for text in FRONTEND_REQUIRES[frontend]} == {
        _normalised(text) for text in _metadata_extras(frontend)
    }


def test_search_requirements_are_the_extra(tmp_path: Path) -> None:
    """Asked for where a kernel that is built names Optuna."""
    assert set(SEARCH_REQUIRES) == _metadata_extras("search")
    path = tmp_path / "tltune.toml"
    path.write_text(SPEC.replace('name = "a"', 'name = "a"\nsearch = "optuna"'))
    asked = requirements_of(read_spec(path), Settings(targets=("llvm:x86-64-v3",)), {"PATH": ""})
    assert set(asked) == {*FRONTEND_REQUIRES["tvm"], *SEARCH_REQUIRES}
    path.write_text(SPEC.replace('name = "b"', 'name = "b"\nsearch = "optuna"'))
    asked = requirements_of(read_spec(path), Settings(targets=("llvm:x86-64-v3",)), {"PATH": ""})
    assert set(asked) == set(FRONTEND_REQUIRES["tvm"])


SPEC = """
[tlaot]
package = "p"
targets = ["llvm", "cuda:sm_90a"]
when-available = ["cuda:sm_90a"]
[[kernel]]
name = "a"
frontend = "tvm"
factory = "p:a"
shapes = [{ N = 1 }]
check = false
[[kernel]]
name = "b"
frontend = "tilelang"
factory = "p:b"
shapes = [{ N = 1 }]
check = false
"""


@pytest.mark.parametrize(
    ("settings", "nvcc", "expected"),
    [
        (Settings(), False, FRONTEND_REQUIRES["tvm"]),
        (Settings(tune="off"), False, ()),
        (Settings(targets=("llvm:x86-64-v3",)), False, FRONTEND_REQUIRES["tvm"]),
        (
            Settings(targets=("cuda:sm_90a",)),
            False,
            (*FRONTEND_REQUIRES["tvm"], *NVCC_REQUIRES, *FRONTEND_REQUIRES["tilelang"]),
        ),
        (Settings(targets=("cuda:sm_90a",)), True, (*FRONTEND_REQUIRES["tvm"], *FRONTEND_REQUIRES["tilelang"])),
    ],
    ids=["default", "off", "llvm", "cuda-without-nvcc", "cuda-with-nvcc"],
)
def test_requirements(tmp_path: Path, settings: Settings, nvcc: bool, expected: tuple[str, ...]) -> None:
    path = tmp_path / "tltune.toml"
    path.write_text(SPEC)
    environ = {"PATH": str(tmp_path)}
    if nvcc:
        tool = tmp_path / "nvcc"
        tool.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.1'\n")
        tool.chmod(0o755)
    assert set(requirements_of(read_spec(path), settings, environ)) == set(expected)


# Platform tag


@pytest.fixture(scope="session")
def compile_object(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def compile_object(source: str, *flags: str) -> Path:
        folder = tmp_path_factory.mktemp("object")
        (folder / "object.c").write_text(source)
        out = folder / "executable.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-s", "-o", str(out), str(folder / "object.c"), *flags], check=True)
        return out

    return compile_object


@pytest.fixture(scope="session")
def binary(compile_object: Callable[..., Path]) -> Path:
    """A shared object that needs an old libc and nothing else."""
    return compile_object("#include <stdlib.h>\nvoid *f(void) { return malloc(1); }\n")


GETRANDOM = "#include <sys/random.h>\nlong f(void *p) { return getrandom(p, 1, 0); }\n"  # glibc 2.25


@pytest.mark.parametrize(
    ("source", "flags", "expected"),
    [
        ("int f(void) { return 1; }\n", ("-nostdlib",), None),
        ("#include <stdlib.h>\nvoid *f(void) { return malloc(1); }\n", (), None),
        (GETRANDOM, (), "manylinux_2_25"),
        ("int f(void) { return 1; }\n", ("-Wl,--no-as-needed", "-lm"), None),
        ("int f(void) { return 1; }\n", ("-Wl,--no-as-needed", "-lgcc_s"), "linux"),
    ],
    ids=["nothing", "libc", "getrandom", "libm", "libgcc"],
)
def test_audit(
    compile_object: Callable[..., Path], tmp_path: Path, source: str, flags: tuple[str, ...], expected: str | None
) -> None:
    folder = tmp_path / "wheel" / "package"
    folder.mkdir(parents=True)
    (folder / "executable.so").write_bytes(compile_object(source, *flags).read_bytes())
    (folder / "text.txt").write_text("no ELF file")
    oldest = {"x86_64": "manylinux_2_5", "aarch64": "manylinux_2_17"}[MACHINE]
    assert audit_platform(tmp_path / "wheel").platform == f"{expected or oldest}_{MACHINE}"


def test_audit_without_binaries_and_with_device_code_only(tmp_path: Path) -> None:
    assert audit_platform(tmp_path).platform == "any"
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)
    )
    (tmp_path / "kernel.cubin").write_bytes(header)
    assert audit_platform(tmp_path).platform == "any"


@pytest.mark.parametrize("size", [5, 16, 40, 63, 200, 900])
def test_truncated_elf_is_an_error(binary: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "executable.so"
    path.write_bytes(binary.read_bytes()[:size])
    with pytest.raises(BuildError, match=r"executable\.so: is (a damaged|not a 64-bit)"):
        audit_platform(tmp_path)


# Hooks


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    folder: Path
    calls: list[dict[str, Any]] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    changed_variables: list[str] = field(default_factory=list)
    result: Any = None

    @property
    def path(self) -> Path:
        assert self.code == 0, self.output
        return self.folder / str(self.result)

    def names(self) -> set[str]:
        with zipfile.ZipFile(self.path) as archive:
            return set(archive.namelist())

    def wheel_file(self) -> str:
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(next(name for name in archive.namelist() if name.endswith("/WHEEL"))).decode()


def call_hook(
    project: Path,
    backend: str,
    hook: str,
    binary: Path | str,
    out: Path,
    *flags: str,
    config: Any = None,
    environ: dict[str, str] | None = None,
    umask: int = 0o022,
) -> Outcome:
    out.mkdir(parents=True, exist_ok=True)
    report = out / "report.json"
    arguments = [backend, hook, str(out), str(binary), str(report), json.dumps(config), *flags]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "hook_driver.py"), *arguments],
        cwd=project,
        env={**clean_environ(), **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=umask,
    )
    body = json.loads(report.read_text()) if report.is_file() else {}
    return Outcome(done.returncode, done.stdout, out, **body)


@pytest.fixture(params=CONSUMERS, ids=[name for name, _, _ in CONSUMERS])
def consumer(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str]:
    name, backend, package = request.param
    return copy_project(name, tmp_path / "project"), backend, package


def test_wheel_has_kernels_and_an_audited_tag(consumer: tuple[Path, str, str], binary: Path, tmp_path: Path) -> None:
    project, backend, package = consumer
    done = call_hook(project, backend, "build_wheel", binary, tmp_path / "out", environ={"TLAOT_JOBS": "2"})
    platform = audit_platform(binary.parent).platform
    assert done.path.name == f"{package}-1.0-py3-none-{platform}.whl"
    assert platform.startswith("manylinux_2_")
    assert f"Root-Is-Purelib: false\nTag: py3-none-{platform}\n" in done.wheel_file()
    assert {f"{package}/{BINARY}", f"{package}/_tlaot/manifest.json", f"{package}/__init__.py"} <= done.names()
    assert not any(".data/" in name or "kernel_sources" in name for name in done.names())
    assert done.changed_variables == []
    (call,) = done.calls
    assert call["settings"]["jobs"] == 2
    assert Path(call["source_root"]) == (project / "src" if (project / "src").is_dir() else project).resolve()
    lines = done.output.splitlines()
    assert lines.index(
        "tlaot: tune=on lock=auto targets=(the spec's) jobs=2 keep=false executor=(the spec's) devices=(all)"
    ) < lines.index("fake pipeline: building")


def test_a_wheel_that_falls_short_fails_the_build(binary: Path, tmp_path: Path) -> None:
    """With the audit's table; no wheel is left."""
    project = copy_project("flat_plugin", tmp_path / "project")
    flags = ("--targets=llvm:x86-64-v2", "--audit")
    done = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "out", *flags)
    assert done.code != 0
    assert re.search(r"whl: the audit of what was built has \d+ findings:\nCHECK +WHERE", done.output), done.output
    assert re.search(r"binary +add/llvm-x86-64-v2/N1024/executable\.so +exports ", done.output), done.output
    assert not list((tmp_path / "out").glob("*.whl"))


@pytest.mark.parametrize("newer", [False, True], ids=["libc", "getrandom"])
def test_tag_is_one_that_auditwheel_agrees_with(
    compile_object: Callable[..., Path], binary: Path, newer: bool, tmp_path: Path
) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    done = call_hook(project, PLUGIN, "build_wheel", compile_object(GETRANDOM) if newer else binary, tmp_path / "out")
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(done.path)], capture_output=True, text=True, check=True
    )
    theirs = re.search(r'tag:\s+"manylinux_2_(\d+)_', shown.stdout)
    ours = re.search(r"manylinux_2_(\d+)_", done.path.name)
    assert theirs and ours, shown.stdout
    # auditwheel knows a list of distributions, so its answer may be the next one up, never an older one.
    assert 0 <= int(theirs[1]) - int(ours[1]) <= 1


NO_SPEC = "tlaot: warning: there is no tltune.toml beside pyproject.toml: this wheel gets no kernels."


@pytest.mark.parametrize(
    ("requires", "hook", "warns"),
    [
        ('["setuptools>=77", "tlaot[tvm]"]', "build_wheel", True),
        ("['tlaot>=0.1; python_version > \"3\"', 'setuptools>=77']", "build_wheel", True),
        ('["setuptools>=77", "tlaot[tvm]"]', "build_sdist", False),
        ('["setuptools>=77", "tlaot-extras"]', "build_wheel", False),
        ('["setuptools>=77"]  # tlaot', "build_wheel", False),
    ],
)
def test_a_build_that_asks_for_tlaot_and_has_no_spec_warns(
    binary: Path, tmp_path: Path, requires: str, hook: str, warns: bool
) -> None:
    """A forgotten or misnamed tltune.toml; where tlaot is merely installed, nothing is said."""
    project = copy_project("flat_plugin", tmp_path / "project")
    (project / "tltune.toml").rename(project / "tl_tune.toml")
    pyproject = project / "pyproject.toml"
    text = pyproject.read_text().replace('requires = ["setuptools>=77", "tlaot[tvm]"]', f"requires = {requires}")
    pyproject.write_text(text)
    done = call_hook(project, PLUGIN, hook, binary, tmp_path / "out")
    assert done.path.is_file()
    assert done.output.count(NO_SPEC) == warns
    assert done.calls == []


@pytest.mark.parametrize(
    ("dependencies", "warns"),
    [
        ('dependencies = ["tlaot"]', False),
        ('dependencies = ["numpy", "tlaot>=0.1"]', False),
        ('dependencies = ["tlaot-extras", "numpy"]', True),
        ("", True),
        ('dynamic = ["dependencies"]', False),
    ],
)
def test_a_wheel_whose_users_would_lack_the_loader(
    binary: Path, tmp_path: Path, dependencies: str, warns: bool
) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    pyproject = project / "pyproject.toml"
    text = pyproject.read_text().replace('dependencies = ["tlaot"]', dependencies)
    if "dynamic" in dependencies:
        text += '[tool.setuptools.dynamic]\ndependencies = { file = ["needs.txt"] }\n'
        (project / "needs.txt").write_text("numpy\ntlaot >= 0.1\n")
    pyproject.write_text(text)
    done = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "out")
    assert done.path.is_file()
    assert ("tlaot is not among the project's dependencies" in done.output) == warns


def test_setuptools_keeps_settings_to_itself(binary: Path, tmp_path: Path) -> None:
    """What README says: with setuptools' own backend ``-C`` does nothing, and the variable does."""
    project = copy_project("flat_plugin", tmp_path / "project")
    done = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "out", config={"tune": "off"})
    assert [call["settings"]["tune"] for call in done.calls] == ["on"]
    done = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "off", environ={"TLAOT_TUNE": "off"})
    assert done.calls == []


def test_build_command_of_the_project_still_runs(binary: Path, tmp_path: Path) -> None:
    done = call_hook(copy_project("setup_py", tmp_path / "project"), PLUGIN, "build_wheel", binary, tmp_path / "out")
    assert "setup_kernels/note.txt" in done.names()


def test_project_with_extension_modules_keeps_its_tag(binary: Path, tmp_path: Path) -> None:
    done = call_hook(copy_project("mixed", tmp_path / "project"), PLUGIN, "build_wheel", binary, tmp_path / "out")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"mixed_kernels-1\.0-{tag}-{tag}-linux_\w+\.whl", done.path.name)
    assert f"mixed_kernels/{BINARY}" in done.names()
    assert any(re.match(r"mixed_kernels/_answer\..*so", name) for name in done.names())
    # The factories' package cannot be imported without its extension module, which is not in the tree.
    assert list(Path(done.calls[0]["source_root"]).glob("mixed_kernels/_answer.*.so"))


def test_factory_outside_the_packages_of_a_project_with_extension_modules(binary: Path, tmp_path: Path) -> None:
    project = copy_project("mixed", tmp_path / "project")
    (project / "mixed_kernels" / "kernels.py").rename(project / "factories.py")
    spec = project / "tltune.toml"
    spec.write_text(spec.read_text().replace("mixed_kernels.kernels:", "factories:"))
    done = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "out")
    assert done.code == 1
    assert "error: tltune.toml module factories: is in none of the packages" in done.output


def test_other_projects_are_untouched(binary: Path, tmp_path: Path) -> None:
    results = []
    for flags in ((), ("--no-plugin",)):
        project = copy_project("untouched", tmp_path / f"project{len(results)}" / "same")
        done = call_hook(
            project,
            PLUGIN,
            "build_wheel",
            binary,
            tmp_path / f"out{len(results)}",
            *flags,
            environ={"SOURCE_DATE_EPOCH": "1600000000"},
        )
        assert done.calls == []
        assert not [name for name in done.modules if name.startswith("tlaot.tune") or "build_kernels" in name]
        results.append(zip_members(done.path))
    assert results[0] == results[1]


def zip_members(path: Path) -> list[tuple[str, Any, int, int]]:
    with zipfile.ZipFile(path) as archive:
        return [
            (info.filename, info.date_time, info.external_attr, info.CRC)
            for info in archive.infolist()
            if not info.filename.endswith(("RECORD", ".so"))
        ]


@pytest.mark.parametrize("channel", ["config", "environ"])
def test_tune_off_gives_a_pure_wheel_whatever_an_earlier_build_left(channel: str, binary: Path, tmp_path: Path) -> None:
    project = copy_project("src_backend", tmp_path / "project")
    assert call_hook(project, BACKEND, "build_wheel", binary, tmp_path / "first").calls
    assert list(project.glob("build/**/executable.so"))  # what the second build must not pick up
    off: dict[str, Any] = {"config": {"tune": "off"}} if channel == "config" else {"environ": {"TLAOT_TUNE": "off"}}
    done = call_hook(project, BACKEND, "build_wheel", binary, tmp_path / "out", **off)
    assert done.path.name == "src_kernels-1.0-py3-none-any.whl"
    assert "Root-Is-Purelib: true" in done.wheel_file()
    assert not [name for name in done.names() if "_tlaot" in name]
    assert done.calls == []


def test_config_settings_reach_the_pipeline_and_win(binary: Path, tmp_path: Path) -> None:
    project = copy_project("src_backend", tmp_path / "project")
    config = {"targets": "llvm:x86-64-v2", "keep": "true", "tune": "force", "lock": "ignore"}
    environ = {"TLAOT_TARGETS": "llvm:x86-64-v4", "TLAOT_TUNE": "off", "TLAOT_LOCK": "frozen"}
    done = call_hook(project, BACKEND, "build_wheel", binary, tmp_path / "out", config=config, environ=environ)
    wanted = {"tune": "force", "targets": ["llvm:x86-64-v2"], "jobs": None, "keep": True, "lock": "ignore"}
    wanted |= {"executor": None, "devices": None}
    assert done.calls[0]["settings"] == wanted
    assert done.changed_variables == []


@pytest.mark.parametrize(
    "hook", ["prepare_metadata_for_build_wheel", "get_requires_for_build_wheel", "get_requires_for_build_sdist"]
)
def test_only_a_wheel_build_tunes(consumer: tuple[Path, str, str], hook: str, tmp_path: Path) -> None:
    project, backend, _ = consumer
    done = call_hook(project, backend, hook, "FAIL", tmp_path / "out")
    assert done.code == 0, done.output
    assert done.calls == []
    if backend == BACKEND and hook == "get_requires_for_build_wheel":
        assert done.result == list(FRONTEND_REQUIRES["tvm"])


def test_editable_install_tunes_nothing_and_ships_no_kernel(consumer: tuple[Path, str, str], tmp_path: Path) -> None:
    project, backend, package = consumer
    done = call_hook(project, backend, "build_editable", "FAIL", tmp_path / "out")
    assert done.calls == []
    assert not [name for name in done.names() if "_tlaot" in name or name.startswith(f"{package}/")]
    assert not list(project.rglob("_tlaot"))
    assert "an editable install has no kernels" in done.output


def test_sdist_has_what_the_wheel_needs_and_builds_the_same(
    consumer: tuple[Path, str, str], binary: Path, tmp_path: Path
) -> None:
    project, backend, _ = consumer
    spec = next(path for path in (project / "tltune.toml", project / "tuning" / "kernels.toml") if path.is_file())
    (spec.parent / "tltune.lock").write_text("{}\n")
    sdist = call_hook(project, backend, "build_sdist", "FAIL", tmp_path / "sdist")
    assert sdist.calls == []
    with tarfile.open(sdist.path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    kernels = spec.relative_to(project)
    assert (unpacked / kernels).read_bytes() == spec.read_bytes()
    assert (unpacked / kernels.with_name("tltune.lock")).is_file()
    assert [path.name for path in unpacked.rglob("kernel*.py")]
    first = call_hook(project, backend, "build_wheel", binary, tmp_path / "a")
    second = call_hook(unpacked, backend, "build_wheel", binary, tmp_path / "b")
    assert first.path.name == second.path.name
    assert first.path.read_bytes() == second.path.read_bytes()


def test_two_builds_give_the_same_bytes(consumer: tuple[Path, str, str], binary: Path, tmp_path: Path) -> None:
    project, backend, _ = consumer
    first = call_hook(project, backend, "build_wheel", binary, tmp_path / "a", umask=0o022)
    for path in project.rglob("*"):
        os.utime(path, (1_500_000_000, 1_500_000_000))
    second = call_hook(project, backend, "build_wheel", binary, tmp_path / "b", umask=0o077)
    assert first.path.read_bytes() == second.path.read_bytes()
    third = call_hook(
        project, backend, "build_wheel", binary, tmp_path / "c", environ={"SOURCE_DATE_EPOCH": "1600000000"}
    )
    with zipfile.ZipFile(third.path) as archive:
        assert {info.date_time[:3] for info in archive.infolist()} == {(2020, 9, 13)}


def test_failure_of_the_pipeline_is_one_message(consumer: tuple[Path, str, str], tmp_path: Path) -> None:
    project, backend, _ = consumer
    done = call_hook(project, backend, "build_wheel", "FAIL", tmp_path / "out")
    assert done.code == 1
    assert "error: kernel add: no candidate was correct\nMend the kernel.\n" in done.output
    assert "Traceback" not in done.output
    assert not list((tmp_path / "out").glob("*.whl"))


@pytest.mark.parametrize("date", ["", "today", "1.5e9", "4354819200"])
def test_a_date_that_no_wheel_can_have_is_refused_before_tuning(date: str, binary: Path, tmp_path: Path) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    done = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "out", environ={"SOURCE_DATE_EPOCH": date})
    assert (done.code, done.calls) == (1, [])
    assert "error: environment variable SOURCE_DATE_EPOCH: expected a whole number of seconds since 1970" in done.output
    assert f"got {date!r}\nCorrect it, or unset it" in done.output
    assert "Traceback" not in done.output


def test_a_date_before_the_first_of_zip_is_the_first(binary: Path, tmp_path: Path) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    done = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "out", environ={"SOURCE_DATE_EPOCH": "-1"})
    with zipfile.ZipFile(done.path) as archive:
        assert {info.date_time[:3] for info in archive.infolist()} == {(1980, 1, 1)}


@pytest.mark.parametrize("backend", [PLUGIN, BACKEND])
def test_unknown_variable_is_refused_by_both_ways(backend: str, binary: Path, tmp_path: Path) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    done = call_hook(project, backend, "build_wheel", binary, tmp_path / "out", environ={"TLAOT_TARGTES": "llvm"})
    assert done.code == 1
    assert (
        "error: environment variable TLAOT_TARGTES: tlaot knows no such setting, did you mean 'TLAOT_TARGETS'?\nKnown: "
        in done.output
    )
    assert "Traceback" not in done.output


def test_backend_without_a_spec_is_an_error(binary: Path, tmp_path: Path) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    (project / "tltune.toml").unlink()
    done = call_hook(project, BACKEND, "build_wheel", binary, tmp_path / "out")
    assert (done.code, done.calls) == (1, [])
    assert (
        "error: tltune.toml: the build backend is tlaot.build_hooks, but there is none beside pyproject.toml"
        in done.output
    )


@pytest.mark.parametrize("backend", [PLUGIN, BACKEND])
def test_spec_that_is_wrong_is_one_message(backend: str, binary: Path, tmp_path: Path) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    (project / "tltune.toml").write_text("[tlaot]\npackage = \n")
    done = call_hook(project, backend, "build_wheel", binary, tmp_path / "out")
    assert done.code == 1
    assert re.search(r"^error: tltune\.toml: is not valid TOML", done.output, re.MULTILINE), done.output
    assert "Traceback" not in done.output


def test_package_that_the_project_lacks_is_an_error(binary: Path, tmp_path: Path) -> None:
    project = copy_project("flat_plugin", tmp_path / "project")
    spec = project / "tltune.toml"
    spec.write_text(spec.read_text().replace('package = "flat_kernels"', 'package = "flat_kernel"'))
    done = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "out")
    assert done.code == 1
    told = done.output.partition("the project has no package 'flat_kernel'\n")[2].splitlines()
    assert told[0] == "  tltune.toml:2" and "flat_kernel" in told[1] and "^^^" in told[2]
    assert told[3].startswith("Its packages are: flat_kernels")


def test_github_actions_is_told_what_was_built_and_what_is_wrong(binary: Path, tmp_path: Path) -> None:
    """A table in the job's summary, a warning and an error among the lines of the build; nothing where it does not run this."""
    project = copy_project("flat_plugin", tmp_path / "project")
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('dependencies = ["tlaot"]\n', ""))
    summary = tmp_path / "summary.md"
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_WORKSPACE": str(tmp_path)}
    built = call_hook(
        project, PLUGIN, "build_wheel", binary, tmp_path / "out", "--targets=llvm:x86-64-v2", environ=environ
    )
    assert built.code == 0, built.output
    assert "| add | llvm:x86-64-v2 | N=1024 |" in summary.read_text()
    assert "::warning title=tlaot::tlaot is not among the project's dependencies\n" in built.output
    text = summary.read_text()
    failed = call_hook(project, PLUGIN, "build_wheel", "FAIL", tmp_path / "out", environ=environ)
    assert "::error title=kernel add::no candidate was correct%0AMend the kernel.\n" in failed.output
    (project / "tltune.toml").write_text("[tlaot]\npackage = \n")
    for backend in (PLUGIN, BACKEND):
        failed = call_hook(project, backend, "build_wheel", binary, tmp_path / "out", environ=environ)
        assert "::error file=project/tltune.toml,line=2," in failed.output
    failed = call_hook(project, PLUGIN, "build_wheel", binary, tmp_path / "out", environ={"GITHUB_ACTIONS": ""})
    assert "::" not in failed.output and summary.read_text() == text


def test_sub_command_answers_without_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from setuptools import Distribution
    from tlaot.build_hooks.build_kernels import build_kernels

    monkeypatch.chdir(copy_project("src_backend", tmp_path / "project"))
    distribution = Distribution({"name": "x", "packages": ["src_kernels"], "package_dir": {"": "src"}})
    command = build_kernels(distribution)
    command.ensure_finalized()
    assert command.get_source_files() == ["tuning/kernels.toml", "src/kernel_sources.py"]
    assert command.get_outputs() == [os.path.join(command.build_lib, "src_kernels", "_tlaot", "manifest.json")]
    assert command.get_output_mapping() == {}
    command.editable_mode = True
    assert command.get_outputs() == []


def test_old_setuptools_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import setuptools
    from tlaot.build_hooks.plugin import add_build_kernels

    monkeypatch.chdir(copy_project("flat_plugin", tmp_path / "project"))
    distribution = setuptools.Distribution.__new__(setuptools.Distribution)
    monkeypatch.setattr(setuptools, "__version__", "65.5.0")
    with pytest.raises(setuptools.errors.SetupError, match=r"needs setuptools 77 or newer .* got 65\.5\.0"):
        add_build_kernels(distribution)
