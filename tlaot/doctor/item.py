"""What is found, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MISSING", "NOTE", "OK", "Item", "Verdict"]

# It is there; it is not what it should be, or is not there and may be wanted; it is not there and a declared target needs it.
OK, NOTE, MISSING = "ok", "note", "missing"


@dataclass(frozen=True)
class Item:
    """One thing that was looked at.

    Attributes:
        area: The heading that it stands under: ``"machine"``, ``"compilers"``, ``"python"``, ``"disk"`` or ``"project"``.
        name: What it is: ``"nvcc"``.
        state: :data:`OK`, :data:`NOTE` or :data:`MISSING`.
        what: What was found.
        remedy: The command or the line that mends it; "" where nothing is to be mended.
    """

    area: str
    name: str
    state: str
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Verdict:
    """What becomes of one target of one frontend.

    Attributes:
        target: The target, ``"cuda:sm_90a"``.
        frontend: The frontend.
        kernels: Names of the kernels.
        state: :data:`OK`; :data:`NOTE`, where it cannot be built and ``when-available`` lets the build leave it out; :data:`MISSING`.
        how: How it is built here: ``"tuned here"``, say; "" where it cannot be.
        lacks: What is in the way, each with its remedy; of the way of building that lacks the least.
    """

    target: str
    frontend: str
    kernels: tuple[str, ...]
    state: str
    how: str = ""
    lacks: Sequence[tuple[str, str]] = ()
