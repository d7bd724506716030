"""The C++ headers: packaged kernels called by programs that have no Python, and every way to go wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from build_settings import Settings
from conftest import has_distribution
from cpp_programs import build_embedded, flags
from fixtures_runtime import FLOAT32, compile_kernel, scalar, tensor, variant, write_package

from tlaot.cli import main
from tlaot.manifest import (
    BUCKETS_VERSION,
    FORMAT_VERSION,
    Bucket,
    Kernel,
    Manifest,
    Param,
    Variant,
    digest_of,
    dumps,
    variant_dumps,
)
from tlaot.target import read_target

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).parent / "cpp"

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


@dataclasses.dataclass(frozen=True)
class Driver:
    """The test program, linked and as a plug-in; see cpp/driver.cc for its arguments."""

    folder: Path

    def run(
        self, *arguments: str | Path, plugin: bool = False, cwd: Path | None = None, **environ: str
    ) -> tuple[int, str]:
        done = subprocess.run(
            [str(self.folder / ("loads" if plugin else "linked")), *map(str, arguments)],
            # No Python, and nothing of this environment, but what the flags put into the program.
            env={"PLUGIN": str(self.folder / "libdriver.so"), **environ},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode in (0, 1), (done.returncode, done.stdout, done.stderr)
        return done.returncode, done.stdout.strip()

    def good(self, *arguments: str | Path, **options: Path | None) -> list[float]:
        status, said = self.run(*arguments, cwd=options.get("cwd"))
        assert status == 0, said
        return [float(word) for word in said.split()]

    def refused(self, *arguments: str | Path, **environ: str) -> tuple[str, str]:
        """The kind and the text of the error."""
        status, said = self.run(*arguments, **environ)
        assert status == 1, said
        kind, _, text = said.partition("\n")
        return kind, text


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libdriver.so"
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    sources = [[str(HERE / "driver.cc"), "-shared", "-fPIC", "-fvisibility=hidden", "-O1", *strict]]
    subprocess.run(["g++", *flags("--cxxflags"), *sources[0], *flags("--ldflags"), "-o", str(library)], check=True)
    plain = ["gcc", "-Wall", "-Werror", str(HERE / "main.c")]
    subprocess.run([*plain, str(library), f"-Wl,-rpath,{folder}", "-o", str(folder / "linked")], check=True)
    subprocess.run([*plain, "-DPLUGIN", "-ldl", "-o", str(folder / "loads")], check=True)
    return Driver(folder)


def add(*sizes: int | str, label: int = 0, align: int = 1, **rest: object) -> tuple[Variant, bytes]:
    """C = A + B + label."""
    params = [tensor(name, *sizes, align=align, written=name == "C") for name in "ABC"]
    shape = rest.pop("shape", {"M": sizes[0], "N": sizes[1]})
    one = variant("add", params, [2], shape, **rest)  # type: ignore[arg-type]
    return one, compile_kernel(3, 0b100, label=label, align=align, dtype=FLOAT32)


T48 = ["float32:4,8"] * 3


def test_the_header_knows_the_format_of_the_manifest() -> None:
    """Written in both languages."""
    text = (ROOT / "tlaot" / "include" / "tlaot" / "function.h").read_text()
    assert re.search(r"kFormat = (\d+);", text)[1] == str(FORMAT_VERSION)  # type: ignore[index]
    assert re.search(r"kBucketsFormat = (\d+);", text)[1] == str(BUCKETS_VERSION)  # type: ignore[index]


def test_a_call_runs_the_variant_of_its_shapes(driver: Driver, tmp_path: Path) -> None:
    """Of the package's folder, or of the one with the manifest."""
    write_package(tmp_path, "pkg", {"add": [add(4, 8), add(4, 9, label=7)]})
    for folder in (tmp_path / "pkg", tmp_path / "pkg" / "_tlaot"):
        assert driver.good("package", folder, "add", "-", *T48) == [32, 32, 64]
        assert driver.good("package", folder, "add", "-", *["float32:4,9"] * 3) == [36, 36, 36 * 9]
    assert driver.run("names", tmp_path / "pkg") == (0, "add")


