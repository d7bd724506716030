"""Is a candidate's output right? Correct comes before fast."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .arrays import Arrays

__all__ = ["Tolerance", "compare", "default_tolerance"]

# A share of elements may miss the tolerance, but none by more than this factor: one element in a
# hundred that is plainly wrong is a wrong kernel.
WORST_FACTOR = 10.0

# Relative and absolute tolerance by element type. They allow for accumulating in the type's usual accumulator (float32 for the
# short types) over some thousand terms of order one.
_BY_DTYPE = {
    "float64": 1e-7,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 2e-2,
}
_FLOAT8 = 1.25e-1
_FLOAT4 = 5e-1
# Elements that are compared at a time: as float64 and with all that is made of them, some 60 bytes each.
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Tolerance:
    """``|x - ref| <= atol + rtol * |ref|`` for all but ``max_mismatched_ratio`` of the elements; None chooses by dtype."""

    rtol: float | None
    atol: float | None
    max_mismatched_ratio: float


def default_tolerance(dtype: str) -> float:
    """The tolerance, relative and absolute, of an element type; 0 for integers."""
    if dtype in _BY_DTYPE:
        return _BY_DTYPE[dtype]
    if dtype.startswith("float4"):
        return _FLOAT4
    return _FLOAT8 if dtype.startswith("float8") else 0.0


def compare(arrays: Arrays, name: str, dtype: str, actual: Any, expected: Any, tolerance: Tolerance) -> str | None:
    """Compare one output with its reference.

    Returns:
        Why the output is wrong, or None.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of infinities and NaN: they are judged below
        return _compare(arrays, name, dtype, actual, expected, tolerance)


def _compare(arrays: Arrays, name: str, dtype: str, actual: Any, expected: Any, tolerance: Tolerance) -> str | None:
    found, wanted = arrays.tensor(actual), arrays.tensor(expected)
    if "complex" in str(wanted.dtype) and "complex" not in dtype:
        return f"output {name} is {dtype}, the reference is complex"
    if tuple(found.shape) != tuple(wanted.shape):
        return f"output {name} has shape {tuple(found.shape)}, the reference {tuple(wanted.shape)}"
    default = default_tolerance(dtype)
    rtol = default if tolerance.rtol is None else tolerance.rtol
    atol = default if tolerance.atol is None else tolerance.atol
    wanted_shape = tuple(int(size) for size in wanted.shape)
    found, wanted = found.reshape(-1), wanted.reshape(-1)
    count = math.prod(int(size) for size in found.shape)
    nans, misses, worst, at = 0, 0, 0.0, -1
    for start in range(0, count, _CHUNK):
        tally = _tally(arrays, dtype, found[start : start + _CHUNK], wanted[start : start + _CHUNK], rtol, atol)
        nans, misses = nans + tally.nans, misses + tally.misses
        if tally.misses and (at < 0 or tally.worst > worst):
            worst, at = tally.worst, start + tally.at
    if nans:
        return f"output {name} has {nans} NaN among {count} elements (or elements that were never written)"
    if misses == 0:
        return None
    allowed = int(tolerance.max_mismatched_ratio * count) if default else 0
    text = f"{misses} of {count} elements differ from the reference by more than {rtol:g} relative + {atol:g} absolute"
    place = _spell_place(at, wanted_shape)
    shown = f"the worst, at {place}, is {_spell(arrays, found[at])} for {_spell(arrays, wanted[at])}"
    if misses > allowed:
        return f"output {name}: {text} ({allowed} may); {shown} and misses by {worst:.3g} times that"
    if not worst <= WORST_FACTOR:
        limit = f"at most {WORST_FACTOR:g} is allowed"
        return f"output {name}: {text}; {shown} and misses by {worst:.3g} times that ({limit})"
    return None


def _spell(arrays: Arrays, element: Any) -> str:
    return f"{float(arrays.float64(element.reshape(1))[0]):.6g}"


def _spell_place(at: int, shape: Sequence[int]) -> str:
    """A position in a flat array as indices: ``[2, 17]``."""
    indices = []
    for size in reversed(shape):
        at, index = divmod(at, size)
        indices.append(index)
    return f"[{', '.join(map(str, reversed(indices)))}]"


@dataclass(frozen=True)
class _Tally:
    """Of one chunk: how many elements are NaN, how many miss the tolerance; by what factor the worst one does, and which that is."""

    nans: int
    misses: int
    worst: float = 0.0
    at: int = -1


def _tally(arrays: Arrays, dtype: str, actual: Any, expected: Any, rtol: float, atol: float) -> _Tally:
    found, wanted = arrays.float64(actual), arrays.float64(expected)
    nans = int((found != found).sum())
    error = abs(found - wanted)
    bound = atol + rtol * abs(wanted)
    # Infinities are right only where the reference has the same one: inf - inf is NaN, and inf bounds nothing.
    error[found == wanted] = 0.0
    bound[abs(wanted) == math.inf] = 0.0
    missed = ~(error <= bound)  # the negation also catches a NaN in the reference
    if rtol == 0 and atol == 0 and "float" not in dtype:
        missed |= arrays.differ(actual, expected)  # float64 cannot tell large integers apart
    misses = int(missed.sum())
    if not misses:
        return _Tally(nans, 0)
    ratio = error / (bound + 5e-324)  # smallest float64: an exact bound of 0 makes any error infinite
    ratio[ratio != ratio] = math.inf
    if not float(ratio.max()) > 1.0:  # large integers that float64 cannot tell apart
        ratio[missed] = math.inf
    at = int(ratio.argmax())
    return _Tally(nans, misses, float(ratio[at]), at)


def pick_outputs(returned: Any) -> Sequence[Any]:
    """What a reference returned, as a sequence of tensors."""
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]
