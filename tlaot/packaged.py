"""Packaged kernels wherever they are: an installed package, or the packages in a wheel.

Nothing here imports the package, loads a binary or touches a device.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from .errors import PackageError
from .manifest import FOLDER, MANIFEST_NAME, Manifest, loads
from .runtime.locate import find_manifest

__all__ = ["Packaged", "open_packaged"]


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
    """The kernels in an installed package, or of all packages in a wheel.

    Raises:
        PackageError: There are none, or a manifest is damaged.
    """
    path = Path(what)
    if what.endswith(".whl") or path.is_file():
        return list(_in_wheel(path))
    if "/" in what:
        raise PackageError(
            what,
            "is neither a file nor the import name of a package",
            "Write tlaot inspect my_package, or name a wheel.",
        )
    manifest = find_manifest(what)
    folder = manifest.parent
    names = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [
        Packaged(
            str(manifest),
            loads(manifest.read_bytes(), str(manifest)),
            frozenset(names) - {MANIFEST_NAME},
            lambda name: (folder / name).read_bytes(),
        )
    ]


def _in_wheel(path: Path) -> Iterator[Packaged]:
    try:
        wheel = zipfile.ZipFile(path)
        members = wheel.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise PackageError(str(path), f"is not a readable wheel ({error})", "Name a wheel or a package.") from None
    manifests = [m for m in members if PurePosixPath(m).parts[-2:] == (FOLDER, MANIFEST_NAME)]
    if not manifests:
        raise PackageError(
            str(path), "has no packaged kernels", "Build it with a tltune.toml, and without -C tune=off."
        )
    for member in manifests:
        folder = member[: -len(MANIFEST_NAME)]
        names = [m[len(folder) :] for m in members if m.startswith(folder) and not m.endswith("/")]
        yield Packaged(
            f"{path}:{member}",
            loads(_read_member(wheel, "", member), f"{path}:{member}"),
            frozenset(names) - {MANIFEST_NAME},
            partial(_read_member, wheel, folder),
        )


def _read_member(wheel: zipfile.ZipFile, folder: str, name: str) -> bytes:
    try:
        return wheel.read(folder + name)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        # RuntimeError: damage that reads as encrypted, or as packed by a method that zipfile does not have.
        where, why = f"{wheel.filename}:{folder}{name}", str(error)[:200]
        raise PackageError(where, f"cannot be read ({why})", "Get the wheel again.") from None
