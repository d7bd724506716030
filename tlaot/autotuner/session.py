"""One tuning from Python, on the stages that ``pip wheel`` uses: compile, measure, select."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BuildError, SpecError
from ..target import Target, parse_target
from ..tune.children.bound import Bound
from ..tune.children.child import Child, Failed
from ..tune.children.parcel import write_parcel
from ..tune.compiling.compile import Built, CompilePool, Workshop, compile_candidates
from ..tune.compiling.toolchain import Toolchain, find_toolchain
from ..tune.frontends import FRONTENDS
from ..tune.locks.lock import doubts_of, latencies
from ..tune.machine import Machine, inspect_machine
from ..tune.measuring.measure import Measured
from ..tune.measuring.timing import CPU_CLOCKS, CUDA_CLOCKS
from ..tune.measuring.transport import write_tensors
from ..tune.searching.schedule import Outcome, Stand, Tuned, tune_workloads
from ..tune.searching.search import make_search
from ..tune.searching.select import default_timing, select_winner
from ..tune.searching.store import Keys, Store
from ..tune.shipping.package import Winner
from ..tune.specs.plan import Candidate, Workload, counted
from ..tune.specs.spec import Budget, KernelSpec, Profile
from ..tune.specs.supply import supply_from_json, validate_supply
from ..tune.telling.journal import Journal
from .args import ProfileArgs
from .request import Request, check_search
from .settings import log_path, read_default_target, read_execution_backend, read_settings, resolve_num_workers

__all__ = ["compile_only", "machine_identity", "make_scratch", "remove", "resolve_target", "tune"]

# Backends of TileLang whose result is what an executable.so is.
_BACKENDS = ("auto", "tvm_ffi", None)

# No tuning takes so long.
_ABANDONED_S = 2 * 86400.0
# Finalists are timed in turns for this many times "rep" in all, at most, and other load is waited for for so many.
_DECIDE_REPS, _QUIET_REPS = 20.0, 300.0


def tune(
    request: Request, scratch: Path, keys: Callable[[Candidate], Keys] | None = None, store: Path | None = None
) -> Winner:
    """Compile, check and time candidates, and choose the winner.

    Args:
        request: What to tune.
        scratch: Folder for intermediate files; the winner's files may be in it until the caller has taken them.
        keys: Identity of a candidate; None where the request has none.
        store: Folder of what earlier tunings of the factory have found; None keeps nothing.

    Returns:
        The winner.

    Raises:
        SpecError: A callback or an input is wrong.
        BuildError: A compiler, frontend or device is missing.
        TuningError: No candidate is left; the message lists every reason by count.
    """
    machine, search_path, environ = _machine()
    target = resolve_target(request, machine)
    _check_clock(request.profile_args.backend, target)
    journal = _journal(request)
    workload = _workload(request, target, scratch)
    workshop = _workshop(target, len(workload.configs), scratch, search_path, environ, journal)
    workshop.warm(request.factory.frontend, target)
    check_search(request.run_args)
    run, search = request.run_args, make_search(workload.kernel, [workload])
    found: list[Tuned] = []
    with ExitStack() as stack:
        stand = Stand(
            pool=stack.enter_context(CompilePool(request.factory.frontend, target, workshop)),
            children=[
                stack.enter_context(_killed(workshop.measurer(device)))
                for device in _devices(request, target, machine, journal)
            ],
            store=Store(None if keys is None else store, keys or _no_keys, journal.say),
            journal=journal,
            progress=stack.enter_context(journal.show(len(workload.configs), workload.label)),
            overlap=target.is_cuda if run.use_pipeline is None else run.use_pipeline,
            early_stop_factor=run.early_stop_factor if run.early_stop else None,
            on_built=_check_supply,
        )
        tune_workloads([([workload], search)], stand, found.append)
    tuned = found[0]
    _raise_what_all_share(workload, tuned.outcomes)
    winner = select_winner(workload, tuned.outcomes, tuned.decision.winner_index, journal.path)
    device = machine.device_name(target)
    doubts = doubts_of(tuned.decision.trusted, tuned.decision.notes)
    if tuned.decision.notes:
        (journal.write if doubts else journal.say)(f"{workload.label}: {'; '.join(tuned.decision.notes)}")
    if doubts:
        warnings.warn(f"tlaot: {workload.label}: {'; '.join(doubts)}", stacklevel=6)
    config = request.configs[winner.candidate.index]
    latency = latencies(winner.timing, default_timing(tuned.outcomes), tuned.decision.reference)
    return Winner(workload, config, winner.built, latency, {"device": device}, doubts)


def compile_only(
    request: Request, scratch: Path, ignore_error: bool = False, num_workers: int | None = None
) -> list[Winner | Failed]:
    """Compile every config of a request and measure none.

    Raises:
        BuildError: A config does not compile, and ``ignore_error`` is off.
    """
    machine, search_path, environ = _machine()
    target = resolve_target(request, machine)
    journal = _journal(request)
    workload = _workload(request, target, scratch)
    workshop = _workshop(target, len(workload.configs), scratch, search_path, environ, journal)
    if num_workers is not None:
        workshop = replace(workshop, jobs=max(1, num_workers))
    outcomes = compile_candidates(workload.candidates(), request.factory.frontend, workshop, journal.compiled)
    nothing = {"latency": None, "ref_latency": None, "default_latency": None, "spread": None}
    made: list[Winner | Failed] = []
    for config, outcome in zip(request.configs, outcomes, strict=True):
        if isinstance(outcome, Failed) and not ignore_error:
            raise BuildError(
                workload.label, f"{config}: {outcome.stage}: {outcome.reason}", f"{journal.path} has more."
            )
        made.append(outcome if isinstance(outcome, Failed) else Winner(workload, config, outcome, nothing, {}))
    return made


def resolve_target(request: Request, machine: Machine | None = None) -> Target:
    """The target of a request; ``"auto"`` is this machine's GPU for TileLang, its CPU for TVM or where there is no GPU.

    Raises:
        SpecError: The target or the execution backend cannot be built, or not by this frontend.
    """
    asked = request.compile_args.target
    if asked is None or asked == "auto":
        asked = request.factory.target if request.factory.target is not None else read_default_target()
    backend = request.compile_args.execution_backend
    backend = read_execution_backend() if backend is None or backend == "auto" else backend
    if backend not in _BACKENDS:
        raise SpecError(
            "execution_backend",
            f"{backend!r} does not give a library that can be shipped",
            "Use 'auto' or 'tvm_ffi': host code and cubin in one executable.so, loaded without TileLang.",
        )
    frontend = request.factory.frontend
    if asked in (None, "auto"):
        gpus = (machine or _machine()[0]).gpus
        if frontend == "tvm":
            return parse_target("llvm")
        return parse_target(f"cuda:{_arch(gpus[0].capability)}" if gpus else "c")
    target = _parse(asked)
    kinds = {"tvm": ("llvm", "cuda"), "tilelang": ("cuda", "c")}[frontend]
    if target.kind not in kinds:
        raise SpecError("target", f"the frontend {frontend} cannot build {target}", f"It builds {', '.join(kinds)}.")
    return target


def machine_identity(request: Request) -> dict[str, Any]:
    """What of this machine can change the result: device model, compilers, versions."""
    machine = _machine()[0]
    target = resolve_target(request, machine)
    toolchain = _toolchain(target.is_cuda)
    return {
        "device": machine.device_name(target),
        "distributions": dict(machine.distributions),
        "cc": toolchain.host.version,
        "nvcc": toolchain.cuda.version if toolchain.cuda is not None else None,
        "nvrtc": toolchain.cuda is not None and bool(toolchain.cuda.nvrtc),
    }


def _parse(asked: Any) -> Target:
    if isinstance(asked, Target):
        return asked
    if isinstance(asked, str):
        if asked == "cuda":
            gpus = _machine()[0].gpus
            if not gpus:
                raise SpecError(
                    "target", "'cuda' names no architecture and this machine has no GPU", "Write cuda:sm_90a."
                )
            return parse_target(f"cuda:{_arch(gpus[0].capability)}")
        return parse_target(asked)
    if isinstance(asked, Mapping):
        kind, arch = str(asked.get("kind", "")), asked.get("arch") or asked.get("mcpu")
    else:  # a TVM target
        kind = str(getattr(getattr(asked, "kind", ""), "name", ""))
        attributes = getattr(asked, "attrs", {})
        arch = attributes.get("arch") or attributes.get("mcpu")
    if kind == "cuda" and not arch:
        return _parse("cuda")
    return parse_target(f"{kind}:{arch}" if arch else kind)


def _arch(capability: tuple[int, int]) -> str:
    """The architecture whose every instruction a device has: ``sm_90a``, not ``sm_90``, from Hopper on."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@functools.lru_cache(maxsize=1)
