"""The places that have kernels of a package: the package itself, its companions, and folders that somebody names.

All that is found is one set of kernels to the caller. No place comes before another: where two have the same variant, nobody
could say which one runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import DispatchError, LoadError, PackageError
from ..manifest import FOLDER, MANIFEST_NAME, Manifest, Variant, open_manifest
from ..plain import record
from ..target import read_target
from .companions import GROUP, Companion, find_companions, normal_name, version_of
from .locate import archive_of, explain_absence, package_folders

__all__ = [
    "OVERLAY_VARIABLE",
    "PATH_VARIABLE",
    "Folders",
    "Home",
    "companions_for",
    "find_folders",
    "find_homes",
    "missing_companions",
    "name_companions",
    "names_of",
    "open_home",
    "overlay_path",
    "pack_homes",
    "refuse_clashes",
    "spell_homes",
    "unpack_homes",
    "variants_of",
]

PATH_VARIABLE = "TLAOT_PATH"
OVERLAY_VARIABLE = "TLAOT_OVERLAY"

Folders: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


@record(frozen=True)
class Home:
    """A folder that has kernels.

    Attributes:
        folder: The folder of the manifest; variants' paths are relative to it.
        label: Who named it, in a message: ``"the package"``, ``"companion pk-cuda-sm-90a 1.0"``, ``"TLAOT_PATH"``, ``"path"``.
        manifest: What it has.
        digest: The manifest's own.
        companion: Normalised name of the companion's distribution; "" for other places.
    """

    folder: Path
    label: str
    manifest: Manifest
    digest: str
    companion: str = ""

    def __str__(self) -> str:
        return f"{self.folder} ({self.label})"


def find_homes(package: str, path: Folders | None = None, environ: Mapping[str, str] | None = None) -> list[Home]:
    """Look for a package's kernels everywhere; no package is imported.

    Args:
        package: Import name of the package.
        path: Folders to look into, in place of those of ``TLAOT_PATH``.
        environ: Variables; those of the process by default.

    Raises:
        CallError: The name is not that of a package.
        PackageError: There are none anywhere, a place is broken, or two have the same variant.
        LoadError: There are none but in a zip archive.
    """
    try:
        folders, absent = package_folders(package), None
    except PackageError as error:
        folders, absent = [], error
    found = [
        open_home(folder / FOLDER, "the package", package)
        for folder in folders
        if (folder / FOLDER / MANIFEST_NAME).is_file()
    ]
    for companion in find_companions(package):
        folder = _companion_folder(companion)
        home = open_home(folder, str(companion), package, companion.distribution)
        _check_version(home, found)
        found.append(home)
    named, origin = _named_folders(path, os.environ if environ is None else environ)
    for folder in named:
        found.extend(_open_named(folder, origin, package))
    if not found:
        raise _nothing(package, folders, absent, named, origin)
    return _distinct(found)


def find_folders(package: str) -> list[Path]:
    """The folders with a manifest that an installed package and its companions have; no manifest is read.

    Raises:
        CallError: The name is not that of a package.
        PackageError: It is not installed, or a companion is broken.
    """
    own = [folder / FOLDER for folder in package_folders(package) if (folder / FOLDER / MANIFEST_NAME).is_file()]
    return [*own, *map(_companion_folder, find_companions(package))]


def open_home(folder: Path, label: str, package: str | None = None, companion: str = "") -> Home:
    """Read the manifest of a place.

    Raises:
        PackageError: It is damaged, or not one of the package.
    """
    path = folder / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        what = f"the kernel manifest cannot be read ({error.strerror})"
        raise PackageError(
            f"{path} ({label})", what, "Reinstall the package; if you built it, build it again."
        ) from None
    manifest = open_manifest(data, str(path))
    if package is not None and label != "the package" and manifest.package != package:
        raise PackageError(
            f"{path} ({label})",
            f"has kernels of {manifest.package}, not of {package}",
            "Uninstall it: it claims what it has not." if companion else f"Name a folder with kernels of {package}.",
        )
    return Home(folder, label, manifest, manifest.digest, companion)


def names_of(homes: Iterable[Home]) -> tuple[str, ...]:
    """The kernels that the places have together, sorted."""
    return tuple(sorted({name for home in homes for name in home.manifest.kernels}))


def variants_of(homes: Iterable[Home], name: str) -> list[tuple[Variant, Path]]:
    """The variants of a kernel, with the folders that their paths are relative to.

    Raises:
        PackageError: A manifest's entry lacks a field.
    """
    return [
        (variant, home.folder)
        for home in homes
        if name in home.manifest.kernels
        for variant in home.manifest.kernels[name].variants
    ]


def refuse_clashes(homes: Sequence[Home]) -> None:
    """Refuse places that have the same variant; of kernels that no two places have for one target, none is parsed.

    Raises:
        PackageError: Two places have a kernel for one target and shape; the message names both.
    """
    claims: dict[tuple[str, str, str], Home] = {}
    for name in names_of(homes) if len(homes) > 1 else ():
        targets = [target for home in homes for target in home.manifest.targets.get(name, ())]
        if len(set(targets)) == len(targets):
            continue
        for home in homes:
            for variant, _ in variants_of([home], name):
                claim = (name, variant.target, json.dumps(variant.shape, sort_keys=True))
                other = claims.setdefault(claim, home)
                if other is not home:
                    raise PackageError(
                        f"package {home.manifest.package}",
                        f"two places have {name} for {variant.target}, {dict(variant.shape)}: {other} and {home}",
                        "Keep one: uninstall the companion, or take the folder out of TLAOT_PATH or path=.",
                    )


def missing_companions(homes: Iterable[Home]) -> dict[str, tuple[str, ...]]:
    """Companions that a place's manifest names and that are not installed, as ``pip install`` takes them, with their targets."""
    homes = list(homes)
    installed = {home.companion for home in homes}
    return {
        f"{name}=={home.manifest.project['version']}" if "version" in home.manifest.project else name: targets
        for home in homes
        for name, targets in home.manifest.companions.items()
        if normal_name(name) not in installed
    }


