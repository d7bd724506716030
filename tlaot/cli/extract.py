"""``tlaot inspect --extract``: a package's device code and kept sources as files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..elf import device_image, is_elf
from ..errors import PackageError, TlaotError
from ..manifest import EXECUTABLE, digest_of, place_of
from ..rows import Row, label_of
from .spelling import counted

__all__ = ["CODE", "extract_code"]

CODE = ("cubin", "ptx", "source")

_SOURCES = ("device_kernel.cu", "host_kernel.c")


def extract_code(rows: Sequence[Row], what: str, folder: Path) -> None:
    """Write one file a variant (of sources, up to two) into a folder, which is made where there is none.

    Args:
        rows: The variants.
        what: One of :data:`CODE`.
        folder: Where to.

    Raises:
        PackageError: None of the variants has such code, a file of the package is damaged, or another file is in the place of one.
    """
    found = {}
    lacking = []
    for row in rows:
        files = _code_of(row, what)
        for name, data in files.items():
            found[name] = (row, data)
        # That a processor's kernel has no device code needs no telling.
        lacking += [row] if not files and (what == "source" or row.target.startswith("cuda:")) else []
    if not found:
        raise PackageError("--extract", f"no variant that was chosen has {_spell(what)}", _remedy(rows, what))
    for name, (_, data) in sorted(found.items()):
        _write(folder / name, data)
    if lacking:
        print(
            f"{counted(len(lacking), 'variant')} without {_spell(what)}: {'; '.join(map(label_of, lacking))}",
            file=sys.stderr,
        )


def _code_of(row: Row, what: str) -> dict[str, bytes]:
    """Content by the name of the file to write; nothing where the variant has no such code."""
    if row.variant is None:
        raise PackageError("--extract", "a lock has no code", "Name a wheel or a package.")
    stem = row.variant.path.replace("/", ".")
    if what == "source":
        return {f"{stem}.{name}": _read(row, name) for name in _SOURCES if name in row.variant.files}
    if not row.target.startswith("cuda:"):
        return {}
    try:
        image = device_image(_read(row, EXECUTABLE), label_of(row))
    except TlaotError as error:
        raise PackageError(error.where, error.what, "Get the package again.") from None
    if image is None or is_elf(image) != (what == "cubin"):
        return {}
    return {f"{stem}.{what}": image}


def _read(row: Row, name: str) -> bytes:
    assert row.variant is not None and row.source is not None
    place = place_of(row.variant, name)
    data = row.source.read(place)
    if digest_of(data) != row.variant.files[name]:
        raise PackageError(
            f"{row.source.label} {place}", "is not the file that was packaged", "tlaot check says what else is wrong."
        )
    return data


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_bytes() != data:
            raise PackageError(str(path), "is there, with other content", "Name another folder with -o, or remove it.")
        path.write_bytes(data)
    except OSError as error:
        raise PackageError(str(path), f"cannot be written ({error.strerror})", "Name another folder with -o.") from None
    print(f"{path}  {len(data)} bytes")


def _spell(what: str) -> str:
    return {"cubin": "a cubin", "ptx": "PTX", "source": "sources"}[what]


def _remedy(rows: Sequence[Row], what: str) -> str:
    if what == "source":
        return "Sources ship where the package was built with TLAOT_KEEP=true (-C keep=true); LLVM's kernels have none."
    if not any(row.target.startswith("cuda:") for row in rows):
        return "Only CUDA targets have device code."
    return "Write ptx = true in tltune.toml to ship PTX too." if what == "ptx" else "It has PTX: --extract ptx."
