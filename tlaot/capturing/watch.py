"""Putting the hook into a process: this one, or one that a recorded command starts.

A command's processes are reached by a folder at the head of ``PYTHONPATH`` whose ``sitecustomize`` Python imports when it starts, in
every process that inherits the variables: workers of pytest-xdist, ranks of torchrun, what these start. Nothing is installed and
no file outside of the recording's folder is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..imports import patch_imports
from .journal import Journal
from .on_cpu import put_on_cpu
from .tilelang_hook import Hook

__all__ = ["CAPTURE_VARIABLE", "DEVICE_VARIABLE", "Watch", "child_environment", "start", "start_by_environment"]

CAPTURE_VARIABLE = "TLAOT_CAPTURE"
"""The recording's folder, for processes that a recorded command starts."""
DEVICE_VARIABLE = "TLAOT_CAPTURE_AS"
"""``"none"``: nothing is compiled or run; a CUDA target: nor is there a GPU, and questions about one are answered for that."""

_HOOKED = Path(__file__).parent / "hooked"


class Watch:
    """The hook in this process, until :meth:`stop`."""

    def __init__(self, folder: Path, launch: bool = True) -> None:
        self.journal = Journal(folder)
        self._hook = Hook(self.journal, launch)
        self._hook.install()
        self._stopped = False
        # A forked process has files of its own, whether it ever runs another program or not.
        os.register_at_fork(after_in_child=self._forked)

    def stop(self) -> None:
        """Take the hook out."""
        self._stopped = True
        self._hook.uninstall()
        self.journal.close()

    def _forked(self) -> None:
        if not self._stopped:
            self.journal.renew()


def start(folder: Path, launch: bool = True) -> Watch:
    """Record this process into a folder, which is there."""
    return Watch(folder, launch)


def start_by_environment(environ: Mapping[str, str]) -> Watch | None:
    """Record this process if the environment says so; called when Python starts."""
    folder, device = environ.get(CAPTURE_VARIABLE), environ.get(DEVICE_VARIABLE, "")
    if not folder or not os.path.isdir(folder):
        return None
    if device not in ("", "none"):
        from ..target import parse_target
        from ..tune.compiling.devices import device_for, impersonate

        impersonate(device_for(parse_target(device, DEVICE_VARIABLE)))
        patch_imports({"torch": put_on_cpu})
    return start(Path(folder), not device)


def child_environment(folder: Path, environ: Mapping[str, str], device: str = "") -> dict[str, str]:
    """The environment of a command whose processes are recorded.

    Args:
        folder: The recording's, which is there.
        environ: What the command would have otherwise.
        device: As :data:`DEVICE_VARIABLE`; "" compiles and runs.
    """
    path = os.pathsep.join(filter(None, [str(_HOOKED), environ.get("PYTHONPATH", "")]))
    made = {**environ, CAPTURE_VARIABLE: str(folder.absolute()), "PYTHONPATH": path}
    if device:
        made[DEVICE_VARIABLE] = device
    else:
        made.pop(DEVICE_VARIABLE, None)
    return made
