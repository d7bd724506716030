"""Putting the hook into a process: this one, or one that a recorded command starts.

A command's processes are reached by a folder at the head of ``PYTHONPATH`` whose ``sitecustomize`` Python imports when it starts, in
every process that inherits the variables: workers of pytest-xdist, ranks of torchrun, what these start. Nothing is installed and
no file outside of the recording's folder is written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ..imports import patch_imports

__all__ = ["CAPTURE_VARIABLE", "DEVICE_VARIABLE", "Watch", "child_environment", "watch_by_environment"]

CAPTURE_VARIABLE = "TLAOT_CAPTURE"
"""The recording's folder, for processes that a recorded command starts."""
DEVICE_VARIABLE = "TLAOT_CAPTURE_AS"
"""``"none"``: nothing is compiled or run; a CUDA target: nor is there a GPU, and questions about one are answered for that."""

_HOOKED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hooked")


class Watch:
    """The hook in this process, until :meth:`stop`.

    Args:
        folder: The recording's, which is there.
        launch: Whether kernels are compiled and run.
    """

    def __init__(self, folder: str, launch: bool = True) -> None:
        # Not before it is needed: most processes of a command never import TileLang.
        from .journal import Journal
        from .tilelang_hook import Hook

        self._journal = Journal(folder)
        self._hook = Hook(self._journal, launch)
        self._hook.install()
        self._stopped = False
        # A forked process has files of its own, whether it ever runs another program or not.
        os.register_at_fork(after_in_child=self._forked)

    def stop(self) -> None:
        """Take the hook out."""
        self._stopped = True
        self._hook.uninstall()
        self._journal.close()

    def _forked(self) -> None:
        if not self._stopped:
            self._hook.renew()


def watch_by_environment(environ: Mapping[str, str]) -> None:
    """Record this process, from its import of TileLang, if the environment says so; called when Python starts."""
    folder, device = environ.get(CAPTURE_VARIABLE), environ.get(DEVICE_VARIABLE, "")
    if not folder or not os.path.isdir(folder):
        return
    if device not in ("", "none"):
        from ..target import parse_target
        from ..tune.compiling.devices import device_for, impersonate
        from .on_cpu import put_on_cpu

        impersonate(device_for(parse_target(device, DEVICE_VARIABLE)))
        patch_imports({"torch": put_on_cpu})
    patch_imports({"tilelang.jit": lambda _: _watch(folder, not device)})


# That of this process, of a recorded command.
_watching: list[Watch] = []


def _watch(folder: str, launch: bool) -> None:
    try:
        _watching.append(Watch(folder, launch))
    except Exception as error:
        print(f"tlaot capture: this process is not recorded: {type(error).__name__}: {error}", file=sys.stderr)


def child_environment(folder: os.PathLike[str], environ: Mapping[str, str], device: str = "") -> dict[str, str]:
    """The environment of a command whose processes are recorded.

    Args:
        folder: The recording's, which is there.
        environ: What the command would have otherwise.
        device: As :data:`DEVICE_VARIABLE`; "" compiles and runs.
    """
    path = os.pathsep.join(filter(None, [_HOOKED, environ.get("PYTHONPATH", "")]))
    # A package with packaged kernels runs them in TileLang's place (tlaot.tilelang_for); what is recorded is the JIT.
    made = {"TLAOT_DROPIN": "tilelang", **environ, CAPTURE_VARIABLE: os.path.abspath(folder), "PYTHONPATH": path}
    if device:
        made[DEVICE_VARIABLE] = device
    else:
        made.pop(DEVICE_VARIABLE, None)
    return made
