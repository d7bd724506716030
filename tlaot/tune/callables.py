"""Resolve ``"module:function"`` names and call what they name; runs in child processes only."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from ..errors import SpecError
from .parcel import PREFIX, open_parcel

__all__ = ["call_with_known", "expand_configs", "expand_shapes", "resolve"]


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
        raise SpecError(
            where, f"importing {module_name!r} raised {type(error).__name__}: {error}", "Mend the module."
        ) from error
    try:
        found = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        match = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f", did you mean {match[0]!r}?" if match else ""
        raise SpecError(where, f"module {module_name!r} has no {attribute!r}{hint}", "Correct the name.") from None
    return found


def call_with_known(function: Any, arguments: Mapping[str, Any]) -> Any:
    """Call a function with those keyword arguments that it takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function(**arguments)
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return function(**{key: value for key, value in arguments.items() if key in names})


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
                items = list(found)
            except Exception as error:
                raise SpecError(
                    where, f"{source} raised {type(error).__name__}: {error}", "Mend the function."
                ) from error
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
    return [dict(item) for item in items]
