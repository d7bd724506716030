"""``build_kernels``: the sub-command of ``build`` that tunes kernels and puts them beside the package.

It follows setuptools' ``SubCommand`` protocol: the ``get_*`` methods answer without ``run()``, and an editable
install runs it with ``editable_mode`` set.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from setuptools import Command
from setuptools.errors import BaseError, SetupError

from ..errors import SpecError, TlaotError
from ..github import annotate, on_github, summarise, warn_of_doubts
from ..rows import as_shipped, list_what
from .settings import CONFIG_SETTINGS, Settings, read_settings, show_settings
from .telling import told

if TYPE_CHECKING:
    from ..tune.specs.spec import Spec

__all__ = ["build_kernels"]

FOLDER = "_tlaot"
MANIFEST = "manifest.json"
LOCK = "tltune.lock"
_LAST_DATE = 4354819199  # 2107-12-31 23:59:59 UTC, the last that a zip archive can say


class build_kernels(Command):  # noqa: N801 - setuptools names commands so
    """Tune the kernels that ``tltune.toml`` declares and embed them in the package."""

    description = "tune and compile the kernels that tltune.toml declares"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []  # settings come by -C and TLAOT_*, see settings.py

    editable_mode: bool
    build_lib: str

    def initialize_options(self) -> None:
        self.editable_mode = False
        self.build_lib = None  # type: ignore[assignment]  # set from build_py

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Fill ``<build_lib>/<package>/_tlaot``.

        Raises:
            SetupError: The spec or a setting is wrong.
            BaseError: A kernel could not be built.
        """
        if self.editable_mode:
            self._say("tlaot: an editable install has no kernels; build and install a wheel for them (pip install .)")
            return
        try:
            _check_date(os.environ)
            self._build(read_settings(CONFIG_SETTINGS.get(), os.environ))
        except SpecError as error:
            raise SetupError(told(error)) from error
        except TlaotError as error:
            raise BaseError(told(error)) from error

    def get_outputs(self) -> list[str]:
        """The manifest, which names all others, and whatever other files are there already."""
        if self.editable_mode:
            return []
        output = self._output(self.read_spec().package)
        found = {str(path) for path in output.rglob("*") if path.is_file()}
        return sorted(found | {str(output / MANIFEST)})

    def get_output_mapping(self) -> dict[str, str]:
        """Empty: no output is a copy of a source file."""
        return {}

    def get_source_files(self) -> list[str]:
        """What an sdist needs to build the same kernels: the spec, its lock, and the modules that it names."""
        spec_path = self._spec_path()
        files = [spec_path, *(path for path in [spec_path.with_name(LOCK)] if path.is_file())]
        spec = self.read_spec()
        root = self._source_root(spec.package)
        for module in _modules_of(spec):
            files.extend(_files_of(module, root))
        return list(dict.fromkeys(os.path.relpath(path) for path in files))

    def _build(self, settings: Settings) -> None:
        from ..tune.place import hold_project

        self._say(show_settings(settings))
        spec = self.read_spec()
        hold_project(spec.path.parent, self._say)
        output = self._output(spec.package).resolve()
        shutil.rmtree(output, ignore_errors=True)  # build/ outlives a build: an old kernel must not slip into this one
        if settings.tune == "off":
            self._say(f"tlaot: tune=off: {spec.package} gets no kernels")
            return
        self._check_package(spec)
        self._check_dependencies()
        from ..tune.pipeline import build_package

        build_package(spec.path, self._import_root(spec), output, settings, self._say)
        self._summarise(output)

    def _summarise(self, output: Path) -> None:
        """Tell GitHub Actions, where it runs this: pip shows a build's lines with ``-v`` only, but the job's summary is a file."""
        if not on_github():
            return
        rows = [as_shipped(row) for listing in list_what(str(output.parent)) for row in listing.rows]
        summarise(f"{self.distribution.get_name()}: kernels in the wheel", rows)
        warn_of_doubts(rows)

    def _say(self, text: str) -> None:
        self.announce(text, logging.INFO)

    def _spec_path(self) -> Path:
        from ..tune.specs.spec_file import find_spec

        try:
            path = find_spec(Path.cwd())
        except TlaotError as error:
            raise SetupError(told(error)) from error
        if path is None:
            raise SetupError("tltune.toml: there is none beside pyproject.toml any more\nPut it back.")
        return path

    def read_spec(self) -> Spec:
        """The project's spec.

        Raises:
            SetupError: There is none, or it is wrong.
        """
        from ..tune.specs.spec_file import read_spec

        try:
            return read_spec(self._spec_path())
        except TlaotError as error:
            raise SetupError(told(error)) from error

    def _output(self, package: str) -> Path:
        return Path(self.build_lib, *package.split("."), FOLDER)

    def _check_package(self, spec: Spec) -> None:
        packages = list(self.distribution.packages or ())
        if spec.package not in packages:
            raise SpecError(
                f"{spec.path.name} [tlaot] package",
                f"the project has no package {spec.package!r}",
                f"Its packages are: {', '.join(packages) or '(none)'}; see [tool.setuptools] packages in pyproject.toml.",
            )

    def _check_dependencies(self) -> None:
        """Warn where whoever installs the wheel would not get what loads its kernels."""
        asked = [self.distribution.get_name(), *(self.distribution.install_requires or ())]
        if not any(re.match(r"\s*tlaot\s*($|[^\w.-])", requirement) for requirement in asked):
            annotate("warning", "tlaot is not among the project's dependencies", title="tlaot")
            self.warn(
                "tlaot is not among the project's dependencies: who installs this wheel alone cannot load its kernels. "
                'Write dependencies = ["tlaot"] in [project].'
            )

    def _source_root(self, package: str) -> Path:
        """The folder that has the author's modules in the tree: the parent of the package, ``src`` in a src layout."""
        folder = Path(self.get_finalized_command("build_py").get_package_dir(package)).resolve()
        parts = package.split(".")
        if folder.parts[-len(parts) :] == tuple(parts):
            return folder.parents[len(parts) - 1]
        return Path.cwd()  # package-dir gives the folder another name; then only the project's own folder can serve

    def _import_root(self, spec: Spec) -> Path:
        """The folder to import the author's modules from.

        It is the tree, unless the package has extension modules: those are in the build folder only, where
        ``build_ext`` has just put them.
        """
        source = self._source_root(spec.package)
        if not self.distribution.has_ext_modules():
            return source
        built = Path(self.build_lib).resolve()
        for module in _modules_of(spec):
            if _files_of(module, source) and not _files_of(module, built):
                raise SpecError(
                    f"{spec.path.name} module {module}",
                    "is in none of the packages, and a project with extension modules imports its factories as they are built",
                    f"Move it into a package, for instance {spec.package}.",
                )
        return built


