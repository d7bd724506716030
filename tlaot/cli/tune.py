"""``tlaot tune``: tune outside of a build, and write what was found into ``tltune.lock``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import SpecError, did_you_mean
from ..paint import Paint, paint_for
from .filters import read_shape
from .parser import add_json
from .spelling import counted

if TYPE_CHECKING:
    from ..rows import Row

__all__ = ["add", "add_spec_options", "locate_spec"]

_PREFIX = "tlaot: "
# In what is said of times that mislead, and of what was left out.
_DOUBTS = (
    "trusted", "measured while", "not steady", "may be faster", "more time may tell", "skipped", "left out", "warning",
)  # fmt: skip

_Value = TypeVar("_Value")

_DESCRIPTION = """\
Tunes what tltune.lock has no evidence of, or none that holds, and writes the lock. What no device of this machine can measure is
left out, with a line, unless --target asks for it.
"""
_EXAMPLES = """\
examples:
  tlaot tune
  tlaot tune --kernel matmul --target cuda:sm_90a
  tlaot tune --shape M=4096,N=4096 --force      measure again what is known, too
  tlaot tune --devices 0,1                      on these GPUs only
"""


@dataclass(frozen=True)
class _Settings:
    """What a build would be told with ``-C``."""

    tune: str
    targets: tuple[str, ...] | None
    jobs: int | None
    keep: bool = False
    lock: str = "update"
    executor: str | None = None
    devices: tuple[int, ...] | None = None


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "tune",
        help="tune on this machine and write tltune.lock",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "--kernel", metavar="NAME", action="append", default=[], help="only this kernel; may be repeated"
    )
    parser.add_argument("--target", metavar="TARGET", action="append", help="only this target; may be repeated")
    parser.add_argument(
        "--shape", metavar="M=1024,...", type=read_shape, help="only workloads that have these arguments"
    )
    parser.add_argument("--force", action="store_true", help="measure again what is known, too")
    parser.add_argument("--jobs", metavar="N", type=_jobs, help="compile so many candidates at once")
    parser.add_argument(
        "--devices", metavar="0,1,...", type=_devices, help="measure on these GPUs only; by default on all of one model"
    )
    parser.add_argument(
        "--executor",
        metavar="NAME",
        type=_executor,
        help="where it is compiled and measured; by default what the spec says",
    )
    add_json(parser, "what the lock then has of what was asked for")
    add_spec_options(parser)
    parser.set_defaults(run=_tune)


def add_spec_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which project it is about."""
    parser.add_argument(
        "--spec", metavar="FILE", type=Path, help="the tltune.toml; by default the one of this folder's project"
    )
    parser.add_argument(
        "--source",
        metavar="DIR",
        type=Path,
        help="the folder that the kernels' modules are imported from; by default the project's, or its src",
    )


def locate_spec(options: argparse.Namespace) -> tuple[Path, Path]:
    """The spec and the folder that its modules are imported from.

    Raises:
        SpecError: There is no spec.
    """
    from ..tune.place import find_source_root
    from ..tune.specs.spec_file import find_spec, read_spec

    path: Path | None = options.spec or find_spec(Path.cwd())
    if path is None:
        raise SpecError(
            "tltune.toml", "there is none in this folder", "Change to the project's folder, or name it with --spec."
        )
    path = path.absolute()
    package = read_spec(path).package
    return path, (options.source.absolute() if options.source else find_source_root(path.parent, package))


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _devices(text: str) -> tuple[int, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(name.isdecimal() for name in names):
        raise argparse.ArgumentTypeError(f"expected numbers of GPUs, 0,1 for instance, got {text!r}")
    return tuple(dict.fromkeys(map(int, names)))


def _executor(text: str) -> str:
    from ..tune.specs.spec import EXECUTORS

    if text not in EXECUTORS:
        known = ", ".join(EXECUTORS)
        raise argparse.ArgumentTypeError(f"unknown executor {text!r}{did_you_mean(text, EXECUTORS)}; known: {known}")
    return text


def _variable(name: str, read: Callable[[str], _Value]) -> _Value | None:
    """What a variable says that a build reads, too: where a job's script sets it, it is set for all that the job runs."""
    text = os.environ.get(name, "").strip()
    try:
        return read(text) if text else None
    except argparse.ArgumentTypeError as error:
        raise SpecError(name, str(error), "Correct it, or unset it.") from None


def _tune(options: argparse.Namespace) -> int:
    from ..github import summarise, warn_of_doubts
    from ..rows import as_json, as_shipped
    from ..target import parse_target
    from ..tune.pipeline import Selection, tune_project

    path, source_root = locate_spec(options)
    targets = None if options.target is None else tuple(str(parse_target(text, "--target")) for text in options.target)
    settings = _Settings(
        tune="force" if options.force else "on",
        targets=targets,
        jobs=options.jobs,
        executor=options.executor or _variable("TLAOT_EXECUTOR", _executor),
        devices=options.devices or _variable("TLAOT_DEVICES", _devices),
    )
    selection = Selection(tuple(options.kernel), options.shape, tolerant=targets is None)
    stream = sys.stderr if options.json else sys.stdout
    paint = paint_for(stream)
    width = shutil.get_terminal_size().columns if stream.isatty() else None

    def say(line: str) -> None:
        print(_shown(line, paint, width), file=stream, flush=True)

    try:
        count = tune_project(path, source_root, settings, selection, say)
    except KeyboardInterrupt:
        say("tlaot: interrupted; what was compiled and measured so far is kept, and the next tuning goes on from there")
        raise
    lock = path.with_name("tltune.lock")
    rows = _rows(options, lock, targets)
    summarise(f"tlaot tune: {lock.name}", shipped := [as_shipped(row) for row in rows])
    warn_of_doubts(shipped)
    if options.json:
        print(json.dumps(list(map(as_json, rows)), indent=1, sort_keys=True))
    else:
        print(f"tlaot: {lock} holds for {counted(count, 'workload')} of what was asked for; commit it")
    return 0


def _rows(options: argparse.Namespace, lock: Path, targets: tuple[str, ...] | None) -> list[Row]:
    """What the lock has of what was asked for."""
    from ..rows import list_what

    return [
        row
        for listing in list_what(str(lock))
        for row in listing.rows
        if (not options.kernel or row.kernel in options.kernel)
        and (targets is None or row.target in targets)
        and all(row.shape.get(name) == value for name, value in (options.shape or {}).items())
    ]


def _shown(line: str, paint: Paint, width: int | None) -> str:
    """A line of a tuning for the person who reads it: what it says one after the other, in as many lines as the terminal needs, with what
    makes its times doubtful in colour. In a pipe, as it is."""
    if not line.startswith(_PREFIX):
        return line
    lines: list[list[str]] = [[]]
    for part in line.removeprefix(_PREFIX).split("; "):
        if width is not None and lines[-1] and len(_PREFIX) + len("; ".join([*lines[-1], part])) >= width:
            lines.append([])
        lines[-1].append(part)
    doubtful = [[any(word in part for word in _DOUBTS) for part in parts] for parts in lines]
    texts = [
        "; ".join(paint(part, "doubtful") if doubt else part for part, doubt in zip(parts, doubts, strict=True))
        for parts, doubts in zip(lines, doubtful, strict=True)
    ]
    return paint(_PREFIX, "dim") + f"\n{' ' * len(_PREFIX)}".join(texts)
