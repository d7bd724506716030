"""What this machine can build and measure: processors, GPUs, frontends.

The CUDA driver is asked in a short-lived process (``python -m tlaot.tune.machine``), so that a build holds no context while its measuring
child works and can go on after a driver that misbehaves.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..runtime.device import cpu_name
from ..target import Target
from .measuring.nvml import driver_version

__all__ = ["Gpu", "Machine", "cpu_level", "find_distributions", "inspect_machine"]

# CUdevice_attribute of cuda.h
_MULTIPROCESSOR_COUNT = 16
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


# The psABI's levels by names of /proc/cpuinfo; "abm" is there what the psABI calls LZCNT.
_LEVEL_FLAGS = (
    ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
    ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
    ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
)


@dataclass(frozen=True)
class Gpu:
    """One visible CUDA device.

    Attributes:
        index: Its number among the visible ones.
        name: The model.
        capability: Compute capability.
        sm_count: Streaming multiprocessors.
        driver: The CUDA version that the driver offers, as it says it: 13000.
        release: The driver's own version, ``"580.65.06"``; "" where NVML does not say.
    """

    index: int
    name: str
    capability: tuple[int, int]
    sm_count: int
    driver: int
    release: str = ""


@dataclass(frozen=True)
class Machine:
    """The machine that builds: its processor, GPUs, and the versions of the distributions that matter."""

    cpu: str
    cpu_count: int
    gpus: tuple[Gpu, ...]
    distributions: Mapping[str, str]

    def gpu_for(self, target: Target) -> Gpu | None:
        """The first GPU that executes a target's code."""
        return next((gpu for gpu in self.gpus if target.runs_on(gpu.capability)), None)

    def device_name(self, target: Target) -> str:
        """What a target's candidates are measured on, for the record."""
        if not target.is_cuda:
            return f"{self.cpu}, {self.cpu_count} CPUs"
        gpu = self.gpu_for(target)
        return "none" if gpu is None else f"{gpu.name}, {gpu.sm_count} SMs, driver {gpu.driver}"

    def device_facts(self, target: Target) -> dict[str, Any]:
        """What a target's candidates are measured on, as data: the model and what can change the times on it."""
        if not target.is_cuda:
            return {"name": self.cpu, "cpus": self.cpu_count}
        gpu = self.gpu_for(target)
        if gpu is None:
            return {}
        facts: dict[str, Any] = {
            "name": gpu.name,
            "sm_count": gpu.sm_count,
            "capability": f"{gpu.capability[0]}.{gpu.capability[1]}",
            "cuda": f"{gpu.driver // 1000}.{gpu.driver % 1000 // 10}",
        }
        return {**facts, "driver": gpu.release} if gpu.release else facts


def inspect_machine(search_path: Sequence[str], environ: Mapping[str, str]) -> Machine:
    """Look at the machine; takes some tens of ms, more where a CUDA driver has to wake up."""
    return Machine(cpu_name(), len(os.sched_getaffinity(0)), _gpus(search_path, environ), find_distributions())


def find_distributions() -> dict[str, str]:
    """Versions of the installed distributions that a build may need."""
    names = ("apache-tvm", "tilelang", "apache-tvm-ffi", "torch", "numpy")
    return {name: version for name in names if (version := _version(name)) is not None}


def cpu_level(path: Path = Path("/proc/cpuinfo")) -> int | None:
    """Rank of the highest x86-64 level that this processor runs, 1 to 4; None where it is another processor, or does not say."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), None)
    if flags is None:
        return None
    level = 1
    for wanted in _LEVEL_FLAGS:
        if not flags.issuperset(wanted):
            break
        level += 1
    return level


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus(search_path: Sequence[str], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    for _ in range(2):  # one that somebody else killed says nothing of the machine
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tlaot.tune.machine"],
                env={**environ, "PYTHONPATH": os.pathsep.join(search_path)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                check=True,
            )
            break
        except (subprocess.SubprocessError, OSError):
            continue
    else:
        return ()
    return tuple(Gpu(**{**gpu, "capability": tuple(gpu["capability"])}) for gpu in json.loads(done.stdout))


def _ask_driver() -> list[Gpu]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, driver = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    cuda.cuDriverGetVersion(ctypes.byref(driver))
    release = driver_version() or ""
    gpus = []
    for index in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            continue
        cuda.cuDeviceGetName(name, len(name), device)

        def attribute(number: int, device: ctypes.c_int = device) -> int:
            value = ctypes.c_int()
            cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
            return value.value

        capability = (attribute(_CAPABILITY_MAJOR), attribute(_CAPABILITY_MINOR))
        gpus.append(
            Gpu(index, name.value.decode(), capability, attribute(_MULTIPROCESSOR_COUNT), driver.value, release)
        )
    return gpus


if __name__ == "__main__":
    print(json.dumps([asdict(gpu) for gpu in _ask_driver()]))
