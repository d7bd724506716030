"""Targets: what a kernel is compiled for, and which devices run the result.

A target is written ``kind`` or ``kind:arch``: ``cuda:sm_90a``,
``llvm:x86-64-v3`` (Apache TVM on the CPU), ``c:x86-64-v3`` (TileLang on the
CPU). A CPU architecture is an instruction level of the x86-64 psABI; it is never
``native``, so that a wheel means the same on every machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import SpecError

__all__ = ["CPU_LEVELS", "DEFAULT_CPU_LEVEL", "DLPACK_CPU", "DLPACK_CUDA", "Target", "parse_target"]

# Device type codes of the DLPack standard (dlpack.h, DLDeviceType).
DLPACK_CPU = 1
DLPACK_CUDA = 2

# x86-64 psABI levels, lowest first; the position is the rank (1-4) that the native cpuid check
# answers with.
CPU_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")

# Every x86-64 server processor since 2015 (Haswell, Zen) has AVX2 and FMA.
DEFAULT_CPU_LEVEL = "x86-64-v3"

_CUDA_ARCH = re.compile(r"sm_(\d{2,3})([af]?)")


@dataclass(frozen=True)
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
    def capability(self) -> tuple[int, int]:
        """Compute capability of a CUDA target, ``(9, 0)`` for ``sm_90a``."""
        digits = self._cuda_match()[1]
        return int(digits[:-1]), int(digits[-1])

    @property
    def cuda_suffix(self) -> str:
        """``"a"`` (this architecture only), ``"f"`` (its family) or ``""``."""
        return self._cuda_match()[2]

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a device of this compute capability executes this CUDA target's machine code.

        The rule is NVIDIA's (CUDA C++ Programming Guide, "Binary Compatibility" and
        "Feature Set Compiler Targets"): plain code runs on the same major version with an equal
        or higher minor one; ``f`` code on the same family with an equal or higher minor one; ``a``
        code on exactly its own architecture.
        """
        major, minor = self.capability
        if self.cuda_suffix == "a":
            return capability == (major, minor)
        return capability[0] == major and capability[1] >= minor

    def preference(self) -> tuple[int, ...]:
        """Sort key among targets that run on one device: the largest is the most specific."""
        if self.is_cuda:
            return (*self.capability, {"": 0, "f": 1, "a": 2}[self.cuda_suffix])
        return (self.cpu_rank,)

    def _cuda_match(self) -> re.Match[str]:
        match = _CUDA_ARCH.fullmatch(self.arch)
        if match is None:
            raise SpecError(f"target {self}", "is not a CUDA target", "Write for instance cuda:sm_90a.")
        return match


def parse_target(text: str, where: str = "target") -> Target:
    """Read a target as users write it.

    Args:
        text: ``"cuda:sm_90a"``, ``"llvm"``, ``"llvm:x86-64-v4"``, ``"c"``...
        where: What to call the place of the text in an error.

    Raises:
        SpecError: The kind or the architecture is not known.
    """
    kind, _, arch = text.partition(":")
    if kind == "cuda":
        if not _CUDA_ARCH.fullmatch(arch):
            raise SpecError(
                where,
                f"a cuda target names an architecture, got {text!r}",
                "Write cuda:sm_80, cuda:sm_90a, cuda:sm_100a ... (sm_90a, not sm_90, for kernels that use wgmma).",
            )
        return Target(kind, arch)
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
