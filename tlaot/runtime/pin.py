"""``TLAOT_PIN``: which variant calls run, by hand, to hold two of them against each other.

    TLAOT_PIN="matmul=block_M:128,block_N:64;my_package.softmax=target:cuda:sm_80"

Each entry names a kernel, of one package or of all, and what its variant must have: items of the config, of the workload, or the
target. Among the variants that fit a call those are left that have it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import CallError, SpecError
from ..manifest import Variant
from .choose import merit_of
from .dispatch import Argument, Place, describe_call, find_mismatches, spell_workload
from .policy import PIN_VARIABLE
from .refusal import check_factory_names
from .saying import warn_once

__all__ = ["Pin", "pinned", "read_pins"]

# What a variant must have, by name, as text.
Pin = Mapping[str, str]

_REMEDY = f'Write {PIN_VARIABLE}="matmul=block_M:128,block_N:64;softmax=block:256".'
_NAME = re.compile(r"[A-Za-z_][\w.]*")


def read_pins(package: str, environ: Mapping[str, str] | None = None) -> dict[str, Pin]:
    """The pins of a package's kernels, by kernel.

    Raises:
        SpecError: The variable is not of that form, or names a kernel twice.
    """
    text = (os.environ if environ is None else environ).get(PIN_VARIABLE, "")
    pins: dict[str, Pin] = {}
    for entry in filter(None, map(str.strip, text.split(";"))):
        kernel, equals, items = (part.strip() for part in entry.partition("="))
        pin = {}
        for item in filter(None, map(str.strip, items.split(","))):
            name, colon, value = (part.strip() for part in item.partition(":"))
            if not colon or not value or not _NAME.fullmatch(name):
                raise SpecError(PIN_VARIABLE, f"expected name:value, got {item!r} in {entry!r}", _REMEDY)
            pin[name] = value
        if not equals or not pin or not _NAME.fullmatch(kernel):
            raise SpecError(PIN_VARIABLE, f"expected kernel=name:value,..., got {entry!r}", _REMEDY)
        of, _, name = kernel.rpartition(".")
        if of not in ("", package):
            continue
        if name in pins:
            raise SpecError(PIN_VARIABLE, f"names {name} twice", "Keep one of the two.")
        pins[name] = pin
    return pins


def pinned(
    where: str,
    variants: Sequence[Variant],
    arguments: Sequence[Argument],
    place: Place,
    factory_args: Mapping[str, Any],
    pin: Pin,
) -> Variant | None:
    """The variant that a pin has a call run, for the best of its targets; None for a call that no variant fits.

    A variant of a dynamic kernel may be pinned for sizes that another one serves.

    Raises:
        CallError: Variants fit the call, and none has what the pin says, or those of several configs or workloads.
    """
    check_factory_names(where, variants, factory_args)
    fitting = [v for v in variants if not any(find_mismatches(replace(v, buckets=()), arguments, place, factory_args))]
    if not fitting:
        return None
    left = [variant for variant in fitting if all(_has(variant, name, value) for name, value in pin.items())]
    said = ",".join(f"{name}:{value}" for name, value in pin.items())
    if not left:
        listed = "\n".join(f"  {_spell(variant)}" for variant in fitting)
        raise CallError(
            f"{PIN_VARIABLE} {where}",
            f"no variant that fits {describe_call(arguments, place)} has {said}; those that fit:\n{listed}",
            f"Correct {PIN_VARIABLE}, or unset it.",
        )
    if len({(v.target, spell_workload(v)) for v in left}) < len(left):
        # Where the pin does not tell the variants of a dynamic workload apart, the sizes do.
        left = [v for v in left if not any(find_mismatches(v, arguments, place, factory_args))] or left
    if len({(repr(sorted(v.config.items())), spell_workload(v)) for v in left}) > 1:
        listed = "\n".join(f"  {_spell(variant)}" for variant in left)
        raise CallError(
            f"{PIN_VARIABLE} {where}",
            f"several variants that fit {describe_call(arguments, place)} have {said}:\n{listed}",
            "Say more of the one that is meant.",
        )
    chosen = max(left, key=lambda v: merit_of(v, place))
    warn_once(("pin", where, said), f"{where}: {PIN_VARIABLE} has calls run {_spell(chosen)}, whatever is faster")
    return chosen


def _has(variant: Variant, name: str, value: str) -> bool:
    if name == "target":
        return variant.target == value
    for items in (variant.config, variant.shape):
        if name in items:
            return value in (str(items[name]), str(items[name]).lower())  # true as TOML and JSON write it
    return False


def _spell(variant: Variant) -> str:
    config = ", ".join(f"{name}:{value}" for name, value in sorted(variant.config.items()))
    return f"{variant.target} {spell_workload(variant)} with {config or 'no config'}"
