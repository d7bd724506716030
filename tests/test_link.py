"""Linking: what an executable.so contains, needs, exports; that the same inputs give the same bytes."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("tvm_ffi")
pytest.importorskip("numpy")

from native import programs
from native.programs import CUDA, LLVM, build, host_program, lowered, run, scalar, tensor, toolchain

from tlaot import elf
from tlaot.errors import BuildError
from tlaot.target import parse_target, read_target
from tlaot.tune.compiling.link import audit_executable, link_direct, link_executable
from tlaot.tune.compiling.toolchain import find_cc
from tlaot.tune.frontends.lowered import DeviceKernel

KERNEL = DeviceKernel("k", ("ptr",), (1,), ("blockIdx.x", "threadIdx.x"))
PARAMS = [tensor("A", 8, written=True)]
CUDA_HOST = host_program([programs.SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(1)", "INT(32)"])])
PARALLEL = """
static int body(int task, TVMParallelGroupEnv *env, void *data) { ((float *)data)[task] = env->num_task; return 0; }
"""


def cpu_program(before: str = "") -> str:
    call = "  if (TVMBackendParallelLaunch(body, DATA(0), 0)) return -1;"
    return host_program([], before=before + call).replace("TVM_DLL int32_t", PARALLEL + "TVM_DLL int32_t", 1)


def test_an_executable_needs_the_c_library_alone_and_exports_its_entry(tmp_path: Path) -> None:
    cpu = elf.read_dynamic(build(lowered(cpu_program(), PARAMS), tmp_path / "cpu").read_bytes(), "cpu")
    cuda = elf.read_dynamic(build(lowered(CUDA_HOST, PARAMS, [KERNEL]), tmp_path / "cuda").read_bytes(), "cuda")
    assert cpu.exported == ("__tvm_ffi_tlaot_call", "__tvm_ffi_tlaot_cpu_level")
    assert cuda.exported == ("__tvm_ffi_tlaot_call", "__tvm_ffi_tlaot_preload")
    for info in (cpu, cuda):
        assert set(info.needed) <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
        assert info.search_path == ()
        versions = {tuple(map(int, v.removeprefix("GLIBC_").split("."))) for _, v in info.imported if v}
        assert max(versions) <= (2, 17), info.imported  # what manylinux2014 has
    assert ("dlopen", "GLIBC_2.2.5") in cuda.imported or ("dlopen", "GLIBC_2.17") in cuda.imported
    assert ("pthread_create", "GLIBC_2.2.5") in cpu.imported or ("pthread_create", "GLIBC_2.17") in cpu.imported


def test_the_reader_agrees_with_readelf(tmp_path: Path) -> None:
    path = build(lowered(cpu_program(), PARAMS), tmp_path)
    info = elf.read_dynamic(path.read_bytes(), "x")
    try:
        shown = subprocess.run(
            ["readelf", "-dW", "--dyn-syms", path], capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        pytest.skip("no readelf")
    for name in info.needed:
        assert f"[{name}]" in shown
    rows = [line.split() for line in shown.splitlines() if line.split()[3:4] in (["FUNC"], ["NOTYPE"])]
    undefined = {row[7].split("@")[0] for row in rows if row[6] == "UND" and len(row) > 7}
    assert {name for name, _ in info.imported} == undefined
    assert {row[7] for row in rows if row[6] != "UND"} == set(info.exported)
    assert "NODELETE" in shown


@pytest.mark.parametrize("target", [LLVM, CUDA])
def test_same_inputs_same_bytes_wherever_and_nothing_to_strip(tmp_path: Path, target: object) -> None:
    program = lowered(CUDA_HOST, PARAMS, [KERNEL]) if target == CUDA else lowered(cpu_program(), PARAMS)
    cubin = b"\x7fELF" + bytes(1000) if target == CUDA else None
    made = []
    for folder in (tmp_path / "one", tmp_path / "another" / "much deeper" / "place"):
        link_executable(program, cubin, target, "kernel", folder / "scratch", folder / "out", toolchain())  # type: ignore[arg-type]
        made.append((folder / "out" / "executable.so").read_bytes())
        assert sorted(p.name.split("-")[0] for p in (folder / "scratch").iterdir()) == ["native"]
        assert [p.name for p in (folder / "out").iterdir()] == ["executable.so"]
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]
    assert str(Path.home()).encode() not in made[0].replace(b"/root", b"") or str(Path.home()) == "/root"
    stripped = tmp_path / "stripped.so"
    stripped.write_bytes(made[0])
    subprocess.run([*toolchain().host.strip, "--strip-all", stripped], check=True)
    assert stripped.read_bytes() == made[0]
    if cubin:
        assert made[0].count(cubin) == 1


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:compute_80"])
def test_the_device_code_is_found_in_what_is_stripped(tmp_path: Path, target: str) -> None:
    """In a section of its own, also after the tools that packagers run; PTX ends with the zero that the driver reads up to."""
    image = b"\x7fELF" + bytes(range(256)) * 9 if "sm_" in target else b"//\n.version 9.0\n.target sm_80\n"
    path = build(lowered(CUDA_HOST, PARAMS, [KERNEL]), tmp_path, target=read_target(target), cubin=image)
    data = path.read_bytes()
    assert elf.device_image(data, "k") == image
    assert data.count(image if elf.is_elf(image) else image + b"\0") == 1
    commands = [[*toolchain().host.strip, "--strip-all"]]
    patchelf = shutil.which("patchelf")
    commands += [[patchelf, "--set-rpath", "$ORIGIN/../package.libs"]] if patchelf else []
    for command in commands:
        subprocess.run([*command, path], check=True)
        assert elf.device_image(path.read_bytes(), "k") == image
    for damaged in (b"", b"MZ" + bytes(100), data[:-2000], data[:70]):
        with pytest.raises(BuildError, match="damaged ELF file"):
            elf.device_image(damaged, "k")


def test_device_code_of_the_wrong_kind_is_not_linked(tmp_path: Path) -> None:
    program = lowered(CUDA_HOST, PARAMS, [KERNEL])
    for target, image, says in (
        ("cuda:sm_90a", b".version 9.0", "cuda:sm_90a was linked without a cubin"),
        ("cuda:compute_80", b"\x7fELF", "cuda:compute_80 was linked without PTX"),
        ("cuda:compute_80", None, "cuda:compute_80 was linked without PTX"),
    ):
        with pytest.raises(BuildError, match=says):
            link_executable(program, image, read_target(target), "k", tmp_path, tmp_path / "out", toolchain())
    cpu = build(lowered(cpu_program(), PARAMS), tmp_path).read_bytes()
    assert elf.device_image(cpu, "k") is None


def test_size_of_what_is_ours(tmp_path: Path) -> None:
    assert build(lowered(CUDA_HOST, PARAMS, [KERNEL]), tmp_path / "cuda").stat().st_size < 30_000
    assert build(lowered(cpu_program(), PARAMS), tmp_path / "cpu").stat().st_size < 24_000


def test_plain_entries_of_the_cpu_target(tmp_path: Path) -> None:
    source = """
