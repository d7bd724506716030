"""``tlaot capture``: record what a workload calls, and write it into tltune.toml."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SpecError
from .init import own_target
from .parser import add_json, passes_on
from .spelling import columns, counted, headline, spell_table

if TYPE_CHECKING:
    from ..capturing.proposal import Proposal
    from ..capturing.recording import Recording
    from ..draft.project import Project

__all__ = ["add"]

_DESCRIPTION = """\
Runs a command, your tests or your server for instance, under TileLang's JIT as it is, and records in all its processes which
@tilelang.jit functions are called with which arguments, and what their kernels are launched with. Then puts what was launched into
tltune.toml as shapes and dynamic sizes, most used first; everything else of the file stays. Nothing in the sources is changed.
Exit status: 0; the command's own where that is not 0, and nothing is written then; 2 where nothing was launched.
"""
_EXAMPLES = """\
examples:
  tlaot capture -- python -m pytest tests
  tlaot capture --cover 0.99 --dry-run -- torchrun --nproc-per-node 8 serve.py
  tlaot capture --from build/tlaot/capture     write from an earlier recording

where there is no GPU (nothing is compiled, launches give zeros):
  tlaot capture --no-launch cuda:sm_90a -- python -m pytest
"""

_FOLDER = Path("build", "tlaot", "capture")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "capture",
        help="record what a workload calls, and write it into tltune.toml",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        usage="tlaot capture [options] -- COMMAND...",
    )
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.add_argument(
        "--project", metavar="FOLDER", type=Path, default=Path(), help="the project's folder; default: this one"
    )
    parser.add_argument("--package", metavar="NAME", help="as of tlaot init, where there is no tltune.toml yet")
    parser.add_argument(
        "--recording",
        metavar="DIR",
        type=Path,
        help="where the recording is kept; default: build/tlaot/capture of the project, which is emptied first",
    )
    parser.add_argument("--append", action="store_true", help="add to the recording that is there")
    parser.add_argument(
        "--from",
        metavar="DIR",
        type=Path,
        action="append",
        dest="recordings",
        help="write from this recording and run nothing; may be given several times",
    )
    parser.add_argument(
        "--min-count", metavar="N", type=_count, default=1, help="workloads with fewer launches are left out"
    )
    parser.add_argument(
        "--cover",
        metavar="SHARE",
        type=_share,
        default=1.0,
        help="of each kernel the fewest workloads that have this share of its launches: 0.99; default: 1, all",
    )
    parser.add_argument(
        "--no-launch",
        metavar="TARGET",
        nargs="?",
        const="none",
        default="",
        dest="dry_as",
        help="compile and run no kernel: launches return zeros; with a target, questions about the GPU are answered for that",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would change in tltune.toml, and change nothing"
    )
    add_json(parser, "the table")
    passes_on(parser, "the status of COMMAND, where that is not 0")
    parser.set_defaults(run=_capture)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and up to 1, got {text!r}: write 0.99 for 99 %")
    return value


def _capture(options: argparse.Namespace) -> int:
    from ..capturing.recording import read_recording

    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    folder = options.project.absolute()
    if not folder.is_dir():
        raise SpecError(str(options.project), "there is no such folder", "Name the project's folder with --project.")
    if bool(words) == bool(options.recordings):
        raise SpecError(
            "tlaot capture",
            "has both a command and --from" if words else "is given no command",
            "Write tlaot capture -- python -m pytest, for instance, or name a recording with --from.",
        )
    recordings = options.recordings or [options.recording or folder / _FOLDER]
    if words:
        status = _record(words, recordings[0], options)
        if status:
            shown = _relative(recordings[0])
            print(
                f"tlaot capture: the command ended with {status}; nothing is written. What was recorded is kept:\n"
                f"tlaot capture --from {shown} writes it all the same.",
                file=sys.stderr,
            )
            return status
    return _write(read_recording(recordings), folder, recordings, options)


def _record(words: Sequence[str], folder: Path, options: argparse.Namespace) -> int:
    from ..capturing.session import prepare_folder, run_command
    from ..target import parse_target

    if options.dry_as not in ("", "none"):
        target = parse_target(options.dry_as, "--no-launch")
        if not target.is_cuda:
            raise SpecError(
                "--no-launch", f"is a GPU's target, got {target}", "Write --no-launch cuda:sm_90a, or --no-launch --."
            )
    prepare_folder(folder, options.append)
    return run_command(words, folder, os.environ, options.dry_as, quiet=options.json)


def _write(recording: Recording, folder: Path, recordings: Sequence[Path], options: argparse.Namespace) -> int:
    from ..atomic import write_atomically
    from ..capturing.proposal import Limits, propose
    from ..capturing.writing import as_called, put_in, start_spec
    from ..draft.project import look_at_project
    from ..tune.specs.spec_file import SPEC_NAME, find_spec

    if not recording.times:
        raise _nothing(recording, recordings)
    spec = find_spec(folder)
    before = "" if spec is None else spec.read_text(encoding="utf-8")
    body = _parse(before, spec)
    project = look_at_project(folder, options.package or body.get("tlaot", {}).get("package"))
    sources = {factory.spelled: as_called(factory) for factory in project.factories}
    text = before
    limits = Limits(options.min_count, options.cover)
    packages = _packages(project)
    proposal = propose(recording, body, sources, packages, limits)
    if spec is None and proposal.additions:
        wanted = [sources[one.factory.spelled] for one in proposal.additions if one.factory.spelled in sources]
        text = start_spec(proposal.additions, sources, project.package, own_target(wanted))
        proposal = propose(recording, _parse(text, None), sources, packages, limits)
    name = SPEC_NAME if spec is None else spec.name
    after, errors = put_in(text, proposal.additions, sources, name)
    if options.json:
        print(json.dumps(_as_json(recording, proposal, errors, after != before), indent=1, sort_keys=True))
    else:
        print("\n".join(_show(recording, proposal, errors)))
    path = folder / SPEC_NAME if spec is None else spec
    if options.dry_run:
        lines = difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"{name} (now)", f"{name} (then)", n=2
        )
        if not options.json:
            print("\n" + ("".join(lines) if after != before else f"{name}: nothing to change"))
        return 0
    if after != before:
        mode = path.stat().st_mode & 0o777 if spec is not None else 0o644
        write_atomically(path, after.encode(), mode)
    if not options.json:
        print("\n" + "\n".join(_said(name, proposal, after, before)))
    return 0


def _parse(text: str, spec: Path | None) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        body: dict[str, Any] = tomllib.loads(text)
        return body
    except tomllib.TOMLDecodeError as error:
        raise SpecError(str(spec), f"is not valid TOML: {error}", "Correct the file first.") from None


def _packages(project: Project) -> list[str]:
    return [*project.packages, *{factory.module.partition(".")[0] for factory in project.factories}]


def _nothing(recording: Recording, recordings: Sequence[Path]) -> SpecError:
    """Why there is nothing to write, as far as the recording says."""
    where = ", ".join(map(_relative, recordings))
    failed = [f"{one.factory.spelled}: {why}" for one in recording.called if one.factory for why in one.failures]
    failed += [
        f"{one.factory.spelled}: its launches failed"
        for one in recording.called
        if one.factory and any(launch.failed for launch in one.launches)
    ]
    if failed:
        remedy = "Where there is no GPU, --no-launch TARGET records what would be launched."
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return SpecError(where, f"no kernel was launched; {failed[0]}{more}", remedy)
    if any(one.factory for one in recording.called):
        return SpecError(
            where, "factories were called, and no kernel of theirs was launched", "Run what launches them."
        )
    strangers = sum(one.times for one in recording.called)
    if strangers:
        what = f"{counted(strangers, 'launch')} of kernels that no @tilelang.jit function made"
        return SpecError(
            where, f"there are {what}", "Kernels of tilelang.compile have no factory that a spec could name."
        )
    if recording.processes:
        what = f"{counted(len(recording.processes), 'process')} imported TileLang, and called none of its functions"
        return SpecError(where, what.replace("processs", "processes"), "Run what launches your kernels.")
    return SpecError(
        where,
        "no process of the command imported TileLang, or none let itself be recorded",
        "Python started with -I, -E or -S, or without PYTHONPATH, is not; with tlaot.capture(...) in the program is.",
    )


def _show(recording: Recording, proposal: Proposal, errors: Sequence[SpecError]) -> Iterator[str]:
    processes = counted(len(recording.processes), "process").replace("processs", "processes")
    yield headline(f"{counted(recording.times, 'launch').replace('launchs', 'launches')} in {processes}")
    if recording.dry:
        yield "(no kernel was compiled or run)"
    rows = [
        [
            row.kernel,
            row.workload,
            str(row.times),
            f"{row.share:.1%}",
            f"{row.state}{f': {row.why}' if row.why else ''}",
        ]
        for row in proposal.rows
    ]
    yield from spell_table(["kernel", "workload", "launches", "share", ""], rows, ("launches", "share"), columns())
    for name, items in proposal.common.items():
        yield f"  {name}, in all: {', '.join(items)}"
    notes = [*proposal.hints, *recording.troubles]
    notes += [f"{recording.lost} launches could not be recorded"] if recording.lost else []
    notes += [" ".join(str(error).split()) for error in errors]
    if notes:
        yield from ("", headline("note"), *(f"  {note}" for note in notes))


def _said(name: str, proposal: Proposal, after: str, before: str) -> Iterator[str]:
    from ..draft.spec_text import left_to_fill_in

    if after == before:
        yield f"{name}: nothing to change"
        return
    added = sum(row.state == "new" for row in proposal.rows)
    yield f"{name}: {counted(added, 'workload')} added"
    left = [gap for gap in left_to_fill_in(after)]
    if left:
        yield f"left to fill in: {', '.join(sorted({gap.key for gap in left if gap.key}))} (tlaot init says where)"


def _as_json(recording: Recording, proposal: Proposal, errors: Sequence[SpecError], changed: bool) -> dict[str, Any]:
    return {
        "launches": recording.times,
        "processes": len(recording.processes),
        "dry": recording.dry,
        "workloads": [
            {
                "kernel": r.kernel,
                "workload": r.workload,
                "launches": r.times,
                "share": r.share,
                "state": r.state,
                "why": r.why,
                "shape": None if r.shape is None else dict(r.shape),
            }
            for r in proposal.rows
        ],
        "additions": [
            {
                "factory": one.factory.spelled,
                "new": one.entry is None,
                "shapes": [dict(shape) for shape in one.shapes],
                "dynamic": None if one.dynamic is None else {name: list(sizes) for name, sizes in one.dynamic.items()},
            }
            for one in proposal.additions
        ],
        "hints": proposal.hints,
        "troubles": [*recording.troubles, *map(str, errors)],
        "lost": recording.lost,
        "changed": changed,
    }


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
