"""Link one lowered kernel into ``executable.so``, and audit the result.

The same inputs and compiler give the same bytes: everything is compiled in a scratch folder under relative names,
nothing records a path, a time or a build id, and the result is fully stripped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
import time
from pathlib import Path

from ...atomic import write_atomically
from ...elf import IMAGE_SECTION, DynamicInfo, is_elf, read_dynamic, section_names
from ...errors import BuildError
from ...manifest import DIRECT, DIRECT_TYPE
from ...target import Target
from ..frontends.lowered import Lowered
from .glue import plan_source
from .toolchain import HostCompiler, Toolchain, run_tool

__all__ = ["EXECUTABLE", "audit_executable", "link_direct", "link_executable"]

EXECUTABLE = "executable.so"
NATIVE = Path(__file__).parents[1] / "native"

_TIMEOUT = 300.0

# How it reads that a signal ended a tool, or what it had started, and how often that may happen.
_KILLED, _MOST_KILLED = ("signal terminated program", "exit status -"), 10
_COMMON = ("-fPIC", "-fvisibility=hidden", "-fno-ident", "-ffunction-sections", "-fdata-sections")
# -Os: a page less in each binary, and a call's time is the driver's and the argument checks' memory accesses all the same.
_FIXED = ("-std=gnu11", "-Os", "-Wall", "-Wextra", "-fno-asynchronous-unwind-tables")
_LINK = (
    *("-shared", "-s", "-nostartfiles", "-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"),
    *("-Wl,-z,noseparate-code", "-Wl,--hash-style=gnu", "-Wl,--build-id=none", "-Wl,--gc-sections", "-Wl,--as-needed"),
    *("-Wl,--version-script=exports.map", "-o", EXECUTABLE),
)
# What the C library of another system has no use for, and what strip finds left to strip.
_IDLE_SECTIONS = (".comment", ".note.gnu.property", ".symtab")
_LIBRARIES = ("-lm", "-ldl", "-lpthread")
_CALL, _CPU_LEVEL, _PRELOAD = "__tvm_ffi_tlaot_call", "__tvm_ffi_tlaot_cpu_level", "__tvm_ffi_tlaot_preload"
# libdl and libpthread are separate files before glibc 2.34; the dynamic linker exports __tls_get_addr.
_ALLOWED_LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
)
# A section of its own, so that whoever has only the stripped file finds the image and its exact size (elf.device_image).
_IMAGE = f"""
__asm__(".pushsection {IMAGE_SECTION},\\"a\\",%progbits\\n"
        "    .balign 64\\n"
        "    .globl tlaot_image\\n"
        "    .hidden tlaot_image\\n"
        "tlaot_image:\\n"
        "    .incbin \\"image\\"\\n"
        "    .globl tlaot_image_end\\n"
        "    .hidden tlaot_image_end\\n"
        "tlaot_image_end:\\n"
        "    .popsection");
