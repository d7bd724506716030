"""The ``tlaot`` command: look into what was packaged, and check it; look after the cache of tuned results.

``inspect``, ``check`` and ``seal`` take the import name of an installed package or the path of a wheel or a folder; none imports the
package or touches a device. ``check`` and ``seal`` load the binaries, in a process of their own. Nor does ``cache`` do any of it.

Each command is a module of this package whose ``add`` puts it among the parser's; what it needs beyond wheels it imports
when it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import TlaotError
from . import cache, check, inspect, seal, split

__all__ = ["main"]

_COMMANDS = (check, inspect, seal, split, cache)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 1 where a check failed, 2 where it could not be made."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        status: int = options.run(options)
    except TlaotError as error:
        print(f"tlaot: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `tlaot inspect ... | head`
        sys.stderr.close()
        return 0
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tlaot", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--version", action="version", version=f"tlaot {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser
