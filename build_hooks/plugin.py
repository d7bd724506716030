"""The setuptools plug-in: entry point ``tlaot`` of ``setuptools.finalize_distribution_options``.

setuptools calls it for every project that is built where tlaot is installed, so it looks for a spec
before it imports anything.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from setuptools import Command, Distribution

__all__ = ["add_build_kernels", "has_spec"]


def add_build_kernels(distribution: Distribution) -> None:
    """Add ``build_kernels`` to the ``build`` of a project that has a ``tltune.toml``; leave others alone."""
    if not has_spec(Path.cwd()):
        _warn_of_no_spec(distribution)
        return
    if "get_command_class" in vars(distribution):
        return
    _check_setuptools()
    # Not by cmdclass: [tool.setuptools.cmdclass] is read later and replaces the whole dict, and then a wheel would
    # lack its kernels without a word. Command classes are looked up here whatever the project configures.
    vars(distribution)["get_command_class"] = _command_classes(distribution.get_command_class)


def has_spec(project: Path) -> bool:
    """Whether the folder has a ``tltune.toml`` or a ``[tool.tlaot]``; decided without importing ``tlaot.tune``."""
    if (project / "tltune.toml").is_file():
        return True
    try:
        return "[tool.tlaot" in (project / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def _warn_of_no_spec(distribution: Distribution) -> None:
    """Say that a wheel gets no kernels where the project's build asks for tlaot; not where tlaot is merely installed."""
    if "bdist_wheel" in (distribution.script_args or ()) and _asks_for_tlaot(Path("pyproject.toml")):
        logging.getLogger(__name__).warning(
            "tlaot: warning: there is no tltune.toml beside pyproject.toml: this wheel gets no kernels. "
            "Write one, or take tlaot out of [build-system] requires."
        )


def _asks_for_tlaot(pyproject: Path) -> bool:
    try:
        text = pyproject.read_text(encoding="utf-8")
        if "tlaot" not in text:
            return False
        if sys.version_info >= (3, 11):
            import tomllib
        else:  # it comes with tlaot's extras, and with setuptools
            import tomli as tomllib
        requires = tomllib.loads(text)["build-system"]["requires"]
        return any(re.match(r"\s*tlaot\s*($|[^\w.-])", requirement) for requirement in requires)
    except (OSError, ValueError, LookupError, TypeError, ImportError):
        return False  # what is wrong with the file, setuptools says


def _check_setuptools() -> None:
    import setuptools
    from setuptools.errors import SetupError

    if int(setuptools.__version__.partition(".")[0]) < 77:
        raise SetupError(
            f"tlaot: needs setuptools 77 or newer to package kernels, got {setuptools.__version__}\n"
            'Write requires = ["setuptools>=77", ...] in [build-system].'
        )


def _command_classes(configured: Callable[[str], type[Command]]) -> Callable[[str], type[Any]]:
    def get_command_class(command: str) -> type[Any]:
        if command == "build_kernels":
            from .build_kernels import build_kernels

            return build_kernels
        found: type[Any] = configured(command)
        if command == "build":
            return _with_sub_command(found)
        if command == "bdist_wheel":
            from .bdist_wheel import with_kernels

            return with_kernels(found)
        return found

    return get_command_class


def _with_sub_command(build: type[Any]) -> type[Any]:
    if any(name == "build_kernels" for name, _ in build.sub_commands):
        return build
    # Derived, not appended to: the list belongs to the class that every project of this process shares.
    return type(build.__name__, (build,), {"sub_commands": [*build.sub_commands, ("build_kernels", None)]})
