"""``tlaot init``: a first tltune.toml for a package that has kernels, and the two lines of pyproject.toml."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SpecError, TlaotError
from .parser import add_json
from .spelling import counted, headline

if TYPE_CHECKING:
    from ..draft.found import Factory
    from ..draft.project import Project
    from ..draft.spec_text import Gap

__all__ = ["add", "own_target"]

_DESCRIPTION = """\
Finds the kernels of the project in a folder (functions under @tilelang.jit or @tilelang.autotune, functions that return a PrimFunc of
TileLang or TVM) by reading its sources, which are not imported, and writes a commented tltune.toml and what pyproject.toml lacks. Says line
by line what is left to fill in. Nothing that is there is overwritten: where there is a tltune.toml, it says which kernels that lacks.
"""
_EXAMPLES = """\
examples:
  tlaot init
  tlaot init --print                 show what it would write, and write nothing
  tlaot init ~/my_project --package my_package --target cuda:sm_100a
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "init",
        help="write a first tltune.toml for the kernels of a package",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "project",
        metavar="FOLDER",
        nargs="?",
        type=Path,
        default=Path(),
        help="the project's folder; default: this one",
    )
    parser.add_argument(
        "--package", metavar="NAME", help="the package that embeds the kernels, where there are several"
    )
    parser.add_argument("--target", metavar="TARGET", help="the GPU's target; default: that of the GPU in this machine")
    parser.add_argument(
        "--print", action="store_true", dest="dry", help="print what would be written, and write nothing"
    )
    add_json(parser, "an object (kernels, what was written, what is left to fill in)")
    parser.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> int:
    from ..draft.project import look_at_project
    from ..target import parse_target
    from ..tune.specs.spec_file import find_spec

    folder = options.project.absolute()
    if not folder.is_dir():
        raise SpecError(str(options.project), "there is no such folder", "Name the project's folder.")
    wanted = None if options.target is None else parse_target(options.target, "--target")
    if wanted is not None and not wanted.is_cuda:
        raise SpecError("--target", f"is a GPU's, got {wanted}", "Write for instance --target cuda:sm_90a.")
    project = look_at_project(folder, options.package)
    for trouble in project.troubles:
        print(f"passed over: {trouble}", file=sys.stderr if options.json else sys.stdout)
    spec = find_spec(folder)
    if spec is not None:
        return _compare(project, spec, options.dry, options.json)
    if not project.factories:
        looked = ", ".join(project.packages)
        raise SpecError(
            str(options.project),
            f"has no kernel that tlaot init can see (looked in {looked})",
            "It looks for @tilelang.jit, and for functions that define and return a @T.prim_func. Write a factory, or the spec by hand.",
        )
    return _write(project, options.dry, None if wanted is None else str(wanted), options.json)


def _write(project: Project, dry: bool, target: str | None, as_json: bool) -> int:
    from ..atomic import write_atomically
    from ..draft.build_lines import add_build_lines
    from ..draft.spec_text import draft_spec, left_to_fill_in
    from ..tune.specs.spec_file import SPEC_NAME

    text = draft_spec(project.package, project.factories, target or own_target(project.factories))
    pyproject = project.folder / "pyproject.toml"
    before = pyproject.read_text(encoding="utf-8") if pyproject.is_file() else ""
    extras = ",".join(sorted({factory.frontend for factory in project.factories}))
    after, done, left = add_build_lines(before, extras)
    if as_json and dry:
        _print_json(project, project.factories, [], left_to_fill_in(text), left)
        return 0
    if dry:
        print(f"{headline(SPEC_NAME)}\n\n{text}")
        print(f"{headline('pyproject.toml')}\n\n{after}" if after != before else "pyproject.toml: nothing to add")
        return 0
    write_atomically(project.folder / SPEC_NAME, text.encode())
    if after != before:
        mode = pyproject.stat().st_mode & 0o777 if before else 0o644
        write_atomically(pyproject, after.encode(), mode)
    if as_json:
        written = [SPEC_NAME, *(["pyproject.toml"] if after != before else [])]
        _print_json(project, project.factories, written, left_to_fill_in(text), left)
        return 0
    print(f"{SPEC_NAME}: written, {counted(len(project.factories), 'kernel')} of {project.package}")
    for line in done:
        print(f"pyproject.toml: added {line}")
    lines = [*_gaps(SPEC_NAME, left_to_fill_in(text)), *(f"pyproject.toml: {what}" for what in left)]
    _tell("left to fill in", lines)
    _tell("then", list(_next(project, not lines)))
    return 0


