"""The items of a shape and a config against what a factory takes, checked before the factory runs; for every frontend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from ...errors import did_you_mean

__all__ = ["check_arguments"]


def check_arguments(
    shape: Mapping[str, Any],
    config: Mapping[str, Any],
    signature: Signature,
    *,
    others: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Refuse what a factory cannot be called with.

    Args:
        shape, config: Items that become keyword arguments.
        signature: The factory's.
        others: Further names that it takes.
        optional: Parameters that nobody needs to give though they have no default.

    Raises:
        TypeError: A name is in both, the factory does not take it, or one that it needs is in neither.
    """
    both = sorted(shape.keys() & config.keys())
    if both:
        raise TypeError(f"shape and config both set {', '.join(both)}")
    parameters = signature.parameters.values()
    takes = [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    if not any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        known = [*takes, *others]
        for what, given in (("config", config), ("shape", shape)):
            for key in given:
                if key not in known:
                    hint = did_you_mean(key, known)
                    raise TypeError(f"unused {what} key {key!r}: the factory takes ({', '.join(known)}){hint}")
    for p in parameters:
        given_later = p.name in shape or p.name in config or p.name in optional
        if p.name in takes and p.default is Parameter.empty and not given_later:
            raise TypeError(f"the factory's argument {p.name!r} is in neither shape nor config and has no default")
