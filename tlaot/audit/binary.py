"""Whether an ``executable.so`` keeps its contract: what it needs, exports and is mapped as, and the device code in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..elf import (
    EM_AARCH64,
    EM_X86_64,
    DynamicInfo,
    Mapped,
    device_image,
    glibc_of,
    map_object,
    read_dynamic,
    section_names,
)
from ..image import read_image
from .finding import Finding
from .plan import Plan, compare_plan, read_plan
from .subject import EXECUTABLE, Case

__all__ = ["LIBC", "UNSTRIPPED", "Binary", "check_binary", "check_device_code", "check_glibc", "read_binary"]

MACHINES = {EM_X86_64: "x86_64", EM_AARCH64: "aarch64"}

_CALL, _CPU_LEVEL, _PRELOAD = "__tvm_ffi_tlaot_call", "__tvm_ffi_tlaot_cpu_level", "__tvm_ffi_tlaot_preload"
# glibc's own libraries; libdl and libpthread are separate files before glibc 2.34.
LIBC = re.compile(r"lib(c|m|dl|pthread|rt)\.so\.\d+|ld-linux-[a-z0-9-]+\.so\.\d+")
# What a stripped object has none of.
UNSTRIPPED = re.compile(r"\.symtab|\.strtab|\.z?debug_.*|\.stab.*")
_REBUILD = "Build it again."

# The profiles of wheels that were named before they were numbered (PEP 513, 571, 599).
_NAMED_PROFILES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_PROFILE = re.compile(r"(manylinux\d{1,4}|manylinux_(\d+)_(\d+)|linux)_(.+)")

# Other forms of device code: PTX as text, and NVIDIA's container for PTX and cubins (its magic, version and header size).
_PTX = re.compile(rb"\.version\s+\d+\.\d+\s+\.target\s+(sm_\d{2,3}[af]?)")
_FATBIN = b"\x50\xed\x55\xba\x01\x00\x10\x00"
_ELF = b"\x7fELF\x02\x01"


@dataclass(frozen=True)
class Binary:
    """What an ``executable.so`` says of itself.

    Attributes:
        dynamic: What it needs, exports and imports.
        mapped: How it is mapped.
        sections: Names of its sections.
        plan: Kernel, target and signature.
        image: The device code in it, None where there is none.
        strays: Device code elsewhere in it, spelled out.
    """

    dynamic: DynamicInfo
    mapped: Mapped
    sections: frozenset[str]
    plan: Plan | None
    image: bytes | None
    strays: tuple[str, ...]


def read_binary(data: bytes, where: str) -> Binary:
    """Read an ``executable.so`` without loading it.

    Raises:
        BuildError: It is no 64-bit little-endian shared object, or is damaged.
    """
    mapped = map_object(data, where)
    image = device_image(data, where)
    rest = data.replace(image, b"") if image else data
    return Binary(
        read_dynamic(data, where),
        mapped,
        frozenset(section_names(data)),
        read_plan(mapped),
        image,
        tuple(_device_code_in(rest[4:])),
    )


def _device_code_in(data: bytes) -> Iterator[str]:
    if _ELF in data:
        yield "a cubin or another ELF file"
    for match in _PTX.finditer(data):
        yield f"PTX for {match[1].decode()}"
    if _FATBIN in data:
        yield "a fat binary of device code"


def check_binary(case: Case, binary: Binary) -> Iterator[Finding]:
    """Needs the C library alone, exports its entry points alone, is mapped without special rights, is stripped, is this variant's."""
    for what, remedy in _faults(case, binary):
        yield Finding("binary", case.executable, what, remedy)
    yield from compare_plan(binary.plan, case)


