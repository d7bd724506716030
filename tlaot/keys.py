"""The key of a factory: the arguments that make one kernel of it, by name, with the defaults filled in.

A key is written in ``tltune.toml`` and in a manifest, and it is what a call says; the build reads it back. In between it is plain
data. What JSON and TOML have no value for is a table of one entry, or two, that says what it is:

    ======================================================  ===============================================================
    ``{ none = true }``                                     ``None`` (in TOML; JSON has ``null``)
    ``{ dtype = "bfloat16" }``                              an element type, as TileLang's; ``"torch.bfloat16"``, as torch's
    ``{ tuple = [1, 128] }``                                a tuple
    ``{ float = "inf" }``                                   ``inf``, ``-inf`` or ``nan``
    ``{ object = "module:name" }``                          what is found by that name: a function, a class, an enumeration's member
    ``{ make = "module:Class", with = { a = 1 } }``         an object of a dataclass or named tuple, from the values of its fields
    ======================================================  ===============================================================

Of these spellings several are one key: an element type is the same as torch's, as TileLang's and as text, a tuple is a list of the
same items. ``True`` is not ``1``, nor is ``1.0``: they make other kernels.

This module needs the standard library alone. Only :func:`decode`, which the build side calls, imports what a value is of.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
import math
import types
from collections.abc import Hashable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, TypeAlias

from .errors import SpecError, TlaotError

__all__ = [
    "NOT_PLAIN",
    "KeyValueError",
    "Plain",
    "bind_call",
    "decode",
    "dtype_name",
    "encode",
    "encode_key",
    "is_tagged",
    "key_of",
    "plain_value",
    "spell_key",
    "spell_value",
]

_PLAIN_TYPES = frozenset([bool, int, float, str, type(None)])
_TAGS = ("none", "dtype", "tuple", "float", "object", "make")
# Modules whose element types are subclasses of str, and are written without the module: TileLang's T.dtype is tvm_ffi's.
_FFI = ("tvm_ffi", "tvm", "tilelang", "tlaot")

Plain: TypeAlias = "bool | int | float | str | None"


class _NotPlain:
    """What :func:`plain_value` gives for a value that is no plain data."""

    def __repr__(self) -> str:
        return "NOT_PLAIN"


NOT_PLAIN = _NotPlain()


class KeyValueError(TlaotError, TypeError):
    """A value cannot be part of a key: it has no spelling that outlives the process."""


def bind_call(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, in the order of the signature, with the defaults filled in.

    Args:
        signature: The factory's.
        args, kwargs: The call's; what a ``**`` parameter collects is listed under its own names.

    Raises:
        TypeError: The factory does not take them.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def plain_value(value: Any) -> Any:
    """A value that is plain data: itself, an element type's name, the number of numpy's scalars; :data:`NOT_PLAIN` for anything else.

    ``T.float16``, ``torch.float16``, ``numpy.dtype("float16")`` and ``"float16"`` are all ``"float16"``. An enumeration's member is
    not plain though it may be a number: what is called is called with the member.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    name = dtype_name(value)
    if name is not None:
        return name
    if kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "item"):
        number = value.item()
        return number if type(number) in _PLAIN_TYPES else NOT_PLAIN
    return NOT_PLAIN


def dtype_name(value: Any) -> str | None:
    """The name of an element type of TileLang, TVM, torch or numpy, ``"float16"``; None where it is none.

    Nothing is imported to tell: they are known by the names of their classes.
    """
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    if module == "torch" and kind.__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if isinstance(value, str) and module in _FFI:
        return str.__str__(value)
    if module == "numpy" and isinstance(getattr(value, "name", None), str) and hasattr(value, "itemsize"):
        return str(value.name)  # numpy.dtype("float16"); a scalar has an itemsize, and no name
    if kind is type and value.__module__ == "numpy" and hasattr(value, "dtype"):
        return str(value.__name__)  # numpy.float16, the scalar's class
    return None


