"""Targets: what a kernel is compiled for, and which devices run the result.

A target is written ``kind`` or ``kind:arch``: ``cuda:sm_90a``,
``llvm:x86-64-v3`` (Apache TVM on the CPU), ``c:x86-64-v3`` (TileLang on the
CPU). A CPU architecture is an instruction level of the x86-64 psABI; it is never
``native``, so that a wheel means the same on every machine.

A virtual CUDA architecture, ``cuda:compute_80``, stands for PTX, which the driver of the user's machine compiles. Authors
do not write it: a spec's ``ptx = true`` adds it, and manifests and locks name it.
"""

from __future__ import annotations

import re

from .errors import SpecError
from .plain import record

__all__ = [
    "CPU_LEVELS",
    "DEFAULT_CPU_LEVEL",
    "DLPACK_CPU",
    "DLPACK_CUDA",
    "Target",
    "parse_target",
    "read_target",
]

# Device type codes of the DLPack standard (dlpack.h, DLDeviceType).
DLPACK_CPU = 1
DLPACK_CUDA = 2

# x86-64 psABI levels, lowest first; the position is the rank (1-4) that the native cpuid check
# answers with.
CPU_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")

# Every x86-64 server processor since 2015 (Haswell, Zen) has AVX2 and FMA.
DEFAULT_CPU_LEVEL = "x86-64-v3"

_CUDA_ARCH = re.compile(r"(sm|compute)_(\d{2,3})([af]?)")

# Systems on a chip (TX1, TX2, Xavier, Orin, 8.8, Thor under its number before CUDA 13 and after). "Binary compatibility is
# supported only for the desktop. It is not supported for Tegra. Also, the binary compatibility between desktop and Tegra is not
# supported" (CUDA C++ Programming Guide, "Binary Compatibility"). 8.8 is in no list of desktop devices; GB10 (12.1) is named in
# the table of families beside 12.0.
_TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1), (11, 0)})

# Architectures from which on there are features of one architecture (PTX ISA 8.0, CUDA 12.0), and of a family (PTX ISA 8.8,
# CUDA 12.9).
_FIRST_OF_SUFFIX = {"": (0, 0), "a": (9, 0), "f": (10, 0)}


@record(frozen=True)
class Target:
    """One thing to compile for.

    Attributes:
        kind: ``"cuda"``, ``"llvm"`` or ``"c"``.
        arch: ``"sm_90a"`` and the like, or an x86-64 psABI level.
    """

    kind: str
    arch: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}"

    @property
    def slug(self) -> str:
        """The target's name as a folder: ``cuda-sm_90a``."""
        return f"{self.kind}-{self.arch}"

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"

    @property
    def device_type(self) -> int:
        """DLPack device type of the tensors that the kernel takes."""
        return DLPACK_CUDA if self.is_cuda else DLPACK_CPU

    @property
    def cpu_rank(self) -> int:
        """Rank of a CPU target's instruction level, 1 (baseline) to 4 (AVX-512)."""
        return CPU_LEVELS.index(self.arch) + 1

    @property
    def is_virtual(self) -> bool:
        """Whether the device code is PTX, which the driver compiles, and not machine code."""
        return self.is_cuda and self._cuda_match()[1] == "compute"

    @property
    def virtual(self) -> Target:
        """The target whose PTX has this CUDA target's features: ``cuda:compute_80`` for ``cuda:sm_80``."""
        return Target(self.kind, self._cuda_match().expand(r"compute_\2\3"))

    @property
    def sm(self) -> str:
        """The name by which compilers know the features of a CUDA target: ``sm_80``, also for ``compute_80``."""
        return self._cuda_match().expand(r"sm_\2\3")

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of a CUDA target, ``(9, 0)`` for ``sm_90a``."""
        return _capability(self._cuda_match())

    @property
    def cuda_suffix(self) -> str:
        """``"a"`` (this architecture only), ``"f"`` (its family) or ``""``."""
        return self._cuda_match()[3]

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a device of this compute capability executes this CUDA target's code, machine code or PTX.

        The rule is NVIDIA's (CUDA Programming Guide, "Binary Compatibility" and "Family-Specific Compatibility"; ``ptxas
        --help``, "gpu-name"): ``a`` code runs on exactly its own architecture; ``f`` code on its family with an equal or higher
        minor version; plain machine code on the same major version with an equal or higher minor one, where neither is a
        system on a chip (Jetson, Drive), which runs its own alone; plain PTX on every equal or higher version.
        """
        own = self.capability
        if capability == own:
            return True
        if self.cuda_suffix == "a":
            return False
        if self.is_virtual and not self.cuda_suffix:
            return capability > own
        if capability[0] != own[0] or capability[1] < own[1]:
            return False
        # 10.1 was a family of its own (CUDA 12.9's table) before it became 11.0.
        apart = {(10, 1)} if self.cuda_suffix == "f" else _TEGRA
        return not apart & {own, capability}

    def preference(self, capability: tuple[int, int] | None = None) -> tuple[int, ...]:
        """Sort key among targets that run on one device: the largest is what it should run.

        Args:
            capability: The CUDA device's compute capability; None where it is not known.

        Returns:
            For CUDA: machine code before PTX; then the device's very architecture, then its family's code, then what else runs
            there, the newest architecture first. For the CPU: the highest level first.
        """
        if not self.is_cuda:
            return (self.cpu_rank,)
        suffix = ("", "f", "a").index(self.cuda_suffix)
        fit = 2 if self.capability == capability else min(suffix, 1)
        return (not self.is_virtual, fit, *self.capability, suffix)

    def _cuda_match(self) -> re.Match[str]:
        match = _CUDA_ARCH.fullmatch(self.arch)
        if match is None:
            raise SpecError(f"target {self}", "is not a CUDA target", "Write for instance cuda:sm_90a.")
        return match


