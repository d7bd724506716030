"""Packaged kernels wherever they are: an installed package, a folder, or the packages in a wheel.

Nothing here imports the package, loads a binary or touches a device.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from .errors import CallError, PackageError
from .manifest import FOLDER, MANIFEST_NAME, Manifest, loads
from .runtime.locate import find_manifest
from .runtime.places import find_folders

__all__ = ["UNREADABLE", "Entry", "Found", "Packaged", "find_packaged", "open_packaged", "open_wheel", "read_member"]

# What an archive's member may unpack to without a look at how much smaller it is packed, and how much smaller that may be:
# code and JSON shrink to a tenth, a bomb to a thousandth.
_UNSUSPICIOUS = 64 << 20
_MOST_SHRUNK = 200

# What zipfile raises for an archive that is damaged or hostile. RuntimeError: damage that reads as encrypted;
# NotImplementedError is one: a method of packing that zipfile does not have. ValueError: also a name that is no UTF-8.
UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Entry:
    """One file, link or other thing beside a manifest.

    Attributes:
        kind: ``"file"``, ``"link"``, or ``"other"`` (a device, a pipe).
        size: Bytes of its content; for one in an archive, as the archive says.
    """

    kind: str
    size: int


@dataclass(frozen=True)
class Found:
    """A folder with a manifest, wherever it is; the manifest has not been looked at.

    Attributes:
        label: What to call it: the manifest's path, with the wheel's if it is in one.
        place: The folder, or the wheel.
        inside: The folder's name in the wheel, with ``/`` at its end; empty where ``place`` is the folder.
        entries: What is below the folder, by names relative to it, without folders.
        read: Content of one of them; raises PackageError where it cannot be read.
    """

    label: str
    place: Path
    inside: str
    entries: Mapping[str, Entry]
    read: Callable[[str], bytes]


@dataclass(frozen=True)
class Packaged:
    """One package's kernels, wherever they are.

    Attributes:
        label: What to call it: the manifest's path, with the wheel's if it is in one.
        manifest: The manifest.
        names: Files beside the manifest, relative to it.
        read: Content of one of them.
    """

    label: str
    manifest: Manifest
    names: frozenset[str]
    read: Callable[[str], bytes]


def open_packaged(what: str) -> list[Packaged]:
    """The kernels of an installed package, of a folder or of all packages in a wheel.

    Raises:
        PackageError: There are none, or a manifest is damaged.
    """
    return [
        Packaged(
            found.label,
            loads(found.read(MANIFEST_NAME), found.label),
            frozenset(found.entries) - {MANIFEST_NAME},
            found.read,
        )
        for found in find_packaged(what)
    ]


def find_packaged(what: str) -> list[Found]:
    """The manifests' folders of an installed package and its companions, of a folder (an unpacked wheel, say) or of a wheel.

    Args:
        what: Path of a wheel or of a folder, or the import name of an installed package.

    Raises:
        PackageError: There are none.
    """
    path = Path(what)
    if what.endswith(".whl") or path.is_file():
        return list(_in_wheel(path))
    if os.sep not in what and not what.startswith("."):
        try:
            return [_in_folder(folder) for folder in find_folders(what) or [find_manifest(what).parent]]
        except (CallError, PackageError):
            if not path.is_dir():
                raise
    if not path.is_dir():
        raise PackageError(
            what,
            "is neither a file nor the import name of a package",
            "Write the import name, my_package, or name a wheel.",
        )
    manifests = [path / MANIFEST_NAME, *sorted(path.rglob(f"{FOLDER}/{MANIFEST_NAME}"))]
    found = [_in_folder(manifest.parent) for manifest in dict.fromkeys(manifests) if manifest.is_file()]
    if not found:
        raise PackageError(what, "has no packaged kernels", f"Name a folder with a {FOLDER}/{MANIFEST_NAME} in it.")
    return found


def open_wheel(path: Path) -> zipfile.ZipFile:
    """The wheel's archive.

    Raises:
        PackageError: It is no archive, or a damaged one.
    """
    try:
        return zipfile.ZipFile(path)
    except UNREADABLE as error:
        raise PackageError(str(path), f"is not a readable wheel ({error})", "Name a wheel or a package.") from None


def read_member(wheel: zipfile.ZipFile, name: str) -> bytes:
    """Content of an archive's member.

    Raises:
        PackageError: It is damaged, or unpacks to so much that it is there to fill the memory.
    """
    where = f"{wheel.filename}:{name}"
    try:
        info = wheel.getinfo(name)
        if info.file_size > max(_UNSUSPICIOUS, _MOST_SHRUNK * info.compress_size):
            what = f"unpacks from {info.compress_size} to {info.file_size} bytes, and was not unpacked"
            raise PackageError(where, what, "Get the wheel from where you trust it.")
        return wheel.read(info)
    except KeyError:
        raise PackageError(where, "is missing", "Get the wheel again.") from None
    except PackageError:
        raise
    except UNREADABLE as error:
        raise PackageError(where, f"cannot be read ({str(error)[:200]})", "Get the wheel again.") from None


def _in_folder(folder: Path) -> Found:
    entries = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode):
            kind = "file" if stat.S_ISREG(mode) else "link" if stat.S_ISLNK(mode) else "other"
            entries[path.relative_to(folder).as_posix()] = Entry(kind, path.lstat().st_size)
    return Found(str(folder / MANIFEST_NAME), folder, "", entries, partial(_read_file, folder))


def _read_file(folder: Path, name: str) -> bytes:
    try:
        if not stat.S_ISREG((folder / name).stat().st_mode):
            raise PackageError(str(folder / name), "is no regular file", "Reinstall the package.")
        return (folder / name).read_bytes()
    except OSError as error:
        raise PackageError(str(folder / name), f"cannot be read ({error.strerror})", "Reinstall the package.") from None


def _in_wheel(path: Path) -> Iterator[Found]:
    wheel = open_wheel(path)
    members = wheel.infolist()
    manifests = [m.filename for m in members if PurePosixPath(m.filename).parts[-2:] == (FOLDER, MANIFEST_NAME)]
    if not manifests:
        raise PackageError(
            str(path), "has no packaged kernels", "Build it with a tltune.toml, and without -C tune=off."
        )
    for manifest in dict.fromkeys(manifests):
        folder = manifest[: -len(MANIFEST_NAME)]
        entries = {
            member.filename[len(folder) :]: Entry(_kind_of(member), member.file_size)
            for member in members
            if member.filename.startswith(folder) and not member.is_dir()
        }
        yield Found(f"{path}:{manifest}", path, folder, entries, partial(_read_in, wheel, folder))


def _read_in(wheel: zipfile.ZipFile, folder: str, name: str) -> bytes:
    return read_member(wheel, folder + name)


def _kind_of(member: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(member.external_attr >> 16)
    return "link" if kind == stat.S_IFLNK else "file" if kind in (0, stat.S_IFREG) else "other"
