"""NVRTC in nvcc's place: what goes to it, what it makes, and what happens where it refuses or breaks."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tlaot.errors import BuildError, SpecError
from tlaot.target import parse_target
from tlaot.tune import nvrtc
from tlaot.tune.toolchain import CudaCompiler, compile_cuda, find_nvcc

ROOT = Path(__file__).resolve().parents[1]
TARGET = parse_target("cuda:sm_90a")
SOURCE = """
#include <cuda_fp16.h>
#define TWICE 2
namespace settings { constexpr int unused_by_all = 3; constexpr float factor = 1.5f; }

extern "C" __global__ void scale(const __half *a, float *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) b[i] = __half2float(a[i]) * TWICE * settings::factor;
}
"""


@pytest.fixture(scope="module")
def compiler() -> CudaCompiler:
    try:
        found = find_nvcc(os.environ)
    except BuildError as error:
        pytest.skip(str(error))
    if not found.nvrtc:
        pytest.skip(f"no NVRTC of release {found.version} is installed (pip install nvidia-cuda-nvrtc)")
    return found


@pytest.fixture(scope="module")
def nvcc() -> CudaCompiler:
    try:
        return find_nvcc({**os.environ, "TLAOT_NVRTC": "0"})
    except BuildError as error:
        pytest.skip(str(error))


def in_a_process(script: str, *arguments: object, timeout: float = 300) -> list[dict[str, Any]]:
    """Run Python in a fresh process; the JSON values that it printed, a line each."""
    head = "import json, os, sys, time\nfrom pathlib import Path\nfrom test_nvrtc import *\n"
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", head + script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def fork(work: Any) -> int:
    """Run work in a forked child; how the child ended."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            faulthandler.disable()
            work()
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitpid(pid, 0)[1]


def compile_and_say(scratch: Path, headers: Path | None, source: str = SOURCE) -> None:
    """Compile, and print what came out."""
    cubin = compile_cuda(source, TARGET, (), scratch, 120, find_nvcc(os.environ), headers=headers)
    used = [word for word in ("creating", "using") if f"{word} precompiled header" in cubin.log]
    print(json.dumps({"data": cubin.data.hex(), "maker": cubin.maker, "headers": used}))


# -------------------------------------------------------------------------------------------- without libnvrtc


def test_flags_go_to_the_tool_that_they_are_for() -> None:
    flags = ["-std=c++20", "-I/a", "-I", "/b", "-DX=1", "-D", "Y", "--use_fast_math", "-O3", "--expt-relaxed-constexpr"]
    flags += ["--ptxas-options=-O2,--warn-on-spills", "-Xptxas", "-dlcm=cg", "-maxrregcount=64", "-std", "c++17"]
    split = nvrtc.split_flags(flags)
    assert split is not None
    assert split.nvrtc == ("-std=c++20", "-I/a", "-I/b", "-DX=1", "-DY", "--use_fast_math", "-std=c++17")
    assert split.ptxas == ("-O2", "--warn-on-spills", "-dlcm=cg", "-maxrregcount=64")


@pytest.mark.parametrize(
    "flag",
    ["-Xcompiler=-fopenmp", "--threads=2", "x.cu", "-rdc=true", "-include=x.h", "-I", "-Xptxas", "-G", "-isystem"],
)
def test_a_flag_that_is_not_known_sends_the_source_to_nvcc(flag: str) -> None:
    assert nvrtc.split_flags(["-DX", flag]) is None


def test_the_library_is_of_nvccs_release_and_no_other(tmp_path: Path) -> None:
    def install(folder: Path, release: str) -> Path:
        folder.mkdir(parents=True)
        (folder / f"libnvrtc-builtins.so.{release}").touch()
        (folder / f"libnvrtc.so.{release.split('.')[0]}").touch()
        return folder / f"libnvrtc.so.{release.split('.')[0]}"

    root, site = tmp_path / "cuda", tmp_path / "site"
    assert nvrtc.find_library("13.0", root, [site]) is None
    other = install(site / "nvidia" / "cu13" / "lib", "13.1")
    assert nvrtc.find_library("13.0", root, [site]) is None
    assert nvrtc.find_library("13.1", root, [tmp_path / "none", site]) == other
    older = install(site / "nvidia" / "cuda_nvrtc" / "lib", "12.8")
    assert nvrtc.find_library("12.8", root, [site]) == older
    own = install(root / "targets" / "x86_64-linux" / "lib", "13.1")
    assert nvrtc.find_library("13.1", root, [site]) == own


def test_the_setting_is_0_or_1(nvcc: CudaCompiler) -> None:
    assert (nvcc.nvrtc, nvcc.ptxas, nvcc.include) == ("", "", ())
    with pytest.raises(SpecError, match="TLAOT_NVRTC: expected 0 or 1, got 'yes'"):
        find_nvcc({**os.environ, "TLAOT_NVRTC": "yes"})


