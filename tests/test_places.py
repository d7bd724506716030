"""Where kernels are found: the package, its companions, folders that somebody names; and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, tensor, variant, write_package

import tlaot
from tlaot.cli import main
from tlaot.errors import DispatchError, LoadError, PackageError
from tlaot.manifest import FOLDER, Kernel, Manifest, Variant, dumps, loads
from tlaot.runtime import companions, device, notes, places
from tlaot.runtime.call import describe

np = pytest.importorskip("numpy")

PARAMS = [tensor("A", 4, 8), tensor("B", 4, 8), tensor("C", 4, 8, written=True)]


def add(label: int = 0, name: str = "add", target: str = "llvm:x86-64", **shape: int) -> tuple[Variant, bytes]:
    """A kernel that gives a + b + label."""
    return variant(name, PARAMS, [2], shape or {"N": 8}, target), compile_kernel(3, 0b100, label=label)


def call(kernel: Any) -> float:
    """a + b of 2 and 3."""
    return float(kernel(np.full((4, 8), 2, "f4"), np.full((4, 8), 3, "f4"))[0, 0])


def write(root: Path, package: str, *built: tuple[Variant, bytes], of: str | None = None, **manifest: Any) -> Path:
    """A package with some variants; a companion's manifest names the package that it is of."""
    kernels: dict[str, list[tuple[Variant, bytes]]] = {}
    for one, binary in built:
        kernels.setdefault(one.path.partition("/")[0], []).append((one, binary))
    written = write_package(root, package, kernels, "raise AssertionError('imported')")
    kernels_of = {**written.kernels, **{name: Kernel(name, ()) for name in manifest.pop("without", ())}}
    changed = dataclasses.replace(written, package=of or package, kernels=kernels_of, **manifest)
    (root / package / FOLDER / "manifest.json").write_text(dumps(changed))
    return root / package


