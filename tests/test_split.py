"""Companion wheels: bytes, metadata, what is refused, and that pip installs and removes them."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, clean_environ, copy_project
from fixtures_runtime import compile_kernel, tensor, variant, write_package

from tlaot.cli import main
from tlaot.errors import PackageError
from tlaot.manifest import FOLDER, Kernel, Manifest, dumps, loads, read_manifest
from tlaot.split import Split, split_wheel, write_wheels

PARAMS = [tensor("A", 4, 8), tensor("B", 4, 8), tensor("C", 4, 8, written=True)]
METADATA = """Metadata-Version: 2.4
Name: My.Kernels
Version: 1.2+local
Summary: Kernels
Author: Somebody Ünïcode
License-Expression: MIT
License-File: LICENSE
Requires-Python: >=3.10
Requires-Dist: tlaot
Provides-Extra: x

A description: with a colon
"""


def make_wheel(
    folder: Path, *targets: str, package: str = "my_kernels", tag: str = "py3-none-manylinux_2_17_x86_64", **more: str
) -> Path:
    """A wheel with kernels add (every target) and mul (CUDA only), made as any build backend may."""
    built: dict[str, list[Any]] = {"add": [], "mul": []}
    for target in targets:
        for size in (8, 9):
            built["add"].append((variant("add", PARAMS, [2], {"N": size}, target), compile_kernel(3, 4, label=size)))
        if target.startswith("cuda"):
            built["mul"].append((variant("mul", PARAMS, [2], {"N": 8}, target), compile_kernel(3, 4, label=5)))
    write_package(folder / "tree", package, built)
    files = {
        str(path.relative_to(folder / "tree")): path.read_bytes() for path in sorted((folder / "tree").rglob("*.*"))
        if path.is_file()
    }  # fmt: skip
    info = "my_kernels-1.2+local.dist-info"
    files |= {
        f"{info}/METADATA": METADATA.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x (1)\nRoot-Is-Purelib: false\nTag: {tag}\n\n".encode(),
        f"{info}/licenses/LICENSE": b"MIT, 2026",
        **{name: content.encode() for name, content in more.items()},
    }
    rows = [f"{name},{digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,\n"]).encode()
    path = folder / f"my_kernels-1.2+local-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (2020, 2, 2, 0, 0, 0))
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, content)
    return path


def digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def check_record(files: dict[str, bytes]) -> None:
    (record,) = [name for name in files if name.endswith(".dist-info/RECORD")]
    assert list(files)[-1] == record
    rows = {row[0]: row[1:] for row in csv.reader(files[record].decode().splitlines())}
    assert rows.pop(record) == ["", ""]
    assert rows == {n: [digest(c), str(len(c))] for n, c in files.items() if n != record}


@pytest.fixture
def split(tmp_path: Path) -> tuple[Path, Split, list[Path]]:
    """A wheel for two architectures and the CPU, what it is split into, and the files."""
    (tmp_path / "in").mkdir()
    wheel = make_wheel(tmp_path / "in", "llvm:x86-64", "cuda:sm_90a", "cuda:sm_80")
    made = split_wheel(wheel)
    return wheel, made, write_wheels([made.main, *made.companions], tmp_path / "out")


def test_what_is_in_each(split: tuple[Path, Split, list[Path]]) -> None:
    """Every file is in one wheel, nothing is lost, RECORD is right, and names are as indexes want them."""
    wheel, _, paths = split
    assert [path.name for path in paths] == [
        "my_kernels-1.2+local-py3-none-manylinux_2_17_x86_64.whl",
        "my_kernels_cuda_sm_80-1.2+local-py3-none-manylinux_2_17_x86_64.whl",
        "my_kernels_cuda_sm_90a-1.2+local-py3-none-manylinux_2_17_x86_64.whl",
    ]
    whole, (main, *others) = contents(wheel), map(contents, paths)
    for files in (main, *others):
        check_record(files)
    kernels = {name.partition(f"/{FOLDER}/")[2]: data for name, data in whole.items() if name.endswith(".so")}
    found = {name.partition(f"/{FOLDER}/")[2]: data for files in (main, *others) for name, data in files.items()
             if name.endswith(".so")}  # fmt: skip
    assert found == kernels
    assert {name for name in main if name not in whole} == set()
    assert all(main[name] == data for name, data in whole.items()
               if name in main and not name.endswith(("RECORD", "manifest.json")))  # fmt: skip
    sm80 = others[0]
    assert sm80["my_kernels_cuda_sm_80-1.2+local.dist-info/licenses/LICENSE"] == b"MIT, 2026"
    assert sm80["my_kernels_cuda_sm_80-1.2+local.dist-info/entry_points.txt"] == (
        b"[tlaot.kernels]\nmy_kernels = my_kernels_cuda_sm_80\n"
    )
    with zipfile.ZipFile(paths[1]) as archive:
        modes = {entry.filename.rpartition(".")[2]: entry.external_attr >> 16 for entry in archive.infolist()}
    assert (modes["so"], modes["py"]) == (0o100755, 0o100644)


def test_manifests(split: tuple[Path, Split, list[Path]]) -> None:
    """The main one names the companions and the kernels that only they have; theirs name the project."""
    wheel, _, paths = split
    whole, main, sm80, sm90 = (
        next(loads(data) for name, data in contents(path).items() if name.endswith("manifest.json"))
        for path in (wheel, *paths)
    )
    project = {"name": "My.Kernels", "version": "1.2+local"}
    assert main.project == sm80.project == sm90.project == project
    assert main.companions == {
        "my-kernels-cuda-sm-80": ("cuda:sm_80",),
        "my-kernels-cuda-sm-90a": ("cuda:sm_90a",),
    }
    assert {name: len(kernel.variants) for name, kernel in main.kernels.items()} == {"add": 2, "mul": 0}
    assert {part.package for part in (main, sm80, sm90)} == {"my_kernels"}
    for name, kernel in whole.kernels.items():
        together = [v for part in (main, sm80, sm90) if name in part.kernels for v in part.kernels[name].variants]
        assert sorted(map(repr, together)) == sorted(map(repr, kernel.variants))


def test_metadata(split: tuple[Path, Split, list[Path]]) -> None:
    """Valid by the rules of the index, with what the main wheel says of its author and license."""
    metadata = pytest.importorskip("packaging.metadata")
    utils = pytest.importorskip("packaging.utils")
    for path in split[2][1:]:
        name, version, _, _ = utils.parse_wheel_filename(path.name)
        text = next(data for file, data in contents(path).items() if file.endswith("METADATA"))
        parsed = metadata.Metadata.from_email(text, validate=True)
        assert (utils.canonicalize_name(parsed.name), parsed.version) == (name, version)
        assert [str(r) for r in parsed.requires_dist] == ["My.Kernels==1.2+local"]
        assert (parsed.author, parsed.license_expression) == ("Somebody Ünïcode", "MIT")
        assert (parsed.license_files, str(parsed.requires_python)) == (["LICENSE"], ">=3.10")
        assert "cuda:sm_" in parsed.summary
        assert parsed.description.startswith("Kernels of My.Kernels 1.2+local for cuda:sm_")


def test_the_same_wheel_gives_the_same_bytes(split: tuple[Path, Split, list[Path]], tmp_path: Path) -> None:
    """Again, in another folder; and a main wheel is as it is."""
    wheel, made, paths = split
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / wheel.name
    copy.write_bytes(wheel.read_bytes())
    assert split_wheel(copy) == made
    assert split_wheel(paths[0]).companions == ()
    assert split_wheel(paths[0]).main.content == paths[0].read_bytes()


def test_the_main_wheel_without_a_binary_is_for_every_platform(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "cuda:sm_90a", "cuda:compute_80")
    made = split_wheel(wheel)
    assert made.main.name == "my_kernels-1.2+local-py3-none-any.whl"
    assert [c.targets for c in made.companions] == [("cuda:compute_80",), ("cuda:sm_90a",)]
    (main, *_) = write_wheels([made.main], tmp_path / "out")
    text = contents(main)["my_kernels-1.2+local.dist-info/WHEEL"].decode()
    assert text == "Wheel-Version: 1.0\nGenerator: x (1)\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    extension = make_wheel(tmp_path, "cuda:sm_90a", tag="cp311-cp311-linux_x86_64")
    made = split_wheel(extension)
    assert made.main.name == extension.name, "extension modules decide"
    assert made.companions[0].name == "my_kernels_cuda_sm_90a-1.2+local-py3-none-linux_x86_64.whl"


def test_a_package_that_is_not_called_as_its_project(tmp_path: Path) -> None:
    """Both names are in the companion's."""
    made = split_wheel(make_wheel(tmp_path, "cuda:sm_90a", package="other"))
    assert made.companions[0].name.startswith("my_kernels_other_cuda_sm_90a-1.2+local-")
    (companion,) = write_wheels(made.companions, tmp_path / "out")
    entry = next(data for name, data in contents(companion).items() if name.endswith("entry_points.txt"))
    assert entry == b"[tlaot.kernels]\nother = other_cuda_sm_90a\n"