#include <stdint.h>
#include <math.h>
extern "C" int32_t scale(float *A, int64_t k, float s, bool twice, uint8_t u, double d, float *C, int32_t m, int32_t n) {
  for (int i = 0; i < m * n; i++) C[i] = sqrtf(A[i]) * s + float(k) + (twice ? 1000 : 0) + u + float(d);
  return 0;
}
"""
    params = [
        tensor("A", "m", "n"),
        *(scalar(n, d) for n, d in (("k", "int64"), ("s", "float32"), ("t", "bool"), ("u", "uint8"), ("d", "float64"))),
        tensor("C", "m", "n", written=True),
    ]
    program = lowered(source, params, entry="scale", entry_abi="plain")
    path = build(program, tmp_path, target=parse_target("c:x86-64"))
    assert not any("stdc++" in n or "gcc" in n for n in elf.read_dynamic(path.read_bytes(), "x").needed)
    script = """
f = open_call(sys.argv[1])
a, c = np.random.rand(6, 5).astype(np.float32), np.zeros((6, 5), np.float32)
f(t(a), 2**33, 0.5, True, 200, 3, t(c))
assert np.allclose(c, np.sqrt(a) * 0.5 + 2**33 + 1000 + 200 + 3), c
f(t(a), 1, 2, False, 0, 0.25, t(c))
assert np.allclose(c, np.sqrt(a) * 2 + 1.25, rtol=1e-6), c
"""
    run(script, path)
    unfit = [*params[:1], scalar("h", "float16"), params[-1]]
    with pytest.raises(BuildError, match=r"a CPU kernel cannot take a scalar of type float16 \(parameter h\)"):
        build(dataclasses.replace(program, params=tuple(unfit)), tmp_path, target=parse_target("c:x86-64"))


def test_vector_levels_reach_the_compiler_and_the_check(tmp_path: Path) -> None:
    source = 'extern "C" int f(float *A) { for (int i = 0; i < 64; i++) A[i] *= 2; return __AVX2__ + __FMA__; }'
    program = lowered(source, [tensor("A", 64, written=True)], entry="f", entry_abi="plain")
    build(program, tmp_path, target=parse_target("c:x86-64-v3"))
    with pytest.raises(BuildError, match="__AVX2__"):
        build(program, tmp_path, target=parse_target("c:x86-64-v2"))
    # A level above this processor's is refused by the entry, with both names, before a single instruction of it.
    path = build(lowered(cpu_program(), PARAMS), tmp_path / "low")
    level = int(run("print(tvm_ffi.load_module(sys.argv[1])['tlaot_cpu_level']())", path))
    if level == 4:
        pytest.skip("this processor has the highest level")
    names = ["", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]
    path = build(lowered(host_program([]), PARAMS), tmp_path / "high", target=parse_target("llvm:x86-64-v4"))
    output = run("say(attempt(open_call(sys.argv[1]), t(np.zeros(8, np.float32))))", path)
    message = f"kernel: this variant needs a processor of level x86-64-v4, this one has level {names[level]}"
    assert output == f'["RuntimeError", "{message}"]\n'


def test_workspaces_and_unknown_functions(tmp_path: Path) -> None:
    before = """
  float *w = TVMBackendAllocWorkspace(1, 0, 4096, 2, 32);
  if (!w || (uintptr_t)w % 64) return -1;
  w[1023] = 7;
  *(float *)DATA(0) = w[1023];
  TVMBackendFreeWorkspace(1, 0, w);
