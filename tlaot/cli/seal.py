"""``tlaot seal``: accept a deliberate change of packaged files."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ..audit import seal
from .parser import add_json
from .spelling import counted

__all__ = ["add"]

_HELP = "write new digests after packaged files were changed on purpose (strip, patchelf...)"
_DESCRIPTION = """\
Writes new digests into the manifest, variant.json and RECORD of packaged kernels whose files were changed on purpose: stripped, given
another search path, repaired. Refuses, and writes nothing, where anything but digests is wrong with them. A wheel is written anew.
"""
_EXAMPLES = """\
examples:
  tlaot seal dist/my_package-1.0-py3-none-manylinux_2_5_x86_64.whl
  tlaot seal debian/python3-my-package/usr/lib/python3/dist-packages/my_package
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("seal", help=_HELP, description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("what", metavar="WHEEL|PACKAGE|FOLDER", help="whose files were changed")
    parser.add_argument("--no-load", action="store_true", help="do not load the binaries in a fresh process")
    add_json(parser, "a list with one object a package")
    parser.set_defaults(run=_seal)


def _seal(options: argparse.Namespace) -> int:
    every = seal(options.what, load=not options.no_load)
    if options.json:
        print(json.dumps([asdict(sealed) for sealed in every], indent=1, sort_keys=True))
        return 0
    for sealed in every:
        print(f"{sealed.label}: {counted(len(sealed.changed), 'changed file')}")
        for line in sealed.changed:
            print(f"  {line}")
        print(f"  written: {', '.join(sealed.written)}" if sealed.written else "  nothing to do: every digest is right")
    return 0
