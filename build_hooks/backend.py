"""The PEP 517 and PEP 660 hooks: setuptools' own, with settings, requirements and clear errors added."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

# The class is not public, but the way that setuptools' documentation shows for a backend of one's own
# ("Dynamic build dependencies and other build_meta tweaks").
from setuptools.build_meta import _BuildMetaBackend

from ..errors import SpecError, TlaotError
from .requirements import requirements_of
from .settings import CONFIG_SETTINGS, Settings, read_settings
from .telling import told

if TYPE_CHECKING:
    from ..tune.specs.spec import Spec
    from .settings import ConfigSettings

__all__ = ["Backend"]


class Backend(_BuildMetaBackend):
    """Build a project that has a ``tltune.toml``."""

    def get_requires_for_build_wheel(self, config_settings: ConfigSettings = None) -> list[str]:
        """What the declared targets need, beside the requirements of setuptools."""
        with _hook(config_settings) as settings:
            base = super().get_requires_for_build_wheel(config_settings)
            return base if settings.tune == "off" else [*base, *requirements_of(_read_spec(), settings, os.environ)]

    def get_requires_for_build_editable(self, config_settings: ConfigSettings = None) -> list[str]:
        """An editable install tunes nothing and needs nothing more."""
        with _hook(config_settings):
            return super().get_requires_for_build_wheel(config_settings)

    def get_requires_for_build_sdist(self, config_settings: ConfigSettings = None) -> list[str]:
        with _hook(config_settings):
            return super().get_requires_for_build_sdist(config_settings)

    def prepare_metadata_for_build_wheel(self, metadata_directory: str, config_settings: ConfigSettings = None) -> str:
        with _hook(config_settings):
            return super().prepare_metadata_for_build_wheel(metadata_directory, config_settings)

    def build_wheel(
        self, wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
    ) -> str:
        with _hook(config_settings) as settings:
            if settings.tune != "off":
                _read_spec()
            from .bdist_wheel import COMPANIONS  # an old setuptools, which builds other projects here, has none

            made: list[Path] = []
            token = COMPANIONS.set(made)
            try:
                wheel = super().build_wheel(wheel_directory, config_settings, metadata_directory)
            finally:
                COMPANIONS.reset(token)
            for companion in made:
                # Frontends that move one wheel elsewhere leave the others: they stay in build/tlaot/wheels as well.
                shutil.copyfile(companion, Path(wheel_directory, companion.name))
            return wheel

    def build_sdist(self, sdist_directory: str, config_settings: ConfigSettings = None) -> str:
        with _hook(config_settings):
            return super().build_sdist(sdist_directory, config_settings)

    def build_editable(
        self, wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
    ) -> str:
        with _hook(config_settings):
            return super().build_editable(wheel_directory, config_settings, metadata_directory)


@contextmanager
def _hook(config_settings: ConfigSettings) -> Iterator[Settings]:
    """Make the settings known to the commands that a hook runs, and end the hook on an error of the user's with no traceback."""
    token = CONFIG_SETTINGS.set(config_settings)
    try:
        yield read_settings(config_settings, os.environ)
    except TlaotError as error:
        raise SystemExit(f"error: {told(error)}") from error
    finally:
        CONFIG_SETTINGS.reset(token)


def _read_spec() -> Spec:
    from ..tune.specs.spec_file import find_spec, read_spec

    path = find_spec(Path.cwd())
    if path is None:
        # Whoever names this backend wants kernels; a wheel without them must not be made by accident.
        raise SpecError(
            "tltune.toml",
            "the build backend is tlaot.build_hooks, but there is none beside pyproject.toml",
            "Write it, or build with the backend setuptools.build_meta.",
        )
    return read_spec(path)
