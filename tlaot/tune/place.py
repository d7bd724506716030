"""Where a build works: ``build/tlaot`` of the project, held by one build at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["find_source_root", "hold_project", "sweep", "work_folder"]

# Locks that this process holds. They are kept until it ends: what a build wrote is read again when the wheel is zipped.
_held: dict[Path, int] = {}

_PATIENCE = 10.0  # s for the processes of a killed build to be gone


def work_folder(project: Path) -> Path:
    """``build/tlaot`` of the project; a temporary folder where the project cannot be written."""
    folder = project / "build" / "tlaot"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="tlaot-"))


def hold_project(project: Path, say: Callable[[str], None]) -> None:
    """Wait until no other process builds the project, then hold it until this process ends.

    Intermediate files that a killed build left are removed: whoever holds the project knows that nobody uses them.
    """
    folder = (project / "build" / "tlaot").resolve()
    if folder in _held:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return  # a project that cannot be written has nothing to hold
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("tlaot: another process builds this project; waiting for it to end")
        fcntl.flock(handle, fcntl.LOCK_EX)
    _held[folder] = handle
    sweep(folder)
    for torn in folder.glob("records/**/.*"):  # write_atomically's
        torn.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the scratch folders in a build folder that this process holds, or has to itself.

    The compilers of a killed build die a moment after it, and may be writing until then.
    """
    deadline = time.monotonic() + _PATIENCE
    for left in folder.glob("run-*"):
        shutil.rmtree(left, ignore_errors=True)
        while left.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
            shutil.rmtree(left, ignore_errors=True)


def find_source_root(project: Path, package: str) -> Path:
    """The folder that the author's modules are imported from: the project's, or its ``src`` where that has the package."""
    inside = Path(*package.split("."))
    return project / "src" if (project / "src" / inside).is_dir() and not (project / inside).is_dir() else project