def test_a_package_that_is_called_nearly_as_its_project(tmp_path: Path) -> None:
    """The project's name does for both."""
    made = split_wheel(make_wheel(tmp_path, "cuda:sm_90a", package="mykernels"))
    assert made.companions[0].name.startswith("my_kernels_cuda_sm_90a-1.2+local-")


def test_content_that_is_stored_once_stays_together(tmp_path: Path) -> None:
    """Within a target it goes along; shared by two wheels it is refused."""
    for holder, fine in (("add/cuda-sm_90a/N8", True), ("add/llvm-x86-64/N8", False), ("add/cuda-sm_80/N8", False)):
        wheel = make_wheel(tmp_path, "llvm:x86-64", "cuda:sm_80", "cuda:sm_90a")
        tree = tmp_path / "tree" / "my_kernels" / FOLDER
        manifest = read_manifest(tree / "manifest.json")
        twin = next(v for v in manifest.kernels["add"].variants if v.path == "add/cuda-sm_90a/N9")
        source = next(v for v in manifest.kernels["add"].variants if v.path == holder)
        shared = dataclasses.replace(twin, stored={"executable.so": f"{holder}/executable.so"}, files=source.files)
        others = tuple(v for v in manifest.kernels["add"].variants if v != twin)
        kernels = {**manifest.kernels, "add": Kernel("add", (*others, shared))}
        replace_member(wheel, "my_kernels/_tlaot/manifest.json", dumps(dataclasses.replace(manifest, kernels=kernels)))
        if fine:
            companion = write_wheels(split_wheel(wheel).companions[1:], tmp_path)[0]
            names = [name for name in contents(companion) if name.endswith(".so") and "/add/" in name]
            assert names == ["my_kernels_cuda_sm_90a/_tlaot/add/cuda-sm_90a/N8/executable.so"]
        else:
            with pytest.raises(PackageError, match=f"in {holder}, which goes to another wheel"):
                split_wheel(wheel)


