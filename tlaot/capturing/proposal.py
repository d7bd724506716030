"""What a recording says of a project's kernels, held against its spec: what is there already, what is to be added, what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..draft.found import Factory as Source
from ..keys import is_tagged, key_of
from ..tune.specs.spec_file import multiply_out
from .recording import Called, Factory, Recording
from .spec_edit import is_filled, shape_tables
from .words import hints_of, in_common, spell_call, spell_workload
from .workloads import Workload, choose, dynamic_sizes, workloads_of

__all__ = ["Addition", "Limits", "Proposal", "Row", "propose"]


@dataclass(frozen=True)
class Limits:
    """What is worth packaging.

    Attributes:
        min_count: Launches that a workload must have.
        cover: Share of a kernel's launches that is enough.
    """

    min_count: int = 1
    cover: float = 1.0


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        kernel: The factory's name.
        workload: The shape, or what stands in its place.
        times: Launches.
        share: Of all launches that were recorded.
        state: ``"in the spec"``, ``"new"`` or ``"left out"``.
        why: Of what is left out: why.
        shape: The workload's arguments, encoded; None where there is no single one.
    """

    kernel: str
    workload: str
    times: int
    share: float
    state: str
    why: str = ""
    shape: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Addition:
    """What is to be added to a kernel's table.

    Attributes:
        factory: The function.
        entry: Position of the ``[[kernel]]`` table; None for one that is not there yet.
        shapes: Entries to add to its shapes.
        dynamic: Its dynamic dimensions; None where they stay as they are.
    """

    factory: Factory
    entry: int | None
    shapes: tuple[Mapping[str, Any], ...] = ()
    dynamic: Mapping[str, tuple[int, ...]] | None = None


@dataclass
class Proposal:
    """All that is to be said and done.

    Attributes:
        rows: The table.
        additions: What is to be added.
        hints: What the author may want to know.
        common: Of kernels with several workloads, the arguments that are the same in all, which the table leaves out.
    """

    rows: list[Row] = field(default_factory=list)
    additions: list[Addition] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    common: dict[str, list[str]] = field(default_factory=dict)


def propose(
    recording: Recording,
    body: Mapping[str, Any],
    sources: Mapping[str, Source],
    packages: Sequence[str],
    limits: Limits,
) -> Proposal:
    """Hold a recording against a spec.

    Args:
        recording: What was recorded.
        body: The spec, parsed; it may be half filled in.
        sources: The project's factories by ``"module:function"``, as its sources have them.
        packages: The project's packages and modules.
        limits: What is worth packaging.
    """
    made = Proposal()
    total = max(recording.times, 1)
    by_factory: dict[Factory, list[Called]] = {}
    for one in recording.called:
        if one.factory is None:
            what = f"the kernel {one.kernel}" if one.kernel else "unknown"
            why = "made by no @tilelang.jit function that was called while this was recorded"
            made.rows.append(Row(what, "", one.times, 0.0, "left out", why))
        else:
            by_factory.setdefault(one.factory, []).append(one)
    plain = Counter(factory.name for factory in by_factory)
    for factory, calls in by_factory.items():
        name = factory.name if plain[factory.name] == 1 else factory.spelled
        why = _foreign(factory, body, packages)
        if why:
            times = sum(one.times for one in calls)
            made.rows.append(Row(factory.spelled, "", times, times / total, "left out", why))
        else:
            _propose_one(made, name, factory, calls, body, sources.get(factory.spelled), limits, total)
    made.rows.sort(key=lambda row: row.state == "left out")
    return made


def _foreign(factory: Factory, body: Mapping[str, Any], packages: Sequence[str]) -> str:
    """Why a factory cannot be a kernel of this project; "" where it can."""
    if any(entry.get("factory") == factory.spelled for entry in body.get("kernel", ())):
        return ""
    if "<" in factory.name or "." in factory.name:
        return "it is no function at the top level of a module, so that a spec cannot name it"
    if factory.module == "__main__":
        return "it is defined in a program: put it into a module of the package"
    if factory.module.partition(".")[0] not in packages:
        return "its module is none of this project's"
    return ""


def _propose_one(
    made: Proposal,
    name: str,
    factory: Factory,
    calls: Sequence[Called],
    body: Mapping[str, Any],
    source: Source | None,
    limits: Limits,
    total: int,
) -> None:
    entries = [(i, e) for i, e in enumerate(body.get("kernel", ())) if e.get("factory") == factory.spelled]
    usable = []
    for one in calls:
        why = _unusable(one)
        if why:
            made.rows.append(Row(name, spell_call(one), one.times, one.times / total, "left out", why))
        else:
            usable.append(one)
    names = _shape_names(usable, [entry for _, entry in entries], source)
    workloads = workloads_of(usable, names)
    chosen, left = choose(workloads, limits.min_count, limits.cover)
    functions = [entry for _, entry in entries if isinstance(entry.get("shapes"), str)]
    wanted: list[Workload] = []
    common = in_common(workloads)
    for i, workload in enumerate(workloads):
        known = any(_covers(entry, workload, usable) for _, entry in entries)
        state = "in the spec" if known else "left out" if i in left or functions else "new"
        why = "" if known else left.get(i, "")
        if not known and i not in left and functions:
            why = f"{functions[0]['shapes']} lists the shapes: add it there"
        made.rows.append(
            Row(
                name,
                spell_workload(workload, common),
                workload.times,
                workload.times / total,
                state,
                why,
                workload.shape,
            )
        )
        if state == "new":
            wanted.append(workload)
    if common:
        made.common[name] = common
    made.hints += hints_of(name, usable, workloads, chosen, any("inputs" in entry for _, entry in entries))
    if wanted:
        made.additions += _additions(factory, wanted, entries)


