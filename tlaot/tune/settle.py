"""Decide what wins each workload of a group: take what is known, tune what is not, and keep what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from ..errors import TuningError
from ..target import Target
from .children.child import Failed
from .executors.seam import Compilers, Device
from .groups import Group, Work, lacking_device
from .known import NO_ENTRY, Known, recall_record, record_key_of, refuse
from .locks.lock import LOCK_NAME, Entry, doubts_of
from .locks.record import Circumstances, make_entry, save_record
from .measuring.measure import Measured
from .parts import spread, whole_of
from .rebuild import other_code, rebuild, say_tools
from .searching.schedule import Stand, Tuned, tune_workloads
from .searching.search import Search, Skipped, make_search
from .searching.select import default_timing, select_winner
from .searching.store import Store
from .site import Site
from .sizing import size_workload
from .specs.plan import Candidate, Workload, counted

__all__ = ["settle_group"]


def settle_group(work: Work, known: Known, pool: Compilers, store: Store, site: Site) -> dict[str, Entry]:
    """The evidence of every workload of a group that is tuned itself.

    Args:
        work: The group.
        known: What is known of it.
        pool: Compiles.
        store: Keeps what is found.
        site: Where the build runs.

    Raises:
        TuningError: No candidate of some workload is left.
        BuildError: What the lock holds was of other code, and there is no device to measure on.
    """
    if site.settings.lock == "update":
        known = _doubt_locked(work, known, pool, store, site)
    _say_known(work, known, site)
    found = {**known.locked, **known.recorded}
    lacking = [work.workloads[path] for path in known.lacking]
    plans = _plan_searches(work.group, [workload for workload in lacking if not workload.is_dynamic])
    if plans:
        found.update(_tune(work, plans, pool, store, site))
    dynamic = [workload for workload in lacking if workload.is_dynamic]
    if dynamic:
        found.update(_tune_dynamic(work, dynamic, pool, store, site))
    return {path: found[path] for path in work.workloads if path in found}


def _doubt_locked(work: Work, known: Known, pool: Compilers, store: Store, site: Site) -> Known:
    """What the lock holds, less what the same tools generate other code for: that is to be measured again."""
    locked, recorded, lacking = dict(known.locked), dict(known.recorded), dict(known.lacking)
    wide, parts, _ = spread(work, {path: entry for path, entry in locked.items() if entry.code})
    builds = rebuild(wide, {path: entry for path, entry in parts.items() if entry.code}, pool, store, site)
    for place, built in builds.items():
        difference = other_code(parts[place], built, work.tools)
        path = whole_of(wide.workloads[place]).path
        if difference is None or path not in locked:
            continue
        del locked[path]
        record = recall_record(work.workloads[path], work, site)
        if record is None or other_code(record, built, work.tools) is not None:
            lacking[path] = f"other code is generated now: {difference}"
        else:
            recorded[path] = record
    missing = lacking_device(work.group.target, site.machine)
    if lacking and missing is not None:
        lines = [f"  {work.workloads[path].label}: {reason}" for path, reason in lacking.items()]
        refuse(work.group, lines, site, missing)
    return Known(locked, recorded, lacking)


def _say_known(work: Work, known: Known, site: Site) -> None:
    if known.locked:
        names = dict.fromkeys(str(entry.device.get("name", "an unknown device")) for entry in known.locked.values())
        count = counted(len(known.locked), "workload")
        site.journal.say(f"tlaot: {work.group.target}: {count} from {LOCK_NAME}, measured on {', '.join(names)}")
        say_tools(work, list(known.locked.values()), site.journal.say)
    if not work.group.measure:
        count = counted(len(known.recorded), "workload")
        site.journal.say(
            f"tlaot: {work.group.target}: {count} compiled as declared, NOT measured or compared (measure = false)"
        )
        return
    for path, entry in (*known.locked.items(), *known.recorded.items()):
        doubts = doubts_of(entry.trusted, entry.notes)
        source = LOCK_NAME if path in known.locked else "the record of an earlier build"
        told = [f"{source} holds, {Candidate(work.workloads[path], 0, entry.ships).settings}"]
        if doubts:
            again = "tlaot tune --force" if path in known.locked else "TLAOT_TUNE=force"
            told += [*doubts, f"{again} on a quiet machine tunes again"]
        say = site.journal.say if doubts or path in known.recorded else site.journal.write
        say(f"tlaot: {work.workloads[path].label}: {'; '.join(told)}")
    if site.lock.entries:
        new = sum(reason == NO_ENTRY for reason in known.lacking.values())
        if new:
            site.journal.say(f"tlaot: {work.group.target}: {LOCK_NAME} has no entry of {counted(new, 'workload')}")
        for path, reason in known.lacking.items():
            if reason != NO_ENTRY:
                site.journal.say(f"tlaot: {work.workloads[path].label}: {LOCK_NAME} does not hold: {reason}")


def _plan_searches(group: Group, workloads: Sequence[Workload]) -> list[tuple[list[Workload], Search]]:
    """One search a kernel entry, over those of its workloads that nothing is known of."""
    mine = [(kernel, [workload for workload in workloads if workload.kernel is kernel]) for kernel in group.kernels]
    return [(own, make_search(kernel, own)) for kernel, own in mine if own]


def _tune(
    work: Work,
    plans: Sequence[tuple[Sequence[Workload], Search]],
    pool: Compilers,
    store: Store,
    site: Site,
) -> Mapping[str, Entry]:
    target = work.group.target
    count = sum(len(workload.configs) for workloads, _ in plans for workload in workloads)
    number = sum(len(workloads) for workloads, _ in plans)
    site.journal.say(f"tlaot: {target}: {counted(count, 'candidate')} of {counted(number, 'workload')}")
    found: dict[str, Entry] = {}

    def decided(tuned: Tuned) -> None:
        found[tuned.workload.path] = _conclude(tuned, work, site, keeper)

    with _Keeper() as keeper, _devices(target, site) as devices, site.journal.show(count, str(target)) as progress:
        tune_workloads(plans, Stand(pool, devices, store, site.journal, progress, overlap=target.is_cuda), decided)
    return found


def _tune_dynamic(
    work: Work, workloads: Sequence[Workload], pool: Compilers, store: Store, site: Site
) -> Mapping[str, Entry]:
    target = work.group.target
    found: dict[str, Entry] = {}
    with _devices(target, site) as devices:
        for workload in workloads:
            names = ", ".join(workload.kernel.dynamic)
            count = counted(len(workload.configs), "candidate")
            site.journal.say(f"tlaot: {workload.label}: {count}, each compiled once for all sizes of {names}")

            def measure(sized: Sequence[Workload]) -> Mapping[str, Entry]:
                return _measure_sizes(work, sized, pool, store, site, devices)

            entry = size_workload(workload, measure, lambda line: site.journal.say(f"tlaot: {line}"))
            save_record(site.records, workload, record_key_of(workload, work, site), entry)
            found[workload.path] = entry
    return found


def _measure_sizes(
    work: Work, workloads: Sequence[Workload], pool: Compilers, store: Store, site: Site, devices: Sequence[Device]
) -> Mapping[str, Entry]:
    """The evidence of dynamic workloads at some sizes: what earlier builds here found, and what is measured now."""
    found: dict[str, Entry] = {}
    for workload in workloads:
        record = recall_record(workload, work, site)
        if record is not None:
            found[workload.path] = record
    lacking = [workload for workload in workloads if workload.path not in found]
    if not lacking:
        return found
    plans = [(lacking, make_search(lacking[0].kernel, lacking))]
    count = sum(len(workload.configs) for workload in lacking)

    def decided(tuned: Tuned) -> None:
        found[tuned.workload.path] = _conclude(tuned, work, site, keeper, site.journal.write)

    with _Keeper() as keeper, site.journal.show(count, str(work.group.target)) as progress:
        stand = Stand(pool, devices, store, site.journal, progress, overlap=work.group.target.is_cuda)
        tune_workloads(plans, stand, decided)
    return found


def _devices(target: Target, site: Site) -> AbstractContextManager[Sequence[Device]]:
    return site.executor.devices(target, site.workshop, site.machine, site.journal)


class _Keeper:
    """Writes records while the tuning goes on: a file that is on the disk takes as long as a candidate. Its end waits for all of them.

    Raises:
        OSError: One could not be written; raised at the next, or at the end.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tlaot-record")
        self._last: Future[None] | None = None

    def __enter__(self) -> _Keeper:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._thread.shutdown()
        if kind is None and self._last is not None:
            self._last.result()

    def keep(self, folder: Path, workload: Workload, key: str, entry: Entry) -> None:
        before = self._last

        def write() -> None:
            if before is not None:
                before.result()
            save_record(folder, workload, key, entry)

        if before is not None and before.done():
            before.result()
        self._last = self._thread.submit(write)


