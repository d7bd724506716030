"""What a frontend hands to the linker: plain data, no object of the compiler's own."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...manifest import Param

__all__ = ["DeviceKernel", "Lowered"]


@dataclass(frozen=True)
class DeviceKernel:
    """The launch plan of one ``__global__`` function.

    Attributes:
        name: Symbol in the cubin, and the name under which the host code calls it.
        args: One code for each device argument, in device order: ``"ptr"``, ``"tensormap"`` (a 128-byte
            CUtensorMap passed by value), or a scalar's dtype (``"int32"``, ``"float16"``, ``"int64"``...).
        aligns: For each argument, the alignment in bytes that the code assumes of a pointer; 0 elsewhere.
        launch: What follows the arguments in the host's call, in order. Entries are ``"blockIdx.x"``...,
            ``"threadIdx.x"``..., ``"cluster.x"``... and ``"dyn_shared"``, each with a value in the call,
            and the flags ``"cooperative"`` and ``"pdl"``, which have none.
        dyn_shared: Bytes of dynamic shared memory, where they do not depend on a size.
        threads: Threads of a block, where they do not depend on a size.
    """

    name: str
    args: tuple[str, ...]
    aligns: tuple[int, ...]
    launch: tuple[str, ...]
    dyn_shared: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Lowered:
    """One candidate after lowering, before a compiler of the host or the device has run.

    Attributes:
        entry: Symbol of the host function. With ``entry_abi`` ``"packed"`` it is
            ``int32_t entry(void *self, void *args, int32_t num_args, void *result)`` of the TVM FFI;
            with ``"plain"`` it takes each tensor's data pointer and each scalar, in the order of ``params``,
            then each symbolic size (int32), and returns nothing (TileLang's CPU target).
        entry_abi: ``"packed"`` or ``"plain"``.
        host_source: Host code as C (or C++ for ``"plain"``), or None.
        host_object: Host code as a relocatable object, or None.
        host_flags: Extra flags for the compiler of ``host_source``.
        device_source: CUDA C++ source, or None for a CPU target.
        device_flags: Extra flags for nvcc.
        kernels: Launch plan of each device function.
        params: Parameters in the order in which the entry takes them.
        out_idx: Outputs that the frontend itself declares (``@tilelang.jit(out_idx=...)``).
        frontend: Name and version of the frontend.
        narrow: Names of tensors with symbolic sizes whose elements the code addresses with 32 bits.
        asked: Device properties that the factory asked for, with what it was told.
    """

    entry: str
    entry_abi: str
    params: tuple[Param, ...]
    host_source: str | None = None
    host_object: bytes | None = None
    host_flags: tuple[str, ...] = ()
    device_source: str | None = None
    device_flags: tuple[str, ...] = ()
    kernels: tuple[DeviceKernel, ...] = ()
    out_idx: tuple[int, ...] = ()
    frontend: dict[str, str] = field(default_factory=dict)
    narrow: frozenset[str] = frozenset()
    asked: dict[str, int | str] = field(default_factory=dict)
