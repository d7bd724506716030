"""What one process writes while it is recorded: a line for each new thing, and counters that a crash does not lose.

``<host>-<pid>-<random>.jsonl`` has a line of JSON for each factory call and each kind of launch, written when it is first seen.
``....counts`` beside it are their counters, 64-bit numbers in a file that is mapped into memory: counting is one addition, and what
was counted is in the file whatever becomes of the process.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["COUNTS_SUFFIX", "FORMAT", "JOURNAL_SUFFIX", "LOST", "SLOTS", "Journal"]

FORMAT = 1
JOURNAL_SUFFIX = ".jsonl"
COUNTS_SUFFIX = ".counts"

SLOTS = 4096  # counters of one file; the next file has the next ones

# Counters of launches that could not be recorded, and of those among them that failed.
LOST = (0, 1)

# A server that sees ever new sizes must not grow without bound.
_MOST_ENTRIES = 1 << 16
_MOST_TROUBLES = 100


class Journal:
    """The files of this process, made with the first line. No method raises: what cannot be written is lost, with a warning.

    Args:
        folder: Where the files are made.

    Attributes:
        segments: The counters: ``segments[slot // SLOTS][slot % SLOTS] += 1`` counts. After a fork the child has files of its own
            here, at zero, for the same slots.
        full: Whether no more new things are written.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.full = False
        self.segments: list[Any] = []
        self._lines: list[bytes] = []
        self._troubles: set[str] = set()
        self._slots = len(LOST)
        self._stem = ""
        self._file: int | None = None
        self._lock = threading.RLock()

    def begin(self, about: Mapping[str, Any]) -> None:
        """Write the first line, what process this is; nothing where that was done."""
        with self._lock:
            if not self._lines:
                self._write({"format": FORMAT, "process": _about_process(), **about})
                self.segments.append(self._new_segment(0))

    def add(self, entry: Mapping[str, Any], counters: int = 0) -> int:
        """Write a line, with counters of its own; returns the first one's slot, which is in the line."""
        with self._lock:
            self.begin({})
            slot = self._slots
            self._slots += counters
            while self._slots > len(self.segments) * SLOTS:
                self.segments.append(self._new_segment(len(self.segments)))
            self._write({**entry, "slot": slot} if counters else entry)
            self.full = len(self._lines) >= _MOST_ENTRIES
            return slot

    def count(self, slot: int) -> None:
        """Count once. What runs often does the same addition itself."""
        self.segments[slot // SLOTS][slot % SLOTS] += 1

    def trouble(self, what: str) -> None:
        """Note what could not be recorded, each once."""
        with self._lock:
            if what not in self._troubles and len(self._troubles) < _MOST_TROUBLES:
                self._troubles.add(what)
                self.add({"trouble": what})

    def renew(self) -> None:
        """In a process that was just forked: files of its own, in which nothing was counted yet."""
        self._lock = threading.RLock()
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if self._file is not None:
            os.close(self._file)  # it stays open in the parent
        self._file = None
        self._write({**json.loads(lines[0]), "process": _about_process()})
        for line in lines[1:]:
            self._append(line)
        self.segments[:] = [self._new_segment(i) for i in range(len(self.segments))]

    def close(self) -> None:
        """Let go of the file; counters stay where they are."""
        if self._file is not None and self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        try:
            if self._file is None:
                self._stem = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._file = os.open(os.path.join(self.folder, self._stem + JOURNAL_SUFFIX), flags, 0o644)
            if self._file >= 0:
                os.write(self._file, line)
        except OSError as error:
            self._file = -1
            print(f"tlaot capture: {self.folder}: {error.strerror}; this process is not recorded", file=sys.stderr)

    def _new_segment(self, number: int) -> Any:
        size = SLOTS * 8
        if self._file is not None and self._file >= 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                descriptor = os.open(os.path.join(self.folder, f"{self._stem}.{number}{COUNTS_SUFFIX}"), flags, 0o644)
                try:
                    # Written for real: counting into a hole on a full disk would kill the program.
                    if os.write(descriptor, bytes(size)) < size:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    return memoryview(mmap.mmap(descriptor, size)).cast("Q")
                finally:
                    os.close(descriptor)
            except OSError as error:
                self._file = -1
                print(f"tlaot capture: {self.folder}: {error.strerror}; this process is not recorded", file=sys.stderr)
        return memoryview(bytearray(size)).cast("Q")


def _about_process() -> dict[str, Any]:
    about: dict[str, Any] = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "argv": [*(getattr(sys, "orig_argv", None) or sys.argv)][:20],
        "started": round(time.time(), 3),
    }
    # Of torchrun, and of pytest-xdist.
    for name, key in (("RANK", "rank"), ("PYTEST_XDIST_WORKER", "worker")):
        if os.environ.get(name):
            about[key] = os.environ[name]
    return about
