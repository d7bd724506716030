"""``tlaot lock``: look into ``tltune.lock``, hold it against the spec, merge the locks of several machines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SpecError, TlaotError
from ..github import annotate_all
from .filters import add_filters, choose
from .parser import add_json, fails
from .spelling import counted, show_table, spell_items
from .tune import add_spec_options, locate_spec

if TYPE_CHECKING:
    from ..tune.locks.lock import Entry, Lock

__all__ = ["add"]

_ROLES = {"stale": "bad", "missing": "bad", "edited": "bad", "orphan": "bad", "unknown": "doubtful"}


_DESCRIPTION = """\
Looks after tltune.lock, in which tuning keeps its evidence; "tlaot tune" writes it.
"""
_EXAMPLES = """\
examples:
  tlaot lock show
  tlaot lock check       exit status 1 where something is stale or missing
  tlaot lock merge h200.lock a100.lock -o tltune.lock
  tlaot lock remove --kernel matmul --target cuda:sm_90a
"""
_MERGE = """\
Unites locks by entries, also the two sides of one with the conflict markers of a merge. Of two entries that differ, the one that fits
the present spec and sources is taken, then the one that is trusted; where both are as good, --prefer decides.
"""
_MERGE_EXAMPLES = """\
examples:
  tlaot lock merge h200.lock a100.lock -o tltune.lock
  tlaot lock merge tltune.lock           with the conflict markers of git in it
  tlaot lock merge a.lock b.lock --base old.lock --prefer a.lock -o tltune.lock

as git's merge driver:
  git config merge.tltune.driver "tlaot lock merge --base %O %A %B -o %A"
  echo "tltune.lock merge=tltune" >> .gitattributes
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "lock", help="show, check, merge or prune tltune.lock", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    actions = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_show(actions)
    _add_check(actions)
    _add_merge(actions)
    _add_remove(actions)


