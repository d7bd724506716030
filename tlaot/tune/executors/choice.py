"""Which executor does the work of a tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .local import Local
from .seam import Executor

__all__ = ["open_executor"]


def open_executor(name: str, devices: Sequence[int] | None, say: Callable[[str], None]) -> Executor:
    """The executor of a name, to be closed by the caller.

    Args:
        name: One of :data:`~tlaot.tune.specs.spec.EXECUTORS`.
        devices: Numbers of the GPUs to measure on, of each host; None for all.
        say: Takes a line for the person who waits.
    """
    assert name == "local", name
    return Local(devices, say)
