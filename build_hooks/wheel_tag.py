"""The platform part of a wheel's tag, found by auditing the binaries in it.

PEP 600: ``manylinux_2_X`` promises to work wherever glibc is 2.X or newer. So X is the highest glibc symbol
version that any file needs, provided that the files need no library but glibc's own. auditwheel applies the
same rule with a table of distributions; the tests hold this module against it.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..elf import EM_AARCH64, EM_CUDA, EM_X86_64, DynamicInfo, glibc_of, is_elf, read_dynamic

__all__ = ["Audit", "audit_platform"]

_MACHINES = {EM_X86_64: "x86_64", EM_AARCH64: "aarch64"}

# The oldest glibc that a manylinux profile was ever defined for (PEP 513, PEP 599).
_OLDEST = {"x86_64": (2, 5), "aarch64": (2, 17)}

# glibc's own libraries; all in the list of libraries that PEP 513 lets a wheel need.
_GLIBC = re.compile(r"(lib(c|m|dl|pthread|rt)\.so\.\d+|ld-linux-[a-z0-9-]+\.so\.\d+)")


@dataclass(frozen=True)
class Audit:
    """What the binaries of a wheel allow.

    Attributes:
        platform: ``manylinux_2_5_x86_64``, ``linux_x86_64``, or ``any`` where there are no binaries.
        reason: Which file decided it, and by what; empty for ``any``.
    """

    platform: str
    reason: str = ""


def audit_platform(root: Path) -> Audit:
    """Audit every ELF file below a folder.

    Device code (a kept ``kernel.cubin`` is ELF, too) is for no host and is passed over.

    Raises:
        BuildError: A file is damaged ELF.
    """
    found = ((path, _read(path)) for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())
    files = [(path.relative_to(root).as_posix(), elf) for path, elf in found if elf and elf.machine != EM_CUDA]
    if not files:
        return Audit("any")
    machine = _machine_of(elf for _, elf in files)
    lowest, reason = _OLDEST.get(machine, (2, 17)), "no binary needs anything newer"
    for name, elf in files:
        foreign = [library for library in elf.needed if not _GLIBC.fullmatch(library)]
        if foreign:
            return Audit(f"linux_{machine}", f"{name} needs {foreign[0]}, which no manylinux profile promises")
        for version in elf.versions:
            required = glibc_of(version)
            if required is None:
                return Audit(f"linux_{machine}", f"{name} needs symbol version {version}, which no profile promises")
            if required > lowest:
                lowest, reason = required, f"{name} needs {version}"
    return Audit(f"manylinux_{lowest[0]}_{lowest[1]}_{machine}", reason)


def _read(path: Path) -> DynamicInfo | None:
    with path.open("rb") as file:
        if not is_elf(file.read(4)):
            return None
    return read_dynamic(path.read_bytes(), str(path))


def _machine_of(files: Iterable[DynamicInfo]) -> str:
    machines = {elf.machine for elf in files}
    if len(machines) == 1 and machines <= set(_MACHINES):
        return _MACHINES[machines.pop()]
    return sysconfig.get_platform().removeprefix("linux-").replace("-", "_").replace(".", "_")
