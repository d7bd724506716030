"""Which variant fits a call: a pure function on plain data, and the words for when none does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from ..errors import CallError, DispatchError, did_you_mean
from ..manifest import Param, Variant
from ..target import CPU_LEVELS, DLPACK_CPU, DLPACK_CUDA, Target, read_target

__all__ = [
    "Argument",
    "Place",
    "Rejection",
    "check_factory_names",
    "describe_call",
    "describe_params",
    "pick_variant",
    "resolve",
]

# Which two of a call's arguments are swapped is looked for among this many; each pair is tried with every variant.
_MOST_SWAPPED = 8

Sizes: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True)
class Place:
    """Where a call runs.

    Attributes:
        device_type: DLPack device type of its tensors.
        device_id: Ordinal of the device.
        capability: Compute capability of a CUDA device; None: unknown, then every CUDA target may run.
        cpu_level: Rank of the processor's instruction level, 1 to 4; None: unknown, then every level may run.
    """

    device_type: int
    device_id: int = 0
    capability: tuple[int, int] | None = None
    cpu_level: int | None = None

    def __str__(self) -> str:
        if self.device_type == DLPACK_CPU:
            return "cpu"
        return f"cuda:{self.device_id}" if self.device_type == DLPACK_CUDA else f"device type {self.device_type}"


@dataclass(frozen=True)
class Argument:
    """What dispatch knows of one argument.

    Attributes:
        dtype: DLPack spelling of a tensor's element type; ``"int"``, ``"float"`` or ``"bool"`` for a scalar.
        shape: Sizes of a tensor; None for a scalar.
        strides: Strides in elements, where a variant of the kernel asks for them; else None.
    """

    dtype: str
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return self.dtype if self.shape is None else f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Rejection:
    """Why one variant does not fit.

    Attributes:
        variant: The variant.
        reasons: ``(kind, text)`` of each mismatch; the kinds are ``"device"``, ``"target"``, ``"factory"``,
            ``"count"``, ``"kind"``, ``"dtype"``, ``"shape"`` and ``"strides"``.
    """

    variant: Variant
    reasons: tuple[tuple[str, str], ...]

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(kind for kind, _ in self.reasons)


def resolve(
    variants: Sequence[Variant],
    arguments: Sequence[Argument],
    place: Place,
    factory_args: Mapping[str, Any],
) -> tuple[list[Variant], list[Rejection]]:
    """Split variants into those that fit a call and those that do not, with every reason.

    Args:
        variants: All packaged variants of the kernel.
        arguments: The call's arguments in order, outputs included or left out.
        place: Where the call's tensors are.
        factory_args: Arguments of the factory that the caller named.
    """
    accepted: list[Variant] = []
    rejected: list[Rejection] = []
    for variant in variants:
        reasons = tuple(_mismatches(variant, arguments, place, factory_args))
        if reasons:
            rejected.append(Rejection(variant, reasons))
        else:
            accepted.append(variant)
    return accepted, rejected


def pick_variant(
    where: str,
    variants: Sequence[Variant],
    arguments: Sequence[Argument],
    place: Place,
    factory_args: Mapping[str, Any],
) -> Variant:
    """The one variant that a call runs.

    Of several that fit, one made for exactly these sizes goes before one with symbolic sizes; then the most
    specific target, then the fastest.

    Raises:
        CallError: A named factory argument does not exist, or several workloads fit equally well.
        DispatchError: No variant fits; the message says why for each.
    """
    check_factory_names(where, variants, factory_args)
    accepted, rejected = resolve(variants, arguments, place, factory_args)
    if not accepted:
        raise _no_variant(where, variants, arguments, place, rejected)
    fewest = min(map(_symbolic_sizes, accepted))
    exact = [v for v in accepted if _symbolic_sizes(v) == fewest]
    by_workload: dict[str, list[Variant]] = {}
    for variant in exact:
        by_workload.setdefault(_spell_workload(variant), []).append(variant)
    if len(by_workload) > 1:
        raise _ambiguous(where, [group[0] for group in by_workload.values()])
    return max(exact, key=lambda v: _merit(v, place))


def _merit(variant: Variant, place: Place) -> tuple[Any, ...]:
    preference = _target(variant.target).preference(place.capability)
    return preference, -(variant.latency.get("latency") or 0.0), variant.target


def describe_params(variant: Variant) -> str:
    """The variant's signature as text: ``(A: float32[1024, 1024], B: ...) -> C: ...``."""
    shown = [f"{p.name}: {_spell_param(p)}" for p in variant.params]
    inputs = [text for i, text in enumerate(shown) if i not in variant.out_idx]
    outputs = [shown[i] for i in variant.out_idx]
    return f"({', '.join(inputs)})" + (f" -> {', '.join(outputs)}" if outputs else "")


