"""A small reader of ELF files: what a shared object needs, imports and exports, how it is mapped, its device code, and a
cubin's architecture.

Only 64-bit little-endian files, the only ones that tlaot makes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .errors import BuildError

__all__ = [
    "EM_AARCH64",
    "EM_CUDA",
    "EM_X86_64",
    "IMAGE_SECTION",
    "DynamicInfo",
    "Mapped",
    "bytes_at",
    "cubin_architecture",
    "cubin_target",
    "device_image",
    "glibc_of",
    "is_elf",
    "map_object",
    "read_dynamic",
    "section_contents",
    "section_names",
]

EM_X86_64, EM_AARCH64, EM_CUDA = 62, 183, 190
# Where executable.so has its device code: a cubin, or PTX with a terminating zero.
IMAGE_SECTION = ".tlaot_image"
_SHT_NOBITS, _SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED = 8, 6, 11, 0x6FFFFFFE
_SHT_VERSYM = 0x6FFFFFFF
_DT_NEEDED, _DT_RPATH, _DT_RUNPATH = 1, 15, 29
_DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_TEXTREL, _DT_FLAGS, _DT_RELRSZ, _DT_RELR = 6, 7, 8, 22, 30, 35, 36
_DT_FLAGS_1, _DF_TEXTREL, _DF_1_NODELETE = 0x6FFFFFFB, 4, 8
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_STACK = 1, 2, 3, 0x6474E551
_EXECUTABLE, _WRITABLE = 1, 2
# Relocations that add the address at which the object was mapped: R_X86_64_RELATIVE, R_AARCH64_RELATIVE.
_RELATIVE = {EM_X86_64: 8, EM_AARCH64: 1027}
_VERSION = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
# Not a number, but a feature of the dynamic linker that came with one.
_FEATURES = {"GLIBC_ABI_DT_RELR": (2, 36)}
# What ptxas was asked for, in the note .note.nv.tkinfo of CUDA 12.8 (for sm_100 and later) and 13.
_TOLD_ARCHITECTURE = re.compile(rb"-arch (sm_\d{2,3}[af]?)[ \0]")


@dataclass(frozen=True)
class DynamicInfo:
    """The dynamic section of a shared object.

    Attributes:
        machine: ELF machine number (62 for x86-64, 183 for aarch64).
        needed: Libraries that the dynamic linker loads with it.
        exported: Names that it defines for others.
        imported: Undefined symbols, each with its version, ``("dlsym", "GLIBC_2.2.5")``, or ``""``.
        versions: Symbol versions that those libraries must offer, also ones that no symbol names (``GLIBC_ABI_DT_RELR``).
        search_path: DT_RPATH and DT_RUNPATH entries.
    """

    machine: int
    needed: tuple[str, ...]
    exported: tuple[str, ...]
    imported: tuple[tuple[str, str], ...]
    versions: tuple[str, ...]
    search_path: tuple[str, ...]


@dataclass(frozen=True)
class Mapped:
    """A shared object as the dynamic linker maps it, at address 0.

    Attributes:
        machine: ELF machine number.
        data: The file.
        segments: Address, offset in the file and size in the file of each part that is mapped.
        relative: Where a pointer into the object itself lies, and the address that it is given.
        faults: What no object of tlaot has: an interpreter, an executable stack, code that is written to...
        kept: Whether it stays mapped once it is loaded (``-z nodelete``).
    """

    machine: int
    data: bytes
    segments: tuple[tuple[int, int, int], ...]
    relative: Mapping[int, int]
    faults: tuple[str, ...]
    kept: bool


@dataclass(frozen=True)
class _Section:
    kind: int
    link: int
    data: bytes


def is_elf(data: bytes) -> bool:
    """Whether data starts as an ELF file does."""
    return data[:4] == b"\x7fELF"


def read_dynamic(data: bytes, where: str) -> DynamicInfo:
    """Read a shared object's dynamic section and symbols.

    Raises:
        BuildError: ``data`` is not a 64-bit little-endian ELF file, or is truncated.
    """
    try:
        machine, sections = _read_sections(data, where)
        return _read_dynamic(machine, sections)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise BuildError(where, f"is a damaged ELF file ({error})", "Build it again.") from None


def cubin_architecture(data: bytes, where: str) -> int:
    """Architecture number of a cubin: 90 for ``sm_90a``.

    CUDA 13's ELF ABI (version 8 and later) keeps it in bits 8-15 of ``e_flags``, earlier ones in bits 0-7.

    Raises:
        BuildError: ``data`` is not a cubin.
    """
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != EM_CUDA:
        raise BuildError(where, "the compiled device code is not a cubin", "Check what nvcc wrote.")
    flags = int(struct.unpack_from("<I", data, 48)[0])
    return (flags >> 8) & 0xFF if data[8] >= 8 else flags & 0xFF


def device_image(data: bytes, where: str) -> bytes | None:
    """The device code embedded in an ``executable.so``: a cubin (:func:`is_elf`), or the text of PTX, without its zero.

    Returns:
        None where there is none, as in a CPU target's.

    Raises:
        BuildError: ``data`` is not a 64-bit little-endian ELF file, or is truncated.
    """
    try:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("it does not begin as one of this machine's kind")
        image = section_contents(data).get(IMAGE_SECTION)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise BuildError(where, f"is a damaged ELF file ({error})", "Build it again.") from None
    return image if image is None or is_elf(image) else image.removesuffix(b"\0")


def cubin_target(data: bytes, where: str) -> tuple[str, bool]:
    """Architecture of a cubin with its suffix.

    The number is in ``e_flags``. The suffix is in the note of the tool that made it; where there is no note, in ``e_flags`` up to
    CUDA 12.9 (bit 11, from ELF ABI version 8 on bit 3), which knew ``a`` alone.

    Returns:
        ``("sm_90a", True)``; False where a cubin that is for ``sm_90a`` might look like this one.

    Raises:
        BuildError: ``data`` is not a cubin, or says two different architectures.
    """
    number = cubin_architecture(data, where)
    told = {match[1].decode() for match in _TOLD_ARCHITECTURE.finditer(data)}
    flags = int(struct.unpack_from("<I", data, 48)[0])
    if not told:
        accelerated = flags & (0x800 if data[8] < 8 else 0x8)
        return f"sm_{number}{'a' if accelerated else ''}", bool(accelerated) or data[8] < 8
    if len(told) > 1 or int(re.sub(r"\D", "", min(told))) != number:
        raise BuildError(
            where,
            f"the cubin is for sm_{number} and says that it was made for {', '.join(sorted(told))}",
            "Build it again.",
        )
    return told.pop(), True


def glibc_of(version: str) -> tuple[int, int] | None:
    """The release of glibc that came with a symbol version: (2, 17) for ``GLIBC_2.17``; None for a version that is not glibc's."""
    match = _VERSION.fullmatch(version)
    return (int(match[1]), int(match[2])) if match else _FEATURES.get(version)


