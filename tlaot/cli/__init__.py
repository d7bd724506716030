"""The ``tlaot`` command: look into what was packaged, compare and check it; look after what tuning keeps.

``inspect``, ``check`` and ``seal`` take the import name of an installed package or the path of a wheel or a folder; none imports the
package or touches a device. ``check`` and ``seal`` load the binaries, in a process of their own. Nor does ``cache`` do any of it.

Each command is a module of this package whose ``add`` puts it among the parser's; what it needs beyond wheels it imports
when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from ..errors import TlaotError
from ..explain import explain
from ..github import annotate_error
from ..paint import paint_for
from . import (
    cache,
    capture,
    check,
    clean,
    completion,
    diff,
    doctor,
    include,
    init,
    inspect,
    lock,
    report,
    retune,
    seal,
    split,
    tune,
)
from .parser import Parser

__all__ = ["STATUSES", "main", "make_parser"]

STATUSES = {
    0: "done, and in order",
    1: "done, and what was asked about is not in order: of each command that has it the reference says when",
    2: "not done: the command line, a file, a setting or a tool is wrong, or a build or a tuning failed",
    70: "a bug of tlaot's, with a traceback",
    130: "interrupted (Ctrl-C)",
}
"""What an exit status means, of every command."""

# By purpose: a start; tuning; what was packaged; what tuning keeps; the command itself.
_COMMANDS = (
    init, capture, doctor, lock, tune, check, diff, inspect, report, seal, split, retune, include, cache, clean, completion,
)  # fmt: skip

_DESCRIPTION = "Tune kernels when a package is built, and look into what was packaged."
_EXAMPLES = """\
examples:
  tlaot init
  tlaot inspect dist/my_package-1.0-py3-none-manylinux_2_5_x86_64.whl
  tlaot check dist/*.whl
  tlaot diff old.whl new.whl --max-slowdown 1.05
  tlaot COMMAND --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status, one of :data:`STATUSES`."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    if not words:
        parser.print_help()
        return 0
    options = parser.parse_args(words)
    if "run" not in options:
        parser.error("a command is missing")
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except TlaotError as error:
        folder = _folder_of(options)
        paint = paint_for(sys.stderr)
        print(f"{paint('tlaot:', 'bad')} {explain(error, folder, paint)}", file=sys.stderr)
        annotate_error(error, folder)
        return 2
    except BrokenPipeError:
        # `tlaot inspect ... | head`. What is left in the buffer must go somewhere when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A folder that nobody may read, a file that goes while it is looked at, a full disk.
        print(f"tlaot: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        print(f"tlaot: this is a bug of tlaot {__version__}; please report it with the lines above", file=sys.stderr)
        return 70
    return status


def _folder_of(options: argparse.Namespace) -> Path:
    """Where the project's files lie that an error may be about."""
    spec: Path | None = getattr(options, "spec", None)
    project = getattr(options, "project", None)
    return spec.absolute().parent if spec is not None else project if isinstance(project, Path) else Path.cwd()


def make_parser() -> Parser:
    """The parser with all commands."""
    parser = Parser(prog="tlaot", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"tlaot {__version__}")
    # Not required: a misspelt option before it is what is wrong, not that there is no command.
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser
