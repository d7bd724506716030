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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import BuildError, SpecError
from ..children.processes import Spawned, kill_trees
from . import nvrtc

__all__ = [
    "KILLED",
    "CudaCompiler",
    "HostCompiler",
    "Toolchain",
    "find_cc",
    "find_nvcc",
    "find_toolchain",
    "run_tool",
]

_INSTALL_CC = "Install one: apt-get install gcc g++ (Debian, Ubuntu), dnf install gcc gcc-c++ (Fedora), or set CC."
_INSTALL_NVCC = "Install CUDA 12.8 or later, or: pip install 'nvidia-cuda-nvcc>=13' 'nvidia-cuda-runtime>=13' 'nvidia-cuda-cccl>=13'"

# gcc's words where somebody, or the machine out of memory, has killed what it had started.
KILLED = ("Killed signal", "Terminated signal")


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
        build: nvcc's own version, ``"13.0.88"``; "" where it is not known.
    """

    nvcc: str
    flags: tuple[str, ...]
    version: str
    host: str = ""
    nvrtc: str = ""
    ptxas: str = ""
    include: tuple[str, ...] = ()
    build: str = ""


@dataclass(frozen=True)
class Toolchain:
    """All that turns a ``Lowered`` into an ``executable.so``."""

    host: HostCompiler
    cuda: CudaCompiler | None = None


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
    build = re.search(rf"V({re.escape(match[1])}\.\d+)", output)
    compiler = CudaCompiler(str(nvcc), flags, match[1], environ.get("NVCC_CCBIN", ""), build=build[1] if build else "")
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
