"""``tlaot tune``: tune outside of a build, and write what was found into ``tltune.lock``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ..errors import SpecError
from .filters import read_shape
from .spelling import counted

__all__ = ["add", "add_spec_options", "locate_spec"]


_DESCRIPTION = """\
Tunes what tltune.lock has no evidence of, or none that holds, and writes the lock. What no device of this machine can measure is
left out, with a line, unless --target asks for it.
"""
_EXAMPLES = """\
examples:
  tlaot tune
  tlaot tune --kernel matmul --target cuda:sm_90a
  tlaot tune --shape M=4096,N=4096 --force      measure again what is known, too
"""


@dataclass(frozen=True)
class _Settings:
    """What a build would be told with ``-C``."""

    tune: str
    targets: tuple[str, ...] | None
    jobs: int | None
    keep: bool = False
    lock: str = "update"


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


def _tune(options: argparse.Namespace) -> int:
    from ..target import parse_target
    from ..tune.pipeline import Selection, tune_project

    path, source_root = locate_spec(options)
    targets = None if options.target is None else tuple(str(parse_target(text, "--target")) for text in options.target)
    settings = _Settings("force" if options.force else "on", targets, options.jobs)
    selection = Selection(tuple(options.kernel), options.shape, tolerant=targets is None)
    count = tune_project(path, source_root, settings, selection, lambda line: print(line, flush=True))
    print(
        f"tlaot: {path.with_name('tltune.lock')} holds for {counted(count, 'workload')} of what was asked for; commit it"
    )
    return 0
