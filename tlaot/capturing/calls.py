"""A factory's call, taken apart for the record: who was called, with what, and what kernel came of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ..keys import KeyValueError, encode

__all__ = ["arguments_of", "describe_call", "describe_factory", "describe_kernel"]


def arguments_of(impl: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a ``@tilelang.jit`` function's call that make its kernel, by name, with defaults.

    Of an eager one: without its tensors, and with the sizes that it declares with ``T.const``, as far as they can be told.
    """
    signature: inspect.Signature = impl.signature
    known = signature.parameters
    free = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    extra = {} if free else {name: value for name, value in kwargs.items() if name not in known}
    bound = signature.bind_partial(*args, **{name: value for name, value in kwargs.items() if name not in extra})
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if known[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        elif not (known[name].kind is inspect.Parameter.VAR_POSITIONAL and not value):
            found[name] = value
    tensors = getattr(impl.func, "tensor_args", None) or {}
    found = {name: value for name, value in found.items() if name not in tensors}
    if getattr(impl, "mode", "") == "eager":
        found = {**_constants(impl, args, kwargs), **found}
    return {**found, **extra}


def _constants(impl: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that an eager kernel declares, as TileLang itself reads them off the tensors; none where it cannot."""
    try:
        bound = impl.func._argument_binder.bind(tuple(args), dict(kwargs))
        template = impl.func.p1_cache[bound.p1_key]
        values = template._parse_phase2_key(**bound.tensor_args, **bound.compile_kwargs)
        names = [place[3] for place in template.matcher.values()]
    except Exception:  # of whatever TileLang's own parts say of a call that is wrong, or changed in another version
        return {}
    return dict(zip(names, values, strict=True))


def describe_factory(impl: Any) -> dict[str, Any]:
    """Where a ``@tilelang.jit`` function is."""
    function = getattr(impl.func, "orig_func", impl.func)
    code = getattr(function, "__code__", None)
    return {
        "module": getattr(function, "__module__", None) or "",
        "name": getattr(function, "__qualname__", None) or getattr(function, "__name__", "?"),
        "file": getattr(code, "co_filename", ""),
        "line": getattr(code, "co_firstlineno", 0),
        "frontend": "tilelang",
    }


def describe_call(impl: Any, arguments: Mapping[str, Any], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """A call as a line of the journal has it: plain data, and words for what is none.

    Args:
        impl: Who was called.
        arguments: As of :func:`arguments_of`, the config's among them.
        config: What TileLang's autotuner chose; None where it was not asked.
    """
    plain: dict[str, Any] = {}
    opaque: dict[str, str] = {}
    symbols: dict[str, str] = {}
    for name, value in arguments.items():
        if type(value).__module__.partition(".")[0] == "tvm" and type(value).__name__ in ("Var", "SizeVar"):
            symbols[name] = str(value.name)
            continue
        try:
            plain[name] = encode(value, name)
        except KeyValueError as error:
            opaque[name] = error.what
    defaults = {
        name: one.default
        for name, one in impl.signature.parameters.items()
        if one.default is not inspect.Parameter.empty and name in arguments
    }
    left = sorted(name for name, default in defaults.items() if name in plain and _same(arguments[name], default))
    entry: dict[str, Any] = {
        "factory": describe_factory(impl),
        "arguments": plain,
        "mode": getattr(impl, "mode", "lazy"),
        "defaults": left,
    }
    if opaque:
        entry["opaque"] = opaque
    if symbols:
        entry["symbols"] = symbols
    if config is not None:
        entry["tuned"] = sorted(config)
    return entry


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def describe_kernel(func: Any, outputs: Sequence[int]) -> dict[str, Any]:
    """The parameters of a kernel: names, dtypes, and shapes with the names of sizes that it leaves open."""
    params: list[dict[str, Any]] = []
    for param in func.params:
        buffer = func.buffer_map.get(param, None)
        if buffer is None:
            params.append({"name": str(param.name), "dtype": str(param.dtype)})
        else:
            sizes = [_size(extent) for extent in buffer.shape]
            params.append({"name": str(buffer.name), "dtype": str(buffer.dtype), "shape": sizes})
    attributes = func.attrs or {}
    name = attributes.get("global_symbol", "")
    return {"kernel": str(name), "params": params, "outputs": [int(index) % max(len(params), 1) for index in outputs]}


def _size(extent: Any) -> int | str:
    if isinstance(extent, int):
        return extent
    if type(extent).__name__ == "IntImm":
        return int(extent.value)
    return str(getattr(extent, "name", None) or extent)
