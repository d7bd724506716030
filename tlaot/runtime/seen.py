"""The note of what calls have found, for :func:`tlaot.coverage`.

It is made where a call is decided, which is once for each combination of arguments; what runs by an earlier decision costs
nothing and is not counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

__all__ = ["Key", "forget", "note", "notes"]

# A server that sees ever new sizes must not grow without bound.
_MOST = 1 << 16

# Kernel, arguments, device and outcome.
Key = tuple[str, str, str, str]

# What ran, and how often.
_seen: dict[Key, tuple[str, int]] = {}
_left_out = 0
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


# A thread that was noting something while another one forked does not exist in the child.
os.register_at_fork(after_in_child=_renew_lock)


def note(kernel: str, arguments: Iterable[object], device: object, outcome: str, what: str = "") -> None:
    """Note one decision."""
    global _left_out
    key = kernel, f"({', '.join(map(str, arguments))})", str(device), outcome
    with _lock:
        found = _seen.get(key)
        if found is None and len(_seen) >= _MOST:
            _left_out += 1
            return
        _seen[key] = what, 1 if found is None else found[1] + 1


def notes() -> tuple[list[tuple[Key, tuple[str, int]]], int]:
    """All notes in order of appearance, and how many decisions were not kept."""
    with _lock:
        return list(_seen.items()), _left_out


def forget() -> None:
    """Begin anew."""
    global _left_out
    with _lock:
        _seen.clear()
        _left_out = 0
