"""Device code as it is embedded in an ``executable.so``: what it was compiled for, and by which release of CUDA.

``elf.device_image`` finds it there.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from .elf import cubin_target, is_elf, section_contents
from .errors import BuildError

__all__ = ["Image", "read_image"]

# The assembler's own note (CUDA 13; earlier for newer architectures): its name, release and options.
_TOOL_NOTE = ".note.nv.tkinfo"
_RELEASE = re.compile(rb"release (\d+\.\d+),")

_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)\s*$", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+[af]?)\b", re.MULTILINE)

# What a compiler writes into PTX that names files of its machine.
_PLACES = re.compile(r"^\s*\.(?:file|loc)\b", re.MULTILINE)


@dataclass(frozen=True)
class Image:
    """What is known of device code without running it.

    Attributes:
        arch: What it was compiled for: ``"sm_90a"``, for PTX ``"compute_80"``.
        exact: Whether the architecture's suffix is known; it is of PTX, and of most cubins.
        toolkit: Release of CUDA that made a cubin, ``"13.0"``, or that first read PTX of this version; "" where that is not known.
    """

    arch: str
    exact: bool
    toolkit: str

    @property
    def is_ptx(self) -> bool:
        return self.arch.startswith("compute_")

    def is_for(self, arch: str) -> bool:
        """Whether it may be the code of an architecture; where the suffix is not known, the number decides."""
        return arch == self.arch if self.exact else re.sub(r"[af]$", "", arch) == self.arch


def read_image(image: bytes, where: str) -> Image:
    """Read what device code says of itself.

    Args:
        image: A cubin, or the text of PTX.
        where: What to call it in an error.

    Raises:
        BuildError: It is neither, is damaged, or is PTX that names files of the machine that made it.
    """
    return _read_cubin(image, where) if is_elf(image) else _read_ptx(image, where)


def _read_cubin(image: bytes, where: str) -> Image:
    arch, exact = cubin_target(image, where)
    try:
        note = section_contents(image).get(_TOOL_NOTE, b"")
    except (struct.error, IndexError, ValueError) as error:
        raise BuildError(where, f"the cubin is damaged ({error})", "Build it again.") from None
    release = _RELEASE.search(note)
    return Image(arch, exact, release[1].decode() if release else "")


def _read_ptx(image: bytes, where: str) -> Image:
    try:
        text = image.decode("ascii")
    except UnicodeDecodeError:
        text = ""
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None or target is None:
        raise BuildError(where, "the device code is neither a cubin nor PTX", "Build it again.")
    if _PLACES.search(text):
        raise BuildError(
            where, "the PTX names files of the machine that made it", "Compile it without -lineinfo and -G."
        )
    return Image(f"compute_{target[1]}", True, _cuda_of_ptx(int(version[1]), int(version[2])))


def _cuda_of_ptx(major: int, minor: int) -> str:
    """First release of CUDA whose driver reads a version of PTX (PTX ISA, "Release History"): 8.5 came with 12.5, 9.0 with 13.0."""
    if (major, minor) == (8, 6):
        return "12.7"
    if major == 8 and minor > 6:
        return f"12.{minor + 1}"
    return f"{major + 4}.{minor}"