def _unusable(one: Called) -> str:
    """Why a call cannot be an entry of shapes; "" where it can."""
    if one.opaque:
        name, what = next(iter(one.opaque.items()))
        return f"{name}: {what}"
    for name, value in one.arguments.items():
        if isinstance(value, list) or (isinstance(value, dict) and not is_tagged(value)):
            return f"{name} is a {type(value).__name__}, which shapes cannot say"
    if not one.times and one.failures:
        return f"it failed: {one.failures[0]}"
    return ""


def _shape_names(calls: Sequence[Called], entries: Sequence[Mapping[str, Any]], source: Source | None) -> set[str]:
    """Arguments that entries of shapes name: those that entries have, and what is neither tuned nor always at its default."""
    named = {name for entry in entries for shape in shape_tables(entry) or [] for name in shape}
    tuned = {name for one in calls for name in one.tuned}
    for entry in entries:
        configs = entry.get("configs")
        tuned |= set(entry.get("space", {}))
        tuned |= {name for config in configs for name in config} if isinstance(configs, list) else set()
    if source is not None and _tunes(entries, source):
        tuned |= {argument.name for argument in source.arguments if argument.tunable}
        tuned |= {name for config in source.literal or () for name in config}
    found = set()
    for one in calls:
        for name in (*one.arguments, *one.symbols):
            if name in named or (name not in tuned and name not in one.defaults and name not in one.symbols):
                found.add(name)
    return found


def _tunes(entries: Sequence[Mapping[str, Any]], source: Source) -> bool:
    """Whether configs give arguments whose names say that they are tuned."""
    if entries:
        return any(isinstance(entry.get("configs"), str) for entry in entries)
    # As a drafted entry will have it: configs of @autotune, or a space of what has no default.
    free = any(argument.tunable and not argument.has_default for argument in source.arguments)
    return source.configs is not None or source.literal is not None or free


def _covers(entry: Mapping[str, Any], workload: Workload, calls: Sequence[Called]) -> bool:
    """Whether an entry of the spec serves a workload at all sizes that were launched."""
    dynamic = entry.get("dynamic", {})
    for name, counter in workload.sizes.items():
        sizes = dynamic.get(name)
        if not isinstance(sizes, list) or not sizes:
            return False
        if entry.get("outside") != "clamp" and not sizes[0] <= min(counter) <= max(counter) <= sizes[-1]:
            return False
    defaults = _defaults(calls)
    for shape in _shapes_of(entry):
        rest = {name: value for name, value in workload.shape.items() if name not in shape}
        within = {name: dynamic[name] for name in rest if name in dynamic}
        if (
            all(
                type(rest[name]) is int and sizes and sizes[0] <= rest[name] <= sizes[-1]
                for name, sizes in within.items()
            )
            and all(
                key_of(value) == key_of(workload.shape.get(name, defaults.get(name)))
                for name, value in shape.items()
                if name in workload.shape or name in defaults
            )
            and all(name in within or key_of(rest[name]) == key_of(defaults.get(name)) for name in rest)
        ):
            return True
    return False


def _defaults(calls: Sequence[Called]) -> dict[str, Any]:
    return {name: one.arguments[name] for one in calls for name in one.defaults}


def _shapes_of(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    tables = shape_tables(entry) or []
    if not is_filled(entry):
        tables = [{}] if "dynamic" in entry and not tables else [table for table in tables if not table]
    for table in tables:
        yield from multiply_out(table)


def _additions(
    factory: Factory, wanted: Sequence[Workload], entries: Sequence[tuple[int, Mapping[str, Any]]]
) -> Iterator[Addition]:
    """Static workloads go into the first entry that has no dynamic dimension, others into the first that has those."""
    still = [workload for workload in wanted if not workload.opened]
    used = set()
    if still:
        entry = next((i for i, e in entries if "dynamic" not in e), None)
        used.add(entry)
        yield Addition(factory, entry, tuple(workload.shape for workload in still))
    moving: dict[tuple[str, ...], list[Workload]] = {}
    for workload in wanted:
        if workload.opened:
            moving.setdefault(workload.opened, []).append(workload)
    for opened, own in moving.items():
        seen: dict[str, Counter[int]] = {}
        for name in opened:
            for workload in own:
                if name in workload.sizes:  # some launches may not have told it
                    seen.setdefault(name, Counter()).update(workload.sizes[name])
        place = next(((i, e) for i, e in entries if set(e.get("dynamic", {})) == seen.keys()), None)
        if place is None:
            place = next(
                ((i, e) for i, e in entries if i not in used and "dynamic" not in e and not is_filled(e)), None
            )
        used.add(None if place is None else place[0])
        table = {} if place is None else place[1]
        held = [key_of(shape) for shape in _shapes_of(table)]
        shapes = tuple(workload.shape for workload in own if key_of(workload.shape) not in held and workload.shape)
        before = table.get("dynamic", {})
        dynamic = {
            name: _widened(before[name], sizes) if before.get(name) else sizes
            for name, sizes in dynamic_sizes(seen).items()
        }
        changed = {name: list(sizes) for name, sizes in dynamic.items()} != before
        yield Addition(factory, None if place is None else place[0], shapes, dynamic if changed else None)


def _widened(declared: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Declared sizes with the ends that were seen beyond them; what lies within is the author's choice."""
    return tuple(sorted({*declared, *(size for size in sizes if not declared[0] <= size <= declared[-1])}))