def announce(root: Path, distribution: str, version: str, **entries: str) -> Path:
    """The metadata of an installed distribution, with entry points in tlaot's group."""
    info = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    if entries:
        lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
        (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[tlaot.kernels]\n{lines}")
    return info


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path, and no TLAOT_PATH."""
    monkeypatch.delenv("TLAOT_PATH", raising=False)
    monkeypatch.setenv("TLAOT_OVERLAY", "off")
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    return root


def split_package(site: Path, name: str, main: str = "1.0", companion: str = "1.0") -> None:
    """A package with one kernel of its own and one in a companion."""
    distribution = name.replace("_", "-")
    write(site, name, add(), without=["mul"],
          project={"name": distribution, "version": main},
          companions={f"{distribution}-cuda-sm-90a": ("cuda:sm_90a",)})  # fmt: skip
    announce(site, distribution, main)
    write(site, f"{name}_cuda_sm_90a", add(5, "mul"), of=name, project={"name": distribution, "version": companion})
    announce(site, f"{distribution}-cuda-sm-90a", companion, **{name: f"{name}_cuda_sm_90a"})


def test_a_package_and_its_companion_are_one_set(site: Path) -> None:
    """Both kernels run; neither package is imported; a copy and a pickle find both again."""
    split_package(site, "pl_two")
    kernels = tlaot.load("pl_two")
    assert not {"pl_two", "pl_two_cuda_sm_90a"} & set(sys.modules)
    assert list(kernels) == ["add", "mul"]
    assert repr(kernels) == "<tlaot.Kernels of pl_two: add, mul; also from companion pl-two-cuda-sm-90a 1.0>"
    for made in (kernels, copy.deepcopy(kernels), pickle.loads(pickle.dumps(kernels))):
        assert (call(made.add), call(made.mul)) == (5, 10)
    assert call(pickle.loads(pickle.dumps(kernels.mul))) == 10


def test_variants_of_one_kernel_come_from_several_places(site: Path) -> None:
    """Dispatch sees them as one kernel; equal paths in two places are two files."""
    write(site, "pl_var", add(1))
    one, binary = add(7, N=9)
    params = tuple(tensor(p.name, 5, 8, written=p.written) for p in PARAMS)
    other = dataclasses.replace(one, params=params, path="add/llvm-x86-64/N8")
    write(site, "pl_var_more", (other, binary), of="pl_var")
    announce(site, "pl-var-more", "3", pl_var="pl_var_more")
    kernel = tlaot.load("pl_var").add
    assert len(kernel.variants) == 2
    assert call(kernel) == 6
    assert kernel(np.zeros((5, 8), "f4"), np.zeros((5, 8), "f4"))[0, 0] == 7


def test_a_package_without_kernels_of_its_own(site: Path) -> None:
    """A manifest without variants, and none at all: the companion's kernels load."""
    write(site, "pl_bare", without=["mul"])
    (site / "pl_none").mkdir()
    (site / "pl_none" / "__init__.py").write_text("raise AssertionError")
    for name in ("pl_bare", "pl_none"):
        write(site, f"{name}_more", add(5, "mul"), of=name)
        announce(site, f"{name}-more", "1", **{name: f"{name}_more"})
        assert call(tlaot.load(name).mul) == 10


def test_a_missing_companion_is_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that only a companion could serve says which one to install, where it has code for the device."""
    write(site, "pl_miss", add(), without=["mul"], project={"name": "pl-miss", "version": "1.2"},
          companions={f"pl-miss-cuda-{arch.replace('_', '-')}": (f"cuda:{arch}",)
                      for arch in ("compute_80", "sm_80", "sm_90", "sm_90a")})  # fmt: skip
    monkeypatch.setattr(device, "cuda_device", lambda ordinal: device.CudaDevice("NVIDIA H200", (9, 0), 132))
    kernels = tlaot.load("pl_miss")
    with pytest.raises(DispatchError, match="none is packaged"):
        call(kernels.mul)

    described = describe("pl_miss.mul", [np.zeros((4, 8), "f4")] * 2, False)
    on_device = dataclasses.replace(described, device=(2, 0))
    for kernel in (kernels.mul, kernels.add):
        with pytest.raises(DispatchError, match=r"pip install pl-miss-cuda-sm-90a==1\.2$"):
            kernel._pick(on_device, {})


@pytest.mark.parametrize("installed", ["manifest", "metadata"])
def test_a_companion_of_another_version_is_refused(site: Path, installed: str) -> None:
    """Both versions are named, whether the package's own manifest says its version or its metadata."""
    split_package(site, "pl_old", main="2.0", companion="1.0")
    if installed == "metadata":
        shutil.rmtree(site / "pl_old" / FOLDER)
    with pytest.raises(
        PackageError, match=r"belongs to pl-old 1\.0, but pl-old 2\.0 is installed\nInstall the one of 2\.0"
    ):
        tlaot.load("pl_old")


def test_two_claims_to_one_variant_name_both(site: Path, tmp_path: Path) -> None:
    """A companion, TLAOT_PATH and path= alike."""
    folder = write(site, "pl_claim", add(1))
    other = write(tmp_path / "more", "pl_claim", add(2))
    with pytest.raises(PackageError, match=r"two places have add for llvm:x86-64, \{'N': 8\}") as caught:
        tlaot.load("pl_claim", path=tmp_path / "more")
    assert all(str(place / FOLDER) in str(caught.value) for place in (folder, other))
    write(site, "pl_claim_more", add(2), of="pl_claim")
    announce(site, "pl-claim-more", "1", pl_claim="pl_claim_more")
    with pytest.raises(PackageError, match=r"\(the package\) and .*\(companion pl-claim-more 1\)"):
        tlaot.load("pl_claim")


def check(package: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, str]]]:
    """Exit status and findings of ``tlaot check`` about how a package's places fit together."""
    status = main(["check", package, "--no-load", "--json"])
    told = [finding for one in json.loads(capsys.readouterr().out) for finding in one["findings"]]
    return status, [finding for finding in told if finding["check"] == "places"]