def _check_date(environ: Mapping[str, str]) -> None:
    """Refuse a date that no wheel can have before hours of tuning, not after; one before 1980 is 1980 to setuptools."""
    text = environ.get("SOURCE_DATE_EPOCH")
    if text is None:
        return
    try:
        seconds: int | None = int(text)
    except ValueError:
        seconds = None
    if seconds is None or seconds > _LAST_DATE:
        raise SpecError(
            "environment variable SOURCE_DATE_EPOCH",
            f"expected a whole number of seconds since 1970, {_LAST_DATE} at most, got {text!r}",
            "Correct it, or unset it: wheels have a fixed date then.",
        )


def _modules_of(spec: Spec) -> Iterator[str]:
    for kernel in spec.kernels:
        for name in (kernel.factory, kernel.reference, kernel.inputs, kernel.shapes, kernel.configs):
            if isinstance(name, str):
                yield name.partition(":")[0]


def _files_of(module: str, root: Path) -> list[Path]:
    """A module's file and its packages' ``__init__.py``; nothing where it is not below the folder."""
    files = []
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        stem = root.joinpath(*parts[:depth])
        for candidate in (stem / "__init__.py", stem.with_name(stem.name + ".py")):
            if candidate.is_file():
                files.append(candidate)
                break
    return files