"""
    path = build(lowered(host_program([], before=before), PARAMS), tmp_path)
    run("a = np.zeros(8, np.float32); open_call(sys.argv[1])(t(a)); assert a[0] == 7", path)
    with pytest.raises(BuildError, match=r"calls the function 'tvm\.contrib\.cblas\.matmul' of its compiler's runtime"):
        build(lowered(host_program([("tvm.contrib.cblas.matmul", [])]), PARAMS), tmp_path)
    with pytest.raises(BuildError, match="calls cblas_sgemm, which is neither in the TVM FFI nor in the C library"):
        build(lowered(host_program([], before="  cblas_sgemm();"), PARAMS), tmp_path)
    with pytest.raises(BuildError, match="host_kernel"):
        build(lowered("this is no C", PARAMS), tmp_path)


def test_an_executable_of_another_make_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "x.c"
    source.write_text('#include <stdio.h>\nint __tvm_ffi_tlaot_call(void) { return puts(""); }\nint other;\n')
    library = tmp_path / "x.so"
    compiler = toolchain().host.cc
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.raises(BuildError, match="exports __tvm_ffi_tlaot_call, other"):
        audit_executable(library.read_bytes(), CUDA, "x")
    subprocess.run([*compiler, "-shared", "-fPIC", "-Wl,-rpath,/opt/lib", "-o", library, source], check=True)
    with pytest.raises(BuildError, match="needs /opt/lib"):
        audit_executable(library.read_bytes(), CUDA, "x")
    for damaged in (b"", b"MZ" + bytes(100), library.read_bytes()[:-2000], library.read_bytes()[:70]):
        with pytest.raises(BuildError):
            audit_executable(damaged, CUDA, "x")


def test_two_processes_share_a_scratch_folder(tmp_path: Path) -> None:
    script = """