def test_constants_that_nothing_names_are_dropped() -> None:
    ptx = """.version 9.0
.global .align 4 .u32 _ZN1aE = 5;
.global .align 1 .b8 _ZN1bE[3];
.global .align 4 .u32 kept_for_c;
.global .align 8 .u64 _ZN1cE = generic(kept_for_c);
.visible .global .align 4 .u32 counter;
.extern .shared .align 16 .b8 tile[];
.visible .entry k() { ld.global.u32 %r1, [_ZN1aE]; }
// a name that begins as another: _ZN1aEx
"""
    kept = nvrtc.drop_unused_constants(ptx)
    assert [line for line in ptx.splitlines() if line not in kept] == [
        ".global .align 1 .b8 _ZN1bE[3];",
        ".global .align 8 .u64 _ZN1cE = generic(kept_for_c);",
    ]


FAKE = """
#include <stddef.h>
#include <stdlib.h>
int nvrtcVersion(int *major, int *minor) { *major = %d; *minor = %d; return 0; }
int nvrtcCreateProgram(void **program, const char *s, const char *n, int c, void *h, void *i) { *program = 0; return 0; }
int nvrtcCompileProgram(void *program, int n, const char *const *options) { %s; return 6; }
int nvrtcGetProgramLogSize(void *program, size_t *size) { *size = 1; return 0; }
int nvrtcGetProgramLog(void *program, char *log) { log[0] = 0; return 0; }
int nvrtcDestroyProgram(void **program) { return 0; }
"""


@pytest.mark.parametrize(("release", "body", "ended"), [("1.5", "abort()", 0), ("", "", 0), ("", "abort()", 6)])
def test_a_library_that_refuses_or_is_of_another_release(
    tmp_path: Path, nvcc: CudaCompiler, release: str, body: str, ended: int
) -> None:
    """nvcc compiles then; a crash ends the process, which is a worker's in a build."""
    major, minor = (release or nvcc.version).split(".")
    (tmp_path / "fake.c").write_text(FAKE % (int(major), int(minor), body))
    library = tmp_path / f"libnvrtc-{ended}{release}{body[:1]}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "fake.c")], check=True)
    compiler = replace(nvcc, nvrtc=str(library), ptxas="/nowhere/ptxas", include=("/nowhere",))

    def work() -> None:
        cubin = compile_cuda(SOURCE, TARGET, (), tmp_path / "scratch", 120, compiler)
        assert cubin.maker == f"nvcc {nvcc.version}"

    assert fork(work) == ended


# ---------------------------------------------------------------------------------------------- with libnvrtc


def test_the_same_code_as_nvccs(tmp_path: Path, compiler: CudaCompiler, nvcc: CudaCompiler) -> None:
    """Without shared memory, to which NVRTC makes 64-bit addresses and nvcc 32-bit ones, the code is byte for byte the same."""
    ours = compile_cuda(SOURCE, TARGET, ("-std=c++17",), tmp_path, 120, compiler)
    theirs = compile_cuda(SOURCE, TARGET, ("-std=c++17",), tmp_path, 120, nvcc)
    assert (ours.maker, theirs.maker) == (f"nvrtc {compiler.version}", f"nvcc {compiler.version}")
    assert (ours.registers, ours.spills, ours.static_shared) == (theirs.registers, theirs.spills, theirs.static_shared)
    assert code(ours.data) == code(theirs.data)
    assert len(ours.data) == len(theirs.data)
    assert b"unused_by_all" not in ours.data


def code(cubin: bytes) -> bytes:
    """What the kernel ``scale`` executes."""
    from struct import unpack_from

    (offset,) = unpack_from("<Q", cubin, 40)
    count, strings = unpack_from("<HH", cubin, 60)
    rows = [unpack_from("<IIQQQQ", cubin, offset + 64 * i) for i in range(count)]
    at = rows[strings][4]
    (row,) = (row for row in rows if cubin[at + row[0] :].startswith(b".text.scale\0"))
    return cubin[row[4] : row[4] + row[5]]


def test_same_source_same_bytes_in_any_folder_and_process(tmp_path: Path, compiler: CudaCompiler) -> None:
    here = compile_cuda(SOURCE, TARGET, (), tmp_path / "here", 120, compiler)
    script = "compile_and_say(Path(sys.argv[1]), None)\n"
    (there,) = in_a_process(script, tmp_path / "much" / "deeper" / "there")
    assert there == {"data": here.data.hex(), "maker": f"nvrtc {compiler.version}", "headers": []}
    assert str(tmp_path).encode() not in here.data
    assert list((tmp_path / "here").iterdir()) == []


