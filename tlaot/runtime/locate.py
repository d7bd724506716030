"""Find a package's kernels on disk without importing the package."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from ..errors import CallError, LoadError, PackageError
from ..manifest import FOLDER, MANIFEST_NAME

__all__ = ["archive_of", "explain_absence", "find_manifest", "package_folders"]


def find_manifest(package: str) -> Path:
    """Path of ``<package>/_tlaot/manifest.json``: of what the package itself ships, not its companions.

    Args:
        package: Import name of the package that embeds the kernels, ``"sample_pkg"`` or ``"a.b"``.

    Raises:
        PackageError: The package is not installed, or was installed without kernels.
        LoadError: The package is inside a zip archive, from which no shared library can be loaded.
    """
    folders = package_folders(package)
    for folder in folders:
        manifest = folder / FOLDER / MANIFEST_NAME
        if manifest.is_file():
            return manifest
    for folder in folders:
        if archive_of(folder) is not None:
            raise LoadError(
                f"package {package}",
                f"is imported from the archive {archive_of(folder)}",
                "Shared libraries load from files only: install the package (pip install), or unpack the archive.",
            )
    raise PackageError(f"package {package}", *explain_absence(package, folders))


def package_folders(package: str) -> list[Path]:
    """The folders that make up a package; the package is not imported.

    Raises:
        CallError: The name is not that of a package.
        PackageError: No such package is installed.
    """
    if not isinstance(package, str) or not all(part.isidentifier() for part in package.split(".")):
        raise CallError("tlaot.load", f"expected the import name of a package, got {package!r}", 'Write "sample_pkg".')
    spec: ModuleSpec | None = None
    search: list[str] | None = None
    name = ""
    for part in package.split("."):
        name = f"{name}.{part}" if name else part
        spec = _find_spec(name, search)
        if spec is None:
            raise PackageError(
                f"package {package}",
                f"is not installed: {name} is not importable by {sys.executable}",
                "Install it (pip install), or put its folder on sys.path.",
            )
        search = _locations(spec)
    return [Path(location) for location in search or ()]


def _find_spec(name: str, search: list[str] | None) -> ModuleSpec | None:
    """``importlib.util.find_spec``, which imports the parents of a dotted name, without doing that."""
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    if isinstance(spec, ModuleSpec):
        return spec
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, search) if find is not None else None
        if isinstance(spec, ModuleSpec):
            return spec
    return None


def _locations(spec: ModuleSpec) -> list[str]:
    if spec.submodule_search_locations is None:
        return []
    try:
        return list(spec.submodule_search_locations)
    except KeyError:
        # A namespace package within a namespace package computes its path from its imported parent.
        found = importlib.util.find_spec(spec.name)
        return list(found.submodule_search_locations or ()) if found else []


def archive_of(folder: Path) -> Path | None:
    """The zip archive that a folder of a package is in."""
    return next((parent for parent in folder.parents if parent.is_file()), None)


def explain_absence(package: str, folders: list[Path]) -> tuple[str, str]:
    """What is installed in place of a package with kernels, and how to build one."""
    if not folders:
        return "is a single module, and has no folder that kernels could be in", "Name the package that embeds them."
    where = ", ".join(map(str, folders))
    installed, editable, home = _distribution_of(package)
    what = f"has no packaged kernels: there is no {FOLDER}/{MANIFEST_NAME} in {where} ({installed})"
    if editable:
        return what, (
            "An editable install packages no kernels: in its source folder run `pip wheel . -w dist`, "
            "and install the wheel."
        )
    other = None if home is None else home.joinpath(*package.split("."))
    if other is not None and (other / FOLDER / MANIFEST_NAME).is_file():
        # Python looks into the current folder first, and there are the sources.
        return what, (
            f"Python imports these sources in place of the package in {other}, which has kernels: run it from another "
            "folder, without the sources in PYTHONPATH."
        )
    return what, (
        "Build it where its tltune.toml is, `pip wheel . -w dist`, and install that wheel "
        "(-C tune=off builds one without kernels)."
    )


def _distribution_of(package: str) -> tuple[str, bool, Path | None]:
    """What pip knows of the package, as text; whether it is an editable install; and the folder that it is installed in."""
    import json
    from importlib import metadata

    for name in metadata.packages_distributions().get(package.partition(".")[0], []):
        distribution = metadata.distribution(name)
        direct = distribution.read_text("direct_url.json") or "{}"
        editable = bool(json.loads(direct).get("dir_info", {}).get("editable"))
        return (
            f"{name} {distribution.version}{', editable' if editable else ''}",
            editable,
            Path(str(distribution.locate_file(""))).resolve(),
        )
    return "no installed distribution, imported from sys.path", False, None
