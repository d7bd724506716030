"""The words for when no variant fits a call, or several do: what there is, and what to do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import CallError, DispatchError, did_you_mean
from ..manifest import Variant
from ..target import CPU_LEVELS, DLPACK_CPU
from .buckets import measured_range, spell_range
from .dispatch import (
    Argument,
    Place,
    Rejection,
    Sizes,
    bind_sizes,
    describe_call,
    describe_params,
    find_mismatches,
    given_params,
    resolve,
    spell_workload,
)
from .workload import infer_workloads, spell_toml

__all__ = ["check_factory_names", "nearest_variants", "refuse_all", "refuse_ambiguous", "refuse_binding"]

# Of thousands of variants the nearest are shown.
_MOST_SHOWN = 16

# Which two of a call's arguments are swapped is looked for among this many; each pair is tried with every variant.
_MOST_SWAPPED = 8


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


def refuse_binding(where: str, variants: Sequence[Variant], factory_args: Mapping[str, Any]) -> CallError:
    """The error for arguments of the factory, each of which exists, that no variant was packaged with."""
    asked = ", ".join(f"{name}={value!r}" for name, value in factory_args.items())
    packaged = [[(name, v.shape[name]) for name in factory_args if name in v.shape] for v in variants]
    listed = sorted({", ".join(f"{name}={value!r}" for name, value in one) for one in packaged if one})
    return CallError(where, f"no variant was packaged with {asked}", f"Packaged are: {'; '.join(listed)}.")


def refuse_ambiguous(where: str, choices: Sequence[Variant]) -> CallError:
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


def refuse_all(
    where: str,
    variants: Sequence[Variant],
    arguments: Sequence[Argument],
    place: Place,
    rejected: Sequence[Rejection],
    factory_args: Mapping[str, Any] | None = None,
) -> DispatchError | CallError:
    """What to raise where no variant fits a call.

    Args:
        where: The kernel, ``"package.name"``.
        variants: All its variants.
        arguments: The call's arguments.
        place: Where the call's tensors are.
        rejected: Why each does not fit.
        factory_args: Arguments of the factory that the caller named.
    """
    if all(r.kinds & {"count"} for r in rejected) and variants:
        signatures = sorted({describe_params(v) for v in variants})
        return CallError(
            where,
            f"got {len(arguments)} arguments, and no variant takes so many",
            f"Outputs may be left out or passed as well: {'; or '.join(signatures[:4])}.",
        )
    nearest = sorted(rejected, key=lambda r: (len(r.reasons), _distance(r.variant, arguments)))
    shown = (
        f"  {r.variant.target} {spell_workload(r.variant)}: {'; '.join(text for _, text in r.reasons)}"
        for r in nearest[:_MOST_SHOWN]
    )
    lines = list(dict.fromkeys(shown))  # variants of one dynamic workload may have the same against it
    if len(nearest) > _MOST_SHOWN:
        lines.append(f"  and {len(nearest) - _MOST_SHOWN} more that are further from it")
    remedy = _remedy(arguments, place, rejected)
    if "add the shape" in remedy.lower() or "add a kernel" in remedy:
        workloads = infer_workloads([r.variant for r in nearest], arguments, factory_args or {})
        name = where.rpartition(".")[2]
        remedy += "".join(
            f"\n    {'or' if index else f'[[kernel]] {name}:'} shapes = [{spell_toml(workload)}]"
            for index, workload in enumerate(workloads)
        )
    return DispatchError(
        where,
        f"no packaged variant fits {describe_call(arguments, place)}\n" + "\n".join(lines or ["  (none is packaged)"]),
        remedy,
    )


def nearest_variants(
    variants: Sequence[Variant], arguments: Sequence[Argument], place: Place, factory_args: Mapping[str, Any]
) -> list[Variant]:
    """Variants that do not fit a call, those with the least against them first."""
    _, rejected = resolve(variants, arguments, place, factory_args)
    rejected.sort(key=lambda r: (len(r.reasons), _distance(r.variant, arguments)))
    return [r.variant for r in rejected]


def _distance(variant: Variant, arguments: Sequence[Argument]) -> float:
    """How far a variant's sizes are from a call's: in doublings, all together."""
    return sum(
        abs(math.log2((want + 1) / (got + 1)))
        for wanted, found in _tensor_pairs(variant, arguments)
        for want, got in zip(wanted, found, strict=False)
        if isinstance(want, int)
    )


def _remedy(arguments: Sequence[Argument], place: Place, rejected: Sequence[Rejection]) -> str:
    """The shortest way out: what the variants that come nearest have against the call."""
    if not rejected:
        return "Build the package with a target and a shape for this kernel."
    only = {r.kinds: r for r in reversed(rejected) if len(r.kinds) == 1}
    targets = ", ".join(sorted({r.variant.target for r in rejected}))
    if frozenset({"ptx"}) in only:
        return f"Unset TLAOT_PTX, or add {_name_here(place)} to the targets in tltune.toml and build the package again."
    if frozenset({"target"}) in only or all("target" in r.kinds for r in rejected):
        return f"The package was built for {targets}: add {_name_here(place)} to the targets in tltune.toml and build it again."
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
    sized = [r.variant for r in rejected if r.kinds == {"size"}]
    if sized:
        return _extend_range(sized, arguments)
    larger = [r.variant for r in rejected if r.kinds == {"shape"} and _pads_to(r.variant, arguments)]
    if larger:
        next_larger = spell_workload(min(larger, key=_volume))
        return f"Pad to the next larger, {next_larger}, or add the shape to tltune.toml and build the package again."
    if all(_has_wrong_rank(r.variant, arguments) for r in rejected):
        return f"Pass tensors of as many dimensions as in {describe_params(rejected[0].variant)}."
    return "Add the shape to tltune.toml and build the package again."


def _extend_range(variants: Sequence[Variant], arguments: Sequence[Argument]) -> str:
    """The range that the nearest dynamic workload serves, and the line of tltune.toml that extends it to a call's sizes."""
    first = variants[0]
    own = [v for v in variants if v.target == first.target and dict(v.shape) == dict(first.shape)]
    sizes, ranges = bind_sizes(first, arguments), measured_range(own)
    outside = [name for name, (low, high) in ranges.items() if not low <= sizes.get(name, -1) <= (high or math.inf)]
    told = ", ".join(f"{name} = {sizes.get(name)} is outside of {spell_range(ranges[name])}" for name in outside)
    declared = first.properties.get("dynamic") or {
        name: [n for n in ends if n is not None] for name, ends in ranges.items()
    }
    line = ", ".join(
        f"{name} = {sorted({*known, *([sizes[name]] if name in outside and sizes.get(name) else [])})}"
        for name, known in declared.items()
    )
    return (
        f"{told}, what {spell_workload(first)} was measured for. In tltune.toml write dynamic = {{ {line} }} and build the package "
        'again; or outside = "clamp", where the kernel is right for other sizes too.'
    )


def _name_here(place: Place) -> str:
    """What a target for this place is called."""
    if place.cpu_level is not None:
        return CPU_LEVELS[place.cpu_level - 1]
    return "cuda:sm_{}{}".format(*place.capability) if place.capability else "one for this device"


def _swapped(
    arguments: Sequence[Argument], place: Place, rejected: Sequence[Rejection]
) -> tuple[int, int, str, str] | None:
    """Two arguments that fit a variant the other way round, and that variant."""
    for left, right in itertools.combinations(range(min(len(arguments), _MOST_SWAPPED)), 2):
        other = list(arguments)
        other[left], other[right] = other[right], other[left]
        for rejection in rejected:
            variant = rejection.variant
            if rejection.kinds <= {"shape", "dtype", "kind"} and not any(find_mismatches(variant, other, place, {})):
                return left, right, spell_workload(variant), describe_params(variant)
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
