"""What one value consists of: a label, and the values to look at next."""

from __future__ import annotations

import builtins
import copyreg
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ..errors import TlaotError
from .code import read_code
from .foreign import dissect_foreign
from .origin import origin_of

__all__ = ["Anatomy", "UnidentifiedError", "dissect"]

Parts = Sequence[tuple[str, Any]]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), type(NotImplemented))
# They hold nothing that a kernel could depend on, and have no other identity.
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_BUILTIN = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
# Of a class's namespace: bookkeeping of the interpreter, and what says where and not what.
_NOT_OF_A_CLASS = (
    "__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl",
)  # fmt: skip
# Of a module's: where it is.
_PLACES = ("__name__", "__file__", "__package__", "__spec__", "__loader__", "__cached__", "__path__", "__builtins__")
# Builtins by which a function can read any global.
_READ_ALL = ("globals", "eval", "exec")
_FUNCTION_LIKE = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


class UnidentifiedError(TlaotError, TypeError):
    """A value has no identity that outlives the process, so that nothing made from it can be cached."""


@dataclass(frozen=True)
class Anatomy:
    """What a value consists of.

    Attributes:
        label: What it is, apart from its parts.
        parts: Values that it is made of, each with what to add to the trail that leads there.
        ordered: Whether the parts' order counts.
    """

    label: str
    parts: Parts = ()
    ordered: bool = True


@dataclass(frozen=True)
class _Pair:
    key: Any
    value: Any


@dataclass(frozen=True)
class _Said:
    """A fact, where a value is not there."""

    text: str


def dissect(value: Any, trail: str) -> Anatomy:
    """Take one value apart.

    Args:
        value: The value.
        trail: How the fingerprinted value leads to it, for the error.

    Raises:
        UnidentifiedError: It cannot be.
    """
    kind = type(value)
    if kind in _PLAIN:
        return Anatomy(f"{kind.__name__} {value!r}")
    if kind in (tuple, list):
        return Anatomy(kind.__name__, [(f"[{i}]", item) for i, item in enumerate(value)])
    if kind is dict:
        return _mapping(value)
    if kind in (set, frozenset):
        return Anatomy(kind.__name__, [("", item) for item in value], ordered=False)
    for kinds, take in _TAKERS:
        if isinstance(value, kinds):
            return take(value)
    identity = getattr(kind, "__tlaot_identity__", None)
    if identity is not None:
        return Anatomy("identity", [("", identity(value))])
    try:
        foreign = dissect_foreign(value)
        return Anatomy(*foreign) if foreign is not None else _by_reduction(value)
    except Exception as error:  # of whatever a type does when it is asked for its content
        raise UnidentifiedError(
            trail.lstrip(".") or kind.__qualname__,
            f"a {kind.__module__}.{kind.__qualname__} has no identity that outlives the process ({error})",
            "Pass it as an argument of plain data, or give its class a method __tlaot_identity__ that returns what counts.",
        ) from None


# Functions


def _function(function: types.FunctionType) -> Anatomy:
    namespace = function.__globals__
    module = str(namespace.get("__name__"))
    origin = origin_of(module, namespace.get("__file__"))
    code = function.__code__
    if code.co_filename.startswith("<") and not code.co_filename.startswith("<frozen "):
        origin = None  # made by a library at run time, as the methods of dataclasses are: no file of it has this code
    defaults = [("(default)", function.__defaults__), ("(default)", function.__kwdefaults__)]
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    if origin is not None:
        name = getattr(code, "co_qualname", f"{code.co_name}@{code.co_firstlineno}")
        closure = [(f".{key}", cell) for key, cell in cells.items()]
        return Anatomy(f"function {origin} {module}.{name}", [*defaults, *closure])
    said = read_code(code)
    reads = dict(_resolve_reads(function, cells, said.reads))
    imports = dict(item for found in said.imports for item in _resolve_import(namespace, *found))
    named = sorted({**reads, **imports}.items())
    extra = [("(annotation)", _annotations(function)), ("(attribute)", dict(vars(function)))]
    return Anatomy(
        f"function {said.text} {[name for name, _ in named]}",
        [*defaults, *extra, *((f".{name}", value) for name, value in named)],
    )