def _compare(project: Project, spec: Path, dry: bool, as_json: bool) -> int:
    """A spec is there: say what of the sources it does not name, and whether it can be read."""
    from ..draft.spec_text import draft_entries, left_to_fill_in

    text = spec.read_text(encoding="utf-8")
    # By its text: it may be half filled in.
    new = [factory for factory in project.factories if f'"{factory.spelled}"' not in text]
    if as_json:
        gaps = left_to_fill_in(text)
        _print_json(project, new, [], gaps, [] if gaps else list(_unreadable(spec)))
        return 0
    print(f"{spec.name}: is there, and stays as it is")
    if new and dry:
        print("\n".join(["", *draft_entries(new)]))
    elif new:
        _tell("not in it", [f"{factory.spelled} (line {factory.line})" for factory in new])
        print("tlaot init --print shows entries for these")
    lines = list(_gaps(spec.name, left_to_fill_in(text)))
    if not lines:
        lines = list(_unreadable(spec))
        if not lines:
            print(f"{spec.name}: can be read; nothing is left to fill in")
    _tell("left to fill in", lines)
    return 0


def _unreadable(spec: Path) -> Iterator[str]:
    from ..tune.specs.spec_file import read_spec

    try:
        read_spec(spec)
    except TlaotError as error:
        yield " ".join(str(error).split())


def _print_json(
    project: Project, new: Sequence[Factory], written: Sequence[str], gaps: Sequence[Gap], lines: Sequence[str]
) -> None:
    body = {
        "package": project.package,
        "kernels": [
            {"factory": one.spelled, "line": one.line, "frontend": one.frontend, "new": one in new}
            for one in project.factories
        ],
        "written": list(written),
        "left": [{"line": gap.line, "kernel": gap.kernel, "key": gap.key, "what": gap.what} for gap in gaps],
        "troubles": list(lines),
    }
    print(json.dumps(body, indent=1, sort_keys=True))


def own_target(factories: Sequence[Factory]) -> str | None:
    """The target of this machine's GPU, where a kernel needs one; with the features of its architecture alone, where there are some."""
    if all(factory.frontend != "tilelang" for factory in factories):
        return None
    from ..tune.machine import inspect_machine

    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    gpus = inspect_machine(tuple(entry for entry in sys.path if entry), environ).gpus
    if not gpus:
        return None
    major, minor = gpus[0].capability
    return f"cuda:sm_{major}{minor}" + ("a" if major >= 9 else "")


def _gaps(file: str, gaps: Sequence[Gap]) -> Iterator[str]:
    """A line a kernel, with the numbers of its lines; then what its keys are for, once each."""
    kernels: dict[str, list[Gap]] = {}
    for gap in gaps:
        kernels.setdefault(gap.kernel, []).append(gap)
    for kernel, own in kernels.items():
        numbers = ",".join(str(gap.line) for gap in own)
        yield f"{file}:{numbers}: {kernel + ': ' if kernel else ''}{', '.join(gap.key or gap.what for gap in own)}"
    for key, what in {gap.key: gap.what for gap in gaps}.items():
        yield f"  ({key}: {what})"


def _tell(heading: str, lines: Sequence[str]) -> None:
    if lines:
        print(f"\n{headline(heading)}")
        for line in lines:
            print(f"  {line}")


def _next(project: Project, complete: bool) -> Iterator[str]:
    if not complete:
        yield "fill these in (tlaot init says what is left)"
    yield "tlaot doctor          says whether this machine can build it"
    cuda = any(factory.frontend == "tilelang" for factory in project.factories)
    yield "pip wheel . " + (
        "--no-build-isolation   where the GPU, nvcc and torch are; or tlaot tune there, and commit tltune.lock"
        if cuda
        else "-w dist"
    )
