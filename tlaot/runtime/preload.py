"""Load a package's kernels on a device ahead of their first calls: before memory is profiled, before a graph is captured.

What is loaded is what calls on that device can come to run: of each workload the best of the targets that run there. Nothing is
ever unloaded, so preloading again costs next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import CallError, LoadError, did_you_mean
from ..manifest import EXECUTABLE, Variant
from ..target import DLPACK_CPU, DLPACK_CUDA
from .binary import PRELOAD
from .choose import covers, merit_of
from .device import cuda_place, current_cuda_device
from .direct import direct_type
from .dispatch import Place, refuse_place, spell_workload, target_of

if TYPE_CHECKING:
    from .kernel import Kernel
    from .load import Kernels

__all__ = ["Loaded", "Only", "Preloaded", "preload"]

# Which variants: names of kernels, or by name the factory arguments that they must have, or a function that says so.
Only: TypeAlias = "str | Collection[str] | Mapping[str, Mapping[str, Any]] | Callable[[str, Variant], bool] | None"

_DEVICE = re.compile(r"cpu|cuda(?::(\d+))?")


@dataclass(frozen=True)
class Loaded:
    """One binary that is loaded.

    Attributes:
        kernel: Name of the kernel.
        target: What the binary is for.
        shapes: The workloads that run it.
        path: The file.
        size: Its bytes.
        code: Bytes of the device code in it, which is on the device now; None for the CPU, and where the binary does not say.
    """

    kernel: str
    target: str
    shapes: tuple[Mapping[str, Any], ...]
    path: Path
    size: int
    code: int | None


@dataclass(frozen=True)
class Preloaded:
    """What is loaded on a device; ``print`` shows it.

    Attributes:
        device: ``"cuda:0"`` or ``"cpu"``.
        binaries: The binaries.
    """

    device: str
    binaries: tuple[Loaded, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.binaries)

    @property
    def code(self) -> int:
        """Bytes of all device code."""
        return sum(one.code or 0 for one in self.binaries)

    def __str__(self) -> str:
        code = f", {_spell_bytes(self.code)} of them device code" if self.code else ""
        lines = [f"{self.device}: {len(self.binaries)} binaries, {_spell_bytes(self.size)}{code}"]
        for one in self.binaries:
            shapes = "; ".join(", ".join(f"{k}={v}" for k, v in sorted(shape.items())) for shape in one.shapes)
            lines.append(f"  {one.kernel} {one.target} ({shapes}): {_spell_bytes(one.size)}")
        return "\n".join(lines)


def preload(kernels: Kernels, device: Any = None, only: Only = None) -> Preloaded:
    """:meth:`tlaot.Kernels.preload`."""
    names = _names(kernels, only)
    opened = [kernels[name] for name in names]
    place = _place(opened, device)
    found = [one for kernel in opened for one in _load(kernel, place, only)]
    return Preloaded(str(place), tuple(found))


def _names(kernels: Kernels, only: Only) -> list[str]:
    if only is None or (callable(only) and not isinstance(only, (Collection, str))):
        return list(kernels)
    names = [only] if isinstance(only, str) else list(only)
    for name in names:
        if name not in kernels:
            what = f"there is no kernel {name!r}{did_you_mean(str(name), list(kernels))}"
            raise CallError("preload(only=...)", what, f"Kernels of the package: {', '.join(kernels) or 'none'}.")
    return names


def _place(opened: Iterable[Kernel], device: Any) -> Place:
    """The device, with what it can run.

    Raises:
        CallError: It is no device.
        LoadError: It is not there.
    """
    cuda = any(target_of(v.target).is_cuda for kernel in opened for v in kernel.variants)
    cpu = any(not target_of(v.target).is_cuda for kernel in opened for v in kernel.variants)
    device_type, ordinal = _read_device(device)
    if device_type is None:
        device_type = DLPACK_CUDA if cuda else DLPACK_CPU
        if cuda and cpu:
            try:
                cuda_place(0)
            except LoadError:
                device_type = DLPACK_CPU
    if device_type == DLPACK_CUDA:
        return cuda_place(current_cuda_device() if ordinal is None else ordinal)
    return Place(DLPACK_CPU)


def _read_device(device: Any) -> tuple[int | None, int | None]:
    """DLPack type and ordinal of what names a device; None where that is left open."""
    if device is None:
        return None, None
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return DLPACK_CUDA, device
    # torch.device spells itself "cuda:0", jax's and tvm_ffi's devices do as well.
    match = _DEVICE.fullmatch(str(device))
    if match is None:
        raise CallError(
            "preload(device=...)", f"is no device, got {device!r}", 'Write 0, "cuda:0", "cpu" or a torch.device.'
        )
    if str(device).startswith("cpu"):
        return DLPACK_CPU, 0
    return DLPACK_CUDA, None if match[1] is None else int(match[1])


def _load(kernel: Kernel, place: Place, only: Only) -> Iterator[Loaded]:
    chosen = [variant for variant in _candidates(kernel, place) if _wanted(kernel.name, variant, only)]
    by_path: dict[Path, list[Variant]] = {}
    for variant in chosen:
        by_path.setdefault(kernel.binary_of(variant), []).append(variant)
    for path, variants in by_path.items():
        one = variants[0]
        module = kernel.module_of(one)
        way = kernel.way_of(one)
        if way is not None:
            direct_type(way.path, way.digest)
        code = _ready(f"{kernel.name} on {place}", module, place) if place.device_type == DLPACK_CUDA else None
        shapes = tuple(variant.shape for variant in variants)
        yield Loaded(kernel.name, one.target, shapes, path, one.files[EXECUTABLE].size, code)


def _ready(where: str, module: Any, place: Place) -> int | None:
    """Have a binary's functions on a device; bytes of its device code.

    Raises:
        LoadError: The driver refuses.
    """
    try:
        ready = module[PRELOAD]
    except AttributeError:
        return None  # of an earlier tlaot; the first call does it
    try:
        return int(ready(place.device_id))
    except RuntimeError as error:
        what, _, remedy = str(error).partition("\n")
        raise LoadError(where, what, remedy) from None


def _candidates(kernel: Kernel, place: Place) -> list[Variant]:
    """What calls on a device can come to run: of each workload the best, PTX only where no machine code stands in for it."""
    fitting = [v for v in kernel.variants if target_of(v.target).is_cuda == (place.device_type == DLPACK_CUDA)]
    if place.device_type == DLPACK_CPU and fitting:
        place = Place(DLPACK_CPU, cpu_level=kernel.cpu_level_of(fitting))
    runnable = fitting = [v for v in fitting if not any(refuse_place(v, place))]
    best: dict[str, Variant] = {}
    for variant in fitting:
        workload = spell_workload(variant)
        best[workload] = max(best.get(workload, variant), variant, key=lambda v: merit_of(v, place))
    # Of a dynamic workload several variants of the target share the sizes.
    fitting = [
        v for v in fitting if v is best[spell_workload(v)] or (v.buckets and v.target == best[spell_workload(v)].target)
    ]
    native = [v for v in fitting if not target_of(v.target).is_virtual]
    chosen = [v for v in fitting if not target_of(v.target).is_virtual or not any(covers(n, v) for n in native)]
    return [*chosen, *(v for v in kernel.retuned_for(place) if v in runnable and v not in chosen)]


def _wanted(name: str, variant: Variant, only: Only) -> bool:
    if isinstance(only, Mapping):
        wanted = only[name]
        return all(
            variant.shape.get(key) in (value if isinstance(value, (list, tuple, set, range)) else [value])
            for key, value in wanted.items()
        )
    if callable(only):
        return bool(only(name, variant))
    return True


def _spell_bytes(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count < 10 << 20 else f"{count / 1024 / 1024:.0f} MiB"
