"""``set_autotune_inputs``: the tensors that candidates are checked and timed with, given by the caller.

They travel to the measuring child as :mod:`tlaot.tune.measuring.transport` says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..tune.measuring.transport import carried, read_tensors, write_tensors
from ..tune.specs.supply import validate_supply

__all__ = [
    "captured",
    "carried",
    "get_autotune_inputs",
    "read_tensors",
    "set_autotune_inputs",
    "validate_supply",
    "write_tensors",
]


class _Stack(threading.local):
    """The captured inputs of each thread, innermost last."""

    def __init__(self) -> None:
        self.captured: list[tuple[Any, ...]] = []


_stack = _Stack()


@contextmanager
def set_autotune_inputs(*values: Any) -> Iterator[None]:
    """Tune with these inputs what is tuned inside the ``with`` block, in this thread.

    Every candidate sees these values, whatever the ones before it wrote; the tensors themselves are not changed.

    Args:
        *values: The kernel's parameters in order, or one list or tuple of them: all of them, or all but the outputs. Tensors
            of torch, numpy or anything with ``__dlpack__``; Python numbers for scalars.
    """
    only = values[0] if len(values) == 1 else None
    taken = tuple(only) if isinstance(only, (list, tuple)) else values
    stack = _stack.captured
    stack.append(taken)
    try:
        yield
    finally:
        stack.pop()


def captured() -> tuple[Any, ...] | None:
    """What the innermost :func:`set_autotune_inputs` of this thread was given; None outside of one."""
    return _stack.captured[-1] if _stack.captured else None


def get_autotune_inputs() -> Sequence[Any] | None:
    """TileLang's name for :func:`captured`."""
    return captured()
