"""Kernels for calls that no packaged variant fits, of a running program: the miss policy ``"jit"`` (:mod:`tlaot.runtime.miss`).

The packaged factory is called for the missing workload, and the configs that won for others compete; what comes of it is in the
cache that all processes share, so that of many ranks one tunes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import LoadError
from ..manifest import Variant
from ..runtime.dispatch import find_mismatches
from ..runtime.workload import infer_workloads
from ..target import read_target
from .args import TensorSupplyType
from .kernel import TunedKernel
from .tuner import AutoTuner

if TYPE_CHECKING:
    from ..runtime.miss import Miss

__all__ = ["make_kernel"]

# Configs that compete, of the nearest workloads; each takes seconds.
_MOST_CONFIGS = 8

# By kernel, target and workload.
_made: dict[tuple[str, str, str], TunedKernel] = {}


def make_kernel(miss: Miss, variants: Sequence[Variant]) -> Callable[..., Any]:
    """Tune and compile a kernel for a call.

    Args:
        miss: The call.
        variants: Variants of the kernel that run on the call's device, those nearest to the call first.

    Returns:
        A function of the call's arguments.

    Raises:
        LoadError: The package does not say how its kernels are made, its factory cannot be imported, or the workload is not known.
        BuildError: A compiler, frontend or device is missing, or no config gives a right kernel.
    """
    if not variants:
        raise LoadError(
            miss.kernel, f"no packaged variant runs on {miss.device}, so there is none to go by", str(miss.error)
        )
    made_by = variants[0].properties.get("made_by")
    if not isinstance(made_by, Mapping):
        raise LoadError(
            miss.kernel, 'the package does not say how its kernels are made, which "jit" needs', "Build it again."
        )
    # A kernel of just these sizes: for any, inputs of some would have to be made up.
    workloads = infer_workloads(variants, miss.arguments, miss.factory_args, fixed=True)
    if not workloads:
        raise LoadError(
            miss.kernel,
            "the packaged variants do not tell which workload these arguments are of",
            f"Name the factory's arguments by keyword.\n{miss.error}",
        )
    for workload in workloads:
        kernel = _tuned(miss, variants, made_by, workload)
        if not any(find_mismatches(kernel.variants[0], miss.arguments, miss.place, {})):
            return functools.partial(_call, kernel)
    raise LoadError(
        miss.kernel,
        f"the kernel of {workloads[-1]} does not take these arguments either",
        f"Name the factory's arguments by keyword.\n{miss.error}",
    )


def _call(kernel: TunedKernel, *args: Any, **factory_args: Any) -> Any:
    """The kernel is made for these factory arguments."""
    return kernel(*args)


def _tuned(
    miss: Miss, variants: Sequence[Variant], made_by: Mapping[str, Any], workload: Mapping[str, Any]
) -> TunedKernel:
    target = read_target(variants[0].target)
    chosen = "auto" if target.is_virtual else str(target)
    key = miss.kernel, chosen, json.dumps(workload, sort_keys=True)
    found = _made.get(key)
    if found is None:
        frontend = str(variants[0].frontend.get("name"))
        _refuse_other_frontend(miss.kernel, frontend)
        factory = _import(miss.kernel, frontend, made_by["factory"])
        reference = made_by.get("reference")
        tuner = AutoTuner.from_kernel(
            functools.partial(factory, **workload), _configs(variants, frontend), frontend=frontend
        )
        tuner.set_compile_args(
            out_idx=list(variants[0].out_idx), target=chosen, pass_configs=made_by.get("pass_configs") or None
        )
        supply = variants[0].properties.get("supply", {})
        inputs = made_by.get("inputs")
        tuner.set_profile_args(
            ref_prog=None if reference is None else _import(miss.kernel, frontend, reference),
            supply_prog=None if inputs is None else _inputs(_import(miss.kernel, frontend, inputs), workload),
            supply_type=TensorSupplyType[str(supply.get("type", "auto")).capitalize()],
            seed=supply.get("seed", 0),
            index_ranges={name: tuple(bounds) for name, bounds in supply.get("ranges", {}).items()},
            skip_check=reference is None,
            deterministic=variants[0].properties.get("deterministic", True),
            rtol=made_by.get("rtol"),
            atol=made_by.get("atol"),
        )
        found = _made.setdefault(key, tuner.run().kernel)
    return found


def _inputs(function: Callable[..., Any], workload: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The package's function of a workload as one of a kernel's parameters, which is what a tuning from Python calls."""
    takes = inspect.signature(function).parameters
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    given = {name: value for name, value in workload.items() if every or name in takes}
    return lambda params: function(**given)


def _configs(variants: Sequence[Variant], frontend: str) -> list[dict[str, Any]]:
    """The configs that won for the nearest workloads, each once."""
    mine = [dict(v.config) for v in variants if v.frontend.get("name") == frontend]
    return list({json.dumps(config, sort_keys=True): config for config in mine}.values())[:_MOST_CONFIGS]


def _refuse_other_frontend(where: str, frontend: str) -> None:
    """TileLang brings a TVM of its own under the name ``tvm``: the two do not live in one process."""
    has = "tilelang" if "tilelang" in sys.modules else "tvm" if "tvm" in sys.modules else frontend
    if has != frontend:
        raise LoadError(
            where,
            f"its factory is for {frontend}, and this process has imported {has}: both bring a module named tvm",
            "Have the missing shape packaged, or call this kernel in another process.",
        )


def _import(where: str, frontend: str, name: str) -> Any:
    module, _, function = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise LoadError(
            where,
            f'the miss policy "jit" needs {name}, which cannot be imported ({error})',
            f"pip install 'tlaot[{frontend}]'; the package must ship the modules of its factories, too.",
        ) from error
    return found
