"""Binaries that travel with a piece of work: found among its arguments and its results, wherever these hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..compiling.compile import Built
from ..measuring.measure import Decision, Measured

__all__ = ["map_built"]


def map_built(value: Any, change: Callable[[Built], Built]) -> Any:
    """A value with each binary in it changed.

    Args:
        value: A ``Built``, a ``Measured``, a ``Decision``, a dict, list or tuple of such, or anything else, which is left as it is.
        change: Called with each binary.
    """
    if isinstance(value, Built):
        return change(value)
    if isinstance(value, Measured):
        return replace(value, built=change(value.built))
    if isinstance(value, Decision):
        return replace(value, results=map_built(value.results, change))
    if isinstance(value, dict):
        return {key: map_built(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_built(item, change) for item in value)
    return value