def _faults(case: Case, binary: Binary) -> Iterator[tuple[str, str]]:
    dynamic, mapped = binary.dynamic, binary.mapped
    for library in dynamic.needed:
        if not LIBC.fullmatch(library):
            yield f"needs {library}", "Only the C library is on every machine: link it statically, or do without it."
    for path in dynamic.search_path:
        yield f"has the search path (RPATH) {path!r}", "Remove it: patchelf --remove-rpath."
    exports = {_CALL, _PRELOAD} if case.target.is_cuda else {_CALL, _CPU_LEVEL}
    if set(dynamic.exported) != exports:
        yield f"exports {', '.join(dynamic.exported) or 'nothing'}, expected {', '.join(sorted(exports))}", _REBUILD
    for name, version in dynamic.imported:
        if not name.startswith("TVMFFI") and glibc_of(version) is None:
            yield (
                f"calls {name}{f'@{version}' if version else ''}, which is neither in the TVM FFI nor in the C library",
                _REBUILD,
            )
    yield from ((fault, _REBUILD) for fault in mapped.faults)
    if not mapped.kept:
        yield "may be unloaded while its threads and its device code are in use (no -z nodelete)", _REBUILD
    unstripped = sorted(name for name in binary.sections if UNSTRIPPED.fullmatch(name))
    if unstripped:
        yield f"is not stripped: it has {', '.join(unstripped)}", "Run strip --strip-all on it, then tlaot seal."
    machine = MACHINES.get(dynamic.machine)
    if machine is None:
        yield f"is for ELF machine {dynamic.machine}, neither x86-64 nor aarch64", _REBUILD
    elif not case.target.is_cuda and machine != "x86_64":
        yield f"is for {machine}, its target {case.variant.target} is not", _REBUILD
    for tag in case.demands.platforms:
        profile = _PROFILE.fullmatch(tag)
        if profile is None or profile[4] != machine:
            yield (
                f"is for Linux with glibc on {machine}, the wheel's tag says {tag}",
                "Give the wheel the tag of its binaries.",
            )


def check_glibc(case: Case, binary: Binary) -> Iterator[Finding]:
    """Needs no newer glibc than the spec, the manifest and the wheel's tag say."""
    limits = []
    if case.demands.min_glibc is not None:
        limits.append((_release(case.demands.min_glibc), f"min-glibc = {case.demands.min_glibc!r}"))
    if "glibc" in case.variant.floor:
        floor = case.variant.floor["glibc"]
        limits.append((_release(floor), f"the floor of {floor} in the manifest"))
    for tag in case.demands.platforms:
        profile = _PROFILE.fullmatch(tag)
        if profile and profile[1] != "linux":
            release = (int(profile[2]), int(profile[3])) if profile[2] else _NAMED_PROFILES.get(profile[1], (0, 0))
            limits.append((release, f"the wheel's tag {tag}"))
    named = {version: name for name, version in binary.dynamic.imported}
    for limit, said in limits:
        for version in binary.dynamic.versions:
            needed = glibc_of(version)
            if needed is not None and needed > limit:
                symbol = f"{named[version]}@{version}" if version in named else version
                what = f"needs {symbol}, glibc {'.'.join(map(str, needed))}, which is newer than {said}"
                yield Finding(
                    "glibc", case.executable, what, "Build on an older system (a manylinux image), or raise it."
                )


def _release(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def check_device_code(case: Case, binary: Binary) -> Iterator[Finding]:
    """The device code is of the promised architecture; PTX is in variants of virtual architectures alone; nothing is beside it."""
    for what in _wrong_code(case, binary):
        yield Finding("device code", case.executable, what, "Build it again for the target.")
    for name in ("kernel.cubin", "kernel.ptx"):
        kept = case.contents.get(name)
        if kept is not None and kept != binary.image:
            what = f"is not the device code that is in {EXECUTABLE}"
            yield Finding("device code", f"{case.variant.path}/{name}", what, "Build it again.")


def _wrong_code(case: Case, binary: Binary) -> Iterator[str]:
    image, target = binary.image, case.target
    for stray in binary.strays:
        yield (
            f"holds {stray} beside its device code"
            if image
            else f"holds {stray}" + ("" if target.is_cuda else ", a CPU variant")
        )
    if not target.is_cuda:
        if image is not None:
            yield "holds device code, but is a CPU variant"
        return
    if not image:
        yield f"holds no device code, the manifest promises {target.arch}"
    else:
        yield from _wrong_image(case, image)


def _wrong_image(case: Case, image: bytes) -> Iterator[str]:
    promised = case.target.arch
    code = read_image(image, case.executable)
    if code.is_for(promised):
        told = case.variant.floor.get("toolkit")
        if told and code.toolkit and not code.is_ptx and told != code.toolkit:
            yield f"holds a cubin of CUDA {code.toolkit}, the manifest says {told}"
    elif code.is_ptx and not case.target.is_virtual:
        yield f"holds PTX alone, for {code.arch}; the manifest promises machine code for {promised}"
    else:
        yield f"holds {'PTX' if code.is_ptx else 'a cubin'} for {code.arch}, the manifest promises {promised}"