def test_check_finds_what_the_loader_refuses(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A companion of another version, and two claims to one variant; nothing is said of what fits together."""
    split_package(site, "pl_fits")
    assert check("pl_fits", capsys)[1] == []
    split_package(site, "pl_stale", main="2.0", companion="1.0")
    status, (finding,) = check("pl_stale", capsys)
    assert status == 1
    assert finding["what"] == "belongs to pl-stale 1.0, but pl-stale 2.0 is installed"
    assert finding["remedy"].startswith("Install the one of 2.0")
    write(site, "pl_both", add(1))
    write(tmp_path / "more", "pl_both", add(2))
    assert check("pl_both", capsys)[1] == []
    monkeypatch.setenv("TLAOT_PATH", str(tmp_path / "more"))
    status, (finding,) = check("pl_both", capsys)
    assert (status, finding["where"]) == (1, "package pl_both")
    assert finding["what"].startswith("two places have add for llvm:x86-64, {'N': 8}: ")
    monkeypatch.delenv("TLAOT_PATH")
    write(site, "pl_both_more", add(2), of="pl_both")
    announce(site, "pl-both-more", "1", pl_both="pl_both_more")
    status, (finding,) = check("pl_both", capsys)
    assert "(companion pl-both-more 1)" in finding["what"]
    with pytest.raises(PackageError, match="two places have add"):
        tlaot.load("pl_both")


def test_the_same_package_found_twice_is_no_conflict(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice on sys.path, by a symbolic link, as a copy in another environment, named in TLAOT_PATH as well."""
    write(site, "pl_twice", add(1))
    (tmp_path / "link").symlink_to(site)
    shutil.copytree(site, tmp_path / "copy")
    for folder in (site, tmp_path / "link", tmp_path / "copy"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("TLAOT_PATH", os.pathsep.join(map(str, [site, tmp_path / "link", tmp_path / "copy"])))
    kernels = tlaot.load("pl_twice")
    assert len(kernels.add.variants) == 1
    assert call(kernels.add) == 6


def test_a_companion_that_is_found_twice_is_the_first(site: Path, tmp_path: Path) -> None:
    """Two versions of one distribution on sys.path: the one that would be imported."""
    split_package(site, "pl_dup")
    announce(site.parent / "later", "pl-dup-cuda-sm-90a", "0.1", pl_dup="nothing_there")
    sys.path.append(str(site.parent / "later"))
    try:
        assert call(tlaot.load("pl_dup").mul) == 10
    finally:
        sys.path.remove(str(site.parent / "later"))


def test_namespace_packages(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every portion's kernels; and a package within one."""
    other = tmp_path / "other"
    for root, built in ((site, add(1)), (other, add(5, "mul"))):
        folder = write(root, "pl_space", built)
        (folder / "__init__.py").unlink()
    monkeypatch.syspath_prepend(str(other))
    kernels = tlaot.load("pl_space")
    assert (call(kernels.add), call(kernels.mul)) == (6, 10)
    (site / "pl_outer").mkdir()
    os.rename(write(site, "inner", add(1)), site / "pl_outer" / "inner")
    write(site, "pl_outer_inner_more", add(5, "mul"), of="pl_outer.inner")
    announce(site, "pl-outer-inner-more", "1", **{"pl_outer.inner": "pl_outer_inner_more"})
    kernels = tlaot.load("pl_outer.inner")
    assert (call(kernels.add), call(kernels.mul)) == (6, 10)


def test_path_and_variable(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that holds the package, the package's own folder, the manifest's; path= stands in for the variable."""
    write(site, "pl_path", add(1))
    folder = write(tmp_path / "more", "pl_path", add(5, "mul"))
    for given in (tmp_path / "more", folder, folder / FOLDER):
        for path in (given, str(given), [given, given]):
            assert call(tlaot.load("pl_path", path=path).mul) == 10
        monkeypatch.setenv("TLAOT_PATH", f"{os.pathsep}{given}{os.pathsep}")  # as of TLAOT_PATH=/more:$TLAOT_PATH
        assert call(tlaot.load("pl_path").mul) == 10
        assert list(tlaot.load("pl_path", path=[])) == ["add"]
    monkeypatch.setenv("TLAOT_PATH", "")
    assert list(tlaot.load("pl_path")) == ["add"]
    monkeypatch.chdir(tmp_path)
    kernels = tlaot.load("pl_path", path="more")
    monkeypatch.chdir("/")
    assert call(kernels.mul) == 10
    assert call(pickle.loads(pickle.dumps(kernels)).mul) == 10


def test_kernels_of_a_package_that_is_not_installed(tmp_path: Path) -> None:
    """They need nothing of it."""
    write(tmp_path / "more", "pl_absent", add(1))
    assert call(tlaot.load("pl_absent", path=tmp_path / "more").add) == 6


def test_wrong_folders_are_named(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there, is a file, is relative, or has kernels of another package."""
    write(site, "pl_wrong", add(1))
    write(tmp_path / "more", "pl_stranger", add(5, "mul"))
    (tmp_path / "file").write_text("")
    for name in ("nothing", "file"):
        with pytest.raises(PackageError, match=f"TLAOT_PATH: there is no folder '{tmp_path / name}'"):
            places.find_homes("pl_wrong", environ={"TLAOT_PATH": str(tmp_path / name)})
        with pytest.raises(PackageError, match=f"path: there is no folder '{tmp_path / name}'"):
            tlaot.load("pl_wrong", path=tmp_path / name)
    monkeypatch.setenv("TLAOT_PATH", "more")
    with pytest.raises(PackageError, match="TLAOT_PATH: 'more' is relative"):
        tlaot.load("pl_wrong")
    strange = tmp_path / "more" / "pl_stranger" / FOLDER
    monkeypatch.setenv("TLAOT_PATH", os.pathsep.join([str(strange), str(tmp_path)]))
    assert list(tlaot.load("pl_wrong")) == ["add"], "TLAOT_PATH is for other packages as well"
    with pytest.raises(PackageError, match="has kernels of pl_stranger, not of pl_wrong"):
        tlaot.load("pl_wrong", path=strange)
    with pytest.raises(PackageError, match=r"has neither pl_wrong/_tlaot/manifest\.json nor a manifest\.json"):
        tlaot.load("pl_wrong", path=tmp_path)


def test_broken_companions_are_named(site: Path) -> None:
    """A package that is not there, a name that is none, no manifest, a damaged one, another package's."""
    write(site, "pl_broken", add(1))
    (site / "pl_empty").mkdir()
    write(site, "pl_torn", add(5, "mul"), of="pl_broken")
    torn = site / "pl_torn" / FOLDER / "manifest.json"
    torn.write_text(torn.read_text()[:-9])
    write(site, "pl_foreign", add(5, "mul"))
    for value, why in (
        ("pl_gone", "names the package pl_gone, which is not there"),
        ("not a name", "'not a name' is not the import name of a package"),
        ("", "'' is not the import name"),
        ("pl_empty", "pl_empty, which has no _tlaot/manifest.json"),
        ("pl_torn", "not valid JSON"),
        ("pl_foreign:attribute [extra]", "has kernels of pl_foreign, not of pl_broken"),
    ):
        info = announce(site, "pl-broken-more", "1.5", pl_broken=value)
        with pytest.raises(PackageError, match=why) as caught:
            tlaot.load("pl_broken")
        assert "pl-broken-more" in str(caught.value) or "pl_torn" in str(caught.value)
        shutil.rmtree(info)
    assert call(tlaot.load("pl_broken").add) == 6


def test_what_is_no_companion_does_not_matter(site: Path) -> None:
    """Entry points for other packages, in other groups, in files that are no text; a leftover of pip's."""
    write(site, "pl_calm", add(1))
    announce(site, "stranger", "1", pl_other="pl_gone")
    info = announce(site, "garbage", "1")
    (info / "entry_points.txt").write_bytes(b"\xff\xfe[tlaot.kernels\n\x00=[[\ntlaot.kernels = pl_calm")
    announce(site, "~pl-calm-more", "1", pl_calm="pl_gone")
    (announce(site, "folder", "1") / "entry_points.txt").mkdir()
    os.mkfifo(announce(site, "pipe", "1") / "entry_points.txt")
    (site / "file-1.dist-info").write_text("")
    assert list(tlaot.load("pl_calm")) == ["add"]


def test_a_companion_has_the_name_of_its_package_in_its_own(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other distributions no file is read, however many there are."""
    write(site, "pl_named", add(1))
    for name in ("PL.Named_cuda", "x-plnamed", "pl-nam-ed"):
        announce(site, name, "1", pl_named="pl_gone")
    announce(site, "stranger", "1", pl_named="pl_gone")
    found = {companion.distribution for companion in companions.find_companions("pl_named")}
    assert found == {"pl-named-cuda", "x-plnamed", "pl-nam-ed"}
    read: list[str] = []
    monkeypatch.setattr(companions, "_read", lambda path: read.append(path) or b"")
    companions.find_companions("pl_named")
    assert len(read) == 3


def test_entry_points_are_read_as_importlib_reads_them(site: Path) -> None:
    """Of this environment and some more: the same names, values and distributions."""
    from importlib import metadata

    split_package(site, "pl_meta")
    info = announce(site, "pl-meta-odd", "2")
    (info / "entry_points.txt").write_text(
        "# no group\n[tlaot.kernels]\npl_meta=a.b\n  pl_metaodd = c : d [x]\n[z]\npl_meta=e"
    )
    found = {
        (c.package, c.value, c.distribution) for p in ("pl_meta", "pl_metaodd") for c in companions.find_companions(p)
    }
    theirs = metadata.entry_points(group="tlaot.kernels")
    assert found == {(e.name, e.module, companions.normal_name(e.dist.name)) for e in theirs if e.dist}
    assert companions.version_of("PL.meta_odd") == "2"
    assert companions.version_of("pytest") == metadata.version("pytest")
    assert companions.version_of("pl-not-there") is None


def test_nothing_found_says_where_it_was_looked_for(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's folder, companions, TLAOT_PATH or path."""
    (site / "pl_nothing").mkdir()
    (site / "pl_nothing" / "__init__.py").write_text("")
    monkeypatch.setenv("TLAOT_PATH", str(tmp_path))
    with pytest.raises(PackageError) as caught:
        tlaot.load("pl_nothing")
    for part in (str(site / "pl_nothing"), "group tlaot.kernels", f"TLAOT_PATH: {tmp_path}", "pip wheel ."):
        assert part in str(caught.value)
    with pytest.raises(PackageError, match=f"(?s)not installed.*TLAOT_PATH: {tmp_path}"):
        tlaot.load("pl_nowhere")


def test_content_that_another_variant_has_too(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded from where it is stored, and once; never from outside of the package."""
    import tvm_ffi

    one, binary = add(1, N=8)
    write(site, "pl_stored", (one, binary))
    folder = site / "pl_stored" / FOLDER
    manifest = loads((folder / "manifest.json").read_text())
    (own,) = manifest.kernels["add"].variants
    twin = dataclasses.replace(
        own,
        shape={"N": 9},
        path="add/llvm-x86-64/N9",
        params=tuple(tensor(p.name, 5, 8, written=p.written) for p in PARAMS),
        stored={"executable.so": f"{own.path}/executable.so"},
    )
    save(folder, manifest, own, twin)
    loaded: list[str] = []
    load_module = tvm_ffi.load_module
    monkeypatch.setattr(tvm_ffi, "load_module", lambda path: loaded.append(str(path)) or load_module(path))
    kernel = tlaot.load("pl_stored").add
    assert kernel(np.zeros((5, 8), "f4"), np.zeros((5, 8), "f4"))[0, 0] == 1
    assert call(kernel) == 6
    assert loaded == [str(folder / own.path / "executable.so")]
    for outside in ("../executable.so", "/executable.so", "add/../../x.so"):
        save(folder, manifest, own, dataclasses.replace(twin, stored={"executable.so": outside}))
        with pytest.raises(PackageError, match=r"has no executable\.so in this package"):
            tlaot.load("pl_stored").add(np.zeros((5, 8), "f4"), np.zeros((5, 8), "f4"))


def save(folder: Path, manifest: Manifest, *variants: Variant) -> None:
    changed = dataclasses.replace(manifest, kernels={"add": Kernel("add", variants)})
    (folder / "manifest.json").write_text(dumps(changed))


RUN = """
import numpy as np, sys, tlaot
kernels = tlaot.load(sys.argv[1])
a, b = np.full((4, 8), 2, "f4"), np.full((4, 8), 3, "f4")
print(kernels.add(a, b)[0, 0], kernels.mul(a, b)[0, 0])
"""


def run(package: str, *paths: Path, **environ: str) -> str:
    path = os.pathsep.join([*map(str, paths), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environ}
    done = subprocess.run([sys.executable, "-c", RUN, package], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_moved_renamed_read_only_and_duplicated(site: Path, tmp_path: Path) -> None:
    """A site-packages with a companion, in fresh processes."""
    split_package(site, "pl_moved")
    moved = tmp_path / "renamed-packages"
    shutil.copytree(site, moved)
    shutil.copytree(site, tmp_path / "copy")
    for path in [*moved.rglob("*"), moved]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        sys.path.remove(str(site))
        shutil.rmtree(site)
        assert run("pl_moved", moved) == "5.0 10.0"
        assert run("pl_moved", moved, tmp_path / "copy", moved) == "5.0 10.0"
        assert run("pl_moved", moved, TLAOT_PATH=str(tmp_path / "copy")) == "5.0 10.0"
        (tmp_path / "links").mkdir()
        for entry in moved.iterdir():
            (tmp_path / "links" / entry.name).symlink_to(entry)
        assert run("pl_moved", tmp_path / "links") == "5.0 10.0"
    finally:
        for path in [moved, *moved.rglob("*")]:
            path.chmod(0o755)


def test_commands_see_companions_too(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tlaot inspect and check of an installed package."""
    from tlaot.cli import main
    from tlaot.packaged import open_packaged

    split_package(site, "pl_shown")
    assert [sorted(p.manifest.kernels) for p in open_packaged("pl_shown")] == [["add", "mul"], ["mul"]]
    assert main(["inspect", "pl_shown"]) == 0
    assert "mul" in capsys.readouterr().out
    write(site, "pl_only_more", add(5, "mul"), of="pl_only")
    (site / "pl_only").mkdir()
    (site / "pl_only" / "__init__.py").write_text("")
    announce(site, "pl-only-more", "1", pl_only="pl_only_more")
    assert [sorted(p.manifest.kernels) for p in open_packaged("pl_only")] == [["mul"]]


def test_a_package_in_an_archive_with_a_companion_outside(site: Path, tmp_path: Path) -> None:
    """The archive's own kernels cannot be loaded, its companion's can."""
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("pl_zip/__init__.py", "raise AssertionError")
        out.writestr("pl_zip/_tlaot/manifest.json", "{}")
    sys.path.insert(0, str(archive))
    try:
        with pytest.raises(LoadError, match=r"packed\.zip"):
            tlaot.load("pl_zip")
        write(site, "pl_zip_more", add(5, "mul"), of="pl_zip")
        announce(site, "pl-zip-more", "1", pl_zip="pl_zip_more")
        assert call(tlaot.load("pl_zip").mul) == 10
    finally:
        sys.path.remove(str(archive))


def test_a_better_companion_is_told_of(
    site: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """A call that runs older code where a companion that is not installed has the device's own: said once, with the command."""
    write(site, "pl_better", add(target="cuda:sm_80"), project={"name": "pl-better", "version": "1.2"},
          companions={f"pl-better-{arch}": (f"cuda:{arch}",) for arch in ("sm_80", "sm_86", "sm_90a", "compute_80")})  # fmt: skip
    monkeypatch.setattr(device, "cuda_device", lambda ordinal: device.CudaDevice("NVIDIA A10", (8, 6), 72))
    monkeypatch.setattr(notes, "_said", {})
    kernels = tlaot.load("pl_better")
    better = places.companions_for(kernels._homes, (8, 6), "cuda:sm_80")
    assert better == {"pl-better-sm_86==1.2": ["cuda:sm_86"]}
    for _ in range(2):
        notes.say_once("pl_better.add", kernels.add.variants[0], 0, companions=better)
    (warning,) = recwarn.list
    assert str(warning.message) == (
        "pl_better.add: runs the code for cuda:sm_80 on NVIDIA A10; code made for it is in a companion that is not installed. "
        "Run: pip install pl-better-sm_86==1.2"
    )
