"""What is known before anything is tuned: the lock's entries that still hold, then the records of earlier builds here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ..errors import BuildError, SpecError
from ..target import Target
from .groups import Group, Work, is_optional, lacking_device, say_skipped
from .locks.fit import why_stale
from .locks.lock import LOCK_NAME, Entry, Key, key_of
from .locks.record import load_record, record_key
from .site import Site
from .specs.plan import Workload, counted

__all__ = [
    "NO_ENTRY",
    "Known",
    "drop_hopeless",
    "is_locked",
    "keep_buildable",
    "recall",
    "recall_entry",
    "recall_record",
    "record_key_of",
    "refuse",
    "stand_in_key",
]

NO_ENTRY = "has no entry"

# More lines than this of one error help nobody.
_MOST_LINES = 20


@dataclass(frozen=True)
class Known:
    """What is known of a group's workloads, each by its path.

    Attributes:
        locked: Entries of the lock.
        recorded: Entries that records of earlier builds hold, where the lock has none.
        lacking: Why there is neither.
    """

    locked: Mapping[str, Entry]
    recorded: Mapping[str, Entry]
    lacking: Mapping[str, str]


def recall(work: Work, site: Site, coming: Collection[Key] = ()) -> Known:
    """What is known of a group's workloads.

    Args:
        work: The group.
        site: Where the build runs.
        coming: Of targets that are tuned in this build: what is known of them serves those that take their winners.
    """
    locked: dict[str, Entry] = {}
    recorded: dict[str, Entry] = {}
    lacking: dict[str, str] = {}
    for path, workload in work.workloads.items():
        if not work.group.measure:
            recorded[path] = _unmeasured(workload, work)
            continue
        if work.group.stand_in is not None and stand_in_key(workload, work) in coming:
            continue
        found = recall_entry(workload, work, site)
        if isinstance(found, Entry):
            locked[path] = found
            continue
        record = None if site.settings.lock == "frozen" else recall_record(workload, work, site)
        if record is None:
            lacking[path] = found
        else:
            recorded[path] = record
    return Known(locked, recorded, lacking)


def _unmeasured(workload: Workload, work: Work) -> Entry:
    """What ships of a workload that is not measured: its one config.

    Raises:
        SpecError: It has several.
    """
    where = workload.kernel.where
    if len(workload.configs) > 1:
        raise SpecError(
            f"{where} measure",
            f"{workload.label} has {counted(len(workload.configs), 'config')}, and nobody measures which is the fastest",
            "Keep one of them, or take measure = false out.",
        )
    config = dict(workload.configs[0])
    return Entry(
        kernel=workload.kernel.name,
        target=str(workload.target),
        shape=dict(workload.shape),
        spec=work.specs[where],
        sources=work.sources[where],
        tools=work.tools,
        ships=config,
        winner=config,
        checked=False,
        measured=False,
    )


def recall_entry(workload: Workload, work: Work, site: Site) -> Entry | str:
    """The lock's entry of a workload, or of the one whose winner it takes; or why it cannot be used."""
    if site.fresh:
        return "it is to be tuned again"
    key = stand_in_key(workload, work)
    entry = site.lock.entries.get(key)
    if entry is None or entry.tuned_as is not None:
        # An entry without evidence is of a target that was a stand-in.
        return NO_ENTRY if work.group.stand_in is None else f"{key[1]} has no entry of it"
    if key in site.lock.edited:
        return "was edited by hand"
    where = workload.kernel.where
    configs = workload.configs if work.group.stand_in is None else None
    return why_stale(entry, work.specs[where], work.sources[where], configs) or entry


def recall_record(workload: Workload, work: Work, site: Site) -> Entry | None:
    """What an earlier build on this machine found of a workload."""
    if site.fresh or work.group.stand_in is not None:
        return None
    return load_record(site.records, workload, record_key_of(workload, work, site))


def record_key_of(workload: Workload, work: Work, site: Site) -> str:
    return record_key(workload, site.sources, work.tools, site.machine.device_name(workload.target))


def stand_in_key(workload: Workload, work: Work) -> Key:
    """The workload whose evidence serves: its own, or the same of the target whose winners it takes."""
    target = work.group.stand_in or workload.target
    return key_of(workload.kernel.name, str(target), workload.shape)


def is_locked(group: Group, site: Site) -> bool:
    """Whether the lock has an entry of a group, one that holds or not."""
    target, names = str(group.stand_in or group.target), {kernel.name for kernel in group.kernels}
    return any(key[1] == target and key[0] in names for key in site.lock.entries)


