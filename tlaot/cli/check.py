"""``tlaot check``: whether packaged kernels are what was promised."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..audit import Audited, Demands, Finding, Promise, audit_found, audit_wheel, promise_of, show_findings, variants_of
from ..errors import CallError, PackageError
from ..github import annotate_all
from ..manifest import FOLDER, MANIFEST_NAME, Variant
from ..packaged import find_packaged
from ..runtime.places import find_folders, find_homes, refuse_clashes
from ..spelling import counted, spell_items
from .parser import add_json, fails
from .spelling import painted

__all__ = ["add"]

_HELP = "check packaged kernels: completeness, digests, architectures, what they need, traces of the build"
_DESCRIPTION = """\
Checks packaged kernels: that every kernel, workload and target is there, every file is the one that was packaged, each binary's
architecture is the promised one, needs the C library alone and loads in a fresh process, and that no file names a place, a user or
a time of the build; of an installed package also that it and its companions load together. Prints a table of what falls short.
Exit status: 0, 1 where anything does, 2 where there is nothing to check.
"""
_EXAMPLES = """\
examples:
  tlaot check dist/*.whl
  tlaot check my_package --lock tltune.lock
  tlaot check dist/*.whl --min-glibc 2.17 --json
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("check", help=_HELP, description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument(
        "what", metavar="WHEEL|PACKAGE|FOLDER", nargs="+", help="wheels, installed packages, folders of either"
    )
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        help="a tltune.lock: what is given must have all of its entries, together",
    )
    parser.add_argument("--min-glibc", metavar="VERSION", help="the oldest glibc that must load the binaries: 2.17")
    parser.add_argument("--no-load", action="store_true", help="do not load the binaries in a fresh process")
    add_json(parser, "the outcome")
    fails(parser, "there is a finding")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    demands = Demands(min_glibc=_release(options.min_glibc))
    locked = _read_lock(options.lock) if options.lock else {}
    rows = []
    for what in (each for given in options.what for each in _spread(given)):
        outcomes = [
            _with_lock(audited, locked, str(options.lock)) for audited in _audit(what, demands, not options.no_load)
        ]
        rows.append((what, outcomes))
        if not options.json:
            print("\n".join(_show(what, outcomes)))
    missing = _missing_targets([audited for _, outcomes in rows for audited in outcomes], locked, str(options.lock))
    if missing:
        rows.append((str(options.lock), [Audited(str(options.lock), None, missing)]))
        if not options.json:
            print("\n".join(_show(*rows[-1])))
    findings = [finding for _, outcomes in rows for audited in outcomes for finding in audited.findings]
    annotate_all("error", ((f"{f.check}: {f.where}", f"{f.what}\n{f.remedy}".rstrip()) for f in findings))
    if options.json:
        print(json.dumps([_as_json(what, outcomes) for what, outcomes in rows], indent=1, sort_keys=True))
    return 1 if findings else 0


def _release(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"\d+\.\d+", text):
        raise PackageError("--min-glibc", f"is not a version of glibc, got {text!r}", "Write --min-glibc 2.17.")
    return text


def _audit(what: str, demands: Demands, load: bool) -> list[Audited]:
    path = Path(what)
    if path.is_file():
        return audit_wheel(path, demands, load)
    outcomes = [audit_found(found, demands, load) for found in find_packaged(what)]
    if _is_package(what) and all(audited.manifest is not None for audited in outcomes):
        outcomes += _audit_together(what)
    return outcomes


def _spread(what: str) -> Iterator[str]:
    """A folder that has wheels stands for each of them, and for the unpacked kernels in it if there are any."""
    folder = Path(what)
    wheels = sorted(str(path) for path in folder.glob("*.whl") if path.is_file()) if folder.is_dir() else []
    if not wheels or _is_package(what) or (folder / MANIFEST_NAME).is_file() or _has_unpacked(folder):
        yield what
    if wheels and not _is_package(what):
        yield from wheels


def _has_unpacked(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob(f"{FOLDER}/{MANIFEST_NAME}"))


def _is_package(what: str) -> bool:
    """Whether it is the import name of an installed package that has kernels, or a companion with some."""
    try:
        return bool(find_folders(what))
    except (CallError, PackageError):
        return False


def _audit_together(package: str) -> Iterator[Audited]:
    """What makes the loader refuse a package whose parts are sound: versions that differ, two claims to one variant."""
    try:
        refuse_clashes(find_homes(package))
    except PackageError as error:
        yield Audited(package, None, (Finding("places", error.where, error.what, error.remedy),))


def _read_lock(path: Path) -> Mapping[Promise, Sequence[Mapping[str, Any]]]:
    """The configs that ship of each entry of a lock: several, of a dynamic workload."""
    # Imported here: the lock belongs to the build side, which no other check needs.
    from ..tune.locks.lock_file import read_lock

    if not path.is_file():
        raise PackageError(str(path), "there is no such file", "Name a tltune.lock.")
    return {
        promise_of(e.kernel, e.target, e.shape): [dict(part.config) for part in e.parts] or [dict(e.ships)]
        for e in read_lock(path).entries.values()
    }


def _with_lock(audited: Audited, locked: Mapping[Promise, Sequence[Mapping[str, Any]]], lock: str) -> Audited:
    """With what the lock has for a target that is packaged, and the package has not, or with another config."""
    if audited.manifest is None:
        return audited
    offered: dict[Promise, list[Variant]] = {}
    for name, variant in variants_of(audited.manifest):
        offered.setdefault(promise_of(name, variant.target, variant.shape), []).append(variant)
    targets = {target for _, target, _ in offered}
    findings = []
    for promise, ships in sorted(locked.items()):
        kernel, target, shape = promise
        if target in targets and promise not in offered:
            what = f"has no variant of {target} and {shape}, which {lock} has"
            findings.append(Finding("coverage", kernel, what, "Build it again with the lock."))
        elif promise in offered and _spelled(v.config for v in offered[promise]) != _spelled(ships):
            mine, theirs = (" and ".join(_spelled(own)) for own in ([v.config for v in offered[promise]], ships))
            what = f"has the config {mine}, {lock} has {theirs}"
            remedy = "Build it again with the lock; where max-slowdown has changed since, run tlaot tune before."
            findings.append(Finding("coverage", offered[promise][0].path, what, remedy))
    return dataclasses.replace(audited, findings=(*audited.findings, *findings))


def _spelled(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(map(spell_items, configs))


def _missing_targets(
    outcomes: Sequence[Audited], locked: Mapping[Promise, Sequence[Mapping[str, Any]]], lock: str
) -> tuple[Finding, ...]:
    """Targets of the lock that nothing has which was given: a companion was left out, or never built."""
    manifests = [audited.manifest for audited in outcomes if audited.manifest is not None]
    targets = {variant.target for manifest in manifests for _, variant in variants_of(manifest)}
    left = Counter(target for _, target, _ in locked if target not in targets)
    remedy = "Name the wheel that has them too, or build it."
    return tuple(
        Finding("coverage", target, f"nothing that was given has it; {lock} has {counted(count, 'workload')}", remedy)
        for target, count in sorted(left.items())
    )


def _show(what: str, outcomes: list[Audited]) -> Iterator[str]:
    findings = [finding for audited in outcomes for finding in audited.findings]
    parts = [_spell_manifest(audited) for audited in outcomes if audited.manifest is not None]
    outcome = painted("sound", "good") if not findings else painted(counted(len(findings), "finding"), "bad")
    yield f"{what}: {'; '.join([*parts, outcome])}"
    if findings:
        yield from show_findings(findings, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)


def _spell_manifest(audited: Audited) -> str:
    assert audited.manifest is not None
    variants = [variant for _, variant in variants_of(audited.manifest)]
    targets = ", ".join(sorted({variant.target for variant in variants})) or "no target"
    binaries = f"{audited.binaries} {'binary' if audited.binaries == 1 else 'binaries'}"
    done = "read and loaded" if audited.loaded else "read"
    return f"{audited.manifest.package}: {counted(len(variants), 'variant')} for {targets}, {binaries} {done}"


def _as_json(what: str, outcomes: list[Audited]) -> dict[str, Any]:
    packages = [
        {
            "package": audited.manifest.package,
            "variants": sum(1 for _ in variants_of(audited.manifest)),
            "binaries": audited.binaries,
            "loaded": audited.loaded,
        }
        for audited in outcomes
        if audited.manifest is not None
    ]
    findings = [dataclasses.asdict(finding) for audited in outcomes for finding in audited.findings]
    return {"what": what, "packages": packages, "findings": findings}
