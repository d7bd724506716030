"""``@autotune``: a factory that tunes itself at its first call with new arguments."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..tune.children.bound import TensorLayout
from .args import CompileArgs, ProfileArgs, TensorSupplyType
from .identity import UnidentifiedError, fingerprint
from .inputs import captured
from .request import Factory, Request, RunArgs, as_factory, keep_configs, materialize_configs, tunables_of
from .result import AutotuneResult, result_from_winner
from .session import compile_only, make_scratch, remove
from .tuner import par_compile, run_request

__all__ = ["AutotunedFactory", "autotune"]


def autotune(
    func: Any = None,
    *,
    configs: Any = None,
    warmup: float = 25,
    rep: float = 100,
    timeout: float = 100,
    supply_type: TensorSupplyType = TensorSupplyType.Auto,
    ref_prog: Callable[..., Any] | None = None,
    supply_prog: Callable[..., Any] | None = None,
    manual_check_prog: Callable[..., Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_mismatched_ratio: float = 0.01,
    skip_check: bool = False,
    cache_input_tensors: bool = False,
    do_not_specialize: Sequence[str] | None = None,
    early_stop: bool = False,
    early_stop_factor: float = 2.0,
    # What TileLang's decorator has no way to set:
    backend: str = "auto",
    target: Any = "auto",
    out_idx: int | Sequence[int] | None = None,
    pass_configs: Mapping[str, Any] | None = None,
    use_pipeline: bool | None = None,
    search: str = "auto",
    trials: int | None = None,
    seconds: float | None = None,
    devices: Sequence[int] | None = None,
    frontend: str | None = None,
    seed: int = 0,
    index_ranges: Mapping[str, tuple[int, int]] | None = None,
    deterministic: bool = True,
    verbose: bool | None = None,
) -> Callable[[Any], AutotunedFactory]:
    """Tune a factory over configs, when it is called.

    Args:
        configs: A list of dicts, one dict, a generator function, or a function of the call's arguments that returns a list.
            Their keys are parameters of the factory; ``pass_configs`` is reserved for compiler options of one config.
        do_not_specialize: Parameters for whose other values the same config is taken and the kernel compiled again, not tuned.
        backend: Clock, see :class:`ProfileArgs`.
        target: See :class:`CompileArgs`; ``"auto"`` is the target of ``@tilelang.jit`` or this machine's.
        out_idx, pass_configs: See :class:`CompileArgs`; those of ``@tilelang.jit`` are taken where these are None.
        use_pipeline, search, trials, seconds: See :class:`RunArgs`.
        devices: CUDA device ordinals to measure on, of one model.
        frontend: ``"tvm"`` or ``"tilelang"``; None finds out.
        warmup, rep, timeout and the others: See :class:`ProfileArgs`.

    Returns:
        A decorator of a plain factory, a ``@tilelang.jit`` object, or a TVM factory.

    Raises:
        ValueError: It is used without arguments, or on a finished kernel.
    """
    if func is not None:
        if type(func).__name__ == "PrimFunc":
            raise ValueError("autotune decorates a function that makes kernels, not a PrimFunc")
        raise ValueError(
            "Use tilelang.autotune to decorate func without arguments is not supported yet: write @tlaot.autotune(configs=...)."
        )
    if configs is None:
        raise TypeError("autotune() is missing the argument configs")
    compile_args = CompileArgs(out_idx=out_idx, target=target, pass_configs=pass_configs, verbose=verbose)
    profile_args = ProfileArgs(
        warmup, rep, timeout, backend, supply_type, ref_prog, supply_prog, manual_check_prog, rtol, atol,
        max_mismatched_ratio, skip_check, cache_input_tensors, seed, dict(index_ranges or {}), deterministic,
    )  # fmt: skip
    configs = keep_configs(configs)
    run_args = RunArgs(
        use_pipeline=use_pipeline, early_stop=early_stop, early_stop_factor=early_stop_factor, benchmark_devices=devices,
        search=search, trials=trials, seconds=seconds,
    )  # fmt: skip

    def decorate(factory: Any) -> AutotunedFactory:
        made = as_factory(factory, frontend)
        unknown = [name for name in do_not_specialize or () if name not in made.signature.parameters]
        if unknown:
            raise ValueError(f"do_not_specialize names {unknown}, which the factory {made.name} does not take")
        return AutotunedFactory(made, configs, compile_args, profile_args, run_args, tuple(do_not_specialize or ()))

    return decorate


class AutotunedFactory:
    """A factory that tunes itself; called as the factory is, it returns the tuned kernel."""

    def __init__(
        self,
        factory: Factory,
        configs: Any,
        compile_args: CompileArgs,
        profile_args: ProfileArgs,
        run_args: RunArgs,
        do_not_specialize: tuple[str, ...],
    ) -> None:
        self._factory = factory
        self._configs = configs
        self._compile_args = compile_args
        self._profile_args = profile_args
        self._run_args = run_args
        self._loose = do_not_specialize
        self._results: dict[str, AutotuneResult] = {}
        self._chosen: dict[str, Mapping[str, Any]] = {}
        # Arguments whose keys are their ids: as long as they live no other object has these.
        self._held: dict[str, Mapping[str, Any]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        functools.update_wrapper(self, factory.function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The tuned kernel for these arguments; for an eager ``@tilelang.jit`` function, its outputs.

        A tunable that is given is fixed, and the others are tuned.
        """
        return_kernel = bool(kwargs.pop("__return_kernel", False))
        result = self.tune(*args, **kwargs)
        if self._factory.eager and not return_kernel:
            arguments = self._bind(args, kwargs)
            return result.kernel(*(arguments[name] for name in self._factory.runtime if name in arguments))
        return result.kernel

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """The tuned kernel for these arguments, also of an eager function."""
        return self.tune(*args, **kwargs).kernel

    def tune(self, *args: Any, **kwargs: Any) -> AutotuneResult:
        """The result for these arguments; one tuning a key, whatever the number of threads and processes."""
        arguments = self._compile_time(self._bind(args, kwargs))
        key = self._key(arguments)
        loose = self._key({name: value for name, value in arguments.items() if name not in self._loose})
        with self._lock:
            found = self._results.get(key)
            lock = self._locks.setdefault(loose, threading.Lock())
        if found is not None:
            return found
        with lock:
            if key not in self._results:
                configs = self._narrow(arguments)
                config = self._chosen.get(loose) if self._loose else None
                if config is None:
                    result = run_request(self._request(arguments, configs))
                    self._chosen[loose] = result.config or {}
                else:
                    result = self._compile_with(arguments, config)
                self._results[key] = result
            return self._results[key]

    def par_compile(
        self, configs: Sequence[Any], num_workers: int | None = None, ignore_error: bool = False
    ) -> list[Any]:
        """Compile several argument sets at the same time, measuring none; see :func:`par_compile`."""
        made = self._factory
        return par_compile(
            made.call, configs, num_workers, ignore_error, compile_args=self._compile_args, frontend=made.frontend
        )

    def __tlaot_identity__(self) -> Any:
        """What of this object counts for another function's result that reaches it: not what it has tuned so far."""
        return self._factory.call, self._configs

    def __reduce__(self) -> tuple[Any, ...]:
        # Another function that reaches this one travels to a child process; results and locks stay here.
        given = (self._configs, self._compile_args, self._profile_args, self._run_args, self._loose)
        return AutotunedFactory, (self._factory, *given)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The call's own arguments by name, whatever way they were given."""
        constants = {name: kwargs[name] for name in self._factory.constants if name in kwargs}
        rest = {name: value for name, value in kwargs.items() if name not in constants}
        return {**self._factory.signature.bind_partial(*args, **rest).arguments, **constants}

    def _compile_time(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What of a call makes the kernel: of an eager one's tensors the layouts, of its scalars nothing."""
        runtime = self._factory.runtime
        return {
            name: TensorLayout.of(value) if name in runtime else value
            for name, value in arguments.items()
            if name not in runtime or _is_tensor(value)
        }

    def _narrow(self, arguments: dict[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """The configs with those tunables fixed that the call gives; ``arguments`` is left with the rest."""
        configs = materialize_configs(self._configs, arguments)
        names = tunables_of(self._factory, configs)
        self._check_complete(arguments, names)
        given = {name: arguments.pop(name) for name in names if name in arguments}
        if not given:
            return configs
        narrowed: list[Mapping[str, Any]] = []
        for config in configs:
            fixed = {**config, **given}
            if fixed not in narrowed:
                narrowed.append(fixed)
        if len(narrowed) == 1:
            warnings.warn(
                f"Tunable parameters {list(given)} already provided during auto-tuning; nothing is left to choose.",
                stacklevel=4,
            )
        return tuple(narrowed)

    def _check_complete(self, arguments: Mapping[str, Any], tunables: Sequence[str]) -> None:
        missing = [
            parameter.name
            for parameter in self._factory.signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and parameter.name not in arguments
            and parameter.name not in tunables
            and parameter.name not in self._factory.runtime
        ]
        if missing:
            raise TypeError(f"{self._factory.name}() is missing the arguments {', '.join(missing)}")

    def _request(self, arguments: Mapping[str, Any], configs: tuple[Mapping[str, Any], ...]) -> Request:
        inputs, profile = captured(), self._profile_args
        if inputs is not None and profile.supply_prog is not None:
            warnings.warn(
                "`supply_prog` will be ignored as this program is under `with set_autotune_inputs` context.",
                stacklevel=5,
            )
            profile = replace(profile, supply_prog=None)
        return Request(self._factory, arguments, configs, self._compile_args, profile, self._run_args, inputs)

    def _compile_with(self, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> AutotuneResult:
        request = Request(self._factory, arguments, (config,), self._compile_args, self._profile_args)
        scratch = make_scratch()
        try:
            (winner,) = compile_only(request, scratch)
            return result_from_winner(winner, self._factory.call)  # type: ignore[arg-type]
        finally:
            remove(scratch)

    def _key(self, arguments: Mapping[str, Any]) -> str:
        try:
            return fingerprint({name: _argument_identity(value) for name, value in arguments.items()})
        except UnidentifiedError:
            others = {name: value for name, value in arguments.items() if not _is_tensor(value)}
            tensors = {name: _argument_identity(value) for name, value in arguments.items() if name not in others}
            key = repr((sorted(tensors.items()), sorted((name, id(value)) for name, value in others.items())))
            self._held.setdefault(key, others)
            return key


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _argument_identity(value: Any) -> Any:
    if _is_tensor(value):
        strides = value.stride() if callable(getattr(value, "stride", None)) else getattr(value, "strides", None)
        # The device too: a kernel tuned on one GPU model is not the other's.
        return ("tensor", str(value.dtype), tuple(value.shape), tuple(strides or ()), str(getattr(value, "device", "")))
    return value
