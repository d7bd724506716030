"""Which executor does the work of a tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from .local import Local
from .ray import Ray
from .seam import Executor

__all__ = ["open_executor"]


def open_executor(
    name: str, devices: Sequence[int] | None, say: Callable[[str], None], pack: Callable[[Path], str]
) -> Executor:
    """The executor of a name, to be closed by the caller.

    Args:
        name: One of :data:`~tlaot.tune.specs.spec.EXECUTORS`.
        devices: Numbers of the GPUs to measure on, of this host; None for all.
        say: Takes a line for the person who waits.
        pack: Writes an archive of the author's modules, for hosts that do not have them, and returns a digest of them.

    Raises:
        BuildError: It cannot be had: what it takes is not installed, or does not run.
    """
    if name == "local":
        return Local(devices, say)
    assert name == "ray", name
    if devices is not None:
        say("tlaot: numbers of devices are those of one host and are ignored; Ray says which GPUs there are")
    return Ray(pack, say)
