"""From a factory to a PrimFunc: the ways in which TileLang authors declare a kernel.

A factory is a function that returns a PrimFunc or calls ``@tilelang.jit`` functions, or is such a function itself,
lazy (returns a PrimFunc) or eager (``T.const`` and tensor annotations), with or without ``@tilelang.autotune``.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tilelang.language as T  # noqa: N812
from tilelang.autotuner.tuner import AutoTuneImpl
from tilelang.jit import JITImpl
from tilelang.transform import PassConfigKey
from tilelang.transform.pass_config import normalize_pass_configs
from tvm import tirx

from .arguments import check_arguments
from .tilelang_source import constants_of

__all__ = ["Elaborated", "elaborate", "merge_arguments", "plain_keys", "settle_outputs", "unwrap"]

# TileLang exports a function under this module's name, so a plain import gives the function.
_jit = importlib.import_module("tilelang.jit")


@dataclass(frozen=True)
class Elaborated:
    """A PrimFunc with the compile options that its author attached to it."""

    func: tirx.PrimFunc
    out_idx: tuple[int, ...] | None
    pass_configs: dict[str, Any]
    compile_flags: tuple[str, ...]


def unwrap(
    factory: Callable[..., Any], shape: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Take a ``functools.partial`` off a jit function: the function, and the shape with what the partial fixed.

    A jit function is elaborated and not called, so that its partial cannot be called either.
    """
    shape = dict(shape)
    inner = factory
    while isinstance(inner, functools.partial):
        inner = inner.func
    if _jit_impl(inner) is None:
        return factory, shape
    while isinstance(factory, functools.partial):
        names = list(_signature(factory.func).parameters)
        if len(factory.args) > len(names):
            raise TypeError(f"the partial fixes {len(factory.args)} arguments, the factory takes ({', '.join(names)})")
        given = {**dict(zip(names, factory.args, strict=False)), **factory.keywords}
        # As in a call of a partial, what comes later wins.
        shape = {**{key: value for key, value in given.items() if key not in config}, **shape}
        factory = factory.func
    return factory, shape


def merge_arguments(factory: Callable[..., Any], shape: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of the factory, checked before it runs.

    An open size that is none of its parameters is one that its code opens itself (``n = T.dynamic("n")``); whether it does shows in
    the kernel's parameters.
    """
    constants = _eager_constants(factory)
    signature = _signature(factory)
    shape = {key: value for key, value in shape.items() if not _opened_inside(key, value, signature, constants)}
    optional = list(signature.parameters) if constants else list(_eager_tensors(factory))
    check_arguments(shape, config, signature, others=constants, optional=optional)
    shape = {key: T.dynamic(key) if isinstance(value, str) and value == key else value for key, value in shape.items()}
    return {**shape, **config}


def _opened_inside(key: str, value: Any, signature: inspect.Signature, constants: Collection[str]) -> bool:
    if not (isinstance(value, str) and value == key) or key in constants:
        return False
    parameters = signature.parameters
    return key not in parameters and not any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _signature(factory: Callable[..., Any]) -> inspect.Signature:
    impl = _jit_impl(factory)
    return inspect.signature(factory) if impl is None else impl.signature


def _jit_impl(value: Any) -> JITImpl[Any, Any, Any, Any] | None:
    if isinstance(value, AutoTuneImpl):
        value = value.jit_impl
    return value if isinstance(value, JITImpl) else None


def _eager_constants(factory: Callable[..., Any]) -> list[str]:
    impl = _jit_impl(factory)
    return [] if impl is None else list(constants_of(impl.func_source))


def _eager_tensors(factory: Callable[..., Any]) -> Collection[str]:
    """Parameters of an eager kernel that are the kernel's own, which nobody needs to give where no size depends on them."""
    impl = _jit_impl(factory)
    return () if impl is None else getattr(impl.func, "tensor_args", {})


def elaborate(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Elaborated:
    impl = _jit_impl(factory)
    if impl is not None:
        return _elaborate_jit(impl, arguments)
    with _captured_compiles():
        made = factory(**arguments)
    impl = _jit_impl(made)
    if impl is not None:
        taken = {key: value for key, value in arguments.items() if key in impl.signature.parameters}
        return _elaborate_jit(impl, taken)
    if isinstance(made, Elaborated):
        return made
    if isinstance(made, tirx.PrimFunc):
        return _with_attributes(made, None, {}, ())
    raise TypeError(f"the factory returned {type(made).__name__}, expected a TileLang PrimFunc")


def _elaborate_jit(impl: JITImpl[Any, Any, Any, Any], arguments: Mapping[str, Any]) -> Elaborated:
    # Without a target of its own it elaborates under ours, the current one.
    impl = copy.copy(impl)
    impl.target = None
    func = impl.get_tir(**arguments)
    return _with_attributes(func, impl.out_idx, impl.pass_configs or {}, impl.compile_flags or ())


@contextlib.contextmanager
def _captured_compiles() -> Iterator[None]:
    """While a factory runs, calls of jit functions give what would be compiled, and compile nothing."""

    def capture(func: tirx.PrimFunc, out_idx: Any = None, **options: Any) -> Elaborated:
        return _with_attributes(func, out_idx, options.get("pass_configs") or {}, options.get("compile_flags") or ())

    with mock.patch.object(_jit, "cached", capture):
        yield


def _with_attributes(
    func: tirx.PrimFunc, out_idx: Any, pass_configs: Mapping[Any, Any], compile_flags: str | Sequence[str]
) -> Elaborated:
    """Merge what the PrimFunc itself carries (``T.empty``, ``T.annotate_*``) as ``tilelang.compile`` does."""
    attrs = func.attrs or {}
    flags = [compile_flags] if isinstance(compile_flags, str) else list(compile_flags)
    own_flags = [str(flag) for flag in attrs.get("tilelang_compile_flags", ())]
    return Elaborated(
        func=func,
        out_idx=None if out_idx is None else tuple([out_idx] if isinstance(out_idx, int) else out_idx),
        pass_configs={**plain_keys(dict(attrs.get("tilelang_pass_configs", {}))), **plain_keys(pass_configs)},
        compile_flags=tuple(token for flag in own_flags + flags for token in shlex.split(flag)),
    )


def plain_keys(pass_configs: Mapping[Any, Any]) -> dict[str, Any]:
    """Pass options under their plain names, whether the author wrote the name or the enumeration's member."""
    members = {key.name: key.value for key in PassConfigKey}
    plain: dict[str, Any] = normalize_pass_configs({members.get(str(k), k): v for k, v in pass_configs.items()})
    return plain


def settle_outputs(made: Elaborated, out_idx: Sequence[int] | None) -> tuple[tirx.PrimFunc, tuple[int, ...]]:
    """The function with preallocated outputs, and the positions of the outputs."""
    func, chosen = made.func, made.out_idx if out_idx is None else tuple(out_idx)
    own = tuple(int(i) for i in (func.attrs or {}).get("tilelang_out_idx", ()))
    if own:
        if chosen is not None and chosen != own:
            raise ValueError(f"out_idx is {list(chosen)}, but the kernel returns T.empty tensors at {list(own)}")
        chosen, func = own, func.without_attr("tilelang_out_idx")
    count = len(func.params)
    outputs = []
    for index in chosen or ():
        if not -count <= index < count:
            raise ValueError(f"out_idx {index} is out of range: the kernel has {count} parameters")
        if func.params[index] not in func.buffer_map:
            raise ValueError(f"out_idx {index} is {func.params[index].name}, a scalar")
        outputs.append(index % count)
    return func, tuple(outputs)
