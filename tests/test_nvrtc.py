"""NVRTC in nvcc's place: what goes to it, what it makes, and what happens where it refuses or breaks."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tlaot.errors import BuildError, SpecError
from tlaot.target import Target, parse_target, read_target
from tlaot.tune.compiling import nvrtc
from tlaot.tune.compiling.nvcc import compile_cuda, preload_cuda  # noqa: F401
from tlaot.tune.compiling.precompiled import Claim, Headers
from tlaot.tune.compiling.toolchain import CudaCompiler, find_nvcc
from tlaot.tune.frontends import tilelang_headers  # noqa: F401 - of the scripts

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


def compile_and_say(
    scratch: Path, headers: Headers | None, source: str = SOURCE, target: Target = TARGET, flags: Sequence[str] = ()
) -> None:
    """Compile, and print what came out."""
    cubin = compile_cuda(source, target, flags, scratch, 120, find_nvcc(os.environ), headers=headers)
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


def test_the_build_is_read_from_the_library(tmp_path: Path) -> None:
    library = tmp_path / "libnvrtc.so.13"
    for content, found in (
        (b"\x7fELF V13.0 V12.9.1 V13.0.x", "13.0"),
        (b"\x7fELF V13.0.88\0 V13.0.99", "13.0.88"),
        (b"\x7fELF V13.0.7", "13.0.7"),
    ):
        library.write_bytes(content)
        assert nvrtc.read_build(library, "13.0") == found


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


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:compute_80"])
@pytest.mark.parametrize("maker", ["nvrtc", "nvcc"])
def test_assertions_name_files_as_they_are_included(
    tmp_path: Path, compiler: CudaCompiler, nvcc: CudaCompiler, maker: str, target: str
) -> None:
    """The same bytes, wherever the headers lie; and what is no file's name stays."""
    made = []
    for name in ("here", "much_longer"):
        folder = tmp_path / name / "include"
        (folder / "parts").mkdir(parents=True)
        (folder / "parts" / "guard.h").write_text(
            "#pragma once\n#ifndef __CUDACC_RTC__\n#include <cassert>\n#include <cstdio>\n#endif\n"
            'inline __device__ void guard(bool holds) { if (!holds) printf("/no/file and /a %s", __FILE__); assert(holds); }\n'
        )
        source = SOURCE.replace("#include <cuda_fp16.h>", "#include <cuda_fp16.h>\n#include <parts/guard.h>")
        source = source.replace("if (i < n)", "guard(n > 7);\n  if (i < n)")
        used = compiler if maker == "nvrtc" else nvcc
        made.append(
            compile_cuda(source, read_target(target), (f"-I{folder}/parts/..",), tmp_path / "scratch", 120, used)
        )
    assert all(one.maker == f"{maker} {compiler.version}" for one in made)
    assert made[0].data == made[1].data
    text = made[0].data
    if target == "cuda:compute_80":  # of PTX the bytes are written as numbers
        text = b"\0".join(
            bytes(int(number) for number in match.split(",")) for match in re.findall(r"\{([\d, ]+)\}", text.decode())
        )
    assert b"\0parts/guard.h\0" in text and b"/parts/guard.h" not in text and str(tmp_path).encode() not in text
    assert b"/no/file and /a %s" in text


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
headers, _ = preload_cuda(os.environ, TARGET)
for i in range(3):
    noise = [bytes(300_000) for _ in range(100 * i)]  # workers have lowered different kernels by then
    assert fork(lambda: compile_and_say(folder / str(i), headers)) == 0