"""


def link_executable(
    lowered: Lowered,
    image: bytes | None,
    target: Target,
    kernel_name: str,
    scratch: Path,
    out: Path,
    toolchain: Toolchain,
) -> None:
    """Compile the host code and link ``out/executable.so``, which appears atomically.

    Args:
        lowered: The kernel as its frontend lowered it.
        image: Compiled device code, for a CUDA target: a cubin, or for a virtual architecture the text of its PTX.
        target: What it is for.
        kernel_name: The name that error messages carry, at build and at run time.
        scratch: A folder for intermediate files; the fixed C sources are compiled once in it. Processes may share it.
        out: The folder to write into; made if it is missing.
        toolchain: The compilers.

    Raises:
        BuildError: The host code does not compile or link, or the result would not load on other machines.
    """
    if target.is_cuda and (image is None or is_elf(image) == target.is_virtual):
        raise BuildError(kernel_name, f"{target} was linked without {'PTX' if target.is_virtual else 'a cubin'}")
    scratch.mkdir(parents=True, exist_ok=True)
    fixed = _fixed_objects(target, scratch, toolchain.host, kernel_name)
    with tempfile.TemporaryDirectory(prefix="link-", dir=scratch) as folder:
        work = Path(folder)
        flags, objects = _write_unit(lowered, image, target, kernel_name, work, toolchain.host)
        exports = sorted(_exports(target))
        (work / "exports.map").write_text("{ global: " + "".join(f"{name}; " for name in exports) + "local: *; };\n")
        # One process compiles and links: starting the compiler's parts is most of what this costs.
        command = [*toolchain.host.cc, *_COMMON, *flags, *_LINK, "unit.c", *objects, *map(str, fixed), *_LIBRARIES]
        run_tool(command, kernel_name, _TIMEOUT, cwd=work, extra_environ={"TMPDIR": folder})
        data = (work / EXECUTABLE).read_bytes()
        idle = [name for name in _IDLE_SECTIONS if name in section_names(data)]
        if idle:
            remove = [word for name in idle if name != ".symtab" for word in ("-R", name)]
            strip = [*toolchain.host.strip, "--strip-all", *remove, EXECUTABLE]
            run_tool(strip, kernel_name, _TIMEOUT, cwd=work)
            data = (work / EXECUTABLE).read_bytes()
    audit_executable(data, target, kernel_name)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / EXECUTABLE, data)


def link_direct(scratch: Path, host: HostCompiler) -> bytes:
    """``direct.so``, which takes calls from Python into a package's binaries.

    It is for every kernel, target and version of Python; of Python's symbols it uses the stable ABI's, which are there where Python runs.
    No worker makes it, and no candidate: a compiler that a signal ends is run again, since everything that was tuned would be lost with it.

    Raises:
        BuildError: It does not compile.
    """
    for attempt in range(_MOST_KILLED):
        try:
            return _link_direct(scratch, host)
        except BuildError as error:
            if not any(words in error.what for words in _KILLED):
                raise
        time.sleep(0.05 * attempt)  # memory may be short for a moment
    return _link_direct(scratch, host)


def _link_direct(scratch: Path, host: HostCompiler) -> bytes:
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="direct-", dir=scratch) as folder:
        work = Path(folder)
        for name in ("direct.c", "python_api.h"):
            shutil.copyfile(NATIVE / "direct" / name, work / name)
        (work / "exports.map").write_text(f"{{ global: {DIRECT_TYPE}; local: *; }};\n")
        link = [DIRECT if word == EXECUTABLE else word for word in _LINK]
        # -O2: unlike an executable.so it is in a package once, and half of it runs at every call.
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fno-asynchronous-unwind-tables", *_includes(DIRECT)]
        run_tool(
            [*host.cc, *_COMMON, f"-ffile-prefix-map={NATIVE}=tlaot", *flags, *link, "direct.c"],
            DIRECT,
            _TIMEOUT,
            cwd=work,
            extra_environ={"TMPDIR": folder},
        )
        idle = [word for name in _IDLE_SECTIONS if name != ".symtab" for word in ("-R", name)]
        run_tool([*host.strip, "--strip-all", *idle, DIRECT], DIRECT, _TIMEOUT, cwd=work)
        return (work / DIRECT).read_bytes()


def audit_executable(data: bytes, target: Target, where: str) -> DynamicInfo:
    """Check that an ``executable.so`` keeps its contract.

    Raises:
        BuildError: It needs a library beyond the C library, exports another symbol than its entry points, or
            leaves a symbol undefined that neither the TVM FFI nor the C library has.
    """
    info = read_dynamic(data, where)
    foreign = [name for name in info.needed if name not in _ALLOWED_LIBRARIES]
    if foreign or info.search_path:
        raise BuildError(where, f"{EXECUTABLE} needs {', '.join([*foreign, *info.search_path])}", "Link it statically.")
    if set(info.exported) != _exports(target):
        raise BuildError(where, f"{EXECUTABLE} exports {', '.join(info.exported) or 'nothing'}")
    for name, version in info.imported:
        if not name.startswith("TVMFFI") and not version.startswith("GLIBC_"):
            raise BuildError(
                where,
                f"the host code calls {name}, which is neither in the TVM FFI nor in the C library",
                "Write the kernel without it.",
            )
    return info


def _exports(target: Target) -> set[str]:
    return {_CALL, _PRELOAD} if target.is_cuda else {_CALL, _CPU_LEVEL}


def _includes(where: str) -> list[str]:
    spec = importlib.util.find_spec("tvm_ffi")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        include = Path(folder) / "include"
        if (include / "tvm" / "ffi" / "c_api.h").is_file():
            return [f"-I{NATIVE / 'shim'}", f"-I{NATIVE}", f"-I{include}"]
    raise BuildError(where, "the headers of the TVM FFI were not found", "pip install apache-tvm-ffi")


def _compile(compiler: tuple[str, ...], flags: list[str], source: str, where: str, cwd: Path) -> str:
    made = source.rsplit(".", 1)[0] + ".o"
    command = [*compiler, *_COMMON, f"-ffile-prefix-map={NATIVE}=tlaot", *flags, "-c", source, "-o", made]
    run_tool(command, where, _TIMEOUT, cwd=cwd)
    return made


def _fixed_objects(target: Target, scratch: Path, host: HostCompiler, where: str) -> list[Path]:
    """Objects of our own C files, compiled once for each compiler and content in a scratch folder."""
    names = ("entry", "backend", "cuda" if target.is_cuda else "pool")
    includes = _includes(where)
    define = ["-DTLAOT_CUDA"] if target.is_cuda else ["-DTLAOT_CPU"]
    flags = [*_FIXED, *define, *includes]
    key = hashlib.sha256(repr((host, flags)).encode())
    for path in sorted([*NATIVE.glob("*.[ch]"), Path(includes[-1][2:]) / "tvm" / "ffi" / "c_api.h"]):
        key.update(path.name.encode() + b"\0" + path.read_bytes())
    folder = scratch / f"native-{key.hexdigest()[:16]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix="native-", dir=scratch) as made:
            work = Path(made) / "objects"
            work.mkdir()
            for name in names:
                shutil.copyfile(NATIVE / f"{name}.c", work / f"{name}.c")
                _compile(host.cc, flags, f"{name}.c", where, work)
            try:
                work.rename(folder)
            except OSError:  # another process was first, with the same objects
                if not folder.is_dir():
                    raise
    return [folder / f"{name}.o" for name in names]


def _write_unit(
    lowered: Lowered, image: bytes | None, target: Target, where: str, work: Path, host: HostCompiler
) -> tuple[list[str], list[str]]:
    """Write ``unit.c``: the plan, host code in C, and the device code; its flags, and objects of other host code."""
    (work / "plan.c").write_text(plan_source(lowered, target, where), encoding="utf-8")
    unit = ['#include "plan.c"\n']
    # Host code of a launch computes next to nothing: many checks, each with an error's text. What -Os saves over -O1 is mostly by
    # these two passes (7.9 to 6.1 KB of TileLang's GEMM), and it takes a third longer to compile.
    optimise = ["-O1", "-fcrossjumping", "-fstore-merging"] if target.is_cuda else ["-O3"]
    flags = ["-std=gnu11", *optimise, "-w", *_level(target), *_includes(where)]
    objects: list[str] = []
    if lowered.host_object is not None:
        (work / "host.o").write_bytes(lowered.host_object)
        objects.append("host.o")
    elif lowered.host_source is None:
        raise BuildError(where, "the frontend gave no host code")
    elif lowered.entry_abi == "packed":
        (work / "host_kernel.c").write_text(lowered.host_source, encoding="utf-8")
        unit += ['#include "host.h"\n', '#include "host_kernel.c"\n']
        flags += lowered.host_flags
    else:
        objects.append(_cxx_object(lowered, target, where, work, host))
    if image is not None:
        # The driver reads PTX up to its terminating zero.
        (work / "image").write_bytes(image if is_elf(image) else image + b"\0")
        unit.append(_IMAGE)
    (work / "unit.c").write_text("".join(unit), encoding="utf-8")
    return [f"-ffile-prefix-map={NATIVE}=tlaot", *flags], objects


def _level(target: Target) -> list[str]:
    return [] if target.is_cuda else [f"-march={target.arch}"]


def _cxx_object(lowered: Lowered, target: Target, where: str, work: Path, host: HostCompiler) -> str:
    assert lowered.host_source is not None
    if not host.cxx:
        raise BuildError(where, "no C++ compiler was found (g++)", "apt-get install g++, or set CXX.")
    (work / "host_kernel.cc").write_text(lowered.host_source, encoding="utf-8")
    flags = ["-std=c++17", "-O3", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-w", *_level(target)]
    return _compile(host.cxx, [*flags, *lowered.host_flags], "host_kernel.cc", where, work)
