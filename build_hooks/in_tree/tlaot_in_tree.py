"""The backend of this very repository: ``tlaot.build_hooks``, before tlaot is installed.

Two things differ from an author's project. The package ``tlaot.build_hooks`` lies in the folder ``build_hooks``, so
its import is mapped here, with nothing put on ``sys.path``; this file has a folder of its own because everything in
the folder that ``backend-path`` names can be imported under its bare name. And no installed entry point announces
the plug-in, so the distribution calls it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import setuptools

_ROOT = Path(__file__).resolve().parents[2]


def _import_package(name: str, folder: Path) -> None:
    """Import a package from a folder whatever the folder's name."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)  # as the import system does


_import_package("tlaot", _ROOT / "tlaot")
_import_package("tlaot.build_hooks", _ROOT / "build_hooks")

from tlaot.build_hooks.backend import Backend  # noqa: E402
from tlaot.build_hooks.plugin import add_build_kernels  # noqa: E402
from tlaot.build_hooks.settings import CONFIG_SETTINGS, read_settings  # noqa: E402


class _Distribution(setuptools.Distribution):
    def __init__(self, attrs: Any = None) -> None:
        # A build folder of its own: the one in the tree keeps the sample of an earlier build.
        self._build_base = tempfile.TemporaryDirectory(prefix="tlaot-build-")
        super().__init__(attrs)

    def finalize_options(self) -> None:
        super().finalize_options()
        add_build_kernels(self)

    def parse_config_files(self, *args: Any, **kwargs: Any) -> None:
        super().parse_config_files(*args, **kwargs)
        self.get_option_dict("build")["build_base"] = ("in-tree backend", self._build_base.name)
        # The release to an index is the tool alone. An sdist and an editable install have all sources.
        if read_settings(CONFIG_SETTINGS.get(), os.environ).tune == "off" and not {"sdist", "editable_wheel"} & set(
            sys.argv
        ):
            from tlaot.tune.specs.spec_file import find_spec, read_spec

            path = find_spec(_ROOT)
            if path is not None:
                self.exclude_package(read_spec(path).package)


class _InTree(Backend):
    def run_setup(self, setup_script: str = "setup.py") -> None:
        setuptools.setup(distclass=_Distribution)


_backend = _InTree()
build_editable = _backend.build_editable
build_sdist = _backend.build_sdist
build_wheel = _backend.build_wheel
get_requires_for_build_editable = _backend.get_requires_for_build_editable
get_requires_for_build_sdist = _backend.get_requires_for_build_sdist
get_requires_for_build_wheel = _backend.get_requires_for_build_wheel
prepare_metadata_for_build_editable = _backend.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = _backend.prepare_metadata_for_build_wheel
