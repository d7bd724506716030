"""One ``executable.so``: verified, loaded once a process, and its functions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..errors import LoadError
from ..manifest import EXECUTABLE, FileDigest, verify_file

__all__ = ["CALL", "CPU_LEVEL", "EXECUTABLE", "PRELOAD", "load_binary", "load_function", "loading"]

# What it exports, by the FFI's names.
CALL = "tlaot_call"
CPU_LEVEL = "tlaot_cpu_level"
PRELOAD = "tlaot_preload"

_loading = threading.RLock()

# Content of each file that was given to the dynamic linker; libraries are never unloaded.
_loaded: dict[str, FileDigest] = {}


def _renew_lock() -> None:
    global _loading
    _loading = threading.RLock()


# A thread that was loading while another one forked does not exist in the child, its lock would.
os.register_at_fork(after_in_child=_renew_lock)


def loading() -> AbstractContextManager[bool]:
    """What a thread holds while it loads; of a forked process its own."""
    return _loading


def load_function(path: Path, expected: FileDigest) -> Callable[..., Any]:
    """The FFI function of one ``executable.so``; it takes all parameters of the kernel, outputs included.

    Raises:
        PackageError: The file is missing or its content is not what was packaged; it has not been loaded.
        LoadError: The dynamic linker refuses the file.
    """
    function: Callable[..., Any] = load_binary(path, expected)[CALL]
    return function


def load_binary(path: Path, expected: FileDigest) -> Any:
    """Verify, then load: nothing but the packaged bytes reaches the dynamic linker. Raises as :func:`load_function`."""
    verify_file(path, expected)
    import tvm_ffi

    # The dynamic linker knows a library by its path: for one that was replaced it silently gives the old code.
    loaded = _loaded.setdefault(str(path), expected)
    if loaded != expected:
        raise LoadError(
            str(path),
            f"was replaced while this process has the former one loaded (SHA-256 {loaded.sha256[:12]}...)",
            "Start the process again.",
        )
    try:
        return tvm_ffi.load_module(path)
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: a path that is no UTF-8
        raise LoadError(
            str(path),
            f"cannot be loaded ({str(error).strip().splitlines()[-1]})",
            "It was built for another system: install a wheel for this one, or build the package here.",
        ) from error
