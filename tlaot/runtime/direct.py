"""The direct way of a call: what has been decided, told to the library ``direct.so`` that a package ships.

Without that library, in another Python than CPython with its global lock, and for arguments other than torch's tensors, numpy's
arrays and Python's own numbers a call goes the way of ``call.py``. The library decides nothing and words no error: what it was not told
it asks for (``native/direct/direct.c``).
"""

from __future__ import annotations

import array
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..manifest import DIRECT_TYPE, FileDigest, Param, Variant, verify_file
from .binary import loading
from .call import Described, bind_strides, bind_symbols
from .dispatch import given_params
from .framework import compact_strides, imported, static_strides
from .frameworks import framework_of
from .numpy_arrays import numpy_dtype
from .region import Range

__all__ = ["Direct", "direct_type"]

_EXCHANGED, _ARRAY = 0, 4
_NUMBERS = {int: 1, float: 2, bool: 3}

# Decisions that one object is told before it is told anew: a server that sees ever new sizes must not grow without bound.
_MOST_TOLD = 4000
_MOST_RANGES = 200

# By path; None for one that this Python cannot use.
_types: dict[Path, Any] = {}


def direct_type(path: Path, expected: FileDigest) -> Any | None:
    """The type that a package's ``direct.so`` defines; None where this Python cannot use it, or ``TLAOT_DIRECT=0`` forbids it.

    Raises:
        PackageError: The file is missing, or is not what was packaged.
        SpecError: ``TLAOT_DIRECT`` is neither 0 nor 1.
    """
    with loading():
        if path not in _types:
            _types[path] = _load_type(path, expected) if _is_usual_python() else None
        return _types[path] if _is_wanted() else None


def _is_wanted() -> bool:
    text = os.environ.get("TLAOT_DIRECT", "").strip()
    if text not in ("", "0", "1"):
        raise SpecError(
            "TLAOT_DIRECT", f"expected 0 or 1, got {text!r}", "Write TLAOT_DIRECT=0 for calls through Python alone."
        )
    return text != "0"


def _is_usual_python() -> bool:
    """Whether objects have the head that the library knows."""
    unusual = "t" in getattr(sys, "abiflags", "") or hasattr(
        sys, "getobjects"
    )  # free-threaded; with a list of all objects
    return sys.implementation.name == "cpython" and not unusual


def _load_type(path: Path, expected: FileDigest) -> Any | None:
    verify_file(path, expected)
    try:
        make = getattr(ctypes.PyDLL(str(path)), DIRECT_TYPE)
    except (OSError, AttributeError):
        return None  # another version of the interface, or an embedded Python that hides its symbols: slower, and right
    make.restype = ctypes.py_object
    return make()


class Direct:
    """What one kernel's object of the library has been told.

    Args:
        kind: The library's type.
        answer: ``(args, kwargs)`` to the call's result, for what it was not told.
        explain: ``(args, kind, message)`` of an error that a binary raised; raises it in our words.
    """

    def __init__(self, kind: Any, answer: Callable[[Any, Any], Any], explain: Callable[[Any, str, str], Any]) -> None:
        self.kind = kind
        self.call = kind(answer, explain)
        self._told: list[Variant] = []
        self._ranges = 0
        self._kinds: dict[type, int | None] = {}
        self._knows_torch = False

    def calls(self) -> list[tuple[Variant, int]]:
        """Variants and how often each was run this way since it was told."""
        return [(self._told[position], count) for position, count in self.call.calls()]

    def forget(self) -> None:
        """Forget every decision."""
        self.call.forget()
        self._told.clear()
        self._ranges = 0

    @property
    def full(self) -> bool:
        return len(self._told) >= _MOST_TOLD or self._ranges >= _MOST_RANGES

    def tell(
        self,
        args: tuple[Any, ...],
        call: Described,
        variant: Variant,
        function: Any,
        strides: bool,
        ranges: Sequence[Sequence[Range]] | None,
    ) -> bool:
        """Tell a decision, unless it is about something that the library cannot do.

        Args:
            args: The call's arguments.
            call: These, described.
            variant: What it runs.
            function: The variant's FFI function.
            strides: Whether the decision holds for these strides only.
            ranges: Of each argument, where it is a tensor, the sizes that it holds for; None: for these sizes.

        Returns:
            Whether it was taken.
        """
        given = given_params(variant, len(args)) or ()
        positions = [i for i, param in enumerate(variant.params) if any(param is one for one in given)]
        kinds = [self._know(arg) for arg in args]
        if None in kinds or len(positions) != len(args):
            return False
        made = () if len(args) == len(variant.params) else _outputs(variant, call, ranges is not None)
        if made is None:
            return False
        words = [int(ranges is not None), len(self._told), len(variant.params)]
        words += [sum(len(one.sources) for one in made), len(variant.out_idx), *variant.out_idx]
        for i, (position, argument) in enumerate(zip(positions, call.arguments, strict=True)):
            words += [position, int(strides and argument.shape is not None), int(variant.params[position].written)]
            words.append(int(ranges is not None))
            if ranges is not None and argument.shape is not None:
                words += [number for size in ranges[i] for number in size]
        for one in made:
            words += [one.position, len(one.sources), *(number for source in one.sources for number in source)]
        text = array.array("q", words).tobytes()
        outputs = tuple(one.how for one in made)
        if not self.call.add(args, text, function, function.__chandle__(), outputs):
            return False
        self._told.append(variant)
        self._ranges += ranges is not None
        return True

    def _know(self, arg: Any) -> int | None:
        kind = type(arg)
        if kind not in self._kinds:
            self._kinds[kind] = self._introduce(kind, arg)
        return self._kinds[kind]

    def _introduce(self, kind: type, arg: Any) -> int | None:
        if kind in _NUMBERS:
            position = self.call.know(kind, _NUMBERS[kind], 0, False)
            return None if position < 0 else int(position)
        framework = framework_of(kind)
        if framework is not None and framework.name == "numpy":
            position = self.call.know(kind, _ARRAY, 0, False)
            return None if position < 0 else int(position)
        exchange = _exchange_api(kind) if framework is not None and framework.name == "torch" else 0
        if not exchange:
            return None
        if not self._knows_torch:
            torch = imported("torch")
            plain = torch.empty(0)
            self.call.use_torch(torch._C.is_grad_enabled, torch.Tensor.is_neg, plain.is_neg)
            self._knows_torch = True
        position = self.call.know(kind, _EXCHANGED, exchange, True)
        return None if position < 0 else int(position)


