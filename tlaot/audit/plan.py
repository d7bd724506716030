"""The plan in an ``executable.so``, read without running it: which kernel and target it is, and what arguments it takes.

It is the table that entry.c checks arguments against (``tlaot_plan`` in tune/native/tlaot.h), so it says what the binary does,
whatever the JSON beside it says. The names of its fields are stripped; it is found by its target, the second of four pointers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..elf import Mapped, bytes_at
from ..manifest import Param
from .finding import Finding
from .subject import EXECUTABLE, Case

__all__ = ["Plan", "compare_plan", "read_plan"]

_TARGET = re.compile(r"(cuda:(sm|compute)_\d{2,3}[af]?)|((llvm|c):x86-64(-v[234])?)")
# Past its pointers (kernel, target, params, symbols): how many params, symbols and sizes, DLPack device type, CPU level.
_COUNTS = struct.Struct("<5i")
# Past its pointers (name, shape, strides): alignment, dimensions (-1: a scalar), lanes, DLPack code, bits, whether written.
_PARAM = struct.Struct("<IhHBB?")
_PARAM_SIZE, _EXTENT_SIZE = 40, 16
_MOST_PARAMS, _MOST_DIMS = 4096, 64

# Names of dtypes by DLPack code; up to bfloat and complex the bits follow.
_DTYPES = (
    *(
        "int",
        "uint",
        "float",
        "handle",
        "bfloat",
        "complex",
        "bool",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
    ),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn"),
    *("float6_e3m2fn", "float4_e2m1fn"),
)
_BOOL = 6


@dataclass(frozen=True)
class Plan:
    """What a binary says of itself; names have ``?`` in place of what is no printable ASCII."""

    kernel: str
    target: str
    params: tuple[Param, ...]
    device_type: int
    cpu_rank: int


def read_plan(mapped: Mapped) -> Plan | None:
    """The plan of an ``executable.so``; None where there is none of this form."""
    for place, address in mapped.relative.items():
        text = _text(mapped, address, 64)
        if text and _TARGET.fullmatch(text):
            try:
                return _read_plan(mapped, place - 8, text)
            except (struct.error, LookupError, ValueError):
                continue
    return None


def compare_plan(plan: Plan | None, case: Case) -> Iterator[Finding]:
    """The binary is that of this kernel, target and signature: no other variant's, and for no other processor."""
    where, variant = case.executable, case.variant
    if plan is None:
        yield Finding("binary", where, f"has no plan of tlaot in it, so it is no {EXECUTABLE}", "Build it again.")
        return
    told = {"kernel": _printable(case.kernel), "target": variant.target}
    for field, value in told.items():
        if getattr(plan, field) != value:
            what = f"was built for the {field} {getattr(plan, field)}, the manifest says {value}"
            yield Finding("binary", where, what, f"Put the binary of {value} there, or build it again.")
    if plan.device_type != case.target.device_type or plan.cpu_rank != (
        0 if case.target.is_cuda else case.target.cpu_rank
    ):
        what = f"checks for device type {plan.device_type} and CPU level {plan.cpu_rank}, which {variant.target} does not have"
        yield Finding("binary", where, what, "Build it again.")
    difference = _difference(plan.params, variant.params)
    if difference:
        yield Finding(
            "binary", where, difference, "It is another variant's binary, or the manifest was edited: build it again."
        )


def _difference(mine: Sequence[Param], told: Sequence[Param]) -> str:
    if len(mine) != len(told):
        return f"takes {len(mine)} arguments, the manifest says {len(told)}"
    for index, (one, other) in enumerate(zip(mine, told, strict=True)):
        expected = _as_planned(other)
        for field in ("name", "dtype", "shape", "strides", "align", "written"):
            found, wanted = getattr(one, field), getattr(expected, field)
            if found != wanted:
                return f"argument {index} ({one.name}) has {field} {_spell(found)}, the manifest says {_spell(wanted)}"
    return ""


def _spell(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _as_planned(param: Param) -> Param:
    """A parameter as link.py writes it into the plan."""

    def extents(values: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
        return None if values is None else tuple(_printable(v) if isinstance(v, str) else v for v in values)

    name, align = _printable(param.name), max(param.align, 1)
    dtype = re.sub(r"x1$", "", param.dtype)
    return Param(name, dtype, extents(param.shape), extents(param.strides), align, bool(param.written))


def _printable(text: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


def _read_plan(mapped: Mapped, place: int, target: str) -> Plan:
    kernel = _pointed(mapped, place)
    num_params, num_symbols, _, device_type, cpu_rank = _COUNTS.unpack(bytes_at(mapped, place + 32, _COUNTS.size))
    if not (0 <= num_params <= _MOST_PARAMS and 0 <= num_symbols <= _MOST_PARAMS):
        raise ValueError("counts that no kernel has")
    symbols = [_pointed(mapped, mapped.relative[place + 24] + 8 * i) for i in range(num_symbols)]
    table = mapped.relative[place + 16]
    params = tuple(_read_param(mapped, table + _PARAM_SIZE * i, symbols) for i in range(num_params))
    return Plan(kernel, target, params, device_type, cpu_rank)


def _read_param(mapped: Mapped, place: int, symbols: Sequence[str]) -> Param:
    align, ndim, lanes, code, bits, written = _PARAM.unpack(bytes_at(mapped, place + 24, _PARAM.size))
    if not -1 <= ndim <= _MOST_DIMS:
        raise ValueError("a number of dimensions that no tensor has")
    dtype = _DTYPES[code] + (str(bits) if code < _BOOL else "") + (f"x{lanes}" if lanes != 1 else "")
    shape = None if ndim < 0 else _read_extents(mapped, place + 8, ndim, symbols)
    strides = _read_extents(mapped, place + 16, ndim, symbols) if place + 16 in mapped.relative else None
    return Param(_pointed(mapped, place), dtype, shape, strides, align, written)


def _read_extents(mapped: Mapped, place: int, count: int, symbols: Sequence[str]) -> tuple[int | str, ...]:
    extents: list[int | str] = []
    for i in range(count):
        value, symbol = struct.unpack("<qi", bytes_at(mapped, mapped.relative[place] + _EXTENT_SIZE * i, 12))
        extents.append(value if symbol < 0 else symbols[symbol])
    return tuple(extents)


def _pointed(mapped: Mapped, place: int) -> str:
    return _text(mapped, mapped.relative[place], 4096)


def _text(mapped: Mapped, address: int, most: int) -> str:
    data, ended, _ = bytes_at(mapped, address, most).partition(b"\0")
    return data.decode("ascii", "replace") if ended else ""
