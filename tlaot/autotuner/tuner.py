"""``AutoTuner``: a tuning put together step by step, and the one way in which any tuning from Python runs."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..tune.children.child import Failed
from .args import CompileArgs, ProfileArgs, TensorSupplyType
from .cache import TuningCache
from .inputs import captured
from .keys import RequestKeys, identify
from .request import Request, RunArgs, as_factory, keep_configs, materialize_configs, tunables_of
from .result import AutotuneResult, restore_result, result_from_winner
from .session import compile_only, make_scratch, remove, tune

__all__ = ["AutoTuner", "par_compile", "run_request"]


class AutoTuner:
    """Tunes the kernels that a function makes.

    Example:
        >>> tuner = AutoTuner.from_kernel(functools.partial(matmul, 1024, 1024, 1024), configs)
        >>> result = tuner.set_profile_args(ref_prog=torch.matmul).set_compile_args(target="cuda:sm_90a").run()
        >>> c = result.kernel(a, b)
    """

    def __init__(self, factory: Callable[..., Any], configs: Any, frontend: str | None = None) -> None:
        self._factory = as_factory(factory, frontend)
        self._configs = keep_configs(configs)
        self._compile_args = CompileArgs()
        self._profile_args = ProfileArgs()
        self._captured: tuple[Any, ...] | None = None

    @classmethod
    def from_kernel(cls, kernel: Callable[..., Any], configs: Any, *, frontend: str | None = None) -> AutoTuner:
        """A tuner of a factory.

        Args:
            kernel: A function of the tunables that returns a kernel, closures and ``functools.partial`` included, or a
                ``@tilelang.jit`` object.
            configs: A list of dicts, one dict, a generator, or a function that gives one of those.
            frontend: ``"tvm"`` or ``"tilelang"``; None finds out.

        Raises:
            ValueError: ``kernel`` is a finished kernel.
            TypeError: ``kernel`` is no function.
        """
        return cls(kernel, configs, frontend)

    def set_compile_args(
        self,
        out_idx: int | Sequence[int] | None = None,
        target: Any = "auto",
        execution_backend: str | None = "auto",
        target_host: Any = None,
        verbose: bool | None = False,
        pass_configs: Mapping[str, Any] | None = None,
        compile_flags: Sequence[str] | str | None = None,
    ) -> AutoTuner:
        """Set how candidates are compiled; see :class:`CompileArgs`. Returns the tuner."""
        self._compile_args = CompileArgs(
            out_idx, execution_backend, target, target_host, verbose, pass_configs, compile_flags
        )
        return self

    def set_profile_args(
        self,
        warmup: float = ProfileArgs.warmup,
        rep: float = ProfileArgs.rep,
        timeout: float = ProfileArgs.timeout,
        supply_type: TensorSupplyType = TensorSupplyType.Auto,
        ref_prog: Callable[..., Any] | None = None,
        supply_prog: Callable[..., Any] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        max_mismatched_ratio: float = ProfileArgs.max_mismatched_ratio,
        skip_check: bool = False,
        manual_check_prog: Callable[..., Any] | None = None,
        cache_input_tensors: bool = True,
        backend: str = "auto",
        seed: int = 0,
        index_ranges: Mapping[str, tuple[int, int]] | None = None,
        deterministic: bool = True,
    ) -> AutoTuner:
        """Set how candidates are checked and timed; see :class:`ProfileArgs`. Returns the tuner.

        Inside ``with set_autotune_inputs(...)`` the tensors given there are taken, now.
        """
        self._captured = captured()
        if supply_prog is not None and self._captured is not None:
            warnings.warn(
                "`supply_prog` will be ignored as this program is under `with set_autotune_inputs` context.",
                stacklevel=2,
            )
            supply_prog = None
        if supply_prog is not None and supply_type is not TensorSupplyType.Auto:
            warnings.warn(
                "Ignoring `supply_type` passed to `set_profile_args` because `supply_prog` is not None.", stacklevel=2
            )
        self._profile_args = ProfileArgs(
            warmup, rep, timeout, backend, supply_type, ref_prog, supply_prog, manual_check_prog, rtol, atol,
            max_mismatched_ratio, skip_check, cache_input_tensors, seed, dict(index_ranges or {}), deterministic,
        )  # fmt: skip
        return self

    def run(
        self,
        warmup: float | None = None,
        rep: float | None = None,
        timeout: float | None = None,
        use_pipeline: bool | None = None,
        enable_grouped_compile: bool = False,
        group_compile_size: int = 2,
        benchmark_devices: Sequence[int] | None = None,
        benchmark_multi_gpu: bool = False,
        early_stop: bool = False,
        early_stop_factor: float = 2.0,
        search: str = "auto",
        trials: int | None = None,
        seconds: float | None = None,
    ) -> AutotuneResult:
        """Tune; a result of the same tuning that the cache holds is taken instead.

        Args:
            warmup, rep, timeout: Override those of ``set_profile_args`` where given.
            use_pipeline: ... and what follows: see :class:`RunArgs`.

        Raises:
            ValueError: There is no config, or one with a key that the factory does not take.
            SpecError: A callback, an input or a target is wrong.
            BuildError: A compiler, frontend or device is missing.
            TuningError: No candidate is left.
        """
        set_before = self._profile_args
        profile = replace(
            set_before,
            warmup=set_before.warmup if warmup is None else warmup,
            rep=set_before.rep if rep is None else rep,
            timeout=set_before.timeout if timeout is None else timeout,
        )
        run_args = RunArgs(
            use_pipeline, enable_grouped_compile, group_compile_size, benchmark_multi_gpu, benchmark_devices,
            early_stop, early_stop_factor, search, trials, seconds,
        )  # fmt: skip
        configs = materialize_configs(self._configs, _bound_arguments(self._factory.call))
        tunables_of(self._factory, configs)
        inputs = self._captured if self._captured is not None else captured()
        return run_request(Request(self._factory, {}, configs, self._compile_args, profile, run_args, inputs))

    __call__ = run


def run_request(request: Request) -> AutotuneResult:
    """Run a tuning, once for all threads and processes that ask for the same; others take the result from the cache."""
    cache = TuningCache.open()
    keys = identify(request) if cache.enabled else None
    if keys is None:
        return _tune(request, None, None)
    with cache.single_flight(keys.result):
        found = cache.load(keys.result)
        if found is not None:
            _tell_doubts(request, found)
            return restore_result(found, request.factory.call, request.configs)
        return _tune(request, cache, keys)


def _tell_doubts(request: Request, found: AutotuneResult) -> None:
    """Say again what was said when it was tuned: a cached result lasts."""
    properties = found.kernel.packed.variant.properties
    if properties.get("trusted") is False:
        name = request.factory.name
        warnings.warn(
            f"tlaot: {name}: the cached result is not to be trusted: {'; '.join(properties.get('notes', ()))}; "
            f"`tlaot cache clear --kernel {name}`, on a quiet machine, has it tuned again",
            stacklevel=5,
        )


def _tune(request: Request, cache: TuningCache | None, keys: RequestKeys | None) -> AutotuneResult:
    scratch = make_scratch()
    try:
        if cache is None or keys is None:
            winner = tune(request, scratch)
        else:
            winner = tune(request, scratch, keys.of, cache.candidates(request.factory.name, keys.build))
        result = result_from_winner(winner, request.factory.call)
    finally:
        remove(scratch)
    if cache is not None and keys is not None:
        cache.store(keys.result, result)
    return result


def _bound_arguments(call: Callable[..., Any]) -> dict[str, Any]:
    """Arguments that a partial has fixed, for configs that are a function of them."""
    if not isinstance(call, functools.partial):
        return {}
    inner = call.func
    try:
        signature = inspect.signature(getattr(inner, "func", inner))
        return dict(signature.bind_partial(*call.args, **call.keywords).arguments)
    except (TypeError, ValueError):
        return dict(call.keywords)


def par_compile(
    factory: Callable[..., Any],
    configs: Iterable[Mapping[str, Any] | Sequence[Any]],
    num_workers: int | None = None,
    ignore_error: bool = False,
    *,
    compile_args: CompileArgs | None = None,
    frontend: str | None = None,
) -> list[Any]:
    """Compile several configs at the same time and measure none.

    Args:
        factory: As for :meth:`AutoTuner.from_kernel`.
        configs: Dicts of keyword arguments, or tuples of positional ones.
        num_workers: Processes; None for what the machine has.
        ignore_error: Give None, with a warning, for a config that does not compile, instead of raising.
        compile_args: How to compile.
        frontend: ``"tvm"`` or ``"tilelang"``; None finds out.

    Returns:
        One kernel a config, in order.

    Raises:
        ValueError: A config is neither a dict nor a tuple.
        BuildError: A config does not compile.
    """
    made = as_factory(factory, frontend)
    names = list(made.signature.parameters)
    keyed = []
    for config in configs:
        if isinstance(config, Mapping):
            keyed.append(dict(config))
        elif isinstance(config, (tuple, list)):
            keyed.append(dict(zip(names, config, strict=False)))
        else:
            raise ValueError(f"Invalid config type: {type(config)}, expected a dict or a tuple")
    request = Request(made, {}, tuple(keyed), compile_args or CompileArgs(), ProfileArgs(skip_check=True))
    scratch = make_scratch()
    kernels: list[Any] = []
    try:
        for config, outcome in zip(keyed, compile_only(request, scratch, ignore_error, num_workers), strict=True):
            if isinstance(outcome, Failed):
                warnings.warn(
                    f"par_compile: {config} does not compile: {outcome.stage}: {outcome.reason}", stacklevel=2
                )
                kernels.append(None)
            else:
                kernels.append(result_from_winner(outcome, made.call).kernel)
    finally:
        remove(scratch)
    return kernels
