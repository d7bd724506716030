"""What generated inputs hold: which distribution for which element type, free of any array library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import SpecError, did_you_mean
from ...manifest import Param

__all__ = ["SUPPLY_TYPES", "Draw", "InputParam", "Supply", "draw_for", "kind_of", "supply_from_json", "validate_supply"]

SUPPLY_TYPES = ("auto", "integer", "uniform", "normal", "randn", "zero", "one")

_DEFAULT_SEED = 20240229
_GIVE_INPUTS = (
    'Give the inputs: inputs = "module:function" in tltune.toml, `with set_autotune_inputs(...)` from Python.'
)
_WHOLE_BYTES = (8, 16, 32, 64)
# Exponents of float8_e8m0fnu around its 1.0, which is 127; 255 is its NaN, and it has no zero and no sign.
_E8M0_ONE = 127


@dataclass(frozen=True)
class Supply:
    """How inputs are generated.

    Attributes:
        type: ``"auto"``: floats uniform in [-1, 1), signed integers in [-2, 2], unsigned ones in [0, 2], both values of bool,
            every pattern of float4. ``"integer"``: such integers for floats too. ``"uniform"``: floats in [-1, 1), integers in
            what int8 or uint8 can hold. ``"normal"``, ``"randn"``: mean 0 and standard deviation 1; rounded for
            integers, and without the sign for unsigned ones. ``"zero"``, ``"one"``: that.
        seed: The same seed gives the same tensors.
        ranges: By parameter name, a half-open range ``(low, high)`` of integers, for tensors that index others.
    """

    type: str = "auto"
    seed: int = _DEFAULT_SEED
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Draw:
    """A distribution: ``"integers"`` or ``"bytes"`` (raw ones) in [a, b), ``"uniform"`` in [a, b), ``"normal"`` with mean a and
    standard deviation b, ``"constant"`` a."""

    kind: str
    a: int | float
    b: int | float = 0


class DtypeName(str):
    """The name of an element type; equals a torch or numpy dtype of that name."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        name = other if isinstance(other, str) else getattr(other, "__name__", str(other))
        return str.__eq__(self, name.removeprefix("torch."))

    def __ne__(self, other: object) -> bool:
        return not self == other


@dataclass(frozen=True)
class InputParam:
    """What a ``supply_prog`` is told of one input.

    Attributes:
        name: The parameter's name.
        dtype: Its element type; equals ``"float16"`` and ``torch.float16`` alike.
        shape: Its sizes, a string for a symbolic one; empty for a scalar.
    """

    name: str
    dtype: DtypeName
    shape: list[int | str]

    def torch_dtype(self) -> Any:
        """The ``torch.dtype``."""
        import torch

        name = str(self.dtype)
        return torch.float4_e2m1fn_x2 if name.startswith("float4_e2m1fn") else getattr(torch, name)

    def is_scalar(self) -> bool:
        return not self.shape

    @classmethod
    def of(cls, param: Param) -> InputParam:
        return cls(param.name, DtypeName(param.dtype), list(param.shape or ()))


def supply_from_json(body: Mapping[str, Any] | None) -> Supply:
    """The supply of a request; None is the default one."""
    if body is None:
        return Supply()
    ranges = {name: (int(low), int(high)) for name, (low, high) in (body.get("ranges") or {}).items()}
    return Supply(body.get("type", "auto"), int(body.get("seed", _DEFAULT_SEED)), ranges)


def validate_supply(params: Sequence[Param], out_idx: Sequence[int], where: str, supply: Supply | None = None) -> None:
    """Check that every input of a kernel can be generated; called once, before anything is measured.

    Raises:
        SpecError: An input is a scalar, has a symbolic size or a type that cannot be generated; or the supply itself is wrong.
    """
    supply = supply or Supply()
    _check_supply(supply, [param.name for param in params], where)
    for index, param in enumerate(params):
        if index in out_idx:
            continue
        if param.shape is None:
            raise SpecError(
                where,
                f"auto-tuning does not support auto-generated scalar inputs, found scalar input parameter {param.name!r}",
                _GIVE_INPUTS,
            )
        free = [size for size in param.shape if isinstance(size, str)]
        if free:
            raise SpecError(
                where,
                f"tensor {param.name} must have a static shape, but got {free[0]}: "
                "no random tensor can be made with a dynamic symbolic shape",
                _GIVE_INPUTS,
            )
        draw_for(param, supply, where)


