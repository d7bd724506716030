"""Hold a lock against a spec and its sources: what holds, what is stale, what is missing. Nothing is compiled or measured."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..target import Target
from .children.child import Failed
from .compiling.compile import Workshop, expand_kernel
from .compiling.toolchain import HostCompiler, Toolchain
from .frontends import FRONTENDS
from .groups import Group, all_groups
from .locks.fit import spec_fields, why_stale
from .locks.lock import Entry, Key, Lock, key_of
from .locks.sources import Known, digest_modules, modules_of
from .machine import find_distributions
from .specs.dynamic import open_shape
from .specs.plan import Workload, canonical
from .specs.spec import KernelSpec, Spec

__all__ = ["Finding", "fits_present", "survey"]


@dataclass(frozen=True)
class Finding:
    """What is to be said of one workload.

    Attributes:
        label: The workload.
        state: ``"holds"``, ``"stale"``, ``"missing"``, ``"edited"``, ``"orphan"`` (not in the spec) or ``"unknown"``.
        reason: Why.
    """

    label: str
    state: str
    reason: str = ""


def fits_present(spec: Spec, source_root: Path) -> Callable[[Entry], bool]:
    """Whether an entry fits the spec and the sources as they are; its configs are not looked at."""
    known: Known = {}
    groups: dict[tuple[str, str], list[tuple[Group, KernelSpec]]] = {}
    for group in all_groups(spec):
        for kernel in group.kernels:
            groups.setdefault((kernel.name, str(group.target)), []).append((group, kernel))

    def fits(entry: Entry) -> bool:
        for group, kernel in groups.get((entry.kernel, entry.target), ()):
            own = entry.tuned_as is None
            if own != (group.stand_in is None):
                continue
            sources = digest_modules(source_root, modules_of(kernel), known)
            if why_stale(entry, spec_fields(kernel, _device(spec, group.target)), sources, None) is None:
                return True
        return False

    return fits


def survey(spec: Spec, source_root: Path, lock: Lock) -> list[Finding]:
    """Everything that a lock and a spec have to say of each other, in the order of the spec; then what only the lock has.

    Raises:
        SpecError: Shapes or configs cannot be had.
    """
    findings: list[Finding] = []
    seen: set[Key] = set()
    known: Known = {}
    with _expander(spec, source_root) as expand:
        # Of what is not measured there is no evidence to hold.
        for group in (group for group in all_groups(spec) if group.measure):
            for kernel in group.kernels:
                fields = spec_fields(kernel, _device(spec, group.target))
                sources = digest_modules(source_root, modules_of(kernel), known)
                workloads = expand(kernel, group)
                if workloads is None:
                    label = f"{kernel.name} [{group.target}]"
                    missing = FRONTENDS[group.frontend][1]
                    findings.append(
                        Finding(label, "unknown", f"its shapes or configs are a function, and there is no {missing}")
                    )
                    mine = [
                        e for e in lock.entries.values() if (e.kernel, e.target) == (kernel.name, str(group.target))
                    ]
                    workloads = [Workload(kernel, group.target, entry.shape, ()) for entry in mine]
                for workload in workloads:
                    key = key_of(kernel.name, str(group.target), workload.shape)
                    seen.add(key)
                    finding = _look_at(workload, group, key, lock, fields, sources)
                    if finding is not None:
                        findings.append(finding)
    orphans = [entry for entry in lock.ordered() if entry.key not in seen]
    return findings + [Finding(entry.label, "orphan", "the spec has no such workload") for entry in orphans]


def _look_at(
    workload: Workload, group: Group, key: Key, lock: Lock, fields: dict[str, Any], sources: dict[str, str]
) -> Finding | None:
    entry = lock.entries.get(key)
    if entry is None:
        # A stand-in's entry is a convenience, and the next update writes it.
        return None if group.stand_in is not None else Finding(workload.label, "missing", "has no entry")
    if key in lock.edited:
        return Finding(workload.label, "edited", "is not what was written")
    if (entry.tuned_as is None) != (group.stand_in is None):
        return Finding(workload.label, "stale", "tuned-as was added or removed")
    reason = why_stale(entry, fields, sources, workload.configs or None)
    return Finding(workload.label, "stale", reason) if reason else Finding(workload.label, "holds")


def _device(spec: Spec, target: Target) -> dict[str, Any]:
    return dict(spec.devices.get(f"cuda:{target.sm}" if target.is_virtual else str(target), {}))


@contextmanager
def _expander(spec: Spec, source_root: Path) -> Iterator[Callable[[KernelSpec, Group], Sequence[Workload] | None]]:
    """What expands a kernel's shapes and configs: from the spec's own text, or in a worker where the frontend is installed."""
    installed = find_distributions()
    search_path = tuple(dict.fromkeys([str(source_root), *(entry for entry in sys.path if entry)]))
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="tlaot-") as scratch:
        nothing = Toolchain(HostCompiler((), (), (), ""))  # no worker is asked to compile
        folder = Path(scratch)
        shop = Workshop(folder, search_path, environ, folder / "log", 1, nothing, spec.devices)

        def expand(kernel: KernelSpec, group: Group) -> Sequence[Workload] | None:
            target = Target("cuda", group.target.sm) if group.target.is_virtual else group.target
            if not isinstance(kernel.shapes, str) and not isinstance(kernel.configs, str):
                configs = tuple(json.loads(canonical([dict(config) for config in kernel.configs])))
                shapes = [json.loads(canonical(open_shape(kernel.dynamic, shape))) for shape in kernel.shapes]
                return [Workload(kernel, group.target, shape, configs) for shape in shapes]
            if FRONTENDS[group.frontend][1] not in installed:
                return None
            child = shop.worker(group.frontend, target)
            try:
                expanded = expand_kernel(kernel, target, child, shop)
            finally:
                child.kill()
            if isinstance(expanded, Failed):
                raise SpecError(kernel.where, f"its shapes and configs cannot be had: {expanded.reason}", "Mend them.")
            return [Workload(kernel, group.target, w.shape, w.configs) for w in expanded[0]]

        yield expand