def map_object(data: bytes, where: str) -> Mapped:
    """Read what the dynamic linker reads of a shared object: segments, not sections.

    Raises:
        BuildError: ``data`` is not a 64-bit little-endian shared object, or is truncated.
    """
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 16)[0] != 3:
        raise BuildError(where, "is not a 64-bit little-endian shared object", "tlaot packages for 64-bit Linux only.")
    try:
        return _map_object(data)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise BuildError(where, f"is a damaged ELF file ({error})", "Build it again.") from None


def bytes_at(mapped: Mapped, address: int, size: int) -> bytes:
    """Content of the object at an address; what the file does not have of it is missing."""
    for start, offset, length in mapped.segments:
        if start <= address < start + length:
            return mapped.data[offset + address - start : offset + min(address - start + size, length)]
    return b""


def section_names(data: bytes) -> set[str]:
    """Names of the sections of an ELF file of this machine's kind."""
    return set(section_contents(data))


def section_contents(data: bytes) -> dict[str, bytes]:
    """The sections of an ELF file of this machine's kind, or of a cubin, by name."""
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, strings = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    start, length = rows[strings][4:6]
    names = data[start : start + length]
    for row in rows:
        if row[1] != _SHT_NOBITS and row[4] + row[5] > len(data):
            raise ValueError(f"section {_text(names, row[0])} ends past the end of the file")
    return {_text(names, row[0]): b"" if row[1] == _SHT_NOBITS else data[row[4] : row[4] + row[5]] for row in rows}