def _add_show(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = actions.add_parser("show", help="list the workloads, their winners, times and devices")
    show.add_argument(
        "lock", metavar="LOCK", type=Path, nargs="?", default=Path("tltune.lock"), help="default: tltune.lock"
    )
    add_json(show, "the list")
    add_filters(show)
    show.set_defaults(run=_show)


def _add_check(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = actions.add_parser(
        "check",
        help="say what the spec or the sources have made stale; exit 1 where something is",
        description="Hold tltune.lock against the spec and the sources: what holds, what is stale and why, what is missing. Nothing "
        "is compiled or measured. Exit status 1 where anything but 'holds' is found.",
    )
    add_json(check, "the findings")
    add_spec_options(check)
    fails(check, "an entry is stale or missing, was edited by hand, or is of nothing that the spec has")
    check.set_defaults(run=_check)


def _add_merge(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    merge = actions.add_parser(
        "merge",
        help="unite locks by entries; also one with the conflict markers of a merge",
        description=_MERGE,
        epilog=_MERGE_EXAMPLES,
    )
    merge.add_argument("locks", metavar="LOCK", type=Path, nargs="+", help="the locks, or one with conflict markers")
    merge.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("tltune.lock"), help="default: tltune.lock"
    )
    merge.add_argument("--base", metavar="LOCK", type=Path, help="the lock that the others were made from")
    merge.add_argument(
        "--prefer",
        metavar="LOCK",
        help="whose entries are taken where nothing else decides; of a conflict: ours or theirs",
    )
    add_spec_options(merge)
    fails(merge, "two entries are left between conflict markers")
    merge.set_defaults(run=_merge)


def _add_remove(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    remove = actions.add_parser("remove", help="remove entries, so that they are tuned again")
    remove.add_argument(
        "lock", metavar="LOCK", type=Path, nargs="?", default=Path("tltune.lock"), help="default: tltune.lock"
    )
    add_filters(remove)
    add_json(remove, "a list with one object an entry that was removed")
    remove.set_defaults(run=_remove)


def _show(options: argparse.Namespace) -> int:
    from ..tune.locks.lock_entry import entry_to_json

    lock = _read(options.lock)
    entries = choose(lock.ordered(), options)
    if options.json:
        bodies = [{**entry_to_json(entry), "edited": entry.key in lock.edited} for entry in entries]
        print(json.dumps(bodies, indent=1, sort_keys=True))
        return 0
    header = ("kernel", "target", "shape", "ships", "ms", "spread", "reference ms", "tried", "measured on")
    rows = [_row(entry, entry.key in lock.edited) for entry in entries]
    for line in show_table(header, rows, ("ms", "spread", "reference ms", "tried")):
        print(line)
    print(f"{counted(len(entries), 'workload')} in {options.lock}")
    return 0


def _row(entry: Entry, edited: bool) -> tuple[str, ...]:
    ships = spell_items(entry.ships) or "{}"
    if len(entry.parts) > 1:  # of a dynamic workload others serve other sizes
        ships += f" and {len(entry.parts) - 1} more"
    place = (entry.kernel, entry.target, spell_items(entry.shape), ships)
    if entry.tuned_as is not None:
        return (*place, "", "", "", "", f"not measured: tuned as {entry.tuned_as}")
    tried = entry.tried(entry.ships)
    timing = None if tried is None else tried.timing
    device = str(entry.device.get("name", ""))
    if "sm_count" in entry.device:
        device += f", {entry.device['sm_count']} SMs"
    doubts = ["" if entry.trusted else "times not to be trusted", "edited by hand" if edited else ""]
    return (
        *place,
        "" if timing is None else f"{timing.latency:.4g}",
        "" if timing is None else f"{timing.spread:.1%}",
        "" if entry.reference is None else f"{entry.reference.latency:.4g}",
        str(len(entry.candidates)),
        "; ".join(filter(None, [device, *doubts])),
    )


def _check(options: argparse.Namespace) -> int:
    from ..tune.locks.lock_file import read_lock
    from ..tune.specs.spec_file import read_spec
    from ..tune.survey import survey

    path, source_root = locate_spec(options)
    findings = survey(read_spec(path), source_root, read_lock(path.with_name("tltune.lock")))
    bad = [finding for finding in findings if finding.state not in ("holds", "unknown")]
    said = [(f"{finding.state}: {finding.label}", finding.reason or "tlaot tune") for finding in bad]
    annotate_all("error", said, path.with_name("tltune.lock"))
    if options.json:
        bodies = [{"workload": f.label, "state": f.state, "reason": f.reason} for f in findings]
        print(json.dumps(bodies, indent=1, sort_keys=True))
        return 1 if bad else 0
    rows = [(finding.state, finding.label, finding.reason) for finding in findings if finding.state != "holds"]
    for line in show_table(("state", "workload", "why"), rows, roles=_ROLES):
        print(line)
    holds = sum(finding.state == "holds" for finding in findings)
    print(f"tltune.lock holds for {counted(holds, 'workload')}" + (f", not for {len(bad)}: tlaot tune" if bad else ""))
    return 1 if bad else 0


def _merge(options: argparse.Namespace) -> int:
    from ..tune.locks.lock_file import parse_sides, read_lock, read_text, replace_lock
    from ..tune.locks.merge import draft_merge, merge_locks

    for path in options.locks:
        if not path.is_file():
            raise SpecError(str(path), "there is no such lock", "Name locks that exist.")
    sides = [side for path in options.locks for side in parse_sides(read_text(path), str(path))]
    names = [name for name, _ in sides]
    prefer = options.prefer
    driving = options.base is not None and len(sides) == 2
    if driving:
        # git calls its merge driver with temporary files: their names say nothing, and are gone when somebody reads them.
        prefer = dict(zip(names, ("ours", "theirs"), strict=True)).get(prefer, prefer)
        names = ["ours", "theirs"]
        sides = [(name, lock) for name, (_, lock) in zip(names, sides, strict=True)]
    if prefer is not None and prefer not in names:
        raise SpecError("--prefer", f"is none of the locks, got {prefer!r}", f"Write one of: {', '.join(names)}.")
    base = None if options.base is None else read_lock(options.base)
    merge = draft_merge if driving else merge_locks
    merged = merge(sides, _fits(options), prefer, base)
    for note in merged.notes:
        print(note)
    pairs = [(ours, theirs) for (_, ours), (_, theirs) in merged.undecided]
    replace_lock(options.output, merged.lock, pairs)
    if pairs:
        print(f"tltune.lock: {merged.explain()}", file=sys.stderr)
        print("Both are in it, between conflict markers: tlaot lock merge tltune.lock --prefer ours", file=sys.stderr)
        return 1
    print(f"{options.output}: {counted(len(merged.lock.entries), 'workload')} from {', '.join(names)}")
    return 0


def _fits(options: argparse.Namespace) -> Callable[[Entry], bool] | None:
    """Whether an entry fits the spec, where there is one."""
    from ..tune.specs.spec_file import read_spec
    from ..tune.survey import fits_present

    try:
        path, source_root = locate_spec(options)
        return fits_present(read_spec(path), source_root)
    except TlaotError as error:
        if options.spec is not None:
            raise
        print(f"tlaot: merged without a look at the spec: {error.where}: {error.what}", file=sys.stderr)
        return None


def _remove(options: argparse.Namespace) -> int:
    from ..tune.locks.lock_file import update_lock

    if not (options.kernel or options.target or options.shape):
        raise SpecError("tlaot lock remove", "names nothing", "Say what with --kernel, --target or --shape.")
    gone = choose(_read(options.lock).ordered(), options)
    if not gone:
        raise SpecError(str(options.lock), "has no such entry", f"tlaot lock show {options.lock} lists what there is.")
    update_lock(options.lock, lambda lock: lock.without(entry.key for entry in gone))
    if options.json:
        bodies = [{"kernel": entry.kernel, "target": entry.target, "shape": dict(entry.shape)} for entry in gone]
        print(json.dumps(bodies, indent=1, sort_keys=True))
        return 0
    for entry in gone:
        print(f"removed {entry.label}")
    return 0


def _read(path: Path) -> Lock:
    from ..tune.locks.lock_file import read_lock

    if not path.is_file():
        raise SpecError(str(path), "there is no such lock", "tlaot tune writes it; or name one.")
    return read_lock(path)
