"""What this machine's devices and their driver can run: asked once, on the first call that needs it, never at import."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from functools import cache

from ..errors import LoadError, SpecError
from ..plain import record
from ..target import DLPACK_CUDA
from .dispatch import Place

__all__ = [
    "CudaDevice",
    "cpu_name",
    "cuda_capability",
    "cuda_device",
    "cuda_place",
    "cuda_version",
    "current_cuda_device",
]

# cuda.h, CUdevice_attribute.
_MULTIPROCESSOR_COUNT = 16
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_SHARED_MEMORY = 97


@record(frozen=True)
class CudaDevice:
    """A CUDA device as the driver describes it.

    Attributes:
        name: ``"NVIDIA H200"``.
        capability: Compute capability.
        sm_count: Streaming multiprocessors; of a MIG instance its own.
        shared_memory: Bytes that one block may have, after opting in.
    """

    name: str
    capability: tuple[int, int]
    sm_count: int
    shared_memory: int | None = None


@cache
def cuda_device(ordinal: int) -> CudaDevice:
    """Describe a CUDA device.

    Asks the driver, which numbers devices as every framework does (``CUDA_VISIBLE_DEVICES`` and
    ``CUDA_DEVICE_ORDER`` are applied by the driver itself), and makes no context.

    Raises:
        LoadError: There is no driver, or no such device.
    """
    where = f"cuda:{ordinal}"
    driver = _open_driver(where)
    device = ctypes.c_int()
    _check(driver, driver.cuInit(0), where)
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)), where)
    found = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MULTIPROCESSOR_COUNT, _SHARED_MEMORY):
        value = ctypes.c_int()
        _check(driver, driver.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(attribute), device), where)
        found.append(value.value)
    name = ctypes.create_string_buffer(256)
    _check(driver, driver.cuDeviceGetName(name, ctypes.c_int(len(name)), device), where)
    return CudaDevice(name.value.decode(errors="replace"), (found[0], found[1]), found[2], found[3])


def current_cuda_device() -> int:
    """Ordinal of the device whose context is current in this thread, as every framework makes one; 0 without one.

    Raises:
        LoadError: There is no driver.
    """
    driver = _open_driver("cuda")
    device = ctypes.c_int()
    _check(driver, driver.cuInit(0), "cuda")
    return device.value if driver.cuCtxGetDevice(ctypes.byref(device)) == 0 else 0


def cuda_capability(ordinal: int) -> tuple[int, int]:
    """Compute capability of a CUDA device; raises as :func:`cuda_device`."""
    return cuda_device(ordinal).capability


def cuda_place(ordinal: int, environ: Mapping[str, str] | None = None) -> Place:
    """Where a call with tensors on a CUDA device runs; raises as :func:`cuda_device`.

    Raises:
        SpecError: ``TLAOT_PTX`` is neither 0 nor 1.
    """
    text = (os.environ if environ is None else environ).get("TLAOT_PTX", "").strip()
    if text not in ("", "0", "1"):
        raise SpecError("TLAOT_PTX", f"expected 0 or 1, got {text!r}", "Write TLAOT_PTX=0 to have PTX refused.")
    device = cuda_device(ordinal)
    return Place(
        DLPACK_CUDA,
        ordinal,
        capability=device.capability,
        ptx=text != "0",
        device=device.name,
        sm_count=device.sm_count,
        shared_memory=device.shared_memory,
    )


@cache
def cuda_version() -> tuple[int, int]:
    """The version of CUDA that the driver offers, ``(12, 8)``.

    Raises:
        LoadError: There is no driver, or it does not say.
    """
    driver = _open_driver("cuda")
    value = ctypes.c_int()
    _check(driver, driver.cuDriverGetVersion(ctypes.byref(value)), "cuda")
    return value.value // 1000, value.value % 1000 // 10


def _open_driver(where: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LoadError(where, f"the CUDA driver cannot be loaded ({error})", "Install the NVIDIA driver.") from None


def _check(driver: ctypes.CDLL, status: int, where: str) -> None:
    if status == 0:
        return
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    text = name.value.decode() if name.value else f"error {status}"
    raise LoadError(where, f"the CUDA driver answers {text}", "Check nvidia-smi and CUDA_VISIBLE_DEVICES.")


@cache
def cpu_name() -> str:
    """The model of this machine's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
