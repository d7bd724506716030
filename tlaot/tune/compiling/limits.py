"""What a device cannot run whatever it is given, told from the launch plan and from what the device's compiler says.

Such a candidate needs no compiler, or no device, to fail. Cooperative launches and clusters have the same limits per block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...target import Target
from ..frontends.lowered import DeviceKernel
from .devices import Device
from .nvcc import DeviceCode

__all__ = ["find_excess", "find_excess_after_compiling", "find_excess_in_error"]

# Some releases of ptxas refuse more static shared memory than a block has without asking.
_TOO_MUCH_STATIC = re.compile(r"uses too much shared data \((0x[0-9a-fA-F]+) bytes, (0x[0-9a-fA-F]+) max\)")


def find_excess(kernels: Sequence[DeviceKernel], device: Device, target: Target) -> str | None:
    """Why a launch plan fits no device of the target; None where it may fit."""
    for kernel in kernels:
        if kernel.threads is not None and kernel.threads > device.max_threads:
            return f"needs {kernel.threads} threads per block, {target} has {device.max_threads}"
        if kernel.dyn_shared is not None and kernel.dyn_shared > device.shared_memory:
            return _shared(kernel.dyn_shared, device, target)
    return None


def find_excess_after_compiling(
    kernels: Sequence[DeviceKernel], code: DeviceCode, device: Device, target: Target
) -> str | None:
    """Why compiled code fits no device of the target; None where it may fit.

    What the compiler says is the largest of all kernels of the source; it is held against the smallest launch.
    """
    dynamic = min((kernel.dyn_shared or 0 for kernel in kernels), default=0)
    if code.static_shared + dynamic > device.shared_memory:
        return _shared(code.static_shared + dynamic, device, target)
    threads = min((kernel.threads or 1 for kernel in kernels), default=1)
    # A warp's registers are handed out in units of 256 (CUDA's occupancy calculator, compute capability 3.0 to 12.x).
    registers = -(-threads // device.warp_size) * -(-code.registers * device.warp_size // 256) * 256
    if registers > device.registers:
        return (
            f"needs {registers} registers per block ({code.registers} for each of {threads} threads), "
            f"{target} has {device.registers}"
        )
    return None


def find_excess_in_error(text: str, target: Target) -> str | None:
    """Why a compiler that failed with a text could not fit the code on the target; None where it failed for another reason."""
    found = _TOO_MUCH_STATIC.search(text)
    if found is None:
        return None
    needed, most = (int(number, 16) / 1024 for number in found.groups())
    return f"needs {needed:.1f} KiB of static shared memory per block, {target} has {most:g} KiB"


def _shared(needed: int, device: Device, target: Target) -> str:
    return f"needs {needed / 1024:.1f} KiB of shared memory per block, {target} has {device.shared_memory / 1024:g} KiB"