def replace_member(wheel: Path, name: str, text: str | None, record: bool = True) -> None:
    """Change a member, or drop it (None), and RECORD accordingly."""
    files = contents(wheel)
    files.pop(name) if text is None else files.update({name: text.encode()})
    info = next(n for n in files if n.endswith("/RECORD"))
    if record:
        rows = [f"{n},{digest(c)},{len(c)}" for n, c in files.items() if n != info]
        files[info] = "\n".join([*rows, f"{info},,\n"]).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)


INFO = "my_kernels-1.2+local.dist-info"
SO = "my_kernels/_tlaot/add/cuda-sm_90a/N8/executable.so"


@pytest.mark.parametrize(
    ("member", "text", "record", "why"),
    [
        (SO, "other", False, "RECORD says"),
        (SO, "other", True, "is not what the kernel manifest says"),
        (SO, None, True, "is not what the kernel manifest says"),
        ("my_kernels/_tlaot/manifest.json", "{}", True, "no format version"),
        ("my_kernels/_tlaot/manifest.json", None, True, "has no packaged kernels"),
        (f"{INFO}/METADATA", None, True, "no .dist-info with METADATA"),
        (f"{INFO}/METADATA", "Name: x\n", True, "has no Version"),
        (f"{INFO}/RECORD.jws", "{}", True, "is signed"),
        ("other-1.dist-info/METADATA", "x", True, "no .dist-info"),
        ("my_kernels_cuda_sm_90a/__init__.py", "", True, "the name of a companion's package"),
    ],
)
def test_what_is_refused(tmp_path: Path, member: str, text: str | None, record: bool, why: str) -> None:
    wheel = make_wheel(tmp_path, "llvm:x86-64", "cuda:sm_90a")
    replace_member(wheel, member, text, record)
    with pytest.raises(PackageError, match=why):
        split_wheel(wheel)


def test_what_is_no_wheel(tmp_path: Path) -> None:
    for name in ("x.whl", "a-1-py3-none-any.zip", "a-1-py3-none-any.whl"):
        (tmp_path / name).write_text("no archive")
        with pytest.raises(PackageError, match="wheel"):
            split_wheel(tmp_path / name)