def _companion_folder(companion: Companion) -> Path:
    where = f"{companion.info} (entry point {companion.package} of {GROUP})"
    remedy = f"Reinstall {companion.distribution}, or uninstall it."
    if not all(part.isidentifier() for part in companion.value.split(".")):
        raise PackageError(where, f"{companion.value!r} is not the import name of a package", remedy)
    try:
        folders = package_folders(companion.value)
    except PackageError:
        raise PackageError(where, f"names the package {companion.value}, which is not there", remedy) from None
    for folder in folders:
        if (folder / FOLDER / MANIFEST_NAME).is_file():
            return folder / FOLDER
    places = ", ".join(map(str, folders)) or "it is a single module"
    raise PackageError(where, f"names {companion.value}, which has no {FOLDER}/{MANIFEST_NAME} ({places})", remedy)


def _check_version(companion: Home, found: Sequence[Home]) -> None:
    """Refuse the companion of another version of the package: its kernels are compiled from other sources."""
    project = companion.manifest.project
    if "name" not in project or "version" not in project:
        return
    said = (home.manifest.project.get("version") for home in found if not home.companion)
    version = next(filter(None, said), None) or version_of(project["name"])
    if version not in (None, project["version"]):
        raise PackageError(
            str(companion),
            f"belongs to {project['name']} {project['version']}, but {project['name']} {version} is installed",
            f"Install the one of {version}: pip install {companion.companion}=={version}",
        )


def _named_folders(path: Folders | None, environ: Mapping[str, str]) -> tuple[list[Path], str]:
    """Folders that the caller or ``TLAOT_PATH`` names, and which of the two."""
    if path is not None:
        given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        origin, folders = "path", [Path(entry).absolute() for entry in given]
    else:
        # Empty entries come of TLAOT_PATH=/more:$TLAOT_PATH; they stand for no folder, least of all the current one.
        origin, folders = PATH_VARIABLE, [Path(e) for e in environ.get(PATH_VARIABLE, "").split(os.pathsep) if e]
    for folder in folders:
        if not folder.is_absolute():
            what = f"{str(folder)!r} is relative: what it means depends on where a program is started"
            raise PackageError(origin, what, f"Write {folder.absolute()}, for instance.")
        if not folder.is_dir():
            raise PackageError(origin, f"there is no folder {str(folder)!r}", "Correct it, or take it out.")
    return folders, origin


def _open_named(folder: Path, origin: str, package: str) -> list[Home]:
    for place in (folder.joinpath(*package.split("."), FOLDER), folder / FOLDER, folder):
        if (place / MANIFEST_NAME).is_file():
            if origin != PATH_VARIABLE:
                return [open_home(place, origin, package)]
            # TLAOT_PATH is for all packages of a process.
            home = open_home(place, origin)
            return [home] if home.manifest.package == package else []
    if origin != PATH_VARIABLE:
        what = f"has neither {package.replace('.', '/')}/{FOLDER}/{MANIFEST_NAME} nor a {MANIFEST_NAME}"
        raise PackageError(f"{origin} {folder}", what, f"Name a folder with kernels of {package}.")
    return []


