"""What an ELF file needs of the system that loads it, read from its program headers.

Sections are not used: what ships is fully stripped, and the dynamic linker does not look at them either.
Format: System V ABI, chapters 4 and 5; symbol versions: LSB Core, "Symbol Versioning".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ..errors import BuildError

__all__ = ["Elf", "read_elf"]

EM_X86_64, EM_AARCH64, EM_CUDA = 62, 183, 190
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


@dataclass(frozen=True)
class Elf:
    """The dynamic requirements of one file.

    Attributes:
        machine: ``e_machine``.
        needed: Sonames of the libraries that the linker must find.
        versions: Symbol versions that they must offer, ``GLIBC_2.2.5``...
    """

    machine: int
    needed: tuple[str, ...]
    versions: tuple[str, ...]


def read_elf(path: Path) -> Elf | None:
    """Read a file; None where it is not ELF.

    Raises:
        BuildError: It is ELF, but damaged or not of the 64-bit little-endian kind.
    """
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return None
    data = path.read_bytes()
    if data[4:6] != b"\x02\x01":
        raise BuildError(str(path), "is not a 64-bit little-endian ELF file", "tlaot packages for 64-bit Linux only.")
    try:
        return _parse(data)
    except (struct.error, ValueError, KeyError) as error:
        raise BuildError(str(path), f"is a damaged ELF file ({error!r})", "Build it again.") from None


def _parse(data: bytes) -> Elf:
    machine, _, _, phoff = struct.unpack_from("<HIQQ", data, 18)
    phentsize, phnum = struct.unpack_from("<HH", data, 54)
    loads: list[tuple[int, int, int]] = []  # virtual address, offset in the file, size in the file
    dynamic: dict[int, list[int]] = {}
    for index in range(phnum):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, phoff + index * phentsize)
        if offset + size > len(data):
            raise ValueError(f"segment {index} ends past the end of the file")
        if kind == _PT_LOAD:
            loads.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            for tag, value in struct.iter_unpack("<QQ", data[offset : offset + size]):
                if tag == 0:
                    break
                dynamic.setdefault(tag, []).append(value)
    if _DT_STRTAB not in dynamic:
        return Elf(machine, (), ())

    def at(address: int) -> int:
        for start, offset, size in loads:
            if start <= address < start + size:
                return address - start + offset
        raise ValueError(f"address {address:#x} is in no segment")

    strings = at(dynamic[_DT_STRTAB][0])

    def text(offset: int) -> str:
        start = strings + offset
        return data[start : data.index(b"\0", start)].decode()

    needed = tuple(text(offset) for offset in dynamic.get(_DT_NEEDED, []))
    versions: list[str] = []
    if _DT_VERNEED in dynamic:
        entry = at(dynamic[_DT_VERNEED][0])
        for _ in range(dynamic[_DT_VERNEEDNUM][0]):
            _, count, _, aux, following = struct.unpack_from("<HHIII", data, entry)
            position = entry + aux
            for _ in range(count):
                _, _, _, name, step = struct.unpack_from("<IHHII", data, position)
                versions.append(text(name))
                position += step
            entry += following
    return Elf(machine, needed, tuple(sorted(set(versions))))
