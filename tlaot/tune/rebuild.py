"""From evidence to what ships: compile what won, and see that it is the code that was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ..errors import BuildError, TuningError
from ..manifest import Bucket
from .children.child import Failed
from .compiling.compile import Built
from .executors.seam import Compilers
from .groups import Work
from .locks.fit import describe_tools, same_device_tools, same_frontend, spec_fields, why_stale
from .locks.lock import LOCK_NAME, Entry, doubts_of, key_of_workload, latency_of
from .parts import Ships, spread, whole_of
from .searching.select import choose_fewest
from .searching.store import Store, is_passing
from .shipping.package import Winner
from .site import Site
from .specs.plan import Candidate, Workload, canonical, counted

__all__ = [
    "choose_what_ships",
    "derive_entry",
    "other_code",
    "pack",
    "rebuild",
    "rebuild_stand_ins",
    "refuse_other_code",
    "say_tools",
    "spread_stand_ins",
]

# What the reasons of failures say that another machine may not have: a worker's, and those of the tools that it runs.
_TIME = ("timed out", "ran out of time")


def choose_what_ships(work: Work, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries with what each workload ships: the winner, or with ``max-slowdown`` what lets the fewest binaries serve."""
    chosen = dict(entries)
    for kernel in work.group.kernels:
        paths = [path for path, workload in work.workloads.items() if workload.kernel is kernel and path in entries]
        if work.group.stand_in is not None or kernel.dynamic:
            continue  # what a dynamic workload ships follows from its evidence at all sizes
        winners = {path: _index(work.workloads[path], entries[path].winner) for path in paths}
        indexes = [winners[path] for path in paths]
        if kernel.max_slowdown is not None:
            tunings = [_tuning(work.workloads[path], entries[path]) for path in paths]
            indexes = choose_fewest(tunings, kernel.max_slowdown, indexes)
        for path, index in zip(paths, indexes, strict=True):
            config = dict(work.workloads[path].configs[index])
            if canonical(config) != canonical(dict(entries[path].ships)):
                # What was generated for the other one says nothing of this.
                chosen[path] = replace(entries[path], ships=config, code={})
    return chosen


def rebuild(work: Work, entries: Mapping[str, Entry], pool: Compilers, store: Store, site: Site) -> dict[str, Built]:
    """The binaries of what ships, from the store or compiled at the same time.

    Raises:
        TuningError: One does not compile any more.
    """
    builds, declared = {}, []
    for path, found in _compile_all(work, entries, pool, store, site).items():
        if isinstance(found, Failed) and not entries[path].measured:
            declared.append(f"  {work.workloads[path].label}: {found.stage}: {found.reason}")
        elif isinstance(found, Failed):
            raise TuningError(
                _candidate(work.workloads[path], entries[path].ships).label,
                f"the recorded winner does not build any more: {found.stage}: {found.reason}",
                "Tune again where the device is: -C tune=force, TLAOT_TUNE=force or tlaot tune --force.",
            )
        else:
            builds[path] = found
    if declared:
        count = counted(len(declared), "workload")
        raise TuningError(
            f"{work.group.kernels[0].where} target {work.group.target}",
            "\n".join([f"{count} with measure = false cannot be compiled:", *declared]),
            "Mend the kernels, or take these shapes out.",
        )
    return builds


def spread_stand_ins(
    work: Work, entries: Mapping[str, Entry], pool: Compilers, store: Store, site: Site
) -> tuple[Work, dict[str, Entry], dict[str, Ships]]:
    """:func:`~tlaot.tune.parts.spread` for workloads that take another target's winners: a config of a dynamic one that does not build
    for this target gives place to those that were measured beside it.

    Raises:
        TuningError: None of those that serve some size builds.
    """
    without: dict[str, set[int]] = {}
    while True:
        wide, parts, special = spread(work, entries, without)
        dynamic = {path: entry for path, entry in parts.items() if path in special}
        failed = [
            (path, found)
            for path, found in _compile_all(wide, dynamic, pool, store, site).items()
            if isinstance(found, Failed)
        ]
        for path, failure in failed:
            workload = wide.workloads[path]
            candidate = _candidate(workload, parts[path].ships)
            _refuse_passing(candidate, failure)
            site.journal.say(
                f"tlaot: {candidate.label} does not build: {failure.stage}: {failure.reason}; another serves its sizes"
            )
            whole = whole_of(workload).path
            position = next(
                i for i, t in enumerate(entries[whole].candidates) if t is parts[path].tried(parts[path].ships)
            )
            without.setdefault(whole, set()).add(position)
        if not failed:
            return wide, parts, special


