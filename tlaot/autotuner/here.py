"""This machine, as a tuning from Python finds it: devices, compilers, and the target that a request means here."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import BuildError, SpecError
from ..target import Target, parse_target
from ..tune.compiling.toolchain import Toolchain, find_toolchain
from ..tune.executors.local import fitting_gpus
from ..tune.frontends import FRONTENDS
from ..tune.machine import Machine, inspect_machine
from ..tune.measuring.timing import CPU_CLOCKS, CUDA_CLOCKS
from ..tune.telling.journal import Journal
from .request import Request
from .settings import read_default_target, read_execution_backend

__all__ = ["check_clock", "choose_devices", "machine_here", "machine_identity", "resolve_target", "toolchain_here"]

# Backends of TileLang whose result is what an executable.so is.
_BACKENDS = ("auto", "tvm_ffi", None)


def resolve_target(request: Request, machine: Machine | None = None) -> Target:
    """The target of a request; ``"auto"`` is this machine's GPU for TileLang, its CPU for TVM or where there is no GPU.

    Raises:
        SpecError: The target or the execution backend cannot be built, or not by this frontend.
    """
    asked = request.compile_args.target
    if asked is None or asked == "auto":
        asked = request.factory.target if request.factory.target is not None else read_default_target()
    backend = request.compile_args.execution_backend
    backend = read_execution_backend() if backend is None or backend == "auto" else backend
    if backend not in _BACKENDS:
        raise SpecError(
            "execution_backend",
            f"{backend!r} does not give a library that can be shipped",
            "Use 'auto' or 'tvm_ffi': host code and cubin in one executable.so, loaded without TileLang.",
        )
    frontend = request.factory.frontend
    if asked in (None, "auto"):
        gpus = (machine or machine_here()[0]).gpus
        if frontend == "tvm":
            return parse_target("llvm")
        return parse_target(f"cuda:{_arch(gpus[0].capability)}" if gpus else "c")
    target = _parse(asked)
    kinds = {"tvm": ("llvm", "cuda"), "tilelang": ("cuda", "c")}[frontend]
    if target.kind not in kinds:
        raise SpecError("target", f"the frontend {frontend} cannot build {target}", f"It builds {', '.join(kinds)}.")
    return target


def machine_identity(request: Request) -> dict[str, Any]:
    """What of this machine can change the result: device model, compilers, versions."""
    machine = machine_here()[0]
    target = resolve_target(request, machine)
    toolchain = toolchain_here(target.is_cuda)
    return {
        "device": machine.device_name(target),
        "distributions": dict(machine.distributions),
        "cc": toolchain.host.version,
        "nvcc": toolchain.cuda.version if toolchain.cuda is not None else None,
        "nvrtc": toolchain.cuda is not None and bool(toolchain.cuda.nvrtc),
    }


def _parse(asked: Any) -> Target:
    if isinstance(asked, Target):
        return asked
    if isinstance(asked, str):
        if asked == "cuda":
            gpus = machine_here()[0].gpus
            if not gpus:
                raise SpecError(
                    "target", "'cuda' names no architecture and this machine has no GPU", "Write cuda:sm_90a."
                )
            return parse_target(f"cuda:{_arch(gpus[0].capability)}")
        return parse_target(asked)
    if isinstance(asked, Mapping):
        kind, arch = str(asked.get("kind", "")), asked.get("arch") or asked.get("mcpu")
    else:  # a TVM target
        kind = str(getattr(getattr(asked, "kind", ""), "name", ""))
        attributes = getattr(asked, "attrs", {})
        arch = attributes.get("arch") or attributes.get("mcpu")
    if kind == "cuda" and not arch:
        return _parse("cuda")
    return parse_target(f"{kind}:{arch}" if arch else kind)


def _arch(capability: tuple[int, int]) -> str:
    """The architecture whose every instruction a device has: ``sm_90a``, not ``sm_90``, from Hopper on."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@functools.lru_cache(maxsize=1)
def machine_here() -> tuple[Machine, tuple[str, ...], dict[str, str]]:
    """The machine, the search path and the environment of children; looked at once a process."""
    search_path = tuple(dict.fromkeys(os.path.abspath(entry or os.getcwd()) for entry in sys.path))
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return inspect_machine(search_path, environ), search_path, environ


@functools.lru_cache(maxsize=2)
def toolchain_here(cuda: bool) -> Toolchain:
    """The compilers, which are asked for their versions once a process and not at each look into the cache."""
    return find_toolchain(machine_here()[2], cuda)


def check_clock(backend: str, target: Target) -> None:
    known = CUDA_CLOCKS if target.is_cuda else CPU_CLOCKS
    if backend not in known:
        raise SpecError("backend", f"unknown profiler backend {backend!r} for {target}", f"Known: {', '.join(known)}.")


def choose_devices(request: Request, target: Target, machine: Machine, journal: Journal) -> list[str]:
    """Measuring devices: the first that runs the target, or those that the run asked for, of one model only."""
    frontend = request.factory.frontend
    if FRONTENDS[frontend][1] not in machine.distributions:
        raise BuildError("autotune", f"{FRONTENDS[frontend][1]} is not installed", f'pip install "tlaot[{frontend}]".')
    run = request.run_args
    several = run.benchmark_multi_gpu or run.benchmark_devices is not None
    if not target.is_cuda:
        if several:
            journal.say(f"benchmark_multi_gpu is for CUDA targets, got {target}; measuring on the CPU")
        return ["cpu"]
    fitting = [gpu for gpu in machine.gpus if target.runs_on(gpu.capability)]
    if not fitting:
        raise BuildError(
            "autotune", f"there is no GPU to measure {target} on", "Name another target, or run where there is one."
        )
    if not several:
        return [f"cuda:{fitting[0].index}"]
    return [f"cuda:{gpu.index}" for gpu in fitting_gpus(target, machine, run.benchmark_devices, journal.say)]
