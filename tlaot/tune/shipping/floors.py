"""The oldest driver and C library that a finished ``executable.so`` runs with, told from its content."""

from __future__ import annotations

import re

from ...elf import device_image, glibc_of, read_dynamic
from ...image import read_image
from ...target import Target, read_target

__all__ = ["find_floors", "first_cuda"]

Version = tuple[int, int]

# The oldest driver whose interface the device module calls (tensor maps, cuLaunchKernelEx): see open_driver in native/cuda.c.
_NATIVE = (12, 0)

# First release of CUDA that knows an architecture: clang's table (NVPTXTargetParser.def, before that Cuda.cpp:
# MinVersionForOffloadArch), which agrees with CUDA's release notes and with the PTX ISA's release history. Thor was 10.1 in 12.8
# and is 11.0 since 13.0.
_FIRST: dict[Version, Version] = {
    (7, 0): (9, 0),
    (7, 2): (9, 1),
    (7, 5): (10, 0),
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 7): (11, 4),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 1): (12, 8),
    (12, 0): (12, 8),
    (10, 3): (12, 9),
    (12, 1): (12, 9),
    (8, 8): (13, 0),
    (11, 0): (13, 0),
}
_FIRST_OF_SUFFIX = {"": (0, 0), "a": (12, 0), "f": (12, 9)}


def first_cuda(target: Target) -> Version | None:
    """First release of CUDA that knows a CUDA target; None for one that came after this table."""
    first = _FIRST.get(target.capability)
    return None if first is None else max(first, _FIRST_OF_SUFFIX[target.cuda_suffix])


def find_floors(executable: bytes, target: Target, compiler: str, where: str) -> dict[str, str]:
    """The field ``floor`` of a variant.

    A cubin needs the driver of its toolkit's major release, or the first that knows its architecture ("CUDA Compatibility", "Minor
    Version Compatibility"); PTX is read by drivers of the very release that it is written for, or later.

    Args:
        executable: Content of ``executable.so``.
        target: What it is for.
        compiler: What compiled its device code, ``"nvrtc 13.0"``; "" where that is not known.
        where: What to call it in an error.

    Returns:
        ``"cuda"``, of a CUDA target; ``"toolkit"``, where it is known; ``"glibc"``, where it needs the C library.

    Raises:
        BuildError: It is no shared object of tlaot's making.
    """
    floors = {}
    needed = [version for name in read_dynamic(executable, where).versions if (version := glibc_of(name))]
    if needed:
        floors["glibc"] = _spell(max(needed))
    image = device_image(executable, where) if target.is_cuda else None
    if image is None:
        return floors
    told = read_image(image, where)
    toolkit = _read(compiler) or (None if told.is_ptx else _read(told.toolkit))
    if toolkit is not None:
        floors["toolkit"] = _spell(toolkit)
    if told.is_ptx:
        least = _read(told.toolkit)
    else:
        first = first_cuda(read_target(f"cuda:{target.sm}"))
        # An architecture that is not known here is as old as the toolkit may be.
        least = max(first, (toolkit[0], 0)) if first and toolkit else first or toolkit
    floors["cuda"] = _spell(max(_NATIVE, least or _NATIVE))
    return floors


def _read(text: str) -> Version | None:
    match = re.search(r"(\d+)\.(\d+)$", text)
    return (int(match[1]), int(match[2])) if match else None


def _spell(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
