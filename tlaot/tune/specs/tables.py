"""Tables of a TOML file: known keys, typed values, and messages that say where.

A key may be written with ``-`` or ``_``; a misspelt one is an error with the nearest that is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpecError, did_you_mean

__all__ = [
    "callable_name",
    "checked_callable",
    "fold",
    "number",
    "one_of",
    "optional",
    "refuse_unknown",
    "required",
    "required_callable",
    "table_of",
    "typed",
]

_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def table_of(body: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = body.get(key, {})
    if not isinstance(value, dict):
        raise SpecError(f"{where} {key}", f"is not a table, got {value!r}", f"Write [{key}] on a line of its own.")
    return value


def fold(table: Mapping[str, Any], known: Sequence[str], where: str) -> dict[str, Any]:
    folded = {key.replace("-", "_"): value for key, value in table.items()}
    if len(folded) != len(table):
        raise SpecError(where, "has a key twice, once with '-' and once with '_'", "Keep one of them.")
    refuse_unknown(folded, known, where)
    return folded


def refuse_unknown(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            spelt = [name.replace("_", "-") for name in known]  # as the documents write them
            hint = did_you_mean(key.replace("_", "-"), spelt)
            raise SpecError(where, f"unknown key {key!r}{hint}", f"Known keys: {', '.join(spelt)}.")


def required(keys: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in keys:
        raise SpecError(where, f"lacks the key {key!r}", f"Add {key} = ...")
    return typed(keys[key], key, kind, where)


def optional(keys: Mapping[str, Any], key: str, kind: type, where: str, default: Any) -> Any:
    return typed(keys[key], key, kind, where) if key in keys else default


def one_of(value: str, key: str, known: Sequence[str], where: str) -> str:
    if value not in known:
        raise SpecError(
            f"{where} {key}", f"unknown {key} {value!r}{did_you_mean(value, known)}", f"Known: {', '.join(known)}."
        )
    return value


def typed(value: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        names = {str: "a string", bool: "true or false", dict: "a table"}
        raise SpecError(f"{where} {key}", f"is not {names[kind]}, got {value!r}", "Correct the value.")
    return value


def number(keys: Mapping[str, Any], key: str, where: str, default: float | None) -> float | None:
    value = keys.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise SpecError(f"{where} {key}", f"is not a number of zero or more, got {value!r}", "Correct the value.")
    return float(value)


def callable_name(keys: Mapping[str, Any], key: str, where: str) -> str | None:
    return checked_callable(keys[key], f"{where} {key}") if key in keys else None


def required_callable(keys: Mapping[str, Any], key: str, where: str) -> str:
    required(keys, key, str, where)
    return checked_callable(keys[key], f"{where} {key}")


def checked_callable(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _CALLABLE.fullmatch(value):
        raise SpecError(
            where,
            f"does not name a callable, got {value!r}",
            'Write "module:function", for instance "my_package.kernels:matmul".',
        )
    return value
