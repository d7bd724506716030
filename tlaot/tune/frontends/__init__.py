"""Frontends: what turns an author's factory into host and device code. One file each.

Two frontends must never be imported in one process: TileLang brings its own TVM under the name ``tvm``. A frontend is
therefore imported by name, in a worker process that serves it alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from ...target import Target
from .lowered import DeviceKernel, Lowered

__all__ = ["FRONTENDS", "DeviceKernel", "Frontend", "Lowered", "import_frontend"]

# Name in the spec -> (module of this package, distribution that provides it)
FRONTENDS = {"tvm": ("tvm", "apache-tvm"), "tilelang": ("tilelang", "tilelang")}


class Frontend(Protocol):
    """What a frontend's module offers."""

    def lower(
        self,
        factory: Any,
        shape: Mapping[str, Any],
        config: Mapping[str, Any],
        target: Target,
        pass_configs: Mapping[str, Any] | None,
        out_idx: Sequence[int] | None,
    ) -> Lowered:
        """Call the factory with the shape's and config's items and lower what it returns."""

    def versions(self) -> dict[str, str]:
        """Name and version of what lowers, for the record."""


def import_frontend(name: str) -> Frontend:
    """Import one frontend; the process can then serve no other."""
    module, _ = FRONTENDS[name]
    return cast(Frontend, importlib.import_module(f".{module}", __name__))
