"""``tlaot doctor``: what this machine can build and run, and what the project's targets lack here."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TlaotError
from ..explain import place_of
from .parser import add_json, fails
from .spelling import counted, headline, painted, show_table
from .tune import add_spec_options

if TYPE_CHECKING:
    from ..doctor.item import Item, Verdict

__all__ = ["add"]

_DESCRIPTION = """\
Shows what this machine has to build and run kernels: GPUs, compilers, frontends, Python's packages, the caches; and, where a
tltune.toml is in this folder, what becomes of each of its targets, with the command that mends what is missing. Exit status 1 where a
target that the spec requires cannot be built here. Frontends and torch are imported in processes of their own.
"""
_EXAMPLES = """\
examples:
  tlaot doctor
  tlaot doctor --quick        without trying to import the frontends and torch
  tlaot doctor --json
"""

_AREAS = ("machine", "compilers", "python", "disk", "project")
_MARKS = {"ok": "ok", "note": "-", "missing": "MISSING"}
_ROLES = {"ok": "good", "-": "dim", "MISSING": "bad"}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "doctor",
        help="show what this machine can build, and what the project's targets lack",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("--quick", action="store_true", help="do not import the frontends and torch")
    add_json(parser, "an object (items, targets, ok)")
    add_spec_options(parser)
    fails(parser, "a target that the spec requires cannot be built here, or none can")
    parser.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    # Imported here: it is of the build side.
    from ..doctor.item import MISSING
    from ..doctor.survey import describe, look_around

    here = look_around({key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, options.quick)
    project = options.spec.absolute().parent if options.spec else Path.cwd()
    items = list(describe(here, project))
    of_project, verdicts = _of_project(options, here)
    items += of_project
    failed = MISSING in {*(item.state for item in items), *(verdict.state for verdict in verdicts)}
    failed |= bool(verdicts) and all(verdict.lacks for verdict in verdicts)  # where none is left a build fails, too
    if options.json:
        body = {"items": list(map(asdict, items)), "targets": list(map(_verdict_json, verdicts)), "ok": not failed}
        print(json.dumps(body, indent=1, sort_keys=True))
    else:
        print("\n".join(_show(items, verdicts)))
    return 1 if failed else 0


def _of_project(options: argparse.Namespace, here: Any) -> tuple[list[Item], list[Verdict]]:
    """What is to be said of the project in this folder; nothing where there is none. What is wrong with it is an item, too."""
    from ..doctor.item import MISSING, NOTE, OK, Item
    from ..doctor.judge import judge, look_at_pyproject
    from ..tune.place import find_source_root
    from ..tune.specs.spec_file import find_spec, read_spec

    try:
        path = options.spec.absolute() if options.spec else find_spec(Path.cwd())
        if path is None:
            what = "there is none in this folder"
            return [Item("project", "tltune.toml", NOTE, what, "tlaot init, in the project's folder, writes one")], []
        spec = read_spec(path)
    except TlaotError as error:
        found = place_of(error, options.spec.absolute().parent if options.spec else Path.cwd())
        line = "" if found is None else f" (line {found[1].line})"
        return [Item("project", "tltune.toml", MISSING, f"{error.where}: {error.what}{line}", error.remedy)], []
    # The spec may lie in a folder of its own; pyproject.toml is where the command was given.
    project = path.parent if (path.parent / "pyproject.toml").is_file() else Path.cwd()
    isolated, items = look_at_pyproject(project)
    names = dict.fromkeys(kernel.name for kernel in spec.kernels)
    what = f"{path}: {counted(len(names), 'kernel')} for {counted(len(spec.targets), 'target')}, in {spec.package}"
    items.insert(0, Item("project", "tltune.toml", OK, what))
    root = options.source.absolute() if options.source else find_source_root(project, spec.package)
    try:
        return items, judge(spec, root, here, isolated)
    except TlaotError as error:
        return [*items, Item("project", "targets", MISSING, f"{error.where}: {error.what}", error.remedy)], []


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    lacks = [{"what": what, "remedy": remedy} for what, remedy in verdict.lacks]
    return {**asdict(verdict), "kernels": list(verdict.kernels), "lacks": lacks}


def _show(items: Sequence[Item], verdicts: Sequence[Verdict]) -> Iterator[str]:
    for area in _AREAS:
        rows = [[_MARKS[item.state], item.name, _one_line(item.what)] for item in items if item.area == area]
        if rows:
            yield headline(area)
            yield from _table(rows)
            yield ""
    if verdicts:
        yield headline("targets")
        yield from _table(
            [[_MARKS[v.state], v.target, f"{', '.join(v.kernels)} ({v.frontend}): {_outcome(v)}"] for v in verdicts]
        )
        yield ""
    yield from _remedies(items, verdicts)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return show_table(["", "", ""], rows, roles=_ROLES, indent="  ")[1:]


def _outcome(verdict: Verdict) -> str:
    if not verdict.lacks:
        return verdict.how
    why = "; ".join(_one_line(what) for what, _ in verdict.lacks)
    return f"left out: {why}" if verdict.state == "note" else why


def _remedies(items: Sequence[Item], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What mends what is missing; then what may be wanted."""
    needed: dict[str, list[str]] = {}
    for verdict in verdicts:
        for _, remedy in verdict.lacks if verdict.state == "missing" else ():
            needed.setdefault(remedy, []).append(verdict.target)
    for item in items:
        if item.state == "missing":
            needed.setdefault(item.remedy, []).append(item.name)
    wanted: dict[str, list[str]] = {}
    for name, remedy in (
        *((verdict.target, remedy) for verdict in verdicts if verdict.state == "note" for _, remedy in verdict.lacks),
        *((item.name, item.remedy) for item in items if item.state == "note" and _matters(item, verdicts)),
    ):
        if remedy and remedy not in needed:
            wanted.setdefault(remedy, []).append(name)
    for heading, remedies in (("to be mended", needed), ("optional", wanted)):
        if remedies:
            yield headline(heading)
            for remedy, names in remedies.items():
                yield f"  {', '.join(dict.fromkeys(names))}: {_one_line(remedy) or 'see above'}"
            yield ""
    yield painted(_summary(verdicts, bool(needed)), "bad" if needed else "heading")


def _matters(item: Item, verdicts: Sequence[Verdict]) -> bool:
    """Whether the project in this folder has a use for what is missing; where there is none, everything may be wanted."""
    if not verdicts or item.area == "project":
        return True
    cuda = any(verdict.target.startswith("cuda") for verdict in verdicts)
    frontends = {verdict.frontend for verdict in verdicts}
    uses = {
        "GPU": cuda,
        "nvcc": cuda,
        "NVRTC": cuda,
        "torch": cuda,
        "tilelang": "tilelang" in frontends,
        "apache-tvm": "tvm" in frontends,
        "optuna": False,  # a spec that asks for it has it among what its targets lack
    }
    return uses.get(item.name, True)


def _summary(verdicts: Sequence[Verdict], failed: bool) -> str:
    missing = sum(verdict.state == "missing" for verdict in verdicts)
    if missing:
        return f"{counted(missing, 'target')} of {len(verdicts)} cannot be built here"
    if failed:
        return "this project cannot be built as it is"
    if not verdicts:
        return "no project was looked at"
    left_out = sum(verdict.state == "note" for verdict in verdicts)
    if left_out == len(verdicts):
        return "no target can be built here"
    rest = f"; {counted(left_out, 'target')} would be left out" if left_out else ""
    return f"what is declared can be built here{rest}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
