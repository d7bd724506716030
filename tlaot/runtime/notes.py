"""What is said aloud about the variant that a call runs: once a process and kernel, as a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection

from ..manifest import Variant
from .choose import find_notes
from .device import cuda_place

__all__ = ["say_once"]

# What was said of which kernel. No lock: one that another thread holds while this one forks would never be given back.
_said: dict[tuple[str, str], object] = {}


def say_once(
    where: str,
    variant: Variant,
    device_id: int,
    retuned: bool = False,
    companions: Collection[str] = (),
) -> None:
    """Warn of what a CUDA device's user should know about a variant, unless this process has said it of the kernel before.

    Args:
        where: The kernel, ``"package.name"``.
        variant: What runs.
        device_id: Ordinal of the device.
        retuned: Whether an overlay has times of this device; then it does not matter for which one the config was tuned.
        companions: Those that are not installed and have code that would run in the variant's place.

    Raises:
        Warning: Python was told to raise warnings (``-W error``); then the next call says it again.
    """
    place = cuda_place(device_id)
    notes = dict(find_notes(where, variant, place))
    if retuned:
        notes.pop("sm_count", None)
    if companions:
        notes = {
            "companion": f"{where}: runs the code for {variant.target} on {place.device or place}; code made for it is in a companion "
            f"that is not installed. Run: pip install {' '.join(companions)}"
        }
    for kind, text in notes.items():
        key, token = (where, kind), object()
        if _said.setdefault(key, token) is not token:
            continue
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=_callers_level())
        except BaseException:
            _said.pop(key, None)
            raise


def _callers_level() -> int:
    """The level of warnings, counted from who asks, at which the run-time side was called: the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(__package__):
        frame, level = frame.f_back, level + 1
    return level
