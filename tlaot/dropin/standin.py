"""What stands in for TileLang: enough of it for an author's modules to be imported, and nothing that could be mistaken for a result.

Names, calls, subscripts and arithmetic of it give things that are as inert, so that decorators, annotations, ``T.dynamic`` and tables
of pass options need no TileLang. What a program would go on with (a truth value, a number, the items of it, text to be shown) raises.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ..errors import LoadError
from .dtypes import dtype, named_dtype

__all__ = ["Inert", "StandIn", "refuse"]

_REMEDY = (
    "Of a package whose kernels are packaged only these are called here. TLAOT_DROPIN=tilelang has the package use TileLang "
    "itself, where that is installed."
)


def refuse(name: str, what: str, remedy: str = _REMEDY) -> NoReturn:
    """Raise what whoever goes on with something inert is told."""
    raise LoadError(name, what, remedy)


class Inert:
    """Something of TileLang's that does nothing."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # What Python, pickle or a debugger asks for has an answer of its own; so has what is private.
        if name.startswith("_"):
            raise AttributeError(f"{self._name} has no attribute {name!r}: it stands in for TileLang's")
        return Inert(f"{self._name}.{name}")

    def __repr__(self) -> str:
        return f"<{self._name}, standing in for TileLang's>"

    def __call__(self, *args: Any, **options: Any) -> Inert:
        return Inert(f"{self._name}()")

    def __getitem__(self, item: Any) -> Inert:
        return Inert(f"{self._name}[...]")

    def __class_getitem__(cls, item: Any) -> type[Inert]:
        return cls

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __subclasscheck__(self, subclass: Any) -> bool:
        return False

    def __iter__(self) -> NoReturn:
        refuse(self._name, "has no items here: it stands in for TileLang's")


def _inert_operator(symbol: str) -> Callable[..., Inert]:
    def operate(self: Inert, *others: Any) -> Inert:
        return Inert(f"({self._name} {symbol} ...)")

    return operate


def _refused(what: str) -> Callable[..., NoReturn]:
    def operate(self: Inert, *others: Any) -> NoReturn:
        refuse(self._name, f"{what} here: it stands in for TileLang's")

    return operate


for _symbol, _names in {
    "+": ("add", "radd"), "-": ("sub", "rsub", "neg"), "*": ("mul", "rmul"), "/": ("truediv", "rtruediv"),
    "//": ("floordiv", "rfloordiv"), "%": ("mod", "rmod"), "**": ("pow", "rpow"), "@": ("matmul", "rmatmul"),
    "<<": ("lshift", "rlshift"), ">>": ("rshift", "rrshift"), "&": ("and", "rand"), "|": ("or", "ror"), "^": ("xor", "rxor"),
    "~": ("invert",), "abs": ("abs",),
}.items():  # fmt: skip
    for _name in _names:
        setattr(Inert, f"__{_name}__", _inert_operator(_symbol))
for _what, _names in {
    "is neither true nor false": ("bool",), "is no number": ("int", "float", "index", "complex", "round"),
    "has no length": ("len",), "cannot be shown": ("format",), "contains nothing": ("contains",),
    "cannot be compared": ("lt", "le", "gt", "ge"), "cannot be entered": ("enter",),
}.items():  # fmt: skip
    for _name in _names:
        setattr(Inert, f"__{_name}__", _refused(_what))


class StandIn(types.ModuleType):
    """A module that stands in for one of TileLang's.

    Args:
        name: Its dotted name.
        given: What is not inert in it, and in the modules below it, by dotted name; shared by all of them.
    """

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        super().__init__(name, "Stands in for TileLang's module of this name; see tlaot.dropin.")
        self.__dict__.update(_given=given, __path__=[])

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        given = self.__dict__["_given"]
        if name == "__all__":
            raise ImportError(
                f"from {self.__name__} import * is not possible here: name what is imported (tlaot.dropin)"
            )
        if full in given:
            found = given[full]
        elif name.startswith("_"):
            raise AttributeError(f"{full} is not in what stands in for TileLang")
        elif any(other.startswith(f"{full}.") for other in given):
            found = StandIn(full, given)
        else:
            language = self.__name__ == "tilelang.language"
            found = (named_dtype(name) if language else None) or Inert(full)
        self.__dict__[name] = found
        return found

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, standing in for TileLang's>"

    def at(self, name: str) -> StandIn:
        """The module of a dotted name, ``"tilelang.contrib.nvcc"``, whatever an attribute of that name is."""
        known: dict[str, StandIn] = self.__dict__.setdefault("_modules", {})
        return known.setdefault(name, StandIn(name, self.__dict__["_given"]))


def plain_functions(version: str) -> dict[str, Any]:
    """What of TileLang computes with plain numbers, or is asked outside of kernels."""
    shared = {
        f"{home}.{name}": made
        for home in ("tilelang", "tilelang.math", "tilelang.utils")
        for name, made in _MATH.items()
    }
    return {
        **shared,
        "tilelang.__version__": version,
        "tilelang.language.dtype": dtype,
        "tilelang.language.ceildiv": _ceildiv,
        "tilelang.language.dynamic": _dynamic,
        "tilelang.language.symbolic": _dynamic,
        "tilelang.language.const": _dynamic,
    }


def _ceildiv(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return -(-left // right)
    return Inert("tilelang.language.ceildiv()")


def _next_power_of_2(number: int) -> int:
    return 1 << max(0, math.ceil(number) - 1).bit_length()


def _dynamic(name: Any, *args: Any, **options: Any) -> Any:
    names = re.findall(r"\w+", name) if isinstance(name, str) else [str(name)]
    made = tuple(Inert(f"T.dynamic({one!r})") for one in names)
    return made[0] if len(made) == 1 else made


_MATH: dict[str, Callable[..., Any]] = {"cdiv": _ceildiv, "next_power_of_2": _next_power_of_2}