def _annotations(function: types.FunctionType) -> Any:
    try:
        return dict(function.__annotations__)
    except Exception:  # since Python 3.14 they are evaluated now, whatever that raises; their text is in the code
        return None


def _resolve_reads(
    function: types.FunctionType, cells: Mapping[str, types.CellType], reads: Sequence[tuple[str, ...]]
) -> Iterator[tuple[str, Any]]:
    reads = [chain for chain in reads if chain[0] not in _PLACES]
    seen = {chain[0] for chain in reads}
    for name, *attributes in [*reads, *((name,) for name in cells if name not in seen)]:
        if name in cells:
            try:
                value = cells[name].cell_contents
            except ValueError:
                yield name, _Said("empty")
                continue
        elif name in function.__globals__:
            value = function.__globals__[name]
        elif name in _READ_ALL:
            yield name, {key: value for key, value in function.__globals__.items() if not key.startswith("__")}
            continue
        else:
            yield name, _Said("builtin" if hasattr(builtins, name) else "absent")
            continue
        yield _follow(name, value, attributes)


def _follow(name: str, value: Any, attributes: Sequence[str]) -> tuple[str, Any]:
    """Go along attributes as far as the value is a module of the author: of that, only what is read counts."""
    for attribute in attributes:
        if not isinstance(value, types.ModuleType) or _module_origin(value) is not None:
            break
        name = f"{name}.{attribute}"
        try:
            value = getattr(value, attribute)
        except AttributeError:
            return name, _Said("absent")
    return name, value


