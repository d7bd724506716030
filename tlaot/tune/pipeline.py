"""The whole build, stage by stage: spec, plan, what is known, tune, choose what ships, compile, package, look at it again.

Each stage is a module of that name or nearly: ``spec_file`` reads the spec, ``site`` the machine and the lock, ``groups`` plans, ``known``
finds evidence, ``settle`` tunes what has none (``schedule`` is its loop), ``rebuild`` compiles what ships, ``package`` lays it out.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..audit.build import audit_built_folder
from ..errors import BuildError, SpecError, did_you_mean
from .compiling.compile import Built
from .compiling.link import link_direct
from .groups import Work, all_groups, choose_groups, lacking_device, plan_group, refuse_nothing
from .known import Known, drop_hopeless, is_locked, keep_buildable, recall, stand_in_key
from .locks.lock import Entry, Key, Lock, key_of_workload
from .locks.lock_file import update_lock
from .locks.record import candidate_keys
from .parts import Ships, gather, spread, whole_of
from .rebuild import (
    choose_what_ships,
    derive_entry,
    pack,
    rebuild,
    rebuild_stand_ins,
    refuse_other_code,
    spread_stand_ins,
)
from .searching.store import Keys, Store
from .settle import settle_group
from .shipping.package import Winner, write_package
from .shipping.weigh import check_budget
from .site import Settings, Site, equip, open_site, warm_up
from .specs.plan import Candidate, Workload, canonical, counted
from .specs.spec import Spec
from .specs.spec_file import read_spec

__all__ = ["Selection", "Settings", "build_package", "tune_project"]


@dataclass(frozen=True)
class Selection:
    """What of a spec is tuned outside a build.

    Attributes:
        kernels: Names; empty for all.
        shape: Items that a workload's shape must have.
        tolerant: Leave out, with a line, what no device here can measure.
    """

    kernels: tuple[str, ...] = ()
    shape: Mapping[str, Any] | None = None
    tolerant: bool = False

    @property
    def partial(self) -> bool:
        return bool(self.kernels or self.shape)


def build_package(
    spec_path: Path, source_root: Path, output: Path, settings: Settings, log: Callable[[str], None]
) -> tuple[Path, ...]:
    """Tune every kernel of a spec over every shape and write the folder that the wheel embeds.

    Args:
        spec_path: ``tltune.toml``; ``tltune.lock`` is looked for beside it.
        source_root: Folder from which the author's modules are imported.
        output: Folder to write, ``<build_lib>/<package>/_tlaot``.
        settings: Effective settings of the build.
        log: Takes one line of text for the person who builds.

    Returns:
        The files, relative to ``output``.

    Raises:
        SpecError: The spec, the lock, a setting or a callable of the spec is wrong.
        BuildError: A tool is missing that a declared target needs, or there is neither evidence of a workload nor a device.
        TuningError: No candidate of some workload is left.
    """
    spec = read_spec(spec_path)
    with open_site(spec, source_root, settings, log) as site, ThreadPoolExecutor(1) as beside:
        # At once: a compiler that cannot do it is found out before hours of tuning.
        linking = beside.submit(link_direct, site.workshop.scratch, site.workshop.toolchain.host)
        winners = _make_winners(site, Selection())
        for left in output.parent.glob(f".{output.name}.*"):  # of a build that was killed; it would get into the wheel
            shutil.rmtree(left, ignore_errors=True)
        files = write_package(output, spec.package, __version__, winners, settings.keep, linking.result())
        _look_again(output, spec, winners, site)
    size = sum((output / file).stat().st_size for file in files)
    kernels = counted(len({winner.workload.kernel.name for winner in winners}), "kernel")
    what = f"{kernels}, {counted(len(winners), 'variant')}"
    log(f"tlaot: packaged {what}, in {counted(len(files), 'file')}, {size / 1024:.0f} KiB")
    return files


def tune_project(
    spec_path: Path, source_root: Path, settings: Settings, selection: Selection, log: Callable[[str], None]
) -> int:
    """Tune outside a build and write the lock; arguments and errors as of :func:`build_package`.

    Returns:
        How many workloads the lock now holds of what was asked for.
    """
    spec = read_spec(spec_path)
    with open_site(spec, source_root, settings, log) as site:
        return len({key_of_workload(winner.workload) for winner in _make_winners(site, selection)})


def _make_winners(site: Site, selection: Selection) -> list[Winner]:
    """Everything from the plan to the binaries; with ``lock=update`` each group's evidence is written as soon as it is complete."""
    updates = site.settings.lock == "update"
    if updates:
        _check_writable(site)
    works = _plan(site, selection)
    coming = {
        key_of_workload(workload)
        for work in works
        if work.group.stand_in is None
        for workload in work.workloads.values()
    }
    known = [(work, recall(work, site, coming)) for work in works]
    buildable = keep_buildable(known, site, selection.tolerant)
    refuse_nothing([work.group for work, _ in buildable], site.spec)
    found: dict[Key, Entry] = {}
    winners: list[Winner] = []
    for work, evidence in buildable:
        entries, made = _make_group(work, evidence, found, equip(site, work.group.target))
        found.update((entry.key, entry) for entry in entries)
        winners += made
        if updates:
            _write_lock(site, entries)
    if updates and not selection.partial:
        _drop_orphans(site, works)
    return winners