def _refuse_passing(candidate: Candidate, failure: Failed) -> None:
    """The next build must not come to another result than one on a machine that is larger, or less busy."""
    if is_passing(failure) or any(word in failure.reason for word in _TIME):
        what = f"{candidate.label} does not build: {failure.stage}: {failure.reason}"
        raise TuningError(candidate.workload.label, what, "Build again, or with fewer jobs: -C jobs=1.")


def rebuild_stand_ins(
    work: Work, entries: Mapping[str, Entry], pool: Compilers, store: Store, site: Site
) -> tuple[dict[str, Entry], dict[str, Built]]:
    """The binaries of workloads that take another target's winners, and the entries with the configs that they took.

    A winner that this target cannot run, since it has less shared memory for instance, gives place to the next fastest.

    Raises:
        TuningError: None of the configs that ran there compiles for this target.
    """
    chosen, builds = dict(entries), dict[str, Built]()
    ranks = {path: _ranking(entry) for path, entry in entries.items()}
    while len(builds) < len(chosen):
        open_ = {path: entry for path, entry in chosen.items() if path not in builds}
        for path, found in _compile_all(work, open_, pool, store, site).items():
            if isinstance(found, Built):
                builds[path] = found
                continue
            candidate = _candidate(work.workloads[path], chosen[path].ships)
            failure = f"{candidate.label} does not build: {found.stage}: {found.reason}"
            _refuse_passing(candidate, found)
            if not ranks[path]:
                raise TuningError(
                    work.workloads[path].label,
                    f"none of the configs that ran on {work.group.stand_in} builds for it; the last: {failure}",
                    f"Tune {work.group.target} itself: remove tuned-as; or name a target that is more like it.",
                )
            site.journal.say(f"tlaot: {failure}; the next fastest of {work.group.stand_in} is taken")
            chosen[path] = replace(chosen[path], ships=ranks[path].pop(0))
    return chosen, builds


def _ranking(entry: Entry) -> list[dict[str, Any]]:
    """The configs that were measured, less what ships: the winner first, then by time."""
    timed = [tried for tried in entry.candidates if tried.timing is not None]
    timed.sort(
        key=lambda tried: (tried is not entry.tried(entry.winner), tried.timing.latency if tried.timing else 0.0)
    )
    return [dict(tried.config) for tried in timed if tried is not entry.tried(entry.ships)]


def other_code(entry: Entry, built: Built, tools: Mapping[str, str]) -> str | None:
    """What of the generated code is not what was measured, where the tools are the same; None where all is."""
    if not same_frontend(entry.tools, tools):
        return None
    names = ["source"]
    if same_device_tools(entry.tools, tools):
        names += ["cubin", "ptx"]
    for name in names:
        if name in entry.code and name in built.code and entry.code[name] != built.code[name]:
            return f"{name} {built.code[name][:12]}..., {LOCK_NAME} says {entry.code[name][:12]}..."
    return None


def refuse_other_code(entry: Entry, built: Built, tools: Mapping[str, str]) -> None:
    """See that what was compiled from the lock is what was measured.

    Raises:
        BuildError: It is something else, though no module that the lock follows has changed.
    """
    difference = other_code(entry, built, tools)
    if difference is not None:
        raise BuildError(
            f"{LOCK_NAME} {entry.label}",
            f"the same tools generate other code than was measured ({difference}), though none of its sources changed: "
            "something that is not followed has, such as a module imported by name, a file that a factory reads, or tlaot",
            "Measure it again where the device is: tlaot tune --force.",
        )


def derive_entry(work: Work, workload: Workload, entry: Entry, built: Built, site: Site) -> Entry:
    """The lock's entry of a workload that took another target's winner.

    Raises:
        BuildError: The lock has one that holds, and the same tools generate other code now.
    """
    derived = Entry(
        kernel=workload.kernel.name,
        target=str(workload.target),
        shape=dict(workload.shape),
        spec=spec_fields(workload.kernel, site.workshop.device_of(workload.target)),
        sources=dict(work.sources[workload.kernel.where]),
        tools=dict(work.tools),
        ships=dict(entry.ships),
        code=dict(built.code),
        parts=entry.parts,
        tuned_as=str(work.group.stand_in),
    )
    old = site.lock.entries.get(key_of_workload(workload))
    if old is None or _shipped(old) != _shipped(derived):
        return derived
    if old.key in site.lock.edited or why_stale(old, derived.spec, derived.sources, None) is not None:
        return derived
    pairs = list(zip(old.parts, derived.parts, strict=True)) if old.parts else []
    olds = [replace(old, code=mine.code) for mine, _ in pairs] or [old]
    builds = [replace(built, code=theirs.code) for _, theirs in pairs] or [built]
    different = [other_code(mine, theirs, work.tools) for mine, theirs in zip(olds, builds, strict=True)]
    if site.settings.lock != "update":
        for mine, theirs in zip(olds, builds, strict=True):
            refuse_other_code(mine, theirs, work.tools)
    # One that holds stays as it is: the lock does not change with every machine that builds from it.
    return derived if any(different) else old


