"""A small reader of ELF files: what a shared object needs, imports and exports, and a cubin's architecture.

Only 64-bit little-endian files, the only ones that tlaot makes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .errors import BuildError

__all__ = [
    "EM_AARCH64",
    "EM_CUDA",
    "EM_X86_64",
    "DynamicInfo",
    "cubin_architecture",
    "is_elf",
    "read_dynamic",
    "section_names",
]

EM_X86_64, EM_AARCH64, EM_CUDA = 62, 183, 190
_SHT_NOBITS, _SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED = 8, 6, 11, 0x6FFFFFFE
_SHT_VERSYM = 0x6FFFFFFF
_DT_NEEDED, _DT_RPATH, _DT_RUNPATH = 1, 15, 29


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
    except (struct.error, IndexError, ValueError) as error:
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


def section_names(data: bytes) -> set[str]:
    """Names of the sections of an ELF file of this machine's kind."""
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, strings = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    start, length = rows[strings][4:6]
    return {_text(data[start : start + length], row[0]) for row in rows}


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
        strings, at = sections[section.link].data, 0
        while True:
            _, _, _, aux, step = struct.unpack_from("<HHIII", section.data, at)
            entry = at + aux
            while True:
                _, _, index, name, entry_step = struct.unpack_from("<IHHII", section.data, entry)
                names[index] = _text(strings, name)
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
