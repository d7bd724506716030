"""What a tuning is asked for from Python, as one value: the factory, its fixed arguments, the configs, the options."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BuildError
from ..tune.frontends.tilelang_source import constants_of
from ..tune.specs.spec import SEARCHES
from .args import CompileArgs, ProfileArgs

__all__ = [
    "Factory",
    "Request",
    "RunArgs",
    "as_factory",
    "check_search",
    "keep_configs",
    "materialize_configs",
    "tunables_of",
]

# Reserved in a config: compiler options of one candidate, no parameter of the factory.
RESERVED = ("pass_configs",)


@dataclass(frozen=True)
class Factory:
    """A factory taken apart: the function, and what a decorator attached to it.

    Attributes:
        call: What a worker calls: the author's function, or its ``@tilelang.jit`` object.
        function: The plain function, for its name, signature and source.
        frontend: ``"tvm"`` or ``"tilelang"``.
        is_jit: Whether ``call`` is a ``@tilelang.jit`` object.
        eager: Whether it runs eagerly: called with tensors, returning outputs.
        runtime: Of an eager one, the parameters that are the kernel's own: tensors and scalars of each call.
        constants: Of an eager one, the sizes that it declares with ``T.const``, given by name where no tensor is.
        out_idx, target, pass_configs, compile_flags: Options of the decorator.
    """

    call: Callable[..., Any]
    function: Callable[..., Any]
    frontend: str
    is_jit: bool = False
    eager: bool = False
    runtime: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    out_idx: Any = None
    target: Any = None
    pass_configs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "kernel")

    @property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)


@dataclass(frozen=True)
class RunArgs:
    """Options of one run, with TileLang's names.

    Attributes:
        use_pipeline: Measure candidates while others compile; the fastest are timed again when all is quiet. None (the default
            here; TileLang's is False) does so for CUDA targets.
        enable_grouped_compile, group_compile_size: Accepted; candidates are compiled in processes of their own, and equal device code once,
            whether they are grouped or not.
        benchmark_multi_gpu: Measure on all visible GPUs of one model.
        benchmark_devices: Measure on these devices, by ordinal.
        early_stop: Do not time a candidate further that is ``early_stop_factor`` times slower than the best so far.
        early_stop_factor: At least 1.
        search: How candidates are chosen: ``"auto"``, ``"exhaustive"``, ``"guided"`` or ``"optuna"``.
        trials, seconds: Budget of the search; None sets no limit.
    """

    use_pipeline: bool | None = None
    enable_grouped_compile: bool = False
    group_compile_size: int = 2
    benchmark_multi_gpu: bool = False
    benchmark_devices: Sequence[int] | None = None
    early_stop: bool = False
    early_stop_factor: float = 2.0
    search: str = "auto"
    trials: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.early_stop_factor < 1.0:
            raise ValueError(f"early_stop_factor must be >= 1.0, got {self.early_stop_factor}")
        if self.search not in SEARCHES:
            raise ValueError(f"search must be one of {', '.join(SEARCHES)}, got {self.search!r}")
        if self.trials is not None and self.trials < 1:
            raise ValueError(f"trials must be 1 or more, got {self.trials!r}")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds must be above 0, got {self.seconds!r}")


def check_search(run: RunArgs) -> None:
    """Say in a caller's words, not a build's, what a search lacks.

    Raises:
        BuildError: ``search="optuna"``, and Optuna is not installed.
    """
    if run.search == "optuna" and importlib.util.find_spec("optuna") is None:
        raise BuildError(
            'autotune search="optuna"',
            "optuna is not installed",
            'pip install "tlaot[search]", or choose search="guided".',
        )


@dataclass(frozen=True)
class Request:
    """One tuning.

    Attributes:
        factory: What makes the kernel.
        arguments: Arguments of the factory that are fixed, by name.
        configs: Candidates, in order; the first is the default.
        captured: Tensors of ``set_autotune_inputs``, or None.
        compile_args, profile_args, run_args: Options.
    """

    factory: Factory
    arguments: Mapping[str, Any]
    configs: tuple[Mapping[str, Any], ...]
    compile_args: CompileArgs
    profile_args: ProfileArgs
    run_args: RunArgs = RunArgs()
    captured: tuple[Any, ...] | None = None


def as_factory(target: Any, frontend: str | None = None) -> Factory:
    """Take a factory apart.

    Args:
        target: A function, a ``functools.partial`` of one, or a ``@tilelang.jit`` object.
        frontend: ``"tvm"`` or ``"tilelang"``; None finds out by what the function's module imports.

    Raises:
        ValueError: It is a kernel already, not a function that makes one.
        TypeError: It is no function at all.
    """
    kind = type(target).__name__
    if kind in ("PrimFunc", "JITKernel", "AutotuneResult", "TunedKernel"):
        raise ValueError(
            f"a {kind} is a finished kernel and has nothing left to tune: "
            "pass the function that makes it (functools.partial(factory, M, N, K) fixes some of its arguments)"
        )
    if kind == "AutoTuneImpl" and hasattr(target, "jit_impl"):
        target = target.jit_impl  # TileLang's own tuner around a jit function: ours takes its place
    if isinstance(target, functools.partial):
        inner = as_factory(target.func, frontend)
        return replace(inner, call=target, function=_partial_function(target, inner))
    if _is_jit(target):
        out_idx, pass_configs = target.out_idx, dict(target.pass_configs or {})
        eager = _is_eager(target)
        return Factory(
            call=target,
            function=target.func if callable(target.func) else target,
            frontend="tilelang",
            is_jit=True,
            eager=eager,
            runtime=_runtime_of(target) if eager else (),
            constants=constants_of(target.func_source) if eager else (),
            out_idx=out_idx,
            target=None if str(target.target) == "auto" else target.target,
            pass_configs={str(getattr(key, "value", key)): value for key, value in pass_configs.items()},
        )
    if not callable(target) or isinstance(target, type):
        raise TypeError(f"expected a function that makes a kernel, got {kind}")
    return Factory(call=target, function=target, frontend=frontend or _frontend_of(target))


def tunables_of(factory: Factory, configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names that configs set, in order of appearance, without the reserved ones.

    Raises:
        ValueError: A config has a key that is no parameter of the factory.
    """
    names = dict.fromkeys(key for config in configs for key in config if key not in RESERVED)
    parameters = factory.signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        unused = {name for name in names if name not in parameters}
        if unused:
            raise ValueError(
                f"Unused keys in config: {unused}; the factory {factory.name} takes {', '.join(parameters)}"
            )
    return list(names)


def keep_configs(configs: Any) -> Any:
    """What may be read once only, an iterator, as a list: a tuner is called more than once."""
    return list(configs) if isinstance(configs, Iterator) else configs


def materialize_configs(configs: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Configs as a tuple of dicts.

    Args:
        configs: A list of dicts, one dict, a generator, or a function of the call's arguments that gives one of those.
        arguments: The call's arguments by name; a function gets those that it takes.

    Raises:
        ValueError: There is none.
        TypeError: One of them is not a dict.
    """
    if callable(configs) and not isinstance(configs, Mapping):
        configs = _call(configs, arguments)
    if isinstance(configs, Mapping):
        configs = [configs]
    if isinstance(configs, (str, bytes)) or not isinstance(configs, Iterable):
        raise TypeError(f"configs must be a list of dicts, got {configs!r}")
    found = list(configs)
    for config in found:
        if not isinstance(config, Mapping):
            raise TypeError(f"every config must be a dict, got {config!r}")
    if not found:
        raise ValueError("No configurations to tune, please check your `@autotune` decorator")
    unique: list[dict[str, Any]] = []
    for config in found:
        if dict(config) not in unique:
            unique.append(dict(config))
    return tuple(unique)


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return function(**arguments)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function(**arguments)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = {name: arguments[name] for name in names if name in arguments}
    missing = [
        p
        for p in parameters
        if p.default is p.empty and p.name not in known and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        # Written for positions (lambda *args, or other names): hand over the values in the factory's order.
        return function(*arguments.values())
    return function(**known)


def _is_jit(value: Any) -> bool:
    return type(value).__name__ == "JITImpl" and hasattr(value, "func")


def _is_eager(impl: Any) -> bool:
    """Whether a jit function takes tensors: TileLang decides at the first call, by what the function returns."""
    if impl.mode in ("lazy", "eager"):
        return bool(impl.mode == "eager")
    source = impl.func_source
    return "prim_func" not in source and (bool(_runtime_of(impl)) or "T.const(" in source or "T.empty(" in source)


def _runtime_of(impl: Any) -> tuple[str, ...]:
    names = getattr(impl.func, "tensor_args", {})
    return tuple(name for name in impl.signature.parameters if name in names)


def _partial_function(partial: functools.partial[Any], inner: Factory) -> Callable[..., Any]:
    def function() -> None: ...

    function.__name__ = inner.name
    parameters = list(inner.signature.parameters.values())[len(partial.args) :]
    kept = [parameter for parameter in parameters if parameter.name not in partial.keywords]
    function.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    return function


def _frontend_of(function: Callable[..., Any]) -> str:
    """The frontend whose modules a function's globals and closure hold; where both or neither, what is imported."""
    values = list(getattr(function, "__globals__", {}).values())
    values += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell is not None]
    roots = {str(getattr(value, "__name__", "")).partition(".")[0] for value in values if inspect.ismodule(value)}
    for name in ("tilelang", "tvm"):
        if name in roots and not ({"tilelang", "tvm"} - {name}) & roots:
            return name
    return "tilelang" if "tilelang" in sys.modules else "tvm"
