"""A request as the build side's own types, its functions in parcels."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ..target import Target
from ..tune.children.bound import Bound
from ..tune.children.parcel import write_parcel
from ..tune.measuring.transport import write_tensors
from ..tune.specs.plan import Workload
from ..tune.specs.spec import Budget, KernelSpec, Profile
from .args import ProfileArgs
from .request import Request

__all__ = ["make_workload"]

# Finalists are timed in turns for this many times "rep" in all, at most, and other load is waited for for so many.
_DECIDE_REPS, _QUIET_REPS = 20.0, 300.0


def make_workload(request: Request, target: Target, scratch: Path) -> Workload:
    """The workload that a request is: one kernel, one shape.

    Args:
        request: What to tune.
        target: What it is built for.
        scratch: Folder for the parcels.
    """
    parcels = scratch / "parcels"
    parcels.mkdir(parents=True, exist_ok=True)
    profile, factory = request.profile_args, request.factory
    shape = {name: value for name, value in request.arguments.items() if _is_json(value)}
    others = {name: value for name, value in request.arguments.items() if name not in shape}
    plain = all(_is_json(config) for config in request.configs)
    configs = request.configs if plain else tuple({"config_index": index} for index in range(len(request.configs)))
    call: Any = factory.call
    if others or not plain:
        call = Bound(call, others, None if plain else request.configs)

    def parcel(value: Any, name: str) -> str | None:
        return None if value is None else write_parcel(value, parcels / f"{name}.pkl", f"{factory.name} {name}")

    kernel = KernelSpec(
        name=factory.name,
        frontend=factory.frontend,
        factory=str(parcel(call, "factory")),
        targets=(target,),
        shapes=({},),
        configs=configs,
        where=f"autotune {factory.name}",
        inputs=parcel(profile.supply_prog, "supply_prog") if request.captured is None else None,
        inputs_style="supply_prog",
        inputs_file=None if request.captured is None else write_tensors(request.captured, parcels),
        reference=None if profile.skip_check else parcel(profile.ref_prog, "ref_prog"),
        manual_check=None if profile.skip_check else parcel(profile.manual_check_prog, "manual_check_prog"),
        check=not profile.skip_check,
        deterministic=profile.deterministic,
        out_idx=_out_idx(request),
        rtol=profile.rtol,
        atol=profile.atol,
        max_mismatched_ratio=profile.max_mismatched_ratio,
        pass_configs=_pass_configs(request),
        compile_flags=_compile_flags(request),
        search=request.run_args.search,
        budget=Budget(request.run_args.trials, request.run_args.seconds),
        profile=_profile(profile),
        supply={
            "type": profile.supply_type.name.lower(),
            "seed": profile.seed,
            "ranges": {name: list(bounds) for name, bounds in profile.index_ranges.items()},
        },
    )
    return Workload(kernel, target, shape, configs)


def _profile(given: ProfileArgs) -> Profile:
    """How to time; whoever asks for short timings wants a short decision and a short wait for quiet, too."""
    decide_budget = min(Profile.decide_budget, _DECIDE_REPS * given.rep / 1e3)
    quiet_timeout = min(Profile.quiet_timeout, _QUIET_REPS * given.rep / 1e3)
    return Profile(
        given.warmup,
        given.rep,
        given.timeout,
        backend=given.backend,
        decide_budget=decide_budget,
        quiet_timeout=quiet_timeout,
    )


def _is_json(value: Any) -> bool:
    """Whether a value comes out of a request as it went in: type for type, no tuple made a list."""
    if type(value) is dict:
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, int, float, str)


def _out_idx(request: Request) -> tuple[int, ...] | None:
    given = request.compile_args.out_idx
    if given is None:
        return None
    return (given,) if isinstance(given, int) else tuple(given)


def _pass_configs(request: Request) -> dict[str, Any]:
    given = dict(request.compile_args.pass_configs or {})
    return {str(getattr(key, "value", key)): value for key, value in given.items()}


def _compile_flags(request: Request) -> tuple[str, ...]:
    given = request.compile_args.compile_flags or ()
    return tuple(token for flag in ([given] if isinstance(given, str) else given) for token in shlex.split(flag))
