"""Does an entry of the lock still hold? Only what its evidence depends on counts, and the answer names what changed.

Comments, other kernels and other modules, the order of anything, the names and lines of the spec's tables, the search and the times
spent on it, versions of tools and the device in this machine make no entry stale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

from ..specs.plan import canonical, counted
from ..specs.spec import KernelSpec
from .lock import Entry
from .sources import changed_modules

__all__ = ["describe_tools", "same_device_tools", "same_frontend", "spec_fields", "why_stale"]

# Of a spec's entry, what says where it stands, what the evidence itself names, how long to look for a winner, and what ships.
_NO_EVIDENCE = (
    "where", "name", "targets", "shapes", "configs", "search", "budget", "profile", "ptx", "max_slowdown",
    "on_misaligned", "probes", "flops", "measure",
)  # fmt: skip


def spec_fields(kernel: KernelSpec, device: Mapping[str, Any]) -> dict[str, Any]:
    """What of a spec's entry the evidence depends on, as JSON.

    What is at its default is left out, so that a later tlaot with more keys finds the same.

    Args:
        kernel: The entry.
        device: Overrides of the target's device.
    """
    found: dict[str, Any] = {}
    body = asdict(kernel)
    for field in fields(kernel):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name not in _NO_EVIDENCE and getattr(kernel, field.name) != default:
            found[field.name] = body[field.name]
    if kernel.profile.backend != "auto":
        found["clock"] = (
            kernel.profile.backend
        )  # how long a candidate is timed makes its time no other; by which clock does
    if device:
        found["device"] = dict(device)
    plain: dict[str, Any] = json.loads(canonical(found))
    return plain


def why_stale(
    entry: Entry, spec: Mapping[str, Any], sources: Mapping[str, str], configs: Sequence[Mapping[str, Any]] | None
) -> str | None:
    """Why an entry does not hold any more; None where it does.

    Args:
        entry: The entry.
        spec: :func:`spec_fields` of the spec's entry now.
        sources: Digests of the modules now.
        configs: The workload's configs now; None where they are not known, or not the entry's own.
    """
    reasons = [
        f"{name} was {_spell(entry.spec.get(name))}, is {_spell(spec.get(name))}"
        for name in sorted({*entry.spec, *spec})
        if canonical(entry.spec.get(name)) != canonical(spec.get(name))
    ]
    changed = changed_modules(entry.sources, sources)
    if changed:
        reasons.append(f"{', '.join(changed)} changed")
    if configs is not None and entry.tuned_as is None:
        reasons += _compare_configs(entry, configs)
    return "; ".join(reasons) or None


def same_frontend(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether the same source must be generated: by the same frontend and tlaot."""
    ignored = ("cc", "cuda", "nvrtc")
    return {k: v for k, v in old.items() if k not in ignored} == {k: v for k, v in new.items() if k not in ignored}


def same_device_tools(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether the same device code must come out of the same source: nvcc reads the headers of its host compiler, too."""
    names = ("cuda", "nvrtc") if "nvrtc" in old and "nvrtc" in new else ("cuda", "nvrtc", "cc")
    return all(old.get(name) == new.get(name) for name in names)


def describe_tools(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """What differs between two sets of tools; empty where nothing does."""
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return ", ".join(f"{name} {old.get(name, 'none')}, here {new.get(name, 'none')}" for name in names)


def _compare_configs(entry: Entry, configs: Sequence[Mapping[str, Any]]) -> list[str]:
    old = {canonical(dict(tried.config)): tried.config for tried in entry.candidates}
    new = {canonical(dict(config)): config for config in configs}
    reasons = []
    for names, word in ((set(new) - set(old), "new"), (set(old) - set(new), "gone")):
        if names:
            first = sorted(names)[0]
            verb = "is" if len(names) == 1 else "are"
            reasons.append(f"{counted(len(names), 'config')} {verb} {word} ({_spell({**old, **new}[first])})")
    return reasons


def _spell(value: Any) -> str:
    if value is None:
        return "not given"
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return text if len(text) < 60 else f"{text[:57]}..."