def _exchange_api(kind: type) -> int:
    """Address of a type's DLPack exchange API; 0: it has none."""
    found = getattr(kind, "__dlpack_c_exchange_api__", 0)
    if isinstance(found, int):
        return found
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    try:
        return int(pointer(found, b"dlpack_exchange_api") or 0)
    except ValueError:  # a capsule of something else
        return 0


@dataclass(frozen=True)
class _Made:
    """How an output is allocated.

    Attributes:
        position: Among the kernel's parameters.
        sources: Its sizes, each as an argument's position (-1: the number), its dimension (-1: the argument itself), and the number.
        how: What makes it; its arguments, None where sizes are not numbers; the second of them, None for strides; those by keyword.
    """

    position: int
    sources: tuple[tuple[int, int, int], ...]
    how: tuple[Any, Any, Any, Any]


def _outputs(variant: Variant, call: Described, ranged: bool) -> tuple[_Made, ...] | None:
    """How to allocate what the caller left out; None where the library cannot."""
    made = []
    sizes, late = bind_symbols(variant, call.arguments)
    places = _places(variant, call)
    for position in variant.out_idx:
        param = variant.params[position]
        sources = []
        for size in param.shape or ():
            if isinstance(size, int):
                sources.append((-1, 0, size))
            elif size in late:
                sources.append((late[size], -1, 0))
            elif size in places:
                sources.append((*places[size], 0) if ranged else (-1, 0, sizes[size]))
            else:
                return None
        shape = tuple(value for _, _, value in sources) if all(arg < 0 for arg, _, _ in sources) else None
        how = _maker(bind_strides(param, sizes), call, shape)
        if how is None:
            return None
        made.append(_Made(position, tuple(sources), how))
    return tuple(made)


def _maker(param: Param, call: Described, shape: tuple[int, ...] | None) -> tuple[Any, Any, Any, Any] | None:
    """What makes an output beside a call's first tensor; ``shape`` where it is known. None: what the library cannot do."""
    name = "" if call.framework is None else call.framework.name
    if name == "torch":
        torch = imported("torch")
        dtype = getattr(torch, param.dtype, None)
        if dtype is None or (param.strides is not None and shape is None):
            return None
        kwargs = {"dtype": dtype, "device": call.like.device}
        if shape is None:
            return torch.empty_strided, None, None, kwargs
        layout = compact_strides(shape) if param.strides is None else static_strides(param)
        return torch.empty_strided, (shape, layout), None, kwargs
    if name == "numpy":
        dtype = numpy_dtype(param, call.like)
        if dtype.kind not in "iufcb" or param.strides is not None or param.align > 16:
            return None
        return imported("numpy").empty, None if shape is None else (shape, dtype), dtype, None
    return None


def _places(variant: Variant, call: Described) -> dict[str, tuple[int, int]]:
    """The first argument and dimension that has each symbolic size."""
    places: dict[str, tuple[int, int]] = {}
    for i, (param, argument) in enumerate(
        zip(given_params(variant, len(call.arguments)) or (), call.arguments, strict=True)
    ):
        if argument.shape is not None:
            for d, size in enumerate(param.shape or ()):
                if isinstance(size, str):
                    places.setdefault(size, (i, d))
    return places