def _plan(site: Site, selection: Selection) -> list[Work]:
    spec = _select_kernels(site.spec, selection)
    groups = drop_hopeless(choose_groups(spec, site), site, selection.tolerant)
    refuse_nothing(groups, spec)
    for group in groups:
        measures = (
            group.measure
            and group.stand_in is None
            and not is_locked(group, site)
            and lacking_device(group.target, site.machine) is None
        )
        warm_up(equip(site, group.target), group.frontend, group.target, measures)
    works = [plan_group(group, site) for group in groups]
    return works if selection.shape is None else _select_shapes(works, selection.shape)


def _select_kernels(spec: Spec, selection: Selection) -> Spec:
    names = dict.fromkeys(kernel.name for kernel in spec.kernels)
    for name in selection.kernels:
        if name not in names:
            raise SpecError(
                "--kernel", f"no kernel is called {name!r}{did_you_mean(name, names)}", f"Known: {', '.join(names)}."
            )
    if not selection.kernels:
        return spec
    return replace(spec, kernels=tuple(kernel for kernel in spec.kernels if kernel.name in selection.kernels))


def _select_shapes(works: list[Work], wanted: Mapping[str, Any]) -> list[Work]:
    def fits(shape: Mapping[str, Any]) -> bool:
        return all(name in shape and canonical(shape[name]) == canonical(value) for name, value in wanted.items())

    kept = [replace(work, workloads={p: w for p, w in work.workloads.items() if fits(w.shape)}) for work in works]
    kept = [work for work in kept if work.workloads]
    if not kept:
        shapes = dict.fromkeys(str(dict(workload.shape)) for work in works for workload in work.workloads.values())
        raise SpecError("--shape", f"no workload has {dict(wanted)}", f"There are: {', '.join(list(shapes)[:20])}.")
    return kept


