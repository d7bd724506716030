"""``bdist_wheel`` for a project with kernels: the audited tag, the same bytes from the same input, and companion wheels."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.errors import BaseError

from ..errors import TlaotError
from ..split import split_wheel, write_wheels
from .settings import CONFIG_SETTINGS, read_settings
from .telling import told
from .wheel_tag import Audit, audit_platform

__all__ = ["COMPANIONS", "with_kernels"]

COMPANIONS: ContextVar[list[Path] | None] = ContextVar("tlaot_companions", default=None)
"""Takes the companion wheels that are made while a PEP 517 hook runs; None where no hook asks for them."""

# 2020-02-02, the date that hatchling writes; any fixed one after 1980 (zip's first year) would do.
_FIXED_DATE = "1580601600"


def with_kernels(base: type[bdist_wheel]) -> type[bdist_wheel]:
    """Derive from whatever ``bdist_wheel`` the project uses."""

    class kernel_wheel(base):  # noqa: N801 - setuptools names commands so
        description = base.description
        audit: Audit | None = None
        root_is_pure: bool

        def run(self) -> None:
            with _source_date(os.environ):
                super().run()
            if read_settings(CONFIG_SETTINGS.get(), os.environ).tune == "off":
                return
            try:
                companions = self._split()
                self._look_again(companions)
            except TlaotError as error:
                raise BaseError(told(error)) from error

        def _split(self) -> list[Path]:
            """Where the spec says so, give each CUDA architecture's kernels a wheel of their own; those wheels."""
            from ..tune.place import work_folder

            spec = self.get_finalized_command("build_kernels").read_spec()
            if spec.split is None:
                return []
            command, version, path = self.distribution.dist_files[-1]
            split = split_wheel(Path(path))
            folder = work_folder(spec.path.parent) / "wheels"
            for left in folder.glob("*.whl"):
                left.unlink()
            if not split.companions:
                self.announce(f"tlaot: split: this wheel has no CUDA kernels; {Path(path).name} is all", logging.INFO)
                return []
            Path(path).unlink()  # without binaries the main wheel's tag, and so its name, is another one
            (main,) = write_wheels([split.main], Path(path).parent)
            self.distribution.dist_files[-1] = (command, version, str(main))
            paths = write_wheels(split.companions, folder)
            made = COMPANIONS.get()
            if made is not None:
                made.extend(paths)
            listed = "".join(f"\n  {one.name}: {', '.join(one.targets)}" for one in split.companions)
            self.announce(f"tlaot: companions of {main.name}, in {folder}:{listed}", logging.INFO)
            return paths

        def _look_again(self, companions: list[Path]) -> None:
            """Audit every wheel that was made; where one falls short, none is left."""
            from ..audit.build import audit_built_wheel

            wheels = [Path(self.distribution.dist_files[-1][2]), *companions]
            try:
                for wheel in wheels:
                    audit_built_wheel(wheel, [Path.cwd(), Path(self.bdist_dir)])
            except TlaotError:
                for wheel in wheels:
                    wheel.unlink(missing_ok=True)
                raise

        def get_tag(self) -> tuple[str, str, str]:
            """``py3-none-<platform>``: kernels are called through the TVM FFI's C ABI, not CPython's.

            A project that also has extension modules keeps the tag that it had: their ABI decides.
            """
            tag: tuple[str, str, str] = super().get_tag()
            platform = self._platform()
            if platform == "any" or self.distribution.has_ext_modules():
                return tag
            return self.python_tag, "none", tag[2] if self.plat_name_supplied else platform

        def write_wheelfile(self, wheelfile_base: str, *args: Any, **kwargs: Any) -> None:
            # root_is_pure decides in run() where files are installed; without extension modules setuptools puts
            # the packages of an "impure" wheel in .data/purelib, where shared objects do not belong.
            pure = self.root_is_pure
            self.root_is_pure = pure and self._platform() == "any"
            try:
                super().write_wheelfile(wheelfile_base, *args, **kwargs)
            finally:
                self.root_is_pure = pure
            _normalise_modes(Path(self.bdist_dir))

        def _platform(self) -> str:
            if self.audit is None:
                folder = Path(self.bdist_dir or "")
                if not self.bdist_dir or not folder.is_dir():
                    return "any"  # an editable install asks for a tag before there are files
                try:
                    self.audit = audit_platform(folder)
                except TlaotError as error:
                    raise BaseError(told(error)) from error
                if self.audit.reason:
                    self.announce(f"tlaot: platform {self.audit.platform}: {self.audit.reason}", logging.INFO)
            return self.audit.platform

    return kernel_wheel


@contextmanager
def _source_date(environ: Any) -> Iterator[None]:
    """Give zip members a fixed date unless the user gave one; setuptools reads it from the environment only."""
    given = environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        environ["SOURCE_DATE_EPOCH"] = _FIXED_DATE
    try:
        yield
    finally:
        if given is None:
            del environ["SOURCE_DATE_EPOCH"]


def _normalise_modes(root: Path) -> None:
    """The builder's umask is no part of the result; whether a file is executable is."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