def _machine() -> tuple[Machine, tuple[str, ...], dict[str, str]]:
    """The machine, the search path and the environment of children; looked at once a process."""
    search_path = tuple(dict.fromkeys(os.path.abspath(entry or os.getcwd()) for entry in sys.path))
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return inspect_machine(search_path, environ), search_path, environ


@functools.lru_cache(maxsize=2)
def _toolchain(cuda: bool) -> Toolchain:
    """The compilers, which are asked for their versions once a process and not at each look into the cache."""
    return find_toolchain(_machine()[2], cuda)


def _workload(request: Request, target: Target, scratch: Path) -> Workload:
    """The request as the engine's own types, its functions in parcels."""
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


def _check_clock(backend: str, target: Target) -> None:
    known = CUDA_CLOCKS if target.is_cuda else CPU_CLOCKS
    if backend not in known:
        raise SpecError("backend", f"unknown profiler backend {backend!r} for {target}", f"Known: {', '.join(known)}.")


def _compile_flags(request: Request) -> tuple[str, ...]:
    given = request.compile_args.compile_flags or ()
    return tuple(token for flag in ([given] if isinstance(given, str) else given) for token in shlex.split(flag))


def _workshop(
    target: Target, count: int, scratch: Path, search_path: tuple[str, ...], environ: dict[str, str], journal: Journal
) -> Workshop:
    toolchain = _toolchain(target.is_cuda)
    return Workshop(scratch, search_path, environ, journal.path, resolve_num_workers(count), toolchain, {})


