"""What of the author's project travels to a cluster: the packages that the spec's modules are in, as one archive.

The archive has the same bytes for the same files, so that a node which has it is sent nothing. It is the working directory of a
Ray runtime environment there. What lies beside those packages (build, dist, .venv, .git, data) stays at home.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ...errors import BuildError
from ...manifest import FOLDER

__all__ = ["LARGEST", "digest_tree", "pack_sources"]

# Bytes before compression. Ray keeps the archive in the memory of its head node, and takes up to 512 MiB; sources are smaller.
LARGEST = 100 << 20

IGNORE_FILE = ".rayignore"
_LEFT_OUT = ("__pycache__", "node_modules", FOLDER)
_LEFT_OUT_SUFFIXES = (".pyc", ".pyo")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that the format knows


def pack_sources(root: Path, modules: Iterable[str], archive: Path) -> str:
    """Write the archive.

    Args:
        root: Folder that the modules are imported from.
        modules: Dotted names of the spec's modules, and of those that they import.
        archive: File to write, ``.zip``.

    Returns:
        What :func:`digest_tree` says of a folder that it is unpacked in.

    Raises:
        BuildError: The packages are larger than :data:`LARGEST`.
    """
    tops = {name.partition(".")[0] for name in modules}
    ignored = _read_patterns(root / IGNORE_FILE)
    files = sorted({path for top in tops for path in _files_of(root, top, ignored)})
    _refuse_large(root, files)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in files:
            info = zipfile.ZipInfo(path.relative_to(root).as_posix(), _EPOCH)
            executable = os.access(path, os.X_OK)
            info.external_attr = (0o755 if executable else 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, path.read_bytes())
    return _digest(root, files)


def digest_tree(folder: Path) -> str:
    """Digest of the names and contents of all files in a folder."""
    return _digest(folder, [path for path in folder.rglob("*") if path.is_file()])


def _digest(root: Path, files: Iterable[Path]) -> str:
    sums = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        sums.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return sums.hexdigest()


def _files_of(root: Path, top: str, ignored: Sequence[str]) -> Iterator[Path]:
    module = root / f"{top}.py"
    if module.is_file():
        yield module
    seen: set[str] = set()  # links may lead in a circle
    for folder, names, files in os.walk(root / top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            names.clear()
            continue
        seen.add(real)
        names[:] = sorted(name for name in names if _travels(root, Path(folder, name), ignored))
        for name in files:
            path = Path(folder, name)
            if not name.endswith(_LEFT_OUT_SUFFIXES) and path.is_file() and _travels(root, path, ignored):
                yield path


def _travels(root: Path, path: Path, ignored: Sequence[str]) -> bool:
    if path.name in _LEFT_OUT or path.name.startswith("."):
        return False
    inside = path.relative_to(root).as_posix()
    return not any(fnmatch.fnmatch(inside, p) or fnmatch.fnmatch(path.name, p) for p in ignored)


def _read_patterns(path: Path) -> list[str]:
    """The patterns of an ignore file, one a line: of a path from the file's folder, or of the name of a file or folder."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    return [line.strip("/") for line in lines if line and not line.startswith("#")]


def _refuse_large(root: Path, files: Sequence[Path]) -> None:
    sizes = {path: path.stat().st_size for path in files}
    total = sum(sizes.values())
    if total <= LARGEST:
        return
    largest = sorted(files, key=lambda path: -sizes[path])[:5]
    lines = "\n".join(f"  {sizes[path] / 2**20:8.1f} MiB  {path.relative_to(root)}" for path in largest)
    raise BuildError(
        "executor ray",
        f"the packages of the spec's modules have {total / 2**20:.0f} MiB, more than the {LARGEST >> 20} MiB that travel to a"
        f" cluster; the largest files are\n{lines}",
        f"Name what is no source in {root.name}/{IGNORE_FILE}, a pattern a line, or move it out of the package.",
    )
