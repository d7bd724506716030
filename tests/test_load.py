"""Loading a package's kernels: where they are found, what is refused before the dynamic linker sees it."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, tensor, variant, write_package

import tlaot
from tlaot.errors import CallError, LoadError, PackageError
from tlaot.manifest import digest_of
from tlaot.runtime import binary
from tlaot.runtime import load as load_module

np = pytest.importorskip("numpy")

PARAMS = [tensor("A", 4, 8), tensor("B", 4, 8), tensor("C", 4, 8, written=True)]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes an importable package with kernels ``add`` and ``mul``; returns its folder."""

    def make(name: str, init: str = "raise AssertionError('the package was imported')") -> Path:
        kernels = {
            "add": [(variant("add", PARAMS, [2], {"N": 8}), compile_kernel(3, 0b100))],
            "mul": [(variant("mul", PARAMS, [2], {"N": 8}), compile_kernel(3, 0b100, label=5))],
        }
        write_package(tmp_path, name, kernels, init)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path / name

    return make


def arrays() -> tuple[Any, Any]:
    return np.full((4, 8), 2, "f4"), np.full((4, 8), 3, "f4")


def test_kernels_by_attribute_item_and_iteration(package: Callable[..., Path]) -> None:
    """Loading does not import the package; kernels are listed, and found under their names."""
    package("pk_names")
    kernels = tlaot.load("pk_names")
    assert "pk_names" not in sys.modules
    assert list(kernels) == ["add", "mul"]
    assert len(kernels) == 2
    assert "add" in kernels
    assert "sub" not in kernels
    assert kernels["add"] is kernels.add
    assert {"add", "mul"} <= set(dir(kernels))
    assert repr(kernels) == "<tlaot.Kernels of pk_names: add, mul>"
    assert repr(kernels.add) == (
        "<tlaot.Kernel pk_names.add(A: float32[4, 8], B: float32[4, 8]) -> C: float32[4, 8]; llvm:x86-64>"
    )
    assert kernels.add(*arrays())[0, 0] == 5
    assert kernels.mul(*arrays())[0, 0] == 10


def test_no_kernel_is_hidden_by_a_method() -> None:
    """The spec refuses the names that are methods of the set of kernels."""
    from tlaot.tune.specs.spec_file import _TAKEN

    methods = {name for name in vars(tlaot.Kernels) if not name.startswith("_")}
    assert methods == set(_TAKEN)


def test_an_unknown_kernel_is_met_with_the_nearest(package: Callable[..., Path]) -> None:
    """By attribute AttributeError, by item KeyError, as Python expects of each."""
    package("pk_unknown")
    kernels = tlaot.load("pk_unknown")
    with pytest.raises(AttributeError, match="did you mean 'add'"):
        _ = kernels.addd
    with pytest.raises(KeyError, match="it has add, mul"):
        _ = kernels["xyz"]
    assert not hasattr(kernels, "__array__")


def test_a_package_inside_packages_is_found_without_importing_any(tmp_path: Path, package: Callable[..., Path]) -> None:
    """``a.b`` in a regular package and in a namespace package."""
    for outer, init in (("pk_outer", True), ("pk_space", False)):
        (tmp_path / outer).mkdir()
        if init:
            (tmp_path / outer / "__init__.py").write_text("raise AssertionError")
        os.rename(package("inner"), tmp_path / outer / "inner")
        assert list(tlaot.load(f"{outer}.inner")) == ["add", "mul"]
        assert outer not in sys.modules


@pytest.mark.parametrize("name", ["", "a-b", "a..b", ".", 3, None, "../x"])
def test_what_is_no_package_name(name: Any) -> None:
    """Anything but dotted identifiers."""
    with pytest.raises(CallError, match="import name of a package"):
        tlaot.load(name)


def test_packages_without_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not installed; installed without kernels (with the version that is there); a module; an editable install."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PackageError, match="is not installed"):
        tlaot.load("pk_that_is_not_there")
    with pytest.raises(PackageError, match=r"(?s)pytest \d+\.\d+.*TLAOT_PATH: not set\n.*pip wheel \. -w dist"):
        tlaot.load("pytest")
    (tmp_path / "pk_module.py").write_text("")
    with pytest.raises(PackageError, match="is a single module"):
        tlaot.load("pk_module")
    (tmp_path / "pk_edit").mkdir()
    (tmp_path / "pk_edit" / "__init__.py").write_text("")
    info = tmp_path / "pk_edit-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pk-edit\nVersion: 1.2\n")
    (info / "top_level.txt").write_text("pk_edit\n")
    (info / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}')
    with pytest.raises(PackageError, match=r"(?s)pk-edit 1\.2, editable.*\nAn editable install packages no kernels"):
        tlaot.load("pk_edit")


