"""One thread for numpy's OpenBLAS where matrices are small and every processor compiles: its threads would wait for one another."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["one_thread"]

# numpy's wheels have symbols of their own; distributions have the plain ones.
_SYMBOLS = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)
_lock = threading.Lock()
_inside, _usual = 0, 1  # how many threads are in the block, and the number from before


@contextmanager
def one_thread() -> Iterator[None]:
    """Have linear algebra of numpy, which is imported, run in the thread that asks for it; any other library than OpenBLAS as ever."""
    found = _find()
    if found is None:
        yield
        return
    get, put = found
    global _inside, _usual
    with _lock:
        if _inside == 0:
            _usual = get()
            put(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                put(_usual)


@cache
def _find() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for path in dict.fromkeys(line.split(maxsplit=5)[-1] for line in maps if "openblas" in line):
        try:
            library = ctypes.CDLL(path)  # it is loaded already
        except OSError:
            continue
        for symbol in _SYMBOLS:
            if hasattr(library, symbol.format("set")) and hasattr(library, symbol.format("get")):
                return getattr(library, symbol.format("get")), getattr(library, symbol.format("set"))
    return None