def test_what_fits_no_variant_is_refused_with_each_reason(driver: Driver, tmp_path: Path) -> None:
    """Shape, dtype, number, device: as in Python, before anything is loaded."""
    write_package(tmp_path, "pkg", {"add": [add(4, 8), add(4, 9)]})
    at = ("package", tmp_path / "pkg", "add", "-")
    kind, text = driver.refused(*at, "float32:4,8", "float32:4,7", "float32:4,8")
    assert kind == "DispatchError"
    assert text.splitlines() == [
        "pkg.add: no packaged variant fits (float32(4, 8), float32(4, 7), float32(4, 8)) on cpu",
        "  llvm:x86-64 {M=4, N=8}: argument 1 (B) has shape (4, 7), expected (4, 8)",
        "  llvm:x86-64 {M=4, N=9}: argument 0 (A) has shape (4, 8), expected (4, 9)",
        "Add the shape to tltune.toml and build the package again, or change the call.",
    ]
    assert "argument 2 (C) has dtype float64, expected float32" in driver.refused(*at, *T48[:2], "float64:4,8")[1]
    assert "has shape (32), expected (4, 8)" in driver.refused(*at, *T48[:2], "float32:32")[1]
    assert "argument 1 (B) is no tensor, expected float32(4, 8)" in driver.refused(*at, T48[0], "3", T48[0])[1]
    assert "takes 3 arguments, outputs included" in driver.refused(*at, *T48[:2])[1]
    assert "is for the CPU" in driver.refused(*at, *["cuda:" + one for one in T48])[1]
    kind, text = driver.refused(*at, T48[0], "cuda:float32:4,8", T48[0])
    assert (kind, text.splitlines()[0]) == ("CallError", "pkg.add: argument 1 is on cuda:0, argument 0 on cpu")
    assert driver.refused(*at, "1", "2")[1].startswith("pkg.add: no argument is a tensor")
    kind, text = driver.refused("package", tmp_path / "pkg", "sub", "-", *T48)
    assert (kind, text) == ("PackageError", "pkg: has no kernel sub; it has add")


def test_the_kernels_own_checks_come_through(driver: Driver, tmp_path: Path) -> None:
    """What only the binary sees: a misaligned address, strides of a compact kernel."""
    write_package(tmp_path, "pkg", {"add": [add(4, 8, align=16)]})
    kind, text = driver.refused("package", tmp_path / "pkg", "add", "-", "odd:float32:4,8", *T48[:2])
    assert (kind, text) == ("ValueError", "elementwise: argument 0: is not aligned")
    kind, text = driver.refused("package", tmp_path / "pkg", "add", "-", "float32:4,8:1,4", *T48[:2])
    assert (kind, text) == ("ValueError", "elementwise: argument 0: is not compact")


def test_memory_behind_a_pointer_to_const_is_not_written(driver: Driver, tmp_path: Path) -> None:
    write_package(tmp_path, "pkg", {"add": [add(4, 8)]})
    at = ("package", tmp_path / "pkg", "add", "-")
    assert driver.good(*at, "const:float32:4,8", "const:float32:4,8", "float32:4,8") == [32, 32, 64]
    kind, text = driver.refused(*at, *T48[:2], "const:float32:4,8")
    assert kind == "CallError"
    assert text.startswith("pkg.add: argument 2 (C) is read-only, and the kernel writes it")