def _shipped(entry: Entry) -> str:
    """What an entry says that ships, as text."""
    return canonical([entry.tuned_as, dict(entry.ships), [dict(part.config) for part in entry.parts]])


def pack(work: Work, workload: Workload, entry: Entry, built: Built, ships: Ships | None = None) -> Winner:
    """What a workload ships, from its evidence alone: the same evidence gives the same bytes.

    Args:
        work: The group.
        workload: The workload, or one variant of a dynamic one.
        entry: Its evidence.
        built: Its binary.
        ships: Of a variant of a dynamic workload: which sizes it serves.
    """
    evidence = {
        name: entry.device[key] for name, key in (("device", "name"), ("sm_count", "sm_count")) if key in entry.device
    }
    config = dict(entry.ships)
    doubts = doubts_of(entry.trusted, entry.notes)
    latency, buckets = (latency_of(entry), ()) if ships is None else (ships.latency, ships.buckets)
    if work.group.stand_in is None:
        return Winner(workload, config, built, latency, evidence, doubts, buckets)
    # The times are another target's.
    nothing = dict.fromkeys(latency)
    unmeasured = tuple(Bucket(bucket.sizes) for bucket in buckets)
    return Winner(workload, config, built, nothing, {**evidence, "as": str(work.group.stand_in)}, doubts, unmeasured)


def say_tools(work: Work, entries: Sequence[Entry], say: Callable[[str], None]) -> None:
    """A line where the lock was made with other tools."""
    differences = dict.fromkeys(describe_tools(entry.tools, work.tools) for entry in entries)
    for difference in filter(None, differences):
        say(f"tlaot: {work.group.target}: {LOCK_NAME} was made with other tools: {difference}")


def _tuning(workload: Workload, entry: Entry) -> tuple[Workload, dict[int, Any], dict[int, str]]:
    found = {index: entry.tried(config) for index, config in enumerate(workload.configs)}
    times = {index: tried.timing for index, tried in found.items() if tried is not None and tried.timing is not None}
    return workload, times, {index: tried.binary for index, tried in found.items() if tried and tried.binary}


def _index(workload: Workload, config: Mapping[str, Any]) -> int:
    wanted = canonical(dict(config))
    return next(index for index, mine in enumerate(workload.configs) if canonical(dict(mine)) == wanted)


def _candidate(workload: Workload, config: Mapping[str, Any]) -> Candidate:
    wanted = canonical(dict(config))
    for candidate in workload.candidates():
        if canonical(dict(candidate.config)) == wanted:
            return candidate
    # Of a stand-in; its own configs may be others.
    return Candidate(workload, len(workload.configs), dict(config))


def _compile_all(
    work: Work, entries: Mapping[str, Entry], pool: Compilers, store: Store, site: Site
) -> dict[str, Built | Failed]:
    waiting: dict[str, tuple[Candidate, Built | Future[Built | Failed]]] = {}
    for path, entry in entries.items():
        candidate = _candidate(work.workloads[path], entry.ships)
        built = store.built(candidate)
        if built is None or not built.code or (site.settings.keep and not _has_sources(built)):
            waiting[path] = candidate, pool.submit(candidate)
        else:
            waiting[path] = candidate, built
    return {path: _await(candidate, found, store) for path, (candidate, found) in waiting.items()}


def _await(candidate: Candidate, found: Built | Future[Built | Failed], store: Store) -> Built | Failed:
    if isinstance(found, Built):
        return found
    built = found.result()
    return built if isinstance(built, Failed) else store.keep_built(candidate, built)


def _has_sources(built: Built) -> bool:
    return any((built.folder / name).is_file() for name in ("device_kernel.cu", "host_kernel.c"))