def _make_group(work: Work, known: Known, found: Mapping[Key, Entry], site: Site) -> tuple[list[Entry], list[Winner]]:
    """The evidence of a group and what it ships; ``found`` is that of the groups before."""
    group = work.group

    def identify(candidate: Candidate) -> Keys:
        return candidate_keys(candidate, site.sources, work.tools, site.machine.device_name(group.target))

    store = Store(site.store, identify, site.journal.say, site.fresh)
    with site.executor.compilers(group.frontend, group.target, site.workshop) as pool:
        if group.stand_in is None:
            entries = choose_what_ships(work, settle_group(work, known, pool, store, site))
            wide, parts, special = spread(work, entries)
            builds = rebuild(wide, parts, pool, store, site)
        else:
            taken = {path: found.get(stand_in_key(workload, work)) for path, workload in work.workloads.items()}
            entries = {path: entry or known.locked[path] for path, entry in taken.items()}
            count = counted(len(entries), "workload")
            site.journal.say(f"tlaot: {group.target}: {count} with the winners of {group.stand_in}")
            wide, parts, special = spread_stand_ins(work, entries, pool, store, site)
            parts, builds = rebuild_stand_ins(wide, parts, pool, store, site)
    winners = [pack(work, own, parts[at], builds[at], special.get(at)) for at, own in wide.workloads.items()]
    kept = []
    for path, workload in work.workloads.items():
        own = [at for at, part in wide.workloads.items() if whole_of(part).path == path]
        entry, built = _whole(workload, [(parts[at], builds[at], special.get(at)) for at in own])
        if group.stand_in is not None:
            kept.append(derive_entry(work, workload, entry, built, site))
            continue
        kept.append(entry if entry.code else replace(entry, code=dict(built.code)))
        if path in known.locked:
            for at in own:
                refuse_other_code(parts[at], builds[at], work.tools)
            continue
        shipped = {canonical(dict(parts[at].ships)) for at in own}
        for candidate in workload.candidates():
            if canonical(dict(candidate.config)) not in shipped:
                store.drop_sources(candidate)
    return kept, winners


def _whole(workload: Workload, parts: Sequence[tuple[Entry, Built, Ships | None]]) -> tuple[Entry, Built]:
    """The entry of a workload, and the binary that it names, of those of the variants that it ships."""
    first, built, _ = parts[0]
    if not workload.is_dynamic:
        return first, built
    shipped = [(ships, part.code or built.code) for part, built, ships in parts if ships is not None]
    entry = gather(workload.kernel, first, shipped)
    return entry, next(built for part, built, _ in parts if canonical(dict(part.ships)) == canonical(dict(entry.ships)))


def _check_writable(site: Site) -> None:
    """Find out that the lock cannot be written before hours are spent on what goes into it."""
    update_lock(site.lock_path, lambda lock: lock, must_write=True)


def _write_lock(site: Site, entries: Sequence[Entry]) -> None:
    entries = [entry for entry in entries if entry.measured]
    if entries and update_lock(site.lock_path, lambda lock: lock.with_entries(entries)):
        site.journal.say(f"tlaot: {site.lock_path}: wrote {counted(len(entries), 'workload')} of {entries[0].target}")


def _drop_orphans(site: Site, works: Sequence[Work]) -> None:
    """Remove the lock's entries of what the spec does not have any more."""
    planned = {key_of_workload(workload) for work in works for workload in work.workloads.values()}
    seen = {(kernel.name, str(work.group.target)) for work in works for kernel in work.group.kernels}
    declared = {(kernel.name, str(group.target)) for group in all_groups(site.spec) for kernel in group.kernels}
    partly = {
        (kernel.name, str(group.target))
        for group in all_groups(site.spec)
        for kernel in group.kernels
        if not any(work.group == group for work in works)
    }
    gone: list[Key] = []

    def change(lock: Lock) -> Lock:
        for key in lock.entries:
            pair = key[:2]
            if pair not in declared or (pair in seen and pair not in partly and key not in planned):
                gone.append(key)
        return lock.without(gone)

    if update_lock(site.lock_path, change):
        count = counted(len(gone), "workload")
        site.journal.say(f"tlaot: {site.lock_path.name}: removed {count} that the spec does not have any more")


def _look_again(output: Path, spec: Spec, winners: Sequence[Winner], site: Site) -> None:
    """What is packaged, before it reaches the wheel: it loads, it is no larger than it may be, and it keeps every promise.

    Raises:
        BuildError: It does not; nothing is left of it.
    """
    try:
        check_budget(output, spec)
        promised = [(w.workload.kernel.name, str(w.workload.target), w.workload.shape) for w in winners]
        places = (spec.path.parent, site.source_root, site.workshop.scratch)
        audit_built_folder(output, promised, spec.path.name, places, spec.min_glibc)
    except BuildError:
        shutil.rmtree(output, ignore_errors=True)
        raise
