"""``tlaot diff``: what a new wheel, package or lock has that the old one had not, and the other way round."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..github import annotate_all
from ..rows import Listing, Row, label_of, list_what
from ..runtime.buckets import measured_range, spell_range
from .parser import add_json, fails
from .spelling import counted, headline, show_table, spell_bytes, spell_items

__all__ = ["Change", "Comparison", "add", "compare"]

_DESCRIPTION = """\
Compares two wheels, installed packages, folders or locks: kernels, targets and shapes that were gained and lost, the size, and each
workload that became slower by more than its times spread. Exit status: 0; 1 where coverage was lost (sizes of a dynamic workload
among it), where NEW has no variants at all, or where a workload became slower than --max-slowdown allows, by times that are not to be trusted too; 2 where the
two cannot be compared. Times of different devices are not compared.
"""
_EXAMPLES = """\
examples:
  tlaot diff old.whl new.whl
  tlaot diff my_package dist --max-slowdown 1.05
  git show HEAD:tltune.lock > old.lock && tlaot diff old.lock tltune.lock --json
"""

# Kernel, target and shape; and the package, where there are several.
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Change:
    """One workload that both have.

    Attributes:
        old, new: Its rows.
        ratio: New time over old; None where one of them was not measured.
        uncomparable: Why the times cannot be compared; "" where they can.
        doubtful: Whether one of the times is not to be trusted.
        separate: Whether the times differ by more than they spread.
    """

    old: Row
    new: Row
    ratio: float | None
    uncomparable: str
    separate: bool
    doubtful: bool = False


@dataclass(frozen=True)
class Comparison:
    """What differs between two.

    Attributes:
        lost, gained: Rows that only the old one has, or only the new one.
        moved: Rows of targets that a companion of the new one has, which was not looked into; they are not among the lost.
        kept: Workloads that both have.
        old_size, new_size: Bytes of the wheels, or of the variants' files where one is no wheel; None for locks.
        emptied: Whether the new one has nothing at all.
        narrowed: Dynamic workloads that serve fewer sizes, with words for that.
    """

    lost: tuple[Row, ...]
    gained: tuple[Row, ...]
    moved: tuple[Row, ...]
    kept: tuple[Change, ...]
    old_size: int | None
    new_size: int | None
    emptied: bool
    narrowed: tuple[tuple[Row, str], ...] = ()

    def slower(self) -> list[Change]:
        """What became slower by more than the times spread, the worst first."""
        found = [change for change in self.kept if change.separate and change.ratio is not None and change.ratio > 1]
        return sorted(found, key=lambda change: -(change.ratio or 0.0))

    def too_slow(self, limit: float | None) -> list[Change]:
        """What became slower than a limit allows; a time that is not to be trusted is no excuse."""
        return [change for change in self.slower() if limit is not None and (change.ratio or 0.0) > limit]

    def doubts(self) -> list[Change]:
        """Changes of which a time is not to be trusted."""
        return [change for change in self.kept if change.doubtful]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "diff",
        help="compare wheels, packages or locks: coverage, size, times",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    what = "a wheel, an installed package, a lock, or a folder (also one of wheels)"
    parser.add_argument("old", metavar="OLD", help=f"{what}, as it was")
    parser.add_argument("new", metavar="NEW", help=f"{what}, as it is")
    parser.add_argument(
        "--max-slowdown", metavar="X", type=_factor, help="fail where a workload takes X times as long: 1.05"
    )
    add_json(parser, "the outcome")
    fails(parser, "coverage was lost, NEW has no variants, or a workload is slower than --max-slowdown allows")
    parser.set_defaults(run=_diff)


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 1 or math.isinf(value):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}: write 1.05 for 5 %")
    return value


def _diff(options: argparse.Namespace) -> int:
    found = compare(options.old, options.new)
    _annotate(found, options.max_slowdown)
    if options.json:
        print(json.dumps(_as_json(found, options.max_slowdown), indent=1, sort_keys=True))
    else:
        print("\n".join(_show(found, options)))
    return 1 if found.lost or found.emptied or found.narrowed or found.too_slow(options.max_slowdown) else 0


def _annotate(found: Comparison, limit: float | None) -> None:
    said = [(f"lost: {label_of(row)}", "the new one has it no more") for row in found.lost]
    said += [(f"serves fewer sizes: {label_of(row)}", what) for row, what in found.narrowed]
    said += [
        (f"slower: {label_of(change.new)}", f"takes {change.ratio:.3f} times as long")
        for change in found.too_slow(limit)
    ]
    annotate_all("error", said)


def compare(old: str, new: str) -> Comparison:
    """Compare two wheels, packages, folders or locks.

    Raises:
        PackageError: One of them has no kernels, or is damaged.
        SpecError: A lock is malformed or of a newer version.
    """
    before, after = list_what(old), list_what(new)
    several = not any(one.is_lock for one in (*before, *after)) and max(len(before), len(after)) > 1
    olds, news = _by_key(before, several), _by_key(after, several)
    sizes = _sizes((old, before), (new, after))
    gone = [row for key, row in olds.items() if key not in news]
    companions = {target for listing in after for targets in listing.companions.values() for target in targets}
    companions -= {row.target for row in news.values()}  # those are here
    return Comparison(
        tuple(row for row in gone if row.target not in companions),
        tuple(row for key, row in news.items() if key not in olds),
        tuple(row for row in gone if row.target in companions),
        tuple(_change(row, news[key]) for key, row in olds.items() if key in news),
        *sizes,
        not news and not companions,
        tuple(_narrowed(before, after, several)),
    )


def _by_key(listings: Sequence[Listing], several: bool) -> dict[Key, Row]:
    # Of a dynamic workload what serves its largest sizes stands for it.
    rows = sorted((row for listing in listings for row in listing.rows), key=lambda row: _largest(row) or ())
    return {_key_of(row, several): row for row in rows}


def _key_of(row: Row, several: bool) -> Key:
    return row.package if several else "", row.kernel, row.target, json.dumps(row.shape, sort_keys=True)


def _largest(row: Row) -> tuple[float, ...]:
    """The largest sizes that a variant serves; none of one that serves all."""
    buckets = () if row.variant is None else row.variant.buckets
    ends = [tuple(math.inf if high is None else high for _, high in bucket.sizes.values()) for bucket in buckets]
    return max(ends, default=())


def _sizes(*sides: tuple[str, Sequence[Listing]]) -> tuple[int | None, int | None]:
    if any(listing.is_lock for _, listings in sides for listing in listings):
        return None, None
    wheels = [_wheels_of(Path(what)) for what, _ in sides]
    old, new = (
        sum(os.stat(wheel).st_size for wheel in own)
        if all(wheels)
        else sum(row.size or 0 for listing in listings for row in listing.rows)
        for own, (_, listings) in zip(wheels, sides, strict=True)
    )
    return old, new


def _wheels_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("*.whl")) if path.is_dir() else []


def _narrowed(old: Sequence[Listing], new: Sequence[Listing], several: bool) -> Iterator[tuple[Row, str]]:
    """Dynamic workloads that serve sizes no more which they served, and which."""
    before, after = _ranges(old, several), _ranges(new, several)
    for key, (row, ranges) in before.items():
        for name, (low, high) in ranges.items() if key in after else ():
            least, most = after[key][1].get(name, (low, high))
            if least > low or (most is not None and (high is None or most < high)):
                yield row, f"{name} was {spell_range((low, high))}, is {spell_range((least, most))}"


def _ranges(listings: Sequence[Listing], several: bool) -> dict[Key, tuple[Row, Mapping[str, Any]]]:
    variants: dict[Key, list[Row]] = {}
    for row in (row for listing in listings for row in listing.rows):
        if row.variant is not None and row.variant.buckets:
            variants.setdefault(_key_of(row, several), []).append(row)
    return {key: (own[0], measured_range([row.variant for row in own if row.variant])) for key, own in variants.items()}


def _change(old: Row, new: Row) -> Change:
    before, after = old.latency.get("latency"), new.latency.get("latency")
    if not before or not after:
        why = "was not measured before" if after else "is not measured any more" if before else "was never measured"
        return Change(old, new, None, why, False)
    ratio = after / before
    devices = [row.tuned.get("device") for row in (old, new)]
    if devices[0] != devices[1]:
        return Change(old, new, ratio, f"was measured on {devices[0] or '?'}, now on {devices[1] or '?'}", False)
    doubtful = not (old.trusted and new.trusted)
    # Half of the samples lie within the spread about the median; where these ranges meet, nothing is said.
    spreads = [abs(row.latency.get("spread") or 0.0) / 2 for row in (old, new)]
    low, high = sorted(((before, spreads[0]), (after, spreads[1])))
    return Change(old, new, ratio, "", low[0] * (1 + low[1]) < high[0] * (1 - high[1]), doubtful)


def _show(found: Comparison, options: argparse.Namespace) -> Iterator[str]:
    yield headline(f"{options.old} -> {options.new}")
    kept = counted(len(found.kept), "workload")
    yield f"coverage: {kept} in both, {len(found.gained)} gained, {len(found.lost)} lost"
    if found.old_size is not None and found.new_size is not None:
        yield f"size: {spell_bytes(found.old_size)} -> {spell_bytes(found.new_size)}{_percent(found.old_size, found.new_size)}"
    if found.emptied:
        yield "NEW has no variants at all"
    moved = "now in companions, which were not looked into (name a folder that has all wheels)"
    for title, rows in (("lost", found.lost), (moved, found.moved), ("gained", found.gained)):
        if rows:
            yield from ("", headline(title), *(f"  {label_of(row)}" for row in rows))
    if found.narrowed:
        yield from ("", headline("serve fewer sizes"), *(f"  {label_of(row)}: {what}" for row, what in found.narrowed))
    slower, too_slow = found.slower(), found.too_slow(options.max_slowdown)
    if slower:
        limit = f", {len(too_slow)} past --max-slowdown {options.max_slowdown:g}" if options.max_slowdown else ""
        yield from ("", headline(f"slower: {counted(len(slower), 'workload')}{limit}"))
        yield from _table(slower, too_slow)
    faster = [change for change in found.kept if change.separate and (change.ratio or 1) < 1]
    if faster:
        yield from ("", headline(f"faster: {counted(len(faster), 'workload')}"))
        yield from _table(sorted(faster, key=lambda change: change.ratio or 0.0), [])
    apart = [change for change in found.kept if change.uncomparable and change.uncomparable != "was never measured"]
    if found.doubts():
        what = f"of {counted(len(found.doubts()), 'workload')} a time is not to be trusted: the device was not quiet"
        yield from ("", f"{what}; tlaot tune --force on a quiet machine measures again")
    if apart:
        yield from ("", headline(f"times not compared: {counted(len(apart), 'workload')}"))
        yield from (f"  {label_of(change.new)}: {change.uncomparable}" for change in apart)


def _percent(old: int, new: int) -> str:
    return f" ({(new - old) / old:+.1%})" if old else ""


def _table(changes: Sequence[Change], too_slow: Sequence[Change]) -> list[str]:
    rows = [
        [
            change.new.kernel,
            change.new.target,
            spell_items(change.new.shape),
            f"{change.old.latency['latency']:.4g} ms",
            f"{change.new.latency['latency']:.4g} ms",
            f"{change.ratio:.3f}",
            _verdict(change, too_slow),
            _configs(change),
        ]
        for change in changes
    ]
    header = ["kernel", "target", "shape", "old", "new", "ratio", "", "config"]
    shown = [i for i, name in enumerate(header) if name or any(row[i] for row in rows)]
    roles = {"too slow": "bad", "too slow, not to be trusted": "bad", "not to be trusted": "doubtful"}
    return show_table(
        [header[i] for i in shown], [[row[i] for i in shown] for row in rows], ("old", "new", "ratio"), roles
    )


def _verdict(change: Change, too_slow: Sequence[Change]) -> str:
    doubt = "not to be trusted" if change.doubtful else ""
    return ", ".join(filter(None, ["too slow" if change in too_slow else "", doubt]))


def _configs(change: Change) -> str:
    old, new = spell_items(change.old.config), spell_items(change.new.config)
    return "as before" if old == new else f"{old} -> {new}"


def _as_json(found: Comparison, limit: float | None) -> dict[str, Any]:
    too_slow = found.too_slow(limit)
    slower = found.slower()
    return {
        "lost": [_key_as_json(row) for row in found.lost],
        "gained": [_key_as_json(row) for row in found.gained],
        "moved": [_key_as_json(row) for row in found.moved],
        "emptied": found.emptied,
        "narrowed": [{**_key_as_json(row), "what": what} for row, what in found.narrowed],
        "old_bytes": found.old_size,
        "new_bytes": found.new_size,
        "workloads": [
            {
                **_key_as_json(change.new),
                "old_latency": change.old.latency.get("latency"),
                "new_latency": change.new.latency.get("latency"),
                "ratio": change.ratio,
                "slower": change in slower,
                "too_slow": change in too_slow,
                "not_compared": change.uncomparable or None,
                "trusted": not change.doubtful,
                "old_config": dict(change.old.config),
                "new_config": dict(change.new.config),
            }
            for change in found.kept
        ],
    }


def _key_as_json(row: Row) -> Mapping[str, Any]:
    return {"package": row.package, "kernel": row.kernel, "target": row.target, "shape": dict(row.shape)}