"""


def needs_precompiled_headers(compiler: CudaCompiler) -> None:
    if tuple(map(int, compiler.version.split("."))) < (12, 8):
        pytest.skip("CUDA 12.8 brought precompiled headers to NVRTC")


def test_forked_processes_share_precompiled_headers(tmp_path: Path, compiler: CudaCompiler) -> None:
    """Nothing of them has a name, or is there when the last process has ended."""
    needs_precompiled_headers(compiler)
    made = in_a_process("import tempfile; tempfile.tempdir = sys.argv[2]" + FORKS, tmp_path, tmp_path)
    plain = compile_cuda(SOURCE, TARGET, (), tmp_path, 120, compiler)
    assert [row["headers"] for row in made] == [["using"]] * 3
    assert {row["data"] for row in made} == {plain.data.hex()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


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
    script = FORKS.replace("headers))", "headers, sys.argv[2] + SOURCE))")
    made = in_a_process(script, tmp_path, scattered)
    assert [row["headers"] for row in made] == [["using"]] * 3
    assert {row["maker"] for row in made} == {f"nvrtc {compiler.version}"}
    ours = bytes.fromhex(made[0]["data"])
    theirs = compile_cuda(scattered + SOURCE, TARGET, (), tmp_path, 120, replace(compiler, nvrtc=""))
    assert code(ours) == code(theirs.data)


def test_a_killed_maker_of_headers_costs_only_time(tmp_path: Path, compiler: CudaCompiler) -> None:
    """What it left is removed by the next process that makes room for headers."""
    needs_precompiled_headers(compiler)
    script = """
import signal, tempfile
folder = Path(sys.argv[1])
tempfile.tempdir = str(folder)
headers, _ = preload_cuda(os.environ, TARGET)
whole = nvrtc._Library.precompile
def killed(self, source, options, making):
    making.write_bytes(b"half a header")
    os.kill(os.getpid(), signal.SIGKILL)
nvrtc._Library.precompile = killed
assert fork(lambda: compile_and_say(folder / "scratch", headers)) == signal.SIGKILL
nvrtc._Library.precompile = whole
assert len(list(folder.glob("tlaot-pch-*"))) == 1
assert fork(lambda: compile_and_say(folder / "scratch", headers)) == 0
Headers()
assert not list(folder.glob("tlaot-pch-*"))
"""
    (made,) = in_a_process(script, tmp_path)
    assert (made["maker"], made["headers"]) == (f"nvrtc {compiler.version}", [])


def test_headers_are_not_made_where_there_is_no_room(tmp_path: Path, compiler: CudaCompiler) -> None:
    needs_precompiled_headers(compiler)
    script = """
import shutil
usage = shutil.disk_usage("/")
shutil.disk_usage = lambda _: usage._replace(free=1 << 30)
"""
    made = in_a_process(script + FORKS, tmp_path)
    assert [(row["maker"], row["headers"]) for row in made] == [(f"nvrtc {compiler.version}", [])] * 3


# ---------------------------------------------------------------------- headers that are precompiled ahead


def in_a_fork(work: Any) -> int:
    """Fork work without waiting."""
    pid = os.fork()
    if pid == 0:
        try:
            faulthandler.disable()
            work()
        finally:
            os._exit(0)
    return pid


def write(path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    return True


def fill_slowly(headers: Headers, claim: Claim, ready: int, die: bool) -> None:
    def slowly(path: Path) -> bool:
        os.write(ready, b"x")
        time.sleep(0.5)
        if die:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, b"made")

    headers.make(claim, slowly)


@pytest.mark.parametrize("die", [False, True])
def test_what_is_made_ahead_is_waited_for_unless_its_maker_dies(die: bool) -> None:
    headers = Headers()
    claim = headers.claim("k", ahead=True)
    assert claim is not None
    ready, wrote = os.pipe()
    pid = in_a_fork(lambda: fill_slowly(headers, claim, wrote, die))
    os.close(claim.lock)
    os.read(ready, 1)
    found = headers.find("k")
    os.waitpid(pid, 0)
    assert headers.claim("k") is None
    if die:
        assert found is None
        assert headers.find("k") is None
    else:
        assert found is not None
        assert Path(found).read_bytes() == b"made"


def test_what_another_worker_makes_is_not_waited_for() -> None:
    headers = Headers()
    claim = headers.claim("k")
    assert claim is not None
    assert headers.find("k") is None
    assert headers.claim("k") is None
    other = headers.claim("l")
    assert other is not None
    assert headers.make(other, lambda path: write(path, b"l")) == headers.find("l")
    assert headers.make(claim, lambda path: False) is None
    assert headers.find("k") is None
    assert headers.claim("k") is None


def test_there_is_room_for_eight() -> None:
    headers = Headers()
    for i in range(8):
        claim = headers.claim(str(i))
        assert claim is not None
        assert headers.make(claim, lambda path, i=i: write(path, bytes([i]))) is not None
    assert headers.claim("8") is None
    assert [Path(headers.find(str(i)) or "").read_bytes() for i in range(8)] == [bytes([i]) for i in range(8)]


TILELANG_TOP = """#if defined(_MSC_VER) && !defined(__clang__) && _MSC_VER < 1940
#define alignas(N) _tl_orig_alignas((N) <= 64 ? (N) : 64)
#include <cuda.h>
#undef alignas
#endif
#include <a.h>
#include <b.h>
#ifdef ENABLE_BF16
#include <c.h>
#endif