def describe_call(arguments: Iterable[Argument], place: Place) -> str:
    """The call's arguments as text."""
    return f"({', '.join(map(str, arguments))}) on {place}"


def _mismatches(
    variant: Variant, arguments: Sequence[Argument], place: Place, factory_args: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
    yield from _target_mismatches(_target(variant.target), place)
    for name, value in factory_args.items():
        # True == 1 in Python, yet they are different workloads.
        if name not in variant.shape or not isinstance(value, (bool, int, float, str, type(None))):
            yield "factory", f"has no factory argument {name} of this kind"
            continue
        if variant.shape.get(name) != value or isinstance(variant.shape.get(name), bool) != isinstance(value, bool):
            yield "factory", f"{name} is {variant.shape.get(name)!r}, asked for {value!r}"
    given = given_params(variant, len(arguments))
    if given is None:
        least = len(variant.params) - len(variant.out_idx)
        expected = f"{least} or {len(variant.params)}" if variant.out_idx else str(least)
        yield "count", f"takes {expected} arguments, got {len(arguments)}"
        return
    sizes: dict[str, int] = {}
    for position, (param, argument) in enumerate(zip(given, arguments, strict=True)):
        what = f"argument {position} ({param.name})"
        for kind, text in _argument_mismatches(param, argument, sizes):
            yield kind, f"{what} {text}"


def given_params(variant: Variant, count: int) -> tuple[Param, ...] | None:
    """The parameters that ``count`` positional arguments stand for: all, or all but the outputs; else None."""
    if count == len(variant.params):
        return variant.params
    if count == len(variant.params) - len(variant.out_idx):
        return tuple(p for i, p in enumerate(variant.params) if i not in variant.out_idx)
    return None


def _target_mismatches(target: Target, place: Place) -> Iterable[tuple[str, str]]:
    if target.device_type != place.device_type:
        yield "device", f"is for {'CUDA' if target.is_cuda else 'the CPU'}, the tensors are on {place}"
    elif target.is_cuda and place.capability is not None and not target.runs_on(place.capability):
        yield "target", f"does not run on compute capability {place.capability[0]}.{place.capability[1]} ({place})"
    elif not target.is_cuda and place.cpu_level is not None and target.cpu_rank > place.cpu_level:
        yield "target", f"needs {target.arch}, this processor has {CPU_LEVELS[place.cpu_level - 1]}"


def _argument_mismatches(param: Param, argument: Argument, sizes: dict[str, int]) -> Iterable[tuple[str, str]]:
    if param.shape is None:
        if argument.shape is not None:
            yield "kind", f"is a tensor, expected a scalar {param.dtype}"
        elif not scalar_fits(param.dtype, argument.dtype):
            yield "kind", f"is a Python {argument.dtype}, expected {param.dtype}"
        return
    if argument.shape is None:
        yield "kind", f"is a Python {argument.dtype}, expected a tensor {_spell_param(param)}"
        return
    if argument.dtype != param.dtype:
        yield "dtype", f"has dtype {argument.dtype}, expected {param.dtype}"
    if not _sizes_fit(param.shape, argument.shape, sizes):
        expected = tuple(sizes.get(s, s) if isinstance(s, str) else s for s in param.shape)
        yield "shape", f"has shape {_spell_sizes(argument.shape)}, expected {_spell_sizes(expected)}"
    elif param.strides is not None and argument.strides is not None and 0 not in argument.shape:
        # The stride of a dimension of size one addresses nothing.
        told = [i for i, n in enumerate(argument.shape) if n != 1]
        if not _sizes_fit([param.strides[i] for i in told], [argument.strides[i] for i in told], sizes):
            yield "strides", f"has strides {_spell_sizes(argument.strides)}, expected {_spell_sizes(param.strides)}"


def scalar_fits(dtype: str, python_type: str) -> bool:
    """Whether a Python scalar may stand for a scalar parameter: as the FFI converts, without loss of kind."""
    if dtype == "bool":
        return python_type == "bool"
    if dtype.startswith(("int", "uint")):
        return python_type in ("int", "bool")
    return python_type in ("float", "int")


def _sizes_fit(expected: Sequence[int | str], found: Sequence[int], sizes: dict[str, int]) -> bool:
    if len(expected) != len(found):
        return False
    for want, got in zip(expected, found, strict=True):
        if (sizes.setdefault(want, got) if isinstance(want, str) else want) != got:
            return False
    return True


def _symbolic_sizes(variant: Variant) -> int:
    names = {s for p in variant.params for s in (*(p.shape or ()), *(p.strides or ())) if isinstance(s, str)}
    return len(names)


def check_factory_names(where: str, variants: Sequence[Variant], factory_args: Mapping[str, Any]) -> None:
    """Refuse keywords that name no argument of the factory.

    Raises:
        CallError: One does not; the message says what to do with a tensor's name.
    """
    known = sorted({name for v in variants for name in v.shape})
    if all(name in known for name in factory_args):
        return
    tensors = {p.name for v in variants for p in v.params}
    for name in factory_args:
        if name in known:
            continue
        if name in tensors:
            what = f"tensors are positional, got {name} by keyword"
            remedy = "Tensors and scalars are passed by position; keywords name arguments of the kernel's factory."
        else:
            what = f"unknown factory argument {name!r}{did_you_mean(name, known)}"
            remedy = f"Arguments of the factory: {', '.join(known) or 'none'}."
        raise CallError(where, what, remedy)


def _ambiguous(where: str, choices: Sequence[Variant]) -> CallError:
    names = sorted({n for v in choices for n in v.shape})
    differing = [n for n in names if len({repr(v.shape.get(n)) for v in choices}) > 1]
    listed = "\n".join(
        "  " + ", ".join(f"{n}={v.shape[n]!r}" if n in v.shape else f"(no {n})" for n in differing) for v in choices
    )
    return CallError(
        where,
        f"{len(choices)} packaged workloads take these tensors, and differ in {', '.join(differing)}:\n{listed}",
        f"Say which by keyword, for instance {differing[0]}={choices[0].shape.get(differing[0])!r}.",
    )


def _no_variant(
    where: str,
    variants: Sequence[Variant],
    arguments: Sequence[Argument],
    place: Place,
    rejected: Sequence[Rejection],
) -> DispatchError | CallError:
    if all(r.kinds & {"count"} for r in rejected) and variants:
        signatures = sorted({describe_params(v) for v in variants})
        return CallError(
            where,
            f"got {len(arguments)} arguments, and no variant takes so many",
            f"Outputs may be left out or passed as well: {'; or '.join(signatures[:4])}.",
        )
    lines = [
        f"  {r.variant.target} {_spell_workload(r.variant)}: {'; '.join(text for _, text in r.reasons)}"
        for r in sorted(rejected, key=lambda r: len(r.reasons))
    ]
    return DispatchError(
        where,
        f"no packaged variant fits {describe_call(arguments, place)}\n" + "\n".join(lines or ["  (none is packaged)"]),
        _remedy(arguments, place, rejected),
    )


def _remedy(arguments: Sequence[Argument], place: Place, rejected: Sequence[Rejection]) -> str:
    """The shortest way out: what the variants that come nearest have against the call."""
    if not rejected:
        return "Build the package with a target and a shape for this kernel."
    only = {r.kinds: r for r in reversed(rejected) if len(r.kinds) == 1}
    targets = ", ".join(sorted({r.variant.target for r in rejected}))
    if frozenset({"target"}) in only or all("target" in r.kinds for r in rejected):
        here = place.cpu_level or place.capability
        name = CPU_LEVELS[here - 1] if isinstance(here, int) else "sm_{}{}".format(*here) if here else ""
        return f"The package was built for {targets}: add {name} to the targets in tltune.toml and build it again."
    if frozenset({"device"}) in only or all("device" in r.kinds for r in rejected):
        if place.device_type == DLPACK_CPU:
            return "This is packaged for CUDA only: move the tensors to the GPU (.cuda())."
        return "This is packaged for the CPU only: move the tensors there (.cpu())."
    swapped = _swapped(arguments, place, rejected)
    if swapped is not None:
        return "Arguments {} and {} are swapped: {} takes {}.".format(*swapped)
    if frozenset({"dtype"}) in only:
        return "Convert the tensors to the dtypes above, or add a kernel for theirs to tltune.toml and build it again."
    if frozenset({"strides"}) in only:
        return "Pass tensors with the strides above (for a compact kernel: np.ascontiguousarray(x), x.contiguous())."
    if frozenset({"kind"}) in only:
        return "Pass scalars as Python numbers and tensors as tensors, in the order above."
    if frozenset({"factory"}) in only:
        return "Name factory arguments with values that were packaged."
    larger = [r.variant for r in rejected if r.kinds == {"shape"} and _pads_to(r.variant, arguments)]
    if larger:
        next_larger = _spell_workload(min(larger, key=_volume))
        return f"Pad to the next larger, {next_larger}, or add the shape to tltune.toml and build the package again."
    if all(_has_wrong_rank(r.variant, arguments) for r in rejected):
        return f"Pass tensors of as many dimensions as in {describe_params(rejected[0].variant)}."
    return "Add the shape to tltune.toml and build the package again."


def _swapped(
    arguments: Sequence[Argument], place: Place, rejected: Sequence[Rejection]
) -> tuple[int, int, str, str] | None:
    """Two arguments that fit a variant the other way round, and that variant."""
    for left, right in itertools.combinations(range(min(len(arguments), _MOST_SWAPPED)), 2):
        other = list(arguments)
        other[left], other[right] = other[right], other[left]
        for rejection in rejected:
            variant = rejection.variant
            if rejection.kinds <= {"shape", "dtype", "kind"} and not any(_mismatches(variant, other, place, {})):
                return left, right, _spell_workload(variant), describe_params(variant)
    return None


def _tensor_pairs(variant: Variant, arguments: Sequence[Argument]) -> list[tuple[Sizes, tuple[int, ...]]]:
    """The sizes that a variant wants of each tensor, with those of the call's."""
    pairs = zip(given_params(variant, len(arguments)) or (), arguments, strict=False)
    return [(p.shape, a.shape) for p, a in pairs if p.shape is not None and a.shape is not None]


def _pads_to(variant: Variant, arguments: Sequence[Argument]) -> bool:
    """Whether every tensor has the variant's rank, and no size above the variant's; symbolic sizes agree."""
    sizes: dict[str, int] = {}
    for wanted, found in _tensor_pairs(variant, arguments):
        if len(wanted) != len(found):
            return False
        for want, got in zip(wanted, found, strict=True):
            if (sizes.setdefault(want, got) != got) if isinstance(want, str) else want < got:
                return False
    return True


def _has_wrong_rank(variant: Variant, arguments: Sequence[Argument]) -> bool:
    return any(len(wanted) != len(found) for wanted, found in _tensor_pairs(variant, arguments))


def _volume(variant: Variant) -> int:
    return sum(math.prod(size for size in p.shape if isinstance(size, int)) for p in variant.params if p.shape)


@cache
def _target(text: str) -> Target:
    return read_target(text, "manifest")


def _spell_param(param: Param) -> str:
    return param.dtype if param.shape is None else f"{param.dtype}[{', '.join(map(str, param.shape))}]"


def _spell_sizes(sizes: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def _spell_workload(variant: Variant) -> str:
    return "{" + ", ".join(f"{k}={v!r}" for k, v in sorted(variant.shape.items())) + "}"