def test_symbolic_sizes_strides_and_scalars(driver: Driver, tmp_path: Path) -> None:
    """Bound at first use; an exact variant goes before a symbolic one; strides in the manifest are compared."""
    scaled = [tensor("X", "m"), scalar("s"), tensor("Y", "m", written=True)]
    turned = [Param("X", "float32", ("m", 4), ("s", 1)), tensor("Y", "m", 4, written=True)]
    kernels = {
        "add": [add("m", 8, shape={"N": 8}), add(4, 8, label=5)],
        "scale": [(variant("scale", scaled, [2], {}), compile_kernel(3, 0b100))],
        "turned": [(variant("turned", turned, [1], {}), compile_kernel(2, 0b10))],
    }
    write_package(tmp_path, "pkg", kernels)
    folder = tmp_path / "pkg"
    assert driver.good("package", folder, "add", "-", *["float32:3,8"] * 3) == [24, 24, 48]
    assert driver.good("package", folder, "add", "-", *T48) == [32, 32, 64 + 5 * 32]
    assert (
        "expected (m, 8)"
        in driver.refused("package", folder, "add", "-", "float32:3,8", "float32:2,8", "float32:3,8")[1]
    )
    assert driver.good("package", folder, "scale", "-", "float32:6", "2.5", "float32:6") == [6, 15]
    assert driver.good("package", folder, "scale", "-", "float32:6", "3", "float32:6") == [6, 18]
    assert driver.good("package", folder, "add", "-", *["float32:0,8"] * 3) == [0, 0, 0]
    text = driver.refused("package", folder, "scale", "-", "float32:6", "true", "float32:6")[1]
    assert "argument 1 (s) is a number of another kind, expected float32" in text
    assert driver.good("package", folder, "turned", "-", "float32:3,4", "float32:3,4") == [12, 12]
    text = driver.refused("package", folder, "turned", "-", "float32:3,4:1,3", "float32:3,4")[1]
    assert "argument 0 (X) has strides (1, 3), expected (s, 1)" in text


def test_ranges_of_sizes(driver: Driver, tmp_path: Path) -> None:
    """Two variants share the sizes of one dimension; an exact one goes before both, other sizes and none are refused or empty."""
    shape = {"M": "m", "N": 8}
    parts = []
    for part, ranges in enumerate(([(1, 2), (5, 6)], [(3, 4)])):
        one, data = add("m", 8, shape=shape, label=10 + part)
        buckets = tuple(Bucket({"m": ends}) for ends in ranges)
        parts.append((dataclasses.replace(one, path=f"{one.path}/{part}", buckets=buckets), data))
    write_package(tmp_path, "pkg", {"add": [*parts, add(4, 8, label=1)]})
    at = ("package", tmp_path / "pkg", "add", "-")
    for rows, label in ((1, 10), (2, 10), (3, 11), (4, 1), (5, 10), (6, 10)):
        total = 8 * rows
        assert driver.good(*at, *[f"float32:{rows},8"] * 3) == [total, total, 2 * total + label * total]
    assert driver.good(*at, *["float32:0,8"] * 3) == [0, 0, 0]
    kind, text = driver.refused(*at, *["float32:7,8"] * 3)
    assert kind == "DispatchError" and "is not for these sizes of its dynamic dimensions" in text


def test_factory_arguments(driver: Driver, tmp_path: Path) -> None:
    """Bound once; kinds are told apart; several workloads that remain are an error, unless they share a binary."""
    kernels = {
        "add": [add(4, 8, shape=shape, label=i) for i, shape in enumerate(({"causal": True}, {"causal": False}))],
        "mode": [
            (dataclasses.replace(one, path=f"mode/{i}", shape=shape), data)
            for i, (shape, (one, data)) in enumerate(
                ({"mode": "a", "n": 1}, add(4, 8, label=i)) if i == 0 else ({"mode": "b", "n": 1.5}, add(4, 8, label=i))
                for i in range(2)
            )
        ],
        "same": [(dataclasses.replace(add(4, 8)[0], path=f"same/{i}", shape={"i": i}), add(4, 8)[1]) for i in range(2)],
    }
    write_package(tmp_path, "pkg", kernels)
    at = ("package", tmp_path / "pkg")
    assert driver.good(*at, "add", "causal=true", *T48) == [32, 32, 64]
    assert driver.good(*at, "add", "causal=false", *T48) == [32, 32, 96]
    assert driver.good(*at, "mode", "mode='b'", *T48) == [32, 32, 96]
    assert driver.good(*at, "mode", "mode='a',n=1", *T48) == [32, 32, 64]
    assert driver.good(*at, "mode", "n=1.5", *T48) == [32, 32, 96]
    assert driver.good(*at, "same", "-", *T48) == [32, 32, 64]
    kind, text = driver.refused(*at, "add", "-", *T48)
    assert kind == "CallError"
    assert "several packaged workloads take these tensors: {causal=false} and {causal=true}\nSay which" in text
    assert driver.refused(*at, "add", "causal=1", *T48)[0] == "DispatchError"
    assert driver.refused(*at, "add", "casual=true", *T48)[1] == "pkg.add: unknown factory argument 'casual'"


