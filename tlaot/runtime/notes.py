"""What is said aloud about the variant that a call runs: once a process and kernel, as a warning."""

from __future__ import annotations

import warnings

from ..manifest import Variant
from .choose import find_notes
from .device import cuda_place

__all__ = ["say_once"]

# What was said of which kernel. No lock: one that another thread holds while this one forks would never be given back.
_said: dict[tuple[str, str], object] = {}


def say_once(where: str, variant: Variant, device_id: int, stacklevel: int, retuned: bool = False) -> None:
    """Warn of what a CUDA device's user should know about a variant, unless this process has said it of the kernel before.

    Args:
        where: The kernel, ``"package.name"``.
        variant: What runs.
        device_id: Ordinal of the device.
        stacklevel: Frames between this one and the user's call.
        retuned: Whether an overlay has times of this device; then it does not matter for which one the config was tuned.

    Raises:
        Warning: Python was told to raise warnings (``-W error``); then the next call says it again.
    """
    for kind, text in find_notes(where, variant, cuda_place(device_id)):
        key, token = (where, kind), object()
        if retuned and kind == "sm_count":
            continue
        if _said.setdefault(key, token) is not token:
            continue
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
        except BaseException:
            _said.pop(key, None)
            raise
