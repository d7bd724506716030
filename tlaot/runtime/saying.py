"""What is said aloud once a process, as a warning that names the user's own line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Hashable

__all__ = ["user_level", "warn_once"]

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep

# No lock: one that another thread holds while this one forks would never be given back.
_said: dict[Hashable, object] = {}


def warn_once(key: Hashable, text: str) -> None:
    """Warn, unless something was said under this key before.

    Raises:
        Warning: Python was told to raise warnings (``-W error``); then the next time says it again.
    """
    token = object()
    if _said.setdefault(key, token) is not token:
        return
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=user_level())
    except BaseException:
        _said.pop(key, None)
        raise


def user_level() -> int:
    """How far up the stack the user's code is, for ``warnings.warn`` in the caller of this function's caller."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_code.co_filename.startswith(_OURS) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level