def _resolve_import(
    namespace: Mapping[str, Any], level: int, name: str, taken: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """What an import statement in a function gets, imported now where it is the author's."""
    written = "." * level + name
    try:
        package = namespace.get("__package__") or getattr(namespace.get("__spec__"), "parent", "") or ""
        module = _import(importlib.util.resolve_name(written, package))
    except Exception as error:  # whatever the author's module raises when it is imported
        yield f"import {written}", _Said(f"fails: {type(error).__name__}")
        return
    if taken and "*" not in taken and isinstance(module, types.ModuleType):
        for attribute in taken:
            yield _follow(f"import {written}", module, [attribute])
    else:
        yield f"import {written}", module


def _import(name: str) -> Any:
    # By its top-level package, which is found without being imported; loaded or not, it says the same.
    top = name.partition(".")[0]
    if top in sys.modules:
        file = getattr(sys.modules[top], "__file__", None)
    else:
        found = importlib.util.find_spec(top)
        file = found.origin if found is not None and found.has_location else None
    origin = origin_of(name, file)
    return importlib.import_module(name) if origin is None else _Said(f"module {origin} {name}")


def _code(code: types.CodeType) -> Anatomy:
    return Anatomy(f"code {read_code(code).text}")


def _cell(cell: types.CellType) -> Anatomy:
    try:
        return Anatomy("cell", [("", cell.cell_contents)])
    except ValueError:
        return Anatomy("cell, empty")


def _builtin(function: Any) -> Anatomy:
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        owner = getattr(function, "__objclass__", None)
    label = f"builtin {getattr(function, '__module__', '')}.{function.__qualname__}"
    return Anatomy(label, [] if owner is None else [(".__self__", owner)])


def _cached(function: Any) -> Anatomy:
    return Anatomy("lru_cache", [("", function.__wrapped__)])


# Modules and classes


def _module_origin(module: types.ModuleType) -> str | None:
    return origin_of(module.__name__, getattr(module, "__file__", None))


def _module(module: types.ModuleType) -> Anatomy:
    origin = _module_origin(module)
    if origin is not None:
        return Anatomy(f"module {origin} {module.__name__}")
    named = sorted(item for item in vars(module).items() if not item[0].startswith("__"))
    return Anatomy(f"module {[name for name, _ in named]}", [(f".{name}", value) for name, value in named])


def _class(cls: type) -> Anatomy:
    module = str(getattr(cls, "__module__", None))
    origin = origin_of(module, getattr(sys.modules.get(module), "__file__", None))
    if origin is not None and _is_found(cls, module):
        return Anatomy(f"class {origin} {module}.{cls.__qualname__}")
    if isinstance(cls, enum.EnumMeta):
        members: Mapping[str, Any] = cls.__members__
        named = [(name, member.value) for name, member in members.items()]
        named += [item for item in sorted(vars(cls).items()) if isinstance(item[1], _FUNCTION_LIKE)]
    else:
        named = [
            (name, value)
            for name, value in sorted(vars(cls).items())
            if name not in _NOT_OF_A_CLASS
            and not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
        ]
    parts = [("(base)", cls.__bases__), ("(metaclass)", type(cls)), *((f".{name}", value) for name, value in named)]
    return Anatomy(f"class {cls.__name__} {[name for name, _ in named]}", parts)


def _is_found(cls: type, module: str) -> bool:
    """Whether a class is where its name says; one that a library made at run time (make_dataclass) is not."""
    found: Any = sys.modules.get(module)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


# Containers and the rest


def _mapping(value: Mapping[Any, Any]) -> Anatomy:
    if all(type(key) is str for key in value):
        named = sorted(value.items())
        return Anatomy(f"dict {[name for name, _ in named]}", [(f"[{name!r}]", item) for name, item in named])
    return Anatomy("dict", [("", _Pair(*item)) for item in value.items()], ordered=False)


def _by_reduction(value: Any) -> Anatomy:
    """By what pickle would be told (copyreg, ``__reduce_ex__``), taken apart in turn: pickle itself writes functions by name."""
    kind = type(value)
    reduce: Callable[[Any], Any] | None = copyreg.dispatch_table.get(kind)
    reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return Anatomy(f"global {reduced}", [("", kind)])
    made, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    parts = [
        ("", kind),
        ("", made),
        ("", arguments),
        ("", state),
        ("", None if items is None else list(items)),
        ("", None if pairs is None else types.MappingProxyType(dict(pairs))),
    ]
    return Anatomy("object", parts)


_TAKERS: tuple[tuple[Any, Callable[[Any], Anatomy]], ...] = (
    (_Said, lambda v: Anatomy(f"said {v.text}")),
    (_Pair, lambda v: Anatomy("pair", [(f"[{v.key!r:.40}]", v.key), (f"[{v.key!r:.40}]", v.value)])),
    (types.FunctionType, _function),
    (types.MethodType, lambda v: Anatomy("method", [("", v.__func__), (".__self__", v.__self__)])),
    ((staticmethod, classmethod), lambda v: Anatomy(type(v).__name__, [("", v.__func__)])),
    (property, lambda v: Anatomy("property", [("", v.fget), ("", v.fset), ("", v.fdel)])),
    (functools.partial, lambda v: Anatomy("partial", [("", v.func), ("", v.args), ("", v.keywords), ("", vars(v))])),
    (type(functools.lru_cache(_cell)), _cached),
    (_BUILTIN, _builtin),
    (types.ModuleType, _module),
    (enum.Enum, lambda v: Anatomy(f"member {v.name}", [("", type(v)), (".value", v.value)])),
    (type, _class),
    (types.CodeType, _code),
    (types.CellType, _cell),
    (logging.Logger, lambda v: Anatomy(f"logger {v.name}")),
    (_LOCKS, lambda v: Anatomy("lock")),
    (PurePath, lambda v: Anatomy(f"path {v}")),
    (types.MappingProxyType, _mapping),
    ((bytearray, memoryview), lambda v: Anatomy(f"bytes {hashlib.sha256(bytes(v)).hexdigest()}")),
    (slice, lambda v: Anatomy("slice", [("", v.start), ("", v.stop), ("", v.step)])),
    (inspect.Signature, lambda v: Anatomy("signature", [("", list(v.parameters.values())), ("", v.return_annotation)])),
)