def _distinct(homes: Sequence[Home]) -> list[Home]:
    """Each once: a folder that is found in two ways, or a copy of it, is no second claim."""
    unique: dict[str, Home] = {}
    for home in homes:
        unique.setdefault(home.digest, home)
    return list(unique.values())


def _nothing(
    package: str, folders: Sequence[Path], absent: PackageError | None, named: Sequence[Path], origin: str
) -> PackageError | LoadError:
    archive = next(filter(None, map(archive_of, folders)), None)
    if archive is not None:
        return LoadError(
            f"package {package}",
            f"is imported from the archive {archive}",
            "Shared libraries load from files only: install the package (pip install), or unpack the archive.",
        )
    what, remedy = (absent.what, absent.remedy) if absent else explain_absence(package, list(folders))
    listed = ", ".join(map(str, named)) or "not set"
    looked = [f"no installed distribution has an entry point {package} in the group {GROUP}", f"{origin}: {listed}"]
    return PackageError(f"package {package}", "\n  ".join([what, *looked]), remedy)


def overlay_path(package: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """Where the overlay of a package is: ``TLAOT_OVERLAY`` (a file, or a folder of such), else the user's configuration folder.

    Returns:
        The file, which need not exist; None where overlays are off (``TLAOT_OVERLAY=off``) or the user has no folder.
    """
    environ = os.environ if environ is None else environ
    said = environ.get(OVERLAY_VARIABLE, "")
    if said == "off":
        return None
    if said:
        path = os.path.abspath(said)
        return Path(path, f"{package}.json") if os.path.isdir(path) else Path(path)
    root = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(root):
        home = environ.get("HOME") or os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        root = os.path.join(home, ".config")
    return Path(root, "tlaot", "overlays", f"{package}.json")


def companions_for(
    homes: Iterable[Home], capability: tuple[int, int], beyond: str | None = None
) -> dict[str, list[str]]:
    """The companion that is not installed and has the best code for a CUDA device, with the targets that run there; empty for none.

    Args:
        homes: Where kernels were found.
        capability: The device's.
        beyond: A target that runs there: only code that would be taken in its place.
    """

    def preference(target: str) -> tuple[int, ...]:
        return read_target(target, "manifest").preference(capability)

    found = {}
    for name, targets in missing_companions(homes).items():
        fitting = [target for target in targets if _runs(target, capability)]
        if fitting and (beyond is None or max(map(preference, fitting)) > preference(beyond)):
            found[name] = fitting
    best = max(found, key=lambda name: max(map(preference, found[name])), default=None)
    return {} if best is None else {best: found[best]}


def _runs(target: str, capability: tuple[int, int]) -> bool:
    parsed = read_target(target, "manifest")
    return parsed.is_cuda and parsed.runs_on(capability)


def name_companions(
    error: DispatchError, homes: Iterable[Home], variants: Iterable[Variant], capability: tuple[int, int]
) -> DispatchError:
    """Have a refusal say which companion to install, where one that is missing has code for the device.

    Args:
        error: The refusal.
        homes: Where kernels were found.
        variants: The kernel's variants, none of which fits the call.
        capability: The CUDA device's.
    """

    fitting = companions_for(homes, capability)
    if not fitting:
        return error
    targets = ", ".join(sorted({target for found in fitting.values() for target in found}))
    remedy = f"Kernels for {targets} are in a companion that is not installed: pip install {' '.join(fitting)}"
    if any(_runs(variant.target, capability) for variant in variants):
        remedy = f"{error.remedy}\n{remedy}"
    return DispatchError(error.where, error.what, remedy)


def spell_homes(homes: Sequence[Home]) -> str:
    """Where kernels come from beside the package itself; "" where from nowhere else."""
    return ", ".join(home.label for home in homes if home.label != "the package")


def pack_homes(homes: Sequence[Home]) -> tuple[Any, ...]:
    """What finds the same places again, in another process."""
    return tuple((str(home.folder), home.label, home.companion) for home in homes)


def unpack_homes(packed: Iterable[Any]) -> list[Home]:
    return [open_home(Path(folder), label, companion=companion) for folder, label, companion in packed]
