"""Distributions that have more kernels of a package: those with an entry point of its name in the group ``tlaot.kernels``.

A companion's own name has the package's in it (``flash-kernels-cuda-sm-90a`` for ``flash_kernels``), so that of hundreds of
distributions one or two files are read. ``importlib.metadata`` would find them too, but importing it and having it look through a large
site-packages takes longer than all that ``tlaot.load`` does otherwise. Entry points are a file format (PyPA, "Entry points
specification"), which is read here, and no module is imported.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from ..plain import record

__all__ = ["GROUP", "Companion", "find_companions", "normal_name", "version_of"]

GROUP = "tlaot.kernels"
_INFO = (".dist-info", ".egg-info")
_LARGEST = 1 << 20
_MARKS = str.maketrans("", "", "-_.")


@record(frozen=True)
class Companion:
    """One entry point of the group.

    Attributes:
        distribution: Name of the distribution, normalised.
        version: Its version; "" for a development install by an old setuptools.
        package: The package that it has kernels of.
        value: Import name of the companion's own package.
        info: The distribution's ``.dist-info``.
    """

    distribution: str
    version: str
    package: str
    value: str
    info: Path

    def __str__(self) -> str:
        return f"companion {self.distribution} {self.version}".rstrip()


def find_companions(package: str, search: Sequence[str] | None = None) -> list[Companion]:
    """The companions of a package that are installed, in the order of ``sys.path``.

    Args:
        package: Import name of the package.
        search: What to look through in place of ``sys.path``.
    """
    wanted, texts = _squash(package), {}
    for folder in _folders(search):
        try:
            stat = os.stat(folder)
        except OSError:
            continue
        for listing, name in _names(folder, stat.st_dev, stat.st_ino, stat.st_mtime_ns):
            if wanted in name:
                data = _read(f"{folder}/{listing}/entry_points.txt")
                if GROUP.encode() in data:
                    texts[folder, listing] = data.decode(errors="replace")
    if not texts:
        return []
    found = []
    for name, folder, listing in _distributions(search):
        for entry, value in _entries(texts.get((folder, listing), "")):
            if entry == package:
                version = os.path.splitext(listing)[0].partition("-")[2].partition("-py")[0]
                found.append(Companion(name, version, entry, value, Path(folder, listing)))
    return found


def version_of(distribution: str, search: Sequence[str] | None = None) -> str | None:
    """Version of an installed distribution; None where it is not installed or does not say."""
    wanted = normal_name(distribution)
    for name, folder, listing in _distributions(search):
        if name == wanted:
            for metadata in ("METADATA", "PKG-INFO"):
                match = re.search(rb"^Version:[ \t]*(\S+)", _read(f"{folder}/{listing}/{metadata}"), re.MULTILINE)
                if match:
                    return match[1].decode(errors="replace")
            return None
    return None


def normal_name(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _folders(search: Sequence[str] | None) -> list[str]:
    given = dict.fromkeys(sys.path if search is None else search)
    return [folder or "." for folder in given if isinstance(folder, str)]


def _squash(name: str) -> str:
    """A name as people compare it: ``flash_kernels``, ``flash-kernels`` and ``flashkernels`` are one."""
    return name.translate(_MARKS).lower()


@lru_cache(maxsize=64)
def _names(folder: str, *identity: int) -> list[tuple[str, str]]:
    """Metadata folders in a folder, each with its distribution's name. A distribution that comes or goes changes the folder's time."""
    return [(listing, _squash(listing.partition("-")[0])) for listing in _infos(folder)]


def _infos(folder: str) -> list[str]:
    """Metadata folders of the distributions in a folder."""
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):
        return []  # an archive, or a folder that is not there
    return sorted(name for name in names if name.endswith(_INFO) and not name.startswith("~"))  # "~": pip removes it


def _distributions(search: Sequence[str] | None) -> Iterator[tuple[str, str, str]]:
    """Each distribution's name and metadata folder; of one that is there twice the first, as imports find it."""
    seen: set[str] = set()
    for folder in _folders(search):
        for listing in _infos(folder):
            name = normal_name(os.path.splitext(listing)[0].partition("-")[0])
            if name not in seen:
                seen.add(name)
                yield name, folder, listing


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Names and modules of the group's entry points."""
    group = None
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[]").strip()
        elif group == GROUP and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), re.split(r"[:\[]", value)[0].strip()


def _read(path: str) -> bytes:
    # As open() does, but in a quarter of its time.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _LARGEST)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
