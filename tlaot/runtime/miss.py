"""What happens to a call that no packaged variant fits: the miss policy of a load.

- ``"error"``: the call raises what dispatch found.
- ``"warn"``: it is said once a kernel, and the ``fallback`` of the kernel is called in its place; without one the call raises.
- ``"jit"``: a kernel for these arguments is tuned and compiled by tlaot's build side, where that is installed, and called.
- a function: it is told of the miss, and returns what to call, or None to have the call raise; or raises itself.

What was found for a combination of arguments is kept like a decision for a variant: the policy is not asked again.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import CallError, DispatchError, LoadError
from ..manifest import Variant
from .dispatch import Argument, Place, refuse_place
from .policy import Policy, Replacement
from .refusal import nearest_variants
from .saying import warn_once
from .seen import note
from .workload import infer_workloads, spell_toml

__all__ = ["Miss", "answer"]

# What makes kernels of a running program; named, not imported: it belongs to the build side, which need not be installed.
_JIT = "tlaot.autotuner.missing"


@dataclass(frozen=True)
class Miss:
    """A call that no packaged variant fits.

    Attributes:
        kernel: ``"package.name"``.
        arguments: The call's arguments: ``dtype`` and ``shape`` of each.
        device: Where its tensors are, ``"cuda:0"`` or ``"cpu"``.
        factory_args: Arguments of the factory that it names.
        workloads: What would have to be packaged: one entry of ``shapes`` in ``tltune.toml``; several where the arguments leave
            it open, none where they do not tell.
        nearest: The kernel's variants, those with the least against them first.
        error: What the call raises where nothing else is done; ``str`` of it says why each variant does not fit.
    """

    kernel: str
    arguments: tuple[Argument, ...]
    device: str
    factory_args: Mapping[str, Any]
    workloads: tuple[Mapping[str, Any], ...]
    nearest: tuple[Variant, ...]
    error: DispatchError
    place: Place = field(repr=False)


def answer(
    policy: Policy | None,
    where: str,
    variants: Sequence[Variant],
    arguments: Sequence[Argument],
    place: Place,
    factory_args: Mapping[str, Any],
    error: DispatchError,
) -> Replacement:
    """What to call in place of a variant.

    Args:
        policy: The load's; None is "error".
        where: The kernel, ``"package.name"``.
        variants: The kernel's variants.
        arguments: The call's arguments.
        place: Where its tensors are.
        factory_args: Arguments of the factory that it names.
        error: Why none fits.

    Raises:
        DispatchError: Nothing is to be called.
        Exception: What the policy's function raises; LoadError and what a tuning raises, of ``"jit"``.
    """
    nearest = nearest_variants(variants, arguments, place, factory_args)
    workloads = infer_workloads(nearest, arguments, factory_args)
    line = "" if not workloads else f"shapes = [{spell_toml(workloads[0])}]"
    if any(dict(v.shape) in workloads for v in variants):
        line = error.remedy.partition("\n")[0]  # it is packaged, for other sizes
    made: Replacement | None = None
    outcome = "miss"
    try:
        if policy is None or policy.on_miss == "error":
            raise error
        miss = Miss(
            where,
            tuple(arguments),
            str(place),
            dict(factory_args),
            tuple(workloads),
            tuple(nearest),
            error,
            place,
        )
        if policy.on_miss == "warn":
            outcome, made = "fallback", _fall_back(policy, miss)
        elif policy.on_miss == "jit":
            outcome, made = "jit", _compile(miss)
        elif callable(policy.on_miss):
            outcome, made = "callback", policy.on_miss(miss)
            if made is None:
                raise error
            if not callable(made):
                what = f"on_miss returned {made!r}, which cannot be called"
                raise CallError(where, what, "Return a function of the call's arguments, or None.")
        assert made is not None
    finally:
        note(where, arguments, place, outcome if made is not None else "miss", line)
    return made


def _fall_back(policy: Policy, miss: Miss) -> Replacement:
    name = miss.kernel.rpartition(".")[2]
    made = policy.fallback.get(name)
    if made is None:
        remedy = f'{miss.error.remedy}\nThe miss policy is "warn"; for it to go on, tlaot.load(..., fallback={{"{name}": function}}).'
        raise DispatchError(miss.error.where, miss.error.what, remedy.strip())
    warn_once(
        ("miss", miss.kernel), f"{miss.error}\nIts fallback is called. This is said once; tlaot.coverage() has all."
    )
    return made


def _compile(miss: Miss) -> Replacement:
    """Have the build side make a kernel.

    Raises:
        LoadError: It is not installed, or the package does not say how.
    """
    try:
        module = importlib.import_module(_JIT)
    except ImportError as error:
        raise LoadError(
            miss.kernel,
            f'the miss policy "jit" needs tlaot\'s build side, which is not installed here ({error})',
            "pip install 'tlaot[tilelang]' or 'tlaot[tvm]'; or leave TLAOT_ON_MISS at error.\n" + str(miss.error),
        ) from None
    warn_once(
        ("jit", miss.kernel),
        f"{miss.error}\nA kernel is tuned for it now, which takes seconds to minutes; so for later misses.",
    )
    runs = [v for v in miss.nearest if not any(refuse_place(v, miss.place))]
    made: Replacement = module.make_kernel(miss, runs)
    return made
