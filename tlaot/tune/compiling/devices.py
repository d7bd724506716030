"""The devices that targets stand for, and answering an author's device queries for them.

Kernels are elaborated where there is no GPU, or another one than the target's. Persistent kernels ask for the number of
SMs all the same, some when their module is imported. In a worker process the answers are therefore the target
device's, and what was asked is recorded: such a kernel is tied to a device like this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any

from ...errors import SpecError, did_you_mean
from ...imports import patch_imports
from ...target import Target

__all__ = ["DEVICES", "Asked", "Device", "device_for", "impersonate"]

Asked = dict[str, int | str]

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30

# Shared memory that a block has without asking for more: the same on every device since Fermi.
_DEFAULT_SHARED = 48 * _KIB


@dataclass(frozen=True)
class Device:
    """What programs ask of a CUDA device. Sizes are in bytes.

    Attributes:
        name: As the driver reports it.
        arch: The target's architecture, ``sm_90a``.
        capability: Compute capability.
        sm_count: Streaming multiprocessors.
        shared_memory: Largest shared memory of one block, after opting in.
        shared_memory_per_sm: Shared memory of one multiprocessor.
        l2_cache: Level 2 cache.
        max_threads_per_sm: Resident threads of one multiprocessor.
        memory: Global memory.
        registers: 32-bit registers of one multiprocessor, and at most of one block.
        max_threads: Threads of one block.
        warp_size: Threads of one warp.
    """

    name: str
    arch: str
    capability: tuple[int, int]
    sm_count: int
    shared_memory: int
    shared_memory_per_sm: int
    l2_cache: int
    max_threads_per_sm: int
    memory: int
    registers: int = 65536
    max_threads: int = 1024
    warp_size: int = 32


def _device(
    name: str, capability: tuple[int, int], sm_count: int, shared_per_sm: int, l2: int, threads: int, memory: int
) -> Device:
    # Volta and Turing give a block all of it; since Ampere the system keeps 1 KiB a block.
    shared = (shared_per_sm if capability < (8, 0) else shared_per_sm - 1) * _KIB
    return Device(
        name=name,
        arch="sm_{}{}".format(*capability),
        capability=capability,
        sm_count=sm_count,
        shared_memory=shared,
        shared_memory_per_sm=shared_per_sm * _KIB,
        l2_cache=l2,
        max_threads_per_sm=threads,
        memory=memory,
    )


# One usual data-centre device for each compute capability. Per-SM limits: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability"; SM counts, caches and memory: NVIDIA's architecture white papers.
DEVICES: dict[tuple[int, int], Device] = {
    device.capability: device
    for device in (
        _device("Tesla V100-SXM2-32GB", (7, 0), 80, 96, 6 * _MIB, 2048, 32 * _GIB),
        _device("Tesla T4", (7, 5), 40, 64, 4 * _MIB, 1024, 16 * _GIB),
        _device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 164, 40 * _MIB, 2048, 80 * _GIB),
        _device("NVIDIA A10", (8, 6), 72, 100, 6 * _MIB, 1536, 24 * _GIB),
        _device("NVIDIA L4", (8, 9), 58, 100, 48 * _MIB, 1536, 24 * _GIB),
        _device("NVIDIA H100 80GB HBM3", (9, 0), 132, 228, 50 * _MIB, 2048, 80 * _GIB),
        _device("NVIDIA B200", (10, 0), 148, 228, 126 * _MIB, 2048, 180 * _GIB),
        _device("NVIDIA B300", (10, 3), 148, 228, 126 * _MIB, 2048, 270 * _GIB),
        _device("NVIDIA RTX PRO 6000 Blackwell", (12, 0), 188, 100, 128 * _MIB, 1536, 96 * _GIB),
        _device("NVIDIA GB10", (12, 1), 48, 100, 24 * _MIB, 1536, 128 * _GIB),
    )
}

# What find_excess holds a kernel against.
_LIMITS = ("shared_memory", "max_threads", "registers", "warp_size")

# Not for the author to change: they follow from the target.
_FIXED = ("arch", "capability")


def device_for(target: Target, overrides: Mapping[str, Any] | None = None) -> Device:
    """The device that a CUDA target stands for; of PTX, what all devices that read it have.

    Args:
        target: ``cuda:sm_90a``...
        overrides: The spec's ``[target."cuda:sm_90a"]`` table, its keys with ``_`` for ``-``: ``sm_count``,
            ``shared_memory``, ``name``...

    Raises:
        SpecError: An override is unknown or of the wrong type, or the architecture is not in the table.
    """
    where = f'[target."{target}"]'
    overrides = dict(overrides or {})
    known = {field.name: int if field.name != "name" else str for field in fields(Device) if field.name not in _FIXED}
    for key, value in overrides.items():
        if key not in known:
            names = [_spelt(name) for name in known]
            hint = did_you_mean(_spelt(key), names)
            raise SpecError(where, f"unknown key {_spelt(key)!r}{hint}", f"Known keys: {', '.join(names)}.")
        if type(value) is not known[key] or (isinstance(value, int) and value <= 0):
            expected = "a string" if known[key] is str else "a positive integer"
            raise SpecError(where, f"{_spelt(key)} is not {expected}, got {value!r}", "")
    base = DEVICES.get(target.capability)
    if base is None:
        base = _newest_before(target)
        needed = [key for key in ("name", "sm_count", "shared_memory") if key not in overrides]
        if needed:
            raise SpecError(
                where,
                f"no device of compute capability {'.'.join(map(str, target.capability))} is known",
                f"Describe it: give {', '.join(map(_spelt, needed))} there.",
            )
    device = replace(base, **overrides, arch=target.sm, capability=target.capability)
    return _smallest(device, target) if target.is_virtual else device


def _smallest(device: Device, target: Target) -> Device:
    """The device with no more of what a kernel may need than every device has that reads the PTX: an A100 has 163 KiB of shared
    memory for a block, of its successors many have 99."""
    readers = [device, *(other for capability, other in DEVICES.items() if target.runs_on(capability))]
    return replace(device, **{name: min(getattr(reader, name) for reader in readers) for name in _LIMITS})


# The device that this process answers for, and what it was asked.
_answering: tuple[Device, Asked] | None = None


def impersonate(device: Device) -> Asked:
    """Make torch and TileLang answer every question about the current device for this one, from now on.

    Call it before the author's module is imported. Modules that are not imported yet are changed when they are,
    so that this imports nothing itself. A real device in the machine makes no difference. Calling it again for the same device
    changes nothing.

    Returns:
        What was asked so far and what the answer was, by :class:`Device`'s names; it grows as questions come.

    Raises:
        RuntimeError: This process answers for another device already: what a module has heard cannot be taken back.
    """
    global _answering
    if _answering is not None:
        if _answering[0] != device:
            raise RuntimeError(f"this process answers for {_answering[0]}, not for {device}")
        return _answering[1]
    asked: Asked = {}
    _answering = device, asked
    patches: dict[str, Callable[[ModuleType], None]] = {
        "torch.cuda": lambda module: _patch_torch_cuda(module, device, asked),
        "tilelang.carver.arch.driver.cuda_driver": lambda module: _patch_tilelang_driver(module, device, asked),
        "tilelang.cuda.target": lambda module: _patch_tilelang_target(module, device),
        "tilelang.contrib.nvcc": lambda module: _patch_tilelang_nvcc(module, device, asked),
    }
    patch_imports(patches)
    return asked


def _spelt(key: str) -> str:
    return key.replace("_", "-")


def _newest_before(target: Target) -> Device:
    older = [capability for capability in DEVICES if capability <= target.capability]
    return DEVICES[max(older, default=min(DEVICES))]


class _Properties:
    """Stands for the object that ``torch.cuda.get_device_properties`` returns; notes what is read."""

    def __init__(self, device: Device, asked: Asked) -> None:
        self._values: dict[str, tuple[str, Any]] = {
            "name": ("name", device.name),
            "major": ("capability", device.capability[0]),
            "minor": ("capability", device.capability[1]),
            "multi_processor_count": ("sm_count", device.sm_count),
            "total_memory": ("memory", device.memory),
            "warp_size": ("warp_size", device.warp_size),
            "L2_cache_size": ("l2_cache", device.l2_cache),
            "max_threads_per_block": ("max_threads", device.max_threads),
            "max_threads_per_multi_processor": ("max_threads_per_sm", device.max_threads_per_sm),
            "regs_per_multiprocessor": ("registers", device.registers),
            "shared_memory_per_block": ("default_shared_memory", _DEFAULT_SHARED),
            "shared_memory_per_block_optin": ("shared_memory", device.shared_memory),
            "shared_memory_per_multiprocessor": ("shared_memory_per_sm", device.shared_memory_per_sm),
            "is_integrated": ("integrated", 0),
            "is_multi_gpu_board": ("multi_gpu_board", 0),
        }
        self._device = device
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"tlaot answers for {self._device.name} and does not know its {name!r}")
        key, value = self._values[name]
        self._asked[key] = _text(self._device.capability) if key == "capability" else value
        return value


def _text(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _patch_torch_cuda(module: ModuleType, device: Device, asked: Asked) -> None:
    def capability(which: Any = None) -> tuple[int, int]:
        asked["capability"] = _text(device.capability)
        return device.capability

    def name(which: Any = None) -> str:
        asked["name"] = device.name
        return device.name

    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": capability,
        "get_device_name": name,
        "get_device_properties": lambda which=None: _Properties(device, asked),
        "get_arch_list": lambda: [device.arch],
        "is_bf16_supported": lambda including_emulation=True: device.capability >= (8, 0) or including_emulation,
    }
    for function, answer in answers.items():
        setattr(module, function, answer)


# Numbers of the CUDA Runtime API's cudaDeviceAttr -> the attribute of _Properties that answers it.
_CUDA_ATTRIBUTES = {
    1: "max_threads_per_block",
    8: "shared_memory_per_block",
    10: "warp_size",
    12: "regs_per_multiprocessor",
    16: "multi_processor_count",
    38: "L2_cache_size",
    39: "max_threads_per_multi_processor",
    75: "major",
    76: "minor",
    81: "shared_memory_per_multiprocessor",
    82: "regs_per_multiprocessor",
    97: "shared_memory_per_block_optin",
}
_PERSISTING_L2 = 108


def _patch_tilelang_driver(module: ModuleType, device: Device, asked: Asked) -> None:
    def attribute(number: int, device_id: int = 0) -> int:
        properties = _Properties(device, asked)
        if number == _PERSISTING_L2:
            # At most three quarters of the cache can be set aside (A100; CUDA C++ Best Practices Guide).
            return int(properties.L2_cache_size) * 3 // 4
        if number not in _CUDA_ATTRIBUTES:
            raise RuntimeError(f"tlaot answers for {device.name} and does not know its CUDA device attribute {number}")
        return int(getattr(properties, _CUDA_ATTRIBUTES[number]))

    # The module's other functions are built on these two.
    vars(module)["get_device_attribute"] = attribute
    vars(module)["get_cuda_device_properties"] = lambda device_id=0: _Properties(device, asked)


def _patch_tilelang_target(module: ModuleType, device: Device) -> None:
    # Both the detection of target "auto" and the completion of a bare "cuda" call these.
    vars(module)["check_cuda_availability"] = lambda: True
    vars(module)["_detect_torch_cuda_arch"] = lambda: device.arch


def _patch_tilelang_nvcc(module: ModuleType, device: Device, asked: Asked) -> None:
    original = module.get_target_compute_version

    def version(target: Any = None) -> str:
        chosen = target or module.Target.current()
        if chosen is not None and "arch" in chosen.attrs:
            return str(original(chosen))
        # Without a target it is the GPU's; modules ask so when they are imported, to choose among kernels.
        asked["capability"] = _text(device.capability)
        return _text(device.capability)

    vars(module)["get_target_compute_version"] = version
