"""One process at a time measures on a device: a lock file for each, which all users of the machine share.

The lock is the kernel's (``flock``): it ends with the process that holds it, however that ends, and the file that stays behind locks nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Exclusion", "exclusive", "lock_folder"]

# A holder that was stopped and not ended is not waited for without end.
_LONGEST_WAIT = 600.0


class Exclusion:
    """What holding a device came to.

    Attributes:
        note: Why others may measure at the same time nevertheless; None where they may not.
        shared: Whether another one holds the device.
    """

    def __init__(self) -> None:
        self.note: str | None = None
        self.shared = False


# Descriptors of locks that are held: a process that is forked meanwhile must not keep them.
_held: set[int] = set()
_said: set[str] = set()
_guard = threading.Lock()


@contextmanager
def exclusive(
    device: str, say: Callable[[str], None], folder: Path | None = None, longest_wait: float = _LONGEST_WAIT
) -> Iterator[Exclusion]:
    """Hold a device.

    Args:
        device: The UUID of a GPU, or ``"cpu"``.
        say: Told once a process and device when there is something to wait for.
        folder: Where the lock files are; the system's folder for temporary files.
        longest_wait: Seconds after which it goes on without the lock.
    """
    exclusion = Exclusion()
    descriptor: int | None = None
    try:
        descriptor = _open(lock_folder() if folder is None else folder, device)
    except OSError as error:
        exclusion.note = f"no lock on {device}: {error.strerror}; other processes may have measured at the same time"
    if descriptor is None:
        yield exclusion
        return
    with _guard:
        _held.add(descriptor)
    try:
        if not _wait(descriptor, device, say, longest_wait):
            exclusion.shared = True
            exclusion.note = f"another process has held {device} for {longest_wait:g} s; measured beside it"
        yield exclusion
    finally:
        with _guard:
            _held.discard(descriptor)
        os.close(descriptor)


def lock_folder() -> Path:
    """The folder that all users share; ``TMPDIR`` may be a user's own."""
    shared = Path("/tmp")
    return shared if shared.is_dir() else Path(tempfile.gettempdir())


def _open(folder: Path, device: str) -> int:
    path = folder / f"tlaot-{re.sub(r'[^A-Za-z0-9.-]', '_', device)}.lock"
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for _ in range(3):
        # Opened before it is created: the kernel may refuse O_CREAT for another user's file in a folder like /tmp.
        try:
            descriptor = os.open(path, flags)
            break
        except FileNotFoundError:
            try:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue  # another process was faster
            os.fchmod(descriptor, 0o666)  # whatever the umask
            break
    else:
        raise OSError(errno.EAGAIN, "the lock file comes and goes")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path} is no regular file")
    return descriptor


def _wait(descriptor: int, device: str, say: Callable[[str], None], longest: float) -> bool:
    deadline = time.monotonic() + longest
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EINTR:
                return False  # a file system without locks
        if device not in _said:
            _said.add(device)
            what = "the CPU" if device == "cpu" else "this GPU"
            say(f"tlaot: another process measures on {what}; waiting")
        if time.monotonic() >= deadline:
            return False
        # Asked again and again, so that Ctrl-C and threads that end are not held up by a system call.
        time.sleep(random.uniform(0.001, 0.003))


def _forget_held() -> None:
    global _guard
    _guard = threading.Lock()
    for descriptor in _held:
        try:
            os.close(descriptor)
        except OSError:
            pass
    _held.clear()


os.register_at_fork(after_in_child=_forget_held)