"""
KERNEL = 'extern "C" __global__ void k() {}\n'


@pytest.mark.parametrize(
    ("source", "covered"),
    [
        (TILELANG_TOP + KERNEL, True),
        (TILELANG_TOP.replace("b.h", "d.h") + KERNEL, False),
        ("#define X\n" + TILELANG_TOP + KERNEL, False),
        (TILELANG_TOP + "__device__ int of_the_author;\n" + KERNEL, False),
        (KERNEL, False),
    ],
)
def test_the_common_headers_serve_sources_that_include_no_others(source: str, covered: bool) -> None:
    assert nvrtc._is_covered(source, ("b.h", "a.h", "e.h")) == covered


LOWERED = [
    ("matmul", {"M": 1024, "N": 1024, "K": 1024}, {"num_stages": 3}),
    ("softmax", {"M": 77, "N": 1000}, {"chunk": 1024, "threads": 256}),
    ("rms_norm", {"M": 77, "N": 4096}, {"chunk": 1024, "threads": 256}),
    *((name, {}, {}) for name in ("scalars", "chained", "cluster", "cooperative", "strided", "wide", "atomic")),
]


@pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="tilelang is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_headers_precompiled_ahead_change_no_byte_of_tilelangs_kernels(
    tmp_path: Path, compiler: CudaCompiler, arch: str
) -> None:
    needs_precompiled_headers(compiler)
    lowering = """
import pickle, tilelang_cases
made = []
for case, shape, config in LOWERED:
    if (case, sys.argv[2]) in {("chained", "sm_80"), ("cluster", "sm_80")}:
        continue  # what they use is of Hopper
    lowered = tilelang_cases.lower(case, f"cuda:{sys.argv[2]}", shape, config)
    made.append((case, lowered.device_source, lowered.device_flags))
Path(sys.argv[1], "lowered").write_bytes(pickle.dumps(made))
"""
    in_a_process(lowering, tmp_path, arch)
    compiling = """
import pickle
folder, target = Path(sys.argv[1]), parse_target(f"cuda:{sys.argv[2]}")
flags = tilelang_headers.default_flags({})
headers, started = preload_cuda(os.environ, target, tilelang_headers.common_headers(sys.argv[2]), flags)
assert len(started) == 1
for case, source, flags in pickle.loads((folder / "lowered").read_bytes()):
    for given in (None, headers):
        assert fork(lambda: compile_and_say(folder / "scratch", given, source, target, flags)) == 0
assert headers._state(0) == 3 and headers._state(1) == 0  # the common ones served all
"""
    rows = in_a_process(compiling, tmp_path, arch)
    assert len(rows) >= 2 * (len(LOWERED) - 2)
    for plain, ours in zip(rows[::2], rows[1::2], strict=True):
        assert (plain["headers"], ours["headers"]) == ([], ["using"])
        assert (plain["data"], plain["maker"]) == (ours["data"], f"nvrtc {compiler.version}")


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