def test_the_best_level_that_the_processor_runs(driver: Driver, tmp_path: Path) -> None:
    """The binary says the processor's level; a level above it is refused."""
    levels = {"x86-64": 1, "x86-64-v2": 2, "x86-64-v3": 3}
    built = []
    for name, label in levels.items():
        one, _ = add(4, 8, target=f"llvm:{name}")
        built.append((one, compile_kernel(3, 0b100, level=2, label=label)))
    write_package(tmp_path, "pkg", {"add": built})
    assert driver.good("package", tmp_path / "pkg", "add", "-", *T48) == [32, 32, 64 + 2 * 32]
    write_package(tmp_path, "high", {"add": built[2:]})
    kind, text = driver.refused("package", tmp_path / "high", "add", "-", *T48)
    assert kind == "DispatchError"
    assert "needs a processor of a higher level, this one has x86-64-v2" in text


def test_several_folders_are_one_package(driver: Driver, tmp_path: Path) -> None:
    """As a main package and its companion; two claims to one variant are an error."""
    write_package(tmp_path, "pkg", {"add": [add(4, 8)]})
    write_package(tmp_path / "companion", "pkg", {"add": [add(4, 9, label=1)]})
    both = f"{tmp_path / 'pkg'}:{tmp_path / 'companion' / 'pkg'}"
    assert driver.good("package", both, "add", "-", *T48) == [32, 32, 64]
    assert driver.good("package", both, "add", "-", *["float32:4,9"] * 3) == [36, 36, 36 * 3]
    kind, text = driver.refused("package", f"{tmp_path / 'pkg'}:{tmp_path / 'pkg'}", "add", "-", *T48)
    assert kind == "PackageError"
    assert "add for llvm:x86-64 {M=4, N=8} is also in" in text


def _executable(root: Path) -> Path:
    return next(root.rglob("executable.so"))


def test_a_damaged_package(driver: Driver, tmp_path: Path) -> None:
    """Nothing but the packaged bytes reaches the dynamic linker; a manifest that is not whole is named."""
    at = ("package", tmp_path / "pkg", "add", "-", *T48)
    manifest = tmp_path / "pkg" / "_tlaot" / "manifest.json"

    def refused(change: str, data: bytes | None, name: str = "manifest") -> None:
        write_package(tmp_path, "pkg", {"add": [add(4, 8)]})
        assert driver.good(*at) == [32, 32, 64]
        path = manifest if name == "manifest" else _executable(tmp_path)
        path.unlink() if data is None else path.write_bytes(data)
        kind, text = driver.refused(*at)
        assert kind == "PackageError", text
        assert text.startswith(str(path)), text
        assert change in text

    write_package(tmp_path, "pkg", {"add": [add(4, 8)]})
    whole, binary = manifest.read_bytes(), _executable(tmp_path).read_bytes()
    refused("is not the one that was packaged", binary[:-1] + b"!", "binary")
    refused("is not the one that was packaged", binary[:100], "binary")
    refused("a packaged file cannot be read (No such file", None, "binary")
    refused("the kernel manifest cannot be read (No such file", None)
    refused("is damaged: expected valid JSON", whole[:-30])
    refused("is damaged: expected valid JSON", b"[" * 100000)
    refused("is damaged: expected valid JSON", b"")
    refused("does not match its own digest", whole.replace(b'"align":1', b'"align":2', 1))
    refused("does not match its own digest", whole.replace(b"x86-64", b"x86\\u002d64", 1))
    newer = json.loads(whole) | {"format": BUCKETS_VERSION + 1}
    refused(
        f"has format {BUCKETS_VERSION + 1}, this tlaot.h reads formats {FORMAT_VERSION} and {BUCKETS_VERSION}\nCompile",
        json.dumps(newer).encode(),
    )
    refused("is damaged: expected format", b"{}")


