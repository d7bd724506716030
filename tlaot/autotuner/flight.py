"""One at a time, by the path of a lock file: among the threads of all processes of a machine.

A lock goes with its holder: a process that dies, however, frees it. flock is between open files, so on a local disk it works
between threads as well as processes; on NFS, Linux turns it into a lock of the process. Hence a lock in the process comes first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["hold", "sweep"]

# What flock says where a file system has no locks. Other errors are of making the file, where nothing can be written.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

_log = logging.getLogger("tlaot.autotuner")


@contextlib.contextmanager
def hold(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock file's lock for the length of a block; whoever comes meanwhile waits.

    Args:
        path: The file; its folder is made, and the file goes away again with its last holder.
        report: Told why where the file system takes no locks. The block then runs with the process's threads kept
            apart only; so it does, untold, where nothing can be written.
    """
    with _hold_in_process(str(path)), _hold_among_processes(path, report):
        yield


def sweep(folder: Path) -> None:
    """Remove the lock files that no one holds: of processes that died."""
    for path in folder.glob("*.lock"):
        with contextlib.suppress(OSError):
            handle = _try_lock(path, wait=False)
            if handle is not None:
                _unlock(handle, path)


_guard = threading.Lock()
_in_process: dict[str, tuple[threading.Lock, int]] = {}
_handles: set[int] = set()


def _forget_locks() -> None:
    """A forked child has none of its parent's locks, and must not keep them locked when the parent has died."""
    global _guard
    _guard = threading.Lock()
    _in_process.clear()
    for handle in _handles:
        with contextlib.suppress(OSError):
            os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_forget_locks)


@contextlib.contextmanager
def _hold_in_process(name: str) -> Iterator[None]:
    with _guard:
        lock, users = _in_process.get(name, (threading.Lock(), 0))
        _in_process[name] = (lock, users + 1)
    try:
        with lock:
            yield
    finally:
        with _guard:
            _, users = _in_process.get(name, (lock, 1))
            if users > 1:
                _in_process[name] = (lock, users - 1)
            else:
                _in_process.pop(name, None)


@contextlib.contextmanager
def _hold_among_processes(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    handle = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _try_lock(path, wait=False)
        if handle is None:
            _log.info("waiting for process %s, which tunes the same kernel", _holder(path))
            handle = _try_lock(path, wait=True)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            report(error.strerror or str(error))
    try:
        yield
    finally:
        if handle is not None:
            _unlock(handle, path)


def _try_lock(path: Path, wait: bool) -> int | None:
    """Lock a file, made where there is none; None where another holds it and ``wait`` is false."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _handles.add(handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # The last holder has removed the file that we opened: its lock is nobody's; take that of the new one.
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                os.truncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                return handle
        except FileNotFoundError:
            pass
        except BlockingIOError:
            _close(handle)
            return None
        except BaseException:
            _close(handle)
            raise
        _close(handle)


def _unlock(handle: int, path: Path) -> None:
    if handle not in _handles:  # a forked child leaves its parent's block
        return
    with contextlib.suppress(OSError):
        os.unlink(path)
    _close(handle)


def _close(handle: int) -> None:
    _handles.discard(handle)
    os.close(handle)


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return str(int(path.read_text() or "?"))
    return "?"
