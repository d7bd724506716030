"""CUDA C++ to device code: a cubin, or PTX for a virtual architecture. NVRTC compiles what it can, nvcc the rest."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import BuildError, TlaotError
from ...image import read_image
from ...target import Target
from ..children.processes import fork_quietly
from . import nvrtc
from .file_names import find_file_names, include_folders, rename_in_ptx, renaming_flags
from .precompiled import Headers
from .toolchain import CudaCompiler, find_nvcc, run_tool

__all__ = ["DeviceCode", "compile_cuda", "preload_cuda"]

_PLACE_FLAGS = ("-lineinfo", "--generate-line-info", "-G", "--device-debug", "-g", "--debug")


@dataclass(frozen=True)
class DeviceCode:
    """Compiled device code.

    Attributes:
        data: The cubin; for a virtual architecture the text of the PTX.
        registers: Registers a thread, of the kernel that uses most; of PTX what its oldest architecture takes.
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


@dataclass(frozen=True)
class _Job:
    """One source for one target, in a folder of its own.

    Attributes:
        source: CUDA C++.
        target: A CUDA target.
        flags: The frontend's.
        compiler: What ``find_nvcc`` found.
        work: The folder for intermediate files; nobody else uses it.
        deadline: When compilers are killed, by the monotonic clock.
        where: What to call the source in an error.
    """

    source: str
    target: Target
    flags: Sequence[str]
    compiler: CudaCompiler
    work: Path
    deadline: float
    where: str

    def run(self, command: Sequence[str]) -> str:
        """Run a compiler in the folder, as long as there is time; what it said."""
        # nvcc's own temporary files go with the folder, also when it is killed.
        left = self.deadline - time.monotonic()
        return run_tool(command, self.where, left, self.work, {"TMPDIR": str(self.work)})

    def write(self, name: str, text: str) -> None:
        (self.work / name).write_text(text, encoding="utf-8")


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
    begun = nvrtc.precompile_ahead(headers, target.sm, front, compiler.nvrtc, compiler.version)
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
) -> DeviceCode:
    """Compile CUDA C++ to a cubin or PTX; the same source and compiler give the same bytes, wherever ``scratch`` is.

    NVRTC compiles, in this process, what it can; what it refuses goes to nvcc. PTX has been through the assembler, for the
    oldest architecture that it is for.

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
        job = _Job(source, target, flags, compiler, Path(folder), deadline, where)
        made = _run_nvrtc(job, headers) if compiler.nvrtc else None
        if made is None:
            made = _run_nvcc(job)
            if names := find_file_names(made[0]):
                made = _run_nvcc(job, renaming_flags(names, include_folders(flags)))
        data, log, maker = made
    built = read_image(data, where)
    if not built.is_for(target.arch):
        raise BuildError(where, f"nvcc compiled for {built.arch}, expected {target.arch}", "Remove -arch flags.")
    return DeviceCode(data, *_resource_usage(log), log, f"{maker} {compiler.version}")


def _run_nvcc(job: _Job, more: Sequence[str] = ()) -> tuple[bytes, str, str]:
    def run(*arguments: str) -> str:
        return job.run([job.compiler.nvcc, *arguments])

    number = job.target.sm.removeprefix("sm_")
    host = [f"-ccbin={job.compiler.host}"] if job.compiler.host else []
    assemble = [
        "-cubin",
        "-gencode",
        f"arch=compute_{number},code=sm_{number}",
        "--ptxas-options=-v",
        "-o",
        "kernel.cubin",
    ]
    front = ["-O3", *host, *job.compiler.flags, *job.flags, *more, "device_kernel.cu"]
    job.write("device_kernel.cu", job.source)
    if not job.target.is_virtual:
        log = run(*assemble, *front)
        return (job.work / "kernel.cubin").read_bytes(), log, "nvcc"
    log = run("-ptx", "-gencode", f"arch=compute_{number},code=compute_{number}", "-o", "raw.ptx", *front)
    ptx = (job.work / "raw.ptx").read_text(encoding="utf-8")
    ptx = _without_comments(rename_in_ptx(ptx, include_folders(front)))
    job.write("kernel.ptx", ptx)
    log += run(*assemble, *host, "kernel.ptx")
    return ptx.encode(), log, "nvcc"


def _run_nvrtc(job: _Job, headers: Headers | None) -> tuple[bytes, str, str] | None:
    """NVRTC, then nvcc's ptxas; None where either refuses, so that the error shown is nvcc's."""
    split = nvrtc.split_flags(job.flags)
    if split is None:
        return None
    compiler, front = job.compiler, _front_flags(split, job.compiler)
    ptx, log = nvrtc.compile_to_ptx(job.source, job.target.sm, front, compiler.nvrtc, compiler.version, headers)
    if ptx is None:
        return None
    ptx = rename_in_ptx(nvrtc.drop_unused_constants(ptx), include_folders(front))
    if job.target.is_virtual:
        ptx = _without_comments(ptx)
    job.write("device_kernel.ptx", ptx)
    command = [compiler.ptxas, f"-arch={job.target.sm}", "-m64", "-v", *split.ptxas]
    try:
        said = job.run([*command, "device_kernel.ptx", "-o", "kernel.cubin"])
    except BuildError:
        if time.monotonic() >= job.deadline:
            raise
        return None
    data = ptx.encode() if job.target.is_virtual else (job.work / "kernel.cubin").read_bytes()
    return data, log + said, "nvrtc"


def _without_comments(ptx: str) -> str:
    """PTX as it ships: comments, blank lines and indentation are a quarter of what the compilers write."""
    lines = (line if '"' in line else line.partition("//")[0] for line in ptx.splitlines())
    return "".join(f"{line.strip()}\n" for line in lines if line.strip())


def _resource_usage(log: str) -> tuple[int, int, int]:
    """Registers, spilled bytes and static shared memory, from ``ptxas -v``; each the largest of all kernels."""

    def largest(pattern: str) -> int:
        return max((sum(int(g) for g in m.groups()) for m in re.finditer(pattern, log)), default=0)

    registers = largest(r"Used (\d+) registers")
    spills = largest(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
    return registers, spills, largest(r"(\d+) bytes smem")
