"""The key of a factory's call: its arguments by name, defaults filled in, as plain data.

What records calls and what looks kernels up by them spell a key in one way: positions and keywords, and every spelling of a dtype,
give the same one. Nothing is imported to tell a dtype: TileLang, torch and numpy are known by the names of their types.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["NOT_PLAIN", "Plain", "bind_call", "dtype_name", "plain_value"]

Plain = bool | int | float | str | None

_PLAIN_TYPES = frozenset([bool, int, float, str, type(None)])


class _NotPlain:
    """What :func:`plain_value` gives for a value that is no plain data."""

    def __repr__(self) -> str:
        return "NOT_PLAIN"


NOT_PLAIN = _NotPlain()


def plain_value(value: Any) -> Any:
    """A value as keys have it: itself, a dtype's name, a numpy scalar's number; :data:`NOT_PLAIN` for anything else.

    ``T.float16``, ``torch.float16``, ``numpy.dtype("float16")`` and ``"float16"`` are all ``"float16"``. An enumeration's member is
    not plain though it may be a number: what it is called with is the member.
    """
    if type(value) in _PLAIN_TYPES:
        return value
    name = dtype_name(value)
    if name is not None:
        return name
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "item"):
        number = value.item()
        return number if type(number) in _PLAIN_TYPES else NOT_PLAIN
    return NOT_PLAIN


def dtype_name(value: Any) -> str | None:
    """The name of a dtype of TileLang, TVM, torch or numpy, ``"float16"``; None where it is no dtype."""
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    if module == "torch" and kind.__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if isinstance(value, str) and module in ("tvm_ffi", "tvm", "tilelang"):
        return str.__str__(value)
    if module == "numpy" and isinstance(getattr(value, "name", None), str) and hasattr(value, "itemsize"):
        # numpy.dtype("float16"); a scalar has an itemsize, and no name.
        return str(value.name)
    if kind is type and value.__module__ == "numpy" and hasattr(value, "dtype"):
        return str(value.__name__)  # numpy.float16, the scalar's class
    return None


def bind_call(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, in the order of the signature, with those that were left to their defaults.

    Values are as they were given. ``**kwargs`` of the signature are among them by their own names; what ``*args`` takes is a tuple
    under its name.

    Raises:
        TypeError: The call does not fit the signature.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found
