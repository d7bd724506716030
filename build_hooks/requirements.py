"""What a build needs beside tlaot itself, from what the spec declares.

The same lists are the extras ``tvm`` and ``tilelang`` in tlaot's ``pyproject.toml``; a test compares them. They are
repeated here because the in-tree backend builds tlaot before there is metadata to read them from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .settings import Settings

if TYPE_CHECKING:
    from ..tune.spec import KernelSpec, Spec

__all__ = ["FRONTEND_REQUIRES", "requirements_of"]

FRONTEND_REQUIRES: dict[str, tuple[str, ...]] = {
    "tvm": ("apache-tvm>=0.25.0.post1,<0.28", "numpy"),
    "tilelang": ("tilelang>=0.1.15,<0.2", "numpy"),
}


def requirements_of(spec: Spec, settings: Settings) -> list[str]:
    """Requirements of the frontends whose kernels this build compiles.

    A target that the spec builds only ``when-available`` is not made available by a download of gigabytes,
    unless the settings name it.
    """
    if settings.tune == "off":
        return []
    frontends = dict.fromkeys(kernel.frontend for kernel in spec.kernels if _is_built(kernel, spec, settings))
    return _unique(text for frontend in frontends for text in FRONTEND_REQUIRES[frontend])


def _is_built(kernel: KernelSpec, spec: Spec, settings: Settings) -> bool:
    if settings.targets is not None:
        return any(str(target) in settings.targets for target in kernel.targets)
    return any(target not in spec.when_available for target in kernel.targets)


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
