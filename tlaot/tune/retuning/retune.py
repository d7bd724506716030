"""Time the packaged variants of a package on this machine, and say which one each workload should take: ``tlaot retune``.

No compiler, no frontend, no sources: what competes is what was shipped, all variants that run on the device and take a workload's
arguments. They are timed as a build times its finalists: in a child process, in turns, when nothing else runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from ...errors import CallError, DispatchError, LoadError, SpecError
from ...manifest import Param, Variant, param_to_json
from ...runtime.dispatch import Argument, Place
from ...runtime.kernel import Kernel
from ...runtime.load import Kernels
from ...runtime.overlay import workload_key
from ...spelling import spell_items
from ...target import read_target
from ..children.child import Child, Failed
from ..compiling.compile import Built
from ..measuring.decide import MORE_TIME
from ..measuring.invented import INPUTS, REFERENCE, why_not_invented
from ..measuring.measure import decide, screen
from ..measuring.timing import Timing
from ..specs.plan import Workload
from ..specs.spec import KernelSpec, Profile

__all__ = ["Contest", "Options", "Outcome", "Skipped", "devices_of", "measuring_child", "plan_contests", "run_contest"]

_MEASURER = "tlaot.tune.measuring.measurer"
_MOST_ELEMENTS = 1 << 40  # of a tensor; no device has the memory for a terabyte


@dataclass(frozen=True)
class Options:
    """What a user asks for.

    Attributes:
        kernel: Only this one; None for all.
        shapes: New workloads: sizes of symbolic dimensions, values of scalars and arguments of the factory, by name. None
            for those that were packaged.
        inputs: ``"module:function"`` that makes the inputs, called with the workload's items; None invents them.
        seconds: Of measuring at most, a workload.
        busy: Take times although others use the device, and wait for nobody.
        quiet: Seconds to wait for others to leave the device alone.
    """

    kernel: str | None = None
    shapes: tuple[Mapping[str, Any], ...] = ()
    inputs: str | None = None
    seconds: float = 2.0
    busy: bool = False
    quiet: float = 30.0


@dataclass(frozen=True)
class Contest:
    """Variants that can run the same call.

    Attributes:
        kernel: Name of the kernel.
        workload: The workload of the first one, which dispatch takes by itself.
        arguments: The call's inputs, as dispatch spells them.
        place: Where it runs.
        variants: The variants, each with its binary.
        params: The signature with all sizes known.
        scalars: Values of scalar parameters.
        supply: How random inputs are made.
    """

    kernel: str
    workload: Mapping[str, Any]
    arguments: tuple[str, ...]
    place: Place
    variants: tuple[tuple[Variant, Path], ...]
    params: tuple[Param, ...]
    scalars: Mapping[str, Any] = field(default_factory=dict)
    supply: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """A workload that is not timed, and why."""

    kernel: str
    workload: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What a contest came to.

    Attributes:
        contest: The contest.
        times: Time of each variant, or why it has none.
        winner: Index of the variant to take; 0 is dispatch's own.
        notes: What is to be told: why times are not trusted, and the like.
        usable: Whether it may go into an overlay: the times can be trusted, or the user takes them as they are.
    """

    contest: Contest
    times: tuple[Timing | Failed, ...]
    winner: int
    notes: tuple[str, ...] = ()
    usable: bool = True

    @property
    def variant(self) -> Variant:
        """The variant to take."""
        return self.contest.variants[self.winner][0]


def plan_contests(kernels: Kernels, device: tuple[int, int], options: Options) -> list[Contest | Skipped]:
    """The contests on one device: of each packaged workload, or of the new ones that are asked for.

    Args:
        kernels: The package's, without an overlay.
        device: DLPack type and ordinal.
        options: What the user asks for.

    Raises:
        SpecError: There is no such kernel, no kernel has the new workloads' sizes, or one is no size.
    """
    names = list(kernels)
    if options.kernel is not None:
        if options.kernel not in names:
            raise SpecError("--kernel", f"the package has no kernel {options.kernel!r}", f"It has {', '.join(names)}.")
        names = [options.kernel]
    plans: list[Contest | Skipped] = []
    for name in names:
        own = [v for v in kernels[name].variants if read_target(v.target).device_type == device[0]]
        if not options.shapes:
            for variant in _one_a_workload(own):
                plans.append(_plan(kernels[name], variant, {}, device, options))
        for shape in options.shapes:
            for variant in _one_a_workload([v for v in own if _takes(v, shape)]):
                _check_sizes(variant, shape)
                plans.append(_plan(kernels[name], variant, shape, device, options))
    if options.shapes and not plans:
        wanted = sorted({name for n in names for v in kernels[n].variants for name in _open_names(v)})
        what = f"no variant for this device takes {', '.join(map(repr, map(dict, options.shapes)))}"
        raise SpecError("--shape", what, f"Sizes and scalars that are open: {', '.join(wanted) or 'none'}.")
    return plans


