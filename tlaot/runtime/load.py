"""``tlaot.load``: a package's kernels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PackageError, did_you_mean
from ..manifest import Manifest, group_by_factory
from .frameworks import leave_untraced
from .kernel import Kernel
from .path import CallPath
from .places import (
    OVERLAY_VARIABLE,
    Folders,
    Home,
    find_homes,
    names_of,
    overlay_path,
    pack_homes,
    refuse_clashes,
    spell_homes,
    unpack_homes,
    variants_of,
)

if TYPE_CHECKING:
    from .overlay import Overlay
    from .policy import OnMiss, Policy, Replacement
    from .preload import Only, Preloaded

__all__ = [
    "Kernels",
    "factories_of",
    "load",
    "open_manifest",
    "pack_policy",
    "policy_of",
    "reopen",
]

# Set in the processes of a build: they import the author's package before it has kernels, and a package that loads them
# when it is imported must not fail there.
building = False


def load(
    package: str,
    path: Folders | None = None,
    on_miss: OnMiss | None = None,
    fallback: Mapping[str, Replacement] | None = None,
) -> Kernels:
    """The kernels of an installed package.

    They are looked for in the package, in its companions (distributions with its name in theirs and an entry point of it in the
    group ``tlaot.kernels``), and in the folders of ``TLAOT_PATH``; together they are one set.

    Reads a JSON file a place (of each kernel the entries, when it is first asked for) and imports tvm_ffi. The package is not
    imported, no device is touched and no binary is loaded until a kernel is called.

    Args:
        package: Import name of the package that embeds the kernels.
        path: A folder, or several, to look into in place of those of ``TLAOT_PATH``: each holds ``<package>/_tlaot`` or a
            ``manifest.json``.
        on_miss: What to do with a call that no packaged variant fits: ``"error"``, ``"warn"``, ``"jit"``, or a function that is
            given a :class:`~tlaot.Miss` and returns what to call in place of a variant, or None. By default ``TLAOT_ON_MISS``
            says it, else it is ``"error"``.
        fallback: By kernel, what ``"warn"`` has called in place of a variant, ``{"matmul": torch.matmul}``.

    Raises:
        CallError: ``on_miss`` or ``fallback`` is wrong.
        SpecError: ``TLAOT_ON_MISS`` or ``TLAOT_PIN`` is.
        PackageError: There are no kernels of the package; a manifest is damaged or of another format; two places have a kernel for
            the same target and shape; a companion belongs to another version of the package; a folder is not there.
        LoadError: The package is inside a zip archive.
    """
    # Imported here, not at the first call: a fork while some thread's first call imports it would leave the child waiting for
    # a lock of the import system whose holder does not exist there.
    import tvm_ffi  # noqa: F401

    leave_untraced(CallPath.__call__)
    policy = _policy_of(package, on_miss, fallback)
    try:
        homes = find_homes(package, path)
    except PackageError:
        if not building:
            raise
        return Kernels(package, [])
    return Kernels(package, homes, _overlay_of(package, homes), policy)


def open_manifest(manifest: Manifest, folder: Path) -> Kernels:
    """The kernels of a manifest whose files are under a folder."""
    return Kernels(manifest.package, [Home(Path(folder), "the package", manifest, "")])


def reopen(
    package: str,
    homes: Iterable[Any],
    on_miss: OnMiss | None = None,
    fallback: Mapping[str, Replacement] | None = None,
    name: str | None = None,
    factory_args: Mapping[str, Any] | None = None,
) -> Any:
    found = unpack_homes(homes)
    kernels = Kernels(package, found, _overlay_of(package, found), _policy_of(package, on_miss, fallback))
    if name is None:
        return kernels
    return kernels[name].bind(**factory_args) if factory_args else kernels[name]


def _overlay_of(package: str, homes: Sequence[Home]) -> Overlay | None:
    path = overlay_path(package)
    if path is None or not (os.path.lexists(path) or OVERLAY_VARIABLE in os.environ):
        return None  # as nearly everywhere: what reads one is not imported
    from .overlay import read_overlay

    return read_overlay(package, homes)


def _policy_of(package: str, on_miss: OnMiss | None, fallback: Mapping[str, Replacement] | None) -> Policy | None:
    if on_miss is None and not fallback and not os.environ.get("TLAOT_ON_MISS") and not os.environ.get("TLAOT_PIN"):
        return None  # as mostly: what reads one is not imported
    from .policy import read_policy

    return read_policy(package, on_miss, fallback)


def pack_policy(policy: Policy | None) -> tuple[Any, ...]:
    return (None, None) if policy is None else (policy.given, policy.fallback)


def factories_of(kernels: Kernels) -> dict[str, tuple[str, ...]]:
    """A package's kernels by what makes them, ``"module:function"``, as its ``tltune.toml`` says."""
    found: dict[str, dict[str, None]] = {}
    for home in kernels._homes:
        manifest = home.manifest
        # Of a manifest that does not say it, by an older tlaot, the entries do.
        for factory, names in (manifest.factories or group_by_factory(manifest.kernels)).items():
            found.setdefault(factory, {}).update(dict.fromkeys(names))
    return {factory: tuple(names) for factory, names in found.items()}