@contextmanager
def _killed(child: Child) -> Iterator[Child]:
    try:
        yield child
    finally:
        child.kill()


def _devices(request: Request, target: Target, machine: Machine, journal: Journal) -> list[str]:
    """Measuring devices: the first that runs the target, or those that the run asked for, of one model only."""
    frontend = request.factory.frontend
    if FRONTENDS[frontend][1] not in machine.distributions:
        raise BuildError("autotune", f"{FRONTENDS[frontend][1]} is not installed", f'pip install "tlaot[{frontend}]".')
    run = request.run_args
    several = run.benchmark_multi_gpu or run.benchmark_devices is not None
    if not target.is_cuda:
        if several:
            journal.say(f"benchmark_multi_gpu is for CUDA targets, got {target}; measuring on the CPU")
        return ["cpu"]
    fitting = [gpu for gpu in machine.gpus if target.runs_on(gpu.capability)]
    if not fitting:
        raise BuildError(
            "autotune", f"there is no GPU to measure {target} on", "Name another target, or run where there is one."
        )
    if not several:
        return [f"cuda:{fitting[0].index}"]
    chosen = fitting
    if run.benchmark_devices is not None:
        visible = [gpu.index for gpu in machine.gpus]
        invalid = [index for index in run.benchmark_devices if index not in {gpu.index for gpu in fitting}]
        if invalid:
            journal.say(f"Ignoring invalid benchmark device ids {invalid}. Visible CUDA device ordinals are {visible}.")
        chosen = [gpu for gpu in fitting if gpu.index in run.benchmark_devices] or fitting[:1]
    # Times of different models say nothing about each other.
    return [f"cuda:{gpu.index}" for gpu in chosen if gpu.name == chosen[0].name]


def _no_keys(candidate: Candidate) -> Keys:
    raise AssertionError("a store without a folder asks for no keys")


def _check_supply(candidate: Candidate, built: Built) -> None:
    """Raise at the first candidate that compiled, and not for each at last, that inputs must be given."""
    kernel = candidate.workload.kernel
    if kernel.inputs is None and kernel.inputs_file is None:
        validate_supply(built.params, built.out_idx, kernel.name, supply_from_json(kernel.supply))


def _raise_what_all_share(workload: Workload, outcomes: Sequence[Outcome]) -> None:
    """Raise once what is no candidate's fault: inputs that cannot be made, a reference that fails."""
    shared = {(r.stage, r.reason) for r in outcomes if isinstance(r, Failed)}
    if len(shared) == 1 and not any(isinstance(r, Measured) for r in outcomes):
        stage, reason = next(iter(shared))
        if stage == "prepare":
            raise SpecError(workload.kernel.where, reason, "This concerns every candidate alike.")


def _journal(request: Request) -> Journal:
    verbose = request.compile_args.verbose
    verbose = read_settings().verbose if verbose is None else verbose
    begin = f"autotuner: {request.factory.name}, {counted(len(request.configs), 'config')}"
    return Journal(log_path(), print if verbose else None, begin, every_result=bool(verbose))


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def make_scratch() -> Path:
    """A folder for the intermediate files of one tuning; those that killed processes left go after two days."""
    for left in Path(tempfile.gettempdir()).glob("tlaot-tune-*"):
        with suppress(OSError):  # another user's, or just gone
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left)
    return Path(tempfile.mkdtemp(prefix="tlaot-tune-"))
