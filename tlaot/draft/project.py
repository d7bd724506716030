"""What a project is made of: where its packages are imported from, and which one the kernels are embedded in."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SpecError
from .found import Factory, Module, find_factories, read_modules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Project", "look_at_project", "read_pyproject"]

# Folders beside a package that are none of it: setuptools' own list for flat layouts, by and large.
_OTHERS = frozenset(
    [
        "tests",
        "test",
        "docs",
        "doc",
        "documentation",
        "examples",
        "example",
        "benchmarks",
        "benchmark",
        "bench",
        "build",
        "dist",
        "scripts",
        "tools",
        "ci",
        "conf",
        "config",
        "node_modules",
        "venv",
        "env",
        "site",
        "tasks",
        "utils",
        "experiments",
        "notebooks",
        "requirements",
        "packaging",
        "htmlcov",
        "wheels",
        "third_party",
        "3rdparty",
    ]
)
_OTHER_MODULES = frozenset({"setup", "conftest", "noxfile", "tasks", "fabfile", "versioneer"})


@dataclass(frozen=True)
class Project:
    """What is found.

    Attributes:
        folder: The project's folder.
        source_root: Where its packages are imported from.
        package: The package that is to embed the kernels.
        factories: Factories, in the order of the files.
        troubles: What cannot be read, or looks like a kernel and is none that can be built.
        packages: All packages that were looked at.
    """

    folder: Path
    source_root: Path
    package: str
    factories: tuple[Factory, ...]
    troubles: tuple[str, ...]
    packages: tuple[str, ...]


def read_pyproject(folder: Path) -> Mapping[str, Any]:
    """The project's ``pyproject.toml``; nothing where there is none.

    Raises:
        SpecError: It is not valid TOML.
    """
    path = folder / "pyproject.toml"
    try:
        body: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return body
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise SpecError(path.name, f"cannot be read: {error}", "Correct the file first.") from None


def look_at_project(folder: Path, package: str | None) -> Project:
    """Find the packages and their factories.

    Args:
        folder: The project's folder.
        package: The package that embeds the kernels, where the author says so.

    Raises:
        SpecError: There is no package, the one that was named is not there, or several might be meant.
    """
    body = read_pyproject(folder)
    root = _source_root(folder, body)
    packages = [path.name for path in sorted(root.iterdir()) if _is_package(path)] if root.is_dir() else []
    if package is not None:
        top = package.partition(".")[0]
        if not root.joinpath(*package.split(".")).is_dir():
            raise SpecError("--package", f"there is no folder {package.replace('.', '/')} in {root}", _list(packages))
        packages = [*packages, *([top] if top not in packages else [])]
    if not packages:
        raise SpecError(
            str(folder),
            "has no package: no folder with an __init__.py, here or in src",
            "Run it in the project's folder, or name one.",
        )
    modules: list[Module] = []
    troubles: list[str] = []
    for name in [*packages, *_single_modules(root)]:
        read, unread = read_modules(root, name)
        modules += read
        troubles += unread
    factories, others = find_factories(modules)
    chosen = package or _choose(packages, factories, body)
    return Project(folder, root, chosen, tuple(factories), tuple(troubles + others), tuple(packages))


def _source_root(folder: Path, body: Mapping[str, Any]) -> Path:
    """The folder itself, or the one that ``package-dir`` or ``find.where`` name, or ``src``."""
    tool = _table(_table(body, "tool"), "setuptools")
    named = [_table(tool, "package-dir").get("")]
    where = _table(_table(tool, "packages"), "find").get("where")
    named += where if isinstance(where, list) else []
    for name in [*named, "src"]:
        if (
            isinstance(name, str)
            and (folder / name).is_dir()
            and any(map(_is_package, sorted((folder / name).iterdir())))
        ):
            return folder / name
    return folder


def _table(body: Any, name: str) -> Mapping[str, Any]:
    found = body.get(name) if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}


def _is_package(path: Path) -> bool:
    return path.name.isidentifier() and path.name not in _OTHERS and (path / "__init__.py").is_file()


def _single_modules(root: Path) -> list[str]:
    names = [path.stem for path in sorted(root.glob("*.py"))]
    return [
        name for name in names if name.isidentifier() and name not in _OTHER_MODULES and not name.startswith("test_")
    ]


def _choose(packages: Sequence[str], factories: Sequence[Factory], body: Mapping[str, Any]) -> str:
    """The package with the most factories; where none has any, the one that is called like the project."""
    counts = Counter(factory.module.partition(".")[0] for factory in factories)
    best = max(packages, key=lambda name: counts[name])
    if counts[best] and sum(counts[name] == counts[best] for name in packages) == 1:
        return best
    project = re.sub(r"[-_.]+", "_", str(_table(body, "project").get("name", ""))).lower()
    alike = [name for name in packages if name.lower() == project]
    if len(packages) == 1 or alike:
        return (alike or list(packages))[0]
    raise SpecError("--package", "several packages might embed the kernels", _list(packages))


def _list(packages: Sequence[str]) -> str:
    return f"Name one with --package: {', '.join(packages) or 'there is none in this folder'}."
