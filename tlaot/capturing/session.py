"""Recording: a command with all its processes, or a block of this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import SpecError
from .recording import Recording, files_of, read_recording
from .watch import Watch, child_environment

__all__ = ["Captured", "capture", "prepare_folder", "run_command"]


class Captured:
    """What a block recorded.

    Attributes:
        folder: Where it is; ``tlaot capture --from FOLDER`` writes a spec from it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> Recording:
        """What was recorded so far."""
        return read_recording([self.folder])


class capture:  # noqa: N801 - used like a function: with tlaot.capture():
    """Record this process's calls of TileLang factories, and launches of their kernels, while a block runs.

    TileLang may be imported before or in the block. Processes that are forked in the block are recorded, too; programs that it starts
    are not (``tlaot capture -- COMMAND`` does that).

        with tlaot.capture("recording") as captured:
            serve_for_a_minute()
        print(captured.read().called[0].label)

    Args:
        folder: Where to write, for ``tlaot capture --from``; made where it is not there. Default: a temporary folder, which is
            removed with the object's process.
        launch: Whether kernels are compiled and run; without, launches return zeros.

    Raises:
        SpecError: The folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, launch: bool = True) -> None:
        self._folder = folder
        self._launch = launch
        self._watch: Watch | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Captured:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tlaot-capture-")
            folder = Path(self._temporary.name)
        else:
            folder = Path(self._folder)
            prepare_folder(folder, keep=True)
        self._watch = Watch(str(folder), self._launch)
        captured = Captured(folder)
        captured.__dict__["_kept_by"] = self  # a temporary folder lasts as long as who may read it
        return captured

    def __exit__(self, *error: Any) -> None:
        assert self._watch is not None
        self._watch.stop()
        self._watch = None


def prepare_folder(folder: Path, keep: bool) -> None:
    """Make a folder for a recording; what an earlier one left there goes, unless it is kept.

    Raises:
        SpecError: It cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in [] if keep else files_of(folder):
            path.unlink()
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SpecError(
            str(folder), f"cannot be written ({error.strerror})", "Name another folder with --recording."
        ) from None


def run_command(
    words: Sequence[str], folder: Path, environ: Mapping[str, str], device: str = "", quiet: bool = False
) -> int:
    """Run a command whose processes are recorded, and wait for it.

    Args:
        words: The command; a Python file stands for itself under this Python.
        folder: Where to, which is there.
        environ: The command's environment.
        device: As of :func:`~tlaot.capturing.watch.child_environment`.
        quiet: Whether what it prints goes to standard error, since standard output is for something else.

    Returns:
        Its exit status, as a shell has it: 128 and the signal's number where one ended it.

    Raises:
        SpecError: There is no such command.
    """
    program = list(words)
    if program[0].endswith(".py") and shutil.which(program[0]) is None:
        program.insert(0, sys.executable)
    try:
        process = subprocess.Popen(program, env=child_environment(folder, environ, device), stdout=2 if quiet else None)
    except OSError as error:
        raise SpecError(program[0], f"cannot be run ({error.strerror})", "Name a program after --.") from None
    while True:
        try:
            status = process.wait()
            return status if status >= 0 else 128 - status
        except KeyboardInterrupt:
            continue  # the command has heard it, too, and ends as it sees fit