def test_sources_that_hide_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks into the current folder first; whoever tries a wheel beside its sources is told so."""
    (tmp_path / "sources" / "pk_hidden").mkdir(parents=True)
    (tmp_path / "sources" / "pk_hidden" / "__init__.py").write_text("")
    info = tmp_path / "site" / "pk_hidden-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pk-hidden\nVersion: 1.2\n")
    (info / "top_level.txt").write_text("pk_hidden\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "sources"))
    with pytest.raises(PackageError, match=r"Build it where its tltune\.toml is"):
        tlaot.load("pk_hidden")  # an editable install, of which pip notes no more
    (tmp_path / "site" / "pk_hidden" / "_tlaot").mkdir(parents=True)
    (tmp_path / "site" / "pk_hidden" / "_tlaot" / "manifest.json").write_text("{}")
    with pytest.raises(PackageError) as caught:
        tlaot.load("pk_hidden")
    assert f"in place of the package in {tmp_path / 'site' / 'pk_hidden'}" in caught.value.remedy
    assert "run it from another folder" in caught.value.remedy


def test_a_package_in_a_zip_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shared library loads from an archive: said so, with the archive's name."""
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("pk_zipped/__init__.py", "")
        out.writestr("pk_zipped/_tlaot/manifest.json", "{}")
    monkeypatch.syspath_prepend(str(archive))
    with pytest.raises(LoadError, match=r"a\.zip"):
        tlaot.load("pk_zipped")


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def damage_headers(path: Path) -> None:
    """The ELF header alone is left: the dynamic linker would read past the end."""
    path.write_bytes(path.read_bytes()[:64])