def _conclude(tuned: Tuned, work: Work, site: Site, keeper: _Keeper, say: Callable[[str], None] | None = None) -> Entry:
    """The evidence of a workload, kept as soon as it is decided."""
    workload, where = tuned.workload, tuned.workload.kernel.where
    try:
        winner = select_winner(workload, tuned.outcomes, tuned.decision.winner_index, site.journal.path)
    except TuningError as error:
        site.journal.write(str(error))
        raise
    circumstances = Circumstances(
        spec=work.specs[where],
        sources=work.sources[where],
        tools=work.tools,
        device=site.machine.device_facts(workload.target),
        folders=(site.workshop.scratch, site.source_root, site.spec.path.parent),
    )
    entry = make_entry(workload, tuned.outcomes, tuned.decision, circumstances)
    keeper.keep(site.records, workload, record_key_of(workload, work, site), entry)
    (say or site.journal.say)(f"tlaot: {'; '.join([_summary(tuned, winner), *tuned.decision.notes])}")
    return entry


def _summary(tuned: Tuned, winner: Measured) -> str:
    outcomes, reference = tuned.outcomes, tuned.decision.reference
    failed = sum(isinstance(outcome, Failed) for outcome in outcomes)
    skipped = sum(isinstance(outcome, Skipped) for outcome in outcomes)
    default = default_timing(outcomes)
    parts = [f"{tuned.workload.label}: {winner.timing.latency:.4g} ms with {winner.candidate.settings}"]
    if default is not None:
        parts.append(f"default {default.latency:.4g} ms")
    elif isinstance(outcomes[0], Failed):
        parts.append("the default failed")
    if reference is not None:
        parts.append(f"reference {reference.latency:.4g} ms")
    parts.append(counted(len(outcomes), "candidate"))
    return "; ".join(parts) + "".join(f", {n} {what}" for n, what in ((failed, "failed"), (skipped, "not tried")) if n)
