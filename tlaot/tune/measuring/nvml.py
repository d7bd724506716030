"""What NVIDIA's management library says of a GPU: who uses it and how much. No context is made, and without the library nothing is known."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["Nvml", "driver_version", "open_nvml"]

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Use(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class Nvml:
    """One GPU as NVML sees it; each question is answered with None where the driver does not say."""

    def __init__(self, library: Any, device: ctypes.c_void_p) -> None:
        self._library = library
        self._device = device

    def utilization(self) -> int | None:
        """Percent of the last sample period, of 1/6 to 1 s, in which some kernel ran."""
        rates = _Rates()
        done = self._call("nvmlDeviceGetUtilizationRates", ctypes.byref(rates))
        return int(rates.gpu) if done == _SUCCESS else None

    def processes(self) -> list[int] | None:
        """Processes that have a context on it; from within a container there may be fewer, or other numbers."""
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            for size in (64, 1024):
                count, found = ctypes.c_uint(size), (_Process * size)()
                done = self._call(name, ctypes.byref(count), found)
                if done == _SUCCESS:
                    return [int(found[n].pid) for n in range(count.value)]
                if done != _INSUFFICIENT_SIZE:
                    break
        return None

    def uses(self, since: int) -> dict[int, int] | None:
        """The highest share of the multiprocessors, in percent, that each process had at once since a time in us of the epoch."""
        count, used = ctypes.c_uint(1024), (_Use * 1024)()
        done = self._call("nvmlDeviceGetProcessUtilization", used, ctypes.byref(count), ctypes.c_ulonglong(since))
        if done != _SUCCESS:
            return None
        shares: dict[int, int] = {}
        for n in range(count.value):
            if used[n].time > since:
                shares[int(used[n].pid)] = max(shares.get(int(used[n].pid), 0), int(used[n].sm))
        return shares

    def _call(self, name: str, *arguments: Any) -> int | None:
        function = getattr(self._library, name, None)
        return None if function is None else int(function(self._device, *arguments))


def open_nvml(uuid: str, library: str = _LIBRARY) -> Nvml | None:
    """NVML's view of the GPU with a UUID; None where there is no NVML or no such GPU."""
    try:
        loaded = ctypes.CDLL(library)
        if loaded.nvmlInit_v2() != _SUCCESS:
            return None
        device = ctypes.c_void_p()
        found = loaded.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
    except (OSError, AttributeError):
        return None
    return Nvml(loaded, device) if found == _SUCCESS else None


def driver_version(library: str = _LIBRARY) -> str | None:
    """The installed driver's version, ``"580.65.06"``; None where there is no NVML."""
    text = ctypes.create_string_buffer(96)
    try:
        loaded = ctypes.CDLL(library)
        if loaded.nvmlInit_v2() != _SUCCESS or loaded.nvmlSystemGetDriverVersion(text, len(text)) != _SUCCESS:
            return None
    except (OSError, AttributeError):
        return None
    return text.value.decode(errors="replace")
