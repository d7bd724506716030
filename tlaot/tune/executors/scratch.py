"""A scratch folder on a node that goes with the process that made it, however that ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

__all__ = ["Scratch", "end_with_parent"]

_PREFIX = "tlaot-node-"

# Waits until this process has ended, however it does, then removes its folder; what it started may still be ending, too. A shell
# gives what runs in its background another standard input.
_JANITOR = """
exec 3<&0
{ cat <&3; i=0; until rm -rf -- "$0" 2>/dev/null || [ $i -ge 100 ]; do i=$((i+1)); sleep 0.1; done; sleep 2; rm -rf -- "$0"; } &
"""


def end_with_parent() -> None:
    """Have this process end soon after the one that started it: Ray may leave it running when a node's own process was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, name="tlaot-parent", daemon=True).start()


class Scratch:
    """A folder of this process, which is gone soon after the process, however that ends.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        _sweep(base)
        # Nobody sees it, to sweep it away, before it is held.
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=base))
        self._lock = os.open(made / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = base / made.name.removeprefix(".")
        made.rename(self.path)
        # Its shell ends at once, so that what is left is no child of this process: those are killed with it.
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", _JANITOR, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._janitor.wait()

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        if self._janitor.stdin is not None:
            self._janitor.stdin.close()


def _sweep(base: Path) -> None:
    """Remove the folders of processes that died with their whole machine, or container."""
    for folder in base.glob(f"{_PREFIX}*"):
        try:
            handle = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or just being removed
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # it lives
        finally:
            os.close(handle)
