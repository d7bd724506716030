"""How a load treats its calls: those that no packaged variant fits, and those whose variant is pinned.

Miss policies:

- ``"error"``: the call raises what dispatch found.
- ``"warn"``: it is said once a kernel, and the ``fallback`` of the kernel is called in its place; without one the call raises.
- ``"jit"``: a kernel for these arguments is tuned and compiled by tlaot's build side, where that is installed, and called.
- a function: it is told of the miss, and returns what to call, or None to have the call raise; or raises itself.

What was found for a combination of arguments is kept like a decision for a variant: the policy is not asked again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import CallError, SpecError, did_you_mean

if TYPE_CHECKING:
    from .miss import Miss
    from .pin import Pin

__all__ = ["ON_MISS_VARIABLE", "PIN_VARIABLE", "OnMiss", "Policy", "Replacement", "read_policy"]

ON_MISS_VARIABLE = "TLAOT_ON_MISS"
PIN_VARIABLE = "TLAOT_PIN"
POLICIES = ("error", "warn", "jit")

Replacement: TypeAlias = Callable[..., Any]
OnMiss: TypeAlias = "str | Callable[[Miss], Replacement | None]"


@dataclass(frozen=True)
class Policy:
    """How a load treats its calls.

    Attributes:
        on_miss: One of :data:`POLICIES`, or a function of a miss.
        fallback: By kernel, what ``"warn"`` has called; with the arguments of the call, as they were given.
        pins: By kernel, what a variant must have to run.
        given: ``on_miss`` as the program gave it; None where the environment says it.
    """

    on_miss: OnMiss = "error"
    fallback: Mapping[str, Replacement] = field(default_factory=dict)
    pins: Mapping[str, Pin] = field(default_factory=dict)
    given: OnMiss | None = None


def read_policy(
    package: str,
    on_miss: OnMiss | None = None,
    fallback: Mapping[str, Replacement] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    """The policy of a load: what the program says, else what the environment does.

    Raises:
        CallError: ``on_miss`` is neither a policy nor a function, or a fallback is no function.
        SpecError: ``TLAOT_ON_MISS`` or ``TLAOT_PIN`` is wrong.
    """
    environ = os.environ if environ is None else environ
    chosen = on_miss
    if chosen is None:
        chosen = environ.get(ON_MISS_VARIABLE, "").strip() or "error"
        if chosen not in POLICIES:
            what = f"is no miss policy, got {chosen!r}{did_you_mean(chosen, POLICIES)}"
            raise SpecError(ON_MISS_VARIABLE, what, f"Known: {', '.join(POLICIES)}.")
    elif not callable(chosen) and chosen not in POLICIES:
        what = f"is no miss policy, got {chosen!r}{did_you_mean(str(chosen), POLICIES)}"
        raise CallError("tlaot.load(on_miss=...)", what, f"Known: {', '.join(POLICIES)}, and a function of a miss.")
    for name, replacement in (fallback or {}).items():
        if not callable(replacement):
            what = f"the fallback of {name} cannot be called, got {replacement!r}"
            raise CallError("tlaot.load(fallback=...)", what, 'Write {"matmul": torch.matmul}.')
    pins: Mapping[str, Pin] = {}
    if environ.get(PIN_VARIABLE):
        from .pin import read_pins

        pins = read_pins(package, environ)
    return Policy(chosen, dict(fallback or {}), pins, on_miss)