def damage_remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [damage_flip, damage_cut, damage_empty, damage_grow, damage_headers, damage_remove])
def test_a_damaged_binary_never_reaches_the_dynamic_linker(
    package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    """PackageError with the file's path; the other kernel goes on working."""
    import tvm_ffi

    folder = package(f"pk_{damage.__name__}")
    binary = folder / "_tlaot" / "add" / "llvm-x86-64" / "N8" / "executable.so"
    damage(binary)
    loaded: list[str] = []
    load = tvm_ffi.load_module
    monkeypatch.setattr(tvm_ffi, "load_module", lambda path: loaded.append(str(path)) or load(path))
    kernels = tlaot.load(folder.name)
    for _ in range(2):
        with pytest.raises(PackageError, match=str(binary)):
            kernels.add(*arrays())
    assert not loaded
    assert kernels.mul(*arrays())[0, 0] == 10


def test_a_damaged_manifest(package: Callable[..., Path]) -> None:
    """Refused at load, with its path."""
    folder = package("pk_manifest")
    path = folder / "_tlaot" / "manifest.json"
    path.write_text(path.read_text().replace("float32", "float64", 1))
    with pytest.raises(PackageError, match="does not match its own digest"):
        tlaot.load("pk_manifest")


def test_a_file_that_is_no_library_is_a_load_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was packaged but the dynamic linker refuses (another system's): LoadError, not a crash."""
    write_package(tmp_path, "pk_alien", {"add": [(variant("add", PARAMS, [2], {}), b"\x7fELF of another machine")]})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(LoadError, match=r"executable\.so"):
        tlaot.load("pk_alien").add(*arrays())


@pytest.mark.parametrize("path", ["/abs", "../out", "a/../../out"])
def test_a_manifest_cannot_point_out_of_its_folder(tmp_path: Path, path: str) -> None:
    """A path of a variant is inside the package, or an error."""
    import dataclasses

    from tlaot.manifest import Kernel, Manifest, digest_of

    one = dataclasses.replace(variant("add", PARAMS, [2], {}), path=path, files={"executable.so": digest_of(b"")})
    kernels = load_module.open_manifest(Manifest("p", {"add": Kernel("add", (one,))}, "0"), tmp_path)
    with pytest.raises(PackageError, match="in this package"):
        kernels.add(*arrays())


def test_loads_lazily_and_once_from_many_threads(package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No binary is loaded before a call; sixteen threads calling at once load it once, and all get it right."""
    import tvm_ffi

    package("pk_threads")
    loaded: list[str] = []
    load = tvm_ffi.load_module
    monkeypatch.setattr(tvm_ffi, "load_module", lambda path: loaded.append(str(path)) or load(path))
    kernels = tlaot.load("pk_threads")
    assert not loaded
    barrier = threading.Barrier(16)
    results: list[float] = []

    def work() -> None:
        a, b = arrays()
        barrier.wait()
        for _ in range(50):
            results.append(float(kernels.add(a, b).sum()))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [5 * 32] * (16 * 50)
    assert len(loaded) == 1


def _call_in_child(kernels: Any, queue: Any) -> None:
    a, b = arrays()
    queue.put((float(kernels.add(a, b)[0, 0]), float(kernels.mul(a, b)[0, 0])))


def test_after_fork(package: Callable[..., Path]) -> None:
    """A kernel that the parent had loaded and one that it had not both run in a forked child."""
    package("pk_fork")
    kernels = tlaot.load("pk_fork")
    kernels.add(*arrays())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_call_in_child, args=(kernels, queue))
    child.start()
    assert queue.get(timeout=60) == (5, 10)
    child.join(60)
    assert child.exitcode == 0


def test_fork_while_another_thread_loads(package: Callable[..., Path]) -> None:
    """The lock that a thread of the parent held does not stop the child."""
    package("pk_fork_lock")
    kernels = tlaot.load("pk_fork_lock")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with binary.loading():
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)
    child = context.Process(target=_call_in_child, args=(kernels, queue))
    child.start()
    try:
        assert queue.get(timeout=60) == (5, 10)
    finally:
        done.set()
        thread.join()
        child.kill()


def test_read_only_and_moved(package: Callable[..., Path], tmp_path: Path) -> None:
    """On a read-only folder, with no home and no temporary folder to write to, and after being moved elsewhere."""
    folder = package("pk_moved", init="")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    os.rename(folder, moved / "pk_moved")
    before = {p: p.stat().st_mtime_ns for p in moved.rglob("*")}
    for path in [*moved.rglob("*"), moved]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    code = (
        "import numpy as np, tlaot; k = tlaot.load('pk_moved'); a = np.ones((4, 8), 'f4');"
        "assert k.add(a, a)[0, 0] == 2; assert k.mul(a, a)[0, 0] == 7"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(moved), *filter(None, sys.path)]), "HOME": "/nonexistent",
           "TMPDIR": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    as_another = {"user": 65534} if os.geteuid() == 0 and _readable_by_others(tmp_path) else {}
    try:
        subprocess.run([sys.executable, "-c", code], env=env, cwd="/", check=True, timeout=120, **as_another)
        assert {p: p.stat().st_mtime_ns for p in moved.rglob("*")} == before
    finally:
        for path in [moved, *moved.rglob("*")]:
            path.chmod(0o755)


def _readable_by_others(path: Path) -> bool:
    places = [*path.parents, Path(sys.executable), *Path(sys.executable).parents, Path(tlaot.__file__).parent]
    return all(p.stat().st_mode & 0o005 == 0o005 for p in places)


def test_a_library_that_was_replaced_under_this_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "executable.so"
    path.write_bytes(b"new")
    binary._loaded[str(path)] = digest_of(b"old")
    with pytest.raises(LoadError, match="was replaced while this process"):
        binary.load_function(path, digest_of(b"new"))


def test_kernels_can_be_copied_and_pickled_after_a_call(package: Callable[..., Path]) -> None:
    package("pk_copied", init="")
    kernels = tlaot.load("pk_copied")
    a, b = arrays()
    kernels.add(a, b)
    for made in (copy.deepcopy(kernels), pickle.loads(pickle.dumps(kernels))):
        assert (made.add(a, b) == kernels.add(a, b)).all()
    assert (pickle.loads(pickle.dumps(kernels.mul))(a, b) == kernels.mul(a, b)).all()


def test_a_fork_during_the_first_call_leaves_the_child_able_to_call(package: Callable[..., Path]) -> None:
    """The first call imports tvm_ffi, under locks of the import system that a child would inherit."""
    folder = package("pk_forked", init="")
    code = """
import os, sys, threading, time
import numpy as np
import tlaot
a, b = np.ones((4, 8), "f4"), np.ones((4, 8), "f4")
kernels = tlaot.load("pk_forked")
thread = threading.Thread(target=lambda: kernels.add(a, b))
thread.start()
time.sleep(float(sys.argv[1]))
pid = os.fork()
if pid == 0:
    kernels.add(a, b)
    os._exit(0)
thread.join()
for _ in range(400):
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.05)
os.kill(pid, 9)
sys.exit("the child hangs")
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), *filter(None, sys.path)])}
    for delay in ("0", "0.005", "0.02", "0.1"):
        subprocess.run([sys.executable, "-c", code, delay], check=True, timeout=60, env=environ)


def test_a_name_that_is_no_string_is_a_key_error(package: Callable[..., Path]) -> None:
    package("pk_keys", init="")
    for key in (None, 1):
        with pytest.raises(KeyError):
            tlaot.load("pk_keys")[key]  # type: ignore[index]