def policy_of(kernels: Kernels) -> Policy | None:
    """How a load treats calls that no packaged variant fits; None: they are errors."""
    return kernels._policy


class Kernels:
    """The kernels of one package, by attribute or by item: ``kernels.matmul``, ``kernels["matmul"]``."""

    def __init__(
        self,
        package: str,
        homes: Sequence[Home],
        overlay: Overlay | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._package = package
        self._overlay = overlay
        self._policy = policy
        self._homes = tuple(homes)
        self._names = dict.fromkeys(names_of(homes))
        self._kernels: dict[str, Kernel] = {}
        refuse_clashes(homes)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, finds the package where it was; loaded libraries do not travel.
        return reopen, (self._package, pack_homes(self._homes), *pack_policy(self._policy))

    def __getattr__(self, name: str) -> Kernel:
        # Called for names that are not attributes; looking them up in a half-made object must not recurse.
        if name not in self.__dict__.get("_names", ()):
            raise AttributeError(self._unknown(name), name=name, obj=self)
        found = self._open(name)
        # As a plain attribute from now on: this way costs half a microsecond a call.
        vars(self)[name] = found
        return found

    def __getitem__(self, name: str) -> Kernel:
        if name not in self._names:
            raise KeyError(self._unknown(name))
        return self._open(name)

    def _open(self, name: str) -> Kernel:
        """One of the kernels, whose entries are parsed when it is first asked for."""
        found = self._kernels.get(name)
        if found is None:
            located = variants_of(self._homes, name)
            made = Kernel(f"{self._package}.{name}", name, located, self._homes, self._overlay, self._policy)
            found = self._kernels.setdefault(name, made)  # of two threads one is first
        return found

    def preload(self, device: Any = None, only: Only = None) -> Preloaded:
        """Load kernels on a device ahead of their first calls: before memory is profiled, before a CUDA graph is captured.

        A first call does the same for the one variant that it runs, under capture as well; what it takes there, of time and of
        memory, is then taken in the middle of serving. Nothing is ever unloaded. Preloading again does nothing anew, from any
        thread, and after a fork (of a process that has not used CUDA).

        Args:
            device: An ordinal, ``"cuda:1"``, ``"cpu"`` or a torch.device; None is the current CUDA device, or the CPU where the
                package or the machine has nothing for CUDA.
            only: A kernel's name or several; ``{"matmul": {"N": 4096, "K": [4096, 8192]}}``, names with factory arguments that a
                variant must have; or a function of a kernel's name and a variant that says whether it is to be loaded.

        Returns:
            What is loaded, with sizes; ``print`` shows it.

        Raises:
            CallError: There is no such kernel, or that is no device.
            PackageError: A file is missing or damaged.
            LoadError: The device is not there, or a file or its device code cannot be used.
        """
        # Imported here: programs that do not preload need none of it.
        from .preload import preload

        return preload(self, device, only)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})

    def __repr__(self) -> str:
        shown = [f"<tlaot.Kernels of {self._package}: {', '.join(self._names) or 'none'}"]
        if more := spell_homes(self._homes):
            shown.append(f"also from {more}")
        if self._overlay is not None:
            shown.append(f"overlay {self._overlay.path}")
        return f"{'; '.join(shown)}>"

    def _unknown(self, name: str) -> str:
        if str(name).startswith("__"):
            return name
        hint = did_you_mean(str(name), self._names) or f"; it has {', '.join(self._names) or 'none'}"
        return f"package {self._package} has no kernel {name!r}{hint}"
