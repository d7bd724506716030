"""Precompiled headers of NVRTC: made by one process, used by all that were forked from the same one.

They lie in files without names, in the folder for temporary files: 150 to 400 MB each, gone with the last of those processes,
however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Claim", "Headers"]

_MOST = 8
# Being made takes twice a file's size for a moment.
_MIN_FREE_DISK = 4 << 30
_PREFIX = "tlaot-pch-"

_KEY = hashlib.sha256().digest_size
_ROW = _KEY + 1
# A claim that nobody holds any more and that is not ready has failed, for good: what ended one process would end others.
_FREE, _CLAIMED, _AHEAD, _READY = range(4)


@dataclass(frozen=True)
class Claim:
    """The right to make one file, of the process that has it and of its forks.

    Attributes:
        place: Number of the file.
        lock: Descriptor that holds the lock on the file; others wait until its last copy is closed.
    """

    place: int
    lock: int


class Headers:
    """Room for precompiled headers; to be made in the process that forks all the others.

    Args:
        common: Headers of which most sources include some. They are precompiled all together, in this order, for every source that
            includes no others.
    """

    def __init__(self, common: Sequence[str] = ()) -> None:
        self.common = tuple(common)
        _sweep(Path(tempfile.gettempdir()))
        self._files = [tempfile.TemporaryFile() for _ in range(_MOST)]  # noqa: SIM115 - as long as the processes
        self._claims = tempfile.TemporaryFile()  # noqa: SIM115
        self._table = mmap.mmap(-1, _MOST * _ROW)  # shared with forks

    def find(self, key: str) -> str | None:
        """Path of a finished file; waits for one that is made ahead, and not for one that somebody needed as early as the caller."""
        place = self._place(_digest(key))
        if place is None:
            return None
        if self._state(place) == _AHEAD:
            with _reopened(self._path(place)) as handle:
                fcntl.flock(handle, fcntl.LOCK_SH)
        return self._path(place) if self._state(place) == _READY else None

    def claim(self, key: str, ahead: bool = False) -> Claim | None:
        """Begin to make a file; None where another process has begun, or there is no room."""
        if shutil.disk_usage(tempfile.gettempdir()).free < _MIN_FREE_DISK:
            return None
        digest = _digest(key)
        with _reopened(f"/proc/self/fd/{self._claims.fileno()}") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            free = [place for place in range(_MOST) if self._state(place) == _FREE]
            if not free or self._place(digest) is not None:
                return None
            lock = os.open(self._path(free[0]), os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._table[free[0] * _ROW : (free[0] + 1) * _ROW] = digest + bytes([_AHEAD if ahead else _CLAIMED])
        return Claim(free[0], lock)

    def make(self, claim: Claim, write: Callable[[Path], bool]) -> str | None:
        """Make a file that was claimed.

        Args:
            claim: The claim; given back.
            write: Writes the file to a path where there is none yet; whether that went well.

        Returns:
            The finished file's path; None where it failed.
        """
        try:
            if not _fill(claim.lock, write):
                return None
            self._table[claim.place * _ROW + _KEY] = _READY
            return self._path(claim.place)
        except OSError:  # a full disk
            os.ftruncate(claim.lock, 0)
            return None
        finally:
            os.close(claim.lock)

    def _path(self, place: int) -> str:
        return f"/proc/self/fd/{self._files[place].fileno()}"

    def _state(self, place: int) -> int:
        return self._table[place * _ROW + _KEY]

    def _place(self, digest: bytes) -> int | None:
        for place in range(_MOST):
            if self._state(place) != _FREE and self._table[place * _ROW : place * _ROW + _KEY] == digest:
                return place
        return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


@contextmanager
def _reopened(path: str) -> Iterator[int]:
    """A descriptor with locks of its own, which an inherited one shares with all that inherited it."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _fill(target: int, write: Callable[[Path], bool]) -> bool:
    # NVRTC removes the file that it is to write, so that one is in a folder of its own; its lock says that somebody is at it.
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = Path(folder) / "headers.pch"
            if not write(made):
                return False
            with made.open("rb") as source:
                size = done = os.fstat(source.fileno()).st_size
                while done > 0:
                    done -= os.sendfile(target, source.fileno(), size - done, done)
        finally:
            os.close(lock)
    return True


def _sweep(folder: Path) -> None:
    """Remove what processes left that were killed while they made a file."""
    for left in folder.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(left, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            pass  # somebody is at it
        finally:
            os.close(lock)
