"""The host's C compiler, nvcc and NVRTC: finding them, and running them with a time limit.

The environment that decides what is found is passed in by the caller; the tools themselves inherit the process's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..elf import cubin_architecture
from ..errors import BuildError, SpecError, TlaotError
from ..target import Target
from . import nvrtc
from .precompiled import Headers
from .processes import Spawned, fork_quietly, kill_trees

__all__ = [
    "Cubin",
    "CudaCompiler",
    "HostCompiler",
    "Toolchain",
    "compile_cuda",
    "find_cc",
    "find_nvcc",
    "find_toolchain",
    "preload_cuda",
    "run_tool",
]

_INSTALL_CC = "Install one: apt-get install gcc g++ (Debian, Ubuntu), dnf install gcc gcc-c++ (Fedora), or set CC."
_INSTALL_NVCC = "Install CUDA 12.8 or later, or: pip install 'nvidia-cuda-nvcc>=13' 'nvidia-cuda-runtime>=13' 'nvidia-cuda-cccl>=13'"
_PLACE_FLAGS = ("-lineinfo", "--generate-line-info", "-G", "--device-debug", "-g", "--debug")


@dataclass(frozen=True)
class HostCompiler:
    """The host's compiler.

    Attributes:
        cc: Command of the C compiler.
        cxx: Command of the C++ compiler of the same family, or () where there is none.
        strip: Command of the strip that goes with it.
        version: First line of its ``--version``.
    """

    cc: tuple[str, ...]
    cxx: tuple[str, ...]
    strip: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class CudaCompiler:
    """nvcc, and NVRTC of the same release where there is one.

    Attributes:
        nvcc: Its path.
        flags: Flags that it needs to find its own headers.
        version: Release, ``"13.0"``.
        host: Command of the host compiler that it calls, or "" for its own choice.
        nvrtc: Path of libnvrtc, or "" to compile everything with nvcc.
        ptxas: Path of nvcc's ptxas.
        include: Folders of the toolkit's headers.
    """

    nvcc: str
    flags: tuple[str, ...]
    version: str
    host: str = ""
    nvrtc: str = ""
    ptxas: str = ""
    include: tuple[str, ...] = ()


@dataclass(frozen=True)
class Toolchain:
    """All that turns a ``Lowered`` into an ``executable.so``."""

    host: HostCompiler
    cuda: CudaCompiler | None = None


@dataclass(frozen=True)
class Cubin:
    """Compiled device code.

    Attributes:
        data: The cubin.
        registers: Registers a thread, of the kernel that uses most.
        spills: Bytes spilled a thread (stores and loads), of the kernel that spills most.
        static_shared: Bytes of static shared memory, of the kernel that uses most.
        log: What the compiler said.
        maker: What compiled it: ``"nvcc 13.0"`` or ``"nvrtc 13.0"``.
    """

    data: bytes
    registers: int
    spills: int
    static_shared: int
    log: str
    maker: str = ""


def run_tool(
    command: Sequence[str],
    where: str,
    timeout: float,
    cwd: Path | None = None,
    extra_environ: Mapping[str, str] | None = None,
) -> str:
    """Run a tool to its end; a time-out kills it and everything that it started.

    Returns:
        Its standard output and error.

    Raises:
        BuildError: It cannot be started, fails, or runs out of time.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            # gcc and nvcc do not remove their temporary files when they are killed.
            env={**os.environ, **({} if cwd is None else {"TMPDIR": str(cwd)}), **(extra_environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise BuildError(where, f"{command[0]} cannot be run ({error.strerror})", _INSTALL_CC) from None
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_all(process)
        raise BuildError(
            where, f"{Path(command[0]).name} ran out of time ({timeout:.3g} s) and was killed", "Allow it more time."
        ) from None
    except BaseException:
        _kill_all(process)
        raise
    if process.returncode:
        tail = "\n".join(output.strip().splitlines()[-30:])
        raise BuildError(where, f"{Path(command[0]).name} failed with exit status {process.returncode}:\n{tail}")
    return output


def _kill_all(process: subprocess.Popen[str]) -> None:
    # It stays in the session of whoever called, so that ending a worker ends it as well.
    kill_trees([Spawned(process)])
    process.communicate()


def find_cc(environ: Mapping[str, str]) -> HostCompiler:
    """The C compiler: ``CC`` where it is set, else gcc, cc or clang on ``PATH``; ``CXX`` likewise.

    Raises:
        BuildError: There is none.
    """
    path = environ.get("PATH")
    cc = _first_command(environ.get("CC", ""), ("gcc", "cc", "clang"), path, "CC")
    if cc is None:
        raise BuildError("toolchain", "no C compiler was found (gcc, cc, clang)", _INSTALL_CC)
    names = ("clang++",) if "clang" in Path(cc[0]).name else ("g++", "c++")
    cxx = _first_command(environ.get("CXX", ""), names, path, "CXX")
    version = run_tool([*cc, "--version"], "toolchain", 30).splitlines()[0]
    printed = run_tool([*cc, "-print-prog-name=strip"], "toolchain", 30).strip()
    strip = shutil.which(printed, path=path) or shutil.which("strip", path=path)
    if strip is None:
        raise BuildError("toolchain", "no strip was found beside the C compiler", "Install binutils.")
    return HostCompiler(cc, cxx or (), (strip,), version)


def _first_command(setting: str, names: Sequence[str], path: str | None, variable: str) -> tuple[str, ...] | None:
    if setting.strip():
        words = shlex.split(setting)
        found = shutil.which(words[0], path=path)
        if found is None:
            raise BuildError(variable, f"names a compiler that is not there, got {setting!r}", _INSTALL_CC)
        return (found, *words[1:])
    for name in names:
        found = shutil.which(name, path=path)
        if found is not None:
            return (found,)
    return None


def find_nvcc(environ: Mapping[str, str], packages: Path | None = None) -> CudaCompiler:
    """nvcc: below ``CUDA_HOME`` or ``CUDA_PATH``, on ``PATH``, or of the PyPI package ``nvidia-cuda-nvcc``.

    With it NVRTC of the same release, in the same toolkit or as the PyPI package ``nvidia-cuda-nvrtc`` (torch brings
    it), unless ``TLAOT_NVRTC`` is 0.

    Args:
        environ: The environment.
        packages: site-packages to look in; by default every folder of ``sys.path``, since pip's isolated build
            environment is no environment of the interpreter's own.

    Raises:
        BuildError: There is none, or it cannot say its version.
        SpecError: ``TLAOT_NVRTC`` is neither 0 nor 1.
    """
    folders = [packages] if packages is not None else [Path(entry) for entry in sys.path if entry]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = environ.get(variable)
        if root:
            nvcc = Path(root) / "bin" / "nvcc"
            if not nvcc.is_file():
                raise BuildError(variable, f"there is no bin/nvcc below it, got {root!r}", _INSTALL_NVCC)
            return _cuda_compiler(nvcc, (), environ, folders)
    found = shutil.which("nvcc", path=environ.get("PATH"))
    if found:
        return _cuda_compiler(Path(found), (), environ, folders)
    for nvcc in (nvcc for folder in folders for nvcc in sorted(folder.glob("nvidia/cu*/bin/nvcc"), reverse=True)):
        root_dir = nvcc.parents[1]
        include = root_dir / "include"
        flags = [f"-I{d}" for d in (include, include / "cccl") if d.is_dir()]
        return _cuda_compiler(nvcc, tuple(flags), environ, folders)
    raise BuildError(
        "toolchain", "no nvcc was found (CUDA_HOME, PATH, the PyPI package nvidia-cuda-nvcc)", _INSTALL_NVCC
    )


def _cuda_compiler(
    nvcc: Path, flags: tuple[str, ...], environ: Mapping[str, str], packages: Sequence[Path]
) -> CudaCompiler:
    output = run_tool([str(nvcc), "--version"], "toolchain", 60)
    match = re.search(r"release (\d+\.\d+)", output)
    if match is None:
        raise BuildError("toolchain", f"{nvcc} does not say its version", _INSTALL_NVCC)
    compiler = CudaCompiler(str(nvcc), flags, match[1], environ.get("NVCC_CCBIN", ""))
    return _with_nvrtc(compiler, packages) if _wants_nvrtc(environ) else compiler


def _wants_nvrtc(environ: Mapping[str, str]) -> bool:
    text = environ.get("TLAOT_NVRTC", "").strip()
    if text not in ("", "0", "1"):
        raise SpecError("TLAOT_NVRTC", f"expected 0 or 1, got {text!r}", "Write TLAOT_NVRTC=0 for nvcc alone.")
    return text != "0"


def _with_nvrtc(compiler: CudaCompiler, packages: Sequence[Path]) -> CudaCompiler:
    # nvcc on PATH may be a script, so it is asked for its own folder.
    try:
        said = run_tool([compiler.nvcc, "--dryrun", "-cubin", "-x", "cu", os.devnull], "toolchain", 60)
    except BuildError:
        return compiler
    here = re.search(r"^#\$ _HERE_=(.+)$", said, re.MULTILINE)
    if here is None:
        return compiler
    library = nvrtc.find_library(compiler.version, Path(here[1]).parent, packages)
    ptxas = Path(here[1]) / "ptxas"
    lines = re.findall(r"^#\$ (?:SYSTEM_)?INCLUDES=(.*)$", said, re.MULTILINE)
    words = [word for line in lines for word in shlex.split(line) if word != "-isystem"]
    folders = [os.path.normpath(word.removeprefix("-I")) for word in [*compiler.flags, *words]]
    if library is None or not ptxas.is_file() or not folders:
        return compiler
    include = tuple(dict.fromkeys(folder for folder in folders if Path(folder).is_dir()))
    return replace(compiler, nvrtc=str(library), ptxas=str(ptxas), include=include)


def find_toolchain(environ: Mapping[str, str], cuda: bool) -> Toolchain:
    """Everything that a CPU target, or with ``cuda`` a CUDA target, needs.

    Raises:
        BuildError: A tool is missing; the message says how to install it.
    """
    return Toolchain(find_cc(environ), find_nvcc(environ) if cuda else None)


def preload_cuda(
    environ: Mapping[str, str], target: Target, common: Sequence[str] = (), flags: Sequence[str] = ()
) -> tuple[Headers | None, list[int]]:
    """Load NVRTC, where it is found, before a fork: this process and those forked from it share precompiled headers.

    Args:
        environ: The environment.
        target: The CUDA target to come.
        common: Headers of which most sources include some; a process of its own begins to precompile them.
        flags: The frontend's flags of most sources.

    Returns:
        For :func:`compile_cuda`; and the numbers of the processes that were started and that nobody waits for.
    """
    try:
        compiler = find_nvcc(environ)
    except TlaotError:  # said by the process that needs a compiler
        return None, []
    headers = nvrtc.preload(compiler.nvrtc, common) if compiler.nvrtc else None
    split = nvrtc.split_flags(flags)
    if headers is None or split is None:
        return headers, []
    front = _front_flags(split, compiler)
    begun = nvrtc.precompile_ahead(headers, target.arch, front, compiler.nvrtc, compiler.version)
    if begun is None:
        return headers, []
    claim, work = begun
    return headers, [fork_quietly(work, claim.lock)]


def _front_flags(split: nvrtc.Flags, compiler: CudaCompiler) -> list[str]:
    return [*split.nvrtc, *(f"-I{folder}" for folder in compiler.include)]


def compile_cuda(
    source: str,
    target: Target,
    flags: Sequence[str],
    scratch: Path,
    timeout: float,
    compiler: CudaCompiler,
    where: str = "nvcc",
    headers: Headers | None = None,
) -> Cubin:
    """Compile CUDA C++ to a cubin; the same source and compiler give the same bytes, wherever ``scratch`` is.

    NVRTC compiles, in this process, what it can; what it refuses goes to nvcc.

    Args:
        source: CUDA C++.
        target: A CUDA target.
        flags: Extra flags of the frontend (include folders, ``-std``).
        scratch: A folder for intermediate files; processes may share it.
        timeout: Seconds after which nvcc and all its children are killed. NVRTC itself cannot be interrupted.
        compiler: What ``find_nvcc`` found.
        where: What to call the source in an error.
        headers: NVRTC's precompiled headers, of :func:`preload_cuda`; None for none.

    Raises:
        BuildError: nvcc fails, runs out of time, or compiled for another architecture.
    """
    for flag in flags:
        if flag in _PLACE_FLAGS:
            raise BuildError(where, f"{flag} records paths of this machine in what ships", "Remove the flag.")
    deadline = time.monotonic() + timeout
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nvcc-", dir=scratch) as folder:
        work = Path(folder)
        made = _run_nvrtc(source, target, flags, work, deadline, compiler, where, headers) if compiler.nvrtc else None
        data, log, maker = made or _run_nvcc(source, target, flags, work, deadline, compiler, where)
    built, wanted = cubin_architecture(data, where), int(re.sub(r"\D", "", target.arch))
    if built != wanted:
        raise BuildError(where, f"nvcc compiled for sm_{built}, expected {target.arch}", "Remove -arch flags.")
    return Cubin(data, *_resource_usage(log), log, f"{maker} {compiler.version}")


def _run_nvcc(
    source: str,
    target: Target,
    flags: Sequence[str],
    work: Path,
    deadline: float,
    compiler: CudaCompiler,
    where: str,
) -> tuple[bytes, str, str]:
    number = target.arch.removeprefix("sm_")
    command = [compiler.nvcc, "-cubin", "-O3", "-gencode", f"arch=compute_{number},code=sm_{number}"]
    command += ["--ptxas-options=-v", *([f"-ccbin={compiler.host}"] if compiler.host else [])]
    command += [*compiler.flags, *flags, "-o", "kernel.cubin", "device_kernel.cu"]
    (work / "device_kernel.cu").write_text(source, encoding="utf-8")
    # nvcc's own temporary files go with the folder, also when it is killed.
    log = run_tool(command, where, deadline - time.monotonic(), cwd=work, extra_environ={"TMPDIR": str(work)})
    return (work / "kernel.cubin").read_bytes(), log, "nvcc"


def _run_nvrtc(
    source: str,
    target: Target,
    flags: Sequence[str],
    work: Path,
    deadline: float,
    compiler: CudaCompiler,
    where: str,
    headers: Headers | None,
) -> tuple[bytes, str, str] | None:
    """NVRTC, then nvcc's ptxas; None where either refuses, so that the error shown is nvcc's."""
    split = nvrtc.split_flags(flags)
    if split is None:
        return None
    front = _front_flags(split, compiler)
    ptx, log = nvrtc.compile_to_ptx(source, target.arch, front, compiler.nvrtc, compiler.version, headers)
    if ptx is None:
        return None
    (work / "device_kernel.ptx").write_text(nvrtc.drop_unused_constants(ptx), encoding="utf-8")
    command = [compiler.ptxas, f"-arch={target.arch}", "-m64", "-v", *split.ptxas]
    try:
        said = run_tool([*command, "device_kernel.ptx", "-o", "kernel.cubin"], where, deadline - time.monotonic(), work)
    except BuildError:
        if time.monotonic() >= deadline:
            raise
        return None
    return (work / "kernel.cubin").read_bytes(), log + said, "nvrtc"


def _resource_usage(log: str) -> tuple[int, int, int]:
    """Registers, spilled bytes and static shared memory, from ``ptxas -v``; each the largest of all kernels."""

    def largest(pattern: str) -> int:
        return max((sum(int(g) for g in m.groups()) for m in re.finditer(pattern, log)), default=0)

    registers = largest(r"Used (\d+) registers")
    spills = largest(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
    return registers, spills, largest(r"(\d+) bytes smem")