sys.path.insert(0, os.environ["TESTS"])
from pathlib import Path
from native.programs import *
link_executable(lowered(host_program([]), [tensor("A", 8, written=True)]), None, LLVM, "k", Path(sys.argv[1]), Path(sys.argv[2]), toolchain())
"""
    tests = str(Path(__file__).parent)
    code = "from driver import *\n" + script
    path = os.pathsep.join([str(programs.HERE), str(programs.NATIVE.parents[2])])
    command = [programs.sys.executable, "-c", code, str(tmp_path / "scratch")]
    environ = {**os.environ, "TESTS": tests, "PYTHONPATH": path}
    children = [subprocess.Popen([*command, str(tmp_path / str(i))], env=environ) for i in range(3)]
    assert [child.wait(120) for child in children] == [0, 0, 0]
    assert len({(tmp_path / str(i) / "executable.so").read_bytes() for i in range(3)}) == 1
    assert len(list((tmp_path / "scratch").iterdir())) == 1


def test_objects_of_llvm(tmp_path: Path) -> None:
    """A parallel kernel as TVM's llvm target writes it: weak pointers to the runtime, filled in at the link."""
    if importlib.util.find_spec("tvm") is None:
        pytest.skip("apache-tvm is not installed")
    source = """
import tvm
from tvm import te
from tvm.s_tir import Schedule
A = te.placeholder((1024, 4), "float32", name="A")
B = te.compute((1024, 4), lambda i, j: A[i, j] * 2 + 1, name="B")
schedule = Schedule(te.create_prim_func([A, B]))
schedule.parallel(schedule.get_loops(schedule.get_sblock("B"))[0])
tvm.compile(schedule.mod, target=tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2"})).mod.write_to_file(sys.argv[1])
"""
    run(source, tmp_path / "host.o")
    params = [tensor("A", 1024, 4), tensor("B", 1024, 4, written=True)]
    program = dataclasses.replace(lowered("", params), host_source=None, host_object=(tmp_path / "host.o").read_bytes())
    path = build(program, tmp_path, target=parse_target("llvm:x86-64-v2"))
    script = """
f = open_call(sys.argv[1])
a, b = np.random.rand(1024, 4).astype(np.float32), np.zeros((1024, 4), np.float32)
before = len(os.listdir("/proc/self/task"))
f(t(a), t(b))
assert (b == a * 2 + 1).all()
assert len(os.listdir("/proc/self/task")) > before
assert not [name for name in sys.modules if name == "tvm" or name.startswith("tvm.")]
"""
    run(script, path, environ={"TLAOT_NUM_THREADS": "2"})


@pytest.mark.parametrize(("deaths", "survives"), [(1, True), (3, True), (11, False)])
def test_a_killed_compiler_of_direct_so_is_run_again(tmp_path: Path, deaths: int, survives: bool) -> None:
    """By whoever kills: the process itself, or what it has started, which gcc words."""
    host, count = find_cc(os.environ), tmp_path / "count"
    count.write_text("0")
    killer = tmp_path / "cc"
    killer.write_text(
        f"""#!/bin/sh
n=$(cat {count}); echo $((n + 1)) >{count}
[ $n -ge {deaths} ] && exec {" ".join(host.cc)} "$@"
[ $((n % 2)) = 0 ] && kill -9 $$
echo "gcc: fatal error: Killed signal terminated program cc1" >&2; exit 1
"""
    )
    killer.chmod(0o755)
    mortal = dataclasses.replace(host, cc=(str(killer),))
    if survives:
        assert link_direct(tmp_path / "scratch", mortal) == link_direct(tmp_path / "scratch", host)
    else:
        with pytest.raises(BuildError, match=r"direct\.so: cc failed"):
            link_direct(tmp_path / "scratch", mortal)
    killer.write_text("#!/bin/sh\necho $0 >>$0.ran; exit 1\n")
    with pytest.raises(BuildError, match="exit status 1"):
        link_direct(tmp_path / "scratch", mortal)
    assert len(Path(f"{killer}.ran").read_text().splitlines()) == 1, "what is wrong stays wrong"