def draw_for(param: Param, supply: Supply, where: str = "inputs") -> Draw:
    """What a tensor is filled with.

    Raises:
        SpecError: The element type cannot be generated, or does not hold what was asked for.
    """
    kind = kind_of(param.dtype)
    if kind is None:
        raise SpecError(where, f"tensor {param.name} has type {param.dtype}, which cannot be generated", _GIVE_INPUTS)
    if param.name in supply.ranges:
        return _in_range(param, kind, supply.ranges[param.name], where)
    draw = _TABLE[supply.type].get(kind) or _TABLE[supply.type]["float"]
    if draw.kind == "constant" and kind == "e8m0" and draw.a == 0:
        raise SpecError(where, f"tensor {param.name} has type {param.dtype}, which has no zero", "Take another type.")
    return draw


def kind_of(dtype: str) -> str | None:
    """``"float"``, ``"float8"``, ``"e8m0"``, ``"float4"``, ``"int"``, ``"uint"``, ``"bool"``; None for what is not generated."""
    if dtype == "bool":
        return "bool"
    if dtype == "float8_e8m0fnu":
        return "e8m0"
    if dtype in ("float4_e2m1fn", "float4_e2m1fnx2"):
        return "float4"
    if re.fullmatch(r"float8_e\dm\d\w*", dtype):
        return "float8"
    if dtype in ("float16", "bfloat16", "float32", "float64"):
        return "float"
    match = re.fullmatch(r"(u?int)(\d+)", dtype)
    return match[1] if match and int(match[2]) in _WHOLE_BYTES else None


def _in_range(param: Param, kind: str, limits: tuple[int, int], where: str) -> Draw:
    low, high = limits
    if kind in ("int", "uint"):
        bits = int(param.dtype.lstrip("uint"))
        least, beyond = (0, 1 << bits) if kind == "uint" else (-(1 << (bits - 1)), 1 << (bits - 1))
        if low < least or high > beyond:
            raise SpecError(
                where, f"the range ({low}, {high}) of {param.name} exceeds {param.dtype}", "Narrow the range."
            )
    elif kind != "float":
        raise SpecError(
            where, f"{param.name} has type {param.dtype}, which takes no integer range", "Leave the range out."
        )
    return Draw("integers", low, high)


def _check_supply(supply: Supply, names: Sequence[str], where: str) -> None:
    if supply.type not in SUPPLY_TYPES:
        hint = did_you_mean(supply.type, SUPPLY_TYPES)
        raise SpecError(where, f"unknown supply type {supply.type!r}{hint}", f"Known: {', '.join(SUPPLY_TYPES)}.")
    for name, (low, high) in supply.ranges.items():
        if name not in names:
            hint = did_you_mean(name, names)
            raise SpecError(where, f"a range is given for {name!r}, which is no parameter{hint}", "Correct the name.")
        if low >= high:
            raise SpecError(where, f"the range ({low}, {high}) of {name} is empty", "It is half-open: low <= x < high.")


_BOOL = Draw("integers", 0, 2)
_NORMAL = Draw("normal", 0.0, 1.0)
_NEAR_ONE = Draw("bytes", _E8M0_ONE - 2, _E8M0_ONE + 3)  # 1/4 to 4
_NORMALS = {"float": _NORMAL, "bool": _BOOL, "e8m0": _NEAR_ONE}
# By supply type, then by kind; a kind that is not there is filled as floats are.
_TABLE: Mapping[str, Mapping[str, Draw]] = {
    "auto": {
        "float": Draw("uniform", -1.0, 1.0),
        "float4": Draw("bytes", 0, 256),
        "e8m0": _NEAR_ONE,
        "int": Draw("integers", -2, 3),
        "uint": Draw("integers", 0, 3),
        "bool": _BOOL,
    },
    "integer": {
        "float": Draw("integers", -2, 3),
        "e8m0": Draw("bytes", _E8M0_ONE, _E8M0_ONE + 2),  # 1 and 2
        "uint": Draw("integers", 0, 3),
        "bool": _BOOL,
    },
    "uniform": {
        "float": Draw("uniform", -1.0, 1.0),
        "e8m0": _NEAR_ONE,
        "int": Draw("integers", -128, 128),
        "uint": Draw("integers", 0, 256),
        "bool": _BOOL,
    },
    "normal": _NORMALS,
    "randn": _NORMALS,
    "zero": {"float": Draw("constant", 0)},
    "one": {"float": Draw("constant", 1), "e8m0": Draw("bytes", _E8M0_ONE, _E8M0_ONE + 1)},
}
