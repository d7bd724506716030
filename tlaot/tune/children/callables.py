"""Resolve ``"module:function"`` names and call what they name; runs in child processes only."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import math
import os
import sysconfig
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...errors import SpecError, did_you_mean
from ...keys import KeyValueError, decode, encode
from .child import one_line
from .parcel import PREFIX, open_parcel

__all__ = ["bind_known", "call_with_known", "check_callables", "expand_configs", "expand_shapes", "raised", "resolve"]


# More is a generator that does not end, or a space that nobody waits for.
_MOST_ITEMS = 100_000


def resolve(name: str, where: str) -> Any:
    """The object that ``"module:attribute"`` names, or that a parcel (``"pickle:<path>"``) holds.

    Raises:
        SpecError: The module cannot be imported, or has no such attribute.
    """
    if name.startswith(PREFIX):
        return open_parcel(name)
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise SpecError(
                where, f"there is no module {module_name!r}", "Name a module of the project, as it is imported."
            ) from None
        raise SpecError(
            where, f"importing {module_name!r} failed: {error}", "Add what is missing to [build-system] requires."
        ) from error
    except Exception as error:
        raise SpecError(where, f"importing {module_name!r} {raised(error)}", "Mend the module.") from error
    try:
        found = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        hint = did_you_mean(attribute, dir(module))
        raise SpecError(where, f"module {module_name!r} has no {attribute!r}{hint}", "Correct the name.") from None
    return found


def check_callables(names: Mapping[str, str | None], where: str) -> None:
    """Resolve what a kernel names, by its key, and throw it away: a name that is wrong is known before anything is compiled.

    Raises:
        SpecError: A module or an attribute is missing, or what is there is not callable.
    """
    for key, name in names.items():
        if name is not None:
            found = resolve(name, f"{where} {key}")
            if not callable(found):
                raise SpecError(
                    f"{where} {key}", f"{name} is not callable, but a {type(found).__name__}", "Name a function."
                )


_OURS = f"{Path(__file__).resolve().parents[2]}{os.sep}"
_STANDARD = f"{sysconfig.get_path('stdlib')}{os.sep}"


def raised(error: BaseException) -> str:
    """What an author's function raised, and where: ``raised ValueError: no such size (my_package/reference.py:12)``.

    The place is the innermost line of the author's own; not that of a library which it called.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [(file, line) for file, line in frames if not file.startswith((_OURS, "<"))]
    own = [(file, line) for file, line in theirs if "-packages/" not in file and not file.startswith(_STANDARD)]
    if not theirs:
        return f"raised {one_line(error)}"
    file, line = own[-1] if own else theirs[0]
    here = f"{os.getcwd()}{os.sep}"
    return f"raised {one_line(error)} ({file.removeprefix(here)}:{line})"


def call_with_known(function: Any, arguments: Mapping[str, Any]) -> Any:
    """Call a function with those keyword arguments that it takes, as the factory gets them."""
    arguments = {name: decode(value, name) for name, value in arguments.items()}
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function(**arguments)
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return function(**{key: value for key, value in arguments.items() if key in names})


def bind_known(function: Any, arguments: Mapping[str, Any], params: Collection[str], where: str) -> Any:
    """A function that is given a kernel's arguments by position, with its own options filled in: those that are arguments of the factory, as
    ``causal`` of ``reference(q, k, v, *, causal)``.

    Args:
        function: What the author named; an option is keyword-only, or has a default.
        arguments: The factory's, of this workload.
        params: Names of the kernel's parameters, which are none of them.
        where: The function in messages.

    Raises:
        SpecError: A parameter that only a position fills has the name of an argument of the factory.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of one that does not tell
        return function
    given = function.keywords if isinstance(function, functools.partial) else {}
    known = [p for p in parameters if p.name in arguments and p.name not in params and p.name not in given]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in known:
        if parameter.kind in by_position and parameter.default is parameter.empty:
            raise SpecError(
                where,
                f"takes {parameter.name} by position, as it does the kernel's parameters ({', '.join(params)})",
                f"Make it an option, `*, {parameter.name}`: it gets the factory's value.",
            )
    names = [p.name for p in known if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not names:
        return function
    bound = functools.partial(function, **{name: decode(arguments[name], name) for name in names})
    bound.__qualname__ = getattr(function, "__qualname__", type(function).__name__)  # type: ignore[attr-defined]
    return bound


def expand_shapes(shapes: str | list[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """The workloads of a kernel as dicts.

    Raises:
        SpecError: The callable does not give a non-empty sequence of dicts.
    """
    return _dicts(shapes, {}, f"{where} shapes")


def expand_configs(
    configs: str | list[Mapping[str, Any]], shape: Mapping[str, Any], where: str
) -> list[dict[str, Any]]:
    """The candidates of one workload as dicts; a callable or generator function is called with the shape's items.

    Raises:
        SpecError: The callable does not give a non-empty sequence of dicts.
    """
    return _dicts(configs, shape, f"{where} configs")


def _dicts(source: str | list[Mapping[str, Any]], arguments: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    if isinstance(source, str):
        found = resolve(source, where)
        if callable(found):
            try:
                found = call_with_known(found, arguments)
                if isinstance(found, Mapping):
                    found = [found]
                items = list(itertools.islice(found, _MOST_ITEMS + 1))
            except Exception as error:
                raise SpecError(where, f"{source} {raised(error)}", "Mend the function.") from error
        else:
            items = [found] if isinstance(found, Mapping) else list(found)
    else:
        items = list(source)
    for item in items:
        if not isinstance(item, Mapping):
            raise SpecError(
                where, f"every item must be a dict, got {item!r}", "Return dicts of argument names to values."
            )
    if not items:
        raise SpecError(
            where,
            f"{source if isinstance(source, str) else 'the list'} gives nothing for {dict(arguments)}",
            "Give at least one item.",
        )
    if len(items) > _MOST_ITEMS:
        raise SpecError(
            where, f"{source} gives more than {_MOST_ITEMS} items", "Narrow the space; does the generator end?"
        )
    unique: list[dict[str, Any]] = []
    for item in items:
        plain = {_key(key, where): _plain(value, f"{where} {key}") for key, value in item.items()}
        if plain not in unique:
            unique.append(plain)
    return unique


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise SpecError(where, f"a key is not a string, got {key!r}", "Keys are names of the factory's arguments.")
    return key


def _plain(value: Any, where: str) -> Any:
    """A value as JSON has it: numpy's numbers are taken for Python's, tuples for lists; what JSON has not, as keys have it.

    Raises:
        SpecError: It is something else, or a number that is not finite: a package records what it was tuned with.
    """
    if isinstance(value, (list, tuple)):
        return [_plain(item, where) for item in value]
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, where) for key, item in value.items()}
    if type(value) not in (bool, int, float, str, type(None)):
        try:
            value = encode(value, where)
        except KeyValueError:
            if not isinstance(value, (bool, int, float, str)) and callable(getattr(value, "item", None)):
                value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(where, f"is not a finite number, got {value!r}", "Leave it out, or give a number.")
    if isinstance(value, str) and not value.isprintable() and any("\ud800" <= c <= "\udfff" for c in value):
        raise SpecError(where, f"is not valid text, got {value!r}", "Correct it.")
    if not isinstance(value, (bool, int, float, str, type(None), Mapping)):
        raise SpecError(
            where,
            f"is not a number, bool, string or list of such, got {value!r}",
            "Pass a name, and look the object up in the factory.",
        )
    return value
