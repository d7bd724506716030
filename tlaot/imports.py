"""Changing modules of others, those that are imported already and those that will be.

It is imported when a recorded program starts, before anything else: so no ``importlib.abc``, which imports much.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["PatchingFinder", "patch_imports"]

Patch = Callable[[ModuleType], None]


def patch_imports(patches: Mapping[str, Patch]) -> PatchingFinder:
    """Change modules by name: at once where they are imported, else as soon as their code has run. Imports nothing itself.

    Returns:
        What waits for them; take it out of ``sys.meta_path`` to wait no longer.
    """
    for name, patch in patches.items():
        if name in sys.modules:
            patch(sys.modules[name])
    finder = PatchingFinder(patches)
    sys.meta_path.insert(0, finder)
    return finder


class PatchingFinder:
    """Lets the other finders find a module, and changes it as soon as its code has run."""

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._patches:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    loader: Any = _PatchingLoader(spec.loader, self._patches[fullname])
                    spec.loader = loader
                return spec
        return None


class _PatchingLoader:
    def __init__(self, loader: Any, patch: Patch) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:
        # get_source, get_resource_reader...: the real loader's.
        return getattr(self._loader, name)