def _read_sections(data: bytes, where: str) -> tuple[int, list[_Section]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise BuildError(where, "is not a 64-bit little-endian ELF file", "tlaot packages for 64-bit Linux only.")
    machine = struct.unpack_from("<H", data, 18)[0]
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = []
    for i in range(count):
        _, kind, _, _, start, length, link = struct.unpack_from("<IIQQQQI", data, offset + i * size)
        if kind == _SHT_NOBITS:
            length = 0
        elif start + length > len(data):
            raise ValueError(f"section {i} ends past the end of the file")
        sections.append(_Section(kind, link, data[start : start + length]))
    return machine, sections


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def _versions(sections: list[_Section]) -> dict[int, str]:
    names: dict[int, str] = {}
    for section in sections:
        if section.kind != _SHT_VERNEED:
            continue
        # No table has as many entries as it has bytes; one that loops in itself was made to keep its reader busy.
        strings, at, left = sections[section.link].data, 0, len(section.data)
        while True:
            _, _, _, aux, step = struct.unpack_from("<HHIII", section.data, at)
            entry = at + aux
            while True:
                _, _, index, name, entry_step = struct.unpack_from("<IHHII", section.data, entry)
                names[index] = _text(strings, name)
                left -= 1
                if not left:
                    raise ValueError("its table of versions does not end")
                if not entry_step:
                    break
                entry += entry_step
            if not step:
                break
            at += step
    return names


def _read_dynamic(machine: int, sections: list[_Section]) -> DynamicInfo:
    needed, search, exported, imported = [], [], [], []
    versions = _versions(sections)
    indices = next((s.data for s in sections if s.kind == _SHT_VERSYM), b"")
    for section in sections:
        strings = sections[section.link].data
        if section.kind == _SHT_DYNAMIC:
            for tag, value in struct.iter_unpack("<qQ", section.data):
                if tag == _DT_NEEDED:
                    needed.append(_text(strings, value))
                elif tag in (_DT_RPATH, _DT_RUNPATH):
                    search.append(_text(strings, value))
        elif section.kind == _SHT_DYNSYM:
            for i, (name, _, _, defined_in, _, _) in enumerate(struct.iter_unpack("<IBBHQQ", section.data)):
                symbol = _text(strings, name)
                if not symbol:
                    continue
                if defined_in:
                    exported.append(symbol)
                else:
                    index = struct.unpack_from("<H", indices, 2 * i)[0] & 0x7FFF if indices else 0
                    imported.append((symbol, versions.get(index, "")))
    return DynamicInfo(
        machine,
        tuple(needed),
        tuple(sorted(exported)),
        tuple(sorted(imported)),
        tuple(sorted(set(versions.values()))),
        tuple(search),
    )


def _map_object(data: bytes) -> Mapped:
    machine = struct.unpack_from("<H", data, 18)[0]
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments, faults, dynamic, table = [], [], {}, (0, 0)
    for i in range(count):
        kind, flags, start, address, _, length = struct.unpack_from("<IIQQQQ", data, offset + i * size)
        if kind in (_PT_LOAD, _PT_DYNAMIC) and start + length > len(data):
            raise ValueError(f"segment {i} ends past the end of the file")
        if kind == _PT_LOAD:
            segments.append((address, start, length))
            if flags & _EXECUTABLE and flags & _WRITABLE:
                faults.append("has code that can be written to")
        elif kind == _PT_DYNAMIC:
            table = start, length
            dynamic = _dynamic_table(data[start : start + length])
        elif kind == _PT_INTERP:
            faults.append("names an interpreter, as a program does")
        elif kind == _PT_STACK and flags & _EXECUTABLE:
            faults.append("asks for an executable stack")
    if not dynamic:
        raise ValueError("it has no dynamic section")
    if not _sections_agree(data, table, dynamic):
        faults.append("has sections that say otherwise than what the dynamic linker reads")
    if _DT_TEXTREL in dynamic or dynamic.get(_DT_FLAGS, 0) & _DF_TEXTREL:
        faults.append("has relocations in its code")
    bare = Mapped(machine, data, tuple(segments), {}, (), False)
    relative = dict(_relative(bare, dynamic))
    kept = bool(dynamic.get(_DT_FLAGS_1, 0) & _DF_1_NODELETE)
    return Mapped(machine, data, tuple(segments), relative, tuple(faults), kept)


def _sections_agree(data: bytes, table: tuple[int, int], dynamic: Mapping[int, int]) -> bool:
    """Whether the sections that this module reads libraries and symbols from are what the dynamic linker reads."""
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    rows = [struct.unpack_from("<4xI8xQQQ", data, offset + i * size) for i in range(count)]
    tables = [(start, length) for kind, _, start, length in rows if kind == _SHT_DYNAMIC]
    symbols = [address for kind, address, _, _ in rows if kind == _SHT_DYNSYM]
    return tables == [table] and symbols == [dynamic.get(_DT_SYMTAB)]


def _dynamic_table(data: bytes) -> dict[int, int]:
    table: dict[int, int] = {}
    for tag, value in struct.iter_unpack("<qQ", data[: len(data) // 16 * 16]):
        if tag == 0:
            break
        table[tag] = value
    return table


def _relative(mapped: Mapped, dynamic: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    table = bytes_at(mapped, dynamic.get(_DT_RELA, 0), dynamic.get(_DT_RELASZ, 0)) if _DT_RELA in dynamic else b""
    for where, info, addend in struct.iter_unpack("<QQq", table[: len(table) // 24 * 24]):
        if info == _RELATIVE.get(mapped.machine):
            yield where, addend
    packed = bytes_at(mapped, dynamic.get(_DT_RELR, 0), dynamic.get(_DT_RELRSZ, 0)) if _DT_RELR in dynamic else b""
    for where in _packed_places(packed[: len(packed) // 8 * 8]):
        value = bytes_at(mapped, where, 8)
        if len(value) == 8:
            yield where, int.from_bytes(value, "little")


def _packed_places(table: bytes) -> Iterator[int]:
    """Places in a DT_RELR table: an even entry is one, an odd one is a bitmap of the 63 words that follow the last."""
    base = 0
    for (entry,) in struct.iter_unpack("<Q", table):
        if entry & 1 == 0:
            yield entry
            base = entry + 8
            continue
        for bit in range(63):
            if entry >> (bit + 1) & 1:
                yield base + 8 * bit
        base += 8 * 63