def encode_key(arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """:func:`encode` of each argument; ``where`` names the factory in messages."""
    return {name: encode(value, f"{where} {name}") for name, value in arguments.items()}


def encode(value: Any, where: str = "key") -> Any:
    """A value as JSON has it, with the tables of this module's docstring for what JSON has not.

    Raises:
        KeyValueError: It has no such spelling.
    """
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind in _PLAIN_TYPES:
        return value
    if isinstance(value, enum.Enum):  # before int: a member of an IntEnum is one
        return {"object": f"{_name_of(kind, where)}.{value.name}"}
    name = dtype_name(value)
    if name is not None:
        home = kind.__module__.partition(".")[0]
        return {"dtype": name if home in _FFI else f"{'numpy' if home == 'builtins' else home}.{name}"}
    if kind is list:
        return [encode(item, where) for item in value]
    if kind is tuple:
        return {"tuple": [encode(item, where) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {key: encode(item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    elif isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return {"object": _name_of(value, where)}
    else:
        plain = plain_value(value)
        if plain is not NOT_PLAIN:
            return encode(plain, where)
        raise KeyValueError(
            where,
            f"a {kind.__module__}.{kind.__qualname__} cannot be told from others of its kind in a file, got {value!r:.80}",
            "Keys are numbers, text, None, element types, tuples, dataclasses, members of enumerations and functions of modules.",
        )
    fields = {name: encode(getattr(value, name), f"{where}.{name}") for name in names}
    return {"make": _name_of(kind, where), "with": fields}


def decode(value: Any, where: str = "key") -> Any:
    """The value that :func:`encode` was given; imports the modules that it is of.

    Raises:
        SpecError: A name is not there, or an object cannot be made of its fields.
    """
    if isinstance(value, (list, tuple)):
        return [decode(item, where) for item in value]
    if not isinstance(value, Mapping):
        return value
    tag = _tag_of(value)
    if tag is None:
        return {key: decode(item, f"{where}.{key}") for key, item in value.items()}
    content = value[tag]
    if tag == "none":
        return None
    if tag == "float":
        return float(content)
    if tag == "tuple":
        return tuple(decode(item, where) for item in content)
    try:
        if tag == "dtype":
            return _dtype(content)
        found = _find(content)
        if tag == "object":
            return found
        return found(**{name: decode(item, f"{where}.{name}") for name, item in value.get("with", {}).items()})
    except SpecError:
        raise
    except Exception as error:  # of whatever a module or a class does
        raise SpecError(
            where, f"{spell_value(value)} cannot be had: {type(error).__name__}: {error}", "Correct the value."
        ) from error


def key_of(value: Any) -> Hashable:
    """What equal keys have in common, of an encoded value or of a whole key (whose order does not count)."""
    if isinstance(value, (list, tuple)):
        return "list", *map(key_of, value)
    if isinstance(value, Mapping):
        tag = _tag_of(value)
        if tag == "none":
            return "NoneType", None
        if tag == "dtype":
            return "str", str(value[tag]).rpartition(".")[2]
        if tag == "tuple":
            return key_of(value[tag])
        return "dict", *((name, key_of(value[name])) for name in sorted(value))
    return type(value).__name__, value


def spell_key(key: Mapping[str, Any]) -> str:
    """An encoded key as TOML, an entry of ``shapes``: ``{ M = 300, causal = true }``."""
    return "{ " + ", ".join(f"{_spell_name(name)} = {spell_value(value)}" for name, value in key.items()) + " }"


def spell_value(value: Any) -> str:
    """An encoded value as TOML."""
    if value is None:
        return "{ none = true }"
    if isinstance(value, Mapping):
        return spell_key(value) if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(spell_value, value))}]"
    # JSON's finite numbers, strings, true and false are TOML's.
    return json.dumps(value)


def is_tagged(value: Any) -> bool:
    """Whether an encoded value is one of this module's tables."""
    return isinstance(value, Mapping) and _tag_of(value) is not None


def _tag_of(value: Mapping[str, Any]) -> str | None:
    for tag in _TAGS:
        if tag in value and (len(value) == 1 or (tag == "make" and value.keys() <= {"make", "with"})):
            content = value[tag]
            if tag == "none":
                return tag if content is True else None
            return tag if isinstance(content, (list, tuple) if tag == "tuple" else str) else None
    return None


def _dtype(name: str) -> Any:
    home, _, plain = name.rpartition(".")
    if home == "torch":
        return getattr(importlib.import_module("torch"), plain)
    if home == "numpy":
        return importlib.import_module("numpy").dtype(plain)
    return importlib.import_module("tvm_ffi").dtype(plain)  # which TileLang's T.dtype is


def _name_of(found: Any, where: str) -> str:
    module, name = found.__module__, found.__qualname__
    if "<" in name or module == "__main__":
        raise KeyValueError(
            where,
            f"{name} is not found by its name from elsewhere, and so is not in a file",
            "Define it at the top level of a module of the package.",
        )
    return f"{module}:{name}"


def _find(name: str) -> Any:
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _spell_name(name: str) -> str:
    return name if name.isascii() and name.replace("_", "a").replace("-", "a").isalnum() else json.dumps(name)