def test_an_element_type_that_this_header_does_not_know(driver: Driver, tmp_path: Path) -> None:
    params = [tensor("X", 4, dtype="float5_unheard_of"), tensor("Y", 4, written=True)]
    write_package(tmp_path, "pkg", {"k": [(variant("k", params, [1], {}), compile_kernel(2, 0b10))]})
    kind, text = driver.refused("package", tmp_path / "pkg", "k", "-", "float32:4", "float32:4")
    assert kind == "PackageError"
    assert "lacks an element type that is known here, not float5_unheard_of" in text


def test_a_manifest_that_names_files_elsewhere(driver: Driver, tmp_path: Path) -> None:
    one, data = add(4, 8)
    write_package(tmp_path, "other", {"add": [(one, data)]})
    for place in ("../../other/_tlaot/", f"{tmp_path}/other/_tlaot/"):
        files = {"executable.so": digest_of(data)}
        outside = dataclasses.replace(one, stored={"executable.so": f"{place}{one.path}/executable.so"}, files=files)
        folder = tmp_path / "pkg" / "_tlaot"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(dumps(Manifest("pkg", {"add": Kernel("add", (outside,))}, "0")))
        kind, text = driver.refused("package", tmp_path / "pkg", "add", "-", *T48)
        assert kind == "PackageError"
        assert f"names a file outside of the package: {place}" in text


def test_text_beyond_ascii_and_a_file_that_two_variants_share(driver: Driver, tmp_path: Path) -> None:
    """Escapes of JSON, surrogate pairs among them; `stored`."""
    one, data = add(4, 8, shape={"mode": 'é "😀" \\ \n'})
    two = dataclasses.replace(
        one, path="add/elsewhere", shape={"mode": "b"}, stored={"executable.so": f"{one.path}/executable.so"}
    )
    manifest = write_package(tmp_path, "pkg", {"add": [(one, data), (two, data)]})
    shutil.rmtree(tmp_path / "pkg" / "_tlaot" / "add" / "elsewhere")
    assert manifest.kernels["add"].variants[1].stored
    at = ("package", tmp_path / "pkg", "add")
    assert driver.good(*at, "mode='é \"😀\" \\ \n'", *T48) == [32, 32, 64]
    assert driver.good(*at, "mode='b'", *T48) == [32, 32, 64]


def test_one_executable_by_path(driver: Driver, tmp_path: Path) -> None:
    """With the entry beside it its digest is checked; without, what the linker refuses is told."""
    one, data = add(4, 8)
    path = tmp_path / "executable.so"
    path.write_bytes(data)
    assert driver.good("function", path, *T48) == [32, 32, 64]
    assert driver.good("function", "executable.so", *T48, cwd=tmp_path) == [32, 32, 64]
    kind, text = driver.refused("function", path, "float32:4,8", "float64:4,8", "float32:4,8")
    assert (kind, text) == ("ValueError", "elementwise: argument 1: has another dtype")
    kind, text = driver.refused("function", path, *T48[:2])
    assert (kind, text) == ("TypeError", "elementwise: argument 2: wrong number of arguments")
    sealed = dataclasses.replace(one, files={"executable.so": digest_of(data)})
    (tmp_path / "variant.json").write_text(variant_dumps("add", sealed))
    assert driver.good("function", path, *T48) == [32, 32, 64]
    path.write_bytes(data + b"!")
    assert driver.refused("function", path, *T48)[0] == "PackageError"
    (tmp_path / "variant.json").unlink()
    path.write_bytes(b"not an ELF file")
    kind, text = driver.refused("function", path, *T48)
    assert kind == "LoadError"
    assert "cannot be loaded" in text
    assert driver.refused("function", tmp_path / "nowhere.so", *T48)[0] == "PackageError"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(path)], check=True)
    kind, text = driver.refused("function", path, *T48)
    assert kind == "LoadError"
    assert "has no symbol __tvm_ffi_tlaot_call: it is no kernel of tlaot" in text