def test_what_nvrtc_refuses_goes_to_nvcc(tmp_path: Path, compiler: CudaCompiler) -> None:
    with pytest.raises(BuildError, match='identifier "nonsense" is undefined') as caught:
        compile_cuda(SOURCE.replace("* TWICE", "* nonsense"), TARGET, (), tmp_path, 120, compiler)
    assert "nvcc failed" in caught.value.what
    # A header of the C++ library is nothing that NVRTC has.
    made = compile_cuda("#include <vector>\n" + SOURCE, TARGET, (), tmp_path, 120, compiler)
    assert made.maker == f"nvcc {compiler.version}"
    made = compile_cuda(SOURCE, TARGET, ("-Xcompiler=-fno-strict-aliasing",), tmp_path, 120, compiler)
    assert made.maker == f"nvcc {compiler.version}"
    big = SOURCE.replace(
        "{\n", "{\n  __shared__ char tile[1 << 20]; tile[n] = 1; __syncthreads(); n = tile[n - 1];\n", 1
    )
    with pytest.raises(BuildError, match="uses too much shared data"):
        compile_cuda(big, TARGET, (), tmp_path, 120, compiler)
    with pytest.raises(BuildError, match="ran out of time"):
        compile_cuda(SOURCE, TARGET, (), tmp_path, 0.001, compiler)


def test_flags_have_their_effect(tmp_path: Path, compiler: CudaCompiler, nvcc: CudaCompiler) -> None:
    source = SOURCE.replace("if (i < n)", "if (i < n) for (int j = 0; j < COUNT; j++)").replace(
        "* TWICE", "/ (j + a[j])"
    )
    source = source.replace("__half2float(a[i])", "expf(__half2float(a[i]))").replace("a[j])", "__half2float(a[j]))")
    seen = set()
    for extra in ((), ("--use_fast_math",), ("-maxrregcount=16",), ("-Xptxas=-O1",), ("-DCOUNT=1",)):
        flags = (*(() if "-DCOUNT=1" in extra else ("-DCOUNT=9",)), *extra)
        ours = compile_cuda(source, TARGET, flags, tmp_path, 120, compiler)
        assert ours.maker.startswith("nvrtc")
        assert code(ours.data) == code(compile_cuda(source, TARGET, flags, tmp_path, 120, nvcc).data), flags
        seen.add(code(ours.data))
    assert len(seen) == 5


def test_tensor_maps_have_the_alignment_that_nvcc_gives_them(tmp_path: Path, compiler: CudaCompiler) -> None:
    source = """
#include <cuda.h>
static_assert(alignof(CUtensorMap) == %d && sizeof(CUtensorMap) == 128, "");
extern "C" __global__ void k(const __grid_constant__ CUtensorMap map, unsigned long long *out) { *out = (unsigned long long)&map; }
"""
    made = [
        compile_cuda(source % align, TARGET, (), tmp_path, 120, compiler).maker
        for align in (64, 128)
        if _compiles(source % align, tmp_path, replace(compiler, nvrtc=""))
    ]
    assert made == [f"nvrtc {compiler.version}"]


def _compiles(source: str, scratch: Path, compiler: CudaCompiler) -> bool:
    try:
        compile_cuda(source, TARGET, (), scratch, 120, compiler)
    except BuildError:
        return False
    return True


# ------------------------------------------------------------------------------------------ precompiled headers

FORKS = """
folder = Path(sys.argv[1])
nvrtc.preload(find_nvcc(os.environ).nvrtc)
for i in range(3):
    noise = [bytes(300_000) for _ in range(100 * i)]  # workers have lowered different kernels by then
    assert fork(lambda: compile_and_say(folder / str(i), folder / "headers")) == 0
"""


def needs_precompiled_headers(compiler: CudaCompiler) -> None:
    if tuple(map(int, compiler.version.split("."))) < (12, 8):
        pytest.skip("CUDA 12.8 brought precompiled headers to NVRTC")


def test_forked_processes_share_precompiled_headers(tmp_path: Path, compiler: CudaCompiler) -> None:
    needs_precompiled_headers(compiler)
    made = in_a_process(FORKS, tmp_path)
    plain = compile_cuda(SOURCE, TARGET, (), tmp_path, 120, compiler)
    assert [row["headers"] for row in made] == [["using"]] * 3
    assert {row["data"] for row in made} == {plain.data.hex()}
    assert sorted(path.suffix for path in (tmp_path / "headers").iterdir()) == [".lock", ".pch"]


