"""Calls in a child process by name: what a spawned process must import cannot be in a test file, whose module has another
name there."""

from __future__ import annotations

import importlib
from typing import Any


def call(module: str, function: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(importlib.import_module(module), function)(*args, **kwargs)