def test_a_plug_in_with_the_ffi_in_a_scope_of_its_own(driver: Driver, tmp_path: Path) -> None:
    """executable.so finds the FFI's symbols there too, and errors come through."""
    write_package(tmp_path, "pkg", {"add": [add(4, 8)]})
    at = ("package", tmp_path / "pkg", "add", "-")
    assert driver.run(*at, *T48, plugin=True) == (0, "32 32 64")
    status, said = driver.run(*at, *T48[:2], "float32:4,8:1,4", plugin=True)
    assert (status, said) == (1, "ValueError\nelementwise: argument 2: is not compact")


def test_threads_begin_with_the_first_call_together(driver: Driver, tmp_path: Path) -> None:
    write_package(tmp_path, "pkg", {"add": [add(4, 8), add(4, 9)]})
    assert driver.run("threads", tmp_path / "pkg", "add", "8", "500", *T48) == (0, "0 wrong")


def test_a_stream_holds_in_its_scope(driver: Driver) -> None:
    assert driver.run("stream") == (0, "1 1")


def test_what_runs_where_is_what_python_says(driver: Driver) -> None:
    """The rules of target.py are written again in target.h: every target on every device."""
    numbers = [(m, n) for m, n in ((5, 3), (7, 2), (7, 5), (8, 0), (8, 6), (8, 7), (8, 8), (8, 9), (9, 0))]
    numbers += [(10, 0), (10, 1), (10, 3), (10, 7), (11, 0), (12, 0), (12, 1)]
    texts = [f"cuda:{kind}_{m}{n}" for kind in ("sm", "compute") for m, n in numbers]
    texts += [f"cuda:{kind}_{m}{n}a" for kind in ("sm", "compute") for m, n in numbers if m >= 9]
    texts += [f"cuda:sm_{m}{n}f" for m, n in numbers if m >= 10]
    status, said = driver.run("targets", ",".join(texts), ",".join(f"{m}.{n}" for m, n in numbers))
    assert status == 0
    rows = [line.split() for line in said.splitlines()]
    assert len(rows) == len(texts) * len(numbers)
    for text, device, runs, *preference in rows:
        target, capability = read_target(text), tuple(map(int, device.split(".")))
        assert bool(int(runs)) == target.runs_on(capability), (text, device)  # type: ignore[arg-type]
        assert tuple(map(int, preference)) == tuple(map(int, target.preference(capability))), (text, device)  # type: ignore[arg-type]


def test_a_cuda_device_is_asked_of_the_driver(driver: Driver, tmp_path: Path) -> None:
    """With a driver that only answers: what runs there reaches its binary, which here is one for the CPU and says so."""
    driver_source = HERE.parent / "native_fixture" / "libcuda.c"
    subprocess.run(["gcc", "-shared", "-fPIC", str(driver_source), "-o", str(tmp_path / "libcuda.so.1")], check=True)
    here = {"LD_LIBRARY_PATH": str(tmp_path), "LIBCUDA_DEVICES": "8.6:82"}
    on_gpu = ["cuda:" + one for one in T48]
    for name, targets in {
        "fits": ["cuda:sm_80", "cuda:sm_90a"],
        "ptx": ["cuda:compute_80"],
        "none": ["cuda:sm_90a"],
    }.items():
        write_package(tmp_path, name, {"add": [add(4, 8, target=target) for target in targets]})
    at = ("add", "-", *on_gpu)
    for name in ("fits", "ptx"):
        kind, text = driver.refused("package", tmp_path / name, *at, **here)
        assert (kind, text) == ("ValueError", "elementwise: argument 0: is not on the CPU")
    kind, text = driver.refused("package", tmp_path / "ptx", *at, **here, TLAOT_PTX="0")
    assert kind == "DispatchError"
    assert "cuda:compute_80 {M=4, N=8}: is PTX, which TLAOT_PTX=0 forbids" in text
    kind, text = driver.refused("package", tmp_path / "none", *at, **here)
    assert kind == "DispatchError"
    assert "cuda:sm_90a {M=4, N=8}: does not run on compute capability 8.6" in text
    kind, text = driver.refused("package", tmp_path / "fits", *at, **{**here, "CUDA_VISIBLE_DEVICES": ""})
    assert (kind, text.splitlines()[0]) == ("LoadError", "cuda:0: the CUDA driver answers error 101")
    kind, text = driver.refused("package", tmp_path / "fits", "add", "-", *T48)
    assert kind == "DispatchError"
    assert text.endswith(
        "Nothing is packaged for this device: move the tensors, or add a target to tltune.toml and build again."
    )