def test_headers_among_declarations_are_precompiled_too(tmp_path: Path, compiler: CudaCompiler) -> None:
    """As TVM writes its sources."""
    needs_precompiled_headers(compiler)
    scattered = """
#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
  using cuda::std::uint16_t;
#else
  #include <cstdint>
#endif
"""
    script = FORKS.replace('folder / "headers")', 'folder / "headers", sys.argv[2] + SOURCE)')
    made = in_a_process(script, tmp_path, scattered)
    assert [row["headers"] for row in made] == [["using"]] * 3
    assert {row["maker"] for row in made} == {f"nvrtc {compiler.version}"}
    ours = bytes.fromhex(made[0]["data"])
    theirs = compile_cuda(scattered + SOURCE, TARGET, (), tmp_path, 120, replace(compiler, nvrtc=""))
    assert code(ours) == code(theirs.data)


def test_a_process_of_another_lineage_makes_do_without(tmp_path: Path, compiler: CudaCompiler) -> None:
    needs_precompiled_headers(compiler)
    in_a_process(FORKS, tmp_path)
    before = sorted((tmp_path / "headers").iterdir())
    (made,) = in_a_process("compile_and_say(Path(sys.argv[1]), Path(sys.argv[1], 'headers'))", tmp_path)
    assert (made["maker"], made["headers"]) == (f"nvrtc {compiler.version}", [])
    assert sorted((tmp_path / "headers").iterdir()) == before


def test_headers_that_another_heap_made_cost_only_time(tmp_path: Path, compiler: CudaCompiler) -> None:
    """As after a fork server's restart, did the names of its files not tell."""
    needs_precompiled_headers(compiler)
    script = FORKS.replace("nvrtc.preload", "nvrtc.secrets.token_hex = lambda _: 'the same'\nnvrtc.preload")
    first = in_a_process(script, tmp_path)
    second = in_a_process(script, tmp_path)
    assert [row["headers"] for row in second] in ([[]] * 3, [["using"]] * 3)  # a heap may lie where the other did
    assert {row["data"] for row in second} == {row["data"] for row in first}


def test_a_killed_maker_of_headers_leaves_nothing_that_counts(tmp_path: Path, compiler: CudaCompiler) -> None:
    needs_precompiled_headers(compiler)
    script = """
import signal
folder = Path(sys.argv[1])
nvrtc.preload(find_nvcc(os.environ).nvrtc)
whole = nvrtc._Library.precompile
def killed(self, source, options, making):
    making.write_bytes(b"half a header")
    os.kill(os.getpid(), signal.SIGKILL)
nvrtc._Library.precompile = killed
assert fork(lambda: compile_and_say(folder / "scratch", folder / "headers")) == signal.SIGKILL
nvrtc._Library.precompile = whole
assert fork(lambda: compile_and_say(folder / "scratch", folder / "headers")) == 0
"""
    (made,) = in_a_process(script, tmp_path)
    assert (made["maker"], made["headers"]) == (f"nvrtc {compiler.version}", [])
    assert not list((tmp_path / "headers").glob("*.pch"))


def test_while_one_process_makes_headers_the_others_go_on(tmp_path: Path, compiler: CudaCompiler) -> None:
    needs_precompiled_headers(compiler)
    script = """
import fcntl
folder = Path(sys.argv[1])
nvrtc.preload(find_nvcc(os.environ).nvrtc)
assert fork(lambda: compile_and_say(folder / "scratch", folder / "headers")) == 0
(made,) = (folder / "headers").glob("*.pch")
made.unlink()
with made.with_suffix(".lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert fork(lambda: compile_and_say(folder / "scratch", folder / "headers")) == 0
"""
    first, second = in_a_process(script, tmp_path)
    assert (first["headers"], second["headers"]) == (["using"], [])
    assert first["data"] == second["data"]


def test_headers_are_not_made_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: CudaCompiler
) -> None:
    needs_precompiled_headers(compiler)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(nvrtc.shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))

    def work() -> None:
        nvrtc.preload(compiler.nvrtc)
        compile_cuda(SOURCE, TARGET, (), tmp_path, 120, compiler, headers=tmp_path / "headers")

    assert fork(work) == 0
    assert list((tmp_path / "headers").iterdir()) == []


@pytest.mark.parametrize(
    ("source", "top"),
    [
        ("#include <a>\n// why\n\n#if X\n#include <b>\n#endif\nint x;\n#include <c>\n", 6),
        ("#include <a>\n#ifdef X\ntypedef int y;\n#endif\n", 1),
        ("#include <a>\n#define M(x) \\\n  (x)\nint x;\n", 3),
        ("int x;\n#include <a>\n", 0),
    ],
)
def test_the_top_of_a_source_ends_outside_any_condition(source: str, top: int) -> None:
    assert nvrtc._directives(source) == "".join(source.splitlines(keepends=True)[:top])
