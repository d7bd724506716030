"""Whether a ``direct.so`` keeps its contract: what it needs, exports and uses of others."""

from __future__ import annotations

from collections.abc import Iterator

from ..elf import glibc_of, map_object, read_dynamic, section_names
from ..manifest import DIRECT, DIRECT_TYPE, place_of
from .binary import LIBC, UNSTRIPPED
from .finding import Finding
from .subject import Case

__all__ = ["check_direct"]

_REBUILD = "Build it again."
# Python's and the FFI's, which are in a process that loads it.
_ELSEWHERE = ("TVMFFI", "Py", "_Py")


def check_direct(case: Case) -> Iterator[Finding]:
    """Needs the C library alone, exports its one function, and uses beside it what Python and the TVM FFI have."""
    if DIRECT in case.contents:
        where = place_of(case.variant, DIRECT)
        yield from (Finding("direct", where, what, _REBUILD) for what in _faults(case.contents[DIRECT], where))


def _faults(data: bytes, where: str) -> Iterator[str]:
    dynamic, mapped = read_dynamic(data, where), map_object(data, where)
    for library in (*dynamic.needed, *dynamic.search_path):
        if not LIBC.fullmatch(library):
            yield f"needs {library}"
    if set(dynamic.exported) != {DIRECT_TYPE}:
        yield f"exports {', '.join(dynamic.exported) or 'nothing'}, expected {DIRECT_TYPE}"
    for name, version in dynamic.imported:
        if not name.startswith(_ELSEWHERE) and glibc_of(version) is None:
            yield f"calls {name}, which neither Python nor the TVM FFI nor the C library has"
    yield from mapped.faults
    if not mapped.kept:
        yield "may be unloaded while objects of its type exist (no -z nodelete)"
    unstripped = sorted(name for name in section_names(data) if UNSTRIPPED.fullmatch(name))
    if unstripped:
        yield f"is not stripped: it has {', '.join(unstripped)}"