def run_contest(contest: Contest, child: Child, options: Options, say: Callable[[str], None]) -> Outcome:
    """Time the variants of a contest.

    Args:
        contest: The contest.
        child: A measuring child of the device.
        options: What the user asks for.
        say: Told what is waited for.
    """
    workload = _workload(contest, options)
    results = {}
    for candidate in workload.candidates():
        variant, path = contest.variants[candidate.index]
        built = Built(path.parent, variant.files[path.name], contest.params, variant.out_idx, {}, {})
        try:
            results[candidate.index] = screen(child, workload, candidate, built, say=say)
        except SpecError as error:
            failed = Failed("prepare", f"{error.where}: {error.what}")
            return Outcome(contest, (failed,) * len(contest.variants), 0, (failed.reason,), False)
    decision = decide(workload, results, child, preferred=workload.configs[:1], journal=_Told(say))
    times = tuple(
        result if isinstance(result, Failed) else result.timing for _, result in sorted(decision.results.items())
    )
    notes = [note.replace(MORE_TIME, "more time may tell: --seconds") for note in decision.notes]
    default = times[0]
    if isinstance(default, Failed):
        notes.append(f"the variant that runs now failed: {default.stage}: {default.reason}")
    usable = (decision.trusted or options.busy) and not isinstance(default, Failed)
    return Outcome(contest, times, (decision.winner_index or 0) if usable else 0, tuple(notes), usable)


def _one_a_workload(variants: Sequence[Variant]) -> list[Variant]:
    return list({workload_key(variant.shape): variant for variant in reversed(variants)}.values())[::-1]


def _open_names(variant: Variant) -> set[str]:
    """Names of the symbolic sizes and the scalars of a variant."""
    sizes = {size for param in variant.params for size in (param.shape or ()) if isinstance(size, str)}
    return sizes | {param.name for param in variant.params if param.shape is None}


def _takes(variant: Variant, shape: Mapping[str, Any]) -> bool:
    """Whether a variant can run a new workload: its sizes are all given, and nothing contradicts what is fixed."""
    names = _open_names(variant)
    sizes = {name for name in names if any(name in (p.shape or ()) for p in variant.params)}
    fixed = {name: value for name, value in shape.items() if name not in names}
    return sizes <= set(shape) and all(name in variant.shape and variant.shape[name] == fixed[name] for name in fixed)


def _check_sizes(variant: Variant, shape: Mapping[str, Any]) -> None:
    """Refuse sizes that no tensor has."""
    named = [size for param in variant.params for size in (param.shape or ()) if isinstance(size, str)]
    for name in dict.fromkeys(named):
        if type(shape[name]) is not int or shape[name] < 1:
            what = f"expected a whole number above 0 for the size {name}, got {shape[name]!r}"
            raise SpecError("--shape", what, f"Write --shape {name}=300, for instance.")
    for param in _bind(variant.params, shape):
        elements = prod(size for size in param.shape or () if isinstance(size, int))
        if elements > _MOST_ELEMENTS:
            what = f"{param.name} would have {elements} elements, got {spell_items(shape)}"
            raise SpecError("--shape", what, "Name a size that fits the device's memory.")


def _plan(
    kernel: Kernel, variant: Variant, shape: Mapping[str, Any], device: tuple[int, int], options: Options
) -> Contest | Skipped:
    def skip(reason: str) -> Skipped:
        return Skipped(kernel.name, {**variant.shape, **shape}, reason)

    params = _bind(variant.params, shape)
    free = sorted({size for param in params for size in (param.shape or ()) if isinstance(size, str)})
    if free:
        return skip(f"the size {', '.join(free)} is open: give it with --shape {free[0]}=...")
    scalars = {p.name: shape.get(p.name) for p in params if p.shape is None}
    unknown = [name for name, value in scalars.items() if value is None]
    if unknown:
        return skip(f"the scalar {unknown[0]} has no value: give it with --shape {unknown[0]}=...")
    arguments = [_argument(p, scalars) for index, p in enumerate(params) if index not in variant.out_idx]
    try:
        place, chosen, fitting = _choose(kernel, arguments, device, variant)
    except (CallError, DispatchError, LoadError) as error:
        return skip(error.what.partition("\n")[0])
    params = _bind(chosen.params, shape)
    rivals = [v for v in fitting if v is not chosen and _same_call(_bind(v.params, shape), params, v, chosen)]
    # PTX stands in where there is no machine code; compiling it takes seconds at the first call of each process.
    rivals = [v for v in rivals if not read_target(v.target).is_virtual or read_target(chosen.target).is_virtual]
    if not rivals:
        return skip("one variant alone runs it here")
    supply = chosen.properties.get("supply") or {}
    why = why_not_invented(params, chosen.out_idx, supply) if options.inputs is None else None
    if why is not None:
        return skip(f"{why}: give inputs with --inputs MODULE:FUNCTION")
    located = tuple((v, kernel.binary_of(v)) for v in (chosen, *rivals))
    spelled = tuple(map(str, arguments))
    return Contest(kernel.name, chosen.shape, spelled, place, located, params, scalars, supply)


