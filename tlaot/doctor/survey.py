"""Look at the machine: processor, GPUs, compilers, Python's packages and the disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..autotuner.settings import read_settings
from ..errors import TlaotError
from ..spelling import spell_bytes
from ..target import CPU_LEVELS
from ..tune.compiling.toolchain import CudaCompiler, HostCompiler, find_cc, find_nvcc
from ..tune.frontends import FRONTENDS
from ..tune.machine import Machine, cpu_level, inspect_machine
from .item import NOTE, OK, Item
from .probe import start_probes

__all__ = ["SETUPTOOLS", "SUPPORTED", "Surroundings", "describe", "look_around", "release_of"]

# First version that serves, and the first that does not any more, as in the extras of pyproject.toml, which a test compares.
SUPPORTED = {
    "apache-tvm": ("0.25.0.post1", "0.28"),
    "tilelang": ("0.1.15", "0.2"),
    "apache-tvm-ffi": ("0.1.11", "0.2"),
    "torch": ("2.4", ""),
    "optuna": ("4.0", ""),
}
SETUPTOOLS = "77"
_EXTRA = {"apache-tvm": "tvm", "tilelang": "tilelang", "torch": "torch", "optuna": "search"}
_PURPOSE = {
    "torch": "CUDA candidates are checked and timed through it",
    "optuna": 'search = "optuna" asks for it, and large spaces',
    "apache-tvm": 'kernels of frontend "tvm" need it',
    "tilelang": 'kernels of frontend "tilelang" need it',
}

# NVRTC's precompiled headers are made where so much is free (tune/compiling/precompiled.py).
_ROOM = 4 << 30


@dataclass(frozen=True)
class Surroundings:
    """What a build would find here.

    Attributes:
        machine: Processor, GPUs and the distributions of this environment.
        cpu_level: Rank of the processor's instruction level, 1 to 4; None where it is not known.
        cc: The host's compiler, or why there is none.
        cuda: nvcc, or why there is none.
        versions: Versions of further distributions: setuptools, pip, cloudpickle, optuna.
        probes: What became of importing modules, see :func:`~tlaot.doctor.probe.start_probes`; nothing of those not tried.
    """

    machine: Machine
    cpu_level: int | None
    cc: HostCompiler | TlaotError
    cuda: CudaCompiler | TlaotError
    versions: Mapping[str, str] = field(default_factory=dict)
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def look_around(environ: Mapping[str, str], quick: bool = False) -> Surroundings:
    """Look at everything; some 0.2 s, and where the frontends are tried until they are imported.

    Args:
        environ: The environment.
        quick: Do not try whether the frontends and torch can be imported.
    """
    machine = inspect_machine(tuple(entry for entry in sys.path if entry), environ)
    modules = {"apache-tvm": "tvm", "tilelang": "tilelang", "torch": "torch"}
    names = [] if quick else [module for name, module in modules.items() if name in machine.distributions]
    found = {name: _version(name) for name in ("setuptools", "pip", "cloudpickle", "optuna")}
    return Surroundings(
        machine,
        cpu_level(),
        _or_why(find_cc, environ),
        _or_why(find_nvcc, environ),
        {name: version for name, version in found.items() if version is not None},
        start_probes(names, environ),
    )


def _or_why(find: Any, environ: Mapping[str, str]) -> Any:
    try:
        return find(environ)
    except TlaotError as error:
        return error


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe(here: Surroundings, project: Path | None) -> Iterator[Item]:
    """What was found, a line each."""
    yield from _machine(here)
    yield from _compilers(here)
    yield from _python(here)
    yield from _disk(project)


def _machine(here: Surroundings) -> Iterator[Item]:
    level = "" if here.cpu_level is None else f", runs {CPU_LEVELS[here.cpu_level - 1]} and lower"
    yield Item("machine", "CPU", OK, f"{here.machine.cpu}, {here.machine.cpu_count} CPUs{level}")
    for gpu in here.machine.gpus:
        release = f"driver {gpu.release}, " if gpu.release else ""
        cuda = f"CUDA {gpu.driver // 1000}.{gpu.driver % 1000 // 10}"
        arch = f"sm_{gpu.capability[0]}{gpu.capability[1]}"
        yield Item("machine", f"GPU {gpu.index}", OK, f"{gpu.name}, {arch}, {gpu.sm_count} SMs, {release}{cuda}")
    if not here.machine.gpus:
        what = "none that the CUDA driver shows"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None:
            yield Item(
                "machine", "GPU", NOTE, f"{what}; CUDA_VISIBLE_DEVICES={hidden!r} is set", "unset CUDA_VISIBLE_DEVICES"
            )
        else:
            remedy = "tune where a GPU is (tlaot tune), commit tltune.lock, and build here from that"
            yield Item("machine", "GPU", NOTE, f"{what}: CUDA kernels cannot be tuned here", remedy)


def _compilers(here: Surroundings) -> Iterator[Item]:
    if isinstance(here.cc, TlaotError):
        yield Item("compilers", "C", NOTE, here.cc.what, here.cc.remedy)
    else:
        cxx = f"; C++: {here.cc.cxx[0]}" if here.cc.cxx else ""
        yield Item("compilers", "C", OK, f"{here.cc.version} ({here.cc.cc[0]}){cxx}")
    if isinstance(here.cuda, TlaotError):
        yield Item("compilers", "nvcc", NOTE, here.cuda.what, here.cuda.remedy)
        return
    state, remedy = OK, ""
    if release_of(here.cuda.version) < (12, 8):
        state, remedy = NOTE, "install CUDA 12.8 or newer; CUDA_HOME names it"
    yield Item("compilers", "nvcc", state, f"{here.cuda.build or here.cuda.version} ({here.cuda.nvcc})", remedy)
    if here.cuda.nvrtc:
        yield Item("compilers", "NVRTC", OK, here.cuda.nvrtc)
    else:
        remedy = f"pip install 'nvidia-cuda-nvrtc=={here.cuda.version}.*'"
        if os.environ.get("TLAOT_NVRTC", "").strip() == "0":
            remedy = "unset TLAOT_NVRTC"
        yield Item(
            "compilers", "NVRTC", NOTE, "none of nvcc's release: every candidate takes nvcc, which is slower", remedy
        )


def _python(here: Surroundings) -> Iterator[Item]:
    venv = "" if sys.prefix == sys.base_prefix else f", in {sys.prefix}"
    yield Item("python", "python", OK, f"{platform.python_version()}{venv}")
    setuptools = here.versions.get("setuptools")
    remedy = f'pip install -U "setuptools>={SETUPTOOLS}"'
    what = "builds with --no-build-isolation need it"
    if setuptools is None:
        yield Item("python", "setuptools", NOTE, f"not installed; {what}", remedy)
    elif release_of(setuptools) < release_of(SETUPTOOLS):
        yield Item("python", "setuptools", NOTE, f"{setuptools}, older than {SETUPTOOLS}; {what}", remedy)
    else:
        yield Item("python", "setuptools", OK, setuptools)
    for name in ("apache-tvm-ffi", *(distribution for _, distribution in FRONTENDS.values()), "torch", "optuna"):
        yield _distribution(name, here)
    # Only a build asks for them, and each extra brings them.
    for name in ("cloudpickle", "numpy"):
        if {**here.machine.distributions, **here.versions}.get(name) is None:
            yield Item("python", name, NOTE, "not installed; builds need it", f"pip install {name}")


def _distribution(name: str, here: Surroundings) -> Item:
    version = {**here.versions, **here.machine.distributions}.get(name)
    install = f'pip install "tlaot[{_EXTRA[name]}]"' if name in _EXTRA else f"pip install {name}"
    if version is None:
        return Item(
            "python", name, NOTE, f"not installed; {_PURPOSE.get(name, 'every packaged kernel needs it')}", install
        )
    first, last = SUPPORTED[name]
    told = here.probes.get({"apache-tvm": "tvm"}.get(name, name), {})
    if told.get("error"):
        return Item(
            "python",
            name,
            NOTE,
            f"{version}, but it cannot be imported: {told['error']}",
            f"pip install --force-reinstall {name}=={version}",
        )
    if release_of(version) < release_of(first) or (last and release_of(version) >= release_of(last)):
        wanted = f"{name}>={first}" + (f",<{last}" if last else "")
        return Item(
            "python", name, NOTE, f"{version}; tlaot knows {wanted.removeprefix(name)}", f'pip install "{wanted}"'
        )
    if name == "torch" and told and not told.get("available"):
        built = f"built for CUDA {told['cuda']}" if told.get("cuda") else "built without CUDA"
        if here.machine.gpus:
            remedy = (
                "pip install --force-reinstall torch"
                if not told.get("cuda")
                else "python -c 'import torch; torch.cuda.init()' says why"
            )
            return Item(
                "python", name, NOTE, f"{version}, {built}: it finds no GPU, and cannot check CUDA kernels", remedy
            )
        return Item("python", name, OK, f"{version}, {built}")
    return Item("python", name, OK, version + (f", CUDA {told['cuda']}" if told.get("cuda") else ""))


def _disk(project: Path | None) -> Iterator[Item]:
    try:
        cache = read_settings().cache_dir
    except TlaotError as error:
        yield Item("disk", "cache", NOTE, str(error.what), error.remedy)
    else:
        yield Item(
            "disk",
            "cache",
            OK,
            f"{cache}, {spell_bytes(_size_of(cache))} (results of tlaot.autotune; tlaot cache clear)",
        )
    work = None if project is None else project / "build" / "tlaot"
    if work is not None and work.is_dir():
        yield Item("disk", "build/tlaot", OK, f"{spell_bytes(_size_of(work))} (what builds found; tlaot clean)")
    temporary = Path(tempfile.gettempdir())
    free = shutil.disk_usage(temporary).free
    if free < _ROOM:
        what = f"{temporary}, {spell_bytes(free)} free: NVRTC's precompiled headers are made where {spell_bytes(_ROOM)} are"
        yield Item("disk", "temporary", NOTE, what, "export TMPDIR=a folder with more room")
    else:
        yield Item("disk", "temporary", OK, f"{temporary}, {spell_bytes(free)} free")


def _size_of(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                pass  # it went while it was looked at
    return total


def release_of(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version, ``(0, 25, 0)`` of ``"0.25.0.post1"``."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
