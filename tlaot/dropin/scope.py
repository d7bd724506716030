"""Modules of one package see other modules under some names than everybody else does.

An import statement looks up ``__import__`` in the builtins of its module. Modules of the package are given builtins of their own, which
are Python's in all but that function. Nothing is put into ``sys.modules``, and no other package's import is looked at.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["see"]

# A module by its dotted name.
Find = Callable[[str], ModuleType]


def see(package: str, found: Mapping[str, Find]) -> None:
    """Have the modules of a package that are imported from now on see other modules.

    Args:
        package: Import name of the package.
        found: What gives the modules of a top-level name.
    """
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.package == package:
            finder.builtins = _builtins(found)
            return
    sys.meta_path.insert(0, _Finder(package, _builtins(found)))


def _builtins(found: Mapping[str, Find]) -> dict[str, Any]:
    def import_(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level == 0 and top in found:
            return found[top](name if fromlist else top)
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    return {**vars(builtins), "__import__": import_}


class _Finder:
    """Finds the modules of a package as others do, and gives them their builtins."""

    def __init__(self, package: str, scoped: dict[str, Any]) -> None:
        self.package = package
        self.builtins = scoped

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{self.package}."):
            return None
        for finder in sys.meta_path:
            find = None if isinstance(finder, _Finder) else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                return self._with_builtins(spec)
        return None

    def _with_builtins(self, spec: ModuleSpec) -> ModuleSpec:
        loader = spec.loader
        if isinstance(loader, importlib.machinery.ExtensionFileLoader) or not hasattr(loader, "exec_module"):
            return spec
        spec.loader = _Loader(loader, self.builtins)  # type: ignore[assignment]
        return spec


class _Loader:
    """Another loader, but for the builtins of the modules that it executes."""

    def __init__(self, loader: Any, scoped: dict[str, Any]) -> None:
        self._loader = loader
        self._builtins = scoped

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_builtins"):  # of a half-made copy
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        made: ModuleType | None = None if create is None else create(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # inspect, pickle and debuggers see the loader that it is.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        vars(module)["__builtins__"] = self._builtins
        self._loader.exec_module(module)