def drop_hopeless(groups: Sequence[Group], site: Site, tolerant: bool = False) -> list[Group]:
    """Leave out, or refuse, groups that nothing can be known of, before anybody is asked for their shapes.

    Args:
        groups: The groups in order.
        site: Where the build runs.
        tolerant: Leave out, with a line, what cannot be measured here, whatever the spec says of it.

    Raises:
        BuildError: There is no device for a target, the lock has nothing of it, and the wheel may not do without.
    """
    kept: list[Group] = []
    for group in groups:
        missing = None
        if not group.measure:
            pass  # it needs no device
        elif is_locked(group, site) or site.settings.lock == "frozen":
            pass  # the lock's entries are looked at one by one
        elif group.stand_in is None:
            missing = lacking_device(group.target, site.machine)
        elif not any(other.target == group.stand_in for other in kept):
            missing = (
                f"{group.stand_in}, whose winners it takes, is not built",
                f"Tune that: tlaot tune --target {group.stand_in}.",
            )
        if missing is None:
            kept.append(group)
        elif tolerant or is_optional(group, site):
            say_skipped(group, missing, site)
        else:
            refuse(group, [], site, missing)
    return kept


def keep_buildable(works: Sequence[tuple[Work, Known]], site: Site, tolerant: bool = False) -> list[tuple[Work, Known]]:
    """Those of the groups that can be built here: all is known, or there is a device to measure on.

    Args:
        works: The groups in order, and what is known of each.
        site: Where the build runs.
        tolerant: Leave out, with a line, what cannot be measured here.

    Raises:
        BuildError: Nothing that holds is known of a workload, and it must not or cannot be tuned here.
    """
    kept: list[tuple[Work, Known]] = []
    dropped: set[tuple[str, Target | None]] = set()
    for work, known in works:
        group = work.group
        missing = _hindrance(work, site)
        if (group.frontend, group.stand_in) in dropped:
            say_skipped(group, (f"{group.stand_in}, whose winners it takes, is not tuned here", ""), site)
        elif not known.lacking or missing is None:
            kept.append((work, known))
        elif tolerant and site.settings.lock != "frozen":
            say_skipped(group, missing, site)
            dropped.add((group.frontend, group.target))
        else:
            # Also of a target that a wheel may do without: what the lock promises must not be left out quietly.
            lines = [f"  {work.workloads[path].label}: {reason}" for path, reason in known.lacking.items()]
            refuse(group, lines, site, missing)
    return kept


def _hindrance(work: Work, site: Site) -> tuple[str, str] | None:
    """Why what lacks cannot be tuned here, and what to do."""
    group = work.group
    if site.settings.lock == "frozen":
        return "TLAOT_LOCK=frozen forbids tuning", ""
    if group.stand_in is not None:
        return (
            f"{group.target} takes the winners of {group.stand_in}",
            f"Tune that: tlaot tune --target {group.stand_in}.",
        )
    return lacking_device(group.target, site.machine)


def refuse(group: Group, lines: Sequence[str], site: Site, missing: tuple[str, str]) -> NoReturn:
    """Say of which workloads there is no evidence, and why none can be had.

    Args:
        group: The group.
        lines: A line a workload; none for all of them.
        site: Where the build runs.
        missing: What is in the way, and what to do.

    Raises:
        BuildError: Always.
    """
    what, remedy = missing
    if site.settings.lock == "ignore":
        held = f"{LOCK_NAME} is ignored (TLAOT_LOCK=ignore)"
    elif not site.lock_path.exists():
        held = f"there is no {LOCK_NAME}"
        remedy = remedy or "Put it beside tltune.toml (a source distribution has it unless MANIFEST.in leaves it out)."
    elif lines:
        count = len(lines)
        shown = [*lines[:_MOST_LINES], *([f"  and {count - _MOST_LINES} more"] if count > _MOST_LINES else [])]
        held = f"{LOCK_NAME} does not hold for {counted(count, 'workload')}:\n" + "\n".join(shown)
    else:
        held = f"{LOCK_NAME} has no entry of it"
    if group.stand_in is not None:
        remedy = ""  # the same as what follows
    advice = f"Run tlaot tune --target {group.stand_in or group.target} where the device is, and commit {LOCK_NAME}."
    if not site.lock_path.exists():
        advice += " (Without any: measure = false and check = false compile a kernel of one config as it is.)"
    others = [target for target in site.spec.targets if target != str(group.target)]
    if is_optional(group, site) and others:
        advice += f" To build without it: -C targets={','.join(others)}."
    raise BuildError(
        f"{group.kernels[0].where} target {group.target}", f"{what}, and {held}", f"{remedy} {advice}".strip()
    )