def _choose(
    kernel: Kernel, arguments: Sequence[Argument], device: tuple[int, int], variant: Variant
) -> tuple[Place, Variant, list[Variant]]:
    """What dispatch takes for some arguments, and what else it could; a workload that tensors alone do not tell is named."""
    try:
        place, chosen, fitting = kernel.weigh(arguments, device, {})
    except CallError:
        named = {k: v for k, v in variant.shape.items() if isinstance(v, (bool, int, float, str, type(None)))}
        place, chosen, fitting = kernel.weigh(arguments, device, named)
    # Of two workloads that take the same tensors, only the one's variants compute the same.
    agreeing = [v for v in fitting if all(v.shape[k] == chosen.shape[k] for k in {*v.shape} & {*chosen.shape})]
    return place, chosen, agreeing


def _bind(params: Sequence[Param], sizes: Mapping[str, Any]) -> tuple[Param, ...]:
    def bound(size: int | str) -> int | str:
        value = sizes.get(size, size) if isinstance(size, str) else size
        return value if isinstance(value, (int, str)) else size

    return tuple(replace(p, shape=None if p.shape is None else tuple(map(bound, p.shape))) for p in params)


def _argument(param: Param, scalars: Mapping[str, Any]) -> Argument:
    if param.shape is None:
        return Argument(type(scalars[param.name]).__name__, None)
    return Argument(param.dtype, tuple(int(size) for size in param.shape))


def _same_call(left: Sequence[Param], right: Sequence[Param], one: Variant, other: Variant) -> bool:
    """Whether two variants can be called with the same tensors."""

    def told(params: Sequence[Param]) -> list[Any]:
        return [(p.dtype, p.shape, p.written) for p in params]

    return told(left) == told(right) and one.out_idx == other.out_idx


def _workload(contest: Contest, options: Options) -> Workload:
    (default, path), *_ = contest.variants
    target = read_target(default.target)
    kernel = KernelSpec(
        name=contest.kernel,
        frontend="",
        factory="",
        targets=(target,),
        shapes=(),
        configs=(),
        where=contest.kernel,
        inputs=INPUTS,
        reference=REFERENCE,
        deterministic=False,
        profile=Profile(decide_budget=options.seconds, quiet_timeout=0.0 if options.busy else options.quiet),
    )
    asked = {
        "params": [param_to_json(param) for param in contest.params],
        "out_idx": list(default.out_idx),
        "scalars": dict(contest.scalars),
        "supply": dict(contest.supply),
        "device": "cpu" if not target.is_cuda else f"cuda:{contest.place.device_id}",
        "default": {"path": str(path), "digest": asdict(default.files[path.name])},
        "workload": dict(contest.workload),
        "given": options.inputs,
    }
    configs = tuple({"target": v.target, "shape": dict(v.shape), "config": dict(v.config)} for v, _ in contest.variants)
    return Workload(kernel, target, asked, configs)


def measuring_child(device: str, log: Path) -> Child:
    """A measuring child that finds tlaot and the package where this process does."""
    search = [os.path.abspath(entry) for entry in sys.path]
    return Child(_MEASURER, [device], search, log, os.environ)


class _Told:
    """Passes on what deciding says; single results are in the outcome."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def say(self, text: str) -> None:
        self._say(text)

    def write(self, text: str) -> None:
        pass

    def measured(self, candidate: Any, outcome: Any) -> None:
        pass

    def timed_again(self, candidate: Any, timing: Timing) -> None:
        pass


def devices_of(kernels: Kernels) -> Iterator[tuple[int, int]]:
    """The devices that a package has kernels for: DLPack type and ordinal 0."""
    yield from sorted({(read_target(v.target).device_type, 0) for name in kernels for v in kernels[name].variants})
