"""Unite the locks of several machines, or of two branches: entry by entry, never line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import BuildError
from ..specs.plan import canonical
from .lock import Entry, Key, Lock
from .lock_entry import entry_to_json

__all__ = ["Merged", "draft_merge", "merge_locks"]


@dataclass(frozen=True)
class Merged:
    """Locks made one.

    Attributes:
        lock: The result, less what is undecided.
        notes: A line for every choice that was made between entries that differ.
        undecided: Entries that differ and that nothing decides between, each with the name of its lock.
    """

    lock: Lock
    notes: tuple[str, ...]
    undecided: tuple[tuple[tuple[str, Entry], ...], ...] = ()

    def explain(self) -> str:
        """What is undecided, a line each."""
        lines = [
            f"  {left[0][1].label}: {' and '.join(name for name, _ in left)} differ"
            f" ({_differences([entry for _, entry in left])})"
            for left in self.undecided
        ]
        return "\n".join(["nothing decides between entries:", *lines])


def merge_locks(
    locks: Sequence[tuple[str, Lock]],
    fits: Callable[[Entry], bool] | None = None,
    prefer: str | None = None,
    base: Lock | None = None,
) -> Merged:
    """Unite locks, as :func:`draft_merge`.

    Raises:
        BuildError: Two entries differ and nothing decides between them, or one was edited by hand.
    """
    merged = draft_merge(locks, fits, prefer, base)
    if merged.undecided:
        which = ", ".join(f"--prefer {name}" for name, _ in locks)
        raise BuildError("tltune.lock", merged.explain(), f"Say which: {which}.")
    return merged


def draft_merge(
    locks: Sequence[tuple[str, Lock]],
    fits: Callable[[Entry], bool] | None = None,
    prefer: str | None = None,
    base: Lock | None = None,
) -> Merged:
    """Unite locks as far as something decides between their entries.

    Where several have an entry of one workload, and it is not the same: of a side that has not touched it since ``base`` nothing is
    taken; then one that fits the present spec and sources goes before one that does not; then one that is
    trusted before one that is not. What is left must be one, or the one of ``prefer``: times of two machines do not
    compare, and nothing in them says which device the package is for. An entry that one side removed and another one tuned again
    is kept, with a note.

    Args:
        locks: Names for messages, and locks.
        fits: Whether an entry fits the present spec and sources; None where there are none to ask.
        prefer: Name of the lock whose entries are taken where nothing else decides.
        base: The lock that all of them were made from; entries that one of them has removed since then are gone.

    Raises:
        BuildError: One was edited by hand.
    """
    for name, lock in locks:
        if lock.edited:
            labels = ", ".join(lock.entries[key].label for key in sorted(lock.edited))
            raise BuildError(
                name, f"was edited by hand, or merged by lines: {labels}", "Take it back from version control."
            )
    entries: dict[Key, Entry] = {}
    notes: list[str] = []
    undecided: list[tuple[tuple[str, Entry], ...]] = []
    for key in sorted({key for _, lock in locks for key in lock.entries}):
        found = _candidates(key, locks, base)
        if found is None:
            continue
        left = _narrow(found, fits)
        if len(left) > 1 and prefer is not None:
            left = [item for item in left if item[0] == prefer] or left
        if len(left) > 1:
            undecided.append(tuple(left))
            continue
        name, entries[key] = left[0]
        gone = [other for other, lock in locks if key not in lock.entries] if base and key in base.entries else []
        if gone:
            notes.append(f"{entries[key].label}: tuned again in {name}, removed in {', '.join(gone)}: kept")
        if len(found) > 1:
            others = ", ".join(other for other, _ in found if other != name)
            notes.append(f"{entries[key].label}: taken from {name}, not from {others}")
    return Merged(Lock(entries), tuple(notes), tuple(undecided))


def _candidates(key: Key, locks: Sequence[tuple[str, Lock]], base: Lock | None) -> list[tuple[str, Entry]] | None:
    """The different entries of a workload; None where it was removed since the base and changed by nobody."""
    old = None if base is None else base.entries.get(key)
    found: dict[str, tuple[str, Entry]] = {}
    removed = False
    for name, lock in locks:
        entry = lock.entries.get(key)
        if entry is None:
            removed = removed or old is not None
        else:
            found.setdefault(_identity(entry), (name, entry))
    if old is not None:
        untouched = found.pop(_identity(old), None)
        if not found:
            return None if removed or untouched is None else [untouched]
    return list(found.values())


def _narrow(found: Sequence[tuple[str, Entry]], fits: Callable[[Entry], bool] | None) -> Sequence[tuple[str, Entry]]:
    left = found
    for good in (fits, lambda entry: entry.trusted):
        if good is not None and len(left) > 1:
            left = [item for item in left if good(item[1])] or left
    return left


def _differences(entries: Sequence[Entry]) -> str:
    """What tells entries apart for a person: the devices, else the winners, else the names of the fields."""
    devices = [_spell(entry.device) for entry in entries]
    if len(set(devices)) > 1:
        return "; ".join(devices)
    bodies = [entry_to_json(entry) for entry in entries]
    names = [name for name in bodies[0] if len({canonical(body.get(name)) for body in bodies}) > 1]
    return f"both on {devices[0]}: {', '.join(names)}" if devices[0] else ", ".join(names)


def _spell(device: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" if name != "name" else str(value) for name, value in sorted(device.items()))


def _identity(entry: Entry) -> str:
    return canonical(entry_to_json(entry))