def test_include_names_the_headers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["include"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "tlaot" / "tlaot.h").is_file()


def test_the_example_with_a_kernel_packaged_here(tmp_path: Path) -> None:
    """The sample's softmax, tuned and packaged by this test, called by examples/cpp as its Makefile builds it."""
    pytest.importorskip("numpy")
    if not has_distribution("apache-tvm"):
        pytest.skip("needs apache-tvm")
    from tlaot.tune.pipeline import build_package

    lines: list[str] = []
    (tmp_path / "tltune.toml").write_text(
        '[tlaot]\npackage = "sample_pkg"\ntargets = ["llvm:x86-64-v2"]\n[[kernel]]\nname = "softmax"\nfrontend = "tvm"\n'
        'factory = "sample_pkg.cpu:softmax"\nshapes = [{ M = 24, N = 40 }]\nconfigs = [{ rows = 4, lanes = 4 }]\n'
        'out-idx = [-1]\nreference = "sample_pkg.reference:softmax"\natol = 1e-6\nprofile = { warmup = 1, rep = 1 }\n'
    )
    build_package(tmp_path / "tltune.toml", ROOT, tmp_path / "pkg" / "_tlaot", Settings(jobs=1), lines.append)
    shutil.copytree(ROOT / "examples" / "cpp", tmp_path / "cpp", ignore=shutil.ignore_patterns("build", "softmax"))
    subprocess.run(
        ["make", f"TLAOT={sys.executable} -m tlaot.cli", "CXXFLAGS=-O0 -Wall -Wextra -Werror"],
        cwd=tmp_path / "cpp",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
    )
    program = [str(tmp_path / "cpp" / "softmax"), str(tmp_path / "pkg")]
    done = subprocess.run([*program, "24", "40"], env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 threads: the same result" in done.stdout
    done = subprocess.run([*program, "24", "41"], env={}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "DispatchError: sample_pkg.softmax: no packaged variant fits (float32(24, 41)" in done.stderr


def test_in_a_process_that_has_python(tmp_path: Path) -> None:
    """A C++ library under Python finds the FFI that Python loaded, and shares its binaries."""
    np = pytest.importorskip("numpy")
    import tvm_ffi  # noqa: F401

    params = [tensor("X", 4, 8), tensor("Y", 4, 8, written=True)]
    write_package(tmp_path, "pkg", {"copy": [(variant("copy", params, [1], {}), compile_kernel(2, 0b10, label=1))]})
    call = build_embedded(tmp_path)
    x, y = np.ones((4, 8), "f4"), np.zeros((4, 8), "f4")
    assert call(tmp_path / "pkg", "copy", x.ctypes.data, y.ctypes.data, "float32", 4, 8) == ""
    assert y.sum() == 64
    said = call(tmp_path / "pkg", "copy", x.ctypes.data, y.ctypes.data, "float32", 8, 4)
    assert said.startswith("DispatchError: pkg.copy: no packaged variant fits")