def _capability(match: re.Match[str]) -> tuple[int, int]:
    return int(match[2][:-1]), int(match[2][-1])


def parse_target(text: str, where: str = "target") -> Target:
    """Read a target as users write it.

    Args:
        text: ``"cuda:sm_90a"``, ``"llvm"``, ``"llvm:x86-64-v4"``, ``"c"``...
        where: What to call the place of the text in an error.

    Raises:
        SpecError: The kind or the architecture is not known, or is one of PTX.
    """
    target = read_target(text, where)
    if target.is_virtual:
        raise SpecError(
            where,
            f"{text!r} is PTX, which is kept beside machine code and not declared as a target",
            f"Declare cuda:{target.sm}, and write ptx = true in [tlaot] or [[kernel]] to keep its PTX too.",
        )
    return target


def read_target(text: str, where: str = "target") -> Target:
    """Read a target as tlaot writes it in manifests and locks: as :func:`parse_target`, and PTX, ``"cuda:compute_80"``.

    Raises:
        SpecError: The kind or the architecture is not known.
    """
    kind, _, arch = text.partition(":")
    if kind == "cuda":
        return _cuda_target(text, arch, where)
    if kind in ("llvm", "c"):
        arch = arch or DEFAULT_CPU_LEVEL
        if arch == "native":
            raise SpecError(
                where,
                f"a wheel must not depend on the machine that built it, got {text!r}",
                f"Name an instruction level: {', '.join(f'{kind}:{level}' for level in CPU_LEVELS)}.",
            )
        if arch not in CPU_LEVELS:
            raise SpecError(
                where,
                f"unknown CPU instruction level {arch!r} in {text!r}",
                f"Known levels: {', '.join(CPU_LEVELS)}.",
            )
        return Target(kind, arch)
    raise SpecError(
        where,
        f"unknown target kind {kind!r} in {text!r}",
        "Known kinds: cuda:sm_XX, llvm:LEVEL (Apache TVM on the CPU), c:LEVEL (TileLang on the CPU).",
    )


def _cuda_target(text: str, arch: str, where: str) -> Target:
    match = _CUDA_ARCH.fullmatch(arch)
    if not match:
        raise SpecError(
            where,
            f"a cuda target names an architecture, got {text!r}",
            "Write cuda:sm_80, cuda:sm_90a, cuda:sm_100a ... (sm_90a, not sm_90, for kernels that use wgmma).",
        )
    first = _FIRST_OF_SUFFIX[match[3]]
    if _capability(match) < first:
        raise SpecError(
            where,
            f"there is no {arch!r}: architectures have {match[3]!r} code from {match[1]}_{first[0]}{first[1]} on",
            f"Write cuda:{match[1]}_{match[2]}.",
        )
    return Target("cuda", arch)
