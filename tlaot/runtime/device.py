"""What this machine's devices can run: asked once, on the first call that needs it, never at import."""

from __future__ import annotations

import ctypes
from functools import cache

from ..errors import LoadError

__all__ = ["cuda_capability"]

# cuda.h, CUdevice_attribute.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


@cache
def cuda_capability(ordinal: int) -> tuple[int, int]:
    """Compute capability of a CUDA device.

    Asks the driver, which numbers devices as every framework does (``CUDA_VISIBLE_DEVICES`` and
    ``CUDA_DEVICE_ORDER`` are applied by the driver itself), and makes no context.

    Raises:
        LoadError: There is no driver, or no such device.
    """
    where = f"cuda:{ordinal}"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LoadError(where, f"the CUDA driver cannot be loaded ({error})", "Install the NVIDIA driver.") from None
    device = ctypes.c_int()
    _check(driver, driver.cuInit(0), where)
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)), where)
    found = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        value = ctypes.c_int()
        _check(driver, driver.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(attribute), device), where)
        found.append(value.value)
    return found[0], found[1]


def _check(driver: ctypes.CDLL, status: int, where: str) -> None:
    if status == 0:
        return
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    text = name.value.decode() if name.value else f"error {status}"
    raise LoadError(where, f"the CUDA driver answers {text}", "Check nvidia-smi and CUDA_VISIBLE_DEVICES.")
