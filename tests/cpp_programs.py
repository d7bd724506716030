"""Builds the C++ programs of ``tests/cpp`` with the flags that ``tlaot include`` prints."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent / "cpp"


def flags(which: str) -> list[str]:
    """What ``tlaot include`` prints for ``--cxxflags`` or ``--ldflags``."""
    done = subprocess.run(
        [sys.executable, "-m", "tlaot.cli", "include", which],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


def build_embedded(folder: Path) -> Callable[..., str]:
    """``embedded.cc`` in this process: ``(folder, kernel, x, y, dtype, rows, columns, device=-1, stream=None)`` to "" or the error."""
    library = folder / "libembedded.so"
    # Without the FFI's library among what it needs: this process has it.
    command = ["g++", *flags("--cxxflags"), str(HERE / "embedded.cc"), "-shared", "-fPIC", "-O0", "-o", str(library)]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).call_kernel
    function.argtypes = [ctypes.c_char_p] * 2 + [ctypes.c_void_p] * 2 + [ctypes.c_char_p] + [ctypes.c_int64] * 2
    function.argtypes += [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]

    def call(
        package: Path,
        kernel: str,
        x: int,
        y: int,
        dtype: str,
        rows: int,
        columns: int,
        device: int = -1,
        stream: int = 0,
    ) -> str:
        message = ctypes.create_string_buffer(4096)
        where = str(package).encode(), kernel.encode(), x, y, dtype.encode(), rows, columns
        status = function(*where, device, stream or None, message, len(message))
        return message.value.decode() if status else ""

    return call
