"""Which of the variants that fit a call it runs, and what is worth saying about that choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..manifest import EXECUTABLE, Variant
from .dispatch import Argument, Place, resolve, spell_workload, symbolic_sizes, target_of
from .refusal import check_factory_names, refuse_all, refuse_ambiguous

__all__ = ["covers", "find_notes", "merit_of", "pick_variant"]


def pick_variant(
    where: str,
    variants: Sequence[Variant],
    arguments: Sequence[Argument],
    place: Place,
    factory_args: Mapping[str, Any],
) -> Variant:
    """The one variant that a call runs.

    Of several that fit, one made for exactly these sizes goes before one with symbolic sizes, except PTX before machine code;
    then the target that is best for the device (:meth:`~tlaot.target.Target.preference`), then the fastest.

    Raises:
        CallError: A named factory argument does not exist, or several workloads fit equally well.
        DispatchError: No variant fits; the message says why for each.
    """
    check_factory_names(where, variants, factory_args)
    accepted, rejected = resolve(variants, arguments, place, factory_args)
    if not accepted:
        raise refuse_all(where, variants, arguments, place, rejected, factory_args)
    fewest = min(map(symbolic_sizes, accepted))
    exact = [v for v in accepted if symbolic_sizes(v) == fewest]
    by_workload: dict[str, list[Variant]] = {}
    for variant in exact:
        by_workload.setdefault(spell_workload(variant), []).append(variant)
    best = [max(group, key=lambda v: merit_of(v, place)) for group in by_workload.values()]
    # Workloads that share a binary leave no choice: what is run is the same.
    if len({(v.target, v.out_idx, v.files.get(EXECUTABLE, v.path)) for v in best}) > 1:
        raise refuse_ambiguous(where, [group[0] for group in by_workload.values()])
    chosen = max(best, key=lambda v: merit_of(v, place))
    if not target_of(chosen.target).is_virtual:
        return chosen
    native = [v for v in accepted if not target_of(v.target).is_virtual and covers(v, chosen)]
    return max(native, key=lambda v: (-symbolic_sizes(v), merit_of(v, place)), default=chosen)


def covers(general: Variant, exact: Variant) -> bool:
    """Whether a variant with symbolic sizes is of the same workload as one with sizes of its own, which both fit a call."""
    open_sizes = {size for p in general.params for size in p.shape or () if isinstance(size, str)}
    fixed = {
        name: value for name, value in general.shape.items() if not (isinstance(value, str) and value in open_sizes)
    }
    rest = [value for name, value in exact.shape.items() if name not in fixed]
    return all(repr(exact.shape.get(name)) == repr(value) for name, value in fixed.items()) and all(
        type(value) is int for value in rest
    )


def merit_of(variant: Variant, place: Place) -> tuple[Any, ...]:
    """What variants of one workload that all run on a device are compared by; the greatest is the best."""
    preference = target_of(variant.target).preference(place.capability)
    return preference, -(variant.latency.get("latency") or 0.0), variant.target


def find_notes(where: str, variant: Variant, place: Place) -> list[tuple[str, str]]:
    """What the user of a device should know about a variant that runs there.

    Args:
        where: The kernel, ``"package.name"``.
        variant: The variant that was picked.
        place: A CUDA device.

    Returns:
        A kind (``"ptx"``, ``"sm_count"``) and a text each.
    """
    notes = []
    target, device = target_of(variant.target), place.device or str(place)
    if target.is_virtual:
        here = "cuda:sm_{}{}".format(*place.capability) if place.capability else "this device's architecture"
        notes.append(
            (
                "ptx",
                f"{where}: the package has no machine code for {device}; its driver compiles the PTX of {variant.target}, which "
                f"takes seconds at the first call, and was tuned for another device. Build the package with the target {here}, "
                "or set TLAOT_PTX=0 to have PTX refused.",
            )
        )
    tuned = variant.tuned.get("sm_count")
    if not target.is_virtual and isinstance(tuned, int) and place.sm_count not in (None, tuned):
        package = where.rpartition(".")[0] or where
        on = variant.tuned.get("device") or "a device"
        notes.append(
            (
                "sm_count",
                f"{where}: the config was tuned on {on} with {tuned} multiprocessors; {device} has {place.sm_count}, for which "
                f"another may be faster. Run: tlaot retune {package}",
            )
        )
    return notes