def test_the_command(split: tuple[Path, Split, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of what it made; it overwrites nothing that it reads."""
    wheel, made, _ = split
    before = wheel.read_bytes()
    assert main(["split", str(wheel), "-o", str(tmp_path / "new" / "folder")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "cuda:sm_90a" in lines[3]
    assert (tmp_path / "new" / "folder" / made.main.name).read_bytes() == made.main.content
    assert main(["split", str(wheel), "-o", str(wheel.parent)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert wheel.read_bytes() == before
    assert sorted(path.suffix for path in wheel.parent.iterdir()) == ["", ".whl"]
    (tmp_path / "cpu").mkdir()
    assert main(["split", str(make_wheel(tmp_path / "cpu", "llvm:x86-64")), "-o", str(tmp_path / "none")]) == 2
    assert "has kernels for llvm:x86-64 alone" in capsys.readouterr().err


def test_the_unsplit_wheel_beside_its_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line about it; none about parts that are there already, and about wheels of others."""
    wheel = make_wheel(tmp_path, "cuda:sm_90a", "cuda:sm_80")  # no CPU kernels: the main wheel gets another name
    (tmp_path / "no wheel.whl").write_text("")
    (tmp_path / "my_kernels-1.2+local-py3-none-win_amd64.whl").write_text("damaged")
    for _ in range(2):
        assert main(["split", str(wheel), "-o", str(wheel.parent)]) == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"tlaot: {wheel} has all kernels still: neither install nor upload it beside its parts"
    assert (tmp_path / "my_kernels-1.2+local-py3-none-any.whl").is_file()
    other = tmp_path / "elsewhere" / wheel.name.replace("manylinux_2_17", "manylinux_2_28")
    other.parent.mkdir()
    shutil.copy(wheel, other)
    assert main(["split", str(wheel), "-o", str(other.parent)]) == 0
    assert f"{other} has all kernels still" in capsys.readouterr().err
    assert main(["split", str(wheel), "-o", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().err == ""


CALL = """
import tlaot, tlaot.runtime.device as device
kernels = tlaot.load("my_kernels")
print(repr(kernels), sorted({v.target for k in kernels for v in kernels[k].variants}))
device.cuda_device = lambda ordinal: device.CudaDevice("NVIDIA H200", (9, 0), 132)
from tlaot.manifest import Param
from tlaot.runtime.call import Described
from tlaot.runtime.dispatch import Argument
call = Described((Argument("float32", (4, 8)),) * 2, (2, 0), None, None, 0)
try:
    print(kernels.add._pick(call, {"N": 8}).path)
    print(kernels.mul._pick(call, {}).path)
except tlaot.DispatchError as error:
    print(error)
"""


def test_pip_installs_and_removes_them(split: tuple[Path, Split, list[Path]], tmp_path: Path) -> None:
    """Together their kernels are one set; alone the main wheel says what to install; nothing stays behind."""
    _, _, (main_wheel, sm80, sm90) = split
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    before = sorted(site.rglob("*"))
    paths = [str(path) for path in map(Path, filter(None, sys.path)) if path.name.endswith("packages")]
    (site / "outside.pth").write_text("\n".join([*paths, str(Path(__file__).resolve().parents[1])]))

    def pip(*arguments: str | Path) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(python), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def call() -> list[str]:
        done = subprocess.run([str(python), "-c", CALL], capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    pip("install", "--no-deps", "--no-index", main_wheel)
    alone = call()
    assert alone[0].endswith("['llvm:x86-64']")
    assert alone[-1].endswith("pip install my-kernels-cuda-sm-90a==1.2+local")
    pip("install", "--no-deps", "--no-index", sm80, sm90)
    together = call()
    assert "companion my-kernels-cuda-sm-90a 1.2+local" in together[0]
    assert together[-2:] == ["add/cuda-sm_90a/N8", "mul/cuda-sm_90a/N8"]
    pip("uninstall", "-y", "my-kernels-cuda-sm-90a", "my-kernels-cuda-sm-80")
    assert call() == alone
    pip("uninstall", "-y", "my-kernels")
    (site / "outside.pth").unlink()
    assert sorted(site.rglob("*")) == before


def test_pip_refuses_another_version(split: tuple[Path, Split, list[Path]], tmp_path: Path) -> None:
    """The companion requires exactly its main wheel's version."""
    _, _, (main_wheel, _, sm90) = split
    other = tmp_path / main_wheel.name.replace("1.2+local", "1.3")
    other.write_bytes(main_wheel.read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-index",
        "--find-links",
        str(tmp_path),
        str(sm90),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "my-kernels==1.2+local" in (done.stdout + done.stderr).lower().replace("my.kernels", "my-kernels")


def test_manifest_of_a_companion_has_no_companions(split: tuple[Path, Split, list[Path]]) -> None:
    for path in split[2][1:]:
        manifest: Manifest = next(loads(d) for n, d in contents(path).items() if n.endswith("manifest.json"))
        assert manifest.companions == {}
        assert all(kernel.variants for kernel in manifest.kernels.values())


# In a build


@pytest.mark.parametrize(
    ("name", "backend", "package"),
    [
        ("flat_plugin", "setuptools.build_meta", "flat_kernels"),
        ("src_backend", "tlaot.build_hooks", "src_kernels"),
    ],
)
def test_a_build_splits_where_the_spec_says_so(name: str, backend: str, package: str, tmp_path: Path) -> None:
    """The main wheel is the hook's; companions stay in the project, and tlaot's backend leaves them beside it too."""
    pytest.importorskip("tlaot.build_hooks", reason="tlaot is not installed here")
    project = copy_project(name, tmp_path / "project")
    spec = next(path for path in project.rglob("*.toml") if "[tlaot]" in path.read_text())
    spec.write_text(spec.read_text().replace("[tlaot]\n", '[tlaot]\nsplit = "arch"\n', 1))
    binary = tmp_path / "executable.so"
    binary.write_bytes(compile_kernel(3, 4))
    left = spec.parent / "build" / "tlaot" / "wheels"
    left.mkdir(parents=True)
    (left / "of_an_earlier_build-1-py3-none-any.whl").write_text("")

    def build(out: str, targets: str, *config: str) -> tuple[str, set[str]]:
        (tmp_path / out).mkdir()
        arguments = [backend, "build_wheel", tmp_path / out, binary, tmp_path / f"{out}.json", *(config or ("null",))]
        command = [sys.executable, ROOT / "tests" / "hook_driver.py", *arguments, f"--targets={targets}"]
        done = subprocess.run(
            list(map(str, command)), cwd=project, env=clean_environ(), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr, {path.name.rpartition("-py3-")[0] for path in (tmp_path / out).glob("*.whl")}

    companions = {f"{package}_cuda_sm_80-1.0", f"{package}_cuda_sm_90a-1.0"}
    for out, targets, staying in (
        ("one", "llvm:x86-64-v2,cuda:sm_80,cuda:sm_90a", 1),
        ("two", "cuda:sm_80,cuda:sm_90a", 0),
    ):
        said, made = build(out, targets)
        assert made == ({f"{package}-1.0"} | (companions if backend.startswith("tlaot") else set()))
        assert {path.name.rpartition("-py3-")[0] for path in left.glob("*.whl")} == companions
        assert f"{package}_cuda_sm_90a-1.0" in said
        (wheel,) = (tmp_path / out).glob(f"{package}-*.whl")
        assert wheel.name.endswith("-any.whl") == (not staying)
        assert sum(name.endswith("executable.so") for name in contents(wheel)) == staying
        check_record(contents(wheel))
    said, made = build("three", "llvm:x86-64-v2")
    assert made == {f"{package}-1.0"}
    assert "this wheel has no CUDA kernels" in said
    assert not list(left.glob("*.whl"))


def test_build_tags_and_data_folders(tmp_path: Path) -> None:
    """A companion has its main wheel's build tag; kernels that a wheel installs by way of ``.data`` are found, too."""
    wheel = make_wheel(tmp_path, "llvm:x86-64", "cuda:sm_90a")
    moved = wheel.with_name(wheel.name.replace("-py3-", "-7-py3-"))
    files = contents(wheel)
    data = "my_kernels-1.2+local.data/platlib/"
    with zipfile.ZipFile(moved, "w") as archive:
        for name, content in files.items():
            archive.writestr(data + name if name.startswith("my_kernels/") else name, content)
    replace_member(moved, f"{INFO}/extra.txt", "")
    made = split_wheel(moved)
    assert made.main.name == moved.name
    (companion,) = write_wheels(made.companions, tmp_path / "out")
    assert companion.name == "my_kernels_cuda_sm_90a-1.2+local-7-py3-none-manylinux_2_17_x86_64.whl"
    members = contents(companion)
    assert b"Build: 7\n" in next(text for name, text in members.items() if name.endswith("/WHEEL"))
    assert "my_kernels_cuda_sm_90a/_tlaot/add/cuda-sm_90a/N8/executable.so" in members
    (main_wheel,) = write_wheels([made.main], tmp_path / "out")
    assert [n for n in contents(main_wheel) if n.endswith(".so")] == [
        f"{data}my_kernels/_tlaot/add/llvm-x86-64/N{size}/executable.so" for size in (8, 9)
    ]
